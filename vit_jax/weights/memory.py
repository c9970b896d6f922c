"""Weights in memory, as `convert` reads files: a library's state dict, or a network of this package."""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np

from ..config.network import NetworkConfig
from ..errors import UserError

if TYPE_CHECKING:
    from convert.containers.source import Source, Tensor
    from convert.recognise.reading import Reading

NETWORK = "a network in Python"


def state_source(state: Mapping[str, Any], beside: Mapping[str, Mapping[str, Any]]) -> Source:
    """A state dict as an opened file."""
    from convert.containers.source import STATE_DICT, Source, leaves

    tree = _tree(state)
    tensors = leaves(tree)
    if not tensors:
        raise UserError(STATE_DICT, "holds no arrays", "give {name: array or tensor}, such as model.state_dict()")
    size = sum(each.nbytes for each in tensors.values())
    try:
        files = json.loads(json.dumps(beside))  # as in a file: names are texts
    except (TypeError, ValueError) as error:
        raise UserError("beside", f"is no JSON ({error})", "give {'config.json': model.config.to_dict()}") from error
    return Source(STATE_DICT, "torch", tree, size=size, side=files)


def _tree(state: Mapping[str, Any]) -> dict[str, Any]:
    """A state dict with a Tensor for each array in it."""
    found: dict[str, Any] = {}
    for name, value in state.items():
        if isinstance(value, Mapping):
            found[name] = _tree(value)
        else:
            found[name] = _tensor(name, value) if hasattr(value, "__array__") else value
    return found


def _tensor(name: str, value: Any) -> Tensor:
    from convert.containers.source import Tensor

    array = as_numpy(name, value)
    return Tensor(name, array.dtype, array.shape, functools.partial(np.array, array, order="C"))


def as_numpy(name: str, value: Any) -> np.ndarray:
    """An array of any library as one of numpy with the same values."""
    try:
        if hasattr(value, "detach"):  # of PyTorch, whose bfloat16 numpy does not know
            value = value.detach().cpu()
            if str(value.dtype) == "torch.bfloat16":
                return np.asarray(value.float()).astype(ml_dtypes.bfloat16)
        return np.asarray(value)
    except (TypeError, ValueError, RuntimeError) as error:
        reason = str(error).partition("\n")[0]
        raise UserError(
            "the state dict", f"{name} cannot be read ({reason})", "give it as an array of numpy"
        ) from error


def network_reading(config: NetworkConfig, arrays: Mapping[str, Any], sets: Mapping[str, Any]) -> Reading:
    """A network of this package as an opened and recognised file."""
    from convert.containers.source import Source, Tensor
    from convert.layout import Facts
    from convert.plan.plan import target_layout
    from convert.recognise import outputs
    from convert.recognise.layouts import extras
    from convert.recognise.preprocessing import SETTABLE
    from convert.recognise.reading import Reading

    layout = target_layout("vit-jax", config)
    known = {*SETTABLE, outputs.TARGET, *extras(layout.network)}
    if unknown := [name for name in sets if name not in known]:
        raise UserError(
            "fields", f"{unknown[0]!r} is not a field of this network", f"there are {', '.join(sorted(known))}"
        )
    tensors = {
        name: Tensor(name, np.dtype(x.dtype), tuple(x.shape), functools.partial(np.array, x, order="C"))
        for name, x in arrays.items()
    }
    extra = {name: value for name, value in sets.items() if name not in (*SETTABLE, outputs.TARGET)}
    statistics = {name: value for name, value in sets.items() if name in SETTABLE}
    source = Source(NETWORK, "safetensors", {**tensors}, side={})
    reading = Reading(source, layout, config, tensors, layout.rows(config), Facts(extra=extra), [], {}, statistics)
    return replace(reading, target=outputs.target(sets))
