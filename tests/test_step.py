"""The training step by hand, its loss by hand, and that devices and accumulation change nothing.

Run as a script (which the tests do, on 8 simulated devices) it trains every variant and writes what came out.
"""

import dataclasses
import functools
import logging
import math
import os
import random
import subprocess
import sys
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.recurrent import Fixed
from vit_jax.augmentation.config import ImageAugment
from vit_jax.config.network import ZEROS, Parameter
from vit_jax.config.run import LossConfig, OptimConfig, RunConfig
from vit_jax.config.trees import flatten, unflatten
from vit_jax.data.images.config import ImageData
from vit_jax.errors import UserError
from vit_jax.extras.plan.program import read_program
from vit_jax.kinds.classes import Classes
from vit_jax.machine.division import check_shares
from vit_jax.models.build import definition
from vit_jax.models.layers import Linear
from vit_jax.models.state import merge, split_model
from vit_jax.models.vit_config import ViTConfig
from vit_jax.tasks.can import Counts, Examines
from vit_jax.tasks.classify.learn import Classify
from vit_jax.tasks.computed import task_of
from vit_jax.training.engine import devices
from vit_jax.training.engine.engine import BINS, histogram
from vit_jax.training.engine.evaluator import Evaluator
from vit_jax.training.engine.optim import Optimizer
from vit_jax.training.engine.parameters import FewKernels
from vit_jax.training.engine.step import example_keys
from vit_jax.training.job import make_engine
from vit_jax.training.loop import Batches, steps_together
from vit_jax.training.stopping import on_host

STEPS = 10
pytestmark = pytest.mark.usefixtures("quick_compilation")


class Compilations(logging.Handler):
    """How often XLA compiled anything while this was open."""

    count = 0

    def emit(self, record):
        self.count += record.getMessage().startswith("Finished XLA compilation")

    def __enter__(self):
        self.logging = jax.log_compiles()
        self.logging.__enter__()
        logging.getLogger("jax").addHandler(self)
        return self

    def __exit__(self, *error):
        logging.getLogger("jax").removeHandler(self)
        self.logging.__exit__(*error)


def to_host(engine, state):
    """A state as a checkpoint holds it."""
    return jax.tree.map(np.asarray, engine.gather(state))


# ------------------------------------------------------------------------ a step that a hand can follow


class Regression:
    """Squared error of a linear map whose input is disturbed by a draw of each example's own."""

    frozen_arrays: ClassVar = {}

    def prepare(self, batch, keys):
        return batch

    def able(self, what):
        return what(self)

    def loss(self, model, batch, keys, denominator):
        noise = jax.vmap(lambda key: jax.random.uniform(key, (3,), batch["x"].dtype))(keys)
        error = model(batch["x"] + noise) - batch["label"]
        return jnp.square(error).sum(-1).mean(), {"noise": noise.mean()}

    def outputs(self, model, batch):
        return {"y": model(batch["x"])}


LINEAR = {"kernel": Parameter((3, 2), "kernel", ZEROS), "bias": Parameter((2,), "bias", ZEROS)}


def regression(freeze=(), few=False, **fields):
    """(engine, parameters, one batch a step) of that task, float64; `few` kernels as on a GPU."""
    optim = OptimConfig(name="momentum", lr=0.1, momentum=0.8, weight_decay=0.05, clip=3.0, freeze=freeze)
    run = RunConfig(
        "classify", ViTConfig(), ImageData(), ImageAugment(), batch=8, ema=0.9, seed=7, optim=optim, **fields
    )
    draw = np.random.default_rng(0)
    graph, tree = split_model(Linear(3, 2))
    tree = jax.tree.map(lambda x: jnp.asarray(draw.normal(size=x.shape)), tree)
    batches = [{"x": draw.normal(size=(8, 3)), "label": draw.normal(size=(8, 2))} for _ in range(STEPS)]
    engine = make_engine(run, lambda lowering: graph, Regression(), Optimizer(run.optim, STEPS, 5, LINEAR))
    engine.kernels = FewKernels(engine.devices) if few else engine.kernels
    return engine, tree, batches


def by_hand(tree, batches, freeze=(), warm_up=False):
    """Ten steps in numpy: clipped momentum, L2 on the kernel, cosine to 0; loss, noise, norms and average of each."""
    p = {name: np.asarray(x) for name, x in tree.items()}
    trace = {name: 0.0 for name in p if name not in freeze}
    ema, rows = {name: p[name] for name in trace}, []
    for t, batch in enumerate(batches):
        of_step = jax.random.fold_in(jax.random.key(7), t)
        noise = np.stack(
            [np.asarray(jax.random.uniform(jax.random.fold_in(of_step, place), (3,), "float64")) for place in range(8)]
        )
        x = batch["x"] + noise
        error = x @ p["kernel"] + p["bias"] - batch["label"]
        gradients = {"kernel": 2 * x.T @ error / 8, "bias": 2 * error.mean(0)}
        gradients = {n: gradients[n] for n in trace}

        def norm(tree):
            return math.sqrt(sum((x**2).sum() for x in tree.values()))

        lr = 0.1 * (1 + math.cos(math.pi * t / STEPS)) / 2
        share = min(1, 3 / (norm(gradients) + 1e-6))
        trace = {n: 0.8 * trace[n] + share * g + 0.05 * p[n] * (n == "kernel") for n, g in gradients.items()}
        p = p | {n: p[n] - lr * trace[n] for n in trace}
        decay = min(0.9, (2 + t) / (11 + t)) if warm_up else 0.9
        ema = {n: decay * ema[n] + (1 - decay) * p[n] for n in trace}
        row = {"loss": (error**2).sum(-1).mean(), "noise": noise.mean(), "lr": lr, "grad_norm": norm(gradients)}
        rows.append(row | {"param_norm": norm(p), "update_norm": lr * norm(trace)})
    return p, ema, trace, rows


VARIANTS = {
    "jit": {},
    "pmap": dict(parallel="pmap"),
    "accumulate, average with warm-up": dict(accumulate=4, ema_warmup=True),
    "pmap, accumulate": dict(parallel="pmap", accumulate=2),
    "kernel frozen": dict(freeze=("ker*",)),
    "bias frozen, pmap, accumulate": dict(freeze=("bias",), parallel="pmap", accumulate=2),
    "few kernels, average with warm-up": dict(few=True, ema_warmup=True),
}


@pytest.mark.parametrize("variant", VARIANTS)
def test_ten_steps_are_what_a_hand_computes_and_are_compiled_once(variant):
    """Also with the state taken to the host and back in the middle, as a resumed run does."""
    compiled = []
    with jax.enable_x64(True):
        engine, tree, batches = regression(**VARIANTS[variant])
        frozen = [name for name in tree if name[:3] in str(VARIANTS[variant].get("freeze"))]
        p, ema, trace, rows = by_hand(tree, batches, frozen, engine.ema_warmup)
        state = engine.start(tree)
        for t, (batch, row) in enumerate(zip(batches, rows, strict=True)):
            if t == 5:
                state = engine.put(engine.restored(to_host(engine, state)))
            with Compilations() as compilations:
                state, metrics = engine.train(state, batch)
            compiled.append(compilations.count > 0)
            assert {name: float(x) for name, x in metrics.items()} == pytest.approx(row, rel=1e-12), t
        state = to_host(engine, state)
    assert state.step == STEPS
    for got, expected in ((state.parameters, p), (state.ema, ema), (state.moments["trace"], trace)):
        assert got.keys() == expected.keys()
        for name, x in expected.items():
            np.testing.assert_allclose(got[name], x, rtol=0, atol=1e-12)
    assert compiled == [True, *[False] * (STEPS - 1)]
    if "pmap" not in variant:
        assert engine.compiled._cache_size() == 1


class CountsPositive(Counts):
    """Examples count whose first label is positive."""

    def denominator(self, batch):
        return (batch["label"][:, 0] > 0).sum()


class Counted(Regression):
    """As `Regression`, of the examples that count."""

    def able(self, what):
        return CountsPositive(self) if what is Counts else what(self)

    def loss(self, model, batch, keys, denominator):
        counts = batch["label"][:, 0] > 0
        noise = jax.vmap(lambda key: jax.random.uniform(key, (), batch["x"].dtype))(keys)
        errors = jnp.square(model(batch["x"]) - batch["label"]).sum(-1)
        return jnp.where(counts, errors, 0).sum() / denominator, {"noise": (noise * counts).sum() / denominator}


@pytest.mark.parametrize("parts", [1, 2])
def test_a_batch_in_parts_and_on_devices_is_divided_by_what_counts_in_all_of_it(parts):
    """Four devices are four lanes of a vmap; each has two examples with draws of their own, in one part or in two."""
    with jax.enable_x64(True):
        (engine, tree, (batch, *_)), (whole, *_) = regression(parallel="pmap"), regression()
        engine.task = whole.task = Counted()
        engine.parts, state = parts, whole.start(tree)
        cut = jax.tree.map(lambda x: jnp.asarray(x).reshape(4, 2, *x.shape[1:]), batch)
        step = jax.vmap(engine.pmap_step, in_axes=(None, 0, None, None), axis_name="data")
        found, expected = step(state, cut, 7, {}), whole.jit_step(state, batch, 7, {})
    for got, wanted in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(got, np.broadcast_to(wanted, got.shape), rtol=1e-12)


@pytest.mark.parametrize("name", ["steps", "votes", "lr"])
def test_a_metric_has_no_name_that_a_row_of_the_log_has_already(name):
    class Named(Regression):
        def loss(self, *given):
            loss, metrics = super().loss(*given)
            return loss, {name: metrics["noise"]}

    with jax.enable_x64(True):
        engine, tree, (batch, *_) = regression()
        engine.task = Named()
        with pytest.raises(ValueError, match=f"a task's metric is called {name}"):
            engine.jit_step(engine.start(tree), batch, 7, {})


def test_with_a_frozen_trunk_nothing_is_differentiated_through_it():
    """The matrix products of the forward pass, and one more: the head's gradient from the features below it."""
    config = ViTConfig(image=8, channels=1, patch=4, classes=3, width=8, depth=2, heads=2, hidden=12)
    optim = OptimConfig(freeze=("patch.*", "cls_token", "position", "blocks.*", "norm.*"))
    run, table = RunConfig("classify", config, ImageData(), ImageAugment(), optim=optim), config.parameters()
    task = task_of(run, {"preprocess": {"mean": [0.3], "std": [0.7]}})
    batch = {"image": np.zeros((4, 8, 8, 1), np.uint8), "label": np.zeros(4, np.int32)}
    tree, keys = unflatten({n: jnp.ones(p.shape) for n, p in table.items()}), example_keys(0, 0, jnp.arange(4))

    def products(optim):
        engine = make_engine(run, functools.partial(definition, config), task, Optimizer(optim, 1, 1, table))
        traced = jax.jit(lambda *each: engine.gradients(task, *each, None)).trace(tree, batch, keys)
        return str(traced.jaxpr).count("dot_general")

    forward = jax.jit(lambda tree: task.outputs(merge(definition(config), tree), batch)).trace(tree)
    assert products(optim) == str(forward.jaxpr).count("dot_general") + 1
    assert products(OptimConfig()) > 2 * products(optim)


@pytest.mark.parametrize("parallel", ["jit", "pmap"])
def test_a_step_uses_its_state_up_but_not_the_callers_arrays(parallel):
    with jax.enable_x64(True):
        engine, tree, batches = regression(parallel=parallel)
        before = engine.start(tree)
        copies, values = on_host(before), [np.array(x) for x in jax.tree.leaves(before)]
        after, _ = engine.train(before, batches[0])
        assert all(x.is_deleted() for x in jax.tree.leaves(before))
        assert not any(x.is_deleted() for x in (*jax.tree.leaves(after), *tree.values()))
        for copy, value in zip(jax.tree.leaves(copies), values, strict=True):
            assert type(copy) is np.ndarray
            np.testing.assert_array_equal(copy, value, err_msg="what is being saved is no view of the device's memory")


FIVE = {"x": np.random.default_rng(1).normal(size=(5, 3)), "label": np.zeros((5, 2))}


def five_outputs():
    """Of five examples, which eight devices cannot share evenly."""
    with jax.enable_x64(True):
        engine, tree, _ = regression()
        evaluator = Evaluator(ViTConfig(), engine.definition, engine.task)  # the config says that no argument is ids
        return evaluator.outputs(evaluator.to_devices(tree), FIVE)["y"]


def test_the_outputs_of_a_batch_are_in_its_order():
    with jax.enable_x64(True):
        _, tree, _ = regression()
        np.testing.assert_allclose(
            five_outputs(), FIVE["x"] @ np.asarray(tree["kernel"]) + np.asarray(tree["bias"]), rtol=0, atol=1e-14
        )


# -------------------------------------------------------------------------------------- the loss by hand


LOGITS = np.random.default_rng(0).normal(0, 2, (4, 3))
BATCH = {"image": np.zeros((4, 2, 2, 1), np.uint8), "label": np.array([0, 2, 1, 2], np.int32)}
LOG_P = LOGITS - np.log(np.exp(LOGITS).sum(-1, keepdims=True))


@pytest.mark.parametrize("e", [0.0, 0.2])
@pytest.mark.parametrize("mixed", [False, True])
@pytest.mark.parametrize("name", ["cross_entropy", "binary"])
def test_each_loss_takes_labels_and_targets_and_smooths_both(name, mixed, e):
    """binary: -(t log s + (1-t) log(1-s)), s the sigmoid of a logit, a mean over images and classes."""
    target = np.random.default_rng(0).dirichlet(np.ones(3), 4) if mixed else np.eye(3)[BATCH["label"]]
    batch, smooth = {**BATCH, **({"target": target} if mixed else {})}, (1 - e) * target + e / 3
    s = 1 / (1 + np.exp(-LOGITS))
    losses = {
        "cross_entropy": -(smooth * LOG_P).sum(-1),
        "binary": -(smooth * np.log(s) + (1 - smooth) * np.log(1 - s)).mean(-1),
    }
    with jax.enable_x64(True):
        task = Classify(ImageAugment(), (0.0,), (1.0,), Classes(settings=LossConfig(name=name, label_smoothing=e)))
        loss, metrics = task.loss(Fixed(LOGITS), batch, jax.random.split(jax.random.key(0), 4))
    assert float(loss) == pytest.approx(losses[name].mean(), rel=1e-12)
    assert float(metrics["accuracy"]) == (LOGITS.argmax(-1) == target.argmax(-1)).mean()


def test_with_mirror_images_the_logits_of_both_are_averaged_and_the_plain_figures_stay():
    class Pixels:
        """Logits that are the first row of an image."""

        dtype = jnp.float32

        def __call__(self, images):
            return images[:, 0, :, 0] ** 2

    images = np.random.default_rng(0).integers(0, 256, (4, 2, 3, 1)).astype(np.uint8)
    batch, task = (
        {**BATCH, "image": images},
        Classify(ImageAugment(), (0.3,), (0.5,), Classes(settings=LossConfig(label_smoothing=0.1))),
    )
    plain, both = task.outputs(Pixels(), batch), task.able(Examines).mirrored().outputs(Pixels(), batch)
    x = ((images[:, 0, :, 0] / 255 - 0.3) / 0.5) ** 2
    mean = (x + x[:, ::-1]) / 2
    losses = np.log(np.exp(mean).sum(-1)) - mean[np.arange(4), BATCH["label"]]
    np.testing.assert_allclose(both["flip_loss"], losses, rtol=1e-5)
    np.testing.assert_array_equal(both["flip_predicted"], mean.argmax(-1))
    assert both.keys() == plain.keys() | {f"flip_{name}" for name in plain}
    for name, values in plain.items():
        np.testing.assert_array_equal(both[name], values)


def test_evaluation_gives_each_example_its_loss_class_and_confidence():
    with jax.enable_x64(True):
        out = Classify(ImageAugment(), (0.0,), (1.0,)).outputs(Fixed(LOGITS), BATCH)
    np.testing.assert_allclose(out["loss"], -LOG_P[np.arange(4), BATCH["label"]], rtol=1e-14)  # not smoothed
    np.testing.assert_array_equal(out["predicted"], LOGITS.argmax(-1))
    np.testing.assert_allclose(out["confidence"], np.exp(LOG_P).max(-1), rtol=1e-14)


def test_training_sees_augmented_images_and_evaluation_does_not():
    """Both see them normalised."""
    seen = []

    class Watch(Fixed):
        def __call__(self, images, *, keys=None):
            seen.append((np.asarray(images), keys is not None))
            return super().__call__(images)

    images = np.random.default_rng(1).integers(1, 255, (4, 6, 6, 1)).astype(np.uint8)
    batch = {**BATCH, "image": images}
    run = RunConfig("classify", ViTConfig(), ImageData(), ImageAugment(crop_padding=2))
    classify = task_of(run, {"preprocess": {"mean": [0.5], "std": [0.25]}})
    keys = jax.random.split(jax.random.key(0), 4)
    with jax.enable_x64(True):
        classify.loss(Watch(LOGITS), classify.prepare(batch, keys), keys)
        classify.outputs(Watch(LOGITS), batch)
    (training, with_keys), (evaluation, with_none) = seen
    assert with_keys and not with_none
    np.testing.assert_allclose(evaluation, (images / 255 - 0.5) / 0.25, atol=1e-14)
    assert training.shape == evaluation.shape and (training != evaluation).any((1, 2, 3)).sum() >= 3
    assert set(training.ravel().round(9)) <= {*evaluation.ravel().round(9), -2.0}  # -2: the black around them


# -------------------------------------------------------------------------- devices, pmap, accumulation

# Everything that draws is on: each site of dropout, drop path, patch dropout, and each kind of augmentation.
NOISY = RunConfig(
    task="classify",
    model=ViTConfig(
        image=8,
        channels=1,
        patch=4,
        classes=3,
        width=8,
        depth=2,
        heads=2,
        hidden=12,
        pool="mean",
        drop_path=0.3,
        patch_dropout=0.25,
        embedding_dropout=0.1,
        attention_dropout=0.1,
        dropout=0.1,
        activation_dropout=0.1,
        head_dropout=0.1,
    ),
    data=ImageData(),
    augment=ImageAugment(crop_padding=2, flip=True, policy="randaugment", layers=1, erase=0.3, mixup=0.8, cutmix=1.0),
    optim=OptimConfig(name="adamw", lr=1e-3, weight_decay=0.05, clip=1.0, schedule="one_cycle", cycle_momentum=True),
    loss=LossConfig(label_smoothing=0.1),
    batch=16,
    ema=0.9,
    seed=6,
)
SMALLEST = ViTConfig(image=8, channels=1, patch=4, classes=3, width=8, depth=1, heads=2, hidden=512)
MUON = dataclasses.replace(NOISY.optim, name="muon")
CUTS = {
    "whole": {},
    "accumulate": dict(accumulate=2),
    "pmap": dict(parallel="pmap"),
    "pmap, accumulate": dict(parallel="pmap", accumulate=2),
    "Muon, pmap, accumulate": dict(optim=MUON, parallel="pmap", accumulate=2),
    "split": dict(fsdp=8),
    "scan, remat": dict(scan=True, remat="full"),
    "pmap, scan": dict(parallel="pmap", scan=True),
    "split in two groups, accumulate": dict(fsdp=4, accumulate=2),
    "split in two groups, accumulate, scan, remat": dict(fsdp=4, accumulate=2, scan=True, remat="dots"),
    "split in two groups, accumulate, scan, remat, few kernels": dict(fsdp=4, accumulate=2, scan=True, remat="dots"),
    "split, Muon": dict(fsdp=8, optim=MUON),
    "five steps a call": dict(steps_per_dispatch=5),
    "accumulate, five steps a call": dict(accumulate=2, steps_per_dispatch=5),
    "split in two groups, accumulate, five steps a call": dict(fsdp=4, accumulate=2, steps_per_dispatch=5),
}


def network(run, dtype):
    """(engine, parameters): all random, biases too, so that a decay on a wrong leaf shows."""
    draw = np.random.default_rng(0)
    start = {
        name: draw.normal(name.endswith("scale"), 0.3, shape).astype(dtype)
        for name, shape in run.model.shapes().items()
    }
    its = task_of(run, {"preprocess": {"mean": [0.4], "std": [0.3]}})
    define = functools.partial(definition, run.model, dtype, dtype)
    engine = make_engine(run, define, its, Optimizer(run.optim, STEPS, 5, run.model.parameters()))
    check_shares({f"batch {run.batch}": run.batch}, len(engine.devices), engine.parts)  # as training/job.py does
    return engine, unflatten({name: jnp.asarray(x) for name, x in start.items()})


def examples(count, seed):
    draw = np.random.default_rng(seed)
    return {
        "image": draw.integers(0, 256, (count, 8, 8, 1)).astype(np.uint8),
        "label": draw.integers(0, 3, count).astype(np.int32),
    }


def trained(run, dtype, few=False):
    """{name: array} of ten steps (losses, parameters, their average), and the steps that compiled anything."""
    with jax.enable_x64(dtype == "float64"):
        engine, tree = network(run, dtype)
        engine.kernels = FewKernels(engine.devices) if few else engine.kernels
        state, rows, compiled = engine.start(tree), [], []
        for t in range(0, STEPS, run.steps_per_dispatch):
            if t == 5:
                state = engine.put(engine.restored(to_host(engine, state)))
            batches = [examples(run.batch, t + i) for i in range(run.steps_per_dispatch)]
            with Compilations() as compilations:
                if run.steps_per_dispatch == 1:
                    state, metrics = engine.train(state, batches[0])
                else:
                    state, metrics = engine.train_together(state, batches)
            compiled += [t] * (compilations.count > 0)
            rows += [np.atleast_1d(np.stack([metrics[name] for name in sorted(metrics)], -1)).reshape(-1, len(metrics))]
        host = to_host(engine, state)
    rows = np.concatenate(rows)
    result = {"losses": rows[:, sorted(metrics).index("loss")], "metrics": rows, "compiled": np.array(compiled)}
    if run.fsdp > 1:
        trees = (state.parameters, state.ema, *state.moments.values())
        kernels = [x for tree in trees for name, x in flatten(tree).items() if name == "blocks.1.mlp.fc1.kernel"]
        result["held"] = np.array([x.addressable_shards[0].data.size / x.size for x in kernels])
    result |= {f"parameters/{name}": x for name, x in flatten(host.parameters).items()}
    return result | {f"ema/{name}": x for name, x in flatten(host.ema).items()}


def compare(got, expected, dtype):
    assert got.keys() == expected.keys()
    assert list(got["compiled"]) == list(expected["compiled"]) == [0]
    assert got["losses"].dtype == dtype and got["losses"].shape == (STEPS,)
    if dtype == "float32":
        np.testing.assert_allclose(got["losses"], expected["losses"], rtol=0, atol=1e-5)
        return
    for name, x in expected.items():
        # The gradient of a key bias is zero: Adam makes steps of its rounding, which the function does not see.
        limit = 1e-7 if name.endswith("attention.key.bias") else 1e-10
        assert got[name].dtype == x.dtype
        np.testing.assert_allclose(got[name], x, rtol=0, atol=limit, err_msg=name)


def same_bits(got, expected):
    assert {name: x.tobytes() for name, x in got.items()} == {name: x.tobytes() for name, x in expected.items()}


@functools.cache
def one_device(dtype, optim=NOISY.optim):
    """What training gives here, on one device and in one piece."""
    assert jax.device_count() == 1
    return trained(dataclasses.replace(NOISY, optim=optim), dtype)


def test_training_moves_and_draws():
    """What the tests below compare is not trivially equal: parameters move, and other draws give other losses."""
    result = one_device("float64")
    with jax.enable_x64(True):
        _, tree = network(NOISY, "float64")
    for name, x in flatten(tree).items():
        # Ten steps of about 1e-3 at most.
        moved = np.abs(result[f"parameters/{name}"] - np.asarray(x)).max()
        assert 1e-3 < moved < 2e-2 or name.endswith("attention.key.bias"), (name, moved)
    assert result["losses"].std() > 1e-2


@pytest.mark.parametrize("parts", [8, pytest.param(2, marks=pytest.mark.slow)])
def test_accumulation_changes_nothing(parts):
    """(Two parts are taken on eight devices below.)"""
    got = trained(dataclasses.replace(NOISY, accumulate=parts), "float64")
    compare(got, one_device("float64"), "float64")


def test_steps_sent_together_are_those_sent_one_by_one():
    """Parameters, averages, and all metrics of each step; compiled once. Up to rounding: to the bit only optimised
    programs are the same, see below; since jax 0.12 those that are compiled quickly may not be.
    """
    compare(trained(dataclasses.replace(NOISY, steps_per_dispatch=5), "float64"), one_device("float64"), "float64")


@pytest.mark.slow
@pytest.mark.parametrize("parts", [1, 2])
def test_steps_sent_together_are_to_the_bit_the_same_when_fully_optimised(parts):
    run = dataclasses.replace(NOISY, accumulate=parts)
    jax.config.update("jax_disable_most_optimizations", False)
    same_bits(trained(dataclasses.replace(run, steps_per_dispatch=5), "float32"), trained(run, "float32"))
    jax.config.update("jax_disable_most_optimizations", True)


def test_how_many_steps_go_together_by_trying_all():
    """The full number wherever none of its steps but the last is one after which something happens, else 1."""
    draw = random.Random(0)
    for _ in range(300):
        most, log_every, epoch = (draw.randint(1, 12) for _ in range(3))
        stop, first = draw.randint(1, 60), draw.randint(1, 60)
        profile = range(first, first + draw.randint(1, 9)) if draw.random() < 0.5 else range(0)
        stages = [0, *draw.sample(range(1, 61), draw.randint(0, 2))]

        # After these steps something happens: a row, an evaluation, a histogram, the end, or a trace or stage begins or
        # ends.
        every = [log_every, epoch, *([draw.randint(1, 12)] if draw.random() < 0.5 else [])]
        pauses = {t for t in range(1, stop + 1) if t == stop or not all(t % each for each in every)}
        pauses |= {t for t in range(1, stop + 1) if (t in profile) != (t + 1 in profile) or t in stages}
        full, step, counts = min(most, *every), 0, []
        while step < stop:
            count = steps_together(step, most, every, stop, profile, stages)
            possible = step + full <= stop and not pauses & {*range(step + 1, step + full)}
            assert count == (full if possible else 1)
            step += count
            counts.append(count)
        assert step == stop and {*counts} <= {1, full}


def test_batches_of_other_shapes_do_not_go_together():
    sizes = [3, 3, 5, 5, 5, 5, 4]
    batches = Batches(iter([{"x": np.full(size, i)} for i, size in enumerate(sizes)]))
    taken = [batches.take(count) for count in (1, 2, 1, 3, 1)]
    assert [len(each) for each in taken] == [1, 1, 1, 3, 1]
    assert [int(batch["x"][0]) for each in taken for batch in each] == list(range(7)), "in their order, each once"


# Little to compile: of what is drawn only dropout, which the keys of the examples decide.
CALM = dataclasses.replace(NOISY, model=dataclasses.replace(SMALLEST, dropout=0.2), augment=ImageAugment(), ema=0.0)
CALM_CUTS = ("pmap", "split in two groups, accumulate")


def histograms(cut):
    """(engine, state, what its histograms find) before the first step, in float64."""
    with jax.enable_x64(True):
        engine, tree = network(dataclasses.replace(CALM, **CUTS[cut]), "float64")
        state = engine.start(tree)
        return engine, state, engine.histograms(state, examples(CALM.batch, 0))


def bins(found):
    """{name: counts of the gradient}; that of a key bias is zero but for rounding."""
    return {k: h["counts"] for k, h in found["gradients"].items() if not k.endswith("attention.key.bias")}


def test_histograms_are_of_the_parameters_and_of_the_gradients_of_the_step():
    """The former as numpy counts them; the latter have the norm that the step itself reports."""
    engine, state, found = histograms("whole")
    before = {name: np.asarray(x) for name, x in flatten(to_host(engine, state).parameters).items()}
    assert found["parameters"].keys() == found["gradients"].keys() == before.keys()
    for name, x in before.items():
        h = found["parameters"][name]
        np.testing.assert_array_equal(h["counts"], np.histogram(x, BINS)[0])
        np.testing.assert_allclose([h["min"], h["max"], h["mean"]], [x.min(), x.max(), x.mean()], rtol=1e-12)
        assert h["std"] == pytest.approx(x.std())
    squares = [before[name].size * (h["std"] ** 2 + h["mean"] ** 2) for name, h in found["gradients"].items()]
    with jax.enable_x64(True):
        _, metrics = engine.train(state, examples(CALM.batch, 0))
    assert sum(squares) ** 0.5 == pytest.approx(float(metrics["grad_norm"]))
    same = histogram(jnp.full((2, 3), 0.5))
    assert list(same["counts"]) == [0] * (BINS - 1) + [6] and same["min"] == same["max"] == 0.5


def exchanged(rows):
    """The bytes of all arrays that devices exchange in a step of split parameters and so many examples."""
    run = dataclasses.replace(CALM, batch=rows, fsdp=8, scan=True, remat="dots")
    engine, _ = network(run, "float32")
    batch = jax.eval_shape(lambda: examples(rows, 0))
    program = read_program(engine.devices.target.compile(engine.trace(batch)))
    return sum(size for _, size in program.exchanges().values())


def on_eight_devices(folder, variants, **env):
    out = folder / "out.npz"
    command = [sys.executable, __file__, str(out), *variants]
    done = subprocess.run(
        command, env={**os.environ, "JAX_NUM_CPU_DEVICES": "8", **env}, capture_output=True, text=True, timeout=1200
    )
    assert done.returncode == 0, done.stderr
    with np.load(out) as file:
        results = {}
        for name in file.files:
            variant, _, key = name.partition("|")
            results.setdefault(variant, {})[key] = file[name]
    return results


def check_eight_devices(results):
    for variant, got in results.items():
        if variant != "facts":
            dtype, _, cut = variant.partition(":")
            if "fsdp" in CUTS[cut]:  # of a kernel, its average and its moments
                held = got.pop("held")
                assert len(held) == (3 if "Muon" in cut else 4) and set(held) == {1 / CUTS[cut]["fsdp"]}
            compare(got, one_device(dtype, MUON if "Muon" in variant else NOISY.optim), dtype)
            if alone := results.get(variant.removesuffix(", five steps a call").replace("five steps a call", "whole")):
                same_bits(got, alone)
    assert results["facts"]["devices"] == 8
    few, many = results["facts"]["exchanged"]
    assert few == many  # parameters and their gradients, but no activations
    expected = bins(histograms("whole")[-1])
    for cut in CALM_CUTS:
        for name, counts in expected.items():
            np.testing.assert_array_equal(results["facts"][f"{cut} {name}"], counts, err_msg=f"{cut} {name}")
    np.testing.assert_allclose(results["facts"]["outputs"], five_outputs(), rtol=0, atol=1e-14)
    assert (
        str(results["facts"]["refusal"])
        == "batch 24 is not divisible by 8 devices x accumulate 2: choose a multiple of 16"
    )
    assert (
        str(results["facts"]["undivided"])
        == "fsdp is 3, which does not divide the 8 devices here: give one of 1, 2, 4, 8"
    )


@pytest.mark.slow
def test_eight_devices_train_as_one_in_every_way_and_fully_optimised(tmp_path):
    """Also in float32, where losses agree to 1e-5."""
    variants = [f"{dtype}:{cut}" for dtype in ("float64", "float32") for cut in CUTS]
    check_eight_devices(on_eight_devices(tmp_path, variants))


@pytest.mark.parametrize("x64", [False, True])
def test_a_bfloat16_step_keeps_its_state_in_float32(x64):
    """The types alone, so nothing is compiled: what comes out can go in again, and the loss is float32."""
    with jax.enable_x64(x64):
        engine, tree = network(NOISY, "float32")
        engine.definition = definition(NOISY.model, "bfloat16", "float32", engine.lowering)
        state = engine.start(tree)
        after, metrics = jax.eval_shape(engine.jit_step, state, examples(16, 0), engine.seed, engine.frozen_arrays)
    assert jax.tree.map(lambda x: (x.shape, x.dtype), after) == jax.tree.map(lambda x: (x.shape, x.dtype), state)
    assert metrics["loss"].dtype == metrics["grad_norm"].dtype == np.float32


def main(out, variants):
    devices.SMALL = 32
    arrays = {}
    for variant in variants:
        dtype, _, cut = variant.partition(":")
        found = trained(dataclasses.replace(NOISY, **CUTS[cut]), dtype, "few kernels" in cut)
        arrays |= {f"{variant}|{name}": x for name, x in found.items()}
    try:
        network(dataclasses.replace(NOISY, batch=24, accumulate=2), "float32")
    except UserError as error:
        arrays["facts|refusal"] = np.array(str(error))
    try:
        network(dataclasses.replace(NOISY, fsdp=3), "float32")
    except UserError as error:
        arrays["facts|undivided"] = np.array(str(error))
    for cut in CALM_CUTS:
        arrays |= {f"facts|{cut} {name}": x for name, x in bins(histograms(cut)[-1]).items()}
    arrays["facts|exchanged"] = np.array([exchanged(rows) for rows in (64, 256)])
    arrays |= {"facts|devices": np.array(jax.device_count()), "facts|outputs": five_outputs()}
    np.savez(out, **arrays)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
