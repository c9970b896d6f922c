"""The layers that the models are built from, in idiomatic PyTorch: the counterpart of vit_jax/models/layers.py.

torch.nn has Linear (weights stored as [out, in]), LayerNorm and Dropout, so those have no class here.
Dimensions: B batch, N tokens, D width, F hidden.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "none": nn.Identity(),
    "gelu": nn.GELU(),
    "gelu_tanh": nn.GELU(approximate="tanh"),
    "quick_gelu": lambda x: x * torch.sigmoid(1.702 * x),
    "relu": nn.ReLU(),
    "silu": nn.SiLU(),
    "tanh": nn.Tanh(),
}


NORMS: dict[str, Callable[[int, float, bool], nn.Module]] = {
    "layer": lambda width, eps, bias: nn.LayerNorm(width, eps, bias=bias),
    "rms": lambda width, eps, bias: nn.RMSNorm(width, eps),
}


class Convolution(nn.Conv2d):
    """A convolution of stride 2, then LayerNorm over the channels and GELU: one layer of a stem.

    Such stems are those of Xiao et al. 2021 (arXiv 2106.14881), with LayerNorm in place of batch norm.
    """

    def __init__(self, n_in: int, n_out: int, size: int, bias: bool, norm: nn.Module):
        super().__init__(n_in, n_out, size, stride=2, padding=1, bias=bias)
        self.norm = norm

    def forward(self, x: Tensor) -> Tensor:  # [B, in, h, w] -> [B, out, h/2, w/2]
        y = super().forward(x).movedim(1, -1)
        return F.gelu(self.norm(y)).movedim(-1, 1)


def drop_path(x: Tensor, rate: float, training: bool) -> Tensor:
    """Stochastic depth (Huang et al. 2016): zero some examples, scale the rest. Shapes: x [B, ...]."""
    return x * F.dropout(x.new_ones(len(x), *[1] * (x.ndim - 1)), rate, training) if rate else x


class Mlp(nn.Module):
    """fc2(dropout(act(fc1 x))), gated: fc2(dropout(act(gate x) * fc1 x)) (Shazeer 2020, arXiv 2002.05202)."""

    def __init__(
        self,
        width: int,
        hidden: int,
        activation: str,
        *,
        gated: bool = False,
        bias: bool = True,
        dropout: float = 0.0,
        inner_norm: nn.Module | None = None,
    ):
        super().__init__()
        self.activation, self.dropout = activation, nn.Dropout(dropout)
        self.fc1 = nn.Linear(width, hidden, bias)
        self.gate = nn.Linear(width, hidden, bias) if gated else None
        self.inner_norm = inner_norm
        self.fc2 = nn.Linear(hidden, width, bias)

    def forward(self, x: Tensor) -> Tensor:  # [B, N, D] -> [B, N, D]
        act = ACTIVATIONS[self.activation]
        h = act(self.fc1(x)) if self.gate is None else act(self.gate(x)) * self.fc1(x)  # [B, N, F]
        h = self.dropout(h)
        return self.fc2(h if self.inner_norm is None else self.inner_norm(h))


def sinusoids(kind: str, length: int, width: int) -> Tensor:
    """Positions: sines and cosines of t / 10000^(2i/D) (Vaswani et al. 2017, section 3.5). Returns [length, D],
    float64. Kinds: interleaved (column 2i is the sine, 2i+1 the cosine), concatenated (all sines, then all cosines),
    fairseq (so too, of t / 10000^(i/(D/2-1))), one_frequency (sin(t) and cos(t) in turn).
    """
    t = torch.arange(length, dtype=torch.float64).unsqueeze(1)
    frequency = torch.exp(torch.arange(0, width, 2, dtype=torch.float64) * (-math.log(10000.0) / width))
    if kind == "fairseq":
        frequency = torch.logspace(0, -4, width // 2, dtype=torch.float64)
    if kind == "one_frequency":
        frequency = torch.ones_like(frequency)
    if kind in ("concatenated", "fairseq"):
        return torch.cat([(t * frequency).sin(), (t * frequency).cos()], dim=1)
    positions = torch.empty(length, width, dtype=torch.float64)
    positions[:, 0::2], positions[:, 1::2] = (t * frequency).sin(), (t * frequency).cos()
    return positions


# Inner values that a caller asks for: {name: None} before a forward pass, {name: tensor} after it.
Intermediates = dict[str, Any]


def sow(intermediates: Intermediates | None, name: str, value: Tensor) -> None:
    """Add a value to the intermediates, if they ask for its name."""
    if intermediates is not None and name in intermediates:
        intermediates[name] = value


def capture(
    model: nn.Module, names: Iterable[str], known: Sequence[str], forward: Callable[[Intermediates], Tensor]
) -> Intermediates:
    """The inner values of an evaluation pass."""
    intermediates: Intermediates = dict.fromkeys(names)
    if unknown := [name for name in intermediates if name not in known]:
        raise ValueError(f"cannot capture {unknown[0]!r}; there are {', '.join(known)}")
    with evaluating(model):
        sow(intermediates, "logits", forward(intermediates))
    return intermediates


def apply_blocks(
    blocks: Iterable[nn.Module],
    x: Tensor,
    call: Callable[[nn.Module, Tensor, Intermediates], Tensor],
    intermediates: Intermediates | None,
    prefix: str = "",
    maps: tuple[str, ...] = ("attention",),
) -> Tensor:
    """What x is after all blocks, as `Stack.through` of vit_jax has it: x [B, N, D] -> [B, N, D]."""
    asked = [name for name in maps if intermediates is not None and prefix + name in intermediates]
    taken: list[Intermediates] = []
    for i, block in enumerate(blocks):
        inner: Intermediates = dict.fromkeys(asked)
        x = call(block, x, inner)
        sow(intermediates, f"{prefix}blocks.{i}", x)
        taken.append(inner)
    for name in asked:
        sow(intermediates, prefix + name, torch.stack([inner[name] for inner in taken], dim=1))
    return x


@contextlib.contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """A context in which a model is in evaluation mode; on leaving it, each of its modules gets back its own mode."""
    modes = {module: module.training for module in model.modules()}
    model.eval()
    try:
        yield
    finally:
        for module, training in modes.items():
            module.training = training
