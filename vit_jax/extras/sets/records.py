"""Sets by name: prepared TFDS sets, read without TensorFlow, official sets, and why there is none of a name."""

from __future__ import annotations

import difflib
import errno
import filecmp
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ...config.hints import nearest
from ...config.outputs import Outputs, numbered_classes
from ...data.images.sources.arrays import Arrays
from ...data.images.sources.base import Examples, Source, Stamps, first_line, stamp_files
from ...data.images.sources.index import Index, find
from ...data.images.tables.rows import JSON_LINES
from ...data.items import SourceRequest
from ...data.prepared import data_dir, find_prepared, prepared_around, prepared_in
from ...errors import UserError
from ...files.atomic import read_json
from ...files.digests import content_digest
from ...files.places import is_remote
from ...files.reading import check_regular, open_regular
from ...plugins import KEPT, SOURCES
from .archives import OFFICIAL
from .prepare import plan, prepare, read_set

_SMALLEST = 1 << 16  # bytes of an array_record file, which is padded
_SPARE = 128
_HEAD = 1 << 17
_AGAIN = "restore it, or prepare the set again"
_VERSION = r"[0-9*]+\.[0-9*]+\.[0-9*]+"
Shard = tuple[str, int]  # a file of a split, and how many records it has by dataset_info.json
_PARTS = re.compile(  # of a name as TFDS takes it, and as people write it
    rf"(?:tfds:)?/*(?P<name>[^:\[+]*?)/*(?:[:/](?P<version>{_VERSION}))?/*(?P<split>[:\[+].*)?", re.DOTALL
)
_ROOM = 256 << 20  # bytes of encoded images that stay in memory, per split, when the labels are read


@dataclass
class Records(Examples):
    """Examples of a prepared TFDS set. Its array_record files have checksums."""

    records: Any  # serialized tf.train.Example
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


def open_set(title: str, asked: SourceRequest) -> Source:
    """A set by its name, or NAME:VERSION: the folder that TFDS has prepared, or the file of an official set."""
    name, _, version = title.partition(":")
    if is_remote(asked.folder):
        root, version = KEPT.load().copy_prepared(asked.folder, name, version, asked.verify)
    else:
        root = data_dir(asked.folder)
    found = find_prepared(root, name, version)
    if found is None:
        if root.is_dir():
            _check_level(root, name)
        if name not in OFFICIAL or version:
            raise _not_prepared(title, asked, root)
        if not asked.fetch and asked.download:
            return _black(root, name)
        found = prepare(root, name, asked.download)
    return _open_folder(asked, found, name) if found.suffix != ".npz" else _open_file(found, name)


def _open_file(path: Path, name: str) -> Source:
    """An official set, equal to the folder that TFDS prepares of it: so its test images are no part of the identity."""
    held, splits = read_set(path), {}
    for split, pixels in held.pixels.items():
        splits[split] = Arrays(pixels, held.labels[split], split, sealed=True)
    return Source(name, Outputs("class", held.names), {**splits})


def _open_folder(asked: SourceRequest, folder: Path, name: str) -> Source:
    """A prepared TFDS set, opened by its folder: by name TFDS accepts no other version than its code has."""
    builder, features = _open_builder(asked, folder, name)
    known = list(builder.info.splits)
    _check_images(asked, features, known)
    shards = {split: _shards(builder, split) for split in ("train", "validation", "test") if split in known}
    every = [shard for some in shards.values() for shard in some]
    _make_room(asked.field, len(every))
    _check_shards(every)
    splits: dict[str, Examples] = {}
    unlabelled, remarks = {}, []
    for split in shards:
        records, remark = _records(asked, builder, split, folder, every)
        remarks += [remark] if remark else []
        if split != "train" and len(records.labels) and (records.labels == -1).all():  # how TFDS marks unpublished ones
            unlabelled[split] = f"the {split} split has no labels"
        else:
            splits[split] = records
    return Source(name, Outputs("class", tuple(features["label"].names)), splits, tuple(remarks), unlabelled)


def _open_builder(asked: SourceRequest, folder: Path, name: str) -> tuple[Any, dict[str, Any]]:
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
        raise UserError(asked.field, f"{folder} cannot be opened ({first_line(error)})", "prepare it again") from error
    if stored is not tfds.core.file_adapters.FileFormat.ARRAY_RECORD:
        remedy = (
            "give `data.dir` another folder, to which it is then fetched"
            if name in OFFICIAL
            else "prepare it again with file_format='array_record'"
        )
        raise UserError(asked.field, f"{folder} is stored as {stored.value}", remedy)
    return builder, features


def _check_images(asked: SourceRequest, features: dict[str, Any], known: list[str]) -> None:
    """Raise UserError unless a set has images of a kind that can be read, classes, and something to train on."""
    import tensorflow_datasets as tfds

    image, label = features.get("image"), features.get("label")
    if not isinstance(image, tfds.features.Image) or not isinstance(label, tfds.features.ClassLabel):
        raise UserError(
            asked.field,
            f"not an image classification set (its features are {', '.join(features)})",
            "choose one with image and label",
        )
    if np.dtype(image.np_dtype) not in (np.uint8, np.uint16):
        raise UserError(
            asked.field,
            f"its images are {np.dtype(image.np_dtype)}",
            "choose a set with 8- or 16-bit images",
        )
    if "train" not in known:
        raise UserError(asked.field, f"has no train split (only {', '.join(known)})", "choose another set")


def _shards(builder: Any, split: str) -> list[Shard]:
    """The files of a split, as dataset_info.json has them."""
    info = builder.info.splits[split]
    return [(str(path), int(n)) for path, n in zip(info.filepaths, info.shard_lengths, strict=True)]


def _make_room(field: str, count: int) -> None:
    """Let this process have more files open."""
    import resource  # which Windows lacks

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    opened = Path("/proc/self/fd")
    needed = count + _SPARE + (len(os.listdir(opened)) if opened.is_dir() else 0)
    if soft == resource.RLIM_INFINITY or soft >= needed:
        return
    if hard != resource.RLIM_INFINITY and hard < needed:
        raise UserError(
            field,
            f"its {count:,} files are open at the same time, and a process may have {hard:,} open here",
            f"allow {needed:,} with ulimit -n {needed} in the shell, or prepare the set with fewer shards",
        )
    resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))


def _check_shards(shards: Sequence[Shard]) -> None:
    """Raise UserError about the first file that is not there, cannot be read, or has another number of records."""
    from array_record.python.array_record_module import ArrayRecordReader

    for path, records in shards:
        try:
            with open_regular(path) as file:
                size, head = os.fstat(file.fileno()).st_size, file.read(40)
            if head.startswith(b"version https://git-lfs"):
                raise UserError(path, "is a pointer of Git LFS", "fetch the file itself with git lfs pull")
            if size < _SMALLEST:
                raise UserError(path, f"has {size:,} bytes, fewer than any array_record file", _AGAIN)
            reader = ArrayRecordReader(path)
            found = reader.num_records()
            reader.close()
        except OSError as error:
            remedy = "mend its permissions" if error.errno == errno.EACCES else _AGAIN
            raise UserError(path, f"cannot be read ({error.strerror})", remedy) from error
        except RuntimeError as error:  # the reader's, for all that is wrong, which it tells only in words
            limited = os.strerror(errno.EMFILE) in str(error)
            remedy = "raise ulimit -n in the shell" if limited else _AGAIN
            raise UserError(path, f"cannot be read ({first_line(error)})", remedy) from error
        if found != records:
            what = f"holds {found:,} records and not {records:,}, which dataset_info.json states"
            raise UserError(path, f"{what}: it is another file under this name", _AGAIN)


def _check_different(shards: Sequence[Shard]) -> None:
    """Raise UserError where two files are the same, so that one of them is under a wrong name."""
    seen: dict[tuple[int, str], str] = {}
    for path, records in shards:
        with open(path, "rb") as file:
            first = seen.setdefault((records, content_digest(file.read(_HEAD))), path)
        if first != path and filecmp.cmp(first, path, shallow=False):
            raise UserError(path, f"is the same file as {Path(first).name}", _AGAIN)


def _records(asked: SourceRequest, builder: Any, split: str, folder: Path, every: list[Shard]) -> tuple[Records, str]:
    """(a split with its labels, a remark on what is in it or nothing). Raises UserError where it cannot be read.

    `every` are the files of all splits.
    """
    import tensorflow_datasets as tfds

    try:
        info, remark = builder.info.splits[split], ""
        records = builder.as_data_source(split, deserialize_method=tfds.decode.DeserializeMethod.RAW_BYTES)
        files = stamp_files(os.path.abspath(folder), [Path(file).name for file in info.filepaths], whole=True)
        index = Index.of_nothing(len(records)) if asked.verify else find(files, len(records))
        labels = index.labels
        first: list[bytes] = []
        if not index.known.all():
            _check_different(every)
            labels, first, size = _scan(records)
            if info.num_bytes and size != info.num_bytes:
                remark = f"{split} has records of {size:,} bytes, and dataset_info.json states {info.num_bytes:,}"
    except (UserError, MemoryError):
        raise
    except Exception as error:
        raise UserError(asked.field, f"{split} in {folder} cannot be read ({first_line(error)})", _AGAIN) from error
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


def _check_level(root: Path, name: str) -> None:
    """Raise UserError where a set that is not in a data.dir is in the folder above or in one below: before a fetch."""
    around = prepared_around(root)
    if around is not None and around[0] != root.resolve():
        folder, sets = around
        raise UserError(f"data.dir {root}", f"is the folder of the set {next(iter(sets))}", f"give `data.dir {folder}`")
    if around is None:
        for below in sorted(each for each in root.iterdir() if each.is_dir()):
            if find_prepared(below, name):
                raise UserError(f"data.dir {root}", f"has {name} in {below.name}/", f"give `data.dir {below}`")


def _is_file(source: str, field: str) -> UserError | None:
    """The error where what should be the name of a set is that of a file or folder."""
    place = Path(os.path.expanduser(source))
    if source and place.is_dir():
        return UserError(field, "is a path", f"write folder:{source} for a folder of images")
    table = place.suffix.lower() in (".csv", ".tsv", *JSON_LINES)
    if table and not place.exists():
        return UserError(field, "there is no such file", "give a table of labels as csv:FILE, by its path from here")
    if source and place.exists():
        give = f"write csv:{source} for a table of labels" if table else "give folder:PATH, FILE.npz or a set by name"
        return UserError(field, "is a file", give)
    return None


def _not_prepared(title: str, asked: SourceRequest, root: Path) -> UserError:
    """The error for a data.source that is no prepared set; TFDS itself raises a NotImplementedError about TFRECORD."""
    if error := _is_file(title, asked.field):
        return error
    field = asked.field
    import tensorflow_datasets as tfds

    there, official = prepared_in(root), tfds.list_builders(with_community_datasets=False)
    parts = _PARTS.fullmatch(title.strip())
    name, version = (parts["name"], parts["version"] or "") if parts else (title, "")
    base = name if name in there else name.partition("/")[0]
    if base not in (*there, *official):
        what = f"no such set{_nearest(name, [*there], official)}"
        others = "".join(f"{each}:..., " for each in SOURCES.others)
        return UserError(field, what, f"give digits, {others}folder:PATH, csv:FILE, FILE.npz, or a TFDS set by name")
    if parts and parts["split"]:
        return UserError(
            field,
            "is more than the name of a set",
            f"give `data.source {_written(root, name, version)}`: train, validation and test are taken as they are, "
            "and data.validation and data.test hold out the others",
        )
    if base in there:
        versions = f"{base} {', '.join(there[base])}"
        return UserError(
            field,
            f"is not in data.dir {root} (there: {versions})",
            f"give `data.source {_written(root, base, version)}`",
        )
    if title != name and name in OFFICIAL and asked.download:
        return UserError(field, f"not prepared in data.dir {root}", f"give `data.source {name}` to have it fetched")
    # Not `tfds build`, which also needs apache_beam.
    known = f"{name}:{version}" if version and "*" not in version else name
    line = f"tfds.builder({known!r}, data_dir={str(root)!r}, file_format='array_record').download_and_prepare()"
    return UserError(
        field,
        f"not prepared in data.dir {root} (there: {', '.join(there) or 'none'})",
        'prepare it once, where TensorFlow is installed, by python -c "import tensorflow_datasets as tfds; '
        f'{line}", or give `data.dir` the folder that holds {name}/VERSION/dataset_info.json',
    )


def _written(root: Path, name: str, version: str) -> str:
    """A set as data.source names it, with its version where that is there."""
    return f"{name}:{version}" if version and find_prepared(root, name, version) else name


def _nearest(name: str, there: list[str], official: list[str]) -> str:
    """A clause with the most similar sets. Letter case, dashes and underscores are no difference."""
    plain = {re.sub("[-_]", "", known): known for known in ["digits", *official, *there]}
    same = plain.get(re.sub("[-_]", "", name.lower()))
    if same:
        return f"; nearest: {same}"
    known = ["digits", *there, *OFFICIAL, *difflib.get_close_matches(name.lower(), official, n=3)]
    return nearest(name, [*dict.fromkeys(known)])
