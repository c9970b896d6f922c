"""The table says what failed, where, and which fault slipped through."""

import math

import pytest

pytest.importorskip("torch", reason="PyTorch is not installed")

from tests.parity.tables import report


def row(difference, part="presets", where="", quantity="float64, weights A", limit=1e-12):
    return {
        "part": part,
        "subject": "digits",
        "against": "torch_ref",
        "quantity": quantity,
        "difference": difference,
        "limit": limit,
        "where": where,
        "passed": difference <= limit,
    }


@pytest.mark.parametrize("full", [False, True])
@pytest.mark.parametrize("part", ["presets", "ViT options 1/4"])
def test_a_failure_and_a_fault_that_nothing_caught_are_named(part, full):
    rows = [
        row(1e-15, part),
        row(math.nan, part, "blocks.1"),
        row(0.0, part, quantity="tensors, bit for bit", limit=0.0),
    ]
    text = report(
        rows, [{"fault": "tanh for erf", "test": "forward", "caught": False}], {"timm": "not installed"}, 2.0, full
    )
    assert (
        ("FAILED: float64, weights A at blocks.1" in text)
        and "NOT CAUGHT" in text
        and "Not compared: timm (not installed)." in text
    )
    assert text.endswith("3 comparisons, 1 beyond their limits; 0 of 1 faults caught; 2 s.") and "nan" in text


def test_all_that_is_well_is_ok():
    text = report([row(1e-15), row(2e-15)], [{"fault": "tanh for erf", "test": "forward", "caught": True}], {}, 2.0)
    assert "FAILED" not in text and "NOT" not in text and "2.0e-15" in text


def test_faults_in_a_table_have_one_line_a_layout_and_name_what_slipped_through():
    fault = {"layout": "clip", "test": "timm", "seen": ""}
    text = report(
        [],
        [{**fault, "fault": "norms", "caught": True}, {**fault, "fault": "gate", "caught": False}],
        {},
        2.0,
    )
    assert "| clip" in text and "norms; gate" in text and "NOT CAUGHT: gate |" in text
    assert text.endswith("1 of 2 faults caught; 2 s.")
