"""The record that a conversion leaves of a file that it wrote: in the file, beside it, or in its folder.

It states layout, config and preprocessing, and is believed of the file that it was written for and of no other.
"""

from __future__ import annotations

import dataclasses
import functools
import os
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from vit_jax.config.fields import are_texts
from vit_jax.errors import UserError
from vit_jax.kinds.table import are_outputs
from vit_jax.models.networks import network_named
from vit_jax.runs.values import from_dict, to_dict
from vit_jax.tasks.table import metadata_checks

from ..containers import strict_json
from ..containers.source import PROVENANCE, Source, Tensor
from ..layout import Json
from ..operations import checksum

CHECKPOINTS = "checkpoints"  # the weights in a run's folder: the run keeps digests of its own


def _is_extra(value: Any) -> bool:
    if not isinstance(value, dict) or not isinstance(value.get("generation", {}), dict):
        return False
    return all(valid(value[key]) for key, valid in metadata_checks().items() if key in value)


# {key that is read: whether its value is of the kind that was written}. Preprocessing and class names are checked
# later, against the network.
KINDS: dict[str, Callable[[Any], bool]] = {
    "layout": lambda v: isinstance(v, str),
    "dtype": lambda v: isinstance(v, str),
    "source": lambda v: isinstance(v, dict),
    "config": lambda v: isinstance(v, dict) and isinstance(v.get("network"), str) and isinstance(v.get("fields"), dict),
    "extra": _is_extra,
    "outputs": are_outputs,
    "optional": lambda v: isinstance(v, dict) and all(map(are_texts, v.values())),
    "adaptations": lambda v: (
        isinstance(v, list) and all(isinstance(each, dict) and isinstance(each.get("text"), str) for each in v)
    ),
    "digests": lambda v: isinstance(v, dict),
}


def read_provenance(source: Source, files: Mapping[str, Any], overruled: bool = False) -> Json:
    """The provenance of a source's weights."""
    text, side = source.metadata.get("provenance"), side_file(source, files)
    try:
        found = strict_json.parse(text.encode(), source.path) if isinstance(text, str) else files.get(side, {})
        if not isinstance(found, dict) or found.get("format") != 1:
            return {}
        for key, valid in KINDS.items():
            if not valid(found[key]) if key in found else key == "config":
                raise UserError(f"its {key} is not of the kind that was written")
        fields = to_dict(from_dict(network_named(found["config"]["network"]), found["config"]["fields"]))
    except UserError as error:
        if overruled:
            return {}
        raise UserError(source.path, f"its provenance is damaged ({error})", remedy(side)) from error
    return {**found, "config": {**found["config"], "fields": fields}}


def remedy(side: str) -> str:
    """What to do about a damaged provenance: in a side file of this name, or (empty) in the weights' own file."""
    if side:
        return f"remove {side}, or get it again"
    return "name its layout and config with `layout` and `fields`, or get the file again"


def side_file(source: Source, files: Mapping[str, Any]) -> str:
    """The name of the side file that holds a source's provenance."""
    name = os.path.basename(source.path.replace("\\", "/").rstrip("/"))
    if "digests" in files.get(f"{name}.json", {}):
        return f"{name}.json"
    found, is_run = files.get(PROVENANCE, {}), os.path.isdir(source.path)
    listed = found.get("files")
    lists_it = isinstance(listed, list) and (CHECKPOINTS if is_run else name) in listed
    return PROVENANCE if lists_it and (is_run or "digests" in found) else ""


def with_digests(
    source: Source, tensors: dict[str, Tensor], provenance: Json, side: str, overruled: bool = False
) -> tuple[dict[str, Tensor], Json]:
    """Tensors that compare themselves with the CRC-32 in a side file when they are read -> (the tensors, the
    provenance).
    """
    digests = provenance.get("digests")
    if digests is None or not side:
        return tensors, provenance
    foreign = f"the provenance beside it is of another file; remove {side}, or put the file back that it belongs to"
    if digests.keys() != tensors.keys():
        if overruled:
            return tensors, {}
        raise UserError(source.path, foreign)

    def read(tensor: Tensor, digest: Any) -> np.ndarray:
        array = tensor.read()
        if f"{checksum(array):08x}" != digest:
            raise UserError(source.path, f"{tensor.name} is damaged, or {foreign}")
        return array

    return {
        name: dataclasses.replace(t, read=functools.partial(read, t, digests[name])) for name, t in tensors.items()
    }, provenance
