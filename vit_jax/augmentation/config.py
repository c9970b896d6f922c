"""The config of a run's augmentation of images."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Self

from ..config.fields import identity
from ..config.run import AugmentConfig
from ..errors import Field, UserError


@dataclass(frozen=True)
class ImageAugment(AugmentConfig):
    """Augmentation of training images on the device, and the normalisation of all images."""

    crop_padding: int = identity(
        0, "pixels of black padding before a random crop of the image's size; 0: no crop", at_least=0
    )
    scale: tuple[float, float] = identity(
        (1.0, 1.0),
        "crop a random share of the area between these two, and resize it to the image's size; 1 1: none",
        above=0,
        at_most=1,
    )
    ratio: tuple[float, float] = identity(
        (0.75, 1.3333333), "with scale: bounds of such a crop's width over its height", above=0
    )
    flip: bool = identity(False, "flip images left to right at random")
    policy: Literal["none", "randaugment", "trivialaugment", "autoaugment", "three_augment"] = identity(
        "none",
        "operations on colours and geometry: RandAugment as in timm, TrivialAugment, AutoAugment for CIFAR-10 as in "
        "torchvision, 3-Augment as in DeiT III",
    )
    layers: int = identity(2, "randaugment: operations one after the other, each done with probability 1/2", at_least=1)
    magnitude: float = identity(
        9.0, "randaugment: mean strength of an operation, with standard deviation 0.5", at_least=0, at_most=10
    )
    erase: float = identity(
        0.0, "chance that a rectangle of an image, 2 to 33 % of it, is replaced by noise", at_least=0, at_most=1
    )
    mixup: float = identity(
        0.0, "blend neighbours of a batch, and their targets; share from Beta(a, a); 0: off", at_least=0
    )
    cutmix: float = identity(
        0.0,
        "paste a rectangle of its neighbour into an image, and mix the targets; area from Beta(a, a); with mixup each "
        "pair takes one of the two; 0: off",
        at_least=0,
    )
    repeats: int = identity(
        1,
        "copies of an image in a batch, each augmented by itself; an epoch has as many steps as without, and so takes "
        "1/repeats of the images",
        at_least=1,
        not_drawn=True,
    )
    with_numbers: bool = identity(
        False,
        "data.target number: augment although the targets are numbers, because crops, flips, policies, erasing and "
        "mixing leave these as they are (of mixed images they are mixed)",
        not_drawn=True,
    )
    normalize: Literal["set", "half", "imagenet", "none", "given"] = identity(
        "set",
        "mean and std of pixels in 0..1: those of the training set, 0.5 both, those of ImageNet, 0 and 1, "
        "or augment.mean and augment.std (given)",
        not_drawn=True,
    )
    mean: tuple[float, ...] = identity((), "for normalize given: mean of each channel", not_drawn=True)
    std: tuple[float, ...] = identity((), "for normalize given: standard deviation of each channel", not_drawn=True)

    @property
    def mixes(self) -> bool:
        """Whether neighbours of a batch are mixed, so that targets are no longer single classes."""
        return bool(self.mixup or self.cutmix)

    def without_randomness(self) -> Self:
        """The normalisation alone."""
        return type(self)(normalize=self.normalize, mean=self.mean, std=self.std)

    @property
    def together(self) -> int:
        return 2 if self.mixes else 1

    @property
    def pixel_bytes(self) -> int:
        """4 with mixup, which makes float32 of uint8, else 1."""
        return 4 if self.mixup else 1


def check_augment(c: ImageAugment, channels: int, batch: int) -> None:
    """Raise UserError naming the first field of an augmentation that contradicts others, or does nothing."""
    for name in ("scale", "ratio"):
        low, high = getattr(c, name)
        if low > high:
            raise UserError(Field(f"augment.{name}"), f"is {low} {high}", "give two ascending numbers")
    if c.crop_padding and c.scale != (1, 1):
        raise UserError(
            Field("augment.crop_padding"),
            f"is {c.crop_padding} and augment.scale is {c.scale[0]} {c.scale[1]}",
            "these are two ways to crop, so set crop_padding to 0 or scale to 1 1",
        )
    _check_unused(c)
    if c.policy != "none" and channels not in (1, 3):
        raise UserError(
            Field("augment.policy"),
            f"is {c.policy} but model.channels is {channels}",
            "policies are for 1 or 3 channels, set none",
        )
    if c.repeats > 1 and 2 * c.repeats > batch:
        raise UserError(
            Field("augment.repeats"),
            f"is {c.repeats} but batch is {batch}",
            "give at most half of that, so that images differ",
        )
    if c.mixes and batch % 2:
        raise UserError(
            Field("batch"),
            f"{batch} is odd but augment.{'cutmix' if c.cutmix else 'mixup'} mixes pairs",
            "give an even batch",
        )


def _check_unused(c: ImageAugment) -> None:
    on = {
        **dict.fromkeys(("layers", "magnitude"), (c.policy == "randaugment", "policy to randaugment")),
        "ratio": (c.scale != (1, 1), "scale"),
    }
    for name, (used, what) in on.items():
        if not used and getattr(c, name) != getattr(ImageAugment, name):
            value = getattr(c, name)
            shown = " ".join(map(str, value)) if isinstance(value, tuple) else value
            raise UserError(
                Field(f"augment.{name}"), f"is {shown} but nothing uses it", f"set augment.{what}, or leave it out"
            )
