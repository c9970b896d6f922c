"""Seeded random damage to small valid files of every container. Light: it is imported by the child processes."""

from __future__ import annotations

import collections
import json
import shutil
import signal
import struct
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from convert.containers import orbax, writer
from convert.containers.source import Spec
from tests.hostile.child import opened
from tests.hostile.flat import st
from tests.hostile.pickled import VALUES, dictionary, legacy, storage, tensor
from vit_jax.errors import UserError

SECONDS = 10  # for one file
NUMBERS = (0, 1, 0x7F, 0xFF, 0xFFFF, 0x7FFFFFFF, 0xFFFFFFFF, 1 << 40, (1 << 63) - 1, (1 << 64) - 1)
TRUTH = {
    "blocks.0.attn.qkv.weight": np.linspace(-1, 1, 48, dtype=np.float32).reshape(12, 4),
    "blocks.0.norm1.bias": np.arange(1, 4, dtype=np.float16),
    "pos_embed": np.linspace(2, 3, 6, dtype=np.float64).reshape(1, 2, 3),
    "scale": np.array(0.5, np.float32),
}
NESTED = {
    "params": {
        "head": {"kernel": TRUTH["pos_embed"], "bias": TRUTH["blocks.0.norm1.bias"]},
        "cls": np.ones((1, 1, 4), ml_dtypes.bfloat16),
    },
    "step": 3,
}


def specs(node: Any) -> Any:
    """A tree of arrays as a writer is told of it."""
    return (
        {k: specs(v) for k, v in node.items()}
        if isinstance(node, dict)
        else Spec(node.dtype, node.shape)
        if isinstance(node, np.ndarray)
        else node
    )


def arrays(node: Any, *path: str) -> list[tuple[tuple[str, ...], np.ndarray]]:
    """A tree's arrays with their paths."""
    if isinstance(node, dict):
        return [pair for key, value in node.items() for pair in arrays(value, *path, key)]
    return [(path, node)] if isinstance(node, np.ndarray) else []


def written(path: Path, tree: dict[str, Any]) -> None:
    """Write a tree by the path's suffix."""
    writer(str(path))[1](str(path), specs(tree), iter(arrays(tree)), {"format": "pt"})


def library(path: Path) -> None:
    """safetensors without digests."""
    entries, at = {}, 0
    for name, array in TRUTH.items():
        kind = {"float32": "F32", "float16": "F16", "float64": "F64"}[array.dtype.name]
        entries[name] = {"dtype": kind, "shape": array.shape, "data_offsets": [at, at := at + array.nbytes]}
    path.write_bytes(st(entries, b"".join(array.tobytes() for array in TRUTH.values())))


def shards(path: Path) -> None:
    """A folder of two shards and their index."""
    path.mkdir()
    files = {f"model-0000{i}-of-00002.safetensors": dict(list(TRUTH.items())[2 * i - 2 : 2 * i]) for i in (1, 2)}
    for file, part in files.items():
        written(path / file, part)
    (path / "model.safetensors.index.json").write_text(
        json.dumps({"metadata": {}, "weight_map": {name: file for file, part in files.items() for name in part}})
    )


# {kind: (file's name, how to make it, what it holds, what its digests keep: all, the values alone, nothing)}
KINDS: dict[str, tuple[str, Callable[[Path], Any], dict[str, Any], str]] = {
    "safetensors": ("a.safetensors", lambda path: written(path, TRUTH), TRUTH, "values"),
    "safetensors of the library": ("a.safetensors", library, TRUTH, ""),
    "npz": ("a.npz", lambda path: written(path, TRUTH), TRUTH, "all"),
    "npz, compressed": ("a.npz", lambda path: np.savez_compressed(path, **TRUTH), TRUTH, "all"),
    "torch": ("a.pt", lambda path: written(path, {"model": TRUTH, "epoch": 3, "args": {"lr": 0.1}}), TRUTH, "all"),
    "torch, the older form": (
        "a.pt",
        lambda path: legacy(path, dictionary({"a": tensor(of=storage())})),
        {"a": VALUES},
        "",
    ),
    "msgpack": ("a.msgpack", lambda path: written(path, NESTED), NESTED, ""),
    "shards": ("folder", shards, TRUTH, "values"),
    "orbax": (
        "folder",
        lambda path: orbax.write(str(path), specs(NESTED["params"]), iter(arrays(NESTED["params"])), {}),
        NESTED["params"],
        "",
    ),
}


def mutated(content: bytes, rng: np.random.Generator) -> bytes:
    """The content after one to three edits, most of them where headers and directories are."""
    out = bytearray(content)
    for _ in range(rng.integers(1, 4)):
        if not out:
            break
        near = min(len(out), 400)
        at = int(rng.choice([rng.integers(near), len(out) - 1 - rng.integers(near), rng.integers(len(out))]))
        length = int(rng.choice([1, 2, 4, 8, 40]))
        match rng.integers(9):
            case 0:
                out[at] ^= 1 << rng.integers(8)
            case 1:
                out[at] = rng.integers(256)
            case 2:
                del out[at:]
            case 3:
                out[at:at] = rng.bytes(length)
            case 4:
                del out[at : at + length]
            case 5:
                out[at:at] = out[at : at + length]
            case 6:
                size = min(length, 8, len(out) - at)
                out[at : at + size] = struct.pack("<Q", NUMBERS[rng.integers(len(NUMBERS))])[:size]
            case 7:
                digits = [i for i, byte in enumerate(out) if 48 <= byte <= 57]
                if digits:
                    out[int(rng.choice(digits))] = 48 + rng.integers(10)
            case _:
                other = int(rng.integers(len(out)))
                out[at : at + length] = out[other : other + length]
    return bytes(out)


def flipped(content: bytes, truth: dict[str, Any], rng: np.random.Generator) -> bytes:
    """The content with one bit of an array's values changed; as it is where none lies in it as such."""
    found = [(content.index(data), len(data)) for _, array in arrays(truth) if (data := array.tobytes()) in content]
    if not found:
        return content
    at, length = found[rng.integers(len(found))]
    bit = int(rng.integers(8 * length))
    return content[: at + bit // 8] + bytes([content[at + bit // 8] ^ 1 << bit % 8]) + content[at + bit // 8 + 1 :]


def hold(value: Any, truth: dict[str, Any], values: bool, structure: bool) -> None:
    """Assert what a damaged file that was read all the same still has to be."""
    found, expected = ([array for _, array in arrays(tree)] for tree in (value, truth))
    if values:
        assert sorted(a.tobytes() for a in found) == sorted(a.tobytes() for a in expected)
    if structure:
        assert sorted((a.dtype.str, a.shape) for a in found) == sorted((a.dtype.str, a.shape) for a in expected)


def damage(kind: str, seed: int, count: int) -> dict[str, int]:
    """Read `count` damaged files of a kind; how many were accepted and refused.

    Raises AssertionError naming the case that failed.
    """
    name, make, truth, kept = KINDS[kind]
    told: collections.Counter[str] = collections.Counter()
    with tempfile.TemporaryDirectory() as room:
        base, path = Path(room, "base", name), Path(room, "it", name)
        base.parent.mkdir()
        path.parent.mkdir()
        make(base)
        files = sorted(p.relative_to(base) for p in base.rglob("*") if p.is_file()) if base.is_dir() else [Path()]
        for case in range(count):
            signal.alarm(SECONDS)
            rng = np.random.default_rng([seed, case])
            file = files[rng.integers(len(files))]
            if base.is_dir():
                shutil.rmtree(path, ignore_errors=True)
                shutil.copytree(base, path)
            content = (base / file).read_bytes()
            damaged = flipped(content, truth, rng) if case % 4 == 0 else content
            only_values = damaged != content  # then digests have to tell, and the structure is as it was
            (path / file).write_bytes(damaged if only_values else mutated(content, rng))
            try:
                hold(
                    opened(str(path)),
                    truth,
                    kept == "all" or (only_values and bool(kept)),
                    kept == "all" or only_values,
                )
                told["accepted"] += 1
            except UserError as error:
                assert "\n" not in str(error), f"{kind}, case {case}: {error}"
                told["refused"] += 1
            except Exception as error:
                raise AssertionError(f"{kind}, seed {seed}, case {case}, {file}") from error
    return dict(told)
