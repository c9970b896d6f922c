"""Image classification: images to one of K classes, trained with cross entropy or a binary one of each class."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, ClassVar, Self, cast

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from jax import Array

from ...augmentation.batch import augment, normalise
from ...augmentation.config import ImageAugment
from ...config.dotted import replaced
from ...config.network import Teacher
from ...config.run import RunConfig
from ...data.base import Given
from ...data.images.preprocess import Preprocess
from ...data.images.splits import Dataset, Split, open_images
from ...data.inputs import listed, prepared
from ...data.other import Other, open_other_images
from ...errors import Field, UserError
from ...files.output import shortened, write_npz
from ...models.build import described
from ...models.layers import fold
from ...models.vit import ViT
from ...models.vit_config import ViTConfig
from ..base import Answer, Batch, Evaluation, Trained
from .draw import captioned, draw_attention, draw_inside, draw_result, of_several_classes, save_samples
from .features import block_numbers, compiled_features
from .score import Classified, score, score_of

BATCH = 64  # images per batch of a prediction
FLIP = "flip_"  # begins the names of outputs of an image and its mirror image
SHOWN = 8  # most images in an attention figure of a prediction
LOSSES = {"cross_entropy": optax.softmax_cross_entropy, "binary": optax.sigmoid_binary_cross_entropy}
SAMPLES = 4  # sample images written at the end of a training


@dataclass(frozen=True)
class Classify:
    """The task `classify`. A batch is {"image": uint8 [B, h, w, C], "label": int32 [B]}, in training also "row" [B]."""

    augment: ImageAugment
    mean: tuple[float, ...]  # per channel, of pixels in 0..1
    std: tuple[float, ...]
    label_smoothing: float
    loss_name: str = field(default="cross_entropy", kw_only=True)
    frozen: dict[str, Any] = field(default_factory=dict, kw_only=True)  # empty but in subclasses
    mirrors: bool = field(default=False, kw_only=True)  # `outputs` also has those of an image and its mirror image
    classes: int = field(default=0, kw_only=True)  # K, for the targets of mixed images

    unit: ClassVar[str] = "images"
    selection_metric: ClassVar[tuple[str, int]] = ("accuracy", 1)
    frozen_in_outputs: ClassVar[bool] = False

    @classmethod
    def open_data(cls, run: RunConfig, given: Given | None = None, fetch: bool = True) -> Dataset:
        """The images of a run, split; given ones are (images, labels), uint8 and int. Raises UserError."""
        c, data, augment = cast(Any, (run.model, run.data, run.augment))  # of the types that the task's row names
        how = {name: getattr(augment, name) for name in ("normalize", "mean", "std", "repeats")}
        how |= {"classes": c.classes, "seed": run.seed, "given": given, "fetch": fetch}
        return open_images(data, c.image, c.channels, **how)

    @classmethod
    def from_run(cls, run: RunConfig, metadata: Mapping[str, Any]) -> Self:
        """The task of a run, with the mean and std of its preprocessing."""
        preprocess = metadata["preprocess"]
        c, augment = cast(Any, (run.model, run.augment))  # of the types that the task's row names
        mean, std = tuple(preprocess["mean"]), tuple(preprocess["std"])
        loss = run.loss
        return cls(augment, mean, std, loss.spread_over_all(c.classes), loss_name=loss.name, classes=c.classes)

    @classmethod
    def metadata_beside(cls, run: RunConfig) -> dict[str, Any]:
        """None: no files beside weights belong to it."""
        return {}

    def load_frozen(self, teacher: Teacher | None) -> Self:
        """The task itself: its loss has no frozen arrays."""
        return self

    def mirrored(self) -> Self:
        """The task whose evaluations also have those of the mean of the logits of an image and its mirror image."""
        return replace(self, mirrors=True)

    def searching(self, changes: Mapping[str, Any]) -> None:
        """None: classes are not generated."""

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

    def tokens(self, batch: Batch) -> tuple[int, int, int]:
        """Zeros: images have no ids."""
        return 0, 0, 0

    def denominator(self, batch: Batch) -> None:
        """None: the loss is a mean over images."""

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
        return open_other_images(cast(Any, run.data), split, preprocess, metadata["class_names"], given)

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

    def predictor(self, network: ViT, trained: Trained) -> Classifier:
        """The network with its preprocessing and class names."""
        preprocess = Preprocess.from_dict(trained.metadata["preprocess"])
        return Classifier(network, trained.run, preprocess, tuple(trained.metadata["class_names"]), trained.step, self)

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
        saved = []
        if data.preprocess.channels in (1, 3):  # an image file has no other number of channels
            saved = save_samples(samples, images, truth)
        found = _captured(network, self.images({"image": images}, network.dtype), ("logits", "attention"))
        draw_inside(network, images, found, plots, caption, truth, data.class_names)
        return f"{samples.name}/{saved[0]}" if saved else ""


@dataclass(frozen=True)
class ClassifyProbe(Classify):
    """`classify` as a probe sees it: the network gives features, and the classes are those of any data."""

    @classmethod
    def open_data(cls, run: RunConfig, given: Given | None = None, fetch: bool = True) -> Dataset:
        """The images of a run, as `Classify` opens them, of any number of classes. Raises UserError."""
        return super().open_data(replaced(run, {"model.classes": 0}), given, fetch)

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


@dataclass(frozen=True, repr=False)
class Classifier:
    """A trained network with the preprocessing of its evaluation and its class names.

    `model(images)` calls the network on normalised images [B, h, w, C]. The methods take images of any size: paths of
    files, Pillow images, or uint8 arrays [h, w] or [h, w, C]. For a list of n of them, or an array [n, h, w, C], they
    give n answers; for one image, one answer without the axis of the batch. Raises UserError where an image cannot be
    used.
    """

    model: ViT
    run: RunConfig
    preprocess: Preprocess
    class_names: tuple[str, ...]
    step: int
    task: Classify

    def __repr__(self) -> str:
        names = ", ".join([*map(repr, self.class_names[:3]), *(["..."] if len(self.class_names) > 3 else [])])
        size = "x".join(map(str, (*self.preprocess.image, self.preprocess.channels)))
        return f"Classifier({described(self.run.model)}; images {size}; {len(self.class_names)} classes: {names})"

    def pixels(self, images: Any) -> np.ndarray:
        """The images preprocessed but not normalised: uint8 [B, h, w, C], or [h, w, C] of one."""
        several, one = listed(images, self.preprocess.channels)
        pixels = np.stack([prepared(image, self.preprocess) for image in several])
        return pixels[0] if one else pixels

    def inputs(self, images: Any) -> Array:
        """The images as the network takes them, preprocessed and normalised: [B, h, w, C], or [h, w, C] of one."""
        return self.task.images({"image": self.pixels(images)}, self.model.dtype)

    def logits(self, images: Any, batch: int = BATCH) -> np.ndarray:
        """The logits of the images, computed `batch` at a time: float32 [B, K], or [K] of one."""
        return self.capture(images, ["logits"], batch)["logits"]

    def predict(self, images: Any, top: int = 1, batch: int = BATCH) -> list[Any]:
        """The `top` most probable classes of each image, as [(name, probability), ...], best first.

        Of n images a list of n such lists, of one image one. Raises UserError also where the network has no head.
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
        """Inner values of the network on the images, `batch` at a time: {name: array [B, ...]}, or [...] of one image.

        The names are those of `ViT.capture`: tokens, blocks.I, features, pooled, attention, logits. Raises ValueError
        on any other.
        """
        if batch < 1:
            raise UserError(Field("batch"), f"is {batch}", "give a positive number")
        wanted = (names,) if isinstance(names, str) else tuple(names)
        several, one = listed(images, self.preprocess.channels)
        parts = [
            _captured(self.model, self.inputs(several[begin : begin + batch]), wanted)
            for begin in range(0, len(several), batch)
        ]
        found = {name: np.concatenate([np.asarray(part[name]) for part in parts]) for name in wanted}
        return {name: array[0] for name, array in found.items()} if one else found

    def features(
        self, images: Any, blocks: Sequence[int] = (), norm: bool = True, batch: int = BATCH
    ) -> dict[str, np.ndarray]:
        """The features of n images for search and detection, computed `batch` at a time: {name: array [n, ...]}.

        pooled [n, D] is the input of the head, before its norm if it has one. Of each block I of `blocks`, maps.I
        [n, gh, gw, D] is its output at the patches, as they lie in the image, and prefix.I [n, P, D] that at the tokens
        before them: class token, distillation token, registers, as far as there are any. Blocks are counted from 0, as
        in timm (block I is stage I + 1 of Hugging Face's backbones), or from the end: -1 is the last.

        With `norm` the network's last norm, if it has one, is applied to the output of every block, as Hugging Face's
        Dinov2Backbone and DINOv2's get_intermediate_layers do by default, and timm's forward_intermediates with
        norm=True. Without it outputs are as they are, timm's default.

        Arrays are float32, or float64 where the network is; of one image they lack the axis of n. Raises UserError.
        """
        if batch < 1:
            raise UserError(Field("batch"), f"is {batch}", "give a positive number")
        several, one = listed(images, self.preprocess.channels)
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
        for begin in range(0, len(several), batch):
            part = compiled_features(self.model, self.inputs(several[begin : begin + batch]), blocks, norm)
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
    def header(self) -> tuple[str, ...]:
        """The names of the columns of `Answer.rows`; none of a network without a head, which has no answers."""
        return ("file", "rank", "class", "probability") if self.class_names else ()

    def answer(self, inputs: Sequence[str | os.PathLike[str]], top: int = 3, batch: int = BATCH) -> Iterator[Answer]:
        """The `top` most probable classes of each image file, computed `batch` at a time. Raises UserError."""
        for begin in range(0, len(inputs), batch):
            files = inputs[begin : begin + batch]
            for file, classes in zip(files, self.predict(files, top, batch), strict=True):
                line = f"{file}: " + ", ".join(f"{name} ({probability:.1%})" for name, probability in classes)
                rows: list[tuple[str | int, ...]] = [
                    (str(file), rank, name, f"{p:.6f}") for rank, (name, p) in enumerate(classes, 1)
                ]
                yield Answer(file, classes, line, rows)

    @property
    def metadata(self) -> dict[str, Any]:
        """The preprocessing and the class names, as config.json has them."""
        return {"preprocess": self.preprocess.to_dict(), "class_names": list(self.class_names)}

    @property
    def layers(self) -> int:
        """The number of layers."""
        return self.model.config.depth

    def draw_attention(self, inputs: Sequence[Any], path: Path, layers: Sequence[int] = (), caption: str = "") -> None:
        """Draw the attention maps of the first images and write them to `path` as one PNG. Raises UserError."""
        inputs = inputs[:SHOWN]
        pixels = self.pixels(inputs)
        names = [Path(each).name if isinstance(each, (str, os.PathLike)) else "" for each in inputs]
        labels = [shortened(name, 24) for name in names]
        wanted = ("attention", "logits") if self.class_names else ("attention",)
        found = _captured(self.model, self.task.images({"image": pixels}, self.model.dtype), wanted)
        if self.class_names:
            probabilities = np.asarray(jax.nn.softmax(found["logits"], axis=-1))
            labels = [captioned(*each, self.class_names) for each in zip(names, probabilities, strict=True)]
            caption += "; file → predicted class (probability)"
        maps = np.asarray(found["attention"])
        draw_attention(self.model.config, pixels, maps, path, layers=layers, labels=labels, caption=caption)


# (model, images [B, h, w, C], tuple of names) -> {name: array}, as the network's own `capture`
_captured: Any = nnx.jit(lambda model, images, names: model.capture(images, names), static_argnums=2)
