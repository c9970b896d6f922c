"""safetensors, npz, folders and the hub: against the libraries that read and write them, to the bit."""

from __future__ import annotations

import json
import os
import struct
import subprocess
import sys
import tracemalloc
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import safetensors.numpy

from convert.containers import folder, npz, open_source, writer
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
    **{f"{np.dtype(d).name}": random(d, 3, 5) for d in ("f2", "f4", "f8", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "b1")},
    "params/head/kernel": random("f4", 7), "blocks.0.norm1.weight": random("f4", 2, 1, 3), "scalar": random("f8"), "empty": random("f2", 0, 4), "b.10": random("u1", 3),
}  # fmt: skip
BFLOAT = random(ml_dtypes.bfloat16, 4, 3)


def write(path: Path, arrays: Mapping[str, np.ndarray], metadata: Mapping[str, str] | None = None, order: Any = sorted) -> Path:
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
        assert (found[name].dtype, found[name].shape, found[name].tobytes()) == (native.dtype, native.shape, native.tobytes()), name


# ------------------------------------------------------------------------------------ the libraries


def test_the_library_reads_the_safetensors_that_we_write(tmp_path: Path) -> None:
    arrays = {**EVERYTHING, "bf16": BFLOAT}
    path = write(tmp_path / "a.safetensors", arrays, {"format": "pt"}, order=lambda names: sorted(names, reverse=True))
    assert_same(safetensors.numpy.load_file(path), arrays)


def test_we_read_the_safetensors_that_the_library_writes(tmp_path: Path) -> None:
    arrays = {**EVERYTHING, "bf16": BFLOAT, "f8": random(ml_dtypes.float8_e4m3fn, 6), "f8b": random(ml_dtypes.float8_e5m2, 6), "c": random("c8", 2)}
    safetensors.numpy.save_file(arrays, tmp_path / "a.safetensors", {"format": "np"})
    assert_same(read(tmp_path / "a.safetensors"), arrays)
    with open_source(str(tmp_path / "a.safetensors")) as source:
        assert source.metadata == {"format": "np"} and source.container == "safetensors" and source.size == os.path.getsize(tmp_path / "a.safetensors")


def test_tensors_lie_where_the_library_would_put_them(tmp_path: Path) -> None:
    arrays = {**EVERYTHING, "bf16": BFLOAT, "f8": random(ml_dtypes.float8_e4m3fn, 6), "f8b": random(ml_dtypes.float8_e5m2, 6), "c": random("c8", 2)}
    safetensors.numpy.save_file(arrays, tmp_path / "theirs.safetensors", {"format": "pt"})
    write(tmp_path / "ours.safetensors", arrays, {"format": "pt"})
    (start, theirs), (begin, header) = (_header(tmp_path / f"{name}.safetensors") for name in ("theirs", "ours"))
    assert begin % 8 == start % 8 == 0
    assert header.pop("__metadata__").keys() == {*theirs.pop("__metadata__"), "digests"}
    assert list(header.items()) == list(theirs.items())
    assert (tmp_path / "ours.safetensors").read_bytes()[begin:] == (tmp_path / "theirs.safetensors").read_bytes()[start:]


def _header(path: Path) -> tuple[int, dict[str, Any]]:
    content = path.read_bytes()
    (length,) = struct.unpack("<Q", content[:8])
    return 8 + length, json.loads(content[8 : 8 + length])


def test_numpy_reads_the_npz_that_we_write(tmp_path: Path) -> None:
    arrays = {**EVERYTHING, "bf16": BFLOAT.view("V2")}
    with np.load(write(tmp_path / "a.npz", arrays), allow_pickle=False) as file:
        assert_same(dict(file), arrays)


def test_large_members_of_npz_have_wide_sizes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(npz, "WIDE", 0)
    path = write(tmp_path / "a.npz", EVERYTHING)
    with np.load(path) as file:
        assert_same(dict(file), EVERYTHING)
    assert_same(read(path), EVERYTHING)


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_we_read_the_npz_that_numpy_writes(save: Any, tmp_path: Path) -> None:
    arrays = {**EVERYTHING, "bf16": BFLOAT.view("V2"), "large": np.tile(random("f4", 1000), 5000)}
    save(tmp_path / "a.npz", **arrays)
    assert_same(read(tmp_path / "a.npz"), arrays)


def test_deflated_members_are_read_whole_wherever_the_pieces_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    np.savez_compressed(tmp_path / "a.npz", a=SQUARE)
    for chunk in range(1, 250, 3):
        monkeypatch.setattr(npz, "CHUNK", chunk)
        assert_same(read(tmp_path / "a.npz"), {"a": SQUARE})


# --------------------------------------------------------------------------------------- memory order

SQUARE = random("f4", 6, 6)
ORDERS = {  # that the library itself, given them, writes wrongly without a word, but for the last four
    "transposed": SQUARE.T, "Fortran": np.asfortranarray(SQUARE[:4]), "every second": SQUARE[:, ::2], "broadcast": np.broadcast_to(SQUARE[0], (3, 6)),
    "reversed": SQUARE[::-1], "big-endian": SQUARE.astype(">f4"), "0-d": SQUARE[0, 0].reshape(()), "empty": SQUARE[:0], "axes of one": SQUARE[:1, None],
}  # fmt: skip


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
    for path, array in ((tmp_path / "a.npz", BFLOAT), (tmp_path / "a.safetensors", random("V2", 3)), (tmp_path / "b.npz", random("c8", 3))):
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
    picked = {".safetensors": "safetensors", ".NPZ": "npz", ".pt": "torch", ".pth": "torch", ".bin": "torch", ".msgpack": "msgpack"}
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
    "empty": (b"", "is empty"), "LFS": (b"version https://git-lfs.github.com/spec/v1\noid", "Git LFS pointer"), "HTML": (b"\n<!doctype html>", "web page"),
    "JSON": (b'{"a": 1}', "JSON text"), "npy": (b"\x93NUMPY\x01\x00", "single array"), "HDF5": (b"\x89HDF\r\n\x1a\n", "HDF5"), "gzip": (b"\x1f\x8b\x08", "gzip"),
    "tar": (bytes(257) + b"ustar" + bytes(250), "tar archive"), "GGUF": (b"GGUF\x03", "GGUF"), "text": (b"hello", "no file of weights"),
    "zip": (b"PK\x05\x06" + bytes(18), "empty zip"),
}  # fmt: skip


@pytest.mark.parametrize("kind", FOREIGN)
def test_what_is_no_file_of_weights_is_called_by_name(kind: str, tmp_path: Path) -> None:
    content, words = FOREIGN[kind]
    (tmp_path / "a.dat").write_bytes(content)
    with pytest.raises(UserError, match=words):
        open_source(str(tmp_path / "a.dat"))


def test_paths_that_are_no_files_are_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.npz")
    for path, words in ((tmp_path / "x.npz", "no such file"), ("a\0b", "no such file"), (tmp_path / "pipe.npz", "neither a file"), (tmp_path, "holds no weights")):
        with pytest.raises(UserError, match=words):
            open_source(str(path)) if path != tmp_path else open_source(str(_emptied(tmp_path)))
    path = write(tmp_path / "a.npz", {"a": SQUARE})
    with pytest.raises(UserError, match="is a file"):
        open_source(str(path), "a.npz")


def _emptied(path: Path) -> Path:
    (path / "nothing").mkdir()
    return path / "nothing"


# -------------------------------------------------------------------------------------------- folders


def test_a_folder_with_one_set_of_weights_is_that(tmp_path: Path) -> None:
    write(tmp_path / "model.safetensors", {"a": SQUARE})
    for name in ("config.json", "provenance.json", "README.md", "training_args.bin", "model.safetensors.carried.safetensors", "model.safetensors.certificate.json"):
        (tmp_path / name).write_text("{}")
    assert [(Path(c.path).name, c.container, c.what) for c in folder.candidates(str(tmp_path))] == [("model.safetensors", "safetensors", "safetensors file")]
    assert_same(read(tmp_path), {"a": SQUARE})


def test_of_several_sets_one_has_to_be_named(tmp_path: Path) -> None:
    write(tmp_path / "model.safetensors", {"a": SQUARE})
    write(tmp_path / "old.npz", {"a": SQUARE + 1})
    (tmp_path / "pytorch_model.bin").write_bytes(b"version https://git-lfs.github.com/spec/v1\n")
    with pytest.raises(UserError, match=r"several sets .*model\.safetensors .*old\.npz .*pytorch_model\.bin \(is a Git LFS pointer.*--file"):
        open_source(str(tmp_path))
    assert_same(read(tmp_path, "old.npz"), {"a": SQUARE + 1})
    with pytest.raises(UserError, match=r"--file new\.npz is not there"):
        open_source(str(tmp_path), "new.npz")
    with pytest.raises(UserError, match="--step 3 is not there"):
        open_source(str(tmp_path), step=3)


def test_a_link_out_of_a_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    write(tmp_path / "a.npz", {"a": SQUARE})
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "in" / "a.npz").symlink_to("../a.npz")
    (tmp_path / "in" / "config.json").symlink_to("../config.json")
    for call in (lambda: open_source(str(tmp_path / "in")), lambda: folder.side_files(str(tmp_path / "in"))):
        with pytest.raises(UserError, match="link out of its folder"):
            call()
    assert_same(read(tmp_path / "in" / "a.npz"), {"a": SQUARE})  # named by the user, it may lead anywhere
    (tmp_path / "b.npz").symlink_to("b.npz")
    with pytest.raises(UserError, match="no such file"):
        open_source(str(tmp_path), "b.npz")


@pytest.mark.parametrize("suffix", [".safetensors", ".bin"])
def test_shards_are_one_set(suffix: str, tmp_path: Path) -> None:
    parts = {f"model-0000{i}-of-00002{suffix}": {f"w{i}": SQUARE + i, f"v{i}": SQUARE - i} for i in (1, 2)}
    for file, arrays in parts.items():
        write(tmp_path / file, arrays)
    listed = {name: file for file, arrays in parts.items() for name in arrays}
    (tmp_path / f"model{suffix}.index.json").write_text(json.dumps({"metadata": {"total_size": 576}, "weight_map": listed}))
    (found,) = folder.candidates(str(tmp_path))
    container = "safetensors" if suffix == ".safetensors" else "torch"
    assert (found.what, found.container, found.size) == ("2 shards", container, sum((tmp_path / file).stat().st_size for file in parts))
    for path in (tmp_path, tmp_path / f"model{suffix}.index.json"):
        assert_same(read(path), {name: array for arrays in parts.values() for name, array in arrays.items()})
    with open_source(str(tmp_path)) as source:
        assert source.files == [str(tmp_path / f"model{suffix}.index.json"), *(str(tmp_path / f) for f in parts)]


def test_side_files_are_those_beside_a_file_or_in_a_folder(tmp_path: Path) -> None:
    path = write(tmp_path / "m.npz", {"a": SQUARE})
    for name in ("config.json", "m.npz.json", "other.json"):
        (tmp_path / name).write_text(json.dumps({"is": name}))
    assert folder.side_files(str(path)) == {name: {"is": name} for name in ("config.json", "m.npz.json")}
    assert folder.side_files(str(tmp_path)) == {"config.json": {"is": "config.json"}}
    assert folder.side_files("m.npz") == {}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (b'{"a": 1, "a": 2}', "twice"), (b'{"a": NaN}', "NaN"), (b"[1]", "no JSON object"), (b'{"a": ', "no sound JSON"), (b"\xff", "no sound JSON"),
        (b'{"a":' * 60 + b"1" + b"}" * 60, "nested"), (b'{"a":' * 100_000, "no sound JSON"), (b"", "no sound JSON"), (b'{"a":' + b"9" * 5000 + b"}", "no sound JSON"),
    ],
)  # fmt: skip
def test_damaged_side_files_are_refused(text: bytes, words: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_bytes(text)
    with pytest.raises(UserError, match=f"config.json: .*{words}"):
        folder.side_files(str(tmp_path))


def test_a_side_file_of_gigabytes_is_not_read(tmp_path: Path) -> None:
    (tmp_path / "config.json").touch()
    os.truncate(tmp_path / "config.json", 1 << 33)
    with pytest.raises(UserError, match="8589934592 bytes, more than"):
        folder.side_files(str(tmp_path))


# ------------------------------------------------------------------------------------------------ hub


@pytest.fixture
def cache(tmp_path: Path) -> Iterator[Path]:
    """A hub's cache made by hand: one repository with a config and weights, both links to blobs."""
    pytest.importorskip("huggingface_hub")
    revision = "0123456789abcdef0123456789abcdef01234567"
    repository = tmp_path / "hub" / "models--o--n"
    for name in ("refs", "blobs", f"snapshots/{revision}"):
        (repository / name).mkdir(parents=True)
    (repository / "refs" / "main").write_text(revision)
    write(tmp_path / "model.safetensors", {"a": SQUARE}).rename(repository / "blobs" / "0001")
    (repository / "blobs" / "0002").write_text('{"model_type": "vit"}')
    for name, blob in (("model.safetensors", "0001"), ("config.json", "0002")):
        (repository / "snapshots" / revision / name).symlink_to(f"../../blobs/{blob}")
    return tmp_path / "hub"


PROGRAM = """
from convert.containers import open_source
from convert.containers.folder import side_files
from vit_jax.errors import UserError
for address in ("hf://o/n", "hf://o/n@main", "hf://o/n@0123456789abcdef0123456789abcdef01234567/model.safetensors", "hf://o/other", "hf://o/n/x.npz", "hf://o", "hf://o/n/../x"):
    try:
        with open_source(address) as source:
            print(float(source.tree["a"].read().sum()), side_files(source.path))
    except UserError as error:
        print(error)
"""


def test_a_repository_of_the_hub_is_opened_from_its_cache(cache: Path) -> None:
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "HF_HUB_CACHE": str(cache)}
    said = subprocess.run([sys.executable, "-c", PROGRAM], env=environment, capture_output=True, text=True, check=True).stdout.splitlines()
    assert said[:3] == [f"{float(SQUARE.sum())} {{'config.json': {{'model_type': 'vit'}}}}"] * 3
    assert "cannot be had" in said[3] and "no such file" in said[4] and "no address" in said[5] and "no address" in said[6]


def test_without_its_library_the_hub_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(UserError, match="pip install huggingface_hub"):
        open_source("hf://o/n")


def test_a_repository_with_several_sets_is_refused_before_anything_is_downloaded(monkeypatch: pytest.MonkeyPatch) -> None:
    hub = pytest.importorskip("huggingface_hub")
    names = ["config.json", "model.safetensors", "pytorch_model.bin", "training_args.bin", "onnx/model.bin", "pytorch_model-00001-of-00002.bin"]
    monkeypatch.setattr(hub, "list_repo_files", lambda repository, revision: names)
    asked: list[Any] = []
    monkeypatch.setattr(hub, "snapshot_download", lambda repository, revision, allow_patterns: asked.append(allow_patterns) or "/nowhere")
    with pytest.raises(UserError, match=r"several sets of weights, model\.safetensors, pytorch_model\.bin; name one"):
        open_source("hf://o/n")
    assert asked == []
    with pytest.raises(UserError, match="no such file"):
        open_source("hf://o/n", "pytorch_model.bin")
    with pytest.raises(UserError, match="no such file"):
        open_source("hf://o/n/pytorch_model.bin.index.json")
    assert asked == [["*.json", "pytorch_model.bin"], ["*.json", "pytorch_model.bin.index.json", "pytorch_model-*.bin"]]
