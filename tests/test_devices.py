"""Five devices: what divides no batch can still be evaluated, and a caller's arrays stay the caller's."""

import json
import os
import subprocess
import sys

import pytest

FIVE = "--xla_force_host_platform_device_count=5"
TINY = (
    "--model.width",
    8,
    "--model.encoder-depth",
    1,
    "--model.decoder-depth",
    1,
    "--model.heads",
    2,
    "--model.hidden",
    8,
    "--max-steps",
    2,
)


def test_a_run_is_evaluated_on_five_devices_as_on_one(door):
    assert door("train", "numbers", *TINY, "--name", "tiny").returncode == 0
    one, five = door("evaluate", "tiny"), door("evaluate", "tiny", XLA_FLAGS=FIVE)
    assert one.returncode == five.returncode == 0, five.stderr
    values = [[float(line.split()[1]) for line in done.stdout.splitlines()[1:]] for done in (one, five)]
    assert len(values[0]) == 3 and values[0] == pytest.approx(values[1], abs=2e-4)
    refused = door("train", "numbers", *TINY, "--name", "five", XLA_FLAGS=FIVE)
    assert (
        refused.returncode == 2 and "choose a multiple of 5" in refused.stderr
    )  # training still says what does not divide


KEPT = """
import json, sys
import jax, jax.numpy as jnp, numpy as np
from vit_jax.config import ImageAugment, ImageData, OptimConfig, RunConfig, ViTConfig, parameters
from vit_jax.models import definition, start
from vit_jax.optim import Optimizer
from vit_jax.step import Engine
from vit_jax.tasks.classify import Classify

config = ViTConfig(image=8, channels=1, patch=4, classes=3, width=8, depth=1, heads=2, hidden=8)
out = {}
for parallel in ("jit", "pmap"):
    run = RunConfig("classify", config, ImageData(), ImageAugment(), OptimConfig(), batch=10, ema=0.9, parallel=parallel)
    engine = Engine(run, definition(config), Classify(run.augment, (0.5,), (0.5,), 0.0), Optimizer(run.optim, 10, 5, parameters(config)))
    mine = start(config, jax.random.key(0))
    before = jax.tree.map(np.array, mine)
    state = engine.start(mine)
    for _ in range(2):
        state, metrics = engine.train(state, {"image": np.zeros((10, 8, 8, 1), np.uint8), "label": np.zeros(10, np.int32)})
    same = jax.tree.map(lambda a, b: not a.is_deleted() and bool((np.asarray(a) == b).all()), mine, before)
    out[parallel] = [all(jax.tree.leaves(same)), float(metrics["loss"])]
print(json.dumps([jax.device_count(), out]))
"""


def test_training_leaves_the_callers_arrays_alone_on_several_devices():
    done = subprocess.run(
        [sys.executable, "-c", KEPT], env={**os.environ, "XLA_FLAGS": FIVE}, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr[-2000:]
    devices, found = json.loads(done.stdout)
    assert devices == 5
    for parallel, (same, loss) in found.items():
        assert same, parallel
        assert 0 < loss < 2, parallel
