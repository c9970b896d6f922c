"""What `vit-jax plan` prints: a table of figures, a column for each program, and a sentence of what would help."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from ...config.run import RunConfig
from ...files.output import print_table
from ...files.terminal import print_wrapped
from ...machine.targets import GIB

PARTS = {
    "weights": "weights",
    "moments": "moments",
    "average": "average of weights",
    "teacher": "teacher",
    "batch": "batch and padding",
    "temporaries": "activations, temporaries",
    "code": "code",
}


def fits(figures: Mapping[str, Any]) -> bool:
    """Whether a program fits into the memory of a device; True where that is not known."""
    memory = figures["memory"]
    return not memory["there"] or memory["total"] <= memory["there"]


def print_plan(
    run: RunConfig,
    target: str,
    steps: Sequence[Mapping[str, Any]],
    tried: Mapping[str, Any],
    largest: tuple[Mapping[str, Any], int] | None,
) -> None:
    """Print what the programs ask of each device."""
    what, cost = run.model.describe()
    print_wrapped(f"model    {what}: {cost}")
    first = steps[0]
    print_wrapped(f"target   {target}: {first['devices']} x {first['kind']}; compiled, not run")
    columns = {str(each["what"]): each for each in steps} | dict(tried)
    best, beyond = largest or ({}, 0)
    if best:
        columns[f"largest batch {best['rows']:,}"] = best
    table = {title: _cells(figures) for title, figures in columns.items()}
    names = dict.fromkeys(name for cells in table.values() for name in cells)
    rows = [[title, *(cells.get(name, "") for name in names)] for title, cells in table.items()]
    print_table(["", *names], [[row] for row in rows])
    if first.get("remark"):
        print_wrapped(f"note     {first['remark']}")
    binding = [each["bounds"]["binds"] for each in columns.values() if "bounds" in each]
    if any(binding):
        print_wrapped("bounds   are what published figures allow at most, never what a device reaches")
    elif binding:
        print_wrapped(f"bounds   none: nothing is published of {first['kind']}")
    if beyond:
        print_wrapped(f"largest  a batch of {best['rows']:,} fits, one of {beyond:,} does not")


def _cells(figures: Mapping[str, Any]) -> dict[str, str]:
    """{name of a row: cell} of a program."""
    memory = figures["memory"]
    unit, size = ("GiB", GIB) if memory["total"] >= GIB / 10 else ("MiB", 2**20)
    rows, length = figures["rows"], figures["length"]
    cells = {"batch": f"{rows:,} {figures['unit']}" + (f" of {length} tokens" if length else "")}
    cells |= {name: f"{memory[part] / size:,.2f} {unit}" for part, name in PARTS.items() if memory.get(part, 0)}
    of = f" of {memory['there'] / size:,.1f}" if memory["there"] else ""
    total = f"{memory['total'] / size:,.2f}{of} {unit}" + ("" if fits(figures) else ": DOES NOT FIT")
    cells["memory of a device"] = total
    if "bytes" not in figures:  # its compiler refused it
        return cells
    cells["FLOPs of products"] = _quantity(figures["flops"], "")
    cells["bytes moved"] = _quantity(figures["bytes"], "B")
    if figures["on_chip"]:
        cells["inside the core"] = _quantity(figures["on_chip"], "B")
    cells["kernels"] = f"{figures['kernels']:,}"
    if figures["attention_calls"]:
        cells["cuDNN's attention"] = f"{figures['attention_calls']} calls"
    for kind, found in figures["collectives"].items():
        cells[kind] = f"{found['count']} of {_quantity(found['bytes'], 'B')}"
    bounds = figures["bounds"]
    for name in ("products", "memory", "network"):
        if bounds[name]:
            binds = "  binds" if bounds["binds"] == name else ""
            cells[f"{name}, at least"] = f"{duration(bounds[name])}{binds}"
    if "rows_per_second" in figures:
        cells[f"{figures['unit']}/s, at most"] = f"{figures['rows_per_second']:,.0f}"
    if "mfu" in figures:
        cells["MFU, at most"] = f"{figures['mfu']:.0%}"
    return cells


def _quantity(value: float, unit: str) -> str:
    """A number with a prefix of SI: 27.1 T, 161 GB."""
    for prefix, size in (("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if value >= size:
            return f"{value / size:,.3g} {prefix}{unit}"
    return f"{value:,.0f} {unit}".rstrip()


def duration(seconds: float) -> str:
    """A time in the unit that fits: 7.58 ns, 75.8 µs, 26.1 ms, 1.2 s."""
    if seconds >= 1:
        return f"{seconds:,.1f} s"
    unit, size = next(((unit, size) for unit, size in (("ms", 1e3), ("µs", 1e6)) if seconds * size >= 1), ("ns", 1e9))
    return f"{seconds * size:.3g} {unit}"


def advice(run: RunConfig, figures: Mapping[str, Any], tried: Mapping[str, Any]) -> str:
    """What would help, in one sentence."""
    memory = figures["memory"]
    over = (memory["total"] - memory["there"]) / GIB
    if not fits(figures):
        fitting = [title for title, each in tried.items() if fits(each)]
        what = f"it lacks {over:,.1f} GiB on each device"
        if fitting:
            return f"{what}; it fits with {' or with '.join(fitting)}"
        if tried:
            return f"{what}, and fits with none of {', '.join(tried)}; lower the batch, or combine them"
        ways = ", ".join(flags for _, flags, _ in variants(run, figures))
        return f"{what}; give {ways}, or lower the batch; --try compiles these" if ways else f"{what}; lower the batch"
    if tried:
        best = min(tried, key=lambda title: _seconds(tried[title]))
        now, then = _seconds(figures), _seconds(tried[best])
        if then < now and fits(tried[best]):
            return f"{best} lowers the bound of a step from {duration(now)} to {duration(then)}"
        return "none of what was tried lowers the bound of a step"
    return _faster(run, figures)


def _seconds(figures: Mapping[str, Any]) -> float:
    """The bound of a step; infinite where there is none."""
    bounds = figures.get("bounds", {})
    return max((bounds.get(name, 0.0) for name in ("products", "memory", "network")), default=0.0) or float("inf")


def variants(run: RunConfig, figures: Mapping[str, Any]) -> Iterator[tuple[str, str, RunConfig]]:
    """(what is changed, its flags, the run with that) of what may help a training step, the cheapest first."""
    devices, parts = figures["devices"], 2 * figures["parts"]
    if run.compute_dtype == "float32":
        yield "bfloat16", "--compute-dtype bfloat16", replace(run, compute_dtype="bfloat16")
    if run.attention_kernel == "plain" and figures["platform"] == "gpu":
        yield "fused attention", "--attention-kernel auto", replace(run, attention_kernel="auto")
    if devices > 1 and run.fsdp == 1 and run.parallel == "jit" and figures["platform"] != "cpu":
        yield f"fsdp {devices}", f"--fsdp {devices}", replace(run, fsdp=devices)
    if run.remat == "none" and run.model.marked("counts_blocks"):
        yield "remat dots", "--scan --remat dots", replace(run, scan=True, remat="dots")
    if figures["rows"] % (parts * devices * run.augment.together) == 0:
        yield f"accumulate {parts}", f"--accumulate {parts}", replace(run, accumulate=parts)


def _faster(run: RunConfig, figures: Mapping[str, Any]) -> str:
    """What lowers the bound that binds."""
    binds = figures["bounds"]["binds"]
    if not binds:
        return "it fits; of its speed nothing can be said"
    if binds == "memory":
        if run.compute_dtype == "float32":
            return "memory binds: --compute-dtype bfloat16 moves about half the bytes"
        if run.attention_kernel == "plain" and figures["platform"] == "gpu":
            return "memory binds: --attention-kernel auto does not write the weights of attention"
        return "memory binds: fewer bytes an operation are a matter of the network's width and of its code"
    if binds == "network":
        return "the network binds: a larger batch exchanges no more; --fsdp among fewer devices exchanges less"
    if run.remat != "none":
        return "products bind: with --remat none fewer of them are computed twice, where the memory allows it"
    return "products bind: it is as good as a step of this network can be here"
