"""Sharded weights from strangers, numbered as in the table of broken and hostile files."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.hostile.child import accepts, refuses
from tests.hostile.flat import ENTRY, A, st


def shards(folder: Path, weight_map: Mapping[str, str], files: Mapping[str, list[str]]) -> Path:
    """An index, and safetensors files with these tensors."""
    for file, names in files.items():
        entries = {name: {**ENTRY, "data_offsets": [8 * i, 8 * i + 8]} for i, name in enumerate(names)}
        (folder / file).write_bytes(st(entries, A.tobytes() * len(names)))
    index = folder / "model.safetensors.index.json"
    index.write_text(json.dumps({"metadata": {"total_size": 0}, "weight_map": weight_map}))
    return index


FIRST, SECOND = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"
SHARDS: dict[str, tuple[dict[str, str], dict[str, list[str]], str]] = {
    "shard outside the folder": ({"a": "../x.safetensors"}, {}, "not in its folder"),
    "absolute": ({"a": "/etc/passwd"}, {}, "not in its folder"),
    "shard with a NUL": ({"a": "x\0.safetensors"}, {}, "not in its folder"),
    "shard that is the folder": ({"a": "."}, {}, "not in its folder"),
    "missing": ({"a": FIRST, "b": SECOND}, {FIRST: ["a"]}, "is not there"),
    "key in two shards": ({"a": FIRST, "b": SECOND}, {FIRST: ["a"], SECOND: ["b", "a"]}, "says is in"),
    "key absent from its shard": ({"a": FIRST, "b": FIRST}, {FIRST: ["a"]}, "lacks b"),
    "unlisted extra key": ({"a": FIRST}, {FIRST: ["a", "b"]}, "does not list"),
    "no tensors listed": ({}, {}, "weight_map"),
    "the index as its own shard": ({"a": "model.safetensors.index.json"}, {}, "no file of weights"),
}


@pytest.mark.parametrize("by_folder", [False, True], ids=["index", "folder"])
@pytest.mark.parametrize("item", SHARDS)
def test_shards_are_refused(item: str, by_folder: bool, tmp_path: Path) -> None:
    weight_map, files, word = SHARDS[item]
    index = shards(tmp_path, weight_map, files)
    refuses(tmp_path if by_folder else index, word)


def test_key_twice_in_the_index(tmp_path: Path) -> None:
    index = shards(tmp_path, {}, {FIRST: ["a"]})
    index.write_text(f'{{"weight_map": {{"a": "{FIRST}", "a": "{SECOND}"}}}}')
    refuses(index, "twice")


def test_shard_that_is_a_link_out_of_the_folder(tmp_path: Path) -> None:
    inside, outside = tmp_path / "in", tmp_path / "out"
    inside.mkdir()
    outside.mkdir()
    shards(outside, {"a": FIRST}, {FIRST: ["a"]})
    index = shards(inside, {"a": FIRST}, {})
    (inside / FIRST).symlink_to(outside / FIRST)
    refuses(index, "link out of its folder")


def test_links_inside_one_hub_cache_are_fine(tmp_path: Path) -> None:
    snapshot, blobs = tmp_path / "models--o--n" / "snapshots" / "abc", tmp_path / "models--o--n" / "blobs"
    snapshot.mkdir(parents=True)
    blobs.mkdir()
    index = shards(snapshot, {"a": FIRST, "b": SECOND}, {FIRST: ["a"], SECOND: ["b"]})
    for i, file in enumerate((index.name, FIRST, SECOND)):
        (snapshot / file).rename(blobs / f"{i:064}")
        (snapshot / file).symlink_to(Path("../../blobs") / f"{i:064}")
    accepts(index, {"a": A, "b": A})
    accepts(snapshot, {"a": A, "b": A})
