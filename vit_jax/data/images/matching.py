"""The names of other data, matched with those of the network that is measured on it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ...config.nearest import nearest
from ...errors import UserError
from .config import composed, numbered_classes


def match_names(
    field: str, names: Sequence[str], present: np.ndarray, network: Sequence[str], each: tuple[str, str]
) -> tuple[np.ndarray, str]:
    """The places of names of the data among those of a network: present int [k]."""
    known = [composed(name) for name in network]
    place = {name: k for k, name in enumerate(known)}
    used = [names[k] for k in present]
    twice = sorted({name for name in used if known.count(composed(name)) > 1}) if len(place) < len(network) else []
    if twice:
        raise UserError(field, f"several {each[1]} of the network are called {twice[0]!r}", "rename one of them")
    unknown = [name for name in used if composed(name) not in place]
    if not unknown:
        return np.array([place.get(composed(name), -1) for name in names], np.int32), ""
    if list(names) == numbered_classes(len(names)) and present[-1] < len(network):
        return np.arange(
            len(names), dtype=np.int32
        ), f"its {each[1]} have no names: their numbers are taken as the network's"
    numbered = list(network) == numbered_classes(len(network))
    if numbered and len(names) == len(network):
        return np.arange(
            len(names), dtype=np.int32
        ), f"the network's {each[1]} are only numbers: the data's are matched by order"
    listed = ", ".join(map(repr, unknown[:5])) + (f" and {len(unknown) - 5} more" if len(unknown) > 5 else "")
    ours = ", ".join(map(repr, network[:3])) + (f", ... {network[-1]!r}" if len(network) > 3 else "")
    hint = nearest(unknown[0], list(network)) if len(unknown) == 1 and not numbered else ""
    raise UserError(
        field,
        f"the network has no {each[0]} {listed}{hint}",
        f"its {len(network)} are {ours}: rename these {each[1]} of the data, or leave them out",
    )
