"""preprocessor_config.json of Hugging Face transformers, to the preprocessing of vit_jax and from it."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

from ..layout import Json, whole

RESAMPLE = {0: "nearest", 2: "bilinear", 3: "bicubic"}  # Pillow's numbers
# The values that a processor uses where its file has none, as far as all versions of transformers agree on them.
EVERY: Json = {"do_resize": True, "do_rescale": True, "rescale_factor": 1 / 255, "do_normalize": True}
DEFAULTS: dict[str, Json] = {
    "ViT": {"do_center_crop": False, "size": 224, "resample": 2, "image_mean": [0.5] * 3, "image_std": [0.5] * 3},
    "DeiT": {"do_center_crop": True, "size": 256, "crop_size": 224, "resample": 3},
    "Siglip": {
        "do_center_crop": False, "size": {"height": 224, "width": 224}, "resample": 3,
        "image_mean": [0.5] * 3, "image_std": [0.5] * 3,
    },
    "DINOv3ViT": {
        "do_center_crop": False, "size": {"height": 224, "width": 224}, "resample": 2,
        "image_mean": [0.485, 0.456, 0.406], "image_std": [0.229, 0.224, 0.225],
    },
    "Siglip2": {
        "patch_size": 16, "max_num_patches": 256, "resample": 2, "image_mean": [0.5] * 3, "image_std": [0.5] * 3,
    },
    "CLIP": {"do_center_crop": True, "size": {"shortest_edge": 224}, "crop_size": 224, "resample": 3},
}  # fmt: skip
SQUARE = ("ViT", "DeiT")  # to which a bare number is the side of a square; to others, the shorter side
NAFLEX = (
    "its class keeps the proportions of a picture, and here it is stretched to a square: the same for square pictures"
)
FLOATS = "its class resizes numbers between 0 and 1, and here bytes are resized: pixels differ by up to 1/255"
NOTES = {"DINOv3ViT": (FLOATS,), "Siglip2": (NAFLEX,)}
BACKGROUND = 255  # transformers has no rule for transparent pixels: the default of vit_jax


def preprocess(files: Mapping[str, Any]) -> tuple[Json | None, tuple[str, ...]]:
    """The preprocessing that the files beside weights state. Returns (Preprocess as JSON, or None where there is none
    or it has no counterpart; notes on differences, a sentence each).

    Of transformers 5 it may be a part of processor_config.json, which then goes first, as in the library.
    """
    whole = files.get("processor_config.json", {})
    name, given = "processor_config.json", whole.get("image_processor")
    if given is None:
        name, given = "preprocessor_config.json", files.get("preprocessor_config.json")
    if given is None:
        return None, ()
    try:
        steps, notes = _read_processor(given)
    except (AttributeError, KeyError, TypeError, ValueError, ArithmeticError) as error:
        missing = f"it does not state {error}" if isinstance(error, KeyError) else str(error)
        steps, notes = None, (f"its preprocessing has no counterpart here ({missing})",)
    return steps, tuple(f"{name}: {note}" for note in notes)


def _read_processor(given: Mapping[str, Any]) -> tuple[Json, tuple[str, ...]]:
    """The same, of the object that states it; raises KeyError, TypeError and so on where it has no counterpart."""
    processor_class = re.sub(
        r"(ImageProcessor(Fast|Pil)?|FeatureExtractor)$",
        "",
        str(given.get("image_processor_type") or given.get("feature_extractor_type") or ""),
    )
    p = {**EVERY, **DEFAULTS.get(processor_class, {}), **given}
    if processor_class == "Siglip2":
        p |= _naflex(p)
    steps, notes = _steps(p, shortest=processor_class not in SQUARE)
    return steps, (*notes, *NOTES.get(processor_class, ()))


def _naflex(p: Json) -> Json:
    """The steps that make of a square picture what the processor of SigLIP 2 makes: the most patches of a square."""
    for name in ("max_num_patches", "patch_size"):
        if type(p[name]) is not int or p[name] < 1:
            raise ValueError(f"{name} {p[name]!r}")
    side = math.isqrt(p["max_num_patches"]) * p["patch_size"]
    return {"do_center_crop": False, "size": {"height": side, "width": side}}


def _steps(p: Json, shortest: bool) -> tuple[Json, tuple[str, ...]]:
    """The same; raises KeyError, TypeError, ValueError or ArithmeticError where a step has no counterpart."""
    for step in ("do_resize", "do_center_crop", "do_rescale", "do_normalize"):
        if not isinstance(p[step], bool | None):  # Python would take the string "false" for true
            raise TypeError(f"{step} {p[step]!r}")
    if not p["do_resize"] or p["resample"] not in RESAMPLE:
        raise ValueError(f"do_resize {p['do_resize']}, resample {p['resample']}")
    scale = _size(p["size"], shortest)
    image = _size(p["crop_size"], False) if p["do_center_crop"] else scale
    notes = []
    if isinstance(image, int):
        raise ValueError(f"size {p['size']} without a crop")
    edge = scale if isinstance(scale, int) else min(scale)
    if scale == image:
        fit = "stretch"
    elif edge >= max(image) and scale in (edge, (edge, edge)):
        fit = "crop"
        if scale != edge:
            notes.append(
                f"it stretches to {edge} x {edge} before it crops, and here the shorter side "
                f"becomes {edge}: the same for square images"
            )
    else:
        raise ValueError(f"size {p['size']}, crop_size {p['crop_size']}")
    factor = p["rescale_factor"] * 255 if p["do_rescale"] else 255.0
    factor = 1.0 if abs(factor - 1) < 1e-6 else factor  # 1 / 255 is rounded in the file
    mean, std = (p["image_mean"], p["image_std"]) if p["do_normalize"] else ([0.0] * 3, [1.0] * 3)
    steps = {
        "image": list(image),
        "channels": len(mean),
        "fit": fit,
        "size": edge,
        "interpolation": RESAMPLE[p["resample"]],
        "background": BACKGROUND,
        "mean": [m / factor for m in mean],
        "std": [s / factor for s in std],
    }
    return steps, tuple(notes)


def _size(value: Any, shortest: bool) -> int | tuple[int, int]:
    """(height, width), or the length of the shorter side: `shortest` says what a bare number means to the processor."""
    if isinstance(value, int):
        return value if shortest else (value, value)
    if set(value) == {"shortest_edge"}:
        return int(value["shortest_edge"])
    return int(value["height"]), int(value["width"])


def processor(p: Json) -> Json | None:
    """The preprocessor_config.json of a Preprocess as JSON; None where transformers cannot state it (padding)."""
    p = whole(p)
    (h, w), numbers = p["image"], {name: number for number, name in RESAMPLE.items()}
    edge = max(p["size"], h) if h == w else p["size"]  # a square crop has to be covered
    common = {
        "do_resize": True,
        "resample": numbers[p["interpolation"]],
        "do_rescale": True,
        "rescale_factor": 1 / 255,
        "do_normalize": True,
        "image_mean": list(p["mean"]),
        "image_std": list(p["std"]),
        "do_convert_rgb": p["channels"] == 3,
    }
    box = {"height": h, "width": w}
    if p["fit"] == "stretch":
        return {"image_processor_type": "ViTImageProcessor", **common, "size": box}
    if p["fit"] == "crop" and edge >= max(h, w):
        return {
            "image_processor_type": "BitImageProcessor",
            **common,
            "size": {"shortest_edge": edge},
            "do_center_crop": True,
            "crop_size": box,
        }
    return None


def naflex_processor(p: Json, patch: int) -> Json | None:
    """The preprocessor_config.json of SigLIP 2, None where its processor makes something else of a square picture."""
    (h, w), made = p["image"], processor(p)
    if not made or "crop_size" in made or h != w or "trim" in p:
        return None
    del made["size"]
    own = {"image_processor_type": "Siglip2ImageProcessor", "patch_size": patch}
    return made | own | {"max_num_patches": (h // patch) ** 2}
