"""The pictures of an image classifier: sample images, what is inside, and how good a result is."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ...data.images.high_bit_depth import Range, of_range
from ...figures import attention
from ...figures.gallery import MOST, draw_gallery
from ...figures.parts import Attention, Classes, Part, Positions, Section, Sections
from ...figures.patches import draw_patches, draw_positions
from ...figures.results import draw_confusion, draw_numbers, draw_per_class, draw_reliability
from ...files.output import shorten, write_csv
from ...kinds.base import Kind
from ...kinds.classes import Classified, mistakes
from ...kinds.label_sets import THERE, Labelled, worst_labels
from ...kinds.numbers import Estimated, Numbers, worst_numbers
from ...models.vit import ViT, fixed_positions
from ...models.vit_config import ViTConfig
from ...scores.calibration import Trust
from ...scores.suspects import Suspects, join_suspects

WIDE = 22  # letters of a name above an image


def save_samples(folder: Path, images: np.ndarray, names: Sequence[str], stated: Range = ()) -> list[str]:
    """Replace the files of a folder of samples: images uint8 [m, h, w, C]."""
    from PIL import Image

    shutil.rmtree(folder)
    folder.mkdir()
    grey = bool((images == images[..., :1]).all())
    if images.shape[-1] not in (1, 3) or (stated and not grey):
        return []
    files = []
    for i, (image, name) in enumerate(zip(images, names, strict=False)):
        pixels = image[..., 0] if stated or image.shape[-1] == 1 else image
        pixels = of_range(pixels, *stated) if stated else pixels
        suffix = "tif" if pixels.dtype == np.float32 else "png"
        files.append(f"{i}-{''.join(c if c.isalnum() else '_' for c in name)[:40]}.{suffix}")
        Image.fromarray(pixels).save(folder / files[-1])
    return files


def of_several_classes(labels: np.ndarray, count: int) -> np.ndarray:
    """Indices of some images, int [k], of as many classes as there are: labels int [n].

    The classes are evenly spread over those of the split in order of their first image; of each the first image is
    taken, then, where there are fewer classes than `count`, the second, and so on. The first image is always taken.
    """
    first = np.sort(np.unique(labels, return_index=True)[1])  # the first image of each class
    spread = first[np.linspace(0, len(first) - 1, min(count, len(first))).round().astype(int)]
    in_turn = [np.flatnonzero(labels == labels[i]) for i in spread]
    rounds = [images[k] for k in range(count) for images in in_turn if k < len(images)]
    return np.array(rounds[:count])


def draw_inside(
    network: ViT,
    images: np.ndarray,
    found: Mapping[str, Any],
    plots: Path,
    caption: str,
    truth: Sequence[str],
    kind: Kind,
) -> list[Part]:
    """Draw patches, position embeddings and attention of a network: images uint8 [m, h, w, C]."""
    c = network.config
    draw_patches(visible(images)[0], c.patch_size, plots / "patches.png")
    logits = np.asarray(found["logits"])
    labels = [kind.caption(name, kind.top_k(x, 1)) for name, x in zip(truth, logits, strict=True)]
    below, file = f"{caption}; true {kind.each[kind.columns]} → {kind.legend}", plots / "attention.png"
    maps = np.asarray(found["attention"])
    draw_attention(c, images, maps, file, labels=labels, caption=below)
    titles = [label.replace("\n", " ") for label in labels]
    looks = zip(titles, visible(images), maps, strict=True)
    examples = [{"title": title, "image": image, "grid": c.grid, "weights": x} for title, image, x in looks]
    names = [name.replace("_", " ") for name, count, _ in c.prefix for _ in range(count)]
    shown = Attention(below, examples, names)
    if c.position == "none":
        return [shown]
    position = np.asarray(network.position[...]) if network.position is not None else fixed_positions(c)
    prefix = c.position_rows - c.patches
    draw_positions(position, prefix, c.grid, plots / "positions.png", caption)
    return [shown, Positions(caption, position, prefix, c.grid)]


def visible(images: np.ndarray) -> np.ndarray:
    """Images [m, h, w, C] as RGB or grey: their first three channels, or the first where there are fewer than three."""
    return images[..., : 3 if images.shape[-1] >= 3 else 1]


def draw_attention(c: ViTConfig, images: np.ndarray, maps: np.ndarray, path: Path | None, **options: Any) -> None:
    """Draw attention maps: of the class token where the head reads that token, else the mean over all patches. Shapes:
    images uint8 [m, h, w, C], maps float [m, L, H, N, N].
    """
    of_class = c.pool in ("cls", "cls_distill", "cls_mean")
    attention.draw_attention(visible(images), maps, c.first_patch, c.grid, of_class, path, **options)


def _gallery(
    split: Any, numbers: np.ndarray, words: Sequence[str], file: Path, title: str, caption: str, empty: str = ""
) -> list[tuple[str, str, np.ndarray]]:
    """Draw the images of these numbers with two lines above each; returns them as a Section has them."""
    images = visible(split.take(numbers))
    draw_gallery(images, words, file, title, caption, empty)
    names = map(split.name, numbers.tolist())
    return [(name, each.replace("\n", " "), image) for name, each, image in zip(names, words, images, strict=True)]


def draw_classes(split: Any, result: Classified, names: Sequence[str], folder: Path, caption: str) -> Classes:
    """Draw the confusion matrix, the scores per class and the most confident mistakes on a split."""
    draw_confusion(result.confusion, names, folder / "confusion.png", caption)
    each = result.per_class
    draw_per_class(each["precision"], each["recall"], each["f1"], names, folder / "per-class.png", caption)
    worst = mistakes(result, split.labels)[:MOST]
    columns = [x[worst].tolist() for x in (split.labels, result.predicted, result.confidence)]
    words = [
        f"{shorten(names[true], WIDE)}\n→ {shorten(names[said], 14)} ({p:.2f})"
        for true, said, p in zip(*columns, strict=True)
    ]
    title = "Wrong predictions: true class → predicted class (confidence)"
    empty = "No wrong predictions: every image was classified right."
    pictures = _gallery(split, worst, words, folder / "wrong.png", title, caption, empty)
    rows = [
        {"name": name, "image": image, "true": true, "predicted": said, "confidence": p}
        for (name, _, image), true, said, p in zip(pictures, *columns, strict=True)
    ]
    return Classes(caption, names, result.confusion, each, rows)


def draw_classified(kind: Kind, split: Any, result: Classified, folder: Path, caption: str) -> Sequence[Part]:
    """The confusion matrix, scores of each class, mistakes, reliability, and labels that may be wrong."""
    names = kind.names
    classes = draw_classes(split, result, names, folder, caption)
    sections = trust_section(result.trust, folder, "share that is right", caption)
    if (found := result.suspects) is not None:
        given, guesses = ([names[k] for k in each] for each in (split.labels[found.images], found.guesses))
        sections += suspects_section(split, found, given, guesses, folder, caption)
    return classes, Sections(sections)


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
    words = [
        f"{shorten(a, WIDE)}\n→ {shorten(b, 14)}? ({p:.2f})"
        for a, b, p in zip(given[:MOST], guesses[:MOST], found.probability[:MOST], strict=True)
    ]
    title = "Labels that may be wrong: given label → what it seems to be (probability of the given one)"
    empty = "No label is suspected to be wrong."
    pictures = _gallery(split, found.images[:MOST], words, folder / "suspects.png", title, caption, empty)
    about = (
        f"{caption}: {len(found):,} labels of {len(split):,} images are suspected by confident learning, the least "
        "probable first; suspects.csv has all. A network that errs suspects right labels too: look at them"
    )
    return [Section("Labels that may be wrong", about, images=pictures)]


def _cell(value: float, digits: str = ".4f") -> str:
    """A number of a table; a dash where it is undefined."""
    return "-" if np.isnan(value) else format(value, digits)


def draw_labelled(kind: Kind, split: Any, result: Labelled, folder: Path, caption: str) -> Sequence[Part]:
    """Scores of each label, the most confident mistakes, reliability, and labels that may be wrong."""
    names = kind.names
    sections = _each_label(kind, split, result, folder, caption)
    sections += trust_section(result.trust, folder, "share that has the label", caption)
    if result.suspects:
        found, labels = join_suspects(result.suspects)
        given = [f"{names[k]}: {THERE[1 - guess]}" for k, guess in zip(labels, found.guesses, strict=True)]
        seems = [THERE[guess] for guess in found.guesses]
        sections += suspects_section(split, found, given, seems, folder, caption)
    return [Sections(sections)]


def _each_label(kind: Kind, split: Any, result: Labelled, folder: Path, caption: str) -> list[Section]:
    """A table of the scores of each label of a set, and the most confident mistakes."""
    names, thresholds = kind.names, kind.thresholds
    each, truth = result.each, split.labels
    draw_per_class(each["precision"], each["recall"], each["f1"], names, folder / "per-class.png", caption, "label")
    positives = (truth == 1).sum(0)
    scores = ("average_precision", "auroc", "precision", "recall", "f1")
    rows = [
        (name, f"{positives[k]:,}", *(_cell(each[score][k]) for score in scores), _cell(thresholds[k], ".4g"))
        for k, name in enumerate(names)
    ]
    head = ("label", "images", "AP", "AUROC", "precision", "recall", "F1", "threshold")
    places, labels = worst_labels(result, truth, MOST)
    words = [
        f"{shorten(names[k], WIDE)}\n{'is there' if truth[i, k] else 'is not there'} ({result.probabilities[i, k]:.2f})"
        for i, k in zip(places, labels, strict=True)
    ]
    title = "The most confident mistakes: a label, whether it is there (its probability)"
    empty = "No mistakes: every label of every image is right."
    pictures = _gallery(split, places, words, folder / "wrong.png", title, caption, empty)
    about = f"{caption}; a dash where no image has the label"
    return [
        Section("Each label", about, head=head, rows=rows),
        Section("The most confident mistakes", caption, images=pictures),
    ]


def draw_estimated(kind: Numbers, split: Any, result: Estimated, folder: Path, caption: str) -> Sequence[Part]:
    """Predicted numbers over the true ones, the largest errors, and a table beside those of a network without eyes.

    That says the mean of the training images, or where this is not known, of those that are measured.
    """
    names, mean, std, whose = kind.names, kind.mean, kind.std, "training"
    if not kind.outputs.std:
        mean, std, whose = split.labels.mean(0), split.labels.std(0), "these images"
        std = np.where(std > 0, std, 1)
    each, truth = result.each, split.labels
    draw_numbers(truth, result.predicted, names, each, mean, folder / "numbers.png", caption, whose)
    scores, blind = ("mae", "rmse", "r2", "pearson", "spearman"), truth - mean
    errors = np.abs(blind).mean(0), np.sqrt((blind**2).mean(0))
    rows = [
        (name, *(_cell(each[s][k], ".4g") for s in scores), *(_cell(values[k], ".4g") for values in errors))
        for k, name in enumerate(names)
    ]
    head = ("number", "MAE", "RMSE", "R2", "Pearson", "Spearman", "MAE of the mean", "RMSE of the mean")
    worst, at = worst_numbers(result.predicted, truth, std, MOST)
    words = [
        f"{shorten(names[k], WIDE)}\n{truth[i, k]:.4g} → {result.predicted[i, k]:.4g}"
        for i, k in zip(worst, at, strict=True)
    ]
    title = f"The largest errors, in standard deviations of {whose}: truth → prediction"
    pictures = _gallery(split, worst, words, folder / "wrong.png", title, caption)
    about = f"{caption}; the last columns are the errors of always saying the mean of {whose}"
    numbers = Section("Each number", about, folder / "numbers.png", head, rows)
    return [Sections([numbers, Section("The largest errors", caption, images=pictures)])]
