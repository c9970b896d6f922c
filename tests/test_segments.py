"""A run that trains on after its end: its schedule, its bits after any stop, what it is afterwards, what is refused."""

import itertools
import json
import shutil
from dataclasses import replace

import numpy as np
import pytest

import vit_jax
from convert.containers.run_folder import open_run
from tests.test_resume import EPOCH, STEPS, TINY, Crash, assert_same, at_step, before, crash, quicken, result
from vit_jax.commands import train as command
from vit_jax.config.run import OptimConfig
from vit_jax.errors import UserError
from vit_jax.reports import compare, tables
from vit_jax.runs import Run
from vit_jax.runs.record import check_record
from vit_jax.training import going_on, loop
from vit_jax.training.engine.optim import Optimizer, Part, learning_rate
from vit_jax.training.train import train
from vit_jax.weights.checkpoint import Checkpoints

CONSTANT = replace(TINY, optim=replace(TINY.optim, schedule="constant", cycle_momentum=False))


@pytest.fixture(scope="module")
def engines():
    return {}


@pytest.fixture(autouse=True)
def _quick(monkeypatch, engines):
    quicken(monkeypatch, engines)


@pytest.fixture(scope="module")
def ended(tmp_path_factory, engines):
    """TINY, at its end."""
    folder = Run(tmp_path_factory.mktemp("ended") / "run")
    with pytest.MonkeyPatch.context() as patch:
        quicken(patch, engines)
        train(TINY, preset="digits", folder=folder)
    return folder


@pytest.fixture
def folder(ended, tmp_path):
    shutil.copytree(ended.path, tmp_path / "run")
    return Run(tmp_path / "run")


def on(folder, **options):
    return train(resume=folder, **options)


# ---------------------------------------------------------------------------------- the learning rate


@pytest.mark.parametrize("schedule", ["constant", "cosine", "one_cycle", "inverse_sqrt"])
def test_the_rate_of_a_segment_is_that_of_a_run_of_its_own_of_the_whole_or_the_last(schedule):
    c, ways = OptimConfig(schedule=schedule, warmup_steps=3, final=0.1, lr=0.5), ("constant", "again", "extended")

    def rate(steps, first, last):
        """That of a run of its own, from step `first` to before `last`."""
        return np.asarray(learning_rate(c, steps, 5)(np.arange(first, last)))

    for one, two in itertools.product(ways, ways):
        got = Optimizer(c, 40, 5, None, [Part(0, 20, ""), Part(20, 30, one), Part(27, 40, two)]).learning_rate
        expected = rate(20, 0, 20)
        for way, begin, end, total in ((one, 20, 27, 30), (two, 27, 40, 40)):
            added = {"constant": np.repeat(expected[-1:], end - begin), "extended": rate(total, begin, end)}
            added["again"] = rate(total - begin, 0, end - begin)
            expected = np.concatenate([expected, added[way]])
        assert np.allclose(got(np.arange(40)), expected, rtol=1e-6), (one, two)


# ------------------------------------------------------------------------------------------- the bits


def test_extended_without_a_schedule_is_one_long_run_to_the_bit(tmp_path):
    short, long = Run(tmp_path / "short"), Run(tmp_path / "long")
    train(CONSTANT, preset="digits", folder=short)
    on(short, epochs=5)  # not asked for: it makes no difference
    train(replace(CONSTANT, epochs=5), preset="digits", folder=long)
    got, expected = result(short), result(long)
    tested = [row for row in got.rows if row["step"] == STEPS and row.get("split") == "test"]
    assert len(tested) == 2, "the first segment keeps its results"
    got.rows = [row for row in got.rows if row not in tested]
    assert got.summary.pop("segment") == 1
    assert_same(got, expected)


@pytest.fixture(scope="module")
def again(ended, tmp_path_factory, engines):
    """TINY, and three epochs more, never stopped."""
    folder = Run(shutil.copytree(ended.path, tmp_path_factory.mktemp("again") / "run"))
    with pytest.MonkeyPatch.context() as patch:
        quicken(patch, engines)
        on(folder, epochs=6, continue_="again")
    return folder


@pytest.mark.parametrize(
    "kill",
    [
        pytest.param(lambda patch: before(patch, Checkpoints, "record", crash), marks=pytest.mark.slow),
        lambda patch: before(patch, Run, "write_record", crash),
        lambda patch: at_step(patch, STEPS + 2, crash),
        pytest.param(lambda patch: at_step(patch, STEPS + EPOCH + 3, crash), marks=pytest.mark.slow),
        pytest.param(lambda patch: before(patch, Run, "write_summary", crash), marks=pytest.mark.slow),
    ],
    ids=["before it begins", "as it begins", "in its first epoch", "in its second", "at its end"],
)
def test_a_run_that_is_killed_in_its_second_segment_goes_on_to_the_same_bits(again, folder, monkeypatch, kill):
    with monkeypatch.context() as patch, pytest.raises(Crash):
        kill(patch)
        on(folder, epochs=6, continue_="again")
    on(folder, epochs=6, continue_="again")
    assert_same(result(folder), result(again))
    assert folder.record() == {**again.record(), "environment": folder.record()["environment"]}
    untouched = folder.config_file.read_bytes()
    assert on(folder) == on(folder, epochs=6, continue_="again") == {**folder.summary(), "folder": str(folder)}
    assert train(TINY, folder=folder)["step"] == 2 * STEPS, "it is still the run that it was at first"
    assert folder.config_file.read_bytes() == untouched


def test_a_damaged_newest_checkpoint_leads_back_into_the_segment_before(again, folder):
    on(folder, epochs=6, continue_="again", fields={"max_steps": STEPS + 1})
    for step in (STEPS, STEPS + 1):
        folder.digest_file(step).write_text("{}")

    on(folder, fields={"max_steps": 0})
    assert result(folder).arrays == result(again).arrays


def test_each_segment_has_its_config_and_what_holds_now_is_the_last(folder):
    first = folder.summary()
    on(folder, epochs=5, continue_="constant", fields={"max_steps": STEPS + 2})
    assert (folder.config().epochs, folder.config().max_steps) == (5, STEPS + 2)
    on(folder, epochs=7, continue_="extended")
    one, two, three = folder.segments()
    assert [(s.after, s.continuation, s.run.epochs) for s in (one, two, three)] == [
        (0, "", 3), (STEPS, "constant", 5), (STEPS + 2, "extended", 7),
    ]  # fmt: skip
    assert one.ended == first and one.run.max_steps == 0 and two.run.max_steps == STEPS + 2 and not two.ended
    assert folder.config() == three.run and folder.config().max_steps == 0, "the budget of before is spent"
    assert folder.summary()["step"] == 7 * EPOCH and folder.summary()["segment"] == 2
    rates = [row["lr"] for row in folder.metrics() if row["kind"] == "train" and STEPS < row["step"] <= STEPS + 2]
    assert len({*rates}) == 1 and rates[0] < 1e-6
    newest = folder.complete_steps()[0]
    assert folder.saved(newest)["config"] == json.loads(json.dumps(folder.record()))


@pytest.mark.slow
def test_after_early_stopping_patience_begins_anew(folder, monkeypatch, tmp_path):
    run, stopping = replace(CONSTANT, epochs=9, patience=1), Run(tmp_path / "early")
    measured = []

    def worse(s, name, split, *given, measure=loop.measure):
        found = measure(s, name, split, *given)
        measured.append(name)
        lower = {s.task.selection_metric[0]: 0.5 - len(measured) / 100}
        return {kind: replace(each, metrics={**each.metrics, **lower}) for kind, each in found.items()}

    monkeypatch.setattr(loop, "measure", worse)
    assert train(run, preset="digits", folder=stopping)["step"] == 2 * EPOCH
    assert on(stopping)["step"] == 2 * EPOCH
    assert on(stopping, continue_="extended")["step"] == 3 * EPOCH, "one epoch without a better result, as asked for"
    assert on(stopping, fields={"patience": 0})["step"] == 9 * EPOCH


def test_more_steps_than_the_epochs_have_are_more_epochs(tmp_path):
    folder = Run(tmp_path / "run")
    train(replace(CONSTANT, epochs=1), preset="digits", folder=folder)
    summary = on(folder, fields={"max_steps": 2 * EPOCH + 2})
    assert (summary["step"], summary["status"]) == (2 * EPOCH + 2, "stopped: max_steps")
    assert folder.config().epochs == 3
    few = Run(tmp_path / "few")
    train(replace(CONSTANT, overfit_batches=1, max_steps=3), preset="digits", folder=few)
    assert on(few, fields={"max_steps": 6})["step"] == 6


# ------------------------------------------------------------------------------- what is asked and refused


@pytest.mark.parametrize(
    ("flags", "options", "said"),
    [
        ("--epochs 6", {"epochs": 6},
         "its schedule one_cycle was made for 3 epochs, so 6 can mean three things; choose `python -m vit_jax.train "
         "--resume {run} --epochs 6 --continue again` (the schedule begins anew for the added epochs), or `"),
        ("--epochs 6", {"epochs": 6}, "--epochs 6 --continue constant` (the last rate, "),
        ("--epochs 2 --continue again", {"epochs": 2, "continue_": "again"},
         "epochs is 2, but {run} has done 3: give more than that"),
        ("--continue again", {"continue_": "again"},
         "continue is again, but no epochs are added to the 3 of {run}: give more of them with `epochs too"),
        ("--epochs 6 --optim.lr 1", {"epochs": 6, "fields": {"optim.lr": 1.0}}, "holds another run, which differs in "),
    ],
)  # fmt: skip
def test_what_a_run_cannot_go_on_with_is_told_before_anything_is_opened(folder, monkeypatch, flags, options, said):
    kept = {file: file.read_bytes() for file in folder.path.rglob("*.json*")}
    monkeypatch.setattr(vit_jax.training.train, "set_up", lambda *_: pytest.fail("set up"))
    for call in (
        lambda: on(folder, **options),
        lambda: command.command(["--resume", str(folder), *flags.split()]),
        lambda: command.command(["--resume", str(folder), *flags.split(), "--dry-run"]),
    ):
        with pytest.raises(UserError) as error:
            call()
        assert said.format(run=folder) in str(error.value) and "\n" not in str(error.value)
    assert kept == {file: file.read_bytes() for file in folder.path.rglob("*.json*")}


def test_arguments_that_do_not_go_together_are_named(folder, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for options, said in (
        ({"run": TINY, "resume": folder}, "run: is given, and so is resume"),
        ({"run": TINY, "continue_": "again"}, "continue_: is 'again', and is for a run to resume"),
        ({"resume": folder, "continue_": "anew"}, "continue_: is 'anew'; give constant, again or extended"),
        ({"resume": folder, "fields": {"epoch": 9}}, "epoch is no field; here it is epochs"),
        ({"resume": "gone"}, "gone: no such folder or run"),
    ):
        with pytest.raises(UserError, match=said):
            train(**options)
    with pytest.raises(UserError, match="continue is again: name the run that goes on with --resume"):
        command.command(["digits", "--continue", "again"])
    with pytest.raises(UserError, match=r"differs in epochs 3 -> 6; .*; to train it on, give `resume "):
        train(replace(TINY, epochs=6), folder=folder)


def test_damaged_segments_are_refused_as_such(again):
    record = again.record()
    one, two = record["segments"]
    for damaged in (
        3, "x", [{}], [one], [two, one], [None, two], [one, {"after": 3}], [one, {**two, "after": -5}],
        [one, {**two, "after": "9"}], [one, {**two, "continue": "x"}], [{**one, "ended": {"status": 3}}, two],
        [{**one, "ended": []}, two], [{**one, "config": {}}, two], [{**one, "config": {"task": "nope"}}, two],
        [{**one, "config": {**one["config"], "epochs": 0}}, two],
    ):  # fmt: skip
        with pytest.raises(UserError, match=r"^config\.json: .*; restore the file"):
            check_record({**record, "segments": damaged}, "config.json")
    check_record(record, "config.json")


def test_others_do_not_train_on_with_a_schedule_that_they_do_not_know(again):
    source = open_run(again.path, training=True)
    assert (
        "optimizer" not in source.tree and "its learning rate goes on as `continue again` has it" in source.skipped[0]
    )
    assert "optimizer" in open_run(again.path).tree


@pytest.mark.slow
def test_the_runs_of_a_group_train_on_together(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("vit_jax.reports.group.draw", lambda *_: None)
    vit_jax.training.train.train_group(replace(CONSTANT, epochs=1, name="group"), "seed", 2)
    command.command(["--resume", "group", "--epochs", "2"])
    members = [Run(f"runs/group/seed-{seed}") for seed in (0, 1)]
    assert [member.summary()["step"] for member in members] == [2 * EPOCH] * 2
    assert Run("runs/group").summary()["seeds"] == [0, 1]
    assert vit_jax.train(resume="group", epochs=3)["metrics"]["test.last.accuracy"]["mean"] == pytest.approx(
        np.mean([member.summary()["test"]["last"]["accuracy"] for member in members])
    )
    assert [len(member.segments()) for member in members] == [3, 3]
    assert going_on.planned_segments(members[0], replace(CONSTANT, epochs=1, name="group"), None)[-1].run.epochs == 3


def test_compare_and_report_show_the_segments_and_the_commands_that_repeat_them(ended, folder):
    on(folder, epochs=5, continue_="again", fields={"max_steps": STEPS + 2})
    on(folder, epochs=7, continue_="extended", fields={"patience": 4})
    found = compare.gather([str(folder.path)])
    (table,) = tables.segments(found)
    assert [row[1:5] for row in table.rows] == [
        ("0", "3", "one_cycle", "finished"), ("15", "5", "again", "gone on with"), ("17", "7", "extended", "finished"),
    ]  # fmt: skip
    first, last, metric = folder.segments()[0].ended, folder.summary(), found.lines[0].members[0].metric
    values = [f"{each['test']['best'][metric]:g}" for each in (first, last)]
    assert [table.rows[0][5], table.rows[2][5]] == values
    _, *later = tables.commands_of(found.lines[0])
    train_on = "python -m vit_jax.train --resume run-again --epochs "
    assert later == [
        f"{train_on}5 --continue again --max-steps 17", f"{train_on}7 --continue extended --patience 4 --max-steps 0"
    ]  # fmt: skip
    fields = [line["fields"] for line in vit_jax.compare(folder.path, ended.path)["lines"]]
    assert [each["segments"] for each in fields] == ["3 epochs, again to 5 epochs, extended to 7 epochs", "3 epochs"]
