"""Sources of labelled images: scikit-learn's digits, folders, .npz files and prepared TFDS sets.

A source has all labels in memory, and reads one image at a time, as the bytes of a file or as pixels. Decoding,
checking and splitting them is the same for all sources and is done in splits.py.
"""

from __future__ import annotations

import difflib
import os
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from ..config import ImageData, nearest
from ..errors import UserError
from .images import EXTENSIONS


class Examples(Protocol):
    """The examples of one split of a source."""

    labels: np.ndarray  # int32 [n]
    sealed: bool  # the container has checksums, so images need not be decoded before they are used

    def read(self, i: int) -> bytes | np.ndarray:
        """The image of example i: the bytes of an image file, or uint8 pixels [h, w] or [h, w, C]."""

    def name(self, i: int) -> str:
        """The name of example i in messages."""


@dataclass(frozen=True)
class Source:
    """A set of images with its classes, and the splits that it comes with."""

    name: str
    class_names: tuple[str, ...]
    splits: dict[str, Examples]  # train, and validation and test if it has them
    remarks: tuple[str, ...] = ()  # for the user, to be printed once


def open_image_source(data: ImageData) -> Source:
    """Open the source that `data.source` names. Raises UserError if there is none or it cannot be used."""
    if data.source == "digits":
        return _digits()
    if data.source.startswith("folder:"):
        return _folder(data.source.removeprefix("folder:"))
    if data.source.lower().endswith(".npz"):
        return _npz(data.source)
    return _tfds(data)


# ------------------------------------------------------------------------------ arrays: digits, npz


@dataclass
class Arrays:
    """Examples whose pixels are one array, uint8 [n, h, w] or [n, h, w, C]."""

    pixels: np.ndarray
    labels: np.ndarray
    title: str
    sealed: bool = False

    def read(self, i: int) -> np.ndarray:
        return self.pixels[i]

    def name(self, i: int) -> str:
        return f"{self.title}[{i}]"


def _digits() -> Source:
    """scikit-learn's 1,797 handwritten digits of 8x8 pixels, which are part of its package."""
    from sklearn.datasets import load_digits

    digits = load_digits()
    pixels = np.rint(digits.images * (255 / 16)).astype(np.uint8)  # stored as 0..16
    train = Arrays(pixels, digits.target.astype(np.int32), "digits")
    return Source("digits", tuple(str(name) for name in digits.target_names), {"train": train})


_MOST_CLASSES = 1 << 20  # an array with greater labels does not hold class numbers
# {split: pairs of names that arrays of images and labels often have}.
_NPZ_NAMES = {
    "train": (("train_images", "train_labels"), ("x_train", "y_train"), ("images", "labels"), ("image", "label")),
    "validation": (("validation_images", "validation_labels"), ("val_images", "val_labels"), ("x_val", "y_val")),
    "test": (("test_images", "test_labels"), ("x_test", "y_test")),
}


def _npz(source: str) -> Source:
    path = Path(source).expanduser()
    try:
        with np.load(path, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
    except FileNotFoundError as error:
        raise UserError(f"data.source {source}: no such file; give the path of an .npz file") from error
    except (
        OSError,
        ValueError,
        EOFError,
        TypeError,
        AttributeError,
        RuntimeError,
        zipfile.BadZipFile,
        zlib.error,
    ) as error:
        raise UserError(
            f"data.source {source}: cannot be read ({_line(error)}); save it with numpy.savez, without object arrays"
        ) from error

    names = {split: next((pair for pair in pairs if pair[0] in arrays), None) for split, pairs in _NPZ_NAMES.items()}
    if names["train"] is None:
        raise UserError(
            f"data.source {source}: its arrays are {', '.join(arrays) or 'none'}; "
            "name them images and labels, or train_images, train_labels, ..."
        )
    splits = {split: _npz_split(source, arrays, *pair) for split, pair in names.items() if pair}
    if "class_names" in arrays:
        class_names = tuple(str(name) for name in arrays["class_names"].ravel())
    else:
        class_names = tuple(str(i) for i in range(1 + max(int(s.labels.max(initial=0)) for s in splits.values())))
    return Source(path.stem, class_names, {**splits})


def _npz_split(source: str, arrays: Mapping[str, np.ndarray], images: str, labels: str) -> Arrays:
    pixels, targets = arrays[images], arrays.get(labels)
    if targets is None:
        raise UserError(f"data.source {source}: holds {images} but no {labels}; add that array")
    if pixels.dtype != np.uint8:
        raise UserError(f"data.source {source}: {images} is {pixels.dtype}; store pixels as uint8, 0 to 255")
    if pixels.ndim not in (3, 4) or 0 in pixels.shape[1:] or (pixels.ndim == 4 and pixels.shape[-1] > 4):
        raise UserError(
            f"data.source {source}: {images} has shape {list(pixels.shape)}; "
            "store images as [n, h, w] or [n, h, w, C], with at most 4 channels"
        )
    if targets.dtype.kind not in "iu" or targets.size != len(pixels):
        shape = list(targets.shape)
        raise UserError(
            f"data.source {source}: {labels} is {targets.dtype} of shape {shape}; "
            f"give one integer for each of the {len(pixels)} {images}"
        )
    if targets.size and not 0 <= targets.min() <= targets.max() < _MOST_CLASSES:
        raise UserError(
            f"data.source {source}: {labels} go from {targets.min()} to {targets.max()}; number the classes from 0"
        )
    return Arrays(np.ascontiguousarray(pixels), targets.reshape(-1).astype(np.int32), images)


# ------------------------------------------------------------------------------------------ folders

_FOLDERS = {"train": "train", "val": "validation", "validation": "validation", "test": "test"}


@dataclass
class Files:
    """Examples that are image files."""

    paths: Sequence[str]
    labels: np.ndarray
    sealed: bool = False

    def read(self, i: int) -> bytes:
        try:
            return Path(self.paths[i]).read_bytes()
        except OSError as error:
            raise UserError(
                f"{self.paths[i]}: cannot be read ({error.strerror}); restore it or mend its permissions"
            ) from error

    def name(self, i: int) -> str:
        return self.paths[i]


def _folder(path: str) -> Source:
    """A folder with train/CLASS/image, and perhaps val/ or validation/ and test/; or with CLASS/image alone."""
    field, root = f"data.source folder:{path}", Path(path).expanduser()
    if not root.is_dir():
        raise UserError(f"{field}: no such folder; give one that holds train/CLASS/image or CLASS/image")
    folders = _listed(root)[0]
    # A class may be called train, too; a split is a folder of this name that contains folders.
    roots = {name: root / name for name in folders if name in _FOLDERS and _listed(root / name)[0]}
    if not roots and folders and set(folders) <= set(_FOLDERS):
        raise UserError(f"{field}: {folders[0]}/ holds no class folders; sort its images into one folder per class")
    if roots and "train" not in roots:
        raise UserError(
            f"{field}: {next(iter(roots))}/ has class folders but train/ has none or is missing; add train/CLASS/image"
        )
    if "val" in roots and "validation" in roots:
        raise UserError(f"{field}: both val/ and validation/ are there; keep one of them")
    ignored = [name for name in folders if roots and name not in roots]
    remarks = (f"folders left out, as only train, val and test are read: {', '.join(ignored)}",) if ignored else ()
    roots = roots or {"train": root}

    roots = {
        _FOLDERS.get(name, name): folder for name, folder in sorted(roots.items(), key=lambda item: item[0] != "train")
    }
    classes = {split: _listed(folder)[0] for split, folder in roots.items()}
    if not classes["train"]:
        raise UserError(f"{field}: holds no class folders; sort its images into one folder per class")
    for split in classes:
        for name in sorted(set(classes[split]) ^ set(classes["train"])):
            there, absent = ("train", split) if name in classes["train"] else (split, "train")
            raise UserError(
                f"{field}: class folder {name} is in {there} but not in {absent}; every split needs the same classes"
            )
    splits: dict[str, Examples] = {
        split: _class_folders(field, folder, classes["train"]) for split, folder in roots.items()
    }
    return Source(root.resolve().name, tuple(classes["train"]), splits, remarks)


def _class_folders(field: str, folder: Path, classes: Sequence[str]) -> Files:
    paths: list[str] = []
    counts = []
    for name in classes:
        images = [file for file in _listed(folder / name)[1] if os.path.splitext(file)[1].lower() in EXTENSIONS]
        if not images:
            raise UserError(f"{field}: class folder {folder / name} holds no images; add some or remove it")
        paths += [str(folder / name / image) for image in images]
        counts.append(len(images))
    return Files(paths, np.repeat(np.arange(len(classes), dtype=np.int32), counts))


def _listed(folder: Path) -> tuple[list[str], list[str]]:
    """(names of the subfolders, names of the files) of a folder, sorted and without hidden ones."""
    try:
        with os.scandir(folder) as entries:
            shown = [(entry.name, entry.is_dir()) for entry in entries if not entry.name.startswith(".")]
    except OSError as error:
        raise UserError(f"{folder}: cannot be listed ({error.strerror}); mend its permissions") from error
    return sorted(name for name, is_dir in shown if is_dir), sorted(name for name, is_dir in shown if not is_dir)


# --------------------------------------------------------------------------------------------- TFDS


_ROOM = 256 << 20  # bytes of encoded images that stay in memory, per split, when the labels are read


@dataclass
class Records:
    """Examples of a prepared TFDS set. Its array_record files have checksums."""

    records: Any  # a sequence of serialized tf.train.Example
    labels: np.ndarray
    first: list[bytes]  # the first images, encoded, in memory since the labels were read
    split: str
    sealed: bool = True

    def read(self, i: int) -> bytes:
        return self.first[i] if i < len(self.first) else _features(self.records[i])["image"].bytes_list.value[0]

    def name(self, i: int) -> str:
        return f"{self.split}[{i}]"


def _features(record: bytes) -> Any:
    """{name: feature} of a serialized tf.train.Example. TFDS's own parser would decode images, or need TensorFlow."""
    from tensorflow_datasets.proto import tf_example_pb2

    return tf_example_pb2.Example.FromString(record).features.feature


def _tfds(data: ImageData) -> Source:
    """A prepared TFDS set, opened by its folder, because by name TFDS accepts no other version than its code has."""
    folder = _prepared(data)
    import tensorflow_datasets as tfds

    try:
        builder = tfds.builder_from_directory(folder)
        features, stored = dict(builder.info.features.items()), builder.info.file_format
    except Exception as error:
        raise UserError(
            f"data.source {data.source}: {folder} cannot be opened ({_line(error)}); prepare it again"
        ) from error
    if stored is not tfds.core.file_adapters.FileFormat.ARRAY_RECORD:
        raise UserError(
            f"data.source {data.source}: {folder} is stored as {stored.value}; "
            "prepare it again with file_format='array_record'"
        )
    image, label, known = features.get("image"), features.get("label"), list(builder.info.splits)
    if not isinstance(image, tfds.features.Image) or not isinstance(label, tfds.features.ClassLabel):
        raise UserError(
            f"data.source {data.source}: not an image classification set (its features are {', '.join(features)}); "
            "choose one with image and label"
        )
    if np.dtype(image.np_dtype) not in (np.uint8, np.uint16):
        raise UserError(
            f"data.source {data.source}: its images are {np.dtype(image.np_dtype)}; "
            "choose a set with 8- or 16-bit images"
        )
    if "train" not in known:
        raise UserError(f"data.source {data.source}: has no train split (only {', '.join(known)}); choose another set")

    splits: dict[str, Examples] = {}
    remarks = []
    for split in (name for name in ("train", "validation", "test") if name in known):
        try:
            records = builder.as_data_source(split, deserialize_method=tfds.decode.DeserializeMethod.RAW_BYTES)
            labels, first = _scan(records)
        except Exception as error:
            raise UserError(
                f"data.source {data.source}: {split} in {folder} cannot be read ({_line(error)}); prepare it again"
            ) from error
        if split != "train" and len(labels) and (labels == -1).all():  # TFDS marks unpublished labels so
            remarks.append(f"the {split} split has no labels and is left out")
        else:
            splits[split] = Records(records, labels, first, split)
    return Source(data.source.partition(":")[0], tuple(label.names), splits, tuple(remarks))


def _scan(records: Any) -> tuple[np.ndarray, list[bytes]]:
    """(labels int32 [n], the first encoded images, up to _ROOM bytes).

    Reading a small record a second time takes a third of the time of decoding its image.
    """
    labels = np.empty(len(records), np.int32)
    first: list[bytes] = []
    room = _ROOM
    for start in range(0, len(labels), 1024):
        indices = range(start, min(start + 1024, len(labels)))
        for i, record in zip(indices, records.__getitems__(indices), strict=True):
            features = _features(record)
            labels[i] = features["label"].int64_list.value[0]
            if room > 0:
                first.append(features["image"].bytes_list.value[0])
                room -= len(first[-1])
    return labels, first


def _prepared(data: ImageData) -> Path:
    """The folder of the newest prepared version of a TFDS set. Raises UserError with a remedy if there is none.

    TFDS itself raises a NotImplementedError about TFRECORD for a missing folder.
    """
    root = Path(data.dir or os.environ.get("TFDS_DATA_DIR") or "~/tensorflow_datasets").expanduser()
    name, _, version = data.source.partition(":")
    found = [file.parent for file in (root / name).glob("*/dataset_info.json") if version in ("", file.parent.name)]
    if found:
        return max(found, key=lambda folder: [(len(part), part) for part in folder.name.split(".")])
    if name and Path(data.source).expanduser().exists():
        raise UserError(f"data.source {data.source}: is a path; write folder:{data.source} for a folder of images")

    import tensorflow_datasets as tfds

    there = sorted(
        {
            str(file.parents[1].relative_to(root))
            for depth in ("*/*", "*/*/*")
            for file in root.glob(f"{depth}/dataset_info.json")
        }
    )
    official = tfds.list_builders(with_community_datasets=False)
    if name.partition("/")[0] not in (*official, *there):
        hint = nearest(name, ["digits", *there, *difflib.get_close_matches(name, official, n=3)])
        raise UserError(
            f"data.source {data.source}: no such set{hint}; "
            "give digits, folder:PATH, FILE.npz or a TFDS set prepared in --data.dir"
        )
    where = f"not prepared in data.dir {root} (there: {', '.join(there) or 'none'})"
    raise UserError(
        f"data.source {data.source}: {where}; give --data.dir the folder that holds {name}/VERSION/dataset_info.json"
    )


def _line(error: Exception) -> str:
    """The first line of an exception's message, or its type."""
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
