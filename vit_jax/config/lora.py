"""Low-rank adaptation (LoRA): the kernels that a run adapts, the factors that it trains for them, and what stays.

The factors of `blocks.0.attention.query.kernel`, of shape [n_in, n_out], are `blocks.0.attention.query.lora_a`
[n_in, rank] and `.lora_b` [rank, n_out]. They are no parameters of the network: training/engine/lora.py adds their
product to the kernel.
"""

from __future__ import annotations

from collections.abc import Mapping

from ..errors import Field, UserError
from .groups import matches, trainable
from .hints import similar
from .parameters import ZEROS, Parameter, Start
from .run import LoraConfig, RunConfig


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
        if not found:
            raise UserError(
                Field("lora.maps"),
                f"has {pattern!r}, which matches no parameter{similar(pattern, list(table))}",
                "give patterns of names of kernels, such as '*.query.kernel'",
            )
        if not kernels:
            raise UserError(
                Field("lora.maps"),
                f"has {pattern!r}, which matches {found[0]} but no kernel of a linear map",
                "give patterns of names of kernels, such as '*.query.kernel'",
            )
        if head := [name for name in kernels if table[name].head]:
            raise UserError(
                Field("lora.maps"),
                f"has {pattern!r}, which matches {head[0]}, but the head trains as it is",
                "name the kernels before it, such as '*.attention.*'",
            )
