"""What a trained classifier is used by: classes, inner values, features and attention of images of any size."""

from __future__ import annotations

import functools
import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
from flax import nnx

from ...errors import Field, UserError
from ...files.output import shorten, write_npz
from ...models.build import describe_network
from ...models.vit import ViT
from ..base import BATCH, batches
from ..images import ImagePredictor
from .draw import caption_of, draw_attention
from .features import block_numbers, compiled_features

SHOWN = 8  # most images in an attention figure of a prediction


class Classifier(ImagePredictor):
    """A trained network with the preprocessing of its evaluation and its class names; see `ImagePredictor`."""

    model: ViT

    def __repr__(self) -> str:
        names = ", ".join([*map(repr, self.class_names[:3]), *(["..."] if len(self.class_names) > 3 else [])])
        what = f"{describe_network(self.run.model)}; images {self.size}"
        return f"Classifier({what}; {len(self.class_names)} classes: {names})"

    @functools.cached_property
    def class_names(self) -> tuple[str, ...]:
        """The name of each class; none of a network without a head."""
        return tuple(self.trained.metadata["class_names"])

    def logits(self, images: Any, batch: int = BATCH) -> np.ndarray:
        """The logits of the images.

        Args:
            images: one or several, as `ImagePredictor` takes them.
            batch: how many are computed at a time.

        Returns:
            float32 [n, K], float64 where the network is; [K] of one image.

        Raises:
            UserError: an image cannot be used.
        """
        return self.capture(images, ["logits"], batch)["logits"]

    def predict(self, images: Any, top: int = 1, batch: int = BATCH) -> list[Any]:
        """The most probable classes of each image.

        Args:
            images: one or several, as `ImagePredictor` takes them.
            top: how many classes.
            batch: how many images are computed at a time.

        Returns:
            for each image [(name, probability), ...], best first; of one image such a list alone.

        Raises:
            UserError: an image cannot be used, or the network has no head.
        """
        if not self.class_names:
            raise UserError(
                "this network has no head and no classes", remedy="give weights with a head, or call logits(images)"
            )
        if top < 1:
            raise UserError(Field("top"), f"is {top}", "give a positive number")
        logits = self.logits(images, batch)
        probabilities = np.asarray(jax.nn.softmax(np.atleast_2d(logits), axis=-1))
        order = np.argsort(-probabilities, axis=-1, kind="stable")[:, :top]
        answers = [
            [(self.class_names[k], float(row[k])) for k in best] for row, best in zip(probabilities, order, strict=True)
        ]
        return answers if logits.ndim == 2 else answers[0]

    def capture(self, images: Any, names: Iterable[str], batch: int = BATCH) -> dict[str, np.ndarray]:
        """Inner values of the network on the images.

        Args:
            images: one or several, as `ImagePredictor` takes them.
            names: those of `ViT.capture`: tokens, blocks.I, features, pooled, attention, logits.
            batch: how many images are computed at a time.

        Returns:
            {name: array [n, ...]}, or [...] of one image.

        Raises:
            UserError: an image cannot be used.
            ValueError: there is no such name.
        """
        wanted = (names,) if isinstance(names, str) else tuple(names)
        several, one = self.listed(images)
        parts = [captured(self.model, self.inputs(some), wanted) for _, some in batches(several, batch)]
        found = {name: np.concatenate([np.asarray(part[name]) for part in parts]) for name in wanted}
        return {name: array[0] for name, array in found.items()} if one else found

    def features(
        self, images: Any, blocks: Sequence[int] = (), norm: bool = True, batch: int = BATCH
    ) -> dict[str, np.ndarray]:
        """The features of images for search and detection.

        Args:
            images: one or several, as `ImagePredictor` takes them.
            blocks: those of which maps are wanted, counted from 0, as in timm (block I is stage I + 1 of Hugging Face's
                backbones), or from the end: -1 is the last.
            norm: whether the network's last norm, if it has one, is applied to the output of every block, as Hugging
                Face's Dinov2Backbone and DINOv2's get_intermediate_layers do by default, and timm's
                forward_intermediates with norm=True. Without it outputs are as they are, timm's default.
            batch: how many images are computed at a time.

        Returns:
            {name: array}, float32, or float64 where the network is; of one image without the axis of n. pooled [n, D]
            is the input of the head, before its norm if it has one. Of each block I, maps.I [n, gh, gw, D] is its
            output at the patches, as they lie in the image, and prefix.I [n, P, D] that at the tokens before them:
            class token, distillation token, registers, as far as there are any.

        Raises:
            UserError: an image cannot be used, or there is no such block.
        """
        several, one = self.listed(images)
        out: dict[str, np.ndarray] = {}
        begin = 0
        for part in self._features(several, block_numbers(blocks, self.layers), norm, batch):
            for name, values in part.items():
                whole = out.setdefault(name, np.empty((len(several), *values.shape[1:]), values.dtype))
                whole[begin : begin + len(values)] = values
            begin += batch
        return {name: array[0] for name, array in out.items()} if one else out

    def _features(
        self, several: Sequence[Any], blocks: tuple[int, ...], norm: bool, batch: int
    ) -> Iterator[dict[str, np.ndarray]]:
        """`features` of a list of images, batch by batch."""
        names = ["pooled", *(f"{part}.{i}" for i in blocks for part in ("maps", "prefix"))]
        for _, some in batches(several, batch):
            part = compiled_features(self.model, self.inputs(some), blocks, norm)
            yield {name: np.asarray(part[name]) for name in names}

    def write_features(
        self, inputs: Sequence[Any], path: Path, blocks: Sequence[int] = (), norm: bool = True, batch: int = BATCH
    ) -> str:
        """Write `features` of image files, and "files", their names, to a .npz, one batch in memory at a time.

        Returns a line that says what was written. Raises UserError.
        """
        numbers, names = block_numbers(blocks, self.layers), np.array([str(file) for file in inputs])
        written = write_npz(path, self._features(inputs, numbers, norm, batch), len(inputs), files=names)
        arrays = ", ".join(f"{name} {list(shape)}" for name, shape in written.items())
        return f"{path}: {arrays}"

    @property
    def layers(self) -> int:
        """The number of layers."""
        return self.model.config.depth

    def draw_attention(self, inputs: Sequence[Any], path: Path, layers: Sequence[int] = (), caption: str = "") -> None:
        """Draw the attention maps of the first images and write them to `path` as one PNG. Raises UserError."""
        inputs = inputs[:SHOWN]
        pixels = self.pixels(inputs)
        names = [Path(each).name if isinstance(each, (str, os.PathLike)) else "" for each in inputs]
        labels = [shorten(name, 24) for name in names]
        wanted = ("attention", "logits") if self.class_names else ("attention",)
        found = captured(self.model, self.normalised(pixels), wanted)
        if self.class_names:
            probabilities = np.asarray(jax.nn.softmax(found["logits"], axis=-1))
            labels = [caption_of(*each, self.class_names) for each in zip(names, probabilities, strict=True)]
            caption += "; file → predicted class (probability)"
        maps = np.asarray(found["attention"])
        draw_attention(self.model.config, pixels, maps, path, layers=layers, labels=labels, caption=caption)


# (model, images [B, h, w, C], tuple of names) -> {name: array}, as the network's own `capture`
captured: Any = nnx.jit(lambda model, images, names: model.capture(images, names), static_argnums=2)
