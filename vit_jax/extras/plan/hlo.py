"""The text of a compiled program (XLA's HLO) as instructions, and the FLOPs of its products."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property

_ARRAY = re.compile(r"\b([a-z]\w*)\[([\d,<=]*)\](?:\{([^}]*)\})?")
_COMPUTATION = re.compile(r"^(ENTRY )?%?([\w.\-]+) .*\{$")
_INSTRUCTION = re.compile(r"^\s+(ROOT )?%?([\w.\-]+) = (.*)$")
_COMMENT = re.compile(r"/\*.*?\*/")


@dataclass(frozen=True)
class Array:
    """An array of a program: its element type, shape, and layout as XLA writes it."""

    dtype: str
    shape: tuple[int, ...]
    layout: str = ""

    @property
    def bytes(self) -> int:
        """The bytes that it takes in memory, with the padding of a TPU's tiles."""
        stated = re.search(r"\d+", self.dtype)
        bits = int(stated[0]) if stated else 8 * (self.dtype == "pred")  # none of a token
        return math.prod(self._padded()) * bits // 8

    @property
    def on_chip(self) -> bool:
        """Whether it lies in the memory inside a TPU's core, not in that which all operations share."""
        return "T(" in self.layout and re.search(r"S\([1-9]", self.layout) is not None

    def _padded(self) -> list[int]:
        """Its shape, in whole tiles: `{1,0:T(8,128)(2,1)}` has tiles of 8 x 128 in its last two axes."""
        sizes, tile = list(self.shape), re.search(r"T\(([\d,]+)\)", self.layout)
        if tile and sizes:
            order = [int(axis) for axis in self.layout.partition(":")[0].split(",") if axis]  # from the fastest on
            for axis, length in zip(order, reversed([int(n) for n in tile[1].split(",")]), strict=False):
                sizes[axis] = -(-sizes[axis] // length) * length
        return sizes


@dataclass(frozen=True)
class Instruction:
    """One operation."""

    name: str
    opcode: str
    results: tuple[Array, ...]
    operands: tuple[str, ...]
    attributes: str = field(repr=False)
    root: bool = False
    inside: str = field(default="", repr=False)

    def attribute(self, name: str) -> str:
        """The value of an attribute that is a word, a list in braces or a quoted text; empty if it has none."""
        found = re.search(rf'\b{name}=(?:"((?:[^"\\]|\\.)*)"|\{{([^}}]*)\}}|%?([^,\s{{}}]+))', self.attributes)
        return next((group for group in found.groups() if group is not None), "") if found else ""

    def numbers(self, name: str) -> list[int]:
        """The numbers of a list, as an attribute ({1,2}) or in a backend's JSON (["1","2"]); empty if it has none."""
        found = re.search(rf'\b{name}"?[=:] ?[{{\[]([^\]}}]*)[\]}}]', self.attributes)
        return [int(n) for n in re.findall(r"\d+", found[1])] if found else []

    @cached_property
    def calls(self) -> list[str]:
        """The names of the computations that it calls."""
        names = r"\b(?:calls|to_apply|body|condition|branch_computations|true_computation|false_computation)="
        found = re.findall(names + r"(?:\{([^}]*)\}|%?([\w.\-]+))", self.attributes)
        return [name.strip().lstrip("%") for many, one in found for name in (many or one).split(",")]


@dataclass(frozen=True)
class Module:
    """A program: {name of a computation: its instructions by name, in order}, and which of them is the entry."""

    computations: dict[str, dict[str, Instruction]]
    entry: str


def read_module(text: str) -> Module:
    """The program of a compiled module's text, as jax's Compiled.as_text() gives it."""
    computations: dict[str, dict[str, Instruction]] = {}
    entry, current = "", None
    for line in text.splitlines():
        if not line.startswith(" "):
            found = _COMPUTATION.match(line)
            if found and " -> " in line:
                current = computations.setdefault(found[2], {})
                entry = found[2] if found[1] else entry
            elif line.startswith("}"):
                current = None
        elif current is not None and (found := _INSTRUCTION.match(line)):
            instruction = _instruction(found[2], found[3], bool(found[1]))
            current[instruction.name] = instruction
    return Module(computations, entry)


def _instruction(name: str, text: str, root: bool) -> Instruction:
    text = _COMMENT.sub("", text)
    end = _closed(text) if text.startswith("(") else text.index(" ")
    shape, rest = text[:end], text[end:].lstrip()
    opcode, _, rest = rest.partition("(")
    inner = _closed("(" + rest) - 1
    operands = tuple(re.findall(r"%([\w.\-]+)", rest[: inner - 1]))
    return Instruction(name, opcode, tuple(read_arrays(shape)), operands, rest[inner:], root, rest[: inner - 1])


def read_arrays(text: str) -> Iterator[Array]:
    """The arrays of a shape, such as (f32[4,8]{1,0}, s32[])."""
    for dtype, sizes, layout in _ARRAY.findall(text):
        yield Array(dtype, tuple(int(n) for n in re.findall(r"\d+", sizes)), layout)


def _closed(text: str) -> int:
    """The place after the parenthesis that closes the first."""
    depth = 0
    for place, letter in enumerate(text):
        depth += (letter == "(") - (letter == ")")
        if not depth:
            return place + 1
    return len(text)


def product_flops(each: Instruction, there: dict[str, Instruction]) -> int:
    """The FLOPs of an instruction that is a product, 2 per multiply-add; 0 of any other."""
    arrays = [array for name in each.operands[:2] if name in there for array in there[name].results[:1]]
    if not each.results or not arrays:
        return 0
    target = each.attribute("custom_call_target")
    if "__cudnn$fmha" in target:
        return _attention(each, arrays[0], 5 if "Backward" in target else 2)
    if len(arrays) < 2:
        return 0
    if each.opcode == "dot" or "gemm" in target or "matmul" in target or target.startswith("__onednn$"):
        summed = each.numbers("lhs_contracting_dim(?:ension)?s") or [len(arrays[0].shape) - 1]
        return 2 * math.prod(each.results[0].shape) * math.prod(arrays[0].shape[axis] for axis in summed)
    if each.opcode == "convolution":
        return _convolution(each, *arrays)
    if "__cudnn$conv" in target:
        return _by_cudnn(each, target, *arrays)
    return 0


def _attention(each: Instruction, queries: Array, products: int) -> int:
    """So many products of queries and keys, of which a causal mask leaves half."""
    shape = re.search(r'"intermediate_tensor_shape":.*?"dimensions": ?\[([^\]]*)\]', each.attributes)
    if not shape:
        return 0
    scores = math.prod(int(n) for n in re.findall(r"\d+", shape[1]))  # [B, H, Nq, Nk]
    whole = 2 * products * scores * queries.shape[-1]
    return whole // 2 if "CAUSAL" in each.attributes else whole


def _convolution(each: Instruction, inputs: Array, kernel: Array) -> int:
    """Of a convolution, only where the kernel lies on numbers: not on padding, nor between those of a dilated input.

    (A TPU's compiler writes products of several matrices as convolutions, most of whose places are padding.)
    """
    of_inputs, of_kernel, of_outputs = re.split("_|->", each.attribute("dim_labels"))
    window = {name: value.split("x") for name, value in re.findall(r"(\w+)=([\w\-]+)", each.attribute("window"))}
    outputs, places = each.results[0], 1
    for number in range(len(of_inputs) - 2):
        axis = str(number)

        def read(name: str, default: str, number: int = number) -> str:
            return window[name][number] if name in window else default

        places *= _places(
            inputs.shape[of_inputs.index(axis)],
            kernel.shape[of_kernel.index(axis)],
            outputs.shape[of_outputs.index(axis)],
            int(read("stride", "1")),
            int(read("pad", "0_0").partition("_")[0] or 0),
            int(read("lhs_dilate", "1")),
            int(read("rhs_dilate", "1")),
        )
    rows = outputs.shape[of_outputs.index("b")] * outputs.shape[of_outputs.index("f")]
    groups = int(each.attribute("batch_group_count") or 1)
    return 2 * places * rows * kernel.shape[of_kernel.index("i")] // groups


def _places(inputs: int, kernel: int, outputs: int, stride: int, pad: int, dilate: int, kernel_dilate: int) -> int:
    """Along one axis, the pairs of a place of the output and one of the kernel that meet a number of the input."""
    if kernel == 1 and not pad and dilate == 1:
        return outputs
    last = (inputs - 1) * dilate
    met = (o * stride - pad + k * kernel_dilate for o, k in itertools.product(range(outputs), range(kernel)))
    return sum(0 <= place <= last and place % dilate == 0 for place in met)


def _by_cudnn(each: Instruction, target: str, first: Array, second: Array) -> int:
    """Of a convolution that cuDNN computes, or one of its two gradients, padding included."""
    result = each.results[0]
    kernel, outputs = second, result
    if "BackwardFilter" in target:
        kernel, outputs = result, second
    elif "BackwardInput" in target:
        outputs = first
    labels = re.split("_|->", each.attribute("dim_labels"))[1]
    return 2 * math.prod(outputs.shape) * math.prod(kernel.shape) // kernel.shape[labels.index("o")]
