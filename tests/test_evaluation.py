"""Metrics against hand-counted cases and brute force; every example once, whatever the batch."""

from types import SimpleNamespace

import jax
import numpy as np
import pytest
from sklearn.metrics import top_k_accuracy_score

from tests.recurrent import Fixed
from vit_jax.augmentation.config import ImageAugment
from vit_jax.config.outputs import Outputs
from vit_jax.data.images.config import ImageData
from vit_jax.data.images.pixels import Images
from vit_jax.data.images.preprocess import Preprocess
from vit_jax.data.images.sources.arrays import Arrays
from vit_jax.data.images.splits import Split
from vit_jax.kinds import classes as scores
from vit_jax.kinds.classes import Classes
from vit_jax.models.vit_config import ViTConfig
from vit_jax.tasks.classify.learn import Classify
from vit_jax.training.engine.devices import Devices
from vit_jax.training.engine.evaluator import Evaluator

NAMED = Outputs("class", ("a", "b", "c"))


def score(truth, predicted, classes, loss=None):
    truth, predicted, n = np.array(truth), np.array(predicted), len(truth)
    loss = np.zeros(n) if loss is None else np.array(loss)
    return scores.score(truth, predicted, np.full(n, 0.5), loss, np.where(truth == predicted, 0, 1), classes)


def brute_force(truth, predicted, classes):
    """Per class and averaged, one example at a time."""
    each = {"precision": [], "recall": [], "f1": []}
    totals = np.zeros(3)  # true positives, false positives, false negatives
    for k in range(classes):
        tp = sum(t == k and p == k for t, p in zip(truth, predicted, strict=True))
        fp = sum(t != k and p == k for t, p in zip(truth, predicted, strict=True))
        fn = sum(t == k and p != k for t, p in zip(truth, predicted, strict=True))
        totals += tp, fp, fn
        precision = tp / (tp + fp) if tp + fp else 0.0
        recall = tp / (tp + fn) if tp + fn else 0.0
        each["precision"].append(precision)
        each["recall"].append(recall)
        each["f1"].append(2 * precision * recall / (precision + recall) if precision + recall else 0.0)
    tp, fp, fn = totals
    micro = {"precision": tp / (tp + fp), "recall": tp / (tp + fn), "f1": 2 * tp / (2 * tp + fp + fn)}
    averages = {f"{name}_macro": sum(values) / classes for name, values in each.items()} | {
        f"{name}_micro": v for name, v in micro.items()
    }
    return each, averages


def test_a_class_that_is_never_predicted_and_one_that_is_absent(recwarn):
    # Class 2 is never predicted, class 3 is in neither, class 4 is predicted and never true.
    result = score([0, 1, 2, 0], [0, 1, 4, 0], 5)
    assert result.per_class["precision"].tolist() == [1, 1, 0, 0, 0]
    assert result.per_class["recall"].tolist() == [1, 1, 0, 0, 0]
    assert result.per_class["f1"].tolist() == [1, 1, 0, 0, 0]
    assert result.metrics["f1_macro"] == pytest.approx(
        2 / 5
    )  # over all five: the classes of the data, not of the split
    assert result.metrics["balanced_accuracy"] == pytest.approx(2 / 3)  # over the three that have an example
    assert result.confusion.shape == (5, 5) and result.confusion[2, 4] == 1
    assert not [w for w in recwarn if "sklearn" in str(w.filename)]


@pytest.mark.parametrize("seed", range(4))
def test_against_brute_force(seed):
    random = np.random.default_rng(seed)
    classes = int(random.integers(2, 9))
    truth, predicted = random.integers(0, classes, 60), random.integers(0, classes, 60) // 2  # some are never predicted
    result = score(truth, predicted, classes)
    each, averages = brute_force(truth, predicted, classes)
    for name, values in each.items():
        assert result.per_class[name] == pytest.approx(np.array(values), abs=1e-12)
    for name, value in averages.items():
        assert result.metrics[name] == pytest.approx(value, abs=1e-12), name
    for t in range(classes):
        for p in range(classes):
            assert result.confusion[t, p] == ((truth == t) & (predicted == p)).sum()


def test_the_loss_is_summed_in_double_precision():
    loss = np.concatenate([np.full(1, 1e8, np.float32), np.full(10_000, 1.0, np.float32)])
    result = scores.score(np.zeros(10_001, int), np.zeros(10_001, int), loss, loss, loss, 2)
    assert result.metrics["loss"] == (1e8 + 10_000) / 10_001


# -------------------------------------------------------------------------------- a whole split


def numbered(n: int, classes: int = 3) -> Split:
    """n images whose first two pixels hold their number."""
    pixels = np.zeros((n, 8, 8, 1), np.uint8)
    pixels[:, 0, 0, 0], pixels[:, 0, 1, 0] = np.arange(n) // 256, np.arange(n) % 256
    preprocess = Preprocess((8, 8), 1, "crop", 0, "bilinear", 255, (0.0,), (1.0,))
    images = Images(
        Arrays(pixels, (np.arange(n) % classes).astype(np.int32), "train"), preprocess, True, ImageData(threads=1)
    )
    return Split(images, np.arange(n), NAMED)


class Counting(Evaluator):
    """Notes which images it was shown, and answers with a function of the image alone instead of a network's."""

    def __init__(self):
        self.sizes, self.seen = [], []
        self.config = ViTConfig(classes=3)
        self.task = Classify(ImageAugment(), (0.0,), (1.0,), Classes(NAMED))
        self.devices, self.between = Devices(1), lambda: None

    def outputs(self, parameters, batch):
        number = batch["image"][:, 0, 0, 0].astype(int) * 256 + batch["image"][:, 0, 1, 0]
        self.sizes.append(len(number))
        self.seen.append(number)
        return {
            "loss": np.float32(number),
            "predicted": number * 7 % 3,
            "confidence": np.float32(number / 1000),
            "rank": number,
        }


@pytest.mark.parametrize("batch", [1, 7, 100, 103, 512])
def test_every_example_counts_once_with_a_partial_last_batch(batch):
    evaluator = Counting()
    result = evaluator.measure({}, numbered(103), batch)
    assert set(evaluator.sizes) == {batch}  # one shape: the last batch does not compile again
    assert np.concatenate(evaluator.seen)[:103].tolist() == list(range(103))
    assert result.confidence.tolist() == np.float32(np.arange(103) / 1000).tolist()
    assert result.predicted.tolist() == [i * 7 % 3 for i in range(103)]
    assert result.metrics["loss"] == sum(range(103)) / 103
    assert result.confusion.sum() == 103
    assert result.metrics == Counting().measure({}, numbered(103), 10).metrics


def test_top_5_is_counted_exactly_and_agrees_with_accuracy_where_logits_are_equal():
    """Against sorting the logits, which are integers, so that many are equal; and against scikit-learn without them."""
    random = np.random.default_rng(0)
    task = Classify(ImageAugment(), (0.0,), (1.0,), Classes(Outputs("class", tuple("abcdefghi"))))
    for logits in (
        random.integers(-2, 3, (200, 9)).astype(np.float32),
        random.normal(size=(200, 9)).astype(np.float32),
    ):
        labels = random.integers(0, 9, 200)
        batch = {"image": np.zeros((200, 1, 1, 1), np.uint8), "label": labels}
        out = jax.tree.map(np.asarray, task.outputs(Fixed(logits), batch))
        best = [sorted(range(9), key=lambda k, row=row: (-row[k], k)) for row in logits]
        assert out["rank"].tolist() == [order.index(label) for order, label in zip(best, labels, strict=True)]
        metrics = task.score(ViTConfig(classes=9), SimpleNamespace(labels=labels, classes=None), out).metrics
        assert metrics["accuracy"] == (out["rank"] == 0).mean()
        assert metrics["accuracy_top5"] == (out["rank"] < 5).mean()
    assert metrics["accuracy_top5"] == top_k_accuracy_score(labels, logits, k=5, labels=range(9))
    assert "accuracy_top5" not in score([0, 1], [1, 0], 5).metrics and "accuracy_top5" in score([0], [1], 6).metrics


def test_a_network_of_nans_has_nothing_right():
    task = Classify(ImageAugment(), (0.0,), (1.0,), Classes(NAMED))
    batch = {"image": np.zeros((3, 1, 1, 1), np.uint8), "label": np.array([0, 1, 5])}
    out = task.outputs(Fixed(np.full((3, 6), np.nan, np.float32)), batch)
    assert np.asarray(out["rank"]).tolist() == [6, 6, 6]
