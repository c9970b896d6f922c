"""Captions: images to sentences, word by word, trained with cross entropy."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, cast

import jax.numpy as jnp
import numpy as np
from jax import Array

from ...augmentation.batch import augment, normalise
from ...augmentation.config import ImageAugment
from ...config.run import RunConfig
from ...data.base import Given
from ...data.captions.config import CaptionData
from ...data.captions.open import CaptionedImages, Captions, open_captions, open_other_captions
from ...data.images.preprocess import Preprocess
from ...data.inputs import listed, prepared
from ...data.other import Other
from ...errors import Field, UserError
from ...figures.attention import draw_words
from ...figures.kept import keep_attention
from ...models.build import described
from ...models.captioner import Captioner
from ...models.layers import fold
from ...text.record import kept_one, made_one, opened_one
from ..base import Answer, Batch, Evaluation, Trained
from ..classify.draw import save_samples, visible
from ..generated import answer, header, value
from ..worst import draw_worst, printed, worst
from .text import CROSS, Captioning, captured_inputs, search_inputs

BATCH = 64  # images per batch of a prediction
SAMPLES = 4  # sample images written at the end of a training


@dataclass(frozen=True)
class Caption(Captioning):
    """The task `caption`. A batch is {"image": uint8 [B, h, w, C], "target": int32 [B, T]}, ids padded."""

    augment: ImageAugment
    mean: tuple[float, ...]  # per channel, of pixels in 0..1
    std: tuple[float, ...]

    unit: ClassVar[str] = "images"

    @classmethod
    def open_data(cls, run: RunConfig, given: Given | None = None, fetch: bool = True) -> CaptionedImages:
        """The images and captions of a run, split; given ones are (images, captions). Raises UserError."""
        c, data, augment = cast(Any, (run.model, run.data, run.augment))  # of the types that the task's row names
        how = {name: getattr(augment, name) for name in ("normalize", "mean", "std")}
        return open_captions(
            data, c.vit.image, c.vit.channels, c.vit.grid, **how, words=c.text.outputs, seed=run.seed, given=given
        )

    @classmethod
    def from_run(cls, run: RunConfig, metadata: Mapping[str, Any]) -> Caption:
        """The task of a run, with the mean and std of its preprocessing."""
        mean, std = (tuple(metadata["preprocess"][name]) for name in ("mean", "std"))
        data = cast(CaptionData, run.data)
        words, augment = opened_one("words", metadata), cast(ImageAugment, run.augment)
        return cls(run.loss.spread_over_all(len(words)), data.length, words, augment, mean, std)

    @classmethod
    def metadata_beside(cls, run: RunConfig) -> dict[str, Any]:
        """The tokenizer beside weights, as a run keeps it."""
        data = cast(CaptionData, run.data)
        return kept_one("words", made_one(data.tokenizer, data.vocabulary, ()))

    def prepare(self, batch: Batch, keys: Array, epoch: Array) -> Batch:
        """The batch with its images augmented: uint8 [B, h, w, C]."""
        return {**batch, "image": augment(batch["image"], fold(keys, 0), self.augment)}

    def inputs(self, batch: Batch, dtype: Any) -> Array:
        """The network's input: the images of a batch, normalised, [B, h, w, C] of `dtype`."""
        return normalise(batch["image"], self.mean, self.std, dtype)

    @classmethod
    def open_other_data(
        cls, run: RunConfig, metadata: Mapping[str, Any], split: str, given: Given | None = None
    ) -> Other:
        """Images and captions that were given in Python, or of another source, prepared as the network's own."""
        preprocess = Preprocess.from_dict(metadata["preprocess"])
        data = cast(CaptionData, run.data)
        return open_other_captions(data, split, preprocess, opened_one("words", metadata), run.seed, given)

    def table(
        self, split: Captions, result: Evaluation, metadata: Mapping[str, Any]
    ) -> tuple[tuple[str, ...], Iterator[tuple[str | int, ...]]]:
        """A row for each image: its place in the data, its caption, and that by the network."""
        rows = (
            (split.name(i), self.words.decode(split.target[i]), self.words.decode(result.predicted[i]))
            for i in range(len(split))
        )
        return ("file", "true", "predicted"), rows

    def predictor(self, network: Captioner, trained: Trained) -> Describer:
        """The network with its preprocessing and its words."""
        preprocess = Preprocess.from_dict(trained.metadata["preprocess"])
        return Describer(network, trained.run, preprocess, trained.step, self)

    def draw_result(
        self, split: Captions, result: Evaluation, metadata: Mapping[str, Any], folder: Path, caption: str
    ) -> tuple[str, ...]:
        """The images with the worst captions, by chrF; of several references the most alike counts."""
        said = [self.words.decode(row) for row in result.predicted]
        references = split.references or [(self.words.decode(row),) for row in split.target]
        wrong = worst(map(split.name, range(len(split))), references, said, cased=False)
        draw_worst(lambda numbers: visible(split.take(numbers)), wrong, len(split), folder / "worst.png", caption)
        return printed(wrong, len(split), "worst.png")

    def pictures(self, network: Captioner, data: CaptionedImages, plots: Path, samples: Path, caption: str) -> str:
        """Sample images, and the cross-attention on them, word by word: drawn of the first, kept of all.

        Returns the first sample image.
        """
        split = data.splits.get("test") or data.splits["train"]
        images = split.take(np.arange(min(SAMPLES, len(split))))
        truth = [data.vocabulary.decode(row) for row in split.target[:SAMPLES]]
        saved = save_samples(samples, images, truth) if data.preprocess.channels in (1, 3) else []
        examples = []
        for title, image in zip(truth, images, strict=True):
            words, maps = self.attention(network, self.inputs({"image": image[None]}, network.dtype))
            shown = {"title": title, "image": visible(image), "grid": network.config.vit.grid, "queries": words}
            examples.append({**shown, "weights": maps.reshape(*maps.shape[:3], -1)})
            if len(examples) == 1:
                draw_words(visible(image), maps, words, plots / "words.png", caption=caption)
        keep_attention(plots, caption, examples)
        return f"{samples.name}/{saved[0]}" if saved else ""

    def attention(self, network: Captioner, images: Array) -> tuple[list[str], np.ndarray]:
        """(the T tokens of the caption of the first image, their cross-attention on its patches [L, H, T, gh, gw])."""
        found, values = captured_inputs(network, images[:1], self.search, (CROSS,))
        row, ids = np.asarray(found[0]), self.words.ids
        tokens = self.words.tokens([*ids.until_end(row), ids.end][: len(row)])  # with its end, unless it has none
        return tokens, on_patches(network, np.asarray(values[CROSS][0]))[:, :, : len(tokens)]


def on_patches(network: Captioner, maps: np.ndarray) -> np.ndarray:
    """Cross-attention [L, H, T, S] as [L, H, T, gh, gw], without the tokens of the memory that are no patches."""
    c = network.config.vit
    return maps[..., maps.shape[-1] - c.patches :].reshape(*maps.shape[:-1], *c.grid)


@dataclass(frozen=True, repr=False)
class Describer:
    """A trained captioner with the preprocessing of its evaluation and its words.

    `model(images, target)` calls the network on normalised images [B, h, w, C] and ids [B, T]. The methods take images
    of any size: paths of files, Pillow images, or uint8 arrays [h, w] or [h, w, C]. For a list of n of them, or an
    array [n, h, w, C], they give n answers; for one image, one answer without the axis of the batch. Raises UserError
    where an image cannot be used.
    """

    model: Captioner
    run: RunConfig
    preprocess: Preprocess
    step: int
    task: Caption

    def __repr__(self) -> str:
        size = "x".join(map(str, (*self.preprocess.image, self.preprocess.channels)))
        words = f"{len(self.task.words):,} {self.task.words.unit}, captions of up to {self.task.length}"
        return f"Describer({described(self.run.model)}; images {size}; {words})"

    def pixels(self, images: Any) -> np.ndarray:
        """The images preprocessed but not normalised: uint8 [B, h, w, C], or [h, w, C] of one."""
        several, one = listed(images, self.preprocess.channels)
        pixels = np.stack([prepared(image, self.preprocess) for image in several])
        return pixels[0] if one else pixels

    def inputs(self, images: Any) -> Array:
        """The images as the network takes them, preprocessed and normalised: [B, h, w, C], or [h, w, C] of one."""
        return self.task.inputs({"image": self.pixels(images)}, self.model.dtype)

    def predict(self, images: Any, batch: int = BATCH) -> Any:
        """The caption of each image, `batch` at a time: a list of texts, or of one image its text.

        Where the search gives several (nbest), a list of (caption, score) takes the place of a caption.
        """
        if batch < 1:
            raise UserError(Field("batch"), f"is {batch}", "give a positive number")
        several, one = listed(images, self.preprocess.channels)
        captions: list[Any] = []
        for begin in range(0, len(several), batch):
            captions += self._predicted(several[begin : begin + batch], begin)
        return captions[0] if one else captions

    def _predicted(self, several: Sequence[Any], first: int = 0) -> list[Any]:
        """The prediction for images, of which the first one has the number `first`."""
        search, words = self.task.search, self.task.words
        keys = search.keys(first + jnp.arange(len(several)))
        found = search_inputs(self.model, self.inputs(several), search.seedless, None, keys)
        rows = zip(np.asarray(found.tokens), np.asarray(found.scores), strict=True)
        return [value([*map(words.decode, each)], scores, search.decoding.nbest) for each, scores in rows]

    def capture(self, images: Any, names: Iterable[str]) -> dict[str, np.ndarray]:
        """Inner values of the network while it writes, {name: array [B, ...]}, or [...] of one image.

        The names are those of `Captioner.capture`: vit.blocks.I, memory, decoder.cross_attention, ... The decoder is
        given its own caption, so that row t of its values is that of the t-th token. Raises ValueError on any other.
        """
        wanted = (names,) if isinstance(names, str) else tuple(names)
        several, one = listed(images, self.preprocess.channels)
        _, found = captured_inputs(self.model, self.inputs(several), self.task.search, wanted)
        return {name: np.asarray(found[name][0] if one else found[name]) for name in wanted}

    def answer(self, inputs: Sequence[str | os.PathLike[str]], top: int = 3, batch: int = BATCH) -> Iterator[Answer]:
        """The caption of each image file, `batch` at a time; `top` is not used. Raises UserError."""
        for begin in range(0, len(inputs), batch):
            files = list(inputs[begin : begin + batch])
            yield from map(answer, files, self._predicted(listed(files, self.preprocess.channels)[0], begin))

    @property
    def header(self) -> tuple[str, ...]:
        """The names of the columns of `Answer.rows`."""
        return header("file", "caption", self.task.decoding.nbest)

    def attention(self, image: Any) -> tuple[list[str], np.ndarray]:
        """(the T tokens of the caption of one image, their cross-attention on its patches [L, H, T, gh, gw])."""
        return self.task.attention(self.model, self.inputs([image]))

    @property
    def metadata(self) -> dict[str, Any]:
        """The preprocessing and the words, as config.json has them."""
        return {"preprocess": self.preprocess.to_dict(), **kept_one("words", self.task.words)}

    @property
    def layers(self) -> int:
        """The number of layers of the decoder."""
        return self.model.config.text.decoder_depth

    def draw_attention(self, inputs: Sequence[Any], path: Path, layers: Sequence[int] = (), caption: str = "") -> None:
        """Draw the cross-attention of the first image's caption, word by word, as the PNG `path`. Raises UserError."""
        words, maps = self.attention(inputs[0])
        pixels = visible(self.pixels([inputs[0]]))[0]
        draw_words(pixels, maps, words, path, layers=layers, caption=caption)

    def write_features(
        self, inputs: Sequence[Any], path: Path, blocks: Sequence[int] = (), norm: bool = True, batch: int = BATCH
    ) -> str:
        """Raise UserError: a captioner reads the tokens of its encoder one by one."""
        raise UserError("features", "a captioner pools none of an image", "give the weights of an image network alone")
