"""metrics.jsonl as checkpoints record it: how many of its bytes a save has made durable, and their digest."""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from ..errors import UserError
from . import strict_json
from .digests import bytes_digest
from .reading import bounded_lines, check_regular, open_regular, show_path

LARGEST_LOG = 256 << 20  # bytes: some 800,000 rows
LARGEST_HISTOGRAMS = 32 << 20  # bytes of the histograms of one step
NO_LOG = {"bytes": 0, "digest": bytes_digest().hexdigest()}
LISTED = 3
HISTOGRAMS = "histograms.jsonl"  # beside metrics.jsonl; no checkpoint records it
# What the training step itself reports besides the loss: values of one step, where a task's metrics are means.
STEP_METRICS = ("lr", "grad_norm", "param_norm", "update_norm")
# Names in a row of training that a task's metrics may not have.
RESERVED_METRICS = frozenset(
    {"kind", "step", "epoch", "loss", "padding", "memory", "cpu_seconds", "mfu", *STEP_METRICS}
    | {"steps", "places", "votes", "tokens_per_second"}
)


def spelled_out(name: str) -> str:
    """The name of a metric as it is read."""
    words = {"lr": "learning rate", "grad_norm": "gradient norm", "mfu": "MFU", "map": "mAP", "mae": "MAE"}
    words |= {"rmse": "RMSE", "r2": "R2", "rmse_scaled": "RMSE, scaled"}
    return words.get(name, name.replace("_", " "))


def as_title(words: str) -> str:
    """Words with a capital in front, unless the first has its own, as mAP has."""
    first, *_ = words.split(" ")
    return words if first != first.lower() else words[:1].upper() + words[1:]


def as_json(metrics: Mapping[str, float]) -> dict[str, float | None]:
    """Metrics as JSON has them: null where a value is NaN or infinite."""
    return {name: value if math.isfinite(value) else None for name, value in metrics.items()}


def read_rows(path: Path) -> list[dict[str, Any]]:
    """The rows of a metrics.jsonl; broken lines, such as the last one after a crash, are left out."""
    rows = []
    if has_log(path):
        with open_regular(path, link=False) as file:
            rows = [_row(line) for line in bounded_lines(file) if line is not None]
    return [row for row in rows if row is not None]


def has_log(path: Path) -> bool:
    """Whether there is a metrics.jsonl."""
    check_regular(path, link=False)  # training appends to it: a link could lead to any file of the user's
    if not path.exists():
        return False
    if (size := path.stat().st_size) > LARGEST_LOG:
        raise UserError(
            show_path(path),
            f"has {size} bytes, more than {LARGEST_LOG}",
            "move it away, the run goes on with a new one",
        )
    return True


def _row(line: bytes) -> dict[str, Any] | None:
    """A line as a row, or None if it is broken."""
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(row, dict) or type(row.get("step")) is not int:
        return None
    texts = {"train": {"kind"}, "eval": {"kind", "split", "weights"}}.get(str(row.get("kind")), {"kind"})
    known = all(isinstance(row.get(name), str) for name in texts) and all(
        value is None or isinstance(value, int | float) for name, value in row.items() if name not in texts
    )
    return row if known else None


def histogram_rows(path: Path) -> Iterator[dict[str, Any]]:
    """The rows of a histograms.jsonl, one after the other; broken lines are left out."""
    check_regular(path)
    if not path.exists():
        return
    with open_regular(path) as file:
        for line in bounded_lines(file, LARGEST_HISTOGRAMS):
            with contextlib.suppress(ValueError):
                row = strict_json.parse(line or b"")
                if isinstance(row, dict) and type(row.get("step")) is int and all(map(_is_group, _groups(row))):
                    yield row


def _groups(row: dict[str, Any]) -> Iterator[Any]:
    return (value for name, value in row.items() if name != "step")


def _is_group(value: Any) -> bool:
    """Whether a JSON value has the form of {name: its histogram}."""
    return isinstance(value, dict) and all(
        isinstance(h, dict)
        and h.keys() == {"min", "max", "mean", "std", "counts"}
        and isinstance(h["counts"], list)
        and all(type(n) is int for n in h["counts"])
        and all(x is None or isinstance(x, int | float) for name, x in h.items() if name != "counts")
        for h in value.values()
    )


def log_fault(path: Path, records: Iterable[tuple[int, dict[str, Any]]]) -> str:
    """Which lines of a metrics.jsonl are not as they were saved. A clause; empty if all are as they were."""
    records = sorted(records)
    step, newest = records[-1] if records else (0, {"bytes": 0})
    if not newest["bytes"]:
        return ""
    if not has_log(path):
        return f"is gone, with {newest['bytes']} bytes up to step {step}"
    size = path.stat().st_size
    if size < newest["bytes"]:
        return f"ends after {size} of the {newest['bytes']} bytes that were saved up to step {step}"
    ends = sorted((e["bytes"], at, e["digest"]) for at, e in records if e["bytes"] <= newest["bytes"])
    digest, done, lines, fault = bytes_digest(), 0, 0, ""
    with open_regular(path, link=False) as file:
        for end, at, expected in ends:
            part = file.read(end - done)
            digest.update(part)
            intact = digest.hexdigest() == expected
            if not intact and not fault:
                fault = f"{_describe_change(part, lines)} since step {at} was saved"
            done, lines = end, lines + part.count(b"\n")
    return "" if intact else fault


def _describe_change(part: bytes, before: int) -> str:
    """A clause saying what is wrong in a part of a log, with the numbers of its lines; `before` are the lines above."""
    count = part.count(b"\n")
    broken = [before + i for i, line in enumerate(part.removesuffix(b"\n").split(b"\n"), 1) if _row(line) is None]
    if not broken:
        return f"a value in lines {before + 1} to {before + count} changed"
    listed = [f"line {i}" for i in broken[:LISTED]]
    if len(broken) > LISTED:
        listed.append("...")
    return f"{', '.join(listed)} cannot be read"
