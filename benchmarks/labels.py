"""What a network learns in a minute from a set of labels, from numbers, and from classes of very different sizes.

`python -m benchmarks.labels [two|positions|uneven]` trains the network of the preset `digits` with three seeds:

    two        two digits side by side, which of the ten labels are there; test: subset accuracy, mAP
    positions  drawn scenes of two shapes, x and y of both centres in pixels; test: MAE, R2
    uneven     digits, 120 images of each even one, 6 of each odd one, plain and with --loss.prior; test: macro recall

Everything is made here or part of scikit-learn.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import tempfile
import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

import vit_jax
from vit_jax.config.dotted import replace_fields
from vit_jax.data.captions.shapes import SIDE, draw
from vit_jax.presets.variants import on_other_data

Data = dict[str, tuple[np.ndarray, np.ndarray]]  # {split: (images, labels)}
STEPS_OF = {"two": 1500, "positions": 1000, "uneven": 500}
BATCH = 32


def digits() -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """(images of train, of test, classes of train, of test): 1,437 and 360 digits."""
    found = load_digits()
    images = np.rint(found.images * (255 / 16)).astype(np.uint8)
    return train_test_split(images, found.target, test_size=360, random_state=0, stratify=found.target)


def two(seed: int) -> Data:
    """4,000 pairs of digits of train and 1,000 of test, [n, 8, 16], and which labels are there, [n, 10]."""
    train, test, of_train, of_test = digits()
    pick = np.random.default_rng(seed)

    def pairs(images: np.ndarray, classes: np.ndarray, n: int) -> tuple[np.ndarray, np.ndarray]:
        rows = pick.integers(0, len(images), (n, 2))
        there = np.zeros((n, 10), np.int8)
        np.put_along_axis(there, classes[rows], 1, 1)
        return np.concatenate([images[rows[:, 0]], images[rows[:, 1]]], 2), there

    return {"train": pairs(train, of_train, 4000), "test": pairs(test, of_test, 1000)}


def positions(seed: int) -> Data:
    """4,000 scenes and 1,000 others, and the centres of their shapes in pixels, [n, 4]."""

    def scenes(n: int, part: int) -> tuple[np.ndarray, np.ndarray]:
        found = draw(n, part)
        assert found.boxes is not None
        centres = (found.boxes[..., :2] + found.boxes[..., 2:]) / 2 * SIDE  # [n, 2, 2]
        return found.pixels, centres.reshape(n, 4)

    return {"train": scenes(4000, 900), "test": scenes(1000, 901)}


def uneven(seed: int) -> Data:
    """120 images of each even digit and 6 of each odd one to train on, 50 others of each to test."""
    found = load_digits()
    images, pick = np.rint(found.images * (255 / 16)).astype(np.uint8), np.random.default_rng(seed)
    train, test = [], []
    for digit in range(10):
        rows = pick.permutation(np.flatnonzero(found.target == digit))
        test.append(rows[:50])
        train.append(rows[50:][: 120 if digit % 2 == 0 else 6])
    splits = {"train": np.concatenate(train), "test": np.concatenate(test)}
    return {name: (images[rows], found.target[rows]) for name, rows in splits.items()}


# {case: (its data, {what it is trained with: fields of the run}, metrics of test)}
CASES: Mapping[str, tuple[Callable[[int], Data], Mapping[str, Mapping[str, Any]], tuple[str, ...]]] = {
    "two": (two, {"plain": {"model.image": (8, 16)}}, ("subset_accuracy", "map")),
    "positions": (positions, {"plain": {"model.image": SIDE, "model.channels": 3, "model.patch": 8}}, ("mae", "r2")),
    "uneven": (uneven, {"plain": {}, "prior": {"loss.prior": True}}, ("recall_macro",)),
}


def measure(case: str, fields: Mapping[str, Any], seed: int) -> Mapping[str, float]:
    """The metrics of test after the steps of a case."""
    data, steps = CASES[case][0](seed), STEPS_OF[case]
    every = len(data["train"][0]) // BATCH
    with tempfile.TemporaryDirectory() as place:
        run = replace_fields(
            on_other_data(vit_jax.preset("digits").run),
            {
                **{"epochs": -(-steps // every), "batch": BATCH, "seed": seed, "dir": place, "data.validation": 0.0},
                **{"loss.label_smoothing": 0.0, **fields},
            },
        )
        with open(os.devnull, "w") as nowhere, contextlib.redirect_stdout(nowhere):
            summary: Mapping[str, Any] = vit_jax.train(run, data=data)
    results = summary["test"]
    return results.get("last", next(iter(results.values())))


def main() -> None:
    """Print a row for each case and seed, and the mean of each case."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="*", help="those to measure; none: all")
    parser.add_argument("--seeds", type=int, default=3)
    o = parser.parse_args()
    if unknown := {*o.cases} - {*CASES}:
        parser.error(f"there is no case {unknown.pop()!r}; choose {', '.join(CASES)}")
    for case in o.cases or CASES:
        _, ways, wanted = CASES[case]
        for way, fields in ways.items():
            rows = []
            for seed in range(o.seeds):
                began = time.process_time()
                found = measure(case, fields, seed)
                rows.append([found[name] for name in wanted])
                figures = "  ".join(f"{name} {value:.4f}" for name, value in zip(wanted, rows[-1], strict=True))
                print(
                    f"{case:10} {way:6} seed {seed}  {figures}  {time.process_time() - began:.0f} core-seconds",
                    flush=True,
                )
            means = "  ".join(f"{name} {value:.4f}" for name, value in zip(wanted, np.mean(rows, 0), strict=True))
            print(f"{case:10} {way:6} mean    {means}", flush=True)


if __name__ == "__main__":
    main()
