"""Scan, remat and where the fused kernel is: only rounding changes, and a run may choose others on its way."""

import functools
import itertools
from dataclasses import replace
from functools import partial

import jax
import numpy as np
import pytest

from tests.test_lowering import METADATA, WORDS
from tests.test_step import NOISY, examples
from vit_jax.augmentation.config import ImageAugment
from vit_jax.config.run import OptimConfig, RunConfig
from vit_jax.config.trees import flatten, unflatten
from vit_jax.data.captions.config import CaptionData
from vit_jax.data.texts.config import SentenceData
from vit_jax.machine.targets import read_target
from vit_jax.models import vit
from vit_jax.models.attention import Attention
from vit_jax.models.build import definition
from vit_jax.models.captioner_config import CaptionerConfig
from vit_jax.models.layers import Mlp
from vit_jax.models.lowering import Lowering, of_training
from vit_jax.models.transformer_config import TransformerConfig
from vit_jax.models.vit_config import ViTConfig
from vit_jax.tasks.computed import task_of
from vit_jax.training.engine import step
from vit_jax.training.engine.engine import Engine
from vit_jax.training.engine.optim import Optimizer

pytestmark = pytest.mark.usefixtures("quick_compilation")
STEPS, BATCH = 3, 8
H100 = read_target("h100")
# Their updates are linear in the gradient, so that what has none, as a bias of keys, does not move by rounding.
MOMENTUM = OptimConfig(name="momentum", lr=0.1, momentum=0.8, weight_decay=0.05, clip=1.0)
SGD = OptimConfig(name="sgd")
TEXT = dict(
    width=8, heads=2, hidden=12, outputs=len(WORDS), target_vocabulary=len(WORDS), embedding_std=0.5, dropout=0.1
)
# Draws inside blocks: those outside are computed as ever.
VIT = replace(NOISY.model, layer_scale=0.3, patch_dropout=0.0, embedding_dropout=0.0, head_dropout=0.0)
IMAGES = replace(NOISY, model=VIT, augment=ImageAugment(), batch=BATCH, optim=MOMENTUM)
SENTENCES = RunConfig(
    "translate",
    TransformerConfig(source_vocabulary=len(WORDS), encoder_depth=2, decoder_depth=2, **TEXT),
    SentenceData(),
    optim=MOMENTUM,
    batch=BATCH,
    ema=0.9,
)
CAPTIONS = RunConfig(
    "caption",
    CaptionerConfig(replace(VIT, classes=0), TransformerConfig(encoder_depth=0, decoder_depth=2, **TEXT)),
    CaptionData(),
    ImageAugment(),
    optim=MOMENTUM,
    batch=BATCH,
)
RUNS = {"ViT": IMAGES, "Transformer": SENTENCES, "captioner": CAPTIONS}
CHOICES = {
    "scan": dict(scan=True),
    "remat": dict(remat="full"),
    "remat of all but products": dict(remat="dots"),
    "scan and remat": dict(scan=True, remat="full"),
    "scan, and remat of all but products": dict(scan=True, remat="dots"),
}


def engine_of(run, dtype="float64"):
    """(engine, parameters): all random, biases too."""
    draw = np.random.default_rng(0)
    tree = {n: draw.normal(n.endswith("scale"), 0.3, shape).astype(dtype) for n, shape in run.model.shapes().items()}
    define, optimizer = (
        partial(definition, run.model, dtype, dtype),
        Optimizer(run.optim, STEPS, 2, run.model.parameters()),
    )
    return Engine(run, define, task_of(run, METADATA), optimizer), unflatten(tree)


def batch_of(run, seed):
    """A batch of a run; of its sentences one is padding alone."""
    draw = np.random.default_rng(seed)
    sentences = {
        name: draw.integers(4, 6, (run.batch, n)).astype(np.int32) for name, n in (("source", 5), ("target", 4))
    }
    for ids in sentences.values():
        ids[draw.random(len(ids)) < 0.5, 3:] = 0
        ids[2] = 0
    every = examples(run.batch, seed) | sentences
    needed = {"classify": ("image", "label"), "translate": ("source", "target"), "caption": ("image", "target")}
    return {name: every[name] for name in needed[run.task]}


def trained(run):
    """{name: array} of some steps: losses, parameters, moments and averages."""
    with jax.enable_x64(True):
        engine, tree = engine_of(run)
        state, losses = engine.start(tree), []
        for t in range(STEPS):
            state, metrics = engine.train(state, batch_of(run, t))
            losses.append(np.asarray(metrics["loss"]))
        return {"losses": np.stack(losses)} | {
            f"{part}/{name}": np.asarray(x)
            for part in ("parameters", "moments", "ema")
            for name, x in flatten(getattr(state, part) or {}).items()
        }


@functools.cache
def plain(name):
    return trained(RUNS[name])


FEW = [("ViT", "scan and remat")]
REST = [each for each in itertools.product(RUNS, CHOICES) if each not in FEW]


@pytest.mark.parametrize(("name", "how"), [*FEW, *(pytest.param(*each, marks=pytest.mark.slow) for each in REST)])
def test_training_is_the_same_to_rounding_with_everything_drawn(name, how):
    """In float64: losses, parameters, moments and averages after three steps, which have the same names."""
    got, expected = trained(replace(RUNS[name], **CHOICES[how])), plain(name)
    assert got.keys() == expected.keys()
    for each, x in expected.items():
        assert got[each].shape == x.shape and got[each].dtype == x.dtype == np.float64
        np.testing.assert_allclose(got[each], x, rtol=0, atol=1e-12, err_msg=each)
    assert expected["losses"].std() > 1e-2


KINDS = {
    "axial positions, gated": dict(rotary="axial", position="none", gated=True, qk_norm=True),
    "mixed positions, some patches": dict(rotary="mixed", position="none", patch_dropout=0.5, registers=2),
    "norms of branches, inside too": dict(branch_norm=True, norm_kind="rms", attention_norm=True, mlp_norm=True),
    "norms after the sum": dict(norm_first=False, drop_path=0.4),
}


@pytest.mark.parametrize("kind", KINDS)
def test_blocks_of_every_kind_go_through_a_loop_in_bfloat16(kind):
    """By their shapes and dtypes alone: what a block gives is what the next one takes."""
    run = replace(IMAGES, model=replace(VIT, **KINDS[kind]), scan=True, remat="full")
    engine, tree = engine_of(run, "float32")
    engine.definition = definition(run.model, "bfloat16", "float32", engine.lowering)
    state = engine.start(tree)
    after, metrics = jax.eval_shape(engine.compiled, state, batch_of(run, 0), engine.seed, engine.frozen_arrays)
    assert jax.tree.map(lambda x: (x.shape, x.dtype), after) == jax.tree.map(lambda x: (x.shape, x.dtype), state)
    assert metrics["loss"].dtype == np.float32


STACKS = {"ViT": {"blocks"}, "Transformer": {"encoder.blocks", "decoder.blocks"}}
STACKS["captioner"] = {"vit.blocks", "decoder.blocks"}


@pytest.mark.parametrize("name", RUNS)
def test_a_block_is_made_whole_by_the_name_that_its_stack_has_in_the_parameters(name):
    run, asked = RUNS[name], set()

    def gather(stack, tree):
        assert {f"{stack}.0.{part}" for part in flatten(tree)} <= run.model.shapes().keys()
        asked.add(stack)
        return tree

    engine, tree = engine_of(run, "float32")
    engine.definition = definition(run.model, lowering=Lowering(gather=gather))
    jax.eval_shape(engine.compiled, engine.start(tree), batch_of(run, 0), engine.seed, engine.frozen_arrays)
    assert asked == STACKS[name]


# ------------------------------------------------------------------------------- what they are for


def step_of(depth, **fields):
    """The step of a ViT with so many blocks, which draws nothing, traced from shapes alone."""
    model = replace(ViTConfig(image=8, channels=1, patch=4, classes=3, width=8, heads=2, hidden=12), depth=depth)
    run = replace(IMAGES, model=model, **fields)
    engine, tree = engine_of(run, "float32")
    return engine.compiled.trace(
        jax.eval_shape(engine.start, tree), batch_of(run, 0), engine.seed, engine.frozen_arrays
    )


def products(depth, **how):
    """The matrix products in the program of a step."""
    return step_of(depth, **how).lower().as_text().count("stablehlo.dot_general")


def test_scan_is_one_loop_forward_and_one_backward_whatever_the_depth():
    assert products(3, scan=True) == products(1)
    for how in ({}, CHOICES["scan and remat"]):
        assert str(step_of(5, **how).jaxpr).count(" length=5\n") == (2 if how else 0)


def test_remat_computes_again_what_it_says():
    """Of the eight products of a block all but the last, which no derivative needs, or the two without weights."""
    plain = products(2)
    assert products(2, remat="dots") == plain + 2 * 2
    assert products(2, remat="full") == plain + 7 * 2


def test_a_step_for_a_gpu_has_the_same_numbers(monkeypatch):
    """In float64, with a hidden token that makes their number even."""
    quiet = {field: 0.0 for field in vars(VIT) if field.endswith("dropout")}
    run = replace(IMAGES, model=replace(VIT, **quiet, rotary="mixed", gated=True, registers=2, drop_path=0.2))
    expected, shapes, real = trained(run), set(), Attention.attend

    def attend(self, query, *arguments, **others):
        shapes.add(query.shape)
        return real(self, query, *arguments, **others)

    monkeypatch.setattr(step, "of_training", lambda run, _: of_training(run, H100))
    monkeypatch.setattr(vit, "needs_even", lambda *_: True)
    monkeypatch.setattr(Attention, "attend", attend)
    for name, x in trained(run).items():
        np.testing.assert_allclose(x, expected[name], rtol=0, atol=1e-12, err_msg=name)
    assert {tokens % 2 for _, tokens, _ in shapes} == {0}


@pytest.mark.parametrize("name", ["ViT", pytest.param("Transformer", marks=pytest.mark.slow)])
def test_a_step_for_a_tpu_has_the_same_numbers(name, monkeypatch):
    """In float64, with heads as an axis of products, and patches that are projected by a convolution."""
    target = read_target("v5e:2x2")
    monkeypatch.setattr(step, "of_training", lambda run, _: of_training(run, target))
    expected = plain(name)
    for each, x in trained(RUNS[name]).items():
        np.testing.assert_allclose(x, expected[each], rtol=0, atol=1e-12, err_msg=each)


@pytest.mark.parametrize("how", [{}, pytest.param(CHOICES["scan"], marks=pytest.mark.slow)])
def test_weights_that_are_cast_together_give_the_same_step_to_the_bit(how, monkeypatch):
    """In bfloat16: the loss, all norms and the parameters."""
    run, found, seen = replace(IMAGES, attention_kernel="plain", **how), [], set()

    def call(mlp, x, real=Mlp.__call__, **more):
        seen.add(mlp.fc1.kernel[...].dtype.name)
        return real(mlp, x, **more)

    monkeypatch.setattr(Mlp, "__call__", call)
    monkeypatch.setattr(step, "of_training", lambda run, _: of_training(run, H100))
    for cast in (step.cast_together, lambda parameters, _: parameters):
        monkeypatch.setattr(step, "cast_together", cast)
        engine, tree = engine_of(replace(run, compute_dtype="bfloat16"), "float32")
        engine.definition = definition(run.model, "bfloat16", "float32", engine.lowering)
        state, metrics = engine.train(engine.start(tree), batch_of(run, 0))
        found.append({**metrics, **flatten(state.parameters)})
    assert seen == {"bfloat16", "float32"}
    for name, x in found[0].items():
        np.testing.assert_array_equal(x, found[1][name], err_msg=name)


@pytest.mark.parametrize("name", ["ViT", pytest.param("Transformer", marks=pytest.mark.slow)])
def test_a_step_has_the_fused_kernel_where_it_can(name, monkeypatch):
    """In both blocks of a ViT; of a Transformer in its decoder's own attention, whose mask is causal alone."""
    run, asked, real = RUNS[name], [], jax.nn.dot_product_attention
    quiet = {field: 0.0 for field in vars(run.model) if field.endswith("dropout")}

    def recorded(*arrays, **how):
        asked.append(how["is_causal"])
        return real(*arrays, **how)

    monkeypatch.setattr(jax.nn, "dot_product_attention", recorded)
    for kernel in ("plain", "auto", "fused"):  # auto: not on a CPU
        assert not asked
        engine, tree = engine_of(replace(run, model=replace(run.model, **quiet), attention_kernel=kernel), "float32")
        jax.eval_shape(engine.compiled, engine.start(tree), batch_of(run, 0), engine.seed, engine.frozen_arrays)
    assert asked == [name == "Transformer"] * 2
