"""Captions of pictures of which another network has made a vector each: vectors to sentences, word by word."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import jax.numpy as jnp
import numpy as np
from jax import Array

from ...config.run import RunConfig
from ...data.base import GivenData, Other
from ...data.captions.caption_set import CaptionSet
from ...figures.parts import Part
from ...models.build import describe_network
from ...models.captioner import Captioner
from ...tasks.base import Batch, Evaluation
from ...tasks.can import Abilities, Draws, MeasuresOthers, Tabulates
from ...tasks.caption.learn import Captioning
from ...tasks.caption.use import CaptionWriter
from ...tasks.generated import answer
from ...tasks.predictor import Answer, Predictor
from ...tasks.worst import summarise_worst, worst, write_worst
from ...text.record import open_one
from .spec import parts
from .vectors import Vector, Vectors, checked_vectors, open_features, open_other_features, vectors_in


class FeatureDescriber(CaptionWriter):
    """A trained captioner of vectors with its words. `model(vectors, target)` calls the network on [B, S, C] and ids.

    The methods take vectors [n, C], or paths of their files, and give n answers; for one vector [C], one answer.
    Raises UserError where a vector cannot be used.
    """

    header_names = "vector", "caption"
    refusals: ClassVar = {
        "attention": ("the decoder reads a single vector, to which all its attention goes", "leave it out"),
        "explanations": ("the inputs of this network are vectors, which have no patches or words", "leave it out"),
        "features": ("the inputs of this network are features already", "leave the flag out"),
    }

    def __repr__(self) -> str:
        return f"FeatureDescriber({describe_network(self.run.model)}; {self.words})"

    def inputs(self, vectors: Any) -> Array:
        """Vectors [n, C], [C], or files of them as the network takes them: [n, 1, C], or [1, C] of one."""
        if isinstance(vectors, (str, os.PathLike)):
            vectors = [vectors]
        if isinstance(vectors, (list, tuple)) and vectors and all(isinstance(x, (str, os.PathLike)) for x in vectors):
            vectors = np.stack([each.values for each in self.read(vectors)])
        width = self.model.config.memory_width
        return jnp.asarray(checked_vectors(vectors, width, "vectors"), self.model.dtype)[..., None, :]

    def as_list(self, vectors: Any) -> tuple[Any, bool]:
        """(the network's inputs [n, 1, C], whether only one was given)."""
        given = self.inputs(vectors)
        return (given[None], True) if given.ndim == 2 else (given, False)

    def read(self, inputs: Sequence[Any]) -> list[Vector]:
        """The vectors in files, all of which are read and checked."""
        width = self.model.config.memory_width
        return [Vector(name, checked_vectors(values, width, name)) for name, values in vectors_in(inputs)]

    def answers(self, inputs: Sequence[Vector], top: int, first: int) -> Iterator[Answer]:
        vectors = self.inputs(np.stack([each.values for each in inputs]))
        return map(answer, [each.name for each in inputs], self.write(vectors, first))

    def write(self, several: Any, first: int = 0) -> list[Any]:
        """The caption of each input of the network [n, 1, C]."""
        return self.search(several, first)

    def capture(self, vectors: Any, names: Iterable[str]) -> dict[str, np.ndarray]:
        """Inner values of the network on vectors: vectors [C] -> {name: array [n, ...]}, or [...] of one vector."""
        several, one = self.as_list(vectors)
        return self.captured(several, names, one)


class MeasuresVectors(MeasuresOthers):
    """Other vectors with captions."""

    def open_data(
        self, run: RunConfig, metadata: Mapping[str, Any], split: str, given: GivenData | None = None
    ) -> Other:
        """Vectors and captions of another source, whose words have to be the network's."""
        c, data = parts(run)
        return open_other_features(data, split, c.memory_width, open_one("words", metadata))


class TabulatesVectors(Tabulates):
    """A row for each vector."""

    def predicted(
        self, split: Vectors, result: Evaluation, metadata: Mapping[str, Any]
    ) -> tuple[tuple[str, ...], Iterator[tuple[str | int, ...]]]:
        """A row for each example: where its vector and its picture are, its caption, and that by the network."""
        said = ([self.task.target.decode(row) for row in rows] for rows in (split.target, result.predicted))
        places = ([of(i) for i in range(len(split))] for of in (split.name, split.address))
        return ("vector", "picture", "true", "predicted"), zip(*places, *said, strict=True)


class DrawsVectors(Draws):
    """A vector as a sample, and the worst captions: the pictures are not there."""

    def result(
        self, split: Vectors, result: Evaluation, metadata: Mapping[str, Any], folder: Path, caption: str
    ) -> tuple[tuple[str, ...], Sequence[Part]]:
        """The worst captions, by chrF, as a file of text; of several references the most alike counts."""
        names, places, truth, said = (
            list(map(str, x))
            for x in zip(*self.task.able(Tabulates).predicted(split, result, metadata)[1], strict=True)
        )
        wrong = worst(names, split.references or [(text,) for text in truth], said, cased=False)
        sources, file = [places[w.number] for w in wrong], folder / "worst.txt"
        shown = write_worst(file, wrong, sources, caption, len(split), "captions")
        return summarise_worst(wrong, len(split), file.name), [shown]

    def network(
        self, network: Captioner, data: CaptionSet, plots: Path, samples: Path, caption: str
    ) -> tuple[str, Sequence[Part]]:
        """Nothing but one vector as a sample, since the pictures are not there. Returns its file."""
        split = data.splits.get("test") or data.splits["train"]
        np.save(samples / "vector.npy", split.batch(np.arange(1))["vectors"][0, 0])
        return f"{samples.name}/vector.npy", ()


@dataclass(frozen=True)
class CaptionFeatures(Captioning):
    """The task `caption-features`. A batch is {"vectors": float32 [B, 1, C], "target": int32 [B, T]}, ids padded."""

    predictor: ClassVar[type[Predictor]] = FeatureDescriber
    can: ClassVar[Abilities] = (*Captioning.can, MeasuresVectors, TabulatesVectors, DrawsVectors)

    @classmethod
    def open_data(cls, run: RunConfig, given: GivenData | None = None, fetch: bool = True) -> CaptionSet:
        c, data = parts(run)
        return open_features(data, c.memory_width, c.text.outputs, run.seed)

    @classmethod
    def from_run(cls, run: RunConfig, metadata: Mapping[str, Any]) -> CaptionFeatures:
        data, words = parts(run)[1], open_one("words", metadata)
        return cls(run.loss.spread_over_all(len(words)), data.length, words)

    def inputs(self, batch: Batch, dtype: Any) -> Array:
        """The network's input: the vectors of a batch. Shapes: batch [B, 1, C] -> [B, 1, C]."""
        return jnp.asarray(batch["vectors"], dtype)
