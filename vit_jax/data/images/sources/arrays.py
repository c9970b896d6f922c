"""Sources whose pixels are one array, scikit-learn's digits and .npz files, and what arrays of labels are."""

from __future__ import annotations

import functools
import gzip
import importlib.util
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ....config.outputs import Outputs, numbered_classes
from ....errors import UserError
from ....files.arrays import array_sizes, read_arrays
from ....kinds.table import typed_labels
from ....machine.limits import host_memory
from ..config import SPLITS
from ..high_bit_depth import PLAIN, Extent, Kind, Range, eight_bits, range_for
from .base import Examples, Source, first_line


@dataclass
class Arrays(Examples):
    """Examples whose pixels are one array, uint8 [n, h, w] or [n, h, w, C], and whose labels are of one kind."""

    pixels: np.ndarray
    labels: np.ndarray
    title: str
    sealed: bool = False
    extent: Extent = PLAIN  # of the pixels before they became 8 bits
    kind: str = "class"

    def read(self, i: int) -> np.ndarray:
        return self.pixels[i]

    def name(self, i: int) -> str:
        return f"{self.title}[{i}]"


def open_digits() -> Source:
    """scikit-learn's 1,797 handwritten digits of 8x8 pixels, which are part of its package."""
    pixels, labels = _digits()
    return Source("digits", Outputs("class", tuple("0123456789")), {"train": Arrays(pixels, labels, "digits")})


@functools.cache
def _digits() -> tuple[np.ndarray, np.ndarray]:
    """(uint8 [1797, 8, 8], int32 [1797]), from scikit-learn's file: importing scikit-learn takes a second."""
    package = importlib.util.find_spec("sklearn")
    assert package is not None and package.origin is not None
    with gzip.open(Path(package.origin).with_name("datasets") / "data/digits.csv.gz", "rt") as file:
        rows = np.loadtxt(file, np.uint8, delimiter=",")  # 64 pixels, stored as 0..16, and the label
    pixels = np.rint(rows[:, :-1].reshape(-1, 8, 8) * (255 / 16)).astype(np.uint8)
    pixels.flags.writeable = False
    return pixels, rows[:, -1].astype(np.int32)


_CHUNK = 256  # images that become 8 bits at a time, by way of float64
# {split: pairs of names that arrays of images and labels often have, in lower case}.
_NPZ_NAMES = {
    split: tuple(pair for name in names for pair in ((f"{name}_images", f"{name}_labels"), (f"x_{name}", f"y_{name}")))
    for split, names in SPLITS.items()
}
_NPZ_NAMES["train"] += (("images", "labels"), ("image", "label"))


def open_npz(source: str, stated: Range = (), target: str = "") -> Source:
    """The arrays of an .npz file."""
    path, field = Path(os.path.expanduser(source)), f"data.source {source}"
    try:
        sizes = array_sizes(path)
        names = {split: _pair_in(sizes, known) for split, known in _NPZ_NAMES.items()}
        wanted = ["class_names", *(name for pair in names.values() if pair for name in pair)]
        _check_room(field, sum(size for name, size in sizes.items() if name in wanted))
        arrays = read_arrays(path, wanted)
    except FileNotFoundError as error:
        raise UserError(field, "no such file", "give the path of an .npz file") from error
    except MemoryError as error:
        what = "there is not enough memory for its arrays"
        raise UserError(field, what, "store fewer or smaller images") from error
    except (OSError, ValueError) as error:
        what = f"cannot be read ({first_line(error)})"
        raise UserError(field, what, "save it with numpy.savez, without object arrays") from error

    if names["train"] is None:
        what = f"its arrays are {', '.join(sizes) or 'none'}"
        raise UserError(field, what, "name them images and labels, or train_images, train_labels, ...")
    splits: dict[str, Arrays] = {}
    for split, (images, labels) in {split: pair for split, pair in names.items() if pair}.items():
        if labels not in arrays:
            raise UserError(field, f"holds {images} but no {labels}", "add that array")
        kind, both = splits["train"].kind if splits else target, (arrays[images], arrays[labels])
        splits[split] = arrays_split(field, images, *both, labels, stated, kind)
    class_names = tuple(str(name) for name in arrays["class_names"].ravel()) if "class_names" in arrays else ()
    unused = [name for name in sizes if name not in wanted]
    remarks = (f"arrays left out: {', '.join(unused)}",) if unused else ()
    return arrays_source(path.stem, class_names, splits, remarks)


def _pair_in(sizes: Mapping[str, int], known: Sequence[tuple[str, str]]) -> tuple[str, str] | None:
    """The first of the known pairs whose images are there, in letters of any case, as it is written."""
    there = {name.lower(): name for name in sizes}
    return next(((there[images], there.get(labels, labels)) for images, labels in known if images in there), None)


def _check_room(field: str, needed: int) -> None:
    """Raise UserError if arrays of this many bytes, however small they are as stored, cannot fit into memory."""
    limit = host_memory()
    if limit and needed > limit:
        what = f"its arrays take {needed / 1e9:,.1f} GB, but there are {limit / 1e9:,.1f} GB here"
        raise UserError(field, what, "store fewer or smaller images")


def arrays_split(
    field: str,
    title: str,
    pixels: np.ndarray,
    labels: np.ndarray,
    labels_title: str,
    stated: Range = (),
    target: str = "",
) -> Arrays:
    """The examples of two arrays: pixels [n, h, w], labels [n]."""
    if pixels.ndim not in (3, 4) or 0 in pixels.shape[1:] or (pixels.ndim == 4 and pixels.shape[-1] > 4):
        first = pixels.ndim == 4 and 0 < pixels.shape[1] <= 4
        raise UserError(
            field,
            f"{title} has shape {list(pixels.shape)}",
            "store images as [n, h, w] or [n, h, w, C], with at most 4 channels"
            + (", as images.transpose(0, 2, 3, 1)" if first else ""),
        )
    kind, labels = typed_labels(field, labels_title, labels, len(pixels), target)
    if pixels.dtype == np.uint8:
        return Arrays(np.ascontiguousarray(pixels), labels, title, kind=kind)
    narrow, extent = narrowed(field, title, pixels, stated)
    return Arrays(narrow, labels, title, extent=extent, kind=kind)


def narrowed(field: str, title: str, pixels: np.ndarray, stated: Range) -> tuple[np.ndarray, Extent]:
    """Pixels as 8 bits -> (uint8 of the same shape, the extent of the pixels)."""
    if pixels.dtype.kind not in "iuf" or not pixels.size:
        raise UserError(field, f"{title} is {pixels.dtype}", "store pixels as uint8, 0 to 255")
    extent = Extent(Kind.WIDE, float(pixels.min()), float(pixels.max()), np.nan)
    if fault := extent.fault(stated):
        ranges = (
            f"give {range_for(extent.least, extent.greatest)}" if np.isfinite(extent[1:3]).all() else "replace them"
        )
        raise UserError(
            field, f"{title} is {pixels.dtype} and {fault}", f"{ranges}, or store pixels as uint8{_as_uint8(pixels)}"
        )
    out = np.empty(pixels.shape, np.uint8)
    for start in range(0, len(pixels), _CHUNK):
        out[start : start + _CHUNK] = eight_bits(pixels[start : start + _CHUNK], *stated)
    return out, extent


def _as_uint8(pixels: np.ndarray) -> str:
    """How an array becomes uint8, where its values show it."""
    if not pixels.size or pixels.dtype.kind not in "fiu":
        return ""
    low, high = pixels.min(), pixels.max()
    if low >= 0 and high <= 1 and pixels.dtype.kind == "f":
        return ", as (images * 255).round().astype('uint8')"
    return ", as images.astype('uint8')" if low >= 0 and high <= 255 else ", without normalisation"


def arrays_source(
    name: str, class_names: tuple[str, ...], splits: Mapping[str, Any], remarks: tuple[str, ...] = ()
) -> Source:
    """The source of arrays or sequences."""
    first = next(iter(splits.values()))
    if first.labels.ndim == 1:  # numbers of classes
        count = 1 + max(int(split.labels.max(initial=0)) for split in splits.values())
        count = max(count, len(class_names))
    else:
        count = first.labels.shape[1]
        for split, each in splits.items():
            if each.labels.shape[1] != count:
                raise UserError("data", f"{split} has rows of {each.labels.shape[1]} and not {count}", "give as many")
        if class_names and len(class_names) != count:
            raise UserError("class_names", f"are {len(class_names)}, and a row of labels has {count}", "name each")
    outputs = Outputs(first.kind, class_names or tuple(numbered_classes(count)))
    return Source(name, outputs, {**splits}, remarks, counted=not class_names)
