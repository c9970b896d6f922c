"""Bytes as ids: the tokenizer of ByT5, which has no vocabulary in a file (Xue et al. 2021, arXiv 2105.13626)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from ..errors import UserError
from .pieces import check_ids
from .tokenizer import Ids, Tokenizer, token_text

FIRST = 3  # the id of byte 0, after padding, end and unknown
BYTES = 256
NAMES = ("pad_token", "eos_token", "unk_token")  # of the ids before that
SENTINELS = 125
MOST = 1 << 20  # sentinels


def special_tokens(settings: Mapping[str, Any]) -> dict[str, int]:
    """{token: id} of the tokens that stand for no byte."""
    found = {token_text(settings[name]): i for i, name in enumerate(NAMES)}
    if isinstance(by_id := settings.get("added_tokens_decoder"), Mapping):
        numbers = {number: token_text(token) for number, token in by_id.items() if re.fullmatch("[0-9]{1,7}", number)}
        return found | {token: int(number) for number, token in numbers.items() if token}
    count = settings.get("extra_ids")
    listed = settings.get("additional_special_tokens")
    count = count if type(count) is int and not listed else SENTINELS
    if count > MOST:
        raise UserError("tokenizer_config.json", f"extra_ids is {count}", f"give at most {MOST:,}")
    tokens = map(token_text, listed) if isinstance(listed, list) else (f"<extra_id_{i}>" for i in range(count))
    return found | {token: FIRST + BYTES + i for i, token in enumerate(tokens)}


def byte_vocabulary(settings: Mapping[str, Any]) -> dict[str, int]:
    """{token: id} of all tokens; that of a byte is the character with its number, as in transformers."""
    return {chr(i): FIRST + i for i in range(BYTES)} | special_tokens(settings)


class ByteTokens(Tokenizer):
    """One side of ByT5: ids and texts are those of ByT5Tokenizer of transformers.

    A text is its bytes in UTF-8. The special tokens in it are found first; padding, end and unknown take the white
    space around them with them, unless the settings say otherwise.
    """

    unit = "bytes"

    def __init__(self, settings: Mapping[str, Any], ids: Ids, target: bool, kept: Any, files: Mapping[str, bytes]):
        self.ids, self.kept, self.files = ids, kept, files
        self.after = () if target else (ids.end,)
        self.specials = special_tokens(settings)
        self.names = {i: token for token, i in self.specials.items()}
        by_id = settings.get("added_tokens_decoder") or {}
        self.strips = {i: _strips(by_id.get(str(i), settings[name])) for i, name in enumerate(NAMES)}
        self._special = re.compile("|".join(map(re.escape, sorted(self.specials, key=len, reverse=True))))

    def number(self, token: str) -> int | None:
        return self.specials.get(token)

    def encode(self, text: str) -> np.ndarray:
        return check_ids(text, self.bytes_of(text), self)

    def bytes_of(self, text: str) -> list[int]:
        """The ids of a text, with what stands behind it."""
        found, begin, strip = list[int](), 0, False
        for special in self._special.finditer(text):
            i = self.specials[special.group()]
            left, right = self.strips.get(i, (False, False))
            between = _stripped(text[begin : special.start()], strip, left)
            found += [*(byte + FIRST for byte in between.encode()), i]
            begin, strip = special.end(), right
        found += [byte + FIRST for byte in _stripped(text[begin:], strip, False).encode()]
        if found[-1:] == [self.ids.end]:  # it is not added again
            found.pop()
        return [*found, *self.after]

    def decode(self, ids: Iterable[int]) -> str:
        """The sentence of ids, up to the first end or padding, without special tokens and parts of characters."""
        numbers = (i - FIRST for i in self.ids.until_end(ids) if i not in self.names)
        return bytes(i for i in numbers if 0 <= i < BYTES).decode(errors="ignore")

    def tokens(self, ids: Iterable[int]) -> list[str]:
        """The character of each id; of a part of one, and of others, its number or name."""
        return [self.names.get(int(i)) or _byte_name(int(i) - FIRST) for i in ids]


def _strips(token: Any) -> tuple[bool, bool]:
    """Whether a special token takes the white space (before, after) it: it does, but where an object says otherwise."""
    if not isinstance(token, Mapping):
        return True, True
    return token.get("lstrip") is True, token.get("rstrip") is True


def _stripped(text: str, left: bool, right: bool) -> str:
    text = text.lstrip() if left else text
    return text.rstrip() if right else text


def _byte_name(i: int) -> str:
    return chr(i) if 32 <= i < 127 else f"<0x{i:02X}>" if 0 <= i < BYTES else str(i + FIRST)
