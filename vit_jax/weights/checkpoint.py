"""The state of a run on disk: Orbax stores the arrays, and each is compared with its digest when it is read.

Orbax alone restores damaged arrays silently and takes any folder with a number for a checkpoint. Here a checkpoint is
valid only if digests/<step>.json exists and every array matches its digest.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import shutil
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax import Array

from ..config.trees import Tree, combine, flatten, unflatten
from ..errors import UserError
from ..files.atomic import sync_folder, sync_tree, write_json
from ..files.digests import array_digest, with_digest
from ..files.reading import check_regular
from ..runs import Run

TEMPORARY = ".orbax-checkpoint-tmp"
ITEMS = ("model", "optimizer", "ema", "lora")


@partial(jax.tree_util.register_dataclass, data_fields=["step", "parameters", "moments", "ema", "lora"], meta_fields=[])
@dataclass
class SavedState:
    """The arrays of a checkpoint; trees are nested dicts. Shapes: step int32 []."""

    step: Array  # int32 []
    parameters: Tree
    moments: Tree
    ema: Tree | None
    lora: Tree | None = None

    @property
    def averaged(self) -> Tree | None:
        """All weights, those that train as their average; None without an average."""
        return None if self.ema is None else combine(self.parameters, self.ema)


@dataclass(frozen=True)
class Saved:
    """A checkpoint that was read: the state as numpy arrays, and the notes saved with it."""

    step: int
    state: SavedState
    notes: dict[str, Any]


class Checkpoints:
    """The checkpoints of a run. Only the process that has locked the run may save."""

    def __init__(self, run: Run, factors: Mapping[str, tuple[int, ...]] | None = None):
        import orbax.checkpoint as ocp

        # Orbax logs at length to stderr, but every failure also raises an exception. asyncio logs the other parts of a
        # failed read at garbage collection, and parses source text for that, which on Python 3.11 breaks a parse in
        # progress.
        for name in ("absl", "asyncio"):
            logging.getLogger(name).setLevel(logging.CRITICAL)
        _hush_closed_loops()
        self.run, self.ocp, self.factors = run, ocp, dict(factors or {})
        # Of several hosts only the owner of the run reads and writes: Orbax must not wait for the others.
        self.alone = ocp.options.MultiprocessingOptions(
            primary_host=0, active_processes={0}, barrier_sync_key_prefix="vit-jax"
        )
        handlers = {item: ocp.StandardCheckpointHandler(multiprocessing_options=self.alone) for item in ITEMS}
        composite = ocp.CompositeOptions(multiprocessing_options=self.alone)
        self.checkpointer = ocp.Checkpointer(
            ocp.CompositeCheckpointHandler(composite_options=composite, **handlers),
            multiprocessing_options=self.alone,
        )

    def clear(self) -> None:
        """Remove temporary files of saves, and of pictures, that were killed."""
        for stale in self.run.checkpoints.glob(f"*{TEMPORARY}*"):
            shutil.rmtree(stale, ignore_errors=True)
        for pattern in ("*.json*.tmp", "digests/*.json.tmp", "plots/*.*.tmp", "samples/*.*.tmp"):
            for stale in filter(Path.is_file, self.run.path.glob(pattern)):
                stale.unlink(missing_ok=True)

    def save(
        self, state: SavedState, notes: dict[str, Any], best: int | None, keep: int, files: dict[str, Any] | None = None
    ) -> None:
        """Write the checkpoint of a state, durably, then delete all but the newest and the best."""
        step = int(state.step)
        items = _items(state)
        self._forget(step)  # an incomplete checkpoint of this step, of a run that was killed
        try:
            self._room(sum(x.nbytes for tree in items.values() for x in tree.values()))
            arguments = {item: self.ocp.args.StandardSave(unflatten(tree)) for item, tree in items.items()}
            self.checkpointer.save(self._folder(step), args=self.ocp.args.Composite(**arguments))
            sync_tree(self._folder(step))
            digests = {item: {name: array_digest(x) for name, x in tree.items()} for item, tree in items.items()}
            self._write_record({"step": step, "notes": notes, "arrays": digests, **(files or {})})
        except Exception as error:
            self._undo(step)
            raise _saving_failed(error, self.run, step) from error
        self.prune(step, best, keep)

    def note(self, step: int, notes: dict[str, Any], files: dict[str, Any] | None = None) -> None:
        """Replace the notes of a checkpoint."""
        self._write_record({**self.run.saved(step), "notes": notes, **(files or {})})

    def record(self, config: dict[str, Any], noted: Mapping[str, Any]) -> None:
        """Replace what all checkpoints have recorded of config.json, and these notes, from the newest, which counts."""
        for step in self.run.steps():
            with contextlib.suppress(UserError):  # a damaged one
                saved = self.run.saved(step)
                self._write_record({**saved, "config": config, "notes": {**saved["notes"], **noted}})

    def prune(self, newest: int, best: int | None, keep: int) -> None:
        """Delete old checkpoints.

        Those of later steps than the newest are damaged ones that `restore` skipped: they do not count, and remain
        until training reaches their steps again.
        """
        kept = [step for step in self.run.complete_steps() if step <= newest][:keep]
        for step in self.run.steps():
            if step < newest and step not in kept and step != best:
                self._forget(step)

    def restore(self, parameters: dict[str, Any]) -> tuple[Saved | None, list[str]]:
        """(The newest valid checkpoint, None if no save was completed; why each newer one was skipped)."""
        skipped: list[str] = []
        steps = self.run.steps()
        for step in steps:
            try:
                return self.read(step, parameters), skipped
            except UserError as error:
                skipped.append(str(error))
        # The first save may have been interrupted before its digest was written: then nothing was saved yet.
        if len(steps) > 1 or any(self.run.digest_file(step).exists() for step in steps):
            raise UserError(
                self.run, f"no checkpoint is valid ({'; '.join(skipped)})", "train again under another `name`"
            )
        return None, skipped

    def read(self, step: int, parameters: dict[str, Any]) -> Saved:
        """The checkpoint of a step, every array compared with its digest."""
        record = self.run.saved(step)
        expected = {name: x if isinstance(x, tuple) else np.shape(x) for name, x in parameters.items()}
        for item, digests in record["arrays"].items():
            self._check_item(step, item, digests, expected)
        trees = {item: self._read_item(step, item, digests) for item, digests in record["arrays"].items()}
        optimizer = trees["optimizer"]
        moments = unflatten({name: x for name, x in optimizer.items() if name != "step"})
        ema = unflatten(trees["ema"]) if "ema" in trees else None
        lora = unflatten(trees["lora"]) if "lora" in trees else None
        count: Any = optimizer["step"]
        return Saved(step, SavedState(count, unflatten(trees["model"]), moments, ema, lora), record["notes"])

    def _write_record(self, record: dict[str, Any]) -> None:
        write_json(self.run.digest_file(record["step"]), with_digest(record))

    def _check_item(
        self, step: int, item: str, digests: dict[str, str], parameters: dict[str, tuple[int, ...]]
    ) -> None:
        """Raise UserError unless an item holds the arrays of a network, before any of them is allocated."""
        subject, folder = f"checkpoint {step}", self._folder(step) / item
        # Moments and averages may lack some parameters: whether they are those of a run, its config tells.
        if item in ("optimizer", "lora"):  # their names begin with a role
            known = {**parameters, **self.factors}
            expected = {name: known.get(name.partition(".")[2]) for name in digests}
            expected |= {"step": ()} if item == "optimizer" else {}
        else:
            expected = {name: parameters.get(name) for name in digests}
        whole = parameters.keys() if item == "model" else {"step"} if item == "optimizer" else set()
        if None in expected.values() or not whole <= digests.keys():
            raise UserError(subject, "its parameters are not this network's")
        for base, _, names in os.walk(folder):
            for name in names:
                try:
                    check_regular(Path(base) / name)
                except UserError as error:
                    raise UserError(subject, str(error)) from error
        try:
            tree = self.ocp.PyTreeCheckpointHandler(multiprocessing_options=self.alone).metadata(folder).tree
            found = {name: tuple(each.shape) for name, each in flatten(tree).items()}
        except Exception as error:
            # On a damaged file Orbax and TensorStore raise exceptions of many classes.
            raise UserError(subject, f"{item} cannot be read ({type(error).__name__})") from error
        if found.keys() != digests.keys():
            raise UserError(subject, f"{item} does not hold the arrays that were saved")
        if found != expected:
            raise UserError(subject, "its parameters are not this network's")

    def _read_item(self, step: int, item: str, digests: dict[str, str]) -> dict[str, np.ndarray]:
        subject = f"checkpoint {step}"
        handler = self.ocp.PyTreeCheckpointHandler(multiprocessing_options=self.alone)
        try:
            folder = self._folder(step) / item
            skeleton = unflatten(dict.fromkeys(digests, self.ocp.RestoreArgs(restore_type=np.ndarray)))
            arrays = flatten(handler.restore(folder, args=self.ocp.args.PyTreeRestore(restore_args=skeleton)))
        except Exception as error:
            # On a damaged file Orbax and TensorStore raise exceptions of many classes.
            raise UserError(subject, f"{item} cannot be read ({type(error).__name__})") from error
        for name, array in arrays.items():
            if array_digest(np.asarray(array)) != digests[name]:
                raise UserError(subject, f"{item}.{name} is damaged (its digest differs)")
        return {name: np.asarray(array) for name, array in arrays.items()}

    def _folder(self, step: int) -> Path:
        return self.run.checkpoints / str(step)

    def _forget(self, step: int) -> None:
        """Delete the checkpoint of a step: first the digest, then the numbered name, so that no part of it is valid."""
        folder, gone = self._folder(step), self.run.checkpoints / f"{step}.deleted{TEMPORARY}"
        self.run.digest_file(step).unlink(missing_ok=True)
        if folder.is_symlink() or folder.is_file():
            folder.unlink()
        elif folder.exists():
            sync_folder(self.run.digests)
            folder.rename(gone)
            shutil.rmtree(gone)

    def _undo(self, step: int) -> None:
        """Delete what a failed save has written, and what its threads go on writing after the failure."""
        idle, give_up = 0, time.monotonic() + 10
        while idle < 5 and time.monotonic() < give_up:
            with contextlib.suppress(OSError):
                self._forget(step)
            left = list(self.run.checkpoints.glob(f"{step}*{TEMPORARY}*"))
            for folder in left:
                shutil.rmtree(folder, ignore_errors=True)
            idle = 0 if left else idle + 1
            time.sleep(0.05)

    def _room(self, size: int) -> None:
        free = shutil.disk_usage(self.run.checkpoints).free
        if free < 1.2 * size:
            raise OSError(errno.ENOSPC, f"{free / 1e6:.0f} MB are free, a checkpoint takes {size / 1e6:.0f}")


def _items(state: SavedState) -> dict[str, dict[str, np.ndarray]]:
    """A state as the items of a checkpoint, {item: {dotted name: numpy array}}: model, optimizer; ema and lora if any.

    optimizer has the step and the moments by role, lora what `SavedState.lora` has.
    """
    s = jax.device_get(state)
    items = {"model": flatten(s.parameters), "optimizer": {"step": np.asarray(s.step), **flatten(s.moments)}}
    return items | {name: flatten(tree) for name, tree in (("ema", s.ema), ("lora", s.lora)) if tree is not None}


def _hush_closed_loops() -> None:
    """Suppress messages of TensorStore on stderr: after a failure Orbax closes its event loop with work in progress.

    The failure itself raises an exception.
    """
    hook = sys.unraisablehook
    if hook.__module__ == __name__:
        return

    def ignore_closed_loop(unraisable: Any) -> None:
        if str(unraisable.exc_value) != "Event loop is closed":
            hook(unraisable)

    sys.unraisablehook = ignore_closed_loop


_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def _saving_failed(error: Exception, run: Run, step: int) -> Exception:
    """A full disk or a lost permission as a UserError; any other error unchanged."""
    text = str(error)
    last = run.complete_steps()
    intact = f"; step {last[0]} is intact" if last else ""
    # The text of a TensorStore error contains that of the system.
    codes = [code for code in (*_FULL, errno.EACCES, errno.EPERM, errno.EROFS, errno.EIO) if os.strerror(code) in text]
    code = error.errno if isinstance(error, OSError) else codes[0] if codes else None
    if code is None:
        return error
    what, remedy = f"step {step} could not be saved ({os.strerror(code)})", "make the folder writable"
    if code in _FULL:
        what, remedy = f"the disk is full, so step {step} could not be saved", "free some space"
    return UserError(run, f"{what}{intact}", f"{remedy} and repeat the command")
