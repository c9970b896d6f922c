"""The ids of special tokens that a config.json of transformers has to state: known, and ids of the vocabulary."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from vit_jax.errors import UserError

from ..layout import Layout


def check_known(layout: Layout, missing: Iterable[str]) -> None:
    """Raise UserError naming the ids that the source of a conversion does not state, if there are any."""
    if missing := [*missing]:
        options = f"`fields {' '.join(f'{name}=...' for name in missing)}`"
        raise UserError(
            f"config.json of {layout.name} needs {', '.join(missing)}, which the source does not state",
            remedy=f"give {options}, or `weights_only True`",
        )


def check_in_vocabulary(ids: Mapping[str, Any], vocabulary: int) -> None:
    """Raise UserError on an id that no word of a vocabulary of this size has."""
    for name, value in ids.items():
        if isinstance(value, int) and not 0 <= value < vocabulary:
            raise UserError(
                "config.json",
                f"{name} is {value}, but ids of {vocabulary} words end at {vocabulary - 1}",
                f"correct it with `fields {name}=...`",
            )
