"""Captions of pictures of which another network has made a vector each: vectors to sentences, word by word."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import jax.numpy as jnp
import numpy as np
from jax import Array

from ...config.run import RunConfig
from ...data.base import Given
from ...data.captions.caption_set import CaptionSet
from ...data.captions.features_config import FeatureData
from ...data.captions.vectors import Vector, Vectors, open_features, open_other_features
from ...data.eval_data import Other
from ...models.captioner import Captioner
from ...models.captioner_config import CaptionerConfig
from ...text.record import open_one
from ..base import Batch, Evaluation
from ..generated import answer
from ..predictor import Answer, Predictor
from ..worst import summarise_worst, worst, write_worst
from .text import Captioning
from .use import FeatureDescriber


@dataclass(frozen=True)
class CaptionFeatures(Captioning):
    """The task `caption-features`. A batch is {"vectors": float32 [B, 1, C], "target": int32 [B, T]}, ids padded."""

    unit: ClassVar[str] = "captions"
    header_names: ClassVar[tuple[str, str]] = ("vector", "caption")
    predictor: ClassVar[type[Predictor]] = FeatureDescriber

    @classmethod
    def open_data(cls, run: RunConfig, given: Given | None = None, fetch: bool = True) -> CaptionSet:
        """The vectors and captions of a run, split."""
        c, data = run.model, run.data
        assert isinstance(c, CaptionerConfig) and isinstance(data, FeatureData)
        return open_features(data, c.memory_width, c.text.outputs, run.seed)

    @classmethod
    def from_run(cls, run: RunConfig, metadata: Mapping[str, Any]) -> CaptionFeatures:
        """The task of a run."""
        data = run.data
        assert isinstance(data, FeatureData)
        words = open_one("words", metadata)
        return cls(run.loss.spread_over_all(len(words)), data.length, words)

    def inputs(self, batch: Batch, dtype: Any) -> Array:
        """The network's input: the vectors of a batch. Shapes: batch [B, 1, C] -> [B, 1, C]."""
        return jnp.asarray(batch["vectors"], dtype)

    @classmethod
    def open_other_data(
        cls, run: RunConfig, metadata: Mapping[str, Any], split: str, given: Given | None = None
    ) -> Other:
        """Vectors and captions of another source, whose words have to be the network's."""
        c, data = run.model, run.data
        assert isinstance(c, CaptionerConfig) and isinstance(data, FeatureData)
        return open_other_features(data, split, c.memory_width, open_one("words", metadata))

    def table(
        self, split: Vectors, result: Evaluation, metadata: Mapping[str, Any]
    ) -> tuple[tuple[str, ...], Iterator[tuple[str | int, ...]]]:
        """A row for each example: where its vector and its picture are, its caption, and that by the network."""
        said = ([self.target.decode(row) for row in rows] for rows in (split.target, result.predicted))
        places = ([of(i) for i in range(len(split))] for of in (split.name, split.address))
        return ("vector", "picture", "true", "predicted"), zip(*places, *said, strict=True)

    def answers(
        self, predictor: FeatureDescriber, inputs: Sequence[Vector], top: int, first: int = 0
    ) -> Iterator[Answer]:
        """The captions of vectors in files."""
        vectors = predictor.inputs(np.stack([each.values for each in inputs]))
        return map(answer, [each.name for each in inputs], predictor.write(vectors, first))

    def draw_result(
        self, split: Vectors, result: Evaluation, metadata: Mapping[str, Any], folder: Path, caption: str
    ) -> tuple[str, ...]:
        """The worst captions, by chrF, as a file of text; of several references the most alike counts."""
        names, places, truth, said = (
            list(map(str, x)) for x in zip(*self.table(split, result, metadata)[1], strict=True)
        )
        wrong = worst(names, split.references or [(text,) for text in truth], said, cased=False)
        write_worst(folder / "worst.txt", wrong, [places[w.number] for w in wrong], caption, len(split), "captions")
        return summarise_worst(wrong, len(split), "worst.txt")

    def pictures(self, network: Captioner, data: CaptionSet, plots: Path, samples: Path, caption: str) -> str:
        """Nothing but one vector as a sample, since the pictures are not there. Returns its file."""
        split = data.splits.get("test") or data.splits["train"]
        np.save(samples / "vector.npy", split.batch(np.arange(1))["vectors"][0, 0])
        return f"{samples.name}/vector.npy"
