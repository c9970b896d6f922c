"""A plan carried out: written under a temporary name, read back, compared, renamed. What was there stays until then."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from vit_jax.config import RunConfig, pixels
from vit_jax.errors import UserError
from vit_jax.runs import write_json

from ..containers import SUFFIXES, writer
from ..containers.source import DIGESTED, PROVENANCE
from ..layout import Json
from ..plan.plan import Plan
from ..plan.target import Target, target
from ..recognise.preprocessing import assumed, unprepared
from ..recognise.provenance import RUN
from .origin import origin, source_hash
from .training import training
from .weights import IN_FOLDER, Progress, fill

# Files of tokenizers, which libraries leave beside the weights of networks that read words.
TOKENIZER = (
    "source.spm", "target.spm", "vocab.json", "target_vocab.json", "merges.txt", "sentencepiece.bpe.model", "tokenizer.json", "tokenizer_config.json",
    "special_tokens_map.json", "added_tokens.json",
)  # fmt: skip


@dataclass(frozen=True)
class Written:
    """What a conversion left: the file of the weights, all files, the provenance that they carry, and what is to be known of them."""

    path: Path
    files: list[Path]
    provenance: Json
    notes: list[str]
    key: str  # of the weights, where a run in training holds several sets


def write(
    plan: Plan,
    path: str,
    force: bool = False,
    weights_only: bool = False,
    progress: Progress = lambda done: None,
    run: RunConfig | None = None,
) -> Written:
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
        raise UserError(
            f"{plan.reading.path}: does not say {', '.join(absent)}, which {plan.layout.name} needs; give {flags}, or --weights-only"
        )
    state = training(plan.reading, run) if holds_runs(plan, name) and not weights_only else None
    provenance = origin(plan, facts)
    if state:  # these go along
        provenance["left_out"] = [
            what for what in provenance.get("left_out", ()) if what.partition(" ")[0] not in ("optimizer", "ema")
        ]
    with goal.room() as room, ThreadPoolExecutor(1) as aside:
        known = aside.submit(source_hash, plan.reading.source)  # beside the writing: neither waits for the other
        notes, sums = fill(plan, room / name, facts, provenance, known, progress, state)
        sides = plan.layout.write_side(plan.config, facts) if folder and not weights_only else {}
        digests = (
            {"digests": {tensor: f"{crc:08x}" for tensor, crc in sums.items()}}
            if name != RUN and not name.endswith(DIGESTED)
            else {}
        )
        if folder:
            sides[PROVENANCE] = {**provenance, **digests, "files": sorted([name, *sides])}
        elif digests:
            sides[f"{name}.json"] = {**provenance, **digests}
        for side, content in sides.items():
            write_json(room / side, content)
        files = goal.settle(room)
    return Written(
        goal.weights,
        files,
        provenance,
        [*notes, *remarks(plan, goal, weights_only)],
        "model" if name == RUN or notes else "",
    )


def remarks(plan: Plan, goal: Target, weights_only: bool) -> list[str]:
    """What the user is to know of a target, a sentence each: what was assumed, what is not in it, what its library may not open."""
    reading, kind = plan.reading, SUFFIXES.get(goal.weights.suffix)
    out = [] if weights_only and goal.name != RUN else assumed(reading.statistics, reading.facts.preprocess)
    if kind and kind not in plan.layout.containers and plan.layout.dialect != "vit-jax":
        out.append(
            f"files of {plan.layout.name} come as {' or '.join(plan.layout.containers)}: its own library may not open a {goal.weights.suffix}"
        )
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


# ------------------------------------------------------------------------------------- provenance
