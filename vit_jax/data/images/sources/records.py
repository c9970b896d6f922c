"""Prepared TFDS sets, read without TensorFlow."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ....config.outputs import Outputs
from ....errors import UserError
from ....files.atomic import read_json
from ....files.reading import check_regular
from ....files.stores.open import is_remote
from ...fetch.archives import OFFICIAL
from ...fetch.copies import copy_prepared
from ...fetch.places import data_dir, find_prepared
from ...fetch.prepare import clear_fetched, plan, prepare
from ..config import ImageData, numbered_classes
from .absent import check_level, not_prepared
from .arrays import Arrays
from .base import Examples, Source, Stamps, first_line, stamp_files
from .index import Index, find
from .shards import AGAIN, Shard, check_different, check_shards, make_room

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
    known: None = None

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
    """A prepared TFDS set, opened by its folder: by name TFDS accepts no other version than its code has."""
    name, _, version = data.source.partition(":")
    if is_remote(data.dir):
        root, version = copy_prepared(data.dir, name, version, data.verify)
    else:
        root = data_dir(data.dir)
    folder = find_prepared(root, name, version)
    if folder is None:
        if root.is_dir():
            check_level(root, name)
        if name not in OFFICIAL or version:
            raise not_prepared(data, root)
        if not fetch and data.download:
            return _black(root, name)
        folder = prepare(root, name, data.download)
    elif fetch and name in OFFICIAL:
        clear_fetched(root, name)
    builder, features = _open_builder(data, folder, name)
    known = list(builder.info.splits)
    _check_images(data, features, known)
    shards = {split: _shards(builder, split) for split in ("train", "validation", "test") if split in known}
    every = [shard for some in shards.values() for shard in some]
    make_room(f"data.source {data.source}", len(every))
    check_shards(every)
    splits: dict[str, Examples] = {}
    unlabelled, remarks = {}, []
    for split in shards:
        records, remark = _records(data, builder, split, folder, every)
        remarks += [remark] if remark else []
        if split != "train" and len(records.labels) and (records.labels == -1).all():  # how TFDS marks unpublished ones
            unlabelled[split] = f"the {split} split has no labels"
        else:
            splits[split] = records
    return Source(name, Outputs("class", tuple(features["label"].names)), splits, tuple(remarks), unlabelled)


def _open_builder(data: ImageData, folder: Path, name: str) -> tuple[Any, dict[str, Any]]:
    """(the builder of a prepared set, its features). Raises UserError where it is not such a set."""
    import tensorflow_datasets as tfds

    for file in ("dataset_info.json", "features.json"):
        read_json(folder / file, remedy="restore it, or prepare the set again")
    for shard in sorted(folder.iterdir()):  # a pipe would be waited for
        if not shard.is_dir():
            check_regular(shard)
    try:
        builder = tfds.builder_from_directory(folder)
        features, stored = dict(builder.info.features.items()), builder.info.file_format
    except Exception as error:
        raise UserError(
            f"data.source {data.source}", f"{folder} cannot be opened ({first_line(error)})", "prepare it again"
        ) from error
    if stored is not tfds.core.file_adapters.FileFormat.ARRAY_RECORD:
        remedy = (
            "give `data.dir` another folder, to which it is then fetched"
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


def _shards(builder: Any, split: str) -> list[Shard]:
    """The files of a split, as dataset_info.json has them."""
    info = builder.info.splits[split]
    return [Shard(str(path), int(n)) for path, n in zip(info.filepaths, info.shard_lengths, strict=True)]


def _records(data: ImageData, builder: Any, split: str, folder: Path, every: list[Shard]) -> tuple[Records, str]:
    """(a split with its labels, a remark on what is in it or nothing). Raises UserError where it cannot be read.

    `every` are the files of all splits.
    """
    import tensorflow_datasets as tfds

    try:
        info, remark = builder.info.splits[split], ""
        records = builder.as_data_source(split, deserialize_method=tfds.decode.DeserializeMethod.RAW_BYTES)
        files = stamp_files(os.path.abspath(folder), [Path(file).name for file in info.filepaths], whole=True)
        index = Index.of_nothing(len(records)) if data.verify else find(files, len(records))
        labels = index.labels
        first: list[bytes] = []
        if not index.known.all():
            check_different(every)
            labels, first, size = _scan(records)
            if info.num_bytes and size != info.num_bytes:
                remark = f"{split} has records of {size:,} bytes, and dataset_info.json states {info.num_bytes:,}"
    except (UserError, MemoryError):
        raise
    except Exception as error:
        raise UserError(
            f"data.source {data.source}", f"{split} in {folder} cannot be read ({first_line(error)})", AGAIN
        ) from error
    return Records(records, labels, first, split, files), remark


def _scan(records: Any) -> tuple[np.ndarray, list[bytes], int]:
    """(labels int32 [n], the first encoded images, up to _ROOM bytes, the bytes of all records).

    Reading a small record a second time takes a third of the time of decoding its image.
    """
    labels = np.empty(len(records), np.int32)
    first: list[bytes] = []
    room, size = _ROOM, 0
    for start in range(0, len(labels), 1024):
        indices = range(start, min(start + 1024, len(labels)))
        for i, record in zip(indices, records.__getitems__(indices), strict=True):
            features = _features(record)
            size += len(record)
            labels[i] = features["label"].int64_list.value[0]
            if room > 0:
                first.append(features["image"].bytes_list.value[0])
                room -= len(first[-1])
    return labels, first, size


def _black(root: Path, name: str) -> Source:
    """What stands for a set that has not been fetched: black images, as many as it has."""
    official = OFFICIAL[name]
    splits: dict[str, Examples] = {
        split: Arrays(np.zeros((n, *official.shape), np.uint8), np.arange(n, dtype=np.int32) % official.classes, split)
        for split, n in official.splits.items()
    }
    return Source(
        name, Outputs("class", tuple(numbered_classes(official.classes))), splits, (plan(root, name),), stands_in=True
    )
