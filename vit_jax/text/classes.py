"""The classes of tokenizers in transformers: which one a folder's is, its special tokens, and what it is made of.

A tokenizer.json states all of a tokenizer but its languages. Older folders have the vocabulary alone, in files that
several classes share, so that the class decides how texts are normalised and split, and what stands around them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from ..errors import UserError
from . import rebuild
from .languages import LEGACY_NLLB, M2M, MARIAN, MBART, MBART50, NLLB, WMT21, Languages
from .older import FAIRSEQ, MERGED, OF_BYTES, SPIECE, WORD_PIECES
from .rebuild import Parts


@dataclass(frozen=True)
class TokenizerClass:
    """A class of tokenizers."""

    files: tuple[str, ...]
    specials: Mapping[str, Any]
    build: Callable[[Parts], Any] | None = None
    around: tuple[str, str] = ("", "")
    languages: Languages | None = None


def _specials(**tokens: str) -> dict[str, str]:
    return {f"{name}_token": token for name, token in tokens.items()}


END_OF_TEXT = "<|endoftext|>"
OF_FAIRSEQ = _specials(bos="<s>", eos="</s>", unk="<unk>", sep="</s>", pad="<pad>", cls="<s>", mask="<mask>")
OF_BERT = _specials(  # which has no begin and no end of its own: the decoders that are trained with it take these
    bos="[CLS]", eos="[SEP]", unk="[UNK]", sep="[SEP]", pad="[PAD]", cls="[CLS]", mask="[MASK]"
)
OF_T5 = _specials(bos="<pad>", eos="</s>", unk="<unk>", pad="<pad>")  # decoders begin with padding

# The mask of these takes the space before it.
OF_MBART = {**OF_FAIRSEQ, "mask_token": {"content": "<mask>", "lstrip": True}}
OF_NLLB = {**OF_FAIRSEQ, "mask_token": {"content": "<mask>", "lstrip": True, "normalized": True}}

GPT2 = TokenizerClass(
    MERGED, _specials(bos=END_OF_TEXT, eos=END_OF_TEXT, unk=END_OF_TEXT), rebuild.byte_pairs
)  # fmt: skip
ROBERTA = TokenizerClass(MERGED, OF_FAIRSEQ, rebuild.byte_pairs, ("cls_token", "sep_token"))
CLIP = TokenizerClass(
    MERGED,
    _specials(bos="<|startoftext|>", eos=END_OF_TEXT, unk=END_OF_TEXT, pad=END_OF_TEXT),
    rebuild.clip,
    ("bos_token", "eos_token"),
)
BERT = TokenizerClass(WORD_PIECES, OF_BERT, rebuild.bert, ("cls_token", "sep_token"))
T5 = TokenizerClass(SPIECE, OF_T5, rebuild.t5, ("", "eos_token"))
BYT5 = TokenizerClass((), OF_T5)  # it has no files: see byte_tokens.py
XLM_ROBERTA = TokenizerClass(FAIRSEQ, OF_FAIRSEQ, rebuild.xlm_roberta, ("bos_token", "eos_token"))
# The languages around the texts of these are those of a run.
SPEAKING = {
    "MBartTokenizer": TokenizerClass(FAIRSEQ, OF_MBART, rebuild.mbart, languages=MBART),
    "MBart50Tokenizer": TokenizerClass(FAIRSEQ, OF_MBART, rebuild.mbart50, languages=MBART50),
    "NllbTokenizer": TokenizerClass(FAIRSEQ, OF_NLLB, rebuild.nllb, languages=NLLB),
    "M2M100Tokenizer": TokenizerClass(
        (*FAIRSEQ, "vocab.json"),
        _specials(bos="<s>", eos="</s>", unk="<unk>", sep="</s>", pad="<pad>"),
        languages=M2M,
    ),
    "MarianTokenizer": TokenizerClass(
        ("source.spm", "target.spm", "vocab.json"),
        _specials(bos="<pad>", eos="</s>", unk="<unk>", pad="<pad>"),  # decoders begin with padding
        languages=MARIAN,
    ),
}
CLASSES = {
    "GPT2Tokenizer": GPT2,
    **dict.fromkeys((f"{name}Tokenizer" for name in ("Roberta", "Bart", "LED", "Longformer", "Mvp")), ROBERTA),
    "CLIPTokenizer": CLIP,
    **dict.fromkeys((f"{name}Tokenizer" for name in ("Bert", "DistilBert", "Electra", "MobileBert")), BERT),
    **dict.fromkeys(("T5Tokenizer", "MT5Tokenizer"), T5),
    OF_BYTES: BYT5,
    "XLMRobertaTokenizer": XLM_ROBERTA,
    **SPEAKING,
}
OF_MODELS = {  # {model_type: the class of its tokenizer, where none is stated}
    **{"gpt2": "GPT2Tokenizer", "bart": "BartTokenizer", "roberta": "RobertaTokenizer", "led": "LEDTokenizer"},
    **{"longformer": "LongformerTokenizer", "mvp": "MvpTokenizer", "clip": "CLIPTokenizer"},
    **{"bert": "BertTokenizer", "distilbert": "DistilBertTokenizer", "electra": "ElectraTokenizer"},
    **{"mobilebert": "MobileBertTokenizer", "t5": "T5Tokenizer", "mt5": "T5Tokenizer"},
    "umt5": "T5Tokenizer",
    **{"xlm-roberta": "XLMRobertaTokenizer", "trocr": "XLMRobertaTokenizer", "mbart": "MBartTokenizer"},
    **{"m2m_100": "M2M100Tokenizer", "marian": "MarianTokenizer"},
}


def class_name(tokens: Mapping[str, Any], model: Mapping[str, Any]) -> str:
    """The name of a tokenizer's class. The name without Fast; the model_type where that is not known; empty where
    neither states one.
    """
    stated = tokens.get("tokenizer_class") or model.get("tokenizer_class") or model.get("model_type")
    name = stated.removesuffix("Fast") if isinstance(stated, str) else ""
    return OF_MODELS.get(name, name)


def stated_class(tokens: Mapping[str, Any]) -> TokenizerClass | None:
    """The class that a tokenizer_config.json states; None if it is none of those here."""
    found = CLASSES.get(class_name(tokens, {}))
    if found is None or found.languages is None:
        return found
    if found.languages is NLLB and tokens.get("legacy_behaviour") is True:
        return replace(found, languages=LEGACY_NLLB)
    if found.languages is M2M and tokens.get("language_codes") == "wmt21":
        return replace(found, languages=WMT21)
    return found


def check_class(name: str, there: str, where: str) -> TokenizerClass:
    """The class that makes a tokenizer of a file."""
    if not name:
        raise UserError(
            where,
            f"has {there}, of which several classes make a tokenizer, and states none",
            'state it in its tokenizer_config.json, as {"tokenizer_class": "BartTokenizer"}',
        )
    if name not in CLASSES:
        raise UserError(
            where,
            f"has {there} and is of {name[:60]!r}, which is not known here without a tokenizer.json",
            "give that too, which transformers 5 writes with "
            "AutoTokenizer.from_pretrained(FOLDER).save_pretrained(FOLDER)",
        )
    return CLASSES[name]
