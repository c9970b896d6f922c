"""msgpack files are read as Flax writes them, and written byte by byte as it reads them."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from convert.containers import msgpack
from convert.containers.source import Spec, Tensor

serialization = pytest.importorskip("flax.serialization")

PIECES = 1000  # bytes, where Flax's 2^30 would take a large machine


def tree() -> dict:
    """Parameters with everything that Flax's files hold."""
    generator = np.random.default_rng(0)
    dtypes = (
        np.float16,
        np.float32,
        np.float64,
        ml_dtypes.bfloat16,
        np.int8,
        np.int16,
        np.int32,
        np.int64,
        np.uint8,
        np.uint16,
        np.uint32,
        np.uint64,
        np.bool_,
    )
    deep = {
        "a": {
            "b": {"c": {"d": {"e": {"f": {"g": {"kernel": generator.standard_normal((3, 4, 2)).astype(np.float32)}}}}}}
        }
    }
    return {
        "params": {str(np.dtype(d)): generator.integers(0, 2, (5, 3)).astype(d) for d in dtypes} | deep,
        "sizes": {
            str(n): generator.integers(0, 255, n).astype(np.uint8)
            for n in (0, 1, 2, 3, 4, 8, 10, 11, 12, 13, 200, 255, 256, 999, 1000, 1001, 2500, 70_000)
        },
        "matrix": generator.standard_normal((40, 50)),
        "0d": np.array(2.5, np.float32),
        "empty": np.zeros((0, 3), np.float32),
        "many": {str(i): i for i in range(70)},
        "step": 7,
        "negative": -40,
        "wide": [1 << 20, -(1 << 20), 1 << 40, -(1 << 40), (1 << 64) - 1, 128, -128, -129],
        "rate": 0.1,
        "on": True,
        "none": None,
        "text": "ü" * 40,
    }


def arrays(node: object, path: tuple = ()) -> list:
    """All arrays of a tree, with their paths."""
    if isinstance(node, np.ndarray):
        return [(path, node)]
    return [pair for key, each in node.items() for pair in arrays(each, (*path, key))] if isinstance(node, dict) else []


def specs(node: object) -> object:
    """What a writer is told of a tree."""
    if isinstance(node, dict):
        return {key: specs(each) for key, each in node.items()}
    return Spec(node.dtype, node.shape) if isinstance(node, np.ndarray) else node


def equal(theirs: object, ours: object) -> bool:
    """Whether two trees are the same to the bit; Tensors are read."""
    ours = ours.read() if isinstance(ours, Tensor) else ours
    if isinstance(theirs, np.ndarray | np.generic):
        return (theirs.dtype, theirs.shape, theirs.tobytes()) == (ours.dtype, ours.shape, ours.tobytes())
    if isinstance(theirs, dict):
        return theirs.keys() == ours.keys() and all(equal(theirs[key], ours[key]) for key in theirs)
    return type(theirs) is type(ours) and theirs == ours


@pytest.fixture(params=[msgpack.CHUNK, PIECES], ids=["whole", "in pieces"], autouse=True)
def pieces(request, monkeypatch):
    """Arrays in one piece, and in many."""
    monkeypatch.setattr(msgpack, "CHUNK", request.param)
    monkeypatch.setattr(serialization, "MAX_CHUNK_SIZE", request.param)


def test_what_flax_writes_is_read(tmp_path):
    (tmp_path / "x.msgpack").write_bytes(serialization.msgpack_serialize(tree()))
    with msgpack.open_file(str(tmp_path / "x.msgpack")) as source:
        assert equal(tree(), source.tree) and not source.skipped
        assert source.tree["params"]["a"]["b"]["c"]["d"]["e"]["f"]["g"]["kernel"].name == "params/a/b/c/d/e/f/g/kernel"


def test_what_is_written_flax_reads(tmp_path):
    whole = tree()
    msgpack.write(str(tmp_path / "x.msgpack"), specs(whole), iter(arrays(whole)[::-1]), {})
    assert equal(whole, serialization.msgpack_restore((tmp_path / "x.msgpack").read_bytes()))
    assert equal(whole, msgpack.open_file(str(tmp_path / "x.msgpack")).tree)


def test_parameters_are_written_to_the_byte_as_flax_writes_them(tmp_path):
    whole = tree()
    params = {name: dict(sorted(whole[name].items())) for name in ("params", "sizes")}  # as Flax sorts them
    msgpack.write(str(tmp_path / "x.msgpack"), specs(params), iter(arrays(params)), {})
    assert (tmp_path / "x.msgpack").read_bytes() == serialization.msgpack_serialize(params)


def test_numbers_of_numpy_and_lists(tmp_path):
    (tmp_path / "x.msgpack").write_bytes(
        serialization.msgpack_serialize(
            {"count": np.int32(3), "rate": np.float64(0.5), "list": [1, np.arange(3)], "raw": b"abc"}
        )
    )
    source = msgpack.open_file(str(tmp_path / "x.msgpack"))
    assert (
        source.tree["count"].read() == 3
        and source.tree["rate"].dtype == np.float64
        and source.tree["list"][1].read().tolist() == [0, 1, 2]
    )
    assert source.skipped == ["raw (3 bytes)"]


def test_what_does_not_come_or_has_no_place_is_an_error(tmp_path):
    path = str(tmp_path / "x.msgpack")
    with pytest.raises(ValueError, match="no values came"):
        msgpack.write(path, {"w": Spec(np.dtype(np.float32), (2,))}, iter([]), {})
    with pytest.raises(ValueError, match="complex64"):
        msgpack.write(path, {"w": Spec(np.dtype(np.complex64), (2,))}, iter([]), {})
    with pytest.raises(ValueError, match="is not a string"):
        msgpack.write(path, {3: 1}, iter([]), {})
    with pytest.raises(ValueError, match="was announced"):
        msgpack.write(path, {"w": Spec(np.dtype(np.float32), (2,))}, iter([(("w",), np.zeros(3, np.float32))]), {})
