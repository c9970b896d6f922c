"""One image: from the bytes of a file to the pixels that a network takes, or refused by name.

Training, evaluation and prediction all use `Preprocess.apply`, and a run saves its `Preprocess`, so that they cannot
differ.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import io
import itertools
import math
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING, Any

import numpy as np

from ...config.fields import Size, pair
from ...errors import UserError
from ...files.reading import open_regular, read_regular
from .config import OPTIONAL, FittedImages
from .high_bit_depth import LARGEST, Extent, Range, eight_bits, extent_of, may_be_wide, note_stored, number, wide_pixels
from .resample import resized_part

if TYPE_CHECKING:
    from PIL import Image

FIELD = "`data.skip_unreadable True`"


class Unreadable(UserError):
    """Image files that cannot be read, or are incomplete: what skip_unreadable leaves out."""


def refuse_unreadable(field: str, names: Sequence[str]) -> Unreadable:
    """The error for a source with unreadable images of these names."""
    remedy = f"replace or remove them, or leave them out with {FIELD}"
    return Unreadable(field, f"{_count(names)}: {_listed(names)}", remedy)


def left_out(names: Sequence[str]) -> str:
    """A remark on unreadable images that are left out."""
    return f"{_count(names)} left out: {_listed(names)}"


def stood_in(names: Sequence[str]) -> str:
    """A remark on unreadable images in whose place others are taken."""
    return f"{_count(names)} replaced by the next of the shard: {_listed(names)}"


def _count(names: Sequence[str]) -> str:
    return f"{len(names):,} unreadable image{'s' if len(names) > 1 else ''}"


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names[:5]) + (", ..." if len(names) > 5 else "")


# The formats that are read, by Pillow's names, the most common first. Trying all of Pillow's formats would take several
# times as long as decoding a small image, and some of them start other programs.
_FORMATS = {
    "JPEG": (".jpg", ".jpeg", ".jpe", ".jfif"),
    "PNG": (".png",),
    "WEBP": (".webp",),
    "BMP": (".bmp",),
    "GIF": (".gif",),
    "TIFF": (".tif", ".tiff"),
    "PPM": (".ppm", ".pgm", ".pbm", ".pnm"),
}
EXTENSIONS = frozenset(extension for extensions in _FORMATS.values() for extension in extensions)
LARGEST_FILE = 256 << 20  # bytes
DECODED, RATIO = 128 << 20, 100  # bytes of any image's pixels; how many more than its encoded ones they may be beyond
GREY = 16  # of 255, by which the colours of a grey pixel may differ
SMALLER = "scale the image down"
LARGEST_SCALED = 1 << 24  # pixels of a scaled image, beyond which only the part is computed that is not cropped away


def open_image(path: str | os.PathLike[str]) -> Image.Image:
    """Decode an image file, rotated as its EXIF orientation states; of an animation the first frame."""
    return decode_image(read_image(path), str(path))


def read_image(path: str | os.PathLike[str]) -> bytes:
    """The bytes of an image file."""
    try:
        return read_regular(path, LARGEST_FILE, "give the path of an image file")
    except UserError as error:
        raise Unreadable(os.fspath(path), error.what, error.remedy) from error


def decode_image(encoded: bytes, name: str) -> Image.Image:
    """Decode the bytes of an image file, as `open_image` does."""
    from PIL import ImageOps

    with _reported(name):
        image = _opened(io.BytesIO(encoded))
        _check_pixels(image.size, len(encoded), name)
        image.load()
        ImageOps.exif_transpose(image, in_place=True)
        return image


def is_wide(path: str | os.PathLike[str]) -> bool:
    """Whether the header of an image file says that pixels have more than 8 bits."""
    with _reported(str(path)), open_regular(path) as file:
        return may_be_wide(_opened(file))


def _opened(file: IO[bytes]) -> Image.Image:
    """An image that is not decoded yet."""
    from PIL import Image

    image: Image.Image = Image.open(file, formats=tuple(_FORMATS))
    note_stored(image)
    return image


@contextlib.contextmanager
def _reported(name: str) -> Iterator[None]:
    """A context in which errors of Pillow become Unreadable."""
    from PIL import Image, UnidentifiedImageError

    try:
        yield
    except (MemoryError, UserError):
        raise
    except Image.DecompressionBombError as error:
        raise Unreadable(name, f"has more than {2 * (Image.MAX_IMAGE_PIXELS or 0):,} pixels", SMALLER) from error
    except UnidentifiedImageError as error:
        raise Unreadable(name, f"not a {', '.join(_FORMATS)} image", "convert or remove it") from error
    except Exception as error:  # Pillow's decoders raise OSError, SyntaxError, ValueError, struct.error and more
        reason = str(error).partition("\n")[0] or type(error).__name__
        raise Unreadable(name, f"cannot be decoded ({reason})", "replace or remove it") from error


def _check_pixels(size: tuple[int, int], encoded: int, name: str) -> None:
    """Raise Unreadable where an image of so many encoded bytes would take absurdly many when it is decoded."""
    decoded = 4 * math.prod(size)  # Pillow's pixels take four bytes, whatever their mode becomes
    if decoded > max(DECODED, RATIO * encoded):
        raise Unreadable(
            name,
            f"its {size[0]:,} x {size[1]:,} pixels take {decoded >> 20:,} MB, more than {DECODED >> 20} MB and "
            f"{RATIO} times its {encoded:,} bytes",
            SMALLER,
        )


@dataclass(frozen=True)
class Preprocess:
    """How an image of any size and mode becomes the input of a network.

    The fields fit, size, interpolation, background, range and trim are those of ImageData. `mean` and `std` have one
    value per channel, for pixels in 0..1; they are applied later, on the device.
    """

    image: tuple[int, int]  # height and width of the result
    channels: int
    fit: str
    size: int
    interpolation: str
    background: int
    mean: tuple[float, ...]
    std: tuple[float, ...]
    range: Range = ()
    trim: tuple[int, int] = (0, 0)

    @classmethod
    def of(
        cls, data: FittedImages, image: Size, channels: int, mean: tuple[float, ...] = (), std: tuple[float, ...] = ()
    ) -> Preprocess:
        """The one that a run states."""
        how = (data.fit, data.size, data.interpolation, data.background)
        return cls(pair(image), channels, *how, mean, std, data.range, pair(data.trim))

    def check(self, image: Image.Image, name: str) -> Extent:
        """The extent of an image's pixels."""
        extent = extent_of(image)
        if fault := extent.fault(self.range):
            bits = "more than 8 bits" if self.range else "8 bits, or with 16"
            between = " to ".join(map(number, self.range or (0, LARGEST)))
            raise UserError(name, fault, f"save it with {bits} and values from {between}")
        return extent

    @property
    def whole(self) -> Preprocess:
        """The same before rows and columns are trimmed off."""
        (h, w), (rows, columns) = self.image, self.trim
        return dataclasses.replace(self, image=(h + rows, w + columns), trim=(0, 0))

    def leaves_unchanged(self, height: int, width: int, channels: int) -> bool:
        """Whether images of this height, width and number of channels stay as they are."""
        unscaled = (self.fit != "crop" or self.size <= min(height, width)) and not any(self.trim)
        return (height, width, channels) == (*self.image, self.channels) and unscaled

    def uncropped_share(self, width: int, height: int) -> float:
        """The share of an image's area that is not cropped away, for images of a width and a height in pixels."""
        if any(self.trim):
            return self.whole.uncropped_share(width, height) * math.prod(self.image) / math.prod(self.whole.image)
        if self.fit != "crop":
            return 1.0
        scaled_width, scaled_height = self._covering(width, height)
        return self.image[0] * self.image[1] / (scaled_width * scaled_height)

    def apply(self, image: Image.Image) -> np.ndarray:
        """The pixels of an image of any size and mode: uint8 [h, w, C]."""
        if any(self.trim):
            return self.whole.apply(image)[: self.image[0], : self.image[1]]
        narrow = _narrow(image, self.range, self.background)
        image = self._resized(_flatten_alpha(narrow, self.channels, self.background))
        return np.asarray(image).reshape(*self.image, self.channels)

    def _resized(self, image: Image.Image) -> Image.Image:
        from PIL import Image

        (h, w), (width, height) = self.image, image.size
        if self.leaves_unchanged(height, width, self.channels):
            return image
        kernel = Image.Resampling[self.interpolation.upper()]
        if self.fit == "stretch":
            return image.resize((w, h), kernel)
        if self.fit == "crop":
            scaled = self._covering(width, height)
            left, upper = round((scaled[0] - w) / 2), round((scaled[1] - h) / 2)
            part = (left, upper, left + w, upper + h)
            if math.prod(scaled) > LARGEST_SCALED:
                return resized_part(image, scaled, part, self.interpolation)
            return image.resize(scaled, kernel).crop(part)
        if self.fit != "pad":
            raise ValueError(f"fit {self.fit}")
        scale = min(w / width, h / height)
        image = image.resize((max(1, round(width * scale)), max(1, round(height * scale))), kernel)
        canvas = Image.new(image.mode, (w, h), (self.background,) * self.channels)
        canvas.paste(image, ((w - image.width) // 2, (h - image.height) // 2))
        return canvas

    def _covering(self, width: int, height: int) -> tuple[int, int]:
        """(width, height) to which crop scales an image before it crops.

        As torchvision's Resize(size) before CenterCrop, but with integers, so that rounding never makes the image
        smaller than the crop. If `size` is too small to cover the crop, the image is scaled to just cover it.
        """
        h, w = self.image
        top, bottom = max(
            (w, width), (h, height), (self.size, min(width, height)), key=lambda ratio: ratio[0] / ratio[1]
        )
        return width * top // bottom, height * top // bottom

    def to_dict(self) -> dict[str, Any]:
        """The fields as JSON values, without optional ones that have no effect."""
        given = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        return {
            name: list(value) if isinstance(value, tuple) else value
            for name, value in given.items()
            if name not in OPTIONAL or value != OPTIONAL[name]
        }

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Preprocess:
        """The Preprocess of the JSON values of `to_dict`."""
        fields = {f.name for f in dataclasses.fields(cls)}
        if {*values, *OPTIONAL} != fields:
            raise UserError(
                "preprocess",
                f"the fields {sorted({*values, *OPTIONAL} ^ fields)} are missing or unknown",
                "use the version of vit-jax that made this run",
            )
        frozen: dict[str, Any] = {n: tuple(value) if isinstance(value, list) else value for n, value in values.items()}
        return cls(**frozen)


def _narrow(image: Image.Image, stated: Range, background: int) -> Image.Image:
    """The image with 8 bits: one with more in mode L, with a transparent grey level as `background`."""
    from PIL import Image

    wide = wide_pixels(image)
    if wide is None:
        return image
    values, top = wide
    pixels = eight_bits(values, *(stated or (0, top)))
    if image.has_transparency_data:
        pixels[values == image.info["transparency"]] = background
    return Image.fromarray(pixels)


def has_colours(image: Image.Image) -> bool:
    """Whether some pixel is not grey, by more than a JPEG makes of grey ones."""
    if image.mode not in ("RGB", "RGBA", "P", "CMYK", "YCbCr", "HSV", "LAB"):
        return False
    return bool(np.ptp(np.asarray(image.convert("RGB")).astype(np.int16), axis=-1).max(initial=0) > GREY)


def _flatten_alpha(image: Image.Image, channels: int, background: int) -> Image.Image:
    """The image in mode L (1 channel) or RGB (3), with transparent pixels laid over a grey `background`."""
    from PIL import Image

    if image.has_transparency_data:
        opaque = Image.new("RGBA", image.size, (background, background, background, 255))
        opaque.alpha_composite(image.convert("RGBA"))
        image = opaque
    if image.mode not in ("1", "L", "RGB"):  # palette, CMYK and others: by way of RGB
        image = image.convert("RGB")
    mode = "L" if channels == 1 else "RGB"
    return image if image.mode == mode else image.convert(mode)


# What only Pillow reads: orientations (of EXIF or XMP), Adobe's colours, several pictures in a file.
LEFT_TO_PILLOW = (b"Exif\0", b"Orientation", b"Adobe", b"MPF\0")


def decode_unchanged(encoded: bytes, preprocess: Preprocess) -> np.ndarray | None:
    """uint8 [h, w, C] of a JPEG that stays as it is, and that simplejpeg decodes as Pillow does; None of any other."""
    if encoded[:3] != b"\xff\xd8\xff" or preprocess.range or not (known := equal_kinds()):
        return None
    import simplejpeg

    try:
        height, width, colours, kind = simplejpeg.decode_jpeg_header(encoded)
        channels = 1 if colours == "Gray" and preprocess.channels == 1 else 3
        as_it_is = kind in known and preprocess.leaves_unchanged(height, width, channels)
        if not as_it_is or any(mark in encoded for mark in LEFT_TO_PILLOW):
            return None
        pixels: np.ndarray = simplejpeg.decode_jpeg(encoded, "GRAY" if channels == 1 else "RGB")
    except ValueError:
        return None
    return pixels


@functools.cache
def equal_kinds() -> frozenset[str]:
    """The kinds of subsampling that simplejpeg, as it is installed, decodes to Pillow's pixels; none without it."""
    try:
        import simplejpeg
    except ImportError:
        return frozenset()
    from PIL import Image

    pixels = np.random.default_rng(0).integers(0, 256, (53, 75, 3), dtype=np.uint8)
    equal = {"444": True, "422": True, "420": True, "Gray": True}
    for (i, kind), quality, progressive in itertools.product(enumerate(equal), (50, 95), (False, True)):
        file = io.BytesIO()
        shown = pixels[..., 0] if kind == "Gray" else pixels
        Image.fromarray(shown).save(file, "JPEG", quality=quality, progressive=progressive, subsampling=min(i, 2))
        decoded = simplejpeg.decode_jpeg(file.getvalue(), "GRAY" if kind == "Gray" else "RGB")
        equal[kind] &= np.array_equal(decoded.reshape(shown.shape), np.asarray(Image.open(file)))
    return frozenset(kind for kind, same in equal.items() if same)
