"""Metrics as files: metrics.jsonl always; histograms, TensorBoard and Weights & Biases (W&B) on request.

TensorBoard and W&B are imported only then.
"""

from __future__ import annotations

import importlib.util
import itertools
import json
import math
import os
import secrets
import socket
import time
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO

from ..errors import Field, UserError, install
from ..files.atomic import replacing, sync_folder
from ..files.digests import bytes_digest
from ..files.metrics import HISTOGRAMS, LARGEST_HISTOGRAMS
from ..files.reading import bounded_lines, check_regular, open_regular


class Log:
    """Appends rows of metrics to metrics.jsonl and, on request, to TensorBoard and W&B.

    A row is {"kind": "train" | "eval", "step": int, name: float, ...}; rows of evaluations also have "split" and
    "weights" ("raw" | "ema"). In TensorBoard and W&B a value is called `train/loss`, `validation/accuracy`,
    `test_ema/loss`; an evaluation on the training split is called `train_split/...`.
    """

    def __init__(
        self,
        path: Path,
        step: int,
        tensorboard: Path | None = None,
        wandb: str = "",
        name: str = "",
        config: dict[str, Any] | None = None,
    ):
        path = Path(path)
        self._others: list[_TensorBoard | _Wandb] = []
        if tensorboard is not None:
            self._others.append(_TensorBoard(Path(tensorboard), step))
        if wandb:
            self._others.append(_Wandb(path.parent, wandb, name, config))
        path.parent.mkdir(parents=True, exist_ok=True)
        self._histograms = path.with_name(HISTOGRAMS)
        for file in (path, self._histograms):
            check_regular(file, link=False)
            _cut_back(file, step)
        self._digest, self._bytes, self._in_turn = bytes_digest(), 0, True
        if path.is_file():
            with open_regular(path, link=False) as written:
                while data := written.read(1 << 20):
                    self._count(data)
        self._kept = self.written()
        exists = path.is_file()
        self._file = open(path, "ab")
        if not exists:
            sync_folder(path.parent)  # what saves record of it needs its name as well

    def write(self, row: dict[str, Any], in_turn: bool = True) -> None:
        """Append one row. NaN and infinity become null, because JSON has no such numbers."""
        row = {name: _plain(value) for name, value in row.items()}
        line = (json.dumps(row, allow_nan=False) + "\n").encode()
        self._file.write(line)
        self._file.flush()
        self._count(line)
        self._in_turn = self._in_turn and in_turn
        if self._in_turn:
            self._kept = self.written()
        for other in self._others:
            other.write(row["step"], _scalars(row))

    def write_histograms(self, step: int, groups: dict[str, dict[str, dict[str, Any]]]) -> None:
        """Append a row to histograms.jsonl, durably, and to TensorBoard."""
        row = {group: {name: _round_histogram(h) for name, h in each.items()} for group, each in groups.items()}
        exists = self._histograms.exists()
        with open(self._histograms, "ab") as file:
            file.write((json.dumps({"step": step, **row}, allow_nan=False) + "\n").encode())
            file.flush()
            os.fsync(file.fileno())
        if not exists:
            sync_folder(self._histograms.parent)
        for other in self._others:
            if isinstance(other, _TensorBoard):
                other.write_histograms(step, groups)

    def _count(self, data: bytes) -> None:
        self._digest.update(data)
        self._bytes += len(data)

    def written(self) -> dict[str, Any]:
        """{"bytes", "digest"} of metrics.jsonl as it was written, whatever has happened to the file since."""
        return {"bytes": self._bytes, "digest": self._digest.hexdigest()}

    def sync(self) -> dict[str, Any]:
        """Make the rows durable that a run which goes on from here keeps; `written` of them."""
        os.fsync(self._file.fileno())
        return dict(self._kept)

    def close(self) -> None:
        """Close all files. May be called twice."""
        self._file.close()
        while self._others:
            self._others.pop().close()


def check_extras(tensorboard: bool, wandb: str) -> None:
    """Raise UserError if tensorboard or wandb is requested but not installed. Imports neither."""
    for name, on in (("tensorboard", tensorboard), ("wandb", wandb)):
        if on and importlib.util.find_spec(name) is None:
            raise UserError(Field(name), "is set but not installed", install(name))


def _cut_back(path: Path, step: int) -> None:
    """Remove the rows after `step` and broken lines from a file of rows, atomically; the others keep their bytes."""
    if not path.is_file():
        return
    with open_regular(path, link=False) as old:
        if all(line is not None and line.endswith(b"\n") and _step_of(line) <= step for line in _lines(old)):
            return
    with replacing(path) as temporary, open_regular(path, link=False) as old, open(temporary, "wb") as file:
        kept = (line for line in _lines(old) if line is not None and _step_of(line) <= step)
        file.writelines(line.removesuffix(b"\n") + b"\n" for line in kept)
        file.flush()
        os.fsync(file.fileno())
    sync_folder(path.parent)


def _lines(file: BinaryIO) -> Iterator[bytes | None]:
    return bounded_lines(file, LARGEST_HISTOGRAMS)


def _step_of(line: bytes) -> float:
    """The step of a row; infinity if the line is broken."""
    try:
        row = json.loads(line)
        return row["step"] if isinstance(row["step"], int) else math.inf
    except (ValueError, KeyError, TypeError, RecursionError):
        return math.inf


def _plain(value: Any) -> Any:
    """A value for JSON: 0-d arrays become numbers, NaN and infinity None."""
    if hasattr(value, "item"):
        value = value.item()
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _round_histogram(histogram: dict[str, Any]) -> dict[str, Any]:
    """A histogram for JSON: numbers with the digits that float32 has, NaN and infinity None."""
    numbers = {name: float(f"{float(x):.7g}") for name, x in histogram.items() if name != "counts"}
    return {**{k: _plain(x) for k, x in numbers.items()}, "counts": [int(n) for n in histogram["counts"]]}


def _scalars(row: dict[str, Any]) -> dict[str, float]:
    """The numbers of a row as {name in TensorBoard and W&B: value}."""
    series = row["kind"]
    if series == "eval":
        split = row.get("split", "eval")
        series = ("train_split" if split == "train" else split) + ("_ema" if row.get("weights") == "ema" else "")
    return {
        f"{series}/{name}": value for name, value in row.items() if name != "step" and isinstance(value, int | float)
    }


class _TensorBoard:
    """Writes event files with tensorboard's RecordWriter.

    Its EventFileWriter would start a thread, and import TensorFlow wherever that is installed.
    """

    def __init__(self, folder: Path, step: int):
        try:
            from tensorboard.compat.proto import event_pb2, summary_pb2
            from tensorboard.summary.writer.record_writer import RecordWriter
        except ImportError as error:
            raise UserError(Field("tensorboard"), "is set but not installed", install("tensorboard")) from error
        self._event, self._summary = event_pb2, summary_pb2
        folder.mkdir(parents=True, exist_ok=True)
        # TensorBoard reads the files of a folder in order of their names: nanoseconds order even a quick restart.
        name = f"events.out.tfevents.{time.time_ns() / 1e9:.9f}.{socket.gethostname()}.{os.getpid()}"
        self._records = RecordWriter(open(folder / name, "wb"))
        self._add(file_version="brain.Event:2")
        # TensorBoard drops this step and all later ones of older files when a session starts at it.
        self._add(step=step + 1, session_log=event_pb2.SessionLog(status=event_pb2.SessionLog.START))

    def _add(self, **fields: Any) -> None:
        self._records.write(self._event.Event(wall_time=time.time(), **fields).SerializeToString())
        self._records.flush()

    def write(self, step: int, values: dict[str, float]) -> None:
        value = self._summary.Summary.Value
        self._add(
            step=step, summary=self._summary.Summary(value=[value(tag=k, simple_value=v) for k, v in values.items()])
        )

    def write_histograms(self, step: int, groups: dict[str, dict[str, dict[str, Any]]]) -> None:
        values = [
            self._summary.Summary.Value(tag=f"{group}/{name}", histo=self._histogram(h))
            for group, each in groups.items()
            for name, h in each.items()
            if math.isfinite(h["min"]) and math.isfinite(h["max"])
        ]
        self._add(step=step, summary=self._summary.Summary(value=values))

    def _histogram(self, h: dict[str, Any]) -> Any:
        """A histogram as TensorBoard's message, which has the right end of each bin, the sum and that of squares."""
        counts, low, high, mean = [int(n) for n in h["counts"]], *(float(h[name]) for name in ("min", "max", "mean"))
        ends = [low + (high - low) * i / len(counts) for i in range(1, len(counts) + 1)]
        n, square = sum(counts), float(h["std"]) ** 2 + mean**2
        return self._summary.HistogramProto(
            min=low, max=high, num=n, sum=n * mean, sum_squares=n * square, bucket_limit=ends, bucket=counts
        )

    def close(self) -> None:
        self._records.close()


class _Wandb:
    """Sends rows to Weights & Biases. The id there is stored in the run's folder: a resumed run continues there."""

    def __init__(self, folder: Path, project: str, name: str, config: dict[str, Any] | None):
        try:
            import wandb
        except ImportError as error:
            raise UserError(Field("wandb"), "is set but not installed", install("wandb")) from error
        id_file = folder / "wandb" / "id"
        id_file.parent.mkdir(parents=True, exist_ok=True)
        if not id_file.is_file():
            id_file.write_text(secrets.token_hex(8), encoding="ascii")
        try:
            self._run = wandb.init(
                project=project,
                name=name or None,
                config=config,
                id=id_file.read_text(encoding="ascii"),
                resume="allow",
                dir=str(folder),
            )
        except Exception as error:  # not logged in, no network, a bad project name: none of them is a bug here
            reason = (str(error).strip() or type(error).__name__).splitlines()[0]
            raise UserError(
                f"wandb {project!r}", f"cannot start ({reason})", "run `wandb login`, or set WANDB_MODE=offline"
            ) from error
        # Rows that W&B has from before an interruption cannot be removed, and need not be: a run repeats its steps.
        self._first = getattr(self._run, "starting_step", 0)

    def write(self, step: int, values: dict[str, float]) -> None:
        if step >= self._first:
            self._run.log(values, step=step)

    def close(self) -> None:
        self._run.finish()


Batch = dict[str, Any]


def steps_together(
    step: int, most: int, every: Sequence[int], stop: int, profile: range = range(0), stages: Iterable[int] = ()
) -> int:
    """How many steps may be done by one call: a full number, the largest possible, or 1.

    Between would be others, but each is a program of its own that has to be compiled. None of the steps but the last is
    followed by what happens `every` so many steps, ends the run or a stage of it, or is just before the first or is the
    last of those that are traced.
    """
    full = min(most, *every)
    ends = [stop, *((step // each + 1) * each for each in every), *(first for first in stages if first > step)]
    if profile:
        ends += [end for end in (profile[0] - 1, profile[-1]) if end > step]
    return full if step + full <= min(ends) else 1


class Batches:
    """The batches of an iterator, one or several at a time."""

    def __init__(self, stream: Iterator[Batch]):
        self._stream, self._waiting = stream, deque[Batch]()

    def take(self, count: int) -> list[Batch]:
        """The next `count` batches, or only the next one where not all are of the same shapes, as of sentences."""
        while len(self._waiting) < count:
            self._waiting.append(next(self._stream))
        if len({_shapes(batch) for batch in itertools.islice(self._waiting, count)}) > 1:
            count = 1
        return [self._waiting.popleft() for _ in range(count)]


def _shapes(batch: Batch) -> tuple[Any, ...]:
    return tuple((name, x.shape, x.dtype) for name, x in batch.items())
