"""The files of a tokenizer: read from a folder, and opened as the tokenizers of source and target.

Three kinds are known: a tokenizer.json for both sides, or GPT-2's vocab.json and merges.txt, of which it is made; one
in each of the folders source/ and target/; and source.spm, target.spm and vocab.json, with target_vocab.json where the
vocabularies are separate. ids.json, which a run adds, states the ids with a meaning of their own, and how many ids
there are where a network's table has some more rows than its tokenizer.json has tokens.
"""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..config.vocabulary import SIDES
from ..errors import UserError
from ..files import strict_json
from ..files.digests import bytes_digest, text_digest
from ..files.lines import without_mark
from ..files.reading import read_regular
from .ids import Ids
from .pieces import PIECES, Pieces, from_merges, open_pieces
from .sentence_pieces import SentencePieces
from .stated import check_ids, stated_ids, token_text
from .tokenizer import Tokenizer

Files = Mapping[str, bytes]  # {name: content}

IDS = "ids.json"
TOKENS = ("special_tokens_map.json", "tokenizer_config.json")  # they name the special tokens of a tokenizer
MODEL = ("config.json", "generation_config.json")  # of a model; what generates counts more than what it consists of
SPM, VOCABULARIES = ("source.spm", "target.spm"), ("vocab.json", "target_vocab.json")
KNOWN = (IDS, PIECES, *TOKENS, *SPM, *VOCABULARIES, *(f"{side}/{name}" for side in SIDES for name in (PIECES, *TOKENS)))
MARIAN = {"unk_token": "<unk>", "eos_token": "</s>", "pad_token": "<pad>"}  # unless tokenizer_config.json names others
LARGEST = 64 << 20  # bytes of a file
MULTIPLE = 128  # to which libraries round the size of a table up, at most
MERGES, ADDED = "merges.txt", "added_tokens.json"
FORMS = f"a folder with {PIECES}, or with {', '.join(SPM)} and {VOCABULARIES[0]}"


def read_folder(path: str, alone: bool = False) -> dict[str, bytes]:
    """The files of the tokenizer in a folder, with an ids.json; a tokenizer.json stands for its folder.

    `alone` as of `stated_ids`. Raises UserError.
    """
    folder, where = Path(path).expanduser(), f"data.tokenizer {path}"
    folder = folder.parent if folder.name == PIECES else folder
    if not folder.is_dir():
        raise UserError(where, "there is no such folder", f"give words, bpe, unigram or {FORMS}")
    files = {name: _content(folder / name) for name in KNOWN if os.path.lexists(folder / name)}
    if PIECES not in files and os.path.lexists(folder / MERGES):
        files = _of_merges(folder, files, where)
    if not files.keys() & {PIECES, f"{SIDES[0]}/{PIECES}", SPM[0]}:
        raise UserError(where, "has no tokenizer", f"give words, bpe, unigram or {FORMS}")
    if IDS in files:
        return files
    model: dict[str, Any] = {}
    for name in MODEL:
        stated = _parse_json(_content(folder / name), f"{where}: {name}") if os.path.lexists(folder / name) else {}
        inner = stated.get("decoder")  # of a model of two others
        known = {key: value for key, value in stated.items() if value is not None or not isinstance(inner, dict)}
        model |= {**(inner if isinstance(inner, dict) else {}), **known}
    return with_ids(files, model, where, alone)


def _of_merges(folder: Path, files: Files, where: str) -> dict[str, bytes]:
    """The files with a tokenizer.json in place of the vocab.json and merges.txt in a folder."""
    name = VOCABULARIES[0]
    if name not in files:
        raise UserError(where, f"has {MERGES} but no {name}", "put it there")
    added = _parse_json(_content(folder / ADDED), f"{where}: {ADDED}") if os.path.lexists(folder / ADDED) else {}
    tokens = _tokens(files, SIDES[1], where)
    specials = [text for key, value in tokens.items() if key.endswith("_token") and (text := token_text(value))]
    made = from_merges(
        _parse_json(files[name], f"{where}: {name}"), _content(folder / MERGES), added, specials,
        tokens.get("add_prefix_space") is True, f"{where}: {MERGES}",
    )  # fmt: skip
    return {**{key: x for key, x in files.items() if key != name}, PIECES: made}


def has_two(files: Files) -> bool:
    """Whether source and target have ids of their own."""
    return f"{SIDES[0]}/{PIECES}" in files or VOCABULARIES[1] in files


def _content(file: Path) -> bytes:
    content = read_regular(file, LARGEST, "restore it, or give another tokenizer")
    return content if file.suffix == ".spm" else without_mark(content)


def _parse_json(content: bytes, where: str) -> dict[str, Any]:
    """The JSON object in a file."""
    try:
        value = strict_json.parse(content)
    except ValueError as error:
        raise UserError(where, f"cannot be read as JSON ({error})", "restore it") from error
    if not isinstance(value, dict):
        raise UserError(where, "holds no JSON object", "restore it")
    return value


def with_ids(files: Files, model: Mapping[str, Any], where: str, alone: bool = False) -> dict[str, bytes]:
    """The files with an ids.json, by what their tokenizer and the `model` state; `alone` as of `stated_ids`.

    Raises UserError.
    """
    sides, content = [], dict[str, Any]()
    for side in SIDES:
        own, tokens = _of(files, side), _tokens(files, side, where)
        if SPM[0] in files:
            number = _vocabulary(files, side, where).get
            tokens = {"bos_token": tokens["pad_token"], **tokens}  # Marian begins with padding
        else:
            tokenizer = open_pieces(own.get(PIECES, b""), f"{where}: {PIECES}")
            number, size, rows = tokenizer.token_to_id, _size(tokenizer.get_vocab()), model.get("vocab_size")
            if type(rows) is int and size < rows <= -(-size // MULTIPLE) * MULTIPLE:
                content["rows"] = rows
        sides.append(stated_ids(model, tokens, number, where, alone))
    content |= {side: dataclasses.asdict(ids) for side, ids in zip(SIDES, sides, strict=True)}
    return {**files, IDS: json.dumps(content, indent=1).encode()}


def open_files(files: Files, where: str) -> tuple[Tokenizer, Tokenizer]:
    """The tokenizers of source and target in files that have an ids.json. Raises UserError."""
    source, target = (_open_side(files, side, where) for side in SIDES)
    return source, target


def _open_side(files: Files, side: str, where: str) -> Tokenizer:
    """The tokenizer of one side."""
    ids, target, tokens = _ids(files, side, where), side == SIDES[1], _tokens(files, side, where)
    if SPM[0] not in files:
        tokenizer = open_pieces(
            _of(files, side).get(PIECES, b""), f"{where}: {PIECES}", tokens.get("split_special_tokens") is True
        )
        size = max(_size(tokenizer.get_vocab()), _rows(files, where))
        check_ids(ids, size, where)
        return Pieces(tokenizer, ids, target, _record(size, files), files)
    vocabulary, name = _vocabulary(files, side, where), SPM[target]
    size = _size(vocabulary)
    check_ids(ids, size, where)
    if name not in files:
        raise UserError(where, f"has {SPM[0]} but no {name}", "put it there")
    specials = [token_text(tokens[name]) for name in MARIAN]
    if ids.unknown is None:
        raise UserError(where, f"{VOCABULARIES[0]} has no {MARIAN['unk_token']}", "restore it")
    opened = SentencePieces(files[name], vocabulary, ids, specials, target, f"{where}: {name}")
    opened.kept, opened.files = _record(size, files), files
    return opened


def _size(vocabulary: Mapping[str, int]) -> int:
    """The number of ids of {piece: id}."""
    return max(vocabulary.values()) + 1


def _rows(files: Files, where: str) -> int:
    """The number of ids that an ids.json states, 0 if none."""
    rows = _parse_json(files.get(IDS, b"{}"), f"{where}: {IDS}").get("rows", 0)
    return rows if type(rows) is int and rows < 1 << 24 else 0


def _record(size: int, files: Files) -> dict[str, Any]:
    """What config.json holds of a tokenizer of so many ids, by which a run resumes only with the same."""
    digests = {}
    for name, content in files.items():
        digest = bytes_digest()
        digest.update(content)
        digests[name] = digest.hexdigest()
    return {"size": size, "tokenizer": text_digest(digests)}


def _of(files: Files, side: str) -> Files:
    """The files of one side: those in its folder, or, without one, all."""
    own = {name.removeprefix(f"{side}/"): x for name, x in files.items() if name.startswith(f"{side}/")}
    return own or files


def _tokens(files: Files, side: str, where: str) -> dict[str, Any]:
    """What the files state of special tokens, {"pad_token": ...}."""
    own, found = _of(files, side), dict(MARIAN) if SPM[0] in files else {}
    for name in TOKENS:
        if name in own:
            found |= {
                key: value for key, value in _parse_json(own[name], f"{where}: {name}").items() if value is not None
            }
    return found


def _vocabulary(files: Files, side: str, where: str) -> dict[str, int]:
    """{piece: id} of one side of a SentencePiece pair."""
    name = VOCABULARIES[side == SIDES[1] and VOCABULARIES[1] in files]
    if name not in files:
        raise UserError(where, f"has {SPM[0]} but no {name}", "put it there")
    found = _parse_json(files[name], f"{where}: {name}")
    numbers = found.values()
    if not found or not all(type(i) is int and 0 <= i < 1 << 24 for i in numbers) or len({*numbers}) < len(found):
        raise UserError(where, f"{name} is no list of pieces with an id each", "restore it")
    return found


def _ids(files: Files, side: str, where: str) -> Ids:
    """The ids of one side, by ids.json."""
    remedy = "restore it, or remove it if a model's config.json is there"
    if IDS not in files:
        raise UserError(where, f"has no {IDS}", remedy)
    stated: Any = _parse_json(files[IDS], f"{where}: {IDS}").get(side)
    try:
        ids = Ids(**{**stated, "banned": tuple(stated["banned"])})
        numbers = [value for value in (*vars(ids).values(), *ids.banned) if value is not None and value != ids.banned]
        if not all(type(i) is int for i in numbers) or None in (ids.pad, ids.begin, ids.end):
            raise TypeError
    except (TypeError, KeyError) as error:
        raise UserError(where, f"{IDS} does not hold the ids of the {side}", remedy) from error
    return ids
