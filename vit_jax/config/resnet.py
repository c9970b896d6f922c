"""The config of the ResNet, its check, its table of parameters and its cost. It is never trained here."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from ..errors import UserError
from .fields import DEEPEST, ModelConfig, Size, identity, pair
from .tree import ONES, ZEROS, Parameter, Start

STAGES, EXPANSION = 4, 4  # stages of every ResNet; outputs of a bottleneck as a multiple of the stage's width
EPS = 1e-5  # added to variances in batch norm
CAPTURED = ("pooled", "logits")  # inner values that `ResNet.capture` gives, in the order of the forward pass


@dataclass(frozen=True)
class ResNetConfig(ModelConfig):
    """The config of a ResNet (He et al. 2016, arXiv 1512.03385), in the form of torchvision.

    The first block of a stage halves the image in its 3x3 convolution ("v1.5"), except in the first stage. The defaults
    are ResNet-50; `bottleneck` False gives ResNet-18 and -34, another `hidden` Wide ResNets (arXiv 1605.07146), and
    `groups` with it ResNeXt (arXiv 1611.05431).
    """

    image: Size = identity(224, "height and width of an image, in pixels")
    channels: int = identity(3, "channels of an image: 3 for RGB, 1 for grey")
    classes: int = identity(1000, "K, outputs of the head")
    stages: tuple[int, ...] = identity((3, 4, 6, 3), "blocks in each of the four stages")
    width: int = identity(64, "outputs of the first convolution, width of the first stage; it doubles with each stage")
    bottleneck: bool = identity(
        True, "a block is a 1x1, a 3x3 and a 1x1 convolution, which gives 4 times the width; else two 3x3 convolutions"
    )
    hidden: int = identity(64, "outputs of the 3x3 convolutions of bottlenecks in the first stage; doubles likewise")
    groups: int = identity(1, "groups of channels in the 3x3 convolutions of bottlenecks, each computed by itself")

    @property
    def features(self) -> int:
        """The width of the pooled feature."""
        return self.width * 2 ** (STAGES - 1) * (EXPANSION if self.bottleneck else 1)

    def convolutions(self) -> Iterator[tuple[str, Convolution]]:
        """(dotted name, convolution) of all, each with a batch norm after it, in the order of the forward pass."""
        h, w = (_halved(side) for side in pair(self.image))
        yield "stem", Convolution(self.channels, self.width, 7, 2, 1, (h, w))
        n_in, side = self.width, (_halved(h), _halved(w))  # after the pooling of the stem
        for stage, depth in enumerate(self.stages):
            width, hidden = self.width * 2**stage, self.hidden * 2**stage
            for index in range(depth):
                stride = 2 if stage and not index else 1
                before, side = side, (_halved(side[0]), _halved(side[1])) if stride == 2 else side
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


def _halved(side: int) -> int:
    """The rows or columns after a padded convolution or pooling of stride 2."""
    return (side - 1) // 2 + 1


def check_resnet(c: ResNetConfig) -> ResNetConfig:
    """Return the config unchanged. Raises UserError naming the first invalid field."""
    h, w = pair(c.image)
    if min(h, w) < 1:
        raise UserError(f"model.image is {h}x{w}: give positive numbers")
    for name in ("channels", "classes", "width", "hidden", "groups"):
        if getattr(c, name) < 1:
            raise UserError(f"model.{name} is {getattr(c, name)}: give a positive number")
    if len(c.stages) != STAGES or not all(1 <= depth <= DEEPEST for depth in c.stages):
        raise UserError(
            f"model.stages is {' '.join(map(str, c.stages))}: give {STAGES} numbers of blocks, from 1 to {DEEPEST} each"
        )
    if c.hidden % c.groups:
        raise UserError(f"model.hidden {c.hidden} is not divisible by model.groups {c.groups}: change one of them")
    if not c.bottleneck and (c.hidden, c.groups) != (c.width, 1):
        raise UserError(
            f"model.hidden is {c.hidden} and model.groups {c.groups}, but without bottlenecks no block has them: "
            f"give {c.width}, the width, and 1"
        )
    return c


def normal_resnet(c: ResNetConfig) -> ResNetConfig:
    """The config in normal form: the size of a square image is one number."""
    rows, columns = pair(c.image)
    return dataclasses.replace(c, image=rows if rows == columns else (rows, columns))


def resnet_parameters(c: ResNetConfig) -> dict[str, Parameter]:
    """{dotted name: Parameter} in reading order; of batch norm scale, bias, and the mean and variance that it stored.

    Kernels start as in torchvision: normal, with variance 2 / fan out (He et al. 2015, arXiv 1502.01852).
    """
    table = {}
    for name, one in c.convolutions():
        table[f"{name}.kernel"] = Parameter(one.shape, "kernel", Start("normal", (2 / one.n_out) ** 0.5 / one.size))
        for leaf, start in (("scale", ONES), ("bias", ZEROS), ("mean", ZEROS), ("variance", ONES)):
            table[f"{name}.{leaf}"] = Parameter((one.n_out,), "norm", start)
    start = Start("uniform", c.features**-0.5)
    table["head.kernel"] = Parameter((c.features, c.classes), "kernel", start)
    table["head.bias"] = Parameter((c.classes,), "bias", start)
    return table


def resnet_flops(c: ResNetConfig) -> int:
    """Floating-point operations of the products of one image: a multiplication and an addition count as two."""
    products = sum(math.prod(one.shape) * math.prod(one.outputs) for _, one in c.convolutions())
    return 2 * (products + c.features * c.classes)
