"""A conversion worked out on shapes and dtypes: from a reading's rows, through adaptations, to the target's rows.

Everything that can be refused is refused here, before a value is read; and a writer needs its header first.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import ml_dtypes
import numpy as np

from vit_jax.config.network import NetworkConfig
from vit_jax.errors import UserError

from .. import rules
from ..adapt import ANY_NETWORK, Adaptation, texts_to_fit
from ..adapt import adaptations as adaptations_of
from ..adapt.outputs import texts_to_fold
from ..containers.source import INTEGERS, Spec
from ..dialects import LAYOUTS
from ..layout import WHOLE, Facts, Layout
from ..operations import ghost
from ..recognise.layouts import find
from ..recognise.outputs import settle
from ..recognise.preprocessing import preprocessing
from ..recognise.reading import Reading
from ..rules import CARRIED, Row

FEW = 3  # layouts that a message lists
DTYPES = {name: np.dtype(getattr(ml_dtypes, name, name)) for name in ("float16", "bfloat16", "float32", "float64")}


@dataclass(frozen=True)
class Plan:
    """A conversion that can be carried out: everything but the values is known."""

    reading: Reading
    adaptations: list[Adaptation]
    layout: Layout  # the target's
    config: NetworkConfig
    rows: list[Row]  # the target's
    specs: dict[str, Spec]  # {the target's name: Spec}
    dtype: np.dtype | None  # of all tensors; None: each keeps its own
    facts: Facts  # what is stated beside the tensors
    allow_nonfinite: bool = False


def plan(
    reading: Reading,
    target: str,
    adapt: Sequence[str] = (),
    dtype: str = "",
    weights_only: bool = False,
    allow_nonfinite: bool = False,
    folded: bool = False,
) -> Plan:
    """The plan of a conversion."""
    adaptations, facts = adaptations_of(reading.config, adapt), reading.facts
    for adaptation in adaptations:
        facts = adaptation.facts(facts)
    config = adaptations[-1].config if adaptations else reading.config
    layout = target_layout(target, config, weights_only)
    if folded or not layout.holds_all:
        for adaptation in adaptations_of(config, texts_to_fold(facts.outputs)):
            adaptations, facts, config = [*adaptations, adaptation], adaptation.facts(facts), adaptation.config
    if layout.cannot(config, weights_only):
        raise UserError(reading.path, f"cannot become {layout.name}: {refusal(layout, config)}")
    if dtype and dtype not in DTYPES:
        raise UserError(f"dtype {dtype}", f"there are {', '.join(DTYPES)}")
    rounded = DTYPES[dtype] if dtype else None
    parameters = _parameter_ghosts(reading, adaptations, rounded)
    rows = _target_rows(layout, config, reading, parameters)
    common = rules.common_dtype(a.dtype for a in parameters.values())
    specs: dict[str, Spec] = {}
    for row in rows:
        made = row.write([parameters[name] for name in row.ours], common)
        specs |= {name: Spec(a.dtype, a.shape) for name, a in zip(row.theirs, made, strict=True)}
    any_size = bool(layout.resizes(config))
    facts = facts if any_size else _of_one_size(facts, config, layout, reading.resize)
    outputs = settle(config, facts.outputs, reading.target, reading.layout.holds_all)
    whole = facts.extra.get(WHOLE)
    images = preprocessing(config, reading.statistics, facts.preprocess, any_size, whole)
    facts = replace(facts, preprocess=images, outputs=outputs)
    return Plan(reading, adaptations, layout, config, rows, specs, rounded, facts, allow_nonfinite)


def _of_one_size(facts: Facts, config: NetworkConfig, layout: Layout, resize: str) -> Facts:
    """The facts without a preprocessing of a size that the network does not take in a layout; a note says so."""
    h, w, _ = config.pixels() or (0, 0, 0)
    images = facts.preprocess["image"] if facts.preprocess else [h, w]
    if list(images) == [h, w]:
        return facts
    sizes = f"for images of {images[0]}x{images[1]}, and the network of {layout.name} takes {h}x{w} alone"
    option = f"`adapt {resize}`"
    told = f"the preprocessing given beside the weights is left out: it is {sizes}; keep it with {option}"
    return replace(facts, preprocess=None, notes=(*facts.notes, told))


def _parameter_ghosts(
    reading: Reading, adaptations: Iterable[Adaptation], dtype: np.dtype | None
) -> dict[str, np.ndarray]:
    """{our name: array without memory} of a reading's parameters after adaptations and rounding."""
    found: dict[str, np.ndarray] = {}
    for row in reading.rows:
        given = [ghost(reading.tensors[name].shape, reading.tensors[name].dtype) for name in row.theirs]
        found.update(zip(row.ours, row.read(given), strict=True))
    for step in (step for adaptation in adaptations for step in adaptation.steps):
        kind = found[step.takes[0]].dtype if step.takes else rules.common_dtype(a.dtype for a in found.values())
        found = {name: a for name, a in found.items() if name not in step.takes}
        found |= {name: ghost(shape, kind) for name, shape in step.makes.items()}
    if dtype is not None:  # counters are not rounded
        found |= {name: ghost(a.shape, dtype) for name, a in found.items() if a.dtype not in INTEGERS}
    return found


def _target_rows(
    layout: Layout, config: NetworkConfig, reading: Reading, parameters: dict[str, np.ndarray]
) -> list[Row]:
    """The layout's rows for these parameters. Raises UserError where names or shapes are not those of the config."""
    carried = {name for name in parameters if name.startswith(CARRIED)}
    wanted = {*reading.optional.get(layout.name, ()), *(name.removeprefix(CARRIED) for name in carried)}
    rows = rules.narrow_written(layout.rows(config), wanted)
    claimed = {name for row in rows for name in row.ours}
    shapes = {name: a.shape for name, a in parameters.items() if name not in carried or name in claimed}
    rules.check(rules.our_shapes(rows), shapes, reading.path)
    return rows


def target_layout(name: str, config: NetworkConfig, weights_only: bool = False) -> Layout:
    """The newest layout of a name that is of such networks; where it cannot hold this one, another of its family."""
    found = find(name, "to")
    named = found[-1].dialect
    newest = {each.dialect: each for each in found if isinstance(config, each.network)}
    if named in newest and not newest[named].cannot(config, weights_only):
        return newest[named]
    others = [each for each in newest.values() if each.dialect != named and not each.cannot(config)]
    if len(others) > 1:
        ways = " or ".join(f"`to {each.dialect}`" for each in others)
        raise UserError(f"to {name}", "several of its layouts hold this network", f"choose one with {ways}")
    if newest and named not in newest and not others:
        kind = type(config).__name__.removesuffix("Config")
        ways = ", ".join(f"`to {each}`" for each in newest)
        lacks = f"none of its layouts of a {kind} holds this one"
        raise UserError(f"to {name}", lacks, f"why, each of these says: {ways}")
    return others[0] if others else newest.get(named, found[-1])


def refusal(layout: Layout, config: NetworkConfig) -> str:
    """Why a layout cannot hold a network or state it, and what to do: adaptations that help, or another layout."""
    function_changing = [
        f"{name}={field.among[0]}"
        for name, field in layout.fields.items()
        if name in ANY_NETWORK and not field.allows(getattr(config, name, None))
    ]
    helpful = texts_to_fit(config, function_changing, lambda adapted: not layout.cannot(adapted))
    function = "changes" if set(helpful) & set(function_changing) else "stays"
    adapt = f"change it with {_adapting(helpful)} (the function {function})"
    structure = layout.cannot(config, weights_only=True)
    reasons = "; ".join(structure if structure and not helpful else layout.cannot(config))
    if not structure:
        bare = "write the bare tensors with `weights_only True`"
        return f"{reasons}; {f'{adapt}, or ' if helpful else ''}{bare}"
    return f"{reasons}; {adapt if helpful else _otherwise(layout, config)}"


def _otherwise(layout: Layout, config: NetworkConfig) -> str:
    """What to do about a network that no adaptation fits to a layout with its head."""
    ways = []
    if others := elsewhere(config)[:FEW]:
        options = ", ".join(f"`to {name}`" for name in others)
        ways.append(f"choose a layout that holds it ({options})")
    if headless := texts_to_fit(config, ["head=drop"], lambda adapted: not layout.cannot(adapted)):
        ways.append(f"leave its head out with {_adapting(headless)}")
    also = "choose another layout, or change the network with `adapt` (`python -m convert formats` lists both)"
    return ", or ".join(ways) or also


def _adapting(texts: Sequence[str]) -> str:
    """Adaptations as messages name them."""
    return " and ".join(f"`adapt {text}`" for text in texts)


def elsewhere(config: NetworkConfig) -> list[str]:
    """The names of the layouts of other libraries that can hold a network, in their newest version."""
    newest = {each.dialect: each for each in LAYOUTS.values() if isinstance(config, each.network)}
    return [each.dialect for each in newest.values() if each.proven and not each.cannot(config)]
