"""Five devices: what divides no batch can still be evaluated, and a caller's arrays stay the caller's."""

import contextlib
import io
import json
from pathlib import Path

import pytest

from tests.test_processes import python
from vit_jax.commands import evaluate
from vit_jax.commands import train as command

FIVE = "--xla_force_host_platform_device_count=5"
TINY = "--model.width 8 --model.encoder-depth 1 --model.decoder-depth 1 --model.heads 2 --model.hidden 8 --max-steps 2"

# Commands, one after the other, and then a few training steps; what came of each is printed as JSON.
PROGRAM = """
import contextlib, io, json, sys
from functools import partial
import jax, jax.numpy as jnp, numpy as np
from vit_jax.commands import evaluate
from vit_jax.augmentation.config import ImageAugment
from vit_jax.config.run import OptimConfig, RunConfig
from vit_jax.data.images.config import ImageData
from vit_jax.models.vit_config import ViTConfig
from vit_jax.models.build import definition, start
from vit_jax.training.engine.optim import Optimizer
from vit_jax.training.job import make_engine
from vit_jax.tasks.classify.learn import Classify
from vit_jax.commands import train as command

shown = []
for name, *arguments in json.loads(sys.argv[1]):
    sys.argv = [name, *arguments]
    with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(io.StringIO()) as err:
        code = {"evaluate": evaluate, "train": command}[name].main()
    shown.append([code, out.getvalue(), err.getvalue()])

config = ViTConfig(image=8, channels=1, patch=4, classes=3, width=8, depth=1, heads=2, hidden=8)
kept = {}
for parallel in ("jit", "pmap"):
    run = RunConfig(
        "classify", config, ImageData(), ImageAugment(), OptimConfig(), batch=10, ema=0.9, parallel=parallel
    )
    task = Classify(run.augment, (0.5,), (0.5,))
    engine = make_engine(run, partial(definition, config), task, Optimizer(run.optim, 10, 5, config.parameters()))
    mine = start(config, jax.random.key(0))
    before = jax.tree.map(np.array, mine)
    state = engine.start(mine)
    batch = {"image": np.zeros((10, 8, 8, 1), np.uint8), "label": np.zeros(10, np.int32)}
    for _ in range(2):
        state, metrics = engine.train(state, batch)
    same = jax.tree.map(lambda a, b: not a.is_deleted() and bool((np.asarray(a) == b).all()), mine, before)
    kept[parallel] = [all(jax.tree.leaves(same)), float(metrics["loss"])]
print(json.dumps([jax.device_count(), shown, kept]))
"""


@pytest.fixture(scope="module")
def run(tmp_path_factory, without_pictures) -> Path:
    """The folder of a run that was trained on one device."""
    path = tmp_path_factory.mktemp("devices")
    with contextlib.chdir(path):
        assert command.command(["numbers", *TINY.split(), "--name", "tiny"]) == 0
    return path / "runs" / "tiny"


@pytest.fixture(scope="module")
def five(run):
    """What PROGRAM prints on five devices."""
    commands = [["evaluate", str(run)], ["train", "numbers", *TINY.split(), "--name", "five"]]
    done = python(PROGRAM, json.dumps(commands), cwd=run.parent.parent, XLA_FLAGS=FIVE)
    assert done.returncode == 0, done.stderr[-2000:]
    devices, *found = json.loads(done.stdout)
    assert devices == 5
    return found


@pytest.mark.slow
def test_a_run_is_evaluated_on_five_devices_as_on_one(run, five):
    (evaluated, refused), _ = five
    assert evaluated[0] == 0, evaluated
    with contextlib.redirect_stdout(io.StringIO()) as one:
        assert evaluate.command([str(run)]) == 0
    values = [[float(line.split()[1]) for line in out.splitlines()[1:]] for out in (one.getvalue(), evaluated[1])]
    assert len(values[0]) == 3 and values[0] == pytest.approx(values[1], abs=2e-4)
    # Training still says what does not divide.
    assert refused[0] == 2 and "choose a multiple of 5" in refused[2]


@pytest.mark.slow
def test_training_leaves_the_callers_arrays_alone_on_several_devices(five):
    _, kept = five
    for parallel, (same, loss) in kept.items():
        assert same, parallel
        assert 0 < loss < 2, parallel


@pytest.mark.slow
def test_a_run_that_is_split_among_eight_devices_goes_on_with_four_and_one(door, tmp_path):
    """Its losses are those of one device, and what it saves are whole arrays."""
    flags = ["digits", "--epochs", 3, "--data.validation", 0.2, "--ema", 0.9, "--log-every", 1, "--batch", 32]
    assert door("train", *flags, "--name", "one", "--accumulate", 1).returncode == 0
    rest = [("--fsdp", 4, "--max-steps", 30), ("--fsdp", 2, "--max-steps", 60), ()]
    for count, more in zip((8, 4, 1), rest, strict=True):
        done = door("train", *flags, "--name", "split", "--accumulate", 1, *more, JAX_NUM_CPU_DEVICES=str(count))
        assert done.returncode == 0, done.stderr
        assert (f"jit, fsdp {more[1]}, float32" if more else "jit, float32") in done.stdout
    assert "parallel jit, fsdp 2 -> jit" in done.stdout
    rows = [
        [json.loads(line) for line in (tmp_path / "runs" / name / "metrics.jsonl").read_text().splitlines()]
        for name in ("one", "split")
    ]
    losses = [{(row["kind"], row["step"], row.get("weights")): row["loss"] for row in some} for some in rows]
    assert losses[1] == pytest.approx(losses[0], abs=1e-4)
    three = door("train", *flags, "--name", "three", "--fsdp", 3, JAX_NUM_CPU_DEVICES="8")
    assert three.returncode == 2 and "fsdp is 3, which does not divide the 8 devices here" in three.stderr
    pmap = door("train", *flags, "--name", "pmap", "--fsdp", 2, "--parallel", "pmap")
    assert pmap.returncode == 2 and "fsdp is 2, but parallel is pmap" in pmap.stderr
