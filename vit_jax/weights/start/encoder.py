"""Runs whose encoder starts from weights of its own (`init_encoder`), while all else of the network is drawn anew.

The weights are a file or a folder of any layout, hf://owner/name, or a run, that hold the encoder's network alone; what
of them is no part of the encoder (a pool, a head) is left out.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from ...config.dotted import replace_fields, value_at
from ...config.network import NetworkConfig
from ...config.run import RunConfig
from ...tasks.table import task_spec
from ..interop import Weights, network_in, open_weights, task_metadata
from .opening import Unfit, differences, digest, errors_about, place_of, stated_by

FIELD = "init_encoder"


@contextlib.contextmanager
def _opened_encoder(run: RunConfig, otherwise: Mapping[str, Any]) -> Iterator[tuple[Weights, NetworkConfig]]:
    """(the weights of `run.init_encoder`, the config of the encoder that they are).

    `otherwise` are fields of the run that are taken where neither the weights nor their side files tell them. Raises
    UserError.
    """
    part = run.model.encoder_field
    own = value_at(run.model, part)
    known = {name.removeprefix(f"model.{part}."): value for name, value in otherwise.items()}
    with contextlib.ExitStack() as stack:
        with errors_about(run.init_encoder, FIELD, f"{part}."):
            place = place_of(run.init_encoder, run.dir)
            if (held := network_in(place)) is not type(own):
                names = held.name, own.name
                raise Unfit(
                    f"holds a {names[0]}, but the encoder is a {names[1]}", remedy="give weights of such a network"
                )
            weights = stack.enter_context(open_weights(place, type(own), known, resize=True, headless=True))
        encoder = replace_fields(run.model, {part: weights.config}).encoder
        assert encoder is not None
        yield weights, encoder


def fill_encoder(run: RunConfig, stated: Mapping[str, Any]) -> RunConfig:
    """The run with the fields of its encoder, and how images are prepared for it, as the weights decide them."""
    asked = replace_fields(run, stated)
    if asked.model.encoder is None:
        return asked  # which `check` refuses
    part = run.model.encoder_field
    inside = {name: value for name, value in stated.items() if name.startswith(f"model.{part}.")}
    with _opened_encoder(asked, inside) as (weights, encoder):
        given = {f"model.{part}.{name}": value_at(encoder, name) for name in encoder.function_fields()}
        prepared = task_spec(run.task).prepared_as(task_metadata(weights.facts, run.task, weights.config), stated)
        out = replace_fields(run, {**given, **prepared, **stated})
        check_fit(out, encoder)
    return out


def check(run: RunConfig) -> None:
    """Raise UserError where a run cannot start from `run.init_encoder`, as far as headers tell."""
    with _opened_encoder(run, _known_fields(run)) as (_, encoder):
        check_fit(run, encoder)


def start(run: RunConfig) -> tuple[dict[str, np.ndarray], dict[str, Any], str]:
    """(parameters {dotted name: array} that the encoder begins with, the entry `init` of config.json, a line)."""
    part = run.model.encoder_field
    with _opened_encoder(run, _known_fields(run)) as (weights, encoder):
        check_fit(run, encoder)
        with errors_about(run.init_encoder, FIELD):
            arrays = {f"{part}.{name}": x for name, x in weights.arrays() if name in encoder.parameters()}
    record: dict[str, Any] = {"layout": weights.layout, "tensors": len(arrays), "digest": digest(arrays.items())}
    record |= {"chosen": weights.chosen} if weights.chosen else {}
    chosen = f" {weights.chosen}," if weights.chosen else ""
    says = (
        f"init     the encoder from {run.init_encoder}:{chosen} {weights.layout}, {len(arrays)} tensors, "
        f"digest {record['digest'][:12]}; all else is drawn anew"
    )
    return arrays, record, f"{says}\n         {weights.resized}" if weights.resized else says


def check_fit(run: RunConfig, given: NetworkConfig) -> None:
    """Raise UserError where the encoder of a run is not that of its weights."""
    assert run.model.encoder is not None
    part, there, wanted = run.model.encoder_field, given.normal(), run.model.encoder.normal()
    different = [name for name in there.function_fields() if value_at(there, name) != value_at(wanted, name)]
    if different:
        asked = " and ".join(stated_by(f"{part}.{name}", value_at(there, name)) for name in different)
        what = differences(different, there, wanted)
        raise Unfit(f"{FIELD} {run.init_encoder}", what, f"leave these fields out, or give {asked}")


def _known_fields(run: RunConfig) -> dict[str, Any]:
    part = run.model.encoder_field
    own = value_at(run.model, part)
    return {f"model.{part}.{name}": value_at(own, name) for name in own.function_fields()}
