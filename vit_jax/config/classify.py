"""The task classify: what a run on images with classes may state, and what its row computes of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ..errors import UserError, inside
from .augmentation import ImageAugment, check_augment
from .fields import pair
from .images import ImageData
from .network import NetworkConfig
from .preprocessing import prepared_as, preprocess_fields
from .resnet import ResNetConfig
from .run import NO_DATA, OptimConfig, RunConfig
from .vit import ViTConfig


def check_classes(model: ViTConfig | ResNetConfig, data: ImageData, run: RunConfig) -> None:
    """Raise UserError naming the first invalid field of a run on images with classes."""
    with inside("model"):
        replace(model, classes=model.classes or 1).check()
    check_images(model, run)


def check_images(model: ViTConfig | ResNetConfig, run: RunConfig) -> None:
    """Raise UserError naming the first invalid field of the augmentation and normalisation of a network's images."""
    augment: Any = run.augment  # the row's own class
    check_augment(augment, model.channels, run.batch)
    h, w = pair(model.image)
    fields = preprocess_fields(h, w, model.channels)
    for name in ("mean", "std"):
        values, (valid, must) = getattr(augment, name), fields[name]
        if augment.normalize != "given" and values:
            raise UserError(
                f"augment.{name} is {shown(values)} but augment.normalize is {augment.normalize}: "
                f"set augment.normalize to given, or leave augment.{name} out"
            )
        if augment.normalize == "given" and not valid(values):
            raise UserError(f"augment.{name} is {shown(values) or 'empty'} but augment.normalize is given: give {must}")


def shown(value: Any) -> str:
    """The value of a field as it is typed after its flag."""
    return " ".join(map(str, value)) if isinstance(value, tuple) else str(value)


def quiet_images(run: RunConfig) -> RunConfig:
    """The run without augmentation and dropout."""
    augment: Any = run.augment  # the row's own class
    still = ImageAugment(normalize=augment.normalize, mean=augment.mean, std=augment.std)
    return replace(run, model=run.model.without_dropout(), augment=still)


def prepared_images(metadata: Mapping[str, Any], stated: Mapping[str, Any]) -> dict[str, Any]:
    """How a run prepares images that starts from weights: see `TaskRow.prepared`."""
    return prepared_as(metadata["preprocess"], stated) if "preprocess" in metadata else {}


def untrained_classes(model: NetworkConfig, task: str = "classify") -> RunConfig:
    """A run with this network that was never trained."""
    return RunConfig(task, model, ImageData(source=NO_DATA), ImageAugment(), OptimConfig(name="sgd"))
