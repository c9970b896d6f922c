"""The tasks, one `TaskRow` each: what help, presets, runs and convert need to know of a task without jax.

The computation of a task is in vit_jax/tasks, under the same name. To add a task, write a row here, a class there, and
config classes for its data and augmentation if they have fields of their own.
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, cast

from ..errors import UserError
from . import captions, images, sentences
from .augmentation import ImageAugment, check_augment
from .captioner import CaptionerConfig
from .captions import SHAPES, CaptionData, are_in_files, are_words, other_caption_words
from .distil import DistilLoss, Teacher
from .dotted import leaves, replaced, value_at
from .features import FeatureData
from .fields import ModelConfig, are_texts, pair
from .images import ImageData, numbered_classes, other_classes
from .nearest import nearest
from .networks import NETWORKS, NetworkRow, network_of, pixels
from .preprocessing import PREPARED, fits_network, is_preprocess, prepared_as, preprocess_fields
from .resnet import ResNetConfig
from .run import AugmentConfig, DataConfig, LossConfig, OptimConfig, RunConfig
from .sentences import (
    LEAST,
    TRAINED,
    SentenceData,
    beside_weights,
    from_its_folder,
    is_in_files,
    is_vocabulary,
    numbered_words,
    other_words,
    size_of_side,
)
from .transformer import TransformerConfig
from .vit import ViTConfig

NO_DATA = "unknown"  # the data.source of a run that was made from weights only


@dataclass(frozen=True)
class MetadataEntry:
    """One entry of a run's metadata: a JSON value in config.json without which the network cannot be used."""

    valid: Callable[[Any], bool]  # whether a JSON value has the right form
    fits: Callable[[Any, Any], bool] = lambda value, model: True  # whether the value can belong to this network
    # model -> (a value for a network whose file does not state it, a note for the user); None: there is no default.
    default: Callable[[Any], tuple[Any, str]] | None = None
    # (value of given weights, value of the run that starts from them) -> a clause naming a difference that would change
    # the meaning of inputs or outputs; else empty.
    conflict: Callable[[Any, Any], str] = lambda given, wanted: ""
    of_head: bool = False  # whether only the head depends on it, so that --new-head resolves a conflict
    in_files: Callable[[Any], bool] = lambda value: False  # whether a value is of no use without files of its run


@dataclass(frozen=True)
class TaskRow:
    """One task."""

    network: str  # the key of its network's row in NETWORKS
    data: type[DataConfig]
    augment: type[AugmentConfig]
    check: Callable[[Any, Any, RunConfig], None]  # (model, data, run): raises UserError naming the first invalid field
    quiet: Callable[[RunConfig], RunConfig]  # the run without augmentation and dropout, for overfit_batches
    takes: Literal["files", "texts", "vectors"]  # the inputs of predict: of images, or of vectors, the files
    headlines: Mapping[str, str]  # {metric: its name in print}, in order of importance
    metadata: Mapping[str, MetadataEntry]  # {name: entry} of what config.json has of the data
    untrained: Callable[[Any], RunConfig]  # model -> a run with this network that was never trained
    # Fields of data and augment, "data.fit", that determine how inputs are prepared, and their values for a run that
    # starts from weights: (metadata that these state, fields that the user states) -> {field: value}.
    prepared: tuple[str, ...] = ()
    prepared_as: Callable[[Mapping[str, Any], Mapping[str, Any]], dict[str, Any]] = lambda metadata, stated: {}
    loss: type[LossConfig] = LossConfig
    losses: tuple[str, ...] = ("cross_entropy",)  # the values of loss.name that it has
    # Of a task whose loss has a teacher: (teacher, run, the run's vit_jax.data.Data, None before that is opened) raises
    # UserError where that teacher cannot teach that run.
    teacher: Callable[[Teacher, RunConfig, Any], None] | None = None
    # The examples that augmentation mixes with each other, neighbours in a batch, and the bytes of a prepared example.
    together: Callable[[RunConfig], int] = lambda run: 1
    example_bytes: Callable[[RunConfig], int] = lambda run: 0
    given: str = ""  # the data.source of a run whose data Python gave; empty: the task takes none
    # (run, its folder) -> the run, but it reads there what the folder keeps of its data: a tokenizer.
    from_its_folder: Callable[[RunConfig, Path], RunConfig] = lambda run, folder: run
    # (the folder of given weights) -> {field: value} of a run that starts from them, by what lies there: a tokenizer.
    beside_weights: Callable[[Path], dict[str, Any]] = lambda folder: {}


def without_dropout(model: ModelConfig) -> ModelConfig:
    """The network's config with all dropout rates and drop_path at 0."""
    return replaced(model, {name: 0.0 for name in leaves(type(model)) if name.endswith(("dropout", "drop_path"))})


# ---------------------------------------------------------------------------------------- classify


def _check_classes(model: ViTConfig | ResNetConfig, data: ImageData, run: RunConfig) -> None:
    network_of(model).check(replace(model, classes=model.classes or 1))
    _check_images(model, run)


def _check_images(model: ViTConfig | ResNetConfig, run: RunConfig) -> None:
    """Check the augmentation and normalisation of the images that a network takes."""
    augment: Any = run.augment  # the row's own class
    check_augment(augment, model.channels, run.batch)
    h, w = pair(model.image)
    fields = preprocess_fields(h, w, model.channels)
    for name in ("mean", "std"):
        values, (valid, must) = getattr(augment, name), fields[name]
        if augment.normalize != "given" and values:
            raise UserError(
                f"augment.{name} is {_shown(values)} but augment.normalize is {augment.normalize}: "
                f"set augment.normalize to given, or leave augment.{name} out"
            )
        if augment.normalize == "given" and not valid(values):
            raise UserError(
                f"augment.{name} is {_shown(values) or 'empty'} but augment.normalize is given: give {must}"
            )


def _shown(value: Any) -> str:
    """The value of a field as it is typed after its flag."""
    return " ".join(map(str, value)) if isinstance(value, tuple) else str(value)


def _quiet_images(run: RunConfig) -> RunConfig:
    augment: Any = run.augment  # the row's own class
    still = ImageAugment(normalize=augment.normalize, mean=augment.mean, std=augment.std)
    return replace(run, model=without_dropout(run.model), augment=still)


def _image_bytes(run: RunConfig) -> int:
    augment = cast(Any, run.augment)  # the row's own class
    return math.prod(pixels(run.model) or ()) * (4 if augment.mixup else 1)  # mixup makes float32 of uint8


def _prepared_images(metadata: Mapping[str, Any], stated: Mapping[str, Any]) -> dict[str, Any]:
    return prepared_as(metadata["preprocess"], stated) if "preprocess" in metadata else {}


def _untrained_classes(model: ModelConfig, task: str = "classify") -> RunConfig:
    return RunConfig(task, model, ImageData(source=NO_DATA), ImageAugment(), OptimConfig(name="sgd"))


# ------------------------------------------------------------------------------------------ distil


def _check_distil(model: ViTConfig, data: ImageData, run: RunConfig) -> None:
    _check_classes(model, data, run)
    loss: Any = run.loss  # the row's own class
    if not model.distill_head:
        raise UserError(
            "model.distill_head is False, but the task distil trains that head: "
            "set model.distill_token and model.distill_head to True"
        )
    if model.pool not in ("cls", "cls_distill"):
        raise UserError(
            f"model.pool is {model.pool}, but the task distil trains a head of the class token and one of the "
            "distillation token: set model.pool to cls, to predict by the first, or to cls_distill, by both"
        )
    if not loss.temperature > 0:
        raise UserError(f"loss.temperature is {loss.temperature}: give a positive number")
    if not 0 <= loss.alpha <= 1:
        raise UserError(f"loss.alpha is {loss.alpha}: give a number from 0 to 1")
    if loss.hard and loss.divide_by_classes:
        raise UserError(
            "loss.divide_by_classes is True but loss.hard is True, which has no divergence to divide: set one of them"
        )


def _check_teacher(teacher: Teacher, run: RunConfig, data: Any) -> None:
    student, path = cast(ViTConfig, run.model), teacher.path
    if teacher.config is None:
        _check_logits(teacher, run, data)
        return
    c: Any = teacher.config
    if pixels(c) is None:
        raise UserError(f"teacher {path}: holds a {network_of(c).name}; give a network that classifies images")
    if not c.classes:
        raise UserError(f"teacher {path}: has no head and so no classes; give a network that classifies images")
    if student.classes not in (0, c.classes):
        raise UserError(
            f"teacher {path}: has {c.classes} classes and this run has {student.classes}; "
            "give a teacher of the same classes"
        )
    names = data.metadata()["class_names"] if data else ()
    if clause := other_classes(teacher.metadata.get("class_names", ()), names):
        raise UserError(f"teacher {path}: {clause}; give a teacher of the same classes in the same order")
    if c.channels != student.channels:
        raise UserError(
            f"teacher {path}: takes images of {c.channels} channels and this run has {student.channels}; "
            "give a teacher of as many"
        )
    if "preprocess" not in teacher.metadata:
        raise UserError(
            f"teacher {path}: does not state how images are preprocessed; add the mean and std of the pixels in 0..1 "
            f"that it was trained with by `python -m convert {shlex.quote(path)} X.safetensors --set mean=0.5 "
            "--set std=0.5`, then give X.safetensors here"
        )


def _check_logits(teacher: Teacher, run: RunConfig, data: Any) -> None:
    path, (images, classes) = teacher.path, teacher.arrays["logits"].shape
    student, own, still = cast(ViTConfig, run.model), vars(run.augment), vars(_quiet_images(run).augment)
    # Copies of an image are the image, and overfit_batches does not augment.
    drawn = [name for name, value in own.items() if value != still[name] and name != "repeats"]
    if drawn and not run.overfit_batches:
        raise UserError(
            f"teacher {path}: holds logits of images without augmentation, but "
            f"{', '.join(f'augment.{name} is {_shown(own[name])}' for name in drawn)}: give the network itself, or set "
            f"{', '.join(f'augment.{name} to {_shown(still[name])}' for name in drawn)}"
        )
    if student.classes not in (0, classes):
        raise UserError(
            f"teacher {path}: has logits of {classes} classes and this run has {student.classes}; "
            "give those of a teacher of the same classes"
        )
    if data is None:
        return
    labels = data.splits["train"].source_labels
    if len(labels) != images:
        raise UserError(
            f"teacher {path}: has logits of {images} images and data.source {run.data.source} has {len(labels)} "
            "to train on, those that are held out included; give one row for each, in their order"
        )
    stated = labels if data.stands_in else teacher.arrays.get("labels", labels)
    if stated.shape != labels.shape or (stated != labels).any():
        raise UserError(
            f"teacher {path}: its labels are not those of data.source {run.data.source}; "
            "give logits of the same images in the same order"
        )


# --------------------------------------------------------------------------------------- translate


def _check_sentences(model: TransformerConfig, data: SentenceData, run: RunConfig) -> None:
    if not model.encoder_depth:
        raise UserError("model.encoder_depth is 0, but sources are words, which need an encoder: give 1 or more")
    n = max(1, model.source_vocabulary, model.target_vocabulary, model.outputs)  # for sizes that data will determine
    sizes: dict[str, Any] = {name: getattr(model, name) or n for name in NETWORKS["transformer"].from_data}
    NETWORKS["transformer"].check(replace(model, **sizes))
    if not data.lengths or data.lengths[0] < 2 or list(data.lengths) != sorted(set(data.lengths)):
        raise UserError(f"data.lengths is {list(data.lengths)}: give ascending numbers of at least 2")
    _check_tokenizer(data)
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


def _check_tokenizer(data: SentenceData | CaptionData) -> None:
    if not data.tokenizer:
        raise UserError("data.tokenizer is empty: give words, bpe, unigram or the folder of a tokenizer")
    if data.tokenizer in TRAINED and data.vocabulary < LEAST:
        raise UserError(
            f"data.vocabulary is {data.vocabulary}, but a tokenizer of {data.tokenizer} begins with all bytes: "
            f"give at least {LEAST}"
        )


def _untrained_sentences(model: TransformerConfig) -> RunConfig:
    longest = max(model.max_length, 2)
    data = SentenceData(source=NO_DATA, lengths=(longest,), tokens=max(longest, 768))
    return RunConfig("translate", model, data, optim=OptimConfig(name="sgd"))


def _vocabulary_fits(value: Mapping[str, Any], model: TransformerConfig) -> bool:
    return model.outputs > 0 and (size_of_side(value["source"]), size_of_side(value["target"])) == (
        model.source_vocabulary,
        model.target_vocabulary,
    )


def _default_vocabulary(model: TransformerConfig) -> tuple[dict[str, list[str]], str]:
    if not (model.source_vocabulary and model.target_vocabulary and model.outputs):
        raise UserError(
            "a run of the task translate has words, but this network takes or gives vectors; "
            "write it as FILE.safetensors"
        )
    sizes = {"source": model.source_vocabulary, "target": model.target_vocabulary}
    return {side: numbered_words(size) for side, size in sizes.items()}, "words are called by their ids"


# ----------------------------------------------------------------------------------------- caption


def _check_captions(model: CaptionerConfig, data: CaptionData, run: RunConfig) -> None:
    row, augment = NETWORKS["captioner"], cast(Any, run.augment)  # the row's own class
    n = max(1, model.text.target_vocabulary, model.text.outputs)  # for sizes that data will determine
    row.check(replaced(model, {name: value_at(model, name) or n for name in row.from_data}))
    if model.memory == "vectors":
        raise UserError("model.memory is vectors, but the data has images: set it to tokens or patches")
    if not model.text.causal:
        raise UserError(
            "model.text.causal is False, so a token could attend to the ones that it predicts: set it to True"
        )
    _check_images(model.vit, run)
    for name in ("mixup", "cutmix"):
        if value := getattr(augment, name):
            raise UserError(f"augment.{name} is {value}, but captions cannot be mixed: set it to 0")
    if augment.repeats != 1:
        raise UserError(f"augment.repeats is {augment.repeats}, which the task caption does not have: leave it at 1")
    if augment.flip and data.source == SHAPES:
        raise UserError("augment.flip is True, but captions of data.source shapes say what is left: set it to False")
    if data.length < 2:
        raise UserError(f"data.length is {data.length}: give at least 2")
    _check_tokenizer(data)
    if data.drawn < 1:
        raise UserError(f"data.drawn is {data.drawn}: give a positive number")
    if 0 < model.text.max_length < data.length:
        raise UserError(
            f"model.text.max_length is {model.text.max_length} but data.length is {data.length}: "
            "raise one or lower the other"
        )


def _check_features(model: CaptionerConfig, data: FeatureData, run: RunConfig) -> None:
    """Raise UserError naming the first invalid field of a run on vectors with captions."""
    row = NETWORKS["captioner"]
    n = max(1, model.text.target_vocabulary, model.text.outputs)  # for sizes that data will determine
    row.check(replaced(model, {name: value_at(model, name) or n for name in row.from_data}))
    if model.memory != "vectors":
        raise UserError(f"model.memory is {model.memory}, but the data has vectors of pictures: set it to vectors")
    if not model.text.causal:
        raise UserError(
            "model.text.causal is False, so a token could attend to the ones that it predicts: set it to True"
        )
    if data.length < 2:
        raise UserError(f"data.length is {data.length}: give at least 2")
    if 0 < model.text.max_length < data.length:
        raise UserError(
            f"model.text.max_length is {model.text.max_length} but data.length is {data.length}: "
            "raise one or lower the other"
        )


def _untrained_captions(model: CaptionerConfig) -> RunConfig:
    length = max(model.text.max_length, 2)
    if model.encoder is None:
        features, still = FeatureData(source=NO_DATA, length=length), AugmentConfig()
        return RunConfig("caption-features", model, features, still, optim=OptimConfig(name="sgd"))
    data = CaptionData(source=NO_DATA, length=length)
    return RunConfig("caption", model, data, ImageAugment(), optim=OptimConfig(name="sgd"))


def _default_words(model: CaptionerConfig) -> tuple[list[str], str]:
    if not (model.text.target_vocabulary and model.text.outputs):
        raise UserError(
            "a run of the task caption has words, but the text half of this network takes or gives vectors; "
            "write it as FILE.safetensors"
        )
    return numbered_words(model.text.target_vocabulary), "words are called by their ids"


TASKS: dict[str, TaskRow] = {
    "classify": TaskRow(
        network="vit",
        data=ImageData,
        augment=ImageAugment,
        check=_check_classes,
        quiet=_quiet_images,
        together=lambda run: 2 if cast(ImageAugment, run.augment).mixes else 1,
        example_bytes=_image_bytes,
        takes="files",
        headlines={"accuracy": "accuracy", "accuracy_top5": "top-5", "f1_macro": "f1", "loss": "loss"},
        metadata={
            "preprocess": MetadataEntry(is_preprocess, fits=lambda value, model: fits_network(value, pixels(model))),
            "class_names": MetadataEntry(
                are_texts,
                fits=lambda value, model: len(value) == model.classes,
                default=lambda model: (numbered_classes(model.classes), "classes are called by their numbers"),
                conflict=other_classes,
                of_head=True,
            ),
        },
        untrained=_untrained_classes,
        prepared=PREPARED,
        prepared_as=_prepared_images,
        losses=("cross_entropy", "binary"),
        given=images.GIVEN,
    ),
    "translate": TaskRow(
        network="transformer",
        data=SentenceData,
        augment=AugmentConfig,
        check=_check_sentences,
        quiet=lambda run: replace(run, model=without_dropout(run.model)),
        takes="texts",
        headlines={
            **{"exact_match": "exact match", "bleu": "BLEU", "chrf": "chrF", "accuracy": "accuracy"},
            **{"perplexity": "perplexity", "loss": "loss"},
        },
        metadata={
            "vocabulary": MetadataEntry(
                is_vocabulary, _vocabulary_fits, _default_vocabulary, other_words, in_files=is_in_files
            )
        },
        untrained=_untrained_sentences,
        given=sentences.GIVEN,
        from_its_folder=from_its_folder,
        beside_weights=beside_weights,
    ),
    "caption": TaskRow(
        network="captioner",
        data=CaptionData,
        augment=ImageAugment,
        check=_check_captions,
        quiet=_quiet_images,
        example_bytes=_image_bytes,
        takes="files",
        headlines={
            "exact_match": "exact match",
            "cider_d": "CIDEr-D",
            "bleu4": "BLEU-4",
            "accuracy": "accuracy",
            "loss": "loss",
            "attention_in_box": "attention in box",
            "uniform_in_box": "of a uniform map",
        },
        metadata={
            "preprocess": MetadataEntry(is_preprocess, fits=lambda value, model: fits_network(value, pixels(model))),
            "words": MetadataEntry(
                are_words,
                fits=lambda value, model: size_of_side(value) == model.text.target_vocabulary == model.text.outputs,
                default=_default_words,
                conflict=other_caption_words,
                in_files=are_in_files,
            ),
        },
        untrained=_untrained_captions,
        prepared=PREPARED,
        prepared_as=_prepared_images,
        given=captions.GIVEN,
        from_its_folder=from_its_folder,
        beside_weights=beside_weights,
    ),
}
TASKS["caption-features"] = replace(
    TASKS["caption"],
    data=FeatureData,
    augment=AugmentConfig,
    check=_check_features,
    quiet=lambda run: replace(run, model=without_dropout(run.model)),
    example_bytes=lambda run: 4 * cast(Any, run.model).memory_width,
    takes="vectors",
    metadata={"words": TASKS["caption"].metadata["words"]},
    prepared=(),
    prepared_as=lambda metadata, stated: {},
    given="",
    from_its_folder=lambda run, folder: run,
    beside_weights=lambda folder: {},
)
TASKS["distil"] = replace(TASKS["classify"], check=_check_distil, loss=DistilLoss, teacher=_check_teacher)
TASKS["classify-resnet"] = replace(
    TASKS["classify"], network="resnet", untrained=lambda model: _untrained_classes(model, "classify-resnet")
)


def task_row(name: str) -> TaskRow:
    """The row of a task. Raises UserError with similar names if there is none."""
    if name not in TASKS:
        raise UserError(f"the task {name!r} is not known to this version of vit-jax{nearest(name, list(TASKS))}")
    return TASKS[name]


def network_row(task: str) -> NetworkRow:
    """The row of the network that a task trains. Raises UserError on an unknown task."""
    return NETWORKS[task_row(task).network]


def untrained(model: ModelConfig) -> RunConfig:
    """A run with this network that was never trained, of the first task that trains such networks.

    Raises UserError if no task does.
    """
    for row in TASKS.values():
        if NETWORKS[row.network].config is type(model):
            return row.untrained(model)
    raise UserError(
        f"no task of this version of vit-jax trains a {type(model).__name__.removesuffix('Config')}; "
        "write it as FILE.safetensors"
    )


def metadata_checks() -> dict[str, Callable[[Any], bool]]:
    """{name of a metadata entry: whether a JSON value has the form that some task has under this name}."""
    checks: dict[str, list[Callable[[Any], bool]]] = {}
    for row in TASKS.values():
        for name, entry in row.metadata.items():
            checks.setdefault(name, []).append(entry.valid)
    return {name: _any_of(some) for name, some in checks.items()}


def _any_of(checks: list[Callable[[Any], bool]]) -> Callable[[Any], bool]:
    return lambda value: any(check(value) for check in checks)
