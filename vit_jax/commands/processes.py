"""Processes that train the runs of a sweep: one after the other, or as many at a time as there are places."""

from __future__ import annotations

import ctypes
import glob
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import IO

from ..config.run import RunConfig
from ..errors import DONE, INTERRUPTED, Interrupted
from ..files.atomic import make_folder
from ..files.locks import is_locked
from ..files.terminal import printable
from ..machine.backend import accelerators
from ..runs.folder import Run
from ..runs.mirror import copy_of, join
from ..training.stopping import signals
from ..training.sweep import Unit

TICK = 0.1  # seconds between looks at the processes
WAIT = 30.0  # seconds for a process of a killed sweep to save and end
_PDEATHSIG = 1  # of Linux's prctl: a signal for a process whose parent ends


@dataclass(frozen=True)
class Child:
    """A process that trains a run."""

    unit: Unit
    process: subprocess.Popen[bytes]
    place: Mapping[str, str]
    errors: IO[str]  # what it writes to stderr


def train_in_processes(units: Sequence[Unit], places: Sequence[Mapping[str, str]]) -> dict[str, str]:
    """Train runs of a sweep, each by the command `train` in a process of its own -> {point: why it could not be
    trained}.

    A signal goes to all of them, and the sweep ends when they have saved. One that fails does not end the others.
    """
    waiting, free, running = list(units), list(places), list[Child]()
    failures: dict[str, str] = {}
    with signals() as caught:
        try:
            while waiting or running:
                while waiting and free:
                    unit = waiting.pop(0)
                    print(f"\n{len(units) - len(waiting)} of {len(units)}  {printable(_title(unit))}", flush=True)
                    _await_unlocked(unit[1])
                    running.append(_start(unit, free.pop(0), quiet=len(places) > 1))
                time.sleep(TICK)
                for child in [child for child in running if child.process.poll() is not None]:
                    if child.process.returncode in INTERRUPTED.values():  # somebody has stopped this run alone
                        raise KeyboardInterrupt
                    running.remove(child)
                    free.insert(0, child.place)
                    if reason := _finished(child):
                        failures[child.unit[0].name] = reason
        except KeyboardInterrupt:
            name = caught.name or "SIGINT"
            _end(running, getattr(signal, name))
            left = len(waiting) + len(running)
            raise Interrupted(
                f"{name}: {left} of these {len(units)} runs are not done; go on with: the same command", name
            ) from None
    return failures


def one_device_each() -> list[dict[str, str]]:
    """For each NVIDIA GPU that jax may use the variables with which a process uses it alone; else one of none."""
    if not accelerators():
        return [{}]
    stated = os.environ.get("CUDA_VISIBLE_DEVICES")
    count = len(glob.glob("/dev/nvidia[0-9]*"))
    names = [str(i) for i in range(count)] if stated is None else [name for name in stated.split(",") if name]
    return [{"CUDA_VISIBLE_DEVICES": name} for name in names] if len(names) > 1 else [{}]


def _title(unit: Unit) -> str:
    """A run of a sweep as it is printed: the name of its point, and its seed if that has several."""
    point, run = unit
    return point.name if run.name == point.name else f"{point.name}, {run.name}"


def _await_unlocked(run: RunConfig) -> None:
    """Wait while a process of a sweep that was killed still saves this run."""
    deadline = time.monotonic() + WAIT
    while is_locked(Run(copy_of(join(run.dir, run.name))).lock_file) and time.monotonic() < deadline:
        time.sleep(TICK)


def _start(unit: Unit, place: Mapping[str, str], quiet: bool) -> Child:
    """Start the process that trains a run. It ends when this one ends, and gets signals from this one alone."""
    point, run = unit
    words = [*point.words, f"--dir={run.dir}", f"--name={run.name}", f"--seed={run.seed}"]
    errors = tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace")
    log = None
    if quiet:
        make_folder(beside := copy_of(run.dir))
        log = open(beside / f"{run.name}.log", "ab")
    process = subprocess.Popen(
        [sys.executable, "-m", "vit_jax.train", *words],
        env={**os.environ, **place},
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=errors,
        process_group=0,
        preexec_fn=_end_with_parent if sys.platform == "linux" else None,
    )
    if log:
        log.close()
    return Child(unit, process, place, errors)


def _end_with_parent() -> None:
    """Have this process end as by SIGTERM when its parent is gone."""
    ctypes.CDLL(None).prctl(_PDEATHSIG, signal.SIGTERM)


def _finished(child: Child) -> str:
    """Pass on what a process that has ended wrote to stderr; why it could not train its run, or ''."""
    code = child.process.returncode
    child.errors.seek(0)
    text = child.errors.read()
    child.errors.close()
    print(text, end="", file=sys.stderr, flush=True)
    if code == DONE:
        return ""
    if code < 0:
        return f"its process was ended by {signal.Signals(-code).name}"
    lines = text.strip().splitlines() or [f"its process ended with {code}"]
    return lines[-1].removeprefix("vit-jax: ").removeprefix("error: ")


def _end(running: Sequence[Child], number: signal.Signals) -> None:
    """Send a signal to processes and wait for them; a further Ctrl-C ends them at once."""
    for child in running:
        child.process.send_signal(number)
    for child in running:
        while child.process.poll() is None:
            try:
                child.process.wait()
            except KeyboardInterrupt:
                for each in running:
                    each.process.send_signal(signal.SIGINT)
        _finished(child)
