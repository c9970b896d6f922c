"""What the files of a tokenizer state: JSON, special tokens, pieces with their ids."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from ..config.outputs import SIDES
from ..errors import UserError
from ..files import strict_json
from .byte_tokens import byte_vocabulary
from .classes import OF_MARIAN, SPECIALS, Languages, class_name, languages_of
from .older import FAIRSEQ, OF_BYTES
from .pieces import PIECES, open_pieces
from .tokenizer import Ids

Files = Mapping[str, bytes]

IDS = "ids.json"
CONFIG = "tokenizer_config.json"
TOKENS = ("special_tokens_map.json", CONFIG)  # they name the special tokens of a tokenizer
SPM, VOCABULARIES = ("source.spm", "target.spm"), ("vocab.json", "target_vocab.json")
ONE_SPM = FAIRSEQ  # of M2M-100, for both sides


def parse_json(content: bytes, where: str) -> dict[str, Any]:
    """The JSON object in a file."""
    try:
        value = strict_json.parse(content)
    except ValueError as error:
        raise UserError(where, f"cannot be read as JSON ({error})", "restore it") from error
    if not isinstance(value, dict):
        raise UserError(where, "holds no JSON object", "restore it")
    return value


def with_config(files: Files, where: str, **stated: Any) -> dict[str, bytes]:
    """The files with these entries in their tokenizer_config.json; the same where it states them."""
    config = parse_json(files.get(CONFIG, b"{}"), f"{where}: {CONFIG}")
    changed = {**config, **stated}
    return dict(files) if changed == config else {**files, CONFIG: json.dumps(changed, indent=1).encode()}


def of_side(files: Files, side: str) -> Files:
    """The files of one side: those in its folder, or, without one, all."""
    own = {name.removeprefix(f"{side}/"): x for name, x in files.items() if name.startswith(f"{side}/")}
    return own or files


def has_spm(files: Files) -> bool:
    """Whether texts are split by SentencePiece itself, and a list of pieces gives the ids."""
    return SPM[0] in files or ONE_SPM in files


def class_of(files: Files, where: str, side: str = SIDES[1]) -> tuple[str, Languages | None]:
    """(the name of a tokenizer's class as its files state it, else empty; its languages, if it names some)."""
    if SPM[0] in files:
        return OF_MARIAN, languages_of(OF_MARIAN, {})
    stated = read_settings(files, side, where)
    return class_name(stated), languages_of(class_name(stated), stated)


def read_settings(files: Files, side: str, where: str) -> dict[str, Any]:
    """What the files state of special tokens and settings."""
    own, found = of_side(files, side), dict[str, Any]()
    for name in TOKENS:
        if name in own:
            content = parse_json(own[name], f"{where}: {name}")
            found |= {key: value for key, value in content.items() if value is not None}
    return found


def tokens_of(files: Files, side: str, where: str) -> dict[str, Any]:
    """{"pad_token": text or an object with settings, ...} of one side, by its files, else by its class."""
    return {**SPECIALS.get(class_of(files, where, side)[0], {}), **read_settings(files, side, where)}


def vocabulary_of(files: Files, side: str, where: str) -> dict[str, int]:
    """{piece: id} of one side of a SentencePiece pair, or of both; of M2M-100 with the languages that follow it."""
    name = VOCABULARIES[side == SIDES[1] and VOCABULARIES[1] in files]
    if name not in files:
        raise UserError(where, f"has {SPM[0] if SPM[0] in files else ONE_SPM} but no {name}", "put it there")
    found = parse_json(files[name], f"{where}: {name}")
    numbers = found.values()
    if not found or not all(type(i) is int and 0 <= i < 1 << 24 for i in numbers) or len({*numbers}) < len(found):
        raise UserError(where, f"{name} is no list of pieces with an id each", "restore it")
    if ONE_SPM in files and (languages := class_of(files, where)[1]):
        tokens = map(languages.token.format, languages.codes)
        found |= {token: len(found) + i for i, token in enumerate(tokens)}
    return found


def numbers_of(files: Files, side: str, where: str) -> dict[str, int]:
    """{piece: id} of all."""
    if has_spm(files):
        return vocabulary_of(files, side, where)
    if class_of(files, where, side)[0] == OF_BYTES:
        return byte_vocabulary(tokens_of(files, side, where))
    return dict(open_pieces(of_side(files, side).get(PIECES, b""), f"{where}: {PIECES}").get_vocab())


def ids_of(files: Files, side: str, where: str) -> Ids:
    """The ids of one side with a meaning of their own, by ids.json."""
    remedy = "restore it, or remove it if a model's config.json is there"
    if IDS not in files:
        raise UserError(where, f"has no {IDS}", remedy)
    stated: Any = parse_json(files[IDS], f"{where}: {IDS}").get(side)
    try:
        ids = Ids(**{**stated, "banned": tuple(stated["banned"])})
        numbers = [value for value in (*vars(ids).values(), *ids.banned) if value is not None and value != ids.banned]
        if not all(type(i) is int for i in numbers) or None in (ids.pad, ids.begin, ids.end):
            raise TypeError
    except (TypeError, KeyError) as error:
        raise UserError(where, f"{IDS} does not hold the ids of the {side}", remedy) from error
    return ids
