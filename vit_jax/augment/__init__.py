"""Training images on the device, a whole batch at a time: crops, flips, policies, erasing, mixing; normalisation.

`augment` and `mixed` are called by a task's `prepare`, once on the whole batch. Each example has its own PRNG key (a
mixed pair has one), so the draws do not depend on how a batch is cut; every draw states its dtype, so they do not
depend on jax_enable_x64. `python -m vit_jax.augment PRESET FILE.png` draws what a preset does to its images.

    crops.py       where an image is cut out, flipped and erased
    primitives.py  an affine map, a blend with a degenerate image, a table of 256 levels
    operations.py  the operations of policies as cases of these three
    policies.py    RandAugment, TrivialAugment, AutoAugment, 3-Augment as tables of operations
    mixing.py      mixup and CutMix
    command.py     the contact sheet
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .batch import augment, normalise
    from .mixing import mixed

__all__ = ["augment", "mixed", "normalise"]


def __getattr__(name: str) -> Any:  # the command's help comes without jax
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from . import batch, mixing

    return getattr(mixing if name == "mixed" else batch, name)
