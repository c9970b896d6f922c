"""The layers that the models are built from, in idiomatic PyTorch: the counterpart of vit_jax/models/layers.py.

torch.nn has Linear (weights stored as [out, in]), LayerNorm and Dropout, so those have no class here.
Dimensions: B batch, N tokens, D width, H heads, Dh head width, I = H*Dh, F hidden; Nq queries, Nk keys.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from .rotary import angles, apply_rope

Intermediates = dict[
    str, Any
]  # inner values that a caller asks for: {name: None} before a forward pass, {name: tensor} after


def sow(intermediates: Intermediates | None, name: str, value: Tensor) -> None:
    """Add a value to the intermediates, if they ask for its name."""
    if intermediates is not None and name in intermediates:
        intermediates[name] = value


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


def drop_path(x: Tensor, rate: float, training: bool) -> Tensor:
    """Stochastic depth (Huang et al. 2016): zero each example of x [B, ...] with probability `rate`, scale the rest."""
    return x * F.dropout(x.new_ones(len(x), *[1] * (x.ndim - 1)), rate, training) if rate else x


class Mlp(nn.Module):
    """fc2(dropout(act(fc1 x))), gated: fc2(dropout(act(gate x) * fc1 x)) (Shazeer 2020, arXiv 2002.05202).

    Args:
        width: D, of inputs and outputs.
        hidden: F, width of the hidden layer.
        activation: a key of ACTIVATIONS.
        gated: whether there is a gate.
        bias: whether the projections have biases.
        dropout: rate of the hidden layer's dropout.
        inner_norm: what is applied before fc2; None: nothing.
    """

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


# Masks are boolean, True where a query may attend to a key (as in F.scaled_dot_product_attention; nn.MultiheadAttention
# has the opposite). A padding is [B, N], True at real tokens; a mask is 4-D and broadcasts to [B, H, Nq, Nk].


def attention_mask(
    batch: int,
    query_length: int,
    key_length: int,
    *,
    padding: Tensor | None = None,
    mask: Tensor | None = None,
    causal: bool = False,
    device: Any = None,
) -> Tensor | None:
    """What masks an attention, as one mask.

    Args:
        batch: B.
        query_length: Nq.
        key_length: Nk.
        padding: bool [B, Nk], True at real keys.
        mask: bool, 4-D, broadcastable to [B, H, Nq, Nk], True where to attend.
        causal: whether query i attends to the keys up to i alone.
        device: of the causal mask.

    Returns:
        A mask, bool, broadcastable to [B, H, Nq, Nk]; None if nothing is masked.

    Raises:
        ValueError: for a padding or mask of another shape or dtype.
    """
    if padding is not None and (padding.dtype != torch.bool or padding.shape != (batch, key_length)):
        raise ValueError(
            f"padding {padding.dtype} {list(padding.shape)} is not bool [{batch}, {key_length}], "
            "True at real tokens: give it that dtype and shape"
        )
    check_mask(mask, (batch, None, query_length, key_length))
    masks = [] if mask is None else [mask]
    if padding is not None:
        masks.append(padding.view(batch, 1, 1, key_length))
    if causal:
        masks.append(torch.ones(1, 1, query_length, key_length, dtype=torch.bool, device=device).tril())
    if not masks:
        return None
    combined = masks.pop()
    for each in masks:
        combined = torch.logical_and(combined, each)
    return combined


class Attention(nn.Module):
    """Multi-head attention, softmax(Q K^T / sqrt Dh) V per head (Vaswani et al. 2017, arXiv 1706.03762, section 3.2).

    Args:
        width: D, of queries and outputs.
        heads: H.
        head_width: Dh.
        key_width: width of the inputs for keys; 0: D.
        value_width: width of the inputs for values; 0: D.
        bias: whether query, key, value and out have biases, each or all.
        query_norm: what is applied to the queries of each head; None: nothing.
        key_norm: likewise to the keys.
        inner_norm: what is applied to the context of all heads, before the output projection; None: nothing.
        dropout: rate of the weights' dropout.
        pairs: the values that rotary positions turn together, as in `rotary.turn`; empty: there are none.
        mixed: whether the frequencies of rotary positions are learned.
    """

    def __init__(
        self,
        width: int,
        heads: int,
        head_width: int,
        *,
        key_width: int = 0,
        value_width: int = 0,
        bias: bool | tuple[bool, bool, bool, bool] = True,
        query_norm: nn.Module | None = None,
        key_norm: nn.Module | None = None,
        inner_norm: nn.Module | None = None,
        dropout: float = 0.0,
        pairs: str = "",
        mixed: bool = False,
    ):
        super().__init__()
        inner = heads * head_width
        query_bias, key_bias, value_bias, out_bias = bias if isinstance(bias, tuple) else (bias,) * 4
        self.heads, self.head_width, self.dropout, self.pairs = heads, head_width, nn.Dropout(dropout), pairs
        self.query = nn.Linear(width, inner, query_bias)
        self.key = nn.Linear(key_width or width, inner, key_bias)
        self.value = nn.Linear(value_width or width, inner, value_bias)
        self.query_norm, self.key_norm, self.inner_norm = query_norm, key_norm, inner_norm
        self.out = nn.Linear(inner, width, out_bias)
        self.frequencies = nn.Parameter(torch.zeros(2, heads, head_width // 2)) if mixed else None

    def split_heads(self, x: Tensor) -> Tensor:
        """[B, N, (H Dh)] -> [B, H, N, Dh]."""
        return x.unflatten(-1, (self.heads, self.head_width)).transpose(1, 2)

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        mask: Tensor | None = None,
        *,
        rotary: Tensor | None = None,
        intermediates: Intermediates | None = None,
    ) -> Tensor:
        """Attention of queries to keys and values.

        Args:
            query: [B, Nq, D].
            key: [B, Nk, Dk].
            value: [B, Nk, Dv].
            mask: bool, 4-D, broadcastable to [B, H, Nq, Nk], True where to attend. A query that may attend to nothing
                has a zero context.
            rotary: the rotary table of the last tokens, as `rotary.angles` takes it.
            intermediates: receives the weights [B, H, Nq, Nk] if it has the name "attention".

        Returns:
            [B, Nq, D].

        Raises:
            ValueError: for a mask of another shape or dtype.
        """
        k, v = self.project(key, value)
        if rotary is not None:
            rotary = angles(rotary, self.frequencies)
            k = apply_rope(k, rotary, self.pairs)
        return self.attend(query, k, v, mask, rotary=rotary, intermediates=intermediates)

    def project(self, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values per head, [B, H, Nk, Dh] each; decoding caches them between steps."""
        k, v = self.split_heads(self.key(key)), self.split_heads(self.value(value))
        return k if self.key_norm is None else self.key_norm(k), v

    def attend(
        self,
        query: Tensor,
        k: Tensor,
        v: Tensor,
        mask: Tensor | None = None,
        *,
        rotary: Tensor | None = None,
        intermediates: Intermediates | None = None,
    ) -> Tensor:
        """A call with keys and values that `project` has given.

        Args:
            query: [B, Nq, D].
            k: [B, H, Nk, Dh].
            v: [B, H, Nk, Dh].
            mask: as of a call.
            rotary: the angles [..., N, Dh/2] by which `k` is turned already.
            intermediates: as of a call.

        Returns:
            [B, Nq, D].
        """
        q = self.split_heads(self.query(query))
        q = q if self.query_norm is None else self.query_norm(q)
        q = q if rotary is None else apply_rope(q, rotary, self.pairs)
        check_mask(mask, (len(q), self.heads, q.shape[2], k.shape[2]))
        if intermediates is None and not (self.training and self.dropout.p):
            context = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)  # zero for a query without a key
        else:
            weights = self.weights(q, k, mask)
            if intermediates is not None and "attention" in intermediates:
                intermediates["attention"] = weights
            context = self.dropout(weights) @ v
        context = context.transpose(1, 2).flatten(2)  # [B, H, Nq, Dh] -> [B, Nq, (H Dh)]
        return self.out(context if self.inner_norm is None else self.inner_norm(context))

    def weights(self, q: Tensor, k: Tensor, mask: Tensor | None) -> Tensor:
        """The attention weights [B, H, Nq, Nk], which the fused kernel of torch does not return."""
        scores = q @ k.transpose(-2, -1) / self.head_width**0.5
        if mask is None:
            return scores.softmax(-1)
        # Without a key to attend to, a row is NaN after the softmax; the second fill makes it and its gradient zero.
        return scores.masked_fill(~mask, float("-inf")).softmax(-1).masked_fill(~mask, 0.0)


def check_mask(mask: Tensor | None, shape: tuple[int, int | None, int, int]) -> None:
    """Raise ValueError if a mask is not boolean, 4-D and broadcastable to `shape` [B, H, Nq, Nk] (None: any size)."""
    if mask is None:
        return
    if mask.dtype != torch.bool:
        raise ValueError(
            f"mask {mask.dtype}: only boolean masks are taken, True where to attend; for an additive one give mask == 0"
        )
    if mask.ndim != 4 or any(n is not None and m not in (1, n) for m, n in zip(mask.shape, shape, strict=True)):
        wanted = ", ".join("H" if n is None else str(n) for n in shape)
        raise ValueError(
            f"mask {list(mask.shape)} is not 4-D or does not broadcast to [{wanted}] = [B, H, Nq, Nk]; "
            "give it that shape, or give a padding [B, N] as a padding argument"
        )


class AttentionPool(Attention):
    """A learned probe attends to all tokens, then an mlp (Lee et al. 2019, arXiv 1810.00825; MAP in big_vision)."""

    def __init__(self, width: int, heads: int, norm: nn.Module, mlp: Mlp):
        super().__init__(width, heads, width // heads)
        self.probe = nn.Parameter(torch.zeros(1, 1, width))
        self.norm, self.mlp = norm, mlp

    def pool(self, x: Tensor) -> Tensor:
        """[B, N, D] -> [B, D]."""
        y = self(self.probe.expand(len(x), -1, -1), x, x)
        return (y + self.mlp(self.norm(y))).squeeze(1)


# ------------------------------------------------------------------------------- initial values


@torch.no_grad()
def initialise(
    model: nn.Module,
    *,
    init: str,
    attention_init: str,
    init_std: float,
    token_std: float,
    position_std: float,
    scale: float = 0.0,
) -> None:
    """Draw initial values for every parameter of a model, in place, with torch's global generator.

    The arguments are the config's fields of these names. Biases are 0 (drawn if `init` is "torch"), norms start at 1
    and 0, layer scales at `scale`. A pool's attention always follows `init`.
    """
    for name, module in model.named_modules():
        if isinstance(module, (nn.LayerNorm, nn.RMSNorm)):
            module.reset_parameters()
        elif isinstance(module, nn.Embedding):
            nn.init.normal_(module.weight, std=token_std)
        elif hasattr(module, "weight"):  # linear maps: nn.Linear, the patches, the head of a Transformer
            torchvision = "fan_in" if name == "patch" else "xavier" if ".mlp." in name else "torch"
            if module.weight is not None:  # None: the head is tied to an embedding
                start_kernel(module.weight, torchvision if init == "torchvision" else init, init_std)
            if module.bias is not None:
                bound = module.weight[0].numel() ** -0.5 if init == "torch" and module.weight is not None else 0.0
                nn.init.uniform_(module.bias, -bound, bound)
    for module in model.modules():
        if type(module) is Attention and attention_init == "torch":  # not AttentionPool
            for linear in (module.query, module.key, module.value):
                start_kernel(linear.weight, "xavier_of_three", init_std)
            for linear in (module.query, module.key, module.value, module.out):
                if linear.bias is not None:
                    nn.init.zeros_(linear.bias)
    for name, parameter in model.named_parameters():
        leaf = name.rpartition(".")[2]
        if leaf in ("scale1", "scale2"):
            nn.init.constant_(parameter, scale)
        elif leaf == "position":
            nn.init.normal_(parameter, std=position_std)
        elif leaf in ("cls_token", "distill_token", "register_tokens", "probe"):
            nn.init.normal_(parameter, std=token_std)


def start_kernel(weight: Tensor, init: str, std: float) -> None:
    """Fill the weight [out, in...] of a linear map, in place, by the scheme `init`; `std` is that of a normal."""
    weight = weight.flatten(1)  # a convolution with its stride equal to its size is a linear map of a patch
    n_out, n_in = weight.shape
    if init == "normal":
        nn.init.normal_(weight, std=std)
    elif init in ("trunc_normal", "fan_in"):
        # Truncation at two standard deviations reduces the standard deviation by this factor.
        std = (std if init == "trunc_normal" else n_in**-0.5) / 0.87962566103423978
        nn.init.trunc_normal_(weight, std=std, a=-2 * std, b=2 * std)
    elif init == "xavier":
        nn.init.xavier_uniform_(weight)
    else:
        bound = (6 / (n_in + 3 * n_out)) ** 0.5 if init == "xavier_of_three" else n_in**-0.5
        nn.init.uniform_(weight, -bound, bound)
