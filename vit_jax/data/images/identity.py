"""What identifies an image: its pixels where its encoding is lossless, else the bytes of its file.

Every decoder gives the same pixels for a PNG or a lossless WebP, so a set may be stored anew without becoming other
data. The pixels of a JPEG depend on the version of the decoder.
"""

from __future__ import annotations

import hashlib
import struct
from typing import TYPE_CHECKING

import numpy as np

from .high_bit_depth import wide_pixels

if TYPE_CHECKING:
    from PIL import Image

SIZE = 16  # bytes


def digest(content: bytes | np.ndarray) -> bytes:
    """BLAKE2b of bytes, or of the bytes of an array in C order."""
    return hashlib.blake2b(content, digest_size=SIZE).digest()  # type: ignore[arg-type]  # numpy arrays are buffers


def pixel_digest(pixels: np.ndarray) -> bytes:
    """BLAKE2b of an image: pixels [h, w]."""
    if pixels.ndim == 3 and pixels.shape[-1] == 4 and (pixels[..., 3] == 255).all():
        pixels = pixels[..., :3]
    if pixels.ndim == 3 and pixels.shape[-1] in (1, 3) and _is_grey(pixels):
        pixels = pixels[..., 0]
    height, width, *channels = pixels.shape
    shape = struct.pack("<4I", height, width, channels[0] if channels else 1, pixels.itemsize)
    return hashlib.blake2b(np.ascontiguousarray(pixels), digest_size=SIZE, person=shape).digest()


def _is_grey(pixels: np.ndarray) -> bool:
    first = pixels[0, 0]
    if first[0] != first[-1]:  # of most colour images, and a tenth of the time of comparing all
        return False
    return bool((pixels == pixels[..., :1]).all())


def is_lossless(encoded: bytes) -> bool:
    """Whether every decoder gives the same pixels for an image file: a PNG or a lossless WebP. A PNG of colours with 16
    bits is not: decoders keep 8 of them in different ways.
    """
    if encoded[:8] == b"\x89PNG\r\n\x1a\n":  # signature, length and name of IHDR, width, height, bit depth, colour type
        return encoded[24:25] != b"\x10" or encoded[25:26] == b"\x00"
    if encoded[:4] != b"RIFF" or encoded[8:12] != b"WEBP":
        return False
    kind, start = encoded[12:16], 12
    while kind in (b"VP8X", b"ICCP"):  # the chunks that may come before the image
        length = int.from_bytes(encoded[start + 4 : start + 8], "little")
        start += 8 + length + length % 2
        kind = encoded[start : start + 4]
    return kind == b"VP8L"


def decoded_pixels(image: Image.Image) -> np.ndarray:
    """The pixels of a decoded image, without its palette: [h, w] or [h, w, C], uint8 (uint16 of 16-bit grey files)."""
    if wide := wide_pixels(image):  # of a PNG file: 16 bits
        return wide[0].astype(np.uint16)
    if image.has_transparency_data:  # also where one colour of a palette or of a file without alpha is transparent
        image = image.convert("RGBA")
    elif image.mode not in ("L", "RGB"):
        image = image.convert("L" if image.mode == "1" else "RGB")
    return np.asarray(image)
