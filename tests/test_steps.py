"""The loop over the steps of a run, on which `train` stands: what it tells, and that it can be left and begun again."""

from pathlib import Path

import jax
import pytest

import vit_jax
from vit_jax import runs
from vit_jax.errors import UserError

pytestmark = pytest.mark.usefixtures("working_folder")
FIELDS = {"width": 16, "depth": 1, "heads": 2, "hidden": 32, "epochs": 2, "batch": 512, "accumulate": 1}
STEPS, EPOCH = 4, 2


def tiny(name, **fields):
    return vit_jax.preset("digits", fields={**FIELDS, "name": name, **fields}).run


def log(folder):
    """What a run's log says of steps and splits, without times."""
    timed = ("images_per_second", "cpu_seconds", "memory")
    return [{name: x for name, x in row.items() if name not in timed} for row in runs.Run(folder).metrics()]


@pytest.fixture(scope="module")
def told(working_folder):
    """The events of a whole run with an average, float64, and whether jax had float64 between them."""
    events, between, before = [], set(), jax.config.jax_enable_x64
    for event in vit_jax.steps(tiny("told", ema=0.5, compute_dtype="float64")):
        if event.step == 1:  # `network` sets it, as `load` does
            between.add(jax.config.jax_enable_x64)
        events.append((event, event.network() if event.kind == "evaluation" else None))
    jax.config.update("jax_enable_x64", before)
    return events, between


def test_it_tells_each_step_each_evaluation_and_the_end(told):
    events, between = told
    names = [(e.kind, e.step, e.split, e.weights) for e, _ in events]
    epochs = [[("step", at, "", "") for at in range(i, i + EPOCH)] for i in range(1, STEPS, EPOCH)]
    of = [[("evaluation", i, "validation", w) for w in ("raw", "ema")] for i in range(EPOCH, STEPS + 1, EPOCH)]
    test = [("evaluation", STEPS, "test", w) for w in ("raw", "ema")]
    assert names == [*epochs[0], *of[0], *epochs[1], *of[1], *test, ("end", STEPS, "", "")]
    assert between == {False}, "settings of the run are not the caller's"
    rows = [row for row in runs.Run("runs/told").metrics() if row["kind"] == "eval"]
    measured = [e for e, _ in events if e.kind == "evaluation"]
    assert all(row[name] == e.metrics[name] for row, e in zip(rows, measured, strict=True) for name in e.metrics)
    end = events[-1][0]
    assert end.summary["status"] == "finished" and end.summary["folder"] == "runs/told" and end.epoch == 2
    with pytest.raises(UserError, match=r"the run has ended; open it with vit_jax\.load"):
        end.network()


def test_the_network_of_an_event_is_that_of_its_time(told):
    events, _ = told
    for event, network in events:
        if event.kind == "evaluation" and event.weights == "raw" and event.split == "validation":
            assert network.step == event.step
            assert vit_jax.evaluate(network, "validation")[1].metrics["loss"] == pytest.approx(event.metrics["loss"])


@pytest.mark.parametrize("how", ["break", "error"])
def test_a_loop_that_is_left_goes_on_as_if_it_had_not_been(how):
    whole = vit_jax.train(tiny("whole"))["folder"]
    folder, kept = Path("elsewhere") / how, []
    try:
        steps = vit_jax.steps(tiny("left"), folder=folder)
        for event in steps:
            if event.step == 3 and how == "error":
                raise ValueError("the caller's own")
            if event.step == 3:
                break
        del event, steps
        assert runs.Run(folder).complete_steps(), "the last step was saved"
    except ValueError as error:
        kept.append(error)  # as a notebook keeps it, and with it the loop
    ended = vit_jax.train(tiny("left"), folder=str(folder))
    assert ended["status"] == "finished" and log(folder) == log(whole)


def test_what_is_wrong_is_told_by_the_loop():
    for call, says in (
        (lambda: vit_jax.steps(vit_jax.preset("digits")), "run is a Preset; give a preset's name"),
        (lambda: vit_jax.steps(tiny("x"), folder=3), "^folder: is 3; give the path of a run's folder"),
        (lambda: vit_jax.steps(tiny("x"), folder=""), "^folder: is ''; give the path"),
    ):
        with pytest.raises(UserError, match=says):
            next(call())
