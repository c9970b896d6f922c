"""A file is recognised once, by what its signature's expressions say, and fifty thousand names take seconds."""

from __future__ import annotations

import re
import time
from collections import Counter

import numpy as np
import pytest
from safetensors.numpy import save_file

from convert import rules
from convert.commands.inspect import show
from convert.dialects import LAYOUTS
from convert.layout import Layout, matches
from convert.recognise.layouts import Recognition
from convert.recognise.reading import Options, read
from vit_jax.models.vit_config import ViTConfig

slow = pytest.mark.slow
TIMM = LAYOUTS["timm"]
CONFIG = ViTConfig(image=8, patch=4, width=8, depth=1, heads=2, hidden=16, classes=3)


@pytest.mark.parametrize(
    ("signature", "names", "met"),
    [
        ((r"a\.\d+\.b",), ["a.7.b"], True),
        ((r"a\.\d+\.b",), ["x.a.7.b", "a.7.b.x", "aX7Xb"], False),  # a whole name, and a dot is a dot
        ((r"a", r"b"), ["a", "b", "c"], True),
        ((r"a", r"b"), ["a", "c"], False),
        ((r"a", r"!b"), ["a", "c"], True),
        ((r"a", r"!b"), ["a", "b"], False),
        ((r"!b.*",), [], True),
    ],
)
def test_every_expression_matches_a_whole_name_or_none(signature, names, met):
    assert matches(names, signature) is met


def file(folder) -> str:
    made = rules.file_shapes(rules.narrow(TIMM.rows(CONFIG)))
    save_file({name: np.ones(shape, np.float32) for name, shape in made.items()}, folder / "vit.safetensors")
    return str(folder / "vit.safetensors")


@pytest.mark.parametrize("asked", ["", "timm"])
def test_each_layout_is_asked_once_about_a_file(tmp_path, monkeypatch, asked):
    path, calls, honest = file(tmp_path), Counter(), Layout.recognises
    monkeypatch.setattr(Layout, "recognises", lambda self, names: calls.update([self.name]) or honest(self, names))
    sets = {"heads": 2, "eps": 1e-6, "activation": "gelu", "image": 8, "pool": "cls"}
    with read(path, Options(layout=asked, sets=sets)).source:
        assert calls == Counter(LAYOUTS.keys())
    calls.clear()
    show(path, Options(layout=asked, sets=sets))
    assert calls == Counter(LAYOUTS.keys())


@pytest.mark.parametrize(
    "name",
    [
        "model.module.net.backbone.student.ema.zzz{}.w",
        pytest.param("blocks.{}.norm1.weight", marks=slow),
        pytest.param("a.b.c.d.e.f.blocks.{}.attn.norm.weight.", marks=slow),
    ],
)
def test_fifty_thousand_names_are_recognised_in_seconds(name):
    names = {name.format(i): (1,) for i in range(50_000)}
    began = time.process_time()
    found = Recognition.of(names)
    assert time.process_time() - began < 10  # 1 s on a quiet machine
    assert not found.layouts


def test_what_a_signature_asks_for_is_in_a_file_of_its_layout():
    """Expressions that no file can meet would make a layout that is never recognised."""
    for layout in LAYOUTS.values():
        for pattern in layout.signature:
            re.compile(pattern.removeprefix("!"))
        assert any(not pattern.startswith("!") for pattern in layout.signature), layout.name
