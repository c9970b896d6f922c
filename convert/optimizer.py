"""Adam's and SGD's moments between torch's optimizer.state_dict() and the roles of our checkpoints.

A moment has its parameter's shape and moves by its parameter's rows, which only move values. What computes values (folding,
resizing, casting) does not commute with an optimizer: nothing here does it. torch numbers parameters and keeps a step for each;
we have names and one step. Formulas: torch 2.13's Adam, AdamW and SGD are vit_jax's, with eps outside the root.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from vit_jax.config import OptimConfig, Parameter, roles
from vit_jax.errors import UserError

from .containers.source import Path, Spec, Tensor
from .rules import CARRIED, Constant, Row, Tie, narrow

TORCH_NAMES = {"mu": "exp_avg", "nu": "exp_avg_sq", "trace": "momentum_buffer"}  # what torch calls the roles
REFUSED = {
    "amsgrad": "the largest of the second moments is kept, which has no place here",
    "maximize": "it goes up the loss instead of down",
    "dampening": "torch leaves the first gradient undamped, which no momentum here does",
}
PREFIXES = ("module.", "_orig_mod.")  # that wrappers of a model put before the names of its parameters
Groups = list[dict[str, Any]]
Table = Mapping[str, Parameter]  # a network's parameters by our names
Places = dict[tuple[str, str], Path]  # {(role, name): where it lies in a torch optimizer's state dict}


@dataclass(frozen=True)
class Moments:
    """An optimizer's state: how many updates it has made, and by role {name: Tensor} under the names of one layout."""

    step: int
    roles: dict[str, dict[str, Tensor]]


def moving(rows: Iterable[Row], names: Iterable[str]) -> list[Row]:
    """The rows that moments move by, of a file whose parameters are `names`.

    Those without a parameter of ours are left out. Raises UserError where a parameter of the file is partly computed.
    """
    kept = [r for r in narrow(rows, names) if r.ours and not r.ours[0].startswith(CARRIED)]
    for r in kept:
        if any(isinstance(operation, Constant) for operation in r.operations):
            raise UserError(
                f"{', '.join(r.theirs)}: a part is computed here and trained there, so its optimizer's state cannot go along; add --weights-only"
            )
    return kept


def _zeros(tensor: Tensor) -> Tensor:
    return dataclasses.replace(tensor, read=lambda: np.zeros(tensor.shape, tensor.dtype))


# ----------------------------------------------------------------------------------- torch's to roles


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
    """Moments from a torch optimizer's state dict, under the file's own names.

    `weights` are the model's in the order of its state dict, and `rows` the file's; `c` is the optimizer that the state is to be
    of, `table` the network's; `step` the updates that the file says were made; `grouped` says that without names the parameters that decay
    come first, as in torch_ref. Raises UserError where the state is not that of `c`, or cannot be told apart.
    """
    states, groups = _opened(saved, what)
    rows = moving(rows, weights)
    names = _names(groups, rows, weights, c, table, what, grouped)
    order = dict(zip((i for group in groups for i in group["params"]), names, strict=True))
    kinds = {name: {table[ours].kind for ours in r.ours} for r in rows for name in r.theirs}
    for number, group in enumerate(groups):
        _check_group(
            f"{what}: group {number} of its optimizer", group, [(order[i], kinds[order[i]]) for i in group["params"]], c
        )
    entries = {
        order[i]: _entries(entry, f"{what}: the optimizer's state of {order[i]}")
        for i, entry in states.items()
        if i in order
    }
    if strange := [i for i in states if i not in order]:
        raise UserError(
            f"{what}: its optimizer has a state numbered {strange[0]!r}, which is of no parameter; save it anew"
        )
    found = _moments(entries, names, weights, c, what, step)
    copies = _copies(rows, weights)
    return Moments(
        found.step,
        {
            role: {**tensors, **{name: tensors[first] for name, first in copies.items()}}
            for role, tensors in found.roles.items()
        },
    )


def _copies(rows: Iterable[Row], names: Mapping[str, Any]) -> dict[str, str]:
    """{tied tensor: the first copy of it among the names, which is the one that torch counts}."""
    tied = [r.theirs for r in rows if any(isinstance(operation, Tie) for operation in r.operations)]
    return {name: next(first for first in names if first in copies) for copies in tied for name in copies}


def _opened(saved: Any, what: str) -> tuple[dict[Any, Any], Groups]:
    """The states and groups of a state dict. Raises UserError where it is not one."""
    try:
        states, groups = dict(saved["state"]), [dict(group) for group in saved["param_groups"]]
        if groups and all(
            _are(int, group["params"]) and (group.get("param_names") is None or _are(str, group["param_names"]))
            for group in groups
        ):
            return states, groups
    except (KeyError, TypeError, ValueError):
        pass
    raise UserError(
        f"{what}: its optimizer is not a torch optimizer's state_dict(); save that, or convert the weights alone with --weights-only"
    )


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
    """The parameters' names in the order of the groups' indices. Raises UserError where it is not known."""
    expected = parameter_order(rows, weights)
    counts = [len(group["params"]) for group in groups]
    if all(len(group.get("param_names") or ()) == len(group["params"]) for group in groups):
        found = [_bare(name, weights) for group in groups for name in group["param_names"]]
    elif len(groups) == 1:
        found = expected
    elif grouped:
        decays = _decaying(rows, c, table)
        found = [name for on in (True, False) for name in expected if decays[name] is on]
        if counts != [n for on in (True, False) if (n := sum(decays[name] is on for name in expected))]:
            raise UserError(
                f"{what}: its optimizer's groups have {counts} parameters, which optim.decay {list(c.decay)} does not give; correct the config"
            )
    else:
        raise UserError(
            f"{what}: its optimizer has {len(groups)} groups and no names in them, so which parameter has which number is not known; "
            "make it from model.named_parameters() and save it anew"
        )
    if sorted(found) != sorted(expected) or len(found) != sum(counts):
        lacking = sorted(set(expected) - set(found)) or sorted(set(found) - set(expected))
        which = f", {lacking[0]} among those that are not in both" if lacking else ""
        raise UserError(
            f"{what}: its optimizer has {sum(counts)} parameters and the network {len(expected)}{which}; the state of every parameter is needed"
        )
    return found


def _decaying(rows: Iterable[Row], c: OptimConfig, table: Table) -> dict[str, bool]:
    """{tensor: whether it decays}."""
    return {name: any(table[ours].kind in c.decay for ours in r.ours) for r in rows for name in r.theirs}


def _bare(name: str, weights: Mapping[str, Tensor]) -> str:
    """A parameter's name without what wrappers put before it."""
    while name not in weights and name.startswith(PREFIXES):
        name = name.partition(".")[2]
    return name


def parameter_order(rows: Sequence[Row], names: Mapping[str, Any]) -> list[str]:
    """The parameters among the tensors of a state dict, in their order; of tied ones the first alone, as torch counts them."""
    claimed, copies = {name for r in rows for name in r.theirs}, _copies(rows, names)
    return [name for name in names if name in claimed and copies.get(name, name) == name]


def _check_group(where: str, group: Mapping[str, Any], members: Sequence[tuple[str, set[Any]]], c: OptimConfig) -> None:
    """Raise UserError where a group's settings are not those of the config."""
    adam = c.name in ("adam", "adamw")
    is_adam, is_sgd = (
        {"betas", "amsgrad"} <= group.keys() and "momentum_decay" not in group,
        {"momentum", "nesterov"} <= group.keys() and "betas" not in group,
    )
    if not (is_adam if adam else is_sgd):
        theirs = "Adam or AdamW" if is_adam else "SGD" if is_sgd else "an optimizer other than Adam, AdamW and SGD"
        raise UserError(
            f"{where} is of {theirs}, but optim.name is {c.name}; correct the config, or convert the weights alone with --weights-only"
        )
    for name, reason in REFUSED.items():
        if _number(group.get(name, 0)):
            raise UserError(
                f"{where} has {name} {group[name]}: {reason}; convert the weights alone with --weights-only"
            )
    for name, (given, wanted) in _settings(group, c).items():
        if given != wanted:
            raise UserError(
                f"{where} has {name} {given}, but by the config it is {wanted}; correct the config, or name the run that this is"
            )
    decay = _number(group.get("weight_decay", 0.0))
    for name, kinds in members:
        wanted = {c.weight_decay * (k in c.decay) for k in kinds}
        if wanted != {decay}:
            said = " and ".join(f"{w}" for w in sorted(wanted))
            raise UserError(
                f"{where} has weight_decay {decay} for {name}, but by optim.weight_decay and optim.decay {list(c.decay)} it is {said}; correct the config"
            )


def _settings(group: Mapping[str, Any], c: OptimConfig) -> dict[str, tuple[Any, Any]]:
    """{setting: (the group's, the config's)} of those that do not change with the step."""
    out: dict[str, tuple[Any, Any]] = {}
    cycles = c.schedule == "one_cycle" and c.cycle_momentum  # beta1 or momentum then goes with the rate
    if "initial_lr" in group:
        out["initial_lr"] = (_number(group["initial_lr"]), first_rate(c))
    elif c.schedule == "constant" and not c.warmup:
        out["lr"] = (_number(group.get("lr")), c.lr)
    if c.name in ("adam", "adamw"):
        beta1, beta2 = (_number(beta) for beta in group["betas"]) if _is_pair(group["betas"]) else (None, None)
        out |= {"beta2": (beta2, c.beta2), "eps": (_number(group.get("eps")), c.eps)}
        out |= {} if cycles else {"beta1": (beta1, c.beta1)}
        if "decoupled_weight_decay" in group and c.weight_decay:
            out["decoupled_weight_decay"] = (bool(_number(group["decoupled_weight_decay"])), c.name == "adamw")
    else:
        momentum = c.momentum if c.name == "momentum" else 0.0
        out |= {} if cycles else {"momentum": (_number(group["momentum"]), momentum)}
        out |= {"nesterov": (bool(_number(group["nesterov"])), c.nesterov)} if c.name == "momentum" else {}
    return out


def first_rate(c: OptimConfig) -> float:
    """What torch's schedulers call initial_lr: the peak, or where OneCycleLR starts."""
    return c.lr / c.div_factor if c.schedule == "one_cycle" else c.lr


def _is_pair(value: Any) -> bool:
    return isinstance(value, list | tuple) and len(value) == 2


def _number(value: Any) -> float | None:
    """A number, also one that is kept as a tensor; None for anything else."""
    if isinstance(value, Tensor) and not value.shape:
        return float(value.read())
    return float(value) if isinstance(value, bool | int | float) else None


def _entries(entry: Any, where: str) -> dict[str, Any]:
    """A parameter's state, with what torch leaves at None left out. Raises UserError on what no Adam and no SGD keeps."""
    if not isinstance(entry, Mapping):
        raise UserError(f"{where} is not a dict; save it anew")
    known = {"step", *TORCH_NAMES.values()}
    if strange := [name for name in entry if name not in known]:
        reason = (
            f": {REFUSED['amsgrad']}" if "max_exp_avg_sq" in strange else ", as neither Adam nor SGD with momentum does"
        )
        raise UserError(
            f"{where} holds {', '.join(map(str, strange))}{reason}; convert the weights alone with --weights-only"
        )
    return {name: value for name, value in entry.items() if value is not None}


def _moments(
    entries: Mapping[str, dict[str, Any]],
    names: Sequence[str],
    weights: Mapping[str, Tensor],
    c: OptimConfig,
    what: str,
    step: int | None,
) -> Moments:
    """The roles of all parameters, and the one step. Raises UserError where some have no state, or steps or shapes differ."""
    kept = {role: TORCH_NAMES[role] for role in roles(c)}
    lacking = [name for name in names if not set(kept.values()) <= entries.get(name, {}).keys()]
    if kept and len(lacking) == len(names) and not step:  # nothing was trained yet
        return Moments(0, {role: {name: _zeros(weights[name]) for name in names} for role in kept})
    if lacking:
        which = f"{', '.join(lacking[:3])} ({len(lacking)} of {len(names)})"
        raise UserError(
            f"{what}: its optimizer has no state for {which}, as if no gradient had come there; train them, or convert the weights alone with --weights-only"
        )
    found = {role: {name: entries[name][theirs] for name in names} for role, theirs in kept.items()}
    for tensors in found.values():
        for name, tensor in tensors.items():
            if not isinstance(tensor, Tensor) or tensor.shape != weights[name].shape:
                is_now = list(tensor.shape) if isinstance(tensor, Tensor) else type(tensor).__name__
                raise UserError(
                    f"{what}: the optimizer's state of {name} is {is_now} instead of {list(weights[name].shape)}; "
                    "its parameters are in another order than the model's: make it from model.named_parameters()"
                )
    counts = {_number(entries[name]["step"]) for name in names if "step" in entries.get(name, {})} | (
        {float(step)} if step is not None else set()
    )
    if len(counts) != 1:
        told = " and ".join(f"{count:g}" for count in sorted(count for count in counts if count is not None)) or "none"
        raise UserError(
            f"{what}: its parameters have made different numbers of steps ({told}); there is one for all: train them together"
            if counts
            else f'{what}: says nowhere how many steps its optimizer has made; save it with "step" beside'
        )
    (count,) = counts
    if count is None or count < 0 or count != int(count):
        raise UserError(f"{what}: its optimizer's step is {count}, which is no number of updates; save it anew")
    return Moments(int(count), found)


# ----------------------------------------------------------------------------------- roles to torch's


def registered(names: Sequence[str]) -> list[str]:
    """Names as torch orders a module's parameters: its own first, then those of its parts, in the order in which they come."""
    parts: dict[str, list[str]] = {}
    for name in names:
        head, _, rest = name.partition(".")
        parts.setdefault(head, []).append(rest)
    own = [head for head, rests in parts.items() if rests == [""]]
    return own + [f"{head}.{rest}" for head, rests in parts.items() if rests != [""] for rest in registered(rests)]


def to_torch(
    rows: Iterable[Row], specs: Mapping[str, Spec], c: OptimConfig, table: Table, step: int
) -> tuple[dict[str, Any], Places]:
    """(an optimizer's state dict with a Spec where a tensor goes, the path in it of each (role, name)) for torch's optimizer of `c`.

    `rows` and `specs` are those of the file's parameters, `table` is the network's. Groups are those of torch_ref: what
    decays, then the rest, with names. Before the first step there is no state, as in torch. The path of a parameter's step is under the role `step`.
    """
    kept = moving(rows, specs)
    decays = _decaying(kept, c, table)
    order = registered(parameter_order(kept, specs))
    groups: Groups = []
    state: dict[int, dict[str, Spec]] = {}
    places: Places = {}
    numbers = iter(range(len(order)))
    for on in (True, False):
        if members := [name for name in order if decays[name] is on]:
            numbered = dict(zip(members, numbers, strict=False))
            groups.append({**_group(c, c.weight_decay * on), "params": list(numbered.values()), "param_names": members})
            for name, i in numbered.items() if step else ():
                state[i] = {TORCH_NAMES[role]: specs[name] for role in roles(c)}
                places |= {(role, name): ("state", i, TORCH_NAMES[role]) for role in roles(c)}
                if "mu" in roles(c):
                    state[i] = {"step": Spec(np.dtype(np.float32), ()), **state[i]}
                    places["step", name] = ("state", i, "step")
    return {"state": {i: entry for i, entry in state.items() if entry}, "param_groups": groups}, places


def _group(c: OptimConfig, weight_decay: float) -> dict[str, Any]:
    """A group's settings as torch 2.13 writes them. The rate is the first one: a schedule goes on from there."""
    shared: dict[str, Any] = {"lr": first_rate(c), "initial_lr": first_rate(c), "weight_decay": weight_decay, "maximize": False,
                              "foreach": None, "differentiable": False, "fused": None}  # fmt: skip
    if c.name in ("adam", "adamw"):
        return {
            **shared,
            "betas": (c.beta1, c.beta2),
            "eps": c.eps,
            "amsgrad": False,
            "capturable": False,
            "decoupled_weight_decay": c.name == "adamw",
        }
    momentum = c.momentum if c.name == "momentum" else 0.0
    return {**shared, "momentum": momentum, "dampening": 0.0, "nesterov": c.nesterov and c.name == "momentum"}
