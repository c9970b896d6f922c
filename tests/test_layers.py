"""The layers alone: norms and activations against exact formulas, masks, dropout as a statistic, initial values."""

import itertools
import math
import zlib
from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from vit_jax.config.trees import flatten
from vit_jax.models.attention import Attention
from vit_jax.models.layers import NORMS, LayerNorm, Mlp, drop_path, dropout, fold
from vit_jax.models.lowering import Lowering
from vit_jax.models.state import initial_values, merge, replace_parameters, split_model
from vit_jax.models.vit_config import ViTConfig
from vit_jax.presets.table import PRESETS, preset

pytestmark = pytest.mark.usefixtures("quick_compilation")


def keys(batch, seed=0):
    return jax.random.split(jax.random.key(seed), batch)


def within(mean, p, n, sigmas=4.0):
    assert abs(mean - p) <= sigmas * math.sqrt(p * (1 - p) / n), (mean, p, n)


# --------------------------------------------------------------------------------- norms, activations


def normalised(x, eps):
    mean = x.mean(-1, keepdims=True)
    return (x - mean) / np.sqrt(((x - mean) ** 2).mean(-1, keepdims=True) + eps)


@pytest.mark.parametrize(("ratio", "limit"), [(0, 2e-6), (10, 4e-6), (1000, 2e-4)])
def test_layer_norm_keeps_its_digits_where_the_mean_is_large(ratio, limit):
    x = np.random.default_rng(0).normal(ratio, 1.0, (256, 256)).astype(np.float32)
    expected = normalised(x.astype(np.float64), 1e-6)
    assert np.abs(LayerNorm(256, 1e-6)(jnp.asarray(x)) - expected).max() <= limit
    if ratio == 1000:  # what E[x^2] - E[x]^2 would give
        fast = (x - x.mean(-1, keepdims=True)) / np.sqrt(
            np.square(x).mean(-1, keepdims=True) - x.mean(-1, keepdims=True) ** 2 + 1e-6
        )
        assert np.abs(fast - expected).max() > 100 * limit


@pytest.mark.parametrize("kind", NORMS)
def test_norms_of_bfloat16_reduce_in_float32(kind):
    x = jnp.asarray(np.random.default_rng(0).normal(3, 1, (64, 256)), jnp.bfloat16)
    got = NORMS[kind](256, 1e-5)(x)
    assert got.dtype == jnp.bfloat16
    # Nothing but the rounding of the output, half a unit in the last of 8 bits, is lost.
    expected = norm_as_written(kind, np.asarray(x, np.float64), 1.0, 0.0)
    assert (np.abs(np.asarray(got, np.float64) - expected) <= 2**-8 * np.abs(expected) + 1e-6).all()


def norm_as_written(kind, x, scale, bias):
    """The norm as its authors write it."""
    y = x - x.mean(-1, keepdims=True) if kind == "layer" else x
    return y / jnp.sqrt(jnp.square(y).mean(-1, keepdims=True) + 1e-5) * scale + bias


@pytest.mark.parametrize(("kind", "platform"), [("layer", "cpu"), ("layer", "gpu"), ("rms", "cpu"), ("rms", "tpu")])
def test_derivatives_of_norms_are_those_of_the_formula(kind, platform):
    """In float64: reverse, forward and second order, mapped and by remat; in the form for each platform."""
    x, along, weight = np.random.default_rng(0).normal(size=(3, 2, 4, 8))
    scale, bias = np.random.default_rng(1).normal(size=(2, 8)) * [[1], [kind == "layer"]]

    def ours(x, scale, bias):
        layer = NORMS[kind](8, 1e-5, dtype="float64", lowering=Lowering(platform))
        layer.scale[...] = scale
        if layer.bias is not None:
            layer.bias[...] = bias
        return layer(x)

    def found(norm):
        def value(*given):
            return (jnp.square(norm(*given)) * weight).sum()

        slope = jax.grad(lambda x: value(x, scale, bias))
        return (
            jax.value_and_grad(value, (0, 1, 2))(x, scale, bias * 1.0),
            jax.jvp(slope, (x,), (along,)),
            jax.jvp(lambda x: norm(x, scale, bias), (x,), (along,)),
            jax.vmap(lambda x: norm(x, scale, bias))(x),
            jax.grad(jax.checkpoint(lambda x: value(x, scale, bias)))(x),
        )

    with jax.enable_x64(True):
        (got, *others), (expected, *its) = found(ours), found(partial(norm_as_written, kind))
        if kind == "rms":  # it has no bias
            got, expected = ((value, slopes[:2]) for value, slopes in (got, expected))
        jax.tree.map(partial(np.testing.assert_allclose, rtol=0, atol=1e-12), (got, others), (expected, its))


# --------------------------------------------------------------------------------------------- dropout


@pytest.mark.parametrize("rate", [0.1, 0.5, 0.9])
def test_dropout_keeps_its_share_and_scales_it(rate):
    y = np.asarray(dropout(jnp.full((64, 50, 33), 3.0), rate, keys(64)))
    kept = y != 0
    np.testing.assert_allclose(y[kept], 3.0 / (1 - rate), rtol=1e-6)
    within(kept.mean(), 1 - rate, kept.size)
    for axis in (0, 1, 2):  # nor is any example, token or channel favoured
        share = kept.mean(tuple({0, 1, 2} - {axis}))
        assert np.abs(share - (1 - rate)).max() <= 5 * math.sqrt(rate * (1 - rate) * kept.shape[axis] / kept.size)


def test_dropout_is_drawn_anew_for_each_example_and_key_and_repeats_with_it():
    x = jnp.ones((6, 40, 32))
    masks = np.asarray(dropout(x, 0.5, keys(6))) != 0
    for a, b in itertools.combinations(masks, 2):
        within((a == b).mean(), 0.5, a.size, 5)
    within((masks == (np.asarray(dropout(x, 0.5, keys(6, seed=1))) != 0)).mean(), 0.5, masks.size, 5)
    within((masks == (np.asarray(dropout(x, 0.5, fold(keys(6), 1))) != 0)).mean(), 0.5, masks.size, 5)
    np.testing.assert_array_equal(masks, np.asarray(dropout(x, 0.5, keys(6))) != 0)


def test_neighbouring_values_are_dropped_independently():
    """Two values share 32 random bits; their masks must not show it."""
    kept = np.asarray(dropout(jnp.ones((64, 4000)), 0.5, keys(64))) != 0
    for distance in (1, 2, 3):
        within((kept[:, distance:] == kept[:, :-distance]).mean(), 0.5, kept[:, distance:].size, 5)


@pytest.mark.parametrize("rate", [1e-7, 0.9999999])
def test_dropout_takes_every_rate_from_0_to_below_1(rate):
    y = np.asarray(dropout(jnp.ones((8, 1000)), rate, keys(8)))
    assert np.isfinite(y).all() and abs((y != 0).mean() - (1 - rate)) < 1e-3


def drop_path_1(x, rate, keys):
    """Of the second of two blocks."""
    return drop_path(x, [0.9, rate], 1, keys)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_drop_path_draws_and_scales_alike_for_a_number_that_only_the_step_knows(dtype):
    rates, x = [0.0, 0.1234567, 0.5, 0.9999999], jnp.asarray(np.random.default_rng(0).normal(size=(512, 3)), dtype)
    loop = jax.jit(lambda i: drop_path(x, rates, i, keys(512)))
    for i in range(4):
        np.testing.assert_array_equal(loop(i), drop_path(x, rates, i, keys(512)))


def test_dropout_keeps_the_dtype():
    with jax.enable_x64(True):
        for dtype in ("bfloat16", "float32", "float64"):
            for drop in (dropout, drop_path_1, lambda x, rate, keys: drop_path(x, [rate], jnp.int32(0), keys)):
                out = jax.eval_shape(
                    lambda keys, drop=drop, dtype=dtype: drop(jnp.ones((2, 3), dtype), 0.5, keys), keys(2)
                )
                assert out.dtype == dtype


def test_attention_drops_weights_after_the_softmax_and_scales_them():
    """Keys and values are unit vectors, so the output of each head is its weights, mask and all."""
    tokens, heads, rate, batch = 4, 2, 0.25, 1024
    layer = Attention(8, heads, 4, dropout=rate)
    tree = split_model(layer)[1]
    tree["value"]["kernel"] = tree["out"]["kernel"] = jnp.eye(8)
    replace_parameters(layer, tree)
    x = jnp.broadcast_to(jnp.tile(jnp.eye(4), (1, 2)), (batch, tokens, 8))
    weights = np.asarray(
        jax.jit(lambda keys: layer(x, x, x, keys=keys))(keys(batch))
    )  # [B, N, (H N)]; the query is 0, so each is 1/4 or nothing
    kept = weights * tokens * (1 - rate)
    np.testing.assert_allclose(kept, kept.round(), atol=1e-6)
    within(kept.mean(), 1 - rate, kept.size)
    a, b = kept[..., :4], kept[..., 4:]
    within((a == b).mean(), rate**2 + (1 - rate) ** 2, a.size, 5)


def test_the_mlp_drops_its_hidden_values_after_the_activation():
    """The activation sees 1 at every place, so what is dropped is 0 and the rest 1/(1-p)."""
    layer, rate, batch = Mlp(8, 8, "relu", dropout=0.25), 0.25, 1024
    tree = split_model(layer)[1]
    tree["fc1"]["bias"], tree["fc2"]["kernel"] = jnp.ones(8), jnp.eye(8)
    replace_parameters(layer, tree)
    kept = np.asarray(layer(jnp.ones((batch, 4, 8)), keys=keys(batch))) * (1 - rate)
    np.testing.assert_allclose(kept, kept.round(), atol=1e-6)
    within(kept.mean(), 1 - rate, kept.size)


# ---------------------------------------------------------------------------------------- initial values

# A network whose kernels are (96, 384), (384, 96) or (384, 384), so that what is drawn can be told by its spread.
NETWORK = ViTConfig(
    image=(32, 64),
    channels=3,
    patch=(4, 8),
    classes=384,
    width=384,
    depth=1,
    heads=2,
    hidden=96,
    registers=10,
    layer_scale=0.1,
    token_std=0.5,
    position_std=0.2,
)
SHAPES = {name: parameter.shape for name, parameter in NETWORK.parameters().items()}
MATRICES = {name.removesuffix(".kernel"): shape for name, shape in SHAPES.items() if name.endswith(".kernel")}


def values(seed=0, **fields):
    table = replace(NETWORK, **fields).parameters()
    got = initial_values(table, jax.random.key(seed))
    assert {name: x.shape for name, x in got.items()} == {name: parameter.shape for name, parameter in table.items()}
    return {name: np.asarray(x, np.float64) for name, x in got.items()}


# The standard deviation and the largest value of an (n, m) kernel, from the schemes' definitions.
CUT = 1 / 0.87962566103423978  # a normal cut at 2 std has this share less spread


def uniform(largest):
    return largest / math.sqrt(3), largest


SCHEMES = {
    "trunc_normal": lambda n, m: (0.03, 0.03 * 2 * CUT),
    "normal": lambda n, m: (0.03, math.inf),
    "fan_in": lambda n, m: (n**-0.5, n**-0.5 * 2 * CUT),
    "xavier": lambda n, m: uniform(math.sqrt(6 / (n + m))),
    "torch": lambda n, m: uniform(1 / math.sqrt(n)),
    "xavier_of_three": lambda n, m: uniform(math.sqrt(6 / (n + 3 * m))),
}


def check(x, scheme):
    std, largest = SCHEMES[scheme](*x.shape)
    assert x.std() == pytest.approx(std, rel=0.015)  # at least 37k draws: 4 sigma
    assert abs(x.mean()) < 4 * std / math.sqrt(x.size)
    assert np.abs(x).max() <= largest * (1 + 1e-6)
    assert np.abs(x).max() > (0.99 * largest if largest < math.inf else 3.5 * std)


@pytest.mark.parametrize("init", [name for name in SCHEMES if name != "xavier_of_three"])
def test_kernels_start_as_the_scheme_says_and_biases_at_zero_but_torchs(init):
    got = values(init=init, init_std=0.03)
    for name, (n, _) in MATRICES.items():
        check(got[f"{name}.kernel"], init)
        bias = got[f"{name}.bias"]
        if init == "torch":
            std, largest = uniform(1 / math.sqrt(n))
            assert bias.std() == pytest.approx(std, rel=0.1 if len(bias) == 384 else 0.2)
            assert 0.97 * largest < np.abs(bias).max() <= largest
        else:
            assert (bias == 0).all()


def test_torchvisions_scheme_is_three():
    got = values(init="torchvision")
    scheme = {"patch": "fan_in", "blocks.0.mlp.fc1": "xavier", "blocks.0.mlp.fc2": "xavier"}
    for name in MATRICES:
        check(got[f"{name}.kernel"], scheme.get(name, "torch"))
        assert (got[f"{name}.bias"] == 0).all()


@pytest.mark.parametrize("init", ["torch", "normal"])
def test_attention_may_start_as_torchs_does(init):
    """in_proj_weight is Xavier uniform over the three stacked, in_proj_bias and out_proj.bias are 0."""
    got = values(init=init, init_std=0.03, attention_init="torch")
    for part in ("query", "key", "value"):
        check(got[f"blocks.0.attention.{part}.kernel"], "xavier_of_three")
        assert (got[f"blocks.0.attention.{part}.bias"] == 0).all()
    assert (got["blocks.0.attention.out.bias"] == 0).all()
    for name in ("blocks.0.attention.out", "blocks.0.mlp.fc1", "patch", "head"):
        check(got[f"{name}.kernel"], init)
    assert (got["blocks.0.mlp.fc1.bias"] != 0).any() == (init == "torch")


def test_tokens_positions_norms_and_layer_scales_start_as_their_fields_say():
    got = values()
    assert np.concatenate([got["cls_token"][None], got["register_tokens"]]).std() == pytest.approx(0.5, rel=0.05)
    assert got["position"].std() == pytest.approx(0.2, rel=0.04)
    assert (got["blocks.0.norm1.scale"] == 1).all() and (got["blocks.0.norm1.bias"] == 0).all()
    for name in ("blocks.0.scale1", "blocks.0.scale2"):
        np.testing.assert_allclose(got[name], 0.1, rtol=1e-6)


@pytest.mark.parametrize("init", ["normal", "torch"])
def test_a_zero_head_is_zero_and_nothing_else_is(init):
    got, plain = values(init=init, head_zero=True), values(init=init)
    assert (got["head.kernel"] == 0).all() and (got["head.bias"] == 0).all()
    for name in SHAPES.keys() - {"head.kernel", "head.bias"}:
        np.testing.assert_array_equal(got[name], plain[name])


def test_every_parameter_and_seed_has_draws_of_its_own():
    got, other = values(), values(seed=1)
    kernels = [got[f"{name}.kernel"][:96, :96] for name in MATRICES] + [other["head.kernel"][:96, :96]]
    for a, b in itertools.combinations(kernels, 2):
        assert (a != b).mean() > 0.999


def test_no_two_names_of_a_preset_fold_to_one_key():
    """A parameter's key comes from 32 bits of its name."""
    for name in PRESETS:
        names = preset(name).run.model.parameters()
        assert len({zlib.crc32(n.encode()) for n in names}) == len(names)


def test_a_network_with_one_block_more_starts_the_others_alike():
    got, more = values(), values(depth=2)
    for name in SHAPES:
        np.testing.assert_array_equal(got[name], more[name])
    assert (more["blocks.1.mlp.fc1.kernel"] != got["blocks.0.mlp.fc1.kernel"]).mean() > 0.999


# --------------------------------------------------------------------------------------- models as trees


def test_a_model_is_a_tree_with_string_keys_and_comes_back_from_it():
    layer = Mlp(3, 4, "gelu", gated=True)
    definition, tree = split_model(layer)
    assert flatten(tree).keys() == {f"{name}.{leaf}" for name in ("fc1", "gate", "fc2") for leaf in ("kernel", "bias")}
    filled = jax.tree.map(lambda x: x + 2, tree)
    assert jax.tree.all(
        jax.tree.map(lambda a, b: bool((a == b).all()), split_model(merge(definition, filled))[1], filled)
    )
    replace_parameters(layer, filled)
    assert (layer.gate.bias[...] == 2).all()
