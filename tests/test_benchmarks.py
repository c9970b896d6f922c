"""The benchmark compares like with like: flax's own layers compute our function, and a step gives the same weights."""

import sys
from dataclasses import replace
from pathlib import Path

import jax
import numpy as np
import pytest
from flax import nnx

sys.path.insert(0, str(Path(__file__).parents[1]))  # benchmarks/ is not installed

from benchmarks import plain, step
from vit_jax import runs
from vit_jax.config import ImageAugment, ImageData, RunConfig, ViTConfig, parameters
from vit_jax.layers import merge
from vit_jax.models import definition, start
from vit_jax.optim import Optimizer
from vit_jax.step import Engine
from vit_jax.tasks.classify import Classify

# All that the compared nets have between them: a ReLU after the patches, a hidden layer in the head.
SMALL = ViTConfig(
    image=8,
    patch=4,
    classes=3,
    width=16,
    depth=1,
    heads=2,
    hidden=32,
    eps=1e-5,
    activation="gelu_tanh",
    stem_activation="relu",
    head_hidden=24,
    head_activation="relu",
    init_std=0.3,
)
RUN = RunConfig("classify", SMALL, ImageData(), ImageAugment())


def test_the_twin_is_the_same_network_and_takes_the_same_steps():
    run = step.deterministic(RUN, 4)
    batch, weights = step.data(SMALL, run.batch), start(SMALL, jax.random.key(1))
    classify, network = Classify(run.augment, step.MEAN, step.STD, run.loss.label_smoothing), definition(SMALL)
    twin = plain.PlainViT(SMALL, nnx.Rngs(0))
    plain.load(twin, runs.flatten(weights), SMALL)

    @jax.jit
    def both(images):
        images = classify.images({"image": images}, np.float32)
        return twin(images), merge(network, weights)(images)

    np.testing.assert_allclose(*both(batch["image"]), atol=1e-5)

    engine = Engine(run, network, classify, Optimizer(run.optim, 100, 10, parameters(SMALL)))
    trainer = plain.Trainer(twin, run.optim, step.MEAN, step.STD)
    state = engine.start(weights)
    for _ in range(2):
        state, metrics = engine.train(state, batch)
        np.testing.assert_allclose(metrics["loss"], trainer.step(batch["image"], batch["label"]), atol=1e-5)
    ours = plain.weights(runs.flatten(state.parameters), SMALL)
    theirs = {".".join(map(str, path)): x[...] for path, x in nnx.to_flat_state(trainer.parameters)}
    assert ours.keys() == theirs.keys()
    for name, x in ours.items():
        if not name.endswith("key.bias"):  # its gradient vanishes, and Adam makes a step of the rounding
            np.testing.assert_allclose(theirs[name], x, atol=1e-6, err_msg=name)


def test_every_compared_net_has_a_twin():
    for run in step.configs().values():
        plain._check(run.model)
    with pytest.raises(ValueError, match="no counterpart"):
        plain._check(replace(SMALL, norm_first=False))


def test_the_pytorch_side_starts_from_the_same_loss_and_goes_the_same_way():
    pytest.importorskip("torch", reason="PyTorch is not installed")
    run = step.deterministic(RUN, 4)
    works = step.build("small", run, ["torch"], nnx_jit=False)  # ends where the first losses differ
    losses = [{side: float(work()) for side, work in works.items()} for _ in range(3)]
    np.testing.assert_allclose([x["torch"] for x in losses], [x["ours"] for x in losses], atol=1e-4)
    assert losses[-1]["ours"] < losses[0]["ours"]
