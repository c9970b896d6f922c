"""The preprocessed images of one split of a source, all in memory or decoded when they are taken."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, nullcontext
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from ...errors import UserError
from ...files.digests import array_digest
from ...files.places import StoreError
from ...machine import backend
from ..base import Listing
from ..progress import progress
from . import identity
from .config import FittedImages
from .high_bit_depth import Extent, Kind, extent_of, range_for, remark_on
from .preprocess import Preprocess, decode_image, decode_unchanged
from .sources.arrays import Arrays
from .sources.base import Examples, Stamps
from .sources.index import Index, find, save
from .sources.item_images import ItemImages

if TYPE_CHECKING:
    from PIL import Image

_CHUNK = 64
_SLICE = 4096  # images between two chances to save an index
REACH = 16  # images among which one is replaced that cannot be read
SEVERAL, MOST = 10, 0.01  # images, and their share of all, that may be replaced
_SAVE = 30.0  # seconds


class Loaded(NamedTuple):
    """What decoding all images of a split has shown."""

    digest: str  # of what identifies the images
    kept: np.ndarray  # float [n]: the share of each image's area that is not cropped away
    unreadable: dict[int, UserError]  # {row: the error}
    extents: np.ndarray  # float [n, 4]: of each image a wide.Extent
    listing: Listing
    remark: str = ""  # for the user, where no index can be kept
    side: int = 0  # the shorter side of the middle one of the images, before it is resized; 0: they are not


class Images:
    """The preprocessed images of one split of a source: in memory (`in_memory`), or decoded when they are taken."""

    def __init__(self, examples: Examples, preprocess: Preprocess, in_memory: bool, data: FittedImages):
        self.examples, self.preprocess, self.in_memory = examples, preprocess, in_memory
        self.threads = data.threads or backend.cores()
        self.digest = ""  # of all images, once they are loaded
        self.wide: dict[int, Extent] = {}  # {row: its extent} of those that `take` found to have more than 8 bits
        self.replaces = data.skip_unreadable and examples.known is not None  # one that cannot be read, by its next
        self.room = data.read_ahead * 1e9  # bytes that may be held of images which are read ahead
        self.stand_ins: dict[int, int] = {}  # {row of such an image: the row whose image and label it has}
        self._pixels: np.ndarray | None = None  # uint8 [n, h, w, C]
        if isinstance(examples, Arrays) and are_unchanged(examples, preprocess):
            self._pixels = examples.pixels.reshape(-1, *preprocess.image, preprocess.channels)

    def __len__(self) -> int:
        return len(self.examples.labels)

    def open(self, row: int, raw: bytes | np.ndarray | Image.Image) -> Image.Image:
        """Decode an image."""
        from PIL import Image

        if isinstance(raw, Image.Image):
            return raw
        if isinstance(raw, bytes):
            return decode_image(raw, self.examples.name(row))
        grey = raw.ndim == 3 and raw.shape[-1] == 1
        return Image.fromarray(raw[..., 0] if grey else raw)

    def load(self, verify: bool = False) -> Loaded:
        """Decode every image once, and store the pixels if they are to be in memory.

        If not, what an index knows from an earlier start is not decoded again, and what is found becomes part of the
        index.
        """
        n = len(self)
        if self.examples.known and not (self.in_memory or verify):
            return self._loaded(Index.of_nothing(n))
        stamps = None if self.in_memory else self.examples.stamps()
        seen = Index.of_nothing(n) if stamps is None or verify else find(stamps, n)
        if stamps is not None and stamps.whole:  # which may be opened by these labels at a later start
            seen.labels = self.examples.labels
        if isinstance(self.examples, Arrays):
            seen.extents[:] = self.examples.extent
        if stamps is None:
            shape = (n, *self.preprocess.image, self.preprocess.channels)
            stored = np.empty(shape, np.uint8) if self.in_memory and self._pixels is None else None
            self._look(seen, np.arange(n), stored)
            self._pixels = stored if self._pixels is None else self._pixels
            for row, why in sorted(seen.unreadable.items()) if self.replaces else ():
                pixels = self._replaced(row, UserError(why))
                if stored is not None:
                    stored[row] = pixels
            return self._loaded(seen)
        return self._loaded(seen, self._extend(seen, stamps))

    def _loaded(self, seen: Index, remark: str = "") -> Loaded:
        """What an index of all images says of them under this preprocessing."""
        shapes, which = np.unique(seen.shapes, axis=0, return_inverse=True)  # 0 where no image was decoded
        kept = np.array([self.preprocess.uncropped_share(*shape.tolist()) if shape.all() else 1.0 for shape in shapes])
        unreadable = {row: UserError(why) for row, why in sorted(seen.unreadable.items())}
        known = self.examples.known
        self.digest = known.digest if known else array_digest(seen.digests)
        listing = Listing.of(known.marks if known else seen.digests, self.examples.name)
        sides = seen.shapes.min(1)[seen.shapes.all(1)]
        side = int(np.median(sides)) if len(sides) else 0
        return Loaded(self.digest, kept[which.reshape(-1)], unreadable, seen.extents, listing, remark, side)

    def _extend(self, seen: Index, stamps: Stamps) -> str:
        """Look at the images that an index does not know, and save it in between; returns what `save` remarks."""
        unknown, began = np.flatnonzero(~seen.known), time.time_ns()
        remark, due = "", time.monotonic() + _SAVE
        if not len(unknown):
            return remark
        with progress("indexing", len(unknown), "images") as show:
            try:
                for start in range(0, len(unknown), _SLICE):
                    self._look(seen, unknown[start : start + _SLICE], None)
                    show(min(start + _SLICE, len(unknown)))
                    if time.monotonic() > due:
                        saving = time.monotonic()
                        remark = save(stamps, seen, began)
                        due = time.monotonic() + max(_SAVE, 20 * (time.monotonic() - saving))
            finally:  # what was found before an interruption is not lost
                remark = save(stamps, seen, began)
        return remark

    def _look(self, seen: Index, rows: np.ndarray, stored: np.ndarray | None) -> None:
        """Decode these images, note in `seen` what they are, and store their pixels if there is an array for them."""

        from PIL import Image

        def look_at(row: int) -> None:
            raw = self.examples.read(row)
            whole = raw if isinstance(raw, np.ndarray) else None
            if self._pixels is None:
                image = self.open(row, raw)
                seen.shapes[row] = image.size
                seen.extents[row] = extent_of(image)
                if isinstance(raw, Image.Image) or (isinstance(raw, bytes) and identity.is_lossless(raw)):
                    whole = identity.decoded_pixels(image)
                if stored is not None and not Extent(*seen.extents[row]).fault(self.preprocess.range):
                    stored[row] = self._pixels_of(image, whole)
            if whole is not None:
                seen.digests[row] = np.frombuffer(identity.pixel_digest(whole), np.uint8)
            elif isinstance(raw, bytes):
                seen.digests[row] = np.frombuffer(identity.digest(raw), np.uint8)

        parts = [rows[start : start + _CHUNK] for start in range(0, len(rows), _CHUNK)]
        reading = self.examples.read_together(parts, self.room) if isinstance(self.examples, ItemImages) else None

        def look_at_some(i: int) -> None:
            if reading:
                reading.plan(i)
            for row in parts[i].tolist():
                try:
                    look_at(row)
                except StoreError:
                    raise
                except UserError as error:
                    seen.unreadable[row] = str(error)
                seen.known[row] = True

        with closing(reading) if reading else nullcontext():
            self._each(look_at_some, range(len(parts)))

    def _pixels_of(self, image: Image.Image, whole: np.ndarray | None) -> np.ndarray:
        """The preprocessed pixels of an image, whose own are `whole` where these are known."""
        if whole is not None and self.preprocess.leaves_unchanged(*sizes(whole.shape)) and whole.itemsize == 1:
            return whole.reshape(*self.preprocess.image, self.preprocess.channels)  # what `apply` takes longer for
        return self.preprocess.apply(image)

    def take(self, rows: np.ndarray) -> np.ndarray:
        """The images of some rows: rows int [k] -> uint8 [k, h, w, C]."""
        if self.in_memory and self._pixels is None:
            for error in self.load().unreadable.values():
                raise error
        if self._pixels is not None:
            return self._pixels[rows]
        out = np.empty((len(rows), *self.preprocess.image, self.preprocess.channels), np.uint8)

        def decode_into(i: int) -> None:
            row = int(rows[i])
            try:
                out[i] = self._decoded(row)
            except StoreError:
                raise
            except UserError as error:
                if not self.replaces:
                    raise
                out[i] = self._replaced(row, error)

        self._each(decode_into, range(len(rows)))
        return out

    def _decoded(self, row: int) -> np.ndarray:
        """The preprocessed pixels of an image. Raises UserError where it cannot be read."""
        raw = self.examples.read(row)
        if isinstance(raw, bytes) and (unchanged := decode_unchanged(raw, self.preprocess)) is not None:
            return unchanged
        image = self.open(row, raw)
        if not isinstance(raw, np.ndarray):
            extent = self.preprocess.check(image, self.examples.name(row))
            if extent.kind != Kind.EIGHT:
                self.wide[row] = extent
        return self.preprocess.apply(image)

    def _replaced(self, row: int, error: UserError) -> np.ndarray:
        """The pixels of the next image that can be read, in place of one that cannot. Raises UserError at too many."""
        start = row - row % REACH
        for other in [*range(row + 1, min(start + REACH, len(self))), *range(start, row)]:
            try:
                pixels = self._decoded(other)
            except StoreError:
                raise
            except UserError:
                continue
            self.stand_ins[row] = other
            if len(self.stand_ins) > max(SEVERAL, MOST * len(self)):
                what = f"{len(self.stand_ins):,} images cannot be read, more than {MOST:.0%}, such as"
                raise UserError(f"{what} {error}") from error
            return pixels
        raise error

    def rows_of_labels(self, rows: np.ndarray) -> np.ndarray:
        """The rows whose labels belong to the images that `take` gave for some rows, int [k]."""
        return np.array([self.stand_ins.get(row, row) for row in rows.tolist()], rows.dtype) if self.stand_ins else rows

    def _each(self, work: Callable[[int], None], items: Iterable[int]) -> None:
        with ThreadPoolExecutor(self.threads, thread_name_prefix="vit-jax-decode") as pool:
            for _ in pool.map(work, items):
                pass


def check_ranges(data: FittedImages, images: Mapping[str, Images], loaded: Mapping[str, Loaded]) -> tuple[str, ...]:
    """Remarks on pixels of more than 8 bits. Raises UserError where `data.range`, or their kind's, is not theirs."""
    held, misfits = [], []
    for split, found in loaded.items():
        rows = np.delete(np.arange(len(found.extents)), [*found.unreadable])
        held.append(found.extents[rows])
        different, first = np.unique(held[-1], axis=0, return_index=True)
        for extent, i in zip(different, first.tolist(), strict=True):
            if fault := Extent(*extent).fault(data.range):
                misfits.append(f"{images[split].examples.name(int(rows[i]))} {fault}")
    extents = np.concatenate(held)
    if misfits:
        raise UserError(f"data.source {data.source}", misfits[0], _range_remedy(extents))
    return remark_on(extents, data.range)


def _range_remedy(extents: np.ndarray) -> str:
    """What to do where some of these extents, float [n, 4], do not fit."""
    wide = extents[extents[:, 0] == Kind.WIDE]
    if not len(wide):
        return "leave `data.range` out"
    if len(wide) < len(extents):
        return "give only images with more than 8 bits of grey"
    if not np.isfinite(wide[:, 1:3]).all():
        return "replace it"
    return f"give {range_for(wide[:, 1].min(), wide[:, 2].max())}"


def sizes(shape: tuple[int, ...]) -> tuple[int, int, int]:
    """(height, width, channels) of an image of shape (h, w) or (h, w, C)."""
    height, width, *channels = shape
    return height, width, *(channels or [1])  # type: ignore[return-value]


def are_unchanged(examples: Examples, preprocess: Preprocess) -> bool:
    """Whether examples are arrays that stay as they are."""
    return isinstance(examples, Arrays) and preprocess.leaves_unchanged(*sizes(examples.pixels.shape[1:]))
