"""The index of images that do not fit into memory: later starts decode only what has changed, and find the same."""

import errno
import json
import os
import time

import numpy as np
import pytest

from tests.image_sources import a_run, everything, names, open_dataset, write_images, write_tfds
from vit_jax.data.images import pixels
from vit_jax.data.images.sources import folders, index
from vit_jax.errors import UserError
from vit_jax.extras.sets import records

OLD = time.time_ns() - 10**12


def settled(root):
    """All files below, changed a quarter of an hour ago."""
    for path in root.rglob("*"):
        os.utime(path, ns=(OLD, OLD))


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder of 24 images, with a cache of its own."""
    monkeypatch.setattr(index, "cache_folder", lambda name: tmp_path / "cache" / name)
    root = write_images(tmp_path / "images", 12)
    settled(root)
    return root


@pytest.fixture
def read(monkeypatch, tmp_path):
    """The names of the files that are read, in order."""
    seen, original = [], folders.read_image

    def reading(path):
        seen.append(os.path.relpath(path, tmp_path / "images"))
        return original(path)

    monkeypatch.setattr(
        folders, "read_image", lambda path: (seen.append(os.path.relpath(path, tmp_path / "images")), original(path))[1]
    )
    return seen


def opened(folder, memory=0.0, **data):
    return open_dataset(a_run(f"folder:{folder}", channels=3, memory=memory, **data))


def same(one, other):
    """Two openings of one set."""
    assert one.identity == other.identity and one.preprocess == other.preprocess
    for name, split in one.splits.items():
        assert names(split) == names(other.splits[name])
        np.testing.assert_array_equal(everything(split), everything(other.splits[name]))


def test_a_later_start_reads_no_image_and_finds_what_decoding_all_finds(folder, read, capsys):
    same(opened(folder), opened(folder, memory=1.0))
    assert "indexing" in capsys.readouterr().out
    read.clear()
    later = opened(folder, threads=3)
    assert not read and "indexing" not in capsys.readouterr().out
    same(later, opened(folder, memory=1.0))
    read.clear()
    opened(folder, verify=True)
    assert len(read) == 24


def test_splits_of_a_table_that_lie_in_one_folder_have_an_index_each_for_labels_of_any_kind(folder, read):
    lines = [
        f"{name}/{k},{k % 2},{k % 3 % 2},{'train' if k < 9 else 'test'}" for name in ("cat", "dog") for k in range(12)
    ]
    (folder / "t.csv").write_text("\n".join(["image,a,b,split", *lines]))
    run = a_run(f"csv:{folder}/t.csv", channels=3, memory=0.0, labels=("a", "b"), target="set")
    first = open_dataset(run)
    read.clear()
    later = open_dataset(run)
    assert not read
    same(later, first)


def test_only_what_was_added_or_changed_is_decoded_again(folder, read):
    opened(folder)
    changed = folder / "cat" / "3.jpg"
    changed.write_bytes((folder / "dog" / "5.jpg").read_bytes())
    os.rename(folder / "dog" / "5.jpg", folder / "dog" / "new.jpg")
    (folder / "dog" / "7.jpg").unlink()
    read.clear()
    now = opened(folder, normalize="half")
    assert sorted(read) == ["cat/3.jpg", "dog/new.jpg"]
    same(now, opened(folder, memory=1.0, normalize="half"))


def test_a_file_of_the_same_size_and_another_time_is_decoded_again(folder, read):
    was = opened(folder).identity
    file = folder / "cat" / "2.png"
    content = bytearray(file.read_bytes())
    file.write_bytes(bytes(content))
    read.clear()
    assert opened(folder, normalize="half").identity == was and read == ["cat/2.png"]


def test_what_changed_shortly_before_it_was_read_is_not_taken_for_known(folder, read):
    fresh = folder / "cat" / "2.png"
    os.utime(fresh)
    opened(folder, normalize="half")
    read.clear()
    opened(folder, normalize="half")
    assert read == ["cat/2.png"]


def test_an_interrupted_start_goes_on(folder, read, monkeypatch):
    monkeypatch.setattr(pixels, "_SLICE", 5)
    look = pixels.Images._look

    def interrupted(self, seen, rows, stored):
        if 15 in rows:
            raise KeyboardInterrupt
        look(self, seen, rows, stored)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(pixels.Images, "_look", interrupted)
        opened(folder)
    assert len(read) == 15
    read.clear()
    now = opened(folder, normalize="half")
    assert len(read) == 24 - 15
    same(now, opened(folder, memory=1.0, normalize="half"))


def test_a_damaged_index_is_made_again(folder):
    truth, cache = opened(folder), folder.parent / "cache" / "indexes"
    (path,), (other,) = cache.glob("*.npz"), cache.glob("*.json")
    whole, draw = path.read_bytes(), np.random.default_rng(0)
    for place in draw.integers(0, len(whole), 40):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 1 << place % 8]) + whole[place + 1 :])
        assert opened(folder).identity == truth.identity
    for content in (b"", whole[:-100], b"PK\3\4"):
        path.write_bytes(content)
        assert opened(folder).identity == truth.identity
    for content in (b"", b"[]", json.dumps({"value": [[9.0], [9.0]], "digest": "0"}).encode()):
        other.write_bytes(content)
        assert opened(folder).preprocess == truth.preprocess


def test_an_unreadable_image_is_named_by_every_start_and_decoded_by_the_first(folder, read):
    (folder / "cat" / "4.png").write_bytes(b"no image")
    os.utime(folder / "cat" / "4.png", ns=(OLD, OLD))
    for _ in range(2):
        with pytest.raises(UserError, match=r"1 unreadable image: .*4\.png; replace or remove them"):
            opened(folder)
    left = opened(folder, skip_unreadable=True, normalize="half")
    assert sum(map(len, left.splits.values())) == 23 and read.count("cat/4.png") == 1
    same(left, opened(folder, memory=1.0, skip_unreadable=True, normalize="half"))


def test_a_full_disk_is_one_sentence_and_leaves_nothing(folder, monkeypatch):
    def full(file, **arrays):
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(index.np, "savez", full)
        with pytest.raises(UserError, match=r"there is no room for the index of 24 images; free some, or set XDG_"):
            opened(folder)
    assert not list((folder.parent / "cache" / "indexes").iterdir())


def test_where_no_index_can_be_kept_the_set_is_read_at_each_start_and_the_user_told(folder, monkeypatch):
    (folder.parent / "cache").write_text("no folder")
    data = opened(folder)
    assert any("each start reads all images" in remark for remark in data.remarks)
    same(data, opened(folder, memory=1.0))


def test_a_prepared_set_is_known_by_its_files_labels_too(tmp_path, monkeypatch):
    monkeypatch.setattr(index, "cache_folder", lambda name: tmp_path / "cache" / name)
    write_tfds(tmp_path)
    settled(tmp_path)
    scanned, scan = [], records._scan
    monkeypatch.setattr(records, "_scan", lambda *given: (scanned.append(1), scan(*given))[1])
    first, later = (open_dataset(a_run("pets", dir=tmp_path, memory=0.0)) for _ in range(2))
    assert len(scanned) == 3  # train, and test twice, which is not decoded before it is used
    same(first, later)
    same(later, open_dataset(a_run("pets", dir=tmp_path, memory=1.0)))
    open_dataset(a_run("pets", dir=tmp_path, memory=0.0, verify=True))
    os.utime(next(tmp_path.rglob("*train.array_record*")), ns=(OLD + 1, OLD + 1))
    open_dataset(a_run("pets", dir=tmp_path, memory=0.0))
    assert len(scanned) == 3 + 1 + 2 + 2
