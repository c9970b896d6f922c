"""The one seam to convert: files of any layout as networks of ours."""

from __future__ import annotations

import re
import shlex
from typing import Any

import numpy as np

from .config import ModelConfig
from .errors import UserError


def converted(path: str, **said: Any) -> tuple[ModelConfig, Any, dict[str, np.ndarray]]:
    """(config, what else the file says, {our dotted name: float32 array, or float64 where it is}) of a file of any layout.

    `said` are convert.reading.Options' fields. Raises UserError.
    """
    from convert.plan.groups import stream
    from convert.plan.plan import plan
    from convert.recognise.reading import Options, read

    reading = read(path, Options(**said))
    with reading.source:
        way = plan(reading, "vit-jax")
        arrays = {
            name: x if x.dtype == np.float64 else x.astype(np.float32) for name, x in stream(way) if name in way.specs
        }
    return way.config, way.facts, arrays


def convert_first(error: UserError, path: str) -> UserError:
    """An error of the bridge for a command that has none of the flags which its remedy names: convert has."""
    if not re.search(r"--(accept|file|from|key|model|set|step)(?![\w.-])", str(error)):
        return error
    return UserError(
        f"{error}: do so in `python -m convert {shlex.quote(path)} X.safetensors`, then give X.safetensors here"
    )
