"""What is learned of an image, a class, a set of labels or numbers: labels, losses, runs, answers."""

import numpy as np
import pytest

import vit_jax
from vit_jax.data.folds import Positives, hold_out_groups
from vit_jax.data.images.sources.label_arrays import typed_labels
from vit_jax.errors import UserError
from vit_jax.runs.values import with_fields

EYE = np.eye(3, dtype=int)


@pytest.mark.parametrize(
    ("labels", "target", "kind"),
    [
        ([0, 2, 1], "", "class"),
        ([[0], [2], [1]], "", "class"),
        ([[1, 1], [0, 0], [1, 0]], "", "set"),
        ([[True, True], [False, False], [True, False]], "", "set"),
        ([[1, -1], [0, 0], [1, 0]], "", "set"),
        ([[0.5], [1.0], [2.0]], "", "number"),
        ([[0.5, 1.0], [1.0, 2.0], [2.0, 3.0]], "", "number"),
        ([0, 2, 1], "number", "number"),
        ([0.0, 2.0, 1.0], "class", "class"),
        (EYE, "class", "class"),
        (EYE, "set", "set"),
        ([[1.0, np.nan], [0.0, 0.0], [1.0, 0.0]], "set", "set"),
        ([True, False, True], "set", "set"),
    ],
)
def test_arrays_of_labels_are_of_one_kind(labels, target, kind):
    labels = np.array(labels)
    found, typed = typed_labels("data", "labels", labels, 3, target)
    assert found == kind
    assert typed.dtype == {"class": np.int32, "set": np.int8, "number": np.float64}[kind]
    if kind == "class":
        assert typed.tolist() == (labels.argmax(1) if labels.shape == (3, 3) else labels.reshape(3)).tolist()
    else:
        np.testing.assert_array_equal(typed, np.where(np.isnan(labels.reshape(3, -1)), -1, labels.reshape(3, -1)))


@pytest.mark.parametrize(
    ("labels", "target", "said"),
    [
        (EYE, "", "one 1 in each row; say what they are: --data.target class .* or --data.target set"),
        (EYE.astype(float), "", "--data.target class .* or --data.target set .* or --data.target number"),
        (
            [0.0, 2.0, 1.0],
            "",
            "all are whole numbers; say what they are: --data.target class .* or --data.target number",
        ),
        ([True, False, True], "", "--data.target class .* or --data.target set"),
        ([[1, 5], [0, 0], [1, 0]], "", "has 2 whole numbers in a row; say what they are: --data.target number"),
        ([[1, 5], [0, 0], [1, 0]], "set", "has 5 in row 0, column 1; give 1 where a label is there"),
        ([[1, -1], [-1, -1], [1, 1]], "", "of -1 and 1 without any 0"),
        ([[1, 1], [0, 0], [1, 0]], "class", "one class an image, or one 1 in each row"),
        ([0.5, 2.0, 1.0], "class", "has 0.5 in row 0; number the classes from 0"),
        ([0.5, np.nan, 1.0], "number", "has nan in row 1; leave these images out"),
        ([[1.0, np.inf], [0.0, 0.0], [1.0, 0.0]], "set", "has inf in row 0, column 1"),
        ([0, -1, 1], "", "go from -1 to 1"),
        (["a", "b", "c"], "", "is <U1"),
        ([0, 1], "", r"is int64 of shape \[2\]; give one integer for each of the 3 images"),
    ],
)
def test_labels_that_could_be_two_things_or_none_are_asked_about(labels, target, said):
    with pytest.raises(UserError, match=said):
        typed_labels("data", "labels", np.array(labels), 3, target)


def test_a_part_held_out_has_its_share_of_each_label():
    draw = np.random.default_rng(0)
    members = draw.random((1000, 6)) < [0.003, 0.01, 0.05, 0.2, 0.5, 0.9]
    stay, held = hold_out_groups(1000, Positives(*np.nonzero(members)), None, 0.2, 1)
    assert sorted([*stay, *held]) == [*range(1000)] and len(held) == 200
    wanted, found = 0.2 * members.sum(0), members[held].sum(0)
    assert (np.abs(found - wanted) <= np.maximum(1, 0.1 * wanted)).all(), (found, wanted)
    assert members[stay].any(0).all()


def images_of(y: np.ndarray) -> np.ndarray:
    """uint8 [n, 4, 4, 1], by 3 bits: the first of some rows is bright, and so on."""
    draw = np.random.default_rng(0)
    out = draw.integers(0, 60, (len(y), 4, 4, 1))
    for k in range(3):
        out[:, k] += (150 * ((y >> k) & 1))[:, None, None]
    return out.astype(np.uint8)


CODES = np.random.default_rng(1).integers(0, 8, 200)
BITS = (CODES[:, None] >> np.arange(3)) & 1
OF = {
    "class": (CODES, "accuracy", 0.9),
    "set": (np.where(np.random.default_rng(2).random((200, 3)) < 0.1, -1, BITS), "map", 0.95),
    "number": (np.stack([1e6 + 100.0 * CODES, 0.5 * BITS[:, 2] - 3], 1), "r2", 0.9),
}


@pytest.mark.parametrize("kind", OF)
def test_a_run_of_each_kind_learns_is_measured_and_answers(kind, tmp_path):
    labels, metric, least = OF[kind]
    images, folder = images_of(CODES), tmp_path / kind
    run = with_fields(
        vit_jax.preset("digits").run,
        {
            **{"model.image": 4, "model.classes": 0, "model.depth": 1, "model.width": 32, "model.heads": 2},
            **{"epochs": 12, "batch": 16, "dir": str(tmp_path), "name": kind, "loss.label_smoothing": 0.0},
        },
    )
    summary = vit_jax.train(run, data=(images, labels))
    assert summary["test"]["best"][metric] > least
    model = vit_jax.load(folder)
    assert model.outputs.kind == kind and model.run.data.target == kind and model.run.loss.name
    assert vit_jax.evaluate(folder, data=(images, labels))[1].metrics == pytest.approx(summary["test"]["best"])
    said = model.predict(images[:3], top=8)
    if kind == "class":
        assert [dict(each)[str(CODES[i])] > 0.5 for i, each in enumerate(said)] == [True] * 3
    elif kind == "set":
        assert [{name for name, _ in each} for each in said] == [{str(k) for k in np.flatnonzero(x)} for x in BITS[:3]]
    else:
        np.testing.assert_allclose([dict(each)["0"] for each in said], labels[:3, 0], atol=120)
        assert vit_jax.load(folder).outputs.mean[0] == pytest.approx(1e6 + 350, abs=30)
