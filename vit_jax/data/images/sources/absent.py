"""Why there is no prepared set of a name, and what to do: advice that names what is there."""

from __future__ import annotations

import difflib
import os
import re
from pathlib import Path

from ....config.nearest import nearest
from ....errors import UserError
from ...fetch.archives import OFFICIAL
from ...fetch.places import find_prepared, prepared_around, prepared_in
from ..config import ImageData
from ..tables.rows import JSON_LINES

_VERSION = r"[0-9*]+\.[0-9*]+\.[0-9*]+"
_PARTS = re.compile(  # of a name as TFDS takes it, and as people write it
    rf"(?:tfds:)?/*(?P<name>[^:\[+]*?)/*(?:[:/](?P<version>{_VERSION}))?/*(?P<split>[:\[+].*)?", re.DOTALL
)


def check_level(root: Path, name: str) -> None:
    """Raise UserError where a set that is not in a data.dir is in the folder above or in one below: before a fetch."""
    around = prepared_around(root)
    if around is not None and around[0] != root.resolve():
        folder, sets = around
        raise UserError(f"data.dir {root}", f"is the folder of the set {next(iter(sets))}", f"give `data.dir {folder}`")
    if around is None:
        for below in sorted(each for each in root.iterdir() if each.is_dir()):
            if find_prepared(below, name):
                raise UserError(f"data.dir {root}", f"has {name} in {below.name}/", f"give `data.dir {below}`")


def not_prepared(data: ImageData, root: Path) -> UserError:
    """The error for a data.source that is no prepared set; TFDS itself raises a NotImplementedError about TFRECORD."""
    field, place = f"data.source {data.source}", Path(os.path.expanduser(data.source))
    if data.source and place.is_dir():
        return UserError(field, "is a path", f"write folder:{data.source} for a folder of images")
    table = place.suffix.lower() in (".csv", ".tsv", *JSON_LINES)
    if table and not place.exists():
        return UserError(field, "there is no such file", "give a table of labels as csv:FILE, by its path from here")
    if data.source and place.exists():
        give = (
            f"write csv:{data.source} for a table of labels" if table else "give folder:PATH, FILE.npz or a set by name"
        )
        return UserError(field, "is a file", give)
    import tensorflow_datasets as tfds

    there, official = prepared_in(root), tfds.list_builders(with_community_datasets=False)
    parts = _PARTS.fullmatch(data.source.strip())
    name, version = (parts["name"], parts["version"] or "") if parts else (data.source, "")
    base = name if name in there else name.partition("/")[0]
    if base not in (*there, *official):
        what = f"no such set{_nearest(name, [*there], official)}"
        return UserError(field, what, "give digits, folder:PATH, csv:FILE, FILE.npz, or a TFDS set by its name")
    if parts and parts["split"]:
        splits = (
            "train, validation and test are taken as they are, and data.validation and data.test hold out the others"
        )
        return UserError(
            field, "is more than the name of a set", f"give `data.source {_written(root, name, version)}`: {splits}"
        )
    if base in there:
        versions = f"{base} {', '.join(there[base])}"
        return UserError(
            field,
            f"is not in data.dir {root} (there: {versions})",
            f"give `data.source {_written(root, base, version)}`",
        )
    if data.source != name and name in OFFICIAL and data.download:
        return UserError(field, f"not prepared in data.dir {root}", f"give `data.source {name}` to have it fetched")
    # Not `tfds build`, which also needs apache_beam.
    title = f"{name}:{version}" if version and "*" not in version else name
    line = f"tfds.builder({title!r}, data_dir={str(root)!r}, file_format='array_record').download_and_prepare()"
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
