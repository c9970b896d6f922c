"""Weights that do not state everything that the use of their network takes, or that lack a part of it."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn, Self

from ..config.run import RunConfig
from ..errors import UserError
from ..machine.numerics import with_fixed_settings
from ..models.build import describe_network
from ..tasks.predictor import BATCH, Predictor
from ..tasks.table import task_spec
from ..tasks.translate.encoding import Encoded, encode, encodes
from ..text.older import OF_BYTES
from ..text.tokenizer import Tokenizer

OF_BYT5 = 384  # rows of its table


@dataclass(frozen=True, repr=False)
class BareNetwork(Predictor):
    """A network from weights that do not state everything that its use takes: its methods say what they lack.

    `model` can be called on normalised images, or on ids.
    """

    lacks: tuple[str, ...] = ()  # entries of the task's metadata
    notes: tuple[str, ...] = ()  # what its files state that is not used, a sentence each
    path: str = ""  # of the weights

    def __repr__(self) -> str:
        what = describe_network(self.run.model)
        return f"BareNetwork({what}; to be called as .model, its file lacks {', '.join(self.lacks)})"

    def refusal(self, ways: str, then: str = "") -> UserError:
        """Why it cannot be used as a whole."""
        path, run = self.path, self.run
        if "preprocess" in self.lacks:
            why = next((n for n in self.notes if "preprocessing" in n), "does not state how images are preprocessed")
            told = "the mean and std of the pixels in 0..1 that it was trained with (a number a channel, with commas)"
            return UserError(path, why, f"state that with {ways}, {told}{then}")
        if error := unusable(path, run, self.lacks):
            return error
        lacks = f"holds a {run.model.name} without its {', '.join(self.lacks)}"
        of_bytes = getattr(run.model, "source_vocabulary", 0) == OF_BYT5
        bytes_named = f'; of ByT5 that is a tokenizer_config.json with {{"tokenizer_class": "{OF_BYTES}"}}' * of_bytes
        remedy = f"give a run that was trained here, or put the files of its tokenizer beside it{bytes_named}"
        return UserError(path, lacks, remedy)

    def read(self, inputs: Sequence[Any]) -> Sequence[Any]:
        """It cannot be used."""
        self.refuse("")

    def whole(self) -> Self:
        """It cannot be used."""
        self.refuse("")

    def refuse(self, what: str) -> NoReturn:
        """Say which part it lacks for any use. Raises UserError."""
        raise self.refusal("vit_jax.load(..., fields={'mean': [...], 'std': [...]})")


@dataclass(frozen=True, repr=False)
class TextEncoder(BareNetwork):
    """An encoder of texts that writes none: it is alone (T5EncoderModel), or a head or the tokenizer is lacking."""

    source: Tokenizer | None = None  # of texts, where its files lie beside the weights
    pad: int | None = None  # the id of padding, where it is stated

    def __repr__(self) -> str:
        takes = "ids" if self.source is None else "texts or ids"
        return f"TextEncoder({describe_network(self.run.model)}; encode takes {takes})"

    @with_fixed_settings
    def encode(self, inputs: Any, mask: Any = None, length: int = 0, cut: bool = False, batch: int = BATCH) -> Encoded:
        """As `Translator.encode`."""
        return encode(self.model, inputs, self.source, self.pad, mask=mask, length=length, cut=cut, batch=batch)


def unusable(path: str, run: RunConfig, names: Iterable[str]) -> UserError | None:
    """The error where a network lacks a part, without which these entries of its metadata are of no use; else None."""
    for lack in filter(None, (task_spec(run.task).metadata[name].part_lacking(run.model) for name in names)):
        train = (
            f", or train one with `init {shlex.quote(path)}` and `new_head True`"
            if getattr(run.model, "decoder_depth", 1)
            else ""
        )
        vectors = f"; vit_jax.load({path!r}).encode(texts) gives the encoder's vectors" if encodes(run.model) else ""
        remedy = f"give weights that have it{train}{vectors}"
        return UserError(path, f"holds a {run.model.name} without {lack}", remedy)
    return None
