"""The spec of caption, and what it has in common with that of captions of vectors."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar

from ...augmentation.config import ImageAugment
from ...config.network import NetworkConfig
from ...config.outputs import WORDS
from ...config.run import NO_DATA, OptimConfig, RunConfig
from ...data.captions.config import SHAPES, CaptionData, other_caption_words
from ...data.texts.config import is_side, numbered_words, size_of_side
from ...errors import Field, UserError
from ...models.captioner_config import CaptionerConfig
from ...text.record import make_one, record_one
from ..image_spec import ImageSpec, check_images
from ..spec import MetadataEntry, Shape, StandIn, TaskSpec, check_length, vocabulary_of, with_sizes
from ..translate.spec import check_decoder, check_network, check_tokenizer


class Words(MetadataEntry[CaptionerConfig]):
    """The words of captions: a list, or of other tokenizers {"size": ids, "tokenizer": digest of its files}."""

    def valid(self, value: Any) -> bool:
        return is_side(value)

    def fits(self, value: Any, model: CaptionerConfig) -> bool:
        return size_of_side(value) == model.text.target_vocabulary == model.text.outputs

    def default(self, model: CaptionerConfig) -> tuple[list[str], str]:
        """Numbers as words -> (the words, a note)."""
        if not (model.text.target_vocabulary and model.text.outputs):
            raise UserError(
                "a run of the task caption has words, but the text half of this network takes or gives vectors",
                remedy="write it as FILE.safetensors",
            )
        return numbered_words(model.text.target_vocabulary), "words are called by their ids"

    def conflict(self, given: Any, wanted: Any) -> str:
        """A clause naming the first difference."""
        return other_caption_words(given, wanted)

    def in_files(self, value: Any) -> bool:
        return isinstance(value, Mapping)


def parts(run: RunConfig) -> tuple[CaptionerConfig, CaptionData, ImageAugment]:
    """The network, the data and the augmentation of a run that captions images."""
    return run.model, run.data, run.augment  # type: ignore[return-value]


class CaptioningSpec(TaskSpec, abstract=True):
    """The base of both: whatever they describe, a captioner writes."""

    network = CaptionerConfig
    main_metrics: ClassVar = {
        "exact_match": "exact match",
        "cider_d": "CIDEr-D",
        "bleu4": "BLEU-4",
        "accuracy": "accuracy",
        "loss": "loss",
        "attention_in_box": "attention in box",
        "uniform_in_box": "of a uniform map",
    }
    metadata: ClassVar[Mapping[str, MetadataEntry[Any]]] = {"words": Words()}

    @classmethod
    def untrained(cls, task: str, model: Any) -> RunConfig:
        """A run with this network that was never trained, on captions as long as it takes."""
        data: Any = cls.data  # with a length
        data = data(source=NO_DATA, length=max(model.text.max_length, 2))
        return RunConfig(task, model, data, cls.augment(), optim=OptimConfig(name="sgd"))


def stand_in_captions(
    run: RunConfig, size: int, inputs: dict[str, Shape], longest: int, length: int, metadata: dict[str, Any]
) -> StandIn:
    """What stands for captions."""
    run = with_sizes(run, dict.fromkeys(run.model.marked("from_data"), size))
    c, n = parts(run)[0], check_length(length, longest, "data.length")
    batch = {**inputs, "target": ((run.batch, n - 1), "int32")}
    return StandIn(run, {**metadata, "words": numbered_words(c.text.target_vocabulary)}, batch, batch, n)


class CaptionSpec(CaptioningSpec, ImageSpec):
    """Images to captions."""

    data = CaptionData
    computes = "vit_jax.tasks.caption.learn:Caption"
    unit = "images"
    metadata: ClassVar = {**ImageSpec.metadata, **CaptioningSpec.metadata}

    @classmethod
    def trains(cls, model: NetworkConfig) -> bool:
        """Captioners that see images."""
        return isinstance(model, CaptionerConfig) and model.encoder is not None

    @classmethod
    def stand_in(cls, run: RunConfig, length: int = 0) -> StandIn:
        """Images with captions of one length, of scenes that are drawn here in their words."""
        from ...data.captions.shapes import WORDS as OF_SHAPES
        from ...text.vocabulary import closed_vocabulary

        c, data, _ = parts(run)
        drawn = data.source == SHAPES and data.tokenizer == WORDS
        size = len(closed_vocabulary(OF_SHAPES)) if drawn else vocabulary_of(data)
        images: dict[str, Shape] = {"image": ((run.batch, *(c.pixels() or ())), "uint8")}
        channels = [0.5] * c.vit.channels
        metadata = {"preprocess": {"mean": channels, "std": channels}}
        found = stand_in_captions(run, size, images, data.length, length, metadata)
        if not drawn:
            return found
        touched = ((run.batch, found.length - 1, math.prod(c.vit.grid)), "bool")
        return replace(found, examples={**found.batch, "touched": touched})

    @classmethod
    def check(cls, run: RunConfig) -> None:
        model, data, augment = parts(run)
        check_network(model, max(1, model.text.target_vocabulary, model.text.outputs))
        if model.memory == "vectors":
            raise UserError(Field("model.memory"), "is vectors, but the data has images", "set it to tokens or patches")
        check_images(model.vit, run)
        for name in ("mixup", "cutmix"):
            if value := getattr(augment, name):
                raise UserError(Field(f"augment.{name}"), f"is {value}, but captions cannot be mixed", "set it to 0")
        if augment.repeats != 1:
            raise UserError(
                Field("augment.repeats"), f"is {augment.repeats}, which the task caption does not have", "leave it at 1"
            )
        if augment.flip and data.source == SHAPES:
            raise UserError(
                Field("augment.flip"), "is True, but captions of data.source shapes say what is left", "set it to False"
            )
        check_tokenizer(data)
        check_decoder(model.text, "model.text", data.length, "data.length")

    @classmethod
    def metadata_with_weights(cls, run: RunConfig) -> dict[str, Any]:
        data = parts(run)[1]
        return record_one("words", make_one(data.tokenizer, data.vocabulary, ()))
