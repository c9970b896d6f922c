"""The provenance of a file that is written: where it comes from, its whole config, and what was changed on the way."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path

import numpy as np

from vit_jax.files.reading import open_regular
from vit_jax.files.terminal import version
from vit_jax.runs.values import to_dict

from ..containers.source import Source, Spec, Tensor, leaves, raw
from ..layout import Json
from ..plan.plan import Plan
from ..recognise.outputs import unstated

ALONG = ("optimizer", "ema")  # what a target that holds a run in training takes beside the weights


def origin(plan: Plan, with_training: bool) -> Json:
    """The provenance of a plan's target; the source's hash is filled in later."""
    reading, facts = plan.reading, plan.facts
    source = reading.source
    taken = {"step": source.step, "key": reading.label} if source.chosen else {}  # of a run: the flags that name them
    along = ALONG if with_training else ()
    left_out = [*reading.left_out, *unstated(plan.layout, plan.config, facts.outputs)]
    provenance: Json = {
        "format": 1,
        "made_by": f"vit-jax {version()}",
        "source": {"name": Path(source.path).name, "sha256": "0" * 64, "layout": reading.layout.name, **taken},
        "layout": plan.layout.name,
        "config": {"network": plan.config.name, "fields": to_dict(plan.config)},
        "preprocess": facts.preprocess,
        **facts.outputs.to_metadata(),
        "extra": facts.extra,
        "adaptations": [{"text": a.text, "says": a.says} for a in plan.adaptations],
        "dtype": plan.dtype.name if plan.dtype is not None else None,
        "left_out": [what for what in left_out if what.partition(" ")[0] not in along],
        "optional": plan.reading.optional,
    }
    return {k: v for k, v in provenance.items() if v or k in ("format", "config")}


def program_origin(plan: Plan, sha256: str) -> Json:
    """The provenance of a program, which has no layout."""
    provenance = origin(plan, False)
    provenance["source"]["sha256"] = sha256
    return {name: value for name, value in provenance.items() if name != "layout"}


def source_hash(source: Source) -> str:
    """SHA-256 of a source's file, as hexadecimal; of several, or of arrays in memory, of their names and hashes."""
    each = [(path.name, file_hash(path)) for path in _source_files(source)]
    if not each:  # in memory
        each = [(name, _tensor_hash(tensor)) for name, tensor in sorted(leaves(source.tree).items())]
    return each[0][1] if len(each) == 1 else joint_hash(each)


def joint_hash(each: list[tuple[str, str]]) -> str:
    """SHA-256 of several (name, hash), as hexadecimal."""
    return hashlib.sha256(json.dumps(each).encode()).hexdigest()


def _source_files(source: Source) -> list[Path]:
    """The files that a source consists of: those it lists, itself, or all in its folder."""
    if source.files:
        return [Path(path) for path in source.files]
    if os.path.isfile(source.path):
        return [Path(source.path)]
    return sorted(path for path in Path(source.path).rglob("*") if path.is_file())


def _tensor_hash(tensor: Tensor) -> str:
    """SHA-256 of a tensor's values, as hexadecimal."""
    return values_hash(tensor.read())


def values_hash(array: np.ndarray) -> str:
    """SHA-256 of an array's values, as hexadecimal."""
    return hashlib.sha256(raw(array, Spec(array.dtype, array.shape))).hexdigest()


def file_hash(path: Path) -> str:
    """SHA-256 of a file, as hexadecimal."""
    with open_regular(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
