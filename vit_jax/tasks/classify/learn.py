"""Image classification: images to one of K classes, trained with cross entropy or a binary one of each class."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, ClassVar, Self, cast

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import Array

from ...augmentation.batch import augment, normalise
from ...augmentation.config import ImageAugment
from ...config.dotted import replace_fields
from ...config.run import RunConfig
from ...data.base import Given
from ...data.images.config import ImageData
from ...data.images.preprocess import Preprocess
from ...data.images.splits import Dataset, Split, open_images
from ...data.other import Other, open_other_images
from ...files.terminal import printable
from ...models.layers import fold
from ...models.vit import ViT
from ...models.vit_config import ViTConfig
from ..base import Answer, Batch, Evaluation, Predictor, Task
from .answers import TOLD
from .draw import draw_inside, draw_result, of_several_classes, save_samples
from .score import Classified, score, score_of
from .spec import TellsClasses
from .use import Classifier, captured

FLIP = "flip_"  # begins the names of outputs of an image and its mirror image
LOSSES = {"cross_entropy": optax.softmax_cross_entropy, "binary": optax.sigmoid_binary_cross_entropy}
SAMPLES = 4  # sample images written at the end of a training


@dataclass(frozen=True)
class Classify(Task):
    """The task `classify`. A batch is {"image": uint8 [B, h, w, C], "label": int32 [B]}, in training also "row" [B]."""

    augment: ImageAugment
    mean: tuple[float, ...]  # per channel, of pixels in 0..1
    std: tuple[float, ...]
    label_smoothing: float
    loss_name: str = field(default="cross_entropy", kw_only=True)
    mirrors: bool = field(default=False, kw_only=True)  # `outputs` also has those of an image and its mirror image
    classes: int = field(default=0, kw_only=True)  # K, for the targets of mixed images

    unit: ClassVar[str] = "images"
    selection_metric: ClassVar[tuple[str, int]] = ("accuracy", 1)
    predictor: ClassVar[type[Predictor]] = Classifier

    @classmethod
    def open_data(cls, run: RunConfig, given: Given | None = None, fetch: bool = True) -> Dataset:
        """The images of a run, split; given ones are (images, labels), uint8 and int. Raises UserError."""
        c, data, augment = run.model, run.data, run.augment
        assert isinstance(c, TellsClasses) and isinstance(data, ImageData) and isinstance(augment, ImageAugment)
        how = {name: getattr(augment, name) for name in ("normalize", "mean", "std", "repeats")}
        how |= {"classes": c.classes, "seed": run.seed, "given": given, "fetch": fetch}
        return open_images(data, c.image, c.channels, **how)

    @classmethod
    def from_run(cls, run: RunConfig, metadata: Mapping[str, Any]) -> Self:
        """The task of a run, with the mean and std of its preprocessing."""
        preprocess = metadata["preprocess"]
        c, augment = run.model, run.augment
        assert isinstance(c, TellsClasses) and isinstance(augment, ImageAugment)
        mean, std = tuple(preprocess["mean"]), tuple(preprocess["std"])
        loss = run.loss
        return cls(augment, mean, std, loss.spread_over_all(c.classes), loss_name=loss.name, classes=c.classes)

    def mirrored(self) -> Self:
        """The task whose evaluations also have those of the mean of the logits of an image and its mirror image."""
        return replace(self, mirrors=True)

    def probed(self) -> ClassifyProbe:
        """The task with which a probe sees the network."""
        return ClassifyProbe(**{f.name: getattr(self, f.name) for f in fields(Classify)})

    def prepare(self, batch: Batch, keys: Array, epoch: Array) -> Batch:
        """The batch with its images augmented: uint8 [B, h, w, C], or float32 0..255 with mixup.

        Where images are mixed, the batch has their targets too, {"target": float32 [B, K]}.
        """
        keys = fold(keys, 0)
        if not self.augment.mixes:
            return {**batch, "image": augment(batch["image"], keys, self.augment)}
        images, targets = augment(
            batch["image"], keys, self.augment, labels=batch["label"], classes=self.classes, epoch=epoch
        )
        return {**batch, "image": images, "target": targets}

    def images(self, batch: Batch, dtype: Any) -> Array:
        """The network's input: the images of a batch, normalised, [B, h, w, C] of `dtype`."""
        return normalise(batch["image"], self.mean, self.std, dtype)

    def loss(self, model: ViT, batch: Batch, keys: Array, denominator: None = None) -> tuple[Array, dict[str, Array]]:
        """(loss [], {"accuracy": []}) of a prepared batch, labels smoothed; `keys` [B] are for dropout."""
        return self.of_labels(model(self.images(batch, model.dtype), keys=fold(keys, 1)), batch)

    def of_labels(self, logits: Array, batch: Batch) -> tuple[Array, dict[str, Array]]:
        """What `loss` returns, for logits [B, K].

        The targets are those of the batch, float [B, K], if it has any (of mixed images), else its labels. A binary
        loss is a mean over the classes too, as in timm's BinaryCrossEntropy and DeiT III (arXiv 2204.07118). Of a
        mixed image the class with the larger share counts as right.
        """
        targets = batch["target"] if "target" in batch else jax.nn.one_hot(batch["label"], logits.shape[-1])
        label, targets = targets.argmax(-1), targets.astype(logits.dtype)
        if self.label_smoothing:
            targets = optax.smooth_labels(targets, self.label_smoothing)
        loss = LOSSES[self.loss_name](logits, targets).mean()
        return loss, {"accuracy": (logits.argmax(-1) == label).mean()}

    def outputs(self, model: ViT, batch: Batch) -> dict[str, Array]:
        """For each image, [B].

        "loss" (labels not smoothed), "predicted" (a class, int), "confidence" (its probability) and "rank" (of the true
        class: how many classes have a greater logit, or an equal one and a smaller number; so 0 where it is predicted).
        With `mirrors` also "flip_loss" and so on, of the mean of the logits of an image and its mirror image.
        """
        images = self.images(batch, model.dtype)
        logits = model(images)
        out = _outcomes(logits, batch["label"])
        if self.mirrors:
            both = _outcomes((logits + model(images[:, :, ::-1])) / 2, batch["label"])
            out |= {f"{FLIP}{name}": values for name, values in both.items()}
        return out

    def score(self, config: ViTConfig, split: Split, out: dict[str, np.ndarray]) -> Classified:
        """The metrics of a split, from the outputs of all its examples."""

        def of(prefix: str) -> Classified:
            predicted, confidence, loss, rank = (out[prefix + n] for n in ("predicted", "confidence", "loss", "rank"))
            return score(split.labels, predicted, confidence, loss, rank, config.classes, split.classes)

        return replace(of(""), flipped=of(FLIP)) if self.mirrors else of("")

    @classmethod
    def open_other_data(
        cls, run: RunConfig, metadata: Mapping[str, Any], split: str, given: Given | None = None
    ) -> Other:
        """Images that the network was not trained on, and the network's classes of them. Raises UserError."""
        preprocess = Preprocess.from_dict(metadata["preprocess"])
        data = run.data
        assert isinstance(data, ImageData)
        return open_other_images(data, split, preprocess, metadata["class_names"], given)

    def table(
        self, split: Split, result: Evaluation, metadata: Mapping[str, Any]
    ) -> tuple[tuple[str, ...], Iterator[tuple[str | int, ...]]]:
        """A row for each image: its file or its place in the data, its class, and the predicted one."""
        names, found = metadata["class_names"], cast(Classified, result)
        columns = zip(split.labels, found.predicted, found.confidence, strict=True)
        rows = (
            (split.name(i), names[true], names[predicted], f"{probability:.6f}")
            for i, (true, predicted, probability) in enumerate(columns)
        )
        return ("file", "true", "predicted", "probability"), rows

    def answers(self, predictor: Classifier, inputs: Sequence[Any], top: int, first: int = 0) -> Iterator[Answer]:
        """The `top` most probable classes of each image file, its labels, or its numbers."""
        for file, said in zip(inputs, predictor.predict(inputs, top, len(inputs)), strict=True):
            kind = TOLD[predictor.outputs.kind]
            line = printable(f"{file}: {kind.line(said)}")
            yield Answer(file, said, line, kind.rows(str(file), said), kind.plain(said))

    def draw_result(
        self, split: Split, result: Evaluation, metadata: Mapping[str, Any], folder: Path, caption: str
    ) -> tuple[str, ...]:
        """The confusion matrix, the scores per class and the most confident mistakes."""
        draw_result(split, cast(Classified, result), metadata["class_names"], folder, caption)
        return ()

    def pictures(self, network: ViT, data: Dataset, plots: Path, samples: Path, caption: str) -> str:
        """Sample images of several classes, and figures of patches, position embeddings and attention.

        Returns the first sample image.
        """
        split = data.splits.get("test") or data.splits["train"]
        chosen = of_several_classes(split.labels, SAMPLES)
        images, truth = split.take(chosen), [data.class_names[label] for label in split.labels[chosen]]
        saved = save_samples(samples, images, truth, data.preprocess.range)
        found = captured(network, self.images({"image": images}, network.dtype), ("logits", "attention"))
        draw_inside(network, images, found, plots, caption, truth, data.class_names)
        return f"{samples.name}/{saved[0]}" if saved else ""


@dataclass(frozen=True)
class ClassifyProbe(Classify):
    """`classify` as a probe sees it: the network gives features, and the classes are those of any data."""

    @classmethod
    def open_data(cls, run: RunConfig, given: Given | None = None, fetch: bool = True) -> Dataset:
        """The images of a run, as `Classify` opens them, of any number of classes. Raises UserError."""
        return super().open_data(replace_fields(run, {"model.classes": 0}), given, fetch)

    def outputs(self, model: ViT, batch: Batch) -> dict[str, Array]:
        """{"pooled": [B, D]}: the input of the network's head."""
        return {"pooled": model.capture(self.images(batch, model.dtype), ("pooled",))["pooled"]}

    def score(self, config: ViTConfig, split: Split, out: dict[str, np.ndarray]) -> Classified:
        """The metrics of a split, but no loss, from {"scores": [n, K]}, the share that a probe gives each class."""
        return score_of(split.labels, out["scores"])


def _outcomes(logits: Array, label: Array) -> dict[str, Array]:
    """The outputs of logits [B, K] and labels [B], as in `Classify.outputs`."""
    loss = optax.softmax_cross_entropy_with_integer_labels(logits, label)
    true = jnp.take_along_axis(logits, label[:, None], -1)  # [B, 1]
    # Counted as those that are not below, so that a NaN is never among the best.
    below = (logits < true) | ((logits == true) & (jnp.arange(logits.shape[-1]) >= label[:, None]))
    return {
        "loss": loss,
        "predicted": jnp.argmax(logits, -1),
        "confidence": jax.nn.softmax(logits).max(-1),
        "rank": (~below).sum(-1),
    }
