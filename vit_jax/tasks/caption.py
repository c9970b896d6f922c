"""Captions: images to sentences, word by word, trained with cross entropy."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, cast

import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax import Array

from .. import report
from ..augment import augment, normalise
from ..captioner import Captioner
from ..config import CaptionData, CaptionerConfig, ImageAugment, RunConfig, Teacher
from ..config.decoding import Decoding
from ..data import (
    CaptionedImages,
    Captions,
    Given,
    Other,
    Preprocess,
    listed,
    open_captions,
    open_other_captions,
    prepared,
)
from ..decode import Found
from ..errors import UserError
from ..layers import fold
from ..models import described
from ..runs import Run
from ..text import Tokenizer, kept_one, made_one, opened_one
from .caption_score import bleu4, cider_d, plain
from .classify_pictures import save_samples, visible
from .contract import Answer, Batch, Evaluation, Trained
from .generated import Search, answer, changed, compiled, header, value
from .next_token import mean_loss, shifted, sums
from .worst import draw_worst, printed, worst

BATCH = 64  # images per batch of a prediction
CROSS = "decoder.cross_attention"  # the weights from the tokens of a caption to those of the memory
SAMPLES = 4  # sample images written at the end of a training


@dataclass(frozen=True)
class Caption:
    """The task `caption`. A batch is {"image": uint8 [B, h, w, C], "target": int32 [B, T]}, ids padded.

    The decoder is given a begin and the target, and has to predict the target and an end (teacher forcing).
    """

    augment: ImageAugment
    mean: tuple[float, ...]  # per channel, of pixels in 0..1
    std: tuple[float, ...]
    label_smoothing: float
    length: int  # most tokens of a caption, its end included
    words: Tokenizer
    decoding: Decoding = field(default_factory=Decoding)  # how captions are searched for

    unit: ClassVar[str] = "images"
    frozen: ClassVar[dict[str, Any]] = {}
    frozen_in_outputs: ClassVar[bool] = False

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
        return cls(
            cast(ImageAugment, run.augment),
            mean,
            std,
            run.loss.label_smoothing,
            data.length,
            opened_one("words", metadata),
        )

    @classmethod
    def metadata_beside(cls, run: RunConfig) -> dict[str, Any]:
        """The tokenizer beside weights, as a run keeps it."""
        data = cast(CaptionData, run.data)
        return kept_one("words", made_one(data.tokenizer, data.vocabulary, ()))

    def load_frozen(self, teacher: Teacher | None) -> Caption:
        """The task itself: its loss has no frozen arrays."""
        return self

    @property
    def selection_metric(self) -> tuple[str, int]:
        """Exact match; in an open vocabulary, where captions are seldom the very same, CIDEr-D."""
        return ("cider_d" if self.words.open else "exact_match"), 1

    def mirrored(self) -> None:
        """None: a mirror image may have another caption."""

    def searching(self, changes: Mapping[str, Any]) -> Caption:
        """The task with other settings of its search. Raises UserError."""
        return replace(self, decoding=changed(self.decoding, changes, self.length, self.words.unit))

    @property
    def search(self) -> Search:
        """What a search for captions has to know besides the network and the images."""
        return Search(self.words.ids, self.length, self.decoding)

    def prepare(self, batch: Batch, keys: Array, epoch: Array) -> Batch:
        """The batch with its images augmented: uint8 [B, h, w, C]."""
        return {**batch, "image": augment(batch["image"], fold(keys, 0), self.augment)}

    def tokens(self, batch: Batch) -> tuple[int, int, int]:
        """(target tokens, ends included; places for ids; how many of these are padding)."""
        real = batch["target"] != self.words.ids.pad
        return int(real.sum() + real.any(1).sum()), real.size, int(real.size - real.sum())

    def denominator(self, batch: Batch) -> Array:
        """The number of target tokens of a batch, ends included and padding excluded: []."""
        return self.shifted(batch)[2].sum()

    def shifted(self, batch: Batch) -> tuple[Array, Array, Array]:
        """`next_token.shifted` of a batch."""
        return shifted(batch["target"], batch["target"], self.words.ids, self.words.ids.pad)

    def images(self, batch: Batch, dtype: Any) -> Array:
        """The network's input: the images of a batch, normalised, [B, h, w, C] of `dtype`."""
        return normalise(batch["image"], self.mean, self.std, dtype)

    def loss(self, model: Captioner, batch: Batch, keys: Array, denominator: Array) -> tuple[Array, dict[str, Array]]:
        """(cross entropy [], {"accuracy": []}): sums over target tokens / `denominator`; `keys` [B] are for dropout."""
        inputs, labels, real = self.shifted(batch)
        logits = model(self.images(batch, model.dtype), inputs, keys=fold(keys, 1))
        return mean_loss(logits, labels, real, self.label_smoothing, denominator)

    def outputs(self, model: Captioner, batch: Batch) -> dict[str, Array]:
        """For each example, with labels not smoothed.

        By teacher forcing: "loss" [B] (a sum over tokens), "tokens" [B] and "right" [B] (how many of them are predicted
        right). Searched for: "predicted" int32 [B, length]. Where the batch says which patches the named objects
        touch ("touched" [B, T, N]): "in_box" [B], the share of the cross-attention of these words (mean over layers and
        heads, and over the words) that lies on them, and "uniform" [B], what it would be if it were equal everywhere.
        """
        images, (inputs, labels, real) = self.images(batch, model.dtype), self.shifted(batch)
        wanted = ("logits", CROSS) if "touched" in batch else ("logits",)
        found = model.capture(images, inputs, wanted)
        best = self.search.best(searched(model, images, self.search, real.any(-1)))
        out = sums(found["logits"], labels, real) | {"predicted": best}
        if "touched" in batch:
            # The map of the word at place t of the caption is that of the token that predicts it.
            maps = found[CROSS].mean((1, 2))[:, :-1]  # [B, T, S]
            places = maps.shape[-1] - batch["touched"].shape[-1]  # prefix tokens, before the patches
            out |= in_boxes(maps[..., places:], batch["touched"], maps.shape[-1])
        return out

    def score(self, config: CaptionerConfig, split: Captions, out: dict[str, np.ndarray]) -> Evaluation:
        """The metrics of a split, from the outputs of all its examples: loss and accuracy per token, exact match.

        Exact match is the share of captions that are right to the last word. With `outputs` of boxes also their means.
        Of images with several captions also CIDEr-D and BLEU-4; all other metrics are against the first one.
        """
        ids, width = self.words.ids, out["predicted"].shape[1] - split.target.shape[1]
        truth = np.pad(split.target, ((0, 0), (0, width)), constant_values=ids.pad)
        tokens = int(out["tokens"].sum())
        metrics = {
            "loss": float(out["loss"].astype(np.float64).sum() / tokens),
            "accuracy": float(out["right"].sum() / tokens),
            "exact_match": float((out["predicted"] == truth).all(1).mean()),
        }
        boxes = {"attention_in_box": "in_box", "uniform_in_box": "uniform"}
        metrics |= {name: float(out[key].astype(np.float64).mean()) for name, key in boxes.items() if key in out}
        if split.references:
            said = [plain(self.words.decode(row)) for row in out["predicted"]]
            several = [[plain(caption) for caption in each] for each in split.references]
            metrics |= {"cider_d": cider_d(said, several), "bleu4": bleu4(said, several)}
        return Evaluation(metrics, out["predicted"])

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

    def pictures(self, network: Captioner, data: CaptionedImages, folder: Run, caption: str) -> str:
        """Sample images, and the cross-attention of the first, word by word. Returns the first sample image."""
        split = data.splits.get("test") or data.splits["train"]
        images = split.take(np.arange(min(SAMPLES, len(split))))
        truth = [data.vocabulary.decode(row) for row in split.target[:SAMPLES]]
        saved = save_samples(folder, images, truth) if data.preprocess.channels in (1, 3) else []
        words, maps = self.attention(network, self.images({"image": images[:1]}, network.dtype))
        report.draw_words(visible(images)[0], maps, words, folder.plots / "words.png", caption=caption)
        return f"{folder.samples.name}/{saved[0]}" if saved else ""

    def attention(self, network: Captioner, images: Array) -> tuple[list[str], np.ndarray]:
        """(the T tokens of the caption of the first image, their cross-attention on its patches [L, H, T, gh, gw])."""
        found, values = _captured(network, images[:1], self.search, (CROSS,))
        row, ids = np.asarray(found[0]), self.words.ids
        tokens = self.words.tokens([*ids.until_end(row), ids.end][: len(row)])  # with its end, unless it has none
        return tokens, on_patches(network, np.asarray(values[CROSS][0]))[:, :, : len(tokens)]


def in_boxes(maps: Array, touched: Array, tokens: int) -> dict[str, Array]:
    """{"in_box": [B], "uniform": [B]}, as `Caption.outputs` says, of maps [B, T, N] on patches touched [B, T, N].

    `tokens` is the length of the memory, with tokens that are no patches.
    """
    named = touched.any(-1)  # [B, T]
    words = jnp.maximum(named.sum(-1), 1)
    return {
        "in_box": jnp.where(touched, maps, 0).sum((1, 2)) / words,
        "uniform": touched.sum((1, 2)) / (words * tokens),
    }


def searched(
    model: Captioner, images: Array, search: Search, rows: Array | None = None, keys: Array | None = None
) -> Found:
    """The captions of normalised images [B, h, w, C], by `Search.found`."""
    return search.found(model, model.encode(images), None, rows, keys=keys)


def captured(model: Captioner, images: Array, search: Search, names: tuple[str, ...]) -> tuple[Array, dict[str, Array]]:
    """(the best captions int32 [B, length] of normalised images, {name: inner value}).

    The values are those of an evaluation pass in which the decoder is given the captions.
    """
    said = search.best(searched(model, images, search))
    return said, model.capture(images, search.inputs(said), names)


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
        return self.task.images({"image": self.pixels(images)}, self.model.dtype)

    def predict(self, images: Any, batch: int = BATCH) -> Any:
        """The caption of each image, `batch` at a time: a list of texts, or of one image its text.

        Where the search gives several (nbest), a list of (caption, score) takes the place of a caption.
        """
        if batch < 1:
            raise UserError(f"batch is {batch}: give a positive number")
        several, one = listed(images, self.preprocess.channels)
        captions: list[Any] = []
        for begin in range(0, len(several), batch):
            captions += self._predicted(several[begin : begin + batch], begin)
        return captions[0] if one else captions

    def _predicted(self, several: Sequence[Any], first: int = 0) -> list[Any]:
        """The prediction for images, of which the first one has the number `first`."""
        search, words = self.task.search, self.task.words
        keys = search.keys(first + jnp.arange(len(several)))
        found = _searched(self.model, self.inputs(several), search.seedless, None, keys)
        rows = zip(np.asarray(found.tokens), np.asarray(found.scores), strict=True)
        return [value([*map(words.decode, each)], scores, search.decoding.nbest) for each, scores in rows]

    def capture(self, images: Any, names: Iterable[str]) -> dict[str, np.ndarray]:
        """Inner values of the network while it writes, {name: array [B, ...]}, or [...] of one image.

        The names are those of `Captioner.capture`: vit.blocks.I, memory, decoder.cross_attention, ... The decoder is
        given its own caption, so that row t of its values is that of the t-th token. Raises ValueError on any other.
        """
        wanted = (names,) if isinstance(names, str) else tuple(names)
        several, one = listed(images, self.preprocess.channels)
        _, found = _captured(self.model, self.inputs(several), self.task.search, wanted)
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
        report.draw_words(pixels, maps, words, path, layers=layers, caption=caption)


_searched = compiled(searched, static=(2,))
_captured = nnx.jit(captured, static_argnums=(2, 3))
