"""The table of a network's parameters: each with its dotted name, shape, kind and initial values.

Checkpoints store these parameters, and weight conversion maps them to other layouts. The config file of each network
builds its table with `Table`. Properties of a parameter are looked up there and never inferred from its name.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, NamedTuple

from .fields import Kind

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
        self._dense(
            name,
            n_in,
            n_out,
            ZEROS if zero else kernel or self._kernel(n_in, n_out, scheme),
            bias,
            ZEROS if zero else self._bias(n_in),
        )

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
