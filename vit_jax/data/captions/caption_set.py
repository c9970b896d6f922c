"""What all sets of captions have in common, whatever they describe: words, splits, identity."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ...errors import Field, UserError
from ...files.digests import text_digest
from ...text.record import record_one
from ...text.tokenizer import Tokenizer
from ..base import same_content
from ..listing import Listing
from ..order import Order


@dataclass(frozen=True)
class CaptionSet:
    """A set of captions, as the `Data` of a run (see data/base.py)."""

    name: str
    vocabulary: Tokenizer
    splits: Mapping[str, Any]  # train, then validation, test and others where there are any
    identity: dict[str, Any]
    remarks: tuple[str, ...]

    @property
    def contents(self) -> str:
        """The size of the vocabulary, as printed."""
        return f"{len(self.vocabulary):,} ids"

    def same_as(self, recorded: dict[str, Any] | None) -> bool:
        """Whether a run that recorded this identity began with this data; None: not known, of a converted run."""
        return same_content(recorded, self.identity)

    @property
    def listings(self) -> dict[str, Listing]:
        """Not known of captions."""
        return {}

    def metadata(self) -> dict[str, Any]:
        """The words, for config.json."""
        return record_one("words", self.vocabulary)

    @property
    def sizes(self) -> dict[str, int]:
        """The size of the vocabulary, as fields of the network's config."""
        return {"text.target_vocabulary": len(self.vocabulary), "text.outputs": len(self.vocabulary)}

    def step_sizes(self, batch: int) -> dict[str, int]:
        """{the setting: examples of a training batch}, for the message if that cannot be divided."""
        return {f"batch {batch}": batch}

    def order(self, batch: int, seed: int, batches: int = 0) -> Order:
        """The order of training.

        Args:
            batch: captions in a step.
            seed: determines the order.
            batches: only the captions that fill so many batches are taken; 0: all.

        Raises:
            UserError: there are fewer captions than a batch needs.
        """
        n = min(len(self.splits["train"]), batches * batch or len(self.splits["train"]))
        if n < batch:
            raise UserError(Field("batch"), f"{batch} is larger than the training set of {n}", "lower --batch")
        return Order(n, batch, seed)


def identity_of(name: str, vocabulary: Tokenizer, splits: Mapping[str, Any], content: Sequence[Any]) -> dict[str, Any]:
    """What `CaptionSet.identity` is.

    Args:
        name: of the data.
        vocabulary: its tokenizer.
        splits: {name: split}.
        content: JSON values that are equal exactly if the data is.
    """
    return {
        "name": name,
        "sizes": {each: len(split) for each, split in splits.items()},
        "vocabulary": text_digest(vocabulary.kept),
        "content": text_digest(list(content)),
    }
