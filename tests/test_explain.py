"""Explanations: against loops over torch's own derivatives in float64, and on scenes where it is known what counts."""

import csv
import dataclasses
import functools
import itertools
import typing
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from PIL import Image

import vit_jax
from tests import drawn_scenes
from tests.parity.weights import weights
from vit_jax.config.dotted import replace_fields
from vit_jax.config.outputs import Outputs
from vit_jax.config.trees import unflatten
from vit_jax.errors import UserError
from vit_jax.extras.explain import capability, relevance
from vit_jax.extras.explain.capability import WORDS
from vit_jax.extras.explain.classify import explain, insertion_deletion
from vit_jax.figures.attention import rollout
from vit_jax.kinds.table import KINDS
from vit_jax.models.build import definition
from vit_jax.models.captioner_config import CaptionerConfig
from vit_jax.models.resnet_config import ResNetConfig
from vit_jax.models.state import merge
from vit_jax.models.transformer_config import TransformerConfig
from vit_jax.models.vit_config import ViTConfig
from vit_jax.models.vit_options import MAPS
from vit_jax.tasks.classify import use

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
CLASSES = Outputs("class", tuple("abcde"))
TRANSLATORS = {
    "apart": TransformerConfig(**TEXT, source_vocabulary=11, target_vocabulary=7, outputs=7),
    "tied": TransformerConfig(**TEXT, source_vocabulary=9, target_vocabulary=9, outputs=9, tie="all"),
}


@pytest.fixture(autouse=True, scope="module")
def double(quick_compilation):
    jax.config.update("jax_enable_x64", True)
    yield
    jax.config.update("jax_enable_x64", False)


def test_every_pool_is_followed_or_refused():
    values = {*typing.get_args(typing.get_type_hints(ViTConfig)["pool"])}
    assert {each["pool"] for each in POOLS.values()} | {*MAPS} == values
    with pytest.raises(UserError, match="cannot follow how the head reads the tokens by pool max: give ig"):
        relevance.read_by_head(SimpleNamespace(pool="max", first_patch=1), 5)


def ours(config):
    tree = unflatten({name: jnp.asarray(x) for name, x in weights(config).items()})
    return merge(definition(config, "float64", "float64"), tree)


class Twin:
    """The network in torch, which keeps the weights of its attentions."""

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

    @property
    def attention(self):
        """The weights of all attentions of example 0: [H, Nq, Nk] each."""
        return [m[0].detach().numpy() for m in self.maps]


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


def half(layer):
    rows = [[(x + (i == j)) / 2 for j, x in enumerate(row)] for i, row in enumerate(layer)]
    return [[x / sum(row) for x in row] for row in rows]


def mean(layer):
    return layer.mean(0).tolist()


def rolled(layers):
    total = identity(len(layers[0]))
    for layer in layers:
        total = times(half(layer), total)
    return total


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


def looped_image(config, twin, x, k, method):
    """The explanation of one image [h, w, C] by loops."""
    torch = twin.torch
    channels = lambda x: torch.as_tensor(x)[None].permute(0, 3, 1, 2)  # noqa: E731
    value = lambda x, names=(): twin.logits(channels(x), names=names)[0, k]  # noqa: E731
    if method == "ig":
        return cells(line(value, x, np.zeros_like(x), torch))
    value(x, ("attention",))
    tokens = rolled([*map(mean, twin.attention)])
    return np.array(read(tokens, config.pool, config.first_patch)).reshape(config.grid)


def some_images(config, n=2):
    return np.random.default_rng(0).normal(size=(n, *config.pixels()))


@pytest.mark.parametrize(
    ("pool", "method"),
    [*itertools.product(POOLS, ["rollout"]), ("registers", "ig"), ("distilled", "ig")],
)
def test_images_against_loops(pool, method, monkeypatch):
    config = ViTConfig(**SIZE, **POOLS[pool])
    network, twin, x, outputs = ours(config), Twin(config, monkeypatch), some_images(config), np.array([3, 1])
    found = relevance.explain_images(network, jnp.asarray(x), outputs, config.grid, method, STEPS, 1)
    expected = [looped_image(config, twin, one, k, method) for one, k in zip(x, outputs, strict=True)]
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-12 * np.abs(expected).max())


def looped_decoder(maps, encoders, first):
    """Rollout [T, N] by loops; the decoder attends to the tokens of the encoder from `first` on."""
    layers = [*map(mean, maps)]
    memory = rolled(layers[:encoders])
    total = [[0.0] * len(memory) for _ in layers[-1]]
    for layer, cross in zip(layers[encoders::2], layers[encoders + 1 :: 2], strict=True):
        total = times(half(layer), total)
        total = [[x / 2 for x in row] for row in plus(total, times(cross, memory[first:]))]
    return total


@pytest.mark.parametrize(("memory", "method"), [*itertools.product(["tokens"], WORDS), ("patches", "rollout")])
def test_captions_against_loops(memory, method, monkeypatch):
    c = CaptionerConfig(
        vit=ViTConfig(**{**SIZE, "depth": 2, "classes": 0}),
        text=TransformerConfig(**{**TEXT, "encoder_depth": 0}, target_vocabulary=7, outputs=7),
        memory=memory,
    )
    network, twin = ours(c), Twin(c, monkeypatch)
    x, given, said = some_images(c.vit, 1)[0], np.array([1, 4, 3]), np.array([4, 3, 2])
    found = relevance.explain_caption(network, jnp.asarray(x), given, said, method, STEPS)
    torch = twin.torch

    def value(x, t, names=()):
        logits = twin.logits(torch.as_tensor(x)[None].permute(0, 3, 1, 2), given[None], names=names)
        return logits[0, t, said[t]]

    for t in range(3):
        if method == "ig":
            expected = cells(line(lambda x, t=t: value(x, t), x, np.zeros_like(x), torch))
        else:
            names = ("vit.attention", "decoder.self_attention", "decoder.cross_attention")
            first = c.vit.first_patch
            value(x, t, names)
            total = looped_decoder(twin.attention, 2, first if memory == "patches" else 0)
            expected = np.array(total[t][first:]).reshape(c.vit.grid)
        np.testing.assert_allclose(found[t], expected, rtol=0, atol=1e-12 * np.abs(expected).max())


@pytest.mark.parametrize(("name", "method"), [*itertools.product(["apart"], WORDS), ("tied", "ig")])
def test_translations_against_loops(name, method, monkeypatch):
    c = TRANSLATORS[name]
    network, twin = ours(c), Twin(c, monkeypatch)
    source, given, said = np.array([3, 5, 4, 2, 0]), np.array([1, 4, 3]), np.array([4, 3, 2])  # 0: padding
    found = relevance.explain_translation(network, source, 0, given, said, method, STEPS)
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
        else:
            names = ("encoder.attention", "decoder.self_attention", "decoder.cross_attention")
            twin.maps.clear()
            value(rows, t, names)
            expected = np.array(looped_decoder(twin.attention, 2, 0)[t])
        np.testing.assert_allclose(found[t], expected, rtol=0, atol=1e-12 * np.abs(expected).max())


# What is wrong in an explanation shows: each fault against the loops, which the tests above hold to 1e-12.


FAULTS = {
    "blocks reversed": lambda maps: rollout(maps[::-1]),
    "the layer on the wrong side": lambda maps: functools.reduce(lambda r, m: r @ (m + np.eye(7)) / 2, maps, np.eye(7)),
    "map transposed": lambda maps: rollout(maps.swapaxes(1, 2)),
    "column for row": lambda maps: rollout(maps).T,
    "off by one token": lambda maps: np.roll(rollout(maps), 1, -1),
    "without the token itself": lambda maps: functools.reduce(lambda r, m: m @ r, maps, np.eye(7)),
}


@pytest.fixture(scope="module")
def looked_at():
    """(rollout of the patches for the class token, the mean attention of the layers [L, N, N])."""
    config = ViTConfig(**SIZE, pool="cls")
    x = jnp.asarray(some_images(config, 1))
    maps = np.asarray(ours(config).capture(x, ["attention"])["attention"])[0].mean(1)
    return relevance.explain_images(ours(config), x, np.array([3]), config.grid, "rollout", STEPS, 1).reshape(-1), maps


def test_without_a_fault_it_is_the_same(looked_at):
    right, maps = looked_at
    np.testing.assert_allclose(rollout(maps)[0, 1:], right, rtol=0, atol=1e-14)


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_far_beyond_the_tolerance(fault, looked_at):
    right, maps = looked_at
    wrong = FAULTS[fault](maps)[0, 1:]
    assert np.abs(wrong - right).max() > 1e-3 * np.abs(right).max()


# How far explanations can be trusted, and what is refused.


def a_classifier(outputs=CLASSES, config=None, **fields):
    config = config or ViTConfig(**{**SIZE, **fields})
    network = vit_jax.load(ours(config), fields={"mean": [0.5] * 3, "std": [0.25] * 3})
    kind = KINDS[outputs.kind](outputs) if config.classes else network.task.kind
    return dataclasses.replace(network, task=dataclasses.replace(network.task, kind=kind))


def pixels(n=2):
    return np.random.default_rng(1).integers(0, 256, (n, 8, 12, 3), dtype=np.uint8)


def test_a_class_of_another_package_is_not_taken_for_ours_by_its_name():
    class Classifier:
        pass

    assert capability._kind_of(Classifier) is None
    assert capability._kind_of(type("Other", (use.Classifier,), {})) == capability._kind_of(use.Classifier) is not None


def test_insertion_and_deletion_against_loops():
    image, cells = np.random.default_rng(2).random((4, 6, 1)) + 1, np.array([[3.0, 1, 5], [0, 4, 2]])
    told = lambda some: np.sqrt(some).sum((1, 2, 3))  # noqa: E731
    gone, come = image.copy(), np.zeros_like(image)
    falls, rises = [float(told(gone[None])[0])], [float(told(come[None])[0])]
    for cell in np.argsort(-cells.reshape(-1)):
        part = np.s_[cell // 3 * 2 : cell // 3 * 2 + 2, cell % 3 * 2 : cell % 3 * 2 + 2]
        gone[part], come[part] = 0, image[part]
        falls.append(float(told(gone[None])[0]))
        rises.append(float(told(come[None])[0]))
    area = lambda curve: sum((a + b) / 2 for a, b in itertools.pairwise(curve)) / (len(curve) - 1)  # noqa: E731
    found = insertion_deletion(told, image, cells, 4)
    np.testing.assert_allclose(found, (area(rises), area(falls)), rtol=1e-12)


def test_a_class_is_explained_by_name_and_the_files_hold_it(tmp_path):
    network, x = a_classifier(), pixels()
    found = network.explain(x, class_name="d")
    assert found.outputs == ("d", "d") and found.maps.shape == (2, 2, 3)
    np.testing.assert_allclose(found.values, network.values(x)[:, 3], rtol=1e-6)
    alone = network.explain(x[1], class_name="d", measured=False)
    np.testing.assert_allclose(alone.maps, found.maps[1:], rtol=1e-9)
    files = found.write(tmp_path / "why")
    rows = list(csv.DictReader(open(files[1], encoding="utf-8")))
    assert list(rows[0]) == ["file", "explained", "value", "row", "column", "relevance"] and len(rows) == 12
    assert (rows[5]["row"], rows[5]["column"]) == ("2", "3")
    assert float(rows[5]["relevance"]) == pytest.approx(found.maps[0, 1, 2], rel=1e-6)
    with np.load(files[2]) as arrays:
        assert np.array_equal(arrays["maps"], found.maps) and list(arrays["explained"]) == ["d", "d"]
    check_png(files[0])


def check_png(file):
    with Image.open(file) as image:
        assert image.format == "PNG" and np.asarray(image.convert("RGB")).std() > 5


def test_the_most_probable_output_is_explained_of_classes_and_labels_and_a_number_by_name():
    labels = a_classifier(Outputs("set", tuple("abcde")))
    assert labels.explain(pixels(1), measured=False).outputs == ("abcde"[labels.logits(pixels(1))[0].argmax()],)
    numbers = a_classifier(Outputs("number", tuple("abcde"), (1.0,) * 5, (2.0,) * 5))
    with pytest.raises(vit_jax.UserError, match="this network predicts 5 numbers: name the one to explain"):
        numbers.explain(pixels(1))
    found = numbers.explain(pixels(1), class_name="b")
    whole = float(numbers.values(pixels(1))[0, 1])
    assert found.values[0] == pytest.approx(whole) and np.isfinite(found.score).all()
    one = a_classifier(Outputs("number", ("age",)), classes=1)
    assert one.explain(pixels(1), measured=False).outputs == ("age",)


REFUSED = {
    "rollout of a pool with attention": (
        {"pool": "map"}, {"method": "rollout"}, r"^explain is rollout, .* attention of its own \(map\).*: give ig"),
    "an unknown class": ({}, {"class_name": "A"}, "^class is 'A', which is no output of this network; nearest: a"),
    "an unknown method": ({}, {"method": "lime"}, "^explain is 'lime': give ig or rollout"),
    "no steps": ({}, {"steps": 0}, "^steps is 0: give a positive number"),
    "no head": ({"classes": 0}, {}, "has no head and no classes"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_explained_is_one_sentence(case):
    fields, options, sentence = REFUSED[case]
    with pytest.raises(vit_jax.UserError, match=sentence):
        a_classifier(**fields).explain(pixels(1), **options)


def test_a_network_without_patches_is_explained_by_cells():
    config = ResNetConfig(image=16, stages=(1, 1, 1, 1), width=4, hidden=4, classes=5)
    network = a_classifier(config=config)
    x = np.random.default_rng(3).integers(0, 256, (1, 16, 16, 3), dtype=np.uint8)
    found = network.explain(x, measured=False)
    inputs = np.asarray(network.inputs(x), np.float64)
    assert found.maps.shape == (1, 8, 8)
    k = list("abcde").index(found.outputs[0])
    total = network.explain(x, steps=200, class_name="abcde"[k], measured=False).maps.sum()
    assert total == pytest.approx(float(network.model(inputs)[0, k] - network.model(0 * inputs)[0, k]), rel=0.05)
    with pytest.raises(vit_jax.UserError, match="a ResNet has no attention: give ig"):
        network.explain(x, "rollout")


def explanation_of(network, scenes, method, target=0):
    """The patch that counted most for a target of each scene, by its number, and the explanation."""
    images, outputs = network.normalised(scenes.pixels), scenes.labels[:, target]
    names, how = [""] * len(images), {"outputs": outputs, "steps": 16, "batch": 50}
    found = explain(network.model, network.kind, images, scenes.pixels, names, method, measured=False, **how)
    return found.maps.reshape(len(images), -1).argmax(1), found


@pytest.mark.slow
@pytest.mark.parametrize("fields", [{"pool": "cls"}, {"pool": "mean", "cls_token": False, "registers": 2}])
def test_explanations_point_at_what_a_trained_network_must_have_seen(fields, tmp_path, monkeypatch):
    """On scenes of a target and two crosses: at the target; on scenes of two targets: each at its own."""
    sizes = {"image": 32, "channels": 3, "width": 64, "depth": 4, "heads": 4, "hidden": 256, "classes": 12, **fields}
    settings = {f"model.{name}": value for name, value in sizes.items()}
    settings |= {"model.patch": drawn_scenes.CELL, "epochs": 8, "batch": 64, "optim.lr": 2e-3, "name": "scenes"}
    train, test = drawn_scenes.draw(8000, 1), drawn_scenes.draw(600, 2)
    data = {name: (each.pixels, each.labels[:, 0]) for name, each in (("train", train), ("test", test))}
    with jax.enable_x64(False):
        run = replace_fields(vit_jax.preset("digits").run, {**settings, "dir": str(tmp_path)})
        vit_jax.train(run, data=data, class_names=drawn_scenes.NAMES)
        network = vit_jax.load(tmp_path / "scenes")
        known = np.flatnonzero(network.logits(test.pixels).argmax(1) == test.labels[:, 0])[:400]
        seen, two = drawn_scenes.Scenes(*(x[known] for x in test)), drawn_scenes.draw(200, 3, targets=2)
        assert len(known) == 400

        def points(method):
            return seen.touches(explanation_of(network, seen, method)[0]).mean()

        def owns(method):
            return np.mean([two.touches(explanation_of(network, two, method, k)[0], k) for k in (0, 1)])

        assert points("ig") > 0.95 and owns("ig") > 0.88
        assert owns("rollout") < 0.6  # it knows no class
        score, random = network.explain(seen.pixels[:100], batch=50).score
        assert score > 0.7 and random < 0.06
        right = points("rollout")
        if fields["pool"] == "cls":
            read = relevance.read_by_head
            monkeypatch.setattr(relevance, "read_by_head", lambda c, n: np.roll(read(c, n), 5))
            assert points("rollout") < min(right - 0.1, 0.6)  # of another token


@pytest.mark.parametrize(("size", "grid"), [((7, 10), (3, 4)), ((8, 8), (4, 4)), ((5, 9), (2, 7))])
def test_the_cells_that_are_summed_are_those_that_pixels_are_in(size, grid):
    values = np.random.default_rng(0).normal(size=(*size, 2))
    cells, expected = relevance.cell_of_pixel(size, grid), np.zeros(grid)
    for row, column in np.ndindex(size):
        expected[divmod(int(cells[row, column]), grid[1])] += values[row, column].sum()
    np.testing.assert_allclose(relevance.sum_cells(values, grid), expected)
