"""Drawn scenes with captions: two coloured shapes, side by side or one above the other. Nothing is downloaded.

"a small red circle left of a big blue square": shapes that stand side by side share a height, so that each scene has
one right caption. Two pairs of colour and shape are never seen in training. All draws come from the raw bits of a
generator, which are the same in every version of numpy.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ..order import SHAPES

SIDE = 32  # pixels
SIZES = {"small": 0.14, "big": 0.22}  # radius, as a share of the side
COLOURS = {"red": (0.9, 0.1, 0.1), "green": (0.1, 0.7, 0.1), "blue": (0.1, 0.2, 0.9), "yellow": (0.9, 0.9, 0.1)}
FORMS = ("circle", "square", "triangle")
RELATIONS = ("left of", "above")
UNSEEN = (("red", "triangle"), ("blue", "circle"))  # pairs of colour and form that only the split `unseen` has
WORDS = ("a", *SIZES, *COLOURS, *FORMS, "left", "of", "above")
LONGEST = 10

_PAIRS = [(colour, form) for colour in COLOURS for form in FORMS]
_SEEN = np.array([i for i, pair in enumerate(_PAIRS) if pair not in UNSEEN])
_HELD = np.array([i for i, pair in enumerate(_PAIRS) if pair in UNSEEN])
_CHUNK = 1000


class Scenes(NamedTuple):
    """n drawn scenes."""

    pixels: np.ndarray  # uint8 [n, SIDE, SIDE, 3]
    captions: list[str]
    boxes: np.ndarray | None  # float [n, 2, 4]: of the first and the second object left, top, right, bottom, as shares
    words: np.ndarray  # int [n, 2]: which word of the caption names the form of each


def draw(n: int, part: int, unseen: bool = False) -> Scenes:
    """The scenes of a part of the data, always the same."""
    drawn = [_draw(min(_CHUNK, n - start), part, start, unseen) for start in range(0, n, _CHUNK)]
    pixels, captions, boxes, words = zip(*drawn, strict=True)
    said = [caption for some in captions for caption in some]
    return Scenes(np.concatenate(pixels), said, np.concatenate(boxes), np.concatenate(words))


def _draw(n: int, part: int, start: int, unseen: bool) -> Scenes:
    bits = np.random.Philox(np.random.SeedSequence((SHAPES, part, start)))

    def uniform(*shape: int) -> np.ndarray:
        return (bits.random_raw(int(np.prod(shape))) >> np.uint64(11)).reshape(shape) * 2.0**-53

    def below(most: int, *shape: int) -> np.ndarray:
        return (uniform(*shape) * most).astype(np.int64)

    relation, size = below(len(RELATIONS), n), below(len(SIZES), n, 2)
    pair = _SEEN[below(len(_SEEN), n, 2)]
    if unseen:
        which, held = below(3, n), _HELD[below(len(_HELD), n, 2)]  # the first object, the second, or both
        pair = np.where((which[:, None] == np.arange(2)) | (which[:, None] == 2), held, pair)
    radius = np.array([*SIZES.values()])[size]  # [n, 2]
    along = np.array([0.0, 0.5]) + radius + uniform(n, 2) * (0.5 - 2 * radius)  # each inside its half
    across = np.repeat(0.5 + (uniform(n, 1) - 0.5) / 8, 2, 1)
    x, y = np.where(relation[:, None] == 0, (along, across), (across, along))  # [n, 2] each

    grey = 0.4 + 0.2 * uniform(n, 1, 1, 1)
    image = np.broadcast_to(grey, (n, SIDE, SIDE, 3)).astype(np.float32)
    rgb = np.array([COLOURS[colour] for colour, _ in _PAIRS])[pair] + (uniform(n, 2, 3) - 0.5) * 0.08
    form = np.array([FORMS.index(name) for _, name in _PAIRS])[pair]
    for k in range(2):
        inside = _covers(form[:, k], x[:, k], y[:, k], radius[:, k])
        image = np.where(inside[..., None], rgb[:, k, None, None].astype(np.float32), image)
    # Uniform noise of standard deviation 0.03, four values from the bits of one number.
    noise = bits.random_raw(image.size // 4).view(np.uint16).reshape(image.shape).astype(np.float32)
    image += (noise / 65535 - 0.5) * np.float32(0.03 * 12**0.5)
    pixels = np.rint(image.clip(0, 1) * 255).astype(np.uint8)

    captions = [_caption(*scene) for scene in zip(relation.tolist(), size.tolist(), pair.tolist(), strict=True)]
    boxes = np.stack([x - radius, y - radius, x + radius, y + radius], -1)
    words = np.stack([np.full(n, 3), np.where(relation == 0, 9, 8)], 1)
    return Scenes(pixels, captions, boxes, words)


def _covers(form: np.ndarray, x: np.ndarray, y: np.ndarray, radius: np.ndarray) -> np.ndarray:
    """Which pixels a shape covers, bool [n, SIDE, SIDE]; its centre and radius are shares of the side, [n] each."""
    centres = ((np.arange(SIDE) + 0.5) / SIDE).astype(np.float32)
    x, y, radius = (each.astype(np.float32)[:, None, None] for each in (x, y, radius))
    across, down = centres[None, None, :] - x, centres[None, :, None] - y
    square = np.maximum(abs(across), abs(down)) <= radius
    circle = across**2 + down**2 <= radius**2
    triangle = square & (2 * abs(across) <= down + radius)
    return np.choose(form[:, None, None], (circle, square, triangle))


def _caption(relation: int, size: list[int], pair: list[int]) -> str:
    first, second = (f"a {[*SIZES][s]} {' '.join(_PAIRS[p])}" for s, p in zip(size, pair, strict=True))
    return f"{first} {RELATIONS[relation]} {second}"
