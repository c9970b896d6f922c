"""A run that trains on after its end: its rates, its bits after any stop, what it is afterwards, what is refused."""

import json
import shutil
from dataclasses import replace

import numpy as np
import pytest

import vit_jax
from convert.containers.run_folder import open_run
from tests.test_resume import EPOCH, STEPS, TINY, Crash, assert_same, at_step, before, crash, quicken, result
from vit_jax.commands import train as command
from vit_jax.errors import UserError
from vit_jax.extras.report import contents, tables
from vit_jax.reports import compare
from vit_jax.runs import Run
from vit_jax.runs.record import own_schedule
from vit_jax.training.loop import Evaluating
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


# ------------------------------------------------------------------------------------------- the bits


def test_without_a_schedule_it_is_one_long_run_to_the_bit(tmp_path):
    short, long = Run(tmp_path / "short"), Run(tmp_path / "long")
    train(CONSTANT, preset="digits", folder=short)
    on(short, epochs=5)
    train(replace(CONSTANT, epochs=5), preset="digits", folder=long)
    got, expected = result(short), result(long)
    tested = [row for row in got.rows if row["step"] == STEPS and row.get("split") == "test"]
    assert len(tested) == 2, "what it came to at its first end stays in its log"
    got.rows = [row for row in got.rows if row not in tested]
    assert_same(got, expected)
    assert short.record() == {**long.record(), "environment": short.record()["environment"]}


@pytest.fixture(scope="module")
def longer(ended, tmp_path_factory, engines):
    """TINY, and three epochs more, never stopped."""
    folder = Run(shutil.copytree(ended.path, tmp_path_factory.mktemp("longer") / "run"))
    with pytest.MonkeyPatch.context() as patch:
        quicken(patch, engines)
        on(folder, epochs=6)
    return folder


def test_its_rates_are_those_of_its_length_at_first_and_then_those_of_a_run_of_all_its_epochs(longer, ended, tmp_path):
    whole = Run(tmp_path / "whole")
    train(replace(TINY, epochs=6), preset="digits", folder=whole)
    rates, first, then = ({r["step"]: r["lr"] for r in each.metrics() if "lr" in r} for each in (longer, ended, whole))
    assert rates == first | {step: rate for step, rate in then.items() if step > STEPS}
    assert rates[STEPS] < 1e-6 < 1e-3 < rates[STEPS + 1], "it jumps back up"


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
def test_a_run_that_is_killed_while_it_trains_on_goes_on_to_the_same_bits(longer, folder, monkeypatch, kill):
    with monkeypatch.context() as patch, pytest.raises(Crash):
        kill(patch)
        on(folder, epochs=6)
    on(folder, epochs=6)
    assert_same(result(folder), result(longer))
    assert folder.record() == {**longer.record(), "environment": folder.record()["environment"]}
    untouched = folder.config_file.read_bytes()
    assert on(folder) == on(folder, epochs=6) == {**folder.summary(), "folder": str(folder)}
    assert train(replace(TINY, epochs=6), folder=folder)["step"] == 2 * STEPS, "it is the run of so many epochs"
    assert folder.config_file.read_bytes() == untouched


def test_what_holds_now_is_recorded_and_the_budget_of_before_is_spent(folder):
    on(folder, epochs=6, fields={"max_steps": STEPS + 2})
    assert (folder.config().epochs, folder.config().max_steps) == (6, STEPS + 2)
    on(folder, fields={"patience": 9})
    assert (folder.config().epochs, folder.config().patience, folder.config().max_steps) == (6, 9, 0)
    assert folder.summary()["step"] == 6 * EPOCH
    assert folder.saved(folder.complete_steps()[0])["config"] == json.loads(json.dumps(folder.record()))


def test_after_early_stopping_patience_begins_anew(monkeypatch, tmp_path):
    run, stopping = replace(CONSTANT, patience=1), Run(tmp_path / "early")
    measured = []

    def worse(evaluating, name, split, *given, measure=Evaluating.measure):
        found = measure(evaluating, name, split, *given)
        measured.append(name)
        lower = {evaluating.loop.job.task.selection_metric[0]: 0.5 - len(measured) / 100}
        return {kind: replace(each, metrics={**each.metrics, **lower}) for kind, each in found.items()}

    monkeypatch.setattr(Evaluating, "measure", worse)
    assert train(run, preset="digits", folder=stopping)["step"] == 2 * EPOCH
    assert on(stopping)["step"] == 2 * EPOCH
    with monkeypatch.context() as patch, pytest.raises(Crash):
        before(patch, Run, "write_record", crash)
        on(stopping, epochs=5)
    assert on(stopping)["step"] == 3 * EPOCH, "one epoch without a better result"
    assert on(stopping, fields={"patience": 0})["step"] == 5 * EPOCH


def test_more_steps_than_the_epochs_have_are_not_more_epochs_unless_it_overfits(folder, tmp_path, capsys):
    assert on(folder, fields={"max_steps": 2 * STEPS})["step"] == STEPS
    assert f"train it on with `resume {folder}` and `epochs N" in capsys.readouterr().out
    few = Run(tmp_path / "few")
    train(replace(CONSTANT, overfit_batches=1, max_steps=3), preset="digits", folder=few)
    assert on(few, fields={"max_steps": 6})["step"] == 6


# ------------------------------------------------------------------------------- what is asked and refused


@pytest.mark.parametrize(
    ("flags", "options", "said"),
    [
        ("--epochs 2", {"epochs": 2}, "epochs is 2, but {run} has done 3: give more than that"),
        ("--epochs 6 --optim.lr 1", {"epochs": 6, "fields": {"optim.lr": 1.0}}, "holds another run, which differs in "),
    ],
)
def test_what_a_run_cannot_go_on_with_is_told_before_anything_is_opened(folder, monkeypatch, flags, options, said):
    kept = {file: file.read_bytes() for file in folder.path.rglob("*.json*")}
    monkeypatch.setattr(vit_jax.training.train, "open_job", lambda *_: pytest.fail("opened"))
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
    one_way = "is gone; a run trains on in one way, as if so many epochs had been given at first: "
    for options, said in (
        ({"run": TINY, "resume": folder}, "run: is given, and so is resume"),
        ({"resume": folder, "epochs": 6, "continue_": "again"}, f"continue_ {one_way}"),
        ({"resume": folder, "fields": {"epoch": 9}}, "epoch is no field; here it is epochs"),
        ({"resume": "gone"}, "gone: no such folder or run"),
    ):
        with pytest.raises(UserError, match=said):
            train(**options)
    new = train(TINY, preset="digits", epochs=1)  # a run that begins takes epochs too
    assert new["step"] == EPOCH and Run(new["folder"]).config().epochs == 1
    with pytest.raises(UserError, match=f"continue_ {one_way}"):
        vit_jax.steps(resume=folder, continue_="again")
    with pytest.raises(TypeError, match="unexpected keyword argument 'epoch'"):
        train(TINY, epoch=9)
    with pytest.raises(UserError, match="there is no field --continue: a run trains on in one way, as if so many"):
        command.command(["--resume", str(folder), "--epochs", "6", "--continue", "again"])
    with pytest.raises(UserError, match=r"differs in epochs 3 -> 6; .*; to train it on, give `resume "):
        train(replace(TINY, epochs=6), folder=folder)


# ------------------------------------------------------------------------------- runs of older versions


def as_older(folder, way):
    """Let a run look as an older version left one that it trained on in this way."""
    earlier = {**folder.record()["config"], "epochs": 1}
    record = folder.record() | {
        "segments": [
            {"after": 0, "continue": "", "config": earlier, "ended": {}},
            {"after": EPOCH, "continue": way},
        ]
    }
    Checkpoints(folder).record(record, {})
    folder.write_record(record)
    folder.write_summary({**folder.summary(), "segment": 1}, {})


@pytest.mark.parametrize("way", ["again", "constant", "extended"])
def test_a_run_that_an_older_version_trained_on_is_read_and_goes_on_where_its_rates_are_known(folder, longer, way):
    as_older(folder, way)
    assert on(folder)["step"] == STEPS and "model" in open_run(folder.path).tree
    source = open_run(folder.path, training=True)
    assert ("optimizer" in source.tree) == (way == "extended")
    if way != "extended":
        assert f"its learning rate goes on as continue {way} had it" in source.skipped[0]
    folder.summary_file.unlink()
    if way == "extended":
        assert on(folder)["step"] == STEPS
    else:
        with pytest.raises(UserError, match=f"is being trained on by continue {way}, which is gone; give `resume"):
            on(folder)
    on(folder, epochs=6)
    assert result(folder).arrays == result(longer).arrays and "segments" not in folder.record()


def test_damaged_records_of_older_versions_are_no_schedules_of_their_own():
    for damaged in (None, 3, "x", {}, [], [{}], [None], [{"continue": 3}], [{"continue": "again"}, {"continue": "x"}]):
        assert own_schedule({"segments": damaged}) == ""


# --------------------------------------------------------------------------------- groups and reports


@pytest.mark.slow
def test_the_runs_of_a_group_train_on_together(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("vit_jax.reports.compare.draw", lambda *_: None)
    vit_jax.training.train.train_group(replace(CONSTANT, epochs=1, name="group"), "seed", 2)
    command.command(["--resume", "group", "--epochs", "2"])
    members = [Run(f"runs/group/seed-{seed}") for seed in (0, 1)]
    assert [member.summary()["step"] for member in members] == [2 * EPOCH] * 2
    assert Run("runs/group").summary()["seeds"] == [0, 1]
    assert vit_jax.train(resume="group", epochs=3)["metrics"]["test.last.accuracy"]["mean"] == pytest.approx(
        np.mean([member.summary()["test"]["last"]["accuracy"] for member in members])
    )
    assert [member.config().epochs for member in members] == [3, 3]


def test_compare_and_report_show_the_length_and_what_the_command_does_not_repeat(ended, longer):
    found = compare.gather([str(longer.path)])
    assert tables.command_of(found.lines[0]).startswith("python -m vit_jax.train digits --name run-again --")
    assert " --epochs 6" in tables.command_of(found.lines[0])
    said = "it ended at step 15 and was trained on, with the rates of 6 epochs from there, which its command has from "
    assert any(said in each for each in contents.contents_of(found).missing)
    fields = [line["fields"] for line in vit_jax.compare(longer.path, ended.path)["lines"]]
    assert [each["epochs"] for each in fields] == [6, 3]
