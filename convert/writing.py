"""A plan carried out: written under a temporary name, read back, compared, renamed. What was there stays until then."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np

from vit_jax.config import RunConfig, network_of, pixels, to_dict
from vit_jax.errors import CheckFailed, UserError
from vit_jax.runs import write_json

from .containers import SUFFIXES, open_source, writer
from .containers.source import CARRIED_SUFFIX, Source, Spec, leaves
from .layout import Facts, Json
from .preprocessing import assumed, unprepared
from .provenance import RUN
from .road import Plan, stream
from .rules import CARRIED, checksum
from .target import DIGESTED, PROVENANCE, Target, target
from .training import Training, into_run, into_torch, training

# The name of the weights in a folder that we write, by the container of the layout's choice.
IN_FOLDER = {"safetensors": "model.safetensors", "npz": "model.npz", "msgpack": "flax_model.msgpack", "torch": "model.pt"}
# Files of tokenizers, which libraries leave beside the weights of networks that read words.
TOKENIZER = (
    "source.spm", "target.spm", "vocab.json", "target_vocab.json", "merges.txt", "sentencepiece.bpe.model", "tokenizer.json", "tokenizer_config.json",
    "special_tokens_map.json", "added_tokens.json",
)  # fmt: skip
SEPARATORS = {"msgpack": "/"}  # of containers that nest; torch state dicts are flat
Progress = Callable[[int], None]  # is told the bytes written so far


@dataclass(frozen=True)
class Written:
    """What a conversion left: the file of the weights, all files, the provenance that they carry, and what is to be known of them."""

    path: Path
    files: list[Path]
    provenance: Json
    notes: list[str]
    key: str  # of the weights, where a run in training holds several sets


def write(
    plan: Plan, path: str, force: bool = False, weights_only: bool = False, progress: Progress = lambda done: None, run: RunConfig | None = None
) -> Written:  # fmt: skip
    """Carry out a plan. Raises UserError, with everything as it was, where the target is taken or cannot be written.

    `run` is the one that an optimizer's state belongs to, where its file does not say.
    """
    goal = where(plan, path)
    goal.check(plan.reading.source, force, replaceable=goal.name != RUN)
    if not goal.folder:
        writer(str(goal.path))  # a suffix that is no container's
    folder, name = goal.folder, goal.name
    facts = plan.facts
    if pixels(plan.config) and facts.preprocess is None and not weights_only and name != RUN:
        raise unprepared(plan.reading.path, facts, "--weights-only")
    if folder and not weights_only and (absent := [key for key in plan.layout.extras if key not in facts.extra]):
        flags = " ".join(f"--set {key}=..." for key in absent)
        raise UserError(f"{plan.reading.path}: does not say {', '.join(absent)}, which {plan.layout.name} needs; give {flags}, or --weights-only")
    state = training(plan.reading, run) if holds_runs(plan, name) and not weights_only else None
    provenance = origin(plan, facts)
    if state:  # these go along
        provenance["left_out"] = [what for what in provenance.get("left_out", ()) if what.partition(" ")[0] not in ("optimizer", "ema")]
    with goal.room() as room, ThreadPoolExecutor(1) as aside:
        known = aside.submit(source_hash, plan.reading.source)  # beside the writing: neither waits for the other
        notes, sums = fill(plan, room / name, facts, provenance, known, progress, state)
        sides = plan.layout.write_side(plan.config, facts) if folder and not weights_only else {}
        digests = {"digests": {tensor: f"{crc:08x}" for tensor, crc in sums.items()}} if name != RUN and not name.endswith(DIGESTED) else {}
        if folder:
            sides[PROVENANCE] = {**provenance, **digests, "files": sorted([name, *sides])}
        elif digests:
            sides[f"{name}.json"] = {**provenance, **digests}
        for side, content in sides.items():
            write_json(room / side, content)
        files = goal.settle(room)
    return Written(goal.weights, files, provenance, [*notes, *remarks(plan, goal, weights_only)], "model" if name == RUN or notes else "")


def remarks(plan: Plan, goal: Target, weights_only: bool) -> list[str]:
    """What the user is to know of a target, a sentence each: what was assumed, what is not in it, what its library may not open."""
    reading, kind = plan.reading, SUFFIXES.get(goal.weights.suffix)
    out = [] if weights_only and goal.name != RUN else assumed(reading.statistics, reading.facts.preprocess)
    if kind and kind not in plan.layout.containers and plan.layout.dialect != "vit-jax":
        out.append(f"files of {plan.layout.name} come as {' or '.join(plan.layout.containers)}: its own library may not open a {goal.weights.suffix}")
    if goal.folder and plan.layout.extras and not weights_only:
        place = Path(reading.path) if os.path.isdir(reading.path) else Path(reading.path).parent
        if found := [file for file in TOKENIZER if (place / file).is_file()]:
            out.append(f"the tokenizer beside the source is not carried: copy {', '.join(found)} to {goal.path}")
    return out + ([plan.layout.lacks] if plan.layout.lacks else [])


def where(plan: Plan, text: str) -> Target:
    """The target of a plan: a file, a run's folder, or a folder with the weights as the layout's library names them."""
    return target(text, RUN if plan.layout.dialect == "vit-jax" else IN_FOLDER[plan.layout.containers[0]])


def holds_runs(plan: Plan, name: str) -> bool:
    """Whether the target has a place for a run in training: its optimizer, its average, its step."""
    return name == RUN or (plan.layout.dialect == "torch-ref" and SUFFIXES.get(Path(name).suffix) == "torch")


def fill(
    plan: Plan, path: Path, facts: Facts, provenance: Json, known: Future[str], progress: Progress, state: Training | None
) -> tuple[list[str], dict[str, int]]:  # fmt: skip
    """Write the weights, with the rest of a run in training, and what has no place there beside: (notes, the weights' CRC-32).

    The source's hash enters the provenance when it is known, which is before the last of the weights is taken for written.
    """
    kept: dict[str, np.ndarray] = {}
    sums: dict[str, int] | None = None if path.suffix == DIGESTED else {}

    def all_of_them() -> Iterator[tuple[str, np.ndarray]]:
        yield from weights(plan, kept, sums, progress)
        provenance["source"]["sha256"] = known.result()

    values = all_of_them()
    notes = []
    if path.name == RUN:
        notes = into_run(plan, state, facts, str(path.parent), values)
    elif state:
        notes = into_torch(plan, state, str(path), values)
    else:
        weigh(plan, path, provenance, values, sums)
    if kept:
        specs = {name: Spec(a.dtype, a.shape) for name, a in kept.items()}
        writer(CARRIED_SUFFIX)[1](f"{path}{CARRIED_SUFFIX}", specs, (((n,), a) for n, a in kept.items()), {"carried": path.name})
    return notes, sums or {}


def weights(plan: Plan, kept: dict[str, np.ndarray], sums: dict[str, int] | None, progress: Progress) -> Iterator[tuple[str, np.ndarray]]:
    """(target's name, array) of every tensor that has a place there, its CRC-32 noted in `sums`; the others go to `kept`."""
    done = 0
    for name, array in stream(plan):
        if name.startswith(CARRIED) and name not in plan.specs:
            kept[name.removeprefix(CARRIED)] = array
            continue
        if sums is not None:
            sums[name] = checksum(array)
        yield name, array
        done += array.nbytes
        progress(done)


def weigh(plan: Plan, path: Path, provenance: Json, values: Iterator[tuple[str, np.ndarray]], sums: dict[str, int] | None) -> None:
    """Write the weights, read them back and compare."""
    container, write = writer(str(path))
    separator = SEPARATORS.get(container)

    def place(name: str) -> tuple[str | int, ...]:
        return tuple(name.split(separator)) if separator else (name,)

    tree: dict[Any, Any] = {}
    for name, spec in plan.specs.items():
        *path_, leaf = place(name)
        node = tree
        for key in path_:
            node = node.setdefault(key, {})
        node[leaf] = spec
    metadata = {"format": "pt", "provenance": json.dumps(provenance)}

    def arrays() -> Iterator[tuple[tuple[str | int, ...], np.ndarray]]:
        yield from ((place(name), array) for name, array in values)
        metadata["provenance"] = json.dumps(provenance)  # now with the source's hash

    write(str(path), tree, arrays(), metadata)
    read_back(path, plan.specs, sums, separator or ".")


def read_back(path: Path, specs: dict[str, Spec], sums: dict[str, int] | None, separator: str) -> None:
    """Raise CheckFailed unless a file that was just written holds what went into it, to the bit.

    Without `sums` it is the file's own digests that its tensors are compared with, by reading them.
    """
    with open_source(str(path)) as source:
        found = leaves(source.tree, separator)
        for name, spec in specs.items():
            tensor = found.get(name)
            try:
                back = tensor is not None and (tensor.dtype, tuple(tensor.shape)) == (spec.dtype, spec.shape) and tensor.read()
            except UserError:
                back = False
            if back is False or (sums is not None and checksum(back) != sums[name]):
                raise CheckFailed(f"{path.name}: {name} did not come back from the disk as it was written; the target is untouched: check the disk and try again")
        if len(found) != len(specs):
            raise CheckFailed(f"{path.name}: holds {len(found)} tensors instead of {len(specs)}; the target is untouched")


# ------------------------------------------------------------------------------------- provenance


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
    files = [Path(p) for p in source.files] or ([Path(source.path)] if os.path.isfile(source.path) else sorted(p for p in Path(source.path).rglob("*") if p.is_file()))
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


