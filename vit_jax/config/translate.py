"""The task translate: what a run on pairs of sentences may state, and what its row computes of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ..errors import UserError, inside
from .captions import CaptionData
from .run import NO_DATA, OptimConfig, RunConfig
from .sentences import LEAST, SentenceData, numbered_words, size_of_side
from .transformer import TransformerConfig
from .vocabulary import TRAINED


def check_sentences(model: TransformerConfig, data: SentenceData, run: RunConfig) -> None:
    """Raise UserError naming the first invalid field of a run on pairs of sentences."""
    if not model.encoder_depth:
        raise UserError("model.encoder_depth is 0, but sources are words, which need an encoder: give 1 or more")
    n = max(1, model.source_vocabulary, model.target_vocabulary, model.outputs)  # for sizes that data will determine
    sizes: dict[str, Any] = {name: getattr(model, name) or n for name in model.marked("from_data")}
    with inside("model"):
        replace(model, **sizes).check()
    if not data.lengths or list(data.lengths) != sorted(set(data.lengths)):
        raise UserError(f"data.lengths is {list(data.lengths)}: give ascending numbers")
    check_tokenizer(data)
    if data.tokens < data.lengths[-1]:
        raise UserError(
            f"data.tokens is {data.tokens}, which is less than one sentence of {data.lengths[-1]} tokens, "
            f"the last of data.lengths: give at least {data.lengths[-1]}"
        )
    if 0 < model.max_length < data.lengths[-1]:
        raise UserError(
            f"model.max_length is {model.max_length} but the last of data.lengths is {data.lengths[-1]}: "
            "raise one or lower the other"
        )
    if not model.causal:
        raise UserError("model.causal is False, so a token could attend to the ones that it predicts: set it to True")


def check_tokenizer(data: SentenceData | CaptionData) -> None:
    """Raise UserError naming the first invalid field of a run's tokenizer."""
    if not data.tokenizer:
        raise UserError("data.tokenizer is empty: give words, bpe, unigram or the folder of a tokenizer")
    if data.tokenizer in TRAINED and data.vocabulary < LEAST:
        raise UserError(
            f"data.vocabulary is {data.vocabulary}, but a tokenizer of {data.tokenizer} begins with all bytes: "
            f"give at least {LEAST}"
        )


def untrained_sentences(model: TransformerConfig) -> RunConfig:
    """A run with this network that was never trained."""
    longest = max(model.max_length, 2)
    data = SentenceData(source=NO_DATA, lengths=(longest,), tokens=max(longest, 768))
    return RunConfig("translate", model, data, optim=OptimConfig(name="sgd"))


def vocabulary_fits(value: Mapping[str, Any], model: TransformerConfig) -> bool:
    """Whether a vocabulary of both sides can belong to a network."""
    return model.outputs > 0 and (size_of_side(value["source"]), size_of_side(value["target"])) == (
        model.source_vocabulary,
        model.target_vocabulary,
    )


def default_vocabulary(model: TransformerConfig) -> tuple[dict[str, list[str]], str]:
    """(numbers as words, a note that says so) of a network whose file has no words. Raises UserError."""
    if not (model.source_vocabulary and model.target_vocabulary and model.outputs):
        raise UserError(
            "a run of the task translate has words, but this network takes or gives vectors; "
            "write it as FILE.safetensors"
        )
    sizes = {"source": model.source_vocabulary, "target": model.target_vocabulary}
    return {side: numbered_words(size) for side, size in sizes.items()}, "words are called by their ids"
