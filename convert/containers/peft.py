"""A LoRA adapter in the folder that peft saves: adapter_config.json, and adapter_model.safetensors or .bin beside it.

A layer with the weight W [out, in] gets W + scaling * B A, of lora_A [r, in] and lora_B [out, r] (Hu et al. 2021,
section 4.1); scaling is lora_alpha / r, or with use_rslora lora_alpha / sqrt(r). Names are those of the network, behind
base_model.model.; what trained whole (modules_to_save, bias) has its own.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from vit_jax.errors import UserError

from .folder import open_folder, read_json
from .kinds import open_file
from .source import FLOATS, Shape, Source

CONFIG, WEIGHTS = "adapter_config.json", ("adapter_model.safetensors", "adapter_model.bin")
PREFIX = "base_model.model."
FACTOR = re.compile(
    r"(?P<layer>.+)\.(?P<part>lora_A\.weight|lora_B\.weight|lora_embedding_A|lora_embedding_B"
    r"|lora_magnitude_vector(\.weight)?)"
)
# Fields of the config that change what is computed, and the values with which B A is all that is added.
PLAIN: dict[str, tuple[Any, ...]] = {
    "init_lora_weights": (True, False, "gaussian", "eva", "orthogonal"),  # others change the base's weights as well
    "layer_replication": (None,),
    "lora_bias": (False,),
    "target_parameters": (None, []),
    "trainable_token_indices": (None, [], {}),
    "use_qalora": (False,),
    "alora_invocation_tokens": (None,),
}
MERGE = "merge it with peft itself (merge_and_unload), save that network, and give it"


@dataclass(frozen=True)
class Factors:
    """What an adapter adds to one weight: scaling * B A; with DoRA each output then has the length `magnitude`.

    `a` [r, in...] and `b` [out, r, ...] are float64; of an embedding [r, V] and [D, r].
    """

    a: np.ndarray
    b: np.ndarray
    scaling: float
    magnitude: np.ndarray | None = None
    embedding: bool = False

    @property
    def shape(self) -> Shape:
        """That of the product."""
        out, width = self.b.shape[0], self.a.shape[1:]
        return (*width, out) if self.embedding else (out, *width)

    @property
    def product(self) -> np.ndarray:
        """scaling * B A, [out, in...]; of an embedding [V, D]."""
        rank, out = self.a.shape[0], self.b.shape[0]
        made = self.scaling * (self.b.reshape(out, rank) @ self.a.reshape(rank, -1))
        return made.T if self.embedding else made.reshape(self.shape)


@dataclass(frozen=True)
class Adapter:
    """An adapter: `base` is the network that it is for, `factors` are by the names of weights.

    `saved` are the tensors that replace those of the base, by name. All are float64.
    """

    base: str
    factors: dict[str, Factors]
    saved: dict[str, np.ndarray]


def is_adapter(folder: str) -> bool:
    """Whether a folder is that of an adapter."""
    return os.path.isfile(os.path.join(folder, CONFIG))


def describe(folder: str) -> tuple[str, str]:
    """What the config of an adapter names -> (the kind of the adapter, the network that it is for or "")."""
    config = read_json(os.path.join(folder, CONFIG))
    return str(config.get("peft_type"))[:60], str(config.get("base_model_name_or_path") or "")[:200]


def open_adapter(folder: str) -> Adapter:
    """The adapter in a folder."""
    path = os.path.join(folder, CONFIG)
    if not os.path.isdir(folder):
        lacks = "is no folder" if os.path.lexists(folder) else "there is no such folder"
        raise UserError(folder, lacks, "give the folder that peft has saved")
    if not is_adapter(folder):
        raise UserError(folder, f"has no {CONFIG}, so it is no adapter of peft", "give the folder that peft has saved")
    config = read_json(path)
    _check(path, config)
    with _weights(folder) as source:
        tensors = {}
        for name, tensor in source.tree.items():
            if getattr(tensor, "dtype", None) not in FLOATS:
                raise UserError(source.path, f"{name} is no tensor of numbers with a point", MERGE)
            tensors[str(name).removeprefix(PREFIX)] = tensor.read().astype(np.float64)
            if not np.isfinite(tensors[str(name).removeprefix(PREFIX)]).all():
                raise UserError(source.path, f"{name} holds NaN or infinity", "take another adapter")
    return _sorted(source.path, config, tensors)


def _weights(folder: str) -> Source:
    """The file of an adapter's tensors, opened."""
    there = [name for name in WEIGHTS if os.path.lexists(os.path.join(folder, name))]
    return open_folder(folder, there[0]) if there else open_file(os.path.join(folder, WEIGHTS[0]))


def _check(path: str, config: Mapping[str, Any]) -> None:
    if (kind := config.get("peft_type")) != "LORA":
        raise UserError(path, f"peft_type is {kind!r}, and only LORA is merged here", MERGE)
    for name, values in PLAIN.items():
        if not any(config.get(name, values[0]) == value for value in values):
            raise UserError(path, f"{name} is {str(config[name])[:60]!r}, which is not merged here", MERGE)
    for name in ("r", "lora_alpha"):
        _check_number(path, name, config.get(name))
    for name in ("rank_pattern", "alpha_pattern"):
        patterns = config.get(name) or {}
        if not isinstance(patterns, Mapping):
            raise UserError(path, f"{name} is no object of names and numbers", "restore it")
        for key, value in patterns.items():
            if not re.fullmatch(r"\^?[\w.]+", key):
                raise UserError(path, f"{name} has the expression {key[:60]!a}, which is no name of a layer", MERGE)
            _check_number(path, f"{name}[{key!r}]", value)


def _check_number(path: str, name: str, value: Any) -> None:
    if type(value) not in (int, float) or not 0 < value < math.inf:
        raise UserError(path, f"{name} is {value!r:.60}, which is no positive number", "restore it")


def _sorted(path: str, config: Mapping[str, Any], tensors: Mapping[str, np.ndarray]) -> Adapter:
    """The adapter of these tensors."""
    parts: dict[str, dict[str, np.ndarray]] = {}
    saved = {}
    for name, array in tensors.items():
        if found := FACTOR.fullmatch(name):
            parts.setdefault(found["layer"], {})[found["part"].removesuffix(".weight")] = array
        elif "lora_" in name:
            raise UserError(path, f"{name} is no factor that is merged here", MERGE)
        else:
            saved[name.replace(".modules_to_save", "")] = array
    factors = {}
    for layer, each in parts.items():
        kind = "lora_embedding_" if "lora_embedding_A" in each else "lora_"
        if absent := {f"{kind}A", f"{kind}B"} - each.keys():
            raise UserError(path, f"{layer} has no {sorted(absent)[0]}", "get the adapter again")
        a, b, magnitude = each[f"{kind}A"], each[f"{kind}B"], each.get("lora_magnitude_vector")
        rank = _of_layer(config, "rank_pattern", layer, config["r"])
        if a.ndim < 2 or b.ndim < 2 or a.shape[0] != rank or b.shape != (len(b), rank, *[1] * (b.ndim - 2)):
            shapes = f"{list(a.shape)} and {list(b.shape)}"
            raise UserError(path, f"the factors of {layer}, {shapes}, are not of rank {rank}", "get the adapter again")
        alpha = _of_layer(config, "alpha_pattern", layer, config["lora_alpha"])
        scaling = alpha / (math.sqrt(rank) if config.get("use_rslora") else rank)
        factors[f"{layer}.weight"] = Factors(a, b, scaling, magnitude, kind == "lora_embedding_")
    return Adapter(str(config.get("base_model_name_or_path") or ""), factors, saved)


def _of_layer(config: Mapping[str, Any], pattern: str, layer: str, otherwise: float) -> float:
    """The rank or alpha of a layer: of the first pattern that is its name or the end of it, else the usual one."""
    for key, value in (config.get(pattern) or {}).items():
        name = key.removeprefix("^")
        if layer == name or (name == key and layer.endswith(f".{name}")):
            return float(value)
    return otherwise
