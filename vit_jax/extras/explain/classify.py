"""What counted in images for a class, a label or a number, and how far that can be trusted."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from jax import Array

from ...config.hints import nearest
from ...errors import Field, UserError
from ...figures.parts import Section
from ...kinds.base import Kind
from ...machine.targets import HERE
from ...tasks.capability import EXPLAIN_BATCH, EXPLAIN_STEPS
from ...tasks.classify.draw import visible
from ...tasks.classify.use import Classifier
from ...tasks.predictor import check_positive
from .capability import IMAGES, Method
from .explained import KEY, ImageExplanation, describe_scores, names_of, overlaid
from .relevance import cell_of_pixel, check_attention, explain_images, grid_of, logits_of

WORST = 8
ON_A_CPU = 10**12  # FLOPs that this may take there
Told = Callable[[np.ndarray], np.ndarray]  # images [m, h, w, C] -> their values [m]
STAGES = 32  # most groups in which cells are hidden


class OfImages:
    """How a classifier is explained."""

    most: ClassVar[int] = IMAGES

    def __init__(self, predictor: Classifier):
        self.predictor = predictor

    def check(self, method: str, class_name: str) -> None:
        """Raise UserError where the method cannot explain the network, or there is no such class, label or number."""
        net = self.predictor
        net.check_known()
        if method == "rollout":
            check_attention(net.model)
        if class_name:
            number_of(net.kind, class_name)
        else:
            net.kind.explained(np.zeros((1, len(net.class_names))))

    def explain(
        self,
        images: Any,
        method: Method,
        class_name: str,
        steps: int = EXPLAIN_STEPS,
        batch: int = EXPLAIN_BATCH,
        measured: bool = True,
    ) -> ImageExplanation:
        check_positive(steps=steps, batch=batch)
        net, (several, _) = self.predictor, self.predictor.as_list(images)
        pixels = net.pixels(several)
        how: dict[str, Any] = {"name": class_name, "steps": steps, "batch": batch, "measured": measured}
        return explain(net.model, net.kind, net.normalised(pixels), pixels, names_of(several), method, **how)

    @staticmethod
    def draw(task: Any, network: Any, data: Any, result: Any, plots: Path, caption: str) -> list[Section] | None:
        """What counted in the worst errors for what was said, and for what is true, by integrated gradients."""
        if result is None:
            return None
        return worst_section(network, task, data.splits["test"], result, f"test split, {caption}")


def number_of(kind: Kind, name: str) -> int:
    """The number of the output of a name. Raises UserError where there is none."""
    names = list(kind.names)
    if name not in names:
        what = f"is {name[:40]!r}, which is no output of this network{nearest(name, names)}"
        raise UserError(Field("class"), what, "give a name as predict prints it")
    return names.index(name)


def explain(
    network: Any,
    kind: Kind,
    images: Array,
    pixels: np.ndarray,
    inputs: Sequence[str],
    method: Method,
    *,
    outputs: np.ndarray | None = None,
    name: str = "",
    steps: int,
    batch: int,
    measured: bool = True,
) -> ImageExplanation:
    """What counted in images: images [n, h, w, C], outputs int [n]."""
    told = np.concatenate([logits_of(network, images[i : i + batch]) for i in range(0, len(images), batch)])
    if outputs is None:
        outputs = np.full(len(told), number_of(kind, name)) if name else kind.explained(told)
    grid = grid_of(network.config, images.shape[1:3])
    maps = explain_images(network, images, outputs, grid, method, steps, batch)
    values = kind.values(told)[np.arange(len(told)), outputs]
    names = tuple(kind.names[k] for k in outputs)
    found = ImageExplanation(method, tuple(inputs), names, np.asarray(values, np.float64), maps, pixels)
    if not measured:
        return found
    own, other, random = measure(network, kind, method, np.asarray(images), outputs, found.values, maps, batch)
    return replace(found, insertion=own, deletion=other, random=random)


def affordable(network: Any) -> int:
    """The most images whose errors a report explains: on a CPU as many as take some seconds, of a ViT-B/16 none."""
    passes = 2 * 3 * EXPLAIN_STEPS  # for what was said and for what is true, each forward and backward
    return min(WORST, ON_A_CPU // max(network.config.flops() * passes, 1)) if HERE.platform == "cpu" else WORST


def worst_section(network: Any, task: Any, split: Any, result: Any, caption: str) -> list[Section]:
    """A section of a report on the worst errors, by integrated gradients, with its score; none without errors."""
    most, kind = affordable(network), task.kind
    found = kind.worst(split, result, most) if most else ()
    if not found:
        return []
    numbers, outputs, words = zip(*found, strict=True)
    pixels = split.take(np.array(numbers))
    images, names = task.images({"image": pixels}, network.dtype), [split.name(i) for i in numbers]
    how: dict[str, Any] = {"steps": EXPLAIN_STEPS, "batch": EXPLAIN_BATCH, "measured": False}
    each = explain(network, kind, images, pixels, names, "ig", outputs=np.array(outputs), **how)
    if not np.isfinite(each.maps).all():
        return []
    first = np.array([i not in numbers[:place] for place, i in enumerate(numbers)])  # what each image was taken for
    chosen = (np.asarray(images)[first], np.array(outputs)[first], each.values[first], each.maps[first])
    scores = measure(network, kind, "ig", *chosen, EXPLAIN_BATCH)
    pictures = []
    for i, name in enumerate(names):
        image = visible(pixels[i : i + 1])[0]
        pictures += [(name, "the image", image)] if first[i] else []
        pictures.append((name, words[i], overlaid(image, each.maps[i])))
    about = f"{caption}: integrated gradients; {KEY}; {describe_scores(*scores)}"
    return [Section("What counted in the worst errors", about, images=pictures)]


def measure(
    network: Any,
    kind: Kind,
    method: Method,
    images: np.ndarray,
    outputs: np.ndarray,
    values: np.ndarray,
    maps: np.ndarray,
    batch: int,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """How far explanations can be trusted: images [n, h, w, C], outputs int [n], values float [n], maps float [n, gh,
    gw].

    Of a number it is in shares of the way from what the network tells of an empty image to what it tells of the image.
    """
    rows = []
    blind = np.random.default_rng(0).random(maps.shape)  # a relevance that says nothing, always the same
    for image, k, value, cells, noise in zip(images, outputs, values, maps, blind, strict=True):

        def value_of(some: np.ndarray, k: int = k) -> np.ndarray:
            return np.asarray(kind.values(logits_of(network, some))[:, k], np.float64)

        empty, way = 0.0, 1.0
        if not kind.has_probabilities:
            empty = float(value_of(np.zeros((batch, *image.shape), image.dtype))[0])
            way = value - empty or np.nan
        towards = np.sign(way) if method == "ig" and way < 0 else 1.0  # what lowers a number counts, too
        own, other = (insertion_deletion(value_of, image, each, batch) for each in (towards * cells, noise))
        rows.append([(own[0] - empty) / way, (own[1] - empty) / way, (other[0] - other[1]) / way])
    insertion, deletion, random = np.array(rows).T
    return insertion, deletion, random


def insertion_deletion(told: Told, image: np.ndarray, relevance: np.ndarray, batch: int) -> tuple[float, float]:
    """The areas under the curves of insertion and deletion (Petsiuk et al. 2018, arXiv 1806.07421), in the units of the
    values: image [h, w, C], relevance [gh, gw] -> (of insertion, of deletion).

    Deletion hides the cells of an image one group after the other, the most relevant first; insertion shows them in the
    same order, beginning with none. Where an explanation is right, the value falls early and rises early: the area
    under the curve of insertion minus that of deletion is near 1, and near 0 for a random order.
    """
    grid, flat = relevance.shape, relevance.reshape(-1)
    rank = np.empty(flat.size, int)
    rank[np.argsort(-flat, kind="stable")] = np.arange(flat.size)
    stages = min(STAGES, flat.size)
    first = rank < (np.arange(stages + 1) * flat.size // stages)[:, None]  # [stages + 1, cells]
    values = _in_parts(told, image, np.concatenate([~first, first]), (grid[0], grid[1]), batch)
    areas = [float(np.trapezoid(curve) / (len(curve) - 1)) for curve in np.split(values, 2)]
    return areas[0], areas[1]


def _in_parts(told: Told, image: np.ndarray, hidden: np.ndarray, grid: tuple[int, int], batch: int) -> np.ndarray:
    """The values of an image with cells hidden in m ways, float64 [m]: hidden bool [m, cells].

    Hidden pixels are 0, the mean that images are normalised by. Each batch is of the same size.
    """
    values, cells = [], cell_of_pixel(image.shape[:2], grid)
    for first in range(0, len(hidden), batch):
        some = hidden[first : first + batch]
        full = np.concatenate([some, np.zeros((batch - len(some), hidden.shape[1]), bool)])
        shown = np.where(full[:, cells][..., None], np.zeros((), image.dtype), image)  # [batch, h, w, C]
        values.append(np.asarray(told(shown), np.float64)[: len(some)])
    return np.concatenate(values)
