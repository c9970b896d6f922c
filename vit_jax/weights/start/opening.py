"""The weights that `init` names, opened; their errors in words of training."""

from __future__ import annotations

import contextlib
import os
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ...config.dotted import value_at
from ...config.network import NetworkConfig
from ...config.run import RunConfig
from ...errors import UserError
from ...files.digests import array_digest, text_digest
from ...files.places import join, local_copy
from ...runs import Run, find, is_foreign
from ...runs.several import kind_of, members
from ..interop import READING, WRITING, Unstated, Weights, convert_first, open_weights

RULES = {"image": "init_resize", "channels": "init_channels"}
FEW = 8  # fields that a message lists; a file that lacks more states none


class Unfit(UserError):
    """Weights that cannot be opened, or that are not those of the run's network."""


@contextlib.contextmanager
def opened_for(run: RunConfig, otherwise: Mapping[str, Any]) -> Iterator[Weights]:
    """A context with the weights of run.init, opened."""
    rest = {name: value for name, value in otherwise.items() if getattr(run, RULES.get(name, ""), "none") == "none"}
    with contextlib.ExitStack() as stack:
        with errors_about(run.init):
            place = place_of(run.init, run.dir)
            square = run.init_resize != "none"
            opened = open_weights(place, type(run.model), rest, square=square, headless=run.new_head)
            weights = stack.enter_context(opened)
        yield weights


@contextlib.contextmanager
def errors_about(init: str, field: str = "init", part: str = "") -> Iterator[None]:
    """A context in which errors are about the weights that a run starts from, as training names them."""
    try:
        with convert_first(init):
            yield
    except Unstated as error:
        untold = _explain_missing(init, [f"{part}{name}" for name in error.fields], error.published)
        raise Unfit(f"{field} {init}", *untold) from error
    except UserError as error:
        raise Unfit(f"{field} {init}", fault_of(init, error), error.remedy) from error


def fault_of(path: str, error: UserError) -> str:
    """What is wrong with the weights at a path, without the path, and without an option that the user has not given."""
    known = (
        error.subject == path or os.path.exists(error.subject) or error.subject.partition(" ")[0] in READING | WRITING
    )
    return error.what if known and error.what else error.fault


def place_of(init: str, folder: str) -> str:
    """The path or address of weights: of a run, inside the folder of all runs or not, its folder."""
    for place in () if init.startswith("hf://") else (init, join(folder, init)):
        if inside := members(Path(local_copy(place))):
            what = f"holds a run for each {kind_of(inside[0])}"
            raise UserError(what, remedy=f"name one of them, such as {Run(inside[0])}")
    if is_foreign(init, folder):
        return init
    return str(find(init, folder, weights=True))


def _explain_missing(init: str, fields: Sequence[str], published: bool) -> tuple[str, str]:
    """(a clause naming fields that weights do not tell, how to state them).

    `published`: whether there are presets and published names of such networks.
    """
    if len(fields) > FEW:
        return "states no config", "name the preset whose network it holds, beside `init`"
    asked = " and ".join(stated_by(name, "...") for name in fields)
    command = f"python -m convert {shlex.quote(init)} X.safetensors --model NAME"
    named = (
        f", or a preset with its network (vit-s16, ...), or its published name to `{command}` and X.safetensors here"
    )
    return f"its tensors cannot tell {', '.join(fields)}", f"give {asked}{named if published else ''}"


def differences(names: Iterable[str], given: NetworkConfig, wanted: NetworkConfig) -> str:
    """The values of some fields of the network of weights and of a run's, in words."""
    pairs = ((name, text(value_at(given, name)), text(value_at(wanted, name))) for name in names)
    return ", ".join(f"its model.{name} is {its}, here it is {own}" for name, its, own in pairs)


def digest(arrays: Iterable[tuple[str, np.ndarray]]) -> str:
    """A digest of all given tensors, under our names and in the file's dtype."""
    return text_digest({name: array_digest(array) for name, array in arrays})


def text(value: Any) -> str:
    """The value of a field as a flag takes it; "none" for an empty list."""
    return " ".join(map(str, value)) or "none" if isinstance(value, tuple | list) else str(value)


def stated_by(name: str, value: Any) -> str:
    """A field of the network with a value, as a message names it."""
    return f"`model.{name}{f' {text(value)}' if value != () else ''}`"
