"""The tokenizer.json of a folder that has older files alone, as the library transformers makes it of them."""

from __future__ import annotations

import json
import re
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..errors import UserError, report_damage, require
from ..files.lines import quote
from ..files.terminal import without_logs
from .classes import LEGACY_NLLB, NLLB, Languages
from .pieces import check_growth, set_template
from .sentence_pieces import open_model
from .tokenizer import token_text

FAIRSEQ = "sentencepiece.bpe.model"
MODELS = (FAIRSEQ, "spiece.model", "tokenizer.model")  # of SentencePiece
OLDER = ("merges.txt", "vocab.txt", *MODELS)  # by which a folder has a tokenizer; vocab.json may be of anything
SOURCES = ("vocab.json", *OLDER, "added_tokens.json")
OF_BYTES = "ByT5Tokenizer"  # a class whose tokens are bytes, so that a folder only states its name
NAMES = tuple(f"{name}_token" for name in ("bos", "eos", "unk", "sep", "pad", "cls", "mask"))
LISTS = ("additional_special_tokens", "extra_special_tokens", "added_tokens_decoder")
MOST = 1 << 20  # of whatever a setting counts, such as extra_ids
PROBE = "Two dogs, 12 Cats: é 日本."  # of classes that do more than their tokenizer.json it has other ids
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
    kind, needed = _class_of(name)
    unknown = f"has {there} and is of {name[:60]!r}, from which transformers makes no tokenizer.json"
    if not needed:
        raise UserError(where, unknown, REMEDY)
    if lacking := [file for file in needed if file not in files]:
        raise UserError(where, f"has {there} but no {lacking[0]}", "put it there")
    settings = {**_settings(stated, f"{where}: tokenizer_config.json"), "tokenizer_class": kind}
    sizes = [len(open_model(files[each], f"{where}: {each}")) for each in MODELS if each in files]
    if languages in (NLLB, LEGACY_NLLB) and "added_tokens_decoder" not in settings:
        settings["added_tokens_decoder"] = _codes(settings, sizes[0] + 1)
    with tempfile.TemporaryDirectory() as folder:
        for file, content in files.items():
            content = content.replace(b"\r\n", b"\n") if file.endswith(".txt") else content
            content = re.sub(rb"\n+", b"\n", content) if file == "merges.txt" else content
            (Path(folder) / file).write_bytes(content)
        (Path(folder) / "tokenizer_config.json").write_text(json.dumps(settings))
        with report_damage(f"{where}: {needed[-1]}"), without_logs():
            from transformers import AutoTokenizer, PreTrainedConfig

            made = AutoTokenizer.from_pretrained(
                folder, config=PreTrainedConfig(), local_files_only=True, trust_remote_code=False
            )
            tokenizer = made.backend_tokenizer
            check_growth(tokenizer)
            if made(PROBE)["input_ids"] != tokenizer.encode(PROBE).ids:
                raise UserError(where, unknown, REMEDY)
    if stated.get("extra_ids") != 0:  # T5's sentinels are no text, also where the model has pieces of their names
        tokenizer.add_special_tokens([token for token in tokenizer.get_vocab() if token.startswith("<extra_id_")])
    _check_added(tokenizer, stated, json.loads(files.get("added_tokens.json", b"{}")), where)
    if languages:  # what stands around a text is stated by a run
        set_template(tokenizer, [], [])
    tokens = {token: text for token, text in made.special_tokens_map.items() if token in NAMES and token not in stated}
    text: str = tokenizer.to_str()
    return text.encode(), {"tokenizer_class": stated.get("tokenizer_class", kind), **tokens}


def _class_of(name: str) -> tuple[str, list[str]]:
    """(a class of transformers, its files) by its name, or a model's; no files where it makes no tokenizer.json."""
    with require("transformers"), without_logs():
        from transformers import PreTrainedTokenizerFast
        from transformers.models.auto.tokenization_auto import TOKENIZER_MAPPING_NAMES, tokenizer_class_from_name

        name = TOKENIZER_MAPPING_NAMES.get(name) or name
        found = tokenizer_class_from_name(name) if name.endswith("Tokenizer") else None
    if not isinstance(found, type) or not issubclass(found, PreTrainedTokenizerFast):
        return name, []
    files = found.vocab_files_names
    return found.__name__, [files[key] for key in ("vocab_file", "merges_file") if key in files]


def _settings(stated: Mapping[str, Any], where: str) -> dict[str, Any]:
    """The settings that are a token, a language, a switch or a count: others may name files or code."""
    found: dict[str, Any] = {}
    by_id = stated.get("added_tokens_decoder")
    for number, token in by_id.items() if isinstance(by_id, dict) else ():
        if not re.fullmatch("[0-9]{1,9}", number) or not isinstance(token, dict) or not token_text(token):
            what = f"added_tokens_decoder has for {quote(number)} no token, or no id"
            raise UserError(where, what, 'give {"ID": {"content": "TOKEN"}}')
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
    """NLLB's languages as tokens from id `first` on, before the mask; transformers 5 forgets those of no file."""
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
