"""A fixed share I/N of a job, and how its files say which rows of which job they have.

A share is whole batches of the job, one after the other. So each batch is computed as one command would compute it, and
what is joined is equal to the bit. The rows are numbered from 0 in the order of the job. What the job is of, its facts,
is the title of the column of these numbers in a table, and the text `job` beside arrays:
`row?rows=359&batch=64&weights=9f2c...`.
"""

from __future__ import annotations

import dataclasses
import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, urlencode
from zipfile import BadZipFile

import ml_dtypes  # noqa: F401  # numpy then knows bfloat16 by its name
import numpy as np

from ..config.trees import flatten
from ..data.batches import in_order
from ..errors import Field, UserError
from ..files.digests import array_digest, bytes_digest, text_digest
from ..files.output import write_npz
from ..files.reading import open_regular, show_path

if TYPE_CHECKING:
    from ..tasks.base import Task
    from ..tasks.predictor import Predictor

Facts = Mapping[str, str]
OUTPUTS = "outputs of an evaluation"
JOB, ROW, LEFT_OUT = "job", "row", "left_out"  # arrays beside those of a share's rows
NAMES = "files"
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
