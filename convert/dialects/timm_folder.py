"""timm's config.json: an architecture of its registry, arguments that change it, and preprocessing.

No argument that JSON can hold states the epsilon of the norms: it comes with an architecture (1e-6, or 1e-5 in those of
CLIP), as the gate of the mlp does: packed, or apart (AIMv2's). So a folder that is written here names the architecture
that has them, and states everything else by arguments.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from typing import Any

from vit_jax.config.fields import pair
from vit_jax.config.outputs import Outputs
from vit_jax.errors import UserError
from vit_jax.models.vit_config import ViTConfig

from ..layout import Facts, Json, covered, whole, whole_size
from .architectures import name_of
from .huggingface import PROBLEMS, outputs

ACTIVATIONS = {
    "gelu": "gelu",
    "gelu_tanh": "gelu_tanh",
    "quick_gelu": "quick_gelu",
    "relu": "relu",
    "silu": "silu",
    "swish": "silu",
}
POOLS = {"cls": "token", "cls_distill": "token", "mean": "avg", "mean_all": "avg", "map": "map", "map_all": "map"}
NORMS = {"layernorm": "layer", "rmsnorm": "rms"}  # each with an epsilon of 1e-6
POSITIONS = {"learn": "learned", "none": "none", "": "none"}
PLAIN = {"image": "img_size", "patch": "patch_size", "width": "embed_dim", "depth": "depth", "heads": "num_heads"}
AIMV2 = re.compile(r"aimv2_.*")  # of timm's VisionTransformer, with the gate apart
OWN = re.compile(r"(vit_(?!.*(dinov3|rope|pe_|lingbot))|deit3?_|beit3_|eva_large_).*patch\d.*")  # others of that class
UNSEEN = ("heads", "activation", "eps", "position", "rotary", "branch_norm", "norm_kind")  # what no tensor shows
Reader = Callable[[Json, Json], Json]  # config fields from model_args and from those of an architecture
# What timm uses where a pretrained_cfg does not state it.
DEFAULTS: Json = {
    "input_size": [3, 224, 224],
    "crop_pct": 0.875,
    "crop_mode": "center",
    "interpolation": "bicubic",
    "mean": [0.485, 0.456, 0.406],
    "std": [0.229, 0.224, 0.225],
}


def _architecture(c: ViTConfig, gate_apart: bool) -> str:
    """The name of a config in timm's registry; of one that has none, a name with its class, its epsilon and its mlp."""
    if name := name_of(c, AIMV2 if gate_apart else OWN):
        return name
    if gate_apart:
        return "aimv2_large_patch14_224"
    if c.distill_token:
        return "deit_base_distilled_patch16_224"
    if c.branch_norm:
        return "vit_base_patch16_rpn_224"
    if c.gated:
        return "vit_giant_patch14_dinov2"
    return "vit_base_patch16_clip_224" if c.eps == 1e-5 else "vit_base_patch16_224"


def _of_aimv2(c: ViTConfig) -> bool:
    """Whether the norms are those of AIMv2, which no argument can state."""
    return c.norm_kind == "rms" and c.eps == 1e-5


def cannot_state(c: ViTConfig, gate_apart: bool = False) -> list[str]:
    """Clauses for a network whose epsilon or blocks timm's config.json cannot state."""
    only = {"a distillation token": c.distill_token, "a gated mlp": c.gated, "a norm in the stem": c.stem_norm}
    only |= {"RMS norms": c.norm_kind == "rms", "norms after its branches": c.branch_norm}
    reasons = [
        f"eps is {c.eps!r}, but with {name} timm's config.json can only state 1e-06"
        for name, has in only.items()
        if has and c.eps != 1e-6 and not (gate_apart and _of_aimv2(c))
    ]
    kinds = {"a gated mlp": c.gated, "norms after its branches": c.branch_norm, "a distillation token": c.distill_token}
    several = [name for name, has in kinds.items() if has]
    return reasons + ([f"no architecture of timm has {' and '.join(several)}"] if len(several) > 1 else [])


def write_side(c: ViTConfig, beside: Facts, gate_apart: bool = False) -> dict[str, Json]:
    """The config.json with which `timm.create_model("local-dir:FOLDER", pretrained=True)` builds the network -> {file
    name: JSON}.
    """
    args: Json = {
        **sizes(c),
        "mlp_ratio": ratio(c.hidden * (2 if c.gated and not gate_apart else 1), c.width),
        **blocks(c),
        "init_values": c.layer_scale,
        "act_layer": c.activation,
        "class_token": c.cls_token,
        "reg_tokens": c.registers,
        "pos_embed": "learn" if c.position == "learned" else "none",
        "no_embed_class": not (c.cls_position if c.cls_token else c.register_position),
        "pre_norm": c.pre_norm,
        "pool_include_prefix": c.pool in ("mean_all", "map_all"),
        "final_norm": c.final_norm or c.head_norm,
        "fc_norm": c.head_norm and c.pool != "cls",
    }
    return folder(c, beside, _architecture(c, gate_apart), POOLS[c.pool], args | norms(c, gate_apart))


def norms(c: ViTConfig, gate_apart: bool) -> Json:
    """The arguments that state norms, where those of the architecture are others."""
    name = next(name for name, kind in NORMS.items() if kind == c.norm_kind)
    if gate_apart and _of_aimv2(c):
        return {} if c.stem_norm else {"embed_norm_layer": None}
    args: Json = {"norm_layer": name} if gate_apart or c.norm_kind != "layer" else {}
    return args | ({"embed_norm_layer": name if c.stem_norm else None} if gate_apart or c.stem_norm else {})


def sizes(c: ViTConfig) -> Json:
    """The arguments of all of timm's classes that state sizes, but that of images."""
    return {
        "patch_size": list(pair(c.patch)),
        "in_chans": c.channels,
        "embed_dim": c.width,
        "depth": c.depth,
        "num_heads": c.heads,
    }


def blocks(c: ViTConfig) -> Json:
    """The arguments of timm's VisionTransformer that state which biases and norms its blocks have."""
    return {
        "qkv_bias": c.query_bias,
        "proj_bias": c.out_bias,
        "qk_norm": c.qk_norm,
        "scale_attn_norm": c.attention_norm,
        "scale_mlp_norm": c.mlp_norm,
    }


def ratio(hidden: int, width: int) -> float:
    """The mlp_ratio from which timm, which cuts width times it down to an integer, gets the width of a hidden layer."""
    exact = hidden / width
    return exact if int(width * exact) == hidden else (hidden + 0.5) / width


def folder(c: ViTConfig, beside: Facts, name: str, pool: str, args: Json) -> dict[str, Json]:
    """The config.json of an architecture of timm -> {file name: JSON}."""
    image = pair(whole_size(c.image, c.patch, beside))
    pretrained: Json = {
        "input_size": [c.channels, *image],
        "fixed_input_size": True,
        "pool_size": None,
        "num_classes": c.classes,
        "first_conv": "patch_embed.proj",
        "classifier": ["head", "head_dist"] if c.distill_token else "head",
    }
    out = {"architecture": name, "num_classes": c.classes, "num_features": c.width, "global_pool": pool}
    known = beside.outputs
    labels: Json = {"label_names": list(known.names)} if known.names else {}
    # timm does not read it; transformers' wrapper of timm does.
    labels |= {"problem_type": PROBLEMS[known.kind]} if c.classes and known.kind in PROBLEMS else {}
    return {
        "config.json": out
        | labels
        | {
            "model_args": {"img_size": list(image)} | args | {"global_pool": pool},
            "pretrained_cfg": pretrained | (crop(beside.preprocess) if beside.preprocess else {}),
        }
    }


def _plain_arguments(args: Json, known: Json) -> Json:
    """Config fields from model_args and, where it does not state them, from the architecture's."""
    fields: Json = {ours: known[ours] for ours in UNSEEN if ours in known}
    fields |= {ours: args[theirs] for ours, theirs in PLAIN.items() if theirs in args}
    for key, ours, values in (
        ("act_layer", "activation", ACTIVATIONS),
        ("norm_layer", "norm_kind", NORMS),
        ("pos_embed", "position", POSITIONS),
    ):
        if args.get(key) is not None:
            fields[ours] = choose_value(key, args[key], values)
    if args.get("norm_layer") is not None:
        fields["eps"] = 1e-6
    pool = _pooling(args, known)
    return fields | ({"pool": pool} if pool else {})


def read_side(files: Mapping[str, Json], arguments: Reader = _plain_arguments) -> Facts:
    """Facts from timm's config.json; empty for other files."""
    config = files.get("config.json")
    if not isinstance(config, Mapping) or not isinstance(config.get("architecture"), str):
        return Facts()
    try:
        return facts(config, arguments)
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise UserError(
            "config.json",
            f"is not as timm writes it ({error})",
            "correct it, or remove it and give the config with `fields`",
        ) from error


def facts(config: Mapping[str, Any], arguments: Reader = _plain_arguments) -> Facts:
    """Facts from a config.json of timm."""
    pretrained = config.get("pretrained_cfg", config)
    known = _architecture_fields(config["architecture"])
    fields = arguments(config.get("model_args") or {}, known)
    size = pretrained.get("input_size", [0])[1:] or known.get("image")
    fields = ({"image": size} if size else {}) | fields
    if "pool" in fields and config.get("global_pool", POOLS[fields["pool"]]) != POOLS[fields["pool"]]:
        del fields["pool"]  # the file contradicts itself: the user has to decide
    labels = config.get("label_names", pretrained.get("label_names"))
    if isinstance(labels, Mapping):
        labels = [labels[str(i)] for i in range(len(labels))]
    _check_dynamic(config.get("model_args") or {}, fields.get("image"), fields.get("patch", known.get("patch", 1)))
    preprocess, notes = (
        preprocessing(DEFAULTS | {k: v for k, v in pretrained.items() if v is not None})
        if pretrained.get("mean")
        else (None, ())
    )
    return Facts(fields, preprocess, Outputs(outputs({**config}).kind, labels or ()), notes=notes)


def _check_dynamic(args: Json, image: Any, patch: Any) -> None:
    """Raise UserError where timm pads images that patches do not divide, or refuses them: it takes any size."""
    if image is None or pair(covered(image, patch)) == pair(image):
        return
    size, part = ("x".join(map(str, pair(each))) for each in (image, covered(image, patch)))
    for name, does, remedy in (
        ("dynamic_img_pad", "pads", "it cannot be converted"),
        ("dynamic_img_size", "refuses", f"state the size of the images that it takes there, such as {part}"),
    ):
        if args.get(name):
            what = f"{name} is true, so timm {does} images of {size}, which its patches do not divide"
            raise UserError("config.json", what, remedy)


def _architecture_fields(name: str) -> Json:
    """Config fields of an architecture, {} where it is not known. Raises UserError where it cannot be converted."""
    from .architectures import lookup, names, other

    if why := other(name):
        raise UserError(
            "config.json", f"architecture {name} has {why}, which the network here lacks", "it cannot be converted"
        )
    return lookup(name)[0] if name in names() else {}


def choose_value(key: str, value: Any, known: Mapping[str, Any]) -> Any:
    """Our value for a value in model_args."""
    name = str(value).lower().replace("_", "" if key == "norm_layer" else "_")
    if name not in known:
        raise UserError(
            "config.json", f"{key} is {value!r}, but the network here has {', '.join(known)}", "it cannot be converted"
        )
    return known[name]


def _pooling(args: Json, known: Json) -> str | None:
    """Our pooling; None where the file does not state it. Raises UserError on one that no network here has."""
    theirs = args.get("global_pool", POOLS.get(known.get("pool", "")))
    every = args.get("pool_include_prefix", known["pool"] in ("mean_all", "map_all") if known else None)
    if theirs not in (None, "token", "avg", "map"):
        raise UserError(
            "config.json",
            f"global_pool is {theirs!r}, but the network here has token, avg and map",
            "it cannot be converted",
        )
    if theirs == "token":
        return "cls_distill" if known.get("pool") == "cls_distill" else "cls"
    if theirs is None or every is None:
        return None
    return {"avg": "mean", "map": "map"}[theirs] + ("_all" if every else "")


# ---------------------------------------------------------------------------------- preprocessing


def preprocessing(cfg: Json) -> tuple[Json | None, tuple[str, ...]]:
    """(Preprocess as JSON, or None where it has no counterpart; notes with the reason), of a pretrained_cfg."""
    channels, *size = cfg["input_size"]
    fill = {round(255 * v) for v in cfg["mean"]}
    square, mode = size[0] == size[1], cfg["crop_mode"] or "center"
    cut = {
        "crop_pct": cfg["crop_pct"] != 1 and (mode != "center" or not square),
        "crop_mode": mode == "border" and len(fill) > 1,
    }
    reasons = [f"{key} {cfg[key]}{'' if square else ' of an oblong image'}" for key, holds in cut.items() if holds]
    reasons += (
        [f"interpolation {cfg['interpolation']}"]
        if cfg["interpolation"] not in ("bilinear", "bicubic", "nearest")
        else []
    )
    reasons += (
        [f"mean and std for {len(cfg['mean'])} channels of {channels}"]
        if not len(cfg["mean"]) == len(cfg["std"]) == channels
        else []
    )
    if reasons:
        return None, (f"config.json: its preprocessing has no counterpart here ({'; '.join(reasons)})",)
    return {
        "image": size,
        "channels": channels,
        "fit": {"center": "crop", "squash": "stretch", "border": "pad"}[mode],
        "size": math.floor(min(size) / cfg["crop_pct"]),
        "interpolation": cfg["interpolation"],
        "background": fill.pop() if mode == "border" else 0,
        "mean": list(cfg["mean"]),
        "std": list(cfg["std"]),
    }, ()


def crop(p: Json) -> Json:
    """The part of a pretrained_cfg that states a Preprocess; for oblong images, with the nearest crop."""
    p = whole(p)
    edge = min(p["image"])
    share = edge / p["size"] if p["fit"] == "crop" and p["size"] > edge else 1.0
    while math.floor(edge / share) < p["size"] and share < 1:
        share = math.nextafter(share, 0)  # until timm, which divides by it and rounds down, gets the same size
    mode = {"crop": "center", "stretch": "squash", "pad": "border"}[p["fit"]]
    return {
        "mean": p["mean"],
        "std": p["std"],
        "interpolation": p["interpolation"],
        "crop_pct": share,
        "crop_mode": mode,
    }
