"""A file of the user's that hides our package convert: Python looks first where he starts."""

from __future__ import annotations

import functools
import importlib.util
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import ParamSpec, TypeVar

from ..errors import UserError

P = ParamSpec("P")
R = TypeVar("R")
OURS = Path(__file__).parents[2] / "convert"


def with_convert(function: Callable[P, R]) -> Callable[P, R]:
    """A function that imports convert; it raises UserError where that would be another module of this name."""

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        _check()
        return function(*args, **kwargs)

    return call


def _check() -> None:
    known = sys.modules.get("convert")
    spec = None if known else importlib.util.find_spec("convert")
    found = getattr(known, "__file__", None) if known else spec.origin if spec else None
    if found and os.path.realpath(found) != os.path.realpath(OURS / "__init__.py"):
        raise UserError("convert", f"{found} hides this package of vit-jax", "rename it, or start in another folder")
