"""The interface of a tokenizer: what data, tasks and commands know of it; and the ids with a meaning of their own."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from ..errors import UserError, about

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


class Tokenizer(Protocol):
    """One side of a text, the source or the target, as ids and back.

    The ids of a sentence are complete for its side: of a source with whatever a network reads around it (Marian an end,
    BART a begin and an end, ours nothing), of a target without the begin and the end that the loss adds.
    """

    unit: str = "tokens"  # what its tokens are called in messages, in the plural
    cased: bool = True  # whether upper and lower case are told apart
    remark: str = ""  # a sentence on texts that it cannot say; empty if there is none
    open: bool = True  # whether it takes any text, rather than refuse words that it does not know
    kept: Any  # what config.json holds of it, as JSON: all words, or the number of ids and the digest of the files
    files: Mapping[str, bytes]  # {name: content} that a run keeps of it, in its folder tokenizer

    ids: Ids  # those with a meaning of their own
    after: Sequence[int]  # the ids that stand behind every sentence

    def __len__(self) -> int:
        """The number of ids, which is that of rows of an embedding table."""
        return int(self.kept["size"])

    def number(self, token: str) -> int | None:
        """The id of a token; None where there is none of this name."""

    def encode(self, text: str) -> np.ndarray:
        """The ids of a sentence, int32 [N]. Raises UserError where it has none, or none that are allowed."""

    def encode_all(self, texts: Sequence[str]) -> list[np.ndarray]:
        """`encode` of each sentence."""
        return [self.encode(text) for text in texts]

    def cut(self, ids: np.ndarray, length: int) -> np.ndarray:
        """The first `length` ids of a longer sentence, int32, with what stands behind the sentence."""
        return np.concatenate([ids[: length - len(self.after)], np.array(self.after, np.int32)])

    def decode(self, ids: Iterable[int]) -> str:
        """The sentence of ids, up to the first end or padding, without special tokens."""

    def tokens(self, ids: Iterable[int]) -> list[str]:
        """The text of each id, also of special ones, as figures show it."""

    def compared(self, text: str) -> str:
        """What scores compare of a text: no white space around it, and no case if not `cased`."""
        return text.strip() if self.cased else text.strip().lower()


def encode_named(tokenizer: Tokenizer, texts: Sequence[str], where: Callable[[int], str]) -> list[np.ndarray]:
    """The ids of each text, int32 [N]; an error about text i begins with its place, `where(i)`."""
    try:
        return tokenizer.encode_all(texts)
    except UserError:
        for i, text in enumerate(texts):
            with about(where(i)):
                tokenizer.encode(text)
        raise


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
