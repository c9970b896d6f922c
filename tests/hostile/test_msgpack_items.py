"""Broken and malicious msgpack files: each is refused in one sentence, or read as the right arrays."""

from __future__ import annotations

import struct

import ml_dtypes
import msgpack
import numpy as np
import pytest

from tests.hostile.child import accepts, opened, refuses, run
from tests.hostile.chosen import cut_while_open

VALUES = np.arange(4, dtype=np.float32)


def array(
    shape=(4,), dtype="float32", data: object = VALUES.tobytes(), code: int = 1, triple: object = None
) -> msgpack.ExtType:
    """An array as Flax packs it."""
    return msgpack.ExtType(code, msgpack.packb((shape, dtype, data) if triple is None else triple))


def chunked(shape: object = None, chunks: object = None, **more: object) -> dict:
    """An array in pieces."""
    half = {"0": array((2,), data=VALUES[:2].tobytes()), "1": array((2,), data=VALUES[2:].tobytes())}
    return {
        "__msgpack_chunked_array__": True,
        "shape": {"0": 4} if shape is None else shape,
        "chunks": half if chunks is None else chunks,
        **more,
    }


REFUSED = {  # a value under "w", or the bytes of a whole file; words of the refusal
    "2000 maps": (b"\x81\xa1a" * 2000 + b"\xc0", "deeper than 16 levels"),
    "10^6 arrays deep": (b"\x81\xa1a" + b"\x91" * 1_000_000, "deeper than 16 levels"),
    "unknown ext 77": (msgpack.ExtType(77, b"abcd"), "extension type 77"),
    "timestamp": (msgpack.Timestamp(1), "timestamp"),
    "a complex number": (msgpack.ExtType(2, msgpack.packb((1.0, 2.0))), "complex number"),
    "shape lies": (array((5,)), "[5] of float32 in 16 bytes"),
    "object dtype": (array(dtype="object"), "'object'"),
    "|O8": (array(dtype="|O8"), "'|O8'"),
    "junk dtype": (array(dtype="f4,f4"), "'f4,f4'"),
    "no triple": (array(triple=((4,), "float32")), "not [shape, dtype, bytes]"),
    "a shape that is a number": (array(4), "shape or dtype"),
    "a shape of texts": (array(("4",)), "shape or dtype"),
    "a shape of booleans": (array((True,), "bool", b"\1"), "shape or dtype"),
    "bytes that are a text": (array(data="0123456789abcdef"), "without its bytes"),
    "bytes behind the array": (
        msgpack.ExtType(1, msgpack.packb(((4,), "float32", VALUES.tobytes())) + b"x"),
        "in 16 bytes",
    ),
    "rank 9": (array((1,) * 9, data=bytes(4)), "9 axes"),
    "shape (-1,)": (array((-1,)), "shape or dtype"),
    "array32 2^32-1": (b"\x81\xa1w\xdd\xff\xff\xff\xff", "cut off"),
    "map32 2^32-1": (b"\xdf\xff\xff\xff\xff", "cut off"),
    "bin32 4 GB": (b"\x81\xa1w\xc6\xff\xff\xff\xff", "cut off"),
    "str32 4 GB": (b"\x81\xa1w\xdb\xff\xff\xff\xff", "strings of more than 16777216 bytes"),
    "ext32 4 GB": (b"\x81\xa1w\xc9\xff\xff\xff\xff\x01", "cut off"),
    "cut": (msgpack.packb({"w": array()})[:-3], "cut off"),
    "extra": (msgpack.packb({"w": array()}) + b"\xc0", "1 bytes after its end"),
    "a shape of 2^33 x 2^33": (array((1 << 33, 1 << 33)), "would take"),
    "duplicate map key": (b"\x82\xa1w\x01\xa1w\x02", "'w' twice"),
    "chunks lie": (chunked(shape={"0": 5}), "pieces of 'w'"),
    "no shape": ({"__msgpack_chunked_array__": True, "chunks": {"0": array()}}, "pieces of 'w'"),
    "no chunks": (chunked(chunks={}), "pieces of 'w'"),
    "a chunk is missing": (chunked(chunks={"0": array(), "2": array()}), "pieces of 'w'"),
    "a chunk of another dtype": (
        chunked(chunks={"0": array((2,), data=bytes(8)), "1": array((2,), "int32", bytes(8))}),
        "pieces of 'w'",
    ),
    "a chunk that is no array": (chunked(chunks={"0": array(), "1": 3}), "pieces of 'w'"),
    "something beside the chunks": (chunked(more=array()), "pieces of 'w'"),
    "V2": (array((2,), "V2", bytes(4)), "'V2'"),
    "top-level int": (b"\x01", ""),
    "int key": (b"\x81\x01\x01", "key of type int"),
    "a byte that begins nothing": (b"\x81\xa1w\xc1", "0xc1"),
    "a text that is not UTF-8": (b"\x81\xa1w\xa1\xff", "UTF-8"),
    "a boolean that is neither": (array((2,), "bool", b"\1\2"), "the byte 2"),
    "a complex array": (array((2,), "complex64", bytes(16)), "'complex64'"),
    "a float8 array": (array((4,), "float8_e4m3fn", bytes(4)), "'float8_e4m3fn'"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_msgpack_files_that_are_refused(what, tmp_path):
    value, words = REFUSED[what]
    (tmp_path / "x.msgpack").write_bytes(value if isinstance(value, bytes) else msgpack.packb({"w": value}))
    refuses(tmp_path / "x.msgpack", words)


ACCEPTED = {
    "12 chunks reversed": (
        chunked({"0": 3, "1": 4}, {str(i): array((1,), "int32", struct.pack("<i", i)) for i in reversed(range(12))}),
        np.arange(12, dtype=np.int32).reshape(3, 4),
    ),
    "chunks": (chunked(), VALUES),
    ">f4": (array(dtype=">f4", data=VALUES.astype(">f4").tobytes()), VALUES),
    "bfloat16": (
        array(dtype="bfloat16", data=VALUES.astype(ml_dtypes.bfloat16).tobytes()),
        VALUES.astype(ml_dtypes.bfloat16),
    ),
    "a scalar of numpy": (array((), "int32", struct.pack("<i", 7), code=3), np.array(7, np.int32)),
    "no values": (array((0, 3), data=b""), np.zeros((0, 3), np.float32)),
}


@pytest.mark.parametrize("what", ACCEPTED)
def test_msgpack_files_that_are_read(what, tmp_path):
    value, truth = ACCEPTED[what]
    (tmp_path / "x.msgpack").write_bytes(msgpack.packb({"w": value}))
    accepts(tmp_path / "x.msgpack", {"w": truth})


def test_values_that_are_no_arrays(tmp_path):
    (tmp_path / "x.msgpack").write_bytes(
        msgpack.packb(
            {"step": 70_000, "neg": -5, "rate": 0.5, "name": "a" * 300, "none": None, "on": True, "list": [1, -40_000]}
        )
    )
    assert run(opened, str(tmp_path / "x.msgpack")).value == {
        "step": 70_000,
        "neg": -5,
        "rate": 0.5,
        "name": "a" * 300,
        "none": None,
        "on": True,
        "list": [1, -40_000],
    }


def test_cut_while_open(tmp_path):
    (tmp_path / "x.msgpack").write_bytes(msgpack.packb({"w": array()}))
    refuses(tmp_path / "x.msgpack", "has changed while it was read", function=cut_while_open, size=20)
