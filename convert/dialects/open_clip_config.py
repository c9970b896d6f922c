"""open_clip_config.json, which OpenCLIP writes beside its weights: the image tower, and how images are prepared.

Keys and defaults are those of CLIPVisionCfg and PreprocessCfg in open_clip (model.py, transform.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vit_jax.errors import UserError

from ..layout import Facts, Json

NAME = "open_clip_config.json"
PREPARED: Json = {
    "size": 224,
    "mean": [0.48145466, 0.4578275, 0.40821073],
    "std": [0.26862954, 0.26130258, 0.27577711],
    "interpolation": "bicubic",
    "resize_mode": "shortest",
    "fill_color": 0,
}
FITS = {"shortest": "crop", "squash": "stretch", "longest": "pad"}
# Fields of the tower's class that show in no tensor, and the value with which it is the network here.
PLAIN: Json = {
    "pool_type": "tok",
    "attentional_pool": False,
    "final_ln_after_pool": False,
    "norm_kwargs": None,
    "act_kwargs": None,
}


def read_side(files: Mapping[str, Json]) -> Facts:
    """Facts from open_clip_config.json; empty where there is none."""
    config = files.get(NAME, {})
    model, prepared = config.get("model_cfg", {}), config.get("preprocess_cfg", {})
    vision = model.get("vision_cfg", {}) if isinstance(model, Mapping) else None
    if not isinstance(vision, Mapping) or not isinstance(prepared, Mapping):
        raise UserError(NAME, "its model_cfg or preprocess_cfg is no object", "restore the file")
    for key, value in PLAIN.items():
        if (told := vision.get(key)) not in (value, None, {}):
            raise UserError(NAME, f"{key} is {told!r:.60}, which the tower here lacks", "it cannot be converted")
    given = {key: value for key, value in prepared.items() if value is not None}
    images, notes = _preprocess(PREPARED | given) if given else (None, ())
    return Facts(_fields(model, vision), images, notes=notes)


def _fields(model: Mapping[str, Any], vision: Mapping[str, Any]) -> Json:
    """Config fields that the tower's sizes state; none where they are not stated."""
    if not vision:
        return {}
    width, each = vision.get("width", 768), vision.get("head_width", 64)
    heads = {"heads": width // each} if type(width) is type(each) is int and each > 0 else {}
    activation = "quick_gelu" if model.get("quick_gelu") else "gelu"
    return {"image": vision.get("image_size", 224), "activation": activation, **heads}


def _preprocess(p: Json) -> tuple[Json | None, tuple[str, ...]]:
    """(Preprocess as JSON, or None without a counterpart; notes that say why)."""
    size = p["size"] if isinstance(p["size"], list) else [p["size"]] * 2
    if str(p["resize_mode"]) not in FITS or not all(type(n) is int for n in size) or len(size) != 2:
        told = f"size {p['size']!r:.60}, resize_mode {p['resize_mode']!r:.60}"
        return None, (f"{NAME}: its preprocessing has no counterpart here ({told})",)
    return {
        "image": size,
        "channels": 3,
        "fit": FITS[p["resize_mode"]],
        "size": min(size),
        "interpolation": "bilinear" if p["interpolation"] == "bilinear" else "bicubic",
        "background": p["fill_color"],
        "mean": [p["mean"]] * 3 if isinstance(p["mean"], float) else p["mean"],
        "std": [p["std"]] * 3 if isinstance(p["std"], float) else p["std"],
    }, ()
