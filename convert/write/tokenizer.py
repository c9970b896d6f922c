"""The files of a tokenizer beside weights, which go along into a folder of a library that reads both."""

from __future__ import annotations

import os
from pathlib import Path

from vit_jax.config.sentences import FOLDER
from vit_jax.runs import Run, read_files

from ..containers.run_folder import is_run
from ..plan.plan import Plan

NAMES = (
    "source.spm", "target.spm", "vocab.json", "target_vocab.json", "merges.txt", "sentencepiece.bpe.model",
    "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json",
)  # fmt: skip


def tokenizer_beside(plan: Plan) -> dict[str, bytes]:
    """{name: content} of the tokenizer's files beside the source of a plan, or in the run that it is.

    Empty where there is none, also where a run has one for each side: no library reads two.
    """
    path = Path(plan.reading.source.path)
    if is_run(path):
        kept = read_files(path, Run(path).record().get("files", {}))
        return {name: kept[f"{FOLDER}/{name}"] for name in NAMES if f"{FOLDER}/{name}" in kept}
    folder = path if os.path.isdir(path) else path.parent
    return {name: (folder / name).read_bytes() for name in NAMES if (folder / name).is_file()}
