"""What is learned of an image, a class, a set of labels or numbers: labels, losses, runs, answers."""

from dataclasses import replace

import numpy as np
import pytest

import vit_jax
from vit_jax.data.base import GivenData
from vit_jax.data.images.config import ImageData
from vit_jax.data.images.open import open_images
from vit_jax.data.order import hold_out_groups
from vit_jax.errors import UserError
from vit_jax.kinds.labels import Positives
from vit_jax.kinds.table import typed_labels
from vit_jax.plugins import Plugin
from vit_jax.presets.images import digits
from vit_jax.presets.table import PRESETS
from vit_jax.runs.values import with_fields
from vit_jax.tasks.classify.learn import Classify
from vit_jax.tasks.classify.spec import ClassifySpec

EYE = np.eye(3, dtype=int)
pytestmark = pytest.mark.usefixtures("without_pictures", "quick_compilation")


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
        (EYE, "", "one 1 in each row; say what they are: `data.target class` .* or `data.target set"),
        (EYE.astype(float), "", "`data.target class` .* or `data.target set` .* or `data.target number"),
        (
            [0.0, 2.0, 1.0],
            "",
            "all are whole numbers; say what they are: `data.target class` .* or `data.target number",
        ),
        ([True, False, True], "", "`data.target class` .* or `data.target set"),
        ([[1, 5], [0, 0], [1, 0]], "", "has 2 whole numbers in a row; say what they are: `data.target number`"),
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
IMAGES = images_of(CODES)
BITS = (CODES[:, None] >> np.arange(3)) & 1
OF = {
    "class": (CODES, "accuracy", 0.9),
    "set": (np.where(np.random.default_rng(2).random((200, 3)) < 0.1, -1, BITS), "map", 0.95),
    "number": (np.stack([1e6 + 100.0 * CODES, 0.5 * BITS[:, 2] - 3], 1), "r2", 0.9),
}


@pytest.mark.slow
def test_a_preset_by_name_takes_labels_of_every_kind(tmp_path, monkeypatch, capsys):
    """One line of Python: the number of outputs is that of the data, and what a preset has of classes alone is left."""
    monkeypatch.chdir(tmp_path)
    images = np.random.default_rng(0).integers(0, 256, (64, 8, 8), np.uint8)
    draw = np.random.default_rng(1)
    every = {"class": draw.integers(0, 3, 64), "set": draw.integers(0, 2, (64, 4)), "number": draw.random(64)}
    monkeypatch.setitem(PRESETS.ours, "digits", Plugin(lambda: in_a_step(digits())))
    for kind, labels in every.items():
        folder = vit_jax.train("digits", data=(images, labels))["folder"]
        outputs = vit_jax.load(folder, which="last").outputs
        assert outputs.kind == kind and len(outputs.names) == {"class": 3, "set": 4, "number": 1}[kind]
    assert "loss.label_smoothing 0.1 has no effect on numbers" in capsys.readouterr().out


def in_a_step(preset):
    return replace(preset, run=replace(preset.run, epochs=1, max_steps=1))


SMALL = {"model.image": 4, "model.classes": 0, "model.depth": 1, "model.width": 32, "model.heads": 2}


def a_run(place, name, **fields):
    return with_fields(
        vit_jax.preset("digits").run,
        {**SMALL, "epochs": 12, "batch": 16, "dir": str(place), "name": name, "loss.label_smoothing": 0.0, **fields},
    )


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """(kind) -> (the folder of a run, its summary); each is trained once."""
    place, found = tmp_path_factory.mktemp("runs"), {}

    def of(kind):
        if kind not in found:
            found[kind] = place / kind, vit_jax.train(a_run(place, kind), data=(IMAGES, OF[kind][0]))
        return found[kind]

    return of


@pytest.mark.parametrize("kind", OF)
def test_a_run_of_each_kind_learns_is_measured_and_answers(kind, trained):
    (labels, metric, least), (_, summary) = OF[kind], trained(kind)
    assert summary["test"]["best"][metric] > least
    model = vit_jax.load(summary)
    assert model.outputs.kind == kind and model.run.data.target == kind and model.run.loss.name
    assert vit_jax.evaluate(summary, data=(IMAGES, labels))[1].metrics == pytest.approx(summary["test"]["best"])
    said = model.predict(IMAGES[:3], top=8)
    if kind == "class":
        assert [dict(each)[str(CODES[i])] > 0.5 for i, each in enumerate(said)] == [True] * 3
    elif kind == "set":
        assert [{name for name, _ in each} for each in said] == [{str(k) for k in np.flatnonzero(x)} for x in BITS[:3]]
    else:
        np.testing.assert_allclose([dict(each)["0"] for each in said], labels[:3, 0], atol=120)
        assert model.outputs.mean[0] == pytest.approx(1e6 + 350, abs=30)


@pytest.mark.parametrize("to", ["huggingface", "vit-jax", pytest.param("timm", marks=pytest.mark.slow)])
def test_exports_give_numbers_in_the_users_units_and_a_start_from_them_normalises_anew(to, trained, tmp_path):
    folder, _ = trained("number")
    ours = vit_jax.load(folder)
    vit_jax.export(folder, tmp_path / "out", to=to)
    theirs = vit_jax.load(tmp_path / "out")
    assert theirs.outputs.names == ours.outputs.names and bool(theirs.outputs.mean) == (to == "vit-jax")
    expected = [[value for _, value in each] for each in ours.predict(IMAGES[:9])]
    said = [[value for _, value in each] for each in theirs.predict(IMAGES[:9])]
    np.testing.assert_allclose(said, expected, rtol=3e-7, atol=1e-5)
    if to != "vit-jax":
        np.testing.assert_allclose(theirs.logits(IMAGES[:9]), expected, rtol=3e-7, atol=1e-5)
    part = IMAGES[:50], OF["number"][0][:50]
    measured = [vit_jax.evaluate(place, data=part)[1] for place in (folder, tmp_path / "out")]
    assert measured[1].metrics["mae"] == pytest.approx(measured[0].metrics["mae"], abs=0.1)  # float32 of a million
    assert ("rmse_scaled" in measured[1].metrics) == (len(ours.outputs.names) > 1 and to == "vit-jax")
    # Other numbers have another mean and std; before the first step that counts, answers are those of the weights.
    other = OF["number"][0] * [2.0, 3.0] + [5.0, 7.0]
    run = a_run(tmp_path, "next", epochs=1, max_steps=1, **{"init": str(tmp_path / "out"), "optim.lr": 1e-12})
    vit_jax.train(run, data=(IMAGES, other))
    again = vit_jax.load(tmp_path / "next", which="last")
    assert again.outputs.mean != ours.outputs.mean and again.outputs.std != ours.outputs.std
    said = [[value for _, value in each] for each in again.predict(IMAGES[:9])]
    np.testing.assert_allclose(said, expected, rtol=3e-7, atol=1e-4)


def test_a_start_from_outputs_of_another_kind_needs_a_new_head(trained, tmp_path):
    other = {"set": OF["number"][0][:, [0, 1, 1]], "class": np.repeat(BITS, 3, 1)[:, :8], "number": BITS[:, :2]}
    for kind, given in other.items():
        run = a_run(tmp_path, kind, epochs=1, init=str(trained(kind)[0]), max_steps=1)
        with pytest.raises(UserError, match=r"its outputs are .*, and here they are .*; add `new_head True` to start"):
            vit_jax.train(run, data=(IMAGES, given))
    sets = [{"kind": "set", "names": names} for names in (["a", "b"], ["a", "c"])]
    assert "its label 1 is 'b' and here it is 'c'" in ClassifySpec.metadata["outputs"].conflict(*sets)


def test_what_cannot_be_learned_is_refused_by_name(tmp_path):
    def refused(labels, said, **fields):
        with pytest.raises(UserError, match=said):
            vit_jax.train(
                a_run(tmp_path, "no", **fields), data=labels if isinstance(labels, dict) else (IMAGES, labels)
            )

    refused(np.stack([CODES * 0.1, np.full(200, 7.0)], 1), "1 is 7 of every image to train on; leave it out")
    refused(np.zeros((200, 2), int), "no image of its train split has any label")
    alone = {"train": (IMAGES, BITS * [1, 1, 0]), "validation": (IMAGES, BITS)}
    refused(alone, "label 2 is in validation but not in train; add examples of it to train")
    refused({"train": (IMAGES, BITS), "test": (IMAGES, BITS[:, :2])}, "test has rows of 2 and not 3")
    refused(BITS, "model.classes is 2 but data.source arrays has 3 labels", **{"model.classes": 2})
    refused(CODES, "has 3 in row 0; give 1 where a label is there", **{"data.target": "set"})
    refused(BITS, "loss.prior is True, but data.target is set", **{"loss.prior": True})
    refused(CODES * 0.5 + 0.25, "augment.flip is True, but data.target is number", **{"augment.flip": True})


def test_a_probe_and_a_teacher_are_of_classes(trained, tmp_path):
    found = vit_jax.evaluate(trained("set")[0], data={"train": (IMAGES, CODES), "test": (IMAGES, CODES)}, probe="knn")
    assert found[1].metrics["accuracy"] > 0.9
    with pytest.raises(UserError, match="give one class an image"):
        vit_jax.evaluate(trained("set")[0], data={"train": (IMAGES, BITS), "test": (IMAGES, BITS)}, probe="knn")
    run = with_fields(
        vit_jax.preset("cifar10-48x4-distil").run, {"data.target": "set", "teacher": str(trained("class")[0])}
    )
    with pytest.raises(UserError, match=r"data\.target is set, but the task distil learns classes from a teacher"):
        vit_jax.train(run, data=(IMAGES, BITS))


def test_other_data_is_matched_by_name_and_what_it_lacks_is_unknown(trained):
    folder, _ = trained("set")
    every = vit_jax.evaluate(folder, data=(IMAGES, BITS), class_names=["0", "1", "2"])[1].metrics
    turned = vit_jax.evaluate(folder, data=(IMAGES[:150], BITS[:150, ::-1]), class_names=["2", "1", "0"])[1].metrics
    plain = vit_jax.evaluate(folder, data=(IMAGES[:150], BITS[:150]), class_names=["0", "1", "2"])[1].metrics
    assert turned == pytest.approx(plain) and every["map"] > 0.9
    two = vit_jax.evaluate(folder, data=(IMAGES[:150], BITS[:150, 1:]), class_names=["1", "2"])[1]
    assert two.metrics["subset_accuracy"] >= plain["subset_accuracy"]
    numbers = trained("number")[0]
    with pytest.raises(UserError, match="lacks the number 1 of the network; add it"):
        vit_jax.evaluate(numbers, data=(IMAGES[:150], OF["number"][0][:150, :1]))


def test_a_batch_has_numbers_normalised_by_the_training_part_and_labels_that_none_has_keep_their_place():
    numbers = OF["number"][0]
    data = open_images(ImageData(), 4, 1, given=GivenData((IMAGES, numbers)))
    train, test = data.splits["train"], data.splits["test"]
    batch = train.examples(np.arange(len(train)))["label"]
    assert batch.dtype == np.float32 and np.abs(batch.mean(0)).max() < 1e-5 and np.abs(batch.std(0) - 1).max() < 1e-5
    np.testing.assert_array_equal(train.labels, numbers[train.rows])  # in their own units
    expected = (numbers[test.rows] - numbers[train.rows].mean(0)) / numbers[train.rows].std(0)
    np.testing.assert_allclose(test.examples(np.arange(len(test)))["label"], expected, atol=1e-6)
    sets = BITS * [1, 0, 1]
    data = open_images(ImageData(), 4, 1, given=GivenData((IMAGES, sets)))
    assert data.outputs.names == ("0", "1", "2") and data.sizes == {"classes": 3}
    assert "train has no example of 1 of the 3 labels (1)" in data.remarks
    np.testing.assert_array_equal(
        data.splits["train"].examples(np.arange(9))["label"], sets[data.splits["train"].rows[:9]]
    )


def test_very_uneven_classes_and_labels_are_remarked_on_unless_something_evens_them_out():
    few = np.repeat([0, 1], [140, 10])
    rare = np.stack([few, 1 - few, few * 0 + 1], 1)
    for labels, fields in ((few, "`loss.prior True`, or with"), (rare, "with `loss.class_weights balanced`")):
        remarks = Classify.open_data(a_run(".", "x"), GivenData((IMAGES[:150], labels))).remarks
        said = next(remark for remark in remarks if "learns to neglect" in remark)
        assert "and only 7 of the" in said and fields in said
    for name, value in (("prior", True), ("class_weights", "effective"), ("focal", 2.0)):
        data = Classify.open_data(a_run(".", "x", **{f"loss.{name}": value}), GivenData((IMAGES[:150], few)))
        assert not any("neglect" in remark for remark in data.remarks)
        assert bool(data.of_loss) == (name != "focal")


def test_a_run_resumes_with_the_weights_of_classes_that_it_began_with(tmp_path):
    (tmp_path / "w.csv").write_text("".join(f"{k},{k + 1}\n" for k in range(8)))
    run = a_run(tmp_path, "w", max_steps=2, **{"loss.class_weights": str(tmp_path / "w.csv")})
    vit_jax.train(run, data=(IMAGES, CODES))
    (tmp_path / "w.csv").write_text("".join(f"{k},{k + 2}\n" for k in range(8)))
    with pytest.raises(UserError, match=r"its loss_weights are not those that this run began with; restore the file"):
        vit_jax.train(replace(run, max_steps=4), data=(IMAGES, CODES))
