"""The files that libraries keep beside weights: which are known, and which of those that are there were not read."""

from __future__ import annotations

import fnmatch
import os
from collections.abc import Iterator, Mapping
from typing import Any

TOKENIZER = "a tokenizer"
KNOWN = {  # {names of files: what they hold, and whose they are}
    ("config.json",): "the config of timm's or transformers' network",
    ("preprocessor_config.json", "processor_config.json"): "how transformers prepares images",
    ("generation_config.json",): "how transformers generates texts",
    ("open_clip_config.json",): "the config of OpenCLIP's towers",
    (
        *("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "vocab.json"),
        *("merges.txt", "vocab.txt", "*.spm", "*.bpe.model", "spiece.model", "tokenizer.model"),
    ): TOKENIZER,
    ("chat_template.j*", "video_preprocessor_config.json"): "what transformers' processors of texts and videos need",
    ("adapter_config.json", "adapter_model.*"): "an adapter of peft",
    ("quantize_config.json", "quant_config.json", "quantization_config.json"): "how weights were quantised",
    ("args.yaml", "hparams.yaml", "config.yaml", "trainer_state.json", "training_args.bin"): "settings of a training",
    ("optimizer.*", "scheduler.*", "rng_state*.pth", "scaler.pt"): "the state of a training",
    ("model_index.json", "modules.json", "config_sentence_transformers.json"): "the config of a pipeline of models",
    ("modeling_*.py", "configuration_*.py", "*processing_*.py"): "code of its own, which is not run",
}


class Consulted(Mapping[str, Any]):
    """The JSON files beside weights, {name: content}; `names` are those that were looked up."""

    def __init__(self, files: Mapping[str, Any]):
        self.files, self.names = files, set[str]()

    def __getitem__(self, name: str) -> Any:
        content = self.files[name]
        self.names.add(name)
        return content

    @property
    def config(self) -> str:
        """The file that states the network's config, as messages name it."""
        return "its config.json" if "open_clip_config.json" not in self.names else "its open_clip_config.json"

    def __iter__(self) -> Iterator[str]:
        return iter(self.files)

    def __len__(self) -> int:
        return len(self.files)


def unread(path: str, consulted: Consulted, tokenizer: bool) -> str:
    """The known files in a folder, or beside a file, that were not read. A sentence naming them; empty where all were
    read.
    """
    folder = path if os.path.isdir(path) else os.path.dirname(path) or "."
    names = sorted({*os.listdir(folder)} - consulted.names)
    found = []
    for patterns, what in KNOWN.items():
        if not (tokenizer and what == TOKENIZER):
            there = [name for name in names if any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)]
            found += [f"{what} ({', '.join(there)})"] if there else []
    return f"beside the weights, and not read: {', '.join(found)}" if found else ""
