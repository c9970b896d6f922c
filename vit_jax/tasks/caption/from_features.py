"""Captions of pictures of which another network has made a vector each: vectors to sentences, word by word."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, cast

import jax.numpy as jnp
import numpy as np
from jax import Array

from ...config.run import RunConfig
from ...data.base import Given
from ...data.captions.caption_set import CaptionSet
from ...data.captions.features_config import FeatureData
from ...data.captions.vectors import Vector, Vectors, checked_vectors, open_features, open_other_features, vectors_in
from ...data.other import Other
from ...errors import Field, UserError
from ...models.build import described
from ...models.captioner import Captioner
from ...text.record import kept_one, opened_one
from ..base import Answer, Batch, Evaluation, Trained
from ..generated import answer, header, value
from ..worst import printed, worst, write_worst
from .text import Captioning, captured_inputs, search_inputs

BATCH = 64  # vectors per batch of a prediction


@dataclass(frozen=True)
class CaptionFeatures(Captioning):
    """The task `caption-features`. A batch is {"vectors": float32 [B, 1, C], "target": int32 [B, T]}, ids padded."""

    unit: ClassVar[str] = "captions"

    @classmethod
    def open_data(cls, run: RunConfig, given: Given | None = None, fetch: bool = True) -> CaptionSet:
        """The vectors and captions of a run, split. Raises UserError."""
        c, data = cast(Any, (run.model, run.data))  # of the types that the task's row names
        return open_features(data, c.memory_width, c.text.outputs, run.seed)

    @classmethod
    def from_run(cls, run: RunConfig, metadata: Mapping[str, Any]) -> CaptionFeatures:
        """The task of a run."""
        data = cast(FeatureData, run.data)
        words = opened_one("words", metadata)
        return cls(run.loss.spread_over_all(len(words)), data.length, words)

    @classmethod
    def metadata_beside(cls, run: RunConfig) -> dict[str, Any]:
        """Nothing: no words are looked for beside weights."""
        return {}

    def prepare(self, batch: Batch, keys: Array, epoch: Array) -> Batch:
        """The batch, unchanged: there is no augmentation."""
        return batch

    def inputs(self, batch: Batch, dtype: Any) -> Array:
        """The network's input: the vectors of a batch, [B, 1, C] of `dtype`."""
        return jnp.asarray(batch["vectors"], dtype)

    @classmethod
    def open_other_data(
        cls, run: RunConfig, metadata: Mapping[str, Any], split: str, given: Given | None = None
    ) -> Other:
        """Vectors and captions of another source, whose words have to be the network's."""
        c, data = cast(Any, (run.model, run.data))  # of the types that the task's row names
        return open_other_features(data, split, c.memory_width, opened_one("words", metadata))

    def table(
        self, split: Vectors, result: Evaluation, metadata: Mapping[str, Any]
    ) -> tuple[tuple[str, ...], Iterator[tuple[str | int, ...]]]:
        """A row for each example: where its vector and its picture are, its caption, and that by the network."""
        said = ([self.words.decode(row) for row in rows] for rows in (split.target, result.predicted))
        places = ([of(i) for i in range(len(split))] for of in (split.name, split.address))
        return ("vector", "picture", "true", "predicted"), zip(*places, *said, strict=True)

    def predictor(self, network: Captioner, trained: Trained) -> FeatureDescriber:
        """The network with its words."""
        return FeatureDescriber(network, trained.run, trained.step, self)

    def draw_result(
        self, split: Vectors, result: Evaluation, metadata: Mapping[str, Any], folder: Path, caption: str
    ) -> tuple[str, ...]:
        """The worst captions, by chrF, as a file of text; of several references the most alike counts."""
        names, places, truth, said = (
            list(map(str, x)) for x in zip(*self.table(split, result, metadata)[1], strict=True)
        )
        wrong = worst(names, split.references or [(text,) for text in truth], said, cased=False)
        write_worst(folder / "worst.txt", wrong, [places[w.number] for w in wrong], caption, len(split), "captions")
        return printed(wrong, len(split), "worst.txt")

    def pictures(self, network: Captioner, data: CaptionSet, plots: Path, samples: Path, caption: str) -> str:
        """Nothing but one vector as a sample, since the pictures are not there. Returns its file."""
        split = data.splits.get("test") or data.splits["train"]
        np.save(samples / "vector.npy", split.batch(np.arange(1))["vectors"][0, 0])
        return f"{samples.name}/vector.npy"


@dataclass(frozen=True, repr=False)
class FeatureDescriber:
    """A trained captioner of vectors with its words. `model(vectors, target)` calls the network on [B, S, C] and ids.

    The methods take vectors [n, C], or paths of their files, and give n answers; for one vector [C], one answer.
    Raises UserError where a vector cannot be used.
    """

    model: Captioner
    run: RunConfig
    step: int
    task: CaptionFeatures

    def __repr__(self) -> str:
        words = f"{len(self.task.words):,} {self.task.words.unit}, captions of up to {self.task.length}"
        return f"FeatureDescriber({described(self.run.model)}; {words})"

    @property
    def width(self) -> int:
        """C, the width of a vector."""
        return self.model.config.memory_width

    def inputs(self, vectors: Any) -> Array:
        """Vectors [n, C], [C], or files of them as the network takes them: [n, 1, C], or [1, C] of one."""
        if isinstance(vectors, (str, os.PathLike)):
            vectors = [vectors]
        if isinstance(vectors, (list, tuple)) and vectors and all(isinstance(x, (str, os.PathLike)) for x in vectors):
            vectors = self._stacked(vectors_in(vectors))
        return jnp.asarray(checked_vectors(vectors, self.width, "vectors"), self.model.dtype)[..., None, :]

    def predict(self, vectors: Any, batch: int = BATCH) -> Any:
        """The caption of each vector, `batch` at a time: a list of texts, or of one vector [C] its text.

        Where the search gives several (nbest), a list of (caption, score) takes the place of a caption.
        """
        if batch < 1:
            raise UserError(Field("batch"), f"is {batch}", "give a positive number")
        given = self.inputs(vectors)
        several = given[None] if given.ndim == 2 else given
        captions: list[Any] = []
        for begin in range(0, len(several), batch):
            captions += self._predicted(several[begin : begin + batch], begin)
        return captions[0] if given.ndim == 2 else captions

    def _predicted(self, several: Array, first: int = 0) -> list[Any]:
        """The prediction for inputs [B, 1, C], of which the first one has the number `first`."""
        search, words = self.task.search, self.task.words
        keys = search.keys(first + jnp.arange(len(several)))
        found = search_inputs(self.model, several, search.seedless, None, keys)
        rows = zip(np.asarray(found.tokens), np.asarray(found.scores), strict=True)
        return [value([*map(words.decode, each)], scores, search.decoding.nbest) for each, scores in rows]

    def capture(self, vectors: Any, names: Iterable[str]) -> dict[str, np.ndarray]:
        """Inner values of the network while it writes, {name: array [B, ...]}, or [...] of one vector [C].

        The names are those of `Captioner.capture`: memory, decoder.blocks.I, ... The decoder is given its own caption,
        so that row t of its values is that of the t-th token. Raises ValueError on any other.
        """
        given = self.inputs(vectors)
        wanted = (names,) if isinstance(names, str) else tuple(names)
        _, found = captured_inputs(self.model, given[None] if given.ndim == 2 else given, self.task.search, wanted)
        return {name: np.asarray(found[name][0] if given.ndim == 2 else found[name]) for name in wanted}

    def answer(self, inputs: Sequence[Any], top: int = 3, batch: int = BATCH) -> Iterator[Answer]:
        """The caption of each vector in files, `batch` at a time; `top` is not used. Raises UserError."""
        several = vectors_in(inputs)
        stacked = self.inputs(self._stacked(several))
        for begin in range(0, len(several), batch):
            names = [each.name for each in several[begin : begin + batch]]
            yield from map(answer, names, self._predicted(stacked[begin : begin + batch], begin))

    def _stacked(self, several: Sequence[Vector]) -> np.ndarray:
        """The values of vectors [n, C]."""
        return np.stack([checked_vectors(each.values, self.width, each.name) for each in several])

    @property
    def header(self) -> tuple[str, ...]:
        """The names of the columns of `Answer.rows`."""
        return header("vector", "caption", self.task.decoding.nbest)

    @property
    def metadata(self) -> dict[str, Any]:
        """The words, as config.json has them."""
        return kept_one("words", self.task.words)

    @property
    def layers(self) -> int:
        """0: a memory of one vector leaves attention no choice, so none is drawn."""
        return 0

    def draw_attention(self, inputs: Sequence[Any], path: Path, layers: Sequence[int] = (), caption: str = "") -> None:
        """Raise UserError: there is nothing to draw."""
        raise UserError(
            "attention", "the decoder reads a single vector, to which all its attention goes", "leave it out"
        )

    def write_features(
        self, inputs: Sequence[Any], path: Path, blocks: Sequence[int] = (), norm: bool = True, batch: int = BATCH
    ) -> str:
        """Raise UserError: the inputs are such features."""
        raise UserError("features", "the inputs of this network are features already", "leave the flag out")
