"""What figures of a trained network show, as plain data: tasks return it, and hooks such as that of the report keep it.

Dimensions: K classes, L layers, H heads, Q tokens that look, N tokens that are looked at, D width; images are uint8
[h, w, 1 or 3].
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np

    from ..config.fields import Size


@dataclass(frozen=True)
class Section:
    """A section on a result: a figure, a table and images, as far as it has them."""

    title: str
    about: str
    figure: Path | None = None
    head: Sequence[str] = ()
    rows: Sequence[Sequence[str]] = ()
    images: Sequence[tuple[str, str, np.ndarray]] = ()  # (name, words on it, image)


@dataclass(frozen=True)
class Sections:
    """Sections in their order, and what they are together."""

    sections: Sequence[Section]
    name: str = "sections"  # or explanations


@dataclass(frozen=True)
class Classes:
    """The result of a classifier."""

    about: str
    names: Sequence[str]
    confusion: np.ndarray  # int [K, K]
    scores: Mapping[str, np.ndarray]  # precision, recall, f1: float [K]
    worst: Sequence[Mapping[str, Any]]  # name, image, true, predicted, confidence


@dataclass(frozen=True)
class Texts:
    """The worst of texts."""

    about: str
    total: int
    wrong: int
    worst: Sequence[Mapping[str, Any]]  # name, references, said, score; source or image


@dataclass(frozen=True)
class Attention:
    """Attention weights of examples."""

    about: str
    examples: Sequence[Mapping[str, Any]]  # title, weights float [L, H, Q, N]; image and grid, or keys; queries
    prefix: Sequence[str] = ()  # the names of tokens before the patches


@dataclass(frozen=True)
class Positions:
    """The position embeddings of patches, [prefix + gh * gw, D]."""

    about: str
    position: np.ndarray
    prefix: int
    grid: Size


Part = Sections | Classes | Texts | Attention | Positions
