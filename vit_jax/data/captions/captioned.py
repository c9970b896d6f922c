"""Images with captions in files: a folder with captions.csv, or the annotations of COCO beside a folder of images."""

from __future__ import annotations

import csv
import os
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import numpy as np

from ...errors import Field, UserError
from ...files import strict_json
from ...files.lines import quote, read_lines
from ...files.places import copied
from ...files.reading import open_regular
from ..base import GivenData, not_given
from ..images.high_bit_depth import Range
from ..images.sources.arrays import Arrays, arrays_split
from ..images.sources.base import Examples
from ..images.sources.folders import Files
from ..images.sources.given import Sequenced, halves
from ..images.sources.item_images import examples_of
from ..images.sources.layout import Folder, Unused
from ..items import SourceRequest, open_items, source_named
from .config import GIVEN, SHAPES, TABLE, CaptionData

FOLDER, COCO = "captions:", "coco:"
HEADER = "image,caption"
_TEXTS = re.compile(r"(.*\.)?(txt|texts?|captions?|sentences?)")
STAND_IN = "\ufdd0"  # for a CR, which csv takes for a line end; Unicode has no such character
LARGEST = 1 << 30  # bytes

Captioned = dict[str, list[str]]  # by paths of images, in the order of the file
Found = dict[str, tuple[Examples, list[list[str]]]]  # {split: (its images, the captions of each)}


def find_captions(data: CaptionData, given: GivenData | None = None) -> Found:
    """Images with captions, in `data.source` or given -> {split: (its images, the captions of each)}."""
    if given is not None:
        return _read_given(given, data.range)
    if data.source == GIVEN:
        raise not_given(GIVEN, "(images, captions)")
    if source_named(data.source):
        return _of_items(data)
    if not data.source.startswith((FOLDER, COCO)):
        raise UserError(
            Field("data.source"),
            f"is {data.source}, which has no captions",
            f"give {SHAPES}, captions:FOLDER, coco:FILE.json:FOLDER, wds:PATTERN or parquet:PATTERN",
        )
    captioned = read_captioned(data.source)
    paths = list(captioned)
    return {"train": (Files(paths, np.zeros(len(paths), np.int32)), [captioned[path] for path in paths])}


def _of_items(data: CaptionData) -> Found:
    """Images with captions that are items: each line of an item's text is one."""
    field = f"data.source {data.source}"
    items = open_items(data.source, SourceRequest(field, data.dir, data.verify), images=True)
    found = [name for name in items.fields if _TEXTS.fullmatch(name)]
    if len(found) != 1:
        has = ", ".join(items.fields) or "no texts"
        raise UserError(
            field, f"which field has the captions? Its samples have {has}", "give one text a sample, as .txt"
        )
    out: Found = {}
    for split, part in items.splits().items():
        lines = [[line.strip() for line in text.split("\n")] for text in part.items.texts(found[0])]
        captions = [[line for line in each if line] for each in lines]
        empty = next((i for i, each in enumerate(captions) if not each), -1)
        if empty >= 0:
            raise UserError(part.items.name(empty), f"its {found[0]} is empty", "write a text, or leave the sample out")
        out[split] = examples_of(part.items, np.zeros(len(captions), np.int32)), captions
    return out


def without_captions(source: str, there: Found) -> tuple[str, ...]:
    """A remark on images in the folder of a source that have no captions; none if all have some."""
    if not source.startswith((FOLDER, COCO)):
        return ()
    path = copied(source.removeprefix(FOLDER)) if source.startswith(FOLDER) else source.rpartition(":")[2]
    folder = Folder(os.path.expanduser(path))
    used = {os.path.normpath(images.name(i)) for images, said in there.values() for i in range(len(said))}
    left = [path for path in folder.image_paths(Unused()) if os.path.normpath(path) not in used]
    count = f"{len(left):,} image{' has' if len(left) == 1 else 's have'} no caption"
    return (f"{count} and {'is' if len(left) == 1 else 'are'} left out, such as {left[0]}",) if left else ()


def _read_given(given: GivenData, stated: Range) -> Found:
    """The same of (images, captions), or {split: (images, captions)}, a caption being a text or several."""
    if given.class_names:
        raise UserError("class_names", "captions have no classes", "leave them out")
    out: Found = {}
    for name, value in given.splits().items():
        pixels, captions = halves(name, value, "captions")
        several = [
            [each] if isinstance(each, str) else list(each) if isinstance(each, (list, tuple)) else []
            for each in captions
        ]
        if not all(each and all(isinstance(text, str) for text in each) for each in several):
            raise UserError("data", f"captions of {name} are no texts", "give each image a text, or a list of texts")
        labels = np.zeros(len(several), np.int32)
        if not isinstance(pixels, np.ndarray):
            out[name] = Sequenced(pixels, labels, name), several
            continue
        if len(several) != len(pixels):
            raise UserError(
                "data", f"{name} has {len(pixels)} images and captions of {len(several)}", "give each image its own"
            )
        images: Arrays = arrays_split("data", f"images of {name}", pixels, labels, "", stated)
        out[name] = images, several
    return out


def read_captioned(source: str) -> Captioned:
    """The images and captions of a source -> {path of an image: its captions}."""
    if source.startswith(FOLDER):
        folder = copied(source.removeprefix(FOLDER))
        file, pairs, entry = os.path.join(folder, TABLE), _table, "line"
    else:
        file, _, folder = source.removeprefix(COCO).rpartition(":")
        pairs, entry = _annotations, "annotation"
    field, root = f"data.source {source}", Path(os.path.expanduser(folder))
    if not file or not folder or not root.is_dir():
        raise UserError(
            field, f"there is no folder {folder or 'of images'}", "give captions:FOLDER or coco:FILE:FOLDER"
        )
    path = Path(os.path.expanduser(file))
    found: Captioned = {}
    try:
        with open_regular(path) as content:
            if path.stat().st_size > LARGEST:
                raise UserError(field, f"{path.name} has more than {LARGEST >> 30} GB", "give fewer captions")
            for where, name, caption in pairs(f"{field}: {path.name}", content):
                _add(found, root, name, caption, where, entry)
    except OSError as error:
        raise UserError(field, f"{path} cannot be read ({error.strerror})", "put it there") from error
    if len(found) < 3:
        raise UserError(field, f"{path.name} has {len(found)} images with captions", "give at least 3")
    return found


def _add(found: Captioned, root: Path, name: str, caption: str, where: str, entry: str) -> None:
    """Add a caption to those of an image, a path inside the folder `root`: the links in it are followed."""
    image = str(root / name)
    if not caption.strip():
        raise UserError(where, f"the caption of {quote(name)} is empty", f"write one, or remove the {entry}")
    if image not in found:
        if Path(name).anchor or ".." in re.split(r"[/\\]", name):
            what = f"the image {quote(name)} is outside {root}, or its path leads out and in again"
            raise UserError(where, what, f"put it there and give its path from there without .., or remove the {entry}")
        if not os.path.isfile(image):
            raise UserError(where, f"there is no image {quote(name)} in {root}", f"put it there, or remove the {entry}")
    found.setdefault(image, []).append(caption)


def _table(where: str, file: BinaryIO) -> Iterator[tuple[str, str, str]]:
    """(where it stands, image, caption) of each row of a table; blank lines are left out."""
    lines = (line.replace("\r", STAND_IN) + "\n" for line in read_lines(file, where))
    rows = csv.reader(lines, strict=True)
    here = f"{where} line 1"
    try:
        if (first := next(rows, [])) != HEADER.split(","):
            begins = f"begins with {quote(','.join(first))} and not" if first else "does not begin"
            remedy = "give two columns of these names with a comma between them"
            raise UserError(where, f"{begins} with the line {HEADER}", remedy)
        here = f"{where} line {rows.line_num + 1}"  # where a row begins that takes several lines
        for row in rows:
            if any(map(str.strip, row)) or len(row) > 1:
                if len(row) != 2:
                    raise UserError(
                        here, f"has {len(row)} columns instead of 2", "put quotes around a text with commas"
                    )
                image, caption = (text.replace(STAND_IN, "\r") for text in row)
                yield here, image, caption
            here = f"{where} line {rows.line_num + 1}"
    except csv.Error as error:
        raise UserError(here, f"cannot be read ({error})", "mend its quotes") from error


def _annotations(where: str, file: BinaryIO) -> Iterator[tuple[str, str, str]]:
    """The same of COCO's annotations."""
    try:
        value = strict_json.parse(file.read())
        text = HEADER.partition(",")[2]  # the key has the name of the column
        images = [(image["id"], image["file_name"]) for image in value["images"]]
        notes = [(note.get("id", i), note["image_id"], note[text]) for i, note in enumerate(value["annotations"])]
        ids = [*(i for i, _ in images), *(i for note in notes for i in note[:2])]
        texts = [*(name for _, name in images), *(caption for *_, caption in notes)]
        if not all(isinstance(i, int | str) for i in ids) or not all(isinstance(text, str) for text in texts):
            raise TypeError
        for what, each in (
            ("images: the id", (i for i, _ in images)),
            ("images: the file_name", (os.path.normpath(name) for _, name in images)),
            ("annotations: the id", (i for i, *_ in notes)),
        ):
            if twice := [value for value, count in Counter(each).items() if count > 1]:
                raise strict_json.Ambiguous(f"{what} {quote(twice[0])} occurs twice")
    except strict_json.Ambiguous as error:
        raise UserError(where, f"can be understood in two ways ({error})", "remove one of the two") from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UserError(where, "is no JSON of COCO's captions (images, annotations)", "give such a file") from error
    names = dict(images)
    for i, (_, image, caption) in enumerate(notes):
        here = f"{where} annotations[{i}]"
        if image not in names:
            raise UserError(here, f"there is no image {quote(image)} among its images", "add it, or remove the caption")
        yield here, names[image], caption
