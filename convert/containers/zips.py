"""The members of a zip file, read strictly: a file in which any byte is unaccounted for or ambiguous is refused."""

from __future__ import annotations

import struct
from dataclasses import dataclass

from vit_jax.errors import UserError

from . import limits
from .positional import PositionalFile

END, END64, LOCATOR, ENTRY, LOCAL = "<4s4H2LH", "<4sQ2H2L4Q", "<4sLQL", "<4s6H3L5H2L", "<4s5H3L2H"  # APPNOTE.TXT 4.3
SHORT, LONG = 0xFFFF, 0xFFFFFFFF  # in these fields: the zip64 record has the value
ENCRYPTED, DESCRIPTOR = 1, 8  # flag bits


@dataclass(frozen=True)
class Member:
    """One member: `compressed` bytes at `offset` that hold `size` bytes of this CRC-32; method 0 is stored."""

    name: str
    offset: int
    compressed: int
    size: int
    crc: int
    method: int


def zip_members(file: PositionalFile) -> dict[str, Member]:
    """The members of a zip file, without folders -> {name: Member} in the order of the directory."""
    try:
        return _members(file)
    except (struct.error, IndexError) as error:
        raise _damage(file, "its directory cannot be read") from error


def _damage(file: PositionalFile, what: str) -> UserError:
    return UserError(file.path, f"is a damaged zip file: {what}", "get the file again")


def _members(file: PositionalFile) -> dict[str, Member]:
    start, size, count = _directory(file)
    if size > limits.HEADER:
        raise UserError(
            file.path, f"its zip directory takes {size} bytes, more than {limits.HEADER}", "save the weights alone"
        )
    data, at = file.read(start, size), 0
    found: dict[str, tuple[int, Member]] = {}
    for _ in range(count):
        signature, _, _, flags, method, _, _, crc, compressed, plain, n, x, c, _, _, _, offset = struct.unpack_from(
            ENTRY, data, at
        )
        name, extra = data[at + 46 : at + 46 + n], data[at + 46 + n : at + 46 + n + x]
        at += 46 + n + x + c
        if signature != b"PK\x01\x02" or at > size:
            raise _damage(file, "its directory is cut off")
        plain, compressed, offset = _zip64_fields(extra, plain, compressed, offset)
        text = _name(file, name)
        if flags & ENCRYPTED:
            raise UserError(file.path, f"the member {text!a} is encrypted", "give a file without a password")
        if text in found:
            raise UserError(file.path, f"has the member {text!a} twice", "re-save the file from its library")
        found[text] = offset, Member(text, 0, compressed, plain, crc, method)
    if at != size:
        raise _damage(file, "its directory is longer than its entries")
    placed = _place_members(file, found, start)
    return {name: placed[name] for name in found if not name.endswith("/")}


def _directory(file: PositionalFile) -> tuple[int, int, int]:
    """Offset, size and number of entries of the central directory, which must end where the closing records begin."""
    if file.size < 22:
        raise _damage(file, "it is cut off")
    signature, disk, first, here, count, size, start, comment = struct.unpack(END, file.read(file.size - 22, 22))
    if signature != b"PK\x05\x06" or comment:
        raise _damage(file, "it is cut off, or there are bytes after its end")
    end = file.size - 22
    locator = file.read(end - 20, 20) if end >= 20 else b""
    if locator[:4] == b"PK\x06\x07":
        _, _, at, _ = struct.unpack(LOCATOR, locator)
        if at + 56 != end - 20:
            raise _damage(file, "its zip64 record is not where its locator points")
        signature, _, _, _, disk64, first64, here64, count64, size64, start64 = struct.unpack(END64, file.read(at, 56))
        pairs = zip(
            (disk, first, here, count, size, start),
            (disk64, first64, here64, count64, size64, start64),
            (SHORT,) * 4 + (LONG,) * 2,
            strict=True,
        )
        if signature != b"PK\x06\x06" or any(small not in (wide, full) for small, wide, full in pairs):
            raise _damage(file, "its two closing records differ")
        disk, first, here, count, size, start, end = disk64, first64, here64, count64, size64, start64, at
    if disk or first or here != count or start + size != end:
        raise _damage(file, "its directory is not where its closing record points")
    return start, size, count


def _zip64_fields(extra: bytes, *values: int) -> list[int]:
    """Size, compressed size and offset, each from the zip64 field where the short field is full."""
    wide, at = b"", 0
    while at + 4 <= len(extra):
        kind, length = struct.unpack_from("<2H", extra, at)
        if kind == 1:
            wide = extra[at + 4 : at + 4 + length]
        at += 4 + length
    done = []
    for value in values:
        if value == LONG:
            value, wide = struct.unpack_from("<Q", wide)[0], wide[8:]
        done.append(value)
    return done


def _name(file: PositionalFile, name: bytes) -> str:
    try:
        text = name.decode()
    except UnicodeDecodeError as error:
        raise _damage(file, f"a member is named {name[:100]!a}") from error
    parts = text.removesuffix("/").split("/")
    if any(part in ("", ".", "..") for part in parts) or "\\" in text or ":" in text or "\0" in text:
        raise UserError(
            file.path, f"the member {text[:100]!a} leads out of the archive", "re-save the file from its library"
        )
    return text


def _place_members(file: PositionalFile, found: dict[str, tuple[int, Member]], end: int) -> dict[str, Member]:
    """The members with the offsets of their bytes, after a check of the header before each."""
    done: dict[str, Member] = {}
    ordered = sorted(found.values(), key=lambda entry: entry[0])
    if ordered and ordered[0][0] != 0:
        raise _damage(file, "there are bytes before its first member")
    for (offset, member), following in zip(ordered, [*(o for o, _ in ordered[1:]), end], strict=True):
        header = file.read(offset, 30)
        signature, _, flags, method, _, _, crc, compressed, size, n, x = struct.unpack(LOCAL, header)
        data = offset + 30 + n + x
        later = flags & DESCRIPTOR  # sizes and CRC may follow the bytes instead
        sizes = all(
            here in (real, LONG) or (later and here == 0)
            for here, real in ((compressed, member.compressed), (size, member.size))
        )
        if (
            signature != b"PK\x03\x04"
            or not sizes
            or method != member.method
            or not (crc == member.crc or (later and crc == 0))
        ):
            raise _damage(file, f"the member {member.name!a} is not what the directory says")
        if file.read(offset + 30, n) != member.name.encode() or data + member.compressed > following:
            raise _damage(file, f"the member {member.name!a} is not where the directory says")
        done[member.name] = Member(member.name, data, member.compressed, member.size, member.crc, method)
    return done
