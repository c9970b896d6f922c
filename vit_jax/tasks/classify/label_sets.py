"""A set of K labels, any number an image: a binary cross entropy of each label that is known."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from ...config.outputs import Outputs
from ...config.run import RunConfig
from ...figures.parts import Part, Sections
from ...scores.calibration import set_loss, set_temperature
from ...scores.classes import DEFAULT, FEWEST, choose_thresholds, no_numbers, over, score_labels
from ...scores.suspects import Suspects, join_suspects, suspect_labels
from ..base import Batch, Evaluation, with_scores
from .balance import label_weights, remark_on_sizes
from .classes import binary_losses, positive
from .draw import label_sections, suspects_section, trust_section, worst_labels
from .kind import Kind, Said, named
from .score import Calibration, Trust

THERE = "not there", "there"


@dataclass(frozen=True)
class SetKind(Kind):
    """A set of K labels. The label of a batch is int8 [B, K]: 1 there, 0 not, -1 unknown, which counts nowhere."""

    header: ClassVar = ("file", "rank", "label", "probability")
    ranked: ClassVar = True
    legend: ClassVar = "labels over their thresholds (probability)"
    truth: ClassVar = "labels"
    calibrated: ClassVar = ("temperature", "thresholds")
    no_top: ClassVar = "every label over its threshold is given"

    @property
    def selection_metric(self) -> tuple[str, int]:
        return "map", 1

    def targets(self, labels: Array) -> Array:
        """1, 0, or NaN where unknown."""
        return jnp.where(labels < 0, jnp.nan, labels.astype(jnp.float32))

    def denominator(self, batch: Batch) -> Array:
        """[2]: the cells that are known, and the images."""
        known = _known(batch)[1]
        return jnp.stack([known.sum(dtype=float), jnp.asarray(len(known), float)])

    def loss(self, logits: Array, batch: Batch, denominator: Array | None = None) -> tuple[Array, dict[str, Array]]:
        """BCEWithLogitsLoss(pos_weight), a mean over the known cells of the batch; 0 where none is known. Shapes:
        logits [B, K] -> (loss [], {"subset_accuracy": []}).

        With smoothing e a label that is there is 1 - e/2, one that is not e/2, as in timm.
        """
        cells, images = self.denominator(batch) if denominator is None else denominator
        targets, known = _known(batch)
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
        flags = "`loss.class_weights balanced`"
        even = weights or run.loss.focal
        remarks = () if even else remark_on_sizes(outputs.names, there, "label", flags)
        return ({"loss_weights": [*weights]} if weights else {}), remarks

    def outcomes(self, logits: Array, label: Array) -> dict[str, Array]:
        return {"logits": logits}

    def score(self, split: Any, out: Mapping[str, np.ndarray]) -> Labelled:
        """The metrics of n predicted sets, of labels int8 [n, K] and logits float [n, K]."""
        truth, probabilities = split.labels, self.values(out["logits"])
        predicted = over(probabilities, self.thresholds)
        result = Labelled({"loss": set_loss(truth, out["logits"])}, predicted, probabilities)
        if not (truth >= 0).any():
            result = replace(result, undefined={"loss": "of no image is any label known"})
        return with_scores(result, score_labels(truth, probabilities, self.thresholds))

    def examined(self, split: Any, out: Mapping[str, np.ndarray]) -> Labelled:
        """With the calibration error of all known cells, and the labels that seem to be wrong."""
        result, known = self.score(split, out), split.labels >= 0
        if no_numbers(out["logits"]):
            return result
        before, told = (x[known] for x in (np.asarray(jax.nn.sigmoid(out["logits"])), result.probabilities))
        trust = Trust.of(
            before,
            told,
            split.labels[known] == 1,
            self.outputs.temperature,
            set_loss(split.labels, out["logits"] / self.outputs.temperature),
        )
        result = replace(result, trust=trust, suspects=suspect_labels(split.labels, result.probabilities))
        return with_scores(result, trust.scores())

    def calibration(self, labels: np.ndarray, logits: np.ndarray) -> Calibration:
        """The temperature, and after it the thresholds."""
        temperature, why = set_temperature(labels, logits)
        outputs = replace(self.outputs, temperature=temperature or 1.0)
        thresholds = choose_thresholds(labels, replace(self, outputs=outputs).values(logits))
        few = ((labels == 1).sum(0) < FEWEST).sum()
        why_few = f"fewer than {FEWEST} images have them"
        kept = f"{few:,} of {len(thresholds):,} labels keep the threshold {DEFAULT}: {why_few}"
        notes = (*([f"no temperature: {why}"] if why else []), *([kept] if few else []))
        return Calibration(temperature, tuple(thresholds.tolist()), notes)

    def truths(self, labels: np.ndarray) -> dict[str, list[str]]:
        """Of each label 1, 0, or nothing where that is unknown."""
        shown = np.array(["0", "1", ""])[labels]
        return {f"true {name}": shown[:, k].tolist() for k, name in enumerate(self.outputs.names)}

    def table(self, split: Any, result: Labelled) -> tuple[tuple[str, ...], Iterator[tuple[str | int, ...]]]:
        """A row for each image and label: whether it is there (1, 0, or nothing if unknown), and its probability."""
        rows = (
            (split.name(i), name, "" if true < 0 else int(true), f"{probability:.6f}")
            for i, (truth, probabilities) in enumerate(zip(split.labels, result.probabilities, strict=True))
            for name, true, probability in zip(self.outputs.names, truth, probabilities, strict=True)
        )
        return ("file", "label", "true", "probability"), rows

    def draw_result(self, split: Any, result: Labelled, folder: Path, caption: str) -> Sequence[Part]:
        """Scores of each label, mistakes, reliability, and labels that may be wrong."""
        names = self.outputs.names
        sections = label_sections(split, result, names, self.thresholds, folder, caption)
        sections += trust_section(result.trust, folder, "share that has the label", caption)
        if result.suspects:
            found, labels = join_suspects(result.suspects)
            given = [f"{names[k]}: {THERE[1 - guess]}" for k, guess in zip(labels, found.guesses, strict=True)]
            seems = [THERE[guess] for guess in found.guesses]
            sections += suspects_section(split, found, given, seems, folder, caption)
        return [Sections(sections)]

    def worst(self, split: Any, result: Labelled, most: int) -> list[tuple[int, int, str]]:
        """Of the most confident mistakes the label."""
        found = zip(*(each[:most].tolist() for each in worst_labels(result, split.labels)), strict=True)
        names = self.outputs.names
        return [(i, k, f"for {names[k]}, which is {THERE[split.labels[i, k]]}") for i, k in found]

    @property
    def thresholds(self) -> np.ndarray:
        """float64 [K]: a label is told where its probability is larger."""
        return np.array(self.outputs.thresholds or [DEFAULT] * len(self.outputs.names))

    def values(self, logits: np.ndarray) -> np.ndarray:
        return np.asarray(jax.nn.sigmoid(logits / self.outputs.temperature))

    def top_k(self, logits: np.ndarray, top: int) -> Said:
        """The labels whose own probability is over their threshold, the most probable first; maybe none."""
        probabilities = self.values(logits)
        order, said = np.argsort(-probabilities, kind="stable"), over(probabilities, self.thresholds)
        return named(self.outputs.names, probabilities, [k for k in order if said[k]])


def _known(batch: Batch) -> tuple[Array, Array]:
    """(what is learned, [B, K], of mixed images or the labels themselves; which of it is known)."""
    if "target" in batch:
        return batch["target"], ~jnp.isnan(batch["target"])
    return batch["label"], batch["label"] >= 0


@dataclass(frozen=True, repr=False)
class Labelled(Evaluation):
    """The result of a network of K labels on n images; `predicted` is bool [n, K].

    The metrics are loss and those of `vit_jax.scores.classes.score_labels`.
    """

    probabilities: np.ndarray  # float [n, K]
    prints_each: ClassVar[bool] = True
    trust: Trust | None = field(default=None, kw_only=True)  # of all known cells, of a final result
    suspects: Sequence[Suspects] = field(default=(), kw_only=True)  # of each label, likewise
