"""Networks from Python to files of any layout: a trained run's, a loaded one, one of a training loop of one's own."""

import contextlib
import io
import json

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from safetensors.numpy import load_file

import vit_jax
from tests.image_sources import a_run
from vit_jax import runs
from vit_jax.config.trees import flatten
from vit_jax.errors import UserError
from vit_jax.models.build import definition, start
from vit_jax.models.state import merge, split_model
from vit_jax.models.vit_config import ViTConfig
from vit_jax.runs.values import to_dict
from vit_jax.training.train import train

pytestmark = pytest.mark.usefixtures("working_folder")
VIT = ViTConfig(image=8, channels=1, patch=4, classes=3, width=16, depth=1, heads=2, hidden=32)
IMAGES = np.random.default_rng(0).integers(0, 256, (5, 8, 8, 1), np.uint8)
NORMAL = {"mean": 0.5, "std": 0.25}
INPUTS = (IMAGES / np.float32(255) - 0.5) / np.float32(0.25)


@pytest.fixture(scope="module")
def own() -> vit_jax.ViT:
    """A network that a loop of one's own has trained, with optax and nnx alone."""
    model = network(VIT)
    optimizer = nnx.Optimizer(model, optax.sgd(0.1), wrt=nnx.Param)

    @nnx.jit
    def step(model, optimizer):
        def loss(model):
            return optax.softmax_cross_entropy_with_integer_labels(model(INPUTS), jnp.arange(5) % 3).mean()

        optimizer.update(model, nnx.grad(loss)(model))

    step(model, optimizer)
    return model


@pytest.fixture(scope="module")
def trained() -> str:
    """The folder of a run with averaged weights, whose best step is not its last."""
    run = a_run("digits", normalize="half")
    run = vit_jax.RunConfig(**{**vars(run), "model": VIT, "batch": 64, "epochs": 2, "ema": 0.5, "max_steps": 1})
    images, labels = np.concatenate([IMAGES] * 40), np.arange(200) % 3
    with contextlib.redirect_stdout(io.StringIO()):
        return train(run, data=(images, labels), class_names=["ant", "bee", "cat"], preset="run")["folder"]


def network(config):
    """An untrained network; its own constructor would draw its values one by one."""
    return merge(definition(config), start(config, jax.random.key(0)))


def weights(model) -> dict:
    return {name: np.asarray(x) for name, x in flatten(split_model(model)[1]).items()}


def same(a: dict, b: dict) -> bool:
    return a.keys() == b.keys() and all(np.array_equal(a[name], b[name]) for name in a)


def test_a_network_of_ones_own_loop_is_loaded_again_with_its_config(own):
    assert [str(path) for path in vit_jax.export(own, "own.safetensors")] == ["own.safetensors"]
    bare = vit_jax.load("own.safetensors")
    assert bare.lacks == ("preprocess",) and to_dict(bare.model.config) == to_dict(VIT)
    assert same(weights(bare.model), weights(own)) and same(load_file("own.safetensors"), weights(own))
    vit_jax.export(own, "known.safetensors", fields=NORMAL, class_names=["ant", "bee", "cat"])
    net = vit_jax.load("known.safetensors")
    assert net.class_names == ("ant", "bee", "cat")
    assert net.logits(IMAGES) == pytest.approx(np.asarray(own(INPUTS)), abs=1e-5)


def test_a_loaded_network_takes_its_preprocessing_and_class_names_along(trained):
    net = vit_jax.load(trained)
    for path, to in (("loaded.safetensors", "vit-jax"), ("loaded-timm", "timm"), ("loaded-run", "vit-jax")):
        vit_jax.export(net, path, to)
        again = vit_jax.load(path)
        assert again.preprocess == net.preprocess and again.class_names == net.class_names == ("ant", "bee", "cat")
        assert same(weights(again.model), weights(net.model))
        assert np.array_equal(again.logits(IMAGES), net.logits(IMAGES))
    vit_jax.export(net, "renamed.safetensors", class_names=["x", "y", "z"])
    assert vit_jax.load("renamed.safetensors").class_names == ("x", "y", "z")
    vit_jax.export(vit_jax.load("own.safetensors"), "bare.safetensors")
    assert same(load_file("bare.safetensors"), load_file("own.safetensors"))


@pytest.mark.parametrize(
    "which, ema, flags", [("best", None, []), ("last", False, ["--step", "last", "--key", "model"])]
)
def test_a_runs_path_is_written_as_the_command_writes_it(trained, which, ema, flags, tmp_path, convert):
    vit_jax.export(trained, tmp_path / "a", to="timm", which=which, ema=ema)
    assert convert(trained, tmp_path / "b", "--to", "timm", *flags)[0] == 0
    files = sorted(path.name for path in (tmp_path / "a").iterdir())
    assert files == sorted(path.name for path in (tmp_path / "b").iterdir())
    assert all((tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes() for name in files)
    assert same(weights(vit_jax.load(tmp_path / "a").model), weights(vit_jax.load(trained, which, ema).model))
    vit_jax.export(runs.Run(trained).path.name, tmp_path / "named.safetensors")  # a name inside runs/


def test_an_export_carries_weights_and_no_optimizer(trained):
    vit_jax.export(trained, "weights-only")
    assert runs.Run("weights-only").complete_steps() == [0]
    assert same(weights(vit_jax.load("weights-only").model), weights(vit_jax.load(trained).model))


def test_what_was_exported_says_where_from(own, trained):
    vit_jax.export(own, "one", to="timm", fields=NORMAL)
    source = json.loads(runs.Run("one").path.joinpath("provenance.json").read_text())["source"]
    assert source["name"] == "a network in Python" and source["layout"] == "vit-jax@vit"
    vit_jax.export(jax.tree.map(lambda x: x + 1, own), "two.npz", to="timm")
    hashes = {json.loads(open(path).read())["source"]["sha256"] for path in ("one/provenance.json", "two.npz.json")}
    assert len(hashes) == 2, "the hash is that of the arrays"


REFUSED = {
    "an existing file": (lambda own: (own, "taken.safetensors"), {}, "taken.safetensors: exists; choose another name"),
    "no layout": (lambda own: (own, "x", "tim"), {}, "^to tim: there is no such layout.*timm"),
    "no container": (lambda own: (own, "x.h5"), {}, "x.h5"),
    "no network": (lambda own: (nnx.Linear(2, 3, rngs=nnx.Rngs(0)), "x"), {}, "Linear is none; give a model"),
    "nothing there": (lambda own: ("nowhere", "x"), {}, "nowhere: no such file, folder or run"),
    "two names": (lambda own: (own, "x"), {"class_names": ["a", "b"]}, "there are 2 and the network has 3 classes"),
    "no field": (lambda own: (own, "x"), {"fields": {"heads": 2}}, "fields: 'heads' is not a field of this network"),
    "half of it": (lambda own: (own, "x", "timm"), {"fields": {"mean": 0.5}}, "mean and std belong together"),
    "another function": (
        lambda own: (own, "x.npz", "augreg"), {}, "activation is 'gelu'.*`adapt activation=gelu_tanh` "
    ),
    "no mean": (lambda own: (own, "x"), {}, r"a run has to state how .*; give `fields mean=\.\.\. std="),
    "another kind": (lambda own: (own, "x", "marian"), {}, "cannot become marian.*: it holds a Transformer"),
    "not numbers": (
        lambda own: (jax.tree.map(lambda x: x * np.nan, own), "x.safetensors"), {}, "NaN or inf.*; take other"
    ),
    "no such weights": (lambda own: ("run", "x", "timm", "bset"), {}, "^which is 'bset': choose best, last"),
    "no average": (lambda own: ("plain", "x", "timm", "best", True), {}, "keeps no averaged weights"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_refused_is_one_sentence_and_leaves_nothing(own, trained, case):
    arguments, options, says = REFUSED[case]
    open("taken.safetensors", "w").close()
    if case == "no average":
        vit_jax.export(own, "plain", fields=NORMAL)
    before = sorted(path.name for path in runs.Run(".").path.iterdir())
    with pytest.raises(UserError, match=says) as told:
        vit_jax.export(*arguments(own), **options)
    assert len(str(told.value).splitlines()) == 1 and "--set" not in str(told.value)
    assert sorted(path.name for path in runs.Run(".").path.iterdir()) == before


@pytest.mark.parametrize(
    ("to", "count", "biased"), [("timm", 3, True), ("vit-jax", 3, False), ("huggingface", 0, True)]
)
def test_a_network_with_a_new_head_is_written_with_it(tmp_path, to, count, biased):
    vit = vit_jax.build("vit-ti4", classes=5, image=8, depth=1, width=8, heads=2, hidden=8)
    vit.head = nnx.Linear(8, count, use_bias=biased, rngs=nnx.Rngs(1)) if count else None
    vit_jax.export(vit, tmp_path / "new", to=to, fields={"mean": [0.5] * 3, "std": [0.5] * 3})
    images = np.random.default_rng(0).normal(size=(2, 8, 8, 3)).astype(np.float32)
    np.testing.assert_allclose(vit_jax.load(tmp_path / "new").model(images), vit(images), atol=1e-6)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            lambda net: setattr(net.model, "head", nnx.Linear(8, 3, rngs=nnx.Rngs(0))),
            "class_names: there are 5 and the network has 3",
        ),
        (lambda net: setattr(net.model, "head", nnx.Sequential(net.model.head)), "head is an nnx.Linear named head"),
        (lambda net: setattr(net.model, "norm", None), r"norm.\w+ is absent, and by its config \[8\].*network.config"),
    ],
)
def test_what_a_changed_network_lacks_is_said(tmp_path, change, said):
    names = list("abcde")
    vit = vit_jax.build("vit-ti4", classes=5, image=8, depth=1, width=8, heads=2, hidden=8)
    vit_jax.export(vit, tmp_path / "old", to="timm", class_names=names, fields={"mean": [0.5] * 3, "std": [0.5] * 3})
    net = vit_jax.load(tmp_path / "old")
    change(net)
    with pytest.raises(UserError, match=said):
        vit_jax.export(net, tmp_path / "new", to="timm")
