"""What counted in an image, or in a sentence, for each token of the text that a trained network writes of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

import jax.numpy as jnp
import numpy as np
from jax import Array

from ...decode.buckets import lengths_to
from ...errors import Field, UserError
from ...figures.parts import Section
from ...tasks.capability import EXPLAIN_STEPS
from ...tasks.caption.learn import Captioning
from ...tasks.caption.use import Describer, captured_inputs
from ...tasks.classify.draw import visible
from ...tasks.generated import tokens_and_end
from ...tasks.predictor import check_positive
from ...tasks.translate.use import Translator, captured_ids, strip_padding
from .capability import TEXTS, Method
from .explained import KEY, CaptionExplanation, TranslationExplanation, draw_explained_text, names_of, overlaid
from .relevance import explain_caption, explain_translation, given_and_said

TITLE = "What counted for each word"


class OfTexts:
    """How a network that writes texts is explained."""

    most: ClassVar[int] = TEXTS

    def __init__(self, predictor: Any):
        self.predictor = predictor

    def check(self, method: str, class_name: str) -> None:
        """Raise UserError where a class is named."""
        if class_name:
            what = f"is {class_name[:40]}, but this network says a text and no classes: each token of it is explained"
            raise UserError(Field("class"), what, "leave it out")


class OfTranslations(OfTexts):
    """How a translator is."""

    predictor: Translator

    def explain(
        self, texts: Any, method: Method, class_name: str, steps: int = EXPLAIN_STEPS
    ) -> TranslationExplanation:
        check_positive(steps=steps)
        net, several = self.predictor, [texts] if isinstance(texts, str) else list(texts)
        each = (explained_translation(net.task, net.model, ids, method, steps) for ids in net.encoded(several))
        sources, tokens, maps = zip(*each, strict=True)
        return TranslationExplanation(method, tuple(several), tokens, maps, sources)

    @staticmethod
    def draw(task: Any, network: Any, data: Any, result: Any, plots: Path, caption: str) -> list[Section]:
        """Draw which tokens of the first sentence counted for each token of its translation."""
        shown = data.splits.get("test") or data.splits["train"]
        source = shown.subset(np.arange(1)).source[0]
        words, said, maps = explained_translation(
            task, network, strip_padding(data.source, source), "ig", EXPLAIN_STEPS
        )
        draw_explained_text(maps, said, words, plots / "explained.png", TITLE, caption)
        text = data.source.decode(source)
        about = f"{caption}: {text}; by integrated gradients: how much a token of the sentence raised the logit"
        rows = [(token, *map("{:.2f}".format, row)) for token, row in zip(said, maps, strict=True)]
        return [Section(TITLE, about, plots / "explained.png", ("said", *words), rows)]


class OfCaptions(OfTexts):
    """How a captioner of images is."""

    predictor: Describer

    def explain(self, images: Any, method: Method, class_name: str, steps: int = EXPLAIN_STEPS) -> CaptionExplanation:
        check_positive(steps=steps)
        net, (several, _) = self.predictor, self.predictor.as_list(images)
        pixels = net.pixels(several)
        each = (explained_caption(net.task, net.model, image, method, steps) for image in net.normalised(pixels))
        tokens, maps = zip(*each, strict=True)
        return CaptionExplanation(method, names_of(several), tokens, maps, pixels)

    @staticmethod
    def draw(task: Any, network: Any, data: Any, result: Any, plots: Path, caption: str) -> list[Section]:
        """Which patches of the first image counted for each token of its caption."""
        split = data.splits.get("test") or data.splits["train"]
        first = split.take(np.arange(1))
        image = task.inputs({"image": first}, network.dtype)[0]
        said, maps = explained_caption(task, network, image, "ig", EXPLAIN_STEPS)
        name, shown = split.name(0), visible(first)[0]
        pictures = [(name, word, overlaid(shown, each)) for word, each in zip(said, maps, strict=True)]
        truth = data.vocabulary.decode(split.target[0])
        about = f"{caption}: {truth}; integrated gradients of each word; {KEY}"
        return [Section(TITLE, about, images=pictures)]


def explained_translation(
    task: Any, network: Any, ids: np.ndarray, method: Method, steps: int
) -> tuple[tuple[str, ...], tuple[str, ...], np.ndarray]:
    """What each token of a sentence counted for each token of its translation: ids int32 [S] -> (the S tokens, the T
    tokens of the translation, float64 [T, S]).
    """
    search, pad = task.search, task.source.ids.pad
    padded = np.full(next(n for n in lengths_to(search.length, len(ids)) if n >= len(ids)), pad, np.int32)
    padded[: len(ids)] = ids
    row = np.asarray(captured_ids(network, jnp.asarray(padded[None]), search, pad, ())[0][0])
    given, said, count = given_and_said(search.ids, row, search.length)
    maps = explain_translation(network, padded, pad, given, said, method, steps)
    return tuple(task.source.tokens(ids)), tuple(tokens_and_end(task.target, row)), maps[:count, : len(ids)]


def explained_caption(
    task: Captioning, network: Any, image: Array, method: Method, steps: int
) -> tuple[tuple[str, ...], np.ndarray]:
    """Which patches of an image counted for each token of its caption: image [h, w, C] -> (the T tokens, float64 [T,
    gh, gw]).
    """
    search = task.search
    row = np.asarray(captured_inputs(network, image[None], search, ())[0][0])
    given, said, count = given_and_said(search.ids, row, search.length)
    maps = explain_caption(network, image, given, said, method, steps)[:count]
    return tuple(tokens_and_end(task.target, row)), maps
