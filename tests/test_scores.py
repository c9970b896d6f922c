"""What predictions are worth: compared with scikit-learn, with definitions summed up in loops, and with known cases."""

import itertools

import numpy as np
import pytest
from sklearn import metrics as sk
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.calibration import CalibratedClassifierCV
from sklearn.frozen import FrozenEstimator

from vit_jax.scores.calibration import PARTED, USELESS, class_temperature, error_of_drawn, reliability, set_temperature
from vit_jax.scores.classes import balanced_accuracy, choose_thresholds, rank, rank_classes, score_labels
from vit_jax.scores.intervals import bootstrap
from vit_jax.scores.numbers import score_numbers
from vit_jax.scores.rouge import NAMES, rouge
from vit_jax.scores.suspects import suspect_classes, suspect_labels


@pytest.fixture
def draw():
    return np.random.default_rng(0)


def softmax(z):
    e = np.exp(z - z.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def sigmoid(z):
    return 1 / (1 + np.exp(-z))


def drawn_set(draw, n=200, labels=5):
    """Truth int8 [n, labels] and probabilities float32 with many ties."""
    truth = (draw.random((n, labels)) < [0.5, 0.2, 0.1, 0.4, 0.3][:labels]).astype(np.int8)
    return truth, np.clip(np.round(0.4 * truth + 0.5 * draw.random((n, labels)), 2), 0, 1).astype(np.float32)


def reference(truth, said, p):
    """The metrics of a set by scikit-learn."""
    found = {}
    for average in ("macro", "micro", "samples"):
        values = sk.precision_recall_fscore_support(truth, said, average=average, zero_division=0)
        found |= {f"{name}_{average}": x for name, x in zip(("precision", "recall", "f1"), values, strict=False)}
    found |= {"subset_accuracy": sk.accuracy_score(truth, said), "hamming": sk.hamming_loss(truth, said)}
    return found | {"map": sk.average_precision_score(truth, p), "auroc_macro": sk.roc_auc_score(truth, p)}


def test_the_metrics_of_a_set_are_scikit_learns(draw):
    truth, p = drawn_set(draw)
    found = score_labels(truth, p, 0.5)
    assert found.values == pytest.approx(reference(truth, p > 0.5, p), abs=1e-12)
    each = sk.precision_recall_fscore_support(truth, p > 0.5, average=None)
    for name, values in zip(("precision", "recall", "f1"), each, strict=False):
        np.testing.assert_allclose(found.each[name], values, atol=1e-12)


def test_unknown_cells_count_nowhere(draw):
    """Every metric with unknown cells equals what its definition gives over the known ones alone."""
    truth, p = drawn_set(draw, 60, 4)
    truth[draw.random(truth.shape) < 0.3] = -1
    truth[:2] = -1  # of these nothing is known
    found = score_labels(truth, p, np.array([0.5, 0.4, 0.3, 0.6]))
    said, known = p.astype(float) > [0.5, 0.4, 0.3, 0.6], truth >= 0
    for k in range(4):
        rows = known[:, k]
        assert found.each["f1"][k] == pytest.approx(sk.f1_score(truth[rows, k], said[rows, k]))
        assert found.each["auroc"][k] == pytest.approx(sk.roc_auc_score(truth[rows, k], p[rows, k]))
    assert found.values["f1_micro"] == pytest.approx(sk.f1_score(truth[known], said[known]))
    assert found.values["hamming"] == pytest.approx((truth[known] != said[known]).mean())
    images = [i for i in range(60) if known[i].any()]
    right = [(truth[i, known[i]] == said[i, known[i]]).all() for i in images]
    assert found.values["subset_accuracy"] == pytest.approx(np.mean(right))
    each = [sk.f1_score(truth[i, known[i]], said[i, known[i]], zero_division=0) for i in images]
    assert found.values["f1_samples"] == pytest.approx(np.mean(each))


def test_a_label_that_no_image_has_is_left_out_of_means_and_said(draw):
    truth, p = drawn_set(draw)
    truth[:, 3] = 0
    found, present = score_labels(truth, p, 0.5), [0, 1, 2, 4]
    assert found.values["map"] == pytest.approx(sk.average_precision_score(truth[:, present], p[:, present]))
    assert found.values["f1_macro"] == pytest.approx(sk.f1_score(truth, p > 0.5, average="macro", labels=present))
    assert np.isnan(found.each["average_precision"][3]) and np.isnan(found.each["recall"][3])
    over_all = sk.f1_score(truth, p > 0.5, average="macro", zero_division=0)
    with pytest.warns(UserWarning, match="No positive"):
        as_0 = sk.average_precision_score(truth, p)
    assert "over 4 of 5 labels, since no image here has the others; over all" in found.notes[0]
    assert f"f1_macro is {over_all:.4f} and map {as_0:.4f}" in found.notes[0]


def test_images_without_labels_are_counted_as_scikit_learn_does_and_said():
    truth, p = np.zeros((12, 2), np.int8), np.full((12, 2), 0.1)
    truth[:9, 0], p[:3] = 1, 0.9
    found = score_labels(truth, p)
    assert found.values["f1_samples"] == pytest.approx(sk.f1_score(truth, p > 0.5, average="samples", zero_division=0))
    lenient = sk.f1_score(truth, p > 0.5, average="samples", zero_division=1)
    assert found.notes[-1].startswith("3 of 12 images") and found.notes[-1].endswith(f"f1_samples is {lenient:.4f}")


@pytest.mark.parametrize(
    ("truth", "p", "why"),
    [
        ([[0, 0], [0, 0]], [[0.2, 0.3], [0.1, 0.4]], "no image here has the label"),
        ([[1, 1], [1, 1]], [[0.2, 0.3], [0.1, 0.4]], "no label is both of some images and not of others"),
        ([[-1, -1], [-1, -1]], [[0.2, 0.3], [0.1, 0.4]], "no image here has the label"),
        ([[0, 1], [1, 0]], [[0.2, np.nan], [0.1, 0.4]], "1 of 2 images have an output that is NaN or infinite"),
    ],
    ids=["absent", "everywhere", "unknown", "NaN"],
)
def test_what_is_undefined_has_its_reason(truth, p, why):
    found = score_labels(np.array(truth, np.int8), np.array(p))
    assert why in found.undefined.values() and {*found.undefined} == {k for k, v in found.values.items() if np.isnan(v)}


def test_ranks_are_those_of_their_definitions(draw):
    truth, p = drawn_set(draw, 60, 3)
    for k in range(3):
        with_label, without = p[truth[:, k] == 1, k], p[truth[:, k] == 0, k]
        pairs = [(a > b) + (a == b) / 2 for a in with_label for b in without]
        assert rank(truth, p).each["auroc"][k] == pytest.approx(np.mean(pairs), abs=1e-12)
        area, before = 0.0, 0.0
        for threshold in sorted({*p[:, k]}, reverse=True):
            said = p[:, k] >= threshold
            recall, precision = truth[said, k].sum() / len(with_label), truth[said, k].mean()
            area, before = area + (recall - before) * precision, recall
        assert rank(truth, p).each["average_precision"][k] == pytest.approx(area, abs=1e-12)
    constant = np.full((60, 3), 0.5)
    np.testing.assert_allclose(rank(truth, constant).each["average_precision"], truth.mean(0))
    np.testing.assert_allclose(rank(truth, constant).each["auroc"], 0.5)


def test_classes_are_ranked_against_the_rest_and_absent_ones_left_out(draw):
    labels, z = draw.integers(0, 4, 150), draw.normal(size=(150, 5))  # there is no image of class 4
    z[np.arange(150), labels] += 1
    p = softmax(z)
    found, true = rank_classes(labels, p), labels[:, None] == np.arange(4)
    assert found.values["auroc_macro"] == pytest.approx(sk.roc_auc_score(true, p[:, :4], average="macro"))
    assert found.values["ap_macro"] == pytest.approx(sk.average_precision_score(true, p[:, :4]))
    assert found.notes == ["ap_macro and auroc_macro are over the 4 of 5 classes that have an image here"]
    confusion = sk.confusion_matrix(labels, p.argmax(1), labels=range(5))
    assert balanced_accuracy(confusion) == pytest.approx(
        sk.recall_score(labels, p.argmax(1), average="macro", labels=range(4))
    )


def test_the_metrics_of_numbers_are_those_of_the_libraries(draw):
    from scipy.stats import pearsonr, spearmanr

    truth = draw.normal(size=(80, 3)) * [1, 30, 5] + [0, 1000, 3]
    truth[:40, 2] = 2.0  # ties
    predicted = truth + draw.normal(size=truth.shape) * [0.5, 10, 9]
    found = score_numbers(truth, predicted, np.array([1.0, 30, 5]), "abc")
    raw = {"multioutput": "raw_values"}
    expected = {
        "mae": sk.mean_absolute_error(truth, predicted, **raw),
        "rmse": sk.root_mean_squared_error(truth, predicted, **raw),
        "r2": sk.r2_score(truth, predicted, **raw),
        "pearson": np.array([pearsonr(truth[:, k], predicted[:, k])[0] for k in range(3)]),
        "spearman": np.array([spearmanr(truth[:, k], predicted[:, k])[0] for k in range(3)]),
    }
    for name, values in expected.items():
        np.testing.assert_allclose(found.each[name], values, rtol=1e-12)
        assert found.values[name] == pytest.approx(values.mean())
    assert found.values["rmse"] == pytest.approx(sk.root_mean_squared_error(truth, predicted))  # a mean of roots
    scaled = sk.root_mean_squared_error(truth / [1, 30, 5], predicted / [1, 30, 5], **raw)
    assert found.values["rmse_scaled"] == pytest.approx(np.sqrt((scaled**2).mean()))


@pytest.mark.parametrize(
    ("truth", "predicted", "undefined", "why"),
    [
        ([[3.0], [3.0]], [[3.0], [2.0]], {"r2", "pearson", "spearman"}, "all 2 images have the same value of a"),
        ([[0.1]] * 3, [[0.1], [0.2], [0.3]], {"r2", "pearson", "spearman"}, "all 3 images have the same value of a"),
        ([[3.0], [4.0]], [[3.0], [3.0]], {"pearson", "spearman"}, "all predictions are the same"),
        ([[3.0]], [[3.0]], {"r2", "pearson", "spearman"}, "there is but one image"),
        ([[3.0], [4.0]], [[np.nan], [3.0]], {"mae", "rmse", "r2", "pearson", "spearman"}, "NaN or infinite"),
    ],
    ids=["constant", "constant of no exact mean", "predictions", "one image", "NaN"],
)
def test_undefined_metrics_of_numbers_have_their_reason(truth, predicted, undefined, why):
    found = score_numbers(np.array(truth), np.array(predicted), np.ones(1), "a")
    assert {*found.undefined} == undefined and all(why in each for each in found.undefined.values())


def test_thresholds_have_the_greatest_f1_of_all_and_lie_midway(draw):
    truth, p = drawn_set(draw)
    truth[draw.random(truth.shape) < 0.1] = -1
    chosen = choose_thresholds(truth, p)
    for k, threshold in enumerate(chosen):
        rows = truth[:, k] >= 0
        true, scores = truth[rows, k], p[rows, k].astype(float)
        levels = sorted({0.0, *scores})
        middles = [(a + b) / 2 for a, b in itertools.pairwise(levels)]
        f1 = [sk.f1_score(true, scores > each) for each in middles]
        assert sk.f1_score(true, scores > threshold) == max(f1)
        assert threshold == max(m for m, value in zip(middles, f1, strict=True) if value == max(f1))


def test_a_label_of_few_images_keeps_one_half(draw):
    truth, p = np.zeros((50, 4), np.int8), draw.random((50, 4)) / 3
    truth[:9, 0], truth[:10, 1], truth[:, 2], p[:, 3] = 1, 1, 1, 0.0
    truth[:20, 3] = 1  # of which every probability is 0, as of a network that is sure
    chosen = choose_thresholds(truth, p)
    assert chosen[0] == chosen[2] == chosen[3] == 0.5 != chosen[1]


class Logits(ClassifierMixin, BaseEstimator):
    """A classifier of scikit-learn whose inputs are its logits."""

    def fit(self, z, labels):
        self.classes_ = np.unique(labels)
        return self

    def decision_function(self, z):
        return z

    def predict(self, z):
        return z.argmax(1)


def test_the_temperature_is_scikit_learns(draw):
    """Of classes as scikit-learn finds it, and of a set where the loss is least on a fine grid."""
    z, labels = draw.normal(size=(300, 4)) * 3, draw.integers(0, 4, 300)
    z[np.arange(300), labels] += 4
    found, why = class_temperature(labels, z)
    fixed = FrozenEstimator(Logits().fit(z, labels))
    theirs = CalibratedClassifierCV(fixed, method="temperature", ensemble=False).fit(z, labels)
    assert why == "" and found == pytest.approx(1 / theirs.calibrated_classifiers_[0].calibrators[0].beta_, rel=1e-6)
    assert (softmax(z / found).argmax(1) == z.argmax(1)).all()

    truth = (draw.random((300, 3)) < sigmoid(z[:, :3] / 2)).astype(np.int8)
    truth[:30, 0] = -1
    found, _ = set_temperature(truth, z[:, :3])
    known, grid = truth >= 0, np.linspace(found - 0.01, found + 0.01, 201)  # found is its middle
    nll = [sk.log_loss(truth[known], sigmoid(z[:, :3] / t)[known]) for t in grid]
    assert abs(int(np.argmin(nll)) - 100) <= 1 and 1.5 < found < 2.5


def test_the_ends_of_the_temperature_are_named(draw):
    labels = np.arange(40) % 4
    right = 5.0 * (labels[:, None] == np.arange(4)) + draw.random((40, 4))
    assert class_temperature(labels, right) == (None, PARTED)
    assert class_temperature(labels, -right) == class_temperature(labels, np.zeros((40, 4))) == (None, USELESS)
    truth = (labels[:, None] == np.arange(4)).astype(np.int8)
    assert set_temperature(truth, right - 2.5) == (None, PARTED)
    assert set_temperature(truth, 2.5 - right) == (None, USELESS)
    assert class_temperature(labels, right * np.nan)[1] == "an output on validation is NaN or infinite"
    assert set_temperature(0 * truth - 1, right)[1] == "of no image of validation is any label known"


def test_the_calibration_error_is_its_sum_over_bins(draw):
    p = draw.random(500)
    right = draw.random(500) < p**2
    error = 0.0
    for b in range(15):
        inside = (p > b / 15) & (p <= (b + 1) / 15)
        error += abs(right[inside].sum() - p[inside].sum()) / 500
    found = reliability(p, right)
    assert found.error == pytest.approx(error) and found.counts.sum() == 500
    edges = reliability(np.array([0.0, 0.2, 0.2000001, 1.0]), np.ones(4, bool), 5).counts
    assert edges.tolist() == [2, 1, 0, 0, 1]  # bins are (low, high], and 0 is in the first
    few, many = (error_of_drawn(np.linspace(0.3, 1, n)) for n in (100, 5000))
    assert 0.09 < few < 0.14 and 0.012 < many < 0.022  # what chance alone gives: LABELS has .117 and .018


def test_bootstrap_intervals_are_those_of_the_normal_mean(draw):
    x = draw.normal(size=400)
    low, high = bootstrap(lambda rows: {"mean": x[rows].mean()}, 400, 2000)["mean"]
    half = 1.96 * x.std() / 20
    assert low == pytest.approx(x.mean() - half, abs=0.1 * half)
    assert high == pytest.approx(x.mean() + half, abs=0.1 * half)
    # Ten copies of each value are no more information than one.
    groups = np.repeat(np.arange(40), 10)
    copies = np.repeat(x[:40], 10)
    apart = bootstrap(lambda rows: {"mean": copies[rows].mean()}, 400, 500)["mean"]
    whole = bootstrap(lambda rows: {"mean": copies[rows].mean()}, 400, 500, groups)["mean"]
    assert np.diff(whole) > 2.5 * np.diff(apart)
    seldom = bootstrap(lambda rows: {"x": np.nan if 0 in rows else 1.0, "never": np.nan}, 5, 50)
    assert seldom["x"] == (1.0, 1.0) and np.isnan(seldom["never"]).all()


def confidently_wrong(labels, p):
    """Confident learning as cleanlab publishes it, one image after the other: {image: class}."""
    classes, found = p.shape[1], {}
    usual = [np.mean([row[k] for row, y in zip(p, labels, strict=True) if y == k] or [2.0]) for k in range(classes)]
    for i, (row, y) in enumerate(zip(p, labels, strict=True)):
        confident = [k for k in range(classes) if row[k] >= usual[k] - 1e-6]
        if confident:
            guess = confident[0] if len(confident) == 1 else int(np.argmax(row))
            raised = row.copy()
            raised[y] += 1e-6
            if guess != y and np.argmax(raised) != y:
                found[i] = guess
    return found


def test_suspected_labels_are_those_of_confident_learning(draw):
    """Of 1,000 predictions, of which a tenth has a wrong label, and one class no image at all."""
    true, wrong = draw.integers(0, 5, 1000), draw.random(1000) < 0.1
    labels = np.where(wrong, (true + 1) % 5, true)
    z = draw.normal(size=(1000, 6))
    z[np.arange(1000), true] += 3
    p = softmax(z).astype(np.float32)
    found = suspect_classes(labels, p)
    assert dict(zip(found.images, found.guesses, strict=True)) == confidently_wrong(labels, p.astype(float))
    assert (np.diff(found.probability) >= 0).all() and len(found) > 70
    assert wrong[found.images].mean() > 0.7 and (found.guesses == true[found.images])[:30].all()

    truth = (labels[:, None] == np.arange(3)).astype(np.int8)
    truth[draw.random(truth.shape) < 0.2] = -1
    for k, one in enumerate(suspect_labels(truth, p[:, :3])):
        rows = np.flatnonzero(truth[:, k] >= 0)
        both = np.stack([1 - p[rows, k].astype(float), p[rows, k].astype(float)], 1)
        expected = {rows[i]: guess for i, guess in confidently_wrong(truth[rows, k], both).items()}
        assert dict(zip(one.images, one.guesses, strict=True)) == expected and len(expected) > 10


ROUGE = [  # (text, reference, F1 of ROUGE-1, 2, L and Lsum by rouge-score 0.1.2 without stemming)
    (
        "The cat sat on the mat.\nIt was grey, it was small.",
        "A grey cat sat on a mat, small.\nThe mat was on it.",
        (72.0, 26.086957, 56.0, 72.0),
    ),
    ("no overlap", "completely different", (0, 0, 0, 0)),
    ("Straße naïve 1,000 dogs", "strasse naive 1000 dogs dogs", (16.666667, 0, 16.666667, 16.666667)),
    ("", "a", (0, 0, 0, 0)),
    ("b a b a c", "a b a b c\na a b", (76.923077, 36.363636, 61.538462, 61.538462)),
]


def test_rouge_is_that_of_rouge_score():
    for text, reference, expected in ROUGE:
        assert np.allclose([rouge([text], [reference])[name] for name in NAMES], expected, atol=1e-6), text
    both = rouge([text for text, *_ in ROUGE], [reference for _, reference, _ in ROUGE])
    assert np.allclose([both[name] for name in NAMES], np.mean([row[-1] for row in ROUGE], 0), atol=1e-6)


def test_rouge_is_that_of_rouge_score_on_random_texts():
    scorer = pytest.importorskip("rouge_score.rouge_scorer").RougeScorer(["rouge1", "rouge2", "rougeL", "rougeLsum"])
    rng, words = (
        np.random.default_rng(0),
        ["a", "b", "Dog", "dog's", "straße", "1,000", "x-y", "\n", "The", "日本", "_"],
    )
    for _ in range(300):
        text, reference = (" ".join(rng.choice(words, rng.integers(25))) for _ in range(2))
        theirs = [each.fmeasure * 100 for each in scorer.score(reference, text).values()]
        assert np.allclose([rouge([text], [reference])[name] for name in NAMES], theirs), (text, reference)


def test_the_guess_is_the_class_that_is_confident_though_another_is_more_probable():
    """Class 0 usually has .9, class 1 .3: with .5 and .4 an image is confidently of class 1 alone."""
    p = np.array([[0.9, 0.05, 0.05]] * 2 + [[0.4, 0.3, 0.3]] * 2 + [[0.1, 0.1, 0.8], [0.5, 0.4, 0.1]])
    found = suspect_classes(np.array([0, 0, 1, 1, 2, 2]), p)
    assert (found.images[0], found.guesses[0]) == (5, 1)


def test_a_temperature_below_its_range_is_none_though_an_image_is_wrong():
    logits = np.array([[1e-5, 0.0]] * 9 + [[0.0, 1e-5]])
    assert class_temperature(np.zeros(10, int), logits) == (None, PARTED)


def test_the_calibration_error_of_drawn_labels_is_the_same_in_whichever_order(draw):
    p = draw.random(50)
    assert error_of_drawn(p) == error_of_drawn(p[::-1]) == error_of_drawn(draw.permutation(p))
