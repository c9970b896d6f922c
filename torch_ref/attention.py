"""Attention in idiomatic PyTorch: the counterpart of vit_jax/models/attention.py.

Dimensions: B batch, N tokens, D width, H heads, Dh head width, I = H*Dh; Nq queries, Nk keys. Masks are boolean, True
where a query may attend to a key (as in F.scaled_dot_product_attention; nn.MultiheadAttention has the opposite). A
padding is [B, N], True at real tokens; a mask is 4-D and broadcasts to [B, H, Nq, Nk].
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from .layers import Intermediates, Mlp, sow
from .relative import RelativePosition
from .rotary import angles, apply_rope


class Attention(nn.Module):
    """Multi-head attention, softmax(Q K^T / sqrt Dh) V per head (Vaswani et al. 2017, arXiv 1706.03762, section
    3.2).
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
        scaled: bool = True,
        relative: RelativePosition | None = None,
    ):
        super().__init__()
        inner = heads * head_width
        query_bias, key_bias, value_bias, out_bias = bias if isinstance(bias, tuple) else (bias,) * 4
        self.heads, self.head_width, self.dropout, self.pairs = heads, head_width, nn.Dropout(dropout), pairs
        self.scale, self.relative = head_width**-0.5 if scaled else 1.0, relative
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
        bias: Tensor | None = None,
        intermediates: Intermediates | None = None,
    ) -> Tensor:
        """Attention of queries to keys and values: query [B, Nq, D], key [B, Nk, Dk], value [B, Nk, Dv], mask [B, H,
        Nq, Nk], rotary [..., n, d], bias [1, H, Nq, Nk], intermediates [B, H, Nq, Nk] -> [B, Nq, D]. A query that may
        attend to nothing has a zero context.
        """
        k, v = self.project(key, value)
        if rotary is not None:
            rotary = angles(rotary, self.frequencies)
            k = apply_rope(k, rotary, self.pairs)
        return self.attend(query, k, v, mask, rotary=rotary, bias=bias, intermediates=intermediates)

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
        bias: Tensor | None = None,
        intermediates: Intermediates | None = None,
        name: str = "attention",
    ) -> Tensor:
        """Attention to keys and values that `project` has given: query [B, Nq, D], k [B, H, Nk, Dh], v [B, H, Nk, Dh],
        rotary [..., N, Dh/2] -> [B, Nq, D].
        """
        q = self.split_heads(self.query(query))
        q = q if self.query_norm is None else self.query_norm(q)
        q = q if rotary is None else apply_rope(q, rotary, self.pairs)
        check_mask(mask, (len(q), self.heads, q.shape[2], k.shape[2]))
        if bias is None and self.relative is not None:
            bias = self.relative(q.shape[2], k.shape[2])
        asked = intermediates is not None and name in intermediates
        if not asked and not (self.training and self.dropout.p):
            if bias is not None:
                mask = bias if mask is None else bias.masked_fill(~mask, float("-inf"))
            # The context of a query without a key is zero.
            context = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=self.scale)
        else:
            weights = self.weights(q, k, mask, bias)
            sow(intermediates, name, weights)
            context = self.dropout(weights) @ v
        context = context.transpose(1, 2).flatten(2)  # [B, H, Nq, Dh] -> [B, Nq, (H Dh)]
        return self.out(context if self.inner_norm is None else self.inner_norm(context))

    def weights(self, q: Tensor, k: Tensor, mask: Tensor | None, bias: Tensor | None) -> Tensor:
        """The attention weights [B, H, Nq, Nk], which the fused kernel of torch does not return."""
        scores = q @ k.transpose(-2, -1) * self.scale
        scores = scores if bias is None else scores + bias
        if mask is None:
            return scores.softmax(-1)
        # Without a key to attend to, a row is NaN after the softmax; the second fill makes it and its gradient zero.
        return scores.masked_fill(~mask, float("-inf")).softmax(-1).masked_fill(~mask, 0.0)


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


# Masks.


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
    """One mask for all that hides keys: a padding, a mask, and what comes later. Shapes: padding bool [B, Nk], mask [B,
    H, Nq, Nk]. A mask, bool, broadcastable to [B, H, Nq, Nk]; None if nothing is masked.
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


def check_mask(mask: Tensor | None, shape: tuple[int, int | None, int, int]) -> None:
    """Check a mask of attention."""
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
