"""How tokenizers of several languages name them, as their classes in transformers do."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

LISTED = 12  # codes in a message
SEVERAL = 2  # codes of Marian's targets from which on a source has to name one


@dataclass(frozen=True)
class Languages:
    """How a class of tokenizers names languages."""

    token: str
    form: str
    codes: tuple[str, ...] = ()
    before: bool = True
    begins: bool = False
    in_source: bool = False

    def code(self, token: str) -> str:
        """The code of a token; empty where it is no language."""
        start, _, end = self.token.partition("{}")
        inner = token[len(start) : len(token) - len(end)]
        return inner if self.token.format(inner) == token and re.fullmatch(self.form, inner) else ""


@dataclass(frozen=True)
class Spoken:
    """What a user states of texts: the codes of the languages of sources and targets; empty: as the files do.

    Also what stands before every source, or a task that the model's files list, which has that. A statement of these
    alone is False: of languages there is none.
    """

    source: str = ""
    target: str = ""
    prefix: str = ""
    task: str = ""

    def __bool__(self) -> bool:
        return bool(self.source or self.target)


UNSTATED = Spoken()


def list_codes(codes: Sequence[str]) -> str:
    """The codes in words, not more than a few."""
    more = len(codes) - LISTED
    return f"{', '.join(codes[:LISTED])}{f' and {more} more' if more > 0 else ''}"


# No file of M2M-100 has these: their ids follow those of its pieces.
_M2M = """
af am ar ast az ba be bg bn br bs ca ceb cs cy da de el en es et fa ff fi fr fy ga gd gl gu ha he hi hr ht hu hy id ig
ilo is it ja jv ka kk km kn ko lb lg ln lo lt lv mg mk ml mn mr ms my ne nl no ns oc or pa pl ps pt ro ru sd si sk sl
so sq sr ss su sv sw ta th tl tn tr uk ur uz vi wo xh yi yo zh zu
"""
_WMT21 = "en ha is ja cs ru zh de"

PLACE = r"[a-z]{2}_[A-Z]{2}"  # a language and where it is spoken; XX: anywhere
MBART = Languages("{}", PLACE, before=False, begins=True)
MBART50 = Languages("{}", PLACE)
NLLB = Languages("{}", r"[a-z]{3}_[A-Z][a-z]{3}")  # a language and its writing
LEGACY_NLLB = Languages("{}", NLLB.form, before=False)
M2M = Languages("__{}__", r"[a-z]{2,3}", tuple(_M2M.split()))
WMT21 = Languages("__{}__", M2M.form, tuple(_WMT21.split()))
MARIAN = Languages(">>{}<<", r"[^<>\s]+", in_source=True)
