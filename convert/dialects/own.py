"""What our own files say of themselves: the run's config, the task it was trained for, what is kept with it."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping
from typing import Any

from vit_jax.config import kept_anywhere, task_row
from vit_jax.config.formats import renamed
from vit_jax.errors import UserError

from ..containers.source import Source
from ..layout import Facts, Json

BESIDE = ("preset", "data", *sorted(kept_anywhere()))  # config.json's keys beside `config`


def own_record(tree: Mapping[str, Any]) -> Json:
    """What a file that torch_ref.train saved holds of a run's config.json: its `config` and what stands beside; of other files nothing."""
    config = tree.get("config")
    if not isinstance(config, Mapping) or not {"task", "model", "optim"} <= config.keys():
        return {}
    return {key: plain(tree[key]) for key in ("config", *BESIDE) if key in tree}


def own_layout(source: Source) -> str:
    """The layout of a file of ours that states its task: a run's folder, what `vit_jax.export` or torch_ref.train wrote; of others nothing.

    Raises UserError on a task that this version does not know.
    """
    stated = own_record(source.tree).get("config")
    dialect = "torch-ref" if stated else "vit-jax"
    if source.metadata.get("format") == "vit-jax":
        with contextlib.suppress(
            KeyError, TypeError, ValueError, RecursionError
        ):  # it is said where the config is read
            stated = json.loads(source.metadata["config"])
    task = stated.get("task") if isinstance(stated, dict) else None
    if not isinstance(task, str):
        return ""
    try:
        return f"{dialect}@{task_row(task).network}"
    except UserError as error:
        raise UserError(
            f"{source.path}: {error}; read it with the version that wrote it, or name its layout with --from"
        ) from error


def plain(value: Any) -> Any:
    """A value of a torch file as JSON's own types."""
    if isinstance(value, Mapping):
        return {str(k): plain(v) for k, v in value.items()}
    return [plain(v) for v in value] if isinstance(value, list | tuple) else value


def said(record: Json) -> Facts:
    """What a run's config.json says of its network; of other JSON nothing."""
    config = record.get("config")
    model = config.get("model") if isinstance(config, dict) else None
    if not isinstance(model, dict):
        return Facts()
    kept = kept_anywhere()
    damaged = [key for key, right in kept.items() if key in record and not right(record[key])]
    if damaged:
        raise UserError(
            f"the {damaged[0]} in the run's config is damaged; restore config.json, or the file that holds it"
        )
    extra = {key: record[key] for key in kept if key in record and key not in ("preprocess", "class_names")}
    return Facts(renamed(model), record.get("preprocess"), record.get("class_names"), extra)
