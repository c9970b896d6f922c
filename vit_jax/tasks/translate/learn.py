"""Translation: sentences to sentences, word by word, trained with cross entropy."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import jax.numpy as jnp
import numpy as np
from jax import Array

from ...config.run import RunConfig
from ...data.base import GivenData, Other
from ...data.texts.open import open_other_pairs, open_sentences
from ...data.texts.sentences import Sentences, Texts
from ...errors import require
from ...figures.attention import draw_cross_attention
from ...figures.parts import Attention, Part
from ...files.terminal import printable
from ...models.transformer import Transformer
from ...models.transformer_config import TransformerConfig
from ...scores.rouge import rouge
from ...text.record import open_tokenizers
from ...text.spoken import prefix_of
from ...text.tokenizer import Tokenizer
from ..base import Batch, Evaluation
from ..can import Abilities, Draws, MeasuresOthers, Tabulates
from ..generated import CountsTokens, Generation, SearchesTexts, tokens_and_end
from ..next_token import freeze_zero_row, mean_loss, shift_target, sums
from ..predictor import Predictor
from ..worst import summarise_worst, worst, write_worst
from .spec import parts
from .use import CROSS, Translator, captured_ids, strip_padding, translation_ids

SAMPLES = 4


class CountsPairs(CountsTokens):
    """Tokens and padding of sentences and their translations."""

    def tokens(self, batch: Batch) -> tuple[int, int, int]:
        """(target tokens, ends included; places for ids on both sides; how many of these are padding)."""
        task = self.task
        source, target = batch["source"] != task.source.ids.pad, batch["target"] != task.target.ids.pad
        real = int(source.sum() + target.sum())
        return int(target.sum() + source.any(1).sum()), source.size + target.size, source.size + target.size - real


class MeasuresPairs(MeasuresOthers):
    """Other pairs of sentences."""

    def open_data(
        self, run: RunConfig, metadata: Mapping[str, Any], split: str, given: GivenData | None = None
    ) -> Other:
        """Pairs that were given in Python, or of another source, encoded by the network's tokenizers."""
        return open_other_pairs(parts(run)[1], split, *open_tokenizers(metadata), given)


class TabulatesPairs(Tabulates):
    """A row for each sentence."""

    def predicted(
        self, split: Sentences, result: Evaluation, metadata: Mapping[str, Any]
    ) -> tuple[tuple[str, ...], Iterator[tuple[str | int, ...]]]:
        """A row for each sentence: the source, its translation by the data, and that by the network."""
        sides = (
            (self.task.source, split.source),
            (self.task.target, split.target),
            (self.task.target, result.predicted),
        )
        decoded = ([side.decode(row) for row in rows] for side, rows in sides)
        return ("source", "true", "predicted"), zip(*decoded, strict=True)


class DrawsTranslations(Draws):
    """Cross-attention, and the worst translations."""

    def result(
        self, split: Sentences, result: Evaluation, metadata: Mapping[str, Any], folder: Path, caption: str
    ) -> tuple[tuple[str, ...], Sequence[Part]]:
        """The worst translations, by chrF, as a file of text."""
        columns = zip(*self.task.able(Tabulates).predicted(split, result, metadata)[1], strict=True)
        source, truth, said = (list(map(str, column)) for column in columns)
        names, references = map(split.name, range(len(split))), [(text,) for text in split.references or truth]
        wrong = worst(names, references, said, self.task.target.cased)
        shown = write_worst(folder / "worst.txt", wrong, [source[w.number] for w in wrong], caption, len(split))
        return summarise_worst(wrong, len(split), "worst.txt"), [shown]

    def network(
        self, network: Transformer, data: Texts, plots: Path, samples: Path, caption: str
    ) -> tuple[str, Sequence[Part]]:
        """Write a table of a few sentences with their translations, and the cross-attention, drawn of the first."""
        shown = data.splits.get("test") or data.splits["train"]
        few = shown.subset(np.arange(min(SAMPLES, len(shown))))  # all of a split may be larger than memory
        source, target = few.source, few.target
        said, values = captured_ids(network, jnp.asarray(source), self.task.search, self.task.source.ids.pad, (CROSS,))
        found, maps = np.asarray(said), np.asarray(values[CROSS])  # [B, length], [B, L, H, length, S]
        sides = ((data.source, source), (data.target, target), (data.target, found))
        sources, truth, translations = ([vocabulary.decode(row) for row in rows] for vocabulary, rows in sides)
        table = [("source", "truth", "translation"), *zip(sources, truth, translations, strict=True)]
        lines = "".join("\t".join(map(printable, row)) + "\n" for row in table)
        (samples / "sentences.tsv").write_text(lines, encoding="utf-8")
        examples = []
        for text, ids, said, weights in zip(sources, source, found, maps, strict=True):
            queries, keys = tokens_and_end(data.target, said), data.source.tokens(strip_padding(data.source, ids))
            weights = weights[:, :, : len(queries), : len(keys)]
            examples.append({"title": text, "queries": queries, "keys": keys, "weights": weights})
        first, file = examples[0], plots / "cross-attention.png"
        draw_cross_attention(first["weights"], first["queries"], first["keys"], file, caption=caption)
        read_first = (
            self.task.source.decode(self.task.source.encode(self.task.prefix)).strip() if self.task.prefix else ""
        )
        return sources[0].removeprefix(read_first).strip(), [Attention(caption, examples)]


@dataclass(frozen=True)
class Translate(Generation):
    """The task `translate`. A batch is {"source": int32 [B, S], "target": int32 [B, T]}, ids padded by each side's pad.

    The decoder is given a begin and the target, and has to predict the target and an end (teacher forcing). Rows that
    are all padding, which fill up a batch, do not count.
    """

    source: Tokenizer
    bleu: str = "13a"  # the tokeniser of BLEU
    prefix: str = ""  # text before every source

    predictor: ClassVar[type[Predictor]] = Translator
    can: ClassVar[Abilities] = (CountsPairs, SearchesTexts, MeasuresPairs, TabulatesPairs, DrawsTranslations)

    @classmethod
    def open_data(cls, run: RunConfig, given: GivenData | None = None, fetch: bool = True) -> Texts:
        c, data = parts(run)
        wanted = {name: getattr(c, name) for name in c.marked("from_data")}
        return open_sentences(data, one_vocabulary=c.one_embedding, wanted=wanted, seed=run.seed, given=given)

    @classmethod
    def from_run(cls, run: RunConfig, metadata: Mapping[str, Any]) -> Translate:
        source, target = open_tokenizers(metadata)
        smoothing, (model, data) = run.loss.spread_over_all(len(target)), parts(run)
        prefix = prefix_of(data.prefix, data.task, source.files)
        options: dict[str, Any] = {"bleu": data.bleu, "prefix": prefix, "any_length": model.any_length}
        return cls(smoothing, data.lengths[-1], target, source, **options)

    @property
    def selection_metric(self) -> tuple[str, int]:
        """Exact match; of parts of words, whose sentences are seldom the very same, BLEU."""
        return ("bleu" if self.target.files else "exact_match"), 1

    def shifted(self, batch: Batch) -> tuple[Array, Array, Array]:
        return shift_target(batch["target"], batch["source"], self.target.ids, self.source.ids.pad)

    def loss(
        self, model: Transformer, batch: Batch, keys: Array | None, denominator: Array
    ) -> tuple[Array, dict[str, Array]]:
        """The cross entropy of target tokens: keys [B] -> (loss [], {"accuracy": []}).

        Where a target begins with padding, whose row is zero, as in public models of Marian, the row stays zero:
        CTranslate2 begins with zeros whatever it is. That of T5 is another, and learns.
        """
        ids = self.target.ids
        if ids.begin == ids.pad and model.target is not None and (table := model.target.embedding) is not None:
            table[...] = freeze_zero_row(table[...], ids.pad)
        logits, labels, real = self.logits(model, batch, keys)
        return mean_loss(logits, labels, real, self.label_smoothing, denominator)

    def logits(self, model: Transformer, batch: Batch, keys: Array | None = None) -> tuple[Array, Array, Array]:
        """By teacher forcing: (logits [B, T+1, V], labels int32 [B, T+1], False where a label is padding [B, T+1])."""
        inputs, labels, real = self.shifted(batch)
        padding = batch["source"] != self.source.ids.pad
        return model(batch["source"], inputs, source_padding=padding, keys=keys), labels, real

    def outputs(self, model: Transformer, batch: Batch) -> dict[str, Array]:
        """What `score` needs of each example, with labels not smoothed -> [B]."""
        return sums(*self.logits(model, batch)) | {"predicted": self.texts(model, batch)}

    def texts(self, model: Transformer, batch: Batch) -> Array:
        return translation_ids(model, batch["source"], self.search, self.source.ids.pad)

    def score(self, config: TransformerConfig, split: Sentences, out: dict[str, np.ndarray]) -> Evaluation:
        """The metrics of a split: loss and accuracy per token, and exact match. Shapes: out [n, ...].

        Exact match is the share of translations that are right to the last word, as `said_exactly` counts them. Where
        any text can be said also BLEU and chrF of the texts, if sacrebleu is there, and the perplexity.
        """
        references = split.references if self.target.open else ()
        metrics = self.token_scores(split, out, references)
        if not self.target.open or importlib.util.find_spec("sacrebleu") is None:
            return Evaluation(metrics, out["predicted"])
        said = [self.target.decode(row) for row in out["predicted"]]
        references = references or [self.target.decode(row) for row in split.target]
        scores, notes = corpus_scores(said, references, self.target.cased, self.bleu)
        metrics |= {**scores, "perplexity": float(np.exp(metrics["loss"]))}
        notes += (self.target.remark,) if self.target.remark else ()
        return Evaluation(metrics, out["predicted"], notes=notes)


def corpus_scores(
    said: Sequence[str], references: Sequence[str], cased: bool, words: str = "13a"
) -> tuple[dict[str, float], tuple[str, ...]]:
    """BLEU and chrF of translations.

    BLEU: Papineni et al. 2002, as defined by Post 2018 (arXiv 1804.08771); chrF: Popović 2015.
    """
    with require("sacrebleu"):
        from sacrebleu.metrics import BLEU, CHRF
    lower = not cased or words == "none"
    # force: sacrebleu would warn of tokens, which it takes for a mistake.
    metrics = {"bleu": BLEU(lowercase=lower, tokenize=words, force=True), "chrf": CHRF(lowercase=lower)}
    metrics |= {} if lower else {"bleu_lower": BLEU(lowercase=True, tokenize=words, force=True)}
    scores = {name: metric.corpus_score(list(said), [list(references)]).score for name, metric in metrics.items()}
    spelled = {"bleu": "BLEU", "chrf": "chrF", "bleu_lower": "BLEU in lower case"}
    signatures = (f"{spelled[name]} is {metric.get_signature()}" for name, metric in metrics.items())
    return scores | rouge(said, references), (*signatures, "ROUGE is F1, of words of a-z and 0-9, without stemming")
