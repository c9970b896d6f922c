"""Marks are met exactly where the plain reading of them says so, and fifty thousand names take no time."""

from __future__ import annotations

import re
import time

import pytest

from convert.dialects import LAYOUTS, refused
from convert.signature import Seen, certain

ALL = [mark for each in (*LAYOUTS.values(), *refused.REFUSED) for mark in (*each.marks, *getattr(each, "beside", ()))]
MARKS = sorted({mark.removeprefix("!") for mark in ALL})


def plainly(mark: str, names: list[str]) -> bool:
    return any(re.fullmatch(mark, name) for name in names)


def near(mark: str) -> list[str]:
    """Names about a mark: its own text with groups and wildcards filled in some way or other."""
    text = mark.replace(r"\.", ".").replace(r"\d+", "7").replace("(.*[./])?", "a/").replace(r"(.*.)?", "a.")
    filled = [
        re.sub(r"\(([^()|]*)[^()]*\)\??", each, text).replace(".*", "x").replace("[./]", ".") for each in (r"\1", "")
    ]
    return [*filled, *(f"{name}x" for name in filled), *(f"a.{name}" for name in filled), text.split("|")[-1]]


@pytest.mark.parametrize("mark", MARKS)
def test_a_mark_is_met_as_its_expression_says(mark):
    for name in {name for each in MARKS for name in near(each)}:
        assert Seen([name]).has(mark) == plainly(mark, [name]), name


def test_some_marks_are_met():
    names = [name for mark in MARKS for name in near(mark)]
    assert sum(plainly(mark, names) for mark in MARKS) > 0.9 * len(MARKS)


@pytest.mark.parametrize(("mark", "text", "whole"), [
    (r"blocks\.0\.norm1\.weight", "blocks.0.norm1.weight", True), (r"(vit\.|deit\.)?embeddings\.x", "embeddings.x", False),
    (r"visual.proj", "visual", False), (r"(a|b)\..*", ".", False), (r"ab|cd", "", False), (r"a\.\d+\.bc", ".bc", False), (r"[ab]xy?z+", "x", False),
    (r"(a(\.b)?c)+def", "def", False),
])  # fmt: skip
def test_the_certain_text_of_a_mark(mark, text, whole):
    assert certain(mark) == (text, whole)


@pytest.mark.parametrize(
    "name",
    [
        "model.module.net.backbone.student.ema.zzz{}.w",
        "blocks.{}.norm1.weight",
        "a.b.c.d.e.f.blocks.{}.attn.norm.weight.",
    ],
)
def test_fifty_thousand_names_are_recognised_at_once(name):
    names = [name.format(i) for i in range(50_000)]
    began = time.process_time()
    seen = Seen(names)
    for layout in LAYOUTS.values():
        layout.recognises(seen)
    refused.why(names)
    assert time.process_time() - began < 5
