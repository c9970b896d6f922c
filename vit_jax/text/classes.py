"""What tokenizers have by their class in transformers, where their files leave it unsaid: special tokens, languages."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .languages import LEGACY_NLLB, M2M, MARIAN, MBART, MBART50, NLLB, WMT21, Languages

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
