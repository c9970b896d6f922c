"""What the specs of tasks on images have in common: augmentation, normalisation, and how images are prepared.

A preprocessing is what config.json and converted files hold of the latter.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Protocol, runtime_checkable

from ..augmentation.config import ImageAugment, check_augment
from ..config.fields import Size, pair
from ..config.network import NetworkConfig
from ..config.run import RunConfig
from ..data.images.config import FITS, KERNELS, OPTIONAL, FittedImages
from ..data.images.high_bit_depth import is_range
from ..errors import Field, UserError
from .spec import MetadataEntry, TaskSpec

# Bounds of a std and of a mean: beyond them a normalised float32 pixel is zero or infinite.
SMALLEST, LARGEST = 1e-6, 1e6
LARGEST_SIZE = 4096  # pixels to which the shorter side of an image may always be scaled
# The fields of a run that determine how its images are prepared.
PREPARED = (
    *(f"data.{name}" for name in ("fit", "size", "interpolation", "background", "range", "trim")),
    *(f"augment.{name}" for name in ("normalize", "mean", "std")),
)


@runtime_checkable
class TakesImages(Protocol):
    """The config of a network of images."""

    @property
    def image(self) -> Size:
        """Their height and width, in pixels."""

    @property
    def channels(self) -> int:
        """Their channels."""


class Preprocessing(MetadataEntry[NetworkConfig]):
    """How images become inputs."""

    def valid(self, value: Any) -> bool:
        """Whether a JSON value is a preprocessing, as `data.images.Preprocess.to_dict` writes it."""
        if not isinstance(value, Mapping) or not _numbers(value.get("image"), 2):
            return False
        shape = (*value["image"], value.get("channels"))
        return all(type(n) is int and n > 0 for n in shape) and not any(preprocess_fault(value, shape))

    def fits(self, value: Any, model: NetworkConfig) -> bool:
        """Whether it makes images of the shape that the network takes, with no absurd size between."""
        shape = model.pixels()
        return shape is not None and not any(preprocess_fault(value, shape, max(LARGEST_SIZE, 16 * max(shape[:2]))))


class ImageSpec(TaskSpec, abstract=True):
    """The base of the specs of tasks on images."""

    augment = ImageAugment
    metadata: ClassVar[Mapping[str, MetadataEntry[Any]]] = {"preprocess": Preprocessing()}
    prepared = PREPARED

    @classmethod
    def prepared_as(cls, metadata: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
        if "preprocess" not in metadata:
            return {}
        preprocess = metadata["preprocess"]
        of_data = {name: name.removeprefix("data.") for name in PREPARED if name.startswith("data.")}
        fields = {field: preprocess[name] for field, name in of_data.items() if name in preprocess}
        if "data.range" in fields:
            fields["data.range"] = tuple(map(float, fields["data.range"]))
        if "data.trim" in fields:
            fields["data.trim"] = tuple(fields["data.trim"])
        if given.get("data.fit", preprocess["fit"]) != "crop" or preprocess["size"] < min(preprocess["image"]):
            fields["data.size"] = 0
        if given.get("augment.normalize", "given") == "given":
            fields["augment.normalize"] = "given"
            fields |= {f"augment.{name}": tuple(map(float, preprocess[name])) for name in ("mean", "std")}
        return fields


def check_images(model: TakesImages, run: RunConfig) -> None:
    """Raise UserError naming the first invalid field of the augmentation and normalisation of a network's images."""
    augment: Any = run.augment  # of the spec's own class
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


def preprocess_fields(
    height: int, width: int, channels: int, largest: int | None = None
) -> dict[str, tuple[Callable[[Any], bool], str]]:
    """{field: (whether a value is valid, what it has to be)} of a preprocessing for images of a shape."""
    numbers = f"{channels} numbers, one a channel, with commas"
    pixels = "a whole number of pixels" + (f", at most {largest}" if largest else "")
    return {
        "image": (
            lambda v: _numbers(v, 2) and list(v) == [height, width] and all(type(each) is int for each in v),
            f"{height}x{width} pixels, which the network takes",
        ),
        "channels": (lambda v: type(v) is int and v == channels, f"{channels}, which the network takes"),
        "fit": (lambda v: v in FITS, f"one of {', '.join(FITS)}"),
        "interpolation": (lambda v: v in KERNELS, f"one of {', '.join(KERNELS)}"),
        "size": (lambda v: type(v) is int and 0 <= v <= (v if largest is None else largest), pixels),
        "background": (lambda v: type(v) is int and 0 <= v <= 255, "a grey level from 0 to 255"),
        "range": (is_range, "two numbers, the second one greater"),
        "trim": (
            lambda v: _numbers(v, 2) and all(type(n) is int for n in v) and 0 <= v[0] < height and 0 <= v[1] < width,
            "two whole numbers of rows and columns, fewer than the image has",
        ),
        "mean": (lambda v: _numbers(v, channels) and all(abs(each) <= LARGEST for each in v), numbers),
        "std": (
            lambda v: _numbers(v, channels) and all(SMALLEST <= each <= LARGEST for each in v),
            f"{numbers}, all above 0",
        ),
    }


def preprocess_fault(value: Any, shape: tuple[int, int, int], largest: int | None = None) -> tuple[str, str]:
    """The first field of a preprocessing that is not valid. Returns (the field, what it has to be); empty texts if all
    are valid. The field is "preprocess" where the value as a whole is not an object of these fields.
    """
    fields = preprocess_fields(*shape, largest)
    if not isinstance(value, Mapping) or {*value, *OPTIONAL} != fields.keys():
        return "preprocess", f"an object of {', '.join(fields)}"
    stated = {name: each for name, each in fields.items() if name in value}
    return next(((name, must) for name, (valid, must) in stated.items() if not valid(value[name])), ("", ""))


def _numbers(value: Any, count: int) -> bool:
    return isinstance(value, list | tuple) and len(value) == count and all(type(each) in (int, float) for each in value)
