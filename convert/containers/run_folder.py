"""A run folder of vit-jax, read and written: weights, their average, the optimizer; a digest for every array."""

from __future__ import annotations

import dataclasses
import json
import os
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from vit_jax.config.run import RunConfig
from vit_jax.config.trees import unflatten
from vit_jax.errors import UserError
from vit_jax.files.atomic import write_json
from vit_jax.files.digests import array_digest, with_digest
from vit_jax.files.metrics import NO_LOG
from vit_jax.files.places import pull_weights
from vit_jax.files.terminal import print_note
from vit_jax.runs import Run, read_files, record_of
from vit_jax.runs.folder import with_calibration
from vit_jax.runs.record import own_schedule
from vit_jax.runs.values import from_dict

from . import orbax
from .source import FLOATS, Source, Spec, Step, Tensor, leaves

Item = tuple[Mapping[str, Spec], Iterator[tuple[str, np.ndarray]]]  # specs and then arrays, by dotted names
ANOTHER = "take another step with `step`"
RESTORE = "restore the file, or leave it out and give the network's config with `fields`"


def is_run(path: str | os.PathLike[str]) -> bool:
    """Whether a folder is a run folder of vit-jax."""
    return Run(path).is_ours()


# ------------------------------------------------------------------------------------------ reading


def open_run(path: str | os.PathLike[str], step: Step = None, training: bool = False) -> Source:
    """Open one step of a run: {model, optimizer[, ema]}, each {dotted name: Tensor}, checked against digests when read.

    The preferred weights are those, raw or averaged, by which the step was the best; of other steps the averaged ones,
    where the run has them; with `training` the raw ones.
    """
    run = Run(path)
    pull_weights(run.path)
    record = run.record()
    if remark := run.remark():
        print_note(remark, sys.stderr)
    choice = _choose(run, step or ("last" if training else "best"))
    step, digests = choice.step, choice.arrays
    source = orbax.open_folder(run.checkpoints / str(step))
    left_out, why = _left_out(choice, record, training)
    source.tree = {item: _checked(run, step, item, source.tree, digests[item]) for item in digests}
    source.tree = {item: tensors for item, tensors in source.tree.items() if item not in left_out}
    if "ema" in digests:  # of frozen parameters no average is kept: it would be their value
        source.tree["ema"] = source.tree["model"] | source.tree["ema"]
    own = [run.config_file] if run.config_file.exists() else []  # else its copy in the checkpoint is read
    files = [*source.files, *map(str, own), str(run.digest_file(step))]
    metadata = {"format": "vit-jax", "config": json.dumps(record["config"]), "step": step}
    preferred = "ema" if "ema" in digests and not training and choice.weights != "raw" else "model"
    return dataclasses.replace(
        source,
        path=str(path),
        metadata=metadata,
        files=files,
        skipped=[*source.skipped, *choice.skipped, *why],
        step=step,
        chosen=choice.said,
        preferred=preferred,
        record=record,
        decided={} if training else with_calibration(record, run, step, choice.weights),
        beside=lambda: read_files(run.path, record.get("files", {})),
    )


def _checked(run: Run, step: int, item: str, tree: Mapping[str, Any], digests: Mapping[str, str]) -> dict[str, Tensor]:
    """The tensors of an item, which compare themselves with digests. Raises UserError where they are others."""
    tensors = tree.get(item, {})
    if tensors.keys() != digests.keys():
        raise UserError(run, f"step {step}, {item}, does not hold the arrays that were saved", "take another step")
    where = f"{run}: step {step}, {item}"
    return {name: _check_digest(tensor, digests[name], f"{where}.{name},") for name, tensor in tensors.items()}


def _left_out(choice: _Choice, record: Mapping[str, Any], training: bool) -> tuple[tuple[str, ...], list[str]]:
    """(the items of a step that are not read, why not, where it is read to be trained on)."""
    # Factors of LoRA, and the moments of these, belong to kernels that the weights do not hold any more.
    if "lora" in choice.arrays:
        why = f"the factors of LoRA and the optimizer's state of step {choice.step}: the weights are merged"
        return ("lora", "optimizer"), [why] if training else []
    if not (way := own_schedule(record)) or not training:
        return (), []
    rate = f"as continue {way} had it, and others know schedules over the whole length of a run alone"
    return ("optimizer",), [f"the optimizer's state of step {choice.step}: its learning rate goes on {rate}"]


@dataclass(frozen=True)
class _Choice:
    """A step of a run, {item: {name: digest}} of it, in words which step that is, and checkpoints that are damaged.

    `weights` are those, "raw" or "ema", by which it was the best; empty where it was not, or nothing is noted.
    """

    step: int
    arrays: dict[str, dict[str, str]]
    said: str
    weights: str
    skipped: list[str]


def _choose(run: Run, step: int | Literal["best", "last"]) -> _Choice:
    """The step of a run that is meant. Raises UserError as `open_run` does."""
    known = run.complete_steps()
    if not known:
        raise UserError(run, "nothing has been saved here yet", "let it train until its first checkpoint")
    if isinstance(step, int) and step not in known:
        raise UserError(run, f"there is no step {step}", f"it holds {', '.join(map(str, known))}")
    newest, skipped = _newest(run, known)
    best, weights = _best(newest["notes"])
    taken = step if isinstance(step, int) else best if step == "best" and best is not None else int(newest["step"])
    if step == "best" and taken not in known:
        raise UserError(run, f"the best checkpoint, of step {taken}, is not there", "take the last with `step last`")
    try:
        record = newest if taken == newest["step"] else _record(run, taken)
    except UserError as error:
        error.remedy = f"{error.remedy}, such as `step last`"
        raise
    steps = {"the last": newest["step"], "the best by validation": best}
    here = [name for name, each in steps.items() if each == taken]
    others = [f"{name} is {each}" for name, each in steps.items() if each not in (taken, None)]
    said = f"step {taken} ({', '.join([*here, *others])})"
    return _Choice(taken, record["arrays"], said, weights * (taken == best), skipped)


def _newest(run: Run, known: list[int]) -> tuple[dict[str, Any], list[str]]:
    """(the newest record of these steps that is not damaged, what was passed over). Raises UserError where all are."""
    skipped: list[str] = []
    for step in known:
        try:
            return _record(run, step), skipped
        except UserError as error:
            damage = error
            skipped.append(f"checkpoint {step} (its digest file is damaged)")
    raise damage


def _best(notes: Mapping[str, Any]) -> tuple[int | None, str]:
    """(the step that a checkpoint's notes call the best, the weights, raw or ema, by which it was); None where none."""
    best = notes.get("best")
    return (best["step"], best["weights"]) if best else (None, "")


def _record(run: Run, step: int) -> dict[str, Any]:
    """The JSON of a step's digest file. Raises UserError where it is damaged."""
    try:
        return run.saved(step)
    except UserError as error:
        raise UserError(run, f"the digest file of step {step} is damaged", ANOTHER) from error


def _check_digest(tensor: Tensor, digest: str, what: str) -> Tensor:
    """The tensor with a `read` that compares its values with a digest."""

    def read() -> np.ndarray:
        array = tensor.read()
        if array_digest(array) != digest:
            raise UserError(f"{what} is damaged (its digest differs)", remedy=ANOTHER)
        return array

    return dataclasses.replace(tensor, read=read)


def run_of(config: Any, where: str) -> RunConfig:
    """A RunConfig from JSON."""
    try:
        return from_dict(RunConfig, config)
    except UserError as error:
        raise UserError(where, str(error), RESTORE) from error
    except (AttributeError, TypeError, RecursionError) as error:
        raise UserError(where, f"its config is damaged ({type(error).__name__})", RESTORE) from error


# ------------------------------------------------------------------------------------------ writing


def write_run(
    path: str | os.PathLike[str], config: RunConfig, beside: Mapping[str, Any], step: int, items: Mapping[str, Item]
) -> None:
    """Write a run folder with one step, and read it back; `vit_jax.load`, --init and --resume read such folders."""
    run = Run(path)
    wide = np.dtype(np.float64 if config.compute_dtype == "float64" else np.float32)
    for item, (specs, _) in items.items():
        for name, spec in specs.items():
            if spec.dtype in FLOATS and spec.dtype != wide:
                raise UserError(
                    path,
                    f"{item}.{name} is {spec.dtype.name}, and a run's arrays are {wide.name}",
                    f"add `dtype {wide.name}`",
                )
    run.create(record_of(config, **beside))
    digests: dict[str, dict[str, str]] = {}
    for item, (specs, arrays) in items.items():
        digests[item] = {}
        orbax.write(str(run.checkpoints / str(step) / item), unflatten(specs), _note_digests(arrays, digests[item]), {})
    notes: dict[str, Any] = {
        "optimizer": config.optim.name, "best": None, "stale": 0, "due": False, "totals": {"steps": 0}, "seconds": 0.0,
        "data": beside["data"], "environment": {"versions": {}},
    }  # fmt: skip
    saved = {"step": step, "notes": notes, "arrays": digests, "config": run.record(), "log": NO_LOG}
    write_json(run.digest_file(step), with_digest(saved))
    with open_run(path, step) as written:
        for tensor in leaves(written.tree).values():
            tensor.read()


def _note_digests(
    arrays: Iterator[tuple[str, np.ndarray]], digests: dict[str, str]
) -> Iterator[tuple[tuple[str, ...], np.ndarray]]:
    """The arrays under their key paths; `digests` gets the digest of each as it passes."""
    for name, array in arrays:
        digests[name] = array_digest(array)
        yield tuple(name.split(".")), array
