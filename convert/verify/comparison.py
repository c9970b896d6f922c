"""Two files, compared: their tensors bit for bit, and each file's network in its own library with ours."""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from vit_jax.config.network import NetworkConfig

from .. import adapt as adapting
from ..containers.source import INTEGERS
from .checks import Check, bits, check_return, configs, relative, statistics
from .libraries import NotLoaded, Unavailable, build, stand_in
from .reference import Reference, compare_networks
from .report import Report
from .weights import Inputs, Weights


def verify(
    a: Weights,
    b: Weights,
    adapt: Sequence[str] = (),
    dtype: np.dtype | None = None,
    inputs: Inputs | None = None,
    steps: int = 0,
    reference: Reference | None = None,
) -> Report:
    """Compare B with A."""
    config, parameters, facts = a.config, a.parameters, a.facts
    adaptations = adapting.adaptations(config, adapt)
    for adaptation in adaptations:
        config, parameters, facts = adaptation.config, adapting.apply(adaptation, parameters), adaptation.facts(facts)
    dtype = narrower(parameters, b.parameters) if dtype is None else dtype
    report = Report(a, b, config, adapt, changed=[each.text for each in adaptations if each.changes])
    if dtype is not None:
        exact, parameters = parameters, {n: array.astype(dtype) for n, array in parameters.items()}
        report.rounded = dtype.name if _changed(exact, parameters) else ""
    report.checks += [check_return(a), check_return(b), configs(b.name, a.name, b.config, config)]
    report.checks.append(statistics(b.name, a.name, b.facts, facts))
    report.checks.append(bits(b.name, a.name, b.parameters, parameters, "tensors under our names"))
    if why_not := _without_torch() or shapes_apart(b.config, config):
        report.notes.append(f"forward not compared: {why_not}")
        return report
    reference = reference or Reference(f"ours with {a.name}", config, parameters, inputs)
    report.checks += of_one(b, reference, report, steps)
    if adapt or dtype is not None:
        before = Reference(
            f"ours with {a.name}", a.config, a.parameters, None if shapes_apart(a.config, config) else reference.inputs
        )
        report.checks += of_one(a, before, report)
        report.notes += describe_change(before, reference)
    elif a.layout is not b.layout:
        report.checks += of_one(a, reference, report)
    elif b.name in report.computed:
        report.computed.add(a.name)  # the same table read the same tensors
    return report


def _changed(exact: Mapping[str, np.ndarray], rounded: Mapping[str, np.ndarray]) -> bool:
    """Whether rounding has changed a number of arrays, {name: array}; those with NaN are not looked at."""
    return any((rounded[n].astype(x.dtype) != x).any() for n, x in exact.items() if not np.isnan(x).any())


def _without_torch() -> str:
    """A clause where PyTorch, which computes the networks of other libraries, cannot be used."""
    try:
        importlib.import_module("torch")
    except (ImportError, OSError) as error:
        return f"PyTorch cannot be imported ({error})"
    return ""


def of_one(weights: Weights, reference: Reference, report: Report, steps: int = 0) -> list[Check]:
    """A file, computed by its library, against ours; by torch_ref from what our table read where no library does it."""
    why = ""
    try:
        built, why = build(weights)
        if built is None:
            built = stand_in(weights)
            report.notes.append(f"{weights.name}: {why}; torch_ref computed it, from what our table read")
        else:
            report.computed.add(weights.name)
    except NotLoaded as error:
        return [Check(weights.name, "its own library", "loading", float("inf"), 0.0, str(error))]
    except Unavailable as error:
        note = f"forward not compared: {'; '.join(dict.fromkeys(filter(None, (why, str(error)))))}"
        report.notes += [note] if note not in report.notes else []
        return []
    return list(compare_networks(weights, reference, built, steps))


def describe_change(before: Reference, after: Reference) -> list[str]:
    """How much an adaptation or another dtype changes the outputs, in words; empty where shapes changed."""
    first, second = (r.values("float64")[r.outputs] for r in (before, after))
    if before.inputs is not after.inputs or first.shape != second.shape:
        return []
    return [f"the change moves outputs by {relative(second, first):.1e} of their largest"]


def narrower(exact: Mapping[str, Any], rounded: Mapping[str, Any]) -> np.dtype | None:
    """The dtype to which arrays may have been rounded. The dtype that all of `rounded` have, where that has fewer bytes
    than any of `exact`; else None.
    """
    kinds = [{x.dtype for x in arrays.values()} - {*INTEGERS} for arrays in (exact, rounded)]
    if len(kinds[1]) != 1 or not kinds[0]:
        return None
    (one,) = kinds[1]
    return one if one.itemsize < min(kind.itemsize for kind in kinds[0]) else None


def shapes_apart(first: NetworkConfig, second: NetworkConfig) -> str:
    """A clause where one network cannot take the other's inputs."""
    if type(first) is not type(second):
        return f"one is a {type(first).__name__}, the other a {type(second).__name__}"
    rows = (c.inputs() for c in (first, second))
    some, others = ({one.name: (one.kind, one.shape, one.size) for one in row} for row in rows)
    names = [name for name in some | others if some.get(name) != others.get(name)]
    return f"their inputs differ in {', '.join(names)}" if names else ""
