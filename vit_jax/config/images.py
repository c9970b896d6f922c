"""What a run on images has: its data, its augmentation, and what config.json keeps so that its network can be used without them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args, get_type_hints

from .fields import execution, identity
from .run import AugmentConfig, DataConfig


@dataclass(frozen=True)
class ImageData(DataConfig):
    """Where images come from, and how one meets the network's size."""

    source: str = identity(
        "digits", "digits, a prepared TFDS set by name (mnist, cifar10, ...), folder:PATH or FILE.npz"
    )
    dir: str = execution("", "folder that holds prepared TFDS sets; empty: TFDS's own (~/tensorflow_datasets)")
    fit: Literal["crop", "stretch", "pad"] = identity(
        "crop",
        "an image of another shape is scaled to cover and cut at its centre, stretched, or scaled to fit and padded",
    )
    size: int = identity(0, "shorter side, in pixels, that crop scales to first; 0: just enough to cover")
    interpolation: Literal["bilinear", "bicubic", "nearest"] = identity(
        "bilinear", "kernel that resizes images (antialiased)"
    )
    background: int = identity(255, "grey level under transparent pixels and around padded images, 0-255")
    skip_unreadable: bool = identity(False, "leave unreadable images out (they are counted) instead of stopping")
    memory: float = execution(4.0, "gigabytes; a set that needs less is decoded once and kept")
    threads: int = execution(0, "threads that decode images; 0: one a core")


@dataclass(frozen=True)
class ImageAugment(AugmentConfig):
    """What happens to training images on the device, and how all images are normalised."""

    crop_padding: int = identity(0, "pixels of padding from which a random crop of the image's size is taken; 0: none")
    flip: bool = identity(False, "flip left and right at random")
    normalize: Literal["set", "half", "imagenet", "none"] = identity(
        "set", "mean and std taken from pixels in 0..1: of the training set, 0.5, ImageNet's, or 0 and 1"
    )


# How an image may be fitted to another size, and by which kernels.
FITS, KERNELS = (get_args(get_type_hints(ImageData)[name]) for name in ("fit", "interpolation"))


def is_preprocess(value: Any) -> bool:
    """Whether a JSON value is a preprocessing, as `data.images.Preprocess.to_dict` writes it."""
    kinds = {
        "image": list,
        "channels": int,
        "fit": str,
        "size": int,
        "interpolation": str,
        "background": int,
        "mean": list,
        "std": list,
    }
    return (
        isinstance(value, dict)
        and value.keys() == kinds.keys()
        and all(isinstance(value[key], kind) for key, kind in kinds.items())
        and _numbers(value["image"], 2)
        and all(_numbers(value[key], value["channels"]) for key in ("mean", "std"))
    )


def _numbers(value: Any, count: Any) -> bool:
    return isinstance(value, list) and len(value) == count and all(isinstance(each, int | float) for each in value)


def numbered_classes(count: int) -> list[str]:
    """What classes are called of which nobody knows the names."""
    return [str(k) for k in range(count)]


def other_classes(theirs: Sequence[str], ours: Sequence[str]) -> str:
    """A clause where two networks' classes are as many but not the same; none where either only numbers them."""
    unnamed = numbered_classes(len(ours))
    if len(theirs) != len(ours) or list(theirs) == list(ours) or unnamed in (list(theirs), list(ours)):
        return ""
    k = next(k for k, pair in enumerate(zip(theirs, ours, strict=True)) if pair[0] != pair[1])
    return f"its class {k} is {theirs[k]!r} and here it is {ours[k]!r}"
