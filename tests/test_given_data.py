"""Training on data that Python gives: cut and identified as the same data in a file, and refused by the commands."""

import contextlib
import io
import itertools
import os
import re
import signal
import threading
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType, SimpleNamespace

import numpy as np
import pytest
from PIL import Image

import vit_jax
from tests.image_sources import a_run, everything, open_dataset
from vit_jax import runs
from vit_jax.data.base import GivenData
from vit_jax.errors import UserError
from vit_jax.runs.values import to_dict
from vit_jax.tasks.can import MeasuresOthers
from vit_jax.tasks.computed import task_class
from vit_jax.training.loop import Evaluating

pytestmark = pytest.mark.usefixtures("working_folder")
RANDOM = np.random.default_rng(0)
IMAGES = RANDOM.integers(0, 256, (96, 8, 8), np.uint8)
LABELS = np.arange(96) % 3
PAIRS = [(f"one {i}", f"eins {i}") for i in "abcdefgh" * 5]


def tiny(**changes):
    """A network of one block, trained for two epochs of four steps."""
    run = vit_jax.preset("digits").run
    model = replace(run.model, width=16, depth=1, heads=2, hidden=32, classes=0)
    optim = replace(run.optim, schedule="constant", weight_decay=0.0)
    return replace(run, model=model, optim=optim, epochs=2, batch=16, **changes)


@pytest.fixture(scope="module")
def trained(working_folder):
    """The summary of a run on arrays that was stopped by its budget and continued by the same call."""
    with contextlib.redirect_stdout(io.StringIO()) as out:
        stopped = vit_jax.train(tiny(max_steps=3), data=(IMAGES, LABELS), class_names=["a", "b", "c"])
        ended = vit_jax.train(tiny(), data=(IMAGES, LABELS), class_names=["a", "b", "c"])
    return stopped, ended, out.getvalue()


@pytest.mark.parametrize("splits", [("train",), ("train", "test"), ("train", "validation", "test")])
def test_arrays_are_cut_and_identified_as_in_a_file(splits, tmp_path):
    parts = {name: (IMAGES[i::4], LABELS[i::4]) for i, name in enumerate(splits)}
    arrays = {
        f"{name}_{what}": x for name, pair in parts.items() for what, x in zip(("images", "labels"), pair, strict=True)
    }
    np.savez(tmp_path / "arrays.npz", **arrays, class_names=["a", "b", "c"])
    run = a_run(tmp_path / "arrays.npz")
    of_file = open_dataset(run)
    given = task_class(run.task).open_data(run, GivenData(parts if len(parts) > 1 else parts["train"], ["a", "b", "c"]))
    assert given.identity == of_file.identity and given.same_as(of_file.identity)
    assert given.metadata() == of_file.metadata() and list(given.splits) == list(of_file.splits)
    for name, split in given.splits.items():
        assert (split.labels == of_file.splits[name].labels).all()
        assert (everything(split) == everything(of_file.splits[name])).all()
    other = task_class(run.task).open_data(run, GivenData((255 - IMAGES, LABELS), ["a", "b", "c"]))
    assert not other.same_as(of_file.identity)


class Examples:
    """As torch.utils.data.Dataset and sources of Grain are: items by their numbers, and classes."""

    classes = ("a", "b", "c")

    def __init__(self, of=lambda image: image, label=int):
        self.of, self.label = of, label

    def __len__(self):
        return 96

    def __getitem__(self, i):
        return self.of(IMAGES[i]), self.label(LABELS[i])


class Columns:
    """As datasets.Dataset is: a row is a dict, a name gives a column, and features state the names of classes."""

    column_names = ("image", "label")
    features = MappingProxyType({"label": SimpleNamespace(names=["a", "b", "c"])})

    def __len__(self):
        return 96

    def __getitem__(self, i):
        return LABELS.tolist() if i == "label" else {"image": Image.fromarray(IMAGES[i]), "label": int(LABELS[i])}


def tensors():
    torch = pytest.importorskip("torch")

    class Own(torch.utils.data.Dataset):
        __len__, classes = Examples.__len__, Examples.classes

        def __getitem__(self, i):
            return torch.tensor(IMAGES[i])[None] / 255, torch.tensor(LABELS[i])

    return Own()


def one_tensor():
    return pytest.importorskip("torch").from_numpy(IMAGES)[:, None], ["abc"[k] for k in LABELS]  # [n, C, h, w]


def files():
    for i, image in enumerate(IMAGES):
        Image.fromarray(image).save(f"{i}.png")
    return [Path(f"{i}.png") for i in range(96)], [["a", "b", "c"][k] for k in LABELS]


FORMS = {
    "names as labels": lambda: (IMAGES, ["abc"[k] for k in LABELS]),
    "a list of Pillow images": lambda: ([Image.fromarray(x) for x in IMAGES], ["abc"[k] for k in LABELS]),
    "paths": files,
    "a list of pairs": lambda: [(x, "abc"[k]) for x, k in zip(IMAGES, LABELS, strict=True)],
    "a sequence of arrays": Examples,
    "a sequence of Pillow images": lambda: Examples(Image.fromarray),
    "floats of 0 to 1": lambda: Examples(lambda x: x / np.float32(255)),
    "a tensor": one_tensor,
    "a Dataset of torch": tensors,
    "a Dataset of Hugging Face": Columns,
}


@pytest.mark.parametrize("form", FORMS)
def test_a_sequence_is_the_same_data_as_its_arrays(form, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run, data = a_run("arrays"), FORMS[form]()
    open_data = task_class(run.task).open_data
    of_arrays, given = open_data(run, GivenData((IMAGES, LABELS), ["a", "b", "c"])), open_data(run, GivenData(data))
    assert given.identity == of_arrays.identity and given.metadata() == of_arrays.metadata()
    for name, split in given.splits.items():
        assert (everything(split) == everything(of_arrays.splits[name])).all()
    small = replace(run, data=replace(run.data, memory=0.0))
    apart = open_data(small, GivenData(data))
    assert (everything(apart.splits["train"]) == everything(of_arrays.splits["train"])).all()


@pytest.mark.slow
def test_the_page_on_data_works_as_it_is_written(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    page = (Path(__file__).parents[1] / "docs" / "data.md").read_text(encoding="utf-8")
    blocks = re.findall(r"^```python\n(.*?)^```$", page, re.S | re.M)
    known = {}
    for block in blocks:
        exec(compile(block, "data.md", "exec"), known)  # in the order of the page
    assert len(blocks) > 6 and known["features"].shape == (6, 2, 2, 192)
    assert "so a run on them that is stopped cannot go on" in capsys.readouterr().out
    folders = sorted(Path("runs").iterdir())
    assert len(folders) == 4 and {runs.Run(folder).summary()["status"] for folder in folders} >= {"finished"}


def batches(count=None, size=16, of=lambda x, y: (x, y)):
    """Batches of the examples, one after the other, without an end or so many."""
    for i in itertools.count() if count is None else range(count):
        rows = np.arange(i * size, (i + 1) * size) % 96
        yield of(IMAGES[rows], LABELS[rows])


def streamed(normalize="half", **changes):
    run = replace(tiny(), **{"max_steps": 6, "accumulate": 1, **changes})
    return replace(run, augment=replace(run.augment, normalize=normalize))


def test_an_iterator_of_batches_trains_as_their_examples_in_this_order_and_cannot_be_resumed(capsys):
    """A step on its first batch is that of a sequence which has only these examples."""
    split = {"train": (IMAGES[:16], LABELS[:16]), "validation": (IMAGES, LABELS), "test": (IMAGES, LABELS)}
    once = vit_jax.train(streamed(name="one-step", epochs=1), data=split, class_names=["a", "b", "c"])
    names = ["a", "b", "c"]
    data = {**split, "train": batches(of=lambda x, y: {"image": x / np.float32(255), "label": y})}
    told = [*vit_jax.steps(streamed(name="streamed", epochs=1, max_steps=1), data=data, class_names=names)]
    first, last = told[0], told[-1].summary
    row = next(row for row in runs.Run(once["folder"]).metrics() if row["kind"] == "train")
    assert first.metrics["loss"] == pytest.approx(row["loss"], rel=1e-5)
    assert last["status"] == "finished" and {"validation", "test"} <= last.keys()
    assert "so a run on them that is stopped cannot go on" in capsys.readouterr().out
    with pytest.raises(UserError, match=r"holds another run: .*the batches of an iterator come once"):
        vit_jax.train(streamed(name="streamed", epochs=1, max_steps=1), data=data, class_names=names)


NO_STREAM = {
    "no length": (batches(), {"max_steps": 0}, "without a length; say .* with `max_steps N`"),
    "an early end": (batches(3), {}, "the iterator ended after 3 batches, before the run did"),
    "another size": (batches(size=8), {}, r"batch is 16, and the iterator gives 8: give `batch 8`"),
    "statistics": (batches(), {"normalize": "set"}, "augment.normalize is set, which measures all training images"),
    "other names": (batches(of=lambda x, y: {"x": x, "label": y}), {}, "a batch has x, label; name its entries image"),
    "more classes": (batches(of=lambda x, y: (x, y + 1)), {}, "labels of batch 0 go to 3, and there are 3 classes"),
    "a part": (batches(), {"overfit_batches": 1}, "from which no subset can be taken; leave overfit_batches out"),
}


@pytest.mark.parametrize("case", NO_STREAM)
def test_what_an_iterator_cannot_give_is_told(case):
    data, changes, says = NO_STREAM[case]
    with pytest.raises(UserError, match=says):
        vit_jax.train(streamed(**changes), data=data, class_names=["a", "b", "c"], preset="no-stream")


def test_two_examples_are_no_pair_of_images_and_labels():
    run = a_run("arrays")
    for data in ([(IMAGES[0], 0), (IMAGES[1], 1)], [{"image": x, "label": i} for i, x in enumerate(IMAGES[:2])]):
        small = replace(run, data=replace(run.data, test=0.0, validation=0.0))
        assert len(task_class(run.task).open_data(small, GivenData(data)).splits["train"]) == 2


def test_a_run_on_arrays_goes_on_with_them_by_the_same_call(trained):
    stopped, ended, said = trained
    assert (stopped["status"], stopped["step"], ended["status"]) == ("stopped: max_steps", 3, "finished")
    assert stopped["folder"] == ended["folder"] == "runs/run"
    assert "going on after step 3" in said and "the same call of vit_jax.train, with the same data" in said
    assert "vit_jax.evaluate('runs/run', data=...)" in said and "--resume" not in said
    record = runs.Run("runs/run").record()
    assert record["config"]["data"]["source"] == record["data"]["name"] == "arrays"
    assert vit_jax.load("run").class_names == ("a", "b", "c")
    once = vit_jax.train(tiny(name="once"), data=(IMAGES, LABELS), class_names=["a", "b", "c"])
    assert once["test"] == ended["test"], "to the bit as without a stop"


def test_evaluation_measures_the_run_s_own_split_of_its_arrays_and_all_of_others(trained, capsys):
    _, ended, _ = trained
    step, own = vit_jax.evaluate(Path("runs/run"), data=(IMAGES, LABELS))
    assert "note     this is the data that the run was trained on, with the run's splits\n" in capsys.readouterr().err
    best = ended["test"]["best"]
    assert (step, own.metrics) == (ended["best"]["step"], pytest.approx(best, rel=1e-6))
    assert repr(own).startswith(f"Classified({len(own.predicted)} examples: loss ") and len(repr(own)) < 400
    _, validation = vit_jax.evaluate("run", "validation", data={"train": (IMAGES, LABELS)})
    assert len(validation.predicted) == runs.Run("runs/run").record()["data"]["sizes"]["validation"]
    other = IMAGES[::-1][:40], LABELS[::-1][:40]
    net = vit_jax.load("run")
    for data in (other, {"test": other}, {"train": (IMAGES, LABELS), "test": other}):
        _, result = vit_jax.evaluate("run", data=data)
        assert result.predicted.tolist() == net.logits(other[0]).argmax(-1).tolist()
        assert result.metrics["accuracy"] == (result.predicted == other[1]).mean()
    _, named = vit_jax.evaluate("run", data=(other[0], 2 - other[1]), class_names=["c", "b", "a"])
    assert named.metrics["accuracy"] == result.metrics["accuracy"], "classes are matched by name"
    for options, says in (
        ({"data": (other[0] / 255, other[1])}, r"images of train is float64 .* \(images \* 255\)"),
        ({"data": other, "class_names": ["a", "b", "x"]}, "the network has no class 'x'"),
        ({"data": other, "source": "digits"}, "data: is given, and so is digits; leave one of them out"),
        ({"class_names": ["a"]}, "class_names: are those of examples given as data"),
        ({}, r"was given in Python.*vit_jax.evaluate\(run, data=\(images, labels\)\)"),
    ):
        with pytest.raises(UserError, match=says):
            vit_jax.evaluate(**{"path": "run", **options})


def test_nothing_to_measure_on_is_told_without_a_split_that_nobody_named(trained):
    nothing = (IMAGES[:0], LABELS[:0])
    for data, says in (
        (nothing, "^data: holds no images; give others$"),
        ({"test": nothing}, "^data: its test split is empty; choose another split$"),
        ((IMAGES, LABELS + 3), "^data: labels go from 3 to 5 but there are 3 classes; number them from 0$"),
    ):
        with pytest.raises(UserError, match=says):
            vit_jax.evaluate("run", data=data, class_names=["a", "b", "c"])


def test_other_arrays_are_another_run(trained, capsys):
    again = vit_jax.train(tiny(), data=(IMAGES, LABELS), class_names=["a", "b", "c"])
    assert again["folder"] == "runs/run" and "this run is finished" in capsys.readouterr().out
    other = vit_jax.train(tiny(max_steps=1), data=(255 - IMAGES, LABELS), class_names=["a", "b", "c"])
    assert other["folder"] == "runs/run-2"
    with pytest.raises(UserError, match="runs/run: holds another run: its data is another: its first example that is"):
        vit_jax.train(tiny(name="run"), data=(255 - IMAGES, LABELS), class_names=["a", "b", "c"])


def test_a_stopped_cell_saves_and_raises_keyboard_interrupt_and_the_same_call_goes_on(trained, monkeypatch, capsys):
    after_step = Evaluating.after_step

    def stop(evaluating):
        after_step(evaluating)
        os.kill(os.getpid(), signal.SIGINT)

    before = signal.getsignal(signal.SIGINT)
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt, match="saved at step 1; go on") as told:
        patch.setattr(Evaluating, "after_step", stop)
        try:
            vit_jax.train(tiny(name="stopped"), data=(IMAGES, LABELS))
        except Exception:
            pytest.fail("a loop over runs that catches exceptions would go on with the next")
    assert str(told.value).endswith("with: the same call of vit_jax.train, with the same data")
    assert signal.getsignal(signal.SIGINT) is before
    ended = vit_jax.train(tiny(name="stopped"), data=(IMAGES, LABELS))
    assert ended["status"] == "finished" and "going on after step 1" in capsys.readouterr().out
    assert ended["test"]["last"]["loss"] == trained[1]["test"]["last"]["loss"]


def test_commands_say_that_only_python_has_the_data(trained, inside, working_folder):
    folder = str(runs.Run("runs/run-3").path)
    vit_jax.train(tiny(max_steps=1, name="run-3"), data=(IMAGES, LABELS))
    for words in (["train", "--resume", folder], ["evaluate", folder], ["train", "digits", "--data.source", "arrays"]):
        done = inside(*words)
        assert done.returncode == 2 and len(done.stderr.splitlines()) == 1
        assert "was given in Python" in done.stderr and "vit_jax.train(run, data=(images, labels))" in done.stderr


def test_a_thread():
    """A thread cannot catch signals; a notebook's server may use one."""
    found = []
    call = threading.Thread(target=lambda: found.append(vit_jax.train(tiny(max_steps=1), data=(IMAGES, LABELS))))
    call.start()
    call.join()
    assert runs.Run(found[0]["folder"]).record()["data"]["name"] == "arrays"


class Refusing:
    """Stands for a tensor of PyTorch that needs a gradient."""

    def __array__(self, *_, **__):
        raise RuntimeError("detach it")


class Raising:
    """A sequence one of whose items cannot be read."""

    def __len__(self):
        return 9

    def __getitem__(self, i):
        if i == 5:
            raise OSError("gone\nand no more of it")
        return IMAGES[i], LABELS[i]


FLOATS, NAMES = IMAGES / np.float32(255), np.array(["a", "b", "c"])
WRONG = {
    "floats of 0 to 1": (
        (FLOATS, LABELS),
        r"images of train is float32 and .*give `data\.range 0 1`, or store .*\(images \* 255\)",
    ),
    "normalised": ((FLOATS - 0.5, LABELS), "is float32 and .*, or store pixels as uint8, without normalisation"),
    "channels first": ((np.zeros((96, 3, 8, 8), np.uint8), LABELS), r"images.transpose\(0, 2, 3, 1\)"),
    "other counts": (([Image.fromarray(x) for x in IMAGES], LABELS[:9]), "has 96 images and 9 labels; give one label"),
    "a tensor that needs a gradient": ((Refusing(), LABELS), r"train cannot be read \(detach it\); give numpy arrays"),
    "names in train alone": (
        {"train": (IMAGES, NAMES[LABELS]), "test": (IMAGES, LABELS)},
        "labels of test are int64 of shape .*those of train names; give one name for each image in all splits",
    ),
    "another name": (
        {"train": (IMAGES, NAMES[LABELS]), "test": (IMAGES, ["a", "cc", "b"] * 32)},
        "labels of test have 'cc', which is not in train; nearest: c",
    ),
    "no image": ([{"x": x, "label": 0} for x in IMAGES], "item 0 of train has x, label; call its image 'image'"),
    "an item that raises": (Raising(), r"item 5 of train raises OSError \(gone\); mend it, or leave it out"),
    "normalised items": (
        [(x / np.float32(127.5) - 1, 0) for x in IMAGES],
        r"train\[0\] is float32 from -0.968627 to 0.945098, and no pixels of 8 bits; give uint8, or .* resizing",
    ),
    "no labels": (IMAGES, r"data: train is a ndarray of 96; give \(images, labels\), or a sequence whose items are"),
    "no train": ({"test": (IMAGES, LABELS)}, "has no train split, only test; give one to train on"),
    "nothing": ({}, "data: its split is empty; give train"),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_is_no_data_is_told_in_a_sentence(case):
    data, says = WRONG[case]
    before = sorted(Path("runs").glob("*"))
    with pytest.raises(UserError, match=says) as told:
        vit_jax.train(tiny(), data=data, preset="wrong")
    assert len(str(told.value).splitlines()) == 1 and ";" in str(told.value)
    assert sorted(Path("runs").glob("*")) == before


def test_wrong_names_and_wrong_runs():
    for names, says in (
        (["a", "b"], "there are 2 classes"),
        ("abc", "a list of texts"),
        ([1, 2, 3], "a list of texts"),
    ):
        with pytest.raises(UserError, match=says):
            vit_jax.train(tiny(), data=(IMAGES, LABELS), class_names=names)
    with pytest.raises(UserError, match="class_names: are those of examples given as data"):
        vit_jax.train(tiny(), class_names=["a"])
    with pytest.raises(
        UserError, match=r"run is a Preset; give a preset's name, or a RunConfig such as vit_jax.preset\('digits'\).run"
    ):
        vit_jax.train(vit_jax.preset("digits"))


class Sequenced:
    """Items by their numbers alone."""

    def __init__(self, items):
        self.items = items

    def __len__(self):
        return len(self.items)

    def __getitem__(self, i):
        return self.items[i]


def test_pairs_of_texts_are_those_of_the_same_files(tmp_path):
    run = vit_jax.preset("numbers").run
    run = replace(
        run, model=replace(run.model, tie="decoder"), data=replace(run.data, source=f"pairs:en-de:{tmp_path}")
    )
    for side, language in enumerate(("en", "de")):
        (tmp_path / f"train.{language}").write_text("".join(pair[side] + "\n" for pair in PAIRS))
    of_files, task = task_class(run.task).open_data(run), task_class(run.task)
    given = task.open_data(run, GivenData(PAIRS))
    assert given.identity == of_files.identity and given.metadata() == of_files.metadata()
    for form in (
        lambda pair: list(pair),
        lambda pair: {"id": 3, "source": pair[0], "target": pair[1]},
        lambda pair: {"translation": {"en": pair[0], "de": pair[1]}},
    ):
        sequence = Sequenced([form(pair) for pair in PAIRS])
        assert task.open_data(run, GivenData(sequence)).identity == given.identity
    own = task.open_data(run, GivenData({"train": PAIRS[:30], "test": PAIRS[30:]}))
    assert len(own.splits["test"]) == 10
    measures = task.from_run(run, given.metadata()).able(MeasuresOthers)
    other = measures.open_data(run, given.metadata(), "", GivenData({"validation": PAIRS[:9], "train": PAIRS}))
    assert (other.name, len(other.split), other.total) == ("validation", 9, 49)
    assert other.split.source[3].tolist() == [*of_files.source.encode("one d"), *[0] * 14]
    python = replace(run, data=replace(run.data, source="pairs"))
    for data, says in (
        (None, r"was given in Python.*data=\[\(source, target\), \.\.\.\]"),
        (GivenData(["one", "two"]), "data: is no list of pairs of texts; give"),
        (GivenData({"test": PAIRS}), "has no train split, only test"),
        (GivenData([]), r"^data: is empty; give \[\(source"),
        (GivenData({"train": PAIRS, "test": []}), "^data: test is empty; give"),
        (GivenData(PAIRS, ["a"]), "texts have no classes"),
    ):
        with pytest.raises(UserError, match=says):
            task.open_data(python, data)
    assert to_dict(python)["data"]["source"] == "pairs"
