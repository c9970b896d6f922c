"""Tokenizers of `tokenizers` made of the older files of their classes, as transformers 5 makes them."""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..errors import UserError
from ..files import strict_json
from ..files.lines import quote, read_lines
from ..machine.libraries import report_damage, require
from .languages import MBART, MBART50, NLLB
from .spm_file import SpmFile, read_spm
from .stated import token_text

NAMES = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
SPACE = "\N{LOWER ONE EIGHTH BLOCK}"  # stands for a space in pieces
SPLIT_BY_CLIP = (
    r"<\|startoftext\|>|<\|endoftext\|>|'s|'t|'re|'ve|'m|'ll|'d|[\p{L}]+|[\p{N}]|[^\s\p{L}\p{N}]+"
)  # fmt: skip
MANY_SPACES = " {2,}"


@dataclass(frozen=True)
class Parts:
    """What a tokenizer is made of: {file: content}, and {setting: value} of its config with its special tokens."""

    files: Mapping[str, bytes]
    settings: Mapping[str, Any]
    where: str

    def token(self, name: str) -> str:
        """A special token."""
        return token_text(self.settings[f"{name}_token"])

    def lines(self, name: str) -> Iterator[tuple[int, str]]:
        """(number from 1, line) of a file of text."""
        return enumerate(read_lines(io.BytesIO(self.files[name]), f"{self.where}: {name}"), 1)

    def spm(self) -> SpmFile:
        """The SentencePiece model among the files."""
        name = next(name for name in self.files if name.endswith(".model"))
        return read_spm(self.files[name], f"{self.where}: {name}")


def made_of(parts: Parts, build: Any, around: tuple[str, str], added: Mapping[str, Any]) -> bytes:
    """The tokenizer.json of a class."""
    with require("tokenizers"):
        import tokenizers  # noqa: F401
    (first, *_) = parts.files
    with report_damage(f"{parts.where}: {first}"):
        tokenizer = build(parts)
        _add_tokens(tokenizer, parts, added)
        before, after = ([parts.token(name.removesuffix("_token"))] if name else [] for name in around)
        set_template(tokenizer, before, after)
        text: str = tokenizer.to_str()
    return text.encode()


def set_template(tokenizer: Any, before: Sequence[str], after: Sequence[str]) -> None:
    """Let these tokens stand around every text."""
    from tokenizers import processors

    specials = [(token, tokenizer.token_to_id(token)) for token in dict.fromkeys([*before, *after])]
    tokenizer.post_processor = processors.TemplateProcessing(
        single=[*before, "$A", *after], special_tokens=specials
    )  # fmt: skip


def _add_tokens(tokenizer: Any, parts: Parts, added: Mapping[str, Any]) -> None:
    """Add the tokens behind the vocabulary, and make the special ones special. Raises UserError on another id."""
    settings = parts.settings
    by_id = settings.get("added_tokens_decoder")
    by_id = by_id if isinstance(by_id, Mapping) else {}
    for number, token in by_id.items():
        if not number.isdecimal() or not isinstance(token, Mapping) or not token_text(token):
            what = f"added_tokens_decoder has for {quote(number)} no token, or no id"
            remedy = 'give {"ID": {"content": "TOKEN"}}'
            raise UserError(f"{parts.where}: tokenizer_config.json", what, remedy)
    named = [settings[name] for name in NAMES if token_text(settings.get(name))]
    more = [settings.get(key) for key in ("additional_special_tokens", "extra_special_tokens")]
    named += [token for tokens in more if isinstance(tokens, list) for token in tokens if token_text(token)]
    special = {*map(token_text, named)} | {token_text(t) for t in by_id.values() if t.get("special") is True}
    stated = {token_text(token): token for token in (*named, *by_id.values())}
    ids = {token_text(token): int(i) for i, token in by_id.items()} | {token: int(i) for token, i in added.items()}
    for text in dict.fromkeys([*sorted(ids, key=ids.__getitem__), *map(token_text, named)]):
        is_special = text in special
        add = tokenizer.add_special_tokens if is_special else tokenizer.add_tokens
        add([_as_added(stated.get(text, text), is_special)])
        if (number := tokenizer.token_to_id(text)) != ids.get(text, number):
            file = "added_tokens.json" if text in added else "tokenizer_config.json"
            what = f"the id of {quote(text)} is {ids[text]}, but should be {number}"
            raise UserError(f"{parts.where}: {file}", what, "correct the id, or remove the token")


def _as_added(token: Any, special: bool) -> Any:
    """A token that a text may hold as a whole, with the flags that an object states of it."""
    from tokenizers import AddedToken

    flags = ("lstrip", "rstrip", "single_word", "normalized")
    stated = {f: token[f] for f in flags if isinstance(token.get(f), bool)} if isinstance(token, Mapping) else {}
    return AddedToken(token_text(token), **{"normalized": not special, **stated})


# ------------------------------------------------------------------------------------- pairs of bytes


def byte_pairs(parts: Parts) -> Any:
    """Of GPT-2 and RoBERTa: bytes in pairs (Radford et al. 2019)."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    tokenizer = Tokenizer(models.BPE(*_merged(parts)))
    space = parts.settings.get("add_prefix_space") is True
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=space)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def clip(parts: Parts) -> Any:
    """Of CLIP: bytes in pairs, in lower case, with a mark at the end of each word."""
    from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers

    model = models.BPE(*_merged(parts), end_of_word_suffix=END_OF_WORD, unk_token=parts.token("unk"))
    tokenizer = Tokenizer(model)
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.NFC(), normalizers.Replace(Regex(r"\s+"), " "), normalizers.Lowercase()]
    )
    words = pre_tokenizers.Split(Regex(SPLIT_BY_CLIP), behavior="removed", invert=True)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([words, pre_tokenizers.ByteLevel(add_prefix_space=False)])
    end_words(tokenizer)
    return tokenizer


END_OF_WORD = "</w>"  # of CLIP


def end_words(tokenizer: Any) -> None:
    """Let the texts of CLIP's ids have spaces where words end, which its tokenizer.json does not say."""
    from tokenizers import decoders

    tokenizer.decoder = decoders.Sequence(
        [decoders.ByteLevel(), decoders.Replace(END_OF_WORD, " "), decoders.Strip(" ", 1 << 20, 1 << 20)]
    )


def _merged(parts: Parts) -> tuple[dict[str, int], list[tuple[str, str]]]:
    """({piece: id}, the pairs, the most frequent first) of a vocab.json and a merges.txt."""
    pairs = []
    for number, line in parts.lines("merges.txt"):
        if not line or (number == 1 and line.startswith("#version")):
            continue
        first, _, second = line.partition(" ")
        if not first or not second or " " in second:
            where = f"{parts.where}: merges.txt line {number}"
            raise UserError(where, f"{quote(line)} is no pair of pieces", "restore it")
        pairs.append((first, second))
    return dict(strict_json.parse(parts.files["vocab.json"])), pairs


# ----------------------------------------------------------------------------------------- word pieces


def bert(parts: Parts) -> Any:
    """Of BERT: words cut into the longest pieces that are known (Devlin et al. 2018)."""
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers

    vocabulary = {word: number - 1 for number, word in parts.lines("vocab.txt")}
    settings = parts.settings
    tokenizer = Tokenizer(models.WordPiece(vocabulary, unk_token=parts.token("unk")))
    tokenizer.normalizer = normalizers.BertNormalizer(
        clean_text=True,
        handle_chinese_chars=settings.get("tokenize_chinese_chars", True) is True,
        strip_accents=settings.get("strip_accents"),
        lowercase=settings.get("do_lower_case", True) is True,
    )
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece(prefix="##")
    return tokenizer


# -------------------------------------------------------------------------------------- SentencePieces


def t5(parts: Parts) -> Any:
    """Of T5, whose sentinels follow the pieces, the last first, also where a piece has the name of one."""
    spm = parts.spm()
    count = parts.settings.get("extra_ids", 100)
    sentinels = [f"<extra_id_{i}>" for i in reversed(range(count if type(count) is int else 100))]
    pieces = [*spm.pieces, *((token, 0.0) for token in sentinels)]
    tokenizer = _unigram(pieces, 2, _normalizers(spm, spaces=False), words=True)
    tokenizer.add_special_tokens(sentinels)
    return tokenizer


def xlm_roberta(parts: Parts) -> Any:
    """Of XLM-RoBERTa, which TrOCR has too."""
    spm = parts.spm()
    return _unigram(_fairseq(parts, spm, ()), 3, _normalizers(spm, spaces=False), words=True)


def mbart(parts: Parts) -> Any:
    """Of mBART for 25 languages; transformers 5 leaves its texts as they are."""
    return _speaking(_unigram(_fairseq(parts, parts.spm(), MBART.codes), 3, None, words=True), MBART.codes)


def mbart50(parts: Parts) -> Any:
    """Of mBART-50."""
    spm = parts.spm()
    made = _unigram(_fairseq(parts, spm, MBART50.codes), 3, _normalizers(spm), words=False)
    return _speaking(made, MBART50.codes)


def nllb(parts: Parts) -> Any:
    """Of NLLB: pairs of pieces, in the order of their ids."""
    from tokenizers import Tokenizer, models

    spm = parts.spm()
    pieces = _fairseq(parts, spm, ())
    known = dict.fromkeys(piece for piece, _ in pieces[:-1])
    vocabulary = {piece: i for i, piece in enumerate(known)}
    model = models.BPE(vocabulary, _pairs(vocabulary), unk_token=parts.token("unk"), fuse_unk=True)
    tokenizer = _spaced(Tokenizer(model), _normalizers(spm), words=False)
    return _speaking(tokenizer, [*_stated_codes(parts, NLLB.codes), parts.token("mask")])


def _speaking(tokenizer: Any, languages: Sequence[str]) -> Any:
    """The tokenizer, in which languages are special."""
    tokenizer.add_special_tokens([*languages])
    return tokenizer


def _stated_codes(parts: Parts, codes: Sequence[str]) -> list[str]:
    """The languages that the files list, or without a list those of the class."""
    listed = parts.settings.get("additional_special_tokens") or parts.settings.get("extra_special_tokens")
    found = [token_text(token) for token in listed] if isinstance(listed, list) else []
    return [code for code in found if NLLB.code(code)] or list(codes)


def _fairseq(parts: Parts, spm: SpmFile, codes: Iterable[str]) -> list[tuple[str, float]]:
    """(piece, score) of all ids: four special tokens in place of SentencePiece's three, the languages, and the mask."""
    first = [parts.token(name) for name in ("bos", "pad", "eos", "unk")]
    last = [*codes, parts.token("mask")]
    return [*((token, 0.0) for token in first), *spm.pieces[3:], *((token, 0.0) for token in last)]


def _unigram(pieces: list[tuple[str, float]], unknown: int, normalizer: Any, words: bool) -> Any:
    """A tokenizer of the likeliest pieces (Kudo 2018); with `words` texts are split at white space first."""
    from tokenizers import Tokenizer, models

    return _spaced(Tokenizer(models.Unigram(pieces, unk_id=unknown, byte_fallback=False)), normalizer, words)


def _spaced(tokenizer: Any, normalizer: Any, words: bool) -> Any:
    """The tokenizer of pieces in which SPACE stands for a space."""
    from tokenizers import decoders, pre_tokenizers

    marked = pre_tokenizers.Metaspace(replacement=SPACE, prepend_scheme="always", split=True)
    split = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), marked]) if words else marked
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    tokenizer.pre_tokenizer = split
    tokenizer.decoder = decoders.Metaspace(replacement=SPACE, prepend_scheme="always", split=True)
    return tokenizer


def _normalizers(spm: SpmFile, spaces: bool = True) -> Any:
    """What normalises texts: the model's own, and with `spaces` several spaces become one; None: nothing."""
    from tokenizers import Regex, normalizers

    own = [normalizers.Precompiled(spm.charsmap)] if spm.charsmap else []
    found = [*own, *([normalizers.Replace(Regex(MANY_SPACES), " ")] if spaces else [])]
    return found[0] if len(found) == 1 else normalizers.Sequence(found) if found else None


def _pairs(vocabulary: Mapping[str, int]) -> list[tuple[str, str]]:
    """All pairs of pieces that are a piece together, in the order of the ids of that and of the lengths of the two."""
    found = []
    for piece, i in vocabulary.items():
        for cut in range(1, len(piece)):
            first, second = piece[:cut], piece[cut:]
            if first in vocabulary and second in vocabulary:
                found.append((i, cut, len(second), first, second))
    return [(first, second) for *_, first, second in sorted(found)]
