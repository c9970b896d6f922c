"""The methods of explanations, by name."""

from __future__ import annotations

from typing import Literal, get_args

from ...errors import Field, UserError

Method = Literal["ig", "rollout"]
METHODS: tuple[Method, ...] = get_args(Method)
WORDS: dict[str, str] = {
    "ig": "integrated gradients",
    "rollout": "attention rollout, which is blind to the class",
}
SUFFIXES = (".png", ".csv", ".npz")  # of the files that an explanation is written to
BATCH = 16  # inputs that are explained at a time: gradients take more memory than answers
IMAGES, TEXTS = 64, 8  # most that a command explains
STEPS = 16  # of integrated gradients: with 8 the maps point as well, with 50 their sum is nearer


def check_known(method: str) -> None:
    """Raise UserError where there is no such method."""
    if method not in METHODS:
        raise UserError(Field("explain"), f"is {str(method)[:40]!r}", f"give {' or '.join(METHODS)}")
