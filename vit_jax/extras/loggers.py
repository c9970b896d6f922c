"""The hooks that send the rows of metrics on: as events for TensorBoard in a run's folder, and to Weights & Biases."""

from __future__ import annotations

import math
import os
import secrets
import socket
import time
from collections.abc import Mapping
from importlib.util import find_spec
from typing import Any

from .. import runs
from ..config.run import RunConfig
from ..errors import Field, UserError, install, require
from ..runs.values import to_dict
from ..training.hooks import Hook


def check_installed(package: str) -> None:
    """Raise UserError where the package is not there that the field of the same name asks for."""
    if find_spec(package) is None:
        raise UserError(Field(package), "is set but not installed", install(package))


class TensorBoard(Hook):
    """Writes each row and each histogram with tensorboard's RecordWriter.

    Its EventFileWriter would start a thread, and import TensorFlow wherever that is installed.
    """

    records: Any = None

    @staticmethod
    def asked_for(run: RunConfig) -> bool:
        return run.tensorboard

    def check(self, run: RunConfig) -> None:
        check_installed("tensorboard")

    def begin(self, folder: runs.Run, run: RunConfig, step: int) -> None:
        with require("tensorboard", "tensorboard"):
            from tensorboard.compat.proto.event_pb2 import SessionLog
            from tensorboard.summary.writer.record_writer import RecordWriter

        events = folder.path / "tensorboard"
        events.mkdir(parents=True, exist_ok=True)
        # TensorBoard reads the files of a folder in order of their names: nanoseconds order even a quick restart.
        name = f"events.out.tfevents.{time.time_ns() / 1e9:.9f}.{socket.gethostname()}.{os.getpid()}"
        self.records = RecordWriter(open(events / name, "wb"))
        self._add(file_version="brain.Event:2")
        # TensorBoard drops this step and all later ones of older files when a session starts at it.
        self._add(step=step + 1, session_log=SessionLog(status=SessionLog.START))

    def _add(self, **fields: Any) -> None:
        from tensorboard.compat.proto.event_pb2 import Event

        self.records.write(Event(wall_time=time.time(), **fields).SerializeToString())
        self.records.flush()

    def row(self, step: int, values: Mapping[str, float]) -> None:
        from tensorboard.compat.proto.summary_pb2 import Summary

        if self.records:
            entries = [Summary.Value(tag=name, simple_value=value) for name, value in values.items()]
            self._add(step=step, summary=Summary(value=entries))

    def histograms(self, step: int, groups: Mapping[str, Mapping[str, Mapping[str, Any]]]) -> None:
        from tensorboard.compat.proto.summary_pb2 import Summary

        if self.records:
            entries = [
                Summary.Value(tag=f"{group}/{name}", histo=_as_message(histogram))
                for group, each in groups.items()
                for name, histogram in each.items()
                if math.isfinite(histogram["min"]) and math.isfinite(histogram["max"])
            ]
            self._add(step=step, summary=Summary(value=entries))

    def close(self) -> None:
        if self.records:
            self.records.close()


def _as_message(histogram: Mapping[str, Any]) -> Any:
    """A histogram as TensorBoard's message, which has the right end of each bin, the sum and that of squares."""
    from tensorboard.compat.proto.summary_pb2 import HistogramProto

    counts = [int(n) for n in histogram["counts"]]
    low, high, mean = (float(histogram[name]) for name in ("min", "max", "mean"))
    ends = [low + (high - low) * i / len(counts) for i in range(1, len(counts) + 1)]
    n, square = sum(counts), float(histogram["std"]) ** 2 + mean**2
    return HistogramProto(
        min=low, max=high, num=n, sum=n * mean, sum_squares=n * square, bucket_limit=ends, bucket=counts
    )


class Wandb(Hook):
    """Sends each row. The id there is stored in the run's folder: a resumed run continues there."""

    there: Any = None  # the run at Weights & Biases

    @staticmethod
    def asked_for(run: RunConfig) -> bool:
        return bool(run.wandb)

    def check(self, run: RunConfig) -> None:
        check_installed("wandb")

    def begin(self, folder: runs.Run, run: RunConfig, step: int) -> None:
        with require("wandb", "wandb"):
            import wandb

        id_file = folder.path / "wandb" / "id"
        id_file.parent.mkdir(parents=True, exist_ok=True)
        if not id_file.is_file():
            id_file.write_text(secrets.token_hex(8), encoding="ascii")
        try:
            self.there = wandb.init(
                project=run.wandb,
                name=folder.path.name,
                config=to_dict(run),
                id=id_file.read_text(encoding="ascii"),
                resume="allow",
                dir=str(folder.path),
            )
        except Exception as error:  # not logged in, no network, a bad project name: none of them is a bug here
            reason = (str(error).strip() or type(error).__name__).splitlines()[0]
            remedy = "run `wandb login`, or set WANDB_MODE=offline"
            raise UserError(f"wandb {run.wandb!r}", f"cannot start ({reason})", remedy) from error

    def row(self, step: int, values: Mapping[str, float]) -> None:
        # Rows that W&B has from before an interruption cannot be removed, and need not be: a run repeats its steps.
        if self.there and step >= getattr(self.there, "starting_step", 0):
            self.there.log(dict(values), step=step)

    def close(self) -> None:
        if self.there:
            self.there.finish()
