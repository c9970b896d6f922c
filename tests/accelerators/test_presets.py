"""Every preset's steps of training, evaluation and decoding compile, each for one of three targets."""

import itertools
from dataclasses import replace

import pytest

from tests.accelerators.compiling import compile_step
from tests.accelerators.conftest import need
from vit_jax.config.dotted import value_at
from vit_jax.models.vit_config import SIZES, ViTConfig
from vit_jax.presets.table import PRESETS, preset
from vit_jax.presets.variants import VARIANTS
from vit_jax.tasks.table import task_spec

# Each size and each patch once: their products differ from these in numbers alone.
SIZED = [*(f"vit-{size}16" for size in SIZES), "vit-ti8", "vit-ti14", "vit-ti32"]
IDS = "--model.source-vocabulary 9000 --model.target-vocabulary 9000 --model.outputs 9000"
# What their data would decide.
OPEN = {name: "--model.classes 1000 --model.depth 1" for name in SIZED} | {
    "vit-1024x6": "--model.classes 10", "finetune": "--model.classes 10",
    "distil-1024x6": "--model.classes 10 --model.image 32 --model.patch 8",
    "coco-caption": "--model.text.target-vocabulary 1004 --model.text.outputs 1004",
    "transformer-512x6": IDS, "denoise": IDS,
}  # fmt: skip
NAMES = [*PRESETS, *SIZED, *VARIANTS]


def is_odd(name: str) -> bool:
    """Whether eight devices do not divide the batch of a preset."""
    run = preset(name).run
    sizes = {size: value_at(run.model, size) or 8 for size in run.model.marked("from_data")}
    return task_spec(run.task).stand_in(replace(run, model=run.model.with_sizes(sizes))).rows % 8 > 0


# A TPU's compiler takes ten times as long as that of a GPU, and a recipe is its preset with another schedule.
TARGETS = dict(zip(NAMES, itertools.cycle(("h100", "h100:8", "v5e:2x2"))))
TARGETS |= dict.fromkeys((*filter(is_odd, NAMES), *VARIANTS), "h100")
# Blocks of a network are alike, and a TPU's compiler takes a minute for each.
FEW_BLOCKS = {*VARIANTS, *(name for name in NAMES if TARGETS[name] == "v5e:2x2")} - {*SIZED}
WRITE = ("numbers", "shapes", "coco-caption", "multi30k", "multi30k-tiny", "transformer-512x6", "denoise")


STEPS = [
    *itertools.product(NAMES, ("train",)),
    *itertools.product([*PRESETS, *SIZED], ("evaluate",)),  # a recipe's is its preset's
    *itertools.product(WRITE, ("decode",)),
]


@pytest.mark.parametrize(("name", "what"), STEPS)
def test_a_step_of_every_preset_compiles(name, what, request):
    need(TARGETS[name])
    words = f"{name} {OPEN.get(name, '')} --target {TARGETS[name]}"
    if isinstance(preset(name).run.model, ViTConfig) and name in FEW_BLOCKS:
        words += " --model.depth 2"
    words += f" --teacher {request.getfixturevalue('teacher')}" if "distil" in name else ""
    program = compile_step(words, what)
    assert program.flops and program.bytes and program.memory.arguments
