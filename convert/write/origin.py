"""What a written file says of itself: where it comes from, its whole config, and what was changed."""

from __future__ import annotations

import hashlib
import json
import os
from importlib import metadata
from pathlib import Path

from vit_jax.config import network_of, to_dict

from ..containers.source import Source
from ..layout import Facts, Json
from ..plan.plan import Plan


def origin(plan: Plan, facts: Facts) -> Json:
    """What a written file says of itself: where it comes from (the hash is still to come), its whole config, and what was changed."""
    source = plan.reading.source
    said: Json = {
        "format": 1,
        "made_by": f"vit-jax {version()}",
        "source": {"name": Path(source.path).name, "sha256": "0" * 64, "layout": plan.reading.layout.name},
        "layout": plan.layout.name,
        "config": {"network": network_of(plan.config).name, "fields": to_dict(plan.config)},
        "preprocess": facts.preprocess,
        "class_names": facts.class_names,
        "extra": facts.extra,
        "adaptations": [{"text": a.text, "says": a.says} for a in plan.adaptations],
        "dtype": plan.dtype.name if plan.dtype is not None else None,
        "left_out": plan.reading.left_out,
        "optional": plan.reading.optional,
    }
    return {k: v for k, v in said.items() if v or k in ("format", "config")}


def source_hash(source: Source) -> str:
    """SHA-256 of a source's file; of several files, of their names and hashes in order."""
    files = [Path(p) for p in source.files] or (
        [Path(source.path)]
        if os.path.isfile(source.path)
        else sorted(p for p in Path(source.path).rglob("*") if p.is_file())
    )
    each = [(p.name, file_hash(p)) for p in files]
    return each[0][1] if len(each) == 1 else hashlib.sha256(json.dumps(each).encode()).hexdigest()


def file_hash(path: Path) -> str:
    """SHA-256 of a file, as hexadecimal."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def version() -> str:
    """The version of this package."""
    try:
        return metadata.version("vit-jax")
    except metadata.PackageNotFoundError:  # run from a checkout that was never installed
        return "0+unknown"
