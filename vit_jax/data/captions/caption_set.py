"""What all sets of captions have in common, whatever they describe: words, splits, identity."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ...errors import Field, UserError
from ...files.digests import text_digest
from ...text.record import record_one
from ...text.tokenizer import Tokenizer
from ..base import same_content
from ..folds import Positives, hold_out_groups
from ..listing import Listing
from ..order import TEST, VALIDATION, Order, count_taken, hold_out

if TYPE_CHECKING:
    from ..images.blocks import BlockOrder


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

    def order(self, batch: int, seed: int, batches: int = 0) -> Order | BlockOrder:
        """The order of training."""
        return Order(count_taken(len(self.splits["train"]), batch, batches), batch, seed)


def hold_out_images(
    train: np.ndarray,
    shares: Mapping[str, float],
    there: Container[str],
    seed: int,
    what: str = "images",
    blocks: np.ndarray | None = None,
) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Hold out test and validation from train, image by image, where the source lacks them: train int [n], blocks int
    [all images] -> (the images that stay, {split: those that it gets}).
    """
    found: dict[str, np.ndarray] = {}
    alike = Positives(np.zeros(0, np.int64), np.zeros(0, np.int64))  # no image has what others have not
    for name, salt in (("test", (TEST,)), ("validation", (VALIDATION, seed))):
        share = shares[name]
        if not share or name in there:
            continue
        if blocks is None:
            stay, held = hold_out(np.zeros(len(train), np.int64), share, *salt)
        else:
            stay, held = hold_out_groups(len(train), alike, blocks[train], share, *salt)
        if not len(held):
            one = "" if blocks is None else ": they are one block, which blocks hold out whole"
            raise UserError(
                Field(f"data.{name}"),
                f"{share} of {len(train)} {what} leaves {name} empty{one}",
                f"give {'--data.order global' if one else 'a larger share'}, or 0 for no such split",
            )
        train, found[name] = train[stay], train[held]
    return train, found


def identity_of(name: str, vocabulary: Tokenizer, splits: Mapping[str, Any], content: Sequence[Any]) -> dict[str, Any]:
    """What `CaptionSet.identity` is."""
    return {
        "name": name,
        "sizes": {each: len(split) for each, split in splits.items()},
        "vocabulary": text_digest(vocabulary.kept),
        "content": text_digest(list(content)),
    }
