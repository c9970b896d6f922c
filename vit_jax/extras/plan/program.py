"""What a compiled program asks of each device: memory, bytes moved, kernels, products, collectives.

XLA's own analysis counts the body of a loop once, and for a GPU there is none, so that these are counted from the text
of the program. Bytes are those of the operands and results of each kernel, as they lie in memory: also what one leaves
in a cache for the next, and of an operand of which it reads a slice only that. What a TPU's program keeps inside the
core is told apart. Importing this file loads no jax.
"""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from .hlo import Array, Instruction, Module, product_flops, read_module

# What starts no kernel.
FREE = {
    *("parameter", "constant", "tuple", "get-tuple-element", "bitcast", "after-all", "partition-id", "replica-id"),
    *("opt-barrier", "add-dependency", "domain"),
}
COLLECTIVES = ("all-gather", "all-reduce", "reduce-scatter", "all-to-all", "collective-permute", "collective-broadcast")
# The result of these has their operands too.
WITH_OPERANDS = {"copy-start", "all-gather-start", "collective-permute-start", "reduce-scatter-start"}
SLICES = {"dynamic-slice", "slice", "gather"}
IN_CALLS = {"fusion", "custom-call"}
LIBRARIES = ("__cublas", "__cudnn")  # calls whose last result is space to work in
ATTENTION = "__cudnn$fmha"


@dataclass(frozen=True)
class Kernel:
    """One operation of the schedule, and how often it runs."""

    what: str  # its opcode, or the function of a library that it calls
    bytes: int
    on_chip: int
    flops: int
    times: int = 1


@dataclass(frozen=True)
class Collective:
    """One exchange between devices."""

    kind: str
    devices: tuple[int, ...]
    bytes: int
    sent: int
    times: int = 1

    def crossing(self, a_host: int) -> float:
        """Bytes that each device has to send to other hosts at least."""
        hosts = Counter(number // a_host for number in self.devices)
        ways = {"all-reduce": 2, "collective-permute": 0}.get(self.kind, 1)
        return ways * self.bytes * (len(hosts) - 1) / len(hosts) / min(hosts.values())


@dataclass(frozen=True)
class Memory:
    """The bytes of a program on each device."""

    arguments: int = 0
    outputs: int = 0
    aliased: int = 0  # of the outputs, those that take the place of arguments
    temporaries: int = 0
    code: int = 0

    @property
    def peak(self) -> int:
        """What has to be there at once."""
        return self.arguments + self.outputs - self.aliased + self.temporaries + self.code


@dataclass(frozen=True)
class Program:
    """A compiled program, of which each device runs the same."""

    kernels: tuple[Kernel, ...]
    collectives: tuple[Collective, ...]
    memory: Memory = field(default_factory=Memory)

    @property
    def bytes(self) -> int:
        """Bytes moved to and from memory."""
        return sum(kernel.times * kernel.bytes for kernel in self.kernels)

    @property
    def on_chip(self) -> int:
        """Bytes moved to and from the memory inside a TPU's core, which is many times as fast."""
        return sum(kernel.times * kernel.on_chip for kernel in self.kernels)

    @property
    def flops(self) -> int:
        """FLOPs of products, 2 per multiply-add."""
        return sum(kernel.times * kernel.flops for kernel in self.kernels)

    @property
    def count(self) -> int:
        """Kernels that are started."""
        return sum(kernel.times for kernel in self.kernels)

    @property
    def attention(self) -> int:
        """Calls of cuDNN's attention, forward and backward."""
        return sum(kernel.times for kernel in self.kernels if kernel.what.startswith(ATTENTION))

    @property
    def sent(self) -> int:
        """Bytes that each device has to send to others."""
        return sum(each.times * each.sent for each in self.collectives)

    def exchanges(self) -> dict[str, tuple[int, int]]:
        """{kind of collective: (how many, bytes of their arrays)}."""
        found: dict[str, tuple[int, int]] = {}
        for each in self.collectives:
            count, size = found.get(each.kind, (0, 0))
            found[each.kind] = (count + each.times, size + each.times * each.bytes)
        return found


def read_program(compiled: Any) -> Program:
    """The program of what jax.jit(f).lower(...).compile() returns."""
    stats = compiled.memory_analysis()
    memory = Memory(
        int(stats.argument_size_in_bytes),
        int(stats.output_size_in_bytes),
        int(stats.alias_size_in_bytes),
        int(stats.temp_size_in_bytes),
        int(stats.generated_code_size_in_bytes),
    )
    return replace(read_text(compiled.as_text()), memory=memory)


def read_text(text: str) -> Program:
    """The program of a compiled module's text, of which the memory is not known."""
    module = read_module(text)
    devices = math.prod(
        int(n) for n in re.findall(r"\b(?:num_partitions|replica_count)=(\d+)", text.partition("\n")[0])
    )
    reader = _Reader(module, devices)
    reader.walk(module.entry, 1)
    return Program(tuple(reader.kernels), tuple(reader.collectives.values()))


class _Reader:
    """The walk through what a module's entry runs."""

    def __init__(self, module: Module, devices: int):
        self.module, self.devices = module, devices
        self.kernels: list[Kernel] = []
        # A TPU's program has the parts of one exchange in several fusions of a computation, with its channel and chain.
        self.collectives: dict[Any, Collective] = {}

    def walk(self, name: str, times: int) -> None:
        """Add what a computation runs, so many times."""
        there = self.module.computations[name]
        for each in there.values():
            if each.opcode in FREE or each.opcode.endswith(("-done", "-update")):
                continue
            if each.opcode == "while":
                self.walk(each.attribute("body"), times * trip_count(self.module, each))
            elif each.opcode in ("call", "async-start"):
                self.walk(each.calls[0], times)
            elif each.opcode == "conditional":
                self._branch(each, times)
            else:
                self._add(each, name, times)

    def _branch(self, each: Instruction, times: int) -> None:
        """Add the branch that moves the most bytes."""
        tried = []
        for name in each.calls:
            inner = _Reader(self.module, self.devices)
            inner.walk(name, times)
            tried.append(inner)
        most = max(tried, key=lambda inner: sum(kernel.times * kernel.bytes for kernel in inner.kernels))
        self.kernels += most.kernels
        self.collectives |= {(each.name, key): value for key, value in most.collectives.items()}

    def _add(self, each: Instruction, computation: str, times: int) -> None:
        there = self.module.computations[computation]
        what = each.attribute("custom_call_target") or each.opcode
        moved = [0, 0]  # in memory, inside a TPU's core
        for array, part in _moved_arrays(self.module, each, there):
            moved[array.on_chip] += part
        self.kernels.append(Kernel(what, moved[0], moved[1], self._flops(each, there), times))
        self._exchange(each, there, times, computation)

    def _flops(self, each: Instruction, there: dict[str, Instruction]) -> int:
        """FLOPs of the products of an instruction, and of those that are fused into it."""
        total = product_flops(each, there)
        for name in each.calls if each.opcode in IN_CALLS else ():
            inner = self.module.computations[name]
            total += sum(self._flops(one, inner) for one in inner.values())
        return total

    def _exchange(
        self, each: Instruction, there: dict[str, Instruction], times: int, computation: str, within: str = ""
    ) -> None:
        """Add the collectives of an instruction of a computation, and of those that are fused into it."""
        kind = each.opcode.removesuffix("-start")
        if kind in COLLECTIVES:
            found = _collective(each, there, kind, self.devices, within.startswith("all-reduce-scatter"))
            key = (computation, kind, each.attribute("channel_id"), each.attribute("chain_id")) if within else each.name
            self.collectives.setdefault(key, replace(found, times=times))
        for name in each.calls if each.opcode in IN_CALLS else ():
            inner = self.module.computations[name]
            for one in inner.values():
                self._exchange(one, inner, times, computation, name)


def trip_count(module: Module, loop: Instruction) -> int:
    """How often a while loop runs: as XLA knows it, or else the largest number that its condition compares with. A loop
    that may end before, as that of a search, is counted as if it did not.
    """
    found = re.search(r'"known_trip_count":\{"n":"(\d+)"', loop.attributes)
    if found:
        return int(found[1])
    reached, names = [], [loop.attribute("condition")]
    for name in names:
        for each in module.computations.get(name, {}).values():
            names += [called for called in each.calls if called not in names]
            if each.opcode == "constant" and each.results[0].dtype in ("s32", "s64", "u32", "u64"):
                reached.append(int(each.inside) if each.inside.lstrip("-").isdigit() else 0)
    return max([1, *reached])


def _moved_arrays(module: Module, each: Instruction, there: dict[str, Instruction]) -> Iterator[tuple[Array, int]]:
    """The operands and results of a kernel, each with the bytes of it that are read or written."""
    operands = [there[name].results if name in there else () for name in each.operands]
    results = each.results
    if each.opcode == "fusion":
        yield from _moved_by_fusion(module, each.calls[0], operands, results)
        return
    if each.opcode == "slice-start":  # its result is (the operand, the slice, a flag)
        yield results[0], results[1].bytes
        results, operands = results[1:2], []
    elif each.opcode in SLICES:
        yield operands[0][0], results[0].bytes
        operands = operands[1:]
    elif each.opcode == "dynamic-update-slice":
        results, operands = operands[1], operands[1:]
    elif each.opcode == "scatter":
        results, operands = operands[-1], operands[1:]
    elif each.opcode in WITH_OPERANDS:
        operands = []
    elif each.attribute("custom_call_target").startswith(LIBRARIES) and len(results) > 1:
        results = results[:-1] if results[-1].dtype in ("s8", "u8") else results
    for arrays in (*operands, results):
        yield from ((array, array.bytes) for array in arrays)


def _moved_by_fusion(
    module: Module, name: str, operands: list[tuple[Array, ...]], results: tuple[Array, ...]
) -> Iterator[tuple[Array, int]]:
    """Those of a fusion: of an operand that it slices the slices, of a result that it updates in place the part."""
    inner, users = module.computations[name], _users(module, name)
    for one in inner.values():
        if one.opcode == "parameter":
            for array in operands[int(one.inside)]:
                yield array, min(array.bytes, _read(module, one, users))
    root = _root(module, name)
    roots = [inner[operand] for operand in root.operands] if root.opcode == "tuple" else [root]
    parts = [part for one in roots for part in _written(module, one, inner)]
    yield from ((array, min(array.bytes, part)) for array, part in zip(results, parts, strict=True))


def _users(module: Module, name: str) -> dict[str, list[Instruction]]:
    """{name of a value of a computation: the instructions that take it}."""
    users: dict[str, list[Instruction]] = defaultdict(list)
    for one in module.computations[name].values():
        for operand in dict.fromkeys(one.operands):
            users[operand].append(one)
    return users


def _root(module: Module, name: str) -> Instruction:
    return next(one for one in module.computations[name].values() if one.root)


def _read(module: Module, value: Instruction, users: dict[str, list[Instruction]]) -> int:
    """The bytes of a value inside a fusion that are read at most."""
    if value.root:  # what leaves the fusion, or one inside it
        return sum(array.bytes for array in value.results)
    total = 0
    for user in users[value.name]:
        first = user.operands[0] == value.name
        if user.opcode == "bitcast":
            total += _read(module, user, users)
        elif user.opcode == "fusion":  # one inside the other, as a TPU's programs have them
            name = user.calls[0]
            for one in module.computations[name].values():
                if one.opcode == "parameter" and user.operands[int(one.inside)] == value.name:
                    total += _read(module, one, _users(module, name))
        elif first and user.opcode in SLICES:
            total += sum(array.bytes for array in user.results)
        elif not (first and user.opcode == "dynamic-update-slice"):  # what that does not replace stays where it is
            return sum(array.bytes for array in value.results)
    return total


def _written(module: Module, value: Instruction, there: dict[str, Instruction]) -> list[int]:
    """The bytes that are written of each array of a fusion's result: of one that is updated in place, the part."""
    while value.opcode == "bitcast":
        value = there[value.operands[0]]
    if value.opcode == "fusion" and len(value.results) == 1:
        return _written(module, _root(module, value.calls[0]), module.computations[value.calls[0]])
    part = there[value.operands[1]] if value.opcode == "dynamic-update-slice" else value
    return [array.bytes for array in part.results]


def _collective(
    each: Instruction, there: dict[str, Instruction], kind: str, devices: int, scatters: bool
) -> Collective:
    """A collective; `scatters`: an all-reduce of which each device keeps its part."""
    members = first_group(each, devices)
    group = len(members)
    given = sum(array.bytes for name in each.operands if name in there for array in there[name].results)
    kind = "reduce-scatter" if scatters and kind == "all-reduce" else kind
    whole = given * group if kind == "all-gather" else given
    parts = {"all-reduce": 2 * (group - 1) / group, "collective-permute": 1.0, "collective-broadcast": 1 / group}
    sent = int(whole * parts.get(kind, (group - 1) / group))
    return Collective(kind, tuple(members), whole, sent)


def first_group(each: Instruction, devices: int) -> list[int]:
    """The numbers of the devices that exchange with each other, in the first group of a program."""
    text = each.attributes
    if found := re.search(r"replica_groups=\{\{([\d,]*)\}", text):
        return [int(number) for number in found[1].split(",")]
    if found := re.search(r"replica_groups=\[\d+,(\d+)\]<=\[([\d,]+)\](?:T\(([\d,]+)\))?", text):
        sizes = [int(number) for number in found[2].split(",")]
        order = [int(axis) for axis in found[3].split(",")] if found[3] else [*range(len(sizes))]
        return np.arange(math.prod(sizes)).reshape(sizes).transpose(order).reshape(-1)[: int(found[1])].tolist()
    if found := re.search(r"replica_groups=(?:@?\w+)\[([^\]]*)\] ?\{([^}]*)\}", text):
        axes = {name: int(size) for name, size in re.findall(r"'?([\w.]+)'?=(\d+)", found[1])}
        named = re.findall(r"[\w.]+", found[2])
        grid = np.arange(math.prod(axes.values())).reshape([*axes.values()])
        return grid[tuple(slice(None) if name in named else 0 for name in axes)].reshape(-1).tolist()
    return [*range(devices)]
