"""The captioner: its parameters, what it reads, decoding with a cache, refusals. (Against PyTorch: tests/parity.)"""

import functools
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from vit_jax.config.trees import unflatten
from vit_jax.models.build import definition
from vit_jax.models.captioner_config import CaptionerConfig
from vit_jax.models.state import merge
from vit_jax.models.transformer_config import TransformerConfig
from vit_jax.models.vit_config import ViTConfig

IMAGE = ViTConfig(image=(4, 6), patch=2, classes=0, width=6, depth=1, heads=2, hidden=10, registers=1)
TEXT = TransformerConfig(
    width=8, heads=2, hidden=12, encoder_depth=0, decoder_depth=2, target_vocabulary=9, outputs=9, max_length=7
)
TOKENS = CaptionerConfig(IMAGE, TEXT)
VARIANTS = {
    "tokens, projected": TOKENS,
    "patches, of one width": replace(TOKENS, memory="patches", vit=replace(IMAGE, width=8)),
    "vectors": replace(TOKENS, memory="vectors", memory_width=5),
    "vectors as wide as the decoder": replace(TOKENS, memory="vectors", memory_width=8),
    "tied, learned positions": replace(TOKENS, text=replace(TEXT, tie="decoder", position="learned")),
}
variants = pytest.mark.parametrize("c", VARIANTS.values(), ids=VARIANTS)
pytestmark = pytest.mark.usefixtures("quick_compilation")


@pytest.fixture(autouse=True)
def float64():
    with jax.enable_x64(True):
        yield


def random_weights(c) -> dict:
    draw = np.random.default_rng(0)
    return {name: jnp.asarray(draw.normal(0, 0.5, shape)) for name, shape in c.shapes().items()}


@functools.cache
def graph(c):
    return definition(c, jnp.float64, jnp.float64)


def network(c, weights=None):
    return merge(graph(c), unflatten(weights or random_weights(c)))


def inputs(c, batch=3, length=5):
    draw = np.random.default_rng(1)
    shape = (4, c.memory_width) if c.memory == "vectors" else (4, 6, 3)
    return jnp.asarray(draw.normal(size=(batch, *shape))), jnp.asarray(draw.integers(0, 9, (batch, length)))


def largest(a, b) -> float:
    return float(jnp.abs(a - b).max())


@variants
def test_it_is_a_vit_a_projection_and_a_decoder_over_a_memory(c):
    """Its parts by themselves, with its own weights, compute what it computes."""
    weights, (source, target) = random_weights(c), inputs(c)
    memory = source
    if c.encoder is not None:
        vit = {name.removeprefix("vit."): x for name, x in weights.items() if name.startswith("vit.")}
        memory = merge(graph(c.encoder), unflatten(vit)).encode(source)
        assert memory.shape == (3, 8, c.vit.width)  # class token, register, 2 x 3 patches
        memory = memory[:, 2:] if c.memory == "patches" else memory
    if "memory.kernel" in weights:
        memory = memory @ weights["memory.kernel"] + weights["memory.bias"]
    own = {name: x for name, x in weights.items() if not name.startswith(("vit.", "memory."))}
    expected = network(c.text, own)(memory, target)
    found = network(c, weights)
    assert largest(found(source, target), expected) < 1e-12
    assert largest(found.encode(source), memory) < 1e-12
    assert (c.memory == "vectors" or c.vit.width != 8) == ("memory.kernel" in weights)


def test_the_head_of_its_vit_counts_for_nothing():
    heads = replace(TOKENS, vit=replace(IMAGE, pool="mean_all", head_bias=False, head_dropout=0.5, head_zero=True))
    assert heads.shapes() == TOKENS.shapes() and heads.normal() == TOKENS.normal()
    assert replace(TOKENS, memory="vectors", vit=ViTConfig()).normal() == replace(TOKENS, memory="vectors").normal()


def test_captured_values_are_those_of_the_pass():
    model, (source, target) = network(TOKENS), inputs(TOKENS)
    names = ("vit.attention", "vit.features", "memory", "decoder.blocks.1", "decoder.cross_attention", "logits")
    found = model.capture(source, target, names)
    assert list(found) == list(names)
    assert largest(found["logits"], model(source, target)) < 1e-12
    vit = model.vit.capture(source, ("attention", "features"))
    assert largest(found["vit.attention"], vit["attention"]) == largest(found["vit.features"], vit["features"]) == 0
    maps = found["decoder.cross_attention"]
    assert maps.shape == (3, 2, 2, 5, 8) and largest(maps.sum(-1), 1) < 1e-6
    with pytest.raises(
        ValueError, match=r"cannot capture 'pooled'; there are vit.tokens, vit.blocks.0, vit.features, mem"
    ):
        model.capture(source, target, ("pooled",))


@variants
def test_a_cache_gives_what_all_tokens_at_once_give(c):
    model, (source, target) = network(c), inputs(c)
    kept = jnp.array([[True] * 4, [True, True, False, False], [True] * 4]) if c.memory == "vectors" else None
    whole, cache = model(source, target, memory_padding=kept), model.init_cache(model.encode(source), kept, 5)
    for t in range(5):
        logits, cache = model.decode_step(target[:, t], cache)
        assert largest(logits, whole[:, t]) < 1e-12
    if kept is not None:
        assert largest(model(source, target)[1], whole[1]) > 1e-3, "the padding is seen"


def test_dropout_of_both_halves_is_drawn_for_each_example():
    c = replace(TOKENS, vit=replace(IMAGE, dropout=0.3), text=replace(TEXT, dropout=0.3))
    for one in (replace(TOKENS, vit=c.vit), replace(TOKENS, text=c.text)):
        model, (source, target) = network(one), inputs(one)
        keys = jax.random.split(jax.random.key(0), 3)
        trained = jax.jit(lambda source, target, keys, model=model: model(source, target, keys=keys))
        drawn = trained(source, target, keys)
        assert largest(drawn, model(source, target)) > 1e-3
        assert largest(drawn[1:], trained(source[1:], target[1:], keys[1:])) < 1e-12


def test_what_does_not_fit_is_refused():
    model, (source, target) = network(TOKENS), inputs(TOKENS)
    for wrong, message in ((source[:2], "batches of different size"), (source[..., :2], "which this network takes")):
        with pytest.raises(ValueError, match=message):
            model(wrong, target)
    vectors = network(VARIANTS["vectors"])
    for wrong in (source, jnp.ones((3, 4, 6)), jnp.ones((3, 0, 5)), jnp.ones((3, 4, 5), int)):
        with pytest.raises(ValueError, match=r"is not vectors \[B, S, 5\], which this network takes"):
            vectors(wrong, target)


def test_a_decoder_alone_takes_the_memory_as_its_source():
    model, (_, target) = network(TEXT), inputs(TOKENS)
    memory = jnp.asarray(np.random.default_rng(2).normal(size=(3, 4, 8)))
    assert not [name for name in TEXT.shapes() if name.startswith(("source.", "encoder."))]
    assert largest(model.encode(memory), memory) == 0
    kept = jnp.arange(4) < jnp.array([[4], [2], [3]])
    assert largest(model(memory, target, source_padding=kept)[1], model(memory[1:2, :2], target[1:2])[0]) < 1e-12
    with pytest.raises(ValueError, match=r"source float64 \[3, 4, 7\] is not vectors \[B, S, 8\]"):
        model(memory[..., :7], target)
    with pytest.raises(ValueError, match="there is no encoder in which it would count"):
        model(memory, target, source_mask=jnp.ones((1, 1, 4, 4), bool))
