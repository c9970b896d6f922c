"""The preprocessed images of one split of a source, all in memory or decoded when they are taken."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from .. import backend
from ..errors import UserError
from ..runs import array_digest
from . import identity
from .images import Preprocess, decode_image
from .sources import Arrays, Examples

if TYPE_CHECKING:
    from PIL import Image

_CHUNK = 64  # images per work item of a decoding thread


class Loaded(NamedTuple):
    """What decoding all images of a split has shown."""

    digest: str  # of what identifies the images
    kept: np.ndarray  # float [n]: the share of each image's area that is not cropped away
    unreadable: dict[int, UserError]  # {row: the error}


class Images:
    """The preprocessed images of one split of a source: in memory (`in_memory`), or decoded when they are taken."""

    def __init__(self, examples: Examples, preprocess: Preprocess, in_memory: bool, threads: int):
        self.examples, self.preprocess, self.in_memory = examples, preprocess, in_memory
        self.threads = threads or backend.cores()
        self._pixels: np.ndarray | None = None  # uint8 [n, h, w, C]
        if isinstance(examples, Arrays) and preprocess.leaves_unchanged(*sizes(examples.pixels.shape[1:])):
            self._pixels = examples.pixels.reshape(-1, *preprocess.image, preprocess.channels)

    def __len__(self) -> int:
        return len(self.examples.labels)

    def open(self, row: int, raw: bytes | np.ndarray) -> Image.Image:
        """Decode what `examples.read(row)` returned. Raises UserError naming the example."""
        from PIL import Image

        if isinstance(raw, bytes):
            return decode_image(raw, self.examples.name(row))
        grey = raw.ndim == 3 and raw.shape[-1] == 1
        return Image.fromarray(raw[..., 0] if grey else raw)

    def load(self) -> Loaded:
        """Decode every image once, and store the pixels if they are to be in memory."""
        kept = np.ones(len(self))
        digests = np.zeros((len(self), identity.SIZE), np.uint8)
        unreadable: dict[int, UserError] = {}
        shape = (len(self), *self.preprocess.image, self.preprocess.channels)
        stored = np.empty(shape, np.uint8) if self.in_memory and self._pixels is None else None

        def load_one(row: int) -> None:
            raw = self.examples.read(row)
            whole = raw if isinstance(raw, np.ndarray) else None
            if self._pixels is None:
                image = self.open(row, raw)
                if isinstance(raw, bytes) and identity.is_lossless(raw):
                    whole = identity.decoded_pixels(image)
                if whole is not None and self.preprocess.leaves_unchanged(*sizes(whole.shape)) and whole.itemsize == 1:
                    pixels = whole.reshape(shape[1:])  # as `apply` would return them, which takes longer
                else:
                    pixels = self.preprocess.apply(image)
                    kept[row] = self.preprocess.kept(*image.size)
                if stored is not None:
                    stored[row] = pixels
            digests[row] = _bytes(identity.pixel_digest(whole) if whole is not None else identity.digest(raw))

        def load_chunk(start: int) -> None:
            for row in range(start, min(start + _CHUNK, len(self))):
                try:
                    load_one(row)
                except UserError as error:
                    unreadable[row] = error

        self._each(load_chunk, range(0, len(self), _CHUNK))
        self._pixels = stored if self._pixels is None else self._pixels
        return Loaded(array_digest(digests), kept, dict(sorted(unreadable.items())))

    def stored_digest(self) -> str:
        """A digest of the images as the source stores them: of pixels, or of the bytes of files."""
        digests = np.zeros((len(self), identity.SIZE), np.uint8)
        for row in range(len(self)):
            with contextlib.suppress(UserError):
                digests[row] = _bytes(identity.digest(self.examples.read(row)))
        return array_digest(digests)

    def take(self, rows: np.ndarray) -> np.ndarray:
        """The images of these rows, int [k]: uint8 [k, h, w, C]. Raises UserError if one cannot be read."""
        if self.in_memory and self._pixels is None:
            for error in self.load().unreadable.values():
                raise error
        if self._pixels is not None:
            return self._pixels[rows]
        out = np.empty((len(rows), *self.preprocess.image, self.preprocess.channels), np.uint8)

        def decode_into(i: int) -> None:
            row = int(rows[i])
            out[i] = self.preprocess.apply(self.open(row, self.examples.read(row)))

        self._each(decode_into, range(len(rows)))
        return out

    def _each(self, work: Callable[[int], None], items: Iterable[int]) -> None:
        with ThreadPoolExecutor(self.threads, thread_name_prefix="vit-jax-decode") as pool:
            for _ in pool.map(work, items):
                pass


def _bytes(digest: bytes) -> np.ndarray:
    return np.frombuffer(digest, np.uint8)


def sizes(shape: tuple[int, ...]) -> tuple[int, int, int]:
    """(height, width, channels) of an image of shape (h, w) or (h, w, C)."""
    height, width, *channels = shape
    return height, width, *(channels or [1])  # type: ignore[return-value]
