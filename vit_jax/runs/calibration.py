"""What validation has decided, when a run ended, of how the outputs of its best weights are read: in its summary.json.

An entry "calibration" has the "step" and the "weights" (raw or ema) that it is of, and no others; the number of
"examples" of validation; "temperature" (null: none) and "thresholds" (of a set of labels), as of config/outputs.py; and
"notes", sentences on what was not found.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ..config.outputs import Outputs
from ..errors import UserError
from ..files.terminal import print_note
from .folder import Run


def with_calibration(record: Mapping[str, Any], run: Run, step: int, weights: str) -> dict[str, Any]:
    """The record of a run with what its validation has decided for weights of it, if it is these."""
    try:
        found = (run.summary() or {}).get("calibration")
    except UserError as error:
        print_note(f"{error}; until then probabilities are as trained", sys.stderr)
        return dict(record)
    if found is None or (found["step"], found["weights"]) != (step, weights):
        return dict(record)
    outputs = Outputs.of(record)
    thresholds = tuple(found["thresholds"])
    if len(thresholds) not in (0, len(outputs.names)):
        return dict(record)
    outputs = replace(outputs, temperature=found["temperature"] or 1.0, thresholds=thresholds)
    return {**record, **outputs.to_metadata()}
