"""Images of the data of a run, or of other data, by which int8 programs are calibrated, and smaller ones measured."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from vit_jax.errors import UserError
from vit_jax.runs import Run

if TYPE_CHECKING:
    from vit_jax.config.outputs import Outputs
    from vit_jax.data.images.preprocess import Preprocess
    from vit_jax.data.images.splits import Split

    from ...plan.plan import Plan

CALIBRATING, MEASURING = 256, 5000  # the most images of each


@dataclass(frozen=True)
class Examples:
    """Images that a network learned from, and others with their labels."""

    preprocess: Preprocess
    known: Split  # at most CALIBRATING
    measured: Split  # at most MEASURING
    said: str  # which those are

    def images(self, split: Split, rows: slice = slice(None)) -> np.ndarray:
        """Some images of a split as the network takes them, float32 [n, H, W, C]."""
        p, pixels = self.preprocess, split.take(np.arange(len(split))[rows])
        mean, std = (np.array(values, np.float32) for values in (p.mean, p.std))
        return np.asarray((pixels / np.float32(255) - mean) / std)


def open_examples(plan: Plan, run: str, source: str) -> Examples:
    """The images of the data that a run was trained on; of weights that are no run's, of other data."""
    from vit_jax.data.images.preprocess import Preprocess
    from vit_jax.kinds.table import kind_of

    path, prepared = run or plan.reading.path, plan.facts.preprocess
    if prepared is None:
        raise UserError(path, "does not state how images are prepared", "give `fields mean=... std=...`")
    preprocess = Preprocess.from_dict(prepared)
    outputs = kind_of(plan.facts.outputs, getattr(plan.config, "classes", 0)).outputs
    if Run(path).exists():
        splits = _own(Run(path), source)
    elif source:
        splits = _other(source, preprocess, outputs)
    else:
        what = "holds weights alone, so there are no images to calibrate by"
        raise UserError(path, what, "name some with `calibrate folder:PATH`, or give a run")
    (name, known), (other, measured) = splits
    said = f"{min(MEASURING, len(measured)):,} {'other ' * (name == other)}images of {other}"
    known, measured = _some(known, CALIBRATING, outputs), _some(measured, MEASURING, outputs)
    examples = Examples(preprocess, known, measured, said)
    if (found := examples.images(examples.known, slice(1)).shape[1:]) != plan.config.pixels():
        sizes = ("x".join(map(str, each or ())) for each in (found, plan.config.pixels()))
        raise UserError(source or path, "its images are {}, and the network takes {}".format(*sizes), "give others")
    return examples


def _own(run: Run, source: str) -> tuple[tuple[str, Split], tuple[str, Split]]:
    """(train, validation) of the data of a run, each with its name."""
    from vit_jax.tasks.computed import task_class

    config, recorded = run.config(), run.record()["data"]
    data = config.data.in_folder(run.path)
    if source:
        data = replace(data, source=source)
    dataset: Any = task_class(config.task).open_data(replace(config, data=data))
    if not dataset.same_as(recorded):
        remedy = "restore it" if not source else "leave it out"
        raise UserError(f"data.source {data.source} is not the data that {run} was trained on", remedy=remedy)
    train = dataset.splits["train"]
    for name in ("validation", "test"):
        if name in dataset.splits:
            return ("train", train), (name, dataset.splits[name])
    return _halves("train", train)


def _other(source: str, preprocess: Preprocess, outputs: Outputs) -> tuple[tuple[str, Split], tuple[str, Split]]:
    """The same of other data, whose labels are those of a network."""
    from vit_jax.data.images.config import ImageData
    from vit_jax.data.images.open import open_other_images

    data = ImageData(source=source)
    opened = open_other_images(data, "", preprocess, outputs)
    _check_channels(source, opened.split, preprocess)
    train = None
    with contextlib.suppress(UserError):  # it has no splits
        train = open_other_images(data, "train", preprocess, outputs)
    if train is None or train.name == opened.name:
        return _halves(opened.name, opened.split)
    return (train.name, train.split), (opened.name, opened.split)


def _check_channels(source: str, split: Split, preprocess: Preprocess) -> None:
    """Raise UserError where arrays have other channels than the network: files of images may be grey or coloured."""
    pixels = getattr(split.images.examples, "pixels", None)
    channels = pixels.shape[3] if pixels is not None and pixels.ndim == 4 else preprocess.channels
    if channels != preprocess.channels:
        what = f"its images have {channels} channels, and those of the network have {preprocess.channels}"
        raise UserError(f"calibrate {source}", what, "give images such as the network was trained on")


def _halves(name: str, split: Split) -> tuple[tuple[str, Split], tuple[str, Split]]:
    """Images to calibrate by, and others to measure with, of one split."""
    if len(split) < 2:
        raise UserError(f"data {name}", f"has {len(split)} images", "give two or more")
    rows = np.random.default_rng(0).permutation(len(split))
    first = min(CALIBRATING, len(split) // 2)
    return (name, split.subset(rows[:first])), (name, split.subset(rows[first:]))


def _some(split: Split, most: int, outputs: Outputs) -> Split:
    """At most so many images of a split, drawn, with labels of the network's outputs as they leave the program."""
    from vit_jax.data.images.splits import Split

    rows = np.sort(np.random.default_rng(0).permutation(len(split))[:most])
    return Split(split.images, split.rows[rows], outputs)


def measured(examples: Examples, outputs: tuple[np.ndarray, np.ndarray], count: int) -> dict[str, Any]:
    """How the outputs [n, K] of two programs for the measured images differ -> [before, after]."""
    import jax.numpy as jnp

    from vit_jax.kinds.table import kind_of

    split = examples.measured
    kind = kind_of(split.outputs, count)
    values = [kind.values(each) if kind.has_answers else each for each in outputs]
    found: dict[str, Any] = {
        "images": len(split),
        "of": examples.said,
        "largest_change": float(np.abs(values[0] - values[1]).max()),
    }
    if not kind.has_answers:
        return found
    label = jnp.asarray(split.examples(np.arange(len(split)))["label"])
    scores = [
        kind.score(split, {name: np.asarray(x) for name, x in kind.outcomes(jnp.asarray(each), label).items()}).metrics
        for each in outputs
    ]
    names = [[[name for name, _ in kind.top_k(row, 1)] for row in each] for each in outputs]
    same = float(np.mean([a == b for a, b in zip(*names, strict=True)]))
    metrics = {name: [float(each[name]) for each in scores] for name in scores[0] if np.isfinite(scores[0][name])}
    found |= {"agreement": same if kind.has_probabilities else None, "metrics": metrics}
    return {**found, "chosen_by": kind.selection_metric[0]}
