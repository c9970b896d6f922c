"""Figures and sections of a report that say how good a result is: of each label, of numbers, of probabilities."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np

from ...figures.classification import draw_per_class, draw_reliability
from ...figures.gallery import MOST, draw_gallery
from ...figures.numbers import draw_numbers
from ...figures.report_data import Section
from ...files.output import shorten, write_csv
from ...scores.suspects import Suspects
from .draw import visible
from .trust import Trust

WIDE = 22  # letters of a name above an image


def cell(value: float, digits: str = ".4f") -> str:
    """A number of a table; a dash where it is undefined."""
    return "-" if np.isnan(value) else format(value, digits)


def trust_section(trust: Trust | None, folder: Path, what: str, caption: str) -> list[Section]:
    """Draw how far probabilities can be trusted."""
    if trust is None:
        return []
    draw_reliability(trust.panels, folder / "reliability.png", what, trust.drawn, caption)
    errors = ", ".join(f"{each.error:.4f} {name}" for name, each in trust.panels.items())
    about = (
        f"{caption}: the calibration error (ECE) is {errors}; labels drawn from the probabilities themselves would "
        f"have {trust.drawn:.4f} on as many, so only more than that is an error"
    )
    return [Section("How far probabilities can be trusted", about, folder / "reliability.png")]


def suspects_section(
    split: Any, found: Suspects, given: Sequence[str], guesses: Sequence[str], folder: Path, caption: str
) -> list[Section]:
    """Draw the images whose label may be wrong, and write all of them to suspects.csv."""
    rows = zip(
        map(split.name, found.images.tolist()), given, guesses, map("{:.6f}".format, found.probability), strict=True
    )
    write_csv(folder / "suspects.csv", ("file", "label", "seems", "probability of the label"), rows)
    images = visible(split.take(found.images[:MOST]))
    words = [
        f"{shorten(a, WIDE)}\n→ {shorten(b, 14)}? ({p:.2f})"
        for a, b, p in zip(given[:MOST], guesses[:MOST], found.probability[:MOST], strict=True)
    ]
    title = "Labels that may be wrong: given label → what it seems to be (probability of the given one)"
    draw_gallery(images, words, folder / "suspects.png", title, caption, "No label is suspected to be wrong.")
    about = (
        f"{caption}: {len(found):,} labels of {len(split):,} images are suspected by confident learning, the least "
        "probable first; suspects.csv has all. A network that errs suspects right labels too: look at them"
    )
    names = map(split.name, found.images[:MOST].tolist())
    pictures = [(name, each.replace("\n", " "), image) for name, each, image in zip(names, words, images, strict=True)]
    return [Section("Labels that may be wrong", about, images=pictures)]


def worst_labels(result: Any, truth: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The most confident mistakes of a Labelled: the numbers of images and of labels, int [m] each, the worst first."""
    error = np.where((result.predicted != truth) & (truth >= 0), np.abs(result.probabilities - truth), -1.0)
    worst = np.argsort(-error, axis=None, kind="stable")[:MOST]
    images, labels = np.unravel_index(worst[error.reshape(-1)[worst] >= 0], truth.shape)
    return images, labels


def worst_numbers(predicted: np.ndarray, truth: np.ndarray, std: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The images with the largest errors in standard deviations, int [m], and the number of each that is worst."""
    errors = np.abs(predicted - truth) / std
    worst = np.argsort(-np.nan_to_num(errors.max(1), nan=np.inf), kind="stable")[:MOST]
    return worst, errors[worst].argmax(1)


def label_sections(
    split: Any, result: Any, names: Sequence[str], thresholds: np.ndarray, folder: Path, caption: str
) -> list[Section]:
    """Draw scores of each label of a set and the most confident mistakes, and give the table of labels: thresholds
    float [K].
    """
    each, truth = result.each, split.labels
    draw_per_class(each["precision"], each["recall"], each["f1"], names, folder / "per-class.png", caption, "label")
    positives = (truth == 1).sum(0)
    scores = ("average_precision", "auroc", "precision", "recall", "f1")
    rows = [
        (name, f"{positives[k]:,}", *(cell(each[score][k]) for score in scores), cell(thresholds[k], ".4g"))
        for k, name in enumerate(names)
    ]
    head = ("label", "images", "AP", "AUROC", "precision", "recall", "F1", "threshold")
    places, labels = worst_labels(result, truth)
    images = visible(split.take(places))
    words = [
        f"{shorten(names[k], WIDE)}\n{'is there' if truth[i, k] else 'is not there'} ({result.probabilities[i, k]:.2f})"
        for i, k in zip(places, labels, strict=True)
    ]
    title = "The most confident mistakes: a label, whether it is there (its probability)"
    draw_gallery(
        images, words, folder / "wrong.png", title, caption, "No mistakes: every label of every image is right."
    )
    pictures = [
        (split.name(int(i)), each.replace("\n", " "), image)
        for i, each, image in zip(places, words, images, strict=True)
    ]
    about = f"{caption}; a dash where no image has the label"
    return [
        Section("Each label", about, head=head, rows=rows),
        Section("The most confident mistakes", caption, images=pictures),
    ]


@dataclass(frozen=True)
class Plain:
    """What a network without eyes would say of K numbers: their mean. Shapes: mean float [K]."""

    mean: np.ndarray
    std: np.ndarray
    whose: str

    @classmethod
    def of(cls, labels: np.ndarray) -> Self:
        """Of the images that are measured, float [n, K]: where those of training are not known."""
        std = labels.std(0)
        return cls(labels.mean(0), np.where(std > 0, std, 1), "these images")


def number_sections(
    split: Any, result: Any, names: Sequence[str], plain: Plain, folder: Path, caption: str
) -> list[Section]:
    """Draw predicted numbers over the true ones and the largest errors, and give the table of numbers."""
    each, truth = result.each, split.labels
    draw_numbers(truth, result.predicted, names, each, plain.mean, folder / "numbers.png", caption, plain.whose)
    scores, blind = ("mae", "rmse", "r2", "pearson", "spearman"), truth - plain.mean
    errors = np.abs(blind).mean(0), np.sqrt((blind**2).mean(0))
    rows = [
        (name, *(cell(each[s][k], ".4g") for s in scores), *(cell(values[k], ".4g") for values in errors))
        for k, name in enumerate(names)
    ]
    head = ("number", "MAE", "RMSE", "R2", "Pearson", "Spearman", "MAE of the mean", "RMSE of the mean")
    worst, at = worst_numbers(result.predicted, truth, plain.std)
    images = visible(split.take(worst))
    words = [
        f"{shorten(names[k], WIDE)}\n{truth[i, k]:.4g} → {result.predicted[i, k]:.4g}"
        for i, k in zip(worst, at, strict=True)
    ]
    title = f"The largest errors, in standard deviations of {plain.whose}: truth → prediction"
    draw_gallery(images, words, folder / "wrong.png", title, caption)
    pictures = [
        (split.name(int(i)), each.replace("\n", " "), image)
        for i, each, image in zip(worst, words, images, strict=True)
    ]
    about = f"{caption}; the last columns are the errors of always saying the mean of {plain.whose}"
    return [
        Section("Each number", about, folder / "numbers.png", head, rows),
        Section("The largest errors", caption, images=pictures),
    ]
