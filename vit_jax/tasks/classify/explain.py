"""What counted in images for a class, a label or a number, and how far that can be trusted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from jax import Array

from ...config.nearest import nearest
from ...errors import Field, UserError
from ...explain.images import explain_images, grid_of, logits_of
from ...explain.methods import OF_ATTENTION, Method
from ...explain.scores import insertion_deletion, random_relevance
from ..explained import ImageExplanation
from .kinds.base import Kind


def number_of(kind: Kind, name: str) -> int:
    """The number of the output of a name. Raises UserError where there is none."""
    names = list(kind.outputs.names)
    if name not in names:
        what = f"is {name[:40]!r}, which this network does not tell{nearest(name, names)}"
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
    """What counted in images.

    Args:
        network: the network.
        kind: what its outputs mean.
        images: normalised [n, h, w, C].
        pixels: the same, uint8.
        inputs: their names.
        method: as of `explain_images`.
        outputs: int [n], what is explained of each; None: the output of that `name`, or what its kind would choose.
        name: of a class, label or number, or ''.
        steps: of integrated gradients.
        batch: images that are computed at a time.
        measured: whether insertion and deletion are measured, too.

    Raises:
        UserError: there is no such output, or the network lacks what the method takes.
    """
    told = np.concatenate([logits_of(network, images[i : i + batch]) for i in range(0, len(images), batch)])
    if outputs is None:
        outputs = np.full(len(told), number_of(kind, name)) if name else kind.explained(told)
    grid = grid_of(network.config, images.shape[1:3])
    maps = explain_images(network, images, outputs, grid, method, steps, batch)
    values = kind.values(told)[np.arange(len(told)), outputs]
    names = tuple(kind.outputs.names[k] for k in outputs)
    found = ImageExplanation(method, tuple(inputs), names, np.asarray(values, np.float64), maps, pixels)
    return _measure(found, network, kind, np.asarray(images), outputs, batch) if measured else found


def _measure(
    found: ImageExplanation, network: Any, kind: Kind, images: np.ndarray, outputs: np.ndarray, batch: int
) -> ImageExplanation:
    """The explanation with its score.

    Of a number it is in shares of the way from what the network tells of an empty image to what it tells of the image.
    """
    rows = []
    blind = random_relevance(found.maps.shape)
    for image, k, value, cells, noise in zip(images, outputs, found.values, found.maps, blind, strict=True):

        def told(some: np.ndarray, k: int = k) -> np.ndarray:
            return np.asarray(kind.values(logits_of(network, some))[:, k], np.float64)

        empty = 0.0 if kind.has_probabilities else float(told(np.zeros_like(image)[None])[0])
        way = 1.0 if kind.has_probabilities else value - empty or np.nan
        signed = cells * np.sign(way) if found.method not in OF_ATTENTION and not np.isnan(way) else cells
        own, other = (insertion_deletion(told, image, each, batch) for each in (signed, noise))
        rows.append([(own[0] - empty) / way, (own[1] - empty) / way, (other[0] - other[1]) / way])
    insertion, deletion, random = np.array(rows).T
    return replace(found, insertion=insertion, deletion=deletion, random=random)
