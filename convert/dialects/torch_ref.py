"""The state dict of torch_ref's models: our names, with torch's leaves, orders and axes.

Linear weights are (out, in), patches a convolution's (D, C, p, q), norms weight and bias, 
embeddings modules of their own; a ViT's tokens and positions have a batch axis of one.
"""

from __future__ import annotations

from vit_jax.config import TransformerConfig, ViTConfig, kind, pair, parameters

from ..layout import Field, Layout, function_fields
from ..rules import TRANSPOSE, Order, Row, Shape, row
from ..run_folder import said


def rows(config: ViTConfig | TransformerConfig) -> list[Row]:
    """One row for each parameter of a network, in the config's order."""
    return [_row(config, name, shape) for name, shape in parameters(config).items()]


def _row(config: ViTConfig | TransformerConfig, name: str, shape: Shape) -> Row:
    path, _, leaf = name.rpartition(".")
    sort = kind(name)
    if isinstance(config, ViTConfig):
        (p, q), c = pair(config.patch), config.channels
        if name == "patch.kernel":
            return row("patch.weight", name, shape, Order("d c p q", "(p q c) d", dict(c=c, p=p, q=q)))
        if path == "patch.pre_norm":  # over a patch as torch unfolds it
            theirs = "patch.pre_norm.weight" if leaf == "scale" else name
            return row(theirs, name, shape, Order("(c p q)", "(p q c)", dict(c=c, p=p, q=q)))
        if sort in ("token", "position"):
            return row(name, name, shape, Order("1 n d", "n d") if len(shape) == 2 else Order("1 1 d", "d"))
    if sort == "kernel":
        return row(f"{path}.weight", name, shape, TRANSPOSE)
    if sort == "norm" and leaf == "scale":
        return row(f"{path}.weight", name, shape)
    if sort == "embedding":
        return row(f"{name}.weight", name, shape)
    return row(name, name, shape)


def _layout(network: type[ViTConfig] | type[TransformerConfig], title: str, marks: tuple[str, ...]) -> Layout:
    """It says every config, and no field follows from its names: the file states them, or the user does."""
    fields = {name: Field() for name in function_fields(network)}
    return Layout("torch-ref", "vit" if network is ViTConfig else "transformer", title, network, fields, rows, marks, ("torch", "safetensors"),
                  read_side=lambda files: said(files.get("config.json", {})))  # fmt: skip


LAYOUTS = (
    _layout(TransformerConfig, "torch_ref's Transformer", (r"encoder\.blocks\.0\.attention\.query\.weight",)),
    _layout(ViTConfig, "torch_ref's ViT", (r"patch\.weight", r"blocks\.0\.attention\.query\.weight")),
)
