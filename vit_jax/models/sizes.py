"""Named sizes of Vision Transformers: `vit-SIZEPATCH`, such as vit-s16, vit-b32, vit-h14."""

from __future__ import annotations

import re
from typing import Any, NamedTuple

from ..config.hints import hint, names_of, nearest
from ..errors import UserError
from .vit_config import ViTConfig


class Shape(NamedTuple):
    """The sizes of a ViT: width D, depth L, hidden width of the mlp F, heads H."""

    width: int
    depth: int
    hidden: int
    heads: int


# Ti and S: Touvron et al. 2021 (DeiT, arXiv 2012.12877), table 1. B, L and H: Dosovitskiy et al. 2021 (arXiv
# 2010.11929), table 1. g: Zhai et al. 2022 (arXiv 2106.04560), table 2.
SIZES = {
    "ti": Shape(192, 12, 768, 3),
    "s": Shape(384, 12, 1536, 6),
    "b": Shape(768, 12, 3072, 12),
    "l": Shape(1024, 24, 4096, 16),
    "h": Shape(1280, 32, 5120, 16),
    "g": Shape(1408, 40, 6144, 16),
}

_NAME = re.compile(rf"vit-({'|'.join(SIZES)})([1-9][0-9]{{0,3}})", re.IGNORECASE)


def sized_config(name: str, classes: int = 1000, image: int = 224, **fields: Any) -> ViTConfig:
    """The config of a published size."""
    if not isinstance(name, str):
        raise UserError("name", f"is {name!r:.40}", "give the name of a network, such as vit-s16")
    found = _NAME.fullmatch(name)
    if found is None:
        known = [f"vit-{size}{patch}" for size in SIZES for patch in (8, 14, 16, 32)]
        raise UserError(f"there is no network {name!r}{nearest(name, known)}")
    shape = SIZES[found[1].lower()]._asdict()
    given: dict[str, Any] = {**shape, "image": image, **fields}
    own = names_of(ViTConfig(), "model.")
    for unknown in (each for each in given if f"model.{each.replace('_', '-')}" not in own):
        clause = hint(unknown, own, inside="model")
        raise UserError(unknown, f"is no argument{clause or '; those of ViTConfig are'}")
    given |= {name: tuple(value) for name, value in given.items() if isinstance(value, list)}
    return ViTConfig(patch=int(found[2]), classes=classes, **given)


def is_sized(name: str) -> bool:
    """Whether a text is `vit-SIZEPATCH`, for any patch below 10,000."""
    return _NAME.fullmatch(name) is not None


_WORDS = {"tiny": "ti", "small": "s", "base": "b", "large": "l", "huge": "h", "giant": "g", **{s: s for s in SIZES}}
_THEIRS = re.compile(rf"(?:vit|deit)[-_]?({'|'.join(_WORDS)})[-_/]?(?:patch)?([1-9]\d?)(?!\d)", re.IGNORECASE)


def size_of(name: str) -> str:
    """The size that others call vit_base_patch16_224, vit_b_16 or google/vit-base-patch16-224; '' if it is none."""
    found = _THEIRS.search(name[:100])
    return f"vit-{_WORDS[found[1].lower()]}{found[2]}" if found else ""
