"""Pixels of more than 8 bits: which values an image holds, and how a range of them becomes 8 bits.

Pillow gives grey pixels of 16 and 32 bits and floating-point ones as they are, of colours with 16 bits the upper 8. It
wraps unsigned 32-bit and signed 8-bit ones, and multiplies those of a PGM file to 16 bits: both is undone here.
"""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from PIL import Image

Range = tuple[float, ...]  # the values that become 0 and 255; empty: not stated
LARGEST = 65535  # of 16 bits
_STORED = "vit_jax.stored"  # in Image.info: how the file stores pixels, where decoding hides it
_GREY = ("I;16", "I;16L", "I;16B", "I;16N", "I", "F")  # Pillow's modes of pixels with more than 8 bits


class Kind(IntEnum):
    """What the pixels of an image are."""

    EIGHT = 0  # 8 bits or fewer a channel
    WIDE = 1  # more, or signed: grey
    CUT = 2  # colours of 16 bits, of which Pillow keeps the upper 8


class Extent(NamedTuple):
    """The kind of an image's pixels, the least and the greatest of them, and the greatest that there may be.

    NaN where a pixel is no number, and where pixels have no greatest value of their own: floating-point, signed ones.
    """

    kind: int = Kind.EIGHT
    least: float = 0
    greatest: float = 255
    top: float = 255

    def fault(self, stated: Range) -> str:
        """Why the pixels cannot become 8 bits by a stated range, or by none; empty if they can."""
        if self.kind == Kind.EIGHT:
            return "has pixels of 8 bits, from 0 to 255" if stated else ""
        if self.kind == Kind.CUT:
            return "has colours of 16 bits, of which Pillow keeps the upper 8" if stated else ""
        if not (np.isfinite(self.least) and np.isfinite(self.greatest)):
            return "has pixels that are no finite numbers"
        held = f"holds values from {number(self.least)} to {number(self.greatest)}"
        low, high = stated or (0, self.top)
        if np.isnan(high):
            return f"{held}, of unknown range"
        within = low <= self.least and self.greatest <= high
        return "" if within else f"{held}, not all within {number(low)} to {number(high)}"


PLAIN = Extent()  # of pixels of 8 bits


def number(value: float) -> str:
    """A pixel's value in print."""
    return f"{value:.10g}"


def range_for(least: float, greatest: float) -> str:
    """The field for a range that holds these values: whole bits, 0 to 1, -1 to 1, or the values themselves."""
    least, greatest = float(least), float(greatest)
    if least >= 0 and least.is_integer() and greatest.is_integer() and greatest > 1:
        return f"`data.range 0 {(1 << int(greatest).bit_length()) - 1}`"
    if least >= -1 and greatest <= 1:
        return f"`data.range {0 if least >= 0 else -1} 1`"
    return f"`data.range {number(least)} {number(greatest)}`"


def note_stored(image: Image.Image) -> None:
    """Note on an image that is not decoded yet how its file stores the pixels, where decoding hides that."""
    tile: Any = getattr(image, "tile", ())
    args = tile[0][3] if tile else ""
    raw, *more = args if isinstance(args, tuple) and args else (args,)
    tags: Any = getattr(image, "tag_v2", {})
    if isinstance(raw, str) and ";16" in raw and image.mode not in _GREY:
        image.info[_STORED] = "cut"
        if isinstance(clear := image.info.get("transparency"), tuple):  # a colour of 16 bits, too
            image.info["transparency"] = tuple(value >> 8 for value in clear)
    elif raw == "I;12":
        image.info[_STORED] = 4095
    elif image.format == "PPM" and image.mode == "I" and more:
        image.info[_STORED] = more[0]
    elif raw == "I;32N" and image.format == "TIFF":
        image.info[_STORED] = "unsigned"
    elif image.mode == "L" and 2 in tags.get(339, ()):  # SampleFormat: signed
        image.info[_STORED] = "signed"


def wide_pixels(image: Image.Image) -> tuple[np.ndarray, float] | None:
    """(the values of an image of kind WIDE as its file stores them, [h, w]; the greatest that there may be, or NaN)."""
    stored, pixels = image.info.get(_STORED, ""), np.asarray(image) if image.mode in (*_GREY, "L") else None
    if pixels is None or (image.mode == "L" and stored != "signed"):
        return None
    if image.mode == "F" or stored == "signed":
        return (pixels.view(np.int8) if stored == "signed" else pixels), np.nan
    if stored == "unsigned":
        return pixels.view(np.uint32), LARGEST
    if image.mode == "I" and stored:
        return np.rint(pixels * (stored / LARGEST)), stored
    return pixels, stored or LARGEST


def may_be_wide(image: Image.Image) -> bool:
    """Whether the pixels of an image are of another kind than EIGHT."""
    return image.mode in _GREY or _STORED in image.info


def extent_of(image: Image.Image) -> Extent:
    """The extent of an image's pixels; of colours of 16 bits as far as the upper 8 tell it."""
    if not may_be_wide(image):
        return PLAIN
    wide = wide_pixels(image)
    if wide is None:
        pixels = np.asarray(image)[..., : -1 if image.mode.endswith("A") else None]
        return Extent(Kind.CUT, 256.0 * int(pixels.min()), 256.0 * int(pixels.max()) + 255, LARGEST)
    return Extent(Kind.WIDE, float(wide[0].min()), float(wide[0].max()), wide[1])


def eight_bits(pixels: np.ndarray, low: float, high: float) -> np.ndarray:
    """Values as 8 bits: those from low to high become 0 to 255, rounded; what lies outside becomes the nearer end."""
    return np.floor((pixels.astype(np.float64).clip(low, high) - low) * 255 / (high - low) + 0.5).astype(np.uint8)


def of_range(pixels: np.ndarray, low: float, high: float) -> np.ndarray:
    """Values that `eight_bits` makes into some pixels."""
    values = low + pixels * ((high - low) / 255)
    whole = low >= 0 and high <= LARGEST and float(low).is_integer() and high - low >= 255
    return np.rint(values).astype(np.uint16) if whole else values.astype(np.float32)


def remark_on(extents: np.ndarray, stated: Range, flag: bool = True) -> tuple[str, ...]:
    """Sentences on images with more than 8 bits, and where their extents, float [n, 4], fill little of the range."""
    kinds, least, greatest, top = extents.T
    wide = (kinds == Kind.WIDE) & ((top == LARGEST) | bool(stated))
    low, high = stated or (0, LARGEST)
    remarks = []
    if wide.any():
        count, first, last = int(wide.sum()), least[wide].min(), greatest[wide].max()
        remedy = f"give {range_for(first, last)}" if flag else f"spread them over {number(low)} to {number(high)}"
        few = f": to use all grey levels {remedy}" if last - first < (high - low) / 2 else ""
        if few or not stated:
            remarks.append(
                f"{count:,} image{'s have' if count > 1 else ' has'} more than 8 bits, read as {number(low)} to "
                f"{number(high)}; the values go from {number(first)} to {number(last)}{few}"
            )
    if count := int((kinds == Kind.CUT).sum()):
        first, last = least[kinds == Kind.CUT].min(), greatest[kinds == Kind.CUT].max()
        remarks.append(
            f"{count:,} image{'s have' if count > 1 else ' has'} colours of 16 bits, of which Pillow keeps the upper "
            f"8; the values go from {number(first)} to {number(last)}"
        )
    return tuple(remarks)


def is_range(value: Any) -> bool:
    """Whether a JSON value is a range: two finite numbers, the second one greater; or empty."""
    if not isinstance(value, list | tuple) or not all(type(n) in (int, float) and np.isfinite(n) for n in value):
        return False
    return len(value) == 0 or (len(value) == 2 and value[0] < value[1])
