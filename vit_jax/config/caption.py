"""The tasks caption and caption-features: what runs on images, or on vectors, with captions may state."""

from __future__ import annotations

from typing import Any, cast

from ..errors import UserError, inside
from .augmentation import ImageAugment
from .captioner import CaptionerConfig
from .captions import SHAPES, CaptionData
from .classify import check_images
from .dotted import replaced, value_at
from .features import FeatureData
from .run import NO_DATA, AugmentConfig, OptimConfig, RunConfig
from .sentences import numbered_words
from .translate import check_tokenizer


def check_captions(model: CaptionerConfig, data: CaptionData, run: RunConfig) -> None:
    """Raise UserError naming the first invalid field of a run on images with captions."""
    augment = cast(Any, run.augment)  # the row's own class
    _check_network(model)
    if model.memory == "vectors":
        raise UserError("model.memory is vectors, but the data has images: set it to tokens or patches")
    _check_causal(model)
    check_images(model.vit, run)
    for name in ("mixup", "cutmix"):
        if value := getattr(augment, name):
            raise UserError(f"augment.{name} is {value}, but captions cannot be mixed: set it to 0")
    if augment.repeats != 1:
        raise UserError(f"augment.repeats is {augment.repeats}, which the task caption does not have: leave it at 1")
    if augment.flip and data.source == SHAPES:
        raise UserError("augment.flip is True, but captions of data.source shapes say what is left: set it to False")
    check_tokenizer(data)
    _check_longest(model, data)


def check_features(model: CaptionerConfig, data: FeatureData, run: RunConfig) -> None:
    """Raise UserError naming the first invalid field of a run on vectors with captions."""
    _check_network(model)
    if model.memory != "vectors":
        raise UserError(f"model.memory is {model.memory}, but the data has vectors of pictures: set it to vectors")
    _check_causal(model)
    _check_longest(model, data)


def _check_network(model: CaptionerConfig) -> None:
    """Check the network, with a number of words where the data will determine it."""
    n = max(1, model.text.target_vocabulary, model.text.outputs)
    with inside("model"):
        replaced(model, {name: value_at(model, name) or n for name in model.marked("from_data")}).check()


def _check_causal(model: CaptionerConfig) -> None:
    if not model.text.causal:
        raise UserError(
            "model.text.causal is False, so a token could attend to the ones that it predicts: set it to True"
        )


def _check_longest(model: CaptionerConfig, data: CaptionData | FeatureData) -> None:
    if 0 < model.text.max_length < data.length:
        raise UserError(
            f"model.text.max_length is {model.text.max_length} but data.length is {data.length}: "
            "raise one or lower the other"
        )


def untrained_captions(model: CaptionerConfig) -> RunConfig:
    """A run with this network that was never trained, of images or of vectors."""
    length = max(model.text.max_length, 2)
    if model.encoder is None:
        features, still = FeatureData(source=NO_DATA, length=length), AugmentConfig()
        return RunConfig("caption-features", model, features, still, optim=OptimConfig(name="sgd"))
    data = CaptionData(source=NO_DATA, length=length)
    return RunConfig("caption", model, data, ImageAugment(), optim=OptimConfig(name="sgd"))


def default_words(model: CaptionerConfig) -> tuple[list[str], str]:
    """(numbers as words, a note that says so) of a network whose file has no words. Raises UserError."""
    if not (model.text.target_vocabulary and model.text.outputs):
        raise UserError(
            "a run of the task caption has words, but the text half of this network takes or gives vectors; "
            "write it as FILE.safetensors"
        )
    return numbered_words(model.text.target_vocabulary), "words are called by their ids"
