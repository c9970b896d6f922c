"""A run that is stopped, at whatever moment and for whatever reason, ends as if it had never been stopped.

Bit for bit: parameters, moments, averages, what was noted, the lines of metrics.jsonl and the order of
the data, with dropout, crops, flips, accumulation and averaging on. Here in one process; test_faults.py
kills real ones. One case of a kind runs by default, all of them with the slow ones.
"""

import contextlib
import dataclasses
import errno
import functools
import gzip
import itertools
import json
import math
import os
import shutil
import signal
import statistics
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import jax
import numpy as np
import pytest

import vit_jax.weights.load
from convert.containers import open_source
from tests import loopback_s3
from vit_jax import runs
from vit_jax.augmentation.config import ImageAugment
from vit_jax.config.run import OptimConfig, RunConfig
from vit_jax.config.trees import flatten
from vit_jax.data.base import Data
from vit_jax.data.images.config import ImageData
from vit_jax.errors import CheckFailed, Interrupted, UserError
from vit_jax.extras.report import hook
from vit_jax.extras.stores import copies as mirror
from vit_jax.extras.stores import mirror as mirrors
from vit_jax.extras.stores.objects import ObjectStore
from vit_jax.files import places
from vit_jax.files.digests import array_digest
from vit_jax.files.terminal import run_command
from vit_jax.machine import division
from vit_jax.machine.targets import PUBLISHED, Published
from vit_jax.models.vit_config import ViTConfig
from vit_jax.reports.comparison import gather
from vit_jax.runs import Run
from vit_jax.runs.values import to_dict
from vit_jax.training import finish, log, loop, state, stopping
from vit_jax.training import train as training
from vit_jax.training.engine.engine import Engine
from vit_jax.training.engine.evaluator import Evaluator
from vit_jax.training.job import Job, open_data, open_job, plan
from vit_jax.training.stopping import Saver, Saving
from vit_jax.training.train import train
from vit_jax.weights import checkpoint
from vit_jax.weights.checkpoint import Checkpoints

slow = pytest.mark.slow
EPOCH, STEPS = 5, 15  # steps
TINY = RunConfig(
    task="classify",
    model=ViTConfig(
        image=8,
        channels=1,
        patch=4,
        classes=0,
        width=16,
        depth=1,
        heads=2,
        hidden=16,
        init_std=0.2,
        dropout=0.1,
        attention_dropout=0.1,
        activation_dropout=0.1,
        embedding_dropout=0.1,
        drop_path=0.2,
    ),
    data=ImageData(source="digits", sampling="sqrt"),
    augment=ImageAugment(crop_padding=1, flip=True),
    optim=OptimConfig(lr=1e-2, schedule="one_cycle", cycle_momentum=True, clip=1.0, weight_decay=0.01),
    epochs=3,
    batch=256,
    accumulate=2,
    ema=0.8,
    log_every=4,
)


def cases(usual: list[tuple[Any, ...]], others: list[tuple[Any, ...]]) -> list[Any]:
    """Parameters of a test: those that always run, and those that run with the slow tests."""
    return [*usual, *(pytest.param(*values, marks=slow) for values in others)]


@dataclass
class Result:
    """What a run leaves, without what clocks and machines put into it."""

    arrays: dict[str, bytes]  # step, parameters, moments, averages of the newest checkpoint
    notes: dict[str, Any]
    rows: list[dict[str, Any]]
    summary: dict[str, Any]


def result(folder: Run) -> Result:
    run, record = folder.config(), folder.record()
    saved, skipped = Checkpoints(folder).restore(run.model.shapes())
    assert saved is not None and not skipped
    tree = {
        "step": saved.state.step,
        "model": saved.state.parameters,
        "moments": saved.state.moments,
        "ema": saved.state.ema,
    }
    notes = {k: v for k, v in saved.notes.items() if k not in ("seconds", "cpu_seconds", "environment")}
    assert notes["data"] == record["data"]
    clocks = ("images_per_second", "memory", "cpu_seconds")
    rows = [{k: v for k, v in row.items() if k not in clocks} for row in folder.metrics()]
    spent = [row["cpu_seconds"] for row in folder.metrics() if row["kind"] == "train"]
    assert spent == sorted(spent), "of all processes together"
    summary = {k: v for k, v in (folder.summary() or {}).items() if k != "seconds"}
    assert not [p for p in folder.path.rglob("*") if "tmp" in p.name or "deleted" in p.name], (
        "nothing temporary is left"
    )
    return Result({name: np.asarray(x).tobytes() for name, x in flatten(tree).items()}, notes, rows, summary)


ended = functools.cache(result)  # of a run that does not change any more


def assert_same(a: Result, b: Result) -> None:
    assert a.arrays.keys() == b.arrays.keys()
    assert not [name for name in a.arrays if a.arrays[name] != b.arrays[name]]
    assert a.notes == b.notes
    assert a.rows == b.rows
    assert a.summary == b.summary


@pytest.fixture(scope="module")
def engines() -> dict[str, Job]:
    """Compiled steps by run: what is the same in all runs of this file is compiled once."""
    return {}


@pytest.fixture(autouse=True)
def _quick(monkeypatch, engines) -> None:
    quicken(monkeypatch, engines)


def quicken(monkeypatch: pytest.MonkeyPatch, engines: dict[str, Job]) -> None:
    """No pictures, an empty report, and one compilation a network; nothing else is other than in a user's process."""
    open_job = training.open_job

    def once(run: RunConfig, data: Data, folder: Run, preset: str = "", *rest: Any) -> Job:
        execution = {
            f.name: f.default
            for f in dataclasses.fields(RunConfig)
            if f.metadata.get("execution") and f.name not in ("accumulate", "parallel")
        }
        key = json.dumps(to_dict(replace(run, patience=0, **execution)))
        if key not in engines:
            engines[key] = open_job(run, data, folder, preset, *rest)
        known = engines[key]
        stated = replace(run, model=known.stated.model)
        return replace(known, stated=stated, run=plan(stated, known.data)[0], folder=folder, preset=preset)

    monkeypatch.setattr(training, "open_job", once)
    monkeypatch.setattr(finish, "draw", lambda *_: None)
    monkeypatch.setattr(hook, "leave_report", lambda folder: (folder.path / "report.html").touch())


@pytest.fixture
def seen(monkeypatch) -> list[tuple[int, str]]:
    """(step, digest of its images and labels) of each batch, as it is handed to the engine."""
    batches: list[tuple[int, str]] = []
    step = Engine.train

    def note(self, state, batch, votes=None):
        batches.append((int(jax.device_get(state.step)), array_digest(batch["image"]) + array_digest(batch["label"])))
        return step(self, state, batch, votes)

    monkeypatch.setattr(Engine, "train", note)
    return batches


def at_step(monkeypatch, number: int, act: Callable[[], None], after: bool = True) -> None:
    """Act once, right after (or before) a step is handed to the device."""
    step, done = Engine.train, []

    def wrapped(self, state, batch, votes=None):
        now = not done and int(jax.device_get(state.step)) == number - 1
        if now and not after:
            done.append(act())
        out = step(self, state, batch, votes)
        if now and after:
            done.append(act())
        return out

    monkeypatch.setattr(Engine, "train", wrapped)


def before(monkeypatch, place: Any, name: str, act: Callable[[], None], call: int = 1) -> None:
    """Act before the n-th call of a function."""
    function, calls = getattr(place, name), []

    def wrapped(*args, **kwargs):
        calls.append(name)
        if len(calls) == call:
            act()
        return function(*args, **kwargs)

    monkeypatch.setattr(place, name, wrapped)


def send(name: str) -> Callable[[], None]:
    return lambda: signal.raise_signal(signal.Signals[name])


class Crash(BaseException):
    """As a kill is: nothing in the product catches it."""


def crash() -> None:
    raise Crash


@pytest.fixture(scope="module")
def reference(tmp_path_factory, engines) -> Iterator[Run]:
    """TINY, never stopped."""
    folder = Run(tmp_path_factory.mktemp("reference") / "run")
    with pytest.MonkeyPatch.context() as patch:
        quicken(patch, engines)
        train(TINY, preset="digits", folder=folder)
    yield folder


@pytest.fixture
def folder(tmp_path) -> Run:
    return Run(tmp_path / "run")


def go(folder: Run, **changes: Any) -> dict[str, Any]:
    return train(replace(TINY, **changes), preset="digits", folder=folder)


# ---------------------------------------------------------------------------------------- three ways


@pytest.mark.parametrize("stop", cases([3], [(EPOCH,), (1,), (7,), (2 * EPOCH,), (STEPS - 1,)]))
def test_stopped_and_resumed_is_uninterrupted(reference, folder, seen, stop):
    summary = go(folder, max_steps=stop)
    assert (summary["status"], summary["step"]) == ("stopped: max_steps", stop)
    assert folder.complete_steps()[0] == stop
    assert [step for step, _ in seen] == list(range(stop))
    assert go(folder)["status"] == "finished"
    assert_same(result(folder), ended(reference))
    assert [step for step, _ in seen] == list(range(STEPS))


@pytest.mark.slow  # tests/test_mirror.py kills between any two requests of saves
@pytest.mark.parametrize("requests", [45, *range(1, 200, 5)])
def test_killed_between_two_requests_a_run_in_a_store_goes_on_elsewhere(
    reference, monkeypatch, tmp_path, seen, requests
):
    monkeypatch.setattr(mirrors, "LEASE", 0.4)
    monkeypatch.setattr(mirrors, "BEAT", 0.1)
    asked, reported, ask, save = itertools.count(), list[int](), ObjectStore._ask, Saver._save

    def ask_or_crash(self, what, name, *rest):
        if not name.startswith("writers/") and next(asked) >= requests:
            raise Crash
        return ask(self, what, name, *rest)

    def save_and_report(self, state, *rest):
        save(self, state, *rest)
        reported.append(int(state.step))

    def elsewhere(number):
        mirror._HELD.close(), mirror._MIRRORS.clear(), mirror._root.cache_clear()
        monkeypatch.setattr(mirror, "cache_folder", lambda name: tmp_path / f"machine-{number}" / name)

    run, kept = replace(TINY, dir="s3://bucket/runs", name="run"), {"keep": 1, "save_minutes": 0.0}
    with loopback_s3.serving():
        elsewhere(1)
        with monkeypatch.context() as patch, contextlib.suppress(Crash):
            patch.setattr(ObjectStore, "_ask", ask_or_crash)
            patch.setattr(Saver, "_save", save_and_report)
            train(replace(run, **kept), preset="digits")
        seen.clear()
        elsewhere(2)
        summary = train(run, preset="digits")
        assert seen[0][0] in ({reported[-1], reported[-1] + 1} if reported else {0, 1})
        elsewhere(3)
        found = vit_jax.runs.find(summary["folder"])
        assert str(found) == summary["folder"] == "s3://bucket/runs/run"
        places.pull_weights(found.path)
        assert_same(result(found), ended(reference))
        assert train(resume=summary["folder"])["step"] == STEPS, "of a finished run nothing is done"
        assert [each.members[0].ended for each in gather(["s3://bucket/runs"]).lines] == ["finished"]
        assert {*open_source(summary["folder"]).tree} == {"model", "optimizer", "ema"}
        with pytest.raises(UserError, match="out is not given, and a report changes nothing at s3://bucket/runs"):
            vit_jax.report(summary)
    elsewhere(4)


def test_a_cold_start_is_another_run(reference, folder, seen):
    """Control of the tests above: another seed, or a restart that restores nothing, ends with other weights."""
    expected = ended(reference)
    kernels = [name for name in expected.arrays if name.endswith("kernel")]
    # The same seed, but only the steps that were left, from fresh weights.
    rest = Run(folder.path.with_name("rest"))
    go(rest, max_steps=STEPS - 7)
    arrays = result(rest).arrays
    assert all(arrays[n] != expected.arrays[n] for n in kernels)
    usual = {digest for _, digest in seen}
    seen.clear()
    go(folder, seed=1)
    other = result(folder)
    assert all(other.arrays[n] != expected.arrays[n] for n in kernels)
    assert other.rows != expected.rows and not usual & {digest for _, digest in seen}


@slow
@pytest.mark.parametrize("lost", ["moments", "ema", "step"])
def test_each_part_of_the_state_matters(reference, folder, monkeypatch, lost):
    go(folder, max_steps=7)
    place = Engine.to_devices

    def forget(self, state):
        blank = {
            "moments": jax.tree.map(np.zeros_like, state.moments),
            "ema": state.parameters,
            "step": np.asarray(0, np.int32),
        }[lost]
        return place(self, replace(state, **{lost: blank}))

    monkeypatch.setattr(Engine, "to_devices", forget)
    go(folder)
    expected, got = ended(reference), result(folder)
    part = "ema." if lost == "ema" else "model."
    assert any(got.arrays[n] != x for n, x in expected.arrays.items() if n.startswith(part))


@pytest.mark.parametrize("budget", cases([{"max_steps": 7}], [({"max_minutes": 6.5},)]), ids=str)
def test_a_budget_between_evaluations_measures_for_the_summary_alone(reference, folder, monkeypatch, capsys, budget):
    """The weights of step 7 are measured and told; the run that goes on never saw it."""
    with monkeypatch.context() as patch:
        minutes_a_step(patch)
        summary = go(folder, **budget)
    assert (summary["step"], summary["epoch"]) == (7, 1.4) and summary["best"]["step"] == EPOCH
    log = [row for row in folder.metrics() if row["kind"] == "eval"]
    assert {row["step"] for row in log} == {EPOCH}, "nothing of it is in the log"
    job = training.open_job(TINY, open_data(TINY), folder)
    saved, _ = Checkpoints(folder).restore(folder.config().model.shapes())
    for weights, tree in (("raw", saved.state.parameters), ("ema", saved.state.ema)):
        measured = job.evaluator.measure(tree, job.data.splits["validation"], TINY.batch).metrics
        assert summary["validation"][weights] == measured
        assert f"accuracy {measured['accuracy']:.4f}" in capsys.readouterr().out or weights == "ema"
    go(folder)
    assert_same(result(folder), ended(reference))


def test_a_budget_that_is_spent_does_nothing_more(folder, capsys):
    go(folder, max_steps=7)
    once = result(folder)
    assert f"  python -m vit_jax.train --resume {folder} --max-steps 0\n" in capsys.readouterr().out, (
        "the next command goes on"
    )
    for spent in (7, 3):
        summary = go(folder, max_steps=spent)
        assert (summary["status"], summary["step"]) == ("stopped: max_steps", 7)
    assert_same(replace(result(folder), rows=[]), replace(once, rows=[]))
    assert folder.complete_steps()[0] == 7


def minutes_a_step(monkeypatch) -> list[float]:
    """A clock, [its seconds], by which every step takes a minute, and nothing else takes any time."""
    clock = [0.0]
    for module in (loop, log, stopping):
        monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: clock[0], process_time=time.process_time))
    step = Engine.train

    def minute(self, state, batch, votes=None):
        clock[0] += 60
        return step(self, state, batch, votes)

    monkeypatch.setattr(Engine, "train", minute)
    return clock


def test_saves_come_by_the_minute_and_their_time_counts_in_no_speed(folder, monkeypatch):
    clock, save, saved = minutes_a_step(monkeypatch), Saving.save, []

    def slow_save(saving):
        save(saving)
        saved.append(saving.state.step)
        clock[0] += 3600

    monkeypatch.setattr(Saving, "save", slow_save)
    go(folder, save_minutes=0.99)
    assert saved == [*range(2, STEPS + 1)]  # the clock starts once the first step is compiled
    speeds = [row["images_per_second"] for row in folder.metrics() if row["kind"] == "train"]
    assert {*speeds} == {TINY.batch / 60} and len(speeds) > 3


def test_minutes_end_a_run_and_do_not_shorten_its_schedule(reference, folder, monkeypatch):
    minutes_a_step(monkeypatch)
    ends = []
    while not ends or ends[-1][0] == "stopped: max_minutes":
        summary = go(folder, max_minutes=6.5)
        ends.append((summary["status"], summary["step"]))
    assert ends == [("stopped: max_minutes", 7), ("stopped: max_minutes", 14), ("finished", 15)]
    assert_same(result(folder), ended(reference))


# --------------------------------------------------------------------------------------------- stages


@pytest.mark.parametrize("stops", cases([(6, 8)], [((4, 6, 8, 10),)]))
def test_a_run_in_stages_drops_at_their_rates_and_goes_on_in_each_to_the_same_bits(folder, monkeypatch, stops):
    """Three stages, of which the first is a run with its rates; stopped on the way, several steps by one call."""
    rates: list[tuple[int, float, float]] = []

    def noted(does):
        def note(self, state, batch, votes=None):
            first, model = int(jax.device_get(state.step)), self.model
            several = len(batch) if isinstance(batch, list) else 1
            rates.extend((first + i, model.patch_dropout, model.dropout) for i in range(several))
            return does(self, state, batch, votes)

        return note

    for name in ("train", "train_together"):
        monkeypatch.setattr(Engine, name, noted(getattr(Engine, name)))
    first, model = dict(patch_dropout=0.5, dropout=0.3), TINY.model
    stages = ("0.4:model.patch-dropout=0.5,model.dropout=0.3", "0.2:model.patch_dropout=0.25")
    whole = Run(folder.path.with_name("whole"))
    go(whole, stages=stages)
    plain = model.patch_dropout, model.dropout
    expected = [(i, *((0.5, 0.3) if i < 6 else (0.25, model.dropout) if i < 9 else plain)) for i in range(STEPS)]
    assert rates == expected
    rates.clear()
    for stop in (*stops, 0):
        go(folder, stages=stages, max_steps=stop, steps_per_dispatch=2)
    assert rates == expected and folder.config().stages == stages
    assert_same(result(folder), result(whole))

    begun, alone = Run(folder.path.with_name("begun")), Run(folder.path.with_name("alone"))
    go(begun, stages=stages, max_steps=6)
    go(alone, model=replace(model, **first), max_steps=6)
    assert result(begun).arrays == result(alone).arrays
    with pytest.raises(UserError, match="stages"):
        go(folder)


# -------------------------------------------------------------------------- several steps by one call


@pytest.mark.parametrize("stop", cases([3], [(EPOCH,), (1,), (6,)]))
def test_steps_that_are_done_together_leave_what_they_leave_one_by_one(reference, folder, monkeypatch, stop):
    """Also stopped within an epoch, and told to end between two of them: by then both are done, and saved."""
    calls: list[int] = []
    together = Engine.train_together

    def note(self, state, batches, votes=None):
        calls.append(len(batches))
        if len(calls) == 3:
            signal.raise_signal(signal.SIGTERM)
        return together(self, state, batches, votes)

    monkeypatch.setattr(Engine, "train_together", note)
    go(folder, max_steps=stop, steps_per_dispatch=2)
    with pytest.raises(Interrupted, match="saved at step"):
        go(folder, steps_per_dispatch=2)
    go(folder, steps_per_dispatch=2)
    assert_same(result(folder), ended(reference))
    assert {*calls} == {2} and len(calls) >= STEPS // 2 - EPOCH // 2


def test_of_steps_that_are_done_together_the_first_bad_one_is_named(folder, monkeypatch, capsys):
    together = Engine.train_together

    def spoil(self, state, batches, votes=None):
        state, metrics = together(self, state, batches, votes)
        bad = np.where(np.arange(len(batches)) > 0, np.nan, 1)
        return state, {**metrics, "loss": metrics["loss"] * (bad if state.step == 2 else 1)}

    monkeypatch.setattr(Engine, "train_together", spoil)
    assert run_command(lambda: bool(go(folder, steps_per_dispatch=2)) * 0) == 3
    assert "the loss is nan at step 2; nothing had been saved yet" in capsys.readouterr().err


# -------------------------------------------------------------------------- saving while training goes on


def held_back(monkeypatch, step: int, until: threading.Event, then: Callable[[], None] = lambda: None) -> None:
    """The save of a step is written only once `until` is set, after `then`."""
    sync = checkpoint.sync_tree

    def wait(written):
        if written.name == str(step):
            assert threading.current_thread() is not threading.main_thread()
            assert until.wait(60), "nobody waits, and training does not go on"
            then()
        sync(written)

    monkeypatch.setattr(checkpoint, "sync_tree", wait)


def test_training_goes_on_while_a_checkpoint_is_written(reference, folder, monkeypatch):
    """Two steps are done while a third is being saved; all that is saved, kept and deleted is as without a thread."""
    later = threading.Event()
    with monkeypatch.context() as patch:
        held_back(patch, EPOCH, later)
        at_step(patch, EPOCH + 2, later.set)
        go(folder, async_save=True, keep=1)
    assert_same(result(folder), ended(reference))
    assert folder.complete_steps() == [STEPS, *({result(folder).notes["best"]["step"]} - {STEPS})]


def interrupt_again() -> None:
    """A SIGINT for the main thread, which is waiting for this one."""
    signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
    time.sleep(0.05)


@pytest.mark.parametrize(
    "way, kept",
    cases(
        [("three SIGINT", [EPOCH]), ("NaN", [EPOCH])],
        [("SIGTERM", [6, EPOCH]), ("budget", [6, EPOCH]), ("crash", [EPOCH])],
    ),
)
def test_whatever_ends_a_run_the_save_in_its_thread_is_finished(reference, folder, monkeypatch, capsys, way, kept):
    train_step = Engine.train

    def act() -> None:
        for _ in range({"SIGTERM": 1, "three SIGINT": 2}.get(way, 0)):
            signal.raise_signal(signal.SIGTERM if way == "SIGTERM" else signal.SIGINT)
        if way == "crash":
            raise Crash

    def spoil(self, state, batch, votes=None):
        state, metrics = train_step(self, state, batch, votes)
        return state, {**metrics, "loss": metrics["loss"] * (np.nan if state.step == 6 and way == "NaN" else 1)}

    leaving = threading.Event()
    with monkeypatch.context() as patch:
        patch.setattr(Engine, "train", spoil)
        held_back(patch, EPOCH, leaving, interrupt_again if way == "three SIGINT" else lambda: None)
        at_step(patch, 6, act)
        before(patch, Saver, "wait", leaving.set, call=2)  # the first is that of the save
        try:
            code = run_command(lambda: bool(go(folder, async_save=True, max_steps=6 * (way == "budget"))) * 0)
        except Crash:
            code = 1
    assert code == {"SIGTERM": 143, "three SIGINT": 130, "NaN": 3, "crash": 1, "budget": 0}[way]
    assert folder.complete_steps() == kept
    if way == "NaN":
        assert f"nan at step 6; the last good checkpoint is step {EPOCH} in" in capsys.readouterr().err
    go(folder)
    assert_same(result(folder), ended(reference))


@pytest.mark.parametrize("in_thread", [False, True])
@pytest.mark.parametrize("step", cases([2 * EPOCH], [(STEPS,)]))
def test_a_checkpoint_that_cannot_be_written_ends_a_run_by_the_same_sentence(
    reference, folder, monkeypatch, capsys, step, in_thread
):
    """Also if it is the last; and with nothing half-written left."""
    sync = checkpoint.sync_tree

    def full(written):
        if written.name == str(step):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        sync(written)

    with monkeypatch.context() as patch:
        patch.setattr(checkpoint, "sync_tree", full)
        assert run_command(lambda: bool(go(folder, async_save=in_thread)) * 0) == 2
    assert capsys.readouterr().err == (
        f"vit-jax: error: {folder}: the disk is full, so step {step} could not be saved; step {step - EPOCH} is "
        "intact; free some space and repeat the command\n"
    )
    assert folder.complete_steps()[0] == step - EPOCH and not list(folder.checkpoints.glob("*tmp*"))
    go(folder)
    assert_same(result(folder), ended(reference))


@slow
def test_of_two_failures_that_of_a_save_is_said_before_the_other(folder, monkeypatch, capsys):
    def full(written):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(checkpoint, "sync_tree", full)
        patch.setattr(Saver, "check", lambda self: None)  # as if it failed just then
        at_step(patch, EPOCH + 1, crash)
        with pytest.raises(Crash):
            go(folder, async_save=True)
    assert f"note     {folder}: the disk is full, so step {EPOCH} could not be saved; free some" in (
        capsys.readouterr().out
    )


# ------------------------------------------------------------------------------------------- signals


def test_a_signal_in_a_group_tells_to_repeat_the_command_that_draws_its_picture(tmp_path, monkeypatch):
    folder = Run(tmp_path / "group" / f"seed-{TINY.seed}")
    with monkeypatch.context() as patch, pytest.raises(Interrupted, match="at step 1; go on with: the same command, "):
        at_step(patch, 1, send("SIGINT"))
        go(folder)


@pytest.mark.parametrize(
    "name, code, step, after",
    cases(
        [("SIGTERM", 143, 7, True), ("SIGINT", 130, EPOCH, True), ("SIGHUP", 129, 3, False)],
        [
            (name, code, step, after)
            for name, code in (("SIGTERM", 143), ("SIGINT", 130))
            for step, after in ((1, False), (1, True), (EPOCH + 1, False), (2 * EPOCH, False), (STEPS, True))
        ],
    ),
)
def test_a_signal_saves_within_a_step(reference, folder, monkeypatch, capsys, name, code, step, after):
    handlers = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)]
    with monkeypatch.context() as patch:
        at_step(patch, step, send(name), after)
        status = run_command(lambda: bool(go(folder)) * 0)
    assert status == code
    assert folder.complete_steps()[0] == step
    assert folder.summary() is None, "a run that was told to end does not test"
    stderr = capsys.readouterr().err
    assert stderr == f"vit-jax: {name}: saved at step {step}; go on with: python -m vit_jax.train --resume {folder}\n"
    assert handlers == [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)]
    go(folder)
    assert_same(result(folder), ended(reference))


@slow
def test_a_signal_at_an_epochs_end_puts_the_evaluation_off(reference, folder, monkeypatch):
    with monkeypatch.context() as patch, pytest.raises(Interrupted):
        at_step(patch, EPOCH, send("SIGTERM"))
        go(folder)
    assert not [r for r in folder.metrics() if r["kind"] == "eval"]
    assert result(folder).notes["due"] is True
    with monkeypatch.context() as patch, pytest.raises(Interrupted):  # and again, before it has made good
        before(patch, Evaluator, "measure", send("SIGTERM"), call=2)
        go(folder)
    assert not [r for r in folder.metrics() if r["kind"] == "eval"], "half an evaluation is none"
    go(folder, max_steps=EPOCH)
    assert [r["step"] for r in folder.metrics() if r["kind"] == "eval"] == [EPOCH, EPOCH]
    notes = result(folder).notes
    assert notes["due"] is False and notes["best"]["step"] == EPOCH, "made good, and noted beside the same step"
    go(folder)
    assert_same(result(folder), ended(reference))


@pytest.mark.parametrize("epoch, call", cases([(1, 2)], [(1, 1), (3, 1), (3, 2)]))
def test_a_signal_breaks_an_evaluation_off(reference, folder, monkeypatch, epoch, call):
    """A validation set may take minutes; who sends SIGTERM does not wait for it."""
    with monkeypatch.context() as patch, pytest.raises(Interrupted, match=f"saved at step {epoch * EPOCH};"):
        before(patch, Evaluator, "measure", send("SIGTERM"), call=2 * (epoch - 1) + call)
        go(folder)
    assert len([r for r in folder.metrics() if r["kind"] == "eval"]) == 2 * (epoch - 1)
    go(folder)
    assert_same(result(folder), ended(reference))


@slow
@pytest.mark.parametrize("moment", ["save", "note"])
def test_a_signal_while_saving_waits_for_the_save(reference, folder, monkeypatch, moment):
    with monkeypatch.context() as patch, pytest.raises(Interrupted, match="saved at step 6"):
        before(patch, Checkpoints, "save" if moment == "save" else "_write_record", send("SIGTERM"))
        go(folder)
    go(folder)
    assert_same(result(folder), ended(reference))


@pytest.mark.parametrize("moment", cases(["digest"], [("save",), ("delete",)]))
def test_a_second_interrupt_ends_at_once(reference, folder, monkeypatch, capsys, moment):
    place, name, call = {
        "save": (runs, "array_digest", 1),
        "digest": (Checkpoints, "_write_record", 2),
        "delete": (shutil, "rmtree", 1),
    }[moment]
    if moment == "save":
        place = sys.modules["vit_jax.weights.checkpoint"]

    def twice() -> None:
        send("SIGINT")()
        send("SIGINT")()

    with monkeypatch.context() as patch:
        before(patch, place, name, twice, call)
        assert run_command(lambda: bool(go(folder, keep=1)) * 0) == 130
    assert (
        capsys.readouterr().err
        == "vit-jax: SIGINT: ended at once; repeat the command to go on from the last checkpoint\n"
    )
    go(folder)
    assert_same(result(folder), ended(reference))


@pytest.mark.parametrize(
    "place, name, begun",
    cases(
        [(Run, "create", False), (Checkpoints, "restore", True)],
        [
            (training, "open_job", False),
            (training, "open_job", True),
            (loop, "first_state", False),
            (Checkpoints, "clear", True),
        ],
    ),
)
def test_a_signal_during_set_up_ends_at_once(reference, folder, monkeypatch, capsys, place, name, begun):
    """Nothing is to be saved yet, and opening the data may take long."""
    if begun:
        go(folder, max_steps=3)
    had = result(folder) if begun else None
    capsys.readouterr()
    with monkeypatch.context() as patch:
        before(patch, place, name, send("SIGTERM"))
        assert run_command(lambda: bool(go(folder, max_steps=7)) * 0) == 143
    assert (
        capsys.readouterr().err
        == "vit-jax: SIGTERM: ended at once; repeat the command to go on from the last checkpoint\n"
    )
    if had is not None:
        assert_same(result(folder), had)
    go(folder)
    assert_same(result(folder), ended(reference))


@pytest.mark.parametrize("moment", cases(["test"], [("pictures",), ("summary",)]))
def test_a_signal_at_the_end_ends_at_once(reference, folder, monkeypatch, capsys, moment):
    """All is saved; the test, the pictures and the summary are made again by the next command."""
    with monkeypatch.context() as patch:
        if moment == "test":
            before(patch, Evaluator, "measure", send("SIGTERM"), call=8)
        elif moment == "pictures":
            patch.setattr(finish, "draw", lambda *_: send("SIGTERM")())
        else:
            before(patch, os, "replace", send("SIGTERM"), call=5)  # after config.json and three digests
        assert run_command(lambda: bool(go(folder)) * 0) == 143
    assert "ended at once" in capsys.readouterr().err
    assert folder.summary() is None and folder.complete_steps()[0] == STEPS
    go(folder)
    assert_same(result(folder), ended(reference))


# --------------------------------------------------------------------------------- crashes at the end


@pytest.mark.parametrize("moment", cases(["pictures"], [("loop",), ("test",), ("best",), ("summary",), ("report",)]))
def test_a_crash_at_the_end_is_made_good(reference, folder, monkeypatch, moment):
    with monkeypatch.context() as patch, pytest.raises(Crash):
        if moment == "loop":
            before(patch, training, "finish", crash)
        elif moment == "test":
            before(patch, Evaluator, "measure", crash, call=8)
        elif moment == "best":
            before(patch, finish, "best_weights", crash)
        elif moment == "pictures":
            patch.setattr(finish, "draw", lambda *_: crash())
        elif moment == "report":
            before(patch, hook, "leave_report", crash)
        else:
            before(patch, Run, "write_summary", crash)
        go(folder)
    go(folder)
    assert (folder.path / "report.html").exists()
    assert_same(result(folder), ended(reference))


def test_a_finished_run_is_shown_and_not_touched(reference, folder, capsys):
    shutil.copytree(reference.path, folder.path)
    state = {
        p: (p.stat().st_mtime_ns, p.read_bytes()) for p in folder.path.rglob("*") if p.is_file() and p.name != ".lock"
    }
    capsys.readouterr()
    for run in (TINY, replace(TINY, max_steps=3), replace(TINY, accumulate=1, log_every=1)):
        assert train(run, folder=folder) == {**reference.summary(), "folder": str(folder)}
        assert (
            "this run is finished; choose another `name` or `seed` to train anew, or train it on"
            in capsys.readouterr().out
        )
    assert {
        p: (p.stat().st_mtime_ns, p.read_bytes()) for p in folder.path.rglob("*") if p.is_file() and p.name != ".lock"
    } == state


@pytest.mark.slow
def test_steps_are_traced_and_a_trace_that_ends_early_is_kept(reference, folder, capsys):
    """The rest of the run is that of an untraced one."""
    train(replace(TINY, max_steps=4, profile_steps="4:9"), folder=folder)
    assert "profile  a trace from step 4 on, as training ended before step 9: open " in capsys.readouterr().out
    shutil.rmtree(folder.path / "profile")
    train(replace(TINY, profile_steps="6:7"), folder=folder)
    said = capsys.readouterr().out
    (trace,) = (folder.path / "profile").rglob("perfetto_trace.json.gz")
    assert f"profile  a trace of steps 6 to 7: open {trace} at https://ui.perfetto.dev" in said
    names = {event.get("name") for event in json.loads(gzip.decompress(trace.read_bytes()))["traceEvents"]}
    assert any("jit_step" in str(name) for name in names)
    shutil.rmtree(folder.path / "profile")
    assert_same(result(folder), ended(reference))


@pytest.mark.slow
def test_histograms_leave_the_run_as_it_is_and_none_is_made_twice(reference, folder, monkeypatch, tmp_path):
    """Killed between two saves, and with a broken line at the end of the file."""
    whole = Run(tmp_path / "whole")
    train(replace(TINY, histograms=3, steps_per_dispatch=2), preset="digits", folder=whole)
    with monkeypatch.context() as patch, pytest.raises(Crash):
        at_step(patch, 8, crash)  # after the row of step 7, which is written again: the newest save is that of step 5
        go(folder, histograms=3)
    with open(folder.histograms_file, "ab") as file:
        file.write(b'{"step": 13, "par')
    go(folder, histograms=3)
    assert folder.histograms_file.read_bytes() == whole.histograms_file.read_bytes()
    rows = list(folder.histograms())
    assert [row["step"] for row in rows] == [1, 4, 7, 10, 13]
    sizes = {name: math.prod(shape) for name, shape in folder.config().model.shapes().items()}
    for group in ("parameters", "gradients"):
        assert {name: sum(h["counts"]) for name, h in rows[-1][group].items()} == sizes
    assert_same(result(folder), ended(reference))


def test_mfu_is_logged_where_the_peak_of_the_device_is_known(folder, monkeypatch, capsys):
    monkeypatch.setitem(PUBLISHED, "cpu", Published(1e12))
    summary = go(folder, max_steps=9)
    rows = [row for row in folder.metrics() if "mfu" in row]
    step = 3 * folder.config().model.flops() / (1e12 * jax.device_count())
    assert [row["step"] for row in rows] == [4, 5, 8, 9]
    assert all(row["mfu"] == pytest.approx(row["images_per_second"] * step) for row in rows)
    assert summary["mfu"] == pytest.approx(statistics.median(row["mfu"] for row in rows))
    assert f"speed      MFU {summary['mfu']:.1%}" in capsys.readouterr().out
    assert not division.most_examples(replace(TINY, optim=OptimConfig(freeze=("patch.*",))), None, "cpu", 1)


# ------------------------------------------------------------------------------------ best and early stopping


def scripted(monkeypatch, *values: tuple[float, float]) -> None:
    """Evaluations give these (accuracy, loss), in turn: of the raw weights, then of their average."""
    measure, turn = Evaluator.measure, iter(values)

    def given(*args):
        accuracy, loss = next(turn)
        out = measure(*args)
        return replace(out, metrics={**out.metrics, "balanced_accuracy": accuracy, "loss": loss})

    monkeypatch.setattr(Evaluator, "measure", given)


@pytest.mark.parametrize(
    "values, chosen",
    [
        ([(0.5, 1.0), (0.6, 1.0), (0.7, 1.0), (0.6, 0.5), (0.6, 1.0), (0.6, 1.0)], ("raw", 2 * EPOCH, 1)),
        pytest.param(
            [(0.5, 1.0), (0.6, 1.0), (0.6, 1.0), (0.7, 1.0), (0.7, 1.0), (0.6, 1.0)], ("ema", 2 * EPOCH, 1), marks=slow
        ),
        ([(0.5, 1.0), (0.5, 0.9), (0.5, 0.8), (0.5, 0.9), (0.4, 0.1), (0.5, 0.8)], ("raw", 2 * EPOCH, 2)),  # the loss
        ([(0.5, 1.0), (0.5, 1.0), (0.5, 1.0), (0.5, 1.0), (0.5, 1.0), (0.5, 1.0)], ("ema", EPOCH, 2)),  # all equal
    ],
)
def test_the_best_is_chosen_among_raw_and_averaged_weights(folder, monkeypatch, values, chosen, capsys):
    weights, step, stale = chosen
    tests = [(0.1, 1.0), (0.2, 1.0), (0.3, 1.0)]  # of the last, their average, and the best
    with monkeypatch.context() as patch:
        scripted(patch, *values, *tests)
        summary = go(folder)
    accuracy = values[2 * (step // EPOCH - 1) + (weights == "ema")]
    assert summary["best"] == {"step": step, "balanced_accuracy": accuracy[0], "loss": accuracy[1], "weights": weights}
    assert folder.saved(STEPS)["notes"]["best"] == summary["best"] and folder.saved(STEPS)["notes"]["stale"] == stale
    kind = {"raw": "raw", "ema": "averaged"}[weights]
    assert f"best       step {step} ({kind} weights), chosen by validation\n" in capsys.readouterr().out
    if stale > 1:
        return  # what uses the best weights follows the notes: shown once for each kind of weights
    saved = Checkpoints(folder).read(step, folder.config().model.shapes()).state
    trees = {"raw": saved.parameters, "ema": saved.ema}
    model = folder.config().model
    for flag, expected in ((None, weights), (True, "ema"), (False, "raw")):
        at, tree, _ = vit_jax.weights.load.weights(folder, model, "best", flag)
        assert at == step and (tree["cls_token"] == trees[expected]["cls_token"]).all()
    assert (trees["raw"]["cls_token"] != trees["ema"]["cls_token"]).any()
    at, tree, _ = vit_jax.weights.load.weights(folder, model, "last")
    last = Checkpoints(folder).read(STEPS, model.shapes()).state.ema
    assert at == STEPS and (tree["cls_token"] == last["cls_token"]).all(), "of the last, the average as ever"


def test_patience_follows_the_better_of_both(folder, monkeypatch):
    """The average gets worse from the start, as where it lags; the raw weights improve, so training goes on."""
    scripted(monkeypatch, (0.5, 1.0), (0.6, 1.0), (0.7, 1.0), (0.5, 1.0), (0.8, 1.0), (0.4, 1.0), *[(0.1, 1.0)] * 2)
    assert go(folder, patience=1)["step"] == STEPS


@pytest.fixture
def early(monkeypatch, folder) -> Run:
    """An uninterrupted run of one epoch's patience, whose validation likes its first epoch best."""
    measure = Evaluator.measure

    def flat(*args):
        out = measure(*args)
        return replace(out, metrics={**out.metrics, "balanced_accuracy": 0.5, "loss": 1.0})

    monkeypatch.setattr(Evaluator, "measure", flat)
    uninterrupted = Run(folder.path.with_name("early"))
    summary = go(uninterrupted, patience=1)
    assert (summary["status"], summary["step"], summary["best"]["step"]) == ("finished", 2 * EPOCH, EPOCH)
    return uninterrupted


@pytest.mark.parametrize("step", cases([2 * EPOCH], [(EPOCH,), (2 * EPOCH - 1,)]))
def test_early_stopping_comes_as_if_never_stopped(early, folder, monkeypatch, step):
    with monkeypatch.context() as patch, pytest.raises(Interrupted):
        at_step(patch, step, send("SIGTERM"))
        go(folder, patience=1)
    go(folder, patience=1)
    assert_same(result(folder), result(early))


@slow
def test_a_crash_after_early_stopping_does_not_train_on(early, folder, monkeypatch, seen):
    with monkeypatch.context() as patch, pytest.raises(Crash):
        before(patch, training, "finish", crash)
        go(folder, patience=1)
    assert len(seen) == 2 * EPOCH
    go(folder, patience=1)
    assert len(seen) == 2 * EPOCH
    assert_same(result(folder), result(early))


# --------------------------------------------------------------------------------- damage on the way


def damage(folder: Run, step: int) -> None:
    """Flip a bit in the middle of a checkpoint's arrays, which Orbax does not see."""
    for file in sorted((folder.checkpoints / str(step)).rglob("d/*"), key=lambda p: p.stat().st_size)[-3:]:
        data = bytearray(file.read_bytes())
        data[len(data) // 2] ^= 1
        file.write_bytes(data)


def test_a_damaged_checkpoint_is_passed_over_and_trained_again(reference, folder, capsys):
    go(folder, max_steps=8)
    assert folder.complete_steps() == [8, 5]
    damage(folder, 8)
    capsys.readouterr()
    go(folder)
    out = capsys.readouterr().out
    (line,) = [line for line in out.splitlines() if line.startswith("skipped")]
    assert line.startswith("skipped  checkpoint 8: ") and ("is damaged" in line or "cannot be read" in line)
    assert "going on after step 5" in out
    assert_same(result(folder), ended(reference))


def test_when_every_checkpoint_is_damaged_nothing_is_lost_or_begun_anew(folder):
    go(folder, max_steps=8)
    for step in (5, 8):
        damage(folder, step)
    files = {p: p.read_bytes() for p in folder.path.rglob("*") if p.is_file() and p.name != ".lock"}
    with pytest.raises(UserError, match=r"no checkpoint is valid .*train again under another `name"):
        go(folder)
    assert {p: p.read_bytes() for p in folder.path.rglob("*") if p.is_file() and p.name != ".lock"} == files


def test_the_best_weights_may_be_lost_and_the_rest_is_still_told(reference, folder, monkeypatch, capsys):
    with monkeypatch.context() as patch, pytest.raises(Crash):
        before(patch, training, "finish", crash)
        go(folder)
    saved, _ = Checkpoints(folder).restore(folder.config().model.shapes())
    assert saved is not None
    Checkpoints(folder).note(
        STEPS, {**saved.notes, "best": {"step": 10, "weights": "raw", "balanced_accuracy": 0.9, "loss": 1.0}}
    )
    damage(folder, 10)
    capsys.readouterr()
    summary = go(folder)
    assert "skipped  the test of the best weights: checkpoint 10: " in capsys.readouterr().out
    assert summary["status"] == "finished" and set(summary["test"]) == {"last", "last_ema"}


@slow
def test_a_lost_log_does_not_stop_a_run(folder):
    go(folder, max_steps=8)
    folder.metrics_file.unlink()
    assert go(folder)["status"] == "finished"
    assert [r["step"] for r in folder.metrics() if r["kind"] == "train"] == [10, 12, 15]


# ------------------------------------------------------------------------------------- what may change


def test_another_run_does_not_go_on_in_this_folder(folder):
    """Also where the folder is handed in and not chosen, or was made after it was chosen."""
    go(folder, max_steps=3)
    for other, said in ((replace(TINY, seed=1), "seed 0 -> 1"), (replace(TINY, ema=0.5), r"ema 0\.8 -> 0\.5")):
        with pytest.raises(UserError, match=f"holds another run, which differs in {said}"):
            train(other, folder=folder)
    assert folder.complete_steps() == [3]


def test_other_data_is_refused(folder, rewrite_record):
    """config.json holds the identity of the data; other bytes under the same name have another one."""
    go(folder, max_steps=3)
    rewrite_record(folder, data={**folder.record()["data"], "content": "0123"})
    with pytest.raises(
        UserError,
        match=r"not the data that this run began with: its numbers .*; restore it, or choose another `name",
    ):
        go(folder)
    assert folder.complete_steps() == [3]


def test_a_change_of_what_decides_the_last_bits_is_said(folder, capsys):
    go(folder, max_steps=3)
    capsys.readouterr()
    go(folder, max_steps=4)
    assert "may differ in their last bits" not in capsys.readouterr().out
    saved, _ = Checkpoints(folder).restore(folder.config().model.shapes())
    assert saved is not None
    environment = saved.notes["environment"]
    other = open_job(replace(TINY, scan=True, remat="full"), open_data(TINY), folder).environment
    then = {
        **environment,
        "cores": 99,
        "xla_flags": "--other",
        "devices": 8,
        "accumulate": 1,
        "steps_per_dispatch": 8,
        "parallel": other["parallel"],
        "async_save": True,
        "versions": {**environment["versions"], "jax": "0.0"},
    }
    Checkpoints(folder).note(4, {**saved.notes, "environment": then})
    go(folder, max_steps=5)
    (note,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("note")]
    assert note.startswith("note     results may differ in their last bits from an uninterrupted run, because of: ")
    for change in (
        "devices 8 -> 1",
        f"cores 99 -> {environment['cores']}",
        "xla_flags --other -> ",
        "jax 0.0 -> ",
        "accumulate 1 -> 2",
        "steps_per_dispatch 8 -> 1",
        "parallel jit, scan, remat full -> jit",
        "async_save True -> False",
    ):
        assert change in note
    state.compare_environments(environment, {"versions": {}})  # of a converted checkpoint nothing is known
    assert not capsys.readouterr().out


# --------------------------------------------------------------------------------------------- NaN


@pytest.mark.parametrize("step", cases([2 * EPOCH], [(2,), (7,), (STEPS,)]))
def test_weights_that_are_not_finite_are_never_saved(folder, monkeypatch, capsys, step):
    """A step's loss is that of the weights before it: at a save, its update has to be looked at as well."""
    train_step = Engine.train

    def spoil(self, state, batch, votes=None):
        state, metrics = train_step(self, state, batch, votes)
        if int(jax.device_get(state.step)) == step:
            weights = {**state.parameters, "cls_token": state.parameters["cls_token"] * np.nan}
            state, metrics = (
                replace(state, parameters=weights),
                {**metrics, "param_norm": metrics["param_norm"] * np.nan},
            )
        return state, metrics

    monkeypatch.setattr(Engine, "train", spoil)
    last = (step - 1) // EPOCH * EPOCH
    kept = f"the last good checkpoint is step {last}" if last else "nothing had been saved yet"
    assert run_command(lambda: bool(go(folder)) * 0) == 3
    assert capsys.readouterr().err == (
        f"vit-jax: the norm of the weights is nan at step {step}; {kept} in {folder}; "
        "try a lower `optim.lr` (now 0.01), a longer `optim.warmup`, or `optim.clip 1` under another `name`\n"
    )
    assert folder.complete_steps()[:1] == ([last] if last else [])


@pytest.mark.parametrize("call, split", cases([(1, "validation")], [(7, "test")]))
def test_an_evaluation_that_is_not_finite_ends_the_run(folder, monkeypatch, call, split):
    measure, calls = Evaluator.measure, []

    def broken(*args):
        calls.append(args)
        out = measure(*args)
        return replace(out, metrics={**out.metrics, "loss": float("inf")}) if len(calls) == call else out

    monkeypatch.setattr(Evaluator, "measure", broken)
    with pytest.raises(CheckFailed, match=rf"the {split} loss \(raw weights\) is inf at step"):
        go(folder)
    assert folder.summary() is None


# ------------------------------------------------------------------------------------------- the rest
