"""What a library builds of a file, and what its builders share: importing it, the file's tensors, loading them."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib import metadata
from typing import Any

import ml_dtypes
import numpy as np

from ...rules import Row

Places = dict[str, tuple[str, str]]  # {name of a captured value: (path of a module, "in" or "out")}


class Unavailable(Exception):
    """Why a library cannot build a network, in a clause."""


class NotLoaded(Exception):
    """Why a library does not load a file of its own layout, in a clause."""


@dataclass
class Built:
    """A torch module with the tensors of a file, in float64.

    `call(module, **inputs)` gives the outputs; `rows` name the module's parameters as ours, for gradients and steps;
    inner values are found at `places`, or by `capture(module, inputs, names)` where the module has a method for it.
    """

    library: str
    module: Any
    rows: list[Row]
    call: Callable[..., Any]
    places: Places = field(default_factory=dict)
    capture: Callable[[Any, dict[str, Any], list[str]], dict[str, Any]] | None = None


def load(library: str) -> Any:
    """Import a library.

    A torchvision built for another torch lacks two operators that no network here uses: they are declared, so that it
    and the libraries that need it (timm, transformers, vit-pytorch) start all the same.
    """
    _declare_operators()
    try:
        return importlib.import_module(library)
    except RuntimeError as error:
        raise ImportError(f"{library} does not start: {error}", name=library) from error


@functools.cache
def _declare_operators() -> Any:
    try:
        importlib.import_module("torchvision")
    except ImportError:
        return None
    except RuntimeError:
        # The operators exist as long as something refers to this object.
        declared = importlib.import_module("torch").library.Library("torchvision", "DEF")
        for name in ("nms", "qnms"):
            declared.define(name + "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        return declared
    return None


def with_version(library: str) -> str:
    """A library's name with its installed version."""
    return f"{library} {metadata.version(library)}"


def to_float64(array: np.ndarray) -> np.ndarray:
    """The array in float64, which holds every value of a narrower dtype exactly; integers and booleans as they are."""
    array = array.view(ml_dtypes.bfloat16) if array.dtype == np.dtype("V2") else array  # as numpy's own files have it
    return np.array(array, array.dtype if array.dtype.kind in "iub" else np.float64, order="C")


def tensors(arrays: Mapping[str, np.ndarray]) -> dict[str, Any]:
    """Arrays as torch's tensors, in float64."""
    import torch

    return {name: torch.from_numpy(to_float64(array)) for name, array in arrays.items()}


def fill_module(module: Any, state: Mapping[str, Any]) -> Any:
    """A module in float64 with the tensors of a file."""
    module = module.double()
    try:
        module.load_state_dict(dict(state))
    except RuntimeError as error:
        raise NotLoaded(" ".join(str(error).split())[:300]) from error
    return module


def of_images(module: Any, images: Any) -> Any:
    """The outputs of a module that takes images [B, C, h, w], from images [B, h, w, C]."""
    return module(images.permute(0, 3, 1, 2))
