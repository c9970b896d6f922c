"""Prepared TFDS sets, read without TensorFlow."""

from __future__ import annotations

import difflib
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ....config.nearest import nearest
from ....errors import UserError
from ...fetch.archives import OFFICIAL
from ...fetch.places import data_dir, find_prepared
from ...fetch.prepare import clear_fetched, plan, prepare
from ..config import ImageData, numbered_classes
from .arrays import Arrays
from .base import Examples, Source, Stamps, first_line, stamp_files
from .index import Index, find

_ROOM = 256 << 20  # bytes of encoded images that stay in memory, per split, when the labels are read


@dataclass
class Records:
    """Examples of a prepared TFDS set. Its array_record files have checksums."""

    records: Any  # a sequence of serialized tf.train.Example
    labels: np.ndarray
    first: list[bytes]  # the first images, encoded, in memory since the labels were read
    split: str
    files: Stamps
    sealed: bool = True

    def read(self, i: int) -> bytes:
        return self.first[i] if i < len(self.first) else _features(self.records[i])["image"].bytes_list.value[0]

    def name(self, i: int) -> str:
        return f"{self.split}[{i}]"

    def stamps(self) -> Stamps:
        return self.files


def _features(record: bytes) -> Any:
    """{name: feature} of a serialized tf.train.Example. TFDS's own parser would decode images, or need TensorFlow."""
    from tensorflow_datasets.proto import tf_example_pb2

    return tf_example_pb2.Example.FromString(record).features.feature


def open_tfds(data: ImageData, fetch: bool) -> Source:
    """A prepared TFDS set, opened by its folder: by name TFDS accepts no other version than its code has.

    Args:
        data: names it as `source`, and `dir`.
        fetch: whether one that can be fetched by name may be; without it black images stand for it.

    Raises:
        UserError: where it is not there, or cannot be read.
    """
    root = data_dir(data.dir)
    name, _, version = data.source.partition(":")
    folder = find_prepared(root, name, version)
    if folder is None:
        if name not in OFFICIAL or version:
            raise _not_prepared(data, root, name)
        if not fetch and data.download:
            return _black(root, name)
        folder = prepare(root, name, data.download)
    elif fetch and name in OFFICIAL:
        clear_fetched(root, name)
    builder, features = _open_builder(data, folder, name)
    known = list(builder.info.splits)
    _check_images(data, features, known)
    splits: dict[str, Examples] = {}
    unlabelled = {}
    for split in (each for each in ("train", "validation", "test") if each in known):
        records = _records(data, builder, split, folder)
        if split != "train" and len(records.labels) and (records.labels == -1).all():  # how TFDS marks unpublished ones
            unlabelled[split] = f"the {split} split has no labels"
        else:
            splits[split] = records
    return Source(name, tuple(features["label"].names), splits, unlabelled=unlabelled)


def _open_builder(data: ImageData, folder: Path, name: str) -> tuple[Any, dict[str, Any]]:
    """(the builder of a prepared set, its features). Raises UserError where it is not such a set."""
    import tensorflow_datasets as tfds

    try:
        builder = tfds.builder_from_directory(folder)
        features, stored = dict(builder.info.features.items()), builder.info.file_format
    except Exception as error:
        raise UserError(
            f"data.source {data.source}", f"{folder} cannot be opened ({first_line(error)})", "prepare it again"
        ) from error
    if stored is not tfds.core.file_adapters.FileFormat.ARRAY_RECORD:
        remedy = (
            "give --data.dir another folder, to which it is then fetched"
            if name in OFFICIAL
            else "prepare it again with file_format='array_record'"
        )
        raise UserError(f"data.source {data.source}", f"{folder} is stored as {stored.value}", remedy)
    return builder, features


def _check_images(data: ImageData, features: dict[str, Any], known: list[str]) -> None:
    """Raise UserError unless a set has images of a kind that can be read, classes, and something to train on."""
    import tensorflow_datasets as tfds

    image, label = features.get("image"), features.get("label")
    if not isinstance(image, tfds.features.Image) or not isinstance(label, tfds.features.ClassLabel):
        raise UserError(
            f"data.source {data.source}",
            f"not an image classification set (its features are {', '.join(features)})",
            "choose one with image and label",
        )
    if np.dtype(image.np_dtype) not in (np.uint8, np.uint16):
        raise UserError(
            f"data.source {data.source}",
            f"its images are {np.dtype(image.np_dtype)}",
            "choose a set with 8- or 16-bit images",
        )
    if "train" not in known:
        raise UserError(
            f"data.source {data.source}", f"has no train split (only {', '.join(known)})", "choose another set"
        )


def _records(data: ImageData, builder: Any, split: str, folder: Path) -> Records:
    """A split, with its labels and what an index knows of it. Raises UserError where it cannot be read."""
    import tensorflow_datasets as tfds

    try:
        info = builder.info.splits[split]
        records = builder.as_data_source(split, deserialize_method=tfds.decode.DeserializeMethod.RAW_BYTES)
        files = stamp_files(os.path.abspath(folder), [Path(file).name for file in info.filepaths], whole=True)
        index = Index.of_nothing(len(records)) if data.verify else find(files, len(records))
        labels, first = (index.labels, []) if index.known.all() else _scan(records)
    except Exception as error:
        raise UserError(
            f"data.source {data.source}",
            f"{split} in {folder} cannot be read ({first_line(error)})",
            "prepare it again",
        ) from error
    return Records(records, labels, first, split, files)


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


def _black(root: Path, name: str) -> Source:
    """What stands for a set that has not been fetched: black images, as many as it has."""
    official = OFFICIAL[name]
    splits: dict[str, Examples] = {
        split: Arrays(np.zeros((n, *official.shape), np.uint8), np.arange(n, dtype=np.int32) % official.classes, split)
        for split, n in official.splits.items()
    }
    return Source(name, tuple(numbered_classes(official.classes)), splits, (plan(root, name),), stands_in=True)


def _not_prepared(data: ImageData, root: Path, name: str) -> UserError:
    """The error for a name that is no prepared set, with what to do.

    TFDS itself raises a NotImplementedError about TFRECORD for a missing folder.
    """
    place = Path(data.source).expanduser()
    if name and place.is_dir():
        return UserError(
            f"data.source {data.source}", "is a path", f"write folder:{data.source} for a folder of images"
        )
    if name and place.exists():
        return UserError(f"data.source {data.source}", "is a file", "give folder:PATH, FILE.npz or the name of a set")

    there = sorted(
        {
            str(file.parents[1].relative_to(root))
            for depth in ("*/*", "*/*/*")
            for file in root.glob(f"{depth}/dataset_info.json")
        }
    )
    import tensorflow_datasets as tfds

    official = tfds.list_builders(with_community_datasets=False)
    if name.partition("/")[0] not in (*official, *there):
        return UserError(
            f"data.source {data.source}",
            f"no such set{_nearest(name, there, official)}",
            "give digits, folder:PATH, FILE.npz, or a TFDS set by its name",
        )
    # Not `tfds build`, which also needs apache_beam.
    line = f"tfds.builder({data.source!r}, data_dir={str(root)!r}, file_format='array_record').download_and_prepare()"
    fetched = f"leave out {data.source.removeprefix(name)} to have it fetched, or " if name in OFFICIAL else ""
    return UserError(
        f"data.source {data.source}",
        f"not prepared in data.dir {root} (there: {', '.join(there) or 'none'})",
        f'{fetched}prepare it once, where TensorFlow is installed, by python -c "import tensorflow_datasets as tfds; '
        f'{line}", or give --data.dir the folder that holds {name}/VERSION/dataset_info.json',
    )


def _nearest(name: str, there: list[str], official: list[str]) -> str:
    """A clause with the most similar sets. Letter case, dashes and underscores are no difference."""
    plain = {re.sub("[-_]", "", known): known for known in ["digits", *official, *there]}
    same = plain.get(re.sub("[-_]", "", name.lower()))
    if same:
        return f"; nearest: {same}"
    return nearest(name, ["digits", *there, *OFFICIAL, *difflib.get_close_matches(name.lower(), official, n=3)])
