"""What report.html is to show of a trained network (figures/parts.py), kept as JSON beside its figures.

classes.json (the result of a classifier), sections.json (of each label or number, of probabilities), texts.json (the
worst texts), explanations.json (what counted in the worst examples), attention.json, positions.json. Pictures are in
them as data: URLs, and weights as base64 of one byte each.
"""

from __future__ import annotations

import base64
import io
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ...config.fields import pair
from ...figures.parts import Attention, Classes, Part, Positions, Sections, Texts
from ...figures.patches import similarity
from ...figures.results import draw_confusion
from ...files.atomic import write_json
from ...files.strict_json import parse

WEIGHTS = 740_000  # most attention weights that are kept, a byte each: of ViT-B those from 26 tokens
PIXELS = 96  # a larger side of a picture is made as small
WORST = 36
ROWS = 2000


def keep(folder: Path, part: Part) -> None:
    """Keep a part of a report."""
    match part:
        case Sections():
            write_json(folder / f"{part.name}.json", _sections(part))
        case Classes():
            write_json(folder / "classes.json", _classes(part))
        case Texts():
            write_json(folder / "texts.json", {**vars(part), "worst": _with_urls(part.worst)})
        case Attention():
            write_json(folder / "attention.json", _attention(part))
        case Positions():
            write_json(folder / "positions.json", _positions(part))


def kept_confusion(folder: Path) -> Callable[[], None] | None:
    """What draws the confusion matrix that is kept in a folder; None where none is."""
    file = folder / "classes.json"
    if not file.is_file():
        return None
    kept = parse(file.read_bytes())
    confusion = np.zeros((len(kept["names"]),) * 2, int)
    rows, columns, counts = np.array(kept["confusion"], int).reshape(-1, 3).T
    confusion[rows, columns] = counts
    return lambda: draw_confusion(confusion, kept["names"], None, kept["about"])


def _classes(part: Classes) -> dict[str, Any]:
    rows, columns = np.nonzero(part.confusion)
    entries = np.stack([rows, columns, part.confusion[rows, columns]], -1)  # [entries, 3]
    return {
        "about": part.about,
        "names": list(part.names),
        "confusion": entries.reshape(-1).tolist(),
        "scores": {name: [round(float(x), 6) for x in values] for name, values in part.scores.items()},
        "worst": [{**each, "confidence": _finite(each["confidence"])} for each in _with_urls(part.worst)],
    }


def _sections(part: Sections) -> dict[str, Any]:
    content = [
        {
            "title": each.title,
            "about": each.about,
            "figure": each.figure and f"data:image/png;base64,{base64.b64encode(each.figure.read_bytes()).decode()}",
            "head": list(each.head),
            "rows": [list(row) for row in each.rows[:ROWS]],
            "images": _with_urls([{"name": a, "words": b, "image": image} for a, b, image in each.images]),
        }
        for each in part.sections
    ]
    return {"sections": content}


def _with_urls(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The first rows, with the image of each, if it has one, as a data: URL."""
    return [{**each, "image": _data_url(each["image"])} if "image" in each else {**each} for each in rows[:WORST]]


def _finite(value: float) -> float | None:
    """JSON knows no NaN."""
    return round(value, 6) if math.isfinite(value) else None


def _attention(part: Attention) -> dict[str, Any]:
    """What is too much is left out, and said."""
    examples = part.examples
    own = pair(examples[0]["grid"]) if examples and "queries" not in examples[0] else None
    kept, note = fit_attention([np.asarray(each["weights"], np.float32) for each in examples], own)
    rows = []
    for each, some in zip(examples, kept, strict=False):
        depth, heads = each["weights"].shape[:2]
        row = {name: each[name] for name in ("title", "queries", "keys") if name in each}
        if "image" in each:
            row |= {"image": _data_url(each["image"], 224), "grid": list(pair(each["grid"]))}
        # The square root keeps small weights apart: one of 1/197 is still 18 of 255 steps.
        shares = np.rint(np.sqrt(np.clip(np.nan_to_num(some.weights), 0, 1)) * 255).astype(np.uint8)
        row |= {"depth": depth, "heads": heads, "layers": some.layers, "shape": list(shares.shape)}
        row |= {"looking": some.looking} if own else {}
        rows.append({**row, "weights": base64.b64encode(shares.tobytes()).decode()})
    return {"about": part.about, "prefix": list(part.prefix), "note": note, "examples": rows}


@dataclass(frozen=True)
class Fitted:
    """Attention weights [l, H or 1, q, K] that are kept, the numbers of their layers and of the tokens that look."""

    weights: np.ndarray
    layers: list[int]
    looking: list[int]


def fit_attention(
    weights: Sequence[np.ndarray], grid: tuple[int, int] | None = None, most: int = WEIGHTS
) -> tuple[list[Fitted], str]:
    """What is kept of attention weights: weights [L, H, Q, K] -> (what is kept of the first examples, a clause on what
    is left out).
    """
    if not weights:
        return [], ""
    largest = max(x.size for x in weights)
    if largest <= most:
        count = min(max(most // largest, 1), len(weights))
        note = f"only {count} of {len(weights)} examples are kept" if count < len(weights) else ""
        return [Fitted(x, list(range(len(x))), list(range(x.shape[2]))) for x in weights[:count]], note
    x, notes = weights[0], []
    if len(weights) > 1:
        notes.append(f"only 1 of {len(weights)} examples is kept")
    depth, heads, tokens, keys = x.shape
    looking = list(range(tokens))
    for apart in (2, 3, 4) if grid else ():
        if depth * heads * len(looking) * keys > most:
            looking = _spread_tokens(tokens, grid, apart) if grid else looking
    if len(looking) < tokens:
        notes.append(f"from {len(looking)} of its {tokens} tokens")
    x = x[:, :, looking]
    if heads > 1 and most // (heads * len(looking) * keys) < (depth + 1) // 2:
        x = x.mean(1, keepdims=True)
        notes.append(f"with the mean of its {heads} heads")
    fit = min(depth, most // x[0].size)
    if not fit:
        return [], f"left out: the weights between {tokens:,} and {keys:,} tokens are too many for a page"
    layers = sorted({depth - 1 - i * depth // fit for i in range(fit)})
    if fit < depth:
        notes.append(f"in {fit} of its {depth} layers")
    return [Fitted(x[layers], layers, looking)], ", ".join(notes)


def _spread_tokens(tokens: int, grid: tuple[int, int], apart: int) -> list[int]:
    """The tokens before the patches of a grid, and one patch of each square of `apart` times `apart`."""
    before = tokens - grid[0] * grid[1]
    rows, columns = (range(apart // 2, side, apart) for side in grid)
    return [*range(before), *(before + row * grid[1] + column for row in rows for column in columns)]


def _positions(part: Positions) -> dict[str, Any]:
    """The cosine similarity of the position embeddings of patches to each other."""
    gh, gw = pair(part.grid)
    rows, columns = (np.unique(np.linspace(0, n - 1, min(n, 14)).round().astype(int)) for n in (gh, gw))
    cosine = similarity(np.asarray(part.position)[part.prefix :]).reshape(gh, gw, gh * gw)[np.ix_(rows, columns)]
    steps = np.rint((np.clip(cosine, -1, 1) + 1) / 2 * 255).astype(np.uint8)
    content = {"about": part.about, "grid": [gh, gw], "rows": rows.tolist(), "columns": columns.tolist()}
    return {**content, "similarity": base64.b64encode(steps.tobytes()).decode()}


def _data_url(image: np.ndarray, most: int = PIXELS) -> str:
    """An image, uint8 [h, w, 1 or 3], of at most `most` pixels a side as a data: URL: a PNG, or if large a JPEG."""
    from PIL import Image

    picture = Image.fromarray(image[..., 0] if image.shape[-1] == 1 else image)
    shrink = most / max(picture.size)
    if shrink < 1:
        picture = picture.resize([max(math.floor(side * shrink), 1) for side in picture.size])  # type: ignore[arg-type]
    file, kind = io.BytesIO(), "png" if max(picture.size) <= 64 else "jpeg"
    picture.save(file, kind, **({"quality": 85} if kind == "jpeg" else {"optimize": True}))
    return f"data:image/{kind};base64,{base64.b64encode(file.getvalue()).decode()}"
