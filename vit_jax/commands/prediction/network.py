"""The network that predicts: opened from a run or from weights, and what kind of inputs it takes."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ... import runs
from ...config.network import NetworkConfig
from ...errors import UserError
from ...machine import backend
from ...text.languages import UNSTATED, Spoken

if TYPE_CHECKING:
    from flax import nnx

    from ...tasks.predictor import Predictor


def takes(path: str) -> str:
    """The kind of the inputs of a network."""
    if not runs.is_foreign(path):
        return kind_of(runs.find(path, weights=True).config().model)
    from ...weights.interop import config_in

    with contextlib.suppress(UserError):  # `open_network` raises another, which says more
        return kind_of(config_in(path))
    return ""


def kind_of(model: NetworkConfig) -> str:
    return model.inputs()[0].kind


def image_column(path: str) -> str:
    """The column of a run's own table that names the images; empty of other weights, and of data that is no table."""
    return "" if runs.is_foreign(path) else getattr(runs.find(path).config().data, "file_column", "")


def open_network(
    path: str | Mapping[str, object] | Predictor | nnx.Module,
    which: str,
    ema: bool | None,
    search: Mapping[str, Any] | None = None,
    spoken: Spoken = UNSTATED,
) -> Predictor:
    """The network of a run, of a file of any layout or in memory, with these settings of its search and languages.

    A missing run is reported before jax starts.
    """
    if isinstance(path, str) and not runs.is_foreign(path):
        runs.find(path, weights=True)
    backend.configure_jax()
    from ...tasks.generated import searching
    from ...weights.load import complete

    model = complete(path, which, ema, spoken)
    return replace(model, task=searching(model.task, search)) if search else model


def caption(path: str, model: Predictor, which: str, ema: bool | None) -> str:
    """A line for a figure: what was given, and which of its weights were used."""
    from ...figures.figure import weights_caption
    from ...files.output import shorten

    if runs.is_foreign(path):
        return shorten(path.rstrip("/"), 60)

    folder, step, best = runs.find(path), model.step, None
    if which == "best" and (steps := folder.complete_steps()):
        with contextlib.suppress(UserError):
            best = folder.saved(steps[0])["notes"].get("best")
    if runs.mean_of(which):
        return f"{shorten(folder.path.name, 40)}: {which} weights up to step {step:,}"
    averaged = folder.config().ema and ema is not False and (ema or (best or {}).get("weights", "ema") == "ema")
    epoch = next((row["epoch"] for row in folder.metrics() if row["step"] == step and "epoch" in row), None)
    words = weights_caption("best" if best else "last", "ema" if averaged else "raw", step, epoch)
    return f"{shorten(folder.path.name, 40)}: {words}"
