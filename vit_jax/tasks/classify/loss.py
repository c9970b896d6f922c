"""Which losses go with what is learned of an image, and with each other."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import fields
from typing import Any

from ...augmentation.config import ImageAugment
from ...config.run import LossConfig, RunConfig
from ...data.images.config import ImageData
from ...errors import Field, UserError
from ..image_spec import show_value

# {kind of outputs: the values of loss.name that it has, the default first}
LOSSES: Mapping[str, tuple[str, ...]] = {
    "class": ("cross_entropy", "binary"),
    "set": ("binary",),
    "number": ("squared",),
}
# Fields of a loss that not every kind has, beside its name: {field: the kinds that have it}.
_OF = {"class_weights": ("class", "set"), "prior": ("class",), "focal": ("class", "set")}


def check_loss(run: RunConfig, kind: str) -> None:
    """Raise UserError naming the first field of a run that its kind of outputs does not have, or that excludes
    others.
    """
    data, augment = run.data, run.augment
    assert isinstance(data, ImageData) and isinstance(augment, ImageAugment)
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
