"""What a task is: its kind of network, the loss that training lowers, and what evaluation wants to know.

This is the one place that tells classes of images from translations; step, loop and doors ask it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import Array

from . import transformer, vit
from .augment import augment, normalise
from .config import AugmentConfig, RunConfig, TransformerConfig, ViTConfig, flops
from .data import Sentences, Split
from .decode import greedy
from .layers import fold
from .text import BOS, EOS, PAD
from .transformer import Transformer

Batch = dict[str, Any]


@dataclass(frozen=True)
class Evaluation:
    """What a network did on a split of n examples."""

    metrics: dict[str, float]
    predicted: np.ndarray  # int [n] classes, or [n, L] ids


@dataclass(frozen=True)
class Classified(Evaluation):
    """The same, with K classes: metrics are loss, accuracy and {precision, recall, f1}_{macro, micro}."""

    confidence: np.ndarray  # float [n], the probability given to the predicted class
    confusion: np.ndarray  # int [K, K]: rows are the truth, columns the prediction
    per_class: dict[str, np.ndarray]  # precision, recall, f1: float [K]


@dataclass(frozen=True)
class Classify:
    """Images to one of K classes, by cross entropy. A batch is {image: uint8 [B, h, w, C], label: int32 [B]}."""

    augment: AugmentConfig
    mean: tuple[float, ...]
    std: tuple[float, ...]
    label_smoothing: float

    network: ClassVar[Any] = vit
    chosen: ClassVar[str] = "accuracy"  # the metric that chooses among checkpoints
    unit: ClassVar[str] = "images"

    @staticmethod
    def batches(run: RunConfig) -> dict[str, int]:
        """What a user calls the sizes of a run's batches: examples of each."""
        return {f"batch {run.batch}": run.batch}

    @staticmethod
    def describe(c: ViTConfig) -> tuple[str, str]:
        """A network in a few words, and what it costs."""
        return f"ViT {c.width} x {c.depth}, {c.heads} heads, {c.patches} patches", f"{flops(c) / 1e6:,.1f} MFLOP an image"

    def images(self, batch: Batch, dtype: Any) -> Array:
        """What the network sees in evaluation."""
        return normalise(batch["image"], self.mean, self.std, dtype)

    def size(self, batch: Batch) -> None:
        """A batch is as large as it has examples, so that parts of one size are alike."""

    def loss(self, model: Any, batch: Batch, keys: Array, size: None = None) -> tuple[Array, dict[str, Array]]:
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

    def score(self, model: ViTConfig, split: Split, out: dict[str, np.ndarray]) -> Classified:
        """Metrics of a split from the outputs of all its examples."""
        return score(split.labels, out["predicted"], out["confidence"], out["loss"], model.classes)


def score(truth: np.ndarray, predicted: np.ndarray, confidence: np.ndarray, loss: np.ndarray, classes: int) -> Classified:
    """Metrics of n predictions; truth and predicted are int [n], confidence and loss float [n].

    Precision, recall and F1 are counted over the split, not averaged over batches; a class that
    is never predicted has precision 0.
    """
    from sklearn.metrics import confusion_matrix, precision_recall_fscore_support

    labels, names = np.arange(classes), ("precision", "recall", "f1")
    metrics = {"loss": float(loss.astype(np.float64).mean()), "accuracy": float((predicted == truth).mean())}
    for average in ("macro", "micro"):
        values = precision_recall_fscore_support(truth, predicted, labels=labels, average=average, zero_division=0)
        metrics |= {f"{name}_{average}": float(v) for name, v in zip(names, values, strict=False)}
    each = precision_recall_fscore_support(truth, predicted, labels=labels, average=None, zero_division=0)
    return Classified(
        metrics, predicted, confidence, confusion_matrix(truth, predicted, labels=labels), dict(zip(names, each, strict=False))
    )


@dataclass(frozen=True)
class Translate:
    """Sentences to sentences, word by word, by cross entropy. A batch is {source: int32 [B, S], target: int32 [B, T]}, padded with 0.

    The decoder reads the target after a begin and says it before an end. Rows that are all padding, which
    fill a batch up, count for nothing.
    """

    label_smoothing: float
    length: int  # the most words of a translation, its end included

    network: ClassVar[Any] = transformer
    chosen: ClassVar[str] = "exact_match"
    unit: ClassVar[str] = "sentences"

    @staticmethod
    def batches(run: RunConfig) -> dict[str, int]:
        """What a user calls the sizes of a run's batches: examples of each."""
        return {f"data.tokens {run.data.tokens} // length {length}": run.data.tokens // length for length in run.data.lengths}

    @staticmethod
    def describe(c: TransformerConfig) -> tuple[str, str]:
        """A network in a few words, and how much it can say."""
        return f"Transformer {c.width} x {c.encoder_depth}+{c.decoder_depth}, {c.heads} heads", f"{c.outputs:,} ids to say"

    def size(self, batch: Batch) -> Array:
        """The real tokens of a batch: words and ends. A loss is a mean over those of the whole batch, however that is cut."""
        return shifted(batch["target"], batch["source"])[2].sum()

    def loss(self, model: Transformer, batch: Batch, keys: Array | None, size: Array) -> tuple[Array, dict[str, Array]]:
        """(loss, {accuracy}), sums over real tokens divided by `size`; keys [B] draw dropout."""
        logits, labels, real = self.logits(model, batch, keys)
        targets = jax.nn.one_hot(labels, logits.shape[-1], dtype=logits.dtype)  # [B, T+1, V]
        if self.label_smoothing:
            targets = optax.smooth_labels(targets, self.label_smoothing)
        losses = optax.softmax_cross_entropy(logits, targets)
        right = logits.argmax(-1) == labels
        return jnp.where(real, losses, 0).sum() / size, {"accuracy": (right & real).sum() / size}

    def logits(self, model: Transformer, batch: Batch, keys: Array | None = None) -> tuple[Array, Array, Array]:
        """(logits [B, T+1, V], labels [B, T+1], which of them are real), each word seen by those after it."""
        read, labels, real = shifted(batch["target"], batch["source"])
        return model(batch["source"], read, source_padding=batch["source"] != PAD, keys=keys), labels, real

    def outputs(self, model: Transformer, batch: Batch) -> dict[str, Array]:
        """Per example: summed loss [B] (not smoothed), tokens [B] and those said right [B] given the ones before; what is said unaided [B, L]."""
        logits, labels, real = self.logits(model, batch)
        losses = optax.softmax_cross_entropy_with_integer_labels(logits, labels)
        right = (logits.argmax(-1) == labels) & real
        return {
            "loss": jnp.where(real, losses, 0).sum(-1), "tokens": real.sum(-1), "right": right.sum(-1),
            "predicted": translate(model, batch["source"], self.length),
        }  # fmt: skip

    def attention(self, model: Transformer, source: Array) -> tuple[Array, Array]:
        """(translations int32 [B, L], what the decoder looked at for each of their words, float [B, layers, H, L, S])."""
        found = translate(model, source, self.length)
        read = jnp.concatenate([jnp.full_like(found[:, :1], BOS), found[:, :-1]], 1)
        name = "decoder.cross_attention"
        return found, model.capture(source, read, [name], source_padding=source != PAD)[name]

    def score(self, model: TransformerConfig, split: Sentences, out: dict[str, np.ndarray]) -> Evaluation:
        """Metrics of a split from the outputs of all its examples: exact match is the share of translations that are right to the last word."""
        truth = np.pad(split.target, ((0, 0), (0, out["predicted"].shape[1] - split.target.shape[1])))
        tokens = int(out["tokens"].sum())
        metrics = {
            "loss": float(out["loss"].astype(np.float64).sum() / tokens),
            "accuracy": float(out["right"].sum() / tokens),
            "exact_match": float((out["predicted"] == truth).all(1).mean()),
        }
        return Evaluation(metrics, out["predicted"])


def translate(model: Transformer, source: Array, length: int) -> Array:
    """Sources int32 [B, S] to the words of their likeliest translations, int32 [B, length], padded with 0."""
    padding = source != PAD
    cache = model.init_cache(model.encode(source, padding), padding, length)

    def step(tokens: Array, cache: Any) -> tuple[Array, Any]:
        logits, cache = model.decode_step(tokens, cache)
        return logits.at[:, jnp.array([PAD, BOS])].set(-jnp.inf), cache  # neither is ever said

    return greedy(step, cache, jnp.full(source.shape[:1], BOS, jnp.int32), end=EOS, length=length, pad=PAD)


def shifted(target: Array, source: Array) -> tuple[Array, Array, Array]:
    """What the decoder reads, what it is to say, and where that is real: [B, T+1] each, of words [B, T].

    A row whose source is all padding has nothing real.
    """
    begin, blank = jnp.full_like(target[:, :1], BOS), jnp.full_like(target[:, :1], PAD)
    padded = jnp.concatenate([target, blank], 1)
    count = (target != PAD).sum(-1, keepdims=True)
    places = jnp.arange(padded.shape[1])
    labels = jnp.where(places == count, EOS, padded)
    return jnp.concatenate([begin, target], 1), labels, (places <= count) & (source != PAD).any(-1, keepdims=True)


Task = Classify | Translate


def task(run: RunConfig, mean: tuple[float, ...] = (), std: tuple[float, ...] = ()) -> Task:
    """The task of a run; mean and std are those of its images, if it has any."""
    if isinstance(run.model, TransformerConfig):
        return Translate(run.loss.label_smoothing, run.data.lengths[-1])
    return Classify(run.augment, tuple(mean), tuple(std), run.loss.label_smoothing)
