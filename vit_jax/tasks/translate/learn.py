"""Translation: sentences to sentences, word by word, trained with cross entropy."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, cast

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax import Array

from ...config.decoding import Decoding
from ...config.network import Teacher
from ...config.run import RunConfig
from ...data.base import Given
from ...data.other import Other
from ...data.texts.config import SentenceData
from ...data.texts.sentences import Sentences, Texts, open_other_pairs, open_sentences
from ...decode.base import Found
from ...decode.buckets import in_buckets, lengths_to
from ...errors import Field, UserError
from ...figures.attention import draw_cross_attention
from ...figures.kept import keep_attention
from ...models.build import described
from ...models.layers import merge, split
from ...models.transformer import Transformer
from ...models.transformer_config import TransformerConfig
from ...text.record import kept, made, opened
from ...text.tokenizer import Tokenizer
from ..base import Answer, Batch, Evaluation, Trained
from ..generated import Search, answer, changed, compiled, header, value
from ..next_token import mean_loss, shifted, sums, with_still_row
from ..worst import printed, worst, write_worst
from .score import corpus_scores, has_scorer

BATCH = 64  # sentences per batch of a prediction
CROSS = "decoder.cross_attention"  # the weights from the tokens of a translation to those of its source
SAMPLES = 4  # sample translations written at the end of a training


@dataclass(frozen=True)
class Translate:
    """The task `translate`. A batch is {"source": int32 [B, S], "target": int32 [B, T]}, ids padded by each side's pad.

    The decoder is given a begin and the target, and has to predict the target and an end (teacher forcing). Rows that
    are all padding, which fill up a batch, do not count.
    """

    label_smoothing: float  # as PyTorch counts it
    length: int  # most tokens of a translation, its end included
    source: Tokenizer
    target: Tokenizer
    decoding: Decoding = field(default_factory=Decoding)  # how translations are searched for
    bleu: str = "13a"  # the tokeniser of BLEU

    unit: ClassVar[str] = "sentences"
    frozen: ClassVar[dict[str, Any]] = {}
    frozen_in_outputs: ClassVar[bool] = False

    @classmethod
    def open_data(cls, run: RunConfig, given: Given | None = None, fetch: bool = True) -> Texts:
        """The sentences of a run, split; given ones are a list of (source, target). Raises UserError."""
        c, data = cast(Any, (run.model, run.data))  # of the types that the task's row names
        wanted = {name: getattr(c, name) for name in c.marked("from_data")}
        return open_sentences(data, one_vocabulary=c.one_embedding, wanted=wanted, seed=run.seed, given=given)

    @classmethod
    def from_run(cls, run: RunConfig, metadata: Mapping[str, Any]) -> Translate:
        """The task of a run, with the tokenizers of its data."""
        source, target = opened(metadata)
        smoothing = run.loss.spread_over_all(len(target))
        data = cast(SentenceData, run.data)
        return cls(smoothing, data.lengths[-1], source, target, bleu=data.bleu)

    @classmethod
    def metadata_beside(cls, run: RunConfig) -> dict[str, Any]:
        """The tokenizers beside weights, as a run keeps them."""
        c, data = cast(Any, (run.model, run.data))  # of the types that the task's row names
        return kept(*made(data.tokenizer, 0, (), (), c.one_embedding))

    def load_frozen(self, teacher: Teacher | None) -> Translate:
        """The task itself: its loss has no frozen arrays."""
        return self

    @property
    def selection_metric(self) -> tuple[str, int]:
        """Exact match; of parts of words, whose sentences are seldom the very same, BLEU."""
        return ("bleu" if self.target.files else "exact_match"), 1

    def mirrored(self) -> None:
        """None: sentences have no mirror image."""

    def probed(self) -> None:
        """None: sentences have no classes."""

    def searching(self, changes: Mapping[str, Any]) -> Translate:
        """The task with other settings of its search. Raises UserError."""
        return replace(self, decoding=changed(self.decoding, changes, self.length, self.target.unit))

    @property
    def search(self) -> Search:
        """What a search for translations has to know besides the network and the source."""
        return Search(self.target.ids, self.length, self.decoding)

    def prepare(self, batch: Batch, keys: Array, epoch: Array) -> Batch:
        """The batch, unchanged: there is no augmentation."""
        return batch

    def tokens(self, batch: Batch) -> tuple[int, int, int]:
        """(target tokens, ends included; places for ids on both sides; how many of these are padding)."""
        source, target = batch["source"] != self.source.ids.pad, batch["target"] != self.target.ids.pad
        real = int(source.sum() + target.sum())
        return int(target.sum() + source.any(1).sum()), source.size + target.size, source.size + target.size - real

    def denominator(self, batch: Batch) -> Array:
        """The number of target tokens of a batch, ends included and padding excluded: []."""
        return self.shifted(batch)[2].sum()

    def shifted(self, batch: Batch) -> tuple[Array, Array, Array]:
        """`next_token.shifted` of a batch."""
        return shifted(batch["target"], batch["source"], self.target.ids, self.source.ids.pad)

    def loss(
        self, model: Transformer, batch: Batch, keys: Array | None, denominator: Array
    ) -> tuple[Array, dict[str, Array]]:
        """(cross entropy [], {"accuracy": []}): sums over target tokens / `denominator`; `keys` [B] are for dropout.

        Where a target begins with padding, as Marian's does, the row of padding has no gradient: in public models it is
        zero, and CTranslate2 begins with zeros whatever it is.
        """
        ids = self.target.ids
        if ids.begin == ids.pad and model.target is not None and (table := model.target.embedding) is not None:
            table[...] = with_still_row(table[...], ids.pad)
        logits, labels, real = self.logits(model, batch, keys)
        return mean_loss(logits, labels, real, self.label_smoothing, denominator)

    def logits(self, model: Transformer, batch: Batch, keys: Array | None = None) -> tuple[Array, Array, Array]:
        """By teacher forcing: (logits [B, T+1, V], labels int32 [B, T+1], False where a label is padding [B, T+1])."""
        inputs, labels, real = self.shifted(batch)
        padding = batch["source"] != self.source.ids.pad
        return model(batch["source"], inputs, source_padding=padding, keys=keys), labels, real

    def outputs(self, model: Transformer, batch: Batch) -> dict[str, Array]:
        """For each example, with labels not smoothed.

        By teacher forcing: "loss" [B] (a sum over tokens), "tokens" [B] and "right" [B] (how many of them are predicted
        right). Searched for: "predicted" int32 [B, length], the best translation without its end.
        """
        found = translation_ids(model, batch["source"], self.search, self.source.ids.pad)
        return sums(*self.logits(model, batch)) | {"predicted": found}

    def attention(self, model: Transformer, source: Array) -> tuple[Array, Array]:
        """(translations int32 [B, length], cross-attention from their tokens, float [B, layers, H, length, S])."""
        found, values = captured(model, source, self.search, self.source.ids.pad, (CROSS,))
        return found, values[CROSS]

    def score(self, config: TransformerConfig, split: Sentences, out: dict[str, np.ndarray]) -> Evaluation:
        """The metrics of a split, from the outputs of all its examples: loss and accuracy per token, and exact match.

        Where any text can be said also BLEU and chrF of the texts, if sacrebleu is there, and the perplexity.

        Exact match is the share of translations that are right to the last word. If the reference has a word outside
        the vocabulary, the translation counts as wrong: <unk> is no word.
        """
        ids, width = self.target.ids, out["predicted"].shape[1] - split.target.shape[1]
        truth = np.pad(split.target, ((0, 0), (0, width)), constant_values=ids.pad)
        tokens = int(out["tokens"].sum())
        known = True if ids.unknown is None else truth != ids.unknown
        exact = ((out["predicted"] == truth) & known).all(1)
        metrics = {
            "loss": float(out["loss"].astype(np.float64).sum() / tokens),
            "accuracy": float(out["right"].sum() / tokens),
            "exact_match": float(exact.mean()),
        }
        if not self.target.open or not has_scorer():
            return Evaluation(metrics, out["predicted"])
        said = [self.target.decode(row) for row in out["predicted"]]
        references = split.references or [self.target.decode(row) for row in split.target]
        scores, notes = corpus_scores(said, references, self.target.cased, self.bleu)
        metrics |= {**scores, "perplexity": float(np.exp(metrics["loss"]))}
        return Evaluation(metrics, out["predicted"], notes=notes)

    @classmethod
    def open_other_data(
        cls, run: RunConfig, metadata: Mapping[str, Any], split: str, given: Given | None = None
    ) -> Other:
        """Pairs that were given in Python, or of another source, encoded by the network's tokenizers."""
        return Other(*open_other_pairs(cast(SentenceData, run.data), split, *opened(metadata), given))

    def table(
        self, split: Sentences, result: Evaluation, metadata: Mapping[str, Any]
    ) -> tuple[tuple[str, ...], Iterator[tuple[str | int, ...]]]:
        """A row for each sentence: the source, its translation by the data, and that by the network."""
        sides = ((self.source, split.source), (self.target, split.target), (self.target, result.predicted))
        decoded = ([side.decode(row) for row in rows] for side, rows in sides)
        return ("source", "true", "predicted"), zip(*decoded, strict=True)

    def predictor(self, network: Transformer, trained: Trained) -> Translator:
        """The network with its tokenizers."""
        return Translator(network, trained.run, self.source, self.target, trained.step, self)

    def draw_result(
        self, split: Sentences, result: Evaluation, metadata: Mapping[str, Any], folder: Path, caption: str
    ) -> tuple[str, ...]:
        """The worst translations, by chrF, as a file of text."""
        columns = zip(*self.table(split, result, metadata)[1], strict=True)
        source, truth, said = (list(map(str, column)) for column in columns)
        names, references = map(split.name, range(len(split))), [(text,) for text in split.references or truth]
        wrong = worst(names, references, said, self.target.cased)
        write_worst(folder / "worst.txt", wrong, [source[w.number] for w in wrong], caption, len(split))
        return printed(wrong, len(split), "worst.txt")

    def pictures(self, network: Transformer, data: Texts, plots: Path, samples: Path, caption: str) -> str:
        """A table of a few sentences with their translations, and the cross-attention: drawn of the first, kept of all.

        Returns the first sentence.
        """
        shown = data.splits.get("test") or data.splits["train"]
        source, target = (x[:SAMPLES] for x in (shown.source, shown.target))
        definition, parameters = split(network)
        attend = jax.jit(lambda parameters, source: self.attention(merge(definition, parameters), source))
        found, maps = map(np.asarray, attend(parameters, source))
        sides = ((data.source, source), (data.target, target), (data.target, found))
        sources, truth, translations = ([vocabulary.decode(row) for row in rows] for vocabulary, rows in sides)
        table = [("source", "truth", "translation"), *zip(sources, truth, translations, strict=True)]
        lines = "".join("\t".join(row) + "\n" for row in table)
        (samples / "sentences.tsv").write_text(lines, encoding="utf-8")
        examples = []
        for text, ids, said, weights in zip(sources, source, found, maps, strict=True):
            queries, keys = tokens_and_end(data.target, said), data.source.tokens(unpadded(data.source, ids))
            weights = weights[:, :, : len(queries), : len(keys)]
            examples.append({"title": text, "queries": queries, "keys": keys, "weights": weights})
        first, file = examples[0], plots / "cross-attention.png"
        draw_cross_attention(first["weights"], first["queries"], first["keys"], file, caption=caption)
        keep_attention(plots, caption, examples)
        return sources[0]


def tokens_and_end(target: Tokenizer, row: np.ndarray) -> list[str]:
    """The tokens of a translation, int [length], and its end, unless it fills the row without one."""
    return target.tokens([*target.ids.until_end(row), target.ids.end][: len(row)])


def unpadded(side: Tokenizer, row: np.ndarray) -> np.ndarray:
    """A row of ids without padding."""
    return row[row != side.ids.pad]


def searched(
    model: Transformer, source: Array, search: Search, pad: int, room: int = 0, keys: Array | None = None
) -> Found:
    """The translations of ids int32 [B, S] padded with `pad`, by `Search.found`. A row of padding has none."""
    padding = source != pad
    return search.found(model, model.encode(source, padding), padding, padding.any(1), room, keys)


def translation_ids(model: Transformer, source: Array, search: Search, pad: int) -> Array:
    """The best translations of ids int32 [B, S] padded with `pad`: int32 [B, length], without ends, padded."""
    return search.best(searched(model, source, search, pad))


def captured(
    model: Transformer, source: Array, search: Search, pad: int, names: tuple[str, ...]
) -> tuple[Array, dict[str, Array]]:
    """(the best translations int32 [B, length] of ids int32 [B, S] padded with `pad`, {name: inner value}).

    The values are those of an evaluation pass in which the decoder is given the translations.
    """
    said = translation_ids(model, source, search, pad)
    return said, model.capture(source, search.inputs(said), names, source_padding=source != pad)


@dataclass(frozen=True, repr=False)
class Translator:
    """A trained network with its tokenizers. `model(source, target)` calls the network on ids.

    The methods take texts: for a list of n they give n answers; for one text, one answer without the axis of the batch.
    Raises UserError where a text cannot be used.
    """

    model: Transformer
    run: RunConfig
    source: Tokenizer
    target: Tokenizer
    step: int
    task: Translate

    def __repr__(self) -> str:
        sizes = f"{len(self.source):,} source and {len(self.target):,} target ids"
        longest = f"texts of up to {self.task.length} {self.source.unit}"
        return f"Translator({described(self.run.model)}; {sizes}, {longest})"

    def inputs(self, texts: str | Iterable[str]) -> np.ndarray:
        """The texts as ids, int32 [B, S], padded to the greatest length of the run's data; [S] of one text."""
        several = self.encoded(texts)
        out = np.full((len(several), self.task.length), self.source.ids.pad, np.int32)
        for row, ids in zip(out, several, strict=True):
            row[: len(ids)] = ids
        return out[0] if isinstance(texts, str) else out

    def encoded(self, texts: str | Iterable[str]) -> list[np.ndarray]:
        """The ids of each text, int32 [N]."""
        if not isinstance(texts, Iterable):
            raise UserError("texts", f"{type(texts).__name__} is no text", "give a sentence, or a list of them")
        several = [texts] if isinstance(texts, str) else list(texts)
        if not several:
            raise UserError("texts", "none given", "give at least one sentence")
        longest, table_size, out = self.task.length, self.model.config.source_vocabulary, []
        for text in several:
            if not isinstance(text, str):
                raise UserError("texts", f"{type(text).__name__} is no text", "give a sentence, or a list of them")
            ids = self.source.encode(text)
            if len(ids) > longest:
                raise UserError(
                    f"the text {text[:40]!r} has {len(ids)} {self.source.unit}, "
                    f"more than the {longest} that this run was trained for",
                    remedy="shorten it",
                )
            if ids.max() >= table_size:
                raise UserError(
                    f"the text {text[:40]!r} has the id {ids.max()}, but the network has only {table_size} ids",
                    remedy="restore the vocabulary that it was trained with",
                )
            out.append(ids)
        return out

    def predict(self, texts: str | Iterable[str], batch: int = BATCH) -> Any:
        """The translation of each text, `batch` at a time: a list of texts, or of one text its translation.

        Where the search gives several (nbest), a list of (translation, score) takes the place of a translation.
        """
        if batch < 1:
            raise UserError(Field("batch"), f"is {batch}", "give a positive number")
        translations = self._predicted(self.encoded(texts), batch)
        return translations[0] if isinstance(texts, str) else translations

    def _predicted(self, several: list[np.ndarray], batch: int, first: int = 0) -> list[Any]:
        """The prediction for inputs of ids, of which the first one has the number `first`."""
        search, pad, d = self.task.search, self.source.ids.pad, self.task.decoding

        def run(ids: np.ndarray, numbers: np.ndarray, room: int) -> Found:
            keys = search.keys(jnp.asarray(numbers + first))
            return _searched(self.model, jnp.asarray(ids), search.seedless, pad, room, keys)

        found = in_buckets(run, several, pad, lengths_to(search.length), d.max_length or search.length, batch)
        return [value([*map(self.target.decode, each.tokens)], each.scores, d.nbest) for each in found]

    def translate(self, texts: str | Iterable[str]) -> Any:
        """The same as `predict`."""
        return self.predict(texts)

    def capture(self, texts: str | Iterable[str], names: Iterable[str]) -> dict[str, np.ndarray]:
        """Inner values of the network while it translates, {name: array [B, ...]}, or [...] of one text.

        The names are those of `Transformer.capture`: encoder.blocks.I, memory, decoder.cross_attention, ... The decoder
        is given its own translation, so that row t of its values is that of the t-th token. Raises ValueError on any
        other name.
        """
        ids = self.inputs(texts)
        wanted = (names,) if isinstance(names, str) else tuple(names)
        _, found = _captured(self.model, jnp.asarray(np.atleast_2d(ids)), self.task.search, self.source.ids.pad, wanted)
        return {name: np.asarray(found[name] if ids.ndim == 2 else found[name][0]) for name in wanted}

    def answer(self, inputs: Sequence[str], top: int = 3, batch: int = BATCH) -> Iterator[Answer]:
        """The translation of each sentence, `batch` at a time; `top` is not used. Raises UserError."""
        several = self.encoded(inputs)  # raises for any bad sentence before the first is translated
        for begin in range(0, len(inputs), batch):
            predicted = self._predicted(several[begin : begin + batch], batch, begin)
            yield from map(answer, inputs[begin : begin + batch], predicted)

    @property
    def header(self) -> tuple[str, ...]:
        """The names of the columns of `Answer.rows`."""
        return header("source", "translation", self.task.decoding.nbest)

    def attention(self, text: str) -> tuple[list[str], list[str], np.ndarray]:
        """(the S tokens of a sentence, the T tokens of its translation, the cross-attention float [L, H, T, S])."""
        ids = self.inputs([text])
        found, values = _captured(self.model, jnp.asarray(ids), self.task.search, self.source.ids.pad, (CROSS,))
        source = self.source.tokens(unpadded(self.source, ids[0]))
        target = tokens_and_end(self.target, np.asarray(found[0]))
        return source, target, np.asarray(values[CROSS])[0, :, :, : len(target), : len(source)]

    @property
    def metadata(self) -> dict[str, Any]:
        """What a run keeps of its tokenizers."""
        return kept(self.source, self.target)

    @property
    def layers(self) -> int:
        """The number of layers of the decoder."""
        return self.model.config.decoder_depth

    def draw_attention(self, inputs: Sequence[str], path: Path, layers: Sequence[int] = (), caption: str = "") -> None:
        """Draw the cross-attention of the first sentence's translation and write it to `path`. Raises UserError."""
        source, target, maps = self.attention(inputs[0])
        draw_cross_attention(maps, target, source, path, layers=layers, caption=caption)

    def write_features(
        self, inputs: Sequence[str], path: Path, blocks: Sequence[int] = (), norm: bool = True, batch: int = BATCH
    ) -> str:
        """Raise UserError: a sentence has no features as a whole."""
        raise UserError("features", "this network translates sentences, and only images have features", "leave it out")


_searched = compiled(searched, static=(2, 3, 4))
_captured = nnx.jit(captured, static_argnums=(2, 3, 4))
