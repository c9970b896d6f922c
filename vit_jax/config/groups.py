"""What an optimizer does with each parameter of a network: whether it trains, at which rate, by which rule.

Everything is read from the network's table of parameters and the optimizer's config.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from fnmatch import fnmatchcase

from ..errors import Field, UserError
from .hints import similar
from .parameters import Parameter
from .run import MOMENTS, OptimConfig


def trainable(c: OptimConfig, table: Mapping[str, Parameter]) -> tuple[str, ...]:
    """The names of the parameters that train: those that no pattern of `freeze` matches."""
    return tuple(
        name for name, each in table.items() if each.trains and (c.freeze_epochs or not matches(name, c.freeze))
    )


def frozen_at_first(c: OptimConfig, table: Mapping[str, Parameter]) -> frozenset[str]:
    """The names of the parameters that train only after `freeze_epochs`."""
    return frozenset(
        name for name, each in table.items() if each.trains and c.freeze_epochs and matches(name, c.freeze)
    )


def matches(name: str, patterns: Iterable[str]) -> bool:
    """Whether one of the patterns matches the whole dotted name; * stands for any characters, dots included."""
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def optimizer_of_others(c: OptimConfig) -> str:
    """The name of the optimizer of all parameters but those of `muon_kernels`."""
    return "adamw" if c.name == "muon" else c.name


def roles(c: OptimConfig) -> tuple[str, ...]:
    """The names of the optimizer's moments, as in checkpoints."""
    return tuple(dict.fromkeys(MOMENTS[optimizer_of_others(c)] + MOMENTS[c.name]))


def moments(c: OptimConfig, table: Mapping[str, Parameter]) -> dict[str, tuple[str, ...]]:
    """{role: names of the parameters that have this moment}, as checkpoints hold them; no role is empty."""
    kernels, others = muon_kernels(c, table), optimizer_of_others(c)
    kept = {name: MOMENTS[c.name if name in kernels else others] for name in trainable(c, table)}
    names = {role: tuple(name for name, its in kept.items() if role in its) for role in roles(c)}
    return {role: its for role, its in names.items() if its}


def muon_kernels(c: OptimConfig, table: Mapping[str, Parameter]) -> frozenset[str]:
    """The names of the kernels that Muon updates; none if the optimizer is another."""
    return frozenset(name for name in trainable(c, table) if c.name == "muon" and table[name].muon)


def decaying(c: OptimConfig, table: Mapping[str, Parameter]) -> frozenset[str]:
    """The names of the parameters that decay: those of a kind that the setting decay names."""
    return frozenset(name for name, each in table.items() if each.kind in c.decay)


def rate_scales(c: OptimConfig, table: Mapping[str, Parameter]) -> dict[str, float]:
    """What the learning rate of each parameter is multiplied by: layer_decay^(distance of its layer from the last).
    Returns {name: factor}; for a kernel that Muon updates, times muon_lr / lr.
    """
    last, kernels = max(parameter.layer for parameter in table.values()), muon_kernels(c, table)
    return {
        name: c.layer_decay ** (last - parameter.layer) * (c.muon_lr / c.lr if name in kernels else 1.0)
        for name, parameter in table.items()
    }


def check_groups(c: OptimConfig, table: Mapping[str, Parameter]) -> None:
    """Raise UserError naming the first field that asks for what the parameters of this table do not allow."""
    if c.layer_decay != 1 and not any(parameter.layer for parameter in table.values()):
        raise UserError(
            Field("optim.layer_decay"),
            f"is {c.layer_decay}, but the layers of this network have no order from its input to its output",
            "leave it at 1",
        )
    _check_frozen(c, table)
    if c.name == "muon" and not muon_kernels(c, table):
        frozen = any(parameter.muon for parameter in table.values())
        none = f"optim.freeze {' '.join(c.freeze)} leaves none" if frozen else "this network has none"
        raise UserError(
            Field("optim.name"), f"is muon, which needs hidden kernels to update, and {none}", "choose adamw"
        )


def _check_frozen(c: OptimConfig, table: Mapping[str, Parameter]) -> None:
    if c.freeze_epochs and not c.freeze:
        raise UserError(
            Field("optim.freeze_epochs"),
            f"is {c.freeze_epochs:g} but optim.freeze is empty, so nothing is frozen",
            "name parameters in optim.freeze, or leave the epochs out",
        )
    first = dict.fromkeys(name.partition(".")[0] + (".*" if "." in name else "") for name in table)
    for pattern in c.freeze:
        if not any(matches(name, (pattern,)) for name in table):
            raise UserError(
                Field("optim.freeze"),
                f"has {pattern!r}, which matches no parameter{similar(pattern, list(table))}",
                f"give patterns of this network's names, such as {' '.join(first)}",
            )
    own = [name for name, each in table.items() if each.trains]
    if all(matches(name, c.freeze) for name in own):
        raise UserError(
            Field("optim.freeze"),
            f"is {' '.join(c.freeze)}, which matches all {len(own)} parameters that would train",
            "leave out a pattern, so that some do",
        )
    if c.freeze_epochs and not frozen_at_first(c, table):
        raise UserError(
            Field("optim.freeze_epochs"),
            f"is {c.freeze_epochs:g} but lora.rank keeps all that optim.freeze {' '.join(c.freeze)} matches for the "
            "whole run",
            "leave one of them out",
        )


def all_but(patterns: Iterable[str], table: Mapping[str, Parameter]) -> tuple[str, ...]:
    """Few patterns that match all parameters but some."""
    kept = {re.sub(r"\.\d+\.", ".*.", name): matches(name, patterns) for name in table}
    return tuple(_covering("", [(name.split("."), on) for name, on in kept.items()]))


def _covering(prefix: str, names: list[tuple[list[str], bool]]) -> Iterator[str]:
    """Patterns of names that begin with `prefix`, of (the rest in parts, whether it is left out)."""
    for first in dict.fromkeys(parts[0] for parts, _ in names):
        inside = [(parts[1:], kept) for parts, kept in names if parts[0] == first]
        if not any(kept for _, kept in inside):
            yield f"{prefix}{first}" + (".*" if any(parts for parts, _ in inside) else "")
        else:
            yield from _covering(f"{prefix}{first}.", [(parts, kept) for parts, kept in inside if parts])
