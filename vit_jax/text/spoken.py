"""The languages and tasks of texts, where a tokenizer or its model has several: as files or a user state them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..config.hints import nearest
from ..config.outputs import SIDES
from ..errors import Field, UserError
from ..files.reading import read_regular
from .classes import LISTED, SEVERAL, Languages, Spoken, list_codes
from .contents import CONFIG, IDS, Files, class_of, ids_of, numbers_of, parse_json, tokens_of, with_config
from .tokenizer import token_text

FIELDS = {side: f"data.{side}_language" for side in SIDES}
KEYS = {"source": "src_lang", "target": "tgt_lang"}  # of tokenizer_config.json
TARGET_OF_PAIRS = "target_lang"  # there, of Marian


def with_languages(files: Files, spoken: Spoken, where: str, alone: bool = False) -> dict[str, bytes]:
    """The files, with the languages of their texts in the tokenizer_config.json and in the ids.json that they have."""
    _, languages = class_of(files, where)
    if languages is None or any(name.startswith(f"{SIDES[0]}/") for name in files):
        _refuse(spoken, where)
        return dict(files)
    vocabulary = numbers_of(files, SIDES[1], where)
    codes = [*filter(None, map(languages.code, sorted(vocabulary, key=vocabulary.__getitem__)))]
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
        if code and languages.token.format(code) not in vocabulary:
            raise _unknown(side, code, codes, "" if code == getattr(spoken, side) else f"{where}: {CONFIG}")
    if not alone and (missing := [side for side in SIDES if not found[side]]):
        fields = " and ".join(f"`{FIELDS[side]}`" for side in missing)
        raise UserError(
            where,
            f"does not state the language of its {' and '.join(f'{side}s' for side in missing)}",
            f"give {fields}: there are {list_codes(codes)}",
        )
    stated = {KEYS[side]: code for side, code in found.items() if code}
    return _with_target(with_config(files, where, **stated), languages, found["target"], vocabulary, where)


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
    files: dict[str, bytes], languages: Languages, code: str, vocabulary: Mapping[str, int], where: str
) -> dict[str, bytes]:
    """The files, with an ids.json by which texts begin with a language.

    Where a class lets the decoder begin with it, but its model begins with the end, that language is forced instead.
    """
    if not code:
        return files
    content, language = parse_json(files[IDS], f"{where}: {IDS}"), vocabulary[languages.token.format(code)]
    for side in SIDES:
        ids = ids_of(files, side, where)
        begins = languages.begins and ids.forced_begin is None and ids.begin != ids.end
        content[side] |= {"begin" if begins else "forced_begin": language}
    return {**files, IDS: json.dumps(content, indent=1).encode()}


# The tasks that the config.json of a T5 lists by name: what stands before a source, and how its target is searched.
MODEL = "config.json"
KEY = "task_specific_params"
LARGEST = 1 << 20  # bytes


def kept_tasks(folder: Path, name: str) -> dict[str, bytes]:
    """The file by which a run keeps the tasks of a folder."""
    if not name:
        return {}
    there = (folder / MODEL).is_file()
    model = parse_json(read_regular(folder / MODEL, LARGEST, "restore it"), str(folder / MODEL)) if there else {}
    content = json.dumps({KEY: model.get(KEY) or {}}, indent=1).encode()
    task_settings({MODEL: content}, name)
    return {MODEL: content}


def task_settings(files: Mapping[str, bytes], name: str) -> dict[str, Any]:
    """What a task of these files states: its prefix, and settings of generation_config.json."""
    if not name:
        return {}
    tasks = parse_json(files.get(MODEL, b"{}"), MODEL).get(KEY)
    known = {key: x for key, x in tasks.items() if isinstance(x, dict)} if isinstance(tasks, dict) else {}
    if name not in known:
        close = nearest(name, list(known))
        listed = f"give one of {', '.join(known)}" if known else "give `data.prefix` in its place"
        lists = "its config.json lists no task_specific_params" if not known else "its config.json has no such task"
        raise UserError(Field("data.task"), f"is {name[:60]}, but {lists}{close}", listed)
    return known[name]


def prefix_of(prefix: str, task: str, files: Mapping[str, bytes]) -> str:
    """What stands before every source: what a user states, else what the task has."""
    stated = task_settings(files, task).get("prefix")
    return prefix or (stated if isinstance(stated, str) else "")
