"""Using a trained run: files, folders and arrays to classes, by the door and as a library, as evaluation saw them."""

import csv
import dataclasses
import io
import json
import os
import shlex
import shutil
import sys
from pathlib import Path
from types import SimpleNamespace

import jax
import numpy as np
import pytest
from PIL import Image
from safetensors.numpy import load_file, save_file

import vit_jax
from vit_jax import runs
from vit_jax.commands import evaluate, predict
from vit_jax.commands import train as train_command
from vit_jax.config.fields import pair
from vit_jax.config.outputs import Outputs
from vit_jax.config.trees import flatten
from vit_jax.data.images.preprocess import Preprocess
from vit_jax.data.inputs import list_images, prepare_image
from vit_jax.errors import UserError
from vit_jax.figures import attention
from vit_jax.files import places
from vit_jax.kinds.classes import Classes, score
from vit_jax.machine.hosts import ALONE
from vit_jax.models.build import definition, start
from vit_jax.models.state import merge, split_model
from vit_jax.models.vit import ViT, fixed_positions
from vit_jax.models.vit_config import ViTConfig
from vit_jax.tasks.classify import draw as classify_pictures
from vit_jax.tasks.classify import use
from vit_jax.tasks.computed import task_class, task_of
from vit_jax.tasks.predictor import BATCH
from vit_jax.training import finish
from vit_jax.training.engine.evaluator import Evaluator
from vit_jax.training.hooks import Hooks
from vit_jax.training.state import State
from vit_jax.weights.checkpoint import Checkpoints, SavedState
from vit_jax.weights.interop import open_weights
from vit_jax.weights.load import BareNetwork, weights

TINY = shlex.split(
    "digits --model.width 16 --model.depth 1 --model.heads 2 --model.hidden 32 --optim.schedule constant "
    "--optim.lr 0.01 --optim.weight-decay 0 --loss.label-smoothing 0 --batch 64 --ema 0.9"
)
KIND = Classes(Outputs("class", ("a", "b", "c")))
FILES = 70  # more than predict takes at a time
assert FILES > BATCH


@pytest.fixture(scope="module", autouse=True)
def place(tmp_path_factory, digits_run, quick_compilation):
    """A folder with a run in it, and the first test images as files."""
    folder = tmp_path_factory.mktemp("predict")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        shutil.copytree(digits_run, folder / "runs" / "digits")
        split = open_dataset(runs.find("digits").config()).splits["test"]
        (folder / "images" / "deep").mkdir(parents=True)
        for i, image in enumerate(split.take(np.arange(FILES))):
            Image.fromarray(image[..., 0]).save(folder / "images" / ("deep" if i == 3 else "") / f"{i:03}.png")
        (folder / "images" / "notes.txt").write_text("no image")
        (folder / "images" / ".hidden.png").write_text("no image either")
        yield folder


def open_dataset(run):
    return task_class(run.task).open_data(run)


def files() -> list:
    return [f"images/{'deep/' if i == 3 else ''}{i:03}.png" for i in range(FILES)]


def shown(capsys, *arguments) -> list:
    """The lines that the door prints on a terminal."""
    capsys.readouterr()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(predict, "is_terminal", lambda: True)
        assert predict.command(["digits", *map(str, arguments)]) == 0
    return capsys.readouterr().out.splitlines()


# ------------------------------------------------------------------------------ what is predicted


@pytest.mark.parametrize("which", ["best", "last"])
def test_a_file_gets_what_evaluation_gave_that_image(which, capsys):
    _, result = vit_jax.evaluate("digits", "test", which)
    loaded = vit_jax.load("digits", which)
    answers = loaded.predict(files())
    lines = shown(capsys, *files(), "--top", 1, "--weights", which)
    for i, ((name, probability),) in enumerate(answers):
        assert name == str(result.predicted[i])
        assert probability == pytest.approx(result.confidence[i], abs=1e-6)
        assert lines[i] == f"{files()[i]}: {name} ({probability:.1%})"
    assert len({name for ((name, _),) in answers}) > 1


def test_a_network_in_memory_answers_as_the_one_in_its_folder(capsys):
    loaded = vit_jax.load("digits")
    images = [Image.open(file) for file in files()]
    arrays = np.stack([np.asarray(image) for image in images])
    expected = vit_jax.predict("digits", files(), top=2)
    assert vit_jax.predict(loaded, files(), top=2) == expected
    assert vit_jax.predict(loaded, "images", top=2) == vit_jax.predict("digits", "images", top=2)
    for given in (images, arrays, jax.numpy.asarray(arrays)):
        assert [said for _, said in vit_jax.predict(loaded, given, top=2)] == [said for _, said in expected]
        alone = vit_jax.predict("digits", given[0], top=2)
        assert [(name, pytest.approx(share, abs=1e-5)) for name, share in alone] == expected[0][1]
    with pytest.raises(
        vit_jax.UserError, match=r"^beam: is 4, but this network generates nothing|^beam is 4, but this"
    ):
        vit_jax.predict(loaded, files(), beam=4)
    assert [said for _, said in vit_jax.predict(loaded, iter(images), top=2)] == [said for _, said in expected]
    for nothing, says in (([], "inputs: none given"), (None, "inputs: is a NoneType"), (iter([]), "none given")):
        with pytest.raises(vit_jax.UserError, match=says):
            vit_jax.predict(loaded, nothing)
    with pytest.raises(vit_jax.UserError, match="there is no such image or folder"):
        vit_jax.predict(loaded, "nowhere.png")
    with pytest.raises(vit_jax.UserError, match=r"state that with vit_jax\.load"):
        vit_jax.predict(loaded.model, arrays)


def test_what_lies_at_a_path_passes_no_store(monkeypatch, tmp_path):
    for name in ("KEPT", "STORES"):
        monkeypatch.setattr(places, name, None)
    vit_jax.export("digits", tmp_path / "x.safetensors")
    expected = vit_jax.predict("digits", files(), top=2)
    assert vit_jax.predict(tmp_path / "x.safetensors", files(), top=2) == expected
    with open_weights(str(tmp_path / "x.safetensors")) as opened:
        assert opened.to_use().keys() == runs.find("digits").config().model.parameters().keys()


def test_logits_are_those_of_evaluation():
    loaded = vit_jax.load("digits")
    run = loaded.run
    assert run == runs.find("digits").config() and loaded.class_names == tuple("0123456789")
    dataset = open_dataset(run)
    assert loaded.preprocess == dataset.preprocess
    images, labels = dataset.splits["test"].take(np.arange(FILES)), dataset.splits["test"].labels[:FILES]
    evaluator = Evaluator(run.model, definition(run.model), loaded.task)
    parameters = evaluator.to_devices(weights(runs.find("digits"), run.model)[1])
    out = evaluator.outputs(parameters, {"image": images, "label": labels})
    logits = loaded.logits(files())
    assert logits.shape == (FILES, 10) and logits.dtype == np.float32
    log_sum = np.log(np.exp(logits.astype(np.float64)).sum(-1))
    assert out["loss"] == pytest.approx(log_sum - logits[np.arange(FILES), labels], abs=1e-5)
    assert (out["predicted"] == logits.argmax(-1)).all()
    normal = (images / 255 - dataset.preprocess.mean[0]) / dataset.preprocess.std[0]
    assert logits == pytest.approx(np.asarray(loaded.model(np.float32(normal))), abs=1e-5)


def test_weights_to_choose_from():
    folder, best = runs.find("digits"), vit_jax.load("digits")
    summary = folder.summary()
    assert best.step == summary["best"]["step"]
    with pytest.raises(vit_jax.UserError, match=r"^which is 'bset': choose best, last, or mean:K such as"):
        vit_jax.load("digits", "bset")
    with pytest.raises(vit_jax.UserError, match="digits: is a run, which knows its network; leave layout, fields out"):
        vit_jax.load("digits", layout="timm", fields={"heads": 4})
    last, raw = vit_jax.load("digits", "last"), vit_jax.load("digits", "last", ema=False)
    assert last.step == raw.step == 60
    kernels = [np.asarray(m.model.head.kernel[...]) for m in (last, raw)]
    assert not np.array_equal(*kernels)
    for ema, key in ((None, "last_ema"), (False, "last")):
        _, result = vit_jax.evaluate("digits", "test", "last", ema)
        assert result.metrics == pytest.approx(summary["test"][key], rel=1e-6)
    _, result = vit_jax.evaluate("digits", "test", "best")
    assert result.metrics == pytest.approx(summary["test"]["best"], rel=1e-6)


def test_the_mean_of_the_last_checkpoints_is_numpys_over_what_was_saved(capsys, tmp_path):
    """Also where the best checkpoint is older, which is kept but none of the last."""
    folder = runs.Run(shutil.copytree("runs/digits", tmp_path / "run"))
    model, steps = folder.config().model, folder.complete_steps()[:2]
    saved = [flatten(Checkpoints(folder).read(step, model.shapes()).state.parameters) for step in steps]
    step, tree, _ = weights(folder, model, "mean:2")
    assert step == steps[0]
    for name, mean in flatten(tree).items():
        np.testing.assert_allclose(mean, np.mean([x[name] for x in saved], 0), rtol=1e-6, atol=1e-9)
        assert mean.dtype == np.float32 and np.ptp([x[name] for x in saved], 0).any(), "they differ"
    line = shown(capsys, files()[0], "--weights", "mean:1", "--no-ema")
    assert line == shown(capsys, files()[0], "--weights", "last", "--no-ema")
    vit_jax.export(folder.path, tmp_path / "mean.safetensors", which="mean:2")
    kept = vit_jax.load(tmp_path / "mean.safetensors").model
    assert np.array_equal(kept.head.kernel[...], flatten(tree)["head.kernel"])


def test_a_mean_of_more_checkpoints_than_are_kept_is_refused(tmp_path, capsys):
    folder = runs.Run(shutil.copytree("runs/digits", tmp_path / "run"))
    says = r"run: `which` is mean:9, but only 2 of its last checkpoints are there; .* mean:2, or train with `keep 9`$"
    with pytest.raises(vit_jax.UserError, match=says):
        evaluate.command([str(folder), "--weights", "mean:9"])
    with pytest.raises(vit_jax.UserError, match=r"^ema is True, but mean:2 is the mean of the weights themselves"):
        vit_jax.load(folder.path, "mean:2", ema=True)
    for which in ("mean:0", "mean:", "mean:x", "mean:-1"):
        with pytest.raises(vit_jax.UserError, match=rf"^which is '{which}': choose best, last, or mean:K"):
            predict.command([str(folder), "x.png", "--weights", which])


@pytest.mark.parametrize("split, size", [("train", 1294), ("validation", 144), ("test", 359)])
def test_the_evaluate_door(split, size, capsys):
    assert evaluate.command(["digits", "--split", split, "--weights", "last", "--no-ema", "--batch", "100"]) == 0
    out = capsys.readouterr().out.splitlines()
    assert out[0] == f"digits at step 60, {split}: {size:,} examples"
    values = {name: float(value) for name, value in map(str.split, out[1:])}
    assert list(values) == [
        "loss",
        "accuracy",
        "balanced_accuracy",
        "accuracy_top5",
        *(f"{m}_{a}" for a in ("macro", "micro") for m in ("precision", "recall", "f1")),
        *("ap_macro", "auroc_macro", "ece", "ece_drawn"),
    ]
    summary = runs.find("digits").summary()
    known = {"validation": summary["validation"]["raw"], "test": summary["test"]["last"]}.get(split, {})
    assert all(values[name] == pytest.approx(value, abs=6e-5) for name, value in known.items())


def test_one_image_gets_one_answer_without_the_axis_of_the_batch():
    loaded = vit_jax.load("digits")
    (file, *_), names = files(), ["attention", "blocks.0", "logits"]
    pixels = np.asarray(Image.open(file))
    (answer,), (logits,), inside = loaded.predict([file], 3), loaded.logits([file]), loaded.capture([file], names)
    for image in (file, Path(file), Image.open(file), pixels, pixels[..., None], np.stack([pixels] * 3, -1)):
        assert loaded.predict(image, 3) == answer
        assert np.array_equal(loaded.logits(image), logits)
        assert np.array_equal(loaded.inputs(image), loaded.inputs([image])[0])
        one = loaded.capture(image, names)
        assert list(one) == names and all(np.array_equal(one[name], inside[name][0]) for name in names)
    assert one["attention"].shape == (1, 2, 17, 17) and one["blocks.0"].shape == (17, 16)


@pytest.mark.parametrize("inside", ["", "/{step}", "/{step}/model"])
def test_a_checkpoint_s_folder_is_told_to_be_part_of_its_run(inside, tmp_path, capsys):
    step = runs.find("digits").complete_steps()[0]
    path = "runs/digits/checkpoints" + inside.format(step=step)
    with pytest.raises(UserError, match=f"^{path}: is inside the run runs/digits; give runs/digits, or a file") as told:
        predict.command([path, files()[0]])
    assert (f"X.safetensors --step {step}`" in str(told.value)) == bool(inside)
    with pytest.raises(UserError, match="is inside the run"):
        vit_jax.load(path)
    if inside.endswith("model"):  # and where it was copied out of its run
        shutil.copytree(path, tmp_path / "copy")
        with pytest.raises(UserError, match=r"cannot tell any field .*; give the folder of the run") as told:
            vit_jax.load(tmp_path / "copy")
        assert len(str(told.value)) < 300


def test_inputs_and_capture_are_what_the_network_takes_and_gives():
    """Over more images than one batch has."""
    loaded = vit_jax.load("digits")
    inputs = loaded.inputs(files())
    assert inputs.shape == (FILES, 8, 8, 1) and inputs.dtype == np.float32
    assert loaded.logits(files()) == pytest.approx(np.asarray(loaded.model(inputs)), abs=1e-5)
    direct = loaded.model.capture(inputs, ["pooled", "attention"])
    inside = loaded.capture(files(), ["pooled", "attention"])
    assert all(inside[name] == pytest.approx(np.asarray(direct[name]), abs=1e-5) for name in direct)
    assert loaded.capture(files()[0], "pooled")["pooled"].shape == (16,)
    with pytest.raises(ValueError, match="cannot capture 'atention'; there are tokens"):
        loaded.capture(files()[0], ["atention"])


def test_a_loaded_network_is_told_in_a_line(tmp_path):
    """With its size, its parameters, its cost and its classes."""
    loaded = vit_jax.load("digits")
    count = sum(x.size for x in jax.tree.leaves(split_model(loaded.model)[1]))
    (line,) = repr(loaded).splitlines()
    assert len(line) < 200
    for part in ("Classifier(ViT 16 x 1", f"{count:,} parameters", "MFLOP", "10 classes: '0', '1', '2', ...", "8x8x1"):
        assert part in line
    bare = BareNetwork(loaded.model, loaded.task, loaded.trained, ("preprocess",))
    assert f"{count:,} parameters" in repr(bare) and "lacks preprocess" in repr(bare) and len(repr(bare)) < 200


@pytest.mark.parametrize("channels", [1, 3])
def test_tensors_of_torchvision_are_the_images_that_they_were_made_of(channels):
    torch = pytest.importorskip("torch")
    preprocess = dataclasses.replace(vit_jax.load("digits").preprocess, channels=channels)
    pixels = np.random.default_rng(0).integers(0, 256, (3, 8, 8, channels), np.uint8)
    tensors = torch.from_numpy(pixels.transpose(0, 3, 1, 2).copy())
    for given in (tensors, tensors / 255, list(tensors), torch.from_numpy(pixels)):  # the last has channels last
        several, one = list_images(given, channels)
        assert not one and np.array_equal([prepare_image(each, preprocess) for each in several], pixels)
    several, one = list_images(tensors[0] / 255, channels)
    assert one and np.array_equal(prepare_image(several[0], preprocess), pixels[0])
    with pytest.raises(UserError, match=r"a tensor is float32 from -.*; give uint8, or these divided by 255"):
        prepare_image(tensors[0] / 255 * 2 - 1, preprocess)


class Elsewhere:
    """Stands for a tensor of PyTorch that is not in the memory of the machine."""

    def __array__(self, *_, **__):
        raise TypeError("can't convert cuda:0 device type tensor to numpy")


@pytest.mark.parametrize(
    "images, says",
    [
        ([], "none given"),
        (np.zeros((2, 8, 8, 1)), r"float64 \[8, 8, 1\]; give pixels as uint8, 0 to 255"),
        (np.zeros(8, np.uint8), r"uint8 \[8\]; give one image \[h, w\]"),
        (".", r"^\.: is no regular file but a folder"),
        (None, "NoneType is no image; give paths"),
        ([np.zeros((1, 8, 8, 1), np.uint8)], r"uint8 \[1, 8, 8, 1\]; give uint8 pixels"),
        ([np.zeros((8, 8, 2), np.uint8)], "1, 3 or 4 channels"),
        (Elsewhere(), r"cannot be read \(can't convert cuda:0 .* to numpy\); give them as numpy arrays"),
    ],
)
def test_what_predict_cannot_take(images, says):
    with pytest.raises(UserError, match=says):
        vit_jax.load("digits").predict(images)


# -------------------------------------------------------------------------------------- the door


def test_a_folder_is_searched_and_sorted(capsys):
    lines = shown(capsys, "images")
    assert [line.partition(":")[0] for line in lines] == sorted(files())
    assert sorted(lines) == sorted(shown(capsys, *files()))


def test_a_pipe_of_paths_has_a_line_for_each(capsys, monkeypatch, tmp_path):
    """The best class, or as many as --top says; blank for a blank line and for an image that is left out."""
    wrong = tmp_path / "\udcff.png"  # a name that is no UTF-8
    wrong.write_text("no image")
    paths = [*files()[:5], "", str(wrong), *files()[3:6]]
    known = {file: said for file, said in vit_jax.predict("digits", files()[:6], top=12)}
    out = tmp_path / "out.csv"

    def lines(*arguments):
        stdin = io.TextIOWrapper(io.BytesIO(os.fsencode("\r\n".join(paths))))
        monkeypatch.setattr(sys, "stdin", stdin)
        assert predict.command(["digits", *arguments]) == 0
        return capsys.readouterr().out.removesuffix("\n").split("\n")

    with pytest.raises(UserError, match=r"\.png: not a JPEG.*leave such images out with `data.skip_unreadable"):
        lines()
    capsys.readouterr()
    skip = "--skip-unreadable"
    names = [[name for name, _ in known.get(Path(path), [])] for path in paths]
    assert lines(skip) == [(each or [""])[0] for each in names]
    assert lines(skip, "-", "--top", "12") == [name for each in names for name in each + [""] * (12 - len(each))]
    for path, line in zip(paths, lines(skip, "--json", "--csv", str(out)), strict=True):
        said = [{"class": name, "probability": pytest.approx(p)} for name, p in known.get(Path(path), [])[:3]]
        assert json.loads(line) == {"input": path, "answers": said}
    head, *rows = csv.reader(out.open(newline=""))
    assert head == ["file", "rank", "class", "probability"]
    assert [row[0] for row in rows if row[1] in ("1", "")] == [path for path in paths if path != str(wrong)]
    for more, says in (("images", "images is a folder; give folders as arguments"), ("x.png", "there is no image x")):
        paths[2:] = ["", more]
        with pytest.raises(UserError, match=rf"^stdin line 4: {says}"):
            lines()
        assert capsys.readouterr().out == "", "the lines of a batch are checked together"


@pytest.mark.parametrize("flags, layers", [([], []), (["--layer", "all"], [0]), (["--layer", 1, "--no-ema"], [0])])
def test_attention_is_drawn_for_the_first_images(flags, layers, tmp_path, capsys, monkeypatch):
    calls = []
    draw = attention.draw_attention
    monkeypatch.setattr(attention, "draw_attention", lambda *a, **how: (calls.append((a, how)), draw(*a, **how)))
    shown(capsys, "images", "--attention", tmp_path / "maps.png", *flags)
    (((images, maps, prefix, grid, has_cls, path), how),) = calls
    loaded, first = (
        vit_jax.load("digits", ema=False if "--no-ema" in flags else None),
        sorted(files())[: use.SHOWN],
    )
    assert np.array_equal(images, loaded.pixels(first))
    assert maps.shape == (use.SHOWN, 1, 2, 17, 17)
    assert maps.sum(-1) == pytest.approx(1, abs=1e-5)
    assert (prefix, grid, has_cls, path) == (1, (4, 4), True, tmp_path / "maps.png")
    if not flags:
        with Image.open(path) as picture:
            assert min(picture.size) > 200
    assert how["layers"] == layers
    ((name, probability),) = loaded.predict(first)[1]
    assert how["labels"][1] == f"{first[1].rpartition('/')[2]}\n→ {name} ({probability:.2f})"
    kind = "raw" if "--no-ema" in flags else "averaged"
    assert how["caption"].startswith(f"digits: best weights ({kind}), epoch {loaded.step // 20}, step {loaded.step}; ")


@pytest.mark.parametrize("layer", ["0", "2", "-1", "first", "1.0", "٣", "9" * 5000])
def test_a_layer_that_is_not_there_is_refused_before_anything_is_predicted(layer, tmp_path, capsys):
    with pytest.raises(UserError, match="give a number from 1 to 1, or all") as told:
        predict.command(["digits", "images/000.png", "--attention", str(tmp_path / "a.png"), f"--layer={layer}"])
    assert not capsys.readouterr().out and not list(tmp_path.iterdir()) and len(str(told.value)) < 100


def test_a_layer_without_a_picture_is_refused():
    with pytest.raises(UserError, match="layer is 1, but nothing is to be drawn: add --attention"):
        predict.command(["digits", "images/000.png", "--layer", "1"])


def test_the_batch_of_a_prediction_is_not_seen_in_it(capsys, monkeypatch):
    sizes, inputs = [], use.Classifier.inputs
    monkeypatch.setattr(use.Classifier, "inputs", lambda net, files: sizes.append(len(files)) or inputs(net, files))
    assert shown(capsys, *files()[:8], "--batch", 3) == shown(capsys, *files()[:8])
    assert sizes == [3, 3, 2, 8]
    with pytest.raises(UserError, match="batch is 0: give 1 or more"):
        predict.command(["digits", "images/000.png", "--batch", "0"])


# -------------------------------------------------------------- pictures of the network's inside

SMALL = dict(patch=4, channels=1, classes=3, width=8, depth=1, heads=2, hidden=8)
PREFIXES = {  # fields: (tokens before the patches, rows of positions before the patches, cls is read)
    "distill and registers without positions": (
        {"distill_token": True, "distill_position": False, "registers": 2},
        4,
        1,
        True,
    ),
    "cls is there but patches are read": ({"pool": "mean"}, 1, 1, False),
    "no cls": (
        {"cls_token": False, "registers": 1, "pool": "mean", "position": "sincos2d", "position_trained": False},
        1,
        0,
        False,
    ),
}


@pytest.mark.parametrize("case", PREFIXES)
def test_pictures_know_where_the_patches_are(case, tmp_path, monkeypatch):
    fields, tokens, rows, cls_is_read = PREFIXES[case]
    c = ViTConfig(image=(8, 12), **SMALL, **fields)
    calls = {}
    for name in ("draw_patches", "draw_attention", "draw_positions"):
        place = attention if name == "draw_attention" else classify_pictures
        monkeypatch.setattr(place, name, lambda *a, name=name, **_: calls.__setitem__(name, a))
    network: ViT = merge(definition(c), start(c, jax.random.key(0)))
    images = np.random.default_rng(0).integers(0, 256, (2, 8, 12, 1), np.uint8)
    found = network.capture(np.float32(images) / 255, ["logits", "attention"])
    classify_pictures.draw_inside(network, images, found, tmp_path, "last", ["a", "c"], KIND)

    assert pair(calls["draw_patches"][1]) == (4, 4)
    _, maps, prefix, grid, has_cls, _ = calls["draw_attention"]
    assert maps.shape == (2, 1, 2, tokens + 6, tokens + 6)
    assert (prefix, grid, has_cls) == (tokens, (2, 3), cls_is_read)
    position, prefix, grid, *_ = calls["draw_positions"]
    assert (prefix, grid, len(position)) == (rows, (2, 3), rows + 6)
    if c.position != "learned":
        assert np.array_equal(np.float32(position), np.float32(fixed_positions(c)))

    # A patch of the image reaches the token that the pictures take for it, and no other.
    changed = images.copy()
    changed[:, 4:8, 4:8] = 255 - changed[:, 4:8, 4:8]  # row 1, column 1: patch 4
    before, after = (
        np.asarray(network.capture(x.astype(np.float32) / 255, ["tokens"])["tokens"]) for x in (images, changed)
    )
    assert np.flatnonzero(np.abs(before - after).max((0, 2)) > 1e-6).tolist() == [tokens + 4]


def test_no_positions_no_picture_of_them(tmp_path, monkeypatch):
    c = ViTConfig(image=8, **SMALL, position="none")
    monkeypatch.setattr(classify_pictures, "draw_patches", lambda *a, **_: None)
    monkeypatch.setattr(attention, "draw_attention", lambda *a, **_: None)
    monkeypatch.setattr(classify_pictures, "draw_positions", lambda *a: pytest.fail("there are none"))
    network = merge(definition(c), start(c, jax.random.key(0)))
    images = np.zeros((1, 8, 8, 1), np.uint8)
    found = network.capture(np.float32(images), ["logits", "attention"])
    classify_pictures.draw_inside(network, images, found, tmp_path, "last", ["a"], KIND)


def test_samples_are_of_several_classes_also_where_a_split_is_sorted_by_class():
    of = classify_pictures.of_several_classes
    sorted_labels = np.repeat([0, 1, 2, 3, 4, 5, 6], 3)
    assert sorted_labels[of(sorted_labels, 4)].tolist() == [0, 2, 4, 6]  # spread over all
    assert of(np.array([5, 5, 2, 5, 9]), 4).tolist() == [0, 2, 4, 1]  # first one of each, then the second of the first
    assert of(np.array([1, 1, 1]), 4).tolist() == [0, 1, 2] and of(np.array([4]), 4).tolist() == [0]
    random = np.random.default_rng(0).integers(0, 50, 400)
    chosen = of(random, 4)
    assert chosen[0] == 0 and len({*random[chosen]}) == 4 and chosen.tolist() == of(random, 4).tolist()


def test_samples_are_the_images_that_they_came_from(tmp_path):
    """Grey and colour, named by class with nothing that a shell would take apart."""
    for channels in (1, 3):
        images = np.random.default_rng(0).integers(0, 256, (2, 8, 8, channels), np.uint8)
        folder = tmp_path / str(channels)
        folder.mkdir()
        (folder / "old.png").touch()
        classify_pictures.save_samples(folder, images, ["näh" * 100, "a b/$c"])
        first, second = sorted(folder.iterdir())
        assert first.name.startswith("0-näh") and second.name == "1-a_b__c.png"
        assert len(first.name.encode()) < 250
        for path, image in ((first, images[0]), (second, images[1])):
            assert np.array_equal(np.asarray(Image.open(path)).reshape(8, 8, channels), image)


@pytest.mark.parametrize("stated", [(0.0, 4095.0), (100.0, 65535.0), (-1.0, 1.0), (0.0, 9.0), (-1000.0, 3e6)])
def test_samples_of_a_range_are_read_as_the_images_that_they_came_from(stated, tmp_path):
    images = np.arange(256, dtype=np.uint8).reshape(1, 16, 16, 1)
    one = Preprocess((16, 16), 1, "crop", 0, "bilinear", 255, (0.5,), (0.5,), stated)
    (tmp_path / "samples").mkdir()
    (name,) = classify_pictures.save_samples(tmp_path / "samples", images, ["all"], stated)
    assert np.array_equal(prepare_image(tmp_path / "samples" / name, one), images[0])
    for channels, saved in ((3, 1), (2, 0)):
        found = classify_pictures.save_samples(tmp_path / "samples", np.repeat(images, channels, -1), ["all"], stated)
        assert len(found) == saved


@pytest.mark.parametrize("channels", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_images_of_other_channels_than_files_have(channels, tmp_path, monkeypatch, capsys):
    """Such data comes as arrays; its pictures show some of the channels, and there are no sample files."""
    monkeypatch.chdir(tmp_path)
    pixels = np.random.default_rng(0).integers(0, 256, (60, 8, 8, channels), np.uint8)
    np.savez("many.npz", images=pixels, labels=np.arange(60) % 2)
    arguments = f"--data.source many.npz --model.classes 2 --model.channels {channels}".split()
    run = train_command.parse([*TINY, *arguments])[1].run()
    dataset = open_dataset(run)
    tree = start(run.model, jax.random.key(0))
    test = dataset.splits["test"].labels
    folder = runs.Run("many")
    folder.create(runs.record_of(run, "digits", **dataset.metadata(), data=dataset.identity))
    evaluator = SimpleNamespace(definition=definition(run.model))
    job = SimpleNamespace(
        folder=folder,
        run=run,
        task=task_of(run, dataset.metadata()),
        data=dataset,
        evaluator=evaluator,
        hooks=Hooks(run),
        epochs_of=lambda step: step / 2,
    )
    loop = SimpleNamespace(job=job, state=State(SavedState(0, tree, {}, None), step=3))
    result = score(test, 1 - test, *[np.ones(len(test))] * 3, 2)
    monkeypatch.setattr(classify_pictures, "draw_confusion", lambda *a: None)
    monkeypatch.setattr(classify_pictures, "draw_per_class", lambda *a: None)
    finish.draw(loop, job.task, result, tree, False)
    assert {p.name for p in folder.plots.iterdir()} == {
        "curves.png",
        "patches.png",
        "positions.png",
        "attention.png",
        "wrong.png",
        *(f"{name}.json" for name in ("attention", "classes", "explanations", "positions", "sections")),
    }
    assert not list(folder.samples.iterdir())

    monkeypatch.setattr("vit_jax.weights.load.weights", lambda *a: (3, tree, "raw"))
    loaded = vit_jax.load("many")
    assert np.array_equal(loaded.pixels(pixels[:2]), pixels[:2]) and loaded.logits(pixels[:2]).shape == (2, 2)
    Image.fromarray(pixels[0, ..., 0]).save("grey.png")
    with pytest.raises(
        UserError,
        match=rf"takes {channels} channels, which image files do not have; give uint8 arrays \[8, 8, {channels}\]",
    ):
        loaded.predict(["grey.png"])


@pytest.mark.parametrize("kind", ["raw", "ema", ""])
def test_the_pictures_of_a_run_are_of_its_best_weights(kind, tmp_path, monkeypatch):
    """Those that validation chose, of their own step; without validation the last ones. Each figure says which."""
    shown = []
    draws = SimpleNamespace(
        network=lambda network, data, plots, samples, caption: shown.append((network, caption)) or ("", [])
    )
    task = SimpleNamespace(predictor=object, selection_metric=("accuracy", 1), able=lambda what: draws)
    monkeypatch.setattr("vit_jax.figures.curves.draw_curves", lambda *a: shown.append(a[-1]))
    run = runs.find("digits").config()
    last, raw, ema = (start(run.model, jax.random.key(seed)) for seed in range(3))
    saved = SimpleNamespace(state=SavedState(0, raw, {}, ema))
    job = SimpleNamespace(
        folder=runs.Run(tmp_path),
        run=run,
        task=task,
        data=None,
        order=SimpleNamespace(steps_per_epoch=20),
        evaluator=SimpleNamespace(definition=definition(run.model)),
        hosts=ALONE,
        hooks=Hooks(run),
        epochs_of=lambda step: step / 20,
    )
    loop = SimpleNamespace(
        job=job,
        state=State(SavedState(0, last, {}, last), 60, {"step": 40, "weights": kind} if kind else None),
        engine=SimpleNamespace(gather=lambda state: state),
        checkpoints=SimpleNamespace(read=lambda step, _: saved if step == 40 else None),
    )
    best = finish.best_weights(loop)
    finish.draw(loop, task, None, finish.whole(loop, best), best is not None)
    step, (network, caption) = shown
    expected, words = {
        "raw": (raw, "best weights (raw), epoch 2, step 40"),
        "ema": (ema, "best weights (averaged), epoch 2, step 40"),
        "": (last, "last weights (raw), epoch 3, step 60"),
    }[kind]
    assert caption == words and step == (40 if kind else None)
    assert np.array_equal(network.head.kernel[...], expected["head"]["kernel"])


# --------------------------------------------------------------------------------- other layouts


@pytest.fixture
def converted(convert):
    """`python -m convert` in this process, which has to succeed; of the run the averages, which predict takes, too."""

    def call(*arguments):
        assert convert(*arguments, *(["--key", "ema"] if arguments[0] == "runs/digits" else []))[0] == 0

    return call


@pytest.mark.parametrize("target", ["huggingface", "timm.pt --to timm"])
def test_weights_of_other_layouts_classify_as_the_run_does(target, converted, tmp_path, capsys, terminal):
    name, *to = target.split()
    converted("runs/digits", tmp_path / name, *(to or ["--to", name]))
    expected = shown(capsys, *files()[:5], "--weights", "last")
    assert predict.command([str(tmp_path / name), *files()[:5]]) == 0
    assert capsys.readouterr().out.splitlines() == expected


def test_weights_that_do_not_say_how_images_become_inputs(converted, tmp_path, capsys):
    """The command in the message writes weights that do, with the values of a user in it."""
    path = tmp_path / "hf"
    converted("runs/digits", path, "--to", "huggingface")
    for file in ("preprocessor_config.json", "provenance.json"):
        (path / file).unlink()
    save_file(load_file(path / "model.safetensors"), path / "model.safetensors", {"format": "pt"})
    with pytest.raises(UserError, match="does not state how images are preprocessed") as told:
        predict.command([str(path), files()[0]])
    command = shlex.split(str(told.value).split("`")[1].replace("=...", "=0.5").removeprefix("python -m convert "))
    converted(*[tmp_path / word if word == "X.safetensors" else word for word in command])
    assert predict.command([str(tmp_path / "X.safetensors"), files()[0]]) == 0
    assert capsys.readouterr().out.strip() in tuple("0123456789")


def test_evaluation_on_other_data_than_that_of_the_run_is_refused(place, tmp_path, rewrite_record):
    """Images that it was trained on would be among those that it is measured on."""
    shutil.copytree(place / "runs" / "digits", tmp_path / "other")
    other = runs.Run(tmp_path / "other")
    rewrite_record(other, data={**other.record()["data"], "content": "0" * 32})
    with pytest.raises(UserError, match="is not the data that this run was trained on; restore it"):
        vit_jax.evaluate(str(tmp_path / "other"))


def test_a_folder_of_a_run_s_name_does_not_hide_it(place):
    (place / "digits").mkdir()
    try:
        assert not runs.is_foreign("digits") and vit_jax.load("digits").step
    finally:
        (place / "digits").rmdir()


def test_a_run_without_averages_has_none_to_give(tmp_path, monkeypatch):
    run = dataclasses.replace(runs.find("digits").config(), ema=0.0)
    assert run.ema == 0
    saved = SimpleNamespace(step=3, state=SavedState(3, {"x": 1}, {}, None), notes={})
    monkeypatch.setattr(
        "vit_jax.weights.load.Checkpoints", lambda folder, factors: SimpleNamespace(restore=lambda shapes: (saved, []))
    )
    assert weights(runs.find("digits"), run.model) == (3, {"x": 1}, "raw")
    with pytest.raises(UserError, match=r"keeps no averaged weights; train with `ema 0.999"):
        weights(runs.find("digits"), run.model, ema=True)
