"""What a program takes and gives, and what its file states beside the network.

Dimensions: B batch, h and w height and width of images as given, H and W as the network takes them, C channels.
"""

from __future__ import annotations

import importlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from vit_jax.errors import UserError, install
from vit_jax.kinds.table import class_of

if TYPE_CHECKING:
    from vit_jax.config.outputs import Outputs
    from vit_jax.data.images.preprocess import Preprocess

    from ...layout import Json

PIXELS, IMAGES = "pixels", "images"  # names of the argument: uint8 of any size, or prepared and normalised
ANY_IMAGES = "images-of-any-size"  # as images, but of other sizes than the network was trained on
TAKES = (PIXELS, IMAGES, ANY_IMAGES)  # what --takes names
BATCH, HEIGHT, WIDTH = "batch", "height", "width"  # of its axes
# Opsets of ONNX: those that are written, and the usual one. From 21 on, ONNX Runtime 1.31 fails to load what its own
# quantize_static makes of linear layers (onnxruntime#25526), and no node needs more than 18.
OPSETS, OPSET = range(18, 24), 20
WEIGHTS = ("float32", "float16", "int8")  # how a program holds the weights of linear layers


@dataclass(frozen=True)
class Wanted:
    """What a user asks of a program."""

    takes: str = PIXELS
    opset: int = 0
    runtime: str = ""
    weights: tuple[str, ...] = WEIGHTS[:1]
    calibrate: str = ""
    run: str = ""

    @property
    def smaller(self) -> tuple[str, ...]:
        """The weights that are smaller than float32."""
        return tuple(each for each in self.weights if each != WEIGHTS[0])

    def check(self, path: str, several: bool = False) -> None:
        """Raise UserError where there is no such program at a path, of which there may be several in a folder."""
        given = f"takes {self.takes}"
        if self.takes not in TAKES:
            raise UserError(given, "a program takes no such thing", f"give {', '.join(TAKES[:-1])} or {TAKES[-1]}")
        if self.takes == ANY_IMAGES and not path.lower().endswith(".stablehlo"):
            lacks = "jax2onnx 0.13 traces no network whose height and width are free"
            raise UserError(given, f"{path} is of ONNX, and {lacks}", "write X.stablehlo")
        if self.runtime and not path.lower().endswith(".html"):
            given = f"onnxruntime_web {self.runtime}"
            raise UserError(given, f"{path} does not contain it", "give X.html, or leave it out")
        self._check_weights(path, several)
        if not self.opset:
            return
        given = f"opset {self.opset}"
        if not path.lower().endswith(".onnx"):
            raise UserError(given, f"{path} is no ONNX", "give X.onnx, or leave it out")
        if self.opset not in OPSETS:
            raise UserError(given, "is not written", f"give one from {OPSETS[0]} to {OPSETS[-1]}, or leave it out")

    def _check_weights(self, path: str, several: bool) -> None:
        """Raise UserError on weights that are not written at a path."""
        given = f"weights {','.join(self.weights)}"
        if not set(self.weights) <= {*WEIGHTS}:
            raise UserError(given, "is no way to hold weights", f"give {', '.join(WEIGHTS)}")
        if not path.lower().endswith((".onnx", ".html")):
            self.check_float32(path)
        if len(set(self.weights)) < len(self.weights) or not (several or len(self.weights) == 1):
            raise UserError(given, f"{path} holds its weights once", "give one of them")
        if self.calibrate and not self.smaller:
            what = "nothing is calibrated of float32"
            remedy = "add `weights int8`, or leave it out"
            raise UserError(f"calibrate {self.calibrate}", what, remedy)
        if "int8" in self.weights:
            check_int8()

    def check_float32(self, path: str) -> None:
        """Raise UserError where smaller weights are asked of a program that holds them in float32 alone."""
        if self.smaller:
            given = f"weights {','.join(self.weights)}"
            raise UserError(given, f"{path} is no X.onnx", "give X.onnx or X.html, or leave it out")


def check_no_program(asked: Mapping[str, Any], path: str) -> None:
    """Raise UserError where something, {flag: value}, is asked of a program, and the target is none."""
    for name, value in asked.items():
        if value:
            given = f"{name} {','.join(value) if isinstance(value, tuple) else value}"
            raise UserError(given, f"{path} is no program", "give X.onnx, or leave it out")


def check_int8() -> None:
    """Raise UserError where ONNX Runtime's tools for int8 are missing."""
    try:
        importlib.import_module("onnxruntime.quantization")
    except ImportError as error:
        lacks = f"needs onnxruntime.quantization, which cannot be imported here ({error})"
        raise UserError("weights int8", lacks, f"run `{install('onnx')}`") from error


@dataclass(frozen=True)
class Interface:
    """What a program takes and gives: preprocess uint8 [B, h, w, C]."""

    shape: tuple[int, int, int]
    output: str
    preprocess: Preprocess | None = None
    multiple: tuple[int, int] | None = None
    opset: int = OPSET
    stated: Json = field(default_factory=dict)

    @property
    def takes(self) -> str:
        """The name of the argument."""
        return PIXELS if self.preprocess else IMAGES

    @property
    def axes(self) -> list[str | int]:
        """The argument's shape; a name is a length that is free."""
        if self.preprocess:
            return [BATCH, HEIGHT, WIDTH, self.shape[2]]
        if self.multiple:
            return [BATCH, f"{self.multiple[0]}*rows", f"{self.multiple[1]}*columns", self.shape[2]]
        return [BATCH, *self.shape]

    def described(self) -> Json:
        """The argument, as JSON."""
        told = {
            PIXELS: ("uint8", "decoded pixels of any size, grey or RGB; all of a batch are of one size"),
            IMAGES: ("float32", "(pixels / 255 - mean) / std, with mean and std of each channel"),
        }
        dtype, values = told[self.takes]
        return {"name": self.takes, "shape": self.axes, "axes": "NHWC", "dtype": dtype, "values": values}


def preparation(prepared: Json) -> Preprocess:
    """How a run prepares images, of its JSON."""
    from vit_jax.data.images.preprocess import Preprocess

    return Preprocess.from_dict(prepared)


def statements(outputs: Outputs, preprocess: Preprocess | None, least_batch: int) -> Json:
    """What a file states of its outputs and pixels, by name."""
    kind = class_of(outputs.kind)(outputs)
    stated: Json = {
        "least_batch": least_batch,
        "kind": outputs.kind,
        "labels": list(outputs.names),
        "activation": kind.activation,
        "calibration_temperature": outputs.temperature,
    }
    if "thresholds" in kind.entries:
        stated["thresholds"] = list(kind.thresholds)
    if preprocess:
        from PIL import __version__

        stated |= {"preprocess": preprocess.to_dict(), "resized_as": f"Pillow {__version__}"}
        stated["outside"] = outside(preprocess)
    return stated


def outside(c: Preprocess) -> str:
    """A sentence on what has to be done with an image before a program takes its pixels."""
    colours = "grey (Pillow's mode L)" if c.channels == 1 else "RGB"
    low, high = c.range or (0, 65535)
    return (
        f"decode the image, turn it as its EXIF orientation says, lay transparent pixels over grey {c.background}, "
        f"convert palettes, CMYK and others to {colours}, and more than 8 bits to 8, {low:g} to 0 and {high:g} to 255"
    )


def as_texts(stated: Mapping[str, Any]) -> dict[str, str]:
    """Statements as the metadata of an ONNX file holds them: texts as they are, others as JSON."""
    return {name: value if isinstance(value, str) else json.dumps(value) for name, value in stated.items()}


def as_run_prepares(c: Preprocess, pixels: np.ndarray) -> np.ndarray:
    """Pixels uint8 [B, h, w, C] as a run makes them the network's: by Pillow, then normalised, float32 [B, H, W, C]."""
    from PIL import Image

    fitted = [c.apply(Image.fromarray(each[..., 0] if c.channels == 1 else each)) for each in pixels]
    mean, std = np.array(c.mean, np.float32), np.array(c.std, np.float32)
    images: np.ndarray = (np.stack(fitted) / np.float32(255) - mean) / std
    return images
