"""safetensors and npz: against the libraries that read and write them, to the bit."""

from __future__ import annotations

import json
import os
import struct
import tracemalloc
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import safetensors.numpy

from convert.containers import npz, open_source, writer
from convert.containers.source import Spec
from vit_jax.errors import UserError

RNG = np.random.default_rng(0)
SUFFIXES = [".safetensors", ".npz"]
Arrays = dict[str, np.ndarray]


def random(dtype: Any, *shape: int) -> np.ndarray:
    """Random bytes as an array that holds every kind of number, NaN among them."""
    dtype = np.dtype(dtype)
    if dtype == np.bool_:
        return RNG.random(shape) > 0.5
    return np.frombuffer(RNG.bytes(int(np.prod(shape)) * dtype.itemsize), dtype).reshape(shape)


EVERYTHING: Arrays = {
    **{
        f"{np.dtype(d).name}": random(d, 3, 5)
        for d in ("f2", "f4", "f8", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "b1")
    },
    "params/head/kernel": random("f4", 7),
    "blocks.0.norm1.weight": random("f4", 2, 1, 3),
    "scalar": random("f8"),
    "empty": random("f2", 0, 4),
    "b.10": random("u1", 3),
}
BFLOAT = random(ml_dtypes.bfloat16, 4, 3)
MORE: Arrays = {
    **EVERYTHING,
    "bf16": BFLOAT,
    "f8": random(ml_dtypes.float8_e4m3fn, 6),
    "f8b": random(ml_dtypes.float8_e5m2, 6),
    "c": random("c8", 2),
}


def write(
    path: Path, arrays: Mapping[str, np.ndarray], metadata: Mapping[str, str] | None = None, order: Any = sorted
) -> Path:
    """Write arrays by the path's suffix, in any order."""
    specs = {name: Spec(array.dtype.newbyteorder("="), array.shape) for name, array in arrays.items()}
    writer(str(path))[1](str(path), specs, (((name,), arrays[name]) for name in order(arrays)), metadata or {})
    return path


def read(path: Path, file: str = "") -> Arrays:
    """All of a file's arrays."""
    with open_source(str(path), file) as source:
        return {name: tensor.read() for name, tensor in source.tree.items()}


def assert_same(found: Mapping[str, np.ndarray], arrays: Mapping[str, np.ndarray]) -> None:
    """Equal names, dtypes, shapes and bits."""
    assert found.keys() == arrays.keys()
    for name, array in arrays.items():
        native = array.astype(array.dtype.newbyteorder("="))
        assert (found[name].dtype, found[name].shape, found[name].tobytes()) == (
            native.dtype,
            native.shape,
            native.tobytes(),
        ), name


# ------------------------------------------------------------------------------------ the libraries


def test_the_library_reads_the_safetensors_that_we_write(tmp_path: Path) -> None:
    arrays = {**EVERYTHING, "bf16": BFLOAT}
    path = write(tmp_path / "a.safetensors", arrays, {"format": "pt"}, order=lambda names: sorted(names, reverse=True))
    assert_same(safetensors.numpy.load_file(path), arrays)


def test_we_read_the_safetensors_that_the_library_writes(tmp_path: Path) -> None:
    safetensors.numpy.save_file(MORE, tmp_path / "a.safetensors", {"format": "np"})
    assert_same(read(tmp_path / "a.safetensors"), MORE)
    with open_source(str(tmp_path / "a.safetensors")) as source:
        assert (source.metadata, source.container) == ({"format": "np"}, "safetensors")
        assert source.size == os.path.getsize(tmp_path / "a.safetensors")


def test_tensors_lie_where_the_library_would_put_them(tmp_path: Path) -> None:
    safetensors.numpy.save_file(MORE, tmp_path / "theirs.safetensors", {"format": "pt"})
    write(tmp_path / "ours.safetensors", MORE, {"format": "pt"})
    (start, theirs), (begin, header) = (_header(tmp_path / f"{name}.safetensors") for name in ("theirs", "ours"))
    assert begin % 8 == start % 8 == 0
    assert header.pop("__metadata__").keys() == {*theirs.pop("__metadata__"), "digests"}
    assert list(header.items()) == list(theirs.items())
    assert (tmp_path / "ours.safetensors").read_bytes()[begin:] == (tmp_path / "theirs.safetensors").read_bytes()[
        start:
    ]


def _header(path: Path) -> tuple[int, dict[str, Any]]:
    content = path.read_bytes()
    (length,) = struct.unpack("<Q", content[:8])
    return 8 + length, json.loads(content[8 : 8 + length])


def test_numpy_reads_the_npz_that_we_write(tmp_path: Path) -> None:
    arrays = {**EVERYTHING, "bf16": BFLOAT.view("V2")}
    with np.load(write(tmp_path / "a.npz", arrays), allow_pickle=False) as file:
        assert_same(dict(file), arrays)


def test_large_members_of_npz_have_wide_sizes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(npz, "ZIP64_FROM", 0)
    path = write(tmp_path / "a.npz", EVERYTHING)
    with np.load(path) as file:
        assert_same(dict(file), EVERYTHING)
    assert_same(read(path), EVERYTHING)


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_we_read_the_npz_that_numpy_writes(save: Any, tmp_path: Path) -> None:
    arrays = {**EVERYTHING, "bf16": BFLOAT.view("V2"), "large": np.tile(random("f4", 1000), 5000)}
    save(tmp_path / "a.npz", **arrays)
    assert_same(read(tmp_path / "a.npz"), arrays)


def test_deflated_members_are_read_whole_wherever_the_pieces_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    np.savez_compressed(tmp_path / "a.npz", a=SQUARE)
    for chunk in range(1, 250, 3):
        monkeypatch.setattr(npz, "CHUNK", chunk)
        assert_same(read(tmp_path / "a.npz"), {"a": SQUARE})


# --------------------------------------------------------------------------------------- memory order

SQUARE = random("f4", 6, 6)
ORDERS = {  # that the library itself, given them, writes wrongly without a word, but for the last four
    "transposed": SQUARE.T,
    "Fortran": np.asfortranarray(SQUARE[:4]),
    "every second": SQUARE[:, ::2],
    "broadcast": np.broadcast_to(SQUARE[0], (3, 6)),
    "reversed": SQUARE[::-1],
    "big-endian": SQUARE.astype(">f4"),
    "0-d": SQUARE[0, 0].reshape(()),
    "empty": SQUARE[:0],
    "axes of one": SQUARE[:1, None],
}


@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize("order", ORDERS)
def test_arrays_in_any_memory_order_are_written_right(order: str, suffix: str, tmp_path: Path) -> None:
    path = write(tmp_path / f"a{suffix}", {"a": ORDERS[order]})
    found = safetensors.numpy.load_file(path) if suffix == ".safetensors" else dict(np.load(path))
    assert_same(found, {"a": ORDERS[order]})
    assert_same(read(path), {"a": ORDERS[order]})


# -------------------------------------------------------------------------------------------- digests


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_every_flipped_bit_of_the_values_is_caught(suffix: str, tmp_path: Path) -> None:
    array = random("f4", 5)
    path = write(tmp_path / f"a{suffix}", {"a": array})
    content = path.read_bytes()
    at = content.index(array.tobytes())
    for bit in range(0, 8 * array.nbytes, 7):
        damaged = bytearray(content)
        damaged[at + bit // 8] ^= 1 << bit % 8
        path.write_bytes(damaged)
        with pytest.raises(UserError, match="a is damaged"):
            read(path)


def test_two_writings_are_the_same_bytes(tmp_path: Path) -> None:
    for suffix in SUFFIXES:
        first, second = (write(tmp_path / f"{name}{suffix}", EVERYTHING, {"x": "y"}).read_bytes() for name in "ab")
        assert first == second


# --------------------------------------------------------------------------------- what writers refuse


def test_a_dtype_that_the_container_lacks_is_refused(tmp_path: Path) -> None:
    for path, array in (
        (tmp_path / "a.npz", BFLOAT),
        (tmp_path / "a.safetensors", random("V2", 3)),
        (tmp_path / "b.npz", random("c8", 3)),
    ):
        with pytest.raises(UserError, match=rf"w is {array.dtype.name}, which .* does not have"):
            write(path, {"w": array})


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_arrays_other_than_announced_are_a_bug(suffix: str, tmp_path: Path) -> None:
    path = str(tmp_path / f"a{suffix}")
    specs = {"a": Spec(SQUARE.dtype, SQUARE.shape)}
    for pairs in ([], [(("a",), SQUARE[:3])], [(("a",), SQUARE.astype("f8"))]):
        with pytest.raises(ValueError, match=r"values came|was announced"):
            writer(path)[1](path, specs, iter(pairs), {})


def test_the_suffix_of_a_target_picks_its_writer() -> None:
    picked = {".safetensors": "safetensors", ".NPZ": "npz", ".msgpack": "msgpack"}
    picked |= dict.fromkeys((".pt", ".pth", ".bin"), "torch")
    assert {suffix: writer(f"a{suffix}")[0] for suffix in picked} == picked
    for name in ("a.ckpt", "a", "a.h5"):
        with pytest.raises(UserError, match=r"\.safetensors, \.pt"):
            writer(name)


# --------------------------------------------------------------------------------------------- memory


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_one_tensor_at_a_time_is_in_memory(suffix: str, tmp_path: Path) -> None:
    size, count = 1 << 20, 12
    source = write(tmp_path / f"a{suffix}", {f"t{i}": np.zeros(size, np.uint8) + np.uint8(i) for i in range(count)})
    target = tmp_path / f"b{suffix}"
    tracemalloc.start()
    try:
        with open_source(str(source)) as opened:
            specs = {name: Spec(t.dtype, t.shape) for name, t in opened.tree.items()}
            writer(str(target))[1](str(target), specs, (((name,), t.read()) for name, t in opened.tree.items()), {})
        assert tracemalloc.get_traced_memory()[1] < 3.5 * size
    finally:
        tracemalloc.stop()
    assert_same(read(target), read(source))


# --------------------------------------------------------------------------------------- what a file is


def test_content_is_believed_before_the_suffix(tmp_path: Path) -> None:
    for suffix in (*SUFFIXES, ".pt", ".msgpack"):
        for other in (".bin", ".ckpt", "", ".safetensors", ".txt"):
            content = write(tmp_path / f"a{suffix}", {"a": SQUARE}).read_bytes()
            path = tmp_path / f"b{other}"
            path.write_bytes(content)
            assert_same(read(path), {"a": SQUARE})


@pytest.mark.parametrize("length", range(2, 400, 8))
def test_safetensors_are_known_whatever_the_length_of_their_header(length: int, tmp_path: Path) -> None:
    text = json.dumps({"a": {"dtype": "F32", "shape": [6, 6], "data_offsets": [0, 144]}}).ljust(length + 64).encode()
    (tmp_path / "a").write_bytes(struct.pack("<Q", len(text)) + text + SQUARE.tobytes())
    assert_same(read(tmp_path / "a"), {"a": SQUARE})


FOREIGN = {
    "empty": (b"", "is empty"),
    "LFS": (b"version https://git-lfs.github.com/spec/v1\noid", "Git LFS pointer"),
    "HTML": (b"\n<!doctype html>", "web page"),
    "JSON": (b'{"a": 1}', "JSON text"),
    "npy": (b"\x93NUMPY\x01\x00", "single array"),
    "HDF5": (b"\x89HDF\r\n\x1a\n", "HDF5"),
    "gzip": (b"\x1f\x8b\x08", "gzip"),
    "tar": (bytes(257) + b"ustar" + bytes(250), "tar archive"),
    "GGUF": (b"GGUF\x03", "GGUF"),
    "text": (b"hello", "no file of weights"),
    "zip": (b"PK\x05\x06" + bytes(18), "empty zip"),
}


@pytest.mark.parametrize("kind", FOREIGN)
def test_what_is_no_file_of_weights_is_called_by_name(kind: str, tmp_path: Path) -> None:
    content, words = FOREIGN[kind]
    (tmp_path / "a.dat").write_bytes(content)
    with pytest.raises(UserError, match=words):
        open_source(str(tmp_path / "a.dat"))


def test_paths_that_are_no_files_are_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.npz")
    for path, words in (
        (tmp_path / "x.npz", "no such file"),
        ("a\0b", "no such file"),
        (tmp_path / "pipe.npz", "neither a file"),
        (tmp_path, "holds no weights"),
    ):
        with pytest.raises(UserError, match=words):
            open_source(str(path)) if path != tmp_path else open_source(str(_emptied(tmp_path)))
    path = write(tmp_path / "a.npz", {"a": SQUARE})
    with pytest.raises(UserError, match="is a file"):
        open_source(str(path), "a.npz")


def _emptied(path: Path) -> Path:
    (path / "nothing").mkdir()
    return path / "nothing"
