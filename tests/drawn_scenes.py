"""Drawn scenes of a target of 12 classes (3 forms in 4 colours) and two crosses, and where all of them are."""

from typing import NamedTuple

import numpy as np

from vit_jax.data.captions.shapes import COLOURS, FORMS, _covers

SIDE, RADIUS, CELL = 32, 0.13, 4  # pixels of an image; of an object, as a share of the side; pixels of a patch
NAMES = tuple(f"{colour} {form}" for colour in COLOURS for form in FORMS)


class Scenes(NamedTuple):
    pixels: np.ndarray  # uint8 [n, SIDE, SIDE, 3]
    labels: np.ndarray  # int [n, targets]
    boxes: np.ndarray  # float [n, targets, 4]: left, top, right, bottom, in pixels

    def touches(self, cells: np.ndarray, target: int = 0) -> np.ndarray:
        """Whether patches, by their numbers [n], overlap the box of a target: bool [n]."""
        top, left = cells // (SIDE // CELL) * CELL, cells % (SIDE // CELL) * CELL
        box = self.boxes[:, target]
        across = (left < box[:, 2]) & (left + CELL > box[:, 0])
        return across & (top < box[:, 3]) & (top + CELL > box[:, 1])


def draw(n: int, seed: int, targets: int = 1) -> Scenes:
    """n scenes, of one or two targets of different classes."""
    rng = np.random.default_rng((seed, targets))
    image = np.broadcast_to(rng.uniform(0.4, 0.6, (n, 1, 1, 1)), (n, SIDE, SIDE, 3))
    places = np.stack([_apart(rng, targets + 2) for _ in range(n)])  # [n, objects, 2]
    labels = np.stack([rng.permutation(len(NAMES))[:targets] for _ in range(n)])
    rgb = np.array([*COLOURS.values()])
    for k in range(targets + 2):
        x, y = places[:, k].T
        cross = k >= targets
        colour = rng.integers(0, len(rgb), n) if cross else labels[:, k] // len(FORMS)
        inside = _cross(x, y) if cross else _covers(labels[:, k] % len(FORMS), x, y, np.full(n, RADIUS))
        image = np.where(inside[..., None], rgb[colour][:, None, None], image)
    image = image + rng.normal(0, 0.03, image.shape)
    boxes = np.concatenate([places - RADIUS, places + RADIUS], -1)[:, :targets] * SIDE
    return Scenes(np.rint(image.clip(0, 1) * 255).astype(np.uint8), labels, boxes)


def _apart(rng: np.random.Generator, count: int) -> np.ndarray:
    """Centres [count, 2] of objects that do not overlap."""
    while True:
        places = rng.uniform(RADIUS, 1 - RADIUS, (count, 2))
        distance = np.abs(places[:, None] - places).max(-1) + np.eye(count)
        if distance.min() > 2 * RADIUS:
            return places


def _cross(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    centres = (np.arange(SIDE) + 0.5) / SIDE
    across, down = abs(centres[None, None] - x[:, None, None]), abs(centres[None, :, None] - y[:, None, None])
    return (np.minimum(across, down) <= RADIUS / 3) & (np.maximum(across, down) <= RADIUS)
