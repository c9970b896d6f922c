"""Whole-run state on disk: Orbax holds the arrays, a digest of each proves them on the way back.

Orbax by itself restores arrays with flipped bits in silence and takes any numbered folder for a
step. So a step counts only once digests/<step>.json names it and every array matches its digest.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import shutil
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np

from .errors import UserError
from .runs import Run, array_digest, flatten, read_json, sync_folder, text_digest, unflatten, write_json
from .step import State

TEMPORARY = ".orbax-checkpoint-tmp"


@dataclass(frozen=True)
class Saved:
    """A checkpoint read back: the state as numpy arrays, and what was noted beside it."""

    step: int
    state: State
    notes: dict[str, Any]


class Checkpoints:
    """The checkpoints of a run. Only the process that holds the run's lock may save."""

    def __init__(self, run: Run):
        import orbax.checkpoint as ocp

        # Orbax and its threads report at length on stderr; what goes wrong arrives as an exception. asyncio would
        # report the other parts of a failed read whenever its garbage is collected, and parses source text to do so,
        # which on Python 3.11 breaks a parse that is under way.
        for name in ("absl", "asyncio"):
            logging.getLogger(name).setLevel(logging.CRITICAL)
        _hush_closed_loops()
        self.run, self.ocp = run, ocp
        self.checkpointer = ocp.Checkpointer(ocp.CompositeCheckpointHandler())

    def clear(self) -> None:
        """Remove what saves that were killed left behind."""
        for stale in self.run.checkpoints.glob(f"*{TEMPORARY}*"):
            shutil.rmtree(stale, ignore_errors=True)
        for stale in (*self.run.path.glob("*.json*.tmp"), *self.run.digests.glob("*.json.tmp")):
            stale.unlink(missing_ok=True)

    def save(self, state: State, notes: dict[str, Any], best: int | None, keep: int) -> None:
        """Write a step, prove that it is on disk, then drop all but the newest `keep` and the best.

        `state` has no replicas' axis; `notes` is JSON. Returns when everything is durable. Raises
        UserError, with earlier checkpoints intact, where the disk is full or cannot be written.
        """
        step = int(state.step)
        items = _items(state)
        self._forget(step)  # an unsound folder of this number, from a run that was killed
        try:
            self._room(sum(x.nbytes for tree in items.values() for x in tree.values()))
            arguments = {item: self.ocp.args.StandardSave(unflatten(tree)) for item, tree in items.items()}
            self.checkpointer.save(self._folder(step), args=self.ocp.args.Composite(**arguments))
            _sync(self._folder(step))
            digests = {item: {name: array_digest(x) for name, x in tree.items()} for item, tree in items.items()}
            self._write_record({"step": step, "notes": notes, "arrays": digests})
        except Exception as error:
            self._undo(step)
            raise _saving_failed(error, self.run, step) from error
        self.prune(step, best, keep)

    def note(self, step: int, notes: dict[str, Any]) -> None:
        """Replace what was noted beside a step."""
        self._write_record({**self._record(step), "notes": notes})

    def prune(self, newest: int, best: int | None, keep: int) -> None:
        """Drop the steps up to `newest` but for the last `keep` of them and the best.

        Later steps are damaged ones that a restore passed over: they do not count, and stay until
        training comes to them again.
        """
        kept = [step for step in self.run.sound_steps() if step <= newest][:keep]
        for step in self.run.steps():
            if step < newest and step not in kept and step != best:
                self._forget(step)

    def restore(self, parameters: dict[str, Any]) -> tuple[Saved | None, list[str]]:
        """The newest sound step, or None where nothing was saved yet, and why newer ones were skipped.

        `parameters` {dotted name: array or shape} is what the network needs. Raises UserError
        where there are checkpoints but none is sound.
        """
        skipped: list[str] = []
        steps = self.run.steps()
        for step in steps:
            try:
                return self.read(step, parameters), skipped
            except UserError as error:
                skipped.append(str(error))
        # The very first save may have been cut off before its digest: then nothing was saved yet.
        if len(steps) > 1 or any(self.run.digest_file(step).exists() for step in steps):
            raise UserError(
                f"{self.run}: no checkpoint is sound ({'; '.join(skipped)}); start anew with another --name"
            )
        return None, skipped

    def read(self, step: int, parameters: dict[str, Any]) -> Saved:
        """One step, every array compared with its digest. Raises UserError saying what is damaged."""
        record = self._record(step)
        trees = {item: self._read_item(step, item, digests) for item, digests in record["arrays"].items()}
        expected = {name: x if isinstance(x, tuple) else np.shape(x) for name, x in parameters.items()}
        if {name: x.shape for name, x in trees["model"].items()} != expected:
            raise UserError(f"checkpoint {step}: its parameters are not this network's")
        optimizer = trees["optimizer"]
        moments = unflatten({name: x for name, x in optimizer.items() if name != "step"})
        ema = unflatten(trees["ema"]) if "ema" in trees else None
        count: Any = optimizer["step"]
        return Saved(step, State(count, unflatten(trees["model"]), moments, ema), record["notes"])

    def _record(self, step: int) -> dict[str, Any]:
        """What a step's digest file says. Raises UserError where it is not what was written."""
        file = self.run.digest_file(step)
        if not file.exists():
            raise UserError(
                f"checkpoint {step}: has no digest ({self.run}/digests/{file.name}), as if its save was cut off"
            )
        try:
            record = read_json(file)
        except UserError:
            record = {}
        if record.pop("digest", None) != text_digest(record) or record["step"] != step:
            raise UserError(f"checkpoint {step}: its digest file is damaged")
        return record

    def _write_record(self, record: dict[str, Any]) -> None:
        write_json(self.run.digest_file(record["step"]), {**record, "digest": text_digest(record)})

    def _read_item(self, step: int, item: str, digests: dict[str, str]) -> dict[str, np.ndarray]:
        place = f"checkpoint {step}"
        handler = self.ocp.PyTreeCheckpointHandler()
        try:
            folder = self._folder(step) / item
            skeleton = unflatten(dict.fromkeys(digests, self.ocp.RestoreArgs(restore_type=np.ndarray)))
            arrays = flatten(handler.restore(folder, args=self.ocp.args.PyTreeRestore(restore_args=skeleton)))
        except Exception as error:
            # Whatever a broken file makes Orbax or TensorStore raise: it is not readable.
            raise UserError(f"{place}: {item} cannot be read ({type(error).__name__})") from error
        if arrays.keys() != digests.keys():
            raise UserError(f"{place}: {item} does not hold the arrays that were saved")
        for name, array in arrays.items():
            if array_digest(np.asarray(array)) != digests[name]:
                raise UserError(f"{place}: {item}.{name} is damaged (its digest differs)")
        return {name: np.asarray(array) for name, array in arrays.items()}

    def _folder(self, step: int) -> Path:
        return self.run.checkpoints / str(step)

    def _forget(self, step: int) -> None:
        """Remove a step: its digest first, then its number, so that nobody takes what is half deleted for a step."""
        folder, gone = self._folder(step), self.run.checkpoints / f"{step}.deleted{TEMPORARY}"
        self.run.digest_file(step).unlink(missing_ok=True)
        if folder.is_symlink() or folder.is_file():
            folder.unlink()
        elif folder.exists():
            sync_folder(self.run.digests)
            folder.rename(gone)
            shutil.rmtree(gone)

    def _undo(self, step: int) -> None:
        """Remove what a failed save has written, and what its threads still write: they outlive the failure."""
        quiet, give_up = 0, time.monotonic() + 10
        while quiet < 5 and time.monotonic() < give_up:
            with contextlib.suppress(OSError):
                self._forget(step)
            left = list(self.run.checkpoints.glob(f"{step}*{TEMPORARY}*"))
            for folder in left:
                shutil.rmtree(folder, ignore_errors=True)
            quiet = 0 if left else quiet + 1
            time.sleep(0.05)

    def _room(self, size: int) -> None:
        free = shutil.disk_usage(self.run.checkpoints).free
        if free < 1.2 * size:
            raise OSError(errno.ENOSPC, f"{free / 1e6:.0f} MB are free, a checkpoint takes {size / 1e6:.0f}")


def _items(state: State) -> dict[str, dict[str, np.ndarray]]:
    """A state as Orbax items of flat host arrays: model, optimizer (step and moments by role), ema."""
    step, parameters, moments, ema = jax.device_get((state.step, state.parameters, state.moments, state.ema))
    items = {"model": flatten(parameters), "optimizer": {"step": np.asarray(step), **flatten(moments)}}
    return items if ema is None else {**items, "ema": flatten(ema)}


def _hush_closed_loops() -> None:
    """Keep from stderr what TensorStore says after a failure: Orbax closes its event loop with work still under way.

    The failure itself arrives as an exception.
    """
    hook = sys.unraisablehook
    if hook.__module__ == __name__:
        return

    def quiet(unraisable: Any) -> None:
        if str(unraisable.exc_value) != "Event loop is closed":
            hook(unraisable)

    sys.unraisablehook = quiet


def _sync(folder: Path) -> None:
    """Push a folder's files and names to the disk."""
    if os.name == "nt":
        return
    for base, _, files in os.walk(folder):
        for name in files:
            with open(os.path.join(base, name), "rb") as file:
                os.fsync(file.fileno())
        sync_folder(Path(base))
    sync_folder(folder.parent)


_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def _saving_failed(error: Exception, run: Run, step: int) -> Exception:
    """A full disk or a lost permission in one sentence; anything else as it is."""
    text = str(error)
    last = run.sound_steps()
    kept = f"; step {last[0]} is intact" if last else ""
    # TensorStore has the system's words in the middle of its own.
    said = [code for code in (*_FULL, errno.EACCES, errno.EPERM, errno.EROFS, errno.EIO) if os.strerror(code) in text]
    code = error.errno if isinstance(error, OSError) else said[0] if said else None
    if code in _FULL:
        return UserError(
            f"{run}: the disk is full, so step {step} could not be saved{kept}; free some space and repeat the command"
        )
    if code is not None:
        return UserError(
            f"{run}: step {step} could not be saved ({os.strerror(code)}){kept}; make the folder writable and repeat the command"
        )
    return error
