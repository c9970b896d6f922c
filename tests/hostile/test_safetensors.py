"""safetensors from strangers, numbered as in the table of broken and hostile files."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest

from tests.hostile.child import accepts, refuses
from tests.hostile.flat import ENTRY, entry, st

FILE = "model.safetensors"


def two(first: tuple[int, int], second: tuple[int, int], data: int = 16) -> bytes:
    """A file with two tensors float32 [2] at these offsets."""
    return st({"a": {**ENTRY, "data_offsets": first}, "b": {**ENTRY, "data_offsets": second}}, bytes(data))


TWICE = b'{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},"a":{"dtype":"F32","shape":%s,"data_offsets":%s}}'

SAFETENSORS = {
    "header length 2^63": (st({"a": ENTRY}, length=1 << 63), "header"),
    "header longer than the file": (st({"a": ENTRY}, length=10_000), "header"),
    "header empty": (st(b""), "header"),
    "header a list": (st([]), "JSON object"),
    "header not UTF-8": (st(b'{"\xff":1}'), "JSON"),
    "header 10^5 deep": (st(b'{"a":' + b"[" * 100_000 + b"]" * 100_000 + b"}"), "JSON"),
    "header 10 deep": (st(b'{"a":' + b"[" * 10 + b"]" * 10 + b"}"), "nested"),
    "NaN in the header": (st(b'{"a":NaN}'), "NaN"),
    "float offsets": (entry(data_offsets=[0.0, 8.0]), "whole numbers"),
    "overlap": (two((0, 8), (4, 12), 12), "overlap"),
    "the same range twice": (two((0, 8), (0, 8), 8), "overlap"),
    "hole": (two((0, 8), (12, 20), 20), "gap"),
    "hole before the first": (two((4, 12), (12, 20), 20), "gap"),
    "trailing bytes": (entry() + b"1234", "the file has 12"),
    "short data": (entry()[:-4], "the file has 4"),
    "reversed offsets": (entry(data_offsets=[8, 0]), "data_offsets"),
    "negative offsets": (entry(data_offsets=[-8, 0]), "whole numbers"),
    "dtype F33": (entry(dtype="F33"), "F33"),
    "size mismatch": (entry(shape=[3]), "takes 12 bytes"),
    "shape overflow": (entry(shape=[1 << 62, 4]), "header is wrong"),
    "shape of 4000 digits": (entry(shape=[int("9" * 300)]), "header is wrong"),
    "negative shape": (entry(shape=[-2]), "whole numbers"),
    "boolean shape": (entry(shape=[True, 2]), "whole numbers"),
    "duplicate key, separate ranges": (st(TWICE % (b"[2]", b"[8,16]"), bytes(16)), "twice"),
    "duplicate key, same range, other shape": (st(TWICE % (b"[2,1]", b"[0,8]")), "twice"),
    "duplicate field": (st(b'{"a":{"dtype":"F32","dtype":"I32","shape":[2],"data_offsets":[0,8]}}'), "twice"),
    "metadata value not a string": (st({"__metadata__": {"step": 3}, "a": ENTRY}), "__metadata__"),
    "metadata a list": (st({"__metadata__": ["x"], "a": ENTRY}), "__metadata__"),
    "extra field": (entry(stride=[1]), "entry of a"),
    "missing field": (st({"a": {"dtype": "F32", "shape": [2]}}), "entry of a"),
    "leading space": (st(b" " + json.dumps({"a": ENTRY}).encode()), "JSON object"),
    "key with NUL": (st({"a\0b": ENTRY}), "U+0000"),
    "key with a Cyrillic letter": (st({"\u0430": ENTRY}), "U+0430"),
    "empty key": (st({"": ENTRY}), "not a name"),
    "key of 600 characters": (st({"a" * 600: ENTRY}), "600 characters"),
    "rank 100": (entry(shape=[1] * 99 + [2]), "axes"),
    "bool byte 7": (
        st({"a": {"dtype": "BOOL", "shape": [2], "data_offsets": [0, 2]}}, b"\x01\x07"),
        "neither true nor false",
    ),
    "no tensors": (st({}, b""), "no tensors"),
    "sub-byte dtype F4": (st({"a": {"dtype": "F4", "shape": [4], "data_offsets": [0, 2]}}, b"\x01\x02"), "F4"),
    "digests of other tensors": (st({"__metadata__": {"digests": '{"b":"00000000"}'}, "a": ENTRY}), "digests"),
    "digests that are none": (st({"__metadata__": {"digests": '{"a":"zz"}'}, "a": ENTRY}), "digests"),
    "wrong digest": (st({"__metadata__": {"digests": '{"a":"00000000"}'}, "a": ENTRY}), "a is damaged"),
    "cut at 50 %": (entry()[: len(entry()) // 2], "header"),
}


@pytest.mark.parametrize("item", SAFETENSORS)
def test_safetensors_are_refused(item: str, tmp_path: Path) -> None:
    content, word = SAFETENSORS[item]
    path = tmp_path / FILE
    path.write_bytes(content)
    assert str(path) in refuses(path, word)


def test_header_of_200_mb_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / FILE
    path.write_bytes(st(b"{" + b" " * 600, length=200 << 20))
    os.truncate(path, (200 << 20) + 100)
    refuses(path, "header", grown=16 << 20)


def test_many_duplicate_keys_take_no_time(tmp_path: Path) -> None:
    path = tmp_path / FILE
    path.write_bytes(st(b"{" + b",".join(b'"%d":0' % i for i in [*range(100_000), 99_999]) + b"}"))
    refuses(path, "twice", grown=256 << 20)


@pytest.mark.parametrize(
    ("item", "dtype", "shape"),
    [
        ("zero-size", np.float32, (0, 3)),
        ("0-dim", np.float64, ()),
        ("misaligned", np.float32, (2,)),
        ("bool", np.bool_, (4,)),
        ("axes of one", np.int16, (1, 3, 1)),
    ],
)
def test_safetensors_are_accepted(item: str, dtype: type, shape: tuple[int, ...], tmp_path: Path) -> None:
    truth = {"a": np.ones(shape, dtype), "pad": np.array([3], np.uint8)}
    kinds = {np.float32: "F32", np.float64: "F64", np.bool_: "BOOL", np.int16: "I16"}
    size = truth["a"].nbytes
    begin = 1 if item == "misaligned" else 0
    header = {
        "a": {"dtype": kinds[dtype], "shape": shape, "data_offsets": [begin, begin + size]},
        "pad": {"dtype": "U8", "shape": [1], "data_offsets": [0, 1] if begin else [size, size + 1]},
    }
    path = tmp_path / FILE
    order = ("pad", "a") if begin else ("a", "pad")
    path.write_bytes(st(header, b"".join(truth[name].tobytes() for name in order)))
    accepts(path, truth)


def test_names_beyond_the_cap_are_refused_quickly(tmp_path: Path) -> None:
    path = tmp_path / FILE
    entries = {f"t{i}": {"dtype": "U8", "shape": [1], "data_offsets": [i, i + 1]} for i in range(50_001)}
    path.write_bytes(st(entries, bytes(50_001)))
    refuses(path, "50001 tensors", grown=256 << 20)
