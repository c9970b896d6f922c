"""The only use of `convert` in vit_jax: weight files of any layout as networks of this package."""

from __future__ import annotations

import re
import shlex
from typing import Any

import numpy as np

from .config import ModelConfig
from .errors import UserError


def converted(path: str, **options: Any) -> tuple[ModelConfig, Any, dict[str, np.ndarray]]:
    """(config, other facts that the file states, {our parameter name: array}) of a weight file or folder of any layout.

    Arrays are float32, or float64 if the file has float64. `options` are the fields of
    convert.recognise.reading.Options. Raises UserError.
    """
    from convert.plan.groups import stream
    from convert.plan.plan import plan
    from convert.recognise.reading import Options, read

    reading = read(path, Options(**options))
    with reading.source:
        planned = plan(reading, "vit-jax")
        arrays = {
            name: x if x.dtype == np.float64 else x.astype(np.float32)
            for name, x in stream(planned)
            if name in planned.specs
        }
    return planned.config, planned.facts, arrays


def convert_first(error: UserError, path: str) -> UserError:
    """An error of `converted`; where its remedy is a flag that only `python -m convert` has, with that command."""
    if not re.search(r"--(accept|file|from|key|model|set|step)(?![\w.-])", str(error)):
        return error
    return UserError(f"{error} to `python -m convert {shlex.quote(path)} X.safetensors`, then give X.safetensors here")
