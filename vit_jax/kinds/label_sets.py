"""A set of K labels, any number an image: a binary cross entropy of each label that is known."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from ..config.outputs import Outputs, composed
from ..config.run import LossConfig, RunConfig
from ..errors import Field, UserError
from ..files.lines import quote
from ..scores.calibration import Trust, set_loss, set_temperature
from ..scores.classes import DEFAULT, FEWEST, choose_thresholds, no_numbers, over, score_labels
from ..scores.suspects import Suspects, suspect_labels
from .balance import label_weights, remark_on_sizes
from .base import Arrays, Balance, Batch, Calibration, Evaluation, Kind, Matched, Said, Table, Texts, named, with_scores
from .labels import UNKNOWN, Labels, Positives, first_of, match_names, zero_or_one, zeros_and_ones

if TYPE_CHECKING:
    from jax import Array

THERE = "not there", "there"
LARGEST = 1 << 29  # images times labels of a set


@dataclass(frozen=True, repr=False)
class Labelled(Evaluation):
    """The result of a network of K labels on n images; `predicted` is bool [n, K].

    The metrics are loss and those of `vit_jax.scores.classes.score_labels`.
    """

    probabilities: np.ndarray  # float [n, K]
    prints_each: ClassVar[bool] = True
    trust: Trust | None = field(default=None, kw_only=True)  # of all known cells, of a final result
    suspects: Sequence[Suspects] = field(default=(), kw_only=True)  # of each label, likewise


@dataclass(frozen=True)
class LabelSets(Kind):
    """A set of K labels: int8 [n, K], 1 there, 0 not, -1 unknown, which counts nowhere."""

    says = "a set of labels, any number an image"
    of_image = "a set of labels an image"
    plural = "sets of labels"
    each = ("label", "labels")
    losses = ("binary",)
    loss_fields = ("class_weights", "focal")
    entries = ("thresholds", "temperature")
    main_metrics: ClassVar = {"map": "mAP", "subset_accuracy": "subset"}
    dtype = "int8"
    any_number = True
    header = ("file", "rank", "label", "probability")
    ranked = True
    legend = "labels over their thresholds (probability)"
    calibrated = ("temperature", "thresholds")
    no_top = "every label over its threshold is given"
    activation = "sigmoid"
    pictures = "vit_jax.tasks.classify.draw:draw_labelled"

    @classmethod
    def check_loss(cls, loss: LossConfig) -> None:
        if loss.class_weights == "effective":
            what = "is effective, which is for classes, and data.target is set"
            raise UserError(Field("loss.class_weights"), what, "give balanced or a file")
        if loss.label_smoothing and loss.smoothing != "torch":
            what = f"is {loss.smoothing}, which spreads over other classes, and data.target is set"
            raise UserError(Field("loss.smoothing"), what, "give torch")

    @property
    def selection_metric(self) -> tuple[str, int]:
        return "map", 1

    @classmethod
    def typed(cls, field: str, title: str, columns: np.ndarray) -> np.ndarray:
        """int8 [n, K] of 1, 0 and -1 or NaN where nobody knows."""
        known = np.where(np.isnan(columns), UNKNOWN, columns)
        if (wrong := ~np.isin(known, (0, 1, UNKNOWN))).any():
            remedy = "give 1 where a label is there, 0 where not, -1 if unknown"
            raise UserError(field, f"{title} has {first_of(columns, wrong)}", remedy)
        if (known == UNKNOWN).any() and not (known == 0).any():
            raise UserError(
                field, f"{title} is of -1 and 1 without any 0", "give 0 where a label is not there; -1 means unknown"
            )
        return known.astype(np.int8)

    @classmethod
    def of_columns(cls, rows: Any, columns: Sequence[int], texts: Texts) -> Labels:
        """Columns of 0 and 1 in the order of the table, empty where unknown."""
        if len(columns) == 1 and any(zero_or_one(text) is None for text in texts[0]):
            what = f"column {rows.shown(columns[0])} holds names, and data.target is set"
            raise UserError(rows.title, what, 'say what separates several in a cell, such as `data.separator " "`')
        why = "columns of a set hold 1, 0, or nothing where it is not known"
        names, values, how = zeros_and_ones(rows, columns, texts, why)
        return Labels(Outputs("set", names), values, how)

    @classmethod
    def of_lists(cls, rows: Any, column: int, cells: Texts, how: str = "lists") -> Labels:
        """By the names of labels. An empty cell has none of them."""
        named = [[*map(composed, cell)] for cell in cells]
        names = sorted({name for cell in named for name in cell})
        if not names:
            raise UserError(rows.title, f"column {rows.shown(column)} has no label in any row", "name another column")
        if len(names) * len(cells) > LARGEST:
            what = f"column {rows.shown(column)} has {len(names):,} different labels in {len(cells):,} rows"
            raise UserError(rows.title, what, "name another column, or another `data.separator`")
        place = {name: k for k, name in enumerate(names)}
        values = np.zeros((len(cells), len(names)), np.int8)
        for row, cell in enumerate(named):
            if len({*cell}) < len(cell):
                twice = next(name for name in cell if cell.count(name) > 1)
                raise UserError(rows.where(row, column), f"has {quote(twice)} twice", "write each label once")
            values[row, [place[name] for name in cell]] = 1
        return Labels(Outputs("set", tuple(names)), values, f"column {rows.shown(column)}, {how}")

    def check(self, field: str, splits: Arrays, counted: bool = False) -> None:
        """Every label of another split is one that train has."""
        names, train = self.names, self.present(splits["train"])
        if not len(train):
            raise UserError(field, "no image of its train split has any label", "give images that have some")
        for split, labels in splits.items():
            if len(extra := np.setdiff1d(self.present(labels), train)):
                what = f"label {names[extra[0]]} is in {split} but not in train"
                raise UserError(field, what, "add examples of it to train, or leave it out")

    def present(self, labels: np.ndarray) -> np.ndarray:
        return np.flatnonzero((labels == 1).any(0))

    def positives(self, labels: np.ndarray) -> Positives:
        return Positives(*np.nonzero(labels == 1))

    def groups(self, labels: np.ndarray) -> np.ndarray:
        return np.unique(labels, axis=0, return_inverse=True)[1].reshape(-1)

    def words(self, label: Any) -> str:
        return ", ".join(self.names[k] for k in np.flatnonzero(label == 1)) or "none"

    def matched(self, field: str, of: str, labels: np.ndarray, network: Sequence[str]) -> Matched:
        """Labels of the network that the data has no column of are unknown."""
        names = self.names
        places, remark = match_names(field, names, np.arange(len(names)), network, self.each)
        out = np.full((len(labels), len(network)), UNKNOWN, np.int8)
        out[:, places] = labels
        return out, remark

    def counts(self, labels: np.ndarray, names: Sequence[str], more: str) -> str:
        unknown = int((labels == UNKNOWN).sum())
        told = f"; unknown cells, which are not learned from: {unknown:,}" if unknown else ""
        return super().counts(labels, names, more) + told

    def remarks(self, splits: Arrays) -> tuple[str, ...]:
        """Which labels a split lacks, and how much of it nobody knows."""
        unknown = {name: (labels == UNKNOWN).mean() for name, labels in splits.items()}
        said = [f"{share:.1%} of {name}" for name, share in unknown.items() if share]
        masked = (f"unknown labels count neither in training nor in metrics: {', '.join(said)}",) if said else ()
        return (*super().remarks(splits), *masked)

    def targets(self, labels: Array) -> Array:
        """1, 0, or NaN where unknown."""
        import jax.numpy as jnp

        return jnp.where(labels < 0, jnp.nan, labels.astype(jnp.float32))

    def denominator(self, batch: Batch) -> Array:
        """[2]: the cells that are known, and the images."""
        import jax.numpy as jnp

        known = _known(batch)[1]
        return jnp.stack([known.sum(dtype=float), jnp.asarray(len(known), float)])

    def loss(self, logits: Array, batch: Batch, denominator: Array | None = None) -> tuple[Array, dict[str, Array]]:
        """BCEWithLogitsLoss(pos_weight), a mean over the known cells of the batch; 0 where none is known. Shapes:
        logits [B, K] -> (loss [], {"subset_accuracy": []}).

        With smoothing e a label that is there is 1 - e/2, one that is not e/2, as in timm.
        """
        import jax.numpy as jnp

        cells, images = self.denominator(batch) if denominator is None else denominator
        targets, known = _known(batch)
        there = jnp.where(known, targets, 0).astype(logits.dtype)
        smooth = there * (1 - self.settings.label_smoothing) + self.settings.label_smoothing / 2
        weights = jnp.array(self.weights, logits.dtype) if self.weights else None
        losses = jnp.where(known, binary_losses(logits, smooth, weights, self.settings.focal), 0)
        right = ((logits > 0) == (there > 0.5)) | ~known
        subset = right.all(-1).sum().astype(logits.dtype) / images.astype(logits.dtype)
        cells = jnp.where(cells > 0, cells, 1)  # where none is known, the sum is 0 too
        return losses.sum() / cells.astype(logits.dtype), {"subset_accuracy": subset}

    def balanced(self, run: RunConfig, labels: np.ndarray) -> Balance:
        """Weights of labels that are there, and a remark where one is rare and nothing evens that out."""
        there = (labels == 1).sum(0)
        weights = label_weights(run.loss, self.names, there, (labels >= 0).sum(0))
        flags = "`loss.class_weights balanced`"
        even = weights or run.loss.focal
        remarks = () if even else remark_on_sizes(self.names, there, "label", flags)
        return ({"loss_weights": [*weights]} if weights else {}), remarks

    def score(self, split: Any, out: Arrays) -> Labelled:
        """The metrics of n predicted sets, of labels int8 [n, K] and logits float [n, K]."""
        truth, probabilities = split.labels, self.values(out["logits"])
        predicted = over(probabilities, self.thresholds)
        result = Labelled({"loss": set_loss(truth, out["logits"])}, predicted, probabilities)
        if not (truth >= 0).any():
            result = replace(result, undefined={"loss": "of no image is any label known"})
        return with_scores(result, score_labels(truth, probabilities, self.thresholds))

    def examined(self, split: Any, out: Arrays) -> Labelled:
        """With the calibration error of all known cells, and the labels that seem to be wrong."""
        import jax

        result, known = self.score(split, out), split.labels >= 0
        if no_numbers(out["logits"]):
            return result
        before = np.asarray(jax.nn.sigmoid(out["logits"]))[known]
        told, right = result.probabilities[known], split.labels[known] == 1
        t = self.outputs.temperature
        loss = set_loss(split.labels, out["logits"] / t)
        trust = Trust.of(before, told, right, t, loss)
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
        return {f"true {name}": shown[:, k].tolist() for k, name in enumerate(self.names)}

    def table(self, split: Any, result: Labelled) -> Table:
        """A row for each image and label: whether it is there (1, 0, or nothing if unknown), and its probability."""
        rows = (
            (split.name(i), name, "" if true < 0 else int(true), f"{probability:.6f}")
            for i, (truth, probabilities) in enumerate(zip(split.labels, result.probabilities, strict=True))
            for name, true, probability in zip(self.names, truth, probabilities, strict=True)
        )
        return ("file", "label", "true", "probability"), rows

    def worst(self, split: Any, result: Labelled, most: int) -> list[tuple[int, int, str]]:
        """Of the most confident mistakes the label."""
        found = zip(*(each.tolist() for each in worst_labels(result, split.labels, most)), strict=True)
        names = self.names
        return [(i, k, f"for {names[k]}, which is {THERE[split.labels[i, k]]}") for i, k in found]

    @property
    def thresholds(self) -> tuple[float, ...]:
        return self.outputs.thresholds or (DEFAULT,) * len(self.names)

    def values(self, logits: np.ndarray) -> np.ndarray:
        import jax

        return np.asarray(jax.nn.sigmoid(logits / self.outputs.temperature))

    def top_k(self, logits: np.ndarray, top: int) -> Said:
        """The labels whose own probability is over their threshold, the most probable first; maybe none."""
        probabilities = self.values(logits)
        order = np.argsort(-probabilities, kind="stable")
        said = over(probabilities, self.thresholds)
        return named(self.names, probabilities, [k for k in order if said[k]])


def _known(batch: Batch) -> tuple[Array, Array]:
    """(what is learned, [B, K], of mixed images or the labels themselves; which of it is known)."""
    import jax.numpy as jnp

    if "target" in batch:
        return batch["target"], ~jnp.isnan(batch["target"])
    return batch["label"], batch["label"] >= 0


def worst_labels(result: Any, truth: np.ndarray, most: int) -> tuple[np.ndarray, np.ndarray]:
    """The most confident mistakes of a Labelled: the numbers of images and of labels, int [m] each, the worst first."""
    error = np.where((result.predicted != truth) & (truth >= 0), np.abs(result.probabilities - truth), -1.0)
    worst = np.argsort(-error, axis=None, kind="stable")[:most]
    images, labels = np.unravel_index(worst[error.reshape(-1)[worst] >= 0], truth.shape)
    return images, labels


def binary_losses(logits: Array, targets: Array, positive: Array | None = None, focal: float = 0.0) -> Array:
    """-(q t log s + (1 - t) log (1 - s)), s the sigmoid of the logits: BCEWithLogitsLoss(pos_weight=q), [B, K]."""
    import jax

    there = -jax.nn.log_sigmoid(logits) * targets
    not_there = -jax.nn.log_sigmoid(-logits) * (1 - targets)
    losses = (there if positive is None else there * positive) + not_there
    if focal:
        s = jax.nn.sigmoid(logits)
        losses = losses * (1 - s * targets - (1 - s) * (1 - targets)) ** focal
    return losses
