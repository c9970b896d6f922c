"""The tasks, one `TaskRow` each: what help, presets, runs and convert need to know of a task without jax.

What a task's run may state is checked in classify.py, distil.py, translate.py and caption.py; what it computes is in
vit_jax/tasks. To add a task, write a row here, its check in a file beside this one, a class there, and config classes
for its data and augmentation if they have fields of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from ..errors import UserError
from . import captions, images, sentences
from .augmentation import ImageAugment
from .caption import check_captions, check_features, default_words, untrained_captions
from .captions import CaptionData, are_in_files, are_words, other_caption_words
from .classify import check_classes, prepared_images, quiet_images, untrained_classes
from .distil import DistilLoss, check_distil, check_teacher
from .features import FeatureData
from .fields import are_texts
from .images import ImageData, numbered_classes, other_classes
from .nearest import nearest
from .network import NetworkConfig, Teacher
from .networks import NETWORKS
from .preprocessing import PREPARED, fits_network, is_preprocess
from .run import AugmentConfig, DataConfig, LossConfig, RunConfig
from .sentences import (
    SentenceData,
    beside_weights,
    from_its_folder,
    is_in_files,
    is_vocabulary,
    other_words,
    size_of_side,
)
from .translate import check_sentences, default_vocabulary, untrained_sentences, vocabulary_fits


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

    network: str  # the key of its network in NETWORKS
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
    given: str = ""  # the data.source of a run whose data Python gave; empty: the task takes none
    pipeline: str = ""  # what the Hugging Face Hub calls it, where the network does not tell (NetworkConfig.pipeline)
    # (run, its folder) -> the run, but it reads there what the folder keeps of its data: a tokenizer.
    from_its_folder: Callable[[RunConfig, Path], RunConfig] = lambda run, folder: run
    # (the folder of given weights) -> {field: value} of a run that starts from them, by what lies there: a tokenizer.
    beside_weights: Callable[[Path], dict[str, Any]] = lambda folder: {}


TASKS: dict[str, TaskRow] = {
    "classify": TaskRow(
        network="vit",
        data=ImageData,
        augment=ImageAugment,
        check=check_classes,
        quiet=quiet_images,
        takes="files",
        headlines={"accuracy": "accuracy", "accuracy_top5": "top-5", "f1_macro": "f1", "loss": "loss"},
        metadata={
            "preprocess": MetadataEntry(is_preprocess, fits=lambda value, model: fits_network(value, model.pixels())),
            "class_names": MetadataEntry(
                are_texts,
                fits=lambda value, model: len(value) == model.classes,
                default=lambda model: (numbered_classes(model.classes), "classes are called by their numbers"),
                conflict=other_classes,
                of_head=True,
            ),
        },
        untrained=untrained_classes,
        prepared=PREPARED,
        prepared_as=prepared_images,
        losses=("cross_entropy", "binary"),
        given=images.GIVEN,
    ),
    "translate": TaskRow(
        network="transformer",
        data=SentenceData,
        augment=AugmentConfig,
        check=check_sentences,
        quiet=lambda run: replace(run, model=run.model.without_dropout()),
        takes="texts",
        headlines={
            **{"exact_match": "exact match", "bleu": "BLEU", "chrf": "chrF", "accuracy": "accuracy"},
            **{"perplexity": "perplexity", "loss": "loss"},
        },
        metadata={
            "vocabulary": MetadataEntry(
                is_vocabulary, vocabulary_fits, default_vocabulary, other_words, in_files=is_in_files
            )
        },
        untrained=untrained_sentences,
        given=sentences.GIVEN,
        pipeline="translation",
        from_its_folder=from_its_folder,
        beside_weights=beside_weights,
    ),
    "caption": TaskRow(
        network="captioner",
        data=CaptionData,
        augment=ImageAugment,
        check=check_captions,
        quiet=quiet_images,
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
            "preprocess": MetadataEntry(is_preprocess, fits=lambda value, model: fits_network(value, model.pixels())),
            "words": MetadataEntry(
                are_words,
                fits=lambda value, model: size_of_side(value) == model.text.target_vocabulary == model.text.outputs,
                default=default_words,
                conflict=other_caption_words,
                in_files=are_in_files,
            ),
        },
        untrained=untrained_captions,
        prepared=PREPARED,
        prepared_as=prepared_images,
        given=captions.GIVEN,
        from_its_folder=from_its_folder,
        beside_weights=beside_weights,
    ),
}
TASKS["caption-features"] = replace(
    TASKS["caption"],
    data=FeatureData,
    augment=AugmentConfig,
    check=check_features,
    quiet=lambda run: replace(run, model=run.model.without_dropout()),
    takes="vectors",
    metadata={"words": TASKS["caption"].metadata["words"]},
    prepared=(),
    prepared_as=lambda metadata, stated: {},
    given="",
    from_its_folder=lambda run, folder: run,
    beside_weights=lambda folder: {},
)
TASKS["distil"] = replace(TASKS["classify"], check=check_distil, loss=DistilLoss, teacher=check_teacher)
TASKS["classify-resnet"] = replace(
    TASKS["classify"], network="resnet", untrained=lambda model: untrained_classes(model, "classify-resnet")
)


def task_row(name: str) -> TaskRow:
    """The row of a task. Raises UserError with similar names if there is none."""
    if name not in TASKS:
        raise UserError(f"the task {name!r} is not known to this version of vit-jax{nearest(name, list(TASKS))}")
    return TASKS[name]


def network_row(task: str) -> type[NetworkConfig]:
    """The config class of the network that a task trains. Raises UserError on an unknown task."""
    return NETWORKS[task_row(task).network]


def untrained(model: NetworkConfig) -> RunConfig:
    """A run with this network that was never trained, of the first task that trains such networks.

    Raises UserError if no task does.
    """
    for row in TASKS.values():
        if NETWORKS[row.network] is type(model):
            return row.untrained(model)
    raise UserError(f"no task of this version of vit-jax trains a {model.name}; write it as FILE.safetensors")


def metadata_checks() -> dict[str, Callable[[Any], bool]]:
    """{name of a metadata entry: whether a JSON value has the form that some task has under this name}."""
    checks: dict[str, list[Callable[[Any], bool]]] = {}
    for row in TASKS.values():
        for name, entry in row.metadata.items():
            checks.setdefault(name, []).append(entry.valid)
    return {name: _any_of(some) for name, some in checks.items()}


def _any_of(checks: list[Callable[[Any], bool]]) -> Callable[[Any], bool]:
    return lambda value: any(check(value) for check in checks)
