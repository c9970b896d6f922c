"""Images to one of K classes, by cross entropy."""

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

from ..augment import augment, normalise
from ..config import ImageAugment, RunConfig, ViTConfig, pair
from ..data import Dataset, Preprocess, Split, open_image, open_images
from ..errors import UserError
from ..layers import fold, merge, split
from ..report import plots
from ..runs import Run
from ..vit import ViT, sinusoids
from .contract import Answer, Batch, Evaluation, Load, Record

BATCH = 64  # images classified at a time
SHOWN = 8  # images in an attention picture
SAMPLES = 4
WRONG = 36


@dataclass(frozen=True)
class Classified(Evaluation):
    """What a network of K classes did on n images: metrics are loss, accuracy and {precision, recall, f1}_{macro, micro}."""

    confidence: np.ndarray  # float [n], the probability given to the predicted class
    confusion: np.ndarray  # int [K, K]: rows are the truth, columns the prediction
    per_class: dict[str, np.ndarray]  # precision, recall, f1: float [K]


@dataclass(frozen=True)
class Classify:
    """The task. A batch is {image: uint8 [B, h, w, C], label: int32 [B]}; mean and std belong to pixels in 0..1."""

    augment: ImageAugment
    mean: tuple[float, ...]
    std: tuple[float, ...]
    label_smoothing: float

    unit: ClassVar[str] = "images"
    chosen: ClassVar[tuple[str, int]] = ("accuracy", 1)
    frozen: ClassVar[dict[str, Any]] = {}

    @classmethod
    def open(cls, run: RunConfig) -> Dataset:
        """The images of a run. Raises UserError."""
        c, data, augment = cast(Any, (run.model, run.data, run.augment))  # of the classes that its row names
        return open_images(data, c.image, c.channels, normalize=augment.normalize, classes=c.classes, seed=run.seed)

    @classmethod
    def of(cls, run: RunConfig, kept: Mapping[str, Any]) -> Classify:
        """The task of a run whose images are prepared as it keeps."""
        how = kept["preprocess"]
        return cls(run.augment, tuple(how["mean"]), tuple(how["std"]), run.loss.label_smoothing)  # type: ignore[arg-type]  # its row's own class

    def bring(self, load: Load) -> Classify:
        """The task as it is: nothing takes part in its loss but the network."""
        return self

    def prepare(self, batch: Batch, keys: Array) -> Batch:
        """The batch with its images augmented, uint8 as they were."""
        return {**batch, "image": augment(batch["image"], fold(keys, 0), self.augment)}

    def size(self, batch: Batch) -> None:
        """A loss is a mean over images."""

    def images(self, batch: Batch, dtype: Any) -> Array:
        """What the network sees."""
        return normalise(batch["image"], self.mean, self.std, dtype)

    def loss(self, model: ViT, batch: Batch, keys: Array, size: None = None) -> tuple[Array, dict[str, Array]]:
        """(mean loss, {accuracy}) of a prepared batch."""
        logits = model(self.images(batch, model.dtype), keys=fold(keys, 1))  # [B, K]
        targets = jax.nn.one_hot(batch["label"], logits.shape[-1], dtype=logits.dtype)
        if self.label_smoothing:
            targets = optax.smooth_labels(targets, self.label_smoothing)
        loss = optax.softmax_cross_entropy(logits, targets).mean()
        return loss, {"accuracy": (logits.argmax(-1) == batch["label"]).mean()}

    def outputs(self, model: ViT, batch: Batch) -> dict[str, Array]:
        """Per example: loss [B] (not smoothed), predicted class [B], its probability [B]."""
        logits = model(self.images(batch, model.dtype))
        loss = optax.softmax_cross_entropy_with_integer_labels(logits, batch["label"])
        probabilities = jax.nn.softmax(logits)
        return {"loss": loss, "predicted": jnp.argmax(logits, -1), "confidence": probabilities.max(-1)}

    def score(self, config: ViTConfig, split: Split, out: dict[str, np.ndarray]) -> Classified:
        """Metrics of a split from the outputs of all its examples."""
        return score(split.labels, out["predicted"], out["confidence"], out["loss"], config.classes)

    def ready(self, network: ViT, record: Record) -> Loaded:
        """A trained network for use."""
        preprocess = Preprocess.from_dict(record.kept["preprocess"])
        return Loaded(network, record.run, preprocess, tuple(record.kept["class_names"]), record.step, self)

    def pictures(self, network: ViT, data: Dataset, result: Evaluation | None, folder: Run) -> str:
        """Samples of the images; patches, positions and attention; where there is a test, its confusion, scores and worst mistakes."""
        split = data.splits.get("test") or data.splits["train"]
        images = split.take(np.arange(min(SAMPLES, len(split))))
        saved = []
        if data.preprocess.channels in (1, 3):  # others cannot be had from an image file
            saved = save_samples(folder, images, [data.class_names[label] for label in split.labels[: len(images)]])
        draw_inside(network, self, images, folder)
        if isinstance(result, Classified):
            draw_result(data, result, folder)
        return f"{folder.samples.name}/{saved[0]}" if saved else ""


def score(
    truth: np.ndarray, predicted: np.ndarray, confidence: np.ndarray, loss: np.ndarray, classes: int
) -> Classified:
    """Metrics of n predictions; truth and predicted are int [n], confidence and loss float [n].

    Precision, recall and F1 are counted over the split, not averaged over batches; a class that
    is never predicted has precision 0.
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
class Loaded:
    """A trained network, ready for images.

    `model(images)` is the network itself, on normalised images [B, h, w, C]; `predict` starts from
    files, Pillow images or uint8 arrays and does what evaluation did in training.
    """

    model: ViT
    run: RunConfig
    preprocess: Preprocess
    class_names: tuple[str, ...]
    step: int
    task: Classify

    header: ClassVar[tuple[str, ...]] = ("file", "rank", "class", "probability")

    def pixels(self, images: Sequence[Any]) -> np.ndarray:
        """Files, Pillow images or uint8 arrays [h, w, C] as one batch: uint8 [B, h, w, C]. Raises UserError."""
        if not len(images):
            raise UserError("images: none given; give at least one")
        return np.stack([self._pixels(image) for image in images])

    def _pixels(self, image: Any) -> np.ndarray:
        from PIL import Image

        prepared = (*self.preprocess.image, self.preprocess.channels)
        if isinstance(image, np.ndarray):
            if image.dtype == np.uint8 and image.shape == prepared and self.preprocess.keeps(*prepared):
                return image
            if image.dtype != np.uint8 or not (image.ndim == 2 or (image.ndim == 3 and image.shape[-1] in (1, 3, 4))):
                raise UserError(
                    f"images: an array is {image.dtype} {list(image.shape)}; give uint8 pixels [h, w] or [h, w, C] of 1, 3 or 4 channels"
                )
            image = Image.fromarray(image[..., 0] if image.ndim == 3 and image.shape[-1] == 1 else image)
        if prepared[-1] not in (1, 3):
            raise UserError(
                f"images: this network takes {prepared[-1]} channels, which image files do not have; give uint8 arrays {list(prepared)}"
            )
        return self.preprocess.apply(open_image(image) if isinstance(image, (str, os.PathLike)) else image)

    def logits(self, images: Sequence[Any]) -> np.ndarray:
        """Images, as `pixels` takes them, to logits: float32 [B, K]."""
        normal = self.task.images({"image": self.pixels(images)}, self.model.dtype)
        return np.asarray(_forward(self.model, normal))

    def predict(self, images: Sequence[Any], top: int = 1) -> list[list[tuple[str, float]]]:
        """The `top` most probable classes of each image, as (name, probability). Raises UserError."""
        if not self.class_names:
            raise UserError(
                "this network has no head, so it knows no classes; give weights with one, or take logits(images)"
            )
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
        """Attention maps over the first few images, as one PNG. Raises UserError."""
        pixels = self.pixels(inputs[:SHOWN])
        draw_attention(self.model.config, pixels, attention(self.model, self.task, pixels), path)


@nnx.jit
def _forward(model: ViT, images: Array) -> Array:
    return model(images)


# --------------------------------------------------------------------------------------- pictures


def attention(network: ViT, task: Classify, images: np.ndarray) -> np.ndarray:
    """All layers' attention [m, L, H, N, N] on images uint8 [m, h, w, C]."""
    definition, parameters = split(network)

    @jax.jit
    def maps(parameters: dict[str, Any], images: Array) -> Array:
        model = merge(definition, parameters)
        return model.capture(task.images({"image": images}, model.dtype), ["attention"])["attention"]

    return np.asarray(maps(parameters, images))


def save_samples(folder: Run, images: np.ndarray, names: Sequence[str]) -> list[str]:
    """Images uint8 [m, h, w, C] as files that are called after their classes, in place of those that were there; the files' names."""
    from PIL import Image

    files = [f"{i}-{''.join(c if c.isalnum() else '_' for c in name)[:40]}.png" for i, name in enumerate(names)]
    shutil.rmtree(folder.samples)
    folder.samples.mkdir()
    for i, image in enumerate(images):
        Image.fromarray(image[..., 0] if image.shape[-1] == 1 else image).save(folder.samples / files[i])
    return files


def draw_inside(network: ViT, task: Classify, images: np.ndarray, folder: Run) -> None:
    """Patches, positions and attention of a network on images uint8 [m, h, w, C]."""
    c = network.config
    plots.draw_patches(visible(images)[0], pair(c.patch), folder.plots / "patches.png")
    draw_attention(c, images, attention(network, task, images), folder.plots / "attention.png")
    if c.position != "none":
        position = np.asarray(network.position[...]) if network.position is not None else sinusoids(c)
        plots.draw_positions(position, c.position_rows - c.patches, c.grid, folder.plots / "positions.png")


def visible(images: np.ndarray) -> np.ndarray:
    """Images [m, h, w, C] as one can look at them: the first three channels, or the first where there are fewer."""
    return images[..., : 3 if images.shape[-1] >= 3 else 1]


def draw_attention(c: ViTConfig, images: np.ndarray, maps: np.ndarray, path: Path) -> None:
    """Attention maps [m, L, H, N, N] over images uint8 [m, h, w, C]: of the class token where the head reads it, else of the patches."""
    prefix = sum(count for _, count, _ in c.prefix)
    plots.draw_attention(visible(images), maps, prefix, c.grid, c.pool in ("cls", "cls_distill"), path)


def draw_result(data: Dataset, result: Classified, folder: Run) -> None:
    """The confusion matrix, per-class scores and the most confident mistakes on the test split."""
    split, names = data.splits["test"], data.class_names
    plots.draw_confusion(result.confusion, names, folder.plots / "confusion.png")
    each = result.per_class
    plots.draw_per_class(each["precision"], each["recall"], each["f1"], names, folder.plots / "per-class.png")
    wrong = np.flatnonzero(result.predicted != split.labels)
    worst = wrong[np.argsort(-result.confidence[wrong], kind="stable")][:WRONG]
    plots.draw_wrong(
        visible(split.take(worst)),
        split.labels[worst],
        result.predicted[worst],
        result.confidence[worst],
        names,
        folder.plots / "wrong.png",
    )
