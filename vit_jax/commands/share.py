"""A fixed share I/N of a job, and its files, which `vit-jax join` joins to what one command writes.

A share is whole batches of the job, one after the other. So each batch is computed as one command would compute it, and
what is joined is equal to the bit. The rows are numbered from 0 in the order of the job. Which job a file is of, the
facts of that, is the title of the column of these numbers in a table, and the text `job` beside arrays:
`row?rows=359&batch=64&weights=9f2c...`.
"""

from __future__ import annotations

import csv
import dataclasses
import itertools
import json
import os
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, urlencode
from zipfile import BadZipFile

import ml_dtypes  # noqa: F401  # numpy then knows bfloat16 by its name
import numpy as np

from ..config import flags
from ..config.fields import option
from ..config.trees import flatten
from ..data.batches import in_order
from ..errors import DONE, Field, UserError
from ..files.atomic import replacing
from ..files.destination import check_outputs
from ..files.digests import array_digest, bytes_digest, text_digest
from ..files.output import write_npz
from ..files.reading import open_regular, show_path
from ..files.terminal import printable, run_command

if TYPE_CHECKING:
    from ..tasks.base import Task
    from ..tasks.predictor import Predictor

Facts = Mapping[str, str]
OUTPUTS = "outputs of an evaluation"
JOB, ROW, LEFT_OUT = "job", "row", "left_out"  # arrays beside those of a share's rows
NAMES = "files"
TABLE, ARRAYS = ".csv", ".npz"  # what shares write: predictions; features, or the outputs of an evaluation
_SOME = 1024  # examples that are looked at together


@dataclass(frozen=True)
class Share:
    """The share I/N."""

    number: int  # from 1
    of: int

    def batches(self, count: int) -> range:
        """Those of `count` batches that are in the share. Raises UserError where there are more shares than batches."""
        if self.of > count:
            what = f"is {self.number}/{self.of}, and there are {count:,} batches"
            raise UserError(Field("share"), what, f"give at most {count:,} shares, or a smaller batch")
        return range((self.number - 1) * count // self.of, self.number * count // self.of)

    def rows(self, starts: Sequence[int], total: int) -> range:
        """The rows of the share, of `total` ones whose batches begin at `starts`."""
        some = self.batches(len(starts))
        return range(starts[some.start], [*starts, total][some.stop])


def read_share(text: str) -> Share | None:
    """The share that a text names; None where it is empty."""
    found = re.fullmatch(r"([0-9]{1,9})/([0-9]{1,9})", text)
    if text and not (found and 1 <= int(found[1]) <= int(found[2])):
        raise UserError(Field("share"), f"is {text[:40]}", "give I/N, with I from 1 to N (of Slurm: --array=1-N)")
    return Share(int(found[1]), int(found[2])) if found else None


def check_draws(task: Task, skip: bool) -> None:
    """Raise UserError where draws of a share would be others than those of one command."""
    if skip and getattr(getattr(task, "decoding", None), "sample", False):
        what = "draws for each input by how many before it can be read, which a share does not know"
        raise UserError(Field("sample"), what, "leave out skip_unreadable, or share")


def facts_of(model: Predictor, task: Task, rows: int, batch: int, **more: object) -> dict[str, str]:
    """The facts of a job: its size, digests of its weights, network and search, and what else decides its results."""
    from ..models.state import split_model

    arrays = flatten(split_model(model.model)[1])
    weights = {name: array_digest(np.asarray(array)) for name, array in sorted(arrays.items())}
    digests = {
        "weights": weights,
        "network": _as_json([model.run.model.name, model.run.model, model.metadata]),
        "search": _as_json(getattr(task, "decoding", None)),
    }
    facts = {"rows": rows, "batch": batch, **{name: text_digest(each)[:16] for name, each in digests.items()}, **more}
    return {name: str(value) for name, value in facts.items()}


def split_digest(split: Any) -> str:
    """A digest of the examples of a split, of images without reading them again."""
    digest, images = bytes_digest(), getattr(split, "images", None)
    if images is not None:
        known = images.digest or text_digest([split.name(i) for i in range(len(split))])
        arrays = [getattr(split, name) for name in ("rows", "labels", "target") if hasattr(split, name)]
        digest.update(text_digest([known, images.preprocess.to_dict(), *map(array_digest, arrays)]).encode())
        return digest.hexdigest()[:16]
    for first in range(0, len(split), _SOME):
        examples = split.examples(np.arange(first, min(first + _SOME, len(split))))
        digest.update(text_digest({name: array_digest(x) for name, x in examples.items()}).encode())
    return digest.hexdigest()[:16]


def _as_json(value: Any) -> Any:
    """A value as JSON has it, of dataclasses their fields, of anything else its text."""

    def other(each: Any) -> Any:
        return dataclasses.asdict(each) if dataclasses.is_dataclass(each) else repr(each)  # type: ignore[arg-type]

    return json.loads(json.dumps(value, default=other))


def title_of(facts: Facts) -> str:
    """The facts of a job as a text."""
    return f"{ROW}?{urlencode(facts)}"


def read_title(text: str, file: str | os.PathLike[str]) -> dict[str, str]:
    """The facts in the title of a file. Raises UserError where the file is of no share."""
    facts = dict(parse_qsl(text.removeprefix(f"{ROW}?"))) if text.startswith(f"{ROW}?") else {}
    if not re.fullmatch("[0-9]{1,15}", facts.get("rows", "")):
        what = "does not say which rows it has, so it is no file of --share I/N"
        raise UserError(show_path(file), what, "give those that predict or evaluate wrote with --share")
    return facts


def check_same_job(file: str, facts: Facts, other: str, wanted: Facts) -> None:
    """Raise UserError where the facts of a file are not those of another, or of a command."""
    for name in dict.fromkeys([*wanted, *facts]):
        if facts.get(name) != wanted.get(name):
            what = f"is of {name} {facts.get(name, 'none')}, but {other} of {name} {wanted.get(name, 'none')}"
            raise UserError(show_path(file), what, "give the shares of one job: the same weights, inputs and settings")


def check_rows(found: Sequence[tuple[str, np.ndarray]], total: int) -> None:
    """Raise UserError unless files have each row of a job once: (file, numbers of its rows, int64 [k]) of each."""
    numbers = np.concatenate([rows for _, rows in found])
    files = np.repeat(np.arange(len(found)), [len(rows) for _, rows in found])
    order = np.argsort(numbers, kind="stable")
    numbers, names = numbers[order], [found[i][0] for i in files[order]]
    if len(numbers) and not 0 <= numbers[0] <= numbers[-1] < total:
        raise UserError(show_path(names[-1]), f"has a row that is none of its {total:,}", "write the share again")
    for i in np.flatnonzero(numbers[1:] == numbers[:-1])[:1]:
        where = " and in ".join(map(show_path, names[i : i + 2]))
        raise UserError(f"row {numbers[i]} is in {where}", remedy="give each share once")
    around = np.concatenate([[-1], numbers, [total]])
    for i in np.flatnonzero(np.diff(around) > 1)[:1]:
        missing = f"rows {around[i] + 1} to {around[i + 1] - 1} of {total:,} are in none of these files"
        raise UserError(missing, remedy="give the files of all shares, and compute again the one that lacks rows")


def read_arrays(file: str | os.PathLike[str], *names: str) -> dict[str, np.ndarray]:
    """The arrays of a share's .npz, all or those named, among them the rows'. Raises UserError where there are none."""
    try:
        with open_regular(file) as opened, np.load(opened, allow_pickle=False) as found:
            arrays = {name: found[name] for name in names or found.files}
        rows = arrays[ROW]
        lengths = {x.shape[:1] for name, x in arrays.items() if name not in (JOB, LEFT_OUT)}
        if lengths != {(rows.size,)} or not rows.dtype.kind == arrays[LEFT_OUT].dtype.kind == "i" or JOB not in arrays:
            raise ValueError("its arrays are not of one row each")
        return arrays
    except (ValueError, KeyError, OSError, TypeError, EOFError, MemoryError, AttributeError, BadZipFile) as error:
        what = f"cannot be read as the .npz of a share ({error})"
        raise UserError(show_path(file), what, "write it again, with --share I/N") from error


def write_outputs(file: str, out: Mapping[str, np.ndarray], rows: np.ndarray, facts: Facts) -> None:
    """Write a task's outputs of some rows: {name: [k, ...]}, and their numbers, int64 [k]."""
    arrays = {f"{name}.{x.dtype.name}": x for name, x in out.items()}  # numpy's format lacks bfloat16
    write_npz(file, [{ROW: rows, **arrays}], len(rows), job=title_of(facts), left_out=np.empty(0, np.int64))


def read_outputs(file: str, facts: Facts) -> dict[str, np.ndarray]:
    """A task's outputs of all rows of a job, in their order: {name: [n, ...]}. Raises UserError where some lack."""
    arrays = read_arrays(file)
    title, rows = str(arrays.pop(JOB)), arrays.pop(ROW)
    check_same_job(file, read_title(title, file), "this evaluation", facts)
    check_rows([(file, rows)], int(facts["rows"]))
    del arrays[LEFT_OUT]
    names = {name: name.rpartition(".") for name in arrays}
    return in_order([({names[name][0]: x.view(names[name][2]) for name, x in arrays.items()}, rows)])


# ---------------------------------------------------------------------------------------- `vit-jax join FILES`


@dataclass(frozen=True, kw_only=True)
class JoinOptions:
    """Join the files of all shares of a job to one, in the order of the rows."""

    files: tuple[str, ...] = field(
        metadata={"help": "what the shares wrote: tables of predictions, .npz of features or of an evaluation"}
    )
    to: str = option("", "the joined file; of an evaluation's outputs it is for evaluate --joined")
    force: bool = option(False, "overwrite it if it exists")


def command(arguments: list[str]) -> int:
    """Join what arguments name."""
    o = flags.parse(JoinOptions, arguments, prog="vit-jax join")
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
