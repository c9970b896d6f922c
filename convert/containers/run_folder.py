"""A run folder of vit-jax, read and written: weights, their average, the optimizer; a digest for every array."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from vit_jax.config import RunConfig, from_dict
from vit_jax.errors import UserError
from vit_jax.runs import Run, array_digest, read_json, record_of, text_digest, unflatten, write_json

from . import limits, orbax
from .source import FLOATS, Source, Spec, Tensor, leaves

Item = tuple[Mapping[str, Spec], Iterator[tuple[str, np.ndarray]]]  # specs and then arrays, by dotted names
RESTORE = "restore the file, or leave it out and give the network's config with --set"


def is_run(path: str | os.PathLike[str]) -> bool:
    """Whether a folder is a run folder of vit-jax."""
    try:
        file = Run(path).config_file
        record = json.loads(file.read_text(encoding="utf-8")) if file.stat().st_size <= limits.HEADER else None
    except (OSError, ValueError, RecursionError):
        return False
    return isinstance(record, dict) and {"format", "preset", "config"} <= record.keys()


# ------------------------------------------------------------------------------------------ reading


def open_run(path: str | os.PathLike[str], step: int | None = None) -> Source:
    """Open one step of a run: {model, optimizer[, ema]}, each {dotted name: Tensor}, checked against digests when read.

    `step` None means the last step. Raises UserError on damage, on an unknown step, and without `step` where another
    step was the best by validation.
    """
    run = Run(path)
    record = run.record()
    run_of(record["config"], str(run.config_file))
    step, digests = _digests(run, step)
    source = orbax.open_folder(run.checkpoints / str(step))
    for item, expected in digests.items():
        tensors = source.tree.get(item, {})
        if tensors.keys() != expected.keys():
            raise UserError(f"{run}: step {step}, {item}, does not hold the arrays that were saved; take another step")
        source.tree[item] = {
            name: _checked(tensor, expected[name], f"{run}: step {step}, {item}.{name},")
            for name, tensor in tensors.items()
        }
    source.tree = {item: source.tree[item] for item in digests}
    files = [*source.files, str(run.config_file), str(run.digest_file(step))]
    metadata = {"format": "vit-jax", "config": json.dumps(record["config"]), "step": step}
    return dataclasses.replace(source, path=str(path), metadata=metadata, files=files)


def _digests(run: Run, step: int | None) -> tuple[int, dict[str, dict[str, str]]]:
    """The step to open, and {item: {name: digest}} of it. Raises UserError as `open_run` does."""
    known = run.complete_steps()
    if not known:
        raise UserError(f"{run}: nothing has been saved here yet; let it train until its first checkpoint")
    if step is not None and step not in known:
        raise UserError(f"{run}: there is no step {step}; it holds {', '.join(map(str, known))}")
    noted = _record(run, known[0] if step is None else step)
    best = noted["notes"].get("best")
    best = best.get("step") if isinstance(best, dict) else None
    if step is None and best in known and best != known[0]:
        raise UserError(
            f"{run}: holds the steps {known[0]} (the last) and {best} (the best by validation); name one with --step"
        )
    return noted["step"], noted["arrays"]


def _record(run: Run, step: int) -> dict[str, Any]:
    """The JSON of a step's digest file. Raises UserError where it is damaged."""
    record = read_json(run.digest_file(step))
    intact = (
        record.pop("digest", None) == text_digest(record)
        and record.get("step") == step
        and isinstance(record.get("notes"), dict)
    )
    if (
        not intact
        or not isinstance(arrays := record.get("arrays"), dict)
        or not all(isinstance(item, dict) for item in arrays.values())
    ):
        raise UserError(f"{run}: the digest file of step {step} is damaged; take another step with --step")
    return record


def _checked(tensor: Tensor, digest: str, what: str) -> Tensor:
    """The tensor with a `read` that compares its values with a digest."""

    def read() -> np.ndarray:
        array = tensor.read()
        if array_digest(array) != digest:
            raise UserError(f"{what} is damaged (its digest differs); take another step with --step")
        return array

    return dataclasses.replace(tensor, read=read)


def run_of(config: Any, where: str) -> RunConfig:
    """A RunConfig from JSON; `where` names its file in messages. Raises UserError where it is not a config."""
    try:
        return from_dict(RunConfig, config)
    except UserError as error:
        raise UserError(f"{where}: {error}; {RESTORE}") from error
    except (AttributeError, TypeError, RecursionError) as error:
        raise UserError(f"{where}: its config is damaged ({type(error).__name__}); {RESTORE}") from error


# ------------------------------------------------------------------------------------------ writing


def write_run(
    path: str | os.PathLike[str], config: RunConfig, beside: Mapping[str, Any], step: int, items: Mapping[str, Item]
) -> None:
    """Write a run folder with one step, and read it back; `vit_jax.load`, --init and --resume read such folders.

    `path` must not exist, or be empty. `beside` holds the keys of config.json besides `config`: `preset`, `data` (None
    if it is not known which examples the run has seen) and what its task keeps. `items` are model, optimizer ({step,
    mu.*, nu.*} or {step, trace.*}) and, where the run has one, ema; each is read to its end before the next. Raises
    UserError where the weights are not of the run's dtype, or are read back with other values.
    """
    run = Run(path)
    wide = np.dtype(np.float64 if config.compute_dtype == "float64" else np.float32)
    for item, (specs, _) in items.items():
        for name, spec in specs.items():
            if spec.dtype in FLOATS and spec.dtype != wide:
                raise UserError(
                    f"{path}: {item}.{name} is {spec.dtype.name}, and a run's arrays are {wide.name}; "
                    f"add --dtype {wide.name}"
                )
    run.create(record_of(config, **beside))
    digests: dict[str, dict[str, str]] = {}
    for item, (specs, arrays) in items.items():
        digests[item] = {}
        orbax.write(str(run.checkpoints / str(step) / item), unflatten(specs), _noted(arrays, digests[item]), {})
    notes: dict[str, Any] = {
        "optimizer": config.optim.name, "best": None, "stale": 0, "due": False, "totals": {"steps": 0}, "seconds": 0.0,
        "data": beside["data"], "environment": {"versions": {}},
    }  # fmt: skip
    record = {"step": step, "notes": notes, "arrays": digests}
    write_json(run.digest_file(step), {**record, "digest": text_digest(record)})
    with open_run(path, step) as written:
        for tensor in leaves(written.tree).values():
            tensor.read()


def _noted(
    arrays: Iterator[tuple[str, np.ndarray]], digests: dict[str, str]
) -> Iterator[tuple[tuple[str, ...], np.ndarray]]:
    """The arrays under their key paths; `digests` gets the digest of each as it passes."""
    for name, array in arrays:
        digests[name] = array_digest(array)
        yield tuple(name.split(".")), array
