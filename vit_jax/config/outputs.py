"""What the outputs of a network mean, as runs and converted files hold it: classes, labels, numbers, ids of words."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, Self

from .fields import are_texts

# What the ids of a run's sentences are called in its config, its files and its metadata.
SPECIALS = ("<pad>", "<bos>", "<eos>", "<unk>")  # ids 0 to 3 of an open vocabulary; a closed one has no <unk>
SIDES = ("source", "target")
WORDS, TRAINED = "words", ("bpe", "unigram")  # values of data.tokenizer that are no folder
APART = "words-apart"  # data.tokenizer of a run whose words end before combining marks, while its data is opened
FOLDER = "tokenizer"  # of a run, for the files of its tokenizer

# {kind: what the outputs of a network of that kind are}. Only those of `class` are weighed against each other.
KINDS = {
    "class": "classes, one an image",
    "set": "a set of labels, any number an image",
    "number": "numbers",
    "embedding": "an embedding",
}


# Entries of `outputs` beside kind and names: {name: (the kinds that may have it, whether it has a number for each)}.
_MORE = {
    "mean": (("number",), True),
    "std": (("number",), True),
    "thresholds": (("set",), True),
    "temperature": (("class", "set"), False),
}


Target = Literal["", "class", "set", "number"]  # the kinds that a network of images is trained for; empty: not stated


@dataclass(frozen=True)
class Outputs:
    """The K outputs of a network: mean [K], thresholds [K]."""

    kind: str = ""
    names: tuple[str, ...] = ()
    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()
    thresholds: tuple[float, ...] = ()
    temperature: float = 1.0

    @classmethod
    def of(cls, metadata: Mapping[str, Any]) -> Self:
        """The outputs that metadata states; where it has no entry `outputs`, they are classes, or without any kind."""
        given = metadata.get("class_names")
        # Damaged ones are refused when they are checked.
        names = tuple(given) if isinstance(given, (list, tuple)) else ()
        if not isinstance(metadata.get("outputs"), dict):
            return cls("class" if names else "", names)
        stated: dict[str, Any] = {"names": names}
        stated |= {name: tuple(x) if isinstance(x, list) else x for name, x in metadata["outputs"].items()}
        return cls(**stated)

    def to_metadata(self) -> dict[str, Any]:
        """The entries of metadata that state them: `class_names` of classes, `outputs` of others or with more."""
        entries = {name: list(x) if isinstance(x, tuple) else x for name, x in vars(self).items() if x}
        entries = {name: x for name, x in entries.items() if name != "temperature" or x != 1}
        if self.kind not in ("", "class"):
            return {"outputs": entries}
        names = {"class_names": entries.pop("names")} if self.names else {}
        return {**names, **({"outputs": entries} if entries.keys() - {"kind"} else {})}


UNSTATED = Outputs()


def are_outputs(value: Any) -> bool:
    """Whether a JSON value is what `Outputs.to_metadata` writes as `outputs`."""
    if not isinstance(value, dict) or value.get("kind") not in [*KINDS] or not are_texts(value.get("names", [])):
        return False
    return all(name in ("kind", "names") or _is_entry(name, each, value["kind"]) for name, each in value.items())


def _is_entry(name: str, value: Any, kind: str) -> bool:
    kinds, one_each = _MORE.get(name, ((), False))
    numbers = value if one_each else [value]
    if kind not in kinds or not isinstance(numbers, list):
        return False
    finite = all(type(x) in (int, float) and math.isfinite(x) for x in numbers)
    return finite and (name not in ("std", "temperature") or all(x > 0 for x in numbers))
