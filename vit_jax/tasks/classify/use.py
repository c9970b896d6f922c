"""What a trained classifier is used by: classes, inner values, features and attention of images of any size."""

from __future__ import annotations

import operator
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from flax import nnx
from jax import Array

from ...config.outputs import Outputs
from ...errors import Field, UserError
from ...figures.figure import drawn
from ...files.output import predictions, shorten, write_npz
from ...files.terminal import printable
from ...kinds.base import Kind
from ...kinds.table import EMBEDDING
from ...machine.numerics import with_fixed_settings
from ...models.build import describe_network
from ...models.layers import accumulation_dtype
from ...models.vit import ViT, sized
from ..capability import EXPLAIN_BATCH, EXPLAIN_STEPS
from ..predictor import BATCH, Answer, ImagePredictor, Predictor, batches, check_positive
from .draw import draw_attention

SHOWN = 8


class Classifier(ImagePredictor):
    """A trained network with the preprocessing of its evaluation and its class names; see `ImagePredictor`."""

    model: ViT

    def __repr__(self) -> str:
        kind, names = self.kind, self.outputs.names
        some = ", ".join([*map(repr, names[:3]), *(["..."] if len(names) > 3 else [])])
        means = f"{len(names)} {kind.each[1]}"
        if kind.columns:
            means = self.outputs.kind + (f" of {len(names)}" if names else "")
        what = f"{describe_network(self.run.model)}; images {self.size}"
        return f"Classifier({what}; {means}{': ' if names else ''}{some})"

    @property
    def kind(self) -> Kind:
        """What its outputs mean."""
        return self.task.kind  # a Classify

    @property
    def outputs(self) -> Outputs:
        """What its outputs are, and their names; those of an embedding have none."""
        return self.kind.outputs if self.kind.has_answers else Outputs(EMBEDDING)

    @property
    def class_names(self) -> tuple[str, ...]:
        """The name of each class, label or number; none where outputs are an embedding."""
        return self.outputs.names

    @property
    def refusals(self) -> Mapping[str, tuple[str, str]]:
        """An embedding is not measured; of labels and numbers all are told."""
        found = {"top": (self.kind.no_top, "leave it out")} if self.kind.no_top else {}
        if not self.kind.has_answers:
            what = f"its outputs are {self.kind.says}, of which nothing is right or wrong"
            found["measures"] = what, "measure its features with `probe knn` or `probe linear`"
        return found

    @with_fixed_settings
    def logits(self, images: Any, batch: int = BATCH) -> np.ndarray:
        """The logits of the images, float32 [n, K], or float64 where the network is; [K] of one image."""
        return self.capture(images, ["logits"], batch)["logits"]

    @with_fixed_settings
    def predict(self, images: Any, top: int = 1, batch: int = BATCH) -> list[Any]:
        """What the network says of each image, by the kind of its `outputs`.

        Args:
            images: one or several, as `ImagePredictor` takes them.
            top: how many classes; labels and numbers are all told.
            batch: how many images are computed at a time.

        Returns:
            for each image the most probable classes, or the labels over their thresholds, [(name, probability), ...],
            best first; or the numbers, [(name, value), ...], in their order. Of one image such a list alone.
        """
        self.check_known(top)
        logits = self.logits(images, batch)
        answers = [self.kind.top_k(row, top) for row in np.atleast_2d(logits)]
        said = answers if logits.ndim == 2 else answers[0]
        return predictions(said, enumerate(answers), ("image", *self.header[1:]))

    @with_fixed_settings
    def values(self, images: Any, batch: int = BATCH) -> np.ndarray:
        """Every probability of the images, by the temperature that validation has chosen, or every number.

        Float [n, K], [K] of one image, in the order of `columns`: of classes they sum to 1, of a set each is of its
        label alone, and numbers are in the units of the data.
        """
        self.check_known()
        return self.kind.values(self.logits(images, batch))

    @property
    def columns(self) -> tuple[str, ...]:
        return self.outputs.names

    @property
    def header(self) -> tuple[str, ...]:
        return self.kind.header

    def answers(self, inputs: Sequence[Any], top: int, first: int) -> Iterator[Answer]:
        self.check_known(top)
        logits = self.logits(inputs, len(inputs))
        for file, row, values in zip(inputs, logits, self.kind.values(logits), strict=True):
            said = self.kind.top_k(row, top)
            line = printable(f"{file}: {self.kind.line(said)}")
            yield Answer(file, said, line, self.kind.rows(str(file), said), self.kind.plain(said), values)

    def check_known(self, top: int = 1) -> None:
        """Raise UserError where nothing can be told of the outputs, or not of so many."""
        if not self.kind.has_answers:
            has = "an embedding" if self.model.config.classes else "no head"
            ways = "give weights with a head, write features with `features FILE.npz`, or call logits(images)"
            raise UserError(f"this network has {has} and no classes", remedy=ways)
        check_positive(top=top)

    @with_fixed_settings
    def capture(self, images: Any, names: Iterable[str], batch: int = BATCH) -> dict[str, np.ndarray]:
        """Inner values of the network on the images: {name: array [n, ...]}, or [...] of one image.

        The names are those of `ViT.capture`: tokens, blocks.I, features, pooled, attention, logits.
        """
        wanted = (names,) if isinstance(names, str) else tuple(names)
        several, one = self.as_list(images)
        parts = [captured(self.model, self.inputs(some), wanted) for _, some in batches(several, batch)]
        found = {name: np.concatenate([np.asarray(part[name]) for part in parts]) for name in wanted}
        return {name: array[0] for name, array in found.items()} if one else found

    @with_fixed_settings
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
        """
        several, one = self.as_list(images)
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

    @with_fixed_settings
    def write_features(
        self,
        inputs: Sequence[Any],
        path: Path,
        blocks: Sequence[int] = (),
        norm: bool = True,
        batch: int = BATCH,
        **more: Any,
    ) -> str:
        """Write `features` of image files, and "files", their names, to a .npz, one batch in memory at a time."""
        numbers, names = block_numbers(blocks, self.layers), [str(file) for file in inputs]
        written = write_npz(path, self._features(inputs, numbers, norm, batch), len(inputs), files=names, **more)
        arrays = ", ".join(f"{name} {list(shape)}" for name, shape in written.items())
        return f"{path}: {arrays}"

    @with_fixed_settings
    def explain(
        self,
        images: Any,
        method: str = "ig",
        class_name: str = "",
        steps: int = EXPLAIN_STEPS,
        batch: int = EXPLAIN_BATCH,
        measured: bool = True,
    ) -> Any:
        """What counted in each image for what the network says of it, patch by patch.

        Args:
            images: one or several, as `ImagePredictor` takes them; one is explained as a list of one.
            method: ig (integrated gradients from the mean that images are normalised by, signed) or rollout (attention
                alone, which is blind to the class).
            class_name: the class, label or number to explain; empty: the most probable of each image.
            steps: of integrated gradients, each a pass forward and back.
            batch: how many images are computed at a time.
            measured: whether insertion minus deletion is measured, which takes up to 132 passes an image.

        Returns:
            ImageExplanation: `maps` [n, gh, gw], `score`, `draw(path)`, `write(name)`.
        """
        return self.capability("explain").explain(images, method, class_name, steps, batch, measured)

    @property
    def layers(self) -> int:
        return self.model.config.depth

    @with_fixed_settings
    def draw_attention(
        self, inputs: Sequence[Any], path: Path | None = None, layers: Sequence[int] = (), caption: str = ""
    ) -> Any:
        """Draw the attention maps of the first images: of these layers, counted from 0, or of the last."""
        inputs = inputs[:SHOWN]
        pixels = self.pixels(inputs)
        names = [Path(each).name if isinstance(each, (str, os.PathLike)) else "" for each in inputs]
        labels = [shorten(name, 24) for name in names]
        kind = self.kind
        wanted = ("attention", "logits") if kind.has_answers else ("attention",)
        found = captured(self.model, self.normalised(pixels), wanted)
        if kind.has_answers:
            said = (kind.top_k(row, 1) for row in np.asarray(found["logits"]))
            labels = [kind.caption(*each) for each in zip(names, said, strict=True)]
            caption += f"; file → {kind.legend}"
        maps = np.asarray(found["attention"])
        return drawn(
            draw_attention, self.model.config, pixels, maps, path, layers=layers, labels=labels, caption=caption
        )


# (model, images [B, h, w, C], tuple of names) -> {name: array}, as the network's own `capture`
captured: Any = nnx.jit(lambda model, images, names: model.capture(images, names), static_argnums=2)


class ResNetClassifier(Classifier):
    """A ResNet with the preprocessing of its evaluation and its class names: it has no attention to draw."""

    layers = 0
    draw_attention = Predictor.draw_attention


def block_numbers(blocks: Any, depth: int) -> tuple[int, ...]:
    """The numbers of some blocks of a network: ascending, each once, counted from 0."""
    if not isinstance(blocks, Iterable) or isinstance(blocks, str):
        raise UserError(Field("blocks"), f"is {blocks!r}", "give a list of numbers, such as [-1] for the last block")
    found = set()
    for block in blocks:
        if not depth:
            raise UserError("blocks", "this network has none that hand on tokens", "leave them out")
        try:
            number = operator.index(block)
        except TypeError:
            number = depth  # which is not there
        if not -depth <= number < depth:
            raise UserError(
                "blocks", f"there is no block {block!r}", f"give 0 to {depth - 1}, or -1 (the last) to {-depth}"
            )
        found.add(number % depth)
    return tuple(sorted(found))


def features(model: Any, images: Array, blocks: tuple[int, ...] = (), norm: bool = True) -> dict[str, Array]:
    """What the head reads of images, and the maps of some blocks: images [B, h, w, C] -> [B, D]."""
    found = model.capture(images, ("pooled", *(f"blocks.{i}" for i in blocks)))
    out = {"pooled": found["pooled"]}
    for i in blocks:
        c, x = sized(model.config, images), found[f"blocks.{i}"]  # [B, P + gh gw, D]
        x = x if model.norm is None or not norm else model.norm(x)
        x = x.astype(accumulation_dtype(x.dtype))
        out |= {f"maps.{i}": x[:, c.first_patch :].reshape(len(x), *c.grid, -1), f"prefix.{i}": x[:, : c.first_patch]}
    return out


compiled_features: Any = nnx.jit(features, static_argnums=(2, 3))
