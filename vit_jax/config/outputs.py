"""What the outputs of a network mean, as runs and converted files hold it: classes, labels, numbers, ids of words."""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

# What the ids of a run's sentences are called in its config, its files and its metadata.
SPECIALS = ("<pad>", "<bos>", "<eos>", "<unk>")  # ids 0 to 3 of an open vocabulary; a closed one has no <unk>
SIDES = ("source", "target")
WORDS, TRAINED = "words", ("bpe", "unigram")  # values of data.tokenizer that are no folder
APART = "words-apart"  # data.tokenizer of a run whose words end before combining marks, while its data is opened
FOLDER = "tokenizer"  # of a run, for the files of its tokenizer


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


def is_entry(name: str, value: Any) -> bool:
    """Whether a JSON value is of the form of the entry of `outputs` of this name, beside kind and names."""
    numbers = [value] if name == "temperature" else value
    finite = isinstance(numbers, list) and all(type(x) in (int, float) and math.isfinite(x) for x in numbers)
    return finite and (name not in ("std", "temperature") or all(x > 0 for x in numbers))


def composed(name: str) -> str:
    """The name of a class by which it is known: é is one letter (as Linux writes it) or e with an accent (macOS)."""
    return unicodedata.normalize("NFC", name)


def numbered_classes(count: int) -> list[str]:
    """Names for classes without names: their numbers as text."""
    return [str(k) for k in range(count)]


def other_classes(given: Sequence[str], wanted: Sequence[str], what: str = "class") -> str:
    """A clause that names the first difference between two lists of names."""
    unnamed, ours, theirs = numbered_classes(len(wanted)), [*map(composed, given)], [*map(composed, wanted)]
    if len(given) != len(wanted) or ours == theirs or unnamed in (ours, theirs):
        return ""
    k = next(k for k, pair in enumerate(zip(ours, theirs, strict=True)) if pair[0] != pair[1])
    return f"its {what} {k} is {given[k]!r} and here it is {wanted[k]!r}"
