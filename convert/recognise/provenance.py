"""What a conversion of ours said of the file that it wrote: in the file, beside it or in its folder. It is believed of that file alone."""

from __future__ import annotations

import dataclasses
import functools
import os
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from vit_jax.config import from_dict, kept_anywhere, network_named, to_dict
from vit_jax.config.fields import are_texts
from vit_jax.errors import UserError

from .. import rules
from ..containers import strict_json
from ..containers.source import PROVENANCE, Source, Tensor
from ..layout import Json

RUN = "checkpoints"  # the weights in the folder of a run, whose arrays have digests of the run's own


def _extra(value: Any) -> bool:
    if not isinstance(value, dict) or not isinstance(value.get("generation", {}), dict):
        return False
    return all(right(value[key]) for key, right in kept_anywhere().items() if key in value)


# What is read of it, and whether it is of the kind that was written. Preprocessing and class names are held against the network later.
KINDS: dict[str, Callable[[Any], bool]] = {
    "layout": lambda v: isinstance(v, str),
    "dtype": lambda v: isinstance(v, str),
    "source": lambda v: isinstance(v, dict),
    "config": lambda v: isinstance(v, dict) and isinstance(v.get("network"), str) and isinstance(v.get("fields"), dict),
    "extra": _extra,
    "optional": lambda v: isinstance(v, dict) and all(map(are_texts, v.values())),
    "adaptations": lambda v: (
        isinstance(v, list) and all(isinstance(each, dict) and isinstance(each.get("text"), str) for each in v)
    ),
    "digests": lambda v: isinstance(v, dict),
}


def own_words(source: Source, files: Mapping[str, Any], overruled: bool = False) -> Json:
    """The provenance of a source's weights; empty where there is none, or that of another file.

    Raises UserError where it is damaged, unless it is `overruled` by what the user says.
    """
    text, side = source.metadata.get("provenance"), place(source, files)
    try:
        said = strict_json.parse(text.encode(), source.path) if isinstance(text, str) else files.get(side, {})
        if not isinstance(said, dict) or said.get("format") != 1:
            return {}
        for key, right in KINDS.items():
            if not right(said[key]) if key in said else key == "config":
                raise UserError(f"its {key} is not of the kind that was written")
        fields = to_dict(from_dict(network_named(said["config"]["network"]).config, said["config"]["fields"]))
    except UserError as error:
        if overruled:
            return {}
        raise UserError(f"{source.path}: its provenance is damaged ({error}); {remedy(side)}") from error
    return {**said, "config": {**said["config"], "fields": fields}}


def remedy(side: str) -> str:
    """What to do about a provenance that is wrong: one in a side file, or (without its name) in the file itself."""
    return (
        f"remove {side}, or get it again"
        if side
        else "name its layout and config with --from and --set, or get the file again"
    )


def place(source: Source, files: Mapping[str, Any]) -> str:
    """The name of the side file that is a source's provenance, if one is: it has to name the file and to hold digests of its tensors."""
    name = os.path.basename(source.path.replace("\\", "/").rstrip("/"))
    if "digests" in files.get(f"{name}.json", {}):
        return f"{name}.json"
    whole, run = files.get(PROVENANCE, {}), os.path.isdir(source.path)
    listed = whole.get("files")
    mine = isinstance(listed, list) and (RUN if run else name) in listed and (run or "digests" in whole)
    return PROVENANCE if mine else ""


def checked(
    source: Source, tensors: dict[str, Tensor], said: Json, side: str, overruled: bool = False
) -> tuple[dict[str, Tensor], Json]:
    """The tensors, each compared when it is read with the CRC-32 that the provenance in the side file `side` has of it; and that provenance.

    Raises UserError where it is one of other tensors, unless it is `overruled` by what the user says: then there is none.
    """
    digests = said.get("digests")
    if digests is None or not side:
        return tensors, said
    strange = f"the provenance beside it is not its own; remove {side}, or put the file back that it belongs to"
    if digests.keys() != tensors.keys():
        if overruled:
            return tensors, {}
        raise UserError(f"{source.path}: {strange}")

    def read(tensor: Tensor, digest: Any) -> np.ndarray:
        array = tensor.read()
        if f"{rules.checksum(array):08x}" != digest:
            raise UserError(f"{source.path}: {tensor.name} is damaged, or {strange}")
        return array

    return {
        name: dataclasses.replace(t, read=functools.partial(read, t, digests[name])) for name, t in tensors.items()
    }, said
