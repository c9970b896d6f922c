"""The files of a tokenizer: read from a folder, and opened as the tokenizers of source and target.

Five forms are known: a tokenizer.json for both sides, or the older files of a class (classes.py), of which it is made;
one in each of the folders source/ and target/; source.spm, target.spm and vocab.json, with target_vocab.json where the
vocabularies are separate; sentencepiece.bpe.model with vocab.json, of M2M-100; and a tokenizer_config.json, or the
config.json of a model, that names the class of ByT5, whose tokens are bytes. ids.json, which a run adds, states the ids
with a meaning of their own, and how many ids there are where a network's table has some more rows than its tokenizer
has tokens.
"""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..config.outputs import SIDES
from ..errors import UserError
from ..files.digests import content_digest, text_digest
from ..files.lines import without_mark
from ..files.reading import read_regular
from .byte_tokens import ByteTokens, byte_vocabulary
from .classes import OF_CLIP, OF_M2M, OF_MARIAN, UNSTATED, Languages, Spoken, class_name, languages_of
from .contents import (
    CONFIG,
    IDS,
    ONE_SPM,
    SPM,
    TOKENS,
    VOCABULARIES,
    Files,
    class_of,
    has_spm,
    ids_of,
    numbers_of,
    of_side,
    parse_json,
    read_settings,
    tokens_of,
    vocabulary_of,
    with_config,
)
from .older import OF_BYTES, OLDER, SOURCES, make_pieces
from .pieces import PIECES, Pieces, end_words, open_pieces, set_template
from .sentence_pieces import SentencePieces
from .spoken import KEYS, TARGET_OF_PAIRS, with_languages
from .tokenizer import Ids, Tokenizer, check_range, special_ids, token_text

MODEL = ("config.json", "generation_config.json")  # of a model; what generates counts more than what it consists of
KNOWN = (IDS, PIECES, *TOKENS, *SPM, *VOCABULARIES, *(f"{side}/{name}" for side in SIDES for name in (PIECES, *TOKENS)))
OF_PAIRS = ("unk_token", "eos_token", "pad_token")  # of Marian, special also where texts hold them
OF_ONE = (*OF_PAIRS, "bos_token")  # of M2M-100
LARGEST = 64 << 20  # bytes
MULTIPLE = 128  # to which libraries round the size of a table up, at most
FORMS = f"a folder with {PIECES}, or with {', '.join(SPM)} and {VOCABULARIES[0]}"


def read_folder(path: str, alone: bool = False, spoken: Spoken = UNSTATED) -> dict[str, bytes]:
    """The files of the tokenizer in a folder, with an ids.json -> {name: content}."""
    folder, where = Path(os.path.expanduser(path)), f"data.tokenizer {path}"
    folder = folder.parent if folder.name == PIECES else folder
    if not folder.is_dir():
        raise UserError(where, "there is no such folder", f"give words, bpe, unigram or {FORMS}")
    files = {name: _content(folder / name) for name in KNOWN if os.path.lexists(folder / name)}
    model = {} if IDS in files else _model(folder, where)
    if not files.keys() & {PIECES, f"{SIDES[0]}/{PIECES}", SPM[0]}:
        files = _of_older(folder, files, model, where)
    if IDS in files and not spoken:
        return files
    if IDS not in files:
        name = class_name(read_settings(files, SIDES[1], where), model)
        files = with_ids(_with_class(files, name, where), model, where, alone)
    return with_languages(files, spoken, where, alone)


def _model(folder: Path, where: str) -> dict[str, Any]:
    """What the configs of the model in a folder state; of a model of two others, what its decoder is."""
    model: dict[str, Any] = {}
    for name in MODEL:
        stated = parse_json(_content(folder / name), f"{where}: {name}") if os.path.lexists(folder / name) else {}
        inner = stated.get("decoder")
        known = {key: value for key, value in stated.items() if value is not None or not isinstance(inner, dict)}
        model |= {**inner, **known, "model_type": inner.get("model_type")} if isinstance(inner, dict) else known
    return model


def _of_older(folder: Path, files: Files, model: Mapping[str, Any], where: str) -> dict[str, bytes]:
    """The files of a folder without a tokenizer.json: with one that is made, or those that are opened as they are."""
    stated = read_settings(files, SIDES[1], where)
    name = class_name(stated, model)
    if name == OF_BYTES:
        return with_config(files, where, tokenizer_class=OF_BYTES)
    there = next((each for each in OLDER if os.path.lexists(folder / each)), "")
    if not there:
        raise UserError(where, "has no tokenizer", f"give words, bpe, unigram or {FORMS}")
    if not name:
        raise UserError(
            where,
            f"has {there}, from which several classes can make a tokenizer, and names none",
            'name it in its tokenizer_config.json, as {"tokenizer_class": "BartTokenizer"}',
        )
    own = {OF_M2M: (ONE_SPM, VOCABULARIES[0]), OF_MARIAN: (*SPM, VOCABULARIES[0])}.get(name, ())
    if lacking := [each for each in own if not os.path.lexists(folder / each)]:
        raise UserError(where, f"has {there} but no {lacking[0]}", "put it there")
    if own:
        return {**files, **{each: _content(folder / each) for each in own}}
    sources = {each: _content(folder / each) for each in SOURCES if os.path.lexists(folder / each)}
    for each in sources:
        if each.endswith(".json"):
            parse_json(sources[each], f"{where}: {each}")
    made, tokens = make_pieces(sources, name, stated, languages_of(name, stated), where)
    kept = {each: content for each, content in files.items() if each not in sources}
    return with_config({**kept, PIECES: made}, where, **tokens)


def _with_class(files: Files, name: str, where: str) -> dict[str, bytes]:
    """The files; those of a class that names languages state it, which may stand in its model's config alone."""
    stated = CONFIG in files and "tokenizer_class" in parse_json(files[CONFIG], f"{where}: {CONFIG}")
    if languages_of(name, {}) is None or stated or SPM[0] in files or f"{SIDES[0]}/{PIECES}" in files:
        return dict(files)
    return with_config(files, where, tokenizer_class=name)


def has_two(files: Files) -> bool:
    """Whether source and target have ids of their own."""
    return f"{SIDES[0]}/{PIECES}" in files or VOCABULARIES[1] in files


def _content(file: Path) -> bytes:
    content = read_regular(file, LARGEST, "restore it, or give another tokenizer")
    return content if file.suffix in (".spm", ".model") else without_mark(content)


def with_ids(files: Files, model: Mapping[str, Any], where: str, alone: bool = False) -> dict[str, bytes]:
    """The files with an ids.json, by what their tokenizer and its model state."""
    sides, content = [], dict[str, Any]()
    for side in SIDES:
        tokens = tokens_of(files, side, where)
        vocabulary = numbers_of(files, side, where)
        size, rows = _size(vocabulary), model.get("vocab_size")
        if SPM[0] in files:
            tokens = {**tokens, "bos_token": tokens["pad_token"]}  # Marian begins with padding
        elif type(rows) is int and size < rows <= -(-size // MULTIPLE) * MULTIPLE:
            content["rows"] = rows
        sides.append(special_ids(model, tokens, vocabulary.get, where, alone))
    content |= {side: dataclasses.asdict(ids) for side, ids in zip(SIDES, sides, strict=True)}
    return {**files, IDS: json.dumps(content, indent=1).encode()}


def open_files(files: Files, where: str) -> tuple[Tokenizer, Tokenizer]:
    """The tokenizers in files -> (that of sources, that of targets)."""
    source, target = (_open_side(files, side, where) for side in SIDES)
    return source, target


def _open_side(files: Files, side: str, where: str) -> Tokenizer:
    """The tokenizer of one side."""
    ids, target, tokens = ids_of(files, side, where), side == SIDES[1], tokens_of(files, side, where)
    name, languages = class_of(files, where, side)
    if languages and has_spm(files):
        return _open_spm(files, side, languages, where)
    if name == OF_BYTES:
        return ByteTokens(tokens, ids, target, _record(byte_vocabulary(tokens), ids, files, where), files)
    tokenizer = open_pieces(
        of_side(files, side).get(PIECES, b""), f"{where}: {PIECES}", tokens.get("split_special_tokens") is True
    )
    if name == OF_CLIP:
        end_words(tokenizer)
    if languages and (code := token_text(tokens.get(KEYS["source"]))):
        language, end = [languages.token.format(code)], [token_text(tokens["eos_token"])]
        set_template(tokenizer, *((language, end) if languages.before else ([], end + language)))
    return Pieces(tokenizer, ids, target, _record(tokenizer.get_vocab(), ids, files, where), files)


def _open_spm(files: Files, side: str, languages: Languages, where: str) -> Tokenizer:
    """One side of SentencePiece models with lists of pieces."""
    ids, target, tokens = ids_of(files, side, where), side == SIDES[1], tokens_of(files, side, where)
    vocabulary, name = vocabulary_of(files, side, where), SPM[target] if SPM[0] in files else ONE_SPM
    kept = _record(vocabulary, ids, files, where)
    if name not in files:
        raise UserError(where, f"has {SPM[0]} but no {name}", "put it there")
    if ids.unknown is None:
        raise UserError(where, f"{VOCABULARIES[0]} has no {token_text(tokens.get(OF_PAIRS[0]))}", "restore it")
    specials = [token_text(tokens.get(each)) for each in (OF_PAIRS if languages.in_source else OF_ONE)]
    code = token_text(tokens.get(TARGET_OF_PAIRS if languages.in_source else KEYS["source"]))
    opened = SentencePieces(files[name], vocabulary, ids, specials, languages, code, target, f"{where}: {name}")
    opened.kept, opened.files = kept, files
    return opened


def _size(vocabulary: Mapping[str, int]) -> int:
    """The number of ids of {piece: id}."""
    return max(vocabulary.values()) + 1


def _record(vocabulary: Mapping[str, int], ids: Ids, files: Files, where: str) -> dict[str, Any]:
    """What config.json holds of a tokenizer of these ids, by which a run resumes only with the same."""
    # An ids.json may state more rows of a table than there are ids.
    rows = parse_json(files.get(IDS, b"{}"), f"{where}: {IDS}").get("rows", 0)
    size = max(_size(vocabulary), rows if type(rows) is int and rows < 1 << 24 else 0)
    check_range(ids, size, where)
    # The tasks that the config of a model lists change no ids.
    digests = {name: content_digest(content) for name, content in files.items() if name != MODEL[0]}
    return {"size": size, "tokenizer": text_digest(digests)}
