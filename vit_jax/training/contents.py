"""What a run is made from, wherever it lies: its data, the weights that it starts from, its teacher."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .. import runs
from ..config.run import DataConfig, RunConfig
from ..errors import UserError
from ..machine import backend
from ..machine.division import plan_division
from ..machine.hosts.group import ALONE, Hosts
from ..runs.values import changed_places
from ..weights.opening import open_teacher
from ..weights.start import start
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
    """The data of a run, opened once, and whether a folder holds a run that was made from the same."""

    def __init__(self, given: Given | None = None, fetch: bool = True, hosts: Hosts = ALONE):
        self.given, self.fetch, self.hosts = given, fetch, hosts
        self._opened: dict[tuple[DataConfig, int], Data] = {}

    def open(self, run: RunConfig, folder: runs.Run) -> Data:
        """The data of a run."""
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
                    error.add("; if the data was moved, say to where with `data.source`: this run goes on with it")
                raise
        return self._opened[key]

    def difference(self, folder: runs.Run, run: RunConfig) -> str:
        """A clause on what a run is made from that the run in a folder was not.

        Opened is only what lies elsewhere now, was given in Python, or is newer than the results of a finished run,
        which are shown again if it is the same. What another run began with is compared where it goes on.
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
        return frozen_digest(task_of(with_data(run, data), data.metadata()).load_frozen_arrays(open_teacher(run)))

    def _start(self, run: RunConfig, folder: runs.Run) -> str:
        """The digest of the weights that the run starts from."""
        data = self.open(run, folder)
        return str(start(with_data(run, data), data.metadata()).record["digest"])


def data_difference(record: Mapping[str, Any], data: Data) -> str:
    """A clause on how data differs from that of a run. The first of these that differs: the number of examples, the
    classes, the words, the content; empty if none does, or if the run's data is not known, as of a converted one.
    """
    then, now = record["data"], data.identity
    if data.same_as(then):
        return ""
    if not isinstance(then, dict):
        return "that of the run is damaged"
    if then.get("once") or now.get("once"):
        return "the batches of an iterator come once"
    if then.get("classes") != now.get("classes"):
        return _other_names(record.get("class_names"), data.metadata().get("class_names"))
    were, are = (each.get("sizes") or {} for each in (then, now))
    for what, had, has in (("it", sum(were.values()), sum(are.values())), *((s, were.get(s, 0), are[s]) for s in are)):
        if had != has:
            return f"{what} has {has:,} examples, and had {had:,}"
    if then.get("vocabulary") != now.get("vocabulary"):
        return "its words, or how they are split, are others"
    kept = record.get("listings")
    for split, listing in data.listings.items():
        if clause := listing.first_difference(kept.get(split) if isinstance(kept, dict) else None):
            return clause
    return "its numbers of examples are the same, but their content is not"


def _other_names(then: Any, now: Any) -> str:
    """A clause on the first class that has another name."""
    if not isinstance(then, list) or not isinstance(now, list) or len(then) != len(now):
        known = isinstance(then, list) and isinstance(now, list)
        return f"it has {len(now)} classes, and had {len(then)}" if known else "its classes are others"
    pairs = (f"its class {k} is {a!r}, and was {b!r}" for k, (a, b) in enumerate(zip(now, then, strict=True)) if a != b)
    return next(pairs, "its classes are others")
