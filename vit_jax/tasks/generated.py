"""What tasks that generate text have in common: their targets, their search, its answers as people read them."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, ClassVar, Self

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from ..config.decoding import Decoding, check_decoding
from ..config.hints import hint, names_of, nearest
from ..decode.search import Found, generate
from ..errors import Field, UserError
from ..files.terminal import printable
from ..machine import backend
from ..machine.numerics import random_key, with_fixed_settings
from ..models.state import merge, split_model
from ..text.tokenizer import Ids, Tokenizer
from .base import Batch, Task
from .can import Abilities, Counts, Searches
from .capability import EXPLAIN_STEPS
from .predictor import BATCH, Answer, Predictor, batches


@dataclass(frozen=True)
class Search:
    """What a search has to know besides the network and its memory."""

    ids: Ids
    length: int  # most tokens of a text, its end included
    decoding: Decoding

    def found(
        self,
        model: Any,
        memory: Array,
        padding: Array | None,
        rows: Array | None = None,
        room: int = 0,
        keys: Array | None = None,
    ) -> Found:
        """The texts for a memory: memory [B, S, D], padding bool [B, S], rows bool [B], keys [B]."""
        if self.decoding.sample and keys is None:
            keys = self.keys(jnp.arange(len(memory)))
        # Little room is not the greatest length: what needs more is not complete.
        settings = replace(self.decoding, max_length=self.decoding.max_length or self.length)
        return generate(model, memory, padding, self.ids, settings, room or self.length, rows, keys)

    def keys(self, numbers: Array) -> Array | None:
        """The PRNG keys of inputs by their numbers, int32 [B]; None if nothing is drawn."""
        one = random_key(self.decoding.seed)
        return jax.vmap(jax.random.fold_in, (None, 0))(one, numbers) if self.decoding.sample else None

    @property
    def seedless(self) -> Search:
        """The same for a compiled function that is given keys: another seed is not another program."""
        return replace(self, decoding=replace(self.decoding, seed=0))

    def best(self, found: Found) -> Array:
        """The best text of each input, int32 [B, length], without its end, padded."""
        ids = found.without_ends(self.ids)[:, 0]
        return jnp.pad(ids, ((0, 0), (0, self.length - ids.shape[1])), constant_values=self.ids.pad)

    def inputs(self, texts: Array) -> Array:
        """What a decoder reads to say texts, int32 [B, T]: a begin, and all but their last token."""
        return jnp.concatenate([jnp.full_like(texts[:, :1], self.ids.begin), texts[:, :-1]], 1)


def said_exactly(
    tokenizer: Tokenizer, predicted: np.ndarray, truth: np.ndarray, references: Sequence[str]
) -> np.ndarray:
    """Which texts are right to the last word: bool [n]. Shapes: predicted ids [n, length], truth [n, at most length].

    A reference that the tokenizer cannot say as it is written (a word is unknown, a letter is left out, its end is cut)
    is never met, whatever its ids are.
    """
    width, unknown = predicted.shape[1] - truth.shape[1], tokenizer.ids.unknown
    truth = np.pad(truth, ((0, 0), (0, width)), constant_values=tokenizer.ids.pad)
    exact: np.ndarray = ((predicted == truth) & (truth != (-1 if unknown is None else unknown))).all(1)
    for i in np.flatnonzero(exact).tolist() if references else ():
        exact[i] = tokenizer.compared(tokenizer.decode(predicted[i])) == tokenizer.compared(references[i])
    return exact


class CountsTokens(Counts):
    """Target tokens count, ends included and padding excluded."""

    def denominator(self, batch: Batch) -> Array:
        """Their number in a batch: []."""
        return self.task.shifted(batch)[2].sum()  # type: ignore[no-any-return]


class SearchesTexts(Searches):
    """A search with settings for each text."""

    def with_settings(self, changes: Mapping[str, Any]) -> Any:
        task = self.task
        decoding = check_decoding(replace(task.decoding, **{**changes, **_sequences(changes)}))
        for name in ("min_length", "max_length"):
            if not task.any_length and 0 < task.length < getattr(decoding, name):
                most = f"texts of this run have at most {task.length} {task.target.unit}, their end among them"
                raise UserError(Field(name), f"is {getattr(decoding, name)}, but {most}", "lower it")
        return replace(task, decoding=decoding, length=max(task.length, decoding.min_length, decoding.max_length))


@dataclass(frozen=True)
class Generation(Task, abstract=True):
    """A task whose network writes texts. Its batches have "target", int32 [B, T], padded.

    The decoder is given a begin and the target, and has to predict the target and an end (teacher forcing).
    """

    label_smoothing: float  # as PyTorch counts it
    length: int  # most tokens of a text, its end included
    target: Tokenizer
    decoding: Decoding = field(default_factory=Decoding, kw_only=True)
    any_length: bool = field(default=False, kw_only=True)  # whether texts may be longer where a search asks for it

    can: ClassVar[Abilities] = (CountsTokens, SearchesTexts)

    def shifted(self, batch: Batch) -> tuple[Array, Array, Array]:
        """`next_token.shift_target` of a batch: the decoder's inputs, the labels, and which labels are real."""
        raise NotImplementedError

    def texts(self, model: Any, batch: Batch) -> Array:
        """The best text of each example by the search, int32 [B, length], without its end, padded."""
        raise NotImplementedError

    @property
    def search(self) -> Search:
        """What a search for texts has to know besides the network and its inputs."""
        return Search(self.target.ids, self.length, self.decoding)

    def token_scores(self, split: Any, out: Mapping[str, np.ndarray], references: Sequence[str]) -> dict[str, float]:
        """The metrics of a split that are counted in tokens: loss and accuracy; and exact match. Shapes: split int [n,
        T], out [n, ...].
        """
        tokens = int(out["tokens"].sum())
        return {
            "loss": float(out["loss"].astype(np.float64).sum() / tokens),
            "accuracy": float(out["right"].sum() / tokens),
            "exact_match": float(said_exactly(self.target, out["predicted"], split.target, references).mean()),
        }


class Writer(Predictor):
    """A trained network that writes a text for each input, one or several."""

    header_names: ClassVar[tuple[str, str]]  # what inputs and texts are called in `header`

    @property
    def header(self) -> tuple[str, ...]:
        given, text = self.header_names
        return (given, text) if self.task.decoding.nbest == 1 else (given, "rank", text, "score")

    def write(self, several: Any, first: int = 0) -> list[Any]:
        """The text of each input; where the search gives several (nbest), [(text, score), ...]."""
        raise NotImplementedError

    def searching(self, search: Mapping[str, Any]) -> Self:
        """The same with other settings of its search."""
        return replace(self, task=searching(self.task, search)) if search else self

    def predict(self, inputs: Any, /, batch: int = BATCH, **search: Any) -> Any:
        """The text of each input."""
        writer = self.searching(search)
        several, one = writer.as_list(inputs)
        texts = [text for first, some in batches(several, batch) for text in writer.write(some, first)]
        return texts[0] if one else texts

    @with_fixed_settings
    def explain(
        self, inputs: Any, method: str = "ig", class_name: str = "", steps: int = EXPLAIN_STEPS, batch: int = 1
    ) -> Any:
        """What of each text, or of each image, counted for each token that is written of it.

        Args:
            inputs: one or several; one is explained as a list of one.
            method: ig or rollout, as of `Classifier.explain`; the baseline of ig is the mean of the embedding's table,
                or of pixels.
            class_name: there are no classes to name.
            steps: of integrated gradients, each a pass forward, and one back for each token.

        Returns:
            TranslationExplanation: `sources`, `tokens`, `maps` (of each text [T, S]), or CaptionExplanation: `tokens`,
            `maps` (of each caption [T, gh, gw]); and `draw(path)`, `write(name)`.
        """
        return self.capability("explain").explain(inputs, method, class_name, steps)


def _sequences(changes: Mapping[str, Any]) -> dict[str, Any]:
    """`banned` of some changes, if it is there, as tuples. Raises UserError where it is no list of lists of ids."""
    if "banned" not in changes:
        return {}
    try:
        return {"banned": tuple(tuple(map(operator.index, each)) for each in changes["banned"])}
    except TypeError as error:
        raise UserError(
            Field("banned"), f"is {changes['banned']!r:.60}", "give lists of ids, as [[5], [6, 7]]"
        ) from error


def compile_search(function: Callable[..., Found], static: tuple[int, ...]) -> Callable[..., Found]:
    """A function of a network as a compiled program."""

    @functools.cache  # made at the first call, when jax is configured
    def program() -> Any:
        numbers = (0, *(i + 1 for i in static))
        run = lambda definition, tree, *rest: function(merge(definition, tree), *rest)  # noqa: E731
        return jax.jit(run, static_argnums=numbers, **backend.few_rows())

    return lambda model, *rest: program()(*split_model(model), *rest)


def value(texts: Sequence[str], scores: Iterable[Any], nbest: int) -> Any:
    """What is predicted: a text or, where several are asked for, [(text, score), ...]."""
    return texts[0] if nbest == 1 else [(text, float(score)) for text, score in zip(texts, scores, strict=True)]


def answer(given: Any, predicted: Any) -> Answer:
    """The prediction for one input; each text is in one line, whatever it holds."""
    shown = printable(str(given))
    if isinstance(predicted, str):
        line = f"{shown}: {printable(predicted)}"
        return Answer(given, predicted, line, [(str(given), predicted)], (predicted,))
    lines = [f"{shown}: {printable(text)} ({score:.4f})" for text, score in predicted]
    rows = [(str(given), rank, text, f"{score:.6f}") for rank, (text, score) in enumerate(predicted, 1)]
    texts = tuple(text for text, _ in predicted)
    return Answer(given, predicted, "\n".join(lines), rows, texts)


def tokens_and_end(target: Tokenizer, row: np.ndarray) -> list[str]:
    """The tokens of a text, int [length], and its end, unless it fills the row without one."""
    return target.tokens([*target.ids.until_end(row), target.ids.end][: len(row)])


def searching(task: Task, changes: Mapping[str, Any]) -> Any:
    """The task with other settings of its search."""
    if not changes:
        return task
    name, known = next(iter(changes)), [f.name for f in fields(Decoding)]
    search = task.able(Searches)
    if "top" in changes and search.with_settings({}) is not None:
        count = changes["top"]
        what, remedy = f"is {count}, but this network says a text and no classes", f"`beam {count}` and `nbest {count}`"
        raise UserError(Field("top"), what, f"for {count} texts of each input give {remedy}")
    if unknown := [each for each in changes if each not in known]:
        clause = hint(unknown[0], names_of(Decoding), {}) or nearest(unknown[0], known)
        raise UserError(unknown[0], f"there is no such setting of a search{clause}")
    found = search.with_settings(changes)
    if found is None:
        remedy = f"the number of classes is `top`, so give `top {changes[name]}`" if name == "top_k" else "leave it out"
        raise UserError(
            Field(name), f"is {changes[name]}, but this network generates nothing, so it searches nothing", remedy
        )
    return found
