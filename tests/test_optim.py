"""Schedules and optimizers against torch's printed values and its published algorithms, written again in numpy."""

import math
from typing import get_args

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from optax.contrib import MuonDimensionNumbers, scale_by_muon

from vit_jax.config.dotted import field_types
from vit_jax.config.groups import rate_scales
from vit_jax.config.network import ZEROS, Parameter
from vit_jax.config.run import OptimConfig
from vit_jax.config.trees import flatten, unflatten
from vit_jax.models.vit_config import ViTConfig
from vit_jax.training.engine.muon import orthogonal
from vit_jax.training.engine.optim import Optimizer, clip, learning_rate, one_cycle


def rates(c, steps, epoch=10):
    """The whole schedule, float64."""
    with jax.enable_x64(True):
        schedule = learning_rate(c, steps, epoch)
        values = jax.jit(jax.vmap(schedule))(np.arange(steps))
    assert values.dtype == np.float64
    return np.asarray(values)


# --------------------------------------------------------------------------------------------- schedules


def test_one_cycle_has_the_values_that_torch_prints():
    """OneCycleLR(max_lr=1, total_steps=100, pct_start=0.3), run with torch 2.13; optax's own is 3e-3 away from it."""
    got = rates(OptimConfig(schedule="one_cycle", lr=1.0), 100)
    printed = {0: 0.04, 1: 0.04281, 10: 0.2952, 29: 1.0, 30: 0.99950, 50: 0.7939, 90: 0.0402, 98: 5.1e-4, 99: 4e-6}
    for step, value in printed.items():
        digits = len(f"{value:.10g}".lstrip("0.").replace(".", "").partition("e")[0])
        assert got[step] == pytest.approx(value, rel=0.6 * 10 ** (1 - digits)), step
    assert got.argmax() == 29 and got[29] == 1.0


def torchs_one_cycle(step, total, pct, first, middle, last):
    """OneCycleLR.get_lr of the two-phase, cosine form: phases end at pct * total - 1 and at total - 1."""

    def cosine(start, end, share):
        return end + (start - end) / 2.0 * (math.cos(math.pi * share) + 1)

    turn = float(pct * total) - 1
    if step <= turn:
        return cosine(first, middle, step / turn)
    return cosine(middle, last, (step - turn) / (total - 1 - turn))


@pytest.mark.parametrize(("total", "pct"), [(97, 0.3), (100, 0.3), (1760, 0.2), (7, 0.5)])
def test_one_cycle_is_torchs_formula(total, pct):
    c = OptimConfig(schedule="one_cycle", lr=3e-3, pct_start=pct, div_factor=10.0)
    expected = [torchs_one_cycle(t, total, pct, 3e-4, 3e-3, 3e-8) for t in range(total)]
    np.testing.assert_allclose(rates(c, total), expected, rtol=1e-12)


@pytest.mark.parametrize(("steps", "pct"), [(1, 0.3), (2, 0.3), (3, 0.3), (10, 0.0), (10, 0.1)])
def test_one_cycle_of_a_run_too_short_to_rise_starts_at_its_peak_or_falls_from_it(steps, pct):
    """(torch divides by zero, or takes the rate out of its range.)"""
    got = rates(OptimConfig(schedule="one_cycle", lr=1.0, pct_start=pct), steps)
    assert np.isfinite(got).all() and got.min() >= 4e-6 * (1 - 1e-9) and got.max() <= 1.0
    assert (np.diff(got) <= 0).all()


def test_momentum_is_constant_unless_asked_to_cycle():
    for c in (OptimConfig(schedule="one_cycle"), OptimConfig(schedule="cosine", cycle_momentum=True)):
        assert Optimizer(c, 100, 10).momentum is None


def test_cosine_rises_linearly_over_the_warm_up_and_falls_to_its_end():
    """2 epochs of 10 steps of warm-up in 120 steps: lr (t+1)/20, then half a cosine that is at `final` at t = 120."""
    got = rates(OptimConfig(lr=2.0, warmup=2, final=0.1), 120)
    np.testing.assert_allclose(got[:20], 2.0 * np.arange(1, 21) / 20, rtol=1e-12)
    assert got[20] == pytest.approx(2.0) and got[70] == pytest.approx(2.0 * 0.55)
    np.testing.assert_allclose(
        got[20:], [2.0 * (0.1 + 0.9 * (1 + math.cos(math.pi * t / 100)) / 2) for t in range(100)], rtol=1e-12
    )
    assert rates(OptimConfig(lr=2.0), 120)[[0, 60]] == pytest.approx([2.0, 1.0])
    assert 0 < rates(OptimConfig(lr=2.0), 120)[-1] < 2e-3


def test_constant_stays_after_its_warm_up():
    np.testing.assert_allclose(
        rates(OptimConfig(lr=2.0, schedule="constant", warmup=0.4), 30), [0.5, 1.0, 1.5] + 27 * [2.0]
    )
    np.testing.assert_allclose(rates(OptimConfig(lr=2.0, schedule="constant"), 30), 30 * [2.0])


def test_schedules_take_traced_and_python_steps_alike():
    for c in (OptimConfig(warmup=1), OptimConfig(schedule="constant"), OptimConfig(schedule="one_cycle")):
        schedule = learning_rate(c, 30, 10)
        assert float(schedule(7)) == pytest.approx(float(jax.jit(schedule)(7)), rel=1e-6)
    assert float(one_cycle(30, 0.3, 0.1, 1.0, 0.2)(29)) == pytest.approx(0.2)


# --------------------------------------------------------------------------------------------- optimizers

QUICK = {"xla_backend_optimization_level": 0, "xla_llvm_disable_expensive_passes": True}  # it runs for microseconds

# One parameter of each kind; all of one shape, to compile once.
NAMES = {
    "head.kernel": "kernel",
    "head.bias": "bias",
    "norm.scale": "norm",
    "norm.bias": "norm",
    "cls_token": "token",
    "position": "position",
    "blocks.0.scale1": "scale",
    "blocks.0.mlp.fc1.kernel": "kernel",
    "blocks.0.mlp.fc2.kernel": "kernel",
}
SHAPE, STEPS = (3, 4), 10
LAYERS = {"cls_token": 0, "position": 0, "blocks.0.scale1": 1, "norm.scale": 1, "norm.bias": 1}  # the head's is 2
LAYERS |= {"blocks.0.mlp.fc1.kernel": 1}
MUONS = {"blocks.0.mlp.fc1.kernel", "blocks.0.mlp.fc2.kernel"}
TABLE = {name: Parameter(SHAPE, kind, ZEROS, LAYERS.get(name, 2), name in MUONS) for name, kind in NAMES.items()}


def material():
    draw = np.random.default_rng(0)
    start = {name: draw.normal(0, 1, SHAPE) for name in NAMES}
    # Gradients of norms from 0.5 to 20, so that clipping at 3 acts on some steps and not on others.
    gradients = [{name: draw.normal(0, size, SHAPE) for name in NAMES} for size in np.geomspace(0.05, 2.0, STEPS)]
    return start, gradients


def by_hand(c, start, gradients):
    """torch.optim's documented algorithms after clip_grad_norm_, with the rates and betas of the formulas above."""
    p = {name: x.copy() for name, x in start.items()}
    m, v = ({name: np.zeros(SHAPE) for name in p} for _ in range(2))
    for t, gradient in enumerate(gradients):
        lr, beta1 = c.lr, c.beta1
        if c.schedule == "one_cycle":
            lr = torchs_one_cycle(t, STEPS, c.pct_start, c.lr / 25, c.lr, c.lr / 25 / 1e4)
            beta1 = torchs_one_cycle(t, STEPS, c.pct_start, 0.95, 0.85, 0.95) if c.cycle_momentum else c.beta1
        norm = math.sqrt(sum((g**2).sum() for g in gradient.values()))
        share = min(1.0, c.clip / (norm + 1e-6)) if c.clip else 1.0
        rate = lr
        for name, g in gradient.items():
            lr = rate * c.layer_decay ** (2 - LAYERS.get(name, 2))
            decay = c.weight_decay if NAMES[name] in c.decay else 0.0
            g = g * share
            if c.name == "muon" and name in MUONS:
                beta, own = (beta1 if c.cycle_momentum else c.muon_momentum), lr * c.muon_lr / c.lr
                p[name] *= 1 - own * decay
                m[name] = beta * m[name] + (1 - beta) * g
                p[name] -= own * math.sqrt(4 / 3) * turned(beta * m[name] + (1 - beta) * g)
                continue
            if c.name in ("adamw", "muon", "lion"):
                p[name] *= 1 - lr * decay
            else:
                g = g + decay * p[name]
            if c.name in ("adam", "adamw", "muon"):
                m[name] = beta1 * m[name] + (1 - beta1) * g
                v[name] = c.beta2 * v[name] + (1 - c.beta2) * g**2
                root = np.sqrt(v[name]) / math.sqrt(1 - c.beta2 ** (t + 1)) + c.eps
                p[name] -= lr / (1 - beta1 ** (t + 1)) * m[name] / root
            elif c.name == "lion":
                p[name] -= lr * np.sign(beta1 * m[name] + (1 - beta1) * g)
                m[name] = c.lion_beta2 * m[name] + (1 - c.lion_beta2) * g
            elif c.name == "momentum":
                m[name] = c.momentum * m[name] + g
                p[name] -= lr * (g + c.momentum * m[name] if c.nesterov else m[name])
            else:
                p[name] -= lr * g
    return p


def turned(x):
    """Muon's iteration acts on the singular values alone: five times s <- a s + b s^3 + c s^5, from x / |x|."""
    left, values, right = np.linalg.svd(x / (np.linalg.norm(x) + 1e-7), full_matrices=False)
    for _ in range(5):
        values = 3.4445 * values - 4.7750 * values**3 + 2.0315 * values**5
    return left * values @ right


def trained(c, start, gradients, dtype="float64"):
    """The same with ours, in one compiled loop."""
    optimizer = Optimizer(c, STEPS, 5, TABLE)
    stacked = {name: np.stack([g[name] for g in gradients]).astype(dtype) for name in NAMES}

    def step(carry, gradient):
        parameters, state = carry
        updates, state = optimizer.update(gradient, state, parameters)
        return (jax.tree.map(jnp.add, parameters, updates), state), None

    @jax.jit
    def run(parameters, gradients):
        return jax.lax.scan(step, (parameters, optimizer.init(parameters)), gradients)[0]

    parameters, state = run(unflatten({name: x.astype(dtype) for name, x in start.items()}), unflatten(stacked))
    return {name: np.asarray(x) for name, x in flatten(parameters).items()}, state.moments


COMMON = dict(schedule="constant", lr=0.05, weight_decay=0.1, clip=3.0)
OPTIMIZERS = {
    "adamw": OptimConfig(name="adamw", **COMMON),
    "adamw, other betas and eps": OptimConfig(name="adamw", beta1=0.8, beta2=0.95, eps=1e-3, **COMMON),
    "adamw, one cycle": OptimConfig(name="adamw", **COMMON | dict(schedule="one_cycle")),
    "adamw, one cycle with momentum": OptimConfig(
        name="adamw", cycle_momentum=True, **COMMON | dict(schedule="one_cycle")
    ),
    "adam, L2": OptimConfig(name="adam", **COMMON),
    "momentum": OptimConfig(name="momentum", momentum=0.8, **COMMON),
    "nesterov": OptimConfig(name="momentum", momentum=0.8, nesterov=True, **COMMON),
    "sgd": OptimConfig(name="sgd", **COMMON),
    "sgd, no clipping": OptimConfig(name="sgd", **COMMON | dict(clip=0.0)),
    "muon": OptimConfig(name="muon", muon_lr=0.2, muon_momentum=0.8, layer_decay=0.5, **COMMON),
    "muon, one cycle with momentum": OptimConfig(
        name="muon", cycle_momentum=True, **COMMON | dict(schedule="one_cycle")
    ),
    "lion": OptimConfig(name="lion", beta1=0.8, **COMMON),
    "lion, one cycle with momentum": OptimConfig(
        name="lion", cycle_momentum=True, **COMMON | dict(schedule="one_cycle")
    ),
    "everything decays": OptimConfig(name="adamw", decay=tuple(set(NAMES.values())), **COMMON),
    "norms and tokens decay": OptimConfig(name="adam", decay=("norm", "token"), **COMMON),
    "rates fall towards the input": OptimConfig(name="adamw", layer_decay=0.5, **COMMON),
    "sgd, rates fall towards the input": OptimConfig(name="sgd", layer_decay=0.75, **COMMON),
}


def test_every_optimizer_is_compared():
    names = {c.name for c in OPTIMIZERS.values()}
    assert names == {*get_args(field_types(OptimConfig)["name"])}, (
        "add it to OPTIMIZERS and to by_hand in tests/test_optim.py"
    )


@pytest.mark.parametrize("c", OPTIMIZERS.values(), ids=list(OPTIMIZERS))
def test_ten_steps_are_those_of_torchs_algorithm(c):
    start, gradients = material()
    with jax.enable_x64(True):
        got, _ = trained(c, start, gradients)
    for name, expected in by_hand(c, start, gradients).items():
        assert got[name].dtype == np.float64
        np.testing.assert_allclose(got[name], expected, rtol=0, atol=1e-12, err_msg=name)


def test_optimizers_keep_float32():
    start, gradients = material()
    for which in ("adamw", "muon", "lion"):
        with jax.enable_x64(True):  # where a wider number slips in, the result is wide
            got, moments = trained(OPTIMIZERS[f"{which}, one cycle with momentum"], start, gradients, "float32")
        assert {x.dtype for x in (*got.values(), *jax.tree.leaves(moments))} == {np.dtype("float32")}


def test_muon_orthogonalises_as_optax_does_in_either_precision():
    """Wide, tall and square matrices; one of them zero."""
    shapes = {"wide": (5, 8), "tall": (8, 5), "square": (6, 6), "zero": (6, 6)}
    draw, numbers = np.random.default_rng(0), MuonDimensionNumbers()
    rule = scale_by_muon(
        beta=0.0, nesterov=False, eps=1e-7, weight_dimension_numbers=lambda tree: dict.fromkeys(tree, numbers)
    )
    for dtype, apart in (("float32", 1e-5), ("float64", 1e-13)):
        with jax.enable_x64(dtype == "float64"):
            matrices = {n: jnp.asarray(draw.normal(0, 1, shape) * (n != "zero"), dtype) for n, shape in shapes.items()}
            both = jax.jit(lambda x: (rule.update(x, rule.init(x))[0], orthogonal(x)), compiler_options=QUICK)
            expected, got = both(matrices)
        for name, x in got.items():
            assert x.dtype == dtype and x.shape == shapes[name]
            np.testing.assert_allclose(x, expected[name], rtol=0, atol=apart, err_msg=name)


VIT = ViTConfig(
    image=8,
    channels=1,
    patch=4,
    classes=3,
    width=8,
    depth=3,
    heads=2,
    hidden=12,
    registers=1,
    pre_norm=True,
    layer_scale=0.1,
    pool="map",
    head_norm=True,
)


def test_layer_decay_counts_from_the_head():
    scales = rate_scales(OptimConfig(layer_decay=0.5), VIT.parameters())
    stem = dict.fromkeys(("patch.kernel", "cls_token", "register_tokens", "position", "pre_norm.bias"), 1 / 16)
    blocks = {"blocks.0.mlp.fc1.kernel": 1 / 8, "blocks.1.scale1": 1 / 4, "blocks.2.attention.out.bias": 1 / 2}
    last = {"norm.scale": 1 / 2, "pool.probe": 1, "pool.mlp.fc1.bias": 1, "head_norm.scale": 1, "head.kernel": 1}
    for name, scale in (stem | blocks | last).items():
        assert scales[name] == scale, name
    assert set(rate_scales(OptimConfig(), VIT.parameters()).values()) == {1.0}


def test_clipping_leaves_a_zero_gradient_alone():
    assert float(clip({"a": jnp.zeros(2)}, 1.0)["a"].sum()) == 0.0
