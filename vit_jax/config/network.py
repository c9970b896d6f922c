"""The base class of the configs of networks: what other code knows of a network without building it.

Each config builds a `Table` of the network's parameters: checkpoints store these, weight conversion maps them to other
layouts, and what they are is looked up there and never inferred from their names. Nothing here imports jax or torch:
the classes that compute are named as text. To add a network, write a subclass of `NetworkConfig` and the class that
computes it, and name the subclass in models/networks.py; no other code asks which network it has.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import typing
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple, Self

from ..errors import Field, UserError
from .dotted import field_types, leaves, replace_fields, value_at
from .fields import Kind, Mark, check_ranges

# The standard deviation of a standard normal distribution that is truncated at -2 and 2.
CUT = 0.87962566103423978


class Start(NamedTuple):
    """How the initial values of a parameter are drawn.

    constant: all are `size`. normal: with standard deviation `size`. truncated: `size` times a standard normal that is
    truncated at -2 and 2. uniform: between -size and size. computed: by the network's class (sinusoids, for example).
    """

    how: Literal["constant", "normal", "truncated", "uniform", "computed"]
    size: float = 0.0


ZEROS, ONES = Start("constant", 0.0), Start("constant", 1.0)


class Parameter(NamedTuple):
    """One parameter. Its `kind` determines whether weight decay applies to it.

    `layer` counts from the input, for rates that fall towards it: 0 for all that precedes the blocks, I + 1 for block
    I, and so on to the head. In a network whose layers have no such order all are 0. `muon` states that the optimizer
    muon updates it by Muon, not by AdamW: so the hidden kernels, those inside blocks and, of a stem, all that follow
    its first convolution, the patch projection included. `head` states that it is of the head, which --new-head draws
    anew and which trains whole beside LoRA. `trains` is False for one that a run with LoRA keeps as it is.
    """

    shape: tuple[int, ...]
    kind: Kind
    start: Start
    layer: int = 0
    muon: bool = False
    head: bool = False
    trains: bool = True


class Table(dict[str, Parameter]):
    """{dotted name: Parameter}, filled layer by layer, in reading order.

    `norm_bias`, `init`, `attention_init` and `init_std` are the fields of the config with these names. `layer` and
    `head` are those of the parameters which are added next, `muon` that of the kernels among them.
    """

    layer, muon, head = 0, False, False

    def __init__(
        self, norm_bias: bool = True, init: str = "xavier", attention_init: str = "same", init_std: float = 0.02
    ):
        super().__init__()
        self.norm_bias, self.init, self.init_std = norm_bias, init, init_std
        self.like_torch = attention_init == "torch"

    def __setitem__(self, name: str, parameter: Parameter) -> None:
        muon = self.muon and parameter.kind == "kernel"
        super().__setitem__(name, parameter._replace(layer=self.layer, muon=muon, head=self.head))

    def dense(
        self,
        name: str,
        n_in: int,
        n_out: int,
        bias: bool = True,
        *,
        torchvision: str = "torch",
        zero: bool = False,
        kernel: Start | None = None,
    ) -> None:
        """Add a linear map."""
        scheme = torchvision if self.init == "torchvision" else self.init
        kernel = kernel or self._kernel(n_in, n_out, scheme)
        self._dense(name, n_in, n_out, ZEROS if zero else kernel, bias, ZEROS if zero else self._bias(n_in))

    def attention(
        self,
        name: str,
        width: int,
        inner: int,
        bias: bool | tuple[bool, bool, bool, bool],
        norms: Mapping[str, int] = {},
        *,
        head_width: int = 1,
    ) -> None:
        """Add the four linear maps of an attention."""
        query, key, value, out = bias if isinstance(bias, tuple) else (bias,) * 4
        inward = self._kernel(
            width, inner, "xavier_of_three" if self.like_torch else "torch" if self.init == "torchvision" else self.init
        )
        outward = self._kernel(inner, width, "torch" if self.init == "torchvision" else self.init)
        biases = (ZEROS, ZEROS) if self.like_torch else (self._bias(width), self._bias(inner))
        smaller = inward._replace(size=inward.size * head_width**-0.5) if self.init == "t5" else inward
        for part, start, has_bias in (("query", smaller, query), ("key", inward, key), ("value", inward, value)):
            self._dense(f"{name}.{part}", width, inner, start, has_bias, biases[0])
        for norm, size in norms.items():
            self.norm(f"{name}.{norm}", size)
        self._dense(f"{name}.out", inner, width, outward, out, biases[1])

    def mlp(self, name: str, width: int, hidden: int, bias: bool, gated: bool = False) -> None:
        """Add the linear maps of an mlp."""
        self.dense(f"{name}.fc1", width, hidden, bias, torchvision="xavier")
        if gated:
            self.dense(f"{name}.gate", width, hidden, bias, torchvision="xavier")
        self.dense(f"{name}.fc2", hidden, width, bias, torchvision="xavier")

    def norm(self, name: str, width: int) -> None:
        """Add a LayerNorm."""
        self[f"{name}.scale"] = Parameter((width,), "norm", ONES)
        if self.norm_bias:
            self[f"{name}.bias"] = Parameter((width,), "norm", ZEROS)

    def _dense(self, name: str, n_in: int, n_out: int, kernel: Start, has_bias: bool, bias: Start) -> None:
        self[f"{name}.kernel"] = Parameter((n_in, n_out), "kernel", kernel)
        if has_bias:
            self[f"{name}.bias"] = Parameter((n_out,), "bias", bias)

    def _kernel(self, n_in: int, n_out: int, scheme: str) -> Start:
        if scheme == "normal":
            return Start("normal", self.init_std)
        if scheme == "t5":
            return Start("normal", n_in**-0.5)
        if scheme in ("trunc_normal", "fan_in"):
            return Start("truncated", (self.init_std if scheme == "trunc_normal" else n_in**-0.5) / CUT)
        fans = {"xavier": n_in + n_out, "xavier_of_three": n_in + 3 * n_out}
        bounds = {"torch": n_in**-0.5} | {name: (6 / fan) ** 0.5 for name, fan in fans.items()}
        return Start("uniform", bounds[scheme])

    def _bias(self, n_in: int) -> Start:
        """The start of a bias: PyTorch draws it, all other schemes start at 0."""
        return Start("uniform", n_in**-0.5) if self.init == "torch" else ZEROS


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
        cls.check_members()

    @classmethod
    def check_members(cls) -> None:
        """Raise TypeError where it lacks what a subclass has to define."""
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
        """The dotted names of the fields with a mark, also of those in configs inside this one, in order."""
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
        """Of what height and width have to be multiples where images may have any size; None: positions are of one."""
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
                what = f"is chosen, but a {self.name} has no stack of equal blocks"
                raise UserError(Field(field), what, "leave it out")


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
