"""State dicts of torch_ref, this project's PyTorch twins: our names, with torch's parameter names and axes.

Linear weights are (out, in), patches a convolution's (D, C, p, q), norms have weight and bias, embeddings are modules;
a ViT's tokens and positions have a batch axis of length one.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from vit_jax.config.network import NetworkConfig, Parameter
from vit_jax.models.networks import NETWORKS
from vit_jax.models.vit_config import ViTConfig

from ..layout import Field, Layout
from ..operations import TRANSPOSE, Order
from ..rules import Row, row
from .modules import TOKEN, TOKENS, convolution, flatten_kernel
from .own import run_facts


def rows(config: NetworkConfig) -> list[Row]:
    """One row for each parameter of a network, in the config's order."""
    return [_special(config, name, p) or _row(name, p) for name, p in config.parameters().items()]


def _row(name: str, p: Parameter) -> Row:
    path, _, leaf = name.rpartition(".")
    if p.kind == "kernel":
        return row(f"{path}.weight", name, p.shape, TRANSPOSE)
    if p.kind == "norm" and leaf == "scale":
        return row(f"{path}.weight", name, p.shape)
    return row(f"{name}.weight" if p.kind == "embedding" else name, name, p.shape)


def _of_vit(config: ViTConfig, name: str, p: Parameter) -> Row | None:
    """The row of a ViT's parameter that is not like those of other networks; None for all others."""
    path, _, leaf = name.rpartition(".")
    if name == "patch.kernel":
        return row("patch.weight", name, p.shape, convolution(config))
    if path.startswith("stem.") and leaf == "kernel":
        size = config.stem_kernel
        return row(f"{path}.weight", name, p.shape, flatten_kernel(size, size, p.shape[0] // size**2))
    if path == "patch.pre_norm":  # over the pixels of a patch, in the order in which torch unfolds them
        theirs = "patch.pre_norm.weight" if leaf == "scale" else name
        return row(theirs, name, p.shape, Order("(c p q)", "(p q c)", convolution(config).sizes))
    return row(name, name, p.shape, TOKENS if len(p.shape) == 2 else TOKEN) if p.kind in ("token", "position") else None


def _special(config: Any, name: str, p: Parameter) -> Row | None:
    """The row of a parameter of a ViT, or of a ViT that is a part of a network, with its axes; None for all others."""
    if isinstance(config, ViTConfig):
        return _of_vit(config, name, p)
    part, _, inner = name.partition(".")
    if not isinstance(vit := getattr(config, part, None), ViTConfig):
        return None
    found = _of_vit(vit, inner, p) or _row(inner, p)
    return replace(found, theirs=tuple(f"{part}.{each}" for each in found.theirs), ours=(name,))


# They can hold every config, but no field follows from their names: a file states it, or the user does.
LAYOUTS = tuple(
    Layout(
        dialect="torch-ref",
        version=key,
        title=f"torch_ref's {network.name}",
        network=network,
        fields=dict.fromkeys(network.function_fields(), Field()),
        holds_all=True,
        rows=rows,
        signature=tuple(name.replace("kernel", "weight") for name in network.names),
        containers=("torch", "safetensors"),
        read_side=lambda files: run_facts(files.get("config.json", {})),
    )
    for key, network in reversed([*NETWORKS.items()])
    if network.twin
)
