"""The base class of the configs of networks: what other code knows of a network without building it.

Nothing here imports jax or torch: the classes that compute are named as text. To add a network, write a subclass of
`NetworkConfig` and the class that computes it, and name the subclass in models/networks.py; no other code asks which
network it has.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import typing
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Self

from ..errors import Field, UserError
from .dotted import field_types, leaves, replace_fields, value_at
from .fields import Mark
from .parameters import Parameter
from .ranges import check_ranges


@dataclass(frozen=True)
class Input:
    """One argument of a network, without its batch axis.

    Args:
        kind: pixels (normalised images), ids (a sequence of integers) or vectors (a sequence of vectors).
        shape: (h, w, C) of pixels.
        size: what ids are below, or the width of vectors.
        longest: the maximum length of a sequence; 0: no limit.
        padding: the name of the boolean argument that is True at real tokens; empty: the network has none.
    """

    name: str
    kind: Literal["pixels", "ids", "vectors"]
    shape: tuple[int, ...] = ()
    size: int = 0
    longest: int = 0
    padding: str = ""


# What a subclass has to define, and what for.
_TO_WRITE = {
    "computes": "the class that computes the network in jax, as text: module:class",
    "parameters": "a method that gives the table of its parameters: shape, kind and start of each",
    "inputs": "a method that gives the arguments of a call, an Input each",
}


@dataclass(frozen=True)
class NetworkConfig:
    """The base class of the configs of networks: a frozen dataclass whose fields are the options of one network.

    A subclass has to define `computes`, `parameters` and `inputs`, and for convert `names` and `examples`; all else
    has a default. Fields say by their marks (fields.py) what other code needs to know of them. Of configs inside a
    config, fields have dotted names: `vit.depth`.
    """

    computes: ClassVar[str]  # module:class that computes it in jax
    twin: ClassVar[str] = ""  # module:class that computes it in PyTorch; empty: there is none
    name: ClassVar[str]  # in files and messages: that of the class without "Config"
    frozen: ClassVar[str] = ""  # why such networks are not trained, as a clause; empty: they are
    # What each mode of fine-tuning (weights/fitting.py) trains, {its name: patterns of names}; empty: none.
    tuning_modes: ClassVar[Mapping[str, tuple[str, ...]]] = {}
    # The field that is the config of an encoder, whose parameters begin with the same name, and which --init-encoder
    # starts; `encoder` is what of it counts. Empty: there is none.
    encoder_field: ClassVar[str] = ""
    # Regular expressions that recognise a file of its weights by full names of parameters: each must match one, or with
    # a leading "!" none. Empty: no file is recognised by its names alone.
    names: ClassVar[tuple[str, ...]] = ()
    # Small values of each numeric field, in order of preference, and combinations of fields to start from. convert
    # searches them for a network that two layouts can both hold.
    examples: ClassVar[Mapping[str, tuple[Any, ...]]] = {}
    combinations: ClassVar[tuple[Mapping[str, Any], ...]] = ({},)

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        cls.name = cls.__name__.removesuffix("Config")
        for member, purpose in _TO_WRITE.items():
            if getattr(cls, member, None) is getattr(NetworkConfig, member, None):
                raise TypeError(f"{cls.__name__} lacks {member}: {purpose}; define it in the class")

    # What a subclass defines, or may.

    def parameters(self) -> dict[str, Parameter]:
        """Every parameter of the network as {dotted name: Parameter}, in reading order."""
        raise NotImplementedError

    def inputs(self) -> tuple[Input, ...]:
        """The arguments of the network, in the order of a call."""
        raise NotImplementedError

    def check(self) -> None:
        """Check the config: here, each field against its range. A subclass goes on from there."""
        check_ranges(self)

    def normal(self) -> Self:
        """The config in normal form: networks that compute the same function have equal ones."""
        return self

    def describe(self) -> tuple[str, str]:
        """(what the network is, what it costs or takes), a few words each."""
        sizes = ("x".join(map(str, one.shape or (one.size,))) for one in self.inputs())
        return self.name, ", ".join(f"{one.name} {size}" for one, size in zip(self.inputs(), sizes, strict=True))

    def captured(self) -> list[str]:
        """The names that `capture` accepts for any input, in the order of the forward pass; the last is the outputs."""
        return ["logits"]

    def flops(self) -> int:
        """Floating-point operations of the forward pass of one example, 2 per multiply-add; 0: data determine them."""
        return 0

    def training_flops(self) -> int:
        """Those of a forward pass in training, which may leave out a part of the input."""
        return self.flops()

    def activations(self) -> int:
        """How many numbers the forward pass of one example holds at once, at least; 0: data determine it."""
        return 0

    def largest(self) -> int:
        """How many numbers the largest array in the forward pass of one example has; 0: data determine it."""
        return 0

    def pipeline(self) -> str:
        """What the Hugging Face Hub calls the task of such a network; empty where the network does not tell."""
        return ""

    @property
    def encoder(self) -> NetworkConfig | None:
        """The config in `encoder_field`, as far as it counts; None where there is no encoder."""
        return None

    # What follows from that.

    @classmethod
    def marked(cls, mark: Mark) -> tuple[str, ...]:
        """The dotted names of the fields with a mark, also of those in configs inside this one, in order.

        Marks are the keywords of `identity`, or "drops" for a `dropout_rate`.
        """
        return _fields_with(typing.cast(typing.Hashable, cls), mark)

    @classmethod
    def function_fields(cls) -> list[str]:
        """The dotted names of the fields that change the evaluation pass."""
        training = cls.marked("training_only")
        return [name for name in leaves(cls) if name not in training]

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Every parameter of the network as {dotted name: shape}, in reading order."""
        return {name: parameter.shape for name, parameter in self.parameters().items()}

    def parameter_count(self) -> int:
        """How many numbers all parameters hold, of a network of any depth without building its whole table."""
        depths = self.marked("counts_blocks")
        shallow = replace_fields(self, {name: min(1, value_at(self, name)) for name in depths})
        count = _total(shallow)
        for name in depths:
            more = value_at(self, name) - value_at(shallow, name)
            count += more * (_total(replace_fields(shallow, {name: 2})) - _total(shallow)) if more else 0
        return count

    def pixels(self) -> tuple[int, int, int] | None:
        """The shape (h, w, C) of the images that the network takes, or None."""
        found = next((one.shape for one in self.inputs() if one.kind == "pixels"), None)
        return None if found is None else (found[0], found[1], found[2])

    def any_size(self) -> tuple[int, int] | None:
        """Of what a height and a width have to be multiples, where the network takes images of any; None: it does not.

        Positions that are stored or computed for one size make it take that one.
        """
        return None

    def with_sizes(self, sizes: Mapping[str, int]) -> Self:
        """The config with the sizes that data determines; those of fields without the mark "from_data" are ignored."""
        return replace_fields(self, {name: sizes[name] for name in self.marked("from_data") if name in sizes})

    def with_data(self) -> Self:
        """The config as a run trains it, as far as is known before its data: sizes that data will determine are 1."""
        return replace_fields(self, {name: value_at(self, name) or 1 for name in self.marked("from_data")})

    def without_dropout(self) -> Self:
        """The config with every rate at which training drops values at 0."""
        return replace_fields(self, dict.fromkeys(self.marked("drops"), 0.0))

    def check_stack(self, chosen: Mapping[str, bool]) -> None:
        """Check that the network has the stack of equal blocks that these fields of a run choose how to compute."""
        for field, asked in chosen.items():
            if asked and not self.marked("counts_blocks"):
                raise UserError(
                    Field(field), f"is chosen, but a {self.name} has no stack of equal blocks", "leave it out"
                )


@functools.cache
def _fields_with(cls: Any, mark: Mark) -> tuple[str, ...]:
    found: list[str] = []
    types = field_types(cls)
    for f in dataclasses.fields(cls):
        if isinstance(types[f.name], type) and issubclass(types[f.name], NetworkConfig):
            found += (f"{f.name}.{inner}" for inner in types[f.name].marked(mark))
        elif mark in f.metadata.get("marks", ()):
            found.append(f.name)
    return tuple(found)


def _total(config: NetworkConfig) -> int:
    return sum(map(math.prod, config.shapes().values()))


@dataclass(frozen=True)
class Teacher:
    """A trained network that the loss of another run compares with, or the logits that one gave."""

    path: str  # of a run, of weights or of logits, as the run states it
    layout: str
    config: NetworkConfig | None  # None: there are only logits
    metadata: Mapping[str, Any]  # the entries of its own task's metadata that are known
    # {dotted name of a parameter: array}, empty where only headers were read; or "logits", float [n, K], of the train
    # images of the run's source, and "labels", int [n], where they are stated.
    arrays: Mapping[str, Any]
