"""Join the files of all shares of a job, as --share of `predict` and `evaluate` writes them: `vit-jax join FILES`."""

from __future__ import annotations

import csv
import itertools
import os
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from ..config import flags
from ..config.fields import option
from ..errors import DONE, UserError
from ..files.atomic import replacing
from ..files.destination import check_outputs
from ..files.output import write_npz
from ..files.reading import open_regular, show_path
from ..files.terminal import printable, run_command
from .share import JOB, LEFT_OUT, NAMES, OUTPUTS, ROW, check_rows, check_same_job, read_arrays, read_title

TABLE, ARRAYS = ".csv", ".npz"


@dataclass(frozen=True, kw_only=True)
class Options:
    """Join the files of all shares of a job to one, in the order of the rows."""

    files: tuple[str, ...] = field(
        metadata={"help": "what the shares wrote: tables of predictions, .npz of features or of an evaluation"}
    )
    to: str = option("", "the joined file; of an evaluation's outputs it is for evaluate --joined")
    force: bool = option(False, "overwrite it if it exists")


def command(arguments: list[str]) -> int:
    """Join what arguments name."""
    o = flags.parse(Options, arguments, prog="vit-jax join")
    if not o.files or not o.to:
        raise UserError("files or --to: none given", remedy="give the files of all shares, and --to FILE")
    for folder in filter(Path.is_dir, map(Path, o.files)):
        what = f"is a folder{' of --parts, which is gone' if (folder / 'job.json').exists() else ''}"
        raise UserError(show_path(folder), what, "give the files that predict or evaluate wrote with --share I/N")
    check_outputs({"to": o.to}, o.force, o.files)
    suffixes = {Path(file).suffix.lower() for file in [*o.files, o.to]}
    if suffixes not in ({TABLE}, {ARRAYS}):
        remedy = "give tables (.csv) or arrays (.npz), and --to of the same kind"
        raise UserError(f"the files end in {' and '.join(sorted(suffixes))}", remedy=remedy)
    rows = (join_tables if suffixes == {TABLE} else join_arrays)(o.files, o.to)
    print(printable(f"{o.to} has the {rows:,} rows of {len(o.files):,} files"))
    return DONE


def join_tables(files: Sequence[str], to: str) -> int:
    """Join tables of predictions, one row at a time in memory; returns the number of rows of the job."""
    titles = {file: next(_read_table(file)) for file in files}
    facts = _facts({file: title[0] for file, title in titles.items()})
    for file, title in titles.items():
        _check_alike(file, title[1:], files[0], titles[files[0]][1:])
    numbers = [(file, _numbers(file)) for file in files]
    check_rows(numbers, int(facts["rows"]))
    numbers.sort(key=lambda each: each[1][:1].tolist())
    if (np.diff(np.concatenate([rows for _, rows in numbers])) < 0).any():
        raise UserError("the rows are in another order than their job's", remedy="give the files as they were written")
    with (
        replacing(Path(to)) as temporary,
        open(temporary, "w", newline="", encoding="utf-8", errors="surrogateescape") as joined,
    ):
        writer = csv.writer(joined)
        writer.writerow(titles[files[0]][1:])
        for file, _ in numbers:  # an image that was left out has its number alone
            writer.writerows(row[1:] for row in itertools.islice(_read_table(file), 1, None) if len(row) > 1)
    return int(facts["rows"])


def _read_table(file: str) -> Iterator[list[str]]:
    """The rows of a share's table, that of the titles first. Raises UserError where one is cut off or no such row."""
    with open_regular(file) as opened:
        opened.seek(max(os.fstat(opened.fileno()).st_size - 2, 0))
        if opened.read() != b"\r\n":
            raise _unreadable(file, "it is cut off")
    with open(file, newline="", encoding="utf-8", errors="surrogateescape") as text:
        reader = csv.reader(text)
        try:
            title = next(reader) or [""]
            yield title
            for row in reader:
                if not re.fullmatch("[0-9]{1,15}", row[0] if row else "") or len(row) not in (1, len(title)):
                    raise _unreadable(file, f"line {reader.line_num} is no row of it")
                yield row
        except csv.Error as error:
            raise _unreadable(file, str(error)) from error


def _unreadable(file: str, why: str) -> UserError:
    return UserError(show_path(file), f"cannot be read as the table of a share ({why})", "write it again")


def _numbers(file: str) -> np.ndarray:
    """The numbers of a table's inputs, int64 [k], of which each may have several rows, one after the other."""
    rows = (int(row[0]) for row in itertools.islice(_read_table(file), 1, None))
    return np.fromiter((number for number, _ in itertools.groupby(rows)), np.int64)


def _facts(titles: Mapping[str, str]) -> dict[str, str]:
    """The facts of the job that all files are of: {file: its title}. Raises UserError where they are of several."""
    facts = {file: read_title(title, file) for file, title in titles.items()}
    first = next(iter(facts))
    for file in facts:
        check_same_job(file, facts[file], show_path(first), facts[first])
    return facts[first]


def _check_alike(file: str, found: object, first: str, wanted: object) -> None:
    """Raise UserError where a file has other columns or arrays than the first one."""
    if found != wanted:
        what = f"has other columns than {show_path(first)}"
        raise UserError(show_path(file), what, "give files that one option wrote, such as --csv")


def join_arrays(files: Sequence[str], to: str) -> int:
    """Join features, or an evaluation's outputs, one file at a time in memory; returns the number of rows of the job.

    Outputs keep the numbers of their rows, since an evaluation goes through texts by their lengths.
    """
    heads = {file: read_arrays(file, JOB, ROW, LEFT_OUT) for file in files}
    facts, first = _facts({file: str(head[JOB]) for file, head in heads.items()}), files[0]
    numbers = [(file, np.concatenate([heads[file][ROW], heads[file][LEFT_OUT]])) for file in files]
    check_rows(numbers, int(facts["rows"]))
    measured, names, layouts = facts.get("content") == OUTPUTS, list[str](), list[object]()

    def parts() -> Iterator[dict[str, np.ndarray]]:
        for file, _ in sorted(numbers, key=lambda each: each[1].min()):
            arrays = read_arrays(file)
            names.extend(arrays.pop(NAMES, np.array([])).tolist())
            for name in (JOB, LEFT_OUT) if measured else (JOB, LEFT_OUT, ROW):
                del arrays[name]
            layouts.append({name: (x.dtype, x.shape[1:]) for name, x in arrays.items()})
            _check_alike(file, layouts[-1], first, layouts[0])
            yield arrays

    whole = {JOB: heads[first][JOB], LEFT_OUT: heads[first][LEFT_OUT]} if measured else {NAMES: names}
    write_npz(to, parts(), sum(len(head[ROW]) for head in heads.values()), **whole)
    return int(facts["rows"])


def main() -> int:
    """The command `vit-jax join`; returns the exit code."""
    return run_command(lambda: command(sys.argv[1:]))
