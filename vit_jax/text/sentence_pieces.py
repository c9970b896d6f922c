"""SentencePiece models with ids by a list of pieces: Marian's source.spm, target.spm and vocab.json, and M2M-100's."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from ..errors import UserError, report_damage, require
from ..files.lines import quote
from .classes import SEVERAL, Languages, list_codes
from .pieces import check_ids
from .tokenizer import Ids, Tokenizer

SPACE = "\N{LOWER ONE EIGHTH BLOCK}"  # stands for a space in pieces
MOST, LONGEST = 1 << 20, 1 << 9  # pieces of a model, letters of a piece
LANGUAGE = re.compile(r">>.*?<<", re.DOTALL)  # of a target, before the text of Marian's source


def open_model(content: bytes, where: str) -> Any:
    """The SentencePiece model in a file, a SentencePieceProcessor."""
    with require("sentencepiece"):
        from sentencepiece import SentencePieceProcessor
    with report_damage(where):
        # Each piece is a message that begins with this byte, and in it one that does, too.
        if content.count(b"\n") > 4 * MOST:
            raise ValueError(f"it has more than {MOST:,} pieces")
        model = SentencePieceProcessor(model_proto=content or b"none")  # empty, it would take none for one
        if max(map(len, model.id_to_piece([*range(len(model))]))) > LONGEST:
            raise ValueError(f"it has a piece of more than {LONGEST} letters")
    return model


class SentencePieces(Tokenizer):
    """One side of such: ids and texts are those of MarianTokenizer and M2M100Tokenizer of transformers."""

    def __init__(
        self,
        model: bytes,
        vocabulary: Mapping[str, int],
        ids: Ids,
        specials: Sequence[str],
        languages: Languages,
        language: str,
        target: bool,
        where: str,
    ):
        self.ids, self.vocabulary, self.after = ids, vocabulary, () if target else (ids.end,)
        self.kept: Any = None
        self.files: Mapping[str, bytes] = {}
        self.pieces = {i: piece for piece, i in vocabulary.items()}
        self.specials = {vocabulary[piece] for piece in specials if piece in vocabulary}
        known = [(i, code) for piece, i in vocabulary.items() if (code := languages.code(piece))]
        self.pairs = languages.in_source
        self.specials |= set() if self.pairs else {i for i, _ in known}
        first = ids.forced_begin if target else vocabulary.get(languages.token.format(language))
        several = not self.pairs or len(known) >= SEVERAL
        self.before = [first] if first is not None and (target or several) else []
        # Of languages, with one of which each source begins.
        self.codes = [code for _, code in sorted(known)] if self.pairs and several and not target else []
        self._special = re.compile("|".join(map(re.escape, sorted(specials, key=len, reverse=True))))
        self.unknown = 0 if ids.unknown is None else ids.unknown
        self.model = open_model(model, where)

    def number(self, token: str) -> int | None:
        return self.vocabulary.get(token)

    def encode(self, text: str) -> np.ndarray:
        found, begin, before = [], 0, self._before(text)
        for special in self._special.finditer(text):
            found += [*self.split(text[begin : special.start()]), special.group()]
            begin = special.end()
        found += self.split(text[begin:])
        ids = [self.vocabulary.get(piece, self.unknown) for piece in found]
        return check_ids(text, [*before, *ids, *self.after] if ids else [], self)

    def _before(self, text: str) -> list[int]:
        """The ids before those of a text. Raises UserError where it has to name its language."""
        if not self.codes:
            return self.before
        named = LANGUAGE.match(text)
        if named and named.group() in self.vocabulary:
            return []
        if named or not self.before:
            raise UserError(
                f"the text {quote(text)} begins with no language that its tokenizer knows",
                remedy="give that of its translation with `data.target_language`, or before the text, as in "
                f">>{self.codes[0]}<<: there are {list_codes(self.codes)}",
            )
        return self.before

    def split(self, text: str) -> list[str]:
        """The pieces of a text without special ones; a leading >>language<< is one piece."""
        language = LANGUAGE.match(text) if self.pairs else None
        code = [language.group()] if language else []
        return code + (self.model.encode(text[len("".join(code)) :], out_type=str) if text else [])

    def decode(self, ids: Iterable[int]) -> str:
        pieces = [self.pieces[i] for i in self.ids.until_end(ids) if i in self.pieces and i not in self.specials]
        text: str = self.model.decode_pieces(pieces)
        return text.replace(SPACE, " ").strip()

    def tokens(self, ids: Iterable[int]) -> list[str]:
        return [self.pieces.get(int(i), str(int(i))) for i in ids]
