"""What experiments share: seeds, data, and the file to which each figure goes as soon as it is measured."""

from __future__ import annotations

import functools
import json
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.machine import describe

Measured = tuple[str, list[float]]  # (what was measured, a value for each seed)
RESULTS = Path(__file__).parents[1] / "results" / "claims"


@dataclass
class Session:
    """How experiments are to be done: the seeds, the folder of sets, the share of the whole budget."""

    seeds: tuple[int, ...] = (0, 1, 2)
    data: str = ""
    scale: float = 1.0
    notes: list[str] = field(default_factory=list)

    def images(self, name: str) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
        """(train, test) of a set by name: {"image": uint8 [n, h, w, C], "label": int [n]}."""
        return _split(name, "train", self.data), _split(name, "test", self.data)

    def note(self, text: str) -> None:
        """Something that belongs to the figures, such as a rate that was chosen."""
        self.notes.append(text)
        print(text, flush=True)


@functools.cache
def _split(name: str, split: str, folder: str) -> dict[str, np.ndarray]:
    from vit_jax.data.images.config import ImageData
    from vit_jax.data.images.open import open_images
    from vit_jax.extras.sets.archives import OFFICIAL

    size, _, channels = OFFICIAL[name].shape
    found = open_images(ImageData(source=name, dir=folder, validation=0.0), size, channels).splits[split]
    return found.examples(np.arange(len(found)))


def measure(name: str, experiment: Callable[[Session], Iterator[Measured]], s: Session, folder: Path = RESULTS) -> None:
    """Do an experiment; FOLDER/NAME.json appears when the whole of it is done."""
    found: dict[str, Any] = {}
    began = spent()
    for title, values in experiment(s):
        found[title] = {"values": [round(v, 5) for v in values], "core_seconds": round(spent() - began, 1)}
        print(f"{name}: {title}: {' '.join(f'{v:.4f}' for v in values)}", flush=True)
        began = spent()
    content = {"machine": describe(), "seeds": s.seeds, "scale": s.scale, "notes": s.notes, "figures": found}
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name}.json").write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


def spent() -> float:
    """Seconds of CPU time of this process and of those that it started and awaited."""
    return sum(os.times()[:4])


def stored(name: str, folder: Path = RESULTS) -> dict[str, Any]:
    """What `measure` has written. Raises FileNotFoundError where the experiment was not done."""
    content: dict[str, Any] = json.loads((folder / f"{name}.json").read_text(encoding="utf-8"))
    return content
