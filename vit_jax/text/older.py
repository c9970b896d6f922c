"""The tokenizer.json of a folder that has older files alone, as the library transformers makes it of them."""

from __future__ import annotations

import contextlib
import io
import json
import logging
import re
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from ..errors import UserError
from ..files.lines import quote, read_lines
from ..machine.libraries import report_damage, require
from .languages import LEGACY_NLLB, NLLB, Languages
from .pieces import set_template
from .sentence_pieces import open_model
from .stated import token_text

FAIRSEQ = "sentencepiece.bpe.model"
MODELS = (FAIRSEQ, "spiece.model", "tokenizer.model")  # of SentencePiece
OLDER = ("merges.txt", "vocab.txt", *MODELS)  # by which a folder has a tokenizer; vocab.json may be of anything
SOURCES = ("vocab.json", *OLDER, "added_tokens.json")
OF_BYTES = "ByT5Tokenizer"  # a class whose tokens are bytes, so that a folder only states its name
NAMES = tuple(f"{name}_token" for name in ("bos", "eos", "unk", "sep", "pad", "cls", "mask"))
LISTS = ("additional_special_tokens", "extra_special_tokens", "added_tokens_decoder")
MOST = 1 << 20  # of whatever a setting counts, such as extra_ids
REMEDY = (
    "give a tokenizer.json too, which transformers 5 writes with "
    "AutoTokenizer.from_pretrained(FOLDER).save_pretrained(FOLDER)"
)


def make_pieces(
    files: Mapping[str, bytes], name: str, stated: Mapping[str, Any], languages: Languages | None, where: str
) -> tuple[bytes, dict[str, Any]]:
    """(tokenizer.json, what its tokenizer_config.json has to state) of SOURCES and what the files state.

    `name` is a class of transformers, or the type of a model. No code of the folder runs, and nothing is fetched: a
    folder of its own holds SOURCES, and of the settings what is no place of a file.
    """
    there = next(each for each in OLDER if each in files)
    counts = [len(open_model(files[each], f"{where}: {each}")) for each in MODELS if each in files]
    settings = _settings(stated, f"{where}: tokenizer_config.json")
    if languages in (NLLB, LEGACY_NLLB) and "added_tokens_decoder" not in settings:
        settings["added_tokens_decoder"] = _codes(settings, max(counts, default=0) + 1)
    with tempfile.TemporaryDirectory() as folder:
        for file, content in files.items():
            content = b"".join(_lines(file, content, where)) if file.endswith(".txt") else content
            (Path(folder) / file).write_bytes(content)
        with report_damage(f"{where}: {there}"):
            made = _make(Path(folder), name, settings)
    if not made.is_fast or type(made).__name__ == "TokenizersBackend":
        what = f"has {there} and is of {name[:60]!r}, of which transformers makes no tokenizer.json from that"
        raise UserError(where, what, REMEDY)
    for key, file in made.vocab_files_names.items():
        if file not in files and key in ("vocab_file", "merges_file"):
            raise UserError(where, f"has {there} but no {file}", "put it there")
    tokenizer = made.backend_tokenizer
    if stated.get("extra_ids") != 0:  # T5's sentinels are no text, also where the model has pieces of their names
        tokenizer.add_special_tokens([token for token in tokenizer.get_vocab() if token.startswith("<extra_id_")])
    _check_added(tokenizer, stated, json.loads(files.get("added_tokens.json", b"{}")), where)
    if languages:  # what stands around a text is stated by a run
        set_template(tokenizer, [], [])
    tokens = {token: text for token, text in made.special_tokens_map.items() if token in NAMES and token not in stated}
    text: str = tokenizer.to_str()
    return text.encode(), {"tokenizer_class": stated.get("tokenizer_class", type(made).__name__), **tokens}


def _lines(file: str, content: bytes, where: str) -> Iterator[bytes]:
    """The lines of a text as transformers reads them, all of which end with LF; pairs of pieces stand in every one."""
    for number, line in enumerate(read_lines(io.BytesIO(content), f"{where}: {file}"), 1):
        if file == "merges.txt" and (not line or (number == 1 and line.startswith("#version"))):
            continue
        if file == "merges.txt" and not re.fullmatch(r"[^ ]+ [^ ]+", line):
            raise UserError(f"{where}: {file} line {number}", f"{quote(line)} is no pair of pieces", "restore it")
        yield f"{line}\n".encode()


def _make(folder: Path, name: str, settings: Mapping[str, Any]) -> Any:
    """The tokenizer of transformers."""
    with require("transformers"), _quiet():
        from transformers import AutoTokenizer, PreTrainedConfig

        is_class = name.endswith("Tokenizer")
        config = {**settings, **({"tokenizer_class": name} if is_class else {})}
        (folder / "tokenizer_config.json").write_text(json.dumps(config))
        how = {"config": PreTrainedConfig()} if is_class else {"tokenizer_type": name}
        return AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False, **how)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """A context in which nothing is logged, such as that there is no PyTorch, which no tokenizer needs."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        yield
    finally:
        logging.disable(before)


def _settings(stated: Mapping[str, Any], where: str) -> dict[str, Any]:
    """The settings that are a token, a language, a switch or a count: others may name files or code."""
    found = {}
    for key, value in stated.items():
        if key in LISTS or key.endswith(("_token", "_lang")):
            found[key] = _typed(value)
        elif type(value) is int and not key.endswith("max_length"):
            if abs(value) > MOST:
                raise UserError(where, f"{key[:60]} is {value}", f"give at most {MOST:,}")
            found[key] = value
        elif isinstance(value, bool) and key != "trust_remote_code":
            found[key] = value
    return found


def _typed(value: Any) -> Any:
    """A token, or several, where those with settings of their own are as transformers expects them in its config."""
    if isinstance(value, list):
        return [_typed(each) for each in value]
    if isinstance(value, dict) and "content" in value:
        return value if "__type" in value else {"special": True, **value, "__type": "AddedToken"}
    return value


def _codes(settings: Mapping[str, Any], first: int) -> dict[str, Any]:
    """NLLB's languages as tokens from id `first` on, before the mask: transformers 5 forgets those that no file lists."""
    from transformers.models.nllb.tokenization_nllb import FAIRSEQ_LANGUAGE_CODES

    listed = settings.get("additional_special_tokens") or settings.get("extra_special_tokens") or []
    codes = [token_text(token) for token in listed if NLLB.code(token_text(token))] or FAIRSEQ_LANGUAGE_CODES
    return {str(i): {"content": code, "special": True} for i, code in enumerate(codes, first)}


def _check_added(tokenizer: Any, stated: Mapping[str, Any], added: Mapping[str, Any], where: str) -> None:
    """Raise UserError where a token has another id than the files state."""
    files = [("added_tokens.json", token, i) for token, i in added.items()]
    by_id = stated.get("added_tokens_decoder") or {}
    files += [("tokenizer_config.json", token_text(token), int(i)) for i, token in by_id.items()]
    for file, token, i in files:
        if (number := tokenizer.token_to_id(token)) != i:
            what = f"the id of {quote(token)} is {i}, but should be {number}"
            raise UserError(f"{where}: {file}", what, "correct the id, or remove the token")
