"""Pairs of SentencePiece models with ids by a list of pieces, as Marian's: source.spm, target.spm and vocab.json."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from ..machine.libraries import report_damage, require
from .ids import Ids
from .pieces import check_ids, compared

SPACE = "\N{LOWER ONE EIGHTH BLOCK}"  # stands for a space in pieces


class SentencePieces:
    """One side of such a pair, a `Tokenizer`: ids and texts are those of transformers' MarianTokenizer.

    Args:
        model: the content of a .spm file.
        vocabulary: {piece: id}.
        ids: those with a meaning of their own; `unknown` is one of them.
        specials: the pieces that are special also where a text holds them: of end, unknown and padding.
        target: whether this side is the target; a source has an end.
        where: for messages.
    """

    unit = "tokens"
    open = True
    remark = ""
    cased = True

    def __init__(
        self,
        model: bytes,
        vocabulary: Mapping[str, int],
        ids: Ids,
        specials: Sequence[str],
        target: bool,
        where: str,
    ):
        self.ids, self.vocabulary, self.after = ids, vocabulary, () if target else (ids.end,)
        self.kept: Any = None
        self.files: Mapping[str, bytes] = {}
        self.pieces = {i: piece for piece, i in vocabulary.items()}
        self.specials = {vocabulary[piece] for piece in specials if piece in vocabulary}
        self._special = re.compile("|".join(map(re.escape, sorted(specials, key=len, reverse=True))))
        self.unknown = 0 if ids.unknown is None else ids.unknown
        with require("sentencepiece"):
            from sentencepiece import SentencePieceProcessor
        with report_damage(where):
            self.model = SentencePieceProcessor(model_proto=model or b"none")  # empty, it would take none for one

    def __len__(self) -> int:
        return max(self.vocabulary.values()) + 1

    def encode(self, text: str) -> np.ndarray:
        """The ids of a sentence, int32 [N]. Raises UserError if it has none, or holds the token that pads."""
        found, begin = [], 0
        for special in self._special.finditer(text):
            found += [*self.split(text[begin : special.start()]), special.group()]
            begin = special.end()
        found += self.split(text[begin:])
        ids = [self.vocabulary.get(piece, self.unknown) for piece in found]
        return check_ids(text, [*ids, *self.after] if ids else [], self)

    def split(self, text: str) -> list[str]:
        """The pieces of a text without special ones; a leading >>language<< is one piece."""
        language = re.match(r">>.*?<<", text, re.DOTALL)
        code = [language.group()] if language else []
        return code + (self.model.encode(text[len("".join(code)) :], out_type=str) if text else [])

    def encode_all(self, texts: Sequence[str]) -> list[np.ndarray]:
        """The ids of each sentence."""
        return [self.encode(text) for text in texts]

    def cut(self, ids: np.ndarray, length: int) -> np.ndarray:
        """The first `length` ids of a sentence, a source with its end."""
        return np.concatenate([ids[: length - len(self.after)], np.array(self.after, np.int32)])

    def decode(self, ids: Iterable[int]) -> str:
        """The sentence of ids, up to the first end or padding, without special tokens."""
        pieces = [self.pieces[i] for i in self.ids.until_end(ids) if i in self.pieces and i not in self.specials]
        text: str = self.model.decode_pieces(pieces)
        return text.replace(SPACE, " ").strip()

    def tokens(self, ids: Iterable[int]) -> list[str]:
        """The piece of each id."""
        return [self.pieces.get(int(i), str(int(i))) for i in ids]

    def compared(self, text: str) -> str:
        """The text."""
        return compared(text, self.cased)
