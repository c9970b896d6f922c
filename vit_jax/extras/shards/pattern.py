"""Which shards a pattern names: braces such as {0000..0131} and {train,val}, globs, and files that list them."""

from __future__ import annotations

import itertools
import os
import posixpath
import re
from collections.abc import Sequence
from dataclasses import dataclass

from ...errors import UserError
from ...files.places import Store, is_remote, join, store_of
from ...files.reading import read_regular, show_path

MOST = 1_000_000  # shards
_GLOB = re.compile(r"[*?\[]")
_BRACE = re.compile(r"\{([^{}]*)\}")
_RANGE = re.compile(r"(\d+)\.\.(\d+)")
_LIST = 64 << 20  # bytes
_LISTS = (".txt", ".list")
INDEX = ".index.npz"  # ends the name of a shard's index, which lies beside it


@dataclass(frozen=True)
class Shards:
    """Shards of one place."""

    store: Store
    names: tuple[str, ...]  # within the store, sorted

    @property
    def short(self) -> list[str]:
        """The names without what all have in front, which is where they lie, and no part of what they are."""
        folder = posixpath.commonpath([posixpath.dirname(name) for name in self.names])
        return [posixpath.relpath(name, folder or ".") for name in self.names]


def find_shards(field: str, pattern: str, place: str) -> Shards:
    """The shards that a pattern names."""
    if not pattern:
        raise UserError(field, "names no shards", "give a pattern, such as train-{0000..0131}.tar or train-*.tar")
    patterns = expand_braces(field, pattern)
    lists = [_listed(each, place) if each.endswith(_LISTS) else [each] for each in patterns]
    paths = [_whole(place, path) for path in itertools.chain(*lists)]
    root = _root(field, paths)
    store = store_of(root)
    found: set[str] = set()
    for path in paths:
        name = path[len(root) :].lstrip("/")
        found |= {*_matching(store, name)} if _GLOB.search(name) else {name}
    if not found:
        raise UserError(field, f"nothing in {store.url} is called so", "check the pattern and `data.dir`")
    return Shards(store, tuple(sorted(found)))


def expand_braces(field: str, pattern: str) -> list[str]:
    """The patterns that one with braces stands for, as a shell expands it."""
    found = _BRACE.search(pattern)
    if not found:
        if "{" in pattern or "}" in pattern:
            raise UserError(field, "has a brace without its other", "write {0000..0131} or {train,val}")
        return [pattern]
    out: list[str] = []
    for choice in _choices(field, found[1]):
        out += expand_braces(field, pattern[: found.start()] + choice + pattern[found.end() :])
        if len(out) > MOST:
            raise UserError(field, f"stands for more than {MOST:,} shards", "give fewer")
    return out


def _choices(field: str, inside: str) -> list[str]:
    """What stands for the inside of a pair of braces: a range keeps its leading zeros."""
    if found := _RANGE.fullmatch(inside):
        low, high = int(found[1]), int(found[2])
        if not low <= high < low + MOST:
            raise UserError(field, f"{{{inside}}} goes from {low} to {high}", "count upwards, as {0000..0131}")
        return [str(i).zfill(len(found[1])) for i in range(low, high + 1)]
    return inside.split(",")


def _listed(path: str, place: str) -> list[str]:
    """The paths in a file that lists shards, one a line; they begin where the file lies, or in `place`."""
    file = path if os.path.exists(os.path.expanduser(path)) or is_remote(path) else join(place, path)
    if is_remote(file):
        folder, _, name = file.rpartition("/")
        content = store_of(folder).load(name)
        if content is None:
            raise UserError(file, "is not there", "check the path")
    else:
        folder = os.path.dirname(file)
        content = read_regular(os.path.expanduser(file), _LIST, "give a file with the path of a shard in each line")
    lines = [line.strip() for line in content.decode("utf-8", "surrogateescape").splitlines()]
    lines = [line for line in lines if line and not line.startswith("#")]
    if not lines:
        raise UserError(show_path(file), "lists no shards", "write the path of one in each line")
    return [line if place or is_remote(line) else join(folder, line) for line in lines]


def _whole(place: str, path: str) -> str:
    """A path that begins in a place: a URL, or an absolute one."""
    path = os.path.expanduser(path)
    path = path if os.path.isabs(path) else join(place, path)
    return path if is_remote(path) else os.path.abspath(os.path.expanduser(path))


def _root(field: str, paths: Sequence[str]) -> str:
    """The place that holds all paths: a folder, or a URL."""
    buckets = {"/".join(path.split("/")[:3]) if is_remote(path) else "" for path in paths}
    if len(buckets) > 1:
        raise UserError(field, f"names shards in several stores, such as {max(buckets)}", "give those of one")
    bucket = buckets.pop()
    folders = {posixpath.dirname(_GLOB.split(path[len(bucket) :])[0]) for path in paths}
    return bucket + os.path.commonpath(folders)


def _matching(store: Store, pattern: str) -> list[str]:
    """The names in a store that a glob matches; * does not match a slash, ** does."""
    parts = re.split(r"(\*\*|\*|\?|\[[^\]/]+\])", pattern)
    means = {"**": ".*", "*": "[^/]*", "?": "[^/]"}
    rule = re.compile("".join(means.get(x) or (x if x[:1] == "[" else re.escape(x)) for x in parts))
    return [name for name in store.list(parts[0]) if rule.fullmatch(name) and not name.endswith(INDEX)]
