"""The languages of a tokenizer's texts, where it knows several: as its files, its model or a user state them."""

from __future__ import annotations

import json
from collections.abc import Callable

from ..config.hints import nearest
from ..config.outputs import SIDES
from ..errors import Field, UserError
from .classes import LISTED, SEVERAL, Languages, Spoken, list_codes
from .contents import CONFIG, IDS, Files, class_of, ids_of, numbers_of, parse_json, tokens_of, with_config
from .ids import token_text

FIELDS = {side: f"data.{side}_language" for side in SIDES}
KEYS = {"source": "src_lang", "target": "tgt_lang"}  # of tokenizer_config.json
TARGET_OF_PAIRS = "target_lang"  # there, of Marian


def with_languages(files: Files, spoken: Spoken, where: str, alone: bool = False) -> dict[str, bytes]:
    """The files, with the languages of their texts in the tokenizer_config.json and in the ids.json that they have."""
    _, languages = class_of(files, where)
    if languages is None or any(name.startswith(f"{SIDES[0]}/") for name in files):
        _refuse(spoken, where)
        return dict(files)
    number, vocabulary = numbers_of(files, SIDES[1], where)
    codes = [languages.code(token) for token in sorted(vocabulary, key=vocabulary.__getitem__)]
    codes = [*filter(None, codes)]
    if not codes:  # a tokenizer of one's own, for a model of such a class
        _refuse(spoken, where)
        return dict(files)
    if languages.in_source:
        return _of_sources(files, spoken, codes, where)
    tokens = tokens_of(files, SIDES[1], where)
    found = {"source": spoken.source or token_text(tokens.get(KEYS["source"]))}
    found["target"] = spoken.target or _stated_target(
        files, languages, vocabulary, token_text(tokens.get(KEYS["target"])), where
    )
    for side, code in found.items():
        if code and number(languages.token.format(code)) is None:
            raise _unknown(side, code, codes, "" if code == getattr(spoken, side) else f"{where}: {CONFIG}")
    if not alone and (missing := [side for side in SIDES if not found[side]]):
        fields = " and ".join(f"`{FIELDS[side]}`" for side in missing)
        raise UserError(
            where,
            f"does not state the language of its {' and '.join(f'{side}s' for side in missing)}",
            f"give {fields}: there are {list_codes(codes)}",
        )
    stated = {KEYS[side]: code for side, code in found.items() if code}
    return _with_target(with_config(files, where, **stated), languages, found["target"], number, where)


def _unknown(side: str, code: str, codes: list[str], file: str = "") -> UserError:
    """The error for a language that the tokenizer has not, as the user states it, or a `file`."""
    close = nearest(code, codes) if len(codes) > LISTED else ""
    what = f"is {code[:40]}, which is no language of its tokenizer{close}"
    known = f"there are {list_codes(codes)}"
    if file:
        return UserError(file, f"{KEYS[side]} {what}", f"name the right one with `{FIELDS[side]}`; {known}")
    return UserError(Field(FIELDS[side]), what, known)


def _refuse(spoken: Spoken, where: str) -> None:
    """Raise UserError where a user states a language of a tokenizer that names none."""
    for side in SIDES:
        if code := getattr(spoken, side):
            raise UserError(Field(FIELDS[side]), f"is {code[:40]}, but {where} names no languages", "leave it out")


def _of_sources(files: Files, spoken: Spoken, codes: list[str], where: str) -> dict[str, bytes]:
    """The files of Marian, whose sources begin with the language of their target."""
    if spoken.source:
        what = f"is {spoken.source[:40]}, but {where} names no languages of sources"
        raise UserError(Field(FIELDS["source"]), what, "leave it out")
    if len(codes) < SEVERAL:
        _refuse(spoken, where)
    if not spoken.target:
        return dict(files)
    if spoken.target not in codes:
        raise _unknown("target", spoken.target, codes)
    return with_config(files, where, **{TARGET_OF_PAIRS: spoken.target})


def _stated_target(files: Files, languages: Languages, vocabulary: dict[str, int], tokenizers: str, where: str) -> str:
    """The language of targets by the ids that a model begins with, or by the tokenizer's own config."""
    ids, tokens = ids_of(files, SIDES[1], where), {i: token for token, i in vocabulary.items()}
    first = [tokens.get(i, "") for i in (ids.forced_begin, ids.begin) if i is not None]
    models = next((code for token in first if (code := languages.code(token))), "")
    if models and tokenizers and models != tokenizers:
        raise UserError(
            where,
            f"its model's settings begin with {models}, and its tokenizer_config.json states {KEYS['target']} "
            f"{tokenizers[:40]}",
            "name the right one with `data.target_language`",
        )
    return models or tokenizers


def _with_target(
    files: dict[str, bytes], languages: Languages, code: str, number: Callable[[str], int | None], where: str
) -> dict[str, bytes]:
    """The files, with an ids.json by which texts begin with a language.

    Where a class lets the decoder begin with it, but its model begins with the end, that language is forced instead.
    """
    if not code:
        return files
    content, language = parse_json(files[IDS], f"{where}: {IDS}"), number(languages.token.format(code))
    for side in SIDES:
        ids = ids_of(files, side, where)
        begins = languages.begins and ids.forced_begin is None and ids.begin != ids.end
        content[side] |= {"begin" if begins else "forced_begin": language}
    return {**files, IDS: json.dumps(content, indent=1).encode()}
