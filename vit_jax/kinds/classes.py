"""One of K classes: cross entropy, or a binary one of each class; accuracy, and scores of each class."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from ..config.outputs import Outputs, composed
from ..config.run import RunConfig
from ..errors import UserError
from ..files.lines import quote
from ..scores.calibration import Trust, class_loss, class_temperature
from ..scores.classes import balanced_accuracy, no_numbers, precision_recall_f1, rank_classes
from ..scores.suspects import Suspects, suspect_classes
from .balance import class_weights, log_prior, remark_on_sizes
from .base import Arrays, Balance, Batch, Calibration, Evaluation, Kind, Matched, Said, Table, Texts, named, with_scores
from .label_sets import binary_losses
from .labels import Labels, Positives, as_number, first_of, joint_names, match_names, refuse_empty, zeros_and_ones

if TYPE_CHECKING:
    from jax import Array

TOP = 5  # of accuracy_top5: so many most probable classes
LARGEST = 1 << 20  # an array with greater labels does not hold class numbers


@dataclass(frozen=True, repr=False)
class Classified(Evaluation):
    """The result of a network of K classes on n images; `predicted` is int [n].

    The metrics are loss (but of probes), accuracy, balanced_accuracy (of the classes that have an image), {precision,
    recall, f1}_{macro, micro} and, of more than TOP classes, accuracy_top5.
    """

    confidence: np.ndarray  # float [n]: the probability of the predicted class
    confusion: np.ndarray  # int [K, K]: rows are the truth, columns the prediction
    per_class: dict[str, np.ndarray]  # precision, recall, f1: float [K]
    probabilities: np.ndarray | None = field(default=None, kw_only=True)  # float [n, K], of a final result
    trust: Trust | None = field(default=None, kw_only=True)  # likewise
    suspects: Suspects | None = field(default=None, kw_only=True)  # likewise


def score(
    truth: np.ndarray,
    predicted: np.ndarray,
    confidence: np.ndarray,
    loss: np.ndarray | None,
    rank: np.ndarray,
    classes: int,
    averaged: np.ndarray | None = None,
) -> Classified:
    """The metrics of n predictions: truth int [n], predicted int [n], confidence float [n], loss float [n], rank int
    [n], averaged int [k].

    Precision, recall and F1 are counted over the whole split, not averaged over batches. A class that is never
    predicted has precision 0.
    """
    metrics = {} if loss is None else {"loss": float(loss.astype(np.float64).mean())}
    confusion = np.bincount(truth.astype(np.int64) * classes + predicted, minlength=classes**2)
    confusion = confusion.reshape(classes, classes)
    metrics |= {"accuracy": float((predicted == truth).mean()), "balanced_accuracy": balanced_accuracy(confusion)}
    if classes > TOP:
        metrics[f"accuracy_top{TOP}"] = float((rank < TOP).mean())
    right, said, true = np.diagonal(confusion), confusion.sum(0), confusion.sum(1)
    each = precision_recall_f1(right, said, true)
    counted = slice(None) if averaged is None else averaged
    metrics |= {f"{name}_macro": float(values[counted].mean()) for name, values in each.items()}
    micro = precision_recall_f1(right.sum(), said.sum(), true.sum())
    metrics |= {f"{name}_micro": float(value) for name, value in micro.items()}
    return Classified(metrics, predicted, confidence, confusion, each, each=each)


@dataclass(frozen=True)
class Classes(Kind):
    """One of K classes: labels are int32 [n]."""

    says = "classes, one an image"
    of_image = "one class an image"
    plural = "classes"
    each = ("class", "classes")
    losses = ("cross_entropy", "binary")
    loss_fields = ("class_weights", "prior", "focal")
    entries = ("temperature",)
    main_metrics: ClassVar = {"accuracy": "accuracy", "balanced_accuracy": "balanced", "accuracy_top5": "top-5"}
    columns = False
    dtype = "int32"
    least = 2
    header = ("file", "rank", "class", "probability")
    ranked = True
    several = True
    legend = "predicted class (probability)"
    calibrated = ("temperature",)
    activation = "softmax"
    pictures = "vit_jax.tasks.classify.draw:draw_classified"

    @property
    def selection_metric(self) -> tuple[str, int]:
        """accuracy, or balanced_accuracy where training lets classes count alike."""
        return "balanced_accuracy" if self.alike else "accuracy", 1

    @classmethod
    def typed(cls, field: str, title: str, columns: np.ndarray) -> np.ndarray:
        """int32 [n], of one class an image or of one 1 a row."""
        if columns.shape[1] > 1:
            if not (np.isin(columns, (0, 1)).all() and (columns.sum(1) == 1).all()):
                raise UserError(
                    field, f"{title} has shape {list(columns.shape)}", "give one class an image, or one 1 in each row"
                )
            return columns.argmax(1).astype(np.int32)
        if (wrong := columns != np.round(columns)).any():
            raise UserError(field, f"{title} has {first_of(columns, wrong)}", "number the classes from 0")
        if columns.size and not 0 <= columns.min() <= columns.max() < LARGEST:
            raise UserError(field, f"{title} go from {columns.min()} to {columns.max()}", "number the classes from 0")
        return columns[:, 0].astype(np.int32)

    @classmethod
    def of_columns(cls, rows: Any, columns: Sequence[int], texts: Texts) -> Labels:
        """Of one column by its names, of several by their 0 and 1."""
        if len(columns) == 1:
            return _of_names(rows, columns[0], texts[0])
        names, values, how = zeros_and_ones(rows, columns, texts, "columns of a class hold 1, 0")
        for column, cells in zip(columns, texts, strict=True):
            refuse_empty(rows, column, cells, "class")
        counts = (values == 1).sum(1)
        if (counts != 1).any():
            row = int(np.flatnonzero(counts != 1)[0])
            what = f"has {counts[row]} columns with 1, and data.target is class"
            raise UserError(rows.where(row), what, "give each row one 1, or `data.target set`")
        return Labels(Outputs("class", names), values.argmax(1).astype(np.int32), how)

    @classmethod
    def of_lists(cls, rows: Any, column: int, cells: Texts, how: str = "lists") -> Labels:
        row = next(i for i, cells in enumerate(rows.cells) if isinstance(cells[column], tuple))
        raise UserError(rows.where(row, column), "is a list, and data.target is class", "leave `data.target` out")

    def check(self, field: str, splits: Arrays, counted: bool = False) -> None:
        """Labels are numbers of classes, and train has two or more of these."""
        classes = len(self.names)
        for name, labels in splits.items():
            low, high = labels.min(), labels.max()
            if low < 0 or high >= classes:
                what = f"labels of its {name} split go from {low} to {high} but there are {classes} classes"
                shifted = ", as labels - 1" if low == 1 and high == classes else ""
                raise UserError(field, what, f"number them from 0{shifted}")
        if counted:
            self.check_counted(field, splits)
        present = self.present(splits["train"])
        if len(present) < 2:
            what = f"its only class is {self.names[present[0]]}"
            raise UserError(field, what, "classification needs two or more")

    def check_counted(self, field: str, splits: Arrays, classes: int = 0) -> None:
        there = {name: np.unique(labels) for name, labels in splits.items() if len(labels)}
        first = min(each[0] for each in there.values())
        last = max(each[-1] for each in there.values())
        if first > 0 and (not classes or last >= classes):
            raise UserError(
                field,
                f"labels go from {first} to {last}, and none is 0" + (f" of {classes} classes" if classes else ""),
                f"subtract {first} if they begin at {first}; if not, name all classes from 0 on as class_names",
            )
        for name, each in there.items() if not classes else ():
            if len(extra := np.setdiff1d(each, there["train"])):
                remedy = "add examples of it to train, or leave it out"
                raise UserError(field, f"label {extra[0]} is in {name} but not in train", remedy)

    def positives(self, labels: np.ndarray) -> Positives:
        return Positives(np.arange(len(labels)), labels)

    def groups(self, labels: np.ndarray) -> np.ndarray:
        return labels

    def words(self, label: Any) -> str:
        return self.names[label]

    def matched(self, field: str, of: str, labels: np.ndarray, network: Sequence[str]) -> Matched:
        """Only classes that the data has need be the network's."""
        names, present = self.names, self.present(labels)
        if present[0] < 0 or present[-1] >= len(names):
            what = f"labels{of} go from {present[0]} to {present[-1]} but there are {len(names)} classes"
            raise UserError(field, what, "number them from 0")
        places, remark = match_names(field, names, present, network, self.each)
        return places[labels], remark

    def targets(self, labels: Array) -> Array:
        """One 1 a row."""
        import jax

        return jax.nn.one_hot(labels, len(self.names), dtype="float32")

    def loss(self, logits: Array, batch: Batch, denominator: Array | None = None) -> tuple[Array, dict[str, Array]]:
        """The loss of a batch: logits [B, K], batch float [B, K] -> [].

        A binary loss is a mean over the classes too, as in timm's BinaryCrossEntropy and DeiT III (arXiv 2204.07118).
        With weights and smoothing it is CrossEntropyLoss(weight, label_smoothing), a mean that counts each image by the
        weight of its class, or of mixed images each by 1.
        """
        import jax
        import jax.numpy as jnp
        import optax

        targets = batch["target"] if "target" in batch else jax.nn.one_hot(batch["label"], logits.shape[-1])
        label, targets = targets.argmax(-1), targets.astype(logits.dtype)
        right = logits.argmax(-1) == label
        if smoothing := self.settings.spread_over_all(logits.shape[-1]):
            targets = optax.smooth_labels(targets, smoothing)
        adjusted = logits + jnp.array(self.log_prior, logits.dtype) if self.log_prior else logits
        weights = jnp.array(self.weights, logits.dtype) if self.weights else None
        if self.settings.name == "binary":
            losses = binary_losses(adjusted, targets, focal=self.settings.focal)
            return (losses if weights is None else losses * weights).mean(), {"accuracy": right.mean()}
        if self.settings.name not in ("", "cross_entropy"):
            raise ValueError(f"loss {self.settings.name} is not of classes")
        losses = optax.softmax_cross_entropy(adjusted, targets if weights is None else targets * weights)
        if self.settings.focal:
            p = jnp.exp(-optax.softmax_cross_entropy(adjusted, targets))  # of the true class
            losses = losses * (1 - p) ** self.settings.focal
        denominator = self.denominator(batch) if denominator is None else denominator
        if denominator is None:
            return losses.mean(), {"accuracy": right.mean()}
        total, images = denominator
        total = jnp.where(total > 0, total, 1)  # where it is 0, the sum is 0 too
        return losses.sum() / total.astype(logits.dtype), {"accuracy": right.sum() / images}

    def denominator(self, batch: Batch) -> Array | None:
        """With weights [2]: their sum over the images, and the number of these; of mixed images that number twice."""
        import jax.numpy as jnp

        if not self.weights or self.settings.name == "binary":
            return None
        images = jnp.asarray(len(batch["label"]), float)
        if "target" in batch:
            return jnp.stack([images, images])
        return jnp.stack([jnp.array(self.weights, float)[batch["label"]].sum(), images])

    def balanced(self, run: RunConfig, labels: np.ndarray) -> Balance:
        """Weights and prior by the sizes of classes, and a remark where these differ and nothing evens that out."""
        names, sampling = self.names, getattr(run.data, "sampling", "natural")
        counts = np.bincount(labels, minlength=len(names))
        found = {"loss_weights": class_weights(run.loss, names, counts)}
        found["log_prior"] = log_prior(counts) if run.loss.prior else ()
        even = any(found.values()) or run.loss.focal or sampling != "natural"
        flags = "`loss.prior True`, or with `loss.class_weights balanced` or `data.sampling balanced`"
        remarks = () if even else remark_on_sizes(names, counts, "class", flags)
        return {name: [*numbers] for name, numbers in found.items() if numbers}, remarks

    def outcomes(self, logits: Array, label: Array) -> dict[str, Array]:
        """What `score` needs of each image: logits [B, K], label int [B] -> [B, K]."""
        import jax
        import jax.numpy as jnp
        import optax

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

    def score(self, split: Any, out: Arrays) -> Classified:
        """The metrics of a split, see `score`: out [n, ...]."""
        predicted, confidence, loss, rank = (out[name] for name in ("predicted", "confidence", "loss", "rank"))
        if self.outputs.temperature != 1:
            confidence = self.values(out["logits"]).max(1)
        return score(split.labels, predicted, confidence, loss, rank, len(self.names), split.classes)

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

    def with_ranks(self, split: Any, out: Arrays) -> Classified:
        """With auroc_macro and ap_macro."""
        return with_scores(self.score(split, out), rank_classes(split.labels, self.values(out["logits"])))

    def examined(self, split: Any, out: Arrays) -> Classified:
        """With the calibration error and the labels that seem to be wrong."""
        p = self.values(out["logits"])
        result = replace(self.with_ranks(split, out), probabilities=p)
        if no_numbers(p):
            return result
        t, right = self.outputs.temperature, result.predicted == split.labels
        loss = class_loss(split.labels, out["logits"] / t)
        trust = Trust.of(out["confidence"], result.confidence, right, t, loss)
        result = replace(result, trust=trust, suspects=suspect_classes(split.labels, p))
        return with_scores(result, trust.scores())

    def calibration(self, labels: np.ndarray, logits: np.ndarray) -> Calibration:
        temperature, why = class_temperature(labels, logits)
        return Calibration(temperature, notes=(f"no temperature: {why}",) if why else ())

    def values(self, logits: np.ndarray) -> np.ndarray:
        import jax

        return np.asarray(jax.nn.softmax(logits / self.outputs.temperature))

    def truths(self, labels: np.ndarray) -> dict[str, list[str]]:
        return {"true": [self.names[label] for label in labels]}

    def table(self, split: Any, result: Classified) -> Table:
        """A row for each image: its file or its place in the data, its class, and the predicted one."""
        names = self.names
        columns = zip(split.labels, result.predicted, result.confidence, strict=True)
        rows = (
            (split.name(i), names[true], names[predicted], f"{probability:.6f}")
            for i, (true, predicted, probability) in enumerate(columns)
        )
        return ("file", "true", "predicted", "probability"), rows

    def worst(self, split: Any, result: Classified, most: int) -> list[tuple[int, int, str]]:
        """Of the most confident mistakes the predicted class and the true one."""
        found, names = mistakes(result, split.labels)[:most].tolist(), self.names
        pairs = [(i, int(result.predicted[i]), int(split.labels[i])) for i in found]
        return [
            (i, k, f"for {names[k]}, {what}")
            for i, said, true in pairs
            for k, what in ((said, f"its answer for a {names[true]}"), (true, "which is true"))
        ]

    def top_k(self, logits: np.ndarray, top: int) -> Said:
        """The most probable classes of an image, best first: logits float [K]."""
        probabilities = self.values(logits)
        return named(self.names, probabilities, np.argsort(-probabilities, kind="stable")[:top])


def mistakes(result: Classified, labels: np.ndarray) -> np.ndarray:
    """The numbers of the images that are classified wrong, int [m], the most confident first."""
    wrong = np.flatnonzero(result.predicted != labels)
    return wrong[np.argsort(-result.confidence[wrong], kind="stable")]


def _of_names(rows: Any, column: int, texts: Sequence[str]) -> Labels:
    """One class an image, by its name. The names are sorted, as those of folders are."""
    refuse_empty(rows, column, texts, "class")
    texts = [*map(composed, texts)]
    names = sorted({*texts})
    of_number: dict[float, str] = {}
    for name in names:
        value = as_number(name)
        if value is not None and of_number.setdefault(value, name) != name:
            one, other = sorted(texts.index(each) for each in (name, of_number[value]))
            what = f"is {quote(texts[other])}, and line {rows.lines[one]} has {quote(texts[one])}: the same number"
            raise UserError(rows.where(other, column), what, "write a class in one way")
    if len(names) == len(texts) > 2:
        what = f"column {rows.shown(column)} has another text in each of the {len(texts):,} rows, so it is no class"
        raise UserError(rows.title, what, "name another column, as `data.labels COLUMN`")
    place = {name: k for k, name in enumerate(names)}
    values = np.fromiter((place[text] for text in texts), np.int32, len(texts))
    return Labels(Outputs("class", tuple(names)), values, f"column {rows.shown(column)}", joint_names(names))
