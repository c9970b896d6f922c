"""Public names of networks, what each says of a config, and how its images are prepared: `--model NAME`.

architectures.json beside is made from timm and torchvision by `python -m tests.architectures` and compared with
them in the tests.
"""

from __future__ import annotations

import functools
import json
from importlib import resources
from typing import Any

from vit_jax.config import NETWORKS, function_fields, nearest
from vit_jax.errors import UserError

from ..layout import Json

# A user's own head and images may differ from those that a network was published with.
OWN = ("channels", "classes", "head_bias", "head_hidden", "head_activation")


@functools.cache
def table() -> dict[str, Any]:
    """`network`: the key in NETWORKS of what it is about; `architectures`: {name: {"fields": what is not its config's
    default, "tags": {weights: number of its preprocessing}}}; `preprocess`: those, by number; `others`: {name: what it has
    that our network has not}.
    """
    return dict(json.loads(resources.files(__package__).joinpath("architectures.json").read_text(encoding="utf-8")))


def names() -> list[str]:
    """All architectures, without the tags of their weights."""
    return list(table()["architectures"])


def other(name: str) -> str:
    """What a known network has that ours has not; empty for all others."""
    return str(table()["others"].get(name, ""))


def lookup(name: str) -> tuple[Json, Json | None]:
    """(the fields of our config that an architecture fixes, the preprocessing of its weights or None).

    A tag after a dot names weights, as timm does (vit_base_patch16_224.dino); without one they are its default's.
    Raises UserError, naming the nearest, where there is no such name.
    """
    architecture, _, tag = name.removeprefix("timm/").partition(".")
    if why := other(architecture):
        raise UserError(f"--model {name}: it has {why}, which this network has not; it cannot be converted")
    if architecture not in table()["architectures"]:
        raise UserError(f"--model {name}: there is no such network{nearest(architecture, names())}")
    entry = table()["architectures"][architecture]
    if tag and tag not in entry["tags"]:
        raise UserError(f"--model {name}: {architecture} has no weights {tag!r}{nearest(tag, list(entry['tags']))}")
    number = entry["tags"].get(tag or next(iter(entry["tags"]), ""))
    config = NETWORKS[table()["network"]].config
    defaults = {f: getattr(config(), f) for f in function_fields(config) if f not in OWN}
    preprocess = None if number is None else dict(table()["preprocess"][number])
    image = {"image": preprocess["image"][0]} if preprocess else {}  # all are square
    return defaults | entry["fields"] | image, preprocess
