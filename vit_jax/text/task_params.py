"""The tasks that the config.json of a T5 lists by name: what stands before a source, and how its target is searched."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..config.hints import nearest
from ..errors import Field, UserError
from ..files.reading import read_regular
from .contents import parse_json

MODEL = "config.json"
KEY = "task_specific_params"
LARGEST = 1 << 20  # bytes


def kept_tasks(folder: Path, name: str) -> dict[str, bytes]:
    """The file by which a run keeps the tasks of a folder."""
    if not name:
        return {}
    there = (folder / MODEL).is_file()
    model = parse_json(read_regular(folder / MODEL, LARGEST, "restore it"), str(folder / MODEL)) if there else {}
    content = json.dumps({KEY: model.get(KEY) or {}}, indent=1).encode()
    task_settings({MODEL: content}, name)
    return {MODEL: content}


def task_settings(files: Mapping[str, bytes], name: str) -> dict[str, Any]:
    """What a task of these files states: its prefix, and settings of generation_config.json."""
    if not name:
        return {}
    tasks = parse_json(files.get(MODEL, b"{}"), MODEL).get(KEY)
    known = {key: x for key, x in tasks.items() if isinstance(x, dict)} if isinstance(tasks, dict) else {}
    if name not in known:
        close = nearest(name, list(known))
        listed = f"give one of {', '.join(known)}" if known else "give `data.prefix` in its place"
        lists = "its config.json lists no task_specific_params" if not known else "its config.json has no such task"
        raise UserError(Field("data.task"), f"is {name[:60]}, but {lists}{close}", listed)
    return known[name]


def prefix_of(prefix: str, task: str, files: Mapping[str, bytes]) -> str:
    """What stands before every source: what a user states, else what the task has."""
    stated = task_settings(files, task).get("prefix")
    return prefix or (stated if isinstance(stated, str) else "")
