"""The table of presets; `vit-SIZEPATCH`, such as vit-s16, and `PRESET-RECIPE` are made when they are asked for."""

from __future__ import annotations

from collections.abc import Callable

from ..config.hints import nearest
from ..errors import UserError
from ..models.sizes import is_sized, size_of
from ..plugins import Plugin, Table
from . import given
from .entry import Preset
from .variants import VARIANTS, with_variant

PRESETS: Table[Callable[[], Preset]] = Table(
    "preset",
    "presets",
    {
        "digits": Plugin("vit_jax.presets.images:digits"),
        "numbers": Plugin("vit_jax.presets.text:numbers"),
        "shapes": Plugin("vit_jax.presets.text:shapes"),
        "coco-caption": Plugin("vit_jax.extras.vectors.spec:coco_caption"),
        "multi30k": Plugin("vit_jax.presets.text:multi30k"),
        "multi30k-tiny": Plugin("vit_jax.presets.text:multi30k_tiny"),
        "transformer-512x6": Plugin("vit_jax.presets.text:transformer_512x6"),
        "denoise": Plugin("vit_jax.presets.text:denoise"),
        "mnist": Plugin("vit_jax.presets.images:mnist"),
        "mnist-stem": Plugin("vit_jax.presets.images:mnist_stem"),
        "mnist-20x1": Plugin("vit_jax.presets.images:mnist_20x1"),
        "cifar10-48x4": Plugin("vit_jax.presets.images:cifar10_48x4"),
        "cifar10-48x4-distil": Plugin("vit_jax.presets.images:cifar10_48x4_distil"),
        "cifar10-stem": Plugin("vit_jax.presets.images:cifar10_stem"),
        "cifar10-128x6": Plugin("vit_jax.presets.images:cifar10_128x6"),
        "cifar10-128x6-gap": Plugin("vit_jax.presets.images:cifar10_128x6_gap"),
        "cifar10-256x6": Plugin("vit_jax.presets.images:cifar10_256x6"),
        "cifar100-256x24": Plugin("vit_jax.presets.images:cifar100_256x24"),
        "cifar100-768x3": Plugin("vit_jax.presets.images:cifar100_768x3"),
        "vit-1024x6": Plugin("vit_jax.presets.images:vit_1024x6"),
        "distil-1024x6": Plugin("vit_jax.presets.images:distil_1024x6"),
        "finetune": Plugin("vit_jax.presets.given:finetune"),
    },
)
DEFAULT, FINETUNE = "digits", "finetune"  # the preset of a command that names none, and with --init


def is_preset(name: str) -> bool:
    """Whether `preset` knows this name."""
    return name in VARIANTS or is_sized(name) or name in PRESETS


def preset(name: str) -> Preset:
    """The preset with this name."""
    if not isinstance(name, str):
        raise UserError("name", f"is {name!r:.40}", "give the name of a preset, such as 'digits'")
    if name in VARIANTS:
        base, kind = VARIANTS[name]
        return with_variant(PRESETS[base](), base, kind)
    if is_sized(name):
        return given.published_preset(name)
    if name in PRESETS:
        made = PRESETS[name]
        with PRESETS.blaming(name):
            return made()
    if ours := size_of(name):
        raise UserError(f"there is no preset {name[:60]!r}", remedy=f"here it is {ours}")
    known = [*PRESETS.plugins(), *VARIANTS, "vit-s16", "vit-b16", "vit-b32"]
    raise UserError(f"there is no preset {name[:60]!r}{nearest(name, known)}")
