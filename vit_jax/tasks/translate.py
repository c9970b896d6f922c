"""Sentences to sentences, word by word, by cross entropy."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from jax import Array

from ..config import RunConfig, TransformerConfig, network_of
from ..data import Sentences, Texts, open_sentences
from ..decode import greedy
from ..errors import UserError
from ..layers import merge, split
from ..report import plots
from ..runs import Run
from ..text import BOS, EOS, PAD, UNKNOWN, Vocabulary, words
from ..transformer import Transformer
from .contract import Answer, Batch, Evaluation, Load, Record

BATCH = 64  # sentences translated at a time
SAMPLES = 4


@dataclass(frozen=True)
class Translate:
    """The task. A batch is {source: int32 [B, S], target: int32 [B, T]}, padded with 0.

    The decoder reads the target after a begin and says it before an end. Rows that are all padding, which
    fill a batch up, count for nothing.
    """

    label_smoothing: float
    length: int  # the most words of a translation, its end included
    unknown: int = -1  # the target's id for words that it does not know; -1: it knows all

    unit: ClassVar[str] = "sentences"
    chosen: ClassVar[tuple[str, int]] = ("exact_match", 1)
    frozen: ClassVar[dict[str, Any]] = {}

    @classmethod
    def open(cls, run: RunConfig) -> Texts:
        """The sentences of a run. Raises UserError."""
        c: Any = run.model
        wanted = {name: getattr(c, name) for name in network_of(c).from_data}
        return open_sentences(run.data, one_vocabulary=c.one_embedding, wanted=wanted, seed=run.seed)  # type: ignore[arg-type]  # its row's own class

    @classmethod
    def of(cls, run: RunConfig, kept: Mapping[str, Any]) -> Translate:
        """The task of a run with the words that it keeps."""
        target = Vocabulary(kept["vocabulary"]["target"])
        return cls(run.loss.label_smoothing, run.data.lengths[-1], UNKNOWN if target.open else -1)  # type: ignore[attr-defined]  # its row's own class

    def bring(self, load: Load) -> Translate:
        """The task as it is: nothing takes part in its loss but the network."""
        return self

    def prepare(self, batch: Batch, keys: Array) -> Batch:
        """The batch as it is."""
        return batch

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

    def score(self, config: TransformerConfig, split: Sentences, out: dict[str, np.ndarray]) -> Evaluation:
        """Metrics of a split from the outputs of all its examples.

        Exact match is the share of translations that are right to the last word; one that is to hold a word outside the
        vocabulary is wrong, because what stands for it is no word.
        """
        truth = np.pad(split.target, ((0, 0), (0, out["predicted"].shape[1] - split.target.shape[1])))
        tokens = int(out["tokens"].sum())
        exact = ((out["predicted"] == truth) & (truth != self.unknown)).all(1)
        metrics = {
            "loss": float(out["loss"].astype(np.float64).sum() / tokens),
            "accuracy": float(out["right"].sum() / tokens),
            "exact_match": float(exact.mean()),
        }
        return Evaluation(metrics, out["predicted"])

    def ready(self, network: Transformer, record: Record) -> Translator:
        """A trained network for use."""
        source, target = (Vocabulary(record.kept["vocabulary"][side]) for side in ("source", "target"))
        return Translator(network, record.run, source, target, record.step, self)

    def pictures(self, network: Transformer, data: Texts, result: Evaluation | None, folder: Run) -> str:
        """A few sentences with their translations, and where the decoder looked in the first."""
        some = data.splits.get("test") or data.splits["train"]
        source, target = (x[:SAMPLES] for x in (some.source, some.target))
        definition, parameters = split(network)
        attend = jax.jit(lambda parameters, source: self.attention(merge(definition, parameters), source))
        found, maps = map(np.asarray, attend(parameters, source))
        sides = ((data.source, source), (data.target, target), (data.target, found))
        asked, truth, said = ([vocabulary.decode(row) for row in rows] for vocabulary, rows in sides)
        lines = ["\t".join(row) for row in [("source", "truth", "translation"), *zip(asked, truth, said, strict=True)]]
        (folder.samples / "sentences.tsv").write_text("\n".join(lines) + "\n", encoding="utf-8")
        rows, columns = ended(said[0], found.shape[1]), asked[0].split()
        plots.draw_cross_attention(
            maps[0, :, :, : len(rows), : len(columns)], rows, columns, folder.plots / "cross-attention.png"
        )
        return asked[0]


def ended(sentence: str, length: int) -> list[str]:
    """The words of a translation of at most so many, and its end, where it has one."""
    return [*sentence.split(), "<eos>"][:length]


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


@dataclass(frozen=True)
class Translator:
    """A trained network, ready for sentences. `model(source, target)` is the network itself, on ids."""

    model: Transformer
    run: RunConfig
    source: Vocabulary
    target: Vocabulary
    step: int
    task: Translate

    header: ClassVar[tuple[str, ...]] = ("source", "translation")

    def ids(self, texts: Sequence[str]) -> np.ndarray:
        """Sentences as one batch: int32 [B, S], padded with 0 to the run's greatest length. Raises UserError."""
        if isinstance(texts, str) or not len(texts):
            raise UserError("texts: none given; give a list of at least one sentence")
        longest, known = self.task.length, self.model.config.source_vocabulary
        out = np.zeros((len(texts), longest), np.int32)
        for row, text in zip(out, texts, strict=True):
            ids = self.source.encode(text)
            if len(ids) > longest:
                raise UserError(
                    f"the text {text[:40]!r} has {len(ids)} words, more than the {longest} that this run was trained for: shorten it"
                )
            if ids.max() >= known:
                raise UserError(
                    f"the text {text[:40]!r} has the id {ids.max()}, but the network knows {known}: give it the vocabulary that it was trained with"
                )
            row[: len(ids)] = ids
        return out

    def translate(self, texts: Sequence[str]) -> list[str]:
        """The likeliest translation of each sentence, word by word. Raises UserError."""
        return [
            self.target.decode(row)
            for row in np.asarray(_translate(self.model, jnp.asarray(self.ids(texts)), self.task.length))
        ]

    def answer(self, inputs: Sequence[str], top: int = 3) -> Iterator[Answer]:
        """The translation of each sentence; `top` plays no part. Raises UserError."""
        self.ids(inputs)  # all are known to be good before the first is translated
        for begin in range(0, len(inputs), BATCH):
            texts = list(inputs[begin : begin + BATCH])
            for text, translation in zip(texts, self.translate(texts), strict=True):
                yield Answer(text, translation, f"{text}: {translation}", [(text, translation)])

    def attention(self, text: str) -> tuple[list[str], list[str], np.ndarray]:
        """A sentence's words, those of its translation with its end (if it has one), and which of the former each of the latter looked at: float [L, H, T, S]."""
        found, maps = self.task.attention(self.model, jnp.asarray(self.ids([text])))
        asked, said = words(text), ended(self.target.decode(np.asarray(found[0])), found.shape[1])
        return asked, said, np.asarray(maps)[0, :, :, : len(said), : len(asked)]

    def draw_attention(self, inputs: Sequence[str], path: Path) -> None:
        """What each word of the first sentence's translation looked at, as one PNG. Raises UserError."""
        asked, said, maps = self.attention(inputs[0])
        plots.draw_cross_attention(maps, said, asked, path)


_translate = nnx.jit(translate, static_argnums=2)
