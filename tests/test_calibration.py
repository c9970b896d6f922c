"""What validation decides when a run ends: temperature and thresholds, where they are kept, and who uses them."""

import csv
import json
import shutil
from types import SimpleNamespace

import numpy as np
import pytest
from scipy.special import expit, log_softmax, softmax

import vit_jax
from vit_jax.commands import predict
from vit_jax.commands.measure import _intervals
from vit_jax.errors import UserError
from vit_jax.files.digests import with_digest
from vit_jax.runs.values import with_fields
from vit_jax.scores.calibration import class_temperature, set_temperature
from vit_jax.scores.classes import choose_thresholds
from vit_jax.tasks.can import Examines, Tabulates

pytestmark = pytest.mark.usefixtures("without_pictures", "quick_compilation")
SMALL = {
    "model.image": 4,
    "model.classes": 0,
    "model.depth": 1,
    "model.width": 16,
    "model.heads": 2,
    "model.hidden": 16,
}
SHORT = {"epochs": 6, "batch": 16, "optim.lr": 3e-3, "loss.label_smoothing": 0.0}


def noisy(n: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Images, uint8 [n, 4, 4, 1], of 3 bits, and the bits [n, 3]; some of them cannot be seen."""
    draw = np.random.default_rng(seed)
    bits = (draw.random((n, 3)) < [0.5, 0.3, 0.15]).astype(int)
    images = draw.normal(100, 40, (n, 4, 4, 1))
    for k in range(3):
        images[:, k] += (40 * bits[:, k])[:, None, None]
    return np.clip(images, 0, 255).astype(np.uint8), bits


SPLITS = {"train": noisy(320, 0), "validation": noisy(120, 1), "test": noisy(90, 2)}
LABELS = {
    "class": lambda bits: bits @ [1, 1, 1],  # how many there are
    "set": lambda bits: bits,
    "number": lambda bits: 100.0 + 10 * bits,
}
DATA = {k: {name: (images, of(bits)) for name, (images, bits) in SPLITS.items()} for k, of in LABELS.items()}


@pytest.fixture(scope="module")
def trained(tmp_path_factory, without_pictures, quick_compilation):
    """The folder of a run of each kind, trained when it is asked for, and its summary."""
    place, done = tmp_path_factory.mktemp("runs"), {}

    def of(kind):
        if kind not in done:
            run = with_fields(vit_jax.preset("digits").run, {**SMALL, **SHORT, "dir": str(place), "name": kind})
            done[kind] = place / kind, vit_jax.train(run, data=DATA[kind])
        return done[kind]

    return of


def test_the_temperature_is_of_validation_and_probabilities_are_of_logits_divided_by_it(trained):
    folder, summary = trained("class")
    net, (images, labels) = vit_jax.load(folder), DATA["class"]["validation"]
    logits = net.logits(images).astype(np.float64)
    temperature = summary["calibration"]["temperature"]
    assert temperature == pytest.approx(class_temperature(labels, logits)[0], rel=1e-5) == net.outputs.temperature
    others = [class_temperature(of, net.logits(x))[0] for x, of in (DATA["class"][s] for s in ("train", "test"))]
    assert all(other is None or abs(other - temperature) > 1e-3 for other in others)
    np.testing.assert_allclose(net.values(images), softmax(logits / temperature, 1), atol=1e-6)
    said = dict(net.predict(images[0], top=4))
    assert [said[str(k)] for k in range(4)] == pytest.approx(softmax(logits[0] / temperature).tolist(), abs=1e-6)
    loss = -log_softmax(logits / temperature, 1)[np.arange(len(labels)), labels].mean()
    assert loss < -log_softmax(logits, 1)[np.arange(len(labels)), labels].mean()
    metrics = summary["test"]["best"]
    x, of = DATA["class"]["test"]
    expected = -log_softmax(net.logits(x) / temperature, 1)[np.arange(len(of)), of].mean()
    assert metrics["loss_calibrated"] == pytest.approx(expected, abs=1e-5)


def test_thresholds_are_of_validation_after_the_temperature_and_predict_uses_them(trained):
    folder, summary = trained("set")
    net, (images, labels) = vit_jax.load(folder), DATA["set"]["validation"]
    logits, found = net.logits(images), summary["calibration"]
    assert found["temperature"] == pytest.approx(set_temperature(labels, logits)[0], rel=1e-5)
    p = expit(logits.astype(np.float64) / found["temperature"])
    np.testing.assert_allclose(found["thresholds"], choose_thresholds(labels, p), atol=1e-6)
    for split in ("train", "test"):
        x, of = DATA["set"][split]
        assert np.abs(choose_thresholds(of, net.values(x)) - found["thresholds"]).max() > 1e-3
    x, of = DATA["set"]["test"]
    told = [{name for name, _ in each} for each in net.predict(x)]
    over = net.values(x) > found["thresholds"]
    assert told == [{str(k) for k in np.flatnonzero(row)} for row in over] and (over != (net.values(x) > 0.5)).any()
    assert summary["test"]["best"]["subset_accuracy"] == pytest.approx((over == of).all(1).mean())


def test_what_validation_decided_is_of_the_best_weights_alone(trained, tmp_path, capsys):
    folder, summary = trained("set")
    assert summary["calibration"]["step"] == summary["best"]["step"]
    assert vit_jax.load(folder, which="mean:1").outputs.temperature == 1
    copy = shutil.copytree(folder, tmp_path / "copy")
    content = json.loads((copy / "summary.json").read_text())
    content["calibration"]["step"] += 1
    (copy / "summary.json").write_text(json.dumps(with_digest({k: x for k, x in content.items() if k != "digest"})))
    assert vit_jax.load(copy).outputs.thresholds == ()
    (copy / "summary.json").write_text("{}")
    assert vit_jax.load(copy).outputs.temperature == 1
    assert "summary.json: is damaged" in capsys.readouterr().err


@pytest.mark.parametrize(("kind", "metric"), [("class", "accuracy"), ("set", "map"), ("number", "rmse_scaled")])
def test_the_best_checkpoint_is_by_the_metric_of_its_kind(trained, kind, metric):
    folder, summary = trained(kind)
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    values = [row[metric] for row in rows if row.get("split") == "validation"]
    best = min(values) if kind == "number" else max(values)
    assert summary["best"][metric] == best and len({*values}) > 1


@pytest.mark.parametrize("kind", LABELS)
def test_probabilities_are_written_with_the_digits_of_float32_and_with_the_truth(trained, kind, tmp_path):
    from PIL import Image

    folder, _ = trained(kind)
    net, (images, labels) = vit_jax.load(folder), DATA[kind]["test"]
    for i, image in enumerate(images[:9]):
        Image.fromarray(image[..., 0]).save(tmp_path / f"{i}.png")
    files, out = [str(tmp_path / f"{i}.png") for i in range(9)], tmp_path / "out.csv"
    assert predict.command([str(folder), *files, "--probabilities", str(out)]) == 0
    table = list(csv.reader(out.open(newline="")))
    assert table[0] == ["file", *net.class_names] and [row[0] for row in table[1:]] == files
    values = np.array([row[1:] for row in table[1:]]).astype(np.float32)
    np.testing.assert_array_equal(values, net.values(images[:9]).astype(np.float32))
    header, rows = net.task.able(Tabulates).values(*measured(net, folder, images, labels))
    rows = list(rows)
    assert header == ("file", *(["true"] if kind == "class" else [f"true {k}" for k in range(3)]), *net.class_names)
    truth = [[float(x) for x in row[1 : len(header) - len(net.class_names)]] for row in rows]
    assert truth == labels.reshape(len(labels), -1).tolist()


def measured(net, folder, images, labels):
    """The test split of a run, and the result on it."""
    from vit_jax.data.base import GivenData
    from vit_jax.models.state import split_model
    from vit_jax.training.engine.evaluator import Evaluator

    data = net.task.open_data(net.run, GivenData(DATA[net.outputs.kind], ()))
    definition, tree = split_model(net.model)
    evaluator, split = Evaluator(net.run.model, definition, net.task), data.splits["test"]
    out = evaluator.outputs_of(evaluator.to_devices(tree), split, 32)
    return split, net.task.able(Examines).examine(net.run.model, split, out)


def test_a_validation_split_without_any_label_is_refused(tmp_path):
    fields = {**SMALL, **SHORT, "dir": str(tmp_path), "name": "r"}
    images, labels = DATA["set"]["validation"]
    with pytest.raises(UserError, match="validation split has any label, so it cannot choose the best weights"):
        vit_jax.train(
            with_fields(vit_jax.preset("digits").run, fields), data={**DATA["set"], "validation": (images, 0 * labels)}
        )
    assert not (tmp_path / "r").exists()


class Grouped(list):
    """A split of 40 examples, four of each of ten groups, that keeps which were drawn of it."""

    groups, drawn = np.repeat(np.arange(10), 4), []

    def subset(self, rows):
        self.drawn.append(rows)
        return self


def test_intervals_are_of_groups_where_examples_belong_together():
    split = Grouped(range(40))
    means = SimpleNamespace(resample=lambda config, split, out: {"mean": out["x"].mean()})
    task = SimpleNamespace(able=lambda what: means)
    found = _intervals(task, SimpleNamespace(model=None), split, {"x": split.groups * 1.0}, 30)
    assert len(split.drawn) == 30 and all((np.bincount(split.groups[rows]) % 4 == 0).all() for rows in split.drawn)
    assert found["mean"][0] < 4.5 < found["mean"][1]


def test_without_validation_nothing_is_decided_and_that_is_said(tmp_path, capsys):
    fields = {**SMALL, **SHORT, "epochs": 1, "dir": str(tmp_path), "name": "r", "data.validation": 0.0}
    data = {name: DATA["set"][name] for name in ("train", "test")}
    summary = vit_jax.train(with_fields(vit_jax.preset("digits").run, fields), data=data)
    assert "calibration" not in summary and vit_jax.load(tmp_path / "r").outputs.temperature == 1
    assert "no temperature and no thresholds: there is no validation split" in capsys.readouterr().out


@pytest.mark.parametrize("kind", LABELS)
def test_files_of_others_have_in_the_head_what_outputs_go_through(trained, kind, tmp_path):
    """Computed by torch_ref, which knows nothing of temperatures and units, from the file that is read back."""
    torch_ref = pytest.importorskip("torch_ref")
    torch = pytest.importorskip("torch")
    folder, _ = trained(kind)
    net, images = vit_jax.load(folder), DATA[kind]["test"][0]
    vit_jax.export(str(folder), tmp_path / "theirs.safetensors", to="timm")
    vit_jax.export(net, tmp_path / "memory.safetensors", to="timm")
    theirs, memory = (vit_jax.load(tmp_path / f"{name}.safetensors") for name in ("theirs", "memory"))
    np.testing.assert_array_equal(theirs.values(images), memory.values(images))
    assert theirs.outputs.temperature == 1 and theirs.outputs.mean == ()
    assert theirs.outputs.thresholds == net.outputs.thresholds
    np.testing.assert_allclose(theirs.values(images), net.values(images), rtol=2e-6, atol=1e-6)
    twin = torch_ref.load(torch_ref.build(theirs.model.config), weights_of(theirs))
    with torch.no_grad():
        z = twin.eval()(torch.from_numpy(np.array(net.inputs(images))).permute(0, 3, 1, 2)).numpy()
    read = {"class": lambda z: softmax(z, 1), "set": expit, "number": lambda z: z}[kind]
    np.testing.assert_allclose(read(z), net.values(images), rtol=1e-5, atol=1e-5)
    ours = vit_jax.export(str(folder), tmp_path / "ours.safetensors")
    kept = vit_jax.load(ours[0]).outputs
    assert kept == net.outputs


def weights_of(net):
    from vit_jax.config.trees import flatten
    from vit_jax.models.state import split_model

    return {name: np.asarray(x) for name, x in flatten(split_model(net.model)[1]).items()}


def test_what_no_network_tells_is_refused_in_a_sentence(trained, tmp_path):
    folder, _ = trained("class")
    with pytest.raises(UserError, match="bootstrap needs the network's own answers"):
        vit_jax.evaluate(folder, probe="knn", bootstrap=10, data=DATA["class"])
    with pytest.raises(UserError, match=r"bootstrap is 10, .*give 40 or more"):
        vit_jax.evaluate(folder, bootstrap=10, data=DATA["class"])
    with pytest.raises(UserError, match=r"temperature: a temperature|greater than 0"):
        from convert.adapt import adaptations

        adaptations(vit_jax.load(folder).model.config, ["fold=temperature:-1"])
