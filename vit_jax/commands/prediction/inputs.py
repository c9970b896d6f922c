"""What a network is given to answer: image files, sentences or vectors, as arguments, in files, or on stdin."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from ...errors import UserError
from ...files.arriving import arriving_lines
from ...files.lines import Line, read_lines
from ...files.reading import open_regular

Note = Callable[[str], None]  # is told a remark
STDIN = "-"
FILES = (".txt", ".tsv", ".csv", ".gz")  # what ends so is meant as a file's name, not as a sentence
PLACES = ("./", "../", "~/", "/")  # what begins so, likewise
_ONE_A_LINE = {
    "pixels": "give one image file a line",
    "vectors": "give one vector a line, as FILE or FILE:ROW",
    "ids": "give one sentence a line",
}


def is_piped() -> bool:
    """Whether stdin is there and no terminal: a file or a pipe, from which inputs may be read."""
    return sys.stdin is not None and not sys.stdin.closed and not sys.stdin.isatty()


def is_blank(given: Any) -> bool:
    """Whether an input is a line without a word, which has a blank answer."""
    return isinstance(given, Line) and not given.strip()


class Inputs:
    """The inputs of a command, in order. Those on stdin are read as they come; all others are checked beforehand.

    Args:
        kind: what the network takes: pixels, ids or vectors.
        given: arguments; `-` is stdin.
        note: is told what lies in folders besides images.

    Raises:
        UserError: for what is not there.
    """

    def __init__(self, kind: str, given: Sequence[str], note: Note):
        self.kind, self._parts = kind, list[list[Any] | None]()  # None: stdin
        for several in _apart(given):
            self._parts.append(several and (sentences(several) if kind == "ids" else files_of(kind, several, note)))

    @property
    def total(self) -> int | None:
        """How many there are; None where that shows at the end of stdin."""
        return None if None in self._parts else sum(len(part or ()) for part in self._parts)

    def groups(self, batch: int) -> Iterator[list[Any]]:
        """All inputs in groups of at most `batch`; texts and vectors that are no lines of stdin are one group.

        Raises:
            UserError: naming the line, where one on stdin cannot be used.
        """
        for part in self._parts:
            if part is not None:
                size = batch if self.kind == "pixels" else len(part)
                yield from (part[i : i + size] for i in range(0, len(part), size))
                continue
            errors = "strict" if self.kind == "ids" else "surrogateescape"  # names of files may be no UTF-8
            for lines in arriving_lines(sys.stdin.buffer, "stdin", batch, errors):
                yield [line if is_blank(line) else _one(self.kind, line) for line in lines]


def _apart(given: Sequence[str]) -> Iterator[list[str] | None]:
    """Arguments, cut at each `-`, for which None stands. Raises UserError where it is given twice."""
    if given.count(STDIN) > 1:
        raise UserError("inputs", "has - twice, and stdin can be read once", "give it once")
    some: list[str] = []
    for text in given:
        if text != STDIN:
            some.append(text)
            continue
        if some:
            yield some
        yield None
        some = []
    if some:
        yield some


def files_of(kind: str, given: Sequence[str], note: Note) -> list[Any]:
    """The inputs that paths name.

    Args:
        kind: pixels (image files, and folders of them) or vectors (files of them, or FILE:ROW).
        given: the paths.
        note: is told what lies in folders besides images.

    Raises:
        UserError: for what is not there, or cannot be read as vectors.
    """
    if kind == "pixels":
        return list(image_files(given, note))
    if kind == "vectors":
        from ...data.captions.vectors import vectors_in

        vectors_in(given)
    return list(given)


def _one(kind: str, line: Line) -> Any:
    """A line of stdin as the one input that it names. Raises UserError."""
    if kind == "pixels":
        path = Path(line)
        if path.is_dir():
            raise UserError(line.where, f"{line} is a folder", "give folders as arguments, or one image file a line")
        if not path.exists():
            raise UserError(line.where, f"there is no image {line}", _ONE_A_LINE[kind])
        return path
    if kind == "vectors":
        from ...data.captions.vectors import vectors_in
        from ...errors import about

        with about(line.where):
            several = len(vectors_in([line]))
        if several != 1:
            raise UserError(line.where, f"{line} has {several} rows", _ONE_A_LINE[kind])
    return line


def image_files(paths: Iterable[str], note: Note) -> list[Path]:
    """Paths of image files; each folder is replaced by the images in it and below, sorted.

    Args:
        paths: of files and folders.
        note: is told what other files lie in the folders.

    Raises:
        UserError: for a path that does not exist, and a folder without images.
    """
    from ...data.images.preprocess import EXTENSIONS
    from ...data.images.tree import Folder, Unused

    found: list[Path] = []
    unused = Unused()
    for text in paths:
        path = Path(text)
        if path.is_dir():
            inside = sorted(map(Path, Folder(str(path)).image_paths(unused)))
            if not inside:
                only = f", only {unused}" if len(unused) else ""
                raise UserError(
                    text,
                    f"there are no images in this folder{only}",
                    f"known suffixes are {', '.join(sorted(EXTENSIONS))}",
                )
            found += inside
        elif path.exists():
            found.append(path)
        else:
            raise UserError(text, "there is no such image or folder", "check the path")
    for remark in unused.remarks():
        note(remark)
    return found


def with_images_of_tables(kind: str, inputs: Sequence[Any], file_column: str) -> list[Any]:
    """Inputs, of which each table of images is replaced by the paths of these.

    Args:
        kind: of the inputs; others than pixels stay as they are.
        inputs: among them csv:FILE[:FOLDER].
        file_column: the table's column of images; empty: the one that is called so.

    Raises:
        UserError: a table cannot be read, or an image of it is not there.
    """
    if kind != "pixels":
        return list(inputs)
    from ...data.images.config import TABLE
    from ...data.images.tables.columns import Stated
    from ...data.images.tables.open import table_files
    from ...data.images.tables.places import find_table

    found: list[Any] = []
    for given in inputs:
        if isinstance(given, str) and given.startswith(TABLE) and not os.path.lexists(given):
            found += table_files(find_table(given), Stated(file_column=file_column))
        else:
            found.append(given)
    return found


def sentences(inputs: Iterable[str]) -> list[str]:
    """Sentences as they are typed; a file is replaced by its lines, blank ones among them.

    Args:
        inputs: sentences, and names of files.

    Raises:
        UserError: for the name of a file that is not there, a folder, and a file that is no text, naming its line.
    """
    found: list[str] = []
    for text in inputs:
        if len(text) > 255 or not os.path.lexists(text) or os.path.isdir(text):
            if "/" in text and os.path.isdir(text):
                raise UserError(text, "is a folder", "give a sentence, or a file of them, one per line")
            if (text.endswith(FILES) or text.startswith(PLACES)) and " " not in text:
                raise UserError(text, "there is no such file", "give a sentence, or a file of them, one per line")
            found.append(text)
            continue
        try:
            with open_regular(text) as file:
                found += (Line(line, f"{text} line {i}") for i, line in enumerate(read_lines(file, text), 1))
        except OSError as error:
            raise UserError(text, f"cannot be read ({error.strerror or error})", "give UTF-8 text") from error
    return found
