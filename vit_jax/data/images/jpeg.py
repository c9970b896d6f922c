"""JPEG files by simplejpeg, the extra `fast-jpeg`, where it gives Pillow's pixels in less time.

Only images that are taken as they are: one that Pillow resizes would have to be copied into the form of its images,
four bytes a pixel, which costs what was gained.
"""

from __future__ import annotations

import functools
import io
import itertools

import numpy as np

from .preprocess import Preprocess

# What only Pillow reads: orientations (of EXIF or XMP), Adobe's colours, several pictures in a file.
LEFT_TO_PILLOW = (b"Exif\0", b"Orientation", b"Adobe", b"MPF\0")


def decode_unchanged(encoded: bytes, preprocess: Preprocess) -> np.ndarray | None:
    """The pixels of a JPEG that the preprocessing leaves as they are, and that simplejpeg decodes as Pillow does ->
    uint8 [h, w, C].
    """
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
