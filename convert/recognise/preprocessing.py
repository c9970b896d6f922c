"""What can be said of a network's images and classes, by whoever says it: a command's flags, its file, its library."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from vit_jax.config import ModelConfig, network_of, pixels
from vit_jax.config.fields import are_texts
from vit_jax.config.images import FITS, KERNELS
from vit_jax.errors import UserError

from ..layout import Facts, Json

STATISTICS = ("mean", "std", "fit", "size", "interpolation", "background")  # of preprocessing: --set names them, too
DEFAULTS = {"fit": "stretch", "interpolation": "bicubic"}  # where only mean and std are said
SMALLEST, LARGEST = (
    1e-6,
    1e6,
)  # of a deviation and of a mean: beyond, a float32 pixel that is normalised is nothing or infinite
RESIZED = 16  # times an image's longer side: more is no side to crop from, it is somebody's memory


def requirements(h: int, w: int, n: int) -> dict[str, tuple[Callable[[Any], bool], str]]:
    """{field of a preprocessing: (whether a value of it can be that of images of this shape, what it has to be)}."""
    longest, numbers = RESIZED * max(h, w), f"{n} numbers, one a channel, such as {','.join(['0.5'] * n)}"
    return {
        "image": (
            lambda v: _numbers(v, 2) and list(v) == [h, w] and all(type(each) is int for each in v),
            f"{h}x{w} pixels, which the network takes",
        ),
        "channels": (lambda v: type(v) is int and v == n, f"{n}, which the network takes"),
        "fit": (lambda v: v in FITS, f"one of {', '.join(FITS)}"),
        "interpolation": (lambda v: v in KERNELS, f"one of {', '.join(KERNELS)}"),
        "size": (lambda v: type(v) is int and 0 <= v <= longest, f"a whole number of pixels, at most {longest}"),
        "background": (lambda v: type(v) is int and 0 <= v <= 255, "a grey level from 0 to 255"),
        "mean": (lambda v: _numbers(v, n) and all(abs(each) <= LARGEST for each in v), numbers),
        "std": (lambda v: _numbers(v, n) and all(SMALLEST <= each <= LARGEST for each in v), f"{numbers}, all above 0"),
    }


def _numbers(value: Any, count: int) -> bool:
    return isinstance(value, list | tuple) and len(value) == count and all(type(each) in (int, float) for each in value)


def wrong(said: Any, shape: tuple[int, int, int]) -> tuple[str, str]:
    """(the first field of a preprocessing that cannot be that of images of this shape, what it has to be); or empty texts."""
    fields = requirements(*shape)
    if not isinstance(said, Mapping) or said.keys() != fields.keys():
        return "preprocess", f"an object of {', '.join(fields)}"
    return next(((name, must) for name, (right, must) in fields.items() if not right(said[name])), ("", ""))


def fitting(facts: Facts, c: ModelConfig) -> Facts:
    """The facts, without preprocessing and class names that cannot be this network's: a note says which, and why."""
    shape, notes = pixels(c), list(facts.notes)
    classes = getattr(c, "classes", 0) if "classes" in network_of(c).from_data else 0
    images, names = facts.preprocess if shape else None, facts.class_names if classes else None
    if shape and images is not None:
        field, must = wrong(images, shape)
        if field:
            said = f"{field} {_short(images[field])}" if field in requirements(*shape) else _short(images)
            images = None
            notes.append(f"the preprocessing stated beside the weights is left out: {said} is not {must}")
    if names is not None and not (are_texts(names) and len(names) == classes):
        notes.append(
            f"the class names stated beside the weights are left out: {_short(names)} is no list of {classes} texts, one a class"
        )
        names = None
    return replace(facts, preprocess=images, class_names=names, notes=tuple(notes))


def unprepared(path: str, facts: Facts, otherwise: str) -> UserError:
    """What to say where a target is to carry how images are prepared and nobody said it, or not as ours can; `otherwise` is another way."""
    why = next((note for note in facts.notes if "preprocessing" in note), "")
    way = "--set mean=... --set std=... (a value a channel, of pixels in 0..1; images are then stretched, unless --set fit=... says otherwise)"
    what = why or "says nothing of the images' statistics"
    return UserError(
        f"{path}: {what}, and the target is to carry how images are prepared; give {way}, {'' if why else 'or --model NAME, '}or {otherwise}"
    )


def assumed(sets: Mapping[str, Any], stated: Json | None) -> list[str]:
    """What `statistics` takes by default, a sentence; none where all is said."""
    blank = {name: value for name, value in DEFAULTS.items() if name not in sets}
    if stated or "mean" not in sets or not blank:
        return []
    said = ", ".join(f"{name} {value}" for name, value in blank.items())
    return [
        f"nothing says how images are fitted, so it is written as {said}: {' '.join(f'--set {name}=...' for name in blank)} says otherwise"
    ]


def statistics(c: ModelConfig, sets: Mapping[str, Any], stated: Json | None) -> Json | None:
    """Preprocessing as stated, with what --set says of it over that; None where neither does. Raises UserError."""
    said = {k: sets[k] for k in STATISTICS if k in sets}
    shape = pixels(c)
    if shape is None or not (said or stated):
        return None
    h, w, channels = shape
    if not stated and not {"mean", "std"} <= said.keys():
        raise UserError(
            "--set mean and --set std belong together: give both, a value a channel, such as --set mean=0.5,0.5,0.5"
        )
    for name in {"mean", "std"} & said.keys():
        values = said[name] if isinstance(said[name], list | tuple) else [said[name]]
        said[name] = [*values] * (channels if len(values) == 1 else 1)
    out = {
        "image": [h, w],
        "channels": channels,
        "size": min(h, w),
        "background": 0,
        **DEFAULTS,
        **(stated or {}),
        **said,
    }
    field, must = wrong(out, shape)
    if field:
        raise UserError(f"--set {field}={_short(sets.get(field, out.get(field)))}: give {must}")
    return out | {name: [float(each) for each in out[name]] for name in ("mean", "std")}


def _short(value: Any) -> str:
    """A value as a sentence can hold it."""
    text = value if isinstance(value, str) else repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
