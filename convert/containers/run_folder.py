"""A run's folder as a source and as a target: weights, their average and the optimizer, each array under its digest."""

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

from . import orbax
from .source import FLOATS, HEADER, Source, Spec, Tensor, leaves

Item = tuple[Mapping[str, Spec], Iterator[tuple[str, np.ndarray]]]  # what comes, and then it comes, under dotted names


def is_run(path: str | os.PathLike[str]) -> bool:
    """Whether a folder is a run of ours."""
    try:
        file = Run(path).config_file
        record = json.loads(file.read_text(encoding="utf-8")) if file.stat().st_size <= HEADER else None
    except (OSError, ValueError, RecursionError):
        return False
    return isinstance(record, dict) and {"format", "preset", "config"} <= record.keys()


# ------------------------------------------------------------------------------------------ reading


def open_run(path: str | os.PathLike[str], step: int | None = None) -> Source:
    """A step of a run: {model, optimizer[, ema]}, names with dots in each. Every array is compared with its digest when it is read.

    Without `step` it is the last, unless validation liked another one better: then one has to be named. Raises UserError.
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
    """The step that is meant, and {item: {name: digest}} of it. Raises UserError."""
    known = run.sound_steps()
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
    """What a step's digest file says. Raises UserError where it is not what was written."""
    record = read_json(run.digest_file(step))
    whole = (
        record.pop("digest", None) == text_digest(record)
        and record.get("step") == step
        and isinstance(record.get("notes"), dict)
    )
    if (
        not whole
        or not isinstance(arrays := record.get("arrays"), dict)
        or not all(isinstance(item, dict) for item in arrays.values())
    ):
        raise UserError(f"{run}: the digest file of step {step} is damaged; take another step with --step")
    return record


def _checked(tensor: Tensor, digest: str, what: str) -> Tensor:
    """The tensor, which compares its values with a digest."""

    def read() -> np.ndarray:
        array = tensor.read()
        if array_digest(array) != digest:
            raise UserError(f"{what} is damaged (its digest differs); take another step with --step")
        return array

    return dataclasses.replace(tensor, read=read)


def run_of(config: Any, where: str) -> RunConfig:
    """A run from its config as JSON. Raises UserError, also where it is nothing of the kind."""
    try:
        return from_dict(RunConfig, config)
    except UserError as error:
        raise UserError(f"{where}: {error}; restore it, or leave it out and say the network's with --set") from error
    except (AttributeError, TypeError, RecursionError) as error:
        raise UserError(
            f"{where}: its config is damaged ({type(error).__name__}); restore it, or leave it out and say the network's with --set"
        ) from error


# ------------------------------------------------------------------------------------------ writing


def write_run(
    path: str | os.PathLike[str], config: RunConfig, beside: Mapping[str, Any], step: int, items: Mapping[str, Item]
) -> None:
    """Write a run's folder with one step, and read it back: `vit_jax.load`, --init and --resume take it.

    `path` must not exist, or be empty. `beside` is what config.json says besides the config: preset, data (None where it is not known
    which examples the run has seen) and what its task keeps. `items` are model, optimizer ({step, mu.*, nu.*} or {step, trace.*}) and where the run has one
    ema, each read through before the next. Raises UserError where the weights are of a dtype in which no run is trained, or come
    back other than they were written.
    """
    run = Run(path)
    wide = np.dtype(np.float64 if config.compute_dtype == "float64" else np.float32)
    for item, (specs, _) in items.items():
        for name, spec in specs.items():
            if spec.dtype in FLOATS and spec.dtype != wide:
                raise UserError(
                    f"{path}: {item}.{name} is {spec.dtype.name}, and a run's arrays are {wide.name}; add --dtype {wide.name}"
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
    """The arrays under their key paths, each one's digest noted as it passes."""
    for name, array in arrays:
        digests[name] = array_digest(array)
        yield tuple(name.split(".")), array
