"""What tokenizers have by their class in transformers, where their files leave it unsaid: special tokens, languages."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

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

OF_M2M, OF_MARIAN, OF_CLIP = "M2M100Tokenizer", "MarianTokenizer", "CLIPTokenizer"
NAMES = {  # of classes that have another name now, and of models: the class of their tokenizer
    **{"mbart": "MBartTokenizer", "m2m_100": OF_M2M, "marian": OF_MARIAN},
    **dict.fromkeys(("MT5Tokenizer", "umt5"), "T5Tokenizer"),
}
LANGUAGES = {  # around the texts of these stand those of a run
    **{"MBartTokenizer": MBART, "MBart50Tokenizer": MBART50, "NllbTokenizer": NLLB, OF_M2M: M2M, OF_MARIAN: MARIAN}
}

_END = "<|endoftext|>"
_GPT2 = {"bos_token": _END, "eos_token": _END, "unk_token": _END}
_CLIP = {**_GPT2, "bos_token": "<|startoftext|>", "pad_token": _END}
_T5 = {"bos_token": "<pad>", "eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>"}  # decoders begin so
_FAIRSEQ = {**_T5, "bos_token": "<s>", "sep_token": "</s>", "cls_token": "<s>", "mask_token": "<mask>"}
_BERT = {  # decoders that are trained with it take these as begin and end
    **{"bos_token": "[CLS]", "eos_token": "[SEP]", "unk_token": "[UNK]", "pad_token": "[PAD]"},
    **{"cls_token": "[CLS]", "sep_token": "[SEP]", "mask_token": "[MASK]"},
}
_LIKE_BART = ("Bart", "LED", "Longformer", "Mvp", "Roberta", "XLMRoberta", "MBart", "MBart50", "Nllb", "M2M100")
SPECIALS = {
    **{f"{name}Tokenizer": _FAIRSEQ for name in _LIKE_BART},
    **{f"{name}Tokenizer": _BERT for name in ("Bert", "DistilBert", "Electra", "MobileBert")},
    **{f"{name}Tokenizer": _T5 for name in ("T5", "ByT5", "Marian")},
    **{"GPT2Tokenizer": _GPT2, OF_CLIP: _CLIP},
}


def class_name(tokens: Mapping[str, Any], model: Mapping[str, Any] = {}) -> str:
    """The name of a tokenizer's class, without Fast; where files state none, what their model is of; empty: neither."""
    stated = tokens.get("tokenizer_class") or model.get("tokenizer_class") or model.get("model_type")
    name = stated.removesuffix("Fast") if isinstance(stated, str) else ""
    return NAMES.get(name, name)


def languages_of(name: str, tokens: Mapping[str, Any]) -> Languages | None:
    """The languages of a class with these settings; None if it names none."""
    found = LANGUAGES.get(name)
    if found is NLLB and tokens.get("legacy_behaviour") is True:
        return LEGACY_NLLB
    return WMT21 if found is M2M and tokens.get("language_codes") == "wmt21" else found
