"""What a task is: the loss that training lowers, and what evaluation wants to know of an example."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax import Array

from .augment import augment, normalise
from .config import AugmentConfig, RunConfig
from .layers import fold

Batch = dict[str, Any]


@dataclass(frozen=True)
class Classify:
    """Images to one of K classes, by cross entropy. A batch is {image: uint8 [B, h, w, C], label: int32 [B]}."""

    augment: AugmentConfig
    mean: tuple[float, ...]
    std: tuple[float, ...]
    label_smoothing: float

    def images(self, batch: Batch, dtype: Any) -> Array:
        """What the network sees in evaluation."""
        return normalise(batch["image"], self.mean, self.std, dtype)

    def loss(self, model: Any, batch: Batch, keys: Array) -> tuple[Array, dict[str, Array]]:
        """(mean loss, {accuracy}) of a training batch; keys [B] draw augmentation and dropout."""
        seen = {**batch, "image": augment(batch["image"], fold(keys, 0), self.augment)}
        logits = model(self.images(seen, model.dtype), keys=fold(keys, 1))  # [B, K]
        targets = jax.nn.one_hot(batch["label"], logits.shape[-1], dtype=logits.dtype)
        if self.label_smoothing:
            targets = optax.smooth_labels(targets, self.label_smoothing)
        loss = optax.softmax_cross_entropy(logits, targets).mean()
        return loss, {"accuracy": (logits.argmax(-1) == batch["label"]).mean()}

    def outputs(self, model: Any, batch: Batch) -> dict[str, Array]:
        """Per example: loss [B] (not smoothed), predicted class [B], its probability [B]."""
        logits = model(self.images(batch, model.dtype))
        loss = optax.softmax_cross_entropy_with_integer_labels(logits, batch["label"])
        probabilities = jax.nn.softmax(logits)
        return {"loss": loss, "predicted": jnp.argmax(logits, -1), "confidence": probabilities.max(-1)}


def task(run: RunConfig, mean: tuple[float, ...], std: tuple[float, ...]) -> Classify:
    """The task of a run whose images have this mean and std."""
    return Classify(run.augment, tuple(mean), tuple(std), run.loss.label_smoothing)
