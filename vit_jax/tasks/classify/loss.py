"""Which losses go with what is learned of an image."""

from __future__ import annotations

from collections.abc import Mapping

from ...config.run import LossConfig
from ...errors import Field, UserError

# {kind of outputs: the values of loss.name that it has, the default first}
LOSSES: Mapping[str, tuple[str, ...]] = {
    "class": ("cross_entropy", "binary"),
    "set": ("binary",),
    "number": ("squared",),
}


def check_loss(loss: LossConfig, kind: str) -> None:
    """Raise UserError where a loss is not one of this kind of outputs."""
    if loss.name and loss.name not in LOSSES[kind]:
        raise UserError(
            Field("loss.name"),
            f"is {loss.name}, but data.target is {kind}",
            f"choose {' or '.join(LOSSES[kind])}, or leave it out",
        )
