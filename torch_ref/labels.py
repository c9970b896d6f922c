"""Losses and metrics of what is learned of an image in PyTorch: one class, a set of labels, or numbers.

The counterpart of vit_jax/kinds/, and independent of it. K is the number of classes, labels or numbers.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, assert_never

import torch
from torch import Tensor
from torch.nn import functional as F

from vit_jax.config.outputs import Outputs
from vit_jax.config.run import LossConfig
from vit_jax.errors import Field, UserError

SELECTION = {
    "class": ("accuracy", 1),
    "set": ("map", 1),
    "number": ("rmse", -1),
}  # metric of the best weights, its sign


class Labels:
    """The labels of a run: their kind and what training knows of them."""

    def __init__(self, c: LossConfig, metadata: Mapping[str, Any]):
        self.c, self.outputs = c, Outputs.of(metadata)
        self.kind = self.outputs.kind or "class"
        self.weights, self.prior = (metadata.get(name) for name in ("loss_weights", "log_prior"))
        if self.kind not in SELECTION:
            what = f"is {self.kind}, of which torch_ref has no loss"
            raise UserError(
                Field("data.target"),
                what,
                "train it with python -m vit_jax.train",
            )
        evened = bool(self.weights or self.prior)
        self.selection = ("balanced_accuracy", 1) if evened and self.kind == "class" else SELECTION[self.kind]

    def loss(self, logits: Tensor, labels: Tensor) -> Tensor:
        """The loss [] of logits [B, K]: labels [B]. Labels are classes [B], or float [B, K]; of sets 1, 0, and -1 where
        unknown; or normalised numbers.
        """
        weights = None if self.weights is None else logits.new_tensor(self.weights)
        if self.kind == "number":
            return F.mse_loss(logits, labels.to(logits))
        if self.kind == "set":
            return set_loss(logits, labels, self.c, weights)
        if self.prior is not None:
            logits = logits + logits.new_tensor(self.prior)
        return class_loss(logits, labels if labels.is_floating_point() else labels.long(), self.c, weights)

    def metrics(self, logits: Tensor, labels: Tensor) -> dict[str, float]:
        """The metrics of n images of sets or numbers, from logits [n, K] and labels [n, K] in the user's units."""
        if self.kind == "set":
            return set_metrics(logits.double(), labels)
        mean, std = (torch.tensor(each, dtype=torch.float64) for each in (self.outputs.mean, self.outputs.std))
        return number_metrics(logits.double() * std + mean, labels.double(), std)


def class_loss(logits: Tensor, labels: Tensor, c: LossConfig, weights: Tensor | None) -> Tensor:
    """The mean loss of classes: their cross entropy, or the binary one of each class. Shapes: logits [B, K], labels
    int64 [B], weights [K] -> [].
    """
    classes = logits.shape[1]
    if c.name == "binary":
        targets = labels if labels.is_floating_point() else F.one_hot(labels, classes)
        return binary(logits, smooth(targets.to(logits), c), weights=weights, g=c.focal).mean()
    if c.name not in ("", "cross_entropy"):
        raise ValueError(f"loss {c.name} is not of classes")
    if not c.focal:
        spread = c.label_smoothing * {"torch": 1, "fairseq": classes / max(classes - 1, 1)}[c.smoothing]
        return F.cross_entropy(logits, labels, weight=weights, label_smoothing=spread)
    losses = F.cross_entropy(logits, labels, reduction="none")
    losses = losses * (1 - (-losses).exp()) ** c.focal
    return losses.mean() if weights is None else (losses * weights[labels]).sum() / weights[labels].sum()


def smooth(targets: Tensor, c: LossConfig) -> Tensor:
    """Targets [B, K] of classes, each by itself."""
    e, others = c.label_smoothing, targets.shape[1] - 1
    if c.smoothing == "fairseq":
        return (1 - e) * targets + e / others * (1 - targets)
    if c.smoothing == "torch":
        return (1 - e) * targets + e / (others + 1)
    assert_never(c.smoothing)


def set_loss(logits: Tensor, labels: Tensor, c: LossConfig, weights: Tensor | None) -> Tensor:
    """The binary cross entropy [] of labels [B, K], a mean over those that are known; 0 where none is."""
    known = labels >= 0
    targets = labels.clamp(min=0).to(logits) * (1 - c.label_smoothing) + c.label_smoothing / 2
    losses = binary(logits, targets, positive=weights, g=c.focal)
    return losses[known].sum() / known.sum().clamp(min=1)


def binary(
    logits: Tensor, targets: Tensor, weights: Tensor | None = None, positive: Tensor | None = None, g: float = 0.0
) -> Tensor:
    """The binary cross entropy of each output, [B, K], as BCEWithLogitsLoss; with g that of sigmoid_focal_loss."""
    losses = F.binary_cross_entropy_with_logits(logits, targets, weights, pos_weight=positive, reduction="none")
    p = logits.sigmoid()
    return losses * (1 - p * targets - (1 - p) * (1 - targets)) ** g if g else losses


def set_metrics(logits: Tensor, labels: Tensor) -> dict[str, float]:
    """loss, subset_accuracy and map of logits [n, K] with labels [n, K]; -1 counts nowhere."""
    known, there = labels >= 0, labels == 1
    losses = F.binary_cross_entropy_with_logits(logits, there.to(logits), reduction="none")
    rows = known.any(1)
    right = (((logits > 0) == there) | ~known)[rows].all(1)
    each = [average_precision(logits[known[:, k], k], there[known[:, k], k]) for k in range(logits.shape[1])]
    some = [x for x in each if x is not None]
    return {
        "loss": losses[known].mean().item(),
        "subset_accuracy": right.double().mean().item(),
        "map": sum(some) / len(some) if some else float("nan"),
    }


def average_precision(scores: Tensor, there: Tensor) -> float | None:
    """The sum over thresholds of (R_i - R_i-1) P_i of scores [n]; None where no image has the label."""
    if not there.any():
        return None
    total, before, out = int(there.sum()), 0, 0.0
    for threshold in scores.unique().flip(0).tolist():
        said = scores >= threshold
        right = int((said & there).sum())
        out += (right - before) / total * right / int(said.sum())
        before = right
    return out


def number_metrics(predicted: Tensor, truth: Tensor, std: Tensor) -> dict[str, float]:
    """loss, of numbers over their std, and mae, rmse and r2: means over numbers; [n, K] each."""
    error = predicted - truth
    spread = ((truth - truth.mean(0)) ** 2).sum(0)
    return {
        "loss": ((error / std) ** 2).mean().item(),
        "mae": error.abs().mean().item(),
        "rmse": (error**2).mean(0).sqrt().mean().item(),
        "r2": (1 - (error**2).sum(0) / spread).mean().item(),
    }
