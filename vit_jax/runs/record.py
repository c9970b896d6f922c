"""What config.json holds, and the files of a tokenizer beside it, checked: they may be damaged, or a stranger's."""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from ..config.dotted import value_at
from ..config.fields import are_texts, check_ranges
from ..config.network import NetworkConfig
from ..config.outputs import is_entry
from ..config.run import RunConfig
from ..errors import Field, UserError, about, fields_inside
from ..files.atomic import RESTORE, make_folder, write_bytes
from ..files.digests import content_digest
from ..files.reading import check_regular, read_regular, show_path
from ..tasks.table import task_spec
from .check import check_settings
from .values import check_format, from_dict, to_dict

NAME = re.compile(r"(?!\.)[\w.-]+")  # of a file beside config.json: nothing that leads elsewhere
LARGEST, MOST = 1 << 28, 100  # bytes of such a file, and how many there may be
# Sizes beyond which a network is taken for damage, or for an attack, before a list or an array is made as long as they.
LAYERS, PIXELS, POSITIONS, NUMBERS = 10_000, 1 << 28, 1 << 28, 1 << 40  # of a stack, an image, positions, a parameter


def record_of(run: RunConfig, preset: str, **rest: Any) -> dict[str, Any]:
    """The content of config.json for a new run."""
    return {"preset": preset, "config": to_dict(run), **rest}


def check_record(record: Mapping[str, Any], where: str) -> None:
    """Check that the content of config.json is that of a run."""
    with about(where):
        check_format(record.get("format"))
    try:
        config = record.get("config")
        metadata = task_spec(str(config.get("task"))).needed(record) if isinstance(config, dict) else {}
    except UserError as error:
        raise UserError(where, str(error), "restore the file, or read it with the version that wrote it") from error
    if missing := sorted({"preset", "config", "data", *metadata} - record.keys()):
        raise UserError(where, f"lacks {', '.join(missing)}", RESTORE)
    intact = {"preset": isinstance(record["preset"], str), "data": isinstance(record["data"], dict | None)}
    intact |= {"files": are_files(record.get("files", {}))}
    intact |= {name: entry.valid(record[name]) for name, entry in metadata.items()}
    if damaged := [name for name, valid in intact.items() if not valid]:
        raise UserError(where, f"its {damaged[0]} is damaged", RESTORE)
    try:
        run = from_dict(RunConfig, record["config"])
        with fields_inside("model"):
            run.model.check()
            _check_sizes(run.model)
        check_ranges(run)
        check_settings(run)
    except UserError as error:
        raise UserError(where, str(error), RESTORE) from error
    if unfit := [name for name, entry in metadata.items() if not entry.fits(record[name], run.model)]:
        raise UserError(where, f"its {unfit[0]} is not that of its network", RESTORE)


def own_schedule(record: Mapping[str, Any]) -> str:
    """How an older version trained a run on whose rate then was not that of all its epochs: again, constant or ""."""
    match record.get("segments"):
        case [*_, {"continue": "again" | "constant" as way}]:
            return str(way)
    return ""


def is_log_record(value: Any) -> bool:
    """Whether a JSON value is {"bytes", "digest"} of a metrics.jsonl."""
    known = isinstance(value, dict) and value.keys() == {"bytes", "digest"}
    return known and type(value["bytes"]) is int and value["bytes"] >= 0 and isinstance(value["digest"], str)


def is_saved(record: Mapping[str, Any], step: int) -> bool:
    """Whether a JSON object is what digests/<step>.json holds, so that all who read it find what they look for."""
    arrays, notes = record.get("arrays"), record.get("notes")
    return (
        record.get("step") == step
        and isinstance(notes, dict)
        and _are_notes(notes)
        and isinstance(arrays, dict)
        and {"model", "optimizer"} <= arrays.keys() <= {"model", "optimizer", "ema", "lora"}
        and all(isinstance(item, dict) and all(isinstance(x, str) for x in item.values()) for item in arrays.values())
        and isinstance(record.get("config", {}), dict)
        and ("log" not in record or is_log_record(record["log"]))
    )


def _are_notes(notes: Mapping[str, Any]) -> bool:
    """Whether the notes of a checkpoint that are there are of the right types."""
    best, totals = notes.get("best"), notes.get("totals", {"steps": 0})
    types = {"stale": int, "due": bool, "seconds": int | float, "environment": dict}
    return (
        all(isinstance(notes[name], kind) for name, kind in types.items() if name in notes)
        and (best is None or _is_best(best))
        and isinstance(totals, dict)
        and "steps" in totals
        and _are_numbers(totals)
        and isinstance(notes.get("environment", {}).get("versions", {}), dict)
    )


def _is_best(best: Any) -> bool:
    """Whether a JSON value is the best result of a run."""
    return (
        isinstance(best, dict)
        and type(best.get("step")) is int
        and best.get("weights") in ("raw", "ema")
        and _are_numbers({**best, "weights": 0})
    )


def is_calibration(value: Any) -> bool:
    """Whether a JSON value is what a summary keeps of what validation has decided: see calibration.py."""
    if not isinstance(value, dict) or not isinstance(value.get("thresholds"), list):
        return False
    read = {name: value[name] for name in ("temperature", "thresholds") if value.get(name)}
    return (
        type(value.get("step")) is int
        and value.get("weights") in ("raw", "ema")
        and type(value.get("examples")) is int
        and are_texts(value.get("notes"))
        and all(is_entry(name, found) for name, found in read.items())
    )


def is_summary(summary: Mapping[str, Any]) -> bool:
    """Whether a JSON object is the summary of a run, or of a group of runs."""
    of_group = "seeds" in summary or "folds" in summary
    return (
        isinstance(summary.get("status"), str)
        and (of_group or (type(summary.get("step")) is int and isinstance(summary.get("seconds"), int | float)))
        and isinstance(summary.get("sample") or "", str)
        and are_texts(summary.get("notes", []))
        and (summary.get("best") is None or _is_best(summary["best"]))
        and ("calibration" not in summary or is_calibration(summary["calibration"]))
        and all(_are_numbers(m) for split in _groups(summary) for m in _groups(split) if not of_group)
    )


def _groups(value: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [each for each in value.values() if isinstance(each, dict)]


def _are_numbers(value: Mapping[str, Any]) -> bool:
    return all(isinstance(each, int | float | None) for each in value.values())


def _check_sizes(model: NetworkConfig) -> None:
    """Raise UserError on a network of absurd size, before its table of parameters is built where that would be long."""
    for name in model.marked("counts_blocks"):
        if value_at(model, name) > LAYERS:
            raise UserError(Field(name), f"is {value_at(model, name)}, which is more than {LAYERS}")
    if math.prod(model.pixels() or ()) > PIXELS:
        raise UserError(
            Field("image"), f"is {getattr(model, 'image', model.pixels())}, which is more than {PIXELS} numbers"
        )
    values = [getattr(model, f.name) for f in dataclasses.fields(model)]
    for part in (model, *(value for value in values if isinstance(value, NetworkConfig))):
        # Sinusoids are in no table of parameters, but are computed with the network.
        rows, width = getattr(part, "position_rows", 0), getattr(part, "width", 1)
        if rows * width > POSITIONS:
            raise UserError(f"its sizes make positions [{rows}, {width}], which is more than {POSITIONS} numbers")
    for name, shape in model.shapes().items():
        if math.prod(shape) > NUMBERS:
            raise UserError(f"its sizes make {name} {list(shape)}, which is more than {NUMBERS} numbers")


def differing(found: Any, recorded: Any, name: str = "") -> Iterator[str]:
    """Clauses naming the values of nested JSON objects that differ: "NAME is VALUE, recorded is VALUE"."""
    if isinstance(found, dict) and isinstance(recorded, dict):
        for key in dict.fromkeys((*recorded, *found)):
            inner = f"{name}.{key}".lstrip(".")
            yield from differing(found.get(key, _ABSENT), recorded.get(key, _ABSENT), inner)
    elif repr(found) != repr(recorded):  # 1, 1.0 and True are equal, but not the same JSON
        yield f"{name.removeprefix('config.')} is {_short(found)}, recorded is {_short(recorded)}"


class _Absent:
    def __repr__(self) -> str:
        return "absent"


_ABSENT = _Absent()


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


# ------------------------------------------------- files beside config.json, which records their digests


def are_files(value: Any) -> bool:
    """Whether a JSON value is {path inside a run's folder: digest}."""
    return (
        isinstance(value, dict)
        and len(value) <= MOST
        and all(isinstance(digest, str) for digest in value.values())
        and all("/" in path and all(map(NAME.fullmatch, path.split("/"))) for path in value)
    )


def write_files(folder: Path, files: Mapping[str, bytes]) -> dict[str, str]:
    """Write files {path inside the folder: content}; returns their digests for config.json."""
    for path, content in files.items():
        make_folder((folder / path).parent)
        write_bytes(folder / path, content)
    return {path: content_digest(content) for path, content in files.items()}


def read_files(folder: Path, digests: Mapping[str, str]) -> dict[str, bytes]:
    """The content of files of a run -> {path: content}."""
    found = {}
    for path, digest in digests.items():
        file = folder / path
        check_regular(file, link=False)
        found[path] = read_regular(file, LARGEST, RESTORE)
        if content_digest(found[path]) != digest:
            raise UserError(show_path(file), "is not the file that the run began with", RESTORE)
    return found
