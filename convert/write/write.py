"""A plan carried out: all is written in a temporary folder, read back, compared, and only then renamed."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from vit_jax.config.run import RunConfig
from vit_jax.errors import UserError
from vit_jax.files.atomic import write_json

from ..containers import SUFFIXES, writer
from ..containers.source import DIGESTED, PROVENANCE
from ..layout import Json, Layout
from ..plan.plan import Plan
from ..plan.target import Target, sync, target
from ..recognise.outputs import note_assumed, note_contradicted, unsettled, unstated
from ..recognise.preprocessing import left_out, note_defaults
from ..recognise.provenance import CHECKPOINTS
from .origin import origin, source_hash
from .shards import split
from .tokenizer import tokenizer_with_weights
from .training import training
from .weights import IN_FOLDER, Progress, write_all


@dataclass(frozen=True)
class Written:
    """What a conversion left."""

    path: Path  # of the weights
    files: list[Path]
    provenance: Json
    notes: list[str]  # a sentence each, for the user
    key: str  # of the weights, where a run in training holds several sets


def write(
    plan: Plan,
    path: str,
    force: bool = False,
    weights_only: bool = False,
    progress: Progress = lambda done: None,
    run: RunConfig | None = None,
    shard: int = 0,
) -> Written:
    """Carry out a plan."""
    goal = goal_of(path, plan.layout)
    check = partial(goal.check, plan.reading.source, force, replaceable=goal.name != CHECKPOINTS)
    check()
    if shard and not (goal.folder and goal.name.endswith(DIGESTED)):
        what = "is for the files in a folder of safetensors"
        raise UserError("shard_size", what, "give a folder of such a layout, or leave it out")
    if not goal.folder:
        writer(str(goal.path))  # refuses a suffix that is no container's
    if not weights_only:
        _check_stated(plan, goal)
    state = training(plan.reading, run) if holds_training(goal, plan.layout) and not weights_only else None
    provenance = origin(plan, state is not None)
    with goal.workspace() as workspace, ThreadPoolExecutor(1) as aside:
        check()  # once more: from here on no other conversion writes there
        known = aside.submit(source_hash, plan.reading.source)  # while the weights are written: neither waits
        notes, sums = write_all(plan, workspace / goal.name, provenance, known, progress, state)
        cut = split(workspace / goal.name, shard) if shard else [goal.name]
        sides = plan.layout.write_side(plan.config, plan.facts) if goal.folder and not weights_only else {}
        carried = tokenizer_with_weights(plan) if sides and plan.layout.tokenizer else {}
        for name, file in carried.items():
            (workspace / name).write_bytes(file)
        for name, content in (sides | own_side(goal, provenance, sums, cut, [*sides, *carried])).items():
            write_json(workspace / name, content)
        sync(workspace)
        check()  # what another program put there meanwhile stays
        files = goal.settle(workspace)
    key = "model" if goal.name == CHECKPOINTS or notes else ""
    return Written(goal.weights, files, provenance, [*notes, *remarks(plan, goal, weights_only)], key)


def _check_stated(plan: Plan, goal: Target) -> None:
    """Raise UserError where the target has to state what the source does not: what outputs are, special tokens."""
    if error := unsettled(plan.reading.path, plan.config, plan.facts.outputs):
        raise error
    facts, path = plan.facts, plan.reading.path
    missing = [key for key in plan.layout.extras if key not in facts.extra] if goal.folder else []
    if missing:
        options = f"`fields {' '.join(f'{key}=...' for key in missing)}`"
        needs = f"{', '.join(missing)}, which {plan.layout.name} needs"
        raise UserError(path, f"does not state {needs}", f"give {options}, or `weights_only True`")


def own_side(
    goal: Target, provenance: Json, sums: dict[str, int], weights: list[str], others: list[str]
) -> dict[str, Json]:
    """The provenance beside the weights where their file does not hold it: in a folder, or beside others. Returns {file
    name: JSON}.
    """
    has_digests = goal.name == CHECKPOINTS or goal.name.endswith(DIGESTED)
    digests = {} if has_digests else {"digests": {tensor: f"{crc:08x}" for tensor, crc in sums.items()}}
    if goal.folder:
        return {PROVENANCE: {**provenance, **digests, "files": sorted([*weights, *others])}}
    return {f"{goal.name}.json": {**provenance, **digests}} if digests else {}


def remarks(plan: Plan, goal: Target, weights_only: bool) -> list[str]:
    """Sentences for the user: what was assumed, what the target does not hold, what its library may not open."""
    reading, layout = plan.reading, plan.layout
    out = (
        [] if weights_only and goal.name != CHECKPOINTS else note_defaults(reading.statistics, reading.facts.preprocess)
    )
    of_target = [note for note in plan.facts.notes if note not in reading.facts.notes]  # the others are told before
    if of_target:
        out += of_target
    elif plan.config.pixels() and plan.facts.preprocess is None and not weights_only:
        out.append(left_out(reading.facts))
    if goal.folder and not weights_only:
        out += note_assumed(reading.layout, layout, plan.config, reading.facts.outputs, plan.facts.outputs)
    out += note_contradicted(reading.facts.outputs, reading.target)
    out += [f"left out: {what}" for what in unstated(layout, plan.config, plan.facts.outputs)]
    stated = (plan.facts.preprocess or {}).get("range")
    if stated and layout.dialect != "vit-jax":
        values = " to ".join(f"{value:.10g}" for value in stated)
        out.append(f"it does not state that pixels from {values} become 0 to 255: give its library images of 8 bits")
    container = SUFFIXES.get(goal.weights.suffix)
    if container and container not in layout.containers and layout.dialect != "vit-jax":
        usual = " or ".join(layout.containers)
        out.append(f"files of {layout.name} come as {usual}: its own library may not open a {goal.weights.suffix}")
    if layout.in_float16 and any(spec.dtype.name == "float16" for spec in plan.specs.values()):
        out.append(layout.in_float16)
    return out + layout.refuses("loading", plan.config)


def goal_of(path: str, layout: Layout) -> Target:
    """The target at a path: of our own layout a folder is a run's."""
    return target(path, CHECKPOINTS if layout.dialect == "vit-jax" else IN_FOLDER[layout.containers[0]])


def holds_training(goal: Target, layout: Layout) -> bool:
    """Whether a target can hold a run in training: its optimizer, its average, its step."""
    in_torch = layout.dialect == "torch-ref" and SUFFIXES.get(Path(goal.name).suffix) == "torch"
    return goal.name == CHECKPOINTS or in_torch
