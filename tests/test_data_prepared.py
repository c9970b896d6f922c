"""Prepared sets that cannot be read as they are: which file, name, version, folder or limit it is, and what to give."""

import json
import os
import resource
import shutil

import pytest

from tests.image_sources import a_run, open_dataset, write_tfds
from tests.test_processes import python
from vit_jax.data.images.open import open_images
from vit_jax.errors import UserError
from vit_jax.files.reading import show_path


def refusal(source, **data):
    """The sentence with which a run is refused."""
    with pytest.raises(UserError) as caught:
        open_dataset(a_run(source, image=(5, 6), **data))
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_bad_tfds_sets_are_refused(tmp_path):
    write_tfds(tmp_path, "pets")
    where = {"dir": str(tmp_path)}
    assert "nearest: pets" in refusal("pest", **where)
    assert "cifar10" in refusal("cifra10", **where)
    text = refusal("svhn_cropped", **where)
    assert "there: pets" in text and "`data.dir" in text
    assert f"folder:{tmp_path}" in refusal(tmp_path)
    write_tfds(tmp_path, "boxes", label="box")
    assert "image and label" in refusal("boxes", **where)
    write_tfds(tmp_path, "floats", dtype="float32")
    assert "float32" in refusal("floats", **where)
    write_tfds(tmp_path, "old", stored="tfrecord")
    assert "file_format='array_record'" in refusal("old", **where)
    write_tfds(tmp_path, "mnist", stored="tfrecord")  # which needs no TensorFlow to be prepared again
    assert "give `data.dir` another folder" in refusal("mnist", **where)
    assert "give `data.source cifar10` to have it fetched" in refusal("cifar10:9.9.9", **where)
    file = tmp_path / "images.npy"
    file.touch()
    assert "is a file; give folder:PATH, FILE.npz" in refusal(file)
    write_tfds(tmp_path, "tested", splits=(("test", 4),))
    assert "no train split" in refusal("tested", **where)
    os.remove(tmp_path / "pets/1.0.0/pets-test.array_record-00000-of-00001")
    assert "cannot be read" in refusal("pets", **where)
    (tmp_path / "pets/1.0.0/features.json").write_text("{")
    assert "features.json: cannot be read as JSON" in refusal("pets", **where)


@pytest.mark.parametrize("name", ["pets", "mnist"])
def test_a_data_dir_of_another_level_is_told_and_nothing_fetched(name, tmp_path):
    write_tfds(tmp_path / "sets", name)
    assert len(open_dataset(a_run(name, image=(5, 6), dir=f"{tmp_path}/sets")).splits["test"]) == 6
    for inside in (f"/{name}", f"/{name}/1.0.0"):
        said = refusal(name, dir=f"{tmp_path}/sets{inside}")
        given = f"data.dir {tmp_path}/sets{inside}"
        assert said == f"{given}: is the folder of the set {name}; give `data.dir {tmp_path}/sets`"
    above = refusal(name, dir=str(tmp_path))
    assert above == f"data.dir {tmp_path}: has {name} in sets/; give `data.dir {tmp_path}/sets`"
    with pytest.raises(UserError, match="is the folder of the set"):  # and so does a dry run, which fetches nothing
        open_images(a_run(name, dir=f"{tmp_path}/sets/{name}").data, (5, 6), 1, fetch=False)
    assert sorted(each.name for each in tmp_path.iterdir()) == ["sets"]


@pytest.mark.parametrize(
    ("source", "says"),
    {
        "pets/1.0.0": "(there: pets 1.0.0, 2.0.0); give `data.source pets:1.0.0`",
        "pets:3.0.0": "(there: pets 1.0.0, 2.0.0); give `data.source pets`",
        "pets:train[:10%]": "is more than the name of a set; give `data.source pets`",
        "pest": "nearest: pets, ",
        "mnits": "no such set; nearest: mnist, kmnist, emnist; give",
        "mnist/3.0.1": "give `data.source mnist` to have it fetched",
    }.items(),
)
def test_a_name_that_is_nearly_one_gets_advice_that_helps(source, says, tmp_path):
    for version in ("1.0.0", "2.0.0"):
        write_tfds(tmp_path, "pets", version=version)
    said = refusal(source, dir=str(tmp_path))
    assert says in said and f"builder({source!r}" not in said
    listed = said.partition("nearest: ")[2].partition(";")[0].split(", ")
    assert len({*listed}) == len(listed)
    if says.startswith("give `data.source pets"):
        assert len(open_dataset(a_run("pets", image=(5, 6), dir=str(tmp_path))).splits["test"]) == 6


def shard(folder, split):
    return next(folder.glob(f"*-{split}.array_record*"))


def test_a_file_of_another_split_under_a_split_s_name_is_seen(tmp_path):
    for name, test in (("unequal", 6), ("equal", 20)):
        write_tfds(tmp_path, name, splits=(("train", 20), ("test", test)))
        folder = tmp_path / name / "1.0.0"
        assert open_dataset(a_run(name, image=(5, 6), dir=str(tmp_path))).remarks == ()
        shutil.copy(shard(folder, "train"), shard(folder, "test"))
    said = refusal("unequal", dir=str(tmp_path))
    assert "pets" not in said and "unequal-test" in said
    assert "holds 20 records and not 6" in said
    assert "equal-test" in (said := refusal("equal", dir=str(tmp_path))) and "is the same file as equal-train" in said
    write_tfds(tmp_path, "bytes")
    info = tmp_path / "bytes/1.0.0/dataset_info.json"
    info.write_text(info.read_text().replace('"numBytes": "', '"numBytes": "1'))
    (train, test) = open_dataset(a_run("bytes", image=(5, 6), dir=str(tmp_path))).remarks
    assert train.startswith("train has records of ") and "dataset_info.json states 1" in test


@pytest.mark.parametrize(
    ("damage", "says"),
    {
        "absent": (lambda path: path.unlink(), "cannot be read (No such file or directory)"),
        "cut": (lambda path: path.write_bytes(path.read_bytes()[:1000]), "has 1,000 bytes, fewer than any"),
        "half": (lambda path: path.write_bytes(path.read_bytes()[:65536] + bytes(65536)), "cannot be read ("),
        "folder": (lambda path: (path.unlink(), path.mkdir()), "is no regular file but a folder"),
        "pipe": (lambda path: (path.unlink(), os.mkfifo(path)), "is no regular file"),
        "link": (lambda path: (path.unlink(), path.symlink_to("nowhere")), "cannot be read (No such file"),
        "pointer": (lambda path: path.write_text("version https://git-lfs.github.com/spec/v1\n"), "git lfs pull"),
    }.items(),
)
def test_a_damaged_file_is_named_with_what_is_wrong_with_it(damage, says, tmp_path):
    change, words = says
    write_tfds(tmp_path, "pets")
    path = shard(tmp_path / "pets/1.0.0", "test")
    change(path)
    said = refusal("pets", dir=str(tmp_path))
    assert said.startswith((f"{path}: ", f"{show_path(path)}: ")) and words in said


MANY = """
import resource, sys
from tests.image_sources import a_run, everything, open_dataset
resource.setrlimit(resource.RLIMIT_NOFILE, (200, 4000))
data = open_dataset(a_run("pets", image=(5, 6), dir=sys.argv[1], memory=0.0, test=0.0, validation=0.0))
print(everything(data.splits["train"]).shape)
"""


def test_a_set_of_many_files_raises_the_soft_limit_of_open_files_or_names_it(tmp_path, monkeypatch):
    from array_record.python.array_record_module import ArrayRecordReader, ArrayRecordWriter

    write_tfds(tmp_path, "pets", splits=(("train", 220),))
    folder = tmp_path / "pets/1.0.0"
    reader = ArrayRecordReader(str(shard(folder, "train")))
    records = reader.read_all()
    reader.close()
    shard(folder, "train").unlink()
    for i, record in enumerate(records):
        writer = ArrayRecordWriter(str(folder / f"pets-train.array_record-{i:05}-of-00220"), "group_size:1")
        writer.write(record)
        writer.close()
    info = json.loads((folder / "dataset_info.json").read_text())
    info["splits"][0]["shardLengths"] = ["1"] * 220
    (folder / "dataset_info.json").write_text(json.dumps(info))
    done = python(MANY, tmp_path)
    assert done.stdout.splitlines()[-1] == "(220, 5, 6, 1)", done.stderr
    monkeypatch.setattr(resource, "getrlimit", lambda which: (200, 200))
    said = refusal("pets", dir=str(tmp_path))
    assert "its 220 files are open at the same time" in said
    assert "with ulimit -n" in said and "prepare it again" not in said
