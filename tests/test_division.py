"""How a step is divided on a CPU: which devices and parts a run takes, and that they change nothing but its speed."""

import json
from dataclasses import replace

import numpy as np
import pytest

from tests.test_processes import python
from vit_jax.config.trees import unflatten
from vit_jax.machine import backend, division
from vit_jax.machine.division import CACHED, Division, find_division, plan_division
from vit_jax.models.build import definition
from vit_jax.models.state import merge
from vit_jax.presets.table import preset

DIGITS = preset("digits").run
MIXED = replace(DIGITS, augment=replace(DIGITS.augment, mixup=0.8))


@pytest.fixture
def on_cores(monkeypatch):
    """A function that sets the number of cores, of a machine without accelerators whose memory is not known."""
    monkeypatch.setattr(backend, "accelerators", lambda: False)
    monkeypatch.setattr(division, "host_memory", lambda: 0)
    return lambda count: monkeypatch.setattr(backend, "cores", lambda: count)


@pytest.mark.parametrize(
    ("run", "cores", "wanted"),
    [
        (preset("cifar10-48x4").run, 2, Division(2, 16)),  # 8 images a part, as measured to be the fastest
        (preset("cifar10-stem").run, 2, Division(2, 25)),  # 5
        (preset("mnist").run, 2, Division(2, 8)),
        (DIGITS, 2, Division(2, 1)),  # all 16 of a share fit
        (DIGITS, 1, Division(1, 1)),
        (replace(DIGITS, batch=128), 1, Division(1, 4)),  # one core has a cache too
        (DIGITS, 3, Division(1, 1)),  # which does not divide 32
        (replace(DIGITS, accumulate=1), 2, Division(1, 1)),
        (replace(DIGITS, accumulate=4), 2, Division(1, 4)),
        (replace(MIXED, batch=256), 16, Division(16, 1)),
        (replace(MIXED, batch=16 * 17), 16, Division(1, 1)),  # the two images of a pair would be on two devices
        (replace(DIGITS, batch=16), 2, Division(1, 1)),  # too little for two devices
        (replace(DIGITS, batch=64), 16, Division(1, 1)),  # 4 examples for each
        (replace(DIGITS, teacher="a"), 2, Division(1, 1)),  # a network that may be any
        (preset("cifar10-256x6").run, 2, Division(1, 1)),  # whose weights would pass through the cache for each part
        (preset("vit-s16").run, 2, Division(1, 1)),
        (preset("numbers").run, 2, Division(1, 1)),  # whose activations depend on the data
    ],
)
def test_what_a_run_takes_follows_from_its_config_and_the_cores(on_cores, run, cores, wanted):
    on_cores(cores)
    assert plan_division(run) == wanted


@pytest.mark.parametrize(
    ("gibibytes", "more", "parts"),
    [
        (24, {}, 2),
        (16, {"compute_dtype": "bfloat16"}, 4),
        (6, {}, 8),
        (96, {}, 1),
        (6, {"remat": "full"}, 1),
        (6, {"accumulate": 1}, 1),
    ],
)
def test_a_network_that_gains_nothing_from_small_parts_gets_parts_that_fit_into_memory(
    on_cores, monkeypatch, gibibytes, more, parts
):
    """A step of cifar100-256x24 took 13.5 GB as a whole in float32, and in bfloat16 more than the 24 there were."""
    on_cores(2)
    monkeypatch.setattr(division, "host_memory", lambda: gibibytes << 30)
    assert plan_division(replace(preset("cifar100-256x24").run, **more)) == Division(1, parts)


def test_an_accelerator_is_left_as_it_is(monkeypatch):
    monkeypatch.setattr(backend, "accelerators", lambda: True)
    assert plan_division(DIGITS) == Division(1, 1)
    assert plan_division(replace(DIGITS, accumulate=4)) == Division(1, 4)


def test_a_started_jax_is_left_as_it_is(on_cores):
    import jax

    assert jax.device_count() == 1
    on_cores(2)
    backend.configure_jax(2)
    assert jax.device_count() == 1 and not backend.made_devices()
    assert find_division(DIGITS) == Division(1, 1)


def test_each_device_of_a_cpu_holds_the_weights_of_a_run(on_cores):
    on_cores(2)
    ours, whole = (division.run_bytes(run, None, plan_division(run)) for run in (DIGITS, replace(DIGITS, accumulate=1)))
    assert ours == (2 * whole[0], whole[1])


@pytest.mark.parametrize("name", ["digits", "cifar10-stem"])
def test_the_largest_activation_is_that_of_the_forward_pass(name):
    """It is the largest array of an example among all intermediate results of the traced network."""
    import jax

    model = preset(name).run.model
    shapes = {"images": (1, *model.pixels()), **model.shapes()}
    given = {name: jax.ShapeDtypeStruct(shape, np.float32) for name, shape in shapes.items()}
    images = given.pop("images")
    traced = jax.make_jaxpr(lambda tree, images: merge(definition(model), tree)(images))(unflatten(given), images)
    sizes = {v.aval.size for equation in every(traced.jaxpr) for v in equation.outvars if v.aval.shape[:1] == (1,)}
    assert max(sizes) == model.largest() < CACHED / 4


def every(jaxpr):
    """All equations of a jaxpr and of those inside it."""
    import jax.extend

    for equation in jaxpr.eqns:
        yield equation
        for inner in jax.extend.core.jaxprs_in_params(equation.params):
            yield from every(inner)


PROGRAM = """
import json, sys
from dataclasses import replace
from vit_jax import preset, train
from vit_jax.machine import backend
from vit_jax.extras.report import hook
from vit_jax.training import finish
finish.draw = hook.leave_report = lambda *_: ""
backend.cores = lambda: 2
run = replace(preset("digits").run, batch=128, max_steps=6, dir=sys.argv[1])
# 48 wide: compiled for one thread a device (xla_cpu_multi_thread_eigen False), such products took 10 GB to compile.
run = replace(run, model=replace(run.model, width=48))
runs = {"0": run, "1": replace(run, accumulate=1), "odd": replace(run, batch=127)}
for name, each in runs.items():
    train(replace(each, name=name))
"""


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """{name: (environment, losses)} of three runs in one process on two cores."""
    folder = tmp_path_factory.mktemp("division")
    done = python(PROGRAM, folder, JAX_DISABLE_MOST_OPTIMIZATIONS="1")
    assert done.returncode == 0, done.stderr[-2000:]
    assert "2 x cpu" in done.stdout
    found = {}
    for name in ("0", "1", "odd"):
        rows = [json.loads(line) for line in (folder / name / "metrics.jsonl").read_text().splitlines()]
        environment = json.loads((folder / name / "config.json").read_text())["environment"]
        found[name] = environment, [row["loss"] for row in rows if row["kind"] == "train"]
    return found


@pytest.mark.slow
def test_the_devices_and_parts_of_a_run_are_recorded(trained):
    kept = {name: (environment["devices"], environment["accumulate"]) for name, (environment, _) in trained.items()}
    assert kept == {"0": (2, 2), "1": (1, 1), "odd": (1, 1)}


@pytest.mark.slow
def test_the_division_changes_no_more_than_the_last_bits(trained):
    np.testing.assert_allclose(trained["0"][1], trained["1"][1], rtol=1e-5)
