"""A kind of output in one file: what a stranger writes to add levels that have an order, such as grades of a disease.

Output k says whether an image has level k at least, by a binary loss each: Cheng, Wang and Pollastri 2008, "A neural
network approach to ordinal regression" (arXiv 0704.1028). tests/test_ordinal.py names it by an entry point.
"""

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from vit_jax.kinds.base import Evaluation, named
from vit_jax.kinds.classes import Classes
from vit_jax.kinds.label_sets import binary_losses


@dataclass(frozen=True, repr=False)
class Graded(Evaluation):
    """The result on n images; `predicted` is int [n]."""

    probabilities: np.ndarray  # float [n, K]


@dataclass(frozen=True)
class Ordinal(Classes):
    """One of K levels in order, int32 [n]; in data, levels are as classes."""

    says = "levels in order, one an image"
    of_image = "one level an image"
    plural = "levels"
    each = ("level", "levels")
    losses = ("binary",)
    loss_fields = ()
    entries = ()
    main_metrics: ClassVar = {"level_error": "levels off"}
    header = ("file", "rank", "level", "probability")
    legend = "predicted level (probability)"
    calibrated = ()
    activation = "none"
    pictures = ""

    @property
    def selection_metric(self):
        return "level_error", -1

    @classmethod
    def of_columns(cls, rows, columns, texts):
        """Of a table: levels by their names, in the order of these."""
        found = super().of_columns(rows, columns, texts)
        return replace(found, outputs=replace(found.outputs, kind="ordinal"))

    def targets(self, labels):
        """1 of each level that an image has at least: [B] -> [B, K]."""
        import jax.numpy as jnp

        return (jnp.arange(len(self.names)) <= labels[:, None]).astype("float32")

    def loss(self, logits, batch, denominator=None):
        """The mean of the binary losses, and by how many levels predictions are off."""
        import jax.numpy as jnp

        targets = batch["target"] if "target" in batch else self.targets(batch["label"])
        off = jnp.abs(self.levels(logits) - (targets.sum(-1) - 1)).mean()
        return binary_losses(logits, targets.astype(logits.dtype)).mean(), {"level_error": off}

    def denominator(self, batch):
        return None

    def levels(self, logits):
        """Below the first output that says no, [..., K] -> [...]."""
        return (logits[..., 1:] > 0).astype("int32").cumprod(-1).sum(-1)

    def outcomes(self, logits, label):
        loss = binary_losses(logits, self.targets(label).astype(logits.dtype)).mean(-1)
        return {"logits": logits, "loss": loss}

    def score(self, split, out):
        predicted = self.levels(out["logits"])
        off = np.abs(predicted - split.labels)
        means = {"loss": out["loss"], "accuracy": off == 0, "level_error": off}
        metrics = {name: float(values.astype(np.float64).mean()) for name, values in means.items()}
        return Graded(metrics, predicted, self.values(out["logits"]))

    with_ranks = examined = score

    def at_chance(self, split, result):
        return ""

    def values(self, logits):
        """The probability of each level: of that it is at least there, less that of the next."""
        at_least = np.minimum.accumulate(1 / (1 + np.exp(-np.asarray(logits, np.float64))), -1)
        at_least[..., 0] = 1
        return at_least - np.append(at_least[..., 1:], np.zeros_like(at_least[..., :1]), -1)

    def top_k(self, logits, top):
        """The predicted level, then others by their probability."""
        probabilities, level = self.values(logits), int(self.levels(logits))
        order = [level, *(k for k in np.argsort(-probabilities, kind="stable") if k != level)]
        return named(self.names, probabilities, order[:top])

    def table(self, split, result):
        truth = zip(split.labels, result.predicted, strict=True)
        rows = ((split.name(i), self.names[true], self.names[said]) for i, (true, said) in enumerate(truth))
        return ("file", "true", "predicted"), rows

    def worst(self, split, result, most):
        return []
