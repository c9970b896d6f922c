"""Prepared TFDS sets, read without TensorFlow."""

from __future__ import annotations

import difflib
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ...config import ImageData, nearest
from ...errors import UserError
from .contract import Examples, Source, first_line

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


def open_tfds(data: ImageData) -> Source:
    """A prepared TFDS set, opened by its folder, because by name TFDS accepts no other version than its code has."""
    folder = _prepared(data)
    import tensorflow_datasets as tfds

    try:
        builder = tfds.builder_from_directory(folder)
        features, stored = dict(builder.info.features.items()), builder.info.file_format
    except Exception as error:
        raise UserError(
            f"data.source {data.source}: {folder} cannot be opened ({first_line(error)}); prepare it again"
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
                f"data.source {data.source}: {split} in {folder} cannot be read ({first_line(error)}); prepare it again"
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
