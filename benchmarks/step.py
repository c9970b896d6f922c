"""The training step of vit_jax compared with the same network in flax's layers and in PyTorch, all in one process.

    python -m benchmarks.step [--nets 48x4,256x6,s16] [--against flax,torch,compile] [--rounds 8] [--json OUT]

All sides start from the same weights, take the same uint8 batch and do AdamW at a constant rate, without dropout or
clipping:

ours     vit_jax: the compiled step of vit_jax.step.Engine as in training, with the metrics that it logs
flax     benchmarks/plain.py, which returns the loss alone
torch    the model of torch_ref, eager, which returns the loss alone
compile  the same under torch.compile

A round is a block of steps of each side, in alternating order. A ratio is the median time of a side in a round over
that of ours, so above 1 ours is faster. The memory allocator is the same for all sides, since they share a process.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))  # the checkout's own code, however this is started

from benchmarks.machine import Cost, describe, heading, load, measure, spread
from vit_jax import backend, config, runs
from vit_jax.config import ImageAugment, ImageData, LossConfig, OptimConfig, RunConfig, ViTConfig, sized
from vit_jax.presets import preset

MEAN, STD = (0.49, 0.48, 0.45), (0.25, 0.24, 0.26)
# The ratios to reach. Those against PyTorch depend on the maker of the CPU: its library is faster on Intel's.
GOALS: dict[str, dict[str, float]] = {
    "flax": {"48x4": 1.3, "256x6": 1.1, "s16": 1.0},
    "torch on Intel": {"48x4": 0.78, "256x6": 0.80, "s16": 1.0},
    "torch on AMD": {"48x4": 1.0, "256x6": 1.3, "s16": 1.3},
}
SIDES = ("flax", "torch", "compile")


def configs() -> dict[str, RunConfig]:
    """{net: its run}."""
    return {
        "48x4": deterministic(preset("cifar10-48x4").run, 128),
        "256x6": deterministic(preset("cifar10-256x6").run, 64),
        "s16": deterministic(RunConfig("classify", sized("vit-s16"), ImageData(), ImageAugment()), 4),
    }


def deterministic(run: RunConfig, batch: int) -> RunConfig:
    """The run with this batch and without dropout, augmentation, label smoothing, clipping and schedule."""
    off: dict[str, Any] = {
        name: 0.0
        for name in ("dropout", "attention_dropout", "activation_dropout", "embedding_dropout", "head_dropout")
    }
    return replace(
        run,
        model=replace(run.model, classes=run.model.classes or 10, **off),
        batch=batch,
        augment=ImageAugment(),
        loss=LossConfig(),
        optim=OptimConfig(lr=1e-4, weight_decay=0.05, schedule="constant"),
    )


def vit_jax_step(run: RunConfig, batch: dict[str, Any], parameters: dict[str, Any]) -> Callable[[], Any]:
    """A function that does one step of vit_jax, waits for it and returns the loss."""
    import jax

    from vit_jax.models import definition
    from vit_jax.optim import Optimizer
    from vit_jax.step import Engine
    from vit_jax.tasks.classify import Classify

    task = Classify(ImageAugment(), MEAN, STD, run.loss.label_smoothing)
    optimizer = Optimizer(run.optim, 10**6, 10**3, config.parameters(run.model))
    engine = Engine(run, definition(run.model, dtype=run.compute_dtype), task, optimizer)
    state = engine.start(parameters)

    def step() -> Any:
        nonlocal state
        state, metrics = engine.train(state, batch)
        jax.block_until_ready(state)
        return metrics["loss"]

    return step


def flax_step(
    run: RunConfig, batch: dict[str, Any], parameters: dict[str, Any], nnx_jit: bool = False
) -> Callable[[], Any]:
    """A function that does one step of the network in flax's layers, waits for it and returns the loss."""
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


def torch_step(run: RunConfig, batch: dict[str, Any], parameters: dict[str, Any], compiled: bool) -> Callable[[], Any]:
    """A function that does one step of the model of torch_ref and returns the loss; only kernels have weight decay."""
    import numpy as np
    import torch
    from torch.nn import functional as F

    import torch_ref

    model = torch_ref.load(
        torch_ref.build(run.model), {k: np.asarray(v) for k, v in runs.flatten(parameters).items()}
    ).train()
    decays = [p for name, p in model.named_parameters() if p.ndim > 1 and name != "position"]
    rest = [p for name, p in model.named_parameters() if p.ndim < 2 or name == "position"]
    o = run.optim
    groups = [{"params": decays, "weight_decay": o.weight_decay}, {"params": rest, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=o.lr, betas=(o.beta1, o.beta2), eps=o.eps)
    mean, std = (torch.tensor(x).view(-1, 1, 1) for x in (MEAN, STD))
    labels, images = torch.from_numpy(batch["label"]).long(), torch.from_numpy(batch["image"])

    def loss(images: Any, labels: Any) -> Any:
        return F.cross_entropy(model((images.permute(0, 3, 1, 2).float() / 255 - mean) / std), labels)

    differentiated = torch.compile(loss) if compiled else loss

    def step() -> Any:
        optimizer.zero_grad()
        value = differentiated(images, labels)
        value.backward()
        optimizer.step()
        return value.detach()

    return step


def data(model: ViTConfig, batch: int) -> dict[str, Any]:
    """A batch of random images and labels."""
    import numpy as np

    draw = np.random.default_rng(0)
    size = model.image if isinstance(model.image, int) else model.image[0]
    return {
        "image": draw.integers(0, 256, (batch, size, size, model.channels), dtype=np.uint8),
        "label": draw.integers(0, model.classes, batch).astype(np.int32),
    }


def interleave(works: dict[str, Callable[[], Any]], rounds: int, seconds: float) -> dict[str, list[Cost]]:
    """{name: cost in each round}: every round calls each function for about `seconds`, in alternating order."""
    for work in works.values():  # the first call compiled; a second one shows no special costs any more
        work()
    slowest = max(measure(work, 1).median for work in works.values())
    times = max(2, round(seconds / slowest))
    costs: dict[str, list[Cost]] = {name: [] for name in works}
    for i in range(rounds):
        for name in list(works)[:: 1 if i % 2 else -1]:
            works[name]()  # not counted: the caches still hold the data of the one before
            costs[name].append(measure(works[name], times))
    return costs


def goal(side: str, net: str, cpu: str) -> str:
    """The ratio to reach, as text; '' if there is none for this side and CPU."""
    maker = "Intel" if "Intel" in cpu else "AMD" if "AMD" in cpu else "?"
    table = GOALS["flax"] if side == "flax" else GOALS.get(f"torch on {maker}", {})
    return f"; goal {table[net]}" if net in table and side != "compile" else ""


def build(name: str, run: RunConfig, sides: list[str], nnx_jit: bool) -> dict[str, Callable[[], Any]]:
    """{side: a function that does one step}, from the same weights on the same batch; each is compiled already."""
    import jax

    from vit_jax.models import start

    batch, parameters = data(run.model, run.batch), start(run.model, jax.random.key(0))
    works = {"ours": vit_jax_step(run, batch, parameters)}
    if "flax" in sides:
        works["flax"] = flax_step(run, batch, parameters, nnx_jit)
    for side in sides:
        if side != "flax":
            works[side] = torch_step(run, batch, parameters, side == "compile")
    first = {side: float(work()) for side, work in works.items()}
    if max(first.values()) - min(first.values()) > 1e-4:
        raise SystemExit(f"{name}: the sides do not compute the same network, their first losses are {first}")
    return works


def compare(name: str, run: RunConfig, sides: list[str], rounds: int, nnx_jit: bool, cpu: str) -> dict[str, Any]:
    """Measure one net, print the results and return them."""
    began = time.perf_counter()
    works = build(name, run, sides, nnx_jit)
    began = time.perf_counter() - began
    costs = interleave(works, rounds, 1.5)
    row: dict[str, Any] = {"net": name, "batch": run.batch, "load": load(), "ratios": {}}
    for side, rows in costs.items():
        s = row[side] = sum(rows[1:], rows[0]).summary()
        print(
            f"{name:6} {side:7} median {s['median_ms']:7.1f} ms  min {s['min_ms']:7.1f} ms  "
            f"CPU {s['cpu_ms']:7.1f} ms  page faults {s['faults']:7.0f}, per step"
        )
    for side in sides:
        ratios = [t.median / o.median for o, t in zip(costs["ours"], costs[side], strict=True)]
        r = row["ratios"][side] = {
            **spread(ratios),
            "rounds": ratios,
            "of_cpu": row[side]["cpu_ms"] / row["ours"]["cpu_ms"],
        }
        print(
            f"{name:6} speed of ours / {side}: {r['ratio']:.2f} [{r['low']:.2f}..{r['high']:.2f}] in {rounds} rounds, "
            f"by the fastest steps {row[side]['min_ms'] / row['ours']['min_ms']:.2f}, "
            f"by CPU time {r['of_cpu']:.2f}{goal(side, name, cpu)}"
        )
    print(f"{name:6} load {row['load']}; all compiled in {began:.0f} s", flush=True)
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nets", default="48x4,256x6,s16", help="which of 48x4, 256x6, s16")
    parser.add_argument("--against", default="", help="which of flax, torch, compile; empty: all that are installed")
    parser.add_argument("--rounds", type=int, default=8, help="blocks of steps of each side")
    parser.add_argument(
        "--activation", default="", help="another mlp activation on all sides, such as gelu; empty: the presets' own"
    )
    parser.add_argument(
        "--nnx-jit", action="store_true", help="flax under nnx.jit with nnx.Optimizer instead of split/merge"
    )
    parser.add_argument("--json", default="", help="file to write all results to")
    o = parser.parse_args()
    if unknown := set(o.nets.split(",")) - set(GOALS["flax"]):
        parser.error(f"--nets: there is no {', '.join(unknown)}; there are {', '.join(GOALS['flax'])}")
    sides = (
        o.against.split(",")
        if o.against
        else [side for side in SIDES if side == "flax" or importlib.util.find_spec("torch")]
    )
    if unknown := set(sides) - set(SIDES):
        parser.error(f"--against: there is no {', '.join(unknown)}; there are {', '.join(SIDES)}")
    backend.configure_jax()
    machine = describe()
    print(heading(machine), flush=True)
    rows = []
    for name in o.nets.split(","):
        run = configs()[name]
        if o.activation:
            run = replace(run, model=replace(run.model, activation=o.activation))
        rows.append(compare(name, run, sides, o.rounds, o.nnx_jit, machine["cpu"]))
    if o.json:
        Path(o.json).write_text(
            json.dumps({"machine": machine, "command": " ".join(sys.argv), "rows": rows}, indent=1) + "\n"
        )


if __name__ == "__main__":
    main()
