"""Files that vit_jax or torch_ref wrote: the run's config, the network of its task, and what the task saved with it."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Any

from vit_jax.config.outputs import Outputs
from vit_jax.config.trees import flatten
from vit_jax.errors import UserError
from vit_jax.files import strict_json
from vit_jax.models.networks import NETWORKS
from vit_jax.runs.values import strip_format, to_dict
from vit_jax.tasks.table import TASKS, metadata_checks, task_spec

from ..containers.source import Source
from ..layout import Facts, Json

KEPT_FIELDS = ("preset", "data", *sorted(metadata_checks()))  # keys of a run's config.json besides `config`


def own_record(tree: Mapping[str, Any]) -> Json:
    """The part of a run's config.json that a checkpoint of torch_ref.train holds, {} for other files."""
    config = tree.get("config")
    if not isinstance(config, Mapping) or not {"task", "model", "optim"} <= config.keys():
        return {}
    return {key: as_json(tree[key]) for key in ("config", *KEPT_FIELDS) if key in tree}


def own_layout(source: Source) -> str:
    """The layout of a file that states its task: a run folder, or a file of vit_jax.export or torch_ref.train. Its
    name; empty for other files.
    """
    stated = own_record(source.tree).get("config")
    dialect = "torch-ref" if stated else "vit-jax"
    if source.metadata.get("format") == "vit-jax":
        with contextlib.suppress(KeyError, TypeError, ValueError, RecursionError):  # reported where the config is read
            stated = strict_json.parse(source.metadata["config"].encode())
    task = stated.get("task") if isinstance(stated, dict) else None
    if not isinstance(task, str):
        return ""
    try:
        network = task_spec(task).network
        if (name := next((name for name, config in NETWORKS.items() if config is network), None)) is None:
            raise UserError(network.__name__, "is in no table of networks", "name it in vit_jax.networks")
        return f"{dialect}@{name}"
    except UserError as error:
        raise UserError(
            source.path, str(error), "read it with the version that wrote it, or name its layout with `layout`"
        ) from error


def as_json(value: Any) -> Any:
    """A value of a torch file as JSON has it: keys as strings, tuples as lists."""
    if isinstance(value, Mapping):
        return {str(k): as_json(v) for k, v in value.items()}
    return [as_json(v) for v in value] if isinstance(value, list | tuple) else value


def run_facts(record: Json) -> Facts:
    """Facts about the network from a run's config.json; empty for other JSON.

    A field that it lacks is newer than the version that wrote it, and has its default.
    """
    config = record.get("config")
    config = strip_format(config) if isinstance(config, dict) else {}
    model = config.get("model")
    if not isinstance(model, dict):
        return Facts()
    kept = metadata_checks()
    damaged = [key for key, right in kept.items() if key in record and not right(record[key])]
    if damaged:
        raise UserError(
            f"the {damaged[0]} in the run's config is damaged", remedy="restore config.json, or the file that holds it"
        )
    elsewhere = ("preprocess", "class_names", "outputs")
    extra = {key: record[key] for key in kept if key in record and key not in elsewhere}
    spec = TASKS.get(str(config.get("task")))
    newer = to_dict(spec.network()) if spec else {}
    fields = flatten(newer) | flatten(model, strict=False)
    return Facts(fields, record.get("preprocess"), Outputs.of(record), extra)
