"""Rotary positions on a grid (Su et al. 2021, Heo et al. 2024) in PyTorch.

The counterpart of vit_jax/models/positions.py.

A pair of values is a complex number here, and turning it is a product with exp(i angle).
Dimensions: B batch, H heads, N tokens, n patches (the last of the tokens), Dh head width.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor


def patch_positions(
    grid: tuple[int, int], kind: str, first: str, offset: float = 0.0, reference: tuple[int, int] = (0, 0)
) -> Tensor:
    """The places of the patches of a grid on the first and the second axis -> [n, 2], float64, row by row. centres: of
    the patches, from -2 pi at one edge of the image to 2 pi at the other; indices: rows and columns.
    """
    index = torch.cartesian_prod(*map(torch.arange, grid)).view(-1, 2).double()
    size = torch.tensor(grid).double()
    if kind == "centres":
        at = math.pi * ((4 * index + 2) / size - 2)
    else:
        at = (index + offset) * torch.where(torch.tensor(reference) > 0, torch.tensor(reference), size) / size
    return at if first == "rows" else at.flip(-1)


def frequencies(width: int, base: float, periods: str = "exact") -> Tensor:
    """The frequencies of one axis: base^(-4k / Dh). Returns float64 [Dh/4]."""
    exact = torch.exp(-math.log(base) * torch.arange(width // 4).double() * 4 / width)
    return exact if periods == "exact" else exact.reciprocal().bfloat16().double().reciprocal()


def axial(places: Tensor, width: int, base: float, periods: str = "exact") -> Tensor:
    """Axial angles [n, Dh/2], float64, of places [n, 2]: those of the first axis, then those of the second."""
    return (places.unsqueeze(-1) * frequencies(width, base, periods)).flatten(1)


def mixed_frequencies(heads: int, width: int, base: float) -> Tensor:
    """Initial mixed frequencies: those of two axes at right angles, which each head turns. Returns [2, H, Dh/2],
    float64.

    Heo et al. draw the direction of each head at random; here the heads share half a turn evenly.
    """
    along = torch.polar(torch.ones(heads).double(), torch.arange(heads).double() * (math.pi / heads))
    turned = torch.outer(along, frequencies(width, base).to(along.dtype))
    return torch.view_as_real(torch.cat([turned, 1j * turned], 1)).movedim(-1, 0)


def angles(table: Tensor, frequencies: Tensor | None) -> Tensor:
    """The angles by which queries and keys of patches are turned: table [..., n, Dh/2], frequencies [2, H, Dh/2] ->
    [..., H or 1, n, Dh/2].
    """
    if frequencies is None:
        return table.unsqueeze(-3)
    return torch.einsum("...na,ahf->...hnf", table, frequencies.to(table.dtype))


def apply_rope(x: Tensor, angles: Tensor, pairs: str) -> Tensor:
    """Queries or keys with those of the last n tokens turned: x keys [B, H, N, Dh], angles [..., n, Dh/2] -> [B, H, N,
    Dh] in the dtype of x.
    """
    prefix, patches = x.split([x.shape[2] - angles.shape[-2], angles.shape[-2]], dim=2)
    patches = patches.to(angles.dtype)
    real, imaginary = patches.chunk(2, -1) if pairs == "halves" else (patches[..., ::2], patches[..., 1::2])
    turned = torch.complex(real.contiguous(), imaginary.contiguous()) * torch.polar(torch.ones_like(angles), angles)
    parts = torch.cat([turned.real, turned.imag], -1) if pairs == "halves" else torch.view_as_real(turned).flatten(-2)
    return torch.cat([prefix, parts.to(x.dtype)], dim=2)
