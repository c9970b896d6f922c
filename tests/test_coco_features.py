"""Captions of COCO as cs231n hands them out: what is read and refused, and runs on vectors with captions."""

import csv
import json
import shutil
import sys
from dataclasses import replace

import numpy as np
import pytest

import vit_jax
from vit_jax.commands.train import command as train
from vit_jax.errors import UserError
from vit_jax.extras.vectors.spec import FeatureData
from vit_jax.extras.vectors.vectors import open_features, open_other_features, vectors_in
from vit_jax.models.captioner_config import CaptionerConfig
from vit_jax.models.transformer_config import TransformerConfig
from vit_jax.text.vocabulary import Vocabulary

h5py = pytest.importorskip("h5py")

# Special words stand elsewhere than in the course's own file, and two plain ones before them.
WORDS = ["a", "the", "<END>", "<NULL>", "<UNK>", "<START>", *(f"w{i}" for i in range(60))]
LENGTH, WIDTH = 10, 16  # ids of a row, begin and end included; of a vector
SMALL = (
    "--model.memory-width 16 --model.text.width 12 --model.text.decoder-depth 1 --model.text.heads 2 "
    "--model.text.hidden 16 --model.text.max-length 10 --data.length 10 --batch 8 --epochs 2 --accumulate 1 "
    "--model.text.dropout 0 --model.text.attention-dropout 0 --model.text.activation-dropout 0 "
    "--model.text.embedding-dropout 0"  # which takes most of the time to compile, and which the slow test has
)

pytestmark = pytest.mark.usefixtures("quick_compilation")


def write(folder, counts, width=WIDTH, seed=0):
    """A folder as the course's: for "train" and "val" so many pictures, each with one caption of its own."""
    draw, ids = np.random.default_rng(seed), {word: i for i, word in enumerate(WORDS)}
    (folder / "coco2014_vocab.json").write_text(json.dumps({"idx_to_word": WORDS, "word_to_idx": ids}))
    said = {}
    with h5py.File(folder / "coco2014_captions.h5", "w") as file:
        for name, count in counts.items():
            rows = np.full((count, LENGTH), ids["<NULL>"], np.int32)
            for row in rows:
                words = draw.integers(6, len(WORDS), draw.integers(3, LENGTH - 1))
                row[: len(words) + 2] = [ids["<START>"], *words, ids["<END>"]][:LENGTH]
            order = draw.permutation(count).astype(np.int32)
            file[f"{name}_captions"], file[f"{name}_image_idxs"] = rows, order
            said[name] = rows, order
            with h5py.File(folder / f"{name}2014_vgg16_fc7_pca.h5", "w") as features:
                features["features"] = draw.standard_normal((count, width)).astype(np.float32)
            (folder / f"{name}2014_urls.txt").write_text("".join(f"http://x/{name}/{i}.jpg\n" for i in range(count)))
    return said


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("coco_captioning")
    write(folder, {"train": 40, "val": 12})
    return folder


def open_(folder, **fields):
    return open_features(FeatureData(source=f"coco-features:{folder}", **{"length": 10, **fields}), WIDTH, seed=1)


def text(row):
    """The words of a row of the file, by another way than the code's."""
    words = [WORDS[i] for i in row]
    return " ".join(word for word in words[1:] if word not in ("<END>", "<NULL>"))


def test_special_ids_are_those_of_the_json():
    words = Vocabulary(WORDS)
    assert (words.ids.pad, words.ids.begin, words.ids.end, words.ids.unknown) == (3, 5, 2, 4) and words.open
    assert words.encode("The w7 dog").tolist() == [1, 13, 4] and words.decode([1, 13, 2, 0]) == "the w7"


def test_captions_have_the_vectors_of_their_pictures(tmp_path):
    said = write(tmp_path, {"train": 40, "val": 12})
    data = open_(tmp_path, test=0.25)
    assert {name: len(split) for name, split in data.splits.items()} == {"train": 30, "validation": 12, "test": 10}
    for name, part in (("train", "train"), ("validation", "val"), ("test", "train")):
        split, (rows, order) = data.splits[name], said[part]
        with h5py.File(tmp_path / f"{part}2014_vgg16_fc7_pca.h5") as file:
            features = file["features"][:]
        batch = split.examples(np.arange(len(split)))
        for i, (vector, target) in enumerate(zip(batch["vectors"], batch["target"], strict=True)):
            picture = int(split.name(i).rpartition(":")[2])
            assert (vector[0] == features[picture]).all() and split.address(i) == f"http://x/{part}/{picture}.jpg"
            (row,) = rows[order == picture]
            assert data.vocabulary.decode(target) == text(row)
            assert not split.references or list(split.references[i]) == [text(row)]
    pictures = {name: set(split.rows.tolist()) for name, split in data.splits.items()}
    assert not pictures["train"] & pictures["test"]
    assert open_(tmp_path, test=0.25).identity == data.identity != open_(tmp_path, test=0.0).identity


def test_several_captions_of_a_picture_are_its_references(tmp_path):
    rows, _ = write(tmp_path, {"train": 40})["train"]
    with h5py.File(tmp_path / "coco2014_captions.h5", "a") as file:
        file["train_image_idxs"][:] = np.arange(40) % 10
    data = open_(tmp_path, test=0.2, validation=0.2)
    assert {name: len(split) for name, split in data.splits.items()} == {"train": 24, "validation": 2, "test": 2}
    for name in ("validation", "test"):
        for picture, several in zip(data.splits[name].rows, data.splits[name].references, strict=True):
            assert list(several) == [text(rows[i]) for i in range(picture, 40, 10)]


def changed(name, at, value):
    def change(folder):
        with h5py.File(folder / "coco2014_captions.h5", "a") as file:
            file[name][at] = value

    return change


def without(name):
    return lambda folder: (folder / name).unlink()


def rewritten(name, **arrays):
    def change(folder):
        with h5py.File(folder / name, "a") as file:
            for key, value in arrays.items():
                del file[key]
                if value is not None:
                    file[key] = value

    return change


def damaged(name):
    def change(folder):
        content = (folder / name).read_bytes()
        (folder / name).write_bytes(content[: len(content) // 2])

    return change


def vocabulary(**values):
    def change(folder):
        stated = json.loads((folder / "coco2014_vocab.json").read_text()) | values
        (folder / "coco2014_vocab.json").write_text(json.dumps(stated))

    return change


def linked(folder):
    with h5py.File(folder / "coco2014_captions.h5", "a") as file:
        del file["train_captions"]
        file["train_captions"] = h5py.ExternalLink("val2014_vgg16_fc7_pca.h5", "features")


FC7, SETS = "train2014_vgg16_fc7_pca.h5", "coco2014_captions.h5"
BAD = {
    "damaged captions": (damaged(SETS), "coco2014_captions.h5 cannot be read .*; restore it"),
    "no captions": (without(SETS), "there is no coco2014_captions.h5; put it there"),
    "no data set": (rewritten(SETS, train_image_idxs=None), "no data set 'train_image_idxs'"),
    "a link elsewhere": (linked, "has no data set 'train_captions' of its own"),
    "numbers with points": (rewritten(SETS, train_captions=np.zeros((4, 5))), "train_captions is float64 .*whole"),
    "vectors of whole numbers": (rewritten(FC7, features=np.zeros((40, 16), int)), "features is int64 .*floating"),
    "not as many": (rewritten(SETS, train_image_idxs=np.arange(39)), "40 train_captions but 39"),
    "no picture": (changed("train_image_idxs", 7, 40), r"\[7\] is of the picture 40, .* only 40"),
    "an id outside": (
        changed("train_captions", (3, 2), 66),
        r"train_captions\[3\] has the id 66, but .* only 66 words",
    ),
    "no begin": (changed("train_captions", (3, 0), 9), r"train_captions\[3\] is not <START>"),
    "words after the end": (changed("val_captions", (2, slice(1, 4)), [9, 2, 9]), r"val_captions\[2\] is not <START>"),
    "no number": (rewritten(FC7, features=np.full((40, 16), np.nan)), "row 0 .* no finite numbers"),
    "no special word": (vocabulary(idx_to_word=[*WORDS[:5], "x", *WORDS[6:]]), "the word <START> one id"),
    "words of another form": (vocabulary(idx_to_word={"a": 0}), "has no list idx_to_word"),
    "no json": (lambda f: (f / "coco2014_vocab.json").write_text("{"), "cannot be read as JSON"),
}


@pytest.mark.parametrize("case", BAD)
def test_a_bad_folder_is_refused_in_a_sentence(folder, tmp_path, case):
    (change, message), place = BAD[case], tmp_path / "coco"
    shutil.copytree(folder, place)
    change(place)
    with pytest.raises(UserError, match=message) as caught:
        open_(place)
    assert str(caught.value).startswith(f"data.source coco-features:{place}: ") and "\n" not in str(caught.value)


def test_what_does_not_fit_the_network_is_refused(folder, monkeypatch):
    data = FeatureData(source=f"coco-features:{folder}")
    with pytest.raises(UserError, match=r"model.memory_width is 512, but .* are 16 wide: give `model.memory_width 16"):
        open_features(data, 512)
    with pytest.raises(UserError, match=r"model.text.outputs is 9 but data.source .* has 66 ids"):
        open_features(data, WIDTH, 9)
    with pytest.raises(
        UserError, match=r"data.length is 4, but \d+ captions of .* train_captions\[\d+\]: give \d+, or"
    ):
        open_(folder, length=4)
    with pytest.raises(UserError, match=r"data.test 0.001 of 40 pictures leaves test empty"):
        open_(folder, test=0.001)
    for source, message in (("coco-features:", "there is no folder"), ("shapes", "has no vectors with captions")):
        with pytest.raises(UserError, match=message):
            open_features(replace(data, source=source), WIDTH)
    with pytest.raises(UserError, match="its id 0 is 'a' and here it is 'x'; give captions with the words of the net"):
        open_other_features(data, "", WIDTH, Vocabulary(["x", *WORDS[1:]]))
    monkeypatch.setitem(sys.modules, "h5py", None)
    with pytest.raises(UserError, match=r"h5py is needed but not installed: pip install .*\[captions\]"):
        open_(folder)


def test_vectors_are_read_from_files(folder, tmp_path):
    features = np.arange(12, dtype=np.float64).reshape(3, 4)
    np.save(tmp_path / "many.npy", features)
    np.save(tmp_path / "one.npy", features[1])
    np.savez(tmp_path / "many.npz", features=features)
    found = vectors_in([tmp_path / "many.npy", f"{tmp_path}/many.npz:2", tmp_path / "one.npy"])
    assert [each.name.rpartition("/")[2] for each in found] == [
        "many.npy:0",
        "many.npy:1",
        "many.npy:2",
        "many.npz:2",
        "one.npy",
    ]
    assert (np.stack([each.values for each in found]) == features[[0, 1, 2, 2, 1]]).all()
    with h5py.File(folder / FC7) as file:
        assert (vectors_in([f"{folder}/{FC7}:5"])[0].values == file["features"][5]).all()
    (tmp_path / "no.npy").write_bytes(b"no array")
    np.savez(tmp_path / "other.npz", x=features)
    for given, message in (
        ("no.npy", "cannot be read as vectors"),
        ("other.npz", "cannot be read as vectors"),
        ("many.npy:3", "there is no row 3; count rows from 0"),
        ("gone.npy", "there is no such file"),
    ):
        with pytest.raises(UserError, match=message):
            vectors_in([f"{tmp_path}/{given}"])


# ---------------------------------------------------------------------------------------------- runs


@pytest.fixture(scope="module")
def run(folder, tmp_path_factory, quick_compilation, without_pictures):
    place = tmp_path_factory.mktemp("runs")
    flags = ["coco-caption", "--data.source", f"coco-features:{folder}", *SMALL.split(), "--dir", str(place)]
    assert train([*flags, "--name", "r"]) == 0
    return place / "r"


def test_what_a_run_exports_says_the_runs_captions_of_the_same_files(run, folder, tmp_path, capsys):
    """Its own words and the way that it takes vectors are in the file; the course's layout has the words beside it."""
    from vit_jax.commands.predict import command as predict
    from vit_jax.commands.share import command as join

    net, vectors = vit_jax.load(run), f"{folder}/val2014_vgg16_fc7_pca.h5"
    said = [text for _, text in vit_jax.predict(run, [vectors], batch=6)]
    shares, table = [str(tmp_path / f"{i}.csv") for i in (1, 2)], tmp_path / "table.csv"
    for i, share in enumerate(shares, 1):
        assert predict([str(run), vectors, "--batch", "6", "--share", f"{i}/2", "--csv", share]) == 0
    assert join([*shares, "--to", str(table)]) == 0
    capsys.readouterr()
    assert table.read_text() == "vector,caption\n" + "".join(f"{vectors}:{i},{x}\n" for i, x in enumerate(said))
    file = tmp_path / "x.safetensors"
    vit_jax.export(net, file)
    vit_jax.export(net, tmp_path / "course.pt", to="cs231n@2021")
    for weights in (file, tmp_path / "course.pt"):
        assert predict([str(weights), vectors, "--batch", "6", "--csv", str(tmp_path / "said.csv"), "--force"]) == 0
        printed = capsys.readouterr().out.splitlines()
        assert printed == said
        with open(tmp_path / "said.csv", newline="") as table:
            assert [row["caption"] for row in csv.DictReader(table)] == said
    np.save(tmp_path / "wide.npy", np.zeros(9))
    for inputs, more, message in (
        (tmp_path / "wide.npy", [], r"wide.npy: is float64 \[9\]; give vectors \[16\]"),
        (tmp_path / "gone.npy", [], "there is no such file; give a .npy, .npz or .h5 of vectors, or FILE:ROW"),
        (f"{vectors}:12", [], "there is no row 12; count rows from 0"),
        (f"{vectors}:1", ["--top", "2"], "this network says a text and no classes"),
        (f"{vectors}:1", ["--attention", str(tmp_path / "x.png")], "reads a single vector"),
    ):
        with pytest.raises(UserError, match=message) as caught:
            predict([str(file), str(inputs), *more])
        assert "\n" not in str(caught.value)
    assert not (tmp_path / "x.png").exists()


def test_the_preset_has_the_notebooks_network():
    from vit_jax.presets.table import preset

    c = preset("coco-caption").run.model
    assert isinstance(c, CaptionerConfig) and isinstance(c.text, TransformerConfig)
    t = c.text
    assert (t.width, t.heads, t.hidden, t.decoder_depth, t.norm_first, t.final_norm) == (256, 2, 2048, 2, False, False)
