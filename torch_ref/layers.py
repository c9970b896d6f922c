"""The slots that the models are made of, in idiomatic PyTorch: vit_jax/layers.py, read beside it.

torch.nn brings its own Linear (weights stored (out, in)), LayerNorm and Dropout, so those have no
class here. Letters: B batch, N tokens, D width, H heads, Dh head width, I = H*Dh, F hidden.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

Tape = dict[str, Any]  # what a caller wants captured: {name: None} before, {name: tensor} after


@contextlib.contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """A model in evaluation mode; afterwards each of its modules is in the mode that it was in, also after an exception."""
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


def drop_path(x: Tensor, rate: float, training: bool) -> Tensor:
    """Stochastic depth (Huang et al. 2016): zero a whole example of x [B, ...], or scale it."""
    return x * F.dropout(x.new_ones(len(x), *[1] * (x.ndim - 1)), rate, training) if rate else x


class Mlp(nn.Module):
    """fc2(act(fc1 x)), or gated fc2(act(gate x) * fc1 x) (Shazeer 2020)."""

    def __init__(
        self, width: int, hidden: int, activation: str, *, gated: bool = False, bias: bool = True, dropout: float = 0.0
    ):
        super().__init__()
        self.activation, self.dropout = activation, nn.Dropout(dropout)
        self.fc1 = nn.Linear(width, hidden, bias)
        self.gate = nn.Linear(width, hidden, bias) if gated else None
        self.fc2 = nn.Linear(hidden, width, bias)

    def forward(self, x: Tensor) -> Tensor:  # [B, N, D] -> [B, N, D]
        act = ACTIVATIONS[self.activation]
        h = act(self.fc1(x)) if self.gate is None else act(self.gate(x)) * self.fc1(x)  # [B, N, F]
        return self.fc2(self.dropout(h))


# Masks. Boolean, True = look there (as F.scaled_dot_product_attention has it, not as nn.MultiheadAttention does).
# A padding is [B, N]; a mask is 4-D and broadcasts to [B, H, Nq, Nk].


def attention_mask(
    batch: int,
    queries: int,
    keys: int,
    *,
    padding: Tensor | None = None,
    mask: Tensor | None = None,
    causal: bool = False,
    device: Any = None,
) -> Tensor | None:
    """One mask of all that restricts an attention: a padding of its keys [B, Nk], a 4-D mask, causality.

    Raises ValueError on a wrong shape or dtype.
    """
    if padding is not None and (padding.dtype != torch.bool or padding.shape != (batch, keys)):
        raise ValueError(
            f"padding {padding.dtype} {list(padding.shape)} is not bool [{batch}, {keys}], True at real positions"
        )
    check_mask(mask, (batch, None, queries, keys))
    parts = [] if mask is None else [mask]
    if padding is not None:
        parts.append(padding.view(batch, 1, 1, keys))
    if causal:
        parts.append(torch.ones(1, 1, queries, keys, dtype=torch.bool, device=device).tril())
    if not parts:
        return None
    whole = parts.pop()
    for part in parts:
        whole = torch.logical_and(whole, part)
    return whole


class Attention(nn.Module):
    """Multi-head attention, softmax(Q K^T / sqrt Dh) V per head (Vaswani et al. 2017, section 3.2).

    `key_width` and `value_width` are those of what keys and values are made from; 0: `width`.
    """

    def __init__(
        self,
        width: int,
        heads: int,
        head_width: int,
        *,
        key_width: int = 0,
        value_width: int = 0,
        query_bias: bool = True,
        key_bias: bool = True,
        value_bias: bool = True,
        out_bias: bool = True,
        qk_norm: bool = False,
        eps: float = 1e-6,
        norm_bias: bool = True,
        dropout: float = 0.0,
    ):
        super().__init__()
        inner = heads * head_width
        self.heads, self.head_width, self.dropout = heads, head_width, nn.Dropout(dropout)
        self.query = nn.Linear(width, inner, query_bias)
        self.key = nn.Linear(key_width or width, inner, key_bias)
        self.value = nn.Linear(value_width or width, inner, value_bias)
        self.query_norm = nn.LayerNorm(head_width, eps, bias=norm_bias) if qk_norm else None
        self.key_norm = nn.LayerNorm(head_width, eps, bias=norm_bias) if qk_norm else None
        self.out = nn.Linear(inner, width, out_bias)

    def split(self, x: Tensor) -> Tensor:  # [B, N, (H Dh)] -> [B, H, N, Dh]
        return x.unflatten(-1, (self.heads, self.head_width)).transpose(1, 2)

    def forward(
        self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None, *, tape: Tape | None = None
    ) -> Tensor:
        """[B, Nq, D], [B, Nk, Dk], [B, Nk, Dv] -> [B, Nq, D]; a 4-D boolean mask is True where to look.

        A row with nothing to look at has a zero context. `tape["attention"]`, where asked for,
        receives the weights [B, H, Nq, Nk]. Raises ValueError on any other mask.
        """
        return self.attend(query, *self.project(key, value), mask, tape=tape)

    def project(self, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values per head, [B, H, Nk, Dh] each: what decoding keeps from step to step."""
        k, v = self.split(self.key(key)), self.split(self.value(value))
        return k if self.key_norm is None else self.key_norm(k), v

    def attend(
        self, query: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None, *, tape: Tape | None = None
    ) -> Tensor:
        """The rest of a call, [B, Nq, D] -> [B, Nq, D], on keys and values of `project`."""
        q = self.split(self.query(query))
        q = q if self.query_norm is None else self.query_norm(q)
        check_mask(mask, (len(q), self.heads, q.shape[2], k.shape[2]))
        if tape is None and not (self.training and self.dropout.p):
            context = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)  # zero for a row with nothing to look at
        else:
            weights = self.weights(q, k, mask)
            if tape is not None and "attention" in tape:
                tape["attention"] = weights
            context = self.dropout(weights) @ v
        return self.out(context.transpose(1, 2).flatten(2))  # [B, H, Nq, Dh] -> [B, Nq, (H Dh)]

    def weights(self, q: Tensor, k: Tensor, mask: Tensor | None) -> Tensor:
        """Softmax of the scores [B, H, Nq, Nk], which torch's fused kernel keeps to itself."""
        scores = q @ k.transpose(-2, -1) / self.head_width**0.5
        if mask is None:
            return scores.softmax(-1)
        # A row without a key is NaN after the softmax; the second fill makes it zero, and its gradient.
        return scores.masked_fill(~mask, float("-inf")).softmax(-1).masked_fill(~mask, 0.0)


def check_mask(mask: Tensor | None, shape: tuple[int, int | None, int, int]) -> None:
    """Refuse what is no boolean 4-D mask for weights of this shape [B, H, Nq, Nk] (None: any)."""
    if mask is None:
        return
    if mask.dtype != torch.bool:
        raise ValueError(
            f"mask {mask.dtype}: only boolean masks are taken, True where to look; a mask that is added to scores is not"
        )
    if mask.ndim != 4 or any(n is not None and m not in (1, n) for m, n in zip(mask.shape, shape, strict=True)):
        wanted = ", ".join("H" if n is None else str(n) for n in shape)
        raise ValueError(
            f"mask {list(mask.shape)} is not 4-D or does not broadcast to [{wanted}] = [B, H, Nq, Nk]; a padding [B, N] goes where paddings go"
        )


class AttentionPool(Attention):
    """One learned probe attends to all tokens, then an mlp (Lee et al. 2019; big_vision's MAP head)."""

    def __init__(
        self, width: int, heads: int, hidden: int, activation: str, eps: float, *, norm_bias: bool = True, **mlp: Any
    ):
        super().__init__(width, heads, width // heads)
        self.probe = nn.Parameter(torch.zeros(1, 1, width))
        self.norm = nn.LayerNorm(width, eps, bias=norm_bias)
        self.mlp = Mlp(width, hidden, activation, **mlp)

    def pool(self, x: Tensor) -> Tensor:  # [B, N, D] -> [B, D]
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
    """Random starts for every parameter of a model, from torch's own generator.

    `init` is as in ViTConfig; biases are 0 except torch's, norms 1 and 0, layer scales `scale`.
    """
    for name, module in model.named_modules():
        if isinstance(module, nn.LayerNorm):
            module.reset_parameters()
        elif isinstance(module, nn.Embedding):
            nn.init.normal_(module.weight, std=token_std)
        elif hasattr(module, "weight"):  # linear maps: nn.Linear, the patches, a transformer's head
            torchvision = "fan_in" if name == "patch" else "xavier" if ".mlp." in name else "torch"
            if module.weight is not None:  # else the head's is tied
                start_kernel(module.weight, torchvision if init == "torchvision" else init, init_std)
            if module.bias is not None:
                bound = module.weight[0].numel() ** -0.5 if init == "torch" and module.weight is not None else 0.0
                nn.init.uniform_(module.bias, -bound, bound)
    for module in model.modules():
        if type(module) is Attention and attention_init == "torch":  # a pool's is its own
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
    """Fill one linear map's weight (out, in...) by a scheme's name."""
    weight = weight.flatten(1)  # a convolution over a patch is a linear map of its pixels
    n_out, n_in = weight.shape
    if init == "normal":
        nn.init.normal_(weight, std=std)
    elif init in ("trunc_normal", "fan_in"):
        # Cut at two standard deviations of the uncut normal; the cut shrinks the spread to 0.87962566.
        std = (std if init == "trunc_normal" else n_in**-0.5) / 0.87962566103423978
        nn.init.trunc_normal_(weight, std=std, a=-2 * std, b=2 * std)
    elif init == "xavier":
        nn.init.xavier_uniform_(weight)
    else:
        bound = (6 / (n_in + 3 * n_out)) ** 0.5 if init == "xavier_of_three" else n_in**-0.5
        nn.init.uniform_(weight, -bound, bound)
