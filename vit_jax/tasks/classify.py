"""Image classification: images to one of K classes, trained with cross entropy."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, cast

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from jax import Array

from .. import report
from ..augment import augment, normalise
from ..config import ImageAugment, RunConfig, ViTConfig, pair
from ..data import Dataset, Preprocess, Split, open_image, open_images
from ..errors import UserError
from ..layers import fold, merge, split
from ..runs import Run
from ..vit import ViT, sinusoids
from .contract import Answer, Batch, Evaluation, Load, Trained

BATCH = 64  # images per batch of a prediction
SHOWN = 8  # most images in an attention figure of a prediction
SAMPLES = 4  # sample images written at the end of a training
WRONG = 36  # most images in the figure of wrong predictions


@dataclass(frozen=True)
class Classified(Evaluation):
    """The result of a network of K classes on n images; `predicted` is int [n].

    The metrics are loss, accuracy and {precision, recall, f1}_{macro, micro}.
    """

    confidence: np.ndarray  # float [n]: the probability of the predicted class
    confusion: np.ndarray  # int [K, K]: rows are the truth, columns the prediction
    per_class: dict[str, np.ndarray]  # precision, recall, f1: float [K]


@dataclass(frozen=True)
class Classify:
    """The task `classify`. A batch is {"image": uint8 [B, h, w, C], "label": int32 [B]}."""

    augment: ImageAugment
    mean: tuple[float, ...]  # per channel, of pixels in 0..1
    std: tuple[float, ...]
    label_smoothing: float

    unit: ClassVar[str] = "images"
    selection_metric: ClassVar[tuple[str, int]] = ("accuracy", 1)
    frozen: ClassVar[dict[str, Any]] = {}

    @classmethod
    def open_data(cls, run: RunConfig) -> Dataset:
        """The images of a run, split. Raises UserError."""
        c, data, augment = cast(Any, (run.model, run.data, run.augment))  # of the types that the task's row names
        return open_images(data, c.image, c.channels, normalize=augment.normalize, classes=c.classes, seed=run.seed)

    @classmethod
    def from_run(cls, run: RunConfig, metadata: Mapping[str, Any]) -> Classify:
        """The task of a run, with the mean and std of its preprocessing."""
        preprocess, augment = metadata["preprocess"], cast(ImageAugment, run.augment)  # the type in the task's row
        return cls(augment, tuple(preprocess["mean"]), tuple(preprocess["std"]), run.loss.label_smoothing)

    def load_frozen(self, load: Load) -> Classify:
        """The task itself: its loss has no frozen arrays."""
        return self

    def prepare(self, batch: Batch, keys: Array) -> Batch:
        """The batch with its images augmented; they stay uint8 [B, h, w, C]."""
        return {**batch, "image": augment(batch["image"], fold(keys, 0), self.augment)}

    def denominator(self, batch: Batch) -> None:
        """None: the loss is a mean over images."""

    def images(self, batch: Batch, dtype: Any) -> Array:
        """The network's input: the images of a batch, normalised, [B, h, w, C] of `dtype`."""
        return normalise(batch["image"], self.mean, self.std, dtype)

    def loss(self, model: ViT, batch: Batch, keys: Array, denominator: None = None) -> tuple[Array, dict[str, Array]]:
        """(cross entropy [], {"accuracy": []}) of a prepared batch, labels smoothed; `keys` [B] are for dropout."""
        logits = model(self.images(batch, model.dtype), keys=fold(keys, 1))  # [B, K]
        targets = jax.nn.one_hot(batch["label"], logits.shape[-1], dtype=logits.dtype)
        if self.label_smoothing:
            targets = optax.smooth_labels(targets, self.label_smoothing)
        loss = optax.softmax_cross_entropy(logits, targets).mean()
        return loss, {"accuracy": (logits.argmax(-1) == batch["label"]).mean()}

    def outputs(self, model: ViT, batch: Batch) -> dict[str, Array]:
        """{"loss" (labels not smoothed), "predicted" (a class, int), "confidence" (its probability)}, each [B]."""
        logits = model(self.images(batch, model.dtype))
        loss = optax.softmax_cross_entropy_with_integer_labels(logits, batch["label"])
        probabilities = jax.nn.softmax(logits)
        return {"loss": loss, "predicted": jnp.argmax(logits, -1), "confidence": probabilities.max(-1)}

    def score(self, config: ViTConfig, split: Split, out: dict[str, np.ndarray]) -> Classified:
        """The metrics of a split, from the outputs of all its examples."""
        return score(split.labels, out["predicted"], out["confidence"], out["loss"], config.classes)

    def predictor(self, network: ViT, trained: Trained) -> Classifier:
        """The network with its preprocessing and class names."""
        preprocess = Preprocess.from_dict(trained.metadata["preprocess"])
        return Classifier(network, trained.run, preprocess, tuple(trained.metadata["class_names"]), trained.step, self)

    def pictures(self, network: ViT, data: Dataset, result: Evaluation | None, folder: Run) -> str:
        """Sample images, and figures of patches, position embeddings and attention.

        With the result of the test split also the confusion matrix, scores per class and the worst mistakes. Returns
        the first sample image.
        """
        split = data.splits.get("test") or data.splits["train"]
        images = split.take(np.arange(min(SAMPLES, len(split))))
        saved = []
        if data.preprocess.channels in (1, 3):  # an image file has no other number of channels
            saved = save_samples(folder, images, [data.class_names[label] for label in split.labels[: len(images)]])
        draw_inside(network, self, images, folder)
        if isinstance(result, Classified):
            draw_result(data, result, folder)
        return f"{folder.samples.name}/{saved[0]}" if saved else ""


def score(
    truth: np.ndarray, predicted: np.ndarray, confidence: np.ndarray, loss: np.ndarray, classes: int
) -> Classified:
    """The metrics of n predictions: truth and predicted int [n], confidence and loss float [n], K = `classes`.

    Precision, recall and F1 are counted over the whole split, not averaged over batches. A class that is never
    predicted has precision 0.
    """
    from sklearn.metrics import confusion_matrix, precision_recall_fscore_support

    labels, names = np.arange(classes), ("precision", "recall", "f1")
    metrics = {"loss": float(loss.astype(np.float64).mean()), "accuracy": float((predicted == truth).mean())}
    for average in ("macro", "micro"):
        values = precision_recall_fscore_support(truth, predicted, labels=labels, average=average, zero_division=0)
        metrics |= {f"{name}_{average}": float(v) for name, v in zip(names, values, strict=False)}
    each = precision_recall_fscore_support(truth, predicted, labels=labels, average=None, zero_division=0)
    return Classified(
        metrics,
        predicted,
        confidence,
        confusion_matrix(truth, predicted, labels=labels),
        dict(zip(names, each, strict=False)),
    )


@dataclass(frozen=True)
class Classifier:
    """A trained network with the preprocessing of its evaluation and its class names.

    `model(images)` calls the network on normalised images [B, h, w, C]. `predict` and `logits` take files, Pillow
    images or uint8 arrays and preprocess them.
    """

    model: ViT
    run: RunConfig
    preprocess: Preprocess
    class_names: tuple[str, ...]
    step: int
    task: Classify

    header: ClassVar[tuple[str, ...]] = ("file", "rank", "class", "probability")

    def pixels(self, images: Sequence[Any]) -> np.ndarray:
        """Preprocess paths, Pillow images or uint8 arrays [any h, any w(, C)] to one batch, uint8 [B, h, w, C].

        Raises UserError where there is none, or one that cannot be read.
        """
        if not len(images):
            raise UserError("images: none given; give at least one")
        return np.stack([self._pixels(image) for image in images])

    def _pixels(self, image: Any) -> np.ndarray:
        from PIL import Image

        prepared = (*self.preprocess.image, self.preprocess.channels)
        if isinstance(image, np.ndarray):
            if image.dtype == np.uint8 and image.shape == prepared and self.preprocess.leaves_unchanged(*prepared):
                return image
            if image.dtype != np.uint8 or not (image.ndim == 2 or (image.ndim == 3 and image.shape[-1] in (1, 3, 4))):
                raise UserError(
                    f"images: an array is {image.dtype} {list(image.shape)}; "
                    "give uint8 pixels [h, w] or [h, w, C] with 1, 3 or 4 channels"
                )
            image = Image.fromarray(image[..., 0] if image.ndim == 3 and image.shape[-1] == 1 else image)
        if prepared[-1] not in (1, 3):
            raise UserError(
                f"images: this network takes {prepared[-1]} channels, which image files do not have; "
                f"give uint8 arrays {list(prepared)}"
            )
        return self.preprocess.apply(open_image(image) if isinstance(image, (str, os.PathLike)) else image)

    def logits(self, images: Sequence[Any]) -> np.ndarray:
        """The logits of images, float32 [B, K]. Raises UserError."""
        normalised = self.task.images({"image": self.pixels(images)}, self.model.dtype)
        return np.asarray(_forward(self.model, normalised))

    def predict(self, images: Sequence[Any], top: int = 1) -> list[list[tuple[str, float]]]:
        """The `top` most probable classes of each image, as (name, probability), best first. Raises UserError."""
        if not self.class_names:
            raise UserError("this network has no head and no classes; give weights with a head, or call logits(images)")
        probabilities = np.asarray(jax.nn.softmax(self.logits(images), axis=-1))
        order = np.argsort(-probabilities, axis=-1, kind="stable")[:, :top]
        return [
            [(self.class_names[k], float(row[k])) for k in best] for row, best in zip(probabilities, order, strict=True)
        ]

    def answer(self, inputs: Sequence[str | os.PathLike[str]], top: int = 3) -> Iterator[Answer]:
        """The `top` most probable classes of each image file. Raises UserError."""
        for begin in range(0, len(inputs), BATCH):
            files = inputs[begin : begin + BATCH]
            for file, classes in zip(files, self.predict(files, top), strict=True):
                line = f"{file}: " + ", ".join(f"{name} ({probability:.1%})" for name, probability in classes)
                rows: list[tuple[str | int, ...]] = [
                    (str(file), rank, name, f"{p:.6f}") for rank, (name, p) in enumerate(classes, 1)
                ]
                yield Answer(file, classes, line, rows)

    def draw_attention(self, inputs: Sequence[Any], path: Path) -> None:
        """Draw the attention maps of the first images and write them to `path` as one PNG. Raises UserError."""
        pixels = self.pixels(inputs[:SHOWN])
        draw_attention(self.model.config, pixels, attention(self.model, self.task, pixels), path)


@nnx.jit
def _forward(model: ViT, images: Array) -> Array:
    return model(images)


# ---------------------------------------------------------------------------------------- figures


def attention(network: ViT, task: Classify, images: np.ndarray) -> np.ndarray:
    """The attention weights of all L layers and H heads, [m, L, H, N, N], on images uint8 [m, h, w, C]."""
    definition, parameters = split(network)

    @jax.jit
    def maps(parameters: dict[str, Any], images: Array) -> Array:
        model = merge(definition, parameters)
        return model.capture(task.images({"image": images}, model.dtype), ["attention"])["attention"]

    return np.asarray(maps(parameters, images))


def save_samples(folder: Run, images: np.ndarray, names: Sequence[str]) -> list[str]:
    """Replace the samples of a run by images uint8 [m, h, w, C] of the classes `names`; return the file names."""
    from PIL import Image

    files = [f"{i}-{''.join(c if c.isalnum() else '_' for c in name)[:40]}.png" for i, name in enumerate(names)]
    shutil.rmtree(folder.samples)
    folder.samples.mkdir()
    for i, image in enumerate(images):
        Image.fromarray(image[..., 0] if image.shape[-1] == 1 else image).save(folder.samples / files[i])
    return files


def draw_inside(network: ViT, task: Classify, images: np.ndarray, folder: Run) -> None:
    """Draw patches, position embeddings and attention of a network on images uint8 [m, h, w, C]."""
    c = network.config
    report.draw_patches(visible(images)[0], pair(c.patch), folder.plots / "patches.png")
    draw_attention(c, images, attention(network, task, images), folder.plots / "attention.png")
    if c.position != "none":
        position = np.asarray(network.position[...]) if network.position is not None else sinusoids(c)
        report.draw_positions(position, c.position_rows - c.patches, c.grid, folder.plots / "positions.png")


def visible(images: np.ndarray) -> np.ndarray:
    """Images [m, h, w, C] as RGB or grey: their first three channels, or the first where there are fewer than three."""
    return images[..., : 3 if images.shape[-1] >= 3 else 1]


def draw_attention(c: ViTConfig, images: np.ndarray, maps: np.ndarray, path: Path) -> None:
    """Draw attention maps [m, L, H, N, N] over images uint8 [m, h, w, C].

    The map is that of the class token where the head reads that token, else the mean over all patches.
    """
    prefix = sum(count for _, count, _ in c.prefix)
    report.draw_attention(visible(images), maps, prefix, c.grid, c.pool in ("cls", "cls_distill"), path)


def draw_result(data: Dataset, result: Classified, folder: Run) -> None:
    """Draw the confusion matrix, the scores per class and the most confident mistakes on the test split."""
    split, names = data.splits["test"], data.class_names
    report.draw_confusion(result.confusion, names, folder.plots / "confusion.png")
    each = result.per_class
    report.draw_per_class(each["precision"], each["recall"], each["f1"], names, folder.plots / "per-class.png")
    wrong = np.flatnonzero(result.predicted != split.labels)
    worst = wrong[np.argsort(-result.confidence[wrong], kind="stable")][:WRONG]
    report.draw_wrong(
        visible(split.take(worst)),
        split.labels[worst],
        result.predicted[worst],
        result.confidence[worst],
        names,
        folder.plots / "wrong.png",
    )
