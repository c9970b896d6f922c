"""What an optimizer does with each parameter of a network: whether it trains, at which rate, with which moments.

Everything is read from the network's table of parameters and the optimizer's config.
"""

from __future__ import annotations

from collections.abc import Mapping
from fnmatch import fnmatchcase

from ..errors import UserError
from .nearest import similar
from .run import OptimConfig, roles
from .tree import Parameter


def trained(c: OptimConfig, table: Mapping[str, Parameter]) -> tuple[str, ...]:
    """The names of the parameters that train, in the table's order: those that no pattern of `freeze` matches.

    A pattern is matched with the whole dotted name; * stands for any characters, dots included (fnmatch).
    """
    return tuple(name for name in table if not any(fnmatchcase(name, pattern) for pattern in c.freeze))


def moments(c: OptimConfig, table: Mapping[str, Parameter]) -> dict[str, tuple[str, ...]]:
    """{role: names of the parameters that have this moment}, as checkpoints hold them; no role is empty."""
    names = trained(c, table)
    return dict.fromkeys(roles(c), names) if names else {}


def rate_scales(c: OptimConfig, table: Mapping[str, Parameter]) -> dict[str, float]:
    """{name: what the rate is multiplied by}: D^(distance of its layer from the last), with D = `layer_decay`."""
    last = max(parameter.layer for parameter in table.values())
    return {name: c.layer_decay ** (last - parameter.layer) for name, parameter in table.items()}


def check_frozen(c: OptimConfig, table: Mapping[str, Parameter]) -> None:
    """Raise UserError if a pattern of `freeze` matches no parameter of the table, or if none is left to train."""
    first = dict.fromkeys(name.partition(".")[0] + ".*" * ("." in name) for name in table)
    for pattern in c.freeze:
        if not any(fnmatchcase(name, pattern) for name in table):
            raise UserError(
                f"optim.freeze has {pattern!r}, which matches no parameter{similar(pattern, list(table))}; give "
                f"patterns of this network's names, such as {' '.join(first)}"
            )
    if not trained(c, table):
        raise UserError(
            f"optim.freeze is {' '.join(c.freeze)}, which matches all {len(table)} parameters: leave out a pattern, "
            "so that some are trained"
        )
