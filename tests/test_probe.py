"""Probes of features: against scikit-learn and DINO's own vote on the same features; on any data; what is refused."""

import csv
import json
import shutil
from types import SimpleNamespace

import jax
import numpy as np
import pytest
from PIL import Image
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import accuracy_score
from sklearn.neighbors import KNeighborsClassifier
from threadpoolctl import threadpool_limits

import vit_jax
from vit_jax import runs
from vit_jax.commands import evaluate, probe
from vit_jax.errors import UserError
from vit_jax.models.build import definition, start
from vit_jax.models.state import merge
from vit_jax.models.vit_config import ViTConfig
from vit_jax.tasks.computed import task_class


def export(file, **fields):
    """A network without a head whose weights were drawn and never trained: of the digits it tells nine in ten."""
    c = ViTConfig(channels=1, patch=4, classes=0, depth=1, heads=2, hidden=32, cls_token=False, pool="mean", **fields)
    model = merge(definition(c), start(c, jax.random.key(0)))
    vit_jax.export(model, file, fields={"mean": [0.3], "std": [0.4]})


@pytest.fixture(scope="module", autouse=True)
def place(tmp_path_factory, digits_run, quick_compilation):
    """A folder with a trained run of the digits, a network for digits, and one for other images."""
    folder = tmp_path_factory.mktemp("probe")
    with pytest.MonkeyPatch.context() as patch, threadpool_limits(1):
        patch.chdir(folder)
        shutil.copytree(digits_run, folder / "runs" / "digits")
        export("bare.safetensors", image=8, width=32)
        export("oblong.safetensors", image=(8, 12), width=16)
        yield folder


@pytest.fixture(scope="module")
def splits(place):
    """{split of the digits: (features float [n, 32], labels int [n])}, of the network that was never trained."""
    net, run = vit_jax.load("bare.safetensors"), runs.find("digits").config()
    data = task_class(run.task).open_data(run)
    return {
        name: (net.capture(split.take(np.arange(len(split))), ["pooled"])["pooled"], split.labels)
        for name, split in data.splits.items()
    }


def dino_vote(train, labels, test, classes, k=20, temperature=0.07):
    """The weighted vote of DINO's eval_knn.py, example by example in float64."""
    train, test = (x / np.linalg.norm(x, axis=1, keepdims=True) for x in (np.float64(train), np.float64(test)))
    votes = np.zeros((len(test), classes))
    for row, similarity in zip(votes, test @ train.T, strict=True):
        for i in np.argsort(-similarity, kind="stable")[:k]:
            row[labels[i]] += np.exp(similarity[i] / temperature)
    return votes


def test_knn_is_dinos_vote_and_scikit_learns(splits):
    (train, labels), (test, truth) = splits["train"], splits["test"]
    votes = dino_vote(train, labels, test, 10)
    theirs = KNeighborsClassifier(
        20, metric="cosine", weights=lambda distance: np.exp((1 - distance) / 0.07), algorithm="brute"
    ).fit(np.float64(train), labels)
    found = probe.knn(np.float64(train), labels).scores(np.float64(test), 10)
    np.testing.assert_allclose(found, votes / votes.sum(1, keepdims=True), atol=1e-9)
    assert (found.argmax(1) == theirs.predict(np.float64(test))).all()
    _, result = vit_jax.evaluate("bare.safetensors", source="digits", probe="knn")
    assert result.metrics["accuracy"] == pytest.approx(theirs.score(np.float64(test), truth), abs=3e-3) != 0
    first = np.argsort(-votes, axis=1, kind="stable")[:, :5]  # of classes without a vote those of the lowest numbers
    assert result.metrics["accuracy_top5"] == pytest.approx((first == truth[:, None]).any(1).mean(), abs=3e-3)
    assert result.confidence == pytest.approx(found.max(1), abs=1e-2)  # float32 may choose among equally near ones
    assert "loss" not in result.metrics and result.chosen == {"k": 20, "temperature": 0.07}
    assert result.notes[0].startswith("the 20 nearest of 1,294 images of train vote")


def test_linear_is_scikit_learns_with_the_best_c_of_validation(splits):
    (train, labels), (unseen, its), (test, truth) = (splits[name] for name in ("train", "validation", "test"))
    train, unseen, test = map(np.float64, (train, unseen, test))
    found = probe.linear(train, labels, unseen, its)
    theirs = LogisticRegression(C=found.chosen["C"], max_iter=1000).fit(train, labels)
    np.testing.assert_allclose(found.scores(test, 10), theirs.predict_proba(test), atol=1e-9)
    assert found.chosen["chosen_accuracy"] == theirs.score(unseen, its) > 0.8
    for power in range(-6, 7, 2):
        other = LogisticRegression(C=10.0**power, max_iter=1000).fit(train, labels)
        assert other.score(unseen, its) <= found.chosen["chosen_accuracy"]
    _, result = vit_jax.evaluate("bare.safetensors", source="digits", probe="linear")
    assert result.metrics["accuracy"] == pytest.approx(accuracy_score(truth, theirs.predict(test)), abs=2e-2) != 0
    assert "chosen on validation" in result.notes[0] and " values from 1e-06 to 1e+06" in result.notes[0]


def test_c_is_searched_for_as_in_clip_and_of_equal_ones_it_is_the_smallest(monkeypatch):
    """By a regression whose accuracy on validation is known of each C."""
    import sklearn.linear_model

    tried = []

    class Known:
        def __init__(self, C, max_iter):
            self.power, self.n_iter_ = np.log10(C), np.array([max_iter])

        def fit(self, features, labels):
            tried.append(self.power)
            return self

        def score(self, features, labels):
            return 1 - max(0.0, abs(self.power - 0.8) - 0.3)  # as good from 0.5 to 1.1

    monkeypatch.setattr(sklearn.linear_model, "LogisticRegression", Known)
    found = probe.linear(np.zeros((4, 1)), np.arange(4), np.zeros((4, 1)), np.arange(4))
    coarse, fine = tried[:7], tried[7:]
    assert coarse == pytest.approx([-6, -4, -2, 0, 2, 4, 6]) and len(fine) == 8
    assert np.log10(found.chosen["C"]) == pytest.approx(0.5)
    assert "stopped after 1,000 iterations, before it had converged" in found.notes[1]


def test_without_a_validation_split_a_tenth_of_train_is_held_out_by_class():
    rng = np.random.default_rng(0)
    labels = np.repeat(np.arange(4), 50)
    split = SimpleNamespace(labels=labels, features=rng.normal(size=(200, 6)) + 3 * np.eye(4, 6)[labels])
    learnt = probe.learn_probe("linear", lambda split: split.features, {"train": split}, seed=3)
    assert "on 180 images of train" in learnt.notes[0] and "chosen on 20 other images of train" in learnt.notes[0]
    assert learnt.scores(split.features, 5).shape == (200, 5) and (learnt.scores(split.features, 5)[:, 4] == 0).all()
    few = SimpleNamespace(labels=labels[::60], features=split.features[::60])
    with pytest.raises(UserError, match="4 images of train are too few to hold some out: give more, or take `probe k"):
        probe.learn_probe("linear", lambda split: split.features, {"train": few}, seed=3)


def test_fewer_images_than_neighbours_all_vote():
    rng = np.random.default_rng(0)
    found = probe.knn(rng.normal(size=(5, 3)).astype(np.float32), np.array([0, 2, 2, 4, 4]))
    scores = found.scores(rng.normal(size=(2, 3)).astype(np.float32), 6)
    assert found.chosen["k"] == 5 and "train has only 5 images, so all of them vote, not 20" in found.notes[1]
    assert scores.sum(1) == pytest.approx([1, 1]) and (scores[:, [1, 3, 5]] == 0).all()


def folder_of_shapes(place, count=24):
    """Class folders of images with a bright half: left, right, upper; each as many images."""
    rng = np.random.default_rng(0)
    for name, half in {"left": np.s_[:, :6], "right": np.s_[:, 6:], "upper": np.s_[:4]}.items():
        (place / name).mkdir(parents=True)
        for i in range(count):
            pixels = rng.integers(0, 60, (8, 12), np.uint8)
            pixels[half] += 150
            Image.fromarray(pixels).save(place / name / f"{i}.png")
    return f"folder:{place}"


@pytest.mark.parametrize("kind", ["knn", "linear"])
@pytest.mark.parametrize("weights", ["oblong.safetensors", "digits"])
def test_any_weights_are_probed_on_any_classes(weights, kind, tmp_path, capsys):
    """Without a head, or with one of other classes; the data is split as training splits it."""
    source, out = folder_of_shapes(tmp_path / "halves"), tmp_path / "out.csv"
    arguments = [weights, "--data.source", source, "--probe", kind, "--csv", str(out), "--report", str(tmp_path / "r")]
    assert evaluate.command(arguments) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].endswith(f"test of {source}, probe {kind}: 14 examples")
    assert any(line.startswith("  note: ") and "images of train" in line for line in lines)
    rows = list(csv.DictReader(out.open(newline="")))
    assert len(rows) == 14 and all(f"/{row['true']}/" in row["file"] for row in rows)
    right = np.mean([row["true"] == row["predicted"] for row in rows])
    assert f"  accuracy           {right:.4f}" in lines and right > 0.9
    assert not any("top5" in line or "loss" in line for line in lines)
    told = json.loads((tmp_path / "r/metrics.json").read_text())
    assert told["metrics"]["accuracy"] == right and told["chosen"] and "confusion.png" in lines[-1]
    assert {*np.unique([row["predicted"] for row in rows])} <= {"left", "right", "upper"}


def test_a_copy_of_the_run_s_data_is_split_as_in_the_run(tmp_path):
    digits = load_digits()
    pixels = np.rint(digits.images * (255 / 16)).astype(np.uint8)
    np.savez(tmp_path / "copy.npz", images=pixels, labels=digits.target)
    own = vit_jax.evaluate("digits", probe="knn")[1]
    for how in ({"source": str(tmp_path / "copy.npz")}, {"data": (pixels, digits.target)}):
        assert (vit_jax.evaluate("digits", probe="knn", **how)[1].predicted == own.predicted).all()
    given = {"train": (pixels[:100], digits.target[:100]), "test": (pixels[100:160], digits.target[100:160])}
    assert len(vit_jax.evaluate("bare.safetensors", probe="linear", data=given)[1].predicted) == 60


def test_the_split_that_was_chosen_on_can_be_measured_but_not_train(splits):
    _, result = vit_jax.evaluate("bare.safetensors", "validation", source="digits", probe="linear")
    assert result.metrics["accuracy"] == result.chosen["chosen_accuracy"]
    assert len(result.predicted) == len(splits["validation"][1])
    with pytest.raises(UserError, match="split is train, which a probe learns from; choose validation or test"):
        vit_jax.evaluate("digits", "train", probe="linear")
    with pytest.raises(UserError, match="there is no split 'tset'; choose validation or test"):
        vit_jax.evaluate("digits", "tset", probe="knn")


def test_what_is_refused(tmp_path):
    with pytest.raises(UserError, match="flip needs the network's own answers, and a probe takes their place"):
        evaluate.command(["digits", "--probe", "knn", "--flip"])
    with pytest.raises(UserError, match="--probe kmeans: choose one of none, knn, linear"):
        evaluate.command(["digits", "--probe", "kmeans"])
    with pytest.raises(UserError, match="probe is 'liner': choose none, knn or linear"):
        vit_jax.evaluate("digits", probe="liner")
    with pytest.raises(UserError, match="beam is 3, but this network generates nothing"):
        evaluate.command(["digits", "--probe", "knn", "--beam", "3"])
    with pytest.raises(UserError, match="weights alone have no data of their own"):
        evaluate.command(["bare.safetensors", "--probe", "knn"])
    (tmp_path / "one" / "cat").mkdir(parents=True)
    for i in range(3):
        Image.new("L", (8, 12)).save(tmp_path / "one" / "cat" / f"{i}.png")
    with pytest.raises(UserError, match="its only class is cat; classification needs two or more"):
        evaluate.command(["bare.safetensors", "--probe", "knn", "--data.source", f"folder:{tmp_path / 'one'}"])


def test_features_that_are_not_finite_are_refused():
    data, outputs = SimpleNamespace(splits={"train": 0}), lambda split: {"pooled": np.array([[1.0, np.nan]] * 2)}
    with pytest.raises(UserError, match="features are not finite, so it has diverged"):
        probe.measure_probe("knn", outputs, data, "test", None, SimpleNamespace(seed=0))
