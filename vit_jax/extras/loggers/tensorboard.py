"""The hook that writes events for TensorBoard into a run's folder."""

from __future__ import annotations

import math
import os
import socket
import time
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from ... import runs
from ...config.run import RunConfig
from ...errors import Field, UserError, install
from ...training.hooks import Hook


class TensorBoard(Hook):
    """Writes each row and each histogram."""

    events: Events | None = None

    @staticmethod
    def asked_for(run: RunConfig) -> bool:
        return run.tensorboard

    def check(self, run: RunConfig) -> None:
        if find_spec("tensorboard") is None:
            raise UserError(Field("tensorboard"), "is set but not installed", install("tensorboard"))

    def begin(self, folder: runs.Run, run: RunConfig, step: int) -> None:
        self.events = Events(folder.path / "tensorboard", step)

    def row(self, step: int, values: Mapping[str, float]) -> None:
        if self.events:
            self.events.write(step, values)

    def histograms(self, step: int, groups: Mapping[str, Mapping[str, Mapping[str, Any]]]) -> None:
        if self.events:
            self.events.write_histograms(step, groups)

    def close(self) -> None:
        if self.events:
            self.events.close()


class Events:
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

    def write(self, step: int, values: Mapping[str, float]) -> None:
        value = self._summary.Summary.Value
        self._add(
            step=step, summary=self._summary.Summary(value=[value(tag=k, simple_value=v) for k, v in values.items()])
        )

    def write_histograms(self, step: int, groups: Mapping[str, Mapping[str, Mapping[str, Any]]]) -> None:
        values = [
            self._summary.Summary.Value(tag=f"{group}/{name}", histo=self._histogram(h))
            for group, each in groups.items()
            for name, h in each.items()
            if math.isfinite(h["min"]) and math.isfinite(h["max"])
        ]
        self._add(step=step, summary=self._summary.Summary(value=values))

    def _histogram(self, h: Mapping[str, Any]) -> Any:
        """A histogram as TensorBoard's message, which has the right end of each bin, the sum and that of squares."""
        counts, low, high, mean = [int(n) for n in h["counts"]], *(float(h[name]) for name in ("min", "max", "mean"))
        ends = [low + (high - low) * i / len(counts) for i in range(1, len(counts) + 1)]
        n, square = sum(counts), float(h["std"]) ** 2 + mean**2
        return self._summary.HistogramProto(
            min=low, max=high, num=n, sum=n * mean, sum_squares=n * square, bucket_limit=ends, bucket=counts
        )

    def close(self) -> None:
        self._records.close()
