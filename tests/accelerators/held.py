"""What twelve steps ask of each device, held in held.json, so that a change which costs is seen where it is made.

    python -m tests.accelerators.held [NAME ...]

writes the figures anew, of all steps or of those named whose target's compiler is installed here.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))  # the checkout's own code, however this is started

from tests.accelerators.compiling import compile_step
from vit_jax.errors import UserError
from vit_jax.extras.plan.program import Program
from vit_jax.files.atomic import write_json

FILE = Path(__file__).with_name("held.json")
TOLERANCE = 0.03
# Few blocks, all alike: what one of them costs is seen as well as in twelve, and compiles in a sixth of the time.
VIT = "--model.classes 1000 --compute-dtype bfloat16"
B16, S16 = f"vit-b16 {VIT} --model.depth 2", f"vit-s16 {VIT} --model.depth 2"
MARIAN = (
    "transformer-512x6 --model.heads 8 --model.head-width 0 --model.encoder-depth 1 --model.decoder-depth 1 "
    "--model.activation silu --model.position concatenated --model.scale-embedding --model.tie all "
    "--model.source-vocabulary 58101 --model.target-vocabulary 58101 --model.outputs 58101 "
    "--model.dropout 0 --model.attention-dropout 0 --model.activation-dropout 0 --model.embedding-dropout 0"
)
STEPS = {
    "b16": f"{B16} --batch 256 --target h100",
    "b16-plain": f"{B16} --batch 256 --target h100 --attention-kernel plain",
    "b16-float32": "vit-b16 --model.classes 1000 --model.depth 2 --batch 256 --target h100",
    "b16-evaluate": f"{B16} --batch 256 --target h100 --evaluate",
    "b16-fsdp": f"{B16} --batch 512 --target h100:8 --fsdp 8",
    "l16-remat": f"vit-l16 {VIT} --model.depth 4 --batch 256 --target h100 --scan --remat full",
    "marian": f"{MARIAN} --compute-dtype bfloat16 --data.tokens 16384 --data.lengths 64 --target h100",
    "cifar10-48x4": "cifar10-48x4 --target h100",
    "numbers-decode": "numbers --target h100 --decode",
    "s16-tpu": f"{S16} --batch 256 --target v5e:2x2",
    "s16-tpu-fsdp": f"{S16} --batch 256 --target v5e:2x2 --fsdp 4",
    "l16-pod": f"vit-l16 {VIT} --model.depth 2 --batch 4096 --target v5e:16x16 --fsdp 256 --scan --remat dots",
}


def figures(program: Program) -> dict[str, int]:
    """What is held of a program, of each device."""
    found = {"memory": program.memory.peak, "bytes": program.bytes, "kernels": program.count}
    found |= {"on chip": program.on_chip} if program.on_chip else {}
    return found | {f"{kind}, bytes": size for kind, (_, size) in program.exchanges().items()}


def differences(found: Mapping[str, int], held: Mapping[str, int]) -> list[str]:
    """What differs from what is held by more than the tolerance, in words."""
    lines = []
    for name in sorted({*found, *held}):
        now, before = found.get(name, 0), held.get(name, 0)
        if abs(now - before) > TOLERANCE * before:
            lines.append(f"{name}: {now:,}, held: {before:,}" + (f" ({now / before - 1:+.1%})" if before else ""))
    return lines


def read_held() -> dict[str, dict[str, int]]:
    """{name of STEPS: its figures}."""
    return dict(json.loads(FILE.read_text())) if FILE.exists() else {}


def main(names: list[str]) -> int:
    for name in names or STEPS:
        try:
            found = figures(compile_step(STEPS[name]))
        except UserError as error:
            print(f"{name}: as it was: {error}", file=sys.stderr)
            continue
        held: dict[str, Any] = read_held()
        print(f"{name}:", "; ".join(differences(found, held.get(name, {}))) or "as it was", flush=True)
        write_json(FILE, {each: found if each == name else held[each] for each in STEPS if each in {*held, name}})
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
