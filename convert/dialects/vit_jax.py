"""Our own layout: the canonical tree under its dotted names, in run folders, Orbax items and safetensors files."""

from __future__ import annotations

import json
from collections.abc import Mapping

from vit_jax.config import NETWORKS, ModelConfig, function_fields, shapes
from vit_jax.errors import UserError

from ..layout import Facts, Field, Json, Layout
from ..rules import Row, row
from .own import said


def rows(config: ModelConfig) -> list[Row]:
    """One row for each parameter, which is what it is."""
    return [row(name, name, shape) for name, shape in shapes(config).items()]


def read_side(files: Mapping[str, Json]) -> Facts:
    """What a run's config.json says of its network, or the metadata of a file that `vit_jax.export` wrote. Raises UserError."""
    facts, note = said(files.get("config.json", {})), files.get("__metadata__", {})
    if facts.config or note.get("format") != "vit-jax":
        return facts
    try:
        return said({"config": json.loads(note["config"]), **json.loads(note.get("kept", "{}"))})
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        raise UserError(
            "the config in the file's metadata is damaged; export the run anew, or say the config with --set"
        ) from error


# They say every config, and no field follows from their names: the file or its run states them, or the user does.
LAYOUTS = tuple(
    Layout(
        "vit-jax",
        key,
        f"our {network.name}",
        network.config,
        dict.fromkeys(function_fields(network.config), Field()),
        rows,
        network.names,
        ("orbax", "safetensors"),
        read_side=read_side,
    )
    for key, network in reversed(NETWORKS.items())
)
