"""The example layout in CONTRIBUTING.md, added as described there: it converts, asks for fields, and is unproven."""

from __future__ import annotations

import itertools
import re
import types
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from convert import rules
from convert.commands import formats
from convert.dialects import LAYOUTS
from convert.layout import Layout
from tests import test_layouts
from vit_jax.models.vit_config import ViTConfig

PAGE = Path(__file__).parents[1] / "CONTRIBUTING.md"
CONFIG = ViTConfig(image=8, patch=4, channels=3, width=8, depth=2, heads=2, hidden=12, classes=3)


@pytest.fixture
def ann(monkeypatch) -> Layout:
    """The page's file, in the list of layouts."""
    (code,) = re.findall(r"## A layout.*?```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.S)
    module = types.ModuleType("convert.dialects.ann")
    module.__package__ = "convert.dialects"
    exec(compile(code, str(PAGE), "exec"), module.__dict__)
    (layout,) = module.LAYOUTS
    monkeypatch.setitem(LAYOUTS, layout.name, layout)
    return layout


def file(layout: Layout, path: Path) -> Path:
    rng = np.random.default_rng(0)
    shapes = rules.file_shapes(layout.rows(CONFIG))
    save_file({name: rng.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}, path)
    return path


def test_a_file_of_it_goes_to_timm_and_back_to_the_bit(ann, convert, tmp_path):
    source = file(ann, tmp_path / "ann.safetensors")
    asked, there, back = tmp_path / "no", tmp_path / "timm.safetensors", tmp_path / "back.safetensors"
    code, _, error = convert(source, asked, "--to", "timm")
    assert code == 2 and "its tensors cannot tell image, heads, activation; give `model NAME" in error
    stated = ("image=8", "heads=2", "activation=gelu", "mean=0.5", "std=0.5")
    flags = [word for each in stated for word in ("--set", each)]
    assert convert(source, there, "--to", "timm", *flags)[0] == 0
    assert convert(there, back, "--to", "ann")[0] == 0
    a, b = load_file(source), load_file(back)
    assert a.keys() == b.keys() and all(a[name].tobytes() == b[name].tobytes() for name in a)
    assert "ann, 32 tensors" in convert(source, tmp_path / "x.safetensors", *flags)[1]


def test_a_network_that_it_cannot_hold_is_refused_in_one_sentence(ann):
    assert ann.cannot(ViTConfig(classes=0)) == ["classes is 0, but the layout always has a head"]
    assert ann.cannot(ViTConfig(classes=3, registers=2)) == ["registers is 2, but the layout has only 0"]


def test_it_passes_the_tests_of_every_layout(ann):
    test_layouts.test_a_table_speaks_of_every_field_that_decides_the_function(ann.name)
    test_layouts.test_a_layout_has_a_domain_and_its_rows_make_every_parameter_once(ann.name, test_layouts.MORE)
    test_layouts.test_names_are_recognised_and_no_other_layouts_are(ann.name, test_layouts.MORE)
    test_layouts.test_what_is_solved_from_shapes_is_right_and_nothing_else_is_assumed(ann.name, test_layouts.MORE)
    test_layouts.test_a_file_comes_back_to_the_bit(ann.name, test_layouts.MORE)


def test_the_list_of_layouts_shows_it_as_unproven(ann, convert, monkeypatch):
    monkeypatch.setattr(formats, "pairs", lambda: dict.fromkeys(itertools.product(LAYOUTS, repeat=2), ""))
    code, out, _ = convert("formats")
    (line,) = [line for line in out.splitlines() if line.startswith("  ann ")]
    assert code == 0 and "unproven" in line and "Ann's ViT" in line
