"""Networks by their names in timm and torchvision, for `--model NAME`: config fields and preprocessing.

`python -m tests.architectures` writes architectures.json from these libraries; the tests compare the two.
"""

from __future__ import annotations

import functools
import json
import re
from importlib import resources
from typing import Any

from vit_jax.config.dotted import replace_fields, value_at
from vit_jax.config.fields import pair
from vit_jax.config.hints import nearest
from vit_jax.config.network import NetworkConfig
from vit_jax.errors import UserError
from vit_jax.models.networks import NETWORKS

from ..layout import Json

# Fields that a name does not fix: a user's head and images may differ from those of the published weights.
NOT_FIXED = ("channels", "classes", "head_bias", "head_hidden", "head_activation")


@functools.cache
def table() -> dict[str, Any]:
    """The JSON of architectures.json."""
    return dict(json.loads(resources.files(__package__).joinpath("architectures.json").read_text(encoding="utf-8")))


def names() -> list[str]:
    """The names of all architectures, without tags of weights."""
    return list(table()["architectures"])


def published(network: type[NetworkConfig]) -> bool:
    """Whether the names are those of networks of this class."""
    return NETWORKS[table()["network"]] is network


def other(name: str) -> str:
    """What an architecture has that no layout here holds; empty where it can be converted or is not known."""
    return str(table()["others"].get(name, ""))


def name_of(config: NetworkConfig, among: re.Pattern[str]) -> str:
    """The architecture that a network is, whatever its images, channels and head; empty where none is."""
    own, found = config.normal(), list[tuple[bool, int, str]]()
    free = {name: value_at(config, name) for name in (*NOT_FIXED, "image")}
    for name, entry in table()["architectures"].items():
        some = {field: entry["fields"].get(field, getattr(type(config), field)) for field in ("width", "depth")}
        if not among.fullmatch(name) or some != {field: value_at(config, field) for field in some}:
            continue
        fields = lookup(name)[0]
        theirs = replace_fields(type(config)(), {**fields, **free}).normal()
        if all(value_at(own, field) == value_at(theirs, field) for field in config.function_fields()):
            found.append((pair(fields.get("image", 0)) != pair(value_at(config, "image")), len(name), name))
    return min(found)[2] if found else ""


def lookup(name: str) -> tuple[Json, Json | None]:
    """What is known of an architecture by its name. Returns (config fields that it fixes, the preprocessing of its
    weights or None).
    """
    architecture, _, tag = name.removeprefix("timm/").partition(".")
    if why := other(architecture):
        raise UserError(f"model {name}", f"it has {why}, which no layout here holds yet", "it cannot be converted")
    if architecture not in table()["architectures"]:
        raise UserError(f"model {name}", f"there is no such network{nearest(architecture, names())}")
    entry = table()["architectures"][architecture]
    if tag and tag not in entry["tags"]:
        raise UserError(f"model {name}", f"{architecture} has no weights {tag!r}{nearest(tag, list(entry['tags']))}")
    number = entry["tags"].get(tag or next(iter(entry["tags"]), ""))
    config = NETWORKS[table()["network"]]
    defaults = {f: getattr(config(), f) for f in config.function_fields() if f not in NOT_FIXED}
    preprocess = None if number is None else dict(table()["preprocess"][number])
    image = {"image": preprocess["image"][0]} if preprocess else {}  # all images are square
    return defaults | entry["fields"] | image, preprocess
