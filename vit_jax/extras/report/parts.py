"""What a run keeps for its report, read and checked: its folder may be hostile."""

from __future__ import annotations

import base64
import math
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ...errors import UserError
from ...files.atomic import read_json
from ...files.reading import show_path

CELLS = 10_000
IMAGE = re.compile(r"data:image/(png|jpeg);base64,[A-Za-z0-9+/]+={0,2}")
LARGEST_IMAGE = 200_000  # letters
LARGEST_FIGURE = 2_000_000  # letters
SECTIONS = 20
WORST = 50
ROWS = 2000
LETTERS = 2000


class Damaged(Exception):
    """A part is not what keep.py writes."""


def read_part(file: Path, check: Callable[[dict[str, Any]], dict[str, Any]]) -> tuple[Any, str]:
    """A part of a report, from its file. Returns (what `check` returns, or None; a sentence on what is wrong with the
    file, or "").
    """
    try:
        return check(read_json(file)), ""
    except (UserError, OSError) as error:
        return None, f"{error}"
    except (Damaged, ValueError, KeyError, TypeError, AttributeError, IndexError) as error:
        return None, f"{show_path(file)}: is damaged ({type(error).__name__}: {error}), and left out"


def _need(condition: bool, what: str) -> None:
    if not condition:
        raise Damaged(what)


def _image(value: Any, most: int = LARGEST_IMAGE) -> str:
    _need(isinstance(value, str) and len(value) <= most and bool(IMAGE.fullmatch(value)), "an image")
    return value


def _texts(values: Any) -> list[str]:
    _need(isinstance(values, list) and all(isinstance(x, str) for x in values), "a list of texts")
    return values


def _numbers(values: Any, count: int) -> list[int]:
    known = isinstance(values, list) and len(values) == count and all(type(x) is int and x >= 0 for x in values)
    _need(known, "a list of whole numbers")
    return values


def classes(content: Mapping[str, Any]) -> dict[str, Any]:
    """classes.json for the page: the names, its cells (the most frequent ones), and a row of scores for each class."""
    names = _texts(content["names"])
    flat = _numbers(content["confusion"], len(content["confusion"]))
    _need(len(flat) % 3 == 0, "a confusion matrix")
    cells = list(zip(flat[::3], flat[1::3], flat[2::3], strict=True))
    _need(all(i < len(names) and j < len(names) for i, j, _ in cells), "a confusion matrix of its classes")
    examples = [0] * len(names)
    for true, _, count in cells:
        examples[true] += count
    scores = content["scores"]
    _need(all(len(scores[key]) == len(names) for key in ("precision", "recall", "f1")), "scores of each class")
    rows: list[tuple[Any, ...]] = [
        (name, n, *(float(scores[key][i]) for key in ("precision", "recall", "f1")))
        for i, (name, n) in enumerate(zip(names, examples, strict=True))
    ]
    right = sum(count for true, predicted, count in cells if true == predicted)
    kept = sorted(cells, key=lambda cell: (cell[0] != cell[1], -cell[2]))[:CELLS]
    return {
        "about": str(content["about"]),
        "names": names,
        "cells": [number for cell in kept for number in cell],
        "left_out": len(cells) - len(kept),
        "rows": rows if len(rows) <= ROWS else sorted(rows, key=lambda row: row[4])[:ROWS],
        "right": right,
        "total": sum(examples),
        "worst": [
            {
                "name": str(each["name"]),
                "image": _image(each["image"]),
                "true": names[each["true"]],
                "predicted": names[each["predicted"]],
                "confidence": None if each["confidence"] is None else float(each["confidence"]),
            }
            for each in content["worst"][:WORST]
        ],
    }


def sections(content: Mapping[str, Any]) -> list[dict[str, Any]]:
    """sections.json for the page."""
    return [_section(each) for each in content["sections"][:SECTIONS]]


explanations = sections  # explanations.json has the same form


def _section(each: Mapping[str, Any]) -> dict[str, Any]:
    head, figure = _texts(each["head"]), each["figure"]
    rows = [_texts(row) for row in each["rows"][:ROWS]]
    _need(all(len(row) == len(head) for row in rows), "a table")
    return {
        "title": str(each["title"]),
        "about": str(each["about"]),
        "figure": figure and _image(figure, LARGEST_FIGURE),
        "head": head,
        "rows": rows,
        "images": [
            {"name": str(one["name"]), "words": str(one["words"]), "image": _image(one["image"])}
            for one in each["images"][:WORST]
        ],
    }


def texts(content: Mapping[str, Any]) -> dict[str, Any]:
    """texts.json for the page."""
    return {
        "about": str(content["about"]),
        "total": int(content["total"]),
        "wrong": int(content["wrong"]),
        "worst": [
            {
                "name": str(each["name"]),
                "source": str(each.get("source", ""))[:LETTERS],
                "references": [text[:LETTERS] for text in _texts(each["references"])[:8]],
                "said": str(each["said"])[:LETTERS],
                "score": float(each["score"]),
                "image": _image(each["image"]) if "image" in each else "",
            }
            for each in content["worst"][:WORST]
        ],
    }


def attention(content: Mapping[str, Any]) -> dict[str, Any]:
    """What the page shows of attention."""
    prefix = _texts(content["prefix"])
    examples = [_example(each, prefix) for each in content["examples"]]
    return {"about": str(content["about"]), "note": str(content["note"]), "examples": examples}


def _example(each: Mapping[str, Any], prefix: list[str]) -> dict[str, Any]:
    shape = _numbers(each["shape"], 4)
    layers, _, queries, keys = shape
    weights = str(each["weights"])
    _need(len(base64.b64decode(weights, validate=True)) == math.prod(shape), "weights of their shape")
    _need(len(_numbers(each["layers"], layers)) == layers > 0, "the numbers of layers")
    out = {
        "title": str(each["title"]),
        "layers": each["layers"],
        "heads": int(each["heads"]),
        "shape": shape,
        "weights": weights,
        "depth": int(each["depth"]),
    }
    if "image" in each:
        grid = _numbers(each["grid"], 2)
        patches = math.prod(grid)
        before = prefix if keys == len(prefix) + patches else []
        _need(keys == len(before) + patches, "weights of its patches")
        out |= {"image": _image(each["image"]), "grid": grid, "keys": [*before, *_patch_names(grid)]}
    else:
        out |= {"keys": _texts(each["keys"])}
    _need(len(out["keys"]) == keys, "as many tokens as weights")
    if "queries" in each:
        out |= {"queries": _texts(each["queries"])}
    else:  # the tokens look at each other
        looking, before = _numbers(each["looking"], queries), keys - math.prod(out["grid"])
        out |= {
            "queries": [out["keys"][i] for i in looking],
            "mean": "all tokens" if queries == keys else "all of these",
        }
        out |= {"cells": [i - before if i >= before else None for i in looking]}
    _need(len(out["queries"]) == queries, "as many tokens as weights")
    return out


def _patch_names(grid: list[int]) -> list[str]:
    """The names of the patches of a grid, row by row, counted from 1."""
    return [f"row {row + 1}, column {column + 1}" for row in range(grid[0]) for column in range(grid[1])]


def positions(content: Mapping[str, Any]) -> dict[str, Any]:
    """positions.json as an example of the explorer: patches that look at all patches, by their similarity."""
    grid = _numbers(content["grid"], 2)
    rows, columns = (_numbers(content[name], len(content[name])) for name in ("rows", "columns"))
    _need(all(r < grid[0] for r in rows) and all(c < grid[1] for c in columns), "patches of its grid")
    places = [row * grid[1] + column for row in rows for column in columns]
    names = _patch_names(grid)
    shape = [1, 1, len(places), math.prod(grid)]
    similarity = str(content["similarity"])
    _need(len(base64.b64decode(similarity, validate=True)) == math.prod(shape), "similarities of its patches")
    example = {"title": "", "layers": [0], "heads": 1, "depth": 1, "shape": shape, "weights": similarity}
    example |= {"grid": grid, "keys": names, "queries": [names[i] for i in places], "cells": places}
    return {"about": str(content["about"]), "note": "", "examples": [example]}
