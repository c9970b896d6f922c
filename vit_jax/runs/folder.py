"""A run's folder: its files, what they say, and its lock.

runs/<name>/
    config.json      the config, the identity of the data, and the metadata of the data that the task needs
    metrics.jsonl    one line per log entry or evaluation
    histograms.jsonl    of parameters and gradients, if the run asks for them
    summary.json     final and best metrics, written when the run ends
    ending.json      what ended the run before that: a signal or an error
    checkpoints/<step>/{model,optimizer,ema}  Orbax trees
    digests/<step>.json    digests of the arrays of a checkpoint; written last: without it the checkpoint is incomplete.
                           Also a copy of config.json, and length and digest of metrics.jsonl at that time
    plots/  samples/
    tokenizer/      the files of the tokenizer of a run on texts, unless that is a list of words in config.json
    .lock            locked by the process that trains

config.json, summary.json and digests/<step>.json hold a digest of themselves. What a checkpoint has recorded counts:
a config.json that differs is reported, and restored when training goes on.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..config.outputs import Outputs
from ..config.run import RunConfig
from ..errors import CheckFailed, Interrupted, UserError
from ..files import places
from ..files.atomic import (
    LARGEST_JSON,
    RESTORE,
    is_locked,
    lock_file,
    make_folder,
    read_json,
    sync_folder,
    write_json,
    write_text,
)
from ..files.digests import text_digest, with_digest, without_digest
from ..files.metrics import HISTOGRAMS, has_log, histogram_rows, log_fault, read_rows
from ..files.reading import check_regular, show_path
from ..files.terminal import print_note
from .record import check_record, differing, is_log_record, is_saved, is_summary, read_files, write_files
from .values import FORMAT, from_dict

SHOWN = 3
TRIED = 8
LONGEST_STATUS = 300
PROVENANCE = "provenance.json"  # convert writes it into a run that it makes
FINISHED, RUNNING, LOST, CONVERTED = "finished", "running", "lost", "converted, not trained"


class Run:
    """A run's folder and the paths in it."""

    def __init__(self, path: str | os.PathLike[str]):
        self.path = Path(path).absolute()
        self.config_file = self.path / "config.json"
        self.metrics_file = self.path / "metrics.jsonl"
        self.histograms_file = self.path / HISTOGRAMS
        self.summary_file = self.path / "summary.json"
        self.ending_file = self.path / "ending.json"
        self.lock_file = self.path / ".lock"
        self.checkpoints = self.path / "checkpoints"
        self.digests = self.path / "digests"
        self.plots = self.path / "plots"
        self.samples = self.path / "samples"

    def __str__(self) -> str:
        """The path as a user would type it."""
        return show_path(self.path)

    def exists(self) -> bool:
        """Whether the folder has a config.json, if only one that cannot be read, or digests, which have its copy."""
        return self.config_file.exists() or any(self.digests.glob("[0-9]*.json"))

    def create(self, record: dict[str, Any]) -> None:
        """Make the folder, durably, and write config.json, atomically."""
        for folder in (self.checkpoints, self.digests):
            make_folder(folder)
        digests = write_files(self.path, record.get("files", {}))
        self.write_record({"format": FORMAT, **record, **({"files": digests} if digests else {})})
        for folder in (self.path.parent, self.path.parent.parent):  # a killed start may have made them
            with contextlib.suppress(OSError):  # somebody else's
                sync_folder(folder)

    def check_paths(self) -> None:
        """Raise UserError where training cannot write, or would write outside the folder, through a link in it."""
        for folder in (self.plots, self.samples):
            if folder.is_symlink() or (folder.exists() and not folder.is_dir()):
                raise UserError(show_path(folder), "is no folder of the run", "remove it, the run makes it again")
        check_regular(self.summary_file)
        has_log(self.metrics_file)

    def write_record(self, record: dict[str, Any]) -> None:
        """Write config.json from the whole of its content, atomically."""
        write_json(self.config_file, with_digest(record))

    def record(self) -> dict[str, Any]:
        """The content of config.json, or what a checkpoint has recorded where that differs, as `remark` says."""
        content = self.content()[0]
        if "format" not in content:
            raise UserError(
                self,
                "no run here (its config.json is another program's)",
                f"give the folder of a run, or start one from these weights with `init {self}`",
            )
        check_record(content, show_path(self.config_file))
        return content

    def metadata(self) -> dict[str, Any]:
        """What `record` returns, with the content of its `files` in the place of their digests."""
        record = self.record()
        return {**record, **({"files": read_files(self.path, record["files"])} if record.get("files") else {})}

    def remark(self) -> str:
        """How config.json differs from what a checkpoint has recorded, in a sentence; empty if it does not."""
        return self.content()[1]

    def content(self) -> tuple[dict[str, Any], str]:
        """The content of config.json that counts, not checked -> (the content, the remark)."""
        if not self.exists():
            lacks = "there is no config.json" if self.path.is_dir() else "there is no such folder"
            raise UserError(self, f"no run here ({lacks})", "give the folder of a run, such as runs/digits")
        step, recorded = self._recorded()
        try:
            found, intact = without_digest(read_json(self.config_file))
        except UserError as error:
            if recorded is None:
                raise
            reason = error.fault if error.remedy == RESTORE else error
            return recorded, f"{reason}; its copy in checkpoint {step} is used"
        if recorded is None:
            if not intact:
                check_record(found, show_path(self.config_file))  # may say what is damaged
                raise UserError(
                    show_path(self.config_file),
                    "was changed since it was written (its digest differs)",
                    'restore the file, or, if you changed it, remove its entry "digest"',
                )
            return found, ""
        clauses = list(itertools.islice(differing(found, recorded), SHOWN + 1)) or ([] if intact else ["its digest"])
        if not clauses:
            return recorded, ""
        more = " and more" if len(clauses) > SHOWN else ""
        return recorded, (
            f"{show_path(self.config_file)}: differs from what checkpoint {step} has recorded, which is used: "
            f"{', '.join(clauses[:SHOWN])}{more}"
        )

    def is_ours(self) -> bool:
        """Whether config.json is that of a run, or damaged while a checkpoint has recorded one."""
        with contextlib.suppress(UserError):
            return {"format", "preset", "config"} <= read_json(self.config_file).keys() or bool(self._recorded()[1])
        return bool(self._recorded()[1])

    def _recorded(self) -> tuple[int, dict[str, Any] | None]:
        """(step, content of config.json) as the newest checkpoint with intact digests has it; (0, None) if none has."""
        for step in [step for step in self.steps() if self.digest_file(step).exists()][:TRIED]:
            with contextlib.suppress(UserError):
                if (content := self.saved(step).get("config")) is not None:
                    return step, content
        return 0, None

    def saved(self, step: int) -> dict[str, Any]:
        """What digests/<step>.json holds. Returns {"step", "notes", "arrays": {item: {name: digest}}}, and, where the
        save was given them, "config" (the content of config.json) and "log" ({"bytes", "digest"} of metrics.jsonl).
        """
        file = self.digest_file(step)
        if not file.exists():
            raise UserError(
                f"checkpoint {step}", f"has no digest ({self}/digests/{file.name}), as if its save was interrupted"
            )
        try:
            record = read_json(file, 2 * LARGEST_JSON)
        except UserError:
            record = {}
        if record.pop("digest", None) != text_digest(record) or not is_saved(record, step):
            raise UserError(f"checkpoint {step}", "its digest file is damaged")
        return record

    def config(self) -> RunConfig:
        """The run's config."""
        return from_dict(RunConfig, self.record()["config"])

    def summary(self) -> dict[str, Any] | None:
        """summary.json, or None while the run has not ended."""
        return self._summary()[0]

    def _summary(self) -> tuple[dict[str, Any] | None, dict[str, Any]]:
        """(`summary`, {"bytes", "digest"} of metrics.jsonl when it was written; empty of a group of runs)."""
        remedy = "remove the file and repeat the run's command, which writes it again"
        check_regular(self.summary_file)
        if not self.summary_file.exists():
            return None, {}
        content = read_json(self.summary_file, remedy=remedy)
        summary, intact = without_digest(content)
        log = summary.pop("log", {})
        if "digest" not in content or not intact or not is_summary(summary) or not (log == {} or is_log_record(log)):
            raise UserError(show_path(self.summary_file), "is damaged", remedy)
        return summary, log

    def write_summary(self, summary: dict[str, Any], log: dict[str, Any]) -> None:
        """Write summary.json, with the {"bytes", "digest"} of metrics.jsonl, atomically."""
        write_json(self.summary_file, with_digest({**summary, "log": log}))

    def metrics(self) -> list[dict[str, Any]]:
        """The rows of metrics.jsonl, without incomplete lines, such as the last one after a crash."""
        return read_rows(self.metrics_file)

    def histograms(self) -> Iterator[dict[str, Any]]:
        """The rows of histograms.jsonl, as `Log.write_histograms` says, one by one; broken lines are left out."""
        return histogram_rows(self.histograms_file)

    def drop_metrics(self, drop: Callable[[dict[str, Any]], bool]) -> None:
        """Delete the rows of metrics.jsonl for which `drop` is true, atomically."""
        rows = self.metrics()
        kept = [row for row in rows if not drop(row)]
        if len(kept) < len(rows):
            write_text(self.metrics_file, "".join(json.dumps(row) + "\n" for row in kept))

    def log_remark(self, step: int | None = None) -> str:
        """A sentence on the part of metrics.jsonl that is not as it was saved; empty if all is."""
        records: list[tuple[int, dict[str, Any]]] = []
        if step is None:
            summary, log = self._summary()
            records += [(summary["step"], log)] if summary and log else []
        else:
            for each in self.steps():
                with contextlib.suppress(UserError):
                    if each <= step and (recorded := self.saved(each).get("log")):
                        records.append((each, recorded))
        fault = log_fault(self.metrics_file, records)
        return fault and f"{show_path(self.metrics_file)}: {fault}; the weights are not affected, curves may be"

    def digest_file(self, step: int) -> Path:
        """The path of the digests of a step."""
        return self.digests / f"{step}.json"

    def steps(self) -> list[int]:
        """Steps with a non-empty checkpoint folder or a digest file, newest first; other names are ignored."""
        folders = [p.name for p in self.checkpoints.glob("*") if p.is_dir() and any(p.iterdir())]
        names = {*folders, *(p.stem for p in self.digests.glob("*.json"))}
        return sorted((int(n) for n in names if n.isdecimal() and str(int(n)) == n), reverse=True)

    def complete_steps(self) -> list[int]:
        """Steps that have both a checkpoint folder and a digest file, newest first."""
        return [s for s in self.steps() if (self.checkpoints / str(s)).is_dir() and self.digest_file(s).is_file()]

    def lock(self) -> contextlib.AbstractContextManager[None]:
        """A context in which this process has locked the folder."""

        def refuse(process: str) -> None:
            raise UserError(self, f"in use by process {process}", "wait for it, end it, or choose another `name`")

        return lock_file(self.lock_file, refuse)


def with_calibration(record: Mapping[str, Any], run: Run, step: int, weights: str) -> dict[str, Any]:
    """The record of a run with what its validation has decided for weights of it, if it is these."""
    try:
        found = (run.summary() or {}).get("calibration")
    except UserError as error:
        print_note(f"{error}; until then probabilities are as trained", sys.stderr)
        return dict(record)
    if found is None or (found["step"], found["weights"]) != (step, weights):
        return dict(record)
    outputs = Outputs.of(record)
    thresholds = tuple(found["thresholds"])
    if len(thresholds) not in (0, len(outputs.names)):
        return dict(record)
    outputs = replace(outputs, temperature=found["temperature"] or 1.0, thresholds=thresholds)
    return {**record, **outputs.to_metadata()}


# --------------------------------------------------------------------------------------------- how a run ended

# summary.json tells of a run that came to its end or to the end of a budget, ending.json of one that a signal or an
# error has ended before. A run that has neither, while no process trains it, was lost: killed, or cut off from power.


def ending(folder: Run, summary: Mapping[str, Any] | None, rows: Sequence[Any]) -> str:
    """How a run with this summary (None: it has none) and these rows of its log ended."""
    if not rows and (folder.path / PROVENANCE).is_file():
        return CONVERTED
    if summary is not None:
        return str(summary["status"])
    if is_locked(folder.lock_file) or places.is_written(folder.path):
        return RUNNING
    with contextlib.suppress(UserError, KeyError):
        return str(read_json(folder.ending_file)["status"])[:LONGEST_STATUS]
    return LOST


@contextlib.contextmanager
def recorded_ending(folder: Run) -> Iterator[None]:
    """A context in which a run is trained: how it ended before is forgotten, and what ends it is recorded."""
    for file in (folder.ending_file, folder.summary_file):
        file.unlink(missing_ok=True)
    try:
        yield
    except BaseException as error:
        with contextlib.suppress(OSError):  # the error itself may be that nothing can be written
            write_json(folder.ending_file, {"status": _status_of(error)})
        raise


def _status_of(error: BaseException) -> str:
    if isinstance(error, GeneratorExit):
        return "stopped: the loop over its steps was left"
    reason = (str(error).strip() or type(error).__name__).splitlines()[0]
    if isinstance(error, CheckFailed):
        return f"diverged: {reason.partition(';')[0]}"[:LONGEST_STATUS]
    if isinstance(error, Interrupted):
        return f"stopped: {reason.partition(':')[0]}"
    return f"stopped: {reason}"[:LONGEST_STATUS]
