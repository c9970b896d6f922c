"""The state of an optimizer, between torch's optimizer.state_dict() and the moments in checkpoints of vit_jax.

A moment has its parameter's shape and goes through its parameter's rows, which only move values; operations that
compute values (folding, resizing, casting) have no counterpart for moments. torch numbers the parameters and has a step
for each; a checkpoint has names and one step. The update formulas of Adam, AdamW and SGD in torch 2.13 are those of
vit_jax, with eps outside the root. torch has no Lion and no optimizer of Muon and AdamW in one: torch_ref's are meant.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from vit_jax.config.groups import moments, muon_kernels, rate_scales, trainable
from vit_jax.config.network import Parameter
from vit_jax.config.run import OptimConfig
from vit_jax.errors import UserError

from .containers.source import Spec, Tensor, TreePath
from .operations import Constant, Tie
from .recognise.weights_in import WRAPPER_MODULES
from .rules import CARRIED, Row, narrow

TORCH_NAMES = {"mu": "exp_avg", "nu": "exp_avg_sq", "trace": "momentum_buffer"}  # {role: torch's name of the moment}
OPTIMIZERS = {  # {optim.name: as messages call it}
    "sgd": "SGD", "momentum": "SGD", "adam": "Adam or AdamW", "adamw": "Adam or AdamW", "muon": "Muon with AdamW",
    "lion": "Lion",
}  # fmt: skip
COUNTLESS = ("sgd", "momentum", "lion")  # torch's state of these does not count the updates
UNSUPPORTED = {  # settings of torch's optimizers that must be off
    "amsgrad": "amsgrad keeps the largest second moments, which checkpoints of vit_jax do not have",
    "maximize": "it maximises the loss",
    "dampening": "torch does not dampen the first gradient, and momentum in vit_jax always does",
}
WEIGHTS_ONLY = "convert the weights alone with `weights_only True`"
Groups = list[dict[str, Any]]
Table = Mapping[str, Parameter]  # a network's parameters by their dotted names
Paths = dict[tuple[str, str], TreePath]  # {(role, name): its keys in a torch optimizer's state dict}


@dataclass(frozen=True)
class Moments:
    """An optimizer's state: updates made, and {role ("mu", "nu", ...): {weight's name in one layout: Tensor}}."""

    step: int
    roles: dict[str, dict[str, Tensor]]


def moving(rows: Iterable[Row], names: Iterable[str]) -> list[Row]:
    """The rows for the moments of a file: those of parameters."""
    moved = [r for r in narrow(rows, names) if r.ours and not r.ours[0].startswith(CARRIED)]
    for r in moved:
        if any(isinstance(operation, Constant) for operation in r.operations):
            raise UserError(
                ", ".join(r.theirs),
                "a part is a constant here and trained in the file, so its optimizer's state cannot be converted",
                "add `weights_only True`",
            )
    return moved


def rows_of(rows: Iterable[Row], names: Collection[str]) -> list[Row]:
    """The rows of some parameters."""
    found = []
    for r in rows:
        inside = [name in names for name in r.ours]
        if any(inside) and not all(inside):
            raise UserError(
                ", ".join(r.theirs),
                f"holds {', '.join(r.ours)}, of which only some are trained alike, so the optimizer's state cannot be "
                "converted",
                "add `weights_only True`",
            )
        if any(inside):
            found.append(r)
    return found


def _check_steps(c: OptimConfig, what: str) -> None:
    """Raise UserError where the parameters of a run do not all count the same steps."""
    if c.freeze and c.freeze_epochs:
        raise UserError(
            what,
            f"its optim.freeze_epochs is {c.freeze_epochs:g}, so parameters of its optimizer count different steps, "
            "which is not converted",
            WEIGHTS_ONLY,
        )


def _zeros(tensor: Tensor) -> Tensor:
    return dataclasses.replace(tensor, read=lambda: np.zeros(tensor.shape, tensor.dtype))


# ----------------------------------------------------------------------- from torch's state to moments


def from_torch(
    saved: Mapping[str, Any],
    rows: Sequence[Row],
    weights: Mapping[str, Tensor],
    c: OptimConfig,
    table: Table,
    what: str,
    step: int | None = None,
    grouped: bool = False,
) -> Moments:
    """Moments from a torch optimizer's state dict, under the file's names."""
    _check_steps(c, what)
    states, groups = _open_state(saved, what)
    rows = rows_of(moving(rows, weights), trainable(c, table))
    names = _names(groups, rows, weights, c, table, what, grouped)
    order = dict(zip((i for group in groups for i in group["params"]), names, strict=True))
    kinds = {name: {table[ours].kind for ours in r.ours} for r in rows for name in r.theirs}
    rates = {name: rate for rate, its in _by_rate(rows, names, c, table).items() for name in its}
    for number, group in enumerate(groups):
        members = [order[i] for i in group["params"]]
        where = f"{what}: group {number} of its optimizer"
        _check_group(where, group, [(name, kinds[name]) for name in members], c, {rates[name][:2] for name in members})
    entries = {
        order[i]: _entries(entry, f"{what}: the optimizer's state of {order[i]}")
        for i, entry in states.items()
        if i in order
    }
    if strange := [i for i in states if i not in order]:
        raise UserError(
            what, f"its optimizer has a state numbered {strange[0]!r}, which belongs to no parameter", "save it again"
        )
    found = _moments(entries, _names_with_moment(rows, names, c, table), weights, what, step)
    copies = _copies(rows, weights)
    return Moments(
        found.step,
        {
            role: {**tensors, **{name: tensors[first] for name, first in copies.items() if first in tensors}}
            for role, tensors in found.roles.items()
        },
    )


def _names_with_moment(rows: Sequence[Row], names: Iterable[str], c: OptimConfig, table: Table) -> dict[str, list[str]]:
    """{role: those of the file's `names` that have this moment}."""
    kept = {role: {name for r in rows_of(rows, ours) for name in r.theirs} for role, ours in moments(c, table).items()}
    names = list(names)
    return {role: [name for name in names if name in theirs] for role, theirs in kept.items()}


def _copies(rows: Iterable[Row], names: Mapping[str, Any]) -> dict[str, str]:
    """{tied tensor: the first of its copies among the names}: torch counts that one as the parameter."""
    tied = [r.theirs for r in rows if any(isinstance(operation, Tie) for operation in r.operations)]
    return {name: next(first for first in names if first in copies) for copies in tied for name in copies}


def _open_state(saved: Any, what: str) -> tuple[dict[Any, Any], Groups]:
    """(states by number, groups) of a torch optimizer's state dict. Raises UserError where it is not one."""
    try:
        states, groups = dict(saved["state"]), [dict(group) for group in saved["param_groups"]]
        if groups and all(
            _are(int, group["params"]) and (group.get("param_names") is None or _are(str, group["param_names"]))
            for group in groups
        ):
            return states, groups
    except (KeyError, TypeError, ValueError):
        pass
    raise UserError(what, "its optimizer is not a torch optimizer's state_dict()", f"save that, or {WEIGHTS_ONLY}")


def _are(kind: type, values: Any) -> bool:
    return isinstance(values, list | tuple) and all(type(value) is kind for value in values)


def _names(
    groups: Groups,
    rows: Sequence[Row],
    weights: Mapping[str, Tensor],
    c: OptimConfig,
    table: Table,
    what: str,
    grouped: bool,
) -> list[str]:
    """The parameters' names in the order of their numbers. Raises UserError where it is not known."""
    expected = parameter_order(rows, weights)
    counts = [len(group["params"]) for group in groups]
    if all(len(group.get("param_names") or ()) == len(group["params"]) for group in groups):
        found = [_bare(name, weights) for group in groups for name in group["param_names"]]
    elif len(groups) == 1:
        found = expected
    elif grouped:
        by_rate = _by_rate(rows, expected, c, table).values()
        found = [name for its in by_rate for name in its]
        by_config = [len(its) for its in by_rate]
        if counts != by_config:
            raise UserError(
                what,
                f"its optimizer's groups have {counts} parameters, but by {_grouping(c)} they have {by_config}",
                "correct the config",
            )
    else:
        raise UserError(
            what,
            f"its optimizer has {len(groups)} groups and no names in them, so the parameters' numbers cannot be "
            "resolved",
            "make it from model.named_parameters() and save it again",
        )
    _check_all(found, expected, sum(counts), c, what)
    return found


def _check_all(found: Sequence[str], expected: Sequence[str], count: int, c: OptimConfig, what: str) -> None:
    """Raise UserError where an optimizer has other parameters than those that train."""
    if sorted(found) != sorted(expected) or len(found) != count:
        lacking = sorted(set(expected) - set(found)) or sorted(set(found) - set(expected))
        which = f", and {lacking[0]} is only in one of them" if lacking else ""
        training = " that train" if c.freeze else ""
        raise UserError(
            what,
            f"its optimizer has {count} parameters and the network {len(expected)}{training}{which}",
            f"give the optimizer of all parameters{training}, or {WEIGHTS_ONLY}",
        )


def _by_rate(
    rows: Iterable[Row], names: Iterable[str], c: OptimConfig, table: Table
) -> dict[tuple[bool, float, bool], list[str]]:
    """torch_ref's groups in its order, {(by Muon, scale of the rate, whether it decays): the file's names}."""
    scales, kernels = rate_scales(c, table), muon_kernels(c, table)
    found: dict[tuple[bool, float, bool], list[str]] = {}
    settings = {
        name: (r.ours[0] in kernels, scales[r.ours[0]], any(table[n].kind in c.decay for n in r.ours))
        for r in rows
        for name in r.theirs
    }
    for name in names:
        found.setdefault(settings[name], []).append(name)
    return {key: found[key] for key in sorted(found, key=lambda each: (not each[0], each[1], not each[2]))}


def _grouping(c: OptimConfig) -> str:
    """The fields of a config that divide parameters into groups, with their values."""
    fields = [f"optim.decay {list(c.decay)}"]
    if c.layer_decay != 1:
        fields.append(f"optim.layer_decay {c.layer_decay}")
    if c.freeze:
        fields.append(f"optim.freeze {list(c.freeze)}")
    if c.name == "muon":
        fields.append("optim.name muon")
    return " and ".join(fields)


def _bare(name: str, weights: Mapping[str, Tensor]) -> str:
    """A parameter's name without the prefixes of wrappers such as torch.compile."""
    while name not in weights and name.startswith(tuple(f"{module}." for module in WRAPPER_MODULES)):
        name = name.partition(".")[2]
    return name


def parameter_order(rows: Sequence[Row], names: Mapping[str, Any]) -> list[str]:
    """The parameters among a state dict's tensors, in its order; of tied ones only the first, as torch counts them."""
    claimed, copies = {name for r in rows for name in r.theirs}, _copies(rows, names)
    return [name for name in names if name in claimed and copies.get(name, name) == name]


def _check_group(
    where: str,
    group: Mapping[str, Any],
    members: Sequence[tuple[str, set[Any]]],
    c: OptimConfig,
    rates: Collection[tuple[bool, float]],
) -> None:
    """Raise UserError unless a group's settings are those of the config."""
    if (found := _optimizer_of(group)) != OPTIMIZERS[c.name]:
        raise UserError(
            f"{where} is of {found}, but optim.name is {c.name}", remedy=f"correct the config, or {WEIGHTS_ONLY}"
        )
    for name, reason in UNSUPPORTED.items():
        if _number(group.get(name, 0)):
            raise UserError(f"{where} has {name} {group[name]}: {reason}", remedy=WEIGHTS_ONLY)
    if c.name == "muon" and any(by_muon != bool(_number(group["use_muon"])) for by_muon, _ in rates):
        raise UserError(
            f"{where} has use_muon {group['use_muon']}, but Muon updates the hidden kernels and no others",
            remedy=WEIGHTS_ONLY,
        )
    if len(rates) > 1:
        raise UserError(
            f"{where} has one rate for layers whose rates differ by optim.layer_decay {c.layer_decay}",
            remedy=f"correct the config, or {WEIGHTS_ONLY}",
        )
    scale = next((scale for _, scale in rates), 1.0)
    for name, (given, wanted) in _settings(group, c, scale).items():
        if given != wanted:
            raise UserError(
                f"{where} has {name} {given}, but by the config it is {wanted}", remedy="correct the config"
            )
    decay = _number(group.get("weight_decay", 0.0))
    for name, kinds in members:
        wanted = {c.weight_decay * (k in c.decay) for k in kinds}
        if wanted != {decay}:
            values = " and ".join(f"{w}" for w in sorted(wanted))
            raise UserError(
                f"{where} has weight_decay {decay} for {name}, but by optim.weight_decay and optim.decay "
                f"{list(c.decay)} it is {values}",
                remedy="correct the config",
            )


def _optimizer_of(group: Mapping[str, Any]) -> str:
    """The optimizer of torch, or of torch_ref, whose settings a group has."""
    if "use_muon" in group and "betas" in group:
        return "Muon with AdamW"
    if {"betas", "amsgrad"} <= group.keys() and "momentum_decay" not in group:
        return "Adam or AdamW"
    if {"momentum", "nesterov"} <= group.keys() and not {"betas", "ns_steps"} & group.keys():
        return "SGD"
    if "betas" in group and not {"eps", "amsgrad"} & group.keys():
        return "Lion"
    return "an optimizer other than Adam, AdamW, SGD, Lion and Muon with AdamW"


def _settings(group: Mapping[str, Any], c: OptimConfig, scale: float) -> dict[str, tuple[Any, Any]]:
    """{setting: (the group's value, the config's)} of settings that do not change with the step."""
    out: dict[str, tuple[Any, Any]] = {}
    cycles = c.schedule == "one_cycle" and c.cycle_momentum  # then beta1 or momentum changes with the step
    if "initial_lr" in group:
        out["initial_lr"] = (_number(group["initial_lr"]), _first_rate(c, scale))
    elif c.schedule == "constant" and not c.warmup:
        out["lr"] = (_number(group.get("lr")), c.lr * scale)
    if c.name in ("adam", "adamw", "muon"):
        beta1, beta2 = (_number(beta) for beta in group["betas"]) if _is_pair(group["betas"]) else (None, None)
        out |= {"beta2": (beta2, c.beta2), "eps": (_number(group.get("eps")), c.eps)}
        out |= {} if cycles else {"beta1": (beta1, c.muon_momentum if group.get("use_muon") else c.beta1)}
        if "decoupled_weight_decay" in group and c.weight_decay:
            out["decoupled_weight_decay"] = (bool(_number(group["decoupled_weight_decay"])), c.name == "adamw")
    elif c.name == "lion":
        beta1, beta2 = (_number(beta) for beta in group["betas"]) if _is_pair(group["betas"]) else (None, None)
        out |= {"beta2": (beta2, c.lion_beta2)} | ({} if cycles else {"beta1": (beta1, c.beta1)})
    elif OPTIMIZERS[c.name] == "SGD":
        momentum = c.momentum if c.name == "momentum" else 0.0
        out |= {} if cycles else {"momentum": (_number(group["momentum"]), momentum)}
        out |= {"nesterov": (bool(_number(group["nesterov"])), c.nesterov)} if c.name == "momentum" else {}
    else:
        raise ValueError(f"optimizer {c.name}")
    return out


def _first_rate(c: OptimConfig, scale: float) -> float:
    """The rate that torch's schedulers call initial_lr: the peak, or the start of OneCycleLR, of a group's `scale`."""
    return c.lr * scale / c.div_factor if c.schedule == "one_cycle" else c.lr * scale


def _is_pair(value: Any) -> bool:
    return isinstance(value, list | tuple) and len(value) == 2


def _number(value: Any) -> float | None:
    """A number, or the value of a tensor without axes; None for anything else."""
    if isinstance(value, Tensor) and not value.shape:
        return float(value.read())
    return float(value) if isinstance(value, bool | int | float) else None


def _entries(entry: Any, where: str) -> dict[str, Any]:
    """A parameter's state without entries that are None. Raises UserError on entries that neither Adam nor SGD has."""
    if not isinstance(entry, Mapping):
        raise UserError(f"{where} is not a dict", remedy="save it again")
    known = {"step", *TORCH_NAMES.values()}
    if strange := [name for name in entry if name not in known]:
        is_amsgrad = "max_exp_avg_sq" in strange
        reason = f": {UNSUPPORTED['amsgrad']}" if is_amsgrad else ", as neither Adam nor SGD with momentum does"
        raise UserError(f"{where} holds {', '.join(map(str, strange))}{reason}", remedy=WEIGHTS_ONLY)
    return {name: value for name, value in entry.items() if value is not None}


def _one_step(entries: Mapping[str, dict[str, Any]], names: Sequence[str], step: int | None, what: str) -> int:
    """The number of updates that all parameters had. Raises UserError where that is not one number."""
    counts = {_number(entries[name]["step"]) for name in names if "step" in entries.get(name, {})} | (
        {float(step)} if step is not None else set()
    )
    if len(counts) != 1:
        listed = " and ".join(f"{count:g}" for count in sorted(count for count in counts if count is not None))
        if not counts:
            why = "does not state the number of steps of its optimizer"
            raise UserError(what, why, 'save it as "step" in the same dict')
        why = f"its parameters have made different numbers of steps ({listed or 'none'}), and a run has one step"
        raise UserError(what, why, f"train them together, or {WEIGHTS_ONLY}")
    (count,) = counts
    if count is None or count < 0 or count != int(count):
        raise UserError(what, f"its optimizer's step is {count}, which is no number of updates", "save it again")
    return int(count)


def _moments(
    entries: Mapping[str, dict[str, Any]],
    kept: Mapping[str, Sequence[str]],
    weights: Mapping[str, Tensor],
    what: str,
    step: int | None,
) -> Moments:
    """The moments of the parameters that have them, {role: their names}, and their one step."""
    names = list(dict.fromkeys(name for its in kept.values() for name in its))
    lacking = [
        n for n in names if any(n in its and TORCH_NAMES[r] not in entries.get(n, {}) for r, its in kept.items())
    ]
    if names and len(lacking) == len(names) and not step:  # nothing was trained yet
        return Moments(0, {role: {name: _zeros(weights[name]) for name in its} for role, its in kept.items()})
    if lacking:
        which = f"{', '.join(lacking[:3])} ({len(lacking)} of {len(names)})"
        raise UserError(
            what,
            f"its optimizer has no state for {which}, which seem to have had no gradient",
            f"train them, or {WEIGHTS_ONLY}",
        )
    found = {role: {name: entries[name][TORCH_NAMES[role]] for name in its} for role, its in kept.items()}
    for tensors in found.values():
        for name, tensor in tensors.items():
            if not isinstance(tensor, Tensor) or tensor.shape != weights[name].shape:
                is_now = list(tensor.shape) if isinstance(tensor, Tensor) else type(tensor).__name__
                raise UserError(
                    what,
                    f"the optimizer's state of {name} is {is_now} instead of {list(weights[name].shape)}",
                    "its parameters are in another order than the model's: make it from model.named_parameters()",
                )
    return Moments(_one_step(entries, names, step, what), found)


# ----------------------------------------------------------------------- from moments to torch's state


def registration_order(names: Sequence[str]) -> list[str]:
    """Names in the order of torch's module.named_parameters(): a module's own first, then those of its parts."""
    parts: dict[str, list[str]] = {}
    for name in names:
        head, _, rest = name.partition(".")
        parts.setdefault(head, []).append(rest)
    own = [head for head, rests in parts.items() if rests == [""]]
    return own + [
        f"{head}.{rest}" for head, rests in parts.items() if rests != [""] for rest in registration_order(rests)
    ]


def to_torch(
    rows: Iterable[Row], specs: Mapping[str, Spec], c: OptimConfig, table: Table, step: int
) -> tuple[dict[str, Any], Paths]:
    """The state dict of torch's optimizer.

    Groups are those of torch_ref, with names: parameters that decay, then the others, layer by layer where rates
    differ. Before the first step there is no state, as in torch.
    """
    _check_steps(c, "the source")
    moved = rows_of(moving(rows, specs), trainable(c, table))
    order = registration_order(parameter_order(moved, specs))
    kept = _names_with_moment(moved, order, c, table)
    groups: Groups = []
    state: dict[int, dict[str, Spec]] = {}
    paths: Paths = {}
    numbers = iter(range(len(order)))
    for (by_muon, scale, on), members in _by_rate(moved, order, c, table).items():
        numbered = dict(zip(members, numbers, strict=False))
        settings = _group(c, c.weight_decay * on, scale, by_muon)
        groups.append({**settings, "params": list(numbered.values()), "param_names": members})
        for name, i in numbered.items() if step else ():
            its = [role for role, names in kept.items() if name in names]
            state[i] = {TORCH_NAMES[role]: specs[name] for role in its}
            paths |= {(role, name): ("state", i, TORCH_NAMES[role]) for role in its}
            if "nu" in its:
                state[i] = {"step": Spec(np.dtype(np.float32), ()), **state[i]}
                paths["step", name] = ("state", i, "step")
    return {"state": {i: entry for i, entry in state.items() if entry}, "param_groups": groups}, paths


def _group(c: OptimConfig, weight_decay: float, scale: float, by_muon: bool) -> dict[str, Any]:
    """A group's settings as torch 2.13 writes them. The rate is the initial one, from which a schedule continues."""
    rates: dict[str, Any] = {
        "lr": _first_rate(c, scale),
        "initial_lr": _first_rate(c, scale),
        **({} if c.layer_decay == 1 and c.name != "muon" else {"lr_scale": scale}),
        "weight_decay": weight_decay,
    }
    if c.name == "muon":
        return {**rates, "betas": (c.muon_momentum if by_muon else c.beta1, c.beta2), "eps": c.eps, "use_muon": by_muon}
    if c.name == "lion":
        return {**rates, "betas": (c.beta1, c.lion_beta2)}
    shared = {
        **rates,
        "maximize": False,
        "foreach": None,
        "differentiable": False,
        "fused": None,
    }
    if c.name in ("adam", "adamw"):
        return {
            **shared,
            "betas": (c.beta1, c.beta2),
            "eps": c.eps,
            "amsgrad": False,
            "capturable": False,
            "decoupled_weight_decay": c.name == "adamw",
        }
    if OPTIMIZERS[c.name] != "SGD":
        raise ValueError(f"optimizer {c.name}")
    momentum = c.momentum if c.name == "momentum" else 0.0
    return {**shared, "momentum": momentum, "dampening": 0.0, "nesterov": c.nesterov and c.name == "momentum"}
