"""Sources and splits: counts by brute force, pixels against Pillow and the source's own arrays."""

import io
import os
import zipfile

import numpy as np
import pytest
from PIL import Image

from tests.image_sources import a_run, everything, names, open_dataset, write_images, write_npz, write_tfds
from vit_jax.data.base import GivenData
from vit_jax.data.images.open import open_images
from vit_jax.errors import UserError
from vit_jax.runs.check import check_run


def refusal(*args, **kwargs):
    """The sentence with which a run is refused."""
    with pytest.raises(UserError) as caught:
        open_dataset(a_run(*args, **kwargs))
    assert "\n" not in str(caught.value) and "Traceback" not in str(caught.value)
    return str(caught.value)


def sizes(data):
    """How many examples train, validation and test have."""
    return [len(data.splits[name]) for name in ("train", "validation", "test")]


def cut(path):
    path.write_bytes(path.read_bytes()[:300])


# ---------------------------------------------------------------------------------------- sources


def test_digits_are_scikit_learns_and_the_test_split_is_one_fifth_by_class():
    from sklearn.datasets import load_digits

    digits = load_digits()
    data = open_dataset(a_run("digits"))
    assert data.class_names == tuple("0123456789") and list(data.splits) == ["train", "validation", "test"]
    seen = []
    for split in data.splits.values():
        rows = [int(name[len("digits[") : -1]) for name in names(split)]
        np.testing.assert_array_equal(split.labels, digits.target[rows])
        np.testing.assert_array_equal(everything(split)[..., 0], np.round(digits.images[rows] * 255 / 16))
        seen += rows
    assert sorted(seen) == list(range(1797))  # disjoint, and together everything
    share = np.bincount(data.splits["test"].labels) / np.bincount(digits.target)
    assert len(data.splits["test"]) == round(0.2 * 1797) and np.all(np.abs(share - 0.2) < 0.006)
    assert data.splits["train"].labels.dtype == np.int32


def test_another_seed_gives_another_validation_and_the_same_test():
    first, again, other = (open_dataset(a_run("digits", seed=seed)) for seed in (3, 3, 4))
    for name in ("train", "validation", "test"):
        assert names(first.splits[name]) == names(again.splits[name])
    assert names(first.splits["test"]) == names(other.splits["test"])
    assert names(first.splits["validation"]) != names(other.splits["validation"])
    none = open_dataset(a_run("digits", validation=0.0, test=0.0))
    assert list(none.splits) == ["train"] and len(none.splits["train"]) == 1797


def test_folder_with_splits_reads_each_image_as_pillow_does(tmp_path):
    for split, number in (("train", 5), ("val", 2), ("test", 3)):
        write_images(tmp_path / split, number, seed=number)
    (tmp_path / "train/cat/.hidden.png").write_text("x")
    (tmp_path / "train/cat/notes.txt").write_text("x")
    (tmp_path / "train/.git").mkdir()
    data = open_dataset(a_run(f"folder:{tmp_path}", channels=3))
    assert data.class_names == ("cat", "dog") and sizes(data) == [10, 4, 6]
    for split in data.splits.values():
        for i, image in enumerate(everything(split)):
            with Image.open(split.name(i)) as file:  # 20 x 14 covers 8 x 8 at 11 x 8
                wanted = file.convert("RGB").resize((11, 8), Image.Resampling.BILINEAR).crop((2, 0, 10, 8))
            np.testing.assert_array_equal(image, np.asarray(wanted))
            assert f"/{data.class_names[split.labels[i]]}/" in split.name(i).replace(os.sep, "/")
    alone = open_dataset(a_run(f"folder:{tmp_path / 'train'}", channels=3, validation=0.0, test=0.5))
    assert len(alone.remarks) == 1 and "1 .txt (such as" in alone.remarks[0]


def test_one_folder_of_classes_is_split_by_us_and_may_have_a_class_called_train(tmp_path):
    write_images(tmp_path, 10, ("bus", "train"))
    data = open_dataset(a_run(f"folder:{tmp_path}", channels=3))
    assert data.class_names == ("bus", "train") and sizes(data) == [14, 2, 4]


def test_a_set_too_large_for_memory_gives_the_same_pixels_and_identity(tmp_path):
    write_images(tmp_path, 12)
    kept, streamed = (
        open_dataset(a_run(f"folder:{tmp_path}", channels=3, memory=memory, threads=3)) for memory in (1.0, 0.0)
    )
    for name in ("train", "validation", "test"):
        assert names(kept.splits[name]) == names(streamed.splits[name])
        np.testing.assert_array_equal(everything(kept.splits[name]), everything(streamed.splits[name]))
    assert kept.identity == streamed.identity and kept.preprocess == streamed.preprocess
    os.remove(streamed.splits["test"].name(1))  # a streamed image is read when it is taken
    with pytest.raises(UserError, match="cannot be read"):
        everything(streamed.splits["test"])


@pytest.mark.parametrize(
    "keys", [("images", "labels"), ("image", "label"), ("x_train", "Y_train"), ("Train_images", "Train_labels")]
)
def test_npz_names(tmp_path, keys):
    images = np.random.default_rng(0).integers(0, 256, (20, 8, 8), np.uint8)
    np.savez(tmp_path / "a.npz", **{keys[0]: images, keys[1]: np.arange(20)[:, None] % 2, "class_names": ["no", "yes"]})
    data = open_dataset(a_run(tmp_path / "a.npz", validation=0.0, test=0.0))
    assert data.name == "a" and data.class_names == ("no", "yes")
    np.testing.assert_array_equal(everything(data.splits["train"])[..., 0], images)


def test_npz_with_its_own_splits_and_other_channels(tmp_path):
    shape = (8, 8, 2)  # of whatever names, in letters of any case
    parts = {f"x_{s}": np.full((4, *shape), i, np.uint8) for i, s in enumerate(("train", "valid", "Test"))}
    labels = {f"y_{s}": np.array([0, 1, 2, 1]) for s in ("train", "valid", "test")}
    np.savez(tmp_path / "a.npz", **parts, **labels, x_holdout=np.zeros(3))
    data = open_dataset(a_run(tmp_path / "a.npz", channels=2))
    assert data.remarks == ("arrays left out: x_holdout",)
    assert [int(everything(s).max()) for s in data.splits.values()] == [0, 1, 2] and data.class_names == ("0", "1", "2")
    assert everything(data.splits["train"]).shape == (4, *shape)
    grey = open_dataset(a_run(write_npz(tmp_path / "b.npz", shape=(9, 9, 1)), channels=3))  # resized, so through Pillow
    assert everything(grey.splits["train"]).shape[1:] == (8, 8, 3)


@pytest.mark.parametrize("room", [1 << 20, 500, 0])
def test_tfds_set_by_name_decodes_test_only_when_taken(tmp_path, monkeypatch, room):
    pixels = write_tfds(tmp_path, "pets")
    write_tfds(tmp_path, "pets", version="0.9.0", splits=(("train", 2),))  # an older version beside it
    run = a_run("pets", image=(5, 6), dir=str(tmp_path), validation=0.1)
    monkeypatch.setattr("vit_jax.extras.sets.records._ROOM", room)
    data = open_dataset(run)
    assert data.class_names == ("cat", "dog") and sizes(data) == [18, 2, 6]
    for name, split in data.splits.items():
        source, rows = ("test" if name == "test" else "train"), [int(n.split("[")[1][:-1]) for n in names(split)]
        assert all(n.startswith(f"{source}[") for n in names(split))
        assert (split.images._pixels is None) == (name == "test")
        np.testing.assert_array_equal(everything(split)[..., 0], pixels[source][rows])
        np.testing.assert_array_equal(split.labels, np.array(rows) % 2)


def test_tfds_validation_split_is_used_and_an_unlabelled_one_left_out(tmp_path, monkeypatch):
    write_tfds(tmp_path, "pets", splits=(("train", 20), ("validation", 6), ("test", 4)))
    data = open_dataset(a_run("pets", image=(5, 6), dir=str(tmp_path)))
    assert sizes(data) == [20, 6, 4]
    from vit_jax.extras.sets import records

    scan = records._scan
    monkeypatch.setattr(
        records, "_scan", lambda found: scan(found) if len(found) != 4 else (np.full(4, -1, np.int32), *scan(found)[1:])
    )
    data = open_dataset(a_run("pets", image=(5, 6), dir=str(tmp_path)))
    assert sizes(data) == [16, 6, 4]
    told = "the test split has no labels and is left out; 20% of train is held out as test in its place (data.test)"
    assert data.remarks == (told,)


# ------------------------------------------------------------------------------ statistics


def test_statistics(tmp_path):
    data = open_dataset(a_run(write_npz(tmp_path / "a.npz", n=30, shape=(8, 8, 3)), channels=3))
    pixels = everything(data.splits["train"]).reshape(-1, 3) / 255
    np.testing.assert_allclose(data.preprocess.mean, pixels.mean(0), rtol=1e-12)
    np.testing.assert_allclose(data.preprocess.std, pixels.std(0), rtol=1e-12)
    stats = {n: open_dataset(a_run(tmp_path / "a.npz", normalize=n)).preprocess for n in ("none", "half", "imagenet")}
    assert [(p.mean, p.std) for p in (stats["none"], stats["half"])] == [((0.0,), (1.0,)), ((0.5,), (0.5,))]
    assert stats["imagenet"].mean == pytest.approx([0.449]) and stats["imagenet"].std == pytest.approx([0.226])
    flat = open_dataset(a_run(write_npz(tmp_path / "b.npz", images=np.full((20, 8, 8), 255, np.uint8)))).preprocess
    assert flat.mean == pytest.approx((1.0,)) and flat.std == (1e-3,)


def test_statistics_of_a_large_set_are_of_images_from_all_over_it(tmp_path):
    """Folders are sorted by class: the first 10,000 images of many would be those of the first classes."""
    grey, n = (51, 102, 153, 204, 255), 25_000  # by class, in this order
    images = np.repeat(np.array(grey, np.uint8), n // 5)[:, None, None] * np.ones((1, 2, 2), np.uint8)
    np.savez(tmp_path / "a.npz", images=images, labels=np.repeat(np.arange(5), n // 5))
    found = open_dataset(a_run(tmp_path / "a.npz", image=2)).preprocess
    assert found.mean == pytest.approx([0.6], abs=1e-4) and found.std == pytest.approx([0.08**0.5], abs=1e-4)


# ---------------------------------------------------------------------------------------- bad input


@pytest.mark.parametrize("memory", [1.0, 0.0])
def test_unreadable_images_stop_the_run_or_are_left_out_and_counted(tmp_path, memory):
    write_images(tmp_path / "train", 8)
    write_images(tmp_path / "test", 3)
    bad = [tmp_path / part for part in ("train/cat/0.png", "train/cat/1.jpg", "train/dog/7.jpg", "test/cat/2.png")]
    for path in bad:
        cut(path)
    source = f"folder:{tmp_path}"
    text = refusal(source, channels=3, memory=memory)
    assert "4 unreadable images" in text and "`data.skip_unreadable" in text and all(str(path) in text for path in bad)
    data = open_dataset(a_run(source, channels=3, memory=memory, skip_unreadable=True))
    left = [name for split in data.splits.values() for name in names(split)]
    assert len(left) == 2 * 8 + 2 * 3 - 4 and not {str(path) for path in bad} & set(left)
    assert data.remarks[0].startswith("4 unreadable images left out: ")
    assert np.isfinite(everything(data.splits["train"])).all()
    for k in range(2, 8):
        cut(tmp_path / f"train/cat/{k}.{'jpg' if k % 2 else 'png'}")
    assert "9 unreadable images" in (text := refusal(source, channels=3)) or "10 unreadable images" in text
    assert text.count(".png") + text.count(".jpg") == 5 and "..." in text
    assert "no train image of a class" in refusal(source, channels=3, skip_unreadable=True)


@pytest.mark.parametrize("memory", [1.0, 0.0])
def test_wide_pixels_are_told_with_their_range_and_refused_where_they_do_not_fit(memory, tmp_path):
    rng = np.random.default_rng(0)
    for name in ("a", "b"):
        (tmp_path / "set" / name).mkdir(parents=True)
        for k in range(6):
            pixels = rng.integers(0, 3000, (8, 8)).astype(np.uint16)
            pixels[0, 0] = 4095 if name + str(k) == "b3" else 0
            Image.fromarray(pixels).save(tmp_path / "set" / name / f"{k}.png")
            os.utime(tmp_path / "set" / name / f"{k}.png", (1, 1))  # so that the index takes it for known
    source = f"folder:{tmp_path / 'set'}"
    for _ in range(2):  # the second time from the index, where the set is larger than the memory
        (remark,) = open_dataset(a_run(source, memory=memory, validation=0.0)).remarks
        assert remark == (
            "12 images have more than 8 bits, read as 0 to 65535; the values go from 0 to 4095: to use all grey levels "
            "give `data.range 0 4095`"
        )
        data = open_dataset(a_run(source, memory=memory, range=(0.0, 4095.0), test=0.0, validation=0.0))
        assert data.remarks == () and data.preprocess.to_dict()["range"] == [0, 4095]
        for i, image in enumerate(everything(data.splits["train"])):
            raw = np.asarray(Image.open(data.splits["train"].name(i))).astype(np.float64)
            np.testing.assert_array_equal(image[..., 0], np.floor(raw * 255 / 4095 + 0.5))
        text = refusal(source, memory=memory, range=(0.0, 3000.0))
        assert f"{tmp_path}/set/b/3.png holds values from" in text and text.endswith("give `data.range 0 4095`")
    Image.new("L", (8, 8)).save(tmp_path / "set/a/6.png")
    text = refusal(source, memory=memory, range=(0.0, 4095.0))
    assert "6.png has pixels of 8 bits, from 0 to 255; give only images with more than 8 bits" in text
    assert "leave `data.range` out" in refusal("digits", range=(0.0, 16.0))


@pytest.mark.parametrize("dtype", ["uint16", ">u2", "int64", "float32", "float16", "int8"])
def test_arrays_of_any_numbers_become_8_bits_by_a_range(dtype, tmp_path):
    top = 1000 if dtype != "int8" else 127
    images = np.random.default_rng(0).integers(0, top, (300, 8, 8), endpoint=True).astype(dtype)
    source = write_npz(tmp_path / "a.npz", n=300, images=images)
    assert f"of unknown range; give `data.range 0 {1023 if top == 1000 else 127}`, or store pixels" in refusal(source)
    assert f"holds values from 0 to {top}, not all within 0 to 9; give" in refusal(source, range=(0.0, 9.0))
    for low, high in ((0.0, float(top)), (-3.0, 5000.0)):
        kept = {"test": 0.0, "validation": 0.0, "range": (low, high)}
        for given in (None, GivenData((images, np.arange(300) % 2))):
            run = a_run("arrays" if given else source, **kept)
            found = everything(open_images(run.data, 8, 1, given=given).splits["train"])[..., 0]
            wanted = np.floor((images.astype(np.float64) - low) * 255 / (high - low) + 0.5)
            np.testing.assert_array_equal(found, wanted)
    few = open_dataset(a_run(source, **kept)).remarks
    assert "300 images have more than 8 bits, read as -3 to 5000; the values go from 0 to" in few[0]
    write_npz(tmp_path / "b.npz", images=np.full((20, 8, 8), np.nan))
    assert "no finite numbers; replace them" in refusal(tmp_path / "b.npz", range=(0.0, 1.0))
    with pytest.raises(UserError, match=r"data.range is 5.0 1.0: give two numbers, the second one greater"):
        check_run(a_run(source, range=(5.0, 1.0)))


def test_bad_npz_files_are_refused(tmp_path):
    def text(name="a.npz", **arrays):
        if arrays:
            np.savez(tmp_path / name, **arrays)
        return refusal(tmp_path / name)

    good = {"images": np.zeros((4, 8, 8), np.uint8), "labels": np.arange(4)}
    assert "no such file" in text("absent.npz")
    (tmp_path / "text.npz").write_text("text")
    assert "cannot be read" in text("text.npz")
    assert "without object arrays" in text(**(good | {"class_names": np.array(["a", None])}))
    assert "no labels" in text(images=good["images"])
    assert "uint8" in text(**(good | {"images": np.zeros((4, 8, 8))}))
    assert "[n, h, w, C]" in text(**(good | {"images": np.zeros((4, 3, 8, 8), np.uint8)}))
    assert "one integer" in text(**(good | {"labels": np.arange(5)}))
    assert "number the classes from 0" in text(**(good | {"labels": np.array([0, 1, 2, 1 << 40])}))
    assert "empty" in text(**good, test_images=np.zeros((0, 8, 8), np.uint8), test_labels=np.zeros(0, int))


def test_npz_files_that_do_not_fit_into_memory_are_refused_unread(tmp_path, monkeypatch):
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(
        header, {"descr": "|u1", "fortran_order": False, "shape": (1 << 20, 1 << 20, 1 << 10)}
    )
    with zipfile.ZipFile(tmp_path / "claims.npz", "w") as file:
        file.writestr("images.npy", header.getvalue())
    assert "but 0 are in the file" in refusal(tmp_path / "claims.npz")
    np.savez_compressed(tmp_path / "zeros.npz", images=np.zeros((4000, 8, 8), np.uint8), labels=np.arange(4000) % 2)
    assert (tmp_path / "zeros.npz").stat().st_size < 20_000
    monkeypatch.setattr("vit_jax.data.images.sources.arrays.host_memory", lambda: 200_000)
    assert "take 0.0 GB, but there are 0.0 GB here" in refusal(tmp_path / "zeros.npz")
    os.mkfifo(tmp_path / "pipe.npz")
    assert "is no regular file" in refusal(tmp_path / "pipe.npz")


def test_fields_that_do_not_fit_are_refused(tmp_path):
    assert "give `model.classes 10" in refusal("digits", classes=7)
    assert "model.channels is 4" in refusal("digits", channels=4)
    assert "data.size 6 is smaller" in refusal("digits", size=6)
    assert "data.fit is pad" in refusal("digits", size=8, fit="pad")
    small = write_npz(tmp_path / "a.npz", n=4)
    assert "leaves validation empty" in refusal(small, validation=0.1, test=0.0)
    assert "leaves test empty" in refusal(small, test=0.1)


LABELS = np.arange(40)


@pytest.mark.parametrize(
    ("labels", "names", "says"),
    [
        (
            LABELS % 10 + 1,
            None,
            "labels go from 1 to 10, and none is 0",
        ),
        (LABELS % 10 + 1, 10, "number them from 0, as labels - 1"),
        (LABELS % 5 * 2, None, "train has no example of 4 of the 9 classes (1, 3, 5, ...)"),
        ((LABELS % 3, LABELS % 4), None, "label 3 is in test but not in train"),
        ((LABELS % 3, LABELS % 2), None, "test has no example of 1 of the 3 classes (2)"),
    ],
)
@pytest.mark.parametrize("given", [False, True])
def test_labels_are_asked_whether_they_begin_at_1_and_no_class_is_empty_in_silence(
    given, labels, names, says, tmp_path
):
    train, test = labels if isinstance(labels, tuple) else (labels, None)
    pixels, names = np.zeros((40, 8, 8), np.uint8), [str(k) for k in range(names or 0)]
    arrays = {"train": (pixels, train), **({"test": (pixels, test)} if test is not None else {})}
    stored = {f"{xy}_{split}": array for split, pair in arrays.items() for xy, array in zip("xy", pair, strict=True)}
    np.savez(tmp_path / "a.npz", **stored, **({"class_names": names} if names else {}))
    run = a_run("arrays" if given else tmp_path / "a.npz", validation=0.1)
    try:
        said = open_images(run.data, 8, 1, given=GivenData(arrays, names) if given else None).remarks[0]
    except UserError as error:
        said = str(error)
    assert says in said
