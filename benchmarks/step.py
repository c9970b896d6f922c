"""Our training step against the same network written with flax's own layers, both in one process.

    python -m benchmarks.step [--nets 48x4,256x6,s16] [--rounds 8] [--json OUT]

Both take the same uint8 batch, start from the same weights and do AdamW at a constant rate, without
dropout or clipping. Ours is the compiled step of vit_jax.step.Engine as the trainer runs it, with the
metrics that it logs (accuracy, three norms); theirs is benchmarks/plain.py and returns the loss alone.
A round is a block of steps of each, in changing order; a ratio is theirs / ours of a round's medians.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))  # the checkout's own code, however this is started

from benchmarks.machine import Cost, describe, heading, load, measure, spread
from vit_jax import backend, runs
from vit_jax.config import AugmentConfig, LossConfig, OptimConfig, RunConfig, ViTConfig
from vit_jax.presets import preset, sized

MEAN, STD = (0.49, 0.48, 0.45), (0.25, 0.24, 0.26)
GOALS = {"48x4": 1.3, "256x6": 1.1, "s16": 1.0}


def configs() -> dict[str, RunConfig]:
    """The compared runs."""
    return {
        "48x4": quiet(preset("cifar10-48x4").run, 128),
        "256x6": quiet(preset("cifar10-256x6").run, 64),
        "s16": quiet(RunConfig(model=sized("vit-s16")), 4),
    }


def quiet(run: RunConfig, batch: int) -> RunConfig:
    """A run without dropout, augmentation, smoothing, clipping and schedule."""
    off: dict[str, Any] = {name: 0.0 for name in ("dropout", "attention_dropout", "activation_dropout", "embedding_dropout", "head_dropout")}
    return replace(
        run, model=replace(run.model, classes=run.model.classes or 10, **off), batch=batch, augment=AugmentConfig(),
        loss=LossConfig(), optim=OptimConfig(lr=1e-4, weight_decay=0.05, schedule="constant"),
    )  # fmt: skip


def ours(run: RunConfig, batch: dict[str, Any], parameters: dict[str, Any]) -> Callable[[], Any]:
    """A function that does one step of ours and waits for it."""
    import jax

    from vit_jax.optim import Optimizer
    from vit_jax.step import Engine
    from vit_jax.tasks import task
    from vit_jax.vit import definition

    engine = Engine(run, definition(run.model, dtype=run.compute_dtype), task(run, MEAN, STD), Optimizer(run.optim, 10**6, 10**3))
    state = engine.start(parameters)

    def step() -> Any:
        nonlocal state
        state, metrics = engine.train(state, batch)
        jax.block_until_ready(state)
        return metrics["loss"]

    return step


def theirs(run: RunConfig, batch: dict[str, Any], parameters: dict[str, Any], nnx_jit: bool = False) -> Callable[[], Any]:
    """A function that does one step of flax's layers and waits for it."""
    import jax
    from flax import nnx

    from benchmarks.plain import PlainViT, Trainer
    from benchmarks.plain import load as fill

    model = PlainViT(run.model, nnx.Rngs(0))
    fill(model, runs.flatten(parameters), run.model)
    trainer = Trainer(model, run.optim, MEAN, STD, nnx_jit)

    def step() -> Any:
        value = trainer.step(batch["image"], batch["label"])
        jax.block_until_ready(nnx.state(model) if nnx_jit else trainer.parameters)
        return value

    return step


def data(model: ViTConfig, batch: int) -> dict[str, Any]:
    """Random images and labels."""
    import numpy as np

    draw = np.random.default_rng(0)
    size = model.image if isinstance(model.image, int) else model.image[0]
    return {
        "image": draw.integers(0, 256, (batch, size, size, model.channels), dtype=np.uint8),
        "label": draw.integers(0, model.classes, batch).astype(np.int32),
    }


def interleave(works: dict[str, Callable[[], Any]], rounds: int, seconds: float) -> dict[str, list[Cost]]:
    """{name: cost of each round}: in every round a block of each work, about `seconds` long, in changing order."""
    for work in works.values():  # compiled already; the second call is like all others
        work()
    slowest = max(measure(work, 1).median for work in works.values())
    times = max(2, round(seconds / slowest))
    costs: dict[str, list[Cost]] = {name: [] for name in works}
    for i in range(rounds):
        for name in list(works)[:: 1 if i % 2 else -1]:
            works[name]()  # not counted: it finds the other's data in the caches
            costs[name].append(measure(works[name], times))
    return costs


def compare(name: str, run: RunConfig, rounds: int, nnx_jit: bool) -> dict[str, Any]:
    """One net: print and return its row."""
    import jax

    from vit_jax.vit import start

    batch, parameters = data(run.model, run.batch), start(run.model, jax.random.key(0))
    began = time.perf_counter()
    works = {"ours": ours(run, batch, parameters), "flax": theirs(run, batch, parameters, nnx_jit)}
    first = {side: float(work()) for side, work in works.items()}
    if abs(first["ours"] - first["flax"]) > 1e-4:
        raise SystemExit(f"{name}: the two are not the same network, their first losses are {first}")
    began = time.perf_counter() - began
    costs = interleave(works, rounds, 1.5)
    ratios = [t.median / o.median for o, t in zip(costs["ours"], costs["flax"], strict=True)]
    cpu = [(t.cpu / len(t.seconds)) / (o.cpu / len(o.seconds)) for o, t in zip(costs["ours"], costs["flax"], strict=True)]
    row: dict[str, Any] = {side: sum(all_[1:], all_[0]).summary() for side, all_ in costs.items()}
    row |= {"net": name, "batch": run.batch, "rounds": ratios, **spread(ratios), "cpu_ratio": spread(cpu)["ratio"], "load": load(), "loss": first}
    row["min_ratio"] = row["flax"]["min_ms"] / row["ours"]["min_ms"]
    for side in works:
        s = row[side]
        print(f"{name:6} {side:5} median {s['median_ms']:7.1f} ms  min {s['min_ms']:7.1f} ms  CPU {s['cpu_ms']:7.1f} ms  faults {s['faults']:7.0f} a step")
    print(
        f"{name:6} speed of ours / flax: {row['ratio']:.2f} [{row['low']:.2f}..{row['high']:.2f}] in {rounds} rounds, of minimums {row['min_ratio']:.2f}, "
        f"of CPU time {row['cpu_ratio']:.2f}; goal {GOALS[name]}; load {row['load']}; compiled in {began:.0f} s",
        flush=True,
    )
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nets", default="48x4,256x6,s16", help="which of 48x4, 256x6, s16")
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--activation", default="", help="another mlp activation on both sides, such as gelu; the presets' own if empty")
    parser.add_argument("--nnx-jit", action="store_true", help="theirs under nnx.jit with nnx.Optimizer instead of split/merge")
    parser.add_argument("--json", default="", help="file to write all figures to")
    o = parser.parse_args()
    if unknown := set(o.nets.split(",")) - set(GOALS):
        parser.error(f"--nets: there is no {', '.join(unknown)}; there are {', '.join(GOALS)}")
    backend.prepare()
    machine = describe()
    print(heading(machine), flush=True)
    rows = []
    for name in o.nets.split(","):
        run = configs()[name]
        if o.activation:
            run = replace(run, model=replace(run.model, activation=o.activation))
        rows.append(compare(name, run, o.rounds, o.nnx_jit))
    if o.json:
        Path(o.json).write_text(json.dumps({"machine": machine, "command": " ".join(sys.argv), "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
