"""Relative positions against exact arithmetic, brute force and transformers; T5's decoder step by step."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from vit_jax.models.lowering import Lowering
from vit_jax.models.positions import RelativePosition, bucket
from vit_jax.models.state import merge, split_model
from vit_jax.models.transformer import Transformer
from vit_jax.models.transformer_config import TransformerConfig

SIZES = [(32, 128), (8, 20), (64, 128), (32, 256), (12, 50), (4, 5), (6, 5)]
T5 = TransformerConfig(
    width=8,
    heads=3,
    head_width=5,
    hidden=12,
    encoder_depth=2,
    decoder_depth=2,
    norm_kind="rms",
    bias=False,
    position="none",
    max_length=0,
    scale_attention=False,
    relative="shared",
    source_vocabulary=11,
    target_vocabulary=11,
    outputs=11,
    tie="all",
    scale_output=True,
    output_bias=False,
    init="t5",
    embedding_std=1.0,
)


@pytest.fixture(autouse=True)
def float64():
    with jax.enable_x64(True):
        yield


def exact_bucket(distance, buckets, far, causal):
    """By whole numbers: of a far distance d, the largest k with (d / exact)^(n - exact) >= (far / exact)^k."""
    first = 0 if causal or distance <= 0 else buckets // 2
    n = buckets if causal else buckets // 2
    d, exact = max(-distance, 0) if causal else abs(distance), n // 2
    if d < exact:
        return first + d
    steps = n - exact
    k = next(k for k in range(steps, -1, -1) if d**steps * exact**k >= far**k * exact**steps)
    return first + min(exact + k, n - 1)


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize(("buckets", "far"), SIZES)
def test_buckets_are_those_of_exact_arithmetic(buckets, far, causal):
    distances = np.arange(-3 * far, 3 * far + 1)
    expected = [exact_bucket(int(d), buckets, far, causal) for d in distances]
    assert bucket(distances, buckets, far, causal).tolist() == expected


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize(("queries", "keys"), [(1, 1), (7, 7), (3, 9), (9, 3), (140, 140)])
def test_a_bias_and_its_gradient_are_those_of_looking_up_each_pair(queries, keys, causal):
    module = drawn(causal)
    weight = np.random.default_rng(1).normal(size=(1, 3, queries, keys))
    rows = bucket(np.arange(keys) - np.arange(queries)[:, None], 8, 20, causal)

    def looked_up(table):
        return table[rows].transpose(2, 0, 1)[None]

    def by_module(table):
        return merge(definition, {"table": table})(queries, keys)

    definition, _ = split_model(module)
    table = module.table[...]
    np.testing.assert_array_equal(by_module(table), looked_up(table))
    slopes = (jax.grad(lambda t, f=f: (f(t) * weight).sum())(table) for f in (by_module, looked_up))
    np.testing.assert_allclose(next(slopes), next(slopes), rtol=0, atol=1e-12)


def test_the_bias_at_a_place_is_that_row():
    module, length = drawn(True), 30
    whole, at = module(length, length), jax.jit(lambda i: module.at(i, length))
    for i in range(length):
        np.testing.assert_array_equal(at(i)[..., : i + 1], whole[:, :, i : i + 1, : i + 1])


def drawn(causal):
    module = RelativePosition(8, 3, 20, causal, jnp.float64)
    module.table.set_value(jnp.asarray(np.random.default_rng(0).normal(size=(8, 3))))
    return module


@pytest.mark.parametrize("relative", ["shared", pytest.param("blocks", marks=pytest.mark.slow)])
def test_steps_are_the_whole_pass_beyond_the_last_bucket_and_so_are_scan_and_remat(relative):
    """140 tokens and 32 buckets to 128: shorter texts never reach the logarithmic half."""
    how = dict(dtype=float, param_dtype=float)
    network = Transformer(replace(T5, relative=relative), rngs=nnx.Rngs(0), **how)
    draw = np.random.default_rng(0)
    source, target = draw.integers(0, 11, (2, 140)), draw.integers(0, 11, (2, 140))

    @nnx.jit
    def decoded(network):
        def step(cache, tokens):
            logits, cache = network.decode_step(tokens, cache)
            return cache, logits

        cache = network.init_cache(network.encode(source), None, 140)
        return jax.lax.scan(step, cache, jnp.asarray(target).T)[1].swapaxes(0, 1)

    logits = nnx.jit(lambda network: network(source, target))(network)
    np.testing.assert_allclose(decoded(network), logits, rtol=0, atol=1e-12)
    network = Transformer(network.config, rngs=nnx.Rngs(0), **how, lowering=Lowering(remat="full", scan=True))
    scanned = nnx.jit(lambda network: network(source, target))(network)
    np.testing.assert_allclose(scanned, logits, rtol=0, atol=1e-12)
