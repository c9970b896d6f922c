"""Vectors of pictures, with captions: opened from a source, split, and put into batches; and files of such vectors."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ...data.base import Other, choose_split
from ...data.captions.caption_set import CaptionSet, check_words, hold_out_images, identity_of
from ...data.captions.config import other_caption_words
from ...errors import Field, UserError
from ...files.arrays import read_array, read_arrays
from ...files.digests import array_digest
from ...files.reading import check_regular
from ...text.tokenizer import Tokenizer
from ...text.vocabulary import Vocabulary
from .coco import FEATURE, SOURCE, Part, arrays, has_part, read_part, read_words
from .spec import FeatureData

PARTS = {"train": "train", "validation": "val"}  # {our split: the part of the source}


class Vectors:
    """The n captions of one split as ids, each with the vector of its picture: rows int [n], target int32 [n, T]."""

    def __init__(self, part: Part, rows: np.ndarray, target: np.ndarray, references: Sequence[Sequence[str]] = ()):
        self.part, self.rows, self.target, self.references = part, rows, target, references

    def __len__(self) -> int:
        return len(self.target)

    def subset(self, indices: np.ndarray) -> Vectors:
        several = [self.references[i] for i in indices] if self.references else ()
        return Vectors(self.part, self.rows[indices], self.target[indices], several)

    def batch(self, indices: np.ndarray) -> dict[str, np.ndarray]:
        """{"vectors": float32 [B, 1, C], "target": int32 [B, T]}."""
        return {"vectors": self.part.features[self.rows[indices]][:, None], "target": self.target[indices]}

    examples = batch

    def name(self, i: int) -> str:
        """Where the vector of example i stands, as predict takes it: FILE:ROW."""
        return f"{self.part.file}:{self.rows[i]}"

    def address(self, i: int) -> str:
        """The address of its picture on the web; empty where that is not known."""
        return self.part.addresses[self.rows[i]] if self.part.addresses else ""


def open_features(data: FeatureData, width: int, words: int = 0, seed: int = 0) -> CaptionSet:
    """Open, check and split vectors with captions."""
    folder, vocabulary = read_words(data.source)
    check_words(f"data.source {data.source}", words, vocabulary)
    parts = {
        split: _read_split(folder, split, vocabulary, width, data) for split in PARTS if has_part(folder, PARTS[split])
    }
    if "train" not in parts:
        _read_split(folder, "train", vocabulary, width, data)  # which says what is missing
    train = parts["train"]
    kept, held = hold_out_images(np.unique(train.rows), data, parts, seed, "pictures")
    own = np.isin(train.rows, kept)
    splits = {"train": Vectors(train, train.rows[own], train.target[own])}
    for name in ("validation", "test"):
        if name in parts:
            splits[name] = _each_picture(parts[name], np.unique(parts[name].rows), vocabulary)
        elif name in held:
            splits[name] = _each_picture(train, held[name], vocabulary)
    content = [array_digest(x) for part in parts.values() for x in (part.features, part.target, part.rows)]
    pictures = sum(len(np.unique(part.rows)) for part in parts.values())
    said = sum(len(part.target) for part in parts.values())
    remark = (
        f"{pictures:,} pictures with {said:,} captions; validation and test have each picture "
        "once, with all its captions as references"
    )
    identity = identity_of(SOURCE.rstrip(":"), vocabulary, splits, content)
    return CaptionSet(vocabulary, splits=splits, identity=identity, remarks=(remark,))


def open_other_features(data: FeatureData, wanted: str, width: int, vocabulary: Tokenizer) -> Other:
    """Vectors with captions that a network is only evaluated on. Each picture is one example with all its captions."""
    folder, words = read_words(data.source)
    clause = other_caption_words(words.kept, vocabulary.kept)
    if len(words) != len(vocabulary) or words.ids != vocabulary.ids or clause:
        why = clause or f"it has {len(words)} words and the network {len(vocabulary)}"
        raise UserError(f"data.source {data.source}", why, "give captions with the words of the network")
    there = [split for split in ("validation", "train") if has_part(folder, PARTS[split])] or ["train"]
    name = choose_split("the data", there, wanted)
    read = {split: _read_split(folder, split, words, width, data) for split in there}
    whole = _each_picture(read[name], np.unique(read[name].rows), vocabulary)
    return Other(name, whole, sum(len(part.target) for part in read.values()), ())


def _read_split(folder: Path, split: str, vocabulary: Vocabulary, width: int, data: FeatureData) -> Part:
    """The part of a source that is one of our splits. Raises UserError, also on captions that are too long."""
    part = read_part(folder, PARTS[split], vocabulary, width, data.source)
    lengths = (part.target != vocabulary.ids.pad).sum(1)
    if len(long := np.flatnonzero(lengths >= data.length)):
        raise UserError(
            Field("data.length"),
            f"is {data.length}, but {len(long)} captions of data.source {data.source} are longer, such as "
            f"{PARTS[split]}_captions[{long[0]}]",
            f"give {lengths.max() + 1}, or shorten them",
        )
    return part._replace(target=part.target[:, : data.length - 1])


def _each_picture(part: Part, pictures: np.ndarray, vocabulary: Tokenizer) -> Vectors:
    """A split for evaluation: a picture (their rows, ascending) is one example, with all its captions as references."""
    order = np.argsort(part.rows, kind="stable")
    begins = np.searchsorted(part.rows[order], pictures)
    ends = np.searchsorted(part.rows[order], pictures, side="right")
    groups = [order[begin:end] for begin, end in zip(begins, ends, strict=True)]
    several = [[vocabulary.decode(part.target[i]) for i in group] for group in groups]
    return Vectors(part, pictures, part.target[[group[0] for group in groups]], several)


# ------------------------------------------------------------------------------------------ to predict


class Vector(NamedTuple):
    """One vector of a file."""

    name: str  # FILE, or FILE:ROW where it has several
    values: np.ndarray  # float32 [C]


def vectors_in(inputs: Sequence[str | os.PathLike[str] | Vector]) -> list[Vector]:
    """The vectors of files. An input is FILE (.npy, .npz or .h5, the array called `features`) for all its rows, or
    FILE:ROW, counted from 0.
    """
    found: list[Vector] = []
    for one in inputs:
        if isinstance(one, Vector):
            found.append(one)
            continue
        given = os.fspath(one)
        file, colon, row = given.rpartition(":")
        if not (colon and row.isdecimal() and not os.path.exists(given)):
            file, row = given, ""
        values = np.atleast_2d(_array(file, int(row) if row else None))
        if row:
            found.append(Vector(given, values[0]))
        else:
            found += [Vector(file if len(values) == 1 else f"{file}:{i}", each) for i, each in enumerate(values)]
    return found


def checked_vectors(values: Any, width: int, where: str) -> np.ndarray:
    """Vectors of any library as float32: values [C]."""
    found = np.asarray(values)
    if found.dtype.kind not in "fiu" or found.ndim not in (1, 2) or found.shape[-1] != width:
        raise UserError(where, f"is {found.dtype} {list(found.shape)}", f"give vectors [{width}] or [n, {width}]")
    found = found.astype(np.float32)
    if not np.isfinite(found).all():
        raise UserError(where, "has values that are no finite numbers", "restore it")
    return found


def _array(file: str, row: int | None) -> np.ndarray:
    """All rows of a file [n, C], or the one with this number [1, C]."""
    path, rows = Path(file), slice(None) if row is None else slice(row, row + 1)
    check_regular(path)
    if not path.is_file():
        raise UserError(file, "there is no such file", "give a .npy, .npz or .h5 of vectors, or FILE:ROW")
    if path.suffix.lower() in (".h5", ".hdf5"):
        (found,) = arrays(path, {FEATURE: ("f", 2)}, file, rows)
    else:
        found = _numpy_array(path, file)[rows]
    if row is not None and not len(found):
        raise UserError(f"{file}:{row}", f"there is no row {row}", "count rows from 0")
    return found


def _numpy_array(path: Path, file: str) -> np.ndarray:
    """The vectors in a file of numpy, [n, C]."""
    try:
        found = read_arrays(path, (FEATURE,))[FEATURE] if path.suffix.lower() == ".npz" else read_array(path)
    except (ValueError, OSError, KeyError) as error:
        remedy = f"give a .npy [n, C], or a .npz or .h5 with an array named {FEATURE}"
        raise UserError(file, "cannot be read as vectors", remedy) from error
    if found.ndim not in (1, 2) or not found.size:
        raise UserError(file, f"is {found.dtype} {list(found.shape)}", "give vectors [C] or [n, C]")
    return np.atleast_2d(found)
