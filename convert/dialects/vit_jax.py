"""Our own layout: the canonical tree under its dotted names, in run folders, Orbax items and safetensors files."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from vit_jax.config import TransformerConfig, ViTConfig, parameters
from vit_jax.errors import UserError

from ..layout import Facts, Field, Json, Layout, function_fields
from ..rules import Row, row
from ..run_folder import said


def rows(config: ViTConfig | TransformerConfig) -> list[Row]:
    """One row for each parameter, which is what it is."""
    return [row(name, name, shape) for name, shape in parameters(config).items()]


def read_side(files: Mapping[str, Json]) -> Facts:
    """What a run's config.json says of its network, or the metadata of a file that `vit_jax.export` wrote. Raises UserError."""
    facts, note = said(files.get("config.json", {})), files.get("__metadata__", {})
    if facts.config or note.get("format") != "vit-jax":
        return facts
    try:
        return said({"config": json.loads(note["config"])})
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        raise UserError("the config in the file's metadata is damaged; export the run anew, or say the config with --set") from error


def _layout(network: Any, kind: str, title: str, marks: tuple[str, ...]) -> Layout:
    """It says every config, and no field follows from its names: the file or its run states them, or the user does."""
    fields = {name: Field() for name in function_fields(network)}
    return Layout("vit-jax", kind, title, network, fields, rows, marks, ("orbax", "safetensors"), read_side=read_side)


LAYOUTS = (
    _layout(TransformerConfig, "transformer", "our Transformer", (r"encoder\.blocks\.0\.attention\.query\.kernel",)),
    _layout(ViTConfig, "vit", "our ViT", (r"patch\.kernel", r"blocks\.0\.attention\.query\.kernel")),
)
