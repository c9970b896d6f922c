"""Relative positions: a learned bias of attention scores by the distance of key and query (Raffel et al. 2020).

It is the counterpart of vit_jax/models/positions.py. Dimensions: H heads, Nq queries, Nk keys.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn


def bucket(distance: Tensor, buckets: int, far: int, causal: bool) -> Tensor:
    """The bucket of each distance (arXiv 1910.10683, section 2.1). Of a causal attention later keys count as distance
    0; else half of the buckets are for later keys.
    """
    if causal:
        first, distance = torch.zeros_like(distance), (-distance).clamp(min=0)
    else:
        buckets //= 2
        first, distance = (distance > 0) * buckets, distance.abs()
    exact = buckets // 2
    along = (distance.clamp(min=exact).double() / exact).log() / math.log(far / exact)
    on_log_scale = (exact + (along * (buckets - exact)).long()).clamp(max=buckets - 1)
    return first + torch.where(distance < exact, distance, on_log_scale)


class RelativePosition(nn.Module):
    """The bias of a self-attention's scores."""

    def __init__(self, buckets: int, heads: int, far: int, causal: bool):
        super().__init__()
        self.far, self.causal = far, causal
        self.table = nn.Parameter(torch.zeros(buckets, heads))

    def forward(self, queries: int, keys: int) -> Tensor:
        """The bias of the last queries of a sequence to all its keys: [1, H, Nq, Nk]."""
        places = torch.arange(keys, device=self.table.device)
        distance = places - places[keys - queries :, None]
        return self.table[bucket(distance, len(self.table), self.far, self.causal)].permute(2, 0, 1)[None]
