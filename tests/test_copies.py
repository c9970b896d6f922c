"""Folders of classes and prepared sets at a URL: the same data as on this machine's disk, each file fetched once."""

import numpy as np
import pytest

from tests.image_sources import a_run, everything, names, open_dataset, write_images, write_tfds
from tests.loopback_s3 import serving
from vit_jax.data.captions.captioned import find_captions, without_captions
from vit_jax.data.captions.config import CaptionData
from vit_jax.data.images.open import open_other_images
from vit_jax.errors import UserError
from vit_jax.extras.sets.prepare import SetArrays, write_set


@pytest.fixture
def bucket(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    with serving() as bucket:
        yield bucket


def upload(bucket, folder, prefix):
    for path in folder.rglob("*"):
        if path.is_file():
            bucket.objects[f"{prefix}/{path.relative_to(folder).as_posix()}"] = path.read_bytes()


def fetched(bucket) -> list[str]:
    """The objects of which bytes were read since the last call."""
    found = sorted({name for method, name, size in bucket.requests if method == "GET" and name and size})
    bucket.requests.clear()
    return found


def test_classes_at_a_url_are_the_folders_on_disk_and_are_fetched_once(bucket, tmp_path):
    local = write_images(tmp_path / "pets")
    (local / "cat" / "clip.mp4").write_bytes(bytes(5000))
    upload(bucket, local, "data/pets")
    bucket.objects["data/pets/"] = b""  # as consoles mark a folder
    here, there = open_dataset(a_run(f"folder:{local}")), open_dataset(a_run("folder:s3://bucket/data/pets"))
    assert there.identity == here.identity and there.name == here.name == "pets"
    assert any(".mp4" in each for each in there.remarks)
    for split in here.splits:
        assert [name.rpartition("pets/")[2] for name in names(here.splits[split])] == [
            name.rpartition("pets/")[2] for name in names(there.splits[split])
        ]
        assert np.array_equal(everything(here.splits[split]), everything(there.splits[split]))
    assert len(fetched(bucket)) == 8  # and not the clip
    open_dataset(a_run("folder:s3://bucket/data/pets"))
    assert fetched(bucket) == []
    bucket.objects["data/pets/dog/9.png"] = bucket.objects.pop("data/pets/dog/0.png")
    changed = open_dataset(a_run("folder:s3://bucket/data/pets"))
    assert fetched(bucket) == ["data/pets/dog/9.png"]
    assert "9.png" in " ".join(name for split in changed.splits.values() for name in names(split))
    assert "dog/0.png" not in " ".join(name for split in changed.splits.values() for name in names(split))
    bucket.objects["data/pets/cat/0.png"] = bucket.objects["data/pets/dog/9.png"]
    assert open_dataset(a_run("folder:s3://bucket/data/pets", verify=True)).identity != changed.identity
    other = open_other_images(a_run("folder:s3://bucket/data/pets").data, "", here.preprocess, here.outputs)
    assert other.total == 8


@pytest.mark.parametrize(
    ("source", "faults", "why"),
    [
        ("folder:s3://bucket/nothing", {}, "s3://bucket/nothing: holds nothing; check the path"),
        ("folder:ftp://host/pets", {}, "ftp:// is not known; give a folder, s3://BUCKET/PATH"),
        ("folder:https://host/pets", {}, "lists no files; give s3:// or gs://, or tars of webdataset (wds:)"),
        ("folder:s3://other/pets", {}, "there is no bucket other"),
        ("folder:s3://bucket/pets", {"pets/cat/1.jpg": 403}, "pets/cat/1.jpg: access is denied: the permission"),
        ("folder:s3://bucket/pets", {"": 403}, "access is denied: the permission"),
        ("folder:s3://bucket/pets", {"*": [503, 503]}, ""),
    ],
)
def test_a_folder_that_a_store_does_not_give_is_told(bucket, tmp_path, source, faults, why):
    upload(bucket, write_images(tmp_path / "pets"), "pets")
    bucket.faults = faults
    if not why:
        assert open_dataset(a_run(source)).splits
        return
    with pytest.raises(UserError) as caught:
        open_dataset(a_run(source))
    assert why in str(caught.value)


def test_a_prepared_set_at_a_url_is_the_set_on_disk(bucket, tmp_path):
    local = tmp_path / "sets"
    for version in ("1.0.0", "1.10.0", "1.9.0"):
        write_tfds(local, version=version)
    upload(bucket, local, "sets")
    here, there = (open_dataset(a_run("pets", dir=place)) for place in (str(local), "s3://bucket/sets"))
    assert there.identity == here.identity
    for split in here.splits:
        assert np.array_equal(everything(here.splits[split]), everything(there.splits[split]))
    assert all("/1.10.0/" in name for name in fetched(bucket))
    open_dataset(a_run("pets", dir="s3://bucket/sets"))
    assert all(name.endswith((".json", ".txt")) for name in fetched(bucket))
    for source, why in (
        (
            "pets:2.0.0",
            "data.source pets:2.0.0: is not prepared in s3://bucket/sets (versions there: 1.0.0, 1.9.0, 1.1",
        ),
        ("cifar10", "data.source cifar10: is not prepared in s3://bucket/sets; copy its folder there"),
    ):
        with pytest.raises(UserError) as caught:
            open_dataset(a_run(source, dir="s3://bucket/sets"))
        assert why in str(caught.value)
    gone = next(name for name in bucket.objects if "1.10.0" in name and "train" in name)
    del bucket.objects[gone]
    with pytest.raises(UserError, match=r"train.array_record.*cannot be read \(No such file"):
        open_dataset(a_run("pets", dir="s3://bucket/sets"))


def test_the_file_of_an_official_set_at_a_url_is_fetched_once(bucket, tmp_path):
    rng, local = np.random.default_rng(0), tmp_path / "sets"
    pixels = {split: rng.integers(0, 256, (20, 28, 28, 1), np.uint8) for split in ("train", "test")}
    write_set(local, "mnist", SetArrays(pixels, {split: np.arange(20) % 10 for split in pixels}, tuple("0123456789")))
    upload(bucket, local, "sets")
    here, there = (open_dataset(a_run("mnist", image=28, dir=place)) for place in (str(local), "s3://bucket/sets"))
    assert there.identity == here.identity and fetched(bucket) == ["sets/mnist/3.0.1.npz"]
    open_dataset(a_run("mnist", image=28, dir="s3://bucket/sets"))
    assert fetched(bucket) == []


def test_captions_at_a_url_are_those_on_disk(bucket, tmp_path):
    local = write_images(tmp_path / "said")
    (local / "captions.csv").write_text("image,caption\n" + "".join(f"cat/{k}.png,a {k}\n" for k in (0, 2))
                                        + "dog/1.jpg,a dog\n")  # fmt: skip
    upload(bucket, local, "said")
    sources = (CaptionData(source=f"captions:{place}") for place in (local, "s3://bucket/said"))
    here, there = (find_captions(source)["train"] for source in sources)
    assert here[1] == there[1] == [["a 0"], ["a 2"], ["a dog"]]
    assert [here[0].read(i) for i in range(3)] == [there[0].read(i) for i in range(3)]
    assert "5 images have no caption" in without_captions("captions:s3://bucket/said", {"train": there})[0]
