"""What the file of a SentencePiece model holds, which its library tells only in part: a message of protobuf."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from ..machine.libraries import report_damage, require

_PIECES, _TRAINER, _NORMALIZER = 1, 2, 3  # fields of the message
_MODEL_TYPE, _CHARSMAP = 3, 2  # fields of the last two
_BPE = 2  # of the values of _MODEL_TYPE; 1 is unigram, and the default
MOST = 1 << 20  # pieces


@dataclass(frozen=True)
class SpmFile:
    """A SentencePiece model: its pieces with their scores by id, and what normalises texts before they are split."""

    pieces: tuple[tuple[str, float], ...]
    is_bpe: bool
    charsmap: bytes  # of the normalizer `Precompiled`; empty: texts stay as they are


def read_spm(content: bytes, where: str) -> SpmFile:
    """The SentencePiece model in a file."""
    with require("sentencepiece"):
        from sentencepiece import SentencePieceProcessor
    count, parts = 0, dict[int, bytes]()
    with report_damage(where):
        for field, value in _fields(content):
            count += field == _PIECES
            if count > MOST:
                raise ValueError(f"it has more than {MOST:,} pieces")
            if field in (_TRAINER, _NORMALIZER):
                parts[field] = value
        is_bpe = dict(_fields(parts.get(_TRAINER, b""))).get(_MODEL_TYPE) == _BPE
        charsmap = dict(_fields(parts.get(_NORMALIZER, b""))).get(_CHARSMAP, b"")
        model = SentencePieceProcessor(model_proto=content or b"none")  # empty, it would take none for one
        ids = [*range(model.get_piece_size())]
        pieces = zip(model.id_to_piece(ids), model.get_score(ids), strict=True)
    return SpmFile(tuple(pieces), is_bpe, charsmap)


def _fields(message: bytes) -> Iterator[tuple[int, Any]]:
    """(number, value) of each field of a message: a whole number, or bytes. Raises ValueError on what is none."""
    place = 0

    def varint() -> int:
        nonlocal place
        value = shift = 0
        while True:
            if place >= len(message) or shift > 63:
                raise ValueError("it is cut off")
            byte = message[place]
            place, value, shift = place + 1, value | (byte & 127) << shift, shift + 7
            if byte < 128:
                return value

    while place < len(message):
        field, wire = divmod(varint(), 8)
        if wire == 0:
            yield field, varint()
            continue
        if wire not in (1, 2, 5):
            raise ValueError("it is no SentencePiece model")
        length = varint() if wire == 2 else {1: 8, 5: 4}[wire]
        if place + length > len(message):
            raise ValueError("it is cut off")
        yield field, message[place : place + length]
        place += length
