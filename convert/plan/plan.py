"""The road of a tensor: a reading's rows, adaptations, the target's rows reversed; group by group.

What two tables tie together is one group: its tensors are read, transformed and handed on before the next group is.
Shapes and dtypes go the whole way first, so that a writer has its header.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import ml_dtypes
import numpy as np

from vit_jax.config import ModelConfig
from vit_jax.errors import UserError

from .. import rules
from ..adapt import ANY_NETWORK, Adaptation, toward
from ..adapt import plan as plan_adaptations
from ..containers.source import Spec
from ..layout import Facts, Layout
from ..recognise.layouts import find
from ..recognise.preprocessing import statistics
from ..recognise.reading import Reading
from ..rules import CARRIED, Row, ghost

DTYPES = {name: np.dtype(getattr(ml_dtypes, name, name)) for name in ("float16", "bfloat16", "float32", "float64")}


@dataclass(frozen=True)
class Plan:
    """A conversion that can be carried out: everything but the values is known."""

    reading: Reading
    adaptations: list[Adaptation]
    layout: Layout  # the target's
    config: ModelConfig
    rows: list[Row]  # the target's
    specs: dict[str, Spec]  # {target's name: Spec}
    dtype: np.dtype | None  # that all become; None: each keeps its own
    facts: Facts  # what goes beside the tensors
    allow_nonfinite: bool = False


def plan(
    reading: Reading,
    target: str,
    adapt: Sequence[str] = (),
    dtype: str = "",
    weights_only: bool = False,
    allow_nonfinite: bool = False,
) -> Plan:
    """Lay the road from a reading to a layout. Raises UserError where the target cannot hold the network."""
    adaptations = plan_adaptations(reading.config, adapt)
    config = adaptations[-1].config if adaptations else reading.config
    layout = target_layout(target, config)
    if layout.cannot(config, weights_only):
        raise UserError(f"{reading.path}: cannot become {layout.name}: {refusal(layout, config)}")
    if dtype and dtype not in DTYPES:
        raise UserError(f"--dtype {dtype}: there are {', '.join(DTYPES)}")
    to = DTYPES[dtype] if dtype else None
    ours = {
        n: g
        for r in reading.rows
        for n, g in zip(
            r.ours, r.read([ghost(reading.tensors[t].shape, reading.tensors[t].dtype) for t in r.theirs]), strict=True
        )
    }
    for step in (step for a in adaptations for step in a.steps):
        kind = ours[step.takes[0]].dtype if step.takes else rules.common_dtype(a.dtype for a in ours.values())
        ours = {n: a for n, a in ours.items() if n not in step.takes} | {
            n: ghost(shape, kind) for n, shape in step.makes.items()
        }
    if to is not None:
        ours = {n: ghost(a.shape, to) for n, a in ours.items()}
    common = rules.common_dtype(a.dtype for a in ours.values())
    facts = reading.facts
    for adaptation in adaptations:
        facts = adaptation.facts(facts)
    facts = replace(facts, preprocess=statistics(config, reading.statistics, facts.preprocess))
    kept = {n for n in ours if n.startswith(CARRIED)}
    rows = rules.narrow(
        layout.rows(config), {*reading.optional.get(layout.name, ()), *(n.removeprefix(CARRIED) for n in kept)}
    )
    rules.check(
        rules.our_shapes(rows),
        {n: a.shape for n, a in ours.items() if n not in kept or any(n in r.ours for r in rows)},
        reading.path,
    )
    made = {t: g for r in rows for t, g in zip(r.theirs, r.write([ours[n] for n in r.ours], common), strict=True)}
    return Plan(
        reading,
        adaptations,
        layout,
        config,
        rows,
        {n: Spec(g.dtype, g.shape) for n, g in made.items()},
        to,
        facts,
        allow_nonfinite,
    )


def target_layout(name: str, config: ModelConfig) -> Layout:
    """The newest layout of this name that holds such networks. Raises UserError."""
    found = find(name, "--to")
    return ([layout for layout in found if isinstance(config, layout.network)] or found)[-1]


def refusal(layout: Layout, config: ModelConfig) -> str:
    """Why a layout cannot hold a network, and what can be done; of what it only cannot state, nothing where more is in the way."""
    told = [
        f"{name}={f.among[0]}"
        for name, f in layout.fields.items()
        if name in ANY_NETWORK and not f.says(getattr(config, name, None))
    ]
    way = toward(config, told, lambda adapted: not layout.cannot(adapted))
    function = "changes" if set(way) & set(told) else "stays"
    adapt = f"change it with {' '.join(f'--adapt {text}' for text in way)} (the function {function})"
    structure = layout.cannot(config, weights_only=True)
    reasons = "; ".join(structure if structure and not way else layout.cannot(config))
    if structure:
        return f"{reasons}; {adapt if way else 'choose another layout, or change the network with --adapt (`python -m convert formats` lists both)'}"
    return f"{reasons}; {f'{adapt}, or ' if way else ''}write the bare tensors with --weights-only"


# ------------------------------------------------------------------------------------------ groups
