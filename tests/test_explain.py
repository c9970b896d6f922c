"""Explanations: against loops over torch's own derivatives in float64, and on scenes where it is known what counts."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.parity.weights import weights
from vit_jax.config.trees import unflatten
from vit_jax.explain import images, tokens
from vit_jax.explain.methods import METHODS
from vit_jax.models.build import definition
from vit_jax.models.captioner_config import CaptionerConfig
from vit_jax.models.state import merge
from vit_jax.models.transformer_config import TransformerConfig
from vit_jax.models.vit_config import ViTConfig

STEPS = 5
SIZE = {"image": (8, 12), "patch": 4, "width": 8, "depth": 3, "heads": 2, "hidden": 12, "classes": 5}
POOLS = {
    "cls": {"pool": "cls"},
    "registers": {"pool": "mean", "cls_token": False, "registers": 2},
    "mean of all": {"pool": "mean_all"},
    "both": {"pool": "cls_mean"},
    "distilled": {"pool": "cls_distill", "distill_token": True, "distill_head": True},
}
TEXT = {"width": 8, "heads": 2, "hidden": 12, "encoder_depth": 2, "decoder_depth": 2, "max_length": 9}
TRANSLATORS = {
    "apart": TransformerConfig(**TEXT, source_vocabulary=11, target_vocabulary=7, outputs=7),
    "tied": TransformerConfig(**TEXT, source_vocabulary=9, target_vocabulary=9, outputs=9, tie="all"),
}


@pytest.fixture(autouse=True, scope="module")
def double():
    jax.config.update("jax_enable_x64", True)
    yield
    jax.config.update("jax_enable_x64", False)


def ours(config):
    tree = unflatten({name: jnp.asarray(x) for name, x in weights(config).items()})
    return merge(definition(config, "float64", "float64"), tree)


class Twin:
    """The network in torch, which keeps the weights of its attentions, of which there are derivatives."""

    def __init__(self, config, monkeypatch):
        self.torch = pytest.importorskip("torch")
        import torch_ref
        from torch_ref.attention import Attention

        self.network = torch_ref.load(torch_ref.build(config).double().eval(), weights(config))
        self.maps, plain = [], Attention.weights
        monkeypatch.setattr(Attention, "weights", lambda *args: self.maps.append(plain(*args)) or self.maps[-1])

    def logits(self, *inputs, names):
        self.maps.clear()
        given = [self.torch.as_tensor(x) if isinstance(x, np.ndarray) else x for x in inputs]
        return self.network.capture(*given, ["logits", *names])["logits"]

    def attention(self, value):
        """The weights of all attentions of example 0, and their derivatives: [H, Nq, Nk] each."""
        slopes = self.torch.autograd.grad(value, self.maps, retain_graph=True, allow_unused=True)
        slopes = [self.torch.zeros_like(m) if s is None else s for m, s in zip(self.maps, slopes, strict=True)]
        return [m[0].detach().numpy() for m in self.maps], [s[0].numpy() for s in slopes]


def line(value, x, baseline, torch):
    """Integrated gradients of a function of torch, step by step."""
    total = np.zeros(x.shape)
    for node, weight in zip(*np.polynomial.legendre.leggauss(STEPS), strict=True):
        place = torch.tensor(baseline + (node + 1) / 2 * (x - baseline), requires_grad=True)
        total += weight / 2 * torch.autograd.grad(value(place), place)[0].numpy()
    return (x - baseline) * total


def times(a, b):
    return [[sum(x * b[k][j] for k, x in enumerate(row)) for j in range(len(b[0]))] for row in a]


def plus(a, b):
    return [[x + y for x, y in zip(*rows, strict=True)] for rows in zip(a, b, strict=True)]


def identity(n):
    return [[float(i == j) for j in range(n)] for i in range(n)]


def positive(weights, slopes):
    """The mean over heads of what is positive of derivative times weight."""
    h, n, m = weights.shape
    return [
        [sum(max(slopes[k, i, j] * weights[k, i, j], 0.0) for k in range(h)) / h for j in range(m)] for i in range(n)
    ]


def half(layer):
    rows = [[(x + (i == j)) / 2 for j, x in enumerate(row)] for i, row in enumerate(layer)]
    return [[x / sum(row) for x in row] for row in rows]


def mean(layer):
    return layer.mean(0).tolist()


def relevance(layers):
    total = identity(len(layers[0]))
    for layer in layers:
        total = plus(total, times(layer, total))
    return total


def rolled(layers):
    total = identity(len(layers[0]))
    for layer in layers:
        total = times(half(layer), total)
    return total


def evened(matrix):
    """I apart, the rows of the rest to sum 1, and I again."""
    rest = [[x - (i == j) for j, x in enumerate(row)] for i, row in enumerate(matrix)]
    return plus([[x / sum(row) if sum(row) > 0 else 0.0 for x in row] for row in rest], identity(len(matrix)))


def read(matrix, pool, first):
    """What the head reads of the rows, over the patches."""
    rows = [row[first:] for row in matrix]
    average = lambda some: [sum(column) / len(some) for column in zip(*some, strict=True)]  # noqa: E731
    return {
        "cls": lambda: rows[0],
        "mean": lambda: average(rows[first:]),
        "mean_all": lambda: average(rows),
        "cls_mean": lambda: average([rows[0], average(rows[first:])]),
        "cls_distill": lambda: average(rows[:2]),
    }[pool]()


def cells(pixels, patch=4):
    h, w, _ = pixels.shape
    blocks = itertools.product(range(0, h, patch), range(0, w, patch))
    return np.array([pixels[y : y + patch, x : x + patch].sum() for y, x in blocks]).reshape(h // patch, w // patch)


def hidden(x, patch=4):
    """The image with each of its patches in turn set to 0."""
    h, w, _ = x.shape
    for y, left in itertools.product(range(0, h, patch), range(0, w, patch)):
        other = x.copy()
        other[y : y + patch, left : left + patch] = 0
        yield other


def looped_image(config, twin, x, k, method):
    """The explanation of one image [h, w, C] by loops."""
    torch = twin.torch
    channels = lambda x: torch.as_tensor(x)[None].permute(0, 3, 1, 2)  # noqa: E731
    value = lambda x, names=(): twin.logits(channels(x), names=names)[0, k]  # noqa: E731
    if method == "ig":
        return cells(line(value, x, np.zeros_like(x), torch))
    if method == "occlusion":
        with torch.no_grad():
            whole = float(value(x))
            return np.array([whole - float(value(other)) for other in hidden(x)]).reshape(config.grid)
    maps, slopes = twin.attention(value(x, ("attention",)))
    if method == "chefer":
        tokens = relevance([*map(positive, maps, slopes)])
    else:
        tokens = rolled([*map(mean, maps)])
    return np.array(read(tokens, config.pool, config.first_patch)).reshape(config.grid)


def some_images(config, n=2):
    return np.random.default_rng(0).normal(size=(n, *config.pixels()))


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("pool", POOLS)
def test_images_against_loops(pool, method, monkeypatch):
    config = ViTConfig(**SIZE, **POOLS[pool])
    network, twin, x, outputs = ours(config), Twin(config, monkeypatch), some_images(config), np.array([3, 1])
    found = images.explain_images(network, jnp.asarray(x), outputs, config.grid, method, STEPS, 1)
    expected = [looped_image(config, twin, one, k, method) for one, k in zip(x, outputs, strict=True)]
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-12 * np.abs(expected).max())


def of_decoder(maps, slopes, encoders, method):
    """The relevance of the encoder's tokens for those of the decoder: loops over its pairs of attentions."""
    pick = positive if method == "chefer" else lambda m, _: mean(m)
    layers = [pick(m, s) for m, s in zip(maps, slopes, strict=True)]
    memory = (relevance if method == "chefer" else rolled)(layers[:encoders])
    return memory, [*zip(layers[encoders::2], layers[encoders + 1 :: 2], strict=True)]


def looped_decoder(maps, slopes, encoders, method, first):
    """[T, N] of one value by loops; the decoder attends to the tokens of the encoder from `first` on."""
    memory, pairs = of_decoder(maps, slopes, encoders, method)
    t, n = len(pairs[0][0]), len(memory)
    own, total = identity(t), [[0.0] * n for _ in range(t)]
    source = (evened(memory) if method == "chefer" else memory)[first:]
    for layer, cross in pairs:
        if method == "chefer":
            total, own = plus(total, times(layer, total)), plus(own, times(layer, own))
            turned = [list(column) for column in zip(*evened(own), strict=True)]
            total = plus(total, times(turned, times(cross, source)))
        else:
            total = times(half(layer), total)
            total = [[x / 2 for x in row] for row in plus(total, times(cross, source))]
    return total


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("memory", ["tokens", "patches"])
def test_captions_against_loops(memory, method, monkeypatch):
    c = CaptionerConfig(
        vit=ViTConfig(**{**SIZE, "depth": 2, "classes": 0}),
        text=TransformerConfig(**{**TEXT, "encoder_depth": 0}, target_vocabulary=7, outputs=7),
        memory=memory,
    )
    network, twin = ours(c), Twin(c, monkeypatch)
    x, given, said = some_images(c.vit, 1)[0], np.array([1, 4, 3]), np.array([4, 3, 2])
    found = tokens.explain_caption(network, jnp.asarray(x), given, said, method, STEPS, 1)
    torch = twin.torch

    def value(x, t, names=()):
        logits = twin.logits(torch.as_tensor(x)[None].permute(0, 3, 1, 2), given[None], names=names)
        return logits[0, t, said[t]]

    for t in range(3):
        if method == "ig":
            expected = cells(line(lambda x, t=t: value(x, t), x, np.zeros_like(x), torch))
        elif method == "occlusion":
            with torch.no_grad():
                falls = [float(value(x, t)) - float(value(other, t)) for other in hidden(x)]
            expected = np.array(falls).reshape(c.vit.grid)
        else:
            names = ("vit.attention", "decoder.self_attention", "decoder.cross_attention")
            first = c.vit.first_patch
            maps, slopes = twin.attention(value(x, t, names))
            total = looped_decoder(maps, slopes, 2, method, first if memory == "patches" else 0)
            expected = np.array(total[t][first:]).reshape(c.vit.grid)
        np.testing.assert_allclose(found[t], expected, rtol=0, atol=1e-12 * np.abs(expected).max())


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("name", TRANSLATORS)
def test_translations_against_loops(name, method, monkeypatch):
    c = TRANSLATORS[name]
    network, twin = ours(c), Twin(c, monkeypatch)
    source, given, said = np.array([3, 5, 4, 2, 0]), np.array([1, 4, 3]), np.array([4, 3, 2])  # 0: padding
    found = tokens.explain_translation(network, source, 0, given, said, method, STEPS)
    torch = twin.torch
    table = twin.network.table if c.one_embedding else twin.network.source.embedding
    table = table.weight.detach().numpy() * (np.sqrt(c.width) if c.scale_embedding else 1)
    rows, middle = table[source], table.mean(0)

    def value(rows, t, names=()):
        """With these embeddings of the source."""
        with monkeypatch.context() as patch:
            patch.setattr(twin.network.source, "lookup", lambda x, table: torch.as_tensor(rows)[None], raising=False)
            logits = twin.network.capture(
                torch.as_tensor(source)[None], torch.as_tensor(given)[None], ["logits", *names],
                source_padding=torch.as_tensor(source != 0)[None],
            )["logits"]  # fmt: skip
        return logits[0, t, said[t]]

    for t in range(3):
        if method == "ig":
            expected = line(lambda x, t=t: value(x, t), rows, np.broadcast_to(middle, rows.shape), torch).sum(-1)
        elif method == "occlusion":
            others = [np.where(np.arange(len(rows))[:, None] == i, middle, rows) for i in range(len(rows))]
            with torch.no_grad():
                expected = np.array([float(value(rows, t)) - float(value(other, t)) for other in others])
        else:
            names = ("encoder.attention", "decoder.self_attention", "decoder.cross_attention")
            twin.maps.clear()
            maps, slopes = twin.attention(value(rows, t, names))
            expected = np.array(looped_decoder(maps, slopes, 2, method, 0)[t])
        np.testing.assert_allclose(found[t], expected, rtol=0, atol=1e-12 * np.abs(expected).max())
