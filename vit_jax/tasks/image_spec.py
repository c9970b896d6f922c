"""What the specs of tasks on images have in common: augmentation, normalisation, and how images are prepared."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Protocol, runtime_checkable

from ..augmentation.config import ImageAugment, check_augment
from ..config.fields import Size, pair
from ..config.network import NetworkConfig
from ..config.run import RunConfig
from ..data.images.config import FittedImages
from ..errors import Field, UserError
from .preprocessing import PREPARED, fits_network, is_preprocess, prepared_as, preprocess_fields
from .spec import MetadataEntry, TaskSpec


@runtime_checkable
class TakesImages(Protocol):
    """The config of a network of images."""

    @property
    def image(self) -> Size:
        """Their height and width, in pixels."""

    @property
    def channels(self) -> int:
        """Their channels."""


class Preprocessing(MetadataEntry):
    """How images become inputs: see preprocessing.py."""

    def valid(self, value: Any) -> bool:
        """Whether a JSON value is a preprocessing."""
        return is_preprocess(value)

    def fits(self, value: Any, model: NetworkConfig) -> bool:
        """Whether it makes images of the shape that the network takes."""
        return fits_network(value, model.pixels())


class ImageSpec(TaskSpec, abstract=True):
    """The base of the specs of tasks on images."""

    augment = ImageAugment
    metadata: ClassVar[Mapping[str, MetadataEntry]] = {"preprocess": Preprocessing()}
    prepared = PREPARED

    @classmethod
    def prepared_as(cls, metadata: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
        """The fields that prepare images as the weights state."""
        return prepared_as(metadata["preprocess"], given) if "preprocess" in metadata else {}


def check_images(model: TakesImages, run: RunConfig) -> None:
    """Raise UserError naming the first invalid field of the augmentation and normalisation of a network's images."""
    augment = run.augment
    assert isinstance(augment, ImageAugment)
    check_augment(augment, model.channels, run.batch)
    h, w = pair(model.image)
    fields = preprocess_fields(h, w, model.channels)
    if isinstance(run.data, FittedImages) and not fields["range"][0](run.data.range):
        raise UserError(Field("data.range"), f"is {show_value(run.data.range)}", f"give {fields['range'][1]}")
    for name in ("mean", "std"):
        values, (valid, must) = getattr(augment, name), fields[name]
        if augment.normalize != "given" and values:
            raise UserError(
                Field(f"augment.{name}"),
                f"is {show_value(values)} but augment.normalize is {augment.normalize}",
                f"set augment.normalize to given, or leave augment.{name} out",
            )
        if augment.normalize == "given" and not valid(values):
            raise UserError(
                Field(f"augment.{name}"),
                f"is {show_value(values) or 'empty'} but augment.normalize is given",
                f"give {must}",
            )


def show_value(value: Any) -> str:
    """The value of a field as it is typed after its flag."""
    return " ".join(map(str, value)) if isinstance(value, tuple) else str(value)
