"""A set of K labels, any number an image: a binary cross entropy of each label that is known."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from ....config.outputs import Outputs
from ....config.run import RunConfig
from ...base import Batch
from ..balance import label_weights, remark_on_sizes
from ..score_sets import Labelled, score_sets
from .base import Kind, Said, named
from .binary import binary_losses, positive

OVER = 0.5  # a label is of an image where its probability is larger


@dataclass(frozen=True)
class SetKind(Kind):
    """A set of K labels. The label of a batch is int8 [B, K]: 1 there, 0 not, -1 unknown, which counts nowhere."""

    header: ClassVar = ("file", "rank", "label", "probability")
    ranked: ClassVar = True
    legend: ClassVar = f"labels over {OVER} (probability)"
    truth: ClassVar = "labels"
    no_top: ClassVar = "every label over one half is told"
    selection_metric: ClassVar = ("map", 1)

    def targets(self, labels: Array) -> Array:
        """The same as float32."""
        return labels.astype(jnp.float32)

    def denominator(self, batch: Batch) -> Array:
        """[2]: the cells that are known, and the images."""
        targets = _targets(batch)
        return jnp.stack([(targets >= 0).sum(dtype=float), jnp.asarray(len(targets), float)])

    def loss(self, logits: Array, batch: Batch, denominator: Array | None = None) -> tuple[Array, dict[str, Array]]:
        """(loss [], {"subset_accuracy": []}): BCEWithLogitsLoss(pos_weight), a mean over the known cells of the batch.

        It is 0 where none is known. With smoothing e a label that is there is 1 - e/2, one that is not e/2, as in timm.
        """
        cells, images = self.denominator(batch) if denominator is None else denominator
        targets = _targets(batch)
        known = targets >= 0
        there = jnp.where(known, targets, 0).astype(logits.dtype)
        smooth = there * (1 - self.settings.label_smoothing) + self.settings.label_smoothing / 2
        weights = jnp.array(self.weights, logits.dtype) if self.weights else None
        losses = jnp.where(known, binary_losses(logits, smooth, weights, self.settings.focal), 0)
        right = ((logits > 0) == (there > 0.5)) | ~known
        subset = right.all(-1).sum().astype(logits.dtype) / images.astype(logits.dtype)
        return losses.sum() / positive(cells).astype(logits.dtype), {"subset_accuracy": subset}

    @classmethod
    def balanced(
        cls, run: RunConfig, outputs: Outputs, labels: np.ndarray
    ) -> tuple[dict[str, list[float]], tuple[str, ...]]:
        """Weights of labels that are there, and a remark where one is rare and nothing evens that out."""
        there = (labels == 1).sum(0)
        weights = label_weights(run.loss, outputs.names, there, (labels >= 0).sum(0))
        flags = "--loss.class-weights balanced"
        even = weights or run.loss.focal
        remarks = () if even else remark_on_sizes(outputs.names, there, "label", flags)
        return ({"loss_weights": [*weights]} if weights else {}), remarks

    def outcomes(self, logits: Array, label: Array) -> dict[str, Array]:
        """{"logits": [B, K]}."""
        return {"logits": logits}

    def score(self, split: Any, out: Mapping[str, np.ndarray]) -> Labelled:
        """The metrics of a split: see `score_sets.score_sets`."""
        return score_sets(split.labels, out["logits"], self.probabilities(out["logits"]), self.thresholds)

    def table(self, split: Any, result: Labelled) -> tuple[tuple[str, ...], Iterator[tuple[str | int, ...]]]:
        """A row for each image and label: whether it is there (1, 0, or nothing if unknown), and its probability."""
        rows = (
            (split.name(i), name, "" if true < 0 else int(true), f"{probability:.6f}")
            for i, (truth, probabilities) in enumerate(zip(split.labels, result.probabilities, strict=True))
            for name, true, probability in zip(self.outputs.names, truth, probabilities, strict=True)
        )
        return ("file", "label", "true", "probability"), rows

    @property
    def thresholds(self) -> np.ndarray:
        """float64 [K]: a label is told where its probability is larger."""
        return np.array(self.outputs.thresholds or [OVER] * len(self.outputs.names))

    def probabilities(self, logits: np.ndarray) -> np.ndarray:
        """Of each label, [..., K]."""
        return np.asarray(jax.nn.sigmoid(logits / self.outputs.temperature))

    def says(self, logits: np.ndarray, top: int) -> Said:
        """The labels whose own probability is over their threshold, the most probable first; maybe none."""
        probabilities = self.probabilities(logits)
        order = np.argsort(-probabilities, kind="stable")
        return named(self.outputs.names, probabilities, [k for k in order if probabilities[k] > self.thresholds[k]])


def _targets(batch: Batch) -> Array:
    """[B, K], -1 where unknown: those of mixed images, or the labels."""
    return batch["target"] if "target" in batch else batch["label"]
