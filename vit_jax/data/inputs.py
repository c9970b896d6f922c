"""Images as Python gives them to a trained network: paths, Pillow images and arrays, one or several."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import UserError
from .images.high_bit_depth import extent_of, remark_on
from .images.preprocess import Preprocess, Unreadable, decode_image, is_wide, open_image
from .images.sources.arrays import narrowed
from .images.sources.given import eight_bits

_WANTED = "give paths, Pillow images or uint8 arrays"


class Stored:
    """An encoded image that is no file by itself, but a part of a shard or an object of a store."""

    def __init__(self, name: str, read: Callable[[], bytes]):
        self.name, self.read = name, read

    def __str__(self) -> str:
        return self.name


def list_images(images: Any, channels: int) -> tuple[list[Any], bool]:
    """Images as a list -> (the images, whether only one was given)."""
    from PIL import Image

    if isinstance(images, (str, os.PathLike, Image.Image)):
        return [images], True
    if hasattr(images, "__array__"):  # also arrays of jax and tensors of PyTorch
        array = _array(images)
        images = images if _is_tensor(images) else array
        first = (1,) if channels == 1 else (1, 3, 4, channels)  # [3, h, w] is then three grey images
        leads = _is_tensor(images) and array.ndim == 3 and array.shape[0] in first
        if leads or array.ndim == 2 or (array.ndim == 3 and array.shape[-1] in (1, 3, 4, channels)):
            return [images], True
        if array.ndim != 4 and not (array.ndim == 3 and channels == 1):
            raise UserError("images", _describe(array), "give one image [h, w] or [h, w, C], or several [n, h, w, C]")
    if not isinstance(images, Iterable):
        raise UserError("images", f"{type(images).__name__} is no image", _WANTED)
    several = list(images)
    if not several:
        raise UserError("images", "none given", "give at least one")
    return several, False


def prepare_image(image: Any, preprocess: Preprocess) -> np.ndarray:
    """The pixels of one image as a network takes them -> uint8 [h, w, C]."""
    from PIL import Image

    wanted = (*preprocess.image, preprocess.channels)
    if hasattr(image, "__array__"):
        pixels = _pixels(image, preprocess)
        if pixels.shape == wanted and preprocess.leaves_unchanged(*wanted):
            return pixels
        if not (pixels.ndim == 2 or (pixels.ndim == 3 and pixels.shape[-1] in (1, 3, 4))) or 0 in pixels.shape:
            raise UserError(
                "images", _describe(pixels), "give uint8 pixels [h, w] or [h, w, C] with 1, 3 or 4 channels"
            )
        grey = pixels.ndim == 3 and pixels.shape[-1] == 1
        return preprocess.apply(Image.fromarray(pixels[..., 0] if grey else pixels))
    if not isinstance(image, (str, os.PathLike, Image.Image, Stored)):
        raise UserError("images", f"{type(image).__name__} is no image", _WANTED)
    if preprocess.channels not in (1, 3):
        raise UserError(
            "images",
            f"this network takes {preprocess.channels} channels, which image files do not have",
            f"give uint8 arrays {list(wanted)}",
        )
    if isinstance(image, Stored):
        opened = decode_image(image.read(), image.name)
    else:
        opened = image if isinstance(image, Image.Image) else open_image(image)
    preprocess.check(opened, "images" if opened is image else str(image))
    return preprocess.apply(opened)


def wide_remarks(paths: Iterable[Any]) -> tuple[str, ...]:
    """Remarks on image files with pixels of more than 8 bits. Only these are decoded, as far as they can be read."""
    extents = []
    for path in paths:
        with contextlib.suppress(Unreadable):
            if isinstance(path, Path) and path.is_file() and is_wide(path):
                extents.append(extent_of(open_image(path)))
    return remark_on(np.array(extents).reshape(-1, 4), (), flag=False)


def _pixels(image: Any, preprocess: Preprocess) -> np.ndarray:
    """An array [h, w] or [h, w, C], or a tensor [C, h, w], as uint8 with channels last. Raises UserError."""
    pixels = _array(image)
    if _is_tensor(image):
        if pixels.ndim == 3 and pixels.shape[0] in (1, 3, 4, preprocess.channels):
            pixels = np.ascontiguousarray(pixels.transpose(1, 2, 0))
        if pixels.dtype != np.uint8 and not preprocess.range:
            return eight_bits(pixels, "images", "a tensor")
    if pixels.dtype == np.uint8:
        return pixels
    if preprocess.range:
        return narrowed("images", "an array", pixels, preprocess.range)[0]
    remedy = "give pixels as uint8, 0 to 255, or normalised ones to the network, .model"
    raise UserError("images", _describe(pixels), remedy)


def _is_tensor(images: Any) -> bool:
    """Whether it is PyTorch's, whose libraries have channels before height and width, and numbers from 0 to 1."""
    return hasattr(images, "detach")


def _array(images: Any) -> np.ndarray:
    """An array of any library as one of numpy. Raises UserError for a tensor on another device, or with a gradient."""
    try:
        return np.asarray(images)
    except (TypeError, ValueError, RuntimeError) as error:
        reason = str(error).partition("\n")[0]
        raise UserError("images", f"cannot be read ({reason})", "give them as numpy arrays") from error


def _describe(array: np.ndarray) -> str:
    return f"an array is {array.dtype} {list(array.shape)}"
