"""What an optimizer does with each parameter of a network: whether it trains, at which rate, by which rule.

Everything is read from the network's table of parameters and the config. In a run with low-rank adaptation (LoRA) the
kernels that it adapts stay, and their factors train: those of `blocks.0.attention.query.kernel` [n_in, n_out] are
`blocks.0.attention.query.lora_a` [n_in, rank] and `.lora_b` [rank, n_out]. They are no parameters of the network: the
training step adds their product to the kernel (training/engine/parameters.py).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from fnmatch import fnmatchcase

from ..errors import Field, UserError
from .hints import similar
from .network import ZEROS, Parameter, Start
from .run import MOMENTS, LoraConfig, OptimConfig, RunConfig


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
    """{name: factor of its learning rate}: layer_decay^(layers to the last), for Muon's kernels times muon_lr / lr."""
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


def adapted_kernels(run: RunConfig) -> tuple[str, ...]:
    """The names of the kernels that get factors, in the table's order; none if the rank is 0."""
    table = _network_table(run) if run.lora.rank else {}
    return tuple(name for name, each in table.items() if _is_kernel(each) and matches(name, run.lora.maps))


def factor_names(kernel: str) -> tuple[str, str]:
    """The names of the factors A and B of a kernel."""
    layer = kernel.rpartition(".")[0]
    return f"{layer}.lora_a", f"{layer}.lora_b"


def factors(run: RunConfig) -> dict[str, Parameter]:
    """The factors of the adapted kernels. A is drawn as torch.nn.Linear draws its weight, and B is 0."""
    table, rank, found = _network_table(run), run.lora.rank, {}
    for name in adapted_kernels(run):
        (n_in, n_out), layer, (a, b) = table[name].shape, table[name].layer, factor_names(name)
        found[a] = Parameter((n_in, rank), "kernel", Start("uniform", n_in**-0.5), layer)
        found[b] = Parameter((rank, n_out), "kernel", ZEROS, layer)
    return found


def factor_shapes(run: RunConfig) -> dict[str, tuple[int, ...]]:
    """{name: shape} of the factors of a run; empty without LoRA."""
    return {name: each.shape for name, each in factors(run).items()}


def trainable_table(run: RunConfig) -> Mapping[str, Parameter]:
    """The parameters that a run's optimizer works on."""
    table = _network_table(run)
    if not run.lora.rank:
        return table
    return {name: each._replace(trains=each.head) for name, each in table.items()} | factors(run)


def averaged_parameters(run: RunConfig) -> tuple[str, ...]:
    """The names of the network's parameters that training changes, of which a run with `ema` keeps the average."""
    own = _network_table(run)
    return (*(name for name in trainable(run.optim, trainable_table(run)) if name in own), *adapted_kernels(run))


def lora_names(run: RunConfig) -> dict[str, set[str]]:
    """{role: names} of what a checkpoint of a run with LoRA holds beside the network, as `State.lora`; else empty."""
    if not run.lora.rank:
        return {}
    names = factors(run).keys()
    kept = {"kernels": {*adapted_kernels(run)}, "factors": {*names}}
    return kept | ({"averages": names & {*trainable(run.optim, trainable_table(run))}} if run.ema else {})


def _network_table(run: RunConfig) -> dict[str, Parameter]:
    return run.model.with_data().parameters()


def _is_kernel(parameter: Parameter) -> bool:
    return parameter.kind == "kernel" and len(parameter.shape) == 2


def check_lora(run: RunConfig) -> None:
    """Raise UserError naming the first field of `lora` that contradicts others."""
    c, usual = run.lora, LoraConfig()
    if not c.rank:
        for name in ("alpha", "maps"):
            if getattr(c, name) != getattr(usual, name):
                raise UserError(
                    Field(f"lora.{name}"), "is given but lora.rank is 0, which is off", "give a rank, such as 8"
                )
        return
    if not run.init:
        raise UserError(Field("lora.rank"), f"is {c.rank} but init is empty", "name the weights that are adapted")
    if run.optim.name == "muon":
        raise UserError(
            Field("optim.name"), "is muon, which updates hidden kernels, but lora.rank keeps them", "choose adamw"
        )
    table = _network_table(run)
    _check_maps(c, table)
    for name in adapted_kernels(run):
        if frozen := [pattern for pattern in run.optim.freeze if matches(name, (pattern,))]:
            raise UserError(
                Field("lora.maps"),
                f"matches {name}, which optim.freeze {frozen[0]!r} freezes",
                "leave out one of them; LoRA keeps all but its factors and the head by itself",
            )
        if c.rank > min(table[name].shape):
            n_in, n_out = table[name].shape
            raise UserError(
                Field("lora.rank"),
                f"is {c.rank} but {name} is {n_in} x {n_out}, of rank {min(n_in, n_out)}",
                "give a smaller one",
            )


def _check_maps(c: LoraConfig, table: Mapping[str, Parameter]) -> None:
    if not c.maps:
        raise UserError(Field("lora.maps"), "is empty", "give patterns of names of kernels, such as '*.query.kernel'")
    for pattern in c.maps:
        found = [name for name in table if matches(name, (pattern,))]
        kernels = [name for name in found if _is_kernel(table[name])]
        what, remedy = "", "give patterns of names of kernels, such as '*.query.kernel'"
        if not found:
            what = f"no parameter{similar(pattern, list(table))}"
        elif not kernels:
            what = f"{found[0]} but no kernel of a linear map"
        elif head := [name for name in kernels if table[name].head]:
            what = f"{head[0]}, but the head trains as it is"
            remedy = "name the kernels before it, such as '*.attention.*'"
        if what:
            raise UserError(Field("lora.maps"), f"has {pattern!r}, which matches {what}", remedy)
