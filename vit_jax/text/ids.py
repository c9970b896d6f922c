"""The ids of a vocabulary that data, loss and search treat in a way of their own."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from ..errors import UserError

Declared = Mapping[str, Any]  # the JSON of one or several files


@dataclass(frozen=True)
class Ids:
    """What the special ids of a vocabulary are; each tokenizer has its own, so no other code knows their numbers.

    Our words have 0, 1 and 2 as pad, begin and end; Marian has 0 as end, and its last id as both pad and begin; BART
    pads with 1 and has 2 as both begin and end.
    """

    pad: int  # fills rows up; never part of a sentence
    begin: int  # the decoder's first input
    end: int  # ends a target
    unknown: int | None = None  # stands for any word outside the vocabulary; None: nothing is outside
    banned: tuple[int, ...] = ()  # never generated
    forced_begin: int | None = None  # the first token generated, where one is forced (mBART: the language)
    forced_end: int | None = None  # the token at the greatest length, where one is forced

    def until_end(self, row: Iterable[int]) -> list[int]:
        """The ids of a row before its first end or padding."""
        return [int(i) for i in itertools.takewhile(lambda i: i not in (self.pad, self.end), row)]


def special_ids(
    model: Declared, tokens: Declared, number: Callable[[str], int | None], where: str, alone: bool = False
) -> Ids:
    """The ids of a target."""

    def one(in_model: str, in_tokens: str = "") -> int | None:
        value = model.get(in_model)
        value = value[0] if isinstance(value, list) and value else value  # several ends: the first
        text = token_text(tokens.get(in_tokens))
        return value if type(value) is int else number(text) if text else None

    pad, end = one("pad_token_id", "pad_token"), one("eos_token_id", "eos_token")
    begin = one("decoder_start_token_id") if model else None
    begin = one("bos_token_id", "bos_token") if begin is None else begin
    if begin is None and model.get("is_encoder_decoder") is False:
        begin = pad  # of an encoder alone, which begins no text
    pad = end if alone and pad is None else pad
    for name, value in (("pad", pad), ("bos", begin), ("eos", end)):
        if value is None:
            raise UserError(where, f"states no {name}_token", "add it to its tokenizer_config.json")
    assert pad is not None and begin is not None and end is not None
    if pad == end and not alone:
        raise UserError(where, f"pads with its end, id {end}", "give it a pad_token of its own")
    words = model.get("bad_words_ids") or []
    banned = tuple(word[0] for word in words if isinstance(word, list) and len(word) == 1 and type(word[0]) is int)
    forced = {name: one(f"forced_{key}_token_id") for name, key in (("forced_begin", "bos"), ("forced_end", "eos"))}
    return Ids(
        pad,
        begin,
        end,
        one("unk_token_id", "unk_token"),
        banned if model else tuple(sorted({pad, begin} - {end})),  # a begin that is also the end may be generated
        **forced,
    )


def token_text(value: Any) -> str:
    """The text of a special token, which may stand in an object with its settings; empty if there is none."""
    value = value.get("content") if isinstance(value, Mapping) else value
    return value if isinstance(value, str) else ""


def check_range(ids: Ids, size: int, where: str) -> None:
    """Raise UserError where an id is outside a vocabulary of this size."""
    known = {"pad": ids.pad, "begin": ids.begin, "end": ids.end, "unknown": ids.unknown}
    known |= {"forced_begin": ids.forced_begin, "forced_end": ids.forced_end}
    for name, value in (*known.items(), *(("banned", i) for i in ids.banned)):
        if value is not None and not 0 <= value < size:
            raise UserError(
                where, f"its {name} is the id {value}, but its ids end at {size - 1}", "correct one of them"
            )
