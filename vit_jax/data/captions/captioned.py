"""Images with captions in files: a folder with captions.csv, or the annotations of COCO beside a folder of images."""

from __future__ import annotations

import csv
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from ...errors import UserError
from ...files.atomic import check_regular
from ..base import Given, not_given
from ..images.sources.arrays import Arrays, arrays_split
from ..images.sources.base import Examples
from ..images.sources.folders import Files
from .config import GIVEN

FOLDER, COCO = "captions:", "coco:"  # begin a data.source
TABLE, HEADER = "captions.csv", "image,caption"
LARGEST = 1 << 30  # bytes of a table or of annotations

Captioned = dict[str, list[str]]  # {path of an image: its captions}, in the order of the file
Found = dict[str, tuple[Examples, list[list[str]]]]  # {split: (its images, the captions of each)}


def find_captions(source: str, given: Given | None = None) -> Found:
    """Images with captions by split: those `given` in Python, or those of a source, which are all train.

    Raises UserError.
    """
    if given is not None:
        return _read_given(given)
    if source == GIVEN:
        raise not_given(GIVEN, "(images, captions)")
    captioned = read_captioned(source)
    paths = list(captioned)
    return {"train": (Files(paths, np.zeros(len(paths), np.int32)), [captioned[path] for path in paths])}


def _read_given(given: Given) -> Found:
    """The same of (images, captions), or {split: (images, captions)}, a caption being a text or several."""
    if given.class_names:
        raise UserError("class_names", "captions have no classes", "leave them out")
    out: Found = {}
    for name, value in given.splits(("train", "validation", "test")).items():
        if not isinstance(value, (tuple, list)) or len(value) != 2:
            raise UserError("data", f"{name} is a {type(value).__name__}", "give a pair, (images, captions)")
        pixels, captions = np.asarray(value[0]), value[1]
        several = [
            [each] if isinstance(each, str) else list(each) if isinstance(each, (list, tuple)) else []
            for each in captions
        ]
        if not all(each and all(isinstance(text, str) for text in each) for each in several):
            raise UserError("data", f"captions of {name} are no texts", "give each image a text, or a list of texts")
        if len(several) != len(pixels):
            raise UserError(
                "data", f"{name} has {len(pixels)} images and captions of {len(several)}", "give each image its own"
            )
        labels = np.zeros(len(pixels), np.int32)
        images: Arrays = arrays_split("data", f"images of {name}", pixels, labels, "")
        out[name] = images, several
    return out


def read_captioned(source: str) -> Captioned:
    """The images and captions of `captions:FOLDER`, or of `coco:FILE.json:FOLDER`.

    FOLDER/captions.csv begins with the line image,caption; an image, a path inside FOLDER, may have many lines.
    FILE.json is as COCO's captions_train2014.json, and FOLDER has its images. Raises UserError.
    """
    if source.startswith(FOLDER):
        folder = source.removeprefix(FOLDER)
        file, pairs = os.path.join(folder, TABLE), _table
    else:
        file, _, folder = source.removeprefix(COCO).rpartition(":")
        pairs = _annotations
    field, root = f"data.source {source}", Path(folder).expanduser()
    if not file or not folder or not root.is_dir():
        raise UserError(
            field, f"there is no folder {folder or 'of images'}", "give captions:FOLDER or coco:FILE:FOLDER"
        )
    path = Path(file).expanduser()
    try:
        check_regular(path)
        if path.stat().st_size > LARGEST:
            raise UserError(field, f"{path.name} has more than {LARGEST >> 30} GB", "give fewer captions")
        content = path.read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = path.read_bytes()[: error.start].count(b"\n") + 1
        raise UserError(field, f"{path.name} line {line} is no UTF-8 text", "save it as UTF-8") from error
    except OSError as error:
        raise UserError(field, f"{path} cannot be read ({error.strerror})", "put it there") from error
    found: Captioned = {}
    there: set[str] = set()
    for where, name, caption in pairs(field, path.name, content):
        image = str(root / name)
        if not caption.strip():
            raise UserError(field, f"{where}: the caption of {name!r} is empty", "write one, or remove the line")
        if image not in there and not os.path.isfile(image):
            raise UserError(
                field, f"{where}: there is no image {name!r} in {folder}", "put it there, or remove the line"
            )
        there.add(image)
        found.setdefault(image, []).append(caption)
    if len(found) < 3:
        raise UserError(field, f"{path.name} has {len(found)} images with captions", "give at least 3")
    return found


def _table(field: str, name: str, content: str) -> Iterator[tuple[str, str, str]]:
    """(where it stands, image, caption) of each line of a table."""
    try:
        rows = csv.reader(content.splitlines(keepends=True), strict=True)
        if next(rows, None) != HEADER.split(","):
            raise UserError(field, f"{name} does not begin with the line {HEADER}", "add that")
        for row in rows:
            where = f"{name} line {rows.line_num}"
            if row and len(row) != 2:
                raise UserError(
                    field, f"{where} has {len(row)} columns instead of 2", "put quotes around a text with commas"
                )
            if row:
                yield where, row[0], row[1]
    except csv.Error as error:
        raise UserError(field, f"{name} line {rows.line_num} cannot be read ({error})", "mend its quotes") from error


def _annotations(field: str, name: str, content: str) -> Iterator[tuple[str, str, str]]:
    """The same of COCO's annotations."""
    try:
        value: Any = json.loads(content)
        text = HEADER.partition(",")[2]  # the key has the name of the column
        files = {image["id"]: image["file_name"] for image in value["images"]}
        some = [(i, note["image_id"], note[text]) for i, note in enumerate(value["annotations"])]
        if not all(isinstance(x, str) for x in (*files.values(), *(caption for _, _, caption in some))):
            raise TypeError
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise UserError(
            field, f"{name} is no JSON of COCO's captions (images, annotations)", "give such a file"
        ) from error
    for i, image, caption in some:
        where = f"{name} annotations[{i}]"
        if image not in files:
            raise UserError(
                field, f"{where}: there is no image {image!r} among its images", "add it, or remove the caption"
            )
        yield where, files[image], caption
