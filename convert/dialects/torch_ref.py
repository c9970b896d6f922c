"""The state dict of torch_ref's models: our names, with torch's leaves, orders and axes.

Linear weights are (out, in), patches a convolution's (D, C, p, q), norms weight and bias,
embeddings modules of their own; a ViT's tokens and positions have a batch axis of one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from vit_jax.config import NETWORKS, ModelConfig, Parameter, ViTConfig, function_fields, network_of, parameters

from ..layout import Field, Layout
from ..rules import TRANSPOSE, Order, Row, row
from .modules import TOKEN, TOKENS, convolution
from .own import said


def rows(config: ModelConfig) -> list[Row]:
    """One row for each parameter of a network, in the config's order."""
    special = SPECIAL.get(network_of(config).name, lambda config, name, p: None)
    return [special(config, name, p) or _row(name, p) for name, p in parameters(config).items()]


def _row(name: str, p: Parameter) -> Row:
    path, _, leaf = name.rpartition(".")
    if p.kind == "kernel":
        return row(f"{path}.weight", name, p.shape, TRANSPOSE)
    if p.kind == "norm" and leaf == "scale":
        return row(f"{path}.weight", name, p.shape)
    return row(f"{name}.weight" if p.kind == "embedding" else name, name, p.shape)


def _of_vit(config: ViTConfig, name: str, p: Parameter) -> Row | None:
    """The row of a parameter that has another form here than elsewhere."""
    path, _, leaf = name.rpartition(".")
    if name == "patch.kernel":
        return row("patch.weight", name, p.shape, convolution(config))
    if path == "patch.pre_norm":  # over a patch as torch unfolds it
        theirs = "patch.pre_norm.weight" if leaf == "scale" else name
        return row(theirs, name, p.shape, Order("(c p q)", "(p q c)", convolution(config).sizes))
    return row(name, name, p.shape, TOKENS if len(p.shape) == 2 else TOKEN) if p.kind in ("token", "position") else None


SPECIAL: dict[str, Callable[[Any, str, Parameter], Row | None]] = {"ViT": _of_vit}
# They say every config, and no field follows from their names: the file states them, or the user does.
LAYOUTS = tuple(
    Layout(
        "torch-ref",
        key,
        f"torch_ref's {network.name}",
        network.config,
        dict.fromkeys(function_fields(network.config), Field()),
        rows,
        network.torch_names,
        ("torch", "safetensors"),
        read_side=lambda files: said(files.get("config.json", {})),
    )
    for key, network in reversed(NETWORKS.items())
    if network.torch
)
