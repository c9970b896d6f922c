"""The captions of COCO as the course cs231n hands them out: ids in HDF5, words in JSON, and a vector of each picture.

A caption is a row of ids <START> word word <END> <NULL> <NULL>; which ids these are, coco2014_vocab.json says. The
vectors are those of VGG-16's layer fc7, 4,096 wide, or 512 by principal components.
"""

from __future__ import annotations

import io
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ...errors import Field, UserError, about, report_damage, require
from ...files.atomic import read_json
from ...files.lines import read_lines
from ...files.reading import check_regular, read_regular
from ...text.tokenizer import Ids
from ...text.vocabulary import COURSE, Vocabulary

SOURCE = "coco-features:"
CAPTIONS, WORDS = "coco2014_captions.h5", "coco2014_vocab.json"
FEATURES = ("{}2014_vgg16_fc7_pca.h5", "{}2014_vgg16_fc7.h5")  # of train and of val
FEATURE = "features"
ADDRESSES = "{}2014_urls.txt"
LARGEST = 64 << 20  # bytes of a file of text
LARGEST_ARRAY = 8 << 30  # bytes


class Part(NamedTuple):
    """The pictures and captions of one part of the set."""

    file: str
    features: np.ndarray  # float32 [n, C], a row for each picture
    addresses: Sequence[str]  # empty where they are not known
    target: np.ndarray  # int32 [m, T]: captions without begin and end, filled with padding
    rows: np.ndarray  # int [m]: the picture of each caption


def read_words(source: str) -> tuple[Path, Vocabulary]:
    """The words of a source -> (the folder, its words)."""
    field, folder = f"data.source {source}", Path(os.path.expanduser(source.removeprefix(SOURCE)))
    if not source.startswith(SOURCE) or source == SOURCE or not folder.is_dir():
        there = "has no vectors with captions" if not source.startswith(SOURCE) else f"there is no folder {folder}"
        files = f"{CAPTIONS}, {WORDS} and {FEATURES[0].format('train')}"
        raise UserError(field, there, f"give {SOURCE}FOLDER, with {files}")
    if not (folder / WORDS).exists():
        raise UserError(field, f"there is no {WORDS}", "put it there")
    with about(field):
        value = read_json(folder / WORDS, LARGEST, "restore it")
    words, places = value.get("idx_to_word"), value.get("word_to_idx")
    if not isinstance(words, list) or not all(isinstance(word, str) for word in words) or not isinstance(places, dict):
        raise UserError(field, f"{WORDS} has no list idx_to_word beside word_to_idx", "restore it")
    for name in COURSE:
        if words.count(name) != 1 or places.get(name) != words.index(name):
            raise UserError(field, f"{WORDS} does not give the word {name} one id", "restore it")
    return folder, Vocabulary(words)


def has_part(folder: Path, name: str) -> bool:
    """Whether there are vectors of "train" or of "val"."""
    return any((folder / form.format(name)).is_file() for form in FEATURES)


def read_part(folder: Path, name: str, vocabulary: Vocabulary, wide: int, source: str) -> Part:
    field = f"data.source {source}"
    file = _of_width(folder, name, wide, field)
    (features,) = arrays(file, {FEATURE: ("f", 2)}, field)
    features = features.astype(np.float32)
    if len(bad := np.flatnonzero(~np.isfinite(features).all(1))):
        raise UserError(field, f"{file.name} row {bad[0]} has values that are no finite numbers", "restore it")
    stated = {f"{name}_captions": ("iu", 2), f"{name}_image_idxs": ("iu", 1)}
    ids, rows = arrays(folder / CAPTIONS, stated, field)
    if len(ids) != len(rows):
        raise UserError(
            field, f"{CAPTIONS} has {len(ids)} {name}_captions but {len(rows)} {name}_image_idxs", "restore it"
        )
    if not len(ids):
        raise UserError(field, f"{CAPTIONS} has no {name}_captions", "give some")
    if len(lost := np.flatnonzero((rows < 0) | (rows >= len(features)))):
        raise UserError(
            field,
            f"{name}_captions[{lost[0]}] is of the picture {rows[lost[0]]}, but {file.name} has only "
            f"{len(features):,} pictures",
            "restore the file that belongs to it",
        )
    return Part(
        file.name,
        features,
        _addresses(folder, name, len(features), field),
        _captions(ids, vocabulary, f"{name}_captions", field),
        rows.astype(np.int64),
    )


def _of_width(folder: Path, name: str, wide: int, field: str) -> Path:
    """The file of vectors that are so wide."""
    files = [path for form in FEATURES if (path := folder / form.format(name)).is_file()]
    heads = {path: arrays(path, {FEATURE: ("f", 2)}, field, slice(0, 0))[0] for path in files}
    widths = {path: head.shape[1] for path, head in heads.items()}
    if not files:
        raise UserError(field, f"there is no {FEATURES[0].format(name)}", "put it there")
    if found := [path for path in files if widths[path] == wide]:
        return found[0]
    there = " and ".join(str(each) for each in widths.values())
    raise UserError(
        Field("model.memory_width"),
        f"is {wide}, but the vectors of {field} are {there} wide",
        f"give `model.memory_width {next(iter(widths.values()))}`",
    )


def _addresses(folder: Path, name: str, count: int, field: str) -> list[str]:
    """The address of each picture on the web, where the folder has as many."""
    path = folder / ADDRESSES.format(name)
    if not path.is_file():
        return []
    with about(field):
        file = io.BytesIO(read_regular(path, LARGEST, "restore it"))
        found = [line.strip() for line in read_lines(file, path.name) if line.strip()]
    return found if len(found) == count else []


def _captions(ids: np.ndarray, vocabulary: Vocabulary, name: str, field: str) -> np.ndarray:
    """Captions [m, L] as they stand in the file, as targets int32 [m, L-1]. Raises UserError on what is no caption."""
    special: Ids = vocabulary.ids
    if len(out := np.argwhere((ids < 0) | (ids >= len(vocabulary)))):
        i, j = out[0]
        raise UserError(
            field,
            f"{name}[{i}] has the id {ids[i, j]}, but {WORDS} has only {len(vocabulary):,} words",
            "give the words that the captions were written with",
        )
    body = ids[:, 1:]
    ended = (body == special.end) | (body == special.pad)
    lengths = np.where(ended.any(1), ended.argmax(1), body.shape[1])[:, None]  # in words
    place = np.arange(body.shape[1])
    wrong = (body == special.begin) | ((place > lengths) & (body != special.pad))
    wrong = (ids[:, :1] != special.begin).any(1) | wrong.any(1) | (lengths[:, 0] == 0)
    if len(bad := np.flatnonzero(wrong)):
        null, start, end, _ = COURSE
        raise UserError(
            field, f"{name}[{bad[0]}] is not {start}, words, {end} and then {null} alone", f"restore {CAPTIONS}"
        )
    return np.where(place < lengths, body, special.pad).astype(np.int32)


def arrays(path: Path, names: dict[str, tuple[str, int]], where: str, rows: slice = slice(None)) -> list[np.ndarray]:
    """Rows of the data sets, {name: (kinds of dtype, axes)}, of an HDF5 file, which strangers may have written: plain
    ones inside the file alone, of a bounded size.
    """
    check_regular(path)
    if not path.is_file():
        raise UserError(where, f"there is no {path.name}", "put it there")
    with require("h5py", "captions"):
        import h5py
    found = []
    with report_damage(where, f"{path.name} cannot be read", "restore it"), h5py.File(path, "r") as file:
        for name, (kinds, axes) in names.items():
            _check(h5py, file, name, kinds, axes, f"{where}: {path.name}")
            found.append(np.asarray(file[name][rows]))
    return found


def _check(h5py: Any, file: Any, name: str, kinds: str, axes: int, where: str) -> None:
    """Raise UserError where a data set is missing, of another kind, not all in this file, or too large."""
    link = file.get(name, getlink=True)
    if link is None or not isinstance(link, h5py.HardLink) or not isinstance(file[name], h5py.Dataset):
        raise UserError(f"{where} has no data set {name!r} of its own", remedy="restore the file")
    found = file[name]
    if found.is_virtual or found.external:
        raise UserError(where, f"{name} lies in other files", "write it into this one")
    if found.dtype.kind not in kinds or found.ndim != axes:
        wanted = "whole numbers" if kinds == "iu" else "floating-point numbers"
        raise UserError(where, f"{name} is {found.dtype} {list(found.shape)}", f"give {wanted} with {axes} axes")
    if found.nbytes > LARGEST_ARRAY:
        raise UserError(where, f"{name} states {found.nbytes >> 30} GB", f"give at most {LARGEST_ARRAY >> 30} GB")
