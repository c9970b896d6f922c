"""What training steps ask of a GPU or a TPU that is not there, as its own compiler compiles them: ours beside others.

    python -m benchmarks.accelerators [--big-vision CHECKOUT] [--only TEXT] [--sides ours,big_vision,flax] [--json OUT]

Compiled in one run for one target, with the same loss, optimizer, batch and dtypes: our step, with fused and with plain
attention, that of big_vision's ViT from a checkout of it, and that of the same network in flax's layers. Bytes are what
all kernels of a step read and write on one device: an upper bound, since what a cache still holds counts too.
Temporaries are what a step holds at once besides state and batch. Nothing is executed: none of it is a time.

An environment has the compiler of one kind of device (pip install '.[plan-cuda12]' or '.[plan-tpu]'). Rows for the
other are left out; with --json they stay as an earlier run wrote them.
"""

from __future__ import annotations

import argparse
import datetime
import importlib.metadata
import json
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))  # the checkout's own code, however this is started

from benchmarks.sides import deterministic
from vit_jax.augmentation.config import ImageAugment
from vit_jax.config.run import LossConfig, OptimConfig, RunConfig
from vit_jax.data.images.config import ImageData
from vit_jax.data.texts.config import SentenceData
from vit_jax.errors import UserError
from vit_jax.files.atomic import write_json
from vit_jax.machine.targets import Target, prepare, read_target
from vit_jax.models.transformer_config import TransformerConfig
from vit_jax.models.vit_config import sized_config
from vit_jax.tasks.table import task_spec

TOKENS = 64  # of each sentence, on both sides
IDS = 58101  # of opus-mt-en-de
SIDES = {
    "ours": "ours",
    "plain": "ours, plain attention",
    "big_vision": "big_vision",
    "flax": "flax's layers",
}


@dataclass(frozen=True)
class Case:
    """A run without dropout and augmentation, for which each side's step is compiled for a target."""

    name: str
    target: str
    run: RunConfig


def vit(name: str, batch: int, **fields: Any) -> RunConfig:
    """A ViT in bfloat16."""
    run = deterministic(RunConfig("classify", sized_config(name), ImageData(), ImageAugment()), batch)
    return replace(run, compute_dtype="bfloat16", **fields)


def opus(batch: int) -> RunConfig:
    """A translator of the size of opus-mt-en-de in bfloat16."""
    model = TransformerConfig(
        width=512, heads=8, hidden=2048, encoder_depth=6, decoder_depth=6, activation="silu", norm_first=False,
        final_norm=False, eps=1e-5, position="concatenated", scale_embedding=True, tie="all",
        source_vocabulary=IDS, target_vocabulary=IDS, outputs=IDS,
    )  # fmt: skip
    optim = OptimConfig(lr=1e-4, weight_decay=0.05, schedule="constant")
    data = SentenceData(lengths=(TOKENS,), tokens=batch * TOKENS)
    run = RunConfig("translate", model, data, ImageAugment(), optim=optim, loss=LossConfig())
    return replace(run, batch=batch, compute_dtype="bfloat16")


CASES = (
    Case("ViT-B/16, batch 256", "h100", vit("vit-b16", 256)),
    Case("ViT-S/16, batch 512", "h100", vit("vit-s16", 512)),
    Case("ViT-L/16, batch 256, remat", "h100", vit("vit-l16", 256, remat="full", scan=True)),
    Case(f"opus-mt's size, batch 256 of {TOKENS} + {TOKENS} tokens", "h100", opus(256)),
    Case("ViT-S/16, batch 256", "v5e:2x2", vit("vit-s16", 256)),
)


def batch_of(run: RunConfig) -> dict[str, Any]:
    """The shapes of a training batch."""
    from jax import ShapeDtypeStruct

    return {name: ShapeDtypeStruct(*each) for name, each in task_spec(run.task).stand_in(run).batch.items()}


def trace(side: str, case: Case, target: Target, checkout: Path | None) -> Any:
    """The step of a side, traced; None where it has no such network."""
    from benchmarks import peers
    from vit_jax.extras.plan.steps import Compiled

    run, batch = case.run, batch_of(case.run)
    if side in ("ours", "plain"):
        run = replace(run, attention_kernel="plain") if side == "plain" else run
        return Compiled(run, target).trace("train")
    if side == "flax":
        program = peers.flax(run, batch, target.devices)
    elif checkout is None or run.task != "classify":
        return None
    else:
        program = peers.big_vision(run, batch, target.devices, checkout)
    return program.step.trace(*program.arguments)


def measure(side: str, case: Case, target: Target, checkout: Path | None, texts: Path | None) -> dict[str, Any] | None:
    """What the step of a side asks of one device; None where it has no such network."""
    from vit_jax.extras.plan.program import read_program

    began, traced = time.monotonic(), trace(side, case, target, checkout)
    if traced is None:
        return None
    compiled = target.compile(traced)
    if texts is not None:
        (texts / f"{case.run.model.width}-{case.target.replace(':', '-')}-{side}.txt").write_text(compiled.as_text())
    found = read_program(compiled)
    return {
        "bytes": found.bytes + found.on_chip,
        "on_chip": found.on_chip,
        "temporaries": found.memory.temporaries,
        "kernels": found.count,
        "fused": found.attention,
        "compiling": round(time.monotonic() - began),
        "date": datetime.date.today().isoformat(),
        "versions": {name: importlib.metadata.version(name) for name in ("jax", "jaxlib", "flax", "optax")},
    }


def table(found: dict[str, dict[str, dict[str, Any]]]) -> str:
    """Markdown of {case: {side: what it asks}}, with ours as a share of each of the others."""
    head = "| network, batch, target | side | GB moved | ours / it | temporaries, GiB | ours / it | kernels |"
    lines = [head, "|---|---|---|---|---|---|---|"]
    for case, rows in found.items():
        for side in filter(rows.get, SIDES):
            row, best, shares = rows[side], rows.get("ours"), ["", ""]
            if best and side != "ours":
                shares = [f"{best[name] / row[name]:.2f}" for name in ("bytes", "temporaries")]
            inside = f", {row['on_chip'] / 1e9:.1f} of it inside the core" if row.get("on_chip") else ""
            cells = (case, SIDES[side], f"{row['bytes'] / 1e9:.1f}{inside}", shares[0])
            cells += (f"{row['temporaries'] / 2**30:.2f}", shares[1], f"{row['kernels']:,}")
            lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--big-vision", type=Path, help="a checkout of google-research/big_vision")
    parser.add_argument("--only", default="", help="the networks and targets that contain this, such as B/16 or v5e")
    parser.add_argument("--sides", default=",".join(SIDES), help=f"some of {','.join(SIDES)}")
    parser.add_argument("--json", type=Path, help="a file of all results, to which those of this run are added")
    parser.add_argument("--texts", type=Path, help="a folder for the compiled programs as text")
    o = parser.parse_args()
    found = json.loads(o.json.read_text()) if o.json and o.json.exists() else {}
    for case in CASES:
        name = f"{case.name}, {case.target}"
        if o.only.lower() not in name.lower():
            continue
        target = read_target(case.target)
        try:
            prepare(target)
        except UserError as error:
            print(f"{name}: left out: {error}", file=sys.stderr)
            continue
        for side in o.sides.split(","):
            if (row := measure(side, case, target, o.big_vision, o.texts)) is None:
                continue
            found.setdefault(name, {})[side] = row
            print(f"{name}: {SIDES[side]}: compiled in {row['compiling']} s", file=sys.stderr, flush=True)
            if o.json:
                write_json(o.json, found)
    print(table(found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
