"""The tokenizers of a run: made for its data, kept in its folder, and opened from there."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ..config.outputs import APART, FOLDER, SIDES, TRAINED, WORDS
from ..errors import UserError
from ..files.digests import text_digest
from .classes import UNSTATED, Spoken
from .folder import has_two, open_files, read_folder, with_ids
from .pieces import train_pieces
from .spoken import kept_tasks, with_languages
from .tokenizer import Tokenizer
from .vocabulary import Vocabulary, count_words, splits_marks

Pair = tuple[Tokenizer, Tokenizer]


def make_tokenizers(
    kind: str,
    size: int,
    sources: Iterable[str],
    targets: Iterable[str],
    one: bool,
    spoken: Spoken = UNSTATED,
    task: str = "",
) -> Pair:
    """The tokenizers of a run that is trained on these sentences -> (that of sources, that of targets)."""
    if kind in (WORDS, APART):
        each = [itertools.chain(sources, targets)] if one else [sources, targets]
        words = [count_words(texts, apart=kind == APART) for texts in each]
        return words[0], words[-1]
    if kind in TRAINED:
        where, texts = f"data.tokenizer {kind}", (sources, targets)
        if one:
            files = train_pieces(kind, itertools.chain(*texts), size)
        else:
            made = {side: train_pieces(kind, iter(its), size) for side, its in zip(SIDES, texts, strict=True)}
            files = {f"{side}/{name}": x for side, its in made.items() for name, x in its.items()}
        return open_files(with_ids(files, {}, where), where)
    files = {**read_folder(kind, spoken=spoken), **kept_tasks(Path(os.path.expanduser(kind)), task)}
    if one and has_two(files):
        raise UserError(
            f"data.tokenizer {kind}",
            "source and target have ids of their own, but the network has one table for both: set model.tie to "
            "decoder or none",
        )
    return open_files(files, f"data.tokenizer {kind}")


def record_tokenizers(source: Tokenizer, target: Tokenizer) -> dict[str, Any]:
    """The metadata of a run on texts, from which `open_tokenizers` makes the tokenizers again."""
    return _with_files("vocabulary", _record(source, target), {**source.files, **target.files})


def _with_files(name: str, kept: Any, files: Mapping[str, bytes]) -> dict[str, Any]:
    """The metadata of a run that keeps this of its tokenizers, and their files."""
    return {name: kept, **({"files": {f"{FOLDER}/{path}": x for path, x in files.items()}} if files else {})}


def _files_in(metadata: Mapping[str, Any]) -> dict[str, bytes]:
    return {name.removeprefix(f"{FOLDER}/"): content for name, content in metadata.get("files", {}).items()}


def open_tokenizers(metadata: Mapping[str, Any]) -> Pair:
    """The tokenizers of a run on texts -> (that of sources, that of targets)."""
    source, target = (metadata["vocabulary"][side] for side in SIDES)
    if isinstance(source, list):
        apart = splits_marks([*source, *target])
        return Vocabulary(source, apart), Vocabulary(target, apart)
    return _in_files(metadata)


def _in_files(metadata: Mapping[str, Any]) -> Pair:
    """The tokenizers in the files of a run."""
    files = _files_in(metadata)
    if not files:
        raise UserError(
            "the files of its tokenizer are not there", remedy="give the folder of the run, which keeps them"
        )
    return open_files(files, FOLDER)


def with_spoken(metadata: Mapping[str, Any], spoken: Spoken) -> Mapping[str, Any]:
    """The metadata of a run whose texts are in other languages than those that it was trained on."""
    if not spoken:
        return metadata
    changed = with_languages(_files_in(metadata), spoken, "the tokenizer of the run")
    return {**metadata, "files": {f"{FOLDER}/{name}": content for name, content in changed.items()}}


def make_one(kind: str, size: int, sentences: Sequence[str]) -> Tokenizer:
    """The tokenizer of a run whose only texts are those that it generates."""
    if kind in (WORDS, APART):
        return count_words(sentences, apart=kind == APART)
    where = f"data.tokenizer {kind}"
    files = with_ids(train_pieces(kind, iter(sentences), size), {}, where) if kind in TRAINED else {}
    return open_files(files or read_folder(kind, alone=True), where)[1]


def record_one(name: str, tokenizer: Tokenizer) -> dict[str, Any]:
    """The metadata of a run with one tokenizer, from which `open_one` makes it again."""
    return _with_files(name, tokenizer.kept, tokenizer.files)


def open_one(name: str, metadata: Mapping[str, Any]) -> Tokenizer:
    """The tokenizer of a run with one."""
    kept = metadata[name]
    return Vocabulary(kept) if isinstance(kept, list) else _in_files(metadata)[1]


def digest(source: Tokenizer, target: Tokenizer) -> str:
    """What identifies the tokenizers of a run, which resumes only with the same."""
    return text_digest(list(_record(source, target).values()))


def _record(source: Tokenizer, target: Tokenizer) -> dict[str, Any]:
    return dict(zip(SIDES, (source.kept, target.kept), strict=True))
