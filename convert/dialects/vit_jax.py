"""vit_jax's own layout: parameters under their dotted names, in run folders, Orbax items and safetensors files."""

from __future__ import annotations

from collections.abc import Mapping

from vit_jax.config.network import NetworkConfig
from vit_jax.errors import UserError
from vit_jax.files import strict_json
from vit_jax.models.networks import NETWORKS

from ..layout import Facts, Field, Json, Layout
from ..rules import Row, row
from .own import run_facts


def rows(config: NetworkConfig) -> list[Row]:
    """One row for each parameter, unchanged."""
    return [row(name, name, shape) for name, shape in config.shapes().items()]


def read_side(files: Mapping[str, Json]) -> Facts:
    """Facts from a run's config.json, or the metadata of a file of `vit_jax.export`."""
    facts, note = run_facts(files.get("config.json", {})), files.get("__metadata__", {})
    if facts.config or note.get("format") != "vit-jax":
        return facts
    try:
        config, kept = (strict_json.parse(text.encode()) for text in (note["config"], note.get("kept", "{}")))
        return run_facts({"config": config, **kept})
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        raise UserError(
            "the config in the file's metadata is damaged",
            remedy="export the run again, or give the config with `fields`",
        ) from error


# They can hold every config, but no field follows from their names: the file or its run states it, or the user does.
LAYOUTS = tuple(
    Layout(
        dialect="vit-jax",
        version=key,
        title=f"our {network.name}",
        network=network,
        fields=dict.fromkeys(network.function_fields(), Field()),
        holds_all=True,
        rows=rows,
        signature=network.names,
        containers=("orbax", "safetensors"),
        read_side=read_side,
    )
    for key, network in reversed([*NETWORKS.items()])
)
