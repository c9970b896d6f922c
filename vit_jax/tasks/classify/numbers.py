"""K numbers: the squared error of normalised ones; all that a user sees is in the units of the data."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import jax.numpy as jnp
import numpy as np
from jax import Array

from ...config.outputs import Outputs
from ...config.run import RunConfig
from ...errors import Field, UserError
from ...figures.parts import Part, Sections
from ...scores.numbers import score_numbers
from ..base import Batch, Evaluation, with_scores
from .draw import Plain, number_sections, worst_numbers
from .kind import Kind, Said, named


@dataclass(frozen=True)
class NumberKind(Kind):
    """K numbers. The label of a batch is float32 [B, K], normalised by mean and std of the training part."""

    header: ClassVar = ("file", "output", "value")
    written: ClassVar = ("{} {:.6g}", "{:.9g}", "{} {:.3g}")
    legend: ClassVar = "predicted numbers"
    truth: ClassVar = "numbers"
    no_top: ClassVar = "every number is given"
    has_probabilities: ClassVar = False

    @classmethod
    def balanced(
        cls, run: RunConfig, outputs: Outputs, labels: np.ndarray
    ) -> tuple[dict[str, list[float]], tuple[str, ...]]:
        """Nothing, and a remark where labels were to be smoothed."""
        smoothing = run.loss.label_smoothing
        return {}, (f"loss.label_smoothing {smoothing:g} has no effect on numbers",) if smoothing else ()

    def targets(self, labels: Array) -> Array:
        return labels

    def loss(self, logits: Array, batch: Batch, denominator: Array | None = None) -> tuple[Array, dict[str, Array]]:
        """(loss [], {"mae": []}): MSELoss of normalised numbers, and the mean error in the units of the data."""
        target = (batch["target"] if "target" in batch else batch["label"]).astype(logits.dtype)
        if logits.shape != target.shape:  # [B, 1] - [B] would be [B, B]
            raise ValueError(f"logits are {list(logits.shape)} and labels {list(target.shape)}")
        error = logits - target
        return (error**2).mean(), {"mae": (jnp.abs(error) * self.std.astype(logits.dtype)).mean()}

    def outcomes(self, logits: Array, label: Array) -> dict[str, Array]:
        """{"logits": [B, K]}, normalised."""
        return {"logits": logits}

    def score(self, split: Any, out: Mapping[str, np.ndarray]) -> Estimated:
        """The metrics of n predictions, of labels float64 [n, K] and normalised logits float [n, K]."""
        truth, predicted = split.labels, self.values(out["logits"])
        std = self.std if self.outputs.std else None
        loss = float((((predicted - truth) / (1 if std is None else std)) ** 2).mean())
        return with_scores(
            Estimated({"loss": loss}, predicted), score_numbers(truth, predicted, std, self.outputs.names)
        )

    def at_chance(self, split: Any, result: Any) -> str:
        """R2 not above 0."""
        r2 = result.metrics.get("r2", math.nan)
        return f"R2 {r2:.3f} is no better than the mean of the numbers for every image" if r2 <= 0 else ""

    def values_of(self, result: Estimated) -> np.ndarray:
        return result.predicted

    def truths(self, labels: np.ndarray) -> dict[str, list[str]]:
        return {f"true {name}": list(map(repr, labels[:, k].tolist())) for k, name in enumerate(self.outputs.names)}

    def table(self, split: Any, result: Estimated) -> tuple[tuple[str, ...], Iterator[tuple[str | int, ...]]]:
        """A row for each image and number: the true one and the predicted one."""
        rows = (
            (split.name(i), name, f"{true:.9g}", f"{said:.9g}")
            for i, (truth, predicted) in enumerate(zip(split.labels, result.predicted, strict=True))
            for name, true, said in zip(self.outputs.names, truth, predicted, strict=True)
        )
        return ("file", "output", "true", "predicted"), rows

    def draw_result(self, split: Any, result: Estimated, folder: Path, caption: str) -> Sequence[Part]:
        """Predictions over the truth, and the largest errors."""
        known = bool(self.outputs.std)
        plain = Plain(self.mean, self.std, "training") if known else Plain.of(split.labels)
        return [Sections(number_sections(split, result, self.outputs.names, plain, folder, caption))]

    def worst(self, split: Any, result: Estimated, most: int) -> list[tuple[int, int, str]]:
        """Of the images with the largest errors the number that is worst."""
        names, truth, said = self.outputs.names, split.labels, result.predicted
        found = zip(*(each[:most].tolist() for each in worst_numbers(said, truth, self.std)), strict=True)
        return [(i, k, f"for {names[k]}: {truth[i, k]:.4g} → {said[i, k]:.4g}") for i, k in found]

    @property
    def selection_metric(self) -> tuple[str, int]:
        """rmse; of several numbers, whose units may differ, that in standard deviations of training."""
        return "rmse" if len(self.outputs.names) == 1 else "rmse_scaled", -1

    @property
    def mean(self) -> np.ndarray:
        """float64 [K]."""
        return np.array(self.outputs.mean or [0.0] * len(self.outputs.names))

    @property
    def std(self) -> np.ndarray:
        """float64 [K]."""
        return np.array(self.outputs.std or [1.0] * len(self.outputs.names))

    def values(self, logits: np.ndarray) -> np.ndarray:
        """What a network gives, [..., K], in the units of the data: float64."""
        return logits.astype(np.float64) * self.std + self.mean

    def explained(self, logits: np.ndarray) -> np.ndarray:
        """The only number; of several none is more probable than another."""
        if len(names := self.outputs.names) > 1:
            what = f"is not given, and this network predicts {len(names)} numbers"
            raise UserError(Field("class"), what, f"name the one to explain, such as {names[0]}")
        return np.zeros(len(logits), int)

    def top_k(self, logits: np.ndarray, top: int) -> Said:
        """Every number with its value, in their order."""
        return named(self.outputs.names, self.values(logits), range(len(self.outputs.names)))


@dataclass(frozen=True, repr=False)
class Estimated(Evaluation):
    """The result of a network of K numbers on n images; `predicted` is float64 [n, K], in the units of the data.

    The metrics are loss, of numbers as the network gives them, and those of `vit_jax.scores.numbers.score_numbers`.
    """

    prints_each: ClassVar[bool] = True
