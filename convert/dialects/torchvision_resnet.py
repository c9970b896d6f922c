"""torchvision's ResNet (torchvision.models.resnet50 and others); compared with 0.28. timm's resnet50 is the same.

Its files come without a config.json and state no preprocessing: that of torchvision's first weights is taken. Tensors
do not show where a network has its strides, dilation, or a filter before them (timm's resnetblur50): only torchvision's
are read here, and timm's config.json, where it is there, names the others, which are refused.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from vit_jax.errors import UserError
from vit_jax.models.resnet_config import ResNetConfig

from ..layout import Facts, Field, Json, Layout, Names, Refusal, count, has, length
from ..operations import TRANSPOSE, Arrays, Ghost, Order
from ..rules import Row, passthrough, row
from . import timm_folder

LEAVES = {"scale": "weight", "bias": "bias", "mean": "running_mean", "variance": "running_var"}
KERNEL = Order("o i h w", "h w i o")
COUNTER = "num_batches_tracked"  # of each batch norm; files from before PyTorch 0.4.1 lack it
# torchvision.models.ResNet50_Weights.IMAGENET1K_V1, as of all ResNets.
PREPROCESS = timm_folder.DEFAULTS | {"interpolation": "bilinear"}
ASSUMED = (
    "torchvision's files state no preprocessing: images are taken as its ResNets take them, 224x224 pixels cut "
    "from 256, ImageNet's mean and std; another is given with `fields image=... mean=... std=...`"
)
# timm's networks that compute torchvision's function.
SAME = re.compile(
    r"(tv_|gluon_|ssl_|swsl_|ig_)?"
    r"(resnet(18|34|50|101|152)(_v1b)?|resnext(50|101)_\d+x\d+d|wide_resnet(50|101)_2)(\..*)?"
)


@dataclass(frozen=True)
class Variances:
    """Variances, unchanged. `read` raises UserError where one is negative, which no training gives."""

    name: str

    def read(self, arrays: Arrays) -> Arrays:
        for array in arrays:
            if not isinstance(array, Ghost) and (array < 0).any():
                least = float(np.min(array))
                raise UserError(
                    self.name, f"holds {least:g}, and no variance is negative", "the file is damaged: fetch it again"
                )
        return arrays

    def write(self, arrays: Arrays) -> Arrays:
        return arrays


def theirs(name: str) -> tuple[str, str]:
    """What the file calls one of our convolutions, and the batch norm after it."""
    if name == "stem":
        return "conv1", "bn1"
    _, stage, index, *part = name.split(".")
    block = f"layer{int(stage) + 1}.{index}"
    if part == ["shortcut"]:
        return f"{block}.downsample.0", f"{block}.downsample.1"
    number = int(part[1]) + 1
    return f"{block}.conv{number}", f"{block}.bn{number}"


def rows(c: ResNetConfig) -> list[Row]:
    """One row for each tensor; those of the counters carry them."""
    made = []
    for name, shape in c.shapes().items():
        path, _, leaf = name.rpartition(".")
        if path == "head":
            made.append(row("fc.weight", name, shape, TRANSPOSE) if leaf == "kernel" else row("fc.bias", name, shape))
            continue
        convolution, norm = theirs(path)
        if leaf == "kernel":
            made.append(row(f"{convolution}.weight", name, shape, KERNEL))
            continue
        tensor = f"{norm}.{LEAVES[leaf]}"
        made.append(row(tensor, name, shape, *([Variances(tensor)] if leaf == "variance" else [])))
        if leaf == "variance":
            made.append(passthrough(f"{norm}.{COUNTER}", ()))
    return made


# ------------------------------------------------------------------------------------------ fields

BOTTLENECK = "layer1.0.conv3.weight"


def stages(names: Names) -> tuple[int, ...]:
    """A solver: the blocks in each stage."""
    return tuple(count(names, rf"layer{n}\.(\d+)\.conv1\.weight") for n in range(1, 5))


def groups(names: Names) -> int | None:
    """A solver: the groups of the 3x3 convolutions, whose kernels have the inputs of one group."""
    outputs, inputs = (length("layer1.0.conv2.weight", axis, 0)(names) for axis in (0, 1))
    return outputs // inputs if inputs else None


FIELDS = {
    "image": Field(usual=224),
    "channels": Field(solve=length("conv1.weight", 1)),
    "classes": Field(solve=length("fc.weight", 0)),
    "stages": Field(solve=stages),
    "width": Field(solve=length("conv1.weight", 0)),
    "bottleneck": Field(solve=has(BOTTLENECK)),
    "hidden": Field(solve=length("layer1.0.conv2.weight", 0)),
    "groups": Field(solve=groups),
}


def _other_stem(names: Names) -> list[str]:
    """A clause for files of networks for small images, which begin with another convolution than 7x7."""
    size = names.get("conv1.weight", ())[2:]
    if size in ((7, 7), ()):  # without any, all names that are missing are listed
        return []
    return [f"its first convolution is {'x'.join(map(str, size))}, and only ResNets that begin with 7x7 can be read"]


def _cannot_load(c: ResNetConfig) -> list[str]:
    """Clauses for a network whose file its constructor does not load, as it knows no such sizes."""
    only = {"channels": (c.channels, 3), "width": (c.width, 64)}
    return [
        f"{name} is {value}, but its constructor makes {its}: replace those modules before they load the file"
        for name, (value, its) in only.items()
        if value != its
    ]


def read_side(files: Mapping[str, Json]) -> Facts:
    """The size of images and the preprocessing: of timm's config.json, else torchvision's."""
    config = files.get("config.json")
    name = config.get("architecture") if isinstance(config, Mapping) else None
    if not isinstance(config, Mapping) or not isinstance(name, str):
        return Facts({}, timm_folder.preprocessing(PREPROCESS)[0], notes=(ASSUMED,))
    if changed := config.get("model_args") or ("" if SAME.fullmatch(name) else name):
        what = f"model_args is {changed}" if config.get("model_args") else f"architecture {name}"
        raise UserError("config.json", f"{what[:120]} is not torchvision's ResNet", "it cannot be converted")
    try:
        stated = timm_folder.facts({**config, "architecture": ""})
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise UserError(
            "config.json", f"is not as timm writes it ({error})", "correct it, or remove it and give `fields image=...`"
        ) from error
    image = {name: size for name, size in stated.config.items() if name == "image"}
    return Facts(image, stated.preprocess, stated.outputs, notes=stated.notes)


LAYOUTS = (
    Layout(
        dialect="torchvision-resnet",
        version="",
        title="torchvision's ResNet, Wide ResNet and ResNeXt",
        network=ResNetConfig,
        fields=FIELDS,
        rows=rows,
        signature=(r"conv1\.weight", r"layer1\.0\.bn1\.running_var", r"layer4\.0\.conv2\.weight", r"fc\.weight"),
        containers=("torch", "safetensors"),
        refusals=(
            Refusal("file", _other_stem),
            Refusal("loading", _cannot_load),
        ),
        read_side=read_side,
        proven="torchvision 0.28.0",
    ),
)
