"""Every task as a row: what help, presets, runs and convert have to know of it without jax.

What a task computes is in vit_jax/tasks, under the same name. A new task is a row here, a class there, and where it
has fields of its own a config class beside.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from ..errors import UserError
from .fields import ModelConfig, are_texts
from .images import ImageAugment, ImageData, is_preprocess, numbered_classes, other_classes
from .nearest import nearest
from .networks import NETWORKS, NetworkRow
from .run import AugmentConfig, DataConfig, OptimConfig, RunConfig
from .sentences import SentenceData, is_vocabulary, numbered_words, other_words
from .transformer import TransformerConfig
from .vit import ViTConfig

NO_DATA = "unknown"  # the data.source of a run that was made of weights alone


@dataclass(frozen=True)
class Kept:
    """One thing that config.json keeps of a run's data, so that its network can be used without them."""

    right: Callable[[Any], bool]  # whether a JSON value is of the kind that was written
    fits: Callable[[Any, Any], bool] = lambda value, model: True  # whether it can be this network's
    # (a value for a network of which nobody knows it, how to say so); None: nobody can make it up.
    made_up: Callable[[Any], tuple[Any, str]] | None = None
    # (theirs, ours) -> a clause where starting from weights that had theirs gives outputs or inputs another meaning.
    clash: Callable[[Any, Any], str] = lambda theirs, ours: ""
    of_head: bool = False  # whether a new head settles that


@dataclass(frozen=True)
class TaskRow:
    """One task."""

    network: str  # its row in NETWORKS
    data: type[DataConfig]
    augment: type[AugmentConfig]
    check: Callable[
        [Any, Any, RunConfig], None
    ]  # (model, data, run): raises UserError naming the first field that cannot be
    quiet: Callable[[RunConfig], RunConfig]  # the run without augmentation and dropout: what overfitting trains
    takes: Literal["files", "texts"]  # what predict is given
    headlines: Mapping[str, str]  # {metric: what it is called}, the first ones first
    keeps: Mapping[str, Kept]  # what config.json keeps
    untrained: Callable[[Any], RunConfig]  # the run that says what a network is and was never trained


def without_dropout(model: ModelConfig) -> ModelConfig:
    """The network with nothing drawn at random."""
    rates: dict[str, Any] = {
        f.name: 0.0 for f in dataclasses.fields(model) if f.name.endswith("dropout") or f.name == "drop_path"
    }
    return replace(model, **rates)


# -------------------------------------------------------------------------------- classes of images


def _check_classes(model: ViTConfig, data: ImageData, run: RunConfig) -> None:
    NETWORKS["vit"].check(replace(model, classes=model.classes or 1))
    augment: Any = run.augment  # the row's own class
    if augment.crop_padding < 0:
        raise UserError(f"augment.crop_padding is {augment.crop_padding}: give 0 or more")


def _quiet_images(run: RunConfig) -> RunConfig:
    augment: Any = run.augment  # the row's own class
    return replace(run, model=without_dropout(run.model), augment=ImageAugment(normalize=augment.normalize))


def _untrained_classes(model: ViTConfig) -> RunConfig:
    return RunConfig("classify", model, ImageData(source=NO_DATA), ImageAugment(), OptimConfig(name="sgd"))


# -------------------------------------------------------------------------- sentences from sentences


def _check_sentences(model: TransformerConfig, data: SentenceData, run: RunConfig) -> None:
    n = max(1, model.source_vocabulary, model.target_vocabulary, model.outputs)  # stands for what the data will decide
    sizes: dict[str, Any] = {name: getattr(model, name) or n for name in NETWORKS["transformer"].from_data}
    NETWORKS["transformer"].check(replace(model, **sizes))
    if not data.lengths or data.lengths[0] < 2 or list(data.lengths) != sorted(set(data.lengths)):
        raise UserError(f"data.lengths is {list(data.lengths)}: give ascending numbers of at least 2")
    if data.tokens < data.lengths[-1]:
        raise UserError(
            f"data.tokens is {data.tokens}, which holds no sentence of the last of data.lengths {data.lengths[-1]}: give at least that"
        )
    if 0 < model.max_length < data.lengths[-1]:
        raise UserError(
            f"model.max_length is {model.max_length} but the last of data.lengths is {data.lengths[-1]}: raise one or lower the other"
        )
    if not model.causal:
        raise UserError("model.causal is False, so a target would see the words that it is to say: set it to True")


def _untrained_sentences(model: TransformerConfig) -> RunConfig:
    longest = max(model.max_length, 2)
    data = SentenceData(source=NO_DATA, lengths=(longest,), tokens=max(longest, 768))
    return RunConfig("translate", model, data, optim=OptimConfig(name="sgd"))


def _vocabulary_fits(value: Mapping[str, list[str]], model: TransformerConfig) -> bool:
    return model.outputs > 0 and (len(value["source"]), len(value["target"])) == (
        model.source_vocabulary,
        model.target_vocabulary,
    )


def _made_up_vocabulary(model: TransformerConfig) -> tuple[dict[str, list[str]], str]:
    if not (model.source_vocabulary and model.target_vocabulary and model.outputs):
        raise UserError(
            "a run of ours reads and writes words, and this network takes or gives vectors; write it as FILE.safetensors"
        )
    sizes = {"source": model.source_vocabulary, "target": model.target_vocabulary}
    return {side: numbered_words(size) for side, size in sizes.items()}, "words are called by their ids"


TASKS: dict[str, TaskRow] = {
    "classify": TaskRow(
        network="vit",
        data=ImageData,
        augment=ImageAugment,
        check=_check_classes,
        quiet=_quiet_images,
        takes="files",
        headlines={"accuracy": "accuracy", "f1_macro": "f1", "loss": "loss"},
        keeps={
            "preprocess": Kept(is_preprocess),
            "class_names": Kept(
                are_texts,
                fits=lambda value, model: len(value) == model.classes,
                made_up=lambda model: (numbered_classes(model.classes), "classes are called by their numbers"),
                clash=other_classes,
                of_head=True,
            ),
        },
        untrained=_untrained_classes,
    ),
    "translate": TaskRow(
        network="transformer",
        data=SentenceData,
        augment=AugmentConfig,
        check=_check_sentences,
        quiet=lambda run: replace(run, model=without_dropout(run.model)),
        takes="texts",
        headlines={"exact_match": "exact match", "accuracy": "accuracy", "loss": "loss"},
        keeps={"vocabulary": Kept(is_vocabulary, _vocabulary_fits, _made_up_vocabulary, other_words)},
        untrained=_untrained_sentences,
    ),
}


def task_row(name: str) -> TaskRow:
    """The row of a task. Raises UserError, naming the nearest, where this version has none."""
    if name not in TASKS:
        raise UserError(f"the task {name!r} is not known to this version of vit-jax{nearest(name, list(TASKS))}")
    return TASKS[name]


def network_row(task: str) -> NetworkRow:
    """The row of the network that a task trains. Raises UserError where the task is not known."""
    return NETWORKS[task_row(task).network]


def untrained(model: ModelConfig) -> RunConfig:
    """The run that says what a network is and was never trained; where tasks share a kind of network, the first one's.

    Raises UserError where no task trains such a network.
    """
    for row in TASKS.values():
        if NETWORKS[row.network].config is type(model):
            return row.untrained(model)
    raise UserError(
        f"no task of this version of vit-jax trains a {type(model).__name__.removesuffix('Config')}; write it as FILE.safetensors"
    )


def kept_anywhere() -> dict[str, Callable[[Any], bool]]:
    """{what some task keeps in config.json: whether a JSON value is of the kind that any of them keeps under this name}."""
    rights: dict[str, list[Callable[[Any], bool]]] = {}
    for row in TASKS.values():
        for name, kept in row.keeps.items():
            rights.setdefault(name, []).append(kept.right)
    return {name: _any_of(some) for name, some in rights.items()}


def _any_of(rights: list[Callable[[Any], bool]]) -> Callable[[Any], bool]:
    return lambda value: any(right(value) for right in rights)
