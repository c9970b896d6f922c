"""The interface of a tokenizer: what data, tasks and commands know of it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from ..errors import UserError, about
from .ids import Ids


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
