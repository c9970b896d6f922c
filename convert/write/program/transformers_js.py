"""A network as transformers.js runs it, and what that library makes of pictures that it has to resize.

Its graph takes `pixel_values` [B, 3, h, w] and gives `logits` [B, K]. transformers.js hands colours to every network,
so one of grey pictures computes the grey levels itself, as Pillow does.

Dimensions: B batch, h and w image height and width, C channels of the network, K outputs.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from vit_jax.config.network import NetworkConfig

from ...layout import Json, whole
from .network import Forward
from .onnx_file import take_empty_batches

if TYPE_CHECKING:
    import onnx_ir as ir

INPUT, OUTPUT = "pixel_values", "logits"  # what transformers.js calls them
COLOURS = 3
GREY = (19595, 38470, 7471)  # what red, green and blue weigh in Pillow's grey levels, of 65,536
SCALES = (0.75, 1.3, 2, 4)  # of pictures that are resized to measure what that changes
PICTURES = 12  # of each scale


class OfColours(Forward):
    """The forward pass from colours, to be traced: `pixel_values` [B, 3, h, w], normalised, to [B, K]."""

    def __init__(self, config: NetworkConfig, arrays: Mapping[str, np.ndarray], preprocess: Json):
        super().__init__(config, arrays)
        self.taken, self.preprocess = self.shape, preprocess
        self.shape = (COLOURS, *whole(preprocess)["image"])

    def __call__(self, pixel_values: Any) -> Any:
        import jax.numpy as jnp

        h, w, channels = self.taken
        images = jnp.moveaxis(pixel_values, 1, -1)[:, :h, :w]  # [B, h, w, 3]
        if channels == 1:
            mean, std = self.preprocess["mean"][0], self.preprocess["std"][0]
            levels = jnp.round((images * std + mean) * 255)
            grey = sum(levels[..., i] * weight for i, weight in enumerate(GREY))  # below 2^24: float32 is exact
            images = ((jnp.floor((grey + 32768) / 65536) / 255 - mean) / std)[..., None]
        return super().__call__(images)

    def given(self, images: np.ndarray) -> np.ndarray:
        """Normalised images [B, H, W, C] as `pixel_values`, where those are larger with zeros around."""
        colours = np.moveaxis(np.broadcast_to(images, (*images.shape[:3], COLOURS)), -1, 1)
        return np.pad(
            colours, [(0, 0), (0, 0), *((0, n - m) for n, m in zip(self.shape[1:], self.taken, strict=False))]
        )


def write_graph(model: ir.Model, opset: int, path: Path) -> Json:
    """Write the traced graph as an ONNX file; returns what a runtime needs."""
    import onnx_ir

    model.graph.inputs[0].name = INPUT
    take_empty_batches(model)
    onnx_ir.save(model, path)
    return {"opset": opset, "ir_version": model.ir_version}


def normalised(pictures: np.ndarray, preprocess: Json) -> np.ndarray:
    """`pixel_values` of pictures [B, h, w, 3] in bytes that need no resizing, as transformers.js computes them."""
    mean, std = (np.broadcast_to(np.array(preprocess[name]), COLOURS) for name in ("mean", "std"))
    scaled = (pictures * (1 / 255)).astype(np.float32)
    return np.moveaxis(((scaled - mean) / std).astype(np.float32), -1, 1)


def prepared(pictures: np.ndarray, preprocess: Json) -> np.ndarray:
    """The images [B, h, w, C] that our network takes, of such pictures."""
    from PIL import Image

    (h, w), grey = preprocess["image"], preprocess["channels"] == 1
    if grey:
        pictures = np.stack([np.asarray(Image.fromarray(each).convert("L")) for each in pictures])[..., None]
    mean, std = (np.array(preprocess[name], np.float32) for name in ("mean", "std"))
    return (pictures[:, :h, :w].astype(np.float32) / np.float32(255) - mean) / std


# ------------------------------------------------------------------------------------- its own resizing


def resize(picture: np.ndarray, height: int, width: int, interpolation: str) -> np.ndarray:
    """A picture [h, w, 3] in bytes as transformers.js resizes it in Node: by an affine map of sharp.

    The map has no antialiasing, holds the upper left corner in place, and takes what lies beyond the picture for black:
    so a reduced picture is a sample of some of its pixels, and an enlarged one ends in a dark edge.
    """
    values = picture.astype(np.float64)
    for axis, length in enumerate((height, width)):
        if (have := values.shape[axis]) == length:
            continue
        places = np.arange(length) * (have / length)
        first = np.floor(places).astype(int)
        total = np.zeros((*values.shape[:axis], length, *values.shape[axis + 1 :]))
        for offset in {"nearest": (0,), "bilinear": (0, 1), "bicubic": (-1, 0, 1, 2)}[interpolation]:
            index = first + offset
            weight = _weight(places - index, interpolation) * ((index >= 0) & (index < have))
            shape = [-1 if each == axis else 1 for each in range(3)]
            total += weight.reshape(shape) * values.take(np.clip(index, 0, have - 1), axis)
        values = total
    return np.clip(np.round(values), 0, 255).astype(np.uint8)


def _weight(distance: np.ndarray, interpolation: str) -> np.ndarray:
    """What a pixel at a distance counts."""
    d = np.abs(distance)
    if interpolation == "nearest":
        return np.ones_like(d)
    if interpolation == "bilinear":
        return 1 - d
    if interpolation != "bicubic":
        raise ValueError(f"interpolation {interpolation}")
    return np.where(d <= 1, 1.5 * d**3 - 2.5 * d**2 + 1, -0.5 * d**3 + 2.5 * d**2 - 4 * d + 2)


def fitted(picture: np.ndarray, preprocess: Json) -> np.ndarray:
    """A picture [h, w, 3] of any size as transformers.js fits it to the network in Node."""
    p = whole(preprocess)
    (h, w), (height, width) = p["image"], picture.shape[:2]
    if p["fit"] == "stretch":
        return resize(picture, h, w, p["interpolation"])
    scale = max(p["size"], h) / min(height, width)
    rows, columns = (math.floor(round(side * scale, 2)) for side in (height, width))
    scaled = resize(picture, rows, columns, p["interpolation"])
    top, left = (rows - h) // 2, (columns - w) // 2
    return scaled[top : top + h, left : left + w]


def measure_resizing(forward: OfColours) -> list[Json]:
    """How far the answers for pictures that transformers.js resizes are from those of `predict`, for each of SCALES."""
    from PIL import Image

    from vit_jax.data.images.preprocess import Preprocess

    preprocess, rng, rows = Preprocess.from_dict(dict(forward.preprocess)), np.random.default_rng(0), []
    colours = Preprocess.from_dict({**forward.preprocess, "channels": COLOURS})
    for scale in SCALES:
        size = [round(side * scale) for side in whole(forward.preprocess)["image"]]
        pictures = [drawn(rng, *size) for _ in range(PICTURES)]
        theirs = np.stack([fitted(each, forward.preprocess) for each in pictures])
        ours = np.stack([preprocess.apply(Image.fromarray(each)) for each in pictures])
        levels = np.abs(
            theirs[:, : colours.image[0], : colours.image[1]].astype(int)
            - np.stack([colours.apply(Image.fromarray(each)) for each in pictures])
        )
        mean, std = (np.array(forward.preprocess[name], np.float32) for name in ("mean", "std"))
        answers = [
            softmax(forward.computed(images))
            for images in (prepared(theirs, forward.preprocess), (ours.astype(np.float32) / 255 - mean) / std)
        ]
        rows.append(
            {
                "size": size,
                "pictures": PICTURES,
                "levels": [int(levels.max()), float(levels.mean())],
                "probability": float(np.abs(answers[0] - answers[1]).max()),
                "same": int((answers[0].argmax(1) == answers[1].argmax(1)).sum()),
            }
        )
    return rows


def drawn(rng: np.random.Generator, height: int, width: int) -> np.ndarray:
    """A picture [height, width, 3] in bytes: ellipses in random colours on a changing background."""
    y, x = np.mgrid[0:height, 0:width] / np.array([height, width]).reshape(2, 1, 1)
    left, right = rng.uniform(0, 255, (2, COLOURS))
    picture = left + x[..., None] * (right - left)
    for _ in range(12):
        (centre_y, centre_x), (a, b) = rng.uniform(0, 1, 2), rng.uniform(0.03, 0.3, 2)
        picture[((y - centre_y) / a) ** 2 + ((x - centre_x) / b) ** 2 < 1] = rng.uniform(0, 255, COLOURS)
    return np.round(picture).astype(np.uint8)


def softmax(logits: np.ndarray) -> np.ndarray:
    """Probabilities [B, K] of logits."""
    exponentials = np.exp(logits - logits.max(1, keepdims=True))
    return np.asarray(exponentials / exponentials.sum(1, keepdims=True))
