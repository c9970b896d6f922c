"""The kinds, by the names that config/outputs.py gives them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ....config.outputs import Outputs
from ....config.run import LossConfig
from ....data.images.config import numbered_classes
from .base import Kind
from .classes import ClassKind
from .label_sets import SetKind
from .numbers import NumberKind

KINDS: dict[str, type[Kind]] = {"class": ClassKind, "set": SetKind, "number": NumberKind}


def kind_of(
    outputs: Outputs, count: int, loss: LossConfig | None = None, metadata: Mapping[str, Any] | None = None
) -> Kind:
    """The kind of so many outputs: several of which nothing is stated are classes; those without names have numbers."""
    if not outputs.kind and count > 1:
        outputs = replace(outputs, kind="class")
    if outputs.kind in KINDS and not outputs.names:
        outputs = replace(outputs, names=tuple(numbered_classes(count)))
    weights, log_prior = (tuple((metadata or {}).get(name, ())) for name in ("loss_weights", "log_prior"))
    return KINDS.get(outputs.kind, Kind)(outputs, loss or LossConfig(), weights, log_prior)
