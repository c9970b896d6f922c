"""How a network's images are prepared and its classes named: checked against the network, and set by flags."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from vit_jax.config.dotted import replace_fields
from vit_jax.config.fields import are_texts
from vit_jax.config.network import NetworkConfig
from vit_jax.errors import UserError
from vit_jax.tasks.image_spec import LARGEST_SIZE, preprocess_fault

from ..layout import Facts, Json
from .outputs import count
from .sizes import patch_of, trim_of, trimmed

SETTABLE = ("mean", "std", "fit", "size", "interpolation", "background")  # fields of preprocessing that --set gives
DEFAULTS = {"fit": "stretch", "interpolation": "bicubic"}  # where only mean and std are given
SCALED = 16  # `size` is at most this many times an image's longer side: more takes memory and shows no more


def fitting(facts: Facts, c: NetworkConfig, any_size: bool = False) -> Facts:
    """The facts without preprocessing and class names that cannot be this network's."""
    shape, notes = c.pixels(), list(facts.notes)
    classes, outputs = count(c), facts.outputs
    images, names = facts.preprocess if shape else None, outputs.names if classes else ()
    images = trimmed(c, images, any_size) if isinstance(images, Mapping) else images
    if shape and images is not None:
        shape, why = _taken_shape(images, c, any_size)
        field, must = _fault(images, shape)
        if field:
            value = _short(images) if field == "preprocess" else f"{field} {_short(images[field])}"
            told = why if field == "image" and why else f"{value} is not {must}"
            notes.append(f"the preprocessing given beside the weights is left out: {told}")
            images = None
    if names and not (isinstance(names, list | tuple) and are_texts([*names]) and len(names) == classes):
        left_out = "the class names given beside the weights are left out"
        notes.append(f"{left_out}: {_short(names)} is no list of {classes} texts, one a class")
        names = ()
    return replace(facts, preprocess=images, outputs=replace(outputs, names=tuple(names)), notes=tuple(notes))


def _taken_shape(images: Any, c: NetworkConfig, any_size: bool) -> tuple[tuple[int, int, int], str]:
    """(the shape (h, w, C) that a preprocessing has to make for a network, why not of the preprocessing's own size).

    It is the network's own shape or, with `any_size`, one of the preprocessing's size.
    """
    h, w, channels = c.pixels() or (0, 0, 0)
    size = images.get("image") if any_size and isinstance(images, Mapping) else None
    if not (isinstance(size, list | tuple) and len(size) == 2 and all(type(n) is int for n in size)):
        return (h, w, channels), ""
    if max(size) > max(LARGEST_SIZE, h, w):
        return (h, w, channels), f"image {_short(list(size))} is larger than {LARGEST_SIZE} pixels"
    try:
        replace_fields(c, {"image": tuple(size)}).check()
    except UserError as error:  # its patch does not divide that size
        return (h, w, channels), error.fault
    return (*size, channels), ""


UNSTATED = "does not state the mean and std of its images"
STATED_BY = (
    "`fields mean=... std=...` (one value a channel, of pixels in 0..1; images are stretched unless `fields fit=...`)"
)


def missing_preprocessing(path: str, facts: Facts) -> UserError:
    """The error where a run has to state how images are prepared, and the source does not."""
    why = _note_unused(facts)
    ways = STATED_BY if why else f"{STATED_BY}, or `model NAME`"
    needs = "and a run has to state how images are prepared"
    return UserError(path, f"{why or UNSTATED}, {needs}", f"give {ways}, or write FILE.safetensors")


def unprepared(path: str, facts: Facts) -> UserError:
    """The error where a program is to prepare pixels itself, and the source does not state how."""
    why = _note_unused(facts) or UNSTATED
    needs = f"{why}, by which a program prepares pixels"
    ways = f"give {STATED_BY}, or let it take images that are normalised already, with "
    return UserError(path, needs, f"{ways}`takes images`")


def left_out(facts: Facts) -> str:
    """A sentence where a target is written without stating how images are prepared, as the source does not."""
    why = "" if _note_unused(facts) else f": the source {UNSTATED}"  # another note says why it is not used
    return f"no preprocessing is written{why}; its library may then assume one, so state it with {STATED_BY}"


def _note_unused(facts: Facts) -> str:
    """The note that says why the preprocessing that a source states is not used; empty where it states none."""
    return next((note for note in facts.notes if "preprocessing" in note), "")


def note_defaults(sets: Mapping[str, Any], stated: Json | None) -> list[str]:
    """The defaults that `preprocessing` takes."""
    defaults = {name: value for name, value in DEFAULTS.items() if name not in sets}
    if stated or "mean" not in sets or not defaults:
        return []
    written = ", ".join(f"{name} {value}" for name, value in defaults.items())
    options = f"`fields {' '.join(f'{name}=...' for name in defaults)}`"
    return [f"the source does not state how images are fitted, so {written} is written; change it with {options}"]


def preprocessing(
    c: NetworkConfig, sets: Mapping[str, Any], stated: Json | None, any_size: bool = False, whole: Any = None
) -> Json | None:
    """The preprocessing that a source states, with the fields of --set over it. JSON; None where there is neither."""
    given = {k: sets[k] for k in SETTABLE if k in sets}
    if c.pixels() is None or not (given or stated):
        return None
    shape, _ = _taken_shape(stated, c, any_size)
    h, w, channels = shape
    if not stated and not {"mean", "std"} <= given.keys():
        raise UserError(
            "mean and std belong together",
            "give both, a value a channel, with commas: `fields mean=... std=...`",
        )
    for name in {"mean", "std"} & given.keys():  # one number is that of every channel
        values = given[name] if isinstance(given[name], list | tuple) else [given[name]]
        given[name] = [*values] * (channels if len(values) == 1 else 1)
    plain = {"image": [h, w], "channels": channels, "size": min(h, w), "background": 0, **DEFAULTS}
    if any(trim := trim_of((h, w), patch_of(c) or 1, whole)):
        plain |= {"trim": list(trim), "size": min(h + trim[0], w + trim[1])}
    out = {**(stated or plain), **given}
    field, must = _fault(out, shape)
    if field:
        raise UserError(f"fields {field}={_short(sets.get(field, out.get(field)))}", f"give {must}")
    return out | {name: [float(each) for each in out[name]] for name in ("mean", "std")}


def _fault(preprocess: Any, shape: tuple[int, int, int]) -> tuple[str, str]:
    return preprocess_fault(preprocess, shape, SCALED * max(shape[:2]))


def _short(value: Any) -> str:
    """A value, cut so that a sentence can hold it."""
    text = value if isinstance(value, str) else repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
