"""The files of a tokenizer beside weights, which go along into a folder of a library that reads both."""

from __future__ import annotations

import json
import os
from pathlib import Path

from vit_jax.config.outputs import FOLDER
from vit_jax.files.atomic import read_json
from vit_jax.files.reading import read_regular
from vit_jax.text.folder import read_folder
from vit_jax.text.pieces import PIECES

from ..plan.plan import Plan

NAMES = (
    "source.spm", "target.spm", "vocab.json", "target_vocab.json", "merges.txt", "sentencepiece.bpe.model",
    "vocab.txt", "spiece.model", "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json",
    "added_tokens.json",
)  # fmt: skip
CONFIG = "tokenizer_config.json"
LARGEST = 64 << 20  # bytes of a file


def tokenizer_with_weights(plan: Plan) -> dict[str, bytes]:
    """The tokenizer's files beside the source of a plan, or in the run that it is. Returns {name: content}; empty where
    there is none, also where a run has one for each side: no library reads two.
    """
    source = plan.reading.source
    if kept := source.beside():
        return {name: kept[f"{FOLDER}/{name}"] for name in NAMES if f"{FOLDER}/{name}" in kept}
    path = Path(source.path)
    folder = path if path.is_dir() else path.parent
    found = {
        name: read_regular(folder / name, LARGEST, "restore it") for name in NAMES if os.path.lexists(folder / name)
    }
    model = folder / "config.json"
    if CONFIG not in found and model.is_file() and (stated := read_json(model).get("tokenizer_class")):
        found[CONFIG] = json.dumps({"tokenizer_class": stated}).encode()  # the config.json that is written is another
    if plan.layout.dialect == "umt5" and "spiece.model" in found:  # of which transformers makes no tokenizer itself
        found = {PIECES: read_folder(str(folder))[PIECES], **found}
    return found
