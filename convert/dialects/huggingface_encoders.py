"""What the layouts of Hugging Face's vision encoders share: names with and without a prefix, and the JSON files beside.

A class that is a tower alone has its names without a prefix; a class with more than the tower (a classifier) has those
of the tower behind one. A tower without a head may lie under either.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

from vit_jax.errors import UserError
from vit_jax.models.vit_config import ViTConfig

from ..layout import Facts, Json, Layout, Names, declared_fields, length, statement
from ..rules import CARRIED, Row
from .huggingface import labels, other_class, outputs, whole_images
from .huggingface_images import preprocess, processor


def below(bodies: Sequence[str], solve: Callable[[str, Names], Any], otherwise: Any, *names: str) -> Any:
    """A solver: solve(full name, names) for the first tensor there is of these names under one of the prefixes."""

    def solver(given: Names) -> Any:
        return next((solve(b + name, given) for name in names for b in bodies if b + name in given), otherwise)

    return solver


def axis(bodies: Sequence[str], number: int, *names: str, otherwise: Any = None) -> Any:
    """A solver: the length of an axis of the first tensor there is of these names under one of the prefixes."""
    return below(bodies, lambda full, given: length(full, number)(given), otherwise, *names)


def there(bodies: Sequence[str], name: str) -> Any:
    """A solver: whether there is a tensor of this name under one of the prefixes."""
    return below(bodies, lambda full, given: True, False, name)


def kernel(bodies: Sequence[str], name: str) -> Any:
    """A solver: the rows and columns of a patch, from the convolution that projects it."""
    return below(bodies, lambda full, given: list(given[full][2:]) if len(given[full]) == 4 else None, None, name)


def either(rows: Sequence[Row], bodies: Sequence[str]) -> list[Row]:
    """Rows of tensors under the first prefix, which files may have under another one, too."""
    first, *others = bodies
    return [
        r
        if r.ours[:1] and r.ours[0].startswith(CARRIED)
        else replace(r, optional=frozenset(b + r.theirs[0].removeprefix(first) for b in others))
        for r in rows
    ]


# -------------------------------------------------------------------------------------- side files


def read_side_files(layout: Layout, files: Mapping[str, Json], config: Json, families: Collection[str]) -> Facts:
    """Facts from the files beside an encoder."""
    if config and (model := config.get("model_type")) not in families:
        raise other_class(model, families)
    images, notes = preprocess(files)
    known = outputs(files.get("config.json", {}))
    return Facts(declared_fields(layout, config) if config else {}, images, known, notes=notes)


def write_side_files(layout: Layout, c: ViTConfig, facts: Facts, architecture: str, family: str) -> dict[str, Json]:
    """config.json of a class, and preprocessor_config.json where transformers has such a preprocessing."""
    model = {"architectures": [architecture], "model_type": family, **statement(layout, whole_images(c, facts))}
    return side_files({**model, **labels(c, facts)}, facts)


def tower(files: Mapping[str, Json], whole: str, family: str) -> Json:
    """The config of the image tower in config.json, which may be that of a model of two towers.

    Or that of any model which states a tower of the class `family` as its `vision_config`: LLaVA and its kin.
    `vision_config_dict`, which older files of CLIP have too, goes before `vision_config`, as in the library.
    """
    config = files.get("config.json", {})
    if config.get("model_type") != whole:
        inner = config.get("vision_config")
        return dict(inner) if isinstance(inner, Mapping) and inner.get("model_type") == family else config
    inner = config.get("vision_config_dict") or config.get("vision_config") or {}
    if not isinstance(inner, Mapping):
        raise UserError("config.json", f"vision_config is {inner!r}, which is no object", "restore the file")
    return {"model_type": family, **inner}


def around(layout: Layout, c: ViTConfig, facts: Facts, architecture: str, families: tuple[str, str]) -> dict[str, Json]:
    """As `write_side_files`, of a class whose config has the tower's inside -> {file name: JSON}."""
    whole, family = families
    inner = {"model_type": family, **statement(layout, whole_images(c, facts))}
    model = {"architectures": [architecture], "model_type": whole, "vision_config": inner}
    return side_files({**model, **labels(c, facts)}, facts)


def side_files(config: Json, facts: Facts) -> dict[str, Json]:
    """The files of a config.json, and preprocessor_config.json where transformers has such a preprocessing."""
    images = processor(facts.preprocess) if facts.preprocess else None
    return {"config.json": config} | ({"preprocessor_config.json": images} if images else {})
