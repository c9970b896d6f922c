"""What evens out classes or labels of different sizes in a loss: weights, and the logarithm of the prior."""

from __future__ import annotations

import csv
import math
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ..config.hints import nearest
from ..config.run import LossConfig
from ..errors import Field, UserError
from ..files import strict_json
from ..files.reading import open_regular

BETA = 0.999  # of effective numbers, as Cui et al. 2019 (arXiv 1901.05555) take for most sets
LARGEST = 100.0  # weight of a label that is there
UNEVEN = 5  # times as many images of one class as of another that are worth a remark
_BYTES = 1 << 24  # bytes


def class_weights(loss: LossConfig, names: Sequence[str], counts: np.ndarray) -> tuple[float, ...]:
    """The weight of each class, whose mean over the training images is 1, but of a file, whose weights stay: counts int
    [K].

    Empty for none; 0 of a class without images. Raises UserError on a file that is not about these classes.
    """
    if loss.class_weights == "none":
        return ()
    if loss.class_weights not in ("balanced", "effective"):
        return weights_in(loss.class_weights, names)
    there = np.maximum(counts, 1)
    raw = 1 / there if loss.class_weights == "balanced" else (1 - BETA) / (1 - BETA**there)
    raw = np.where(counts > 0, raw, 0)
    return tuple((raw * counts.sum() / (raw * counts).sum()).tolist())


def label_weights(loss: LossConfig, names: Sequence[str], there: np.ndarray, known: np.ndarray) -> tuple[float, ...]:
    """The weight of each label where it is there, BCEWithLogitsLoss's pos_weight: (n - n_k) / n_k, or a file's. Shapes:
    there int [K], known int [K].

    Empty for none. Raises UserError on a file that is not about these labels.
    """
    if loss.class_weights == "none":
        return ()
    if loss.class_weights != "balanced":
        return weights_in(loss.class_weights, names)
    return tuple(np.minimum((known - there) / np.maximum(there, 1), LARGEST).tolist())


def log_prior(counts: np.ndarray) -> tuple[float, ...]:
    """The logarithm of each class's share of the training images; of a class without any that of half an image."""
    return tuple(np.log(np.maximum(counts, 0.5) / counts.sum()).tolist())


def remark_on_sizes(names: Sequence[str], counts: np.ndarray, what: str, flags: str) -> tuple[str, ...]:
    """A remark where the most frequent class or label has many times the images of the rarest: counts int [K]."""
    rare, often = int(np.where(counts > 0, counts, counts.max()).argmin()), int(counts.argmax())
    if counts[often] < UNEVEN * counts[rare]:
        return ()
    few, many = f"{counts[rare]:,} of the {what} {names[rare]!r}", f"{counts[often]:,} of {names[often]!r}"
    return (f"train has {many} and only {few}, which a network learns to neglect; even that out with {flags}",)


def weights_in(file: str, names: Sequence[str]) -> tuple[float, ...]:
    """The weights in a file, in the order of names."""
    field = Field("loss.class_weights")
    path = Path(os.path.expanduser(file))
    try:
        with open_regular(path) as opened:
            content = opened.read(_BYTES)
        found = _from_json(content) if path.suffix.lower() == ".json" else _from_table(content)
    except OSError as error:
        why = f"is {file}, which is none of none, balanced, effective, and no file ({error.strerror})"
        raise UserError(field, why, "give one of these, or a file of names and weights") from error
    except ValueError as error:
        raise UserError(file, str(error), "give a line NAME,WEIGHT for each, or JSON {NAME: WEIGHT}") from error
    known = [*names]
    if extra := next((name for name in found if name not in known), None):
        raise UserError(file, f"there is no {extra!r} in the data{nearest(extra, known)}", "correct or remove it")
    if lacking := [name for name in names if name not in found]:
        raise UserError(file, f"lacks the weight of {', '.join(map(repr, lacking[:3]))}", "add it")
    return tuple(found[name] for name in names)


def _from_json(content: bytes) -> dict[str, float]:
    value = strict_json.parse(content)
    if not isinstance(value, dict):
        raise ValueError("is no JSON object")
    return {name: _weight(weight, name) for name, weight in value.items()}


def _from_table(content: bytes) -> dict[str, float]:
    """Lines of a name and a weight; the first may be a header."""
    found: dict[str, float] = {}
    for number, row in enumerate(csv.reader(content.decode("utf-8-sig").splitlines(), strict=True), 1):
        if not row:
            continue
        if len(row) != 2:
            raise ValueError(f"line {number} has {len(row)} columns")
        name, weight = (cell.strip() for cell in row)
        if number == 1 and not _is_number(weight):
            continue
        if name in found:
            raise ValueError(f"line {number}: {name!r} is there twice")
        found[name] = _weight(weight, f"line {number}")
    return found


def _weight(value: Any, where: str) -> float:
    if isinstance(value, bool) or not _is_number(value):
        raise ValueError(f"{where}: {value!r} is no number")
    weight = float(value)
    if not (math.isfinite(weight) and weight > 0):
        raise ValueError(f"{where}: the weight {value} is not positive")
    return weight


def _is_number(value: Any) -> bool:
    try:
        float(value)
    except (TypeError, ValueError):
        return False
    return True
