"""The Vision Transformer against plain numpy written from its papers, option by option; captured values; dropout."""

import dataclasses
import functools
import itertools
import math
import typing

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from scipy.special import erf

import vit_jax
from vit_jax.config.dotted import field_types
from vit_jax.config.fields import pair
from vit_jax.config.trees import unflatten
from vit_jax.models.build import definition, start
from vit_jax.models.layers import ACTIVATIONS
from vit_jax.models.state import merge
from vit_jax.models.vit import fixed_positions
from vit_jax.models.vit_config import ViTConfig

pytestmark = pytest.mark.usefixtures("quick_compilation")


# ------------------------------------------------------------------------------ the papers, in numpy


class Weights(dict):
    """Parameters by name that remember which of them were read."""

    def __init__(self, *args):
        super().__init__(*args)
        self.read = set()

    def __getitem__(self, name):
        self.read.add(name)
        return super().__getitem__(name)


FORMULAS = {
    "none": lambda x: x,
    "relu": lambda x: np.maximum(x, 0),
    "tanh": np.tanh,
    "gelu": lambda x: x / 2 * (1 + erf(x / math.sqrt(2))),
    "gelu_tanh": lambda x: x / 2 * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
    "quick_gelu": lambda x: x / (1 + np.exp(-1.702 * x)),
    "silu": lambda x: x / (1 + np.exp(-x)),
}


def table_of_positions(c):
    """Sinusoids, entry by entry: of the place in the sequence, or of the patch's column and row."""
    placed = (
        [c.cls_position] * c.cls_token + [c.distill_position] * c.distill_token + [c.register_position] * c.registers
    )
    first, (h, w), (ph, pw) = sum(placed), pair(c.image), pair(c.patch)
    table = np.zeros((first + (h // ph) * (w // pw), c.width))
    for t, row in enumerate(table):
        for i in range(c.width):
            if c.position == "sincos1d":
                angle = t / 10000 ** ((i - i % 2) / c.width)
                row[i] = math.cos(angle) if i % 2 else math.sin(angle)
            elif t >= first:
                y, x = divmod(t - first, w // pw)
                quarter, k = divmod(i, c.width // 4)
                angle = (x if quarter < 2 else y) / 10000 ** (k / (c.width // 4 - 1))
                row[i] = math.cos(angle) if quarter % 2 else math.sin(angle)
    return table


def turned(c, x, frequencies):
    """Queries or keys of one head [B, N, Dh], those of patches turned pair by pair as rotary positions state."""
    (h, w), (ph, pw), width = pair(c.image), pair(c.patch), x.shape[-1]
    rows, columns = h // ph, w // pw
    out, first = x.copy(), x.shape[1] - rows * columns
    for n in range(rows * columns):
        places = []
        for index, size, reference in zip(divmod(n, columns), (rows, columns), pair(c.rotary_grid), strict=True):
            if c.rotary_places == "centres":
                places.append(2 * math.pi * (2 * (index + 0.5) / size - 1))
            else:
                places.append((index + c.rotary_offset) * (reference / size if reference else 1))
        places = places if c.rotary_first == "rows" else places[::-1]
        for k in range(width // 2):
            if c.rotary == "mixed":
                angle = places[0] * frequencies[0, k] + places[1] * frequencies[1, k]
            else:
                axis, of_axis = divmod(k, width // 4)
                period = c.rotary_base ** (4 * of_axis / width)
                if c.rotary_periods == "bfloat16":  # 8 digits of the mantissa
                    digits = 2.0 ** (7 - math.floor(math.log2(period)))
                    period = round(period * digits) / digits
                angle = places[axis] / period
            a, b = (k, k + width // 2) if c.rotary_pairs == "halves" else (2 * k, 2 * k + 1)
            xa, xb = x[:, first + n, a], x[:, first + n, b]
            out[:, first + n, a] = xa * math.cos(angle) - xb * math.sin(angle)
            out[:, first + n, b] = xa * math.sin(angle) + xb * math.cos(angle)
    return out


def reference(c, p, images):
    """What the network computes, by the names of `ViT.capture`, in float64."""

    def norm(name, x):
        mean = x.mean(-1, keepdims=True) if c.norm_kind == "layer" else 0.0
        y = (x - mean) / np.sqrt(((x - mean) ** 2).mean(-1, keepdims=True) + c.eps) * p[f"{name}.scale"]
        return y + p[f"{name}.bias"] if c.norm_bias and c.norm_kind == "layer" else y

    def dense(name, x, bias=True):
        y = x @ p[f"{name}.kernel"]
        return y + p[f"{name}.bias"] if bias else y

    def attend(name, q, k, v, width, qk_norm=False, out_bias=True):
        contexts, maps = [], []
        for h in range(q.shape[-1] // width):
            qh, kh, vh = (x[..., h * width : (h + 1) * width] for x in (q, k, v))
            if qk_norm:
                qh, kh = norm(f"{name}.query_norm", qh), norm(f"{name}.key_norm", kh)
            if c.rotary != "none" and name != "pool":
                own = p[f"{name}.frequencies"][:, h] if c.rotary == "mixed" else None
                qh, kh = turned(c, qh, own), turned(c, kh, own)
            scores = np.einsum("bqd,bkd->bqk", qh, kh) / math.sqrt(width)
            scores = np.exp(scores - scores.max(-1, keepdims=True))
            maps.append(scores / scores.sum(-1, keepdims=True))
            contexts.append(np.einsum("bqk,bkd->bqd", maps[-1], vh))
        context = np.concatenate(contexts, -1)
        context = norm(f"{name}.inner_norm", context) if c.attention_norm and name != "pool" else context
        return dense(f"{name}.out", context, out_bias), np.stack(maps, 1)

    def attention(name, x):
        q, k, v = (
            dense(f"{name}.{n}", x, b)
            for n, b in (("query", c.query_bias), ("key", c.key_bias), ("value", c.value_bias))
        )
        y, weights = attend(name, q, k, v, c.head_width or c.width // c.heads, c.qk_norm, c.out_bias)
        maps.append(weights)
        return y

    def mlp(name, x):
        act, h = FORMULAS[c.activation], dense(f"{name}.fc1", x, c.mlp_bias)
        h = act(dense(f"{name}.gate", x, c.mlp_bias)) * h if c.gated else act(h)
        h = norm(f"{name}.inner_norm", h) if c.mlp_norm and name != "pool.mlp" else h
        return dense(f"{name}.fc2", h, c.mlp_bias)

    def logits(x):
        x = norm("head_norm", x) if c.head_norm else x
        x = FORMULAS[c.head_activation](dense("head_hidden", x)) if c.head_hidden else x
        return dense("head", x, c.head_bias) if c.classes else x

    # The stem: convolutions, place by place; each output is of k x k inputs, zeros outside of the image.
    batch, k, x = len(images), c.stem_kernel, images
    for i in range(len(c.stem)):
        h, w, padded = x.shape[1] // 2, x.shape[2] // 2, np.pad(x, ((0, 0), (1, 1), (1, 1), (0, 0)))
        x = np.zeros((batch, h, w, c.stem[i]))
        for r, q in itertools.product(range(h), range(w)):
            x[:, r, q] = dense(f"stem.{i}", padded[:, 2 * r :, 2 * q :][:, :k, :k].reshape(batch, -1), c.stem_bias)
        x = FORMULAS["gelu"](norm(f"stem.{i}.norm", x))
    # Then patches row by row, each flattened (row, column, channel).
    (_, h, w, _), (ph, pw) = x.shape, (size // 2 ** len(c.stem) for size in pair(c.patch))
    x = np.stack([x[:, r : r + ph, q : q + pw].reshape(batch, -1) for r in range(0, h, ph) for q in range(0, w, pw)], 1)
    x = norm("patch.pre_norm", x) if c.stem_pre_norm else x
    x = dense("patch", x, c.stem_bias)
    x = norm("patch.norm", x) if c.stem_norm else x
    x = FORMULAS[c.stem_activation](x)

    # Prefix tokens, and the rows of the position table: those of the tokens that have one, then the patches'.
    prefix = [(p["cls_token"], c.cls_position)] if c.cls_token else []
    prefix += [(p["distill_token"], c.distill_position)] if c.distill_token else []
    prefix += [(row, c.register_position) for row in p["register_tokens"]] if c.registers else []
    if c.position == "none":
        rows = itertools.repeat(0.0)
    else:
        rows = iter(p["position"] if c.position == "learned" or c.position_trained else table_of_positions(c))
    tokens = [np.tile(token + (next(rows) if placed else 0.0), (batch, 1)) for token, placed in prefix]
    tokens += [x[:, n] + next(rows) for n in range(x.shape[1])]
    assert c.position == "none" or next(rows, None) is None
    x = np.stack(tokens, 1)
    x = norm("pre_norm", x) if c.pre_norm else x

    out, maps = {"tokens": x}, []
    for i in range(c.depth):
        for branch, n in (("attention", 1), ("mlp", 2)):
            name, scale, compute = (
                f"blocks.{i}.{branch}",
                f"blocks.{i}.scale{n}",
                attention if branch == "attention" else mlp,
            )
            normed = functools.partial(norm, f"blocks.{i}.norm{n}")
            y = compute(name, normed(x) if c.norm_first and not c.branch_norm else x)
            y = normed(y) if c.branch_norm else y
            x = x + (y * p[scale] if c.layer_scale else y)
            x = x if c.norm_first or c.branch_norm else normed(x)
        out[f"blocks.{i}"] = x
    x = out["features"] = norm("norm", x) if c.final_norm else x
    patches = x[:, len(prefix) :]

    if c.pool in ("map", "map_all"):
        pooled_tokens = x if c.pool == "map_all" else patches
        probe = np.tile(p["pool.probe"], (batch, 1, 1))
        y, _ = attend(
            "pool",
            dense("pool.query", probe),
            dense("pool.key", pooled_tokens),
            dense("pool.value", pooled_tokens),
            c.width // (c.pool_heads or c.heads),
        )
        pooled = (y + mlp("pool.mlp", norm("pool.norm", y)))[:, 0]
    else:
        pooled = {
            "cls": x[:, 0],
            "mean": patches.mean(1),
            "mean_all": x.mean(1),
            "cls_mean": np.concatenate([x[:, 0], patches.mean(1)], 1),
            "cls_distill": x[:, :2].mean(1),
        }[c.pool]
    out |= {"attention": np.stack(maps, 1), "pooled": pooled}
    if c.pool == "cls_distill" and c.distill_head:
        second = dense("distill_head", norm("distill_norm", x[:, 1]) if c.distill_norm else x[:, 1], c.head_bias)
        return out | {"logits": (logits(x[:, 0]) + second) / 2}
    return out | {"logits": logits(pooled)}


# ------------------------------------------------------------------------------------------ the options

# No two sizes alike: 2 x 4 patches of 3 x 2 pixels and 2 channels, 3 heads of 4. The image makes up for other prefix
# tokens, so that every variant has 9 tokens: each new shape costs seconds of compilation.
BASE = ViTConfig(image=(6, 8), channels=2, patch=(3, 2), classes=5, width=12, depth=2, heads=3, hidden=20)
PATCHES = dict(image=(9, 6), cls_token=False, pool="mean")
PREFIX = dict(image=(6, 6), distill_token=True, registers=1)
ROTARY = dict(rotary="axial", position="none", head_width=8)
INDICES = dict(**ROTARY, rotary_places="indices", rotary_pairs="neighbours")
DEIT = dict(**PREFIX, pool="cls_distill")
RICH = dict(
    rotary="mixed",
    head_width=8,
    stem_pre_norm=True,
    pre_norm=True,
    layer_scale=0.1,
    qk_norm=True,
    gated=True,
    pool="map",
    head_norm=True,
    head_hidden=7,
)
CASES = {
    "base": {},
    "a convolution": dict(image=(8, 8), patch=(4, 2), stem=(6,)),
    "two convolutions of 3x3": dict(image=(8, 16), patch=4, stem=(4, 6), stem_kernel=3),
    "a convolution and all of the stem": dict(
        image=(8, 8), patch=(4, 2), stem=(6,), stem_pre_norm=True, stem_norm=True, stem_bias=False, norm_bias=False
    ),
    "all of the stem": dict(stem_pre_norm=True, stem_norm=True, stem_activation="relu", stem_bias=False),
    "patches alone": PATCHES,
    "a distillation token and patches": dict(cls_token=False, distill_token=True, pool="mean"),
    "three registers": dict(image=(6, 6), cls_token=False, registers=3, register_position=True, pool="mean"),
    "prefix, cls and distillation token have positions": PREFIX,
    "prefix, all have positions": dict(**PREFIX, register_position=True),
    "prefix, registers have positions": dict(
        **PREFIX, register_position=True, cls_position=False, distill_position=False
    ),
    "prefix, none has positions": dict(**PREFIX, cls_position=False, distill_position=False),
    "sincos2d": dict(position="sincos2d", position_trained=False),
    "sincos2d, trained": dict(position="sincos2d"),
    "sincos2d, prefix": dict(position="sincos2d", position_trained=False, register_position=True, **PREFIX),
    "sincos1d": dict(position="sincos1d", position_trained=False),
    "sincos1d, trained": dict(position="sincos1d"),
    "no positions": dict(position="none"),
    "axial rotary": ROTARY,
    "axial rotary of indices, neighbours": dict(**INDICES, rotary_base=10.0),
    "axial rotary of indices, scaled": dict(**INDICES, rotary_offset=1.0, rotary_grid=(3, 5), **PREFIX),
    "axial rotary after q/k norm, positions, norms last": dict(
        **ROTARY | dict(position="learned"), qk_norm=True, norm_first=False
    ),
    "axial rotary of rounded periods": dict(**ROTARY, rotary_periods="bfloat16"),
    "mixed rotary": dict(**INDICES | dict(rotary="mixed", rotary_first="columns")),
    "norm before the blocks": dict(pre_norm=True),
    "norms last": dict(norm_first=False, final_norm=False),
    "norms without bias": dict(
        norm_bias=False, stem_pre_norm=True, stem_norm=True, pre_norm=True, head_norm=True, qk_norm=True
    ),
    "layer scale": dict(layer_scale=0.1),
    "no query bias, nor out bias": dict(query_bias=False, out_bias=False),
    "no key bias, relu": dict(key_bias=False, activation="relu"),
    "no value bias, nor mlp bias": dict(value_bias=False, mlp_bias=False),
    "q/k norm": dict(qk_norm=True, eps=1e-5),
    "one head, quick gelu": dict(heads=1, activation="quick_gelu"),
    "gated": dict(gated=True, activation="silu"),
    "mean of patches, prefix": dict(**PREFIX, pool="mean"),
    "mean of all": dict(pool="mean_all"),
    "attention pooling": dict(pool="map"),
    "attention pooling, other options": dict(
        pool="map", gated=True, mlp_bias=False, norm_bias=False, head_width=7, activation="gelu_tanh"
    ),
    "attention pooling over all tokens, of its own size": dict(
        pool="map_all", pool_heads=2, pool_hidden=14, attention_norm=True, mlp_norm=True
    ),
    "class token and mean, wide head": dict(pool="cls_mean", head_norm=True),
    "RMS norms": dict(norm_kind="rms", **PREFIX),
    "RMS norms everywhere": dict(
        **{**RICH, "head_hidden": 0}, norm_kind="rms", stem_norm=True, attention_norm=True, mlp_norm=True
    ),
    "norms inside attention and mlp": dict(attention_norm=True, mlp_norm=True, gated=True, head_width=7),
    "norms of branches": dict(branch_norm=True, layer_scale=0.1),
    "two tokens averaged": DEIT,
    "two heads": dict(**DEIT, distill_head=True),
    "two heads, with norms": dict(**DEIT, distill_head=True, distill_norm=True, head_norm=True, final_norm=False),
    "two tokens, no head": dict(**DEIT, classes=0),
    "norm before the head": dict(head_norm=True),
    "hidden layer, tanh": dict(head_hidden=7),
    "hidden layer, relu": dict(head_hidden=7, head_activation="relu"),
    "hidden layer, linear": dict(head_hidden=7, head_activation="none", head_bias=False),
    "no head": dict(classes=0),
    "square grey image and patches, one block": dict(**PATCHES | dict(image=6), patch=2, channels=1, depth=1),
}
configs = pytest.mark.parametrize(
    "c", [dataclasses.replace(BASE, **fields) for fields in CASES.values()], ids=list(CASES)
)

# Fields whose value in BASE says it all: no other size is like them.
ENOUGH = {"width", "hidden"}
# Fields that evaluation does not read: what is dropped in training, and how weights begin.
TRAINING = {f.name for f in dataclasses.fields(ViTConfig) if f.name.endswith("dropout")} | {"drop_path"}
STARTS = {"init", "attention_init", "init_std", "token_std", "position_std", "head_zero"}


def test_the_cases_have_every_value_of_every_option():
    configs, missing = [dataclasses.replace(BASE, **fields).normal() for fields in CASES.values()], {}
    for name, hint in field_types(ViTConfig).items():
        seen = {getattr(c, name) for c in configs}
        if name not in ENOUGH | TRAINING | STARTS:
            values = set(typing.get_args(hint)) if typing.get_origin(hint) is typing.Literal else set()
            if len(seen) < 2 or values - seen:
                missing[name] = values - seen or "another value"
    assert not missing, "add them to CASES, and the formula to reference(), in tests/test_vit.py"


def random_weights(c):
    """All of them random, and large enough that nothing can hide: biases, norms, tokens and scales too."""
    draw, weights = np.random.default_rng(1), Weights()
    for name, shape in c.shapes().items():
        spread = 1.5 / math.sqrt(shape[0]) if name.endswith("kernel") else 0.5
        weights[name] = draw.normal(1.0 if name.endswith("scale") else 0.0, spread, shape)
    return weights


def random_images(c, batch=3):
    return np.random.default_rng(2).normal(0.3, 1.0, (batch, *pair(c.image), c.channels))


def network(c, weights, dtype="float32", param_dtype="float32"):
    tree = unflatten({name: jnp.asarray(x, param_dtype) for name, x in weights.items()})
    return merge(definition(c, dtype=dtype, param_dtype=param_dtype), tree)


def names(c):
    return ["tokens", *(f"blocks.{i}" for i in range(c.depth)), "features", "pooled", "attention", "logits"]


def error(got, expected):
    return np.abs(np.asarray(got, np.float64) - expected).max() / np.abs(expected).max()


@configs
def test_float64_equals_the_papers_at_every_stage(c):
    weights, images = random_weights(c), random_images(c)
    expected = reference(c, weights, images)
    assert weights.keys() - weights.read == set(), "parameters that the formulas have no use for"
    with jax.enable_x64(True):
        got = network(c, weights, "float64", "float64").capture(jnp.asarray(images), names(c))
    assert got.keys() == expected.keys()
    for name, value in got.items():
        assert value.shape == expected[name].shape and value.dtype == np.float64, name
        assert error(value, expected[name]) <= 1e-12, name


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activations_are_their_formulas(name):
    x = np.linspace(-8, 8, 4001)
    with jax.enable_x64(True):
        got = np.asarray(ACTIVATIONS[name](jnp.asarray(x)))
    assert got.dtype == np.float64
    # Relative to what the formula adds up, which is as large as x.
    assert (np.abs(got - FORMULAS[name](x)) <= 1e-15 * np.maximum(1, np.abs(x))).all()
    single = ACTIVATIONS[name](jnp.asarray(x, "float32"))
    assert single.dtype == np.float32
    np.testing.assert_allclose(single, FORMULAS[name](x), rtol=0, atol=3e-6)


def test_bfloat16_computes_in_bfloat16_and_answers_in_float32(monkeypatch):
    monkeypatch.setattr("vit_jax.models.lowering.rounds_factors", lambda *_: False)  # as on a GPU, whatever this CPU is
    c = dataclasses.replace(BASE, **RICH)
    weights, images = random_weights(c), random_images(c)
    expected = reference(c, weights, images)["logits"]
    got = jax.jit(lambda x: network(c, weights, "bfloat16").capture(x, names(c)))(jnp.asarray(images, "float32"))
    wide = {"attention", "pooled", "logits"}
    assert {name: str(x.dtype) for name, x in got.items()} == {
        n: "float32" if n in wide else "bfloat16" for n in names(c)
    }
    assert 1e-3 < error(got["logits"], expected) < 0.05  # 8 bits of mantissa, through 3 blocks


def test_float32_stays_float32_where_wider_numbers_are_allowed():
    c = dataclasses.replace(BASE, **RICH, position="sincos2d", position_trained=False)
    weights, images = random_weights(c), random_images(c)
    with jax.enable_x64(True):
        got = jax.jit(lambda x: network(c, weights).capture(x, names(c)))(jnp.asarray(images))
    assert {str(x.dtype) for x in got.values()} == {"float32"}
    assert error(got["logits"], reference(c, weights, images)["logits"]) <= 1e-5


def test_an_image_does_not_see_its_batch():
    """(The first notebook's network does: its attention runs across the batch.)"""
    model, images = network(BASE, random_weights(BASE)), jnp.asarray(random_images(BASE), "float32")
    np.testing.assert_array_equal(model(images)[1], model(images.at[jnp.array([0, 2])].set(1.0))[1])


def test_images_of_another_size_are_refused():
    with pytest.raises(ValueError, match=r"\(3, 8, 6, 2\) are not \[B, 6, 8, 2\]"):
        network(BASE, random_weights(BASE))(jnp.zeros((3, 8, 6, 2)))
    unplaced = dataclasses.replace(BASE, position="none")
    with pytest.raises(ValueError, match=r"images of 8x8 pixels are not divisible by the patch 3x2"):
        network(unplaced, random_weights(unplaced))(jnp.zeros((3, 8, 8, 2)))
    with pytest.raises(ValueError, match=r"\(3, 6, 8, 1\) are not \[B, 6, 8, 2\]"):
        network(unplaced, random_weights(unplaced))(jnp.zeros((3, 6, 8, 1)))


@pytest.mark.parametrize(
    "fields",
    [
        INDICES | dict(rotary_grid=(3, 5)),
        dict(position="sincos2d", position_trained=False),
    ],
)
def test_without_stored_positions_images_of_another_size_are_those_of_its_network(fields):
    c = dataclasses.replace(BASE, **fields)
    other = dataclasses.replace(c, image=(12, 4))
    weights, images = random_weights(c), random_images(other)
    assert c.shapes() == other.shapes()
    with jax.enable_x64(True):
        got = network(c, weights, "float64", "float64").capture(jnp.asarray(images), names(c))
    expected = reference(other, weights, images)
    assert all(error(got[name], expected[name]) <= 1e-12 for name in names(c))


def test_a_patch_that_survives_patch_dropout_keeps_its_own_angles():
    """The attention of the patches that are kept is that of all, over fewer keys."""
    c = dataclasses.replace(BASE, **INDICES | dict(rotary="mixed"), depth=1, patch_dropout=0.5)
    model, images = network(c, random_weights(c)), jnp.asarray(random_images(c), "float32")
    intermediates, all_of = dict.fromkeys(["tokens", "attention"]), model.capture(images, ["tokens", "attention"])
    model.encode(images, keys(3), intermediates=intermediates)
    for b in range(3):
        distances = np.abs(np.asarray(all_of["tokens"])[b] - np.asarray(intermediates["tokens"])[b][:, None]).max(-1)
        kept = distances.argmin(1)
        assert len(set(kept)) == len(kept) == 5
        few = np.asarray(all_of["attention"])[b, 0][:, kept][:, :, kept]
        np.testing.assert_allclose(intermediates["attention"][b, 0], few / few.sum(-1, keepdims=True), atol=1e-5)


# ----------------------------------------------------------------------------------------- parameters


@pytest.mark.parametrize("case", ["sincos1d, trained", "sincos2d, trained"])
def test_trained_sinusoids_start_as_sinusoids(case):
    c = dataclasses.replace(BASE, **CASES[case])
    got = jax.jit(lambda: start(c, jax.random.key(0))["position"])()
    np.testing.assert_allclose(got, table_of_positions(c), atol=1e-6)


def test_sinusoids_of_an_odd_width():
    c = dataclasses.replace(BASE, position="sincos1d", width=15)
    np.testing.assert_allclose(fixed_positions(c), table_of_positions(c), atol=1e-14)


def multiplications(jaxpr):
    """Multiply-adds of all matrix products and convolutions in a program."""
    total = 0
    for equation in jaxpr.eqns:
        if equation.primitive.name == "conv_general_dilated":  # the kernel is (row, column, in, out)
            total += math.prod(equation.outvars[0].aval.shape) * math.prod(equation.invars[1].aval.shape[:3])
        if equation.primitive.name == "dot_general":
            (contracted, _), _ = equation.params["dimension_numbers"]
            total += math.prod(equation.outvars[0].aval.shape) * math.prod(
                equation.invars[0].aval.shape[i] for i in contracted
            )
        for inner in equation.params.values():
            total += multiplications(inner.jaxpr) if hasattr(inner, "jaxpr") else 0
    return total


@pytest.mark.parametrize(
    "case",
    [
        *("base", "prefix, all have positions", "gated", "two heads", "hidden layer, tanh", "two convolutions of 3x3"),
        "attention pooling, other options",
    ],
)
def test_flops_are_those_of_the_program(case):
    c = dataclasses.replace(BASE, **CASES[case])
    model = network(c, random_weights(c))
    program = jax.make_jaxpr(lambda images: model(images))(jnp.zeros((1, *pair(c.image), c.channels)))
    assert c.flops() == 2 * multiplications(program.jaxpr)
    c = dataclasses.replace(c, patch_dropout=0.5)
    model = network(c, random_weights(c))
    program = jax.make_jaxpr(lambda images, keys: model(images, keys=keys))(
        jnp.zeros((1, *pair(c.image), c.channels)), jax.random.split(jax.random.key(0), 1)
    )
    assert c.training_flops() == 2 * multiplications(program.jaxpr) < c.flops()


# -------------------------------------------------------------------------------------------- capture


def test_an_unused_capture_adds_nothing_to_the_compiled_program():
    """The programs are compared as XLA receives them: what is equal there is equal compiled."""
    c, images = BASE, jnp.asarray(random_images(BASE), "float32")
    graph = definition(c)
    tree = unflatten({name: jnp.asarray(x, "float32") for name, x in random_weights(c).items()})

    def program(call):
        def forward(tree, images):
            return call(merge(graph, tree), images)

        return jax.jit(forward).lower(tree, images).as_text()

    plain = program(lambda model, x: model(x))
    assert program(lambda model, x: model.classify(model.encode(x, intermediates={}), None, {})) == plain
    assert program(lambda model, x: model.capture(x, ["logits"])["logits"]) == plain
    assert program(lambda model, x: model.capture(x, ["attention", "logits"])) != plain


# -------------------------------------------------------------------------------------------- dropout


def keys(batch, seed=0):
    return jax.random.split(jax.random.key(seed), batch)


@pytest.mark.parametrize("rate", sorted(TRAINING))
def test_each_rate_acts_in_training_alone_and_is_drawn_from_the_keys_alone(rate):
    c = dataclasses.replace(BASE, **{rate: 0.5})
    weights, images = random_weights(c), jnp.asarray(random_images(c), "float32")
    model, still = network(c, weights), network(BASE, weights)(images)
    np.testing.assert_array_equal(model(images), still)
    train = jax.jit(lambda images, keys: model(images, keys=keys))
    trained = np.asarray(train(images, keys(3)))
    assert (np.abs(trained - still).max(1) > 1e-2).all()
    np.testing.assert_array_equal(train(images, keys(3)), trained)
    assert (np.abs(trained - train(images, keys(3, seed=1))).max(1) > 1e-2).all()
    # An example with its key is dropped out alike wherever in a batch it stands, and in any company.
    np.testing.assert_allclose(
        train(images[jnp.array([2, 2, 0])], keys(3)[jnp.array([2, 0, 0])])[::2], trained[[2, 0]], atol=1e-5
    )


# A network whose branches add constants, so that the masks can be read from what leaves a block:
# all weights 0, but 1 for the bias of attention and 10 for that of the mlp.
READABLE = ViTConfig(image=2, channels=1, patch=1, classes=0, width=8, depth=3, heads=2, hidden=4, final_norm=False)


def readable(ones=(), **fields):
    c = dataclasses.replace(READABLE, **fields)
    weights = {name: np.zeros(shape) for name, shape in c.shapes().items()}
    for name in weights:
        weights[name] += float(name in ones)
        weights[name] += {"attention.out.bias": 1.0, "mlp.fc2.bias": 10.0}.get(
            name.partition(".")[2].partition(".")[2], 0.0
        ) * (not ones)
    return network(c, weights)


def trained(model, batch, names):
    """What is captured of a training pass over black images."""

    @jax.jit
    def forward(keys):
        intermediates = dict.fromkeys([*names, "out"])
        images = jnp.zeros((batch, *pair(model.config.image), 1))
        return intermediates | {
            "out": model.classify(model.encode(images, keys, intermediates=intermediates), keys, intermediates)
        }

    return {name: np.asarray(x) for name, x in forward(keys(batch)).items()}


def masks_of_branches(model, batch, rates):
    """{0, 1} [block, branch, B, N, D], with the scaling of what is kept checked."""
    names = ["tokens", "blocks.0", "blocks.1", "blocks.2"]
    values = trained(model, batch, names)
    steps = np.diff(np.stack([values[name] for name in names]), axis=0)  # [L, B, N, D]
    kept = steps * (1 - np.reshape(rates, (3, 1, 1, 1)))
    np.testing.assert_allclose(kept, kept.round(), atol=1e-4)
    assert set(np.unique(kept.round())) == {0, 1, 10, 11}
    return np.stack([kept.round() % 10, kept.round() // 10], axis=1)


def within(count_mean, p, n, sigmas=4.0):
    assert abs(count_mean - p) <= sigmas * math.sqrt(p * (1 - p) / n), (count_mean, p, n)


def test_dropout_after_attention_and_mlp_keeps_its_share_with_a_mask_of_its_own_everywhere():
    rate, batch = 0.3, 512
    masks = masks_of_branches(readable(dropout=rate), batch, [rate] * 3).reshape(
        6, batch, 5, 8
    )  # block and branch: 6 sites
    for mask in masks:
        within(mask.mean(), 1 - rate, mask.size)
    agree = rate**2 + (1 - rate) ** 2
    for a, b in itertools.combinations(masks, 2):
        within((a == b).mean(), agree, a.size, 5)
    for axis in (1, 2, 3):  # neighbouring examples, tokens, channels
        a, b = np.delete(masks, 0, axis), np.delete(masks, -1, axis)
        within((a == b).mean(), agree, a.size, 8)  # neighbours share a factor, so the spread is wider than binomial


def test_drop_path_drops_whole_examples_at_rates_that_rise_from_zero():
    batch, rates = 2048, [0.0, 0.3, 0.6]
    masks = masks_of_branches(readable(drop_path=0.6), batch, rates)  # [L, 2, B, N, D]
    assert (masks == masks[..., :1, :1]).all()
    masks = masks[..., 0, 0]
    assert (masks[0] == 1).all()
    for block in (1, 2):
        for branch in (0, 1):
            within(masks[block, branch].mean(), 1 - rates[block], batch)
        within((masks[block, 0] == masks[block, 1]).mean(), rates[block] ** 2 + (1 - rates[block]) ** 2, batch, 5)


@pytest.mark.parametrize(
    ("rate", "ones", "where"),
    [("embedding_dropout", ("cls_token", "patch.bias"), "tokens"), ("head_dropout", ("cls_token",), "out")],
)
def test_dropout_falls_on_all_tokens_that_enter_the_blocks_and_on_the_pooled_feature(rate, ones, where):
    kept = trained(readable(ones=ones, **{rate: 0.25}), 2048, ["tokens"])[where] * 0.75
    np.testing.assert_allclose(kept, kept.round(), atol=1e-6)
    for token in np.moveaxis(kept.reshape(2048, -1, 8), 1, 0):
        within(token.mean(), 0.75, token.size)


@pytest.mark.parametrize(("rate", "left"), [(0.4, 7), (0.5, 6), (0.99, 1)])
def test_patch_dropout_keeps_a_share_of_the_patches_in_order_and_every_prefix_token(rate, left):
    c = dataclasses.replace(READABLE, image=(3, 4), registers=2, register_position=True, patch_dropout=rate)
    batch = 1024
    weights = {name: np.zeros(shape) for name, shape in c.shapes().items()}
    weights["position"] += np.arange(3 + 12)[:, None]  # a token holds its own number
    number = trained(network(c, weights), batch, ["tokens"])["tokens"][..., 0]  # [B, N]
    assert number.shape == (batch, 3 + left)
    assert (number[:, :3] == [0, 1, 2]).all()
    assert (np.diff(number, axis=1) > 0).all() and number[:, 3:].min() == 3 and number[:, 3:].max() == 14
    for patch in range(3, 15):
        within((number == patch).any(1).mean(), left / 12, batch)


# ---------------------------------------------------------------------------------- networks by name


def test_build_gives_an_untrained_network_of_that_size_and_repeats_with_its_seed():
    models = [vit_jax.build("vit-ti16", classes=10, image=32, depth=1, seed=seed) for seed in (0, 0, 1)]
    c = models[0].config
    assert (c.width, c.heads, c.hidden, c.patch, c.classes, c.depth) == (192, 3, 768, 16, 10, 1)
    kernels = [np.asarray(model.patch.kernel[...]) for model in models]
    assert kernels[0].std() == pytest.approx(0.02, rel=0.02)
    np.testing.assert_array_equal(kernels[0], kernels[1])
    assert (kernels[0] != kernels[2]).mean() > 0.99


def test_attention_of_ones_own_takes_the_place_of_a_blocks():
    class Twice(nnx.Module):
        def __init__(self, inner):
            self.inner = inner

        def __call__(self, *tokens, **rest):
            return 2 * self.inner(*tokens, **rest)

    one, other = (vit_jax.build("digits", depth=1) for _ in range(2))
    images = np.random.default_rng(0).normal(size=(2, 8, 8, 1)).astype(np.float32)
    other.blocks[0].attention = Twice(other.blocks[0].attention)
    one.blocks[0].attention.out.kernel[...] *= 2
    np.testing.assert_allclose(other(images), one(images), rtol=1e-5, atol=1e-5)
