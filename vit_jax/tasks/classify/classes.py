"""One of K classes: cross entropy, or a binary one of each class; accuracy, and scores of each class."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import Array

from ...config.outputs import Outputs
from ...config.run import RunConfig
from ...data.images.config import ImageData
from ...figures.parts import Part, Sections
from ...scores.calibration import class_loss, class_temperature
from ...scores.classes import no_numbers, rank_classes
from ...scores.suspects import suspect_classes
from ..base import Batch, with_scores
from .balance import class_weights, log_prior, remark_on_sizes
from .draw import draw_classes, most_confident, suspects_section, trust_section
from .kind import Kind, Said, named
from .score import Calibration, Classified, Trust, score


@dataclass(frozen=True)
class ClassKind(Kind):
    """One of K classes. The label of a batch is int32 [B]."""

    header: ClassVar = ("file", "rank", "class", "probability")
    ranked: ClassVar = True
    several: ClassVar = True
    legend: ClassVar = "predicted class (probability)"
    truth: ClassVar = "class"
    calibrated: ClassVar = ("temperature",)

    @property
    def selection_metric(self) -> tuple[str, int]:
        """accuracy, or balanced_accuracy where training lets classes count alike."""
        return "balanced_accuracy" if self.alike else "accuracy", 1

    def targets(self, labels: Array) -> Array:
        """One 1 a row."""
        return jax.nn.one_hot(labels, len(self.outputs.names), dtype=jnp.float32)

    def loss(self, logits: Array, batch: Batch, denominator: Array | None = None) -> tuple[Array, dict[str, Array]]:
        """The loss of a batch: logits [B, K], batch float [B, K] -> [].

        A binary loss is a mean over the classes too, as in timm's BinaryCrossEntropy and DeiT III (arXiv 2204.07118).
        With weights and smoothing it is CrossEntropyLoss(weight, label_smoothing), a mean that counts each image by the
        weight of its class, or of mixed images each by 1.
        """
        targets = batch["target"] if "target" in batch else jax.nn.one_hot(batch["label"], logits.shape[-1])
        label, targets = targets.argmax(-1), targets.astype(logits.dtype)
        right = logits.argmax(-1) == label
        if smoothing := self.settings.spread_over_all(logits.shape[-1]):
            targets = optax.smooth_labels(targets, smoothing)
        adjusted = logits + jnp.array(self.log_prior, logits.dtype) if self.log_prior else logits
        if self.settings.name == "binary":
            return self._binary(adjusted, targets).mean(), {"accuracy": right.mean()}
        if self.settings.name not in ("", "cross_entropy"):
            raise ValueError(f"loss {self.settings.name} is not of classes")
        losses = self._cross_entropy(adjusted, targets)
        denominator = self.denominator(batch) if denominator is None else denominator
        if denominator is None:
            return losses.mean(), {"accuracy": right.mean()}
        total, images = denominator
        return losses.sum() / positive(total).astype(logits.dtype), {"accuracy": right.sum() / images}

    def denominator(self, batch: Batch) -> Array | None:
        """With weights [2]: their sum over the images, and the number of these; of mixed images that number twice."""
        if not self.weights or self.settings.name == "binary":
            return None
        images = jnp.asarray(len(batch["label"]), float)
        if "target" in batch:
            return jnp.stack([images, images])
        return jnp.stack([jnp.array(self.weights, float)[batch["label"]].sum(), images])

    def _cross_entropy(self, logits: Array, targets: Array) -> Array:
        """[B]: of each image, weighted, and focal if that is set."""
        weighted = targets * jnp.array(self.weights, logits.dtype) if self.weights else targets
        losses = optax.softmax_cross_entropy(logits, weighted)
        if self.settings.focal:
            p = jnp.exp(-optax.softmax_cross_entropy(logits, targets))  # of the true class
            losses = losses * (1 - p) ** self.settings.focal
        return losses

    def _binary(self, logits: Array, targets: Array) -> Array:
        """[B, K]: of each image and class."""
        losses = binary_losses(logits, targets, focal=self.settings.focal)
        return losses * jnp.array(self.weights, logits.dtype) if self.weights else losses

    @classmethod
    def balanced(
        cls, run: RunConfig, outputs: Outputs, labels: np.ndarray
    ) -> tuple[dict[str, list[float]], tuple[str, ...]]:
        """Weights and prior by the sizes of classes, and a remark where these differ and nothing evens that out."""
        counts, data = np.bincount(labels, minlength=len(outputs.names)), run.data
        found = {"loss_weights": class_weights(run.loss, outputs.names, counts)}
        found["log_prior"] = log_prior(counts) if run.loss.prior else ()
        even = any(found.values()) or run.loss.focal or (isinstance(data, ImageData) and data.sampling != "natural")
        flags = "`loss.prior True`, or with `loss.class_weights balanced` or `data.sampling balanced`"
        remarks = () if even else remark_on_sizes(outputs.names, counts, "class", flags)
        return {name: [*numbers] for name, numbers in found.items() if numbers}, remarks

    def outcomes(self, logits: Array, label: Array) -> dict[str, Array]:
        """What `score` needs of each image: logits [B, K], label int [B] -> [B, K]."""
        loss = optax.softmax_cross_entropy_with_integer_labels(logits, label)
        true = jnp.take_along_axis(logits, label[:, None], -1)  # [B, 1]
        # Counted as those that are not below, so that a NaN is never among the best.
        below = (logits < true) | ((logits == true) & (jnp.arange(logits.shape[-1]) >= label[:, None]))
        return {
            "logits": logits,
            "loss": loss,
            "predicted": jnp.argmax(logits, -1),
            "confidence": jax.nn.softmax(logits).max(-1),
            "rank": (~below).sum(-1),
        }

    def score(self, split: Any, out: Mapping[str, np.ndarray]) -> Classified:
        """The metrics of a split, see `vit_jax.tasks.classify.score.score`: out [n, ...]."""
        predicted, confidence, loss, rank = (out[name] for name in ("predicted", "confidence", "loss", "rank"))
        if self.outputs.temperature != 1:
            confidence = self.values(out["logits"]).max(1)
        return score(split.labels, predicted, confidence, loss, rank, len(self.outputs.names), split.classes)

    def at_chance(self, split: Any, result: Any) -> str:
        """A sentence where a result is no better than without the images.

        That is where neither accuracy nor balanced accuracy is beyond two standard errors of what needs no image: the
        first of the share of the most frequent class, the second of as many predictions of each class that know nothing
        of the truth, since a network that does not neglect rare classes may be less accurate than the share.
        """
        accuracy, share = result.metrics["accuracy"], np.bincount(split.labels).max() / len(split.labels)
        if accuracy > share + 2 * math.sqrt(share * (1 - share) / len(split.labels)):
            return ""
        there = (sizes := result.confusion.sum(1)) > 0
        said = (result.confusion.sum(0) / len(split.labels))[there]
        blind, error = said.mean(), math.sqrt((said * (1 - said) / sizes[there]).sum()) / there.sum()
        if result.metrics["balanced_accuracy"] > blind + 2 * error + 1e-9:
            return ""
        return f"accuracy {accuracy:.3f} is no better than the most frequent class for every image ({share:.3f})"

    def with_ranks(self, split: Any, out: Mapping[str, np.ndarray]) -> Classified:
        """With auroc_macro and ap_macro."""
        return with_scores(self.score(split, out), rank_classes(split.labels, self.values(out["logits"])))

    def examined(self, split: Any, out: Mapping[str, np.ndarray]) -> Classified:
        """With the calibration error and the labels that seem to be wrong."""
        result, p = self.with_ranks(split, out), self.values(out["logits"])
        result = replace(result, probabilities=p)
        if no_numbers(p):
            return result
        right = result.predicted == split.labels
        trust = Trust.of(
            out["confidence"],
            result.confidence,
            right,
            self.outputs.temperature,
            class_loss(split.labels, out["logits"] / self.outputs.temperature),
        )
        result = replace(result, trust=trust, suspects=suspect_classes(split.labels, p))
        return with_scores(result, trust.scores())

    def calibration(self, labels: np.ndarray, logits: np.ndarray) -> Calibration:
        temperature, why = class_temperature(labels, logits)
        return Calibration(temperature, notes=(f"no temperature: {why}",) if why else ())

    def values(self, logits: np.ndarray) -> np.ndarray:
        return np.asarray(jax.nn.softmax(logits / self.outputs.temperature))

    def truths(self, labels: np.ndarray) -> dict[str, list[str]]:
        return {"true": [self.outputs.names[label] for label in labels]}

    def table(self, split: Any, result: Classified) -> tuple[tuple[str, ...], Iterator[tuple[str | int, ...]]]:
        """A row for each image: its file or its place in the data, its class, and the predicted one."""
        names = self.outputs.names
        columns = zip(split.labels, result.predicted, result.confidence, strict=True)
        rows = (
            (split.name(i), names[true], names[predicted], f"{probability:.6f}")
            for i, (true, predicted, probability) in enumerate(columns)
        )
        return ("file", "true", "predicted", "probability"), rows

    def draw_result(self, split: Any, result: Classified, folder: Path, caption: str) -> Sequence[Part]:
        """The confusion matrix, scores of each class, mistakes, reliability, and labels that may be wrong."""
        classes = draw_classes(split, result, self.outputs.names, folder, caption)
        sections = trust_section(result.trust, folder, "share that is right", caption)
        if (found := result.suspects) is not None:
            given, guesses = (
                [self.outputs.names[k] for k in each] for each in (split.labels[found.images], found.guesses)
            )
            sections += suspects_section(split, found, given, guesses, folder, caption)
        return classes, Sections(sections)

    def worst(self, split: Any, result: Classified, most: int) -> list[tuple[int, int, str]]:
        """Of the most confident mistakes the predicted class and the true one."""
        found, names = most_confident(result, split.labels)[:most].tolist(), self.outputs.names
        pairs = [(i, int(result.predicted[i]), int(split.labels[i])) for i in found]
        return [
            (i, k, f"for {names[k]}, {what}")
            for i, said, true in pairs
            for k, what in ((said, f"its answer for a {names[true]}"), (true, "which is true"))
        ]

    def top_k(self, logits: np.ndarray, top: int) -> Said:
        """The most probable classes of an image, best first: logits float [K]."""
        probabilities = self.values(logits)
        return named(self.outputs.names, probabilities, np.argsort(-probabilities, kind="stable")[:top])


def binary_losses(logits: Array, targets: Array, positive: Array | None = None, focal: float = 0.0) -> Array:
    """-(q t log s + (1 - t) log (1 - s)), s the sigmoid of the logits: BCEWithLogitsLoss(pos_weight=q), [B, K]."""
    there, not_there = -jax.nn.log_sigmoid(logits) * targets, -jax.nn.log_sigmoid(-logits) * (1 - targets)
    losses = (there if positive is None else there * positive) + not_there
    if focal:
        s = jax.nn.sigmoid(logits)
        losses = losses * (1 - s * targets - (1 - s) * (1 - targets)) ** focal
    return losses


def positive(total: Array) -> Array:
    """A sum that may be divided by: 1 in place of 0, of which the dividend is 0 too."""
    return jnp.where(total > 0, total, 1)
