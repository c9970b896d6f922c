"""The config of the ResNet: its options, its table of parameters and its cost. It is never trained here."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, Self

from ..config.fields import DEEPEST, Size, identity, pair
from ..config.network import ONES, ZEROS, Input, NetworkConfig, Parameter, Start
from ..errors import Field, UserError

STAGES, EXPANSION = 4, 4  # stages of every ResNet; outputs of a bottleneck as a multiple of the stage's width
EPS = 1e-5  # added to variances in batch norm
CAPTURED = ("pooled", "logits")  # inner values that `ResNet.capture` gives, in the order of the forward pass


@dataclass(frozen=True)
class ResNetConfig(NetworkConfig):
    """The config of a ResNet (He et al. 2016, arXiv 1512.03385), in the form of torchvision.

    The first block of a stage halves the image in its 3x3 convolution ("v1.5"), except in the first stage. The defaults
    are ResNet-50; `bottleneck` False gives ResNet-18 and -34, another `hidden` Wide ResNets (arXiv 1605.07146), and
    `groups` with it ResNeXt (arXiv 1611.05431).
    """

    computes: ClassVar[str] = "vit_jax.models.resnet:ResNet"
    frozen: ClassVar[str] = "its batch norm uses stored statistics"

    image: Size = identity(224, "height and width of an image, in pixels", not_in_weights=True, at_least=1)
    channels: int = identity(3, "channels of an image: 3 for RGB, 1 for grey", at_least=1)
    classes: int = identity(1000, "K, outputs of the head", at_least=1)
    stages: tuple[int, ...] = identity((3, 4, 6, 3), "blocks in each of the four stages", at_least=1, at_most=DEEPEST)
    width: int = identity(
        64, "outputs of the first convolution, width of the first stage; it doubles with each stage", at_least=1
    )
    bottleneck: bool = identity(
        True, "a block is a 1x1, a 3x3 and a 1x1 convolution, which gives 4 times the width; else two 3x3 convolutions"
    )
    hidden: int = identity(
        64, "outputs of the 3x3 convolutions of bottlenecks in the first stage; doubles likewise", at_least=1
    )
    groups: int = identity(
        1, "groups of channels in the 3x3 convolutions of bottlenecks, each computed by itself", at_least=1
    )

    names: ClassVar[tuple[str, ...]] = (r"stem\.kernel", r"stages\.0\.0\.convs\.0\.variance")
    examples: ClassVar[Mapping[str, tuple[Any, ...]]] = {
        "image": (8, (8, 12)), "channels": (3, 1), "classes": (5,), "stages": ((1, 1, 1, 1), (2, 1, 1, 1)),
        "width": (4, 8), "hidden": (4, 8), "groups": (1, 2),
    }  # fmt: skip

    @property
    def features(self) -> int:
        """The width of the pooled feature."""
        return self.width * 2 ** (STAGES - 1) * (EXPANSION if self.bottleneck else 1)

    def convolutions(self) -> Iterator[tuple[str, Convolution]]:
        """(dotted name, convolution) of all, each with a batch norm after it, in the order of the forward pass."""
        h, w = (_halve(side) for side in pair(self.image))
        yield "stem", Convolution(self.channels, self.width, 7, 2, 1, (h, w))
        n_in, side = self.width, (_halve(h), _halve(w))  # after the pooling of the stem
        for stage, depth in enumerate(self.stages):
            width, hidden = self.width * 2**stage, self.hidden * 2**stage
            for index in range(depth):
                stride = 2 if stage and not index else 1
                before, side = side, (_halve(side[0]), _halve(side[1])) if stride == 2 else side
                n_out = width * EXPANSION if self.bottleneck else width
                if self.bottleneck:
                    block = [
                        Convolution(n_in, hidden, 1, 1, 1, before),
                        Convolution(hidden, hidden, 3, stride, self.groups, side),
                        Convolution(hidden, n_out, 1, 1, 1, side),
                    ]
                else:
                    block = [Convolution(n_in, n_out, 3, stride, 1, side), Convolution(n_out, n_out, 3, 1, 1, side)]
                path = f"stages.{stage}.{index}"
                yield from ((f"{path}.convs.{i}", one) for i, one in enumerate(block))
                if stride == 2 or n_in != n_out:
                    yield f"{path}.shortcut", Convolution(n_in, n_out, 1, stride, 1, side)
                n_in = n_out

    def inputs(self) -> tuple[Input, ...]:
        return (Input("images", "pixels", (*pair(self.image), self.channels)),)

    def check(self) -> None:
        super().check()
        if len(self.stages) != STAGES:
            raise UserError(
                Field("stages"), f"is {' '.join(map(str, self.stages))}", f"give {STAGES} numbers of blocks"
            )
        if self.hidden % self.groups:
            raise UserError(
                Field("hidden"), f"{self.hidden} is not divisible by groups {self.groups}", "change one of them"
            )
        if not self.bottleneck and (self.hidden, self.groups) != (self.width, 1):
            raise UserError(
                Field("hidden"),
                f"is {self.hidden} and groups {self.groups}, but without bottlenecks no block has them",
                f"give {self.width}, the width, and 1",
            )

    def normal(self) -> Self:
        """The config in normal form: the size of a square image is one number."""
        rows, columns = pair(self.image)
        return dataclasses.replace(self, image=rows if rows == columns else (rows, columns))

    def parameters(self) -> dict[str, Parameter]:
        """Every parameter in reading order; of batch norm scale, bias, and the mean and variance that it stored."""
        table = {}
        for name, one in self.convolutions():
            table[f"{name}.kernel"] = Parameter(one.shape, "kernel", Start("normal", (2 / one.n_out) ** 0.5 / one.size))
            for leaf, start in (("scale", ONES), ("bias", ZEROS), ("mean", ZEROS), ("variance", ONES)):
                table[f"{name}.{leaf}"] = Parameter((one.n_out,), "norm", start)
        start = Start("uniform", self.features**-0.5)
        table["head.kernel"] = Parameter((self.features, self.classes), "kernel", start)
        table["head.bias"] = Parameter((self.classes,), "bias", start)
        return table

    def captured(self) -> list[str]:
        return list(CAPTURED)

    def describe(self) -> tuple[str, str]:
        groups = f", {self.groups} groups" if self.groups > 1 else ""
        what = f"ResNet {self.width} x {' + '.join(map(str, self.stages))} blocks{groups}"
        return what, f"{self.flops() / 1e6:,.1f} MFLOP an image"

    def pipeline(self) -> str:
        return "image-classification"

    def flops(self) -> int:
        """Floating-point operations of the products of one image: a multiplication and an addition count as two."""
        products = sum(math.prod(one.shape) * math.prod(one.outputs) for _, one in self.convolutions())
        return 2 * (products + self.features * self.classes)


class Convolution(NamedTuple):
    """A square convolution without bias, padded by half its size; `outputs` are the rows and columns of its outputs."""

    n_in: int
    n_out: int
    size: int
    stride: int
    groups: int
    outputs: tuple[int, int]

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """The shape of the kernel: rows, columns, inputs of a group, outputs."""
        return (self.size, self.size, self.n_in // self.groups, self.n_out)


def _halve(side: int) -> int:
    """The rows or columns after a padded convolution or pooling of stride 2."""
    return (side - 1) // 2 + 1
