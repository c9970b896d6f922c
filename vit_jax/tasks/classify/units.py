"""Heads that give numbers in the units of other data."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from ...config.outputs import Outputs
from ...errors import UserError

HEADS = ("head", "distill_head")


def normalised_heads(parameters: Mapping[str, np.ndarray], given: Outputs, wanted: Outputs) -> dict[str, np.ndarray]:
    """Parameters whose heads give (y - mean) / std of the `wanted` outputs, of heads that give those of the `given`.

    Where neither is normalised, and for other outputs than numbers, they are the same. Computed in float64.
    """
    before, after = ((out.mean, out.std) for out in (given, wanted))
    if before == after or not (given.std or wanted.std):
        return dict(parameters)
    (m, s), (mean, std) = ((np.array(a or [0.0]), np.array(b or [1.0])) for a, b in (before, after))
    scale, shift = s / std, (m - mean) / std
    out = dict(parameters)
    for head in (name for name in HEADS if f"{name}.kernel" in parameters):
        kernel, bias = parameters[f"{head}.kernel"], parameters.get(f"{head}.bias")
        if bias is None:
            what = "has no bias, and the mean of these numbers is another"
            raise UserError(head, what, "add `new_head True` to start with a new head")
        out[f"{head}.kernel"] = (kernel.astype(np.float64) * scale).astype(kernel.dtype)
        out[f"{head}.bias"] = (bias.astype(np.float64) * scale + shift).astype(bias.dtype)
    return out
