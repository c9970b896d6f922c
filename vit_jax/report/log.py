"""Metrics as files: metrics.jsonl always, TensorBoard events and W&B when asked (imported only then)."""

from __future__ import annotations

import json
import math
import os
import secrets
import socket
import time
from pathlib import Path
from typing import Any

from ..errors import UserError
from ..runs import sync_folder

OF_THE_STEP = (
    "lr",
    "grad_norm",
    "param_norm",
    "update_norm",
)  # metrics of training that are the step's own, and no means over a batch
NO_METRICS = frozenset(
    {"kind", "step", "epoch", "loss", "memory", *OF_THE_STEP}
)  # what a row of training has besides the task's metrics


class Log:
    """Appends rows to a run's metrics, wherever they are wanted.

    A row is {"kind": "train" | "eval", "step": int, name: float, ...}; eval rows also have "split" and
    "weights" ("raw" | "ema"). In TensorBoard and W&B a value is called `train/loss`,
    `validation/accuracy`, `test_ema/loss`; the whole training split evaluated is `train_split/...`.

    Args:
        path: metrics.jsonl; rows after `step` are cut off, the run goes on from there.
        step: the last step that is done.
        tensorboard: folder for event files; None: no TensorBoard.
        wandb: project name; empty: no W&B.
        name: the run's name in W&B.
        config: what W&B shows as the run's configuration.
    Raises UserError where tensorboard or wandb is asked for and not there.
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
        cut_back(path, step)
        self._file = open(path, "a", encoding="utf-8", newline="\n")

    def write(self, row: dict[str, Any]) -> None:
        """Append one row. NaN and infinity become null, which is all that JSON has for them."""
        row = {name: _plain(value) for name, value in row.items()}
        self._file.write(json.dumps(row, allow_nan=False) + "\n")
        self._file.flush()
        for other in self._others:
            other.write(row["step"], scalars(row))

    def close(self) -> None:
        """Finish all files. May be called twice."""
        self._file.close()
        while self._others:
            self._others.pop().close()


def cut_back(path: Path, step: int) -> None:
    """Keep the rows of a metrics.jsonl up to `step`, byte for byte; broken lines go. Whole or not at all."""
    if not path.is_file():
        return
    old = path.read_bytes()
    new = b"".join(line + b"\n" for line in old.split(b"\n") if _step_of(line) <= step)
    if new == old:
        return
    temporary = path.with_name(path.name + ".tmp")
    with open(temporary, "wb") as file:
        file.write(new)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)
    sync_folder(path.parent)


def _step_of(line: bytes) -> float:
    """A line's step; infinity where it is no row."""
    try:
        row = json.loads(line)
        return row["step"] if isinstance(row["step"], int) else math.inf
    except (ValueError, KeyError, TypeError):
        return math.inf


def _plain(value: Any) -> Any:
    """A value as JSON has it: 0-d arrays as numbers, what is not finite as None."""
    if hasattr(value, "item"):
        value = value.item()
    return None if isinstance(value, float) and not math.isfinite(value) else value


def scalars(row: dict[str, Any]) -> dict[str, float]:
    """A row's numbers under the names that TensorBoard and W&B show them by."""
    series = row["kind"]
    if series == "eval":
        split = row.get("split", "eval")
        series = ("train_split" if split == "train" else split) + ("_ema" if row.get("weights") == "ema" else "")
    return {
        f"{series}/{name}": value for name, value in row.items() if name != "step" and isinstance(value, int | float)
    }


class _TensorBoard:
    """Writes event files with tensorboard's own record writer.

    Not its EventFileWriter: that one starts a thread, and imports TensorFlow wherever it is installed.
    """

    def __init__(self, folder: Path, step: int):
        try:
            from tensorboard.compat.proto import event_pb2, summary_pb2
            from tensorboard.summary.writer.record_writer import RecordWriter
        except ImportError as error:
            raise UserError("tensorboard is asked for but not installed: pip install 'vit-jax[tensorboard]'") from error
        self._event, self._summary = event_pb2, summary_pb2
        folder.mkdir(parents=True, exist_ok=True)
        # TensorBoard reads a folder's files by name: nanoseconds keep a quick restart in order.
        name = f"events.out.tfevents.{time.time_ns() / 1e9:.9f}.{socket.gethostname()}.{os.getpid()}"
        self._records = RecordWriter(open(folder / name, "wb"))
        self._add(file_version="brain.Event:2")
        # A session that starts at a step makes TensorBoard forget that step and all later ones of older files.
        self._add(step=step + 1, session_log=event_pb2.SessionLog(status=event_pb2.SessionLog.START))

    def _add(self, **fields: Any) -> None:
        self._records.write(self._event.Event(wall_time=time.time(), **fields).SerializeToString())
        self._records.flush()

    def write(self, step: int, values: dict[str, float]) -> None:
        value = self._summary.Summary.Value
        self._add(
            step=step, summary=self._summary.Summary(value=[value(tag=k, simple_value=v) for k, v in values.items()])
        )

    def close(self) -> None:
        self._records.close()


class _Wandb:
    """Sends rows to Weights & Biases; the run's id is kept beside its files, so that a resumed run goes on there."""

    def __init__(self, folder: Path, project: str, name: str, config: dict[str, Any] | None):
        try:
            import wandb
        except ImportError as error:
            raise UserError("wandb is asked for but not installed: pip install 'vit-jax[wandb]'") from error
        place = folder / "wandb" / "id"
        place.parent.mkdir(parents=True, exist_ok=True)
        if not place.is_file():
            place.write_text(secrets.token_hex(8), encoding="ascii")
        try:
            self._run = wandb.init(
                project=project,
                name=name or None,
                config=config,
                id=place.read_text(encoding="ascii"),
                resume="allow",
                dir=str(folder),
            )
        except Exception as error:  # not logged in, no network, a bad project name: all of it is the environment's
            reason = (str(error).strip() or type(error).__name__).splitlines()[0]
            raise UserError(
                f"wandb {project!r}: cannot start ({reason}); run `wandb login`, or set WANDB_MODE=offline"
            ) from error
        # What W&B has from before an interruption cannot be taken back, and is the same: a run repeats its steps exactly.
        self._first = getattr(self._run, "starting_step", 0)

    def write(self, step: int, values: dict[str, float]) -> None:
        if step >= self._first:
            self._run.log(values, step=step)

    def close(self) -> None:
        self._run.finish()
