"""Captions: images to sentences, word by word, trained with cross entropy."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from jax import Array

from ...augmentation.batch import augment, normalise
from ...augmentation.config import ImageAugment
from ...config.run import RunConfig
from ...data.base import Given
from ...data.captions.config import CaptionData
from ...data.captions.open import CaptionedImages, open_captions, open_other_captions
from ...data.captions.split import Captions
from ...data.eval_data import Other
from ...data.images.preprocess import Preprocess
from ...figures.attention import draw_words
from ...figures.parts import Attention, Part
from ...models.captioner import Captioner
from ...models.captioner_config import CaptionerConfig
from ...models.layers import fold
from ...text.record import make_one, open_one, record_one
from ..base import Batch, Evaluation
from ..classify.draw import save_samples, visible
from ..generated import answer
from ..predictor import Answer, Predictor
from ..worst import draw_worst, summarise_worst, worst
from .text import Captioning
from .use import Describer, attention

SAMPLES = 4


@dataclass(frozen=True)
class Caption(Captioning):
    """The task `caption`. A batch is {"image": uint8 [B, h, w, C], "target": int32 [B, T]}, ids padded."""

    augment: ImageAugment
    mean: tuple[float, ...]  # per channel, of pixels in 0..1
    std: tuple[float, ...]

    unit: ClassVar[str] = "images"
    predictor: ClassVar[type[Predictor]] = Describer

    @classmethod
    def open_data(cls, run: RunConfig, given: Given | None = None, fetch: bool = True) -> CaptionedImages:
        """The images and captions of a run, split."""
        c, data, augment = run.model, run.data, run.augment
        assert isinstance(c, CaptionerConfig) and isinstance(data, CaptionData) and isinstance(augment, ImageAugment)
        how = {name: getattr(augment, name) for name in ("normalize", "mean", "std")}
        return open_captions(
            data, c.vit.image, c.vit.channels, c.vit.grid, **how, words=c.text.outputs, seed=run.seed, given=given
        )

    @classmethod
    def from_run(cls, run: RunConfig, metadata: Mapping[str, Any]) -> Caption:
        """The task of a run, with the mean and std of its preprocessing."""
        mean, std = (tuple(metadata["preprocess"][name]) for name in ("mean", "std"))
        data, augment, words = run.data, run.augment, open_one("words", metadata)
        assert isinstance(data, CaptionData) and isinstance(augment, ImageAugment)
        return cls(run.loss.spread_over_all(len(words)), data.length, words, augment, mean, std)

    @classmethod
    def metadata_with_weights(cls, run: RunConfig) -> dict[str, Any]:
        """The tokenizer beside weights, as a run keeps it."""
        data = run.data
        assert isinstance(data, CaptionData)
        return record_one("words", make_one(data.tokenizer, data.vocabulary, ()))

    def prepare(self, batch: Batch, keys: Array) -> Batch:
        """The batch with its images augmented: uint8 [B, h, w, C]."""
        return {**batch, "image": augment(batch["image"], fold(keys, 0), self.augment)}

    def inputs(self, batch: Batch, dtype: Any) -> Array:
        """The network's input: the images of a batch, normalised. Shapes: batch uint8 [B, h, w, C] -> [B, h, w, C]."""
        return normalise(batch["image"], self.mean, self.std, dtype)

    @classmethod
    def open_other_data(
        cls, run: RunConfig, metadata: Mapping[str, Any], split: str, given: Given | None = None
    ) -> Other:
        """Images and captions that were given in Python, or of another source, prepared as the network's own."""
        preprocess = Preprocess.from_dict(metadata["preprocess"])
        data = run.data
        assert isinstance(data, CaptionData)
        return open_other_captions(data, split, preprocess, open_one("words", metadata), run.seed, given)

    def table(
        self, split: Captions, result: Evaluation, metadata: Mapping[str, Any]
    ) -> tuple[tuple[str, ...], Iterator[tuple[str | int, ...]]]:
        """A row for each image: its place in the data, its caption, and that by the network."""
        rows = (
            (split.name(i), self.target.decode(split.target[i]), self.target.decode(result.predicted[i]))
            for i in range(len(split))
        )
        return ("file", "true", "predicted"), rows

    def answers(self, predictor: Describer, inputs: Sequence[Any], top: int, first: int = 0) -> Iterator[Answer]:
        """The captions of image files."""
        return map(answer, inputs, predictor.write(inputs, first))

    def draw_result(
        self, split: Captions, result: Evaluation, metadata: Mapping[str, Any], folder: Path, caption: str
    ) -> tuple[tuple[str, ...], Sequence[Part]]:
        """The images with the worst captions, by chrF; of several references the most alike counts."""
        said = [self.target.decode(row) for row in result.predicted]
        references = split.references or [(self.target.decode(row),) for row in split.target]
        wrong = worst(map(split.name, range(len(split))), references, said, cased=False)
        images, file = (lambda numbers: visible(split.take(numbers))), folder / "worst.png"
        shown = draw_worst(images, wrong, len(split), file, caption)
        return summarise_worst(wrong, len(split), file.name), [shown]

    def pictures(
        self, network: Captioner, data: CaptionedImages, plots: Path, samples: Path, caption: str
    ) -> tuple[str, Sequence[Part]]:
        """Write sample images, and the cross-attention on them, word by word: drawn of the first, kept of all."""
        split = data.splits.get("test") or data.splits["train"]
        images = split.take(np.arange(min(SAMPLES, len(split))))
        truth = [data.vocabulary.decode(row) for row in split.target[:SAMPLES]]
        saved = save_samples(samples, images, truth, data.preprocess.range)
        examples = []
        for title, image in zip(truth, images, strict=True):
            words, maps = attention(self, network, self.inputs({"image": image[None]}, network.dtype))
            shown = {"title": title, "image": visible(image), "grid": network.config.vit.grid, "queries": words}
            examples.append({**shown, "weights": maps.reshape(*maps.shape[:3], -1)})
            if len(examples) == 1:
                draw_words(visible(image), maps, words, plots / "words.png", caption=caption)
        return f"{samples.name}/{saved[0]}" if saved else "", [Attention(caption, examples)]
