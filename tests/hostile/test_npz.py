"""npz from strangers, numbered as in the table of broken and hostile files."""

from __future__ import annotations

import os
import pickle
import struct
import zipfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.hostile.child import accepts, refuses
from tests.hostile.flat import A, header, npy, npz

FILE = "model.npz"


def patched(content: bytes, signature: bytes, offset: int, field: bytes) -> bytes:
    """A zip file with a field of its last record of a kind replaced."""
    at = content.rindex(signature) + offset
    return content[:at] + field + content[at + len(field) :]


GOOD = npz({"a.npy": npy(A)})
CENTRAL, LOCAL = b"PK\x01\x02", b"PK\x03\x04"


def one(content: bytes) -> bytes:
    """An npz file with one member, `a`."""
    return npz({"a.npy": content})


def flipped(content: bytes) -> bytes:
    """A file with one bit of its values flipped."""
    at = content.index(A.tobytes())
    return content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :]


def other_crc(content: bytes) -> bytes:
    """A file whose two headers of a member state the CRC of other bytes."""
    return patched(patched(content, CENTRAL, 16, bytes(4)), LOCAL, 14, bytes(4))


def zip64(size: int) -> bytes:
    """A file whose directory says this size in a zip64 field."""
    end = GOOD.rindex(b"PK\x05\x06")
    start = GOOD.rindex(CENTRAL)
    record = bytearray(GOOD[start:end])
    record[20:28] = b"\xff" * 8  # both sizes: look into the zip64 field
    record[30:32] = struct.pack("<H", 20)
    record += struct.pack("<2H2Q", 1, 16, size, size)
    closing = bytearray(GOOD[end:])
    closing[12:16] = struct.pack("<L", len(record))
    return GOOD[:start] + bytes(record) + bytes(closing)


class Executes:
    """A pickle that would run something."""

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, ("touch executed",)


NPZ = {
    "member ../evil.npy": (npz({"../evil.npy": npy(A)}), "leads out"),
    "member /abs.npy": (npz({"/abs.npy": npy(A)}), "leads out"),
    "member with a backslash": (npz({"a\\..\\b.npy": npy(A)}), "leads out"),
    "cut at 50 %": (GOOD[: len(GOOD) // 2], "cut off"),
    "cut at 99.9 %": (GOOD[:-1], "cut off"),
    "directory claims a member of 4 GB": (
        patched(GOOD, CENTRAL, 20, struct.pack("<2L", 0xFFFFFFF0, 0xFFFFFFF0)),
        "not",
    ),
    "directory claims 4 GB unpacked": (patched(GOOD, CENTRAL, 24, struct.pack("<L", 0xFFFFFFF0)), "not"),
    "zip64 field says 2^50 bytes": (zip64(1 << 50), "not"),
    "directory states another CRC": (patched(GOOD, CENTRAL, 16, bytes(4)), ""),
    "zip64 field missing": (patched(GOOD, CENTRAL, 20, b"\xff" * 8), "damaged zip"),
    "directory claims 60000 members": (
        patched(GOOD, b"PK\x05\x06", 8, struct.pack("<2H", 60_000, 60_000)),
        "damaged zip",
    ),
    "member behind the directory": (patched(GOOD, CENTRAL, 42, struct.pack("<L", len(GOOD) - 30)), "damaged zip"),
    "100 NULs before the zip": (bytes(100) + GOOD, ""),
    "bytes behind the zip": (GOOD + b"12345678901234567890123", "cut off"),
    "object array": (one(npy(np.array([{}], object))), "dtype"),
    "structured with object": (one(header("[('a', '|O')]")), "dtype"),
    "pickle file": (one(pickle.dumps(Executes())), ".npy header"),
    "pickle named .npz": (pickle.dumps(Executes()), ""),
    "shape -4": (one(header(shape="(-4,)")), "header is wrong"),
    "shape overflow": (one(header(shape=f"({1 << 62}, 4)")), "header is wrong"),
    "rank 70": (one(header(shape="(" + "1," * 70 + ")")), "axes"),
    "shape (0, 2^63 - 1)": (one(header(shape=f"(0, {(1 << 63) - 1})", data=b"")), "header is wrong"),
    "float shape": (one(header(shape="(2.0,)")), ".npy header"),
    "boolean shape": (one(header(shape="(True, 2)")), ".npy header"),
    "shape a list": (one(header(shape="[2]")), ".npy header"),
    "shape 2^40 in 144 bytes": (one(header(shape=f"({1 << 40},)", data=bytes(144))), "header is wrong"),
    "shape 2^31 in 144 bytes": (one(header(shape=f"({1 << 31},)", data=bytes(144))), "its member has"),
    "cut data": (one(header(data=A.tobytes()[:-1])), "its member has"),
    "call in the header": (one(header(descr="__import__('os').system('touch executed')")), ".npy header"),
    "extra key": (one(header(more="'x': 1, ")), ".npy header"),
    "key twice": (one(header(more="'shape': (2,), ")), ".npy header"),
    "version 9": (one(header(version=b"\x09\x00")), ".npy header"),
    "header of 10 kB": (one(header(more=" " * 10_000)), ".npy header"),
    "deep header": (one(header(shape="(" * 3000 + ")" * 3000)), ".npy header"),
    "no header": (one(b"\x93NUMPY"), ".npy header"),
    "trailing junk": (one(header(data=A.tobytes() + b"junk")), "its member has"),
    "datetime": (one(header("'<M8[s]'", data=bytes(16))), "dtype"),
    "longdouble": (one(header("'<f16'", data=bytes(32))), "dtype"),
    "two fields": (one(header("'f4,f4'", data=bytes(16))), "dtype"),
    "complex": (one(header("'<c8'", data=bytes(16))), "dtype"),
    "text": (one(header("'<U1'")), "dtype"),
    "bool byte 7": (one(header("'|b1'", data=b"\x01\x07")), "neither true nor false"),
    "duplicate key": (npz({"a.npy": npy(A), "b.npy": npy(A + 1)}).replace(b"b.npy", b"a.npy"), "twice"),
    "a with a.npy": (npz({"a": npy(A), "a.npy": npy(A)}), "no .npy array"),
    "text member": (npz({"a.npy": npy(A), "readme.txt": b"hello"}), "no .npy array"),
    "member ../a.npy": (npz({"a.npy": npy(A), "../a.npy": npy(A)}), "leads out"),
    "bit flip": (flipped(GOOD), "a is damaged"),
    "bit flip in a deflated member": (
        other_crc(npz({"a.npy": npy(np.arange(99.0))}, zipfile.ZIP_DEFLATED)),
        "a is damaged",
    ),
    "encrypted flag": (patched(GOOD, CENTRAL, 8, b"\x01\x00"), "encrypted"),
    "bzip2 member": (npz({"a.npy": npy(A)}, zipfile.ZIP_BZIP2), "method 12"),
    "Cyrillic letter in a name": (npz({"\u0430.npy": npy(A)}), "U+0430"),
}


@pytest.mark.parametrize("item", NPZ)
def test_npz_are_refused(item: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    content, word = NPZ[item]
    path = tmp_path / FILE
    path.write_bytes(content)
    assert str(path) in refuses(path, word)
    assert os.listdir(tmp_path) == [path.name]  # nothing was executed


def bomb(size: int, said: int) -> bytes:
    """A deflated member of `size` zeros whose directory says `said`, about a thousandth of that in the file."""
    packer = zlib.compressobj(9, zlib.DEFLATED, -zlib.MAX_WBITS)
    piece = packer.compress(bytes(1 << 20)) + packer.flush(zlib.Z_FULL_FLUSH)
    content = npz({"a.npy": npy(np.zeros(1, np.uint8))})
    packed = piece * (size >> 20) + b"\x03\x00"
    name, crc = b"a.npy", 0
    local = struct.pack("<4s5H3L2H", LOCAL, 20, 0, 8, 0, 0, crc, len(packed), said, len(name), 0) + name
    central = (
        struct.pack("<4s6H3L5H2L", CENTRAL, 20, 20, 0, 8, 0, 0, crc, len(packed), said, len(name), 0, 0, 0, 0, 0, 0)
        + name
    )
    content = local + packed + central
    return content + struct.pack("<4s4H2LH", b"PK\x05\x06", 0, 0, 1, 1, len(central), len(local) + len(packed), 0)


@pytest.mark.parametrize(("item", "said"), [("bomb of 1 GB zeros", 1 << 30), ("bomb that says 1000 bytes", 1000)])
def test_bombs_do_not_go_off(item: str, said: int, tmp_path: Path) -> None:
    path = tmp_path / FILE
    path.write_bytes(bomb(1 << 30, said))
    refuses(path, "1073741824" if said == 1 << 30 else ".npy header", grown=32 << 20)


NPZ_ACCEPTED = {
    "big-endian": ({"a.npy": npy(A.astype(">f4"))}, A),
    "Fortran": ({"a.npy": npy(np.asfortranarray(np.arange(6.0).reshape(2, 3)))}, np.arange(6.0).reshape(2, 3)),
    "big-endian Fortran": (
        {"a.npy": npy(np.asfortranarray(np.arange(6.0).reshape(2, 3)).astype(">f8"))},
        np.arange(6.0).reshape(2, 3),
    ),
    "|V2": ({"a.npy": header("'|V2'", data=b"\x80\x3f\x00\xc0")}, np.frombuffer(b"\x80\x3f\x00\xc0", "V2")),
    "<V2": ({"a.npy": header("'<V2'", data=b"\x80\x3f\x00\xc0")}, np.frombuffer(b"\x80\x3f\x00\xc0", "V2")),
    "version 2.0": ({"a.npy": header(version=b"\x02\x00")}, A),
    "version 3.0": ({"a.npy": header(version=b"\x03\x00")}, A),
    "0-dim": ({"a.npy": npy(np.float32(3))}, np.array(3, np.float32)),
    "zero-size": ({"a.npy": npy(np.zeros((0, 3)))}, np.zeros((0, 3))),
}


@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED], ids=["stored", "deflated"])
@pytest.mark.parametrize("item", NPZ_ACCEPTED)
def test_npz_are_accepted(item: str, method: int, tmp_path: Path) -> None:
    files, truth = NPZ_ACCEPTED[item]
    path = tmp_path / FILE
    path.write_bytes(npz(files, method))
    accepts(path, {"a": truth})


def test_a_deflated_table_of_zeros_under_the_floor_is_accepted(tmp_path: Path) -> None:
    path = tmp_path / FILE
    truth = np.zeros((1 << 10, 1 << 10), np.uint8)
    path.write_bytes(npz({"a.npy": npy(truth)}, zipfile.ZIP_DEFLATED))
    accepts(path, {"a": truth})
