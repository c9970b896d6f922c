"""Captions: images to sentences, word by word, trained with cross entropy."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import jax.numpy as jnp
import numpy as np
from jax import Array

from ...augmentation.batch import augment, normalise
from ...augmentation.config import ImageAugment
from ...config.run import RunConfig
from ...data.base import GivenData, Other
from ...data.captions.caption_set import Captions
from ...data.captions.open import CaptionedImages, open_captions, open_other_captions
from ...data.images.preprocess import Preprocess
from ...figures.attention import draw_words
from ...figures.parts import Attention, Part
from ...models.captioner import Captioner
from ...models.captioner_config import CaptionerConfig
from ...models.layers import fold
from ...text.record import open_one
from ..base import Batch, Evaluation
from ..can import Abilities, Draws, MeasuresOthers, Tabulates
from ..classify.draw import save_samples, visible
from ..generated import CountsTokens, Generation, SearchesTexts
from ..next_token import mean_loss, shift_target, sums
from ..predictor import Predictor
from ..worst import draw_worst, summarise_worst, worst
from .score import WORDS, bleu4, cider_d, plain
from .spec import parts
from .use import CROSS, Describer, attention, search_captions

SAMPLES = 4


class CountsCaptions(CountsTokens):
    """Tokens and padding of captions."""

    def tokens(self, batch: Batch) -> tuple[int, int, int]:
        real = batch["target"] != self.task.target.ids.pad
        return int(real.sum() + real.any(1).sum()), real.size, int(real.size - real.sum())


@dataclass(frozen=True)
class Captioning(Generation, abstract=True):
    """The base of tasks of captions, whose batches have, besides "target", what `inputs` makes the input of."""

    can: ClassVar[Abilities] = (CountsCaptions, SearchesTexts)

    def inputs(self, batch: Batch, dtype: Any) -> Array:
        """The network's input of a batch -> images [B, h, w, C], or vectors [B, S, C]."""
        raise NotImplementedError

    @property
    def selection_metric(self) -> tuple[str, int]:
        """Exact match; in an open vocabulary, where captions are seldom the very same, CIDEr-D."""
        return ("cider_d" if self.target.open else "exact_match"), 1

    def shifted(self, batch: Batch) -> tuple[Array, Array, Array]:
        return shift_target(batch["target"], batch["target"], self.target.ids, self.target.ids.pad)

    def loss(self, model: Captioner, batch: Batch, keys: Array, denominator: Array) -> tuple[Array, dict[str, Array]]:
        """The cross entropy of target tokens: keys [B] -> (loss [], {"accuracy": []})."""
        inputs, labels, real = self.shifted(batch)
        logits = model(self.inputs(batch, model.dtype), inputs, keys=fold(keys, 1))
        return mean_loss(logits, labels, real, self.label_smoothing, denominator)

    def outputs(self, model: Captioner, batch: Batch) -> dict[str, Array]:
        """What `score` needs of each example, with labels not smoothed -> [B]."""
        given, (inputs, labels, real) = self.inputs(batch, model.dtype), self.shifted(batch)
        wanted = ("logits", CROSS) if "touched" in batch else ("logits",)
        found = model.capture(given, inputs, wanted)
        out = sums(found["logits"], labels, real) | {"predicted": self.texts(model, batch)}
        if "touched" in batch:
            # The map of the word at place t of the caption is that of the token that predicts it.
            maps = found[CROSS].mean((1, 2))[:, :-1]  # [B, T, S]
            places = maps.shape[-1] - batch["touched"].shape[-1]  # prefix tokens, before the patches
            out |= in_boxes(maps[..., places:], batch["touched"], maps.shape[-1])
        return out

    def texts(self, model: Captioner, batch: Batch) -> Array:
        """The best caption of each example; none of a row of padding."""
        given, real = self.inputs(batch, model.dtype), self.shifted(batch)[2]
        return self.search.best(search_captions(model, given, self.search, real.any(-1)))

    def score(self, config: CaptionerConfig, split: Any, out: dict[str, np.ndarray]) -> Evaluation:
        """The metrics of a split: loss and accuracy per token, and exact match. Shapes: out [n, ...].

        Exact match is the share of captions that are right to the last word, as `said_exactly` counts them. With
        `outputs` of boxes also their means. Of images with several captions also CIDEr-D and BLEU-4; all other metrics
        are against the first one.
        """
        metrics = self.token_scores(split, out, [each[0] for each in split.references])
        boxes = {"attention_in_box": "in_box", "uniform_in_box": "uniform"}
        metrics |= {name: float(out[key].astype(np.float64).mean()) for name, key in boxes.items() if key in out}
        if split.references:
            said = [plain(self.target.decode(row)) for row in out["predicted"]]
            several = [[plain(caption) for caption in each] for each in split.references]
            metrics |= {"cider_d": cider_d(said, several), "bleu4": bleu4(said, several)}
        notes = (WORDS,) if split.references else ()
        return Evaluation(
            metrics, out["predicted"], notes=notes + ((self.target.remark,) if self.target.remark else ())
        )


class MeasuresImages(MeasuresOthers):
    """Other images with captions."""

    def open_data(
        self, run: RunConfig, metadata: Mapping[str, Any], split: str, given: GivenData | None = None
    ) -> Other:
        """Images and captions that were given in Python, or of another source, prepared as the network's own."""
        preprocess = Preprocess.from_dict(metadata["preprocess"])
        return open_other_captions(parts(run)[1], split, preprocess, open_one("words", metadata), run.seed, given)


class TabulatesImages(Tabulates):
    """A row for each image."""

    def predicted(
        self, split: Captions, result: Evaluation, metadata: Mapping[str, Any]
    ) -> tuple[tuple[str, ...], Iterator[tuple[str | int, ...]]]:
        """A row for each image: its place in the data, its caption, and that by the network."""
        rows = (
            (split.name(i), self.task.target.decode(split.target[i]), self.task.target.decode(result.predicted[i]))
            for i in range(len(split))
        )
        return ("file", "true", "predicted"), rows


class DrawsCaptions(Draws):
    """Cross-attention word by word, and the worst captions."""

    def result(
        self, split: Captions, result: Evaluation, metadata: Mapping[str, Any], folder: Path, caption: str
    ) -> tuple[tuple[str, ...], Sequence[Part]]:
        """The images with the worst captions, by chrF; of several references the most alike counts."""
        said = [self.task.target.decode(row) for row in result.predicted]
        references = split.references or [(self.task.target.decode(row),) for row in split.target]
        wrong = worst(map(split.name, range(len(split))), references, said, cased=False)
        images, file = (lambda numbers: visible(split.take(numbers))), folder / "worst.png"
        shown = draw_worst(images, wrong, len(split), file, caption)
        return summarise_worst(wrong, len(split), file.name), [shown]

    def network(
        self, network: Captioner, data: CaptionedImages, plots: Path, samples: Path, caption: str
    ) -> tuple[str, Sequence[Part]]:
        """Write sample images, and the cross-attention on them, word by word: drawn of the first, kept of all."""
        split = data.splits.get("test") or data.splits["train"]
        images = split.take(np.arange(min(SAMPLES, len(split))))
        truth = [data.vocabulary.decode(row) for row in split.target[:SAMPLES]]
        saved = save_samples(samples, images, truth, data.preprocess.range)
        examples = []
        for title, image in zip(truth, images, strict=True):
            words, maps = attention(self.task, network, self.task.inputs({"image": image[None]}, network.dtype))
            shown = {"title": title, "image": visible(image), "grid": network.config.vit.grid, "queries": words}
            examples.append({**shown, "weights": maps.reshape(*maps.shape[:3], -1)})
            if len(examples) == 1:
                draw_words(visible(image), maps, words, plots / "words.png", caption=caption)
        return f"{samples.name}/{saved[0]}" if saved else "", [Attention(caption, examples)]


@dataclass(frozen=True)
class Caption(Captioning):
    """The task `caption`. A batch is {"image": uint8 [B, h, w, C], "target": int32 [B, T]}, ids padded."""

    augment: ImageAugment
    mean: tuple[float, ...]  # per channel, of pixels in 0..1
    std: tuple[float, ...]

    predictor: ClassVar[type[Predictor]] = Describer
    can: ClassVar[Abilities] = (*Captioning.can, MeasuresImages, TabulatesImages, DrawsCaptions)

    @classmethod
    def open_data(cls, run: RunConfig, given: GivenData | None = None, fetch: bool = True) -> CaptionedImages:
        c, data, augment = parts(run)
        how = {name: getattr(augment, name) for name in ("normalize", "mean", "std")}
        return open_captions(
            data, c.vit.image, c.vit.channels, c.vit.grid, **how, words=c.text.outputs, seed=run.seed, given=given
        )

    @classmethod
    def from_run(cls, run: RunConfig, metadata: Mapping[str, Any]) -> Caption:
        mean, std = (tuple(metadata["preprocess"][name]) for name in ("mean", "std"))
        (_, data, augment), words = parts(run), open_one("words", metadata)
        return cls(run.loss.spread_over_all(len(words)), data.length, words, augment, mean, std)

    def prepare(self, batch: Batch, keys: Array) -> Batch:
        """The batch with its images augmented: uint8 [B, h, w, C]."""
        return {**batch, "image": augment(batch["image"], fold(keys, 0), self.augment)}

    def inputs(self, batch: Batch, dtype: Any) -> Array:
        """The network's input: the images of a batch, normalised. Shapes: batch uint8 [B, h, w, C] -> [B, h, w, C]."""
        return normalise(batch["image"], self.mean, self.std, dtype)


def in_boxes(maps: Array, touched: Array, tokens: int) -> dict[str, Array]:
    """How much of the attention of words lies on what they name: maps [B, T, N], touched bool [B, T, N] -> {"in_box":
    [B], "uniform": [B]}, as `Captioning.outputs` says.
    """
    named = touched.any(-1)  # [B, T]
    words = jnp.maximum(named.sum(-1), 1)
    return {
        "in_box": jnp.where(touched, maps, 0).sum((1, 2)) / words,
        "uniform": touched.sum((1, 2)) / (words * tokens),
    }
