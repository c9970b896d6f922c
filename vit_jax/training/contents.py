"""What a run is made from, wherever it lies: its data, the weights that it starts from, its teacher."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from .. import runs
from ..config.run import DataConfig, RunConfig
from ..errors import UserError
from ..machine import backend
from ..machine.division import plan_division
from ..machine.hosts.group import ALONE, Hosts
from ..runs.content import data_difference
from ..runs.values import changed_places
from ..weights.start.start import start
from ..weights.teacher import open_teacher
from .setup import frozen_digest, open_data, with_data

if TYPE_CHECKING:
    from ..data.base import Data, Given

OF_DATA = ("data.source", "data.tokenizer")


def _ended_before(folder: runs.Run, paths: Iterable[Path]) -> bool:
    """Whether a run is finished and one of these files or folders, or what lies directly in one, is newer."""
    with contextlib.suppress(OSError, UserError):  # whoever reads it says what is wrong with it
        if (folder.summary() or {}).get("status") == "finished":
            ended = folder.summary_file.stat().st_mtime_ns
            each = [entry for path in paths for entry in (path, *(os.scandir(path) if path.is_dir() else ()))]
            return any(entry.stat().st_mtime_ns > ended for entry in each)
    return False


class Contents:
    """The data of a run, opened once, and whether a folder holds a run that was made from the same.

    Args:
        given: examples in place of the run's source.
        fetch: whether data that is not there is downloaded.
        hosts: which train the run together.
    """

    def __init__(self, given: Given | None = None, fetch: bool = True, hosts: Hosts = ALONE):
        self.given, self.fetch, self.hosts = given, fetch, hosts
        self._opened: dict[tuple[DataConfig, int], Data] = {}

    def open(self, run: RunConfig, folder: runs.Run) -> Data:
        """The data of a run.

        Args:
            run: the run.
            folder: the run's, which may keep something of the data, such as a tokenizer.

        Raises:
            UserError: it cannot be opened.
        """
        kept = run.data
        if folder.exists() and "data.tokenizer" not in changed_places(folder.config(), run):
            kept = kept.in_folder(folder.path)
        key = (kept, run.seed)
        if key not in self._opened:
            if not self.hosts.several:
                backend.configure_jax(plan_division(run, self.hosts.count).devices)
            try:
                self._opened[key] = open_data(replace(run, data=kept), self.given, self.fetch)
            except UserError as error:
                if folder.exists() and self.given is None and not run.data.paths():
                    error.add("; if the data was moved, say to where with --data.source: this run goes on with it")
                raise
        return self._opened[key]

    def difference(self, folder: runs.Run, run: RunConfig) -> str:
        """A clause on what a run is made from that the run in a folder was not.

        Opened is only what lies elsewhere now, was given in Python, or is newer than the results of a finished run,
        which are shown again if it is the same. What another run began with is compared where it goes on.

        Args:
            folder: with a run, or without.
            run: the config of the run that is to go on in it.

        Returns:
            Empty if it is the same, or the folder has no run.

        Raises:
            UserError: something cannot be opened.
        """
        if not folder.exists():
            return ""
        record, elsewhere = folder.record(), changed_places(folder.config(), run)
        clauses = {name: f"{name} is {new}, and was {old}" for name, (old, new) in elsewhere.items()}
        if self.given is None and _ended_before(folder, run.data.paths()):
            clauses.setdefault("data.source", f"data.source {run.data.source} has changed since that run ended")
        of_data = [clauses[name] for name in OF_DATA if name in clauses]
        to_open = of_data or self.given is not None
        if to_open and (clause := data_difference(record, self.open(run, folder))):
            return f"{of_data[0] if of_data else 'its data is another'}: {clause}"
        if "teacher" in elsewhere and record.get("frozen") != self._frozen(run, folder):
            return clauses["teacher"]
        for name in ("init", "init_encoder"):
            if name in elsewhere and (record.get("init") or {}).get("digest") != self._start(run, folder):
                return clauses[name]
        return ""

    def _frozen(self, run: RunConfig, folder: runs.Run) -> str:
        """The digest of the arrays of the run's teacher."""
        from ..tasks.computed import task_of

        data = self.open(run, folder)
        return frozen_digest(task_of(with_data(run, data), data.metadata()).load_auxiliary(open_teacher(run)))

    def _start(self, run: RunConfig, folder: runs.Run) -> str:
        """The digest of the weights that the run starts from."""
        data = self.open(run, folder)
        return str(start(with_data(run, data), data.metadata()).record["digest"])
