"""The encoder-decoder Transformer: masks, decoding, tying, positions, refusals. (Against PyTorch: tests/parity.)"""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from vit_jax.config.trees import unflatten
from vit_jax.models.attention import Attention
from vit_jax.models.build import definition
from vit_jax.models.layers import sinusoids
from vit_jax.models.state import merge
from vit_jax.models.transformer import Transformer
from vit_jax.models.transformer_config import TransformerConfig

pytestmark = pytest.mark.usefixtures("quick_compilation")
TINY = TransformerConfig(
    width=8,
    heads=2,
    hidden=12,
    encoder_depth=2,
    decoder_depth=2,
    source_vocabulary=11,
    target_vocabulary=11,
    outputs=11,
    max_length=9,
)
VARIANTS = {
    "pre-norm": TINY,
    "post-norm": dataclasses.replace(TINY, norm_first=False, final_norm=False, activation="relu"),
    "wide heads": dataclasses.replace(TINY, head_width=5),
    "all tied": dataclasses.replace(TINY, tie="all", scale_embedding=True, output_bias=False),
    "decoder tied": dataclasses.replace(TINY, tie="decoder", source_vocabulary=7),
    "embeddings tied": dataclasses.replace(TINY, tie="embeddings", bias=False, norm_bias=False),
    "learned": dataclasses.replace(TINY, position="learned", position_offset=2, embedding_norm=True),
    "concatenated": dataclasses.replace(TINY, position="concatenated", embedding_norm=True),
    "fairseq": dataclasses.replace(TINY, position="fairseq", position_offset=2),
    "no positions": dataclasses.replace(TINY, position="none", outputs=0),
    "vectors": dataclasses.replace(TINY, source_vocabulary=0, target_vocabulary=0, outputs=0, position="one_frequency"),
    "a given memory": dataclasses.replace(TINY, encoder_depth=0, source_vocabulary=0),
}


@pytest.fixture(autouse=True)
def float64():
    with jax.enable_x64(True):
        yield


def random_weights(c: TransformerConfig, seed: int = 0) -> dict:
    """Every parameter random, biases and norms too."""
    draw = np.random.default_rng(seed)
    return {name: jnp.asarray(draw.normal(0, 0.5, shape)) for name, shape in c.shapes().items()}


@functools.cache
def graph(c: TransformerConfig):
    return definition(c, jnp.float64, jnp.float64)


def network(c: TransformerConfig, weights: dict | None = None) -> Transformer:
    return merge(graph(c), unflatten(weights or random_weights(c)))


def sentences(c: TransformerConfig, batch: int = 3, source: int = 5, target: int = 4, seed: int = 1):
    """(source, target): ids, or vectors where the config takes those."""
    draw = np.random.default_rng(seed)

    def side(vocabulary: int, length: int):
        if vocabulary:
            return jnp.asarray(draw.integers(0, vocabulary, (batch, length)))
        return jnp.asarray(draw.normal(size=(batch, length, c.width)))

    return side(c.source_vocabulary, source), side(c.target_vocabulary, target)


def largest(a, b) -> float:
    return float(jnp.abs(a - b).max())


QUICK = ("pre-norm", "post-norm", "all tied", "vectors", "a given memory")
variants = pytest.mark.parametrize(
    "c", [pytest.param(c, id=name, marks=[] if name in QUICK else pytest.mark.slow) for name, c in VARIANTS.items()]
)


# ------------------------------------------------------------------------------------------ masks


@variants
def test_a_sentence_alone_equals_its_row_in_a_padded_batch(c):
    model, (source, target) = network(c), sentences(c)
    together = model(
        source,
        target,
        source_padding=jnp.arange(5) < jnp.array([[5], [3], [1]]),
        target_padding=jnp.arange(4) < jnp.array([[4], [2], [4]]),
    )
    assert largest(model(source, target)[0], together[0]) < 1e-12  # a full row among others that are not padded
    for row, (s, t) in ((1, (3, 2)), (2, (1, 4))):
        alone = model(source[row : row + 1, :s], target[row : row + 1, :t])
        assert largest(alone[0], together[row, :t]) < 1e-12
        assert largest(alone[0], model(source, target)[row, :t]) > 1e-6, "the padding is seen"


@variants
def test_no_target_token_sees_a_later_one(c):
    model, (source, target) = network(c), sentences(c)
    changed = target.at[:, 2:].set((target[:, 2:] + 1) % (c.target_vocabulary or 100))
    assert largest(model(source, target)[:, :2], model(source, changed)[:, :2]) == 0
    assert largest(model(source, target, causal=False)[:, :2], model(source, changed, causal=False)[:, :2]) > 1e-6


def attention(seed: int = 0) -> Attention:
    layer = Attention(8, 2, 4, dtype=jnp.float64)
    draw = np.random.default_rng(seed)
    nnx.update(layer, jax.tree.map(lambda x: jnp.asarray(draw.normal(size=x.shape)), nnx.state(layer, nnx.Param)))
    return layer


def test_a_row_with_nothing_to_attend_to_has_a_zero_context_and_zero_gradients():
    layer, x = attention(), jnp.asarray(np.random.default_rng(1).normal(size=(2, 3, 8)))
    mask = jnp.array([True, False])[:, None, None, None]
    assert jnp.array_equal(layer(x, x, x, mask)[1], jnp.broadcast_to(layer.out.bias[...], (3, 8)))
    gradient = jax.grad(lambda x: jnp.square(layer(x, x, x, mask)).sum())(x)
    assert float(jnp.abs(gradient[0]).max()) > 0 and jnp.array_equal(gradient[1], jnp.zeros((3, 8)))


@pytest.mark.parametrize(
    "name", ["pre-norm", *(pytest.param(x, marks=pytest.mark.slow) for x in ("post-norm", "vectors"))]
)
def test_an_empty_source_gives_finite_logits_and_gradients(name):
    c = dataclasses.replace(VARIANTS[name], encoder_depth=1, decoder_depth=1)
    source, target = sentences(c)
    padding = jnp.array([[True] * 5, [False] * 5, [True] * 5])
    weights = random_weights(c)

    def loss(weights):
        return jnp.square(network(c, weights)(source, target, source_padding=padding)).mean()

    value, gradients = jax.jit(jax.value_and_grad(loss))(weights)
    assert jnp.isfinite(value) and all(jnp.isfinite(g).all() for g in gradients.values())


def test_memory_padding_is_the_sources_unless_given():
    model, (source, target) = network(TINY), sentences(TINY)
    padding = jnp.arange(5) < jnp.array([[5], [3], [2]])
    usual = model(source, target, source_padding=padding)
    assert jnp.array_equal(usual, model(source, target, source_padding=padding, memory_padding=padding))
    assert largest(usual, model(source, target, source_padding=padding, memory_padding=None)) > 1e-3


def test_masks_per_head_restrict_that_head_alone():
    layer, x = attention(), jnp.asarray(np.random.default_rng(1).normal(size=(1, 3, 8)))
    intermediates = {"attention": None}
    layer(x, x, x, jnp.array([[True, True, True], [True, False, False]])[None, :, None], intermediates=intermediates)
    assert jnp.array_equal(intermediates["attention"][0, 1], jnp.eye(3)[jnp.zeros(3, int)])
    assert float(intermediates["attention"][0, 0].min()) > 0


# --------------------------------------------------------------------------------------- decoding


def step_of(c: TransformerConfig):
    """(the jaxpr of one decoding step, {parameter: its variable})."""
    weights, (source, target) = random_weights(c), sentences(c)
    model = network(c, weights)
    cache = model.init_cache(model.encode(source), None, 6)
    jaxpr = jax.make_jaxpr(lambda w, cache: network(c, w).decode_step(target[:, 0], cache))(weights, cache).jaxpr
    return jaxpr, dict(zip(sorted(weights), jaxpr.invars, strict=False))


@pytest.mark.parametrize("tie", ["none", "all"])
def test_a_decoding_step_transposes_no_weight_and_projects_no_memory(tie):
    jaxpr, variables = step_of(dataclasses.replace(TINY, tie=tie))
    used = {id(v) for equation in jaxpr.eqns for v in equation.invars}
    assert not [
        name
        for name, v in variables.items()
        if ("cross_attention.key" in name or "cross_attention.value" in name) and id(v) in used
    ]
    assert [name for name, v in variables.items() if "cross_attention.query" in name and id(v) in used]
    transposed = [equation.invars[0].aval.shape for equation in jaxpr.eqns if equation.primitive.name == "transpose"]
    assert all(len(shape) == 4 for shape in transposed), transposed


# ---------------------------------------------------------------------------------- options, capture


def test_positions_are_the_published_sinusoids():
    t, i = 7, 3  # PE(pos, 2i) = sin(pos / 10000^(2i/d)), PE(pos, 2i+1) = cos of the same
    angle = t / 10000 ** (2 * i / 16)
    table = sinusoids("interleaved", 9, 16)
    assert table[t, 2 * i] == pytest.approx(np.sin(angle)) and table[t, 2 * i + 1] == pytest.approx(np.cos(angle))
    halves = sinusoids("concatenated", 9, 16)
    assert np.array_equal(halves, np.concatenate([table[:, ::2], table[:, 1::2]], 1))
    slow = sinusoids("fairseq", 9, 16)  # sin and cos of pos exp(-i ln(10000) / (d/2 - 1))
    angle = t * np.exp(-i * np.log(10000) / 7)
    assert slow[t, i] == pytest.approx(np.sin(angle)) and slow[t, 8 + i] == pytest.approx(np.cos(angle))
    one = sinusoids("one_frequency", 9, 16)
    assert np.array_equal(one, np.tile(np.stack([np.sin(np.arange(9.0)), np.cos(np.arange(9.0))], 1), 8))


def test_learned_positions_start_at_the_offset():
    c = VARIANTS["learned"]
    weights = random_weights(c)
    before = network(c, weights)(*sentences(c))
    for name in ("source.position", "target.position"):
        weights[name] = weights[name].at[: c.position_offset].set(99.0)
    assert jnp.array_equal(before, network(c, weights)(*sentences(c)))


def test_a_tied_table_gets_the_gradients_of_all_its_uses():
    c, (source, target) = VARIANTS["all tied"], sentences(TINY)
    untied = dataclasses.replace(c, tie="none")
    tied = random_weights(c)
    table = tied["target.embedding"]
    apart = {**tied, "source.embedding": table, "head.kernel": table.T}

    def gradients(config, weights):
        return jax.jit(jax.grad(lambda w: jnp.square(network(config, w)(source, target)).mean()))(weights)

    one, three = gradients(c, tied), gradients(untied, {name: apart[name] for name in untied.shapes()})
    assert (
        largest(one["target.embedding"], three["source.embedding"] + three["target.embedding"] + three["head.kernel"].T)
        < 1e-13
    )


def test_capture_gives_the_inner_values_and_costs_the_plain_call_nothing():
    model, (source, target) = network(TINY), sentences(TINY)
    names = [
        "encoder.blocks.1",
        "memory",
        "decoder.blocks.0",
        "encoder.attention",
        "decoder.self_attention",
        "decoder.cross_attention",
        "logits",
    ]
    got = model.capture(source, target, names)
    promised = [(3, 5, 8), (3, 5, 8), (3, 4, 8), (3, 2, 2, 5, 5), (3, 2, 2, 4, 4), (3, 2, 2, 4, 5), (3, 4, 11)]
    assert [got[n].shape for n in names] == promised
    assert jnp.array_equal(got["logits"], model(source, target))
    assert largest(got["decoder.cross_attention"].sum(-1), 1) < 1e-12
    assert largest(got["memory"], model.encoder.norm(got["encoder.blocks.1"])) == 0
    plain, empty = (
        str(jax.make_jaxpr(f)(source, target)) for f in (model, lambda s, t: model.capture(s, t, ["logits"])["logits"])
    )
    assert plain.split("in (")[0] == empty.split("in (")[0]
    with pytest.raises(ValueError, match=r"cannot capture 'blocks\.0'; there are encoder\.blocks\.0"):
        model.capture(source, target, ["blocks.0"])


DROPOUTS = ["dropout", "attention_dropout", "activation_dropout", "embedding_dropout"]


@pytest.mark.parametrize("site", DROPOUTS)
def test_what_is_dropped_depends_on_the_examples_key_alone(site):
    c = dataclasses.replace(TINY, **{site: 0.4})
    model, (source, target) = network(c), sentences(c)
    keys = jax.random.split(jax.random.key(0), 3)
    drawn = jax.jit(lambda source, target, keys: model(source, target, keys=keys))
    whole = drawn(source, target, keys)
    rows = jnp.array([2, 1, 1])  # other places in the batch, other company
    assert largest(whole[rows], drawn(source[rows], target[rows], keys[rows])) < 1e-12
    assert largest(whole, model(source, target)) > 1e-6 and largest(whole, drawn(source, target, keys[::-1])) > 1e-6


def test_a_bfloat16_network_has_float32_logits():
    logits = jax.eval_shape(lambda: Transformer(TINY, rngs=nnx.Rngs(0), dtype=jnp.bfloat16)(*sentences(TINY)))
    assert logits.dtype == jnp.float32


# --------------------------------------------------------------------------------------- refusals

SOURCE, TARGET = sentences(TINY)
YES = jnp.ones((3, 5), bool)
REFUSED = {
    "a float mask": (dict(source_mask=jnp.zeros((1, 1, 5, 5))), "only boolean masks are taken"),
    "a 2-D mask": (dict(target_mask=jnp.ones((4, 4), bool)), r"\[4, 4\] is not 4-D"),
    "a mask of another length": (
        dict(memory_mask=jnp.ones((1, 1, 4, 4), bool)),
        r"does not broadcast to \[3, H, 4, 5\]",
    ),
    "a padding of another length": (dict(source_padding=YES[:, :4]), r"padding bool \[3, 4\] is not bool \[3, 5\]"),
    "a float padding": (dict(target_padding=jnp.ones((3, 4))), r"is not bool \[3, 4\]"),
    "a 4-D padding": (dict(source_padding=YES[:, None, None]), r"is not bool \[3, 5\]"),
    "a long source": (dict(source=jnp.ones((3, 10), int)), "10 tokens is longer than max_length 9"),
    "no source": (dict(source=jnp.ones((3, 0), int)), "length 0"),
    "no batch": (dict(source=SOURCE[:, 0]), r"not ids \[B, N\]"),
    "vectors for ids": (dict(target=jnp.ones((3, 4, 8))), r"not ids \[B, N\]"),
    "another batch": (dict(target=TARGET[:2]), "batches of different size"),
}


@pytest.mark.parametrize(("given", "message"), REFUSED.values(), ids=REFUSED)
def test_the_model_refuses_when_it_is_traced(given, message):
    call = dict(source=SOURCE, target=TARGET) | given
    with pytest.raises(ValueError, match=message) as caught:
        jax.eval_shape(
            lambda s, t: network(TINY)(s, t, **{k: v for k, v in call.items() if k not in ("source", "target")}),
            call["source"],
            call["target"],
        )
    assert "\n" not in str(caught.value)


def test_vectors_of_another_width_and_ids_for_vectors_are_refused():
    c = VARIANTS["vectors"]
    for source in (jnp.ones((3, 5, 7)), SOURCE):
        with pytest.raises(ValueError, match=r"not vectors \[B, N, 8\]"):
            network(c)(source, jnp.ones((3, 4, 8)))


def test_a_cache_that_does_not_fit_is_refused():
    model = network(TINY)
    memory = model.encode(SOURCE)
    cache = model.init_cache(memory, None, 6)
    with pytest.raises(ValueError, match="cache of batch 3"):
        model.decode_step(TARGET[:2, 0], cache)
    with pytest.raises(ValueError, match="and 2 blocks does not fit"):
        network(dataclasses.replace(TINY, decoder_depth=1)).decode_step(TARGET[:, 0], cache)
    for length in (0, 10):
        with pytest.raises(ValueError, match=f"length is {length}: give 1 to max_length 9"):
            model.init_cache(memory, None, length)
    with pytest.raises(ValueError, match=r"padding bool \[3, 4\]"):
        model.init_cache(memory, YES[:, :4], 6)
    with pytest.raises(ValueError, match="causal is False"):
        network(dataclasses.replace(TINY, causal=False)).init_cache(memory, None, 6)


# ------------------------------------------------------------------------------ an encoder alone

ALONE = dataclasses.replace(
    TINY, decoder_depth=0, target_vocabulary=0, outputs=0, position="learned", embedding_norm=True
)


def test_an_encoder_alone_is_the_encoder_of_the_whole():
    weights = random_weights(dataclasses.replace(TINY, position="learned", embedding_norm=True))
    assert ALONE.shapes() == {name: x.shape for name, x in weights.items() if name.startswith(("source.", "encoder."))}
    whole = network(dataclasses.replace(TINY, position="learned", embedding_norm=True), weights)
    alone = network(ALONE, {name: weights[name] for name in ALONE.shapes()})
    padding = jnp.arange(5) < jnp.array([[5], [3], [1]])
    assert largest(alone(SOURCE, source_padding=padding), whole.encode(SOURCE, padding)) == 0
    seen = alone.capture(SOURCE, None, ["encoder.blocks.1", "memory", "logits"], source_padding=padding)
    assert largest(seen["memory"], seen["logits"]) == 0


def test_an_encoder_alone_takes_and_says_no_target():
    alone, whole = network(ALONE), network(TINY)
    with pytest.raises(ValueError, match="target is given, but this is an encoder alone"):
        alone(SOURCE, TARGET)
    with pytest.raises(ValueError, match="decoder_depth is 0"):
        alone.init_cache(alone.encode(SOURCE), None, 6)
    with pytest.raises(ValueError, match="target is missing"):
        whole(SOURCE)
