"""The derivative of attention's core against autodiff of the plain formula and against torch; the fused kernels."""

from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from vit_jax.machine.targets import read_target
from vit_jax.models import fused as module
from vit_jax.models.attention import Attention, Known, attention_core, plain_or_fused
from vit_jax.models.build import network_class
from vit_jax.models.fused import implementation
from vit_jax.models.lowering import of_training
from vit_jax.models.state import merge, split_model
from vit_jax.presets.table import preset
from vit_jax.training.engine.step import attention_plan

DRAW = np.random.default_rng(0)
B, H, NQ, NK, DH = 2, 3, 5, 7, 4
Q, K, V = (DRAW.normal(size=(B, H, n, DH)) for n in (NQ, NK, NK))
BIAS = DRAW.normal(size=(1, H, NQ, NK))
OF_CONTEXT, OF_WEIGHTS = DRAW.normal(size=Q.shape), DRAW.normal(size=(B, H, NQ, NK))
SOME = DRAW.random((B, 1, NQ, NK)) > 0.4
SOME[..., 0] = True
EMPTY = SOME.copy()
EMPTY[0, :, 1] = False
RATE = 0.25
KEPT = DRAW.random((B, H, NQ, NK)) > RATE
CASES = {  # the mask, whether there is a bias, and what dropout keeps
    "plain": (None, False, None),
    "padding": (SOME[:, :, :1], False, None),
    "dropout": (None, False, KEPT),
    "bias": (None, True, None),
    "rows with nothing to see, bias, dropout": (EMPTY, True, KEPT),
}


@pytest.fixture(autouse=True)
def float64():
    with jax.enable_x64(True):
        yield


def plain(q, k, v, mask, bias, kept, rate):
    """(context, weights), by the formula."""
    scores = jnp.einsum("bhqd,bhkd->bhqk", q, k) + (0.0 if bias is None else bias)
    weights = jax.nn.softmax(scores, axis=-1, where=mask)
    return (weights if kept is None else jnp.where(kept, weights / (1 - rate), 0.0)) @ v, weights


def value(core, case, q, k, v, bias=BIAS, captured=True):
    """A number that depends on all of the context and, if they are captured, of the weights."""
    mask, biased, kept = CASES[case]
    context, weights = core(q, k, v, mask, bias if biased else None, kept, RATE)
    return (context * OF_CONTEXT).sum() + (captured * jnp.square(weights) * OF_WEIGHTS).sum()


def close(got, expected):
    for one, other in zip(jax.tree.leaves(got), jax.tree.leaves(expected), strict=True):
        assert one.dtype == other.dtype == np.float64
        np.testing.assert_allclose(one, other, rtol=0, atol=1e-12)


@pytest.mark.parametrize(("captured", "narrow"), [(False, 64), (True, 64), (True, 0)])
@pytest.mark.parametrize("case", CASES)
def test_gradients_are_those_of_the_formula(case, captured, narrow, monkeypatch):
    """In the form for narrow heads and in that for wide ones."""
    monkeypatch.setattr("vit_jax.models.fused.NARROW", narrow)
    got, expected = (
        jax.jit(jax.value_and_grad(partial(value, core, case, captured=captured), (0, 1, 2, 3)))(Q, K, V, BIAS)
        for core in (attention_core, plain)
    )
    close(got, expected)
    assert all(np.abs(gradient).max() > 0.1 for gradient in got[1][: 4 if CASES[case][1] else 3])
    if "nothing" in case:
        assert (np.asarray(got[1][0])[0, :, 1] == 0).all()


def test_forward_mode_second_order_vmap_scan_and_remat_see_the_same_derivatives():
    case, two = "rows with nothing to see, bias, dropout", np.stack([Q, 2 * Q])

    def modes(core, two):
        f = partial(value, core, case)
        slope = jax.grad(lambda q: f(q, K, V))
        remat = jax.grad(jax.checkpoint(lambda q: f(q, K, V)))
        return {
            "forward": jax.jvp(f, (Q, K, V, BIAS), (V[:, :, :NQ], V, K, 2 * BIAS))[1],
            "second": jax.jvp(slope, (Q,), (OF_CONTEXT,))[1],
            "reverse of forward": jax.grad(lambda q: jax.jvp(f, (q, K, V), (Q, V, K))[1])(Q),
            "vmap": jax.vmap(slope)(two),
            "scan": jax.lax.scan(lambda total, q: (total + slope(q), None), jnp.zeros_like(Q), two)[0],
            "remat": remat(Q),
        }

    close(jax.jit(partial(modes, attention_core))(two), jax.jit(partial(modes, plain))(two))


def test_bfloat16_keeps_its_dtypes_and_is_within_its_rounding():
    mask, _, kept = CASES["dropout"]

    def gradients(core, dtype):
        def loss(*x):
            context, weights = core(*x, mask, None, kept, RATE)
            assert weights.dtype == jnp.promote_types(dtype, jnp.float32) and context.dtype == dtype
            return (context.astype(jnp.float64) * OF_CONTEXT).sum()

        return jax.jit(jax.grad(loss, (0, 1, 2)))(*(jnp.asarray(x, dtype) for x in (Q, K, V)))

    for got, expected in zip(gradients(attention_core, jnp.bfloat16), gradients(plain, jnp.float64), strict=True):
        assert got.dtype == jnp.bfloat16
        np.testing.assert_allclose(got.astype(np.float64), expected, rtol=0, atol=0.03 * np.abs(expected).max())


def test_a_cpu_gets_products_over_the_last_axis_and_others_get_no_barrier():
    """No batched product of the compiled gradient sums over the first axis of both, which XLA does slowly on a CPU."""
    definition, tree = split_model(Attention(8, 2, 4))
    x = np.zeros((3, 5, 8), np.float32)
    step = jax.jit(jax.grad(lambda tree: merge(definition, tree)(x, x, x).sum())).trace(tree)
    lines = [line for line in step.lower().compile().as_text().splitlines() if " dot(" in line and "batch_dims" in line]
    assert len(lines) == 6
    assert not [
        line for line in lines if "lhs_contracting_dims={2}, rhs_batch_dims={0,1}, rhs_contracting_dims={2}" in line
    ]
    for platform in ("cuda", "tpu"):
        assert "optimization_barrier" not in step.lower(lowering_platforms=(platform,)).as_text()


# ---------------------------------------------------------------------------------------- fused kernels


LOWER = np.tril(np.ones((1, 1, NQ, NQ), bool))
CAUSAL, FIRST = Known(jnp.asarray(LOWER)), Known(jnp.arange(NQ)[None, None, None] < 3, 3)


@pytest.fixture
def asked(monkeypatch):
    """The keyword arguments of each call of jax's fused attention, which is XLA's here, whoever is asked for."""
    calls, real = [], jax.nn.dot_product_attention

    def recorded(*arrays, **how):
        calls.append(how)
        return real(*arrays, **{**how, "implementation": "xla"})

    monkeypatch.setattr(jax.nn, "dot_product_attention", recorded)
    return calls


def fused(q, k, v, mask=None, kept=None, on=True, capability=(0, 0), bias=None):
    return plain_or_fused(q, k, v, mask, bias, kept, RATE, DH**-0.5, on, capability)


@pytest.mark.parametrize(
    ("dtype", "mask", "by", "biased"),
    [
        ("float32", None, "xla", False),
        ("float32", CAUSAL, "cudnn", False),
        ("float32", FIRST, "cudnn", True),
        ("float32", FIRST, "xla", False),
        ("bfloat16", None, "cudnn", True),
        ("bfloat16", CAUSAL, "xla", True),
    ],
    ids=str,
)
def test_fused_attention_is_the_plain_one_within_rounding(dtype, mask, by, biased, asked, monkeypatch):
    """Context and gradients, of odd lengths, which for cuDNN are made even; `near` is a share of the largest value."""
    monkeypatch.setattr(module, "implementation", lambda *_: by)
    near = {"float32": 1e-5, "bfloat16": 0.02}[dtype]
    k, v = (K, V) if mask is None else (K[:, :, :NQ], V[:, :, :NQ])
    real, bias = mask.count if mask is FIRST else NQ, BIAS[..., : k.shape[2]]

    def found(core, dtype):
        def loss(q, k, v, bias):
            context = core(q, k, v, bias if biased else None)[0][:, :, :real]
            return (context.astype(jnp.float64) * OF_CONTEXT[:, :, :real]).sum(), context

        return jax.jit(jax.grad(loss, (0, 1, 2, 3), has_aux=True))(*(jnp.asarray(x, dtype) for x in (Q, k, v, bias)))

    seen = None if mask is None else mask.array
    got = found(lambda q, k, v, bias: fused(q, k, v, mask, bias=bias), dtype)
    expected = found(lambda q, k, v, bias: plain(q * DH**-0.5, k, v, seen, bias, None, 0.0), "float64")
    for one, other in zip(jax.tree.leaves(got), jax.tree.leaves(expected), strict=True):
        assert one.dtype == dtype and one.shape == other.shape
        np.testing.assert_allclose(one.astype(np.float64), other, rtol=0, atol=near * np.abs(other).max())
    assert len(asked) == 1 and ("query_seq_lengths" in asked[0]) == (by == "cudnn" or mask is FIRST)


ASIDE = {
    "not chosen": dict(on=False),
    "weights are dropped": dict(kept=np.asarray(KEPT[..., :NQ])),
    "a mask that may empty a row": dict(mask=LOWER),
    "float64": dict(dtype="float64"),
}


@pytest.mark.parametrize("why", [*ASIDE, "nothing", "nothing, causal"])
def test_the_fused_kernel_steps_aside_exactly_where_it_must(why, asked):
    given = dict(ASIDE.get(why, {"mask": CAUSAL} if "causal" in why else {}))
    q, k, v = (jnp.asarray(x[:, :, :NQ], given.pop("dtype", "float32")) for x in (Q, K, V))
    given |= {"mask": jnp.asarray(given["mask"])} if why.startswith("a mask") else {}
    context, weights = fused(q, k, v, **given)
    assert (weights is None) == bool(asked) == (why not in ASIDE)
    if why in ASIDE:
        expected = attention_core(q * DH**-0.5, k, v, given.get("mask"), None, given.get("kept"), RATE)
        np.testing.assert_array_equal(context, expected[0])
        np.testing.assert_array_equal(weights, expected[1])


def test_cudnn_is_asked_where_it_can():
    ampere, hopper = (8, 0), (9, 0)
    for can, given in {
        True: [("bfloat16", 64, ampere), ("float16", 128, ampere), ("bfloat16", 256, hopper), ("bfloat16", 8, (12, 0))],
        False: [
            *(("bfloat16", 64, (7, 5)), ("bfloat16", 64, (0, 0)), ("float32", 64, hopper)),
            *(("bfloat16", 12, hopper), ("bfloat16", 136, ampere), ("bfloat16", 264, hopper)),
        ],
    }.items():
        assert {implementation(*each) for each in given} == {"cudnn" if can else "xla"}


PLANS = {
    ("digits", "h100", "bfloat16"): (True, ""),
    ("digits", "h100", "float32"): (False, "attention is plain: it computes in float32, not in bfloat16"),
    ("digits", "v5e:2x2", "bfloat16"): (False, "attention is plain: there is no NVIDIA GPU"),
    ("digits", "here", "bfloat16"): (False, ""),
    ("digits", "here", "float32", "fused"): (True, ""),
    ("digits", "h100", "float64", "fused"): (False, "attention is plain: it computes in float64"),
    ("digits", "h100", "bfloat16", "plain"): (False, ""),
    ("cifar10-48x4", "h100", "bfloat16"): (
        *(False, "attention is plain: its heads are 12 wide, not a multiple of 8 up to 256"),
    ),
    ("cifar10-256x6", "a100", "bfloat16"): (False, "attention is plain: its weights have dropout 0.2"),
    ("cifar10-256x6", "a100", "bfloat16", "fused"): (False, "attention is plain: its weights have dropout 0.2"),
    ("numbers", "l4", "bfloat16"): (True, "attention is plain where padding is masked"),
}


@pytest.mark.parametrize("case", PLANS)
def test_what_is_printed_says_which_attention_is_fused_and_why_others_are_not(case):
    name, target, dtype, *kernel = case
    run = replace(preset(name).run, compute_dtype=dtype, attention_kernel=(*kernel, "auto")[0])
    assert planned(run, target) == PLANS[case]


def test_of_a_pool_that_is_an_attention_it_is_said_that_it_is_plain():
    run = replace(preset("digits").run, compute_dtype="bfloat16")
    pooled = replace(run, model=replace(run.model, pool="map"))
    why = "it computes in float32, not in bfloat16"
    assert planned(pooled, "h100") == (True, f"attention is plain in 1 of {run.model.depth + 1} layers: {why}")


def planned(run, target):
    """`attention_plan` of a run."""
    model = run.model.with_data()
    lowering = of_training(run, read_target(target))
    network = nnx.eval_shape(lambda: network_class(model)(model, lowering=lowering))
    return attention_plan(network, model, run.compute_dtype, lowering)


@pytest.mark.parametrize("length", [196, 197])
def test_the_program_for_a_gpu_calls_cudnn_forward_and_backward(length, monkeypatch):
    """As far as this can be known without one: jax accepts what it is given, and lowers it."""
    stablehlo = pytest.importorskip("jax._src.cudnn.fused_attention_stablehlo")
    monkeypatch.setattr(stablehlo, "check_cudnn_version", lambda: 91000)
    x = jax.ShapeDtypeStruct((2, 3, length, 64), jnp.bfloat16)
    for mask in (None, Known(jnp.ones((1, 1, length, length), bool))):

        def total(q, k, v, mask=mask):
            return fused(q, k, v, mask, capability=(8, 0))[0].astype(jnp.float32).sum()

        step = jax.jit(jax.grad(total, (0, 1, 2)))
        text = step.trace(x, x, x).lower(lowering_platforms=("cuda",)).as_text()
        assert text.count("@__cudnn$fmhaSoftmax(") == text.count("@__cudnn$fmhaSoftmaxBackward(") == 1
        assert "dot_general" not in text
