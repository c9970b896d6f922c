"""The specs of classify, and of classify-resnet, whose network is only used, never trained."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import fields
from typing import Any, ClassVar, Protocol, runtime_checkable

import numpy as np

from ...augmentation.config import ImageAugment
from ...config.dotted import replace_fields
from ...config.fields import are_texts
from ...config.network import NetworkConfig
from ...config.outputs import KINDS, Outputs, are_outputs
from ...config.run import LossConfig, RunConfig
from ...data.images.config import ImageData, numbered_classes, other_classes
from ...errors import Field, UserError, fields_inside
from ...models.resnet_config import ResNetConfig
from ...models.vit_config import ViTConfig
from ..image_spec import ImageSpec, TakesImages, check_images, show_value
from ..spec import MetadataEntry, StandIn, with_sizes

HEADS = ("head", "distill_head")
# {kind of outputs: the values of loss.name that it has, the default first}
LOSSES: Mapping[str, tuple[str, ...]] = {
    "class": ("cross_entropy", "binary"),
    "set": ("binary",),
    "number": ("squared",),
}
# Fields of a loss that not every kind has, beside its name: {field: the kinds that have it}.
_OF = {"class_weights": ("class", "set"), "prior": ("class",), "focal": ("class", "set")}


@runtime_checkable
class TellsClasses(TakesImages, Protocol):
    """The config of a network that classifies images."""

    @property
    def classes(self) -> int:
        """The number of classes; 0: the network has no head, or its data determines them."""


class ClassNames(MetadataEntry[TellsClasses]):
    """The names of the classes, a list of texts."""

    of_head = True

    def valid(self, value: Any) -> bool:
        return are_texts(value)

    def fits(self, value: Any, model: TellsClasses) -> bool:
        return len(value) == model.classes

    def default(self, model: TellsClasses) -> tuple[list[str], str]:
        return numbered_classes(model.classes), "classes are called by their numbers"

    def conflict(self, given: Any, wanted: Any) -> str:
        return other_classes(given, wanted)


class OutputsEntry(MetadataEntry[TellsClasses]):
    """What the outputs are, where they are no classes: see config/outputs.py."""

    of_head = True
    optional = True

    def valid(self, value: Any) -> bool:
        return are_outputs(value)

    def fits(self, value: Any, model: TellsClasses) -> bool:
        """Whether the network has outputs of this kind, and there is a name for each or for none."""
        outputs = Outputs.of({"outputs": value})
        lists = (outputs.names, outputs.mean, outputs.std, outputs.thresholds)
        one_each = all(len(each) in (0, model.classes) for each in lists) and len(outputs.mean) == len(outputs.std)
        return one_each and bool(model.classes or outputs.kind == "embedding")

    def conflict(self, given: Any, wanted: Any) -> str:
        """A clause naming the first name that is another, of outputs of one kind."""
        if wanted is None or given["kind"] != wanted["kind"]:
            return ""
        names, ours = given.get("names") or (), wanted.get("names") or ()
        return other_classes(names, ours, {"set": "label", "number": "number"}.get(given["kind"], "class"))


class LossNumbers(MetadataEntry[TellsClasses]):
    """A number for each output that its loss needs: see balance.py."""

    of_head = True
    of_training = True

    def valid(self, value: Any) -> bool:
        return isinstance(value, list) and all(type(x) in (int, float) and math.isfinite(x) for x in value)

    def fits(self, value: Any, model: TellsClasses) -> bool:
        return len(value) == model.classes


def parts(run: RunConfig) -> tuple[TellsClasses, ImageData, ImageAugment]:
    """The network, the data and the augmentation of a run that classifies."""
    return run.model, run.data, run.augment  # type: ignore[return-value]


class ClassifySpec(ImageSpec):
    """Images to one of K classes, to a set of K labels, or to K numbers."""

    network: ClassVar[type[NetworkConfig]] = ViTConfig
    data = ImageData
    computes = "vit_jax.tasks.classify.learn:Classify"
    unit = "images"
    losses = tuple(dict.fromkeys(name for names in LOSSES.values() for name in names))
    weighs = True
    main_metrics: ClassVar = {
        **{"accuracy": "accuracy", "balanced_accuracy": "balanced", "accuracy_top5": "top-5", "map": "mAP"},
        **{"rmse": "RMSE", "rmse_scaled": "RMSE/std", "mae": "MAE", "r2": "R2", "subset_accuracy": "subset"},
        **{"f1_macro": "f1", "loss": "loss"},
    }
    metadata: ClassVar = {
        **ImageSpec.metadata,
        **{"class_names": ClassNames(), "outputs": OutputsEntry()},
        **{"loss_weights": LossNumbers(), "log_prior": LossNumbers()},
    }

    @classmethod
    def stand_in(cls, run: RunConfig, length: int = 0) -> StandIn:
        """Images with labels of the kind that data.target states, classes where it states none."""
        run = with_sizes(run, {})
        c, data, _ = parts(run)
        kind, b = data.target or "class", run.batch
        metadata: dict[str, Any] = {"preprocess": {"mean": [0.5] * c.channels, "std": [0.5] * c.channels}}
        metadata |= Outputs(kind, tuple(numbered_classes(c.classes))).to_metadata()
        metadata |= {"loss_weights": [1.0] * c.classes} if run.loss.class_weights != "none" else {}
        metadata |= {"log_prior": [0.0] * c.classes} if run.loss.prior else {}
        labels = {"class": ((b,), "int32"), "set": ((b, c.classes), "int8"), "number": ((b, c.classes), "float32")}
        examples = {"image": ((b, *(run.model.pixels() or ())), "uint8"), "label": labels[kind]}
        return StandIn(cls.with_data(run, metadata), metadata, {**examples, "row": ((b,), "int32")}, examples)

    @classmethod
    def needed(cls, metadata: Mapping[str, Any]) -> Mapping[str, MetadataEntry[Any]]:
        """Names of classes are needed where outputs of another kind are not stated; what only training reads is not."""
        without = {
            name for name, entry in cls.metadata.items() if entry.of_training or entry.optional
        } - metadata.keys()
        if Outputs.of({"outputs": {"kind": ""}, **metadata}).kind not in ("", "class"):
            without.add("class_names")
        return {name: entry for name, entry in cls.metadata.items() if name not in without}

    @classmethod
    def check(cls, run: RunConfig) -> None:
        model, data, _ = parts(run)
        with fields_inside("model"):
            replace_fields(run.model, {"classes": model.classes or 1}).check()
        check_images(model, run)
        check_sampling(run)
        check_folds(data)
        cls.check_kind(run, data.target)

    @classmethod
    def check_kind(cls, run: RunConfig, kind: str) -> None:
        """Raise UserError where a run cannot learn outputs of a kind; empty where only its data will tell."""
        check_loss(run, kind)

    @classmethod
    def other_outputs(cls, given: Mapping[str, Any], wanted: Mapping[str, Any]) -> str:
        theirs, ours = (Outputs.of(metadata).kind for metadata in (given, wanted))
        if not (theirs and ours) or theirs == ours:
            return ""
        return f"its outputs are {KINDS[theirs]}, and here they are {KINDS[ours]}"

    @classmethod
    def refitted(
        cls, parameters: Mapping[str, np.ndarray], given: Mapping[str, Any], wanted: Mapping[str, Any]
    ) -> dict[str, np.ndarray]:
        """With heads that give (y - mean) / std of the run's numbers, where the weights normalise otherwise or not.

        Computed in float64.
        """
        theirs, ours = Outputs.of(given), Outputs.of(wanted)
        before, after = ((out.mean, out.std) for out in (theirs, ours))
        if before == after or not (theirs.std or ours.std):
            return dict(parameters)
        (m, s), (mean, std) = ((np.array(a or [0.0]), np.array(b or [1.0])) for a, b in (before, after))
        scale, shift = s / std, (m - mean) / std
        out = dict(parameters)
        for head in (name for name in HEADS if f"{name}.kernel" in parameters):
            kernel, bias = parameters[f"{head}.kernel"], parameters.get(f"{head}.bias")
            if bias is None:
                what = "has no bias, and the mean of these numbers is another"
                raise UserError(head, what, "add `new_head True` to start with a new head")
            out[f"{head}.kernel"] = (kernel.astype(np.float64) * scale).astype(kernel.dtype)
            out[f"{head}.bias"] = (bias.astype(np.float64) * scale + shift).astype(bias.dtype)
        return out

    @classmethod
    def with_data(cls, run: RunConfig, metadata: Mapping[str, Any]) -> RunConfig:
        """The run with the kind of its labels, and the loss that goes with that."""
        kind = Outputs.of(metadata).kind
        return replace_fields(run, {"data.target": kind, "loss.name": run.loss.name or LOSSES[kind][0]})


def check_sampling(run: RunConfig) -> None:
    """Raise UserError where `data.sampling` is combined with what it cannot be."""
    _, data, augment = parts(run)
    if data.sampling != "natural" and augment.repeats > 1:
        raise UserError(
            Field("data.sampling"),
            f"is {data.sampling} and augment.repeats is {augment.repeats}, and both decide how often an image is taken",
            "set data.sampling to natural or augment.repeats to 1",
        )


def check_folds(data: ImageData) -> None:
    """Raise UserError on folds that are none, and on one that is not among them."""
    if data.folds == 1:
        raise UserError(Field("data.folds"), "is 1, which leaves nothing to train on", "give 2 or more, or 0 for none")
    if data.fold >= max(data.folds, 1):
        there = f"data.folds is {data.folds}" if data.folds else "data.folds is not given"
        remedy = "give `data.folds N`, and a fold below N, or leave both out"
        raise UserError(Field("data.fold"), f"is {data.fold}, and {there}", remedy)


class ClassifyResNetSpec(ClassifySpec):
    """Classification by a ResNet."""

    network = ResNetConfig
    computes = "vit_jax.tasks.classify.learn:ClassifyResNet"


def check_loss(run: RunConfig, kind: str) -> None:
    """Raise UserError naming the first field of a run that its kind of outputs does not have, or that excludes
    others.
    """
    _, data, augment = parts(run)
    if kind:
        _check_kind(run.loss, data, kind)
        if kind == "number":
            _check_augment(augment)
    for field, other, why in _excluded(run.loss, data, augment):
        raise UserError(Field(field[0]), f"is {field[1]} and {other[0]} is {other[1]}", why)


def _check_kind(loss: LossConfig, data: ImageData, kind: str) -> None:
    if loss.name and loss.name not in LOSSES[kind]:
        choices = " or ".join(LOSSES[kind])
        raise UserError(
            Field("loss.name"), f"is {loss.name}, but data.target is {kind}", f"choose {choices}, or leave it out"
        )
    for name, kinds in _OF.items():
        value = getattr(loss, name)
        if value != getattr(LossConfig, name) and kind not in kinds:
            what = f"is {value}, but data.target is {kind}"
            raise UserError(Field(f"loss.{name}"), what, f"leave it out: only {' and '.join(kinds)} can have it")
    if kind == "set" and loss.class_weights == "effective":
        what = "is effective, which is for classes, and data.target is set"
        raise UserError(Field("loss.class_weights"), what, "give balanced or a file")
    if kind == "set" and loss.label_smoothing and loss.smoothing != "torch":
        what = f"is {loss.smoothing}, which spreads over other classes, and data.target is set"
        raise UserError(Field("loss.smoothing"), what, "give torch")
    if data.sampling != "natural" and kind != "class":
        what = f"is {data.sampling}, but data.target is {kind}"
        raise UserError(Field("data.sampling"), what, "set it to natural: only classes have sizes to even out")


def _excluded(
    loss: LossConfig, data: ImageData, augment: ImageAugment
) -> Iterator[tuple[tuple[str, Any], tuple[str, Any], str]]:
    """((field, value), (another, its value) that excludes it, a remedy)."""
    prior, weights, focal = (
        (f"loss.{name}", getattr(loss, name)) for name in ("prior", "class_weights", "focal")
    )  # fmt: skip
    sampling = ("data.sampling", data.sampling)
    twice = "both even out the same classes, so keep one of them"
    if loss.prior and loss.class_weights != "none":
        yield prior, weights, twice
    if data.sampling != "natural" and loss.prior:
        yield sampling, prior, twice
    if data.sampling != "natural" and loss.class_weights != "none":
        yield sampling, weights, twice
    if loss.prior and loss.name == "binary":
        yield prior, ("loss.name", loss.name), "a prior is for the softmax, so set loss.name to cross_entropy"
    sharp = "a focal loss needs labels of 0 and 1: set one of the two to 0"
    if loss.focal and loss.label_smoothing:
        yield focal, ("loss.label_smoothing", loss.label_smoothing), sharp
    if loss.focal and augment.mixes:
        name = "mixup" if augment.mixup else "cutmix"
        other = (f"augment.{name}", getattr(augment, name))
        yield focal, other, sharp


def _check_augment(augment: ImageAugment) -> None:
    """Raise UserError where augmentation may change the numbers of an image, unless the user says that it does not."""
    on = [
        f
        for f in fields(augment)
        if "not_drawn" not in f.metadata.get("marks", ()) and getattr(augment, f.name) != f.default
    ]
    if on and not augment.with_numbers:
        name, value = on[0].name, getattr(augment, on[0].name)
        off = ", ".join(f"augment.{each.name} to {show_value(each.default)}" for each in on)
        raise UserError(
            Field(f"augment.{name}"),
            f"is {show_value(value)}, but data.target is number, "
            "and what an image shows may then no longer be its numbers",
            f"set {off}; or, if they stay what they are, augment.with_numbers to True",
        )
