"""What counted in images for an output of a network of images, by integrated gradients or rollout.

Dimensions: B images of a batch, h, w, C their size, gh, gw the rows and columns of cells, K outputs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax import Array

from ...errors import Field, UserError
from ...figures.attention import rollout
from ...models.vit_options import MAPS
from .gradients import integrated_gradients
from .methods import Method, check_known
from .scores import sum_cells

IG = "give ig, which takes any network"


def explain_images(
    model: Any, images: Array, outputs: np.ndarray, grid: tuple[int, int], method: Method, steps: int, batch: int
) -> np.ndarray:
    """How much each cell of images counted for an output of each: images [n, h, w, C], outputs int [n] -> float64 [n,
    gh, gw].
    """
    check_method(model, method)
    parts = []
    for first in range(0, len(images), batch):
        some, chosen = images[first : first + batch], outputs[first : first + batch]
        if method == "ig":
            parts.append(sum_cells(np.asarray(_integrated(model, some, jnp.asarray(chosen), steps)), grid))
        else:
            layers = _attention(model, some)
            reads = read_by_head(model.config, layers.shape[-1])
            tokens = np.stack([reads @ rollout(each) for each in np.asarray(layers)])
            parts.append(tokens[:, model.config.first_patch :].reshape(-1, *grid))
    return np.concatenate(parts)


def check_method(model: Any, method: str) -> None:
    """Raise UserError where there is no such method, or a network has not the attention that it takes."""
    check_known(method)
    if method != "rollout":
        return
    pool = getattr(model.config, "pool", None)
    if pool is None:
        raise UserError(Field("explain"), f"is {method}, but a {model.config.name} has no attention", IG)
    if pool in MAPS:
        what = f"is {method}, but the head reads a pool with attention of its own ({pool}), which it cannot follow"
        raise UserError(Field("explain"), what, IG)


def grid_of(config: Any, size: Sequence[int]) -> tuple[int, int]:
    """The rows and columns of cells of images: those of the network's patches, else 8 by 8."""
    patch = getattr(config, "patch_size", None)
    return (size[0] // patch[0], size[1] // patch[1]) if patch else (min(8, size[0]), min(8, size[1]))


def read_by_head(c: Any, count: int) -> np.ndarray:
    """How much the head of a ViT reads of each token after the last block: float [N], which sums to 1."""
    tokens = np.eye(count)
    patches = tokens[c.first_patch :].mean(0)
    by_pool = {
        "cls": tokens[0],
        "cls_distill": tokens[:2].mean(0),
        "cls_mean": (tokens[0] + patches) / 2,
        "mean": patches,
        "mean_all": tokens.mean(0),
    }
    if c.pool not in by_pool:
        raise UserError(Field("explain"), f"cannot follow how the head reads the tokens by pool {c.pool}", IG)
    return by_pool[c.pool]


def logits_of(model: Any, images: Any) -> np.ndarray:
    """The logits of normalised images [B, h, w, C]: [B, K]."""
    return np.asarray(_logits(model, jnp.asarray(images)))


def _chosen(logits: Array, outputs: Array) -> Array:
    """The sum over the images of an output of each: [B, K], [B] -> []."""
    return jnp.take_along_axis(logits, outputs[:, None], 1).sum()


def _integrate(model: Any, images: Array, outputs: Array, steps: int) -> Array:
    x = images.astype(jnp.promote_types(images.dtype, jnp.float32))
    gradient = jax.grad(lambda images: _chosen(model(images), outputs))
    return integrated_gradients(gradient, x, jnp.zeros_like(x), steps)


_logits: Any = nnx.jit(lambda model, images: model(images))
_integrated: Any = nnx.jit(_integrate, static_argnums=3)
_attention: Any = nnx.jit(lambda model, images: model.capture(images, ("attention",))["attention"].mean(2))
