"""Captions of drawn scenes: the scenes themselves, the loss, a run and what it answers, and bad input."""

import contextlib
import io
import json
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from PIL import Image

import vit_jax
from vit_jax.data.captions import open as opening
from vit_jax.data.captions import shapes
from vit_jax.data.captions.caption_set import touched_patches
from vit_jax.errors import UserError
from vit_jax.runs import Run
from vit_jax.tasks.can import Counts
from vit_jax.tasks.caption.learn import in_boxes
from vit_jax.tasks.computed import task_class, task_of

SMALL = (
    "--model.vit.width 16 --model.vit.depth 1 --model.vit.heads 2 --model.vit.hidden 16 --model.text.width 12 "
    "--model.text.decoder-depth 1 --model.text.heads 2 --model.text.hidden 16 --data.drawn 96 --batch 16"
)

# -------------------------------------------------------------------------------------------- scenes


def test_a_scene_shows_what_its_caption_says():
    """Colours, sizes, forms and places are read off the pixels by other means than those that drew them."""
    scenes = shapes.draw(60, 9)
    grid = (np.arange(32) + 0.5) / 32
    for pixels, said, boxes in zip(scenes.pixels / 255, scenes.captions, scenes.boxes, strict=True):
        assert pixels.shape == (32, 32, 3)
        first, relation, second = (
            part for word in shapes.RELATIONS for part in said.partition(f" {word} ") if word in said
        )
        (x1, y1), (x2, y2) = ((b[:2] + b[2:]) / 2 for b in boxes)
        near, far = (x2 - x1, y2 - y1) if relation == " left of " else (y2 - y1, x2 - x1)
        assert near > 0.25 and abs(far) < 1e-9
        for phrase, (left, top, right, bottom) in zip((first, second), boxes, strict=True):
            _, size, colour, form = phrase.split()
            assert (right - left > 0.36) == (size == "big")
            rows, columns = (grid > top) & (grid < bottom), (grid > left) & (grid < right)
            inside = pixels[rows][:, columns]
            near = {name: np.abs(inside - rgb).max(-1) < 0.2 for name, rgb in shapes.COLOURS.items()}
            cover = {name: float(x.mean()) for name, x in near.items()}
            assert max(cover, key=cover.get) == colour
            expected = {"circle": np.pi / 4, "square": 1.0, "triangle": 0.5}
            assert min(expected, key=lambda name: abs(expected[name] - cover[colour])) == form, (said, cover[colour])


def test_scenes_are_always_the_same_and_every_part_has_others():
    one, again, other = shapes.draw(5, 1), shapes.draw(5, 1), shapes.draw(5, 2)
    assert (one.pixels == again.pixels).all() and one.captions == again.captions
    assert (one.pixels != other.pixels).mean() > 0.5
    unseen = [" ".join(pair) for pair in shapes.UNSEEN]
    assert not any(pair in said for said in shapes.draw(300, 3).captions for pair in unseen)
    assert all(any(pair in said for pair in unseen) for said in shapes.draw(100, 3, unseen=True).captions)
    assert {word for said in shapes.draw(200, 4).captions for word in said.split()} == set(shapes.WORDS)


def test_the_patches_that_a_box_touches():
    """By brute force: a patch is touched if it has a point of the box inside."""
    draw = np.random.default_rng(0)
    corners = np.sort(draw.uniform(0, 1, (6, 2, 2, 2)), axis=2)  # [k, O, low/high, x/y]
    boxes = corners.reshape(6, 2, 4)
    words = np.array([[1, 3]] * 6)
    found = touched_patches(boxes, words, 5, (3, 4))
    points = (np.arange(1200) + 0.5) / 1200
    for k, o in np.ndindex(6, 2):
        left, top, right, bottom = boxes[k, o]
        columns = {int(x * 4) for x in points if left < x < right}
        rows = {int(y * 3) for y in points if top < y < bottom}
        expected = {4 * row + column for row in rows for column in columns}
        assert set(np.flatnonzero(found[k, words[k, o]])) == expected
    assert not found[:, [0, 2, 4]].any()


# ---------------------------------------------------------------------------------------------- loss


def test_the_share_of_attention_inside_boxes_by_hand():
    maps = jnp.array([[[0.1, 0.2, 0.3, 0.2], [0.25] * 4, [0.0, 0.5, 0.25, 0.25]]])  # of a memory of five tokens
    inside = jnp.array([[[True, True, False, False], [False] * 4, [False, False, True, False]]])
    found = in_boxes(maps, inside, 5)
    np.testing.assert_allclose(found["in_box"], [(0.3 + 0.25) / 2], rtol=1e-6)
    np.testing.assert_allclose(found["uniform"], [(2 / 5 + 1 / 5) / 2], rtol=1e-6)


# --------------------------------------------------------------------------------------------- a run


@pytest.fixture(scope="module")
def trained(working_folder):
    """A run of twelve steps, for what it says of itself and not for what it has learnt; and what was printed.

    All scenes that are drawn beside those of training are few.
    """
    from vit_jax.commands import train as command

    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(io.StringIO()) as out:
        patch.setattr(opening, "SPLITS", {"validation": 8, "test": 12, "unseen": 8})
        assert command.command(["shapes", *SMALL.split(), "--epochs", "2", "--log-every", "1"]) == 0
        yield Run("runs/shapes"), out.getvalue()


def test_a_run_reports_its_controls(trained):
    run, printed = trained
    assert "data     shapes: 16 ids; train 96, validation 8, test 12, unseen 8, shuffled 12, blank 12" in printed
    assert "always giving the most frequent caption has an exact match of" in printed
    summary = json.loads((run.path / "summary.json").read_text())
    for name in ("test", "unseen", "shuffled", "blank"):
        assert {"loss", "accuracy", "exact_match"} <= summary[name]["last"].keys()
    for name in ("test", "unseen"):
        found = summary[name]["last"]
        assert 0 < found["attention_in_box"] < 1 and 0.2 < found["uniform_in_box"] < 0.4
    assert "attention_in_box" not in summary["blank"]["last"]
    losses = [row["loss"] for row in run.metrics() if row["kind"] == "train"]
    assert len(losses) == 12 and losses[-1] < losses[0]


def test_a_caption_is_that_of_the_uncached_search(trained):
    """One caption at a time, all tokens again at each step, in numpy."""
    net = vit_jax.load("shapes")
    scenes = shapes.draw(2, 77)
    read, vocabulary = net.inputs(scenes.pixels), net.task.target
    expected = []
    for image in read:
        said = []
        while len(said) < 12:
            row = [1, *said] + [0] * (11 - len(said))
            logits = np.array(net.model(image[None], jnp.asarray([row])))[0, len(said)]
            logits[[0, 1]] = -np.inf
            if logits.argmax() == 2:
                break
            said.append(int(logits.argmax()))
        expected.append(" ".join(vocabulary.entries[i] for i in said))
    assert net.predict(scenes.pixels) == expected
    assert net.predict(scenes.pixels[0]) == expected[0] == net.predict(Image.fromarray(scenes.pixels[0]))


def test_commands_take_images_and_draw_the_attention_word_by_word(trained, inside, working_folder):
    files = []
    for i, pixels in enumerate(shapes.draw(2, 78).pixels):
        Image.fromarray(pixels).resize((48, 40)).save(working_folder / f"{i}.png")
        files.append(f"{i}.png")
    done = inside("predict", "shapes", *files, "--csv", "a.csv", "--attention", "a.png", cwd=working_folder)
    assert done.returncode == 0, done.stderr
    captions = vit_jax.load("shapes").predict([str(working_folder / name) for name in files])
    assert done.stdout.splitlines() == captions
    assert (working_folder / "a.csv").read_text().splitlines()[0] == "file,caption"
    width, height = Image.open(working_folder / "a.png").size
    assert width > 600 and height > 150
    for bad, message in (
        ("--attention b.png --layer 2", "layer is 2: give a number from 1 to 1"),
        ("--attention b.png --layer x", "layer is x"),
        ("--features b.npz", "features: a captioner pools none"),
    ):
        failed = inside("predict", "shapes", files[0], *bad.split(), cwd=working_folder)
        assert failed.returncode == 2 and message in failed.stderr
    done = inside("evaluate", "shapes", "--csv", "e.csv", "--report", "report", cwd=working_folder)
    assert done.returncode == 0 and "exact_match" in done.stdout and "attention_in_box" in done.stdout
    rows = (working_folder / "e.csv").read_text().splitlines()
    assert rows[0] == "file,true,predicted" and rows[1].startswith("test[0],a ") and len(rows) == 13
    assert "  worst: test[" in done.stdout and "predictions.csv, texts.json, worst.png\n" in done.stdout
    assert (working_folder / "report/predictions.csv").read_text().splitlines() == rows
    assert Image.open(working_folder / "report/worst.png").size[0] > 600
    words, maps = vit_jax.load("shapes").attention(shapes.draw(1, 79).pixels[0])
    assert maps.shape == (1, 2, len(words), 4, 4) and np.allclose(maps.sum((3, 4)), 1, atol=1e-5)


def test_another_run_starts_from_it(trained, inside, working_folder):
    words = ["shapes", *SMALL.split(), "--init", "shapes", "--name", "second", "--dry-run"]
    done = inside("train", *words, cwd=working_folder)
    assert done.returncode == 0 and "it gives the network" in done.stdout, done.stderr
    words = ["shapes", "--init", "shapes", "--name", "third", "--model.vit.no-cls-token", "--model.vit.depth", 3]
    failed = inside("train", *words, cwd=working_folder)
    assert failed.returncode == 2 and "`model.vit.depth 1" in failed.stderr, failed.stderr


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--data.source x.npz", "data.source is x.npz, which has no captions: give shapes"),
        ("--data.length 8", "data.length is 8, but captions of data.source shapes"),
        ("--model.vit.dept 3", "there is no field --model.vit.dept; nearest: model.vit.depth"),
        ("--init-resize timm --init shapes", "init_resize is timm, but a Captioner"),
        ("--model.vit.pool map", "model.vit.pool is map, but a captioner"),
    ],
)
def test_bad_input_is_one_sentence(trained, inside, working_folder, words, message):
    before = sorted(p.name for p in (working_folder / "runs").iterdir())
    done = inside("train", "shapes", *SMALL.split(), *words.split(), "--name", "bad", cwd=working_folder)
    assert done.returncode == 2 and message in done.stderr and done.stderr.count("\n") == 1, done.stderr
    assert sorted(p.name for p in (working_folder / "runs").iterdir()) == before


def test_other_commands_know_such_a_run(trained, inside, working_folder):
    failed = inside("sheet", "shapes", "x.png", cwd=working_folder)
    assert failed.returncode == 2 and "shapes: its images have no classes" in failed.stderr
    done = inside("convert", "inspect", "runs/shapes", cwd=working_folder)
    assert "vit.depth 1, " in done.stdout.replace("\n", " ") and "text.width 12" in done.stdout, done.stdout
    done = inside("compare", "runs/shapes", cwd=working_folder)
    assert "exact_match" in done.stdout, done.stdout


def test_other_data_and_mirror_images_are_refused(trained):
    for options, message in (
        (dict(source="folder:x"), "data.source is folder:x, which has no captions"),
        (dict(flip=True), "flip: is for images"),
        (dict(probe="linear"), "probe linear: is for images with classes"),
    ):
        with pytest.raises(UserError, match=message):
            vit_jax.evaluate("shapes", **options)


def test_torch_learns_the_same_task(trained):
    """The same weights have the same loss and captions in the twin's task."""
    pytest.importorskip("torch")
    import torch

    import torch_ref
    from torch_ref.tasks import task_of as twin_of
    from vit_jax.config.trees import flatten
    from vit_jax.models.state import split_model

    net = vit_jax.load("shapes")
    run, data = net.run, task_class("caption").open_data(net.run)
    batch = data.splits["test"].batch(np.arange(6))
    task, twin = task_of(run, data.metadata()), twin_of(run)(run, data.metadata())
    weights = {name: np.asarray(x) for name, x in flatten(split_model(net.model)[1]).items()}
    model = torch_ref.load(torch_ref.build(run.model), weights).eval()
    theirs = twin.outputs(model, {name: torch.from_numpy(x) for name, x in batch.items()}, torch.float32)
    ours = task.outputs(net.model, batch)
    np.testing.assert_allclose(ours["loss"], theirs["loss"].detach().numpy(), rtol=1e-4)
    assert ours["predicted"].tolist() == theirs["predicted"].tolist()
    tensors, losses = {name: torch.from_numpy(x) for name, x in batch.items()}, []
    for kind in ("torch", "fairseq"):
        smooth = replace(run, loss=replace(run.loss, label_smoothing=0.1, smoothing=kind))
        task, twin = task_of(smooth, data.metadata()), twin_of(smooth)(smooth, data.metadata())
        keys, count = jax.random.split(jax.random.key(0), 6), task.able(Counts).denominator(batch)
        loss = task.loss(net.model, batch, keys, count)[0]
        assert float(loss) == pytest.approx(twin.loss(model, tensors, torch.float32).item(), rel=1e-5)
        losses.append(float(loss))
    assert abs(losses[0] - losses[1]) > 1e-3


# ----------------------------------------------------------------------------------- the whole preset


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_the_preset_learns_to_say_what_it_sees(door, tmp_path, seed):
    done = door("train", "shapes", "--seed", seed, "--name", "s", timeout=900)
    assert done.returncode == 0, done.stderr
    summary = json.loads((tmp_path / "runs/s/summary.json").read_text())
    found = {name: summary[name]["best"] for name in ("test", "unseen", "shuffled", "blank")}
    print(seed, summary["seconds"], found)
    assert found["test"]["exact_match"] >= 0.99
    assert max(found[name]["exact_match"] for name in ("shuffled", "blank")) <= 0.02
    assert found["test"]["attention_in_box"] >= 0.75 > 2 * found["test"]["uniform_in_box"]
