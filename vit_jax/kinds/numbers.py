"""K numbers: the squared error of normalised ones; all that a user sees is in the units of the data."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from ..config.outputs import Outputs
from ..config.run import RunConfig
from ..errors import Field, UserError
from ..scores.numbers import score_numbers
from .base import Arrays, Balance, Batch, Evaluation, Kind, Matched, Said, Table, Texts, named, with_scores
from .labels import Labels, Positives, as_number, first_row, match_names, no_number, refuse_empty

if TYPE_CHECKING:
    from jax import Array

PARTS = 5  # of the range of a number, each with as many examples: a part that is held out has its share of each


@dataclass(frozen=True, repr=False)
class Estimated(Evaluation):
    """The result of a network of K numbers on n images; `predicted` is float64 [n, K], in the units of the data.

    The metrics are loss, of numbers as the network gives them, and those of `vit_jax.scores.numbers.score_numbers`.
    """

    prints_each: ClassVar[bool] = True


@dataclass(frozen=True)
class Numbers(Kind):
    """K numbers, finite: float64 [n, K], in the user's units.

    The label of a batch is float32 [B, K], normalised by mean and std of the training part.
    """

    says = "numbers"
    of_image = "numbers"
    plural = "numbers"
    each = ("number", "numbers")
    losses = ("squared",)
    entries = ("mean", "std")
    main_metrics: ClassVar = {"rmse": "RMSE", "rmse_scaled": "RMSE/std", "mae": "MAE", "r2": "R2"}
    amounts = True
    header = ("file", "output", "value")
    written = ("{} {:.6g}", "{:.9g}", "{} {:.3g}")
    legend = "predicted numbers"
    no_top = "every number is given"
    has_probabilities = False
    pictures = "vit_jax.tasks.classify.draw:draw_estimated"

    @classmethod
    def typed(cls, field: str, title: str, columns: np.ndarray) -> np.ndarray:
        return columns.astype(np.float64)

    @classmethod
    def of_columns(cls, rows: Any, columns: Sequence[int], texts: Texts) -> Labels:
        names = tuple(rows.names[column] for column in columns)
        how = f"column {rows.shown(columns[0])}" if len(columns) == 1 else f"{len(columns)} columns"
        return Labels(Outputs("number", names), _cells(rows, columns, texts), how)

    @classmethod
    def of_lists(cls, rows: Any, column: int, cells: Texts, how: str = "lists") -> Labels:
        """Several numbers, as many in each list."""
        count = len(cells[0])
        for row, cell in enumerate(cells):
            if len(cell) != count or not count:
                what = f"has {len(cell)} numbers, and line {rows.lines[0]} has {count}"
                raise UserError(rows.where(row, column), what, "give each row as many, one at least")
        names = tuple(f"{rows.names[column]}[{i}]" for i in range(count))
        values = _cells(rows, [column] * count, [*zip(*cells, strict=True)])
        return Labels(Outputs("number", names), values, "lists of numbers")

    def present(self, labels: np.ndarray) -> np.ndarray:
        return np.arange(labels.shape[1])

    def positives(self, labels: np.ndarray) -> Positives:
        return Positives(*np.nonzero(_parts(labels)))

    def groups(self, labels: np.ndarray) -> np.ndarray:
        return _parts(labels[:, :1]).argmax(1)

    def words(self, label: Any) -> str:
        return ", ".join(f"{name} {value:.4g}" for name, value in zip(self.names, label, strict=True))

    def counts(self, labels: np.ndarray, names: Sequence[str], more: str) -> str:
        """The range of each number."""
        low, high, mean = (labels.min(0), labels.max(0), labels.mean(0))
        each = [f"{name} {low[k]:g} to {high[k]:g}, mean {mean[k]:g}" for k, name in enumerate(names)]
        return "; ".join(each) + more

    def matched(self, field: str, of: str, labels: np.ndarray, network: Sequence[str]) -> Matched:
        """Every number of the network has to be there."""
        names = self.names
        places, remark = match_names(field, names, np.arange(len(names)), network, self.each)
        if len(missing := np.setdiff1d(np.arange(len(network)), places)):
            raise UserError(field, f"lacks the number {network[missing[0]]} of the network", "add it")
        return labels[:, np.argsort(places)], remark

    def fitted(self, field: str, train: np.ndarray) -> Outputs:
        """The outputs with the mean and the population std of the training part: train float64 [n, K]."""
        with np.errstate(over="ignore"):  # what overflows is refused below
            mean, std = train.mean(0), train.std(0)
        for name, values, spread in zip(self.names, train.T, std, strict=True):
            if values.min() == values.max() or not (np.isfinite(spread) and spread > 0):
                what = f"is {values[0]:g} of every image" if values.min() == values.max() else "has no finite std"
                raise UserError(field, f"{name} {what} to train on", "leave it out, or give images that differ in it")
        return replace(self.outputs, mean=tuple(mean.tolist()), std=tuple(std.tolist()))

    def in_batch(self, labels: np.ndarray) -> np.ndarray:
        """float32, with mean 0 and std 1 over the training part; of a network that gives the numbers, as they are."""
        if not self.outputs.mean:
            return labels.astype(np.float32)
        return ((labels - self.mean) / self.std).astype(np.float32)

    def balanced(self, run: RunConfig, labels: np.ndarray) -> Balance:
        """Nothing, and a remark where labels were to be smoothed."""
        smoothing = run.loss.label_smoothing
        return {}, (f"loss.label_smoothing {smoothing:g} has no effect on numbers",) if smoothing else ()

    def targets(self, labels: Array) -> Array:
        return labels

    def loss(self, logits: Array, batch: Batch, denominator: Array | None = None) -> tuple[Array, dict[str, Array]]:
        """(loss [], {"mae": []}): MSELoss of normalised numbers, and the mean error in the units of the data."""
        import jax.numpy as jnp

        target = (batch["target"] if "target" in batch else batch["label"]).astype(logits.dtype)
        if logits.shape != target.shape:  # [B, 1] - [B] would be [B, B]
            raise ValueError(f"logits are {list(logits.shape)} and labels {list(target.shape)}")
        error = logits - target
        return (error**2).mean(), {"mae": (jnp.abs(error) * self.std.astype(logits.dtype)).mean()}

    def score(self, split: Any, out: Arrays) -> Estimated:
        """The metrics of n predictions, of labels float64 [n, K] and normalised logits float [n, K]."""
        truth, predicted = split.labels, self.values(out["logits"])
        std = self.std if self.outputs.std else None
        loss = float((((predicted - truth) / (1 if std is None else std)) ** 2).mean())
        return with_scores(Estimated({"loss": loss}, predicted), score_numbers(truth, predicted, std, self.names))

    def at_chance(self, split: Any, result: Any) -> str:
        """R2 not above 0."""
        r2 = result.metrics.get("r2", math.nan)
        return f"R2 {r2:.3f} is no better than the mean of the numbers for every image" if r2 <= 0 else ""

    def values_of(self, result: Estimated) -> np.ndarray:
        return result.predicted

    def truths(self, labels: np.ndarray) -> dict[str, list[str]]:
        return {f"true {name}": list(map(repr, labels[:, k].tolist())) for k, name in enumerate(self.names)}

    def table(self, split: Any, result: Estimated) -> Table:
        """A row for each image and number: the true one and the predicted one."""
        rows = (
            (split.name(i), name, f"{true:.9g}", f"{said:.9g}")
            for i, (truth, predicted) in enumerate(zip(split.labels, result.predicted, strict=True))
            for name, true, said in zip(self.names, truth, predicted, strict=True)
        )
        return ("file", "output", "true", "predicted"), rows

    def worst(self, split: Any, result: Estimated, most: int) -> list[tuple[int, int, str]]:
        """Of the images with the largest errors the number that is worst."""
        names, truth, said = self.names, split.labels, result.predicted
        found = zip(*(each.tolist() for each in worst_numbers(said, truth, self.std, most)), strict=True)
        return [(i, k, f"for {names[k]}: {truth[i, k]:.4g} → {said[i, k]:.4g}") for i, k in found]

    @property
    def selection_metric(self) -> tuple[str, int]:
        """rmse; of several numbers, whose units may differ, that in standard deviations of training."""
        return "rmse" if len(self.names) == 1 else "rmse_scaled", -1

    @property
    def mean(self) -> np.ndarray:
        """float64 [K]."""
        return np.array(self.outputs.mean or [0.0] * len(self.names))

    @property
    def std(self) -> np.ndarray:
        """float64 [K]."""
        return np.array(self.outputs.std or [1.0] * len(self.names))

    def values(self, logits: np.ndarray) -> np.ndarray:
        """What a network gives, [..., K], in the units of the data: float64."""
        return logits.astype(np.float64) * self.std + self.mean

    def explained(self, logits: np.ndarray) -> np.ndarray:
        """The only number; of several none is more probable than another."""
        if len(names := self.names) > 1:
            what = f"is not given, and this network predicts {len(names)} numbers"
            raise UserError(Field("class"), what, f"name the one to explain, such as {names[0]}")
        return np.zeros(len(logits), int)

    def top_k(self, logits: np.ndarray, top: int) -> Said:
        """Every number with its value, in their order."""
        return named(self.names, self.values(logits), range(len(self.names)))


def worst_numbers(
    predicted: np.ndarray, truth: np.ndarray, std: np.ndarray, most: int
) -> tuple[np.ndarray, np.ndarray]:
    """The images with the largest errors in standard deviations, int [m], and the number of each that is worst."""
    errors = np.abs(predicted - truth) / std
    worst = np.argsort(-np.nan_to_num(errors.max(1), nan=np.inf), kind="stable")[:most]
    return worst, errors[worst].argmax(1)


def _parts(labels: np.ndarray) -> np.ndarray:
    """bool [n, K * PARTS]: in which part of the range of each number, of equally many examples, each example lies."""
    n, k = labels.shape
    ranks = labels.argsort(0, kind="stable").argsort(0, kind="stable")
    out = np.zeros((n, k, PARTS), bool)
    np.put_along_axis(out, (ranks * PARTS // n)[..., None], True, 2)
    return out.reshape(n, -1)


def _cells(rows: Any, columns: Sequence[int], texts: Texts) -> np.ndarray:
    """Cells as numbers, float64 [n, K]. Raises UserError naming the first that is none."""
    values = np.empty((len(rows), len(columns)))
    for k, (column, cells) in enumerate(zip(columns, texts, strict=True)):
        refuse_empty(rows, column, cells, "number")
        row = first_row(cells, lambda text: as_number(text) is None)
        if row is not None:
            raise no_number(rows, row, column, cells[row], "data.target is number")
        values[:, k] = [float(cell) for cell in cells]
    return values
