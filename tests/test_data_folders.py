"""Folders of images as people have them: which files are read, as which split and class, and what else is told."""

import os
import shutil
import unicodedata
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.image_sources import a_run, open_dataset, write_images, write_tfds
from vit_jax.data.images.sources.folders import open_folder, open_test_folder
from vit_jax.errors import UserError

COMPOSED, APART = (unicodedata.normalize(form, "café") for form in ("NFC", "NFD"))  # as Linux and macOS write it
PIXEL = Image.new("RGB", (8, 8))
ALL = ("train", "validation", "test")


def laid_out(root: Path, *entries: str) -> Path:
    """A folder with these files: of "cat*3" three images in cat/, else the one file."""
    for entry in entries:
        folder, _, number = entry.partition("*")
        for path in [root / folder / f"{k}.png" for k in range(int(number))] if number else [root / entry]:
            path.parent.mkdir(parents=True, exist_ok=True)
            PIXEL.save(path) if path.suffix == ".png" else path.write_text("x")
    return root


def refusal(path: Path, opened=open_folder) -> str:
    """The sentence with which a folder is refused, T for the folder of the test."""
    with pytest.raises(UserError) as caught:
        opened(str(path))
    assert "\n" not in str(caught.value)
    return str(caught.value).replace(str(path), "T").removeprefix("data.source folder:T: ")


def counts(source) -> dict[str, list[int]]:
    return {s: np.bincount(e.labels, minlength=len(source.outputs.names)).tolist() for s, e in source.splits.items()}


def test_folders_inside_a_class_are_walked_as_torchvision_and_timm_walk_them(tmp_path):
    """Their loop: os.walk with links, sorted by folder and then by file."""
    laid_out(
        tmp_path, "set/cat*2", "set/cat/b/deep*2", "set/cat/a-b*1", "set/cat/a/z*1", "set/dog/in/side*3", "linked*2"
    )
    (tmp_path / "set/dog/link").symlink_to(tmp_path / "linked")
    wanted = []
    for name in ("cat", "dog"):
        walked = sorted(os.walk(tmp_path / "set" / name, followlinks=True))
        wanted += [os.path.join(folder, file) for folder, _, files in walked for file in sorted(files)]
    (tmp_path / "set/dog/round").symlink_to(tmp_path / "set")  # in a circle, where os.walk would not end
    laid_out(tmp_path, "set/cat/.git*1")
    source = open_folder(str(tmp_path / "set"))
    assert source.splits["train"].paths == wanted and counts(source) == {"train": [6, 5]}
    inside = next(path for path in wanted if Path(path).parent.name != "cat")
    assert source.remarks == (f"9 images lie in folders of their class's folder, such as {inside}",)


def test_images_in_folders_of_a_class_are_other_data_and_those_of_flat_folders_the_same_as_ever(tmp_path):
    for name in ("cat", "dog"):
        (tmp_path / name).mkdir()
        for k in range(6):
            Image.new("RGB", (8, 8), (40 * k, len(name), ord(name[0]))).save(tmp_path / name / f"{k}.png")
    run = a_run(f"folder:{tmp_path}", channels=3)
    assert open_dataset(run).identity["content"] == "87aa32d213edc346a64fdba6b2207f66"  # of the version before
    laid_out(tmp_path, "cat/more*1")
    data = open_dataset(run)
    assert data.identity["content"] != "87aa32d213edc346a64fdba6b2207f66" and sum(data.identity["sizes"].values()) == 13


def test_what_is_no_image_is_counted_by_kind_with_an_example(tmp_path):
    laid_out(tmp_path, "train/cat*2", "train/dog*2", "train/cat/a.heic", "train/dog/b.HEIC", "train/dog/c.heic")
    laid_out(tmp_path, "train/dog/deep/notes.txt", "train/LICENSE", "labels.csv", "train/loose.png", ".DS_Store")
    laid_out(tmp_path, "train/dog/d.avif", "train/dog/deep/0.png", "__MACOSX/train/cat/._0.png")
    said = open_folder(str(tmp_path)).remarks[-1].replace(str(tmp_path), "T")
    assert said.startswith("8 files are left out") and "3 .heic (such as T/train/cat/a.heic)" in said
    assert "1 without suffix (such as T/train/LICENSE)" in said and said.endswith("2 of other kinds")
    only = laid_out(tmp_path / "only", "cat*2", "dog/a.heic")
    assert "dog holds no images, only 1 .heic (such as T/dog/a.heic); convert these" in refusal(only)


TWO = ("{}/cat*3", "{}/dog*3")


@pytest.mark.parametrize(
    ("named", "read"),
    [
        ("train valid test", "train validation test"),
        ("Training Testing", "train test"),
        ("TRAIN Validation", "train validation"),
        ("Train Data,Test Data", "train test"),
        ("pets-2020-train pets-2020-val pets-2020-test", "train validation test"),
    ],
)
def test_splits_under_the_names_that_people_give_them(named, read, tmp_path):
    folders = named.split("," if "," in named else " ")
    laid_out(tmp_path, *(entry.format(name) for name in folders for entry in TWO))
    source = open_folder(str(tmp_path))
    assert {*source.splits} == {*read.split()} and source.outputs.names == ("cat", "dog")
    for name, split in zip(folders, read.split(), strict=True):
        assert all(Path(path).is_relative_to(tmp_path / name) for path in source.splits[split].paths)
        assert (f"{name}/ as {split}" in " ".join(source.remarks)) == (name not in ("train", "test"))


def test_classes_may_be_called_as_splits_are(tmp_path):
    for root, entries in {
        "vehicles": ("bus*2", "train*2", "train/steam*1"),
        "papers": ("valid*2", "invalid*2"),
        "stations": ("train_station*2", "bus_station*2"),
        "nested": ("rail/train*2", "rail/tram*2", "road/bus*2"),
    }.items():
        source = open_folder(str(laid_out(tmp_path / root, *entries)))
        assert [*source.splits] == ["train"] and len(source.outputs.names) == 2
    entries = [f"{split}/{name}*1" for split in ("train", "test") for name in ("ant", "cat")]
    for beside in (["test*1", "extra*1"], ["train*1", "test*2"]):  # images beside the classes of a split
        source = open_folder(str(laid_out(tmp_path / beside[0][:4] / "loose", *entries, *beside)))
        assert counts(source) == {"train": [1, 1], "test": [1, 1]} and "beside the folders" in source.remarks[-1]


def test_validation_and_test_may_lack_classes_and_labels_go_by_name(tmp_path):
    laid_out(tmp_path, "train/ant*6", "train/cat*6", "train/dog*6", "val/dog*2", "test/cat*1", "test/ant*2")
    data = open_dataset(a_run(f"folder:{tmp_path}", channels=3))
    assert [np.bincount(data.splits[s].labels, minlength=3).tolist() for s in ALL] == [[6, 6, 6], [0, 0, 2], [2, 1, 0]]
    assert data.splits["validation"].classes.tolist() == [2] and data.splits["train"].classes is None
    assert "validation has no example of 2 of the 3 classes (ant, cat)" in " ".join(data.remarks)
    laid_out(tmp_path, "val/dgo*1")
    assert "class folder dgo is in validation but not in train; nearest: dog; rename it" in refusal(tmp_path)


def test_a_split_without_classes_is_told_and_none_is_cut_from_train_in_silence(tmp_path):
    laid_out(tmp_path, *(entry.format("train") for entry in TWO * 2), "test*4")
    source = f"folder:{tmp_path}"
    told = "test/ holds 4 images but no class folders and is left out"
    assert open_dataset(a_run(source, channels=3, validation=0.0, test=0.5)).remarks == (
        f"{told}; 50% of train is held out as test in its place (data.test)",
    )
    assert open_dataset(a_run(source, channels=3, validation=0.0, test=0.0)).remarks == (told,)
    assert open_test_folder(str(tmp_path)).unlabelled == {"test": told.removesuffix(" and is left out")}


def test_names_that_look_the_same_are_one_class(tmp_path):
    apart = laid_out(tmp_path / "a", f"train/{COMPOSED}*3", "train/dog*3", f"val/{APART}*2", "val/dog*1")
    source = open_folder(str(apart))
    assert counts(source) == {"train": [3, 3], "validation": [2, 1]} and source.outputs.names == (COMPOSED, "dog")
    both = open_folder(str(laid_out(tmp_path / "b", f"{COMPOSED}*3", f"{APART}*2", "dog*1")))
    assert counts(both) == {"train": [5, 1]} and f"are one class: {COMPOSED}" in both.remarks[0]
    assert open_folder(str(laid_out(tmp_path / "c", f"{APART}*1", "dog*1"))).outputs.names == (APART, "dog")


@pytest.mark.parametrize(
    ("entries", "below", "says"),
    [
        ("data/train/cat*1 data/train/dog*1", "", "give folder:T/data if that is the set"),
        ("a/b/cat*1 a/b/dog*1", "", "they lie in cat, dog; give folder:T/a/b"),
        ("pets/train/cat*1 pets/test/cat*1 fish/train/eel*1 fish/test/eel*1", "", "fish/ holds train/ and test/"),
        ("train/cat*2 train/dog*2", "train/cat", "holds no class folders, but 2 images; give folder:/"),
        ("train/cat*1 Training/cat*1", "", "both Training/ and train/ are there"),
        ("val/cat*1 test/cat*1", "", "val/ has class folders but train/ has none or"),
        ("cat*1 dog*1 eel/deep/.hidden", "", "class folder T/eel holds no images; add some or remove it"),
        ("train*1 test*1", "", "train/ holds no class folders"),
    ],
)
def test_a_folder_of_another_level_is_told_with_the_one_to_give(entries, below, says, tmp_path):
    laid_out(tmp_path, *entries.split())
    said = refusal(tmp_path / below)
    assert says in said and ("remove it" in said) == ("eel" in entries and "hidden" in entries)


@pytest.mark.parametrize("opened", [open_folder, open_test_folder])
@pytest.mark.parametrize("config", ["", "/big"])
@pytest.mark.parametrize("below", ["", "pets", "pets/1.0.0"])
def test_the_folder_of_a_prepared_set_is_told_with_the_flags_to_give(below, config, opened, tmp_path):
    write_tfds(tmp_path, "pets", version=f"{config}/1.0.0".strip("/"))
    flags, place = (
        f"give `data.source pets{config}{{}}` and `data.dir {tmp_path}",
        below.replace("pets", f"pets{config}"),
    )
    with pytest.raises(UserError, match=flags.format("")):
        opened(str(tmp_path / place))
    write_tfds(tmp_path, "pets", version=f"{config}/2.0.0".strip("/"))
    with pytest.raises(UserError, match=flags.format(":1.0.0" if below == "pets/1.0.0" else "")):
        opened(str(tmp_path / place))


def test_bad_folders_are_refused(tmp_path):
    assert "no such folder" in refusal(tmp_path / "absent")
    (tmp_path / "empty").mkdir()
    assert "no class folders" in refusal(tmp_path / "empty")
    with pytest.raises(UserError, match="its only class is cat"):
        open_dataset(a_run(f"folder:{write_images(tmp_path / 'one', classes=('cat',))}", channels=3))
    deep = tmp_path / "deep"
    for _ in range(300):  # deeper than Python recurses, within what the system allows for a path
        deep = deep / "cat"
    laid_out(tmp_path / "deep", "dog*1")
    deep.mkdir(parents=True)
    assert "cat holds no images; add some or remove it" in refusal(tmp_path / "deep")
    shutil.rmtree(tmp_path / "deep")
