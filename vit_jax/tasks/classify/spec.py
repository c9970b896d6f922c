"""The specs of classify, and of classify-resnet, whose network is only used, never trained."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import fields
from operator import attrgetter
from typing import Any, ClassVar, Protocol, runtime_checkable

import numpy as np

from ...augmentation.config import ImageAugment
from ...config.dotted import replace_fields
from ...config.fields import are_texts
from ...config.network import NetworkConfig
from ...config.outputs import Outputs, is_entry, numbered_classes, other_classes
from ...config.run import LossConfig, RunConfig
from ...data.images.config import ImageData
from ...errors import Field, UserError, fields_inside
from ...kinds.table import EMBEDDING, KINDS, are_outputs, class_of
from ...models.resnet_config import ResNetConfig
from ...models.vit_config import ViTConfig
from ..image_spec import ImageSpec, TakesImages, check_images, show_value
from ..spec import MetadataEntry, StandIn, with_sizes

HEADS = ("head", "distill_head")


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
        return one_each and bool(model.classes or outputs.kind == EMBEDDING)

    def conflict(self, given: Any, wanted: Any) -> str:
        """A clause naming the first name that is another, of outputs of one kind."""
        if wanted is None or given["kind"] != wanted["kind"]:
            return ""
        names, ours = given.get("names") or (), wanted.get("names") or ()
        return other_classes(names, ours, class_of(given["kind"]).each[0])


class LossNumbers(MetadataEntry[TellsClasses]):
    """A number for each output that its loss needs: see kinds/balance.py."""

    of_head = True
    of_training = True

    def valid(self, value: Any) -> bool:
        return is_entry("mean", value)

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
    losses = tuple(dict.fromkeys(name for kind in KINDS.values() for name in kind.losses))
    weighs = True
    main_metrics: ClassVar = {
        **{name: title for kind in KINDS.values() for name, title in kind.main_metrics.items()},
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
        name, b = data.target or "class", run.batch
        kind = class_of(name)
        metadata: dict[str, Any] = {"preprocess": {"mean": [0.5] * c.channels, "std": [0.5] * c.channels}}
        metadata |= Outputs(name, tuple(numbered_classes(c.classes))).to_metadata()
        metadata |= {"loss_weights": [1.0] * c.classes} if run.loss.class_weights != "none" else {}
        metadata |= {"log_prior": [0.0] * c.classes} if run.loss.prior else {}
        label = ((b, c.classes) if kind.columns else (b,), kind.dtype)
        examples = {"image": ((b, *(run.model.pixels() or ())), "uint8"), "label": label}
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
        return f"its outputs are {class_of(theirs).says}, and here they are {class_of(ours).says}"

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
        return replace_fields(run, {"data.target": kind, "loss.name": run.loss.name or class_of(kind).losses[0]})


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
    loss, has = run.loss, class_of(kind)
    of_kind = f"but data.target is {kind}"
    if kind and loss.name and loss.name not in has.losses:
        choices = " or ".join(has.losses)
        raise UserError(Field("loss.name"), f"is {loss.name}, {of_kind}", f"choose {choices}, or leave it out")
    for name in dict.fromkeys(name for other in KINDS.values() for name in other.loss_fields) if kind else ():
        value = getattr(loss, name)
        if value != getattr(LossConfig, name) and name not in has.loss_fields:
            kinds = " and ".join(each for each, other in KINDS.items() if name in other.loss_fields)
            remedy = f"leave it out: only {kinds} can have it"
            raise UserError(Field(f"loss.{name}"), f"is {value}, {of_kind}", remedy)
    has.check_loss(loss)
    if kind and data.sampling != "natural" and has.columns:
        remedy = "set it to natural: only classes have sizes to even out"
        raise UserError(Field("data.sampling"), f"is {data.sampling}, {of_kind}", remedy)
    if has.amounts:
        _check_augment(augment, kind)
    for field, other, why in _excluded(loss, data, augment):
        value, excluding = (attrgetter(name)(run) for name in (field, other))
        raise UserError(Field(field), f"is {value} and {other} is {excluding}", why)


def _excluded(loss: LossConfig, data: ImageData, augment: ImageAugment) -> Iterator[tuple[str, str, str]]:
    """(field of a run, another that excludes it, a remedy)."""
    weighed, sampled = loss.class_weights != "none", data.sampling != "natural"
    twice = "both even out the same classes, so keep one of them"
    if loss.prior and weighed:
        yield "loss.prior", "loss.class_weights", twice
    if sampled and loss.prior:
        yield "data.sampling", "loss.prior", twice
    if sampled and weighed:
        yield "data.sampling", "loss.class_weights", twice
    if loss.prior and loss.name == "binary":
        yield "loss.prior", "loss.name", "a prior is for the softmax, so set loss.name to cross_entropy"
    sharp = "a focal loss needs labels of 0 and 1: set one of the two to 0"
    if loss.focal and loss.label_smoothing:
        yield "loss.focal", "loss.label_smoothing", sharp
    if loss.focal and augment.mixes:
        yield "loss.focal", "augment.mixup" if augment.mixup else "augment.cutmix", sharp


def _check_augment(augment: ImageAugment, kind: str) -> None:
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
            f"is {show_value(value)}, but data.target is {kind}, "
            f"and what an image shows may then no longer be its {class_of(kind).each[1]}",
            f"set {off}; or, if they stay what they are, augment.with_numbers to True",
        )
