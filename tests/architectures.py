"""The table of public names, made from the libraries that have them.

Run `python -m tests.architectures > convert/dialects/architectures.json`.
Each network is built without memory (on torch's meta device) and its config read off its modules.
"""

from __future__ import annotations

import dataclasses
import importlib
import json
from collections.abc import Iterable, Iterator
from importlib import metadata
from typing import Any

from convert.dialects.architectures import NOT_FIXED
from convert.dialects.timm_folder import DEFAULTS, preprocessing
from tests.parity.libraries import load
from vit_jax.models.vit_config import ViTConfig

NETWORK = "vit"  # the row that the table is about
Json = dict[str, Any]
Entry = tuple[
    Json, dict[str, Json | None]
]  # (what is not ViTConfig's default, {tag of weights: preprocessing}), the default's tag first
ACTIVATIONS = {"GELU": "gelu", "GELUTanh": "gelu_tanh", "QuickGELU": "quick_gelu", "ReLU": "relu", "SiLU": "silu"}
# Torch hub's names of networks whose tensors are timm's: (torch hub's name, timm's architecture, weights, differences).
# DINOv2's own class token keeps its position where there are registers.
REGISTERS = {"cls_position": True, "register_position": False}
HUB = [(f"dinov2_vit{s[0]}14", f"vit_{s}_patch14_dinov2", "lvd142m", {}) for s in ("small", "base", "large", "giant")]
HUB += [
    (f"dinov2_vit{s[0]}14_reg", f"vit_{s}_patch14_reg4_dinov2", "lvd142m", REGISTERS)
    for s in ("small", "base", "large", "giant")
]
HUB += [(f"dino_vit{s[0]}{p}", f"vit_{s}_patch{p}_224", "dino", {}) for s in ("small", "base") for p in (16, 8)]
# OpenAI's names of CLIP's image towers.
HUB += [
    (f"ViT-{n}", f"vit_{t}_clip_quickgelu_{size}", "openai", {})
    for n, t, size in (
        ("B/32", "base_patch32", 224),
        ("B/16", "base_patch16", 224),
        ("L/14", "large_patch14", 224),
        ("L/14@336px", "large_patch14", 336),
    )
]


# -------------------------------------------------------------------------------------------- timm


MODULES = (
    "vision_transformer",
    "deit",
    "vision_transformer_hybrid",
    "vision_transformer_relpos",
    "eva",
    "beit",
)  # timm's, with ViTs in them


def built(names: Iterable[str] = ()) -> Iterator[tuple[str, Any, str]]:
    """(name, network without memory, what it has that ours has not, or nothing) of timm's Vision Transformers."""
    timm = load("timm")
    for name in names or [name for module in MODULES for name in timm.list_models(module=module)]:
        model = timm.create_model(name, device="meta")
        yield name, model, strange(model)


def strange(m: Any) -> str:
    """What a network of timm's has that ours has not; empty where it is plain."""
    kind, block = type(m).__name__, m.blocks[0] if hasattr(m, "blocks") else None
    if kind == "Eva":
        grouped = any(getattr(each.attn, "num_kv_groups", 1) > 1 for each in m.blocks)
        alone = getattr(block, "gamma_1", None) is not None and block.gamma_2 is None
        return "grouped keys and values" if grouped else "layer scale on attention alone" if alone else ""
    if kind in ("Beit", "VisionTransformerRelPos"):
        return "relative positions"
    if kind not in ("VisionTransformer", "VisionTransformerDistilled") or block is None:
        return f"the form of timm's {kind}"
    answers = {
        "a convolutional stem": type(m.patch_embed).__name__ != "PatchEmbed",
        "attention and mlp side by side": "Parallel" in type(block).__name__,
        "differential attention": type(getattr(block, "attn", None)).__name__ == "DiffAttention",
    }
    return next((answer for answer, holds in answers.items() if holds), "")


def config(m: Any) -> ViTConfig:
    """Our config of a network of timm's, read off its modules."""
    if type(m).__name__ == "Eva":
        return eva(m)
    block, there = m.blocks[0], lambda module: type(module).__name__ != "Identity"
    distilled, fc_norm, token = hasattr(m, "dist_token"), there(m.fc_norm), m.global_pool == "token"
    pool = (
        "cls_distill"
        if distilled
        else {"token": "cls", "map": "map", "avg": "mean"}[m.global_pool]
        + ("_all" if m.pool_include_prefix and not token else "")
    )
    gated, biased = type(block.mlp).__name__ in ("GluMlp", "SwiGLU"), block.attn.qkv.bias is not None
    patch = tuple(m.patch_embed.patch_size)
    image = tuple(
        n * p for n, p in zip(m.patch_embed.grid_size, patch, strict=True)
    )  # a convolution leaves pixels beyond out
    return ViTConfig(
        image=image,
        patch=patch,
        channels=m.in_chans,
        classes=m.num_classes,
        width=m.embed_dim,
        depth=len(m.blocks),
        heads=block.attn.num_heads,
        hidden=block.mlp.fc2.in_features,
        stem_bias=m.patch_embed.proj.bias is not None,
        stem_norm=there(m.patch_embed.norm),
        cls_token=m.cls_token is not None,
        distill_token=distilled,
        registers=m.num_reg_tokens,
        position="none" if m.pos_embed is None else "learned",
        cls_position=not m.no_embed_class,
        register_position=not m.no_embed_class,
        pre_norm=there(m.norm_pre),
        norm_kind={"LayerNorm": "layer", "RmsNorm": "rms"}[type(block.norm1).__name__],
        branch_norm=type(block).__name__ == "ResPostBlock",
        attention_norm=there(block.attn.norm),
        mlp_norm=there(block.mlp.norm),
        final_norm=there(m.norm) or (token and fc_norm),
        head_norm=fc_norm and not token,
        eps=block.norm1.eps,
        layer_scale=float(hasattr(block, "ls1") and there(block.ls1)),
        query_bias=biased,
        key_bias=biased,
        value_bias=biased,
        out_bias=block.attn.proj.bias is not None,
        mlp_bias=block.mlp.fc2.bias is not None,
        qk_norm=there(block.attn.q_norm),
        activation=ACTIVATIONS[type(block.mlp.act).__name__],
        gated=gated,
        pool=pool,
        distill_head=distilled,
    ).normal()


def eva(m: Any) -> ViTConfig:
    """Our config of a network of timm's Eva class."""
    block, there = m.blocks[0], lambda module: type(module).__name__ != "Identity"
    attention, mlp, pooling = block.attn, block.mlp, m.attn_pool
    biased = {name: getattr(attention, f"{name}_bias", None) is not None for name in "qv"}
    if attention.qkv is None:
        biased = {name: getattr(attention, f"{name}_proj").bias is not None for name in "qkv"}
    elif attention.qkv.bias is not None:
        biased = dict.fromkeys("qkv", True)
    activation = ACTIVATIONS[type(mlp.act).__name__]
    return ViTConfig(
        image=tuple(n * p for n, p in zip(m.patch_embed.grid_size, m.patch_embed.patch_size, strict=True)),
        patch=tuple(m.patch_embed.patch_size),
        channels=m.in_chans,
        classes=m.num_classes,
        width=m.embed_dim,
        depth=len(m.blocks),
        heads=attention.num_heads,
        hidden=mlp.fc2.in_features,
        stem_bias=m.patch_embed.proj.bias is not None,
        cls_token=m.cls_token is not None,
        registers=0 if m.reg_token is None else m.reg_token.shape[1],
        position="none" if m.pos_embed is None else "learned",
        cls_position=not m.no_embed_class,
        register_position=not m.no_embed_class,
        pre_norm=there(m.norm_pre),
        branch_norm=type(block).__name__ == "EvaBlockPostNorm",
        final_norm=there(m.norm),
        head_norm=there(m.fc_norm),
        eps=block.norm1.eps,
        layer_scale=float(getattr(block, "gamma_1", None) is not None),
        query_bias=biased["q"],
        key_bias=biased.get("k", False),
        value_bias=biased["v"],
        qk_norm=there(attention.q_norm),
        attention_norm=there(attention.norm),
        mlp_norm=there(mlp.norm),
        activation=activation,
        gated=type(mlp).__name__ in ("GluMlp", "SwiGLU"),
        pool={"token": "cls", "avg": "mean", "map": "map_all"}[m.global_pool],
        pool_heads=pooling.num_heads if pooling else 0,
        pool_hidden=pooling.mlp.fc1.out_features if pooling else 0,
        **(rotary(m.rope) if m.rope is not None else {}),
    ).normal()


def rotary(rope: Any) -> Json:
    """The fields of rotary positions, read off timm's module."""
    kind = {"Cat": "axial", "Mixed": "mixed", "DinoV3": "axial"}[type(rope).__name__.removeprefix("RotaryEmbedding")]
    centres = hasattr(rope, "periods")
    return {
        "rotary": kind,
        "rotary_pairs": "halves" if getattr(rope, "rotate_half", False) else "neighbours",
        "rotary_places": "centres" if centres else "indices",
        "rotary_first": {"ij": "rows", "xy": "columns"}[rope.grid_indexing],
        "rotary_base": float(rope.temperature),
        "rotary_offset": float(getattr(rope, "grid_offset", 0.0)),
        "rotary_grid": getattr(rope, "ref_feat_shape", None) or 0,
    }


def timm_entries(names: Iterable[str] = ()) -> Iterator[tuple[str, Entry | str]]:
    """Of each of these names, or of all; of what is not plain, what it has that our network has not."""
    models = load("timm").models
    for name, model, why in built(names):
        if why:
            yield name, why
            continue
        default = models.get_pretrained_cfg(name)
        tagged = (
            {default.tag or "": default}
            | {cfg.tag: cfg for cfg in models.get_arch_pretrained_cfgs(name).values() if cfg.tag}
            if default
            else {}
        )
        yield (
            name,
            (
                differing(config(model)),
                {tag: preprocessing(DEFAULTS | dataclasses.asdict(cfg))[0] for tag, cfg in tagged.items()},
            ),
        )


def differing(c: ViTConfig) -> Json:
    """The fields of a config that decide the function, are no user's own and are not ViTConfig's default."""
    return {n: v for n in c.function_fields() if n not in NOT_FIXED and (v := getattr(c, n)) != getattr(ViTConfig(), n)}


# ------------------------------------------------------------------------------------- torchvision


def torchvision_entries() -> Iterator[tuple[str, Entry]]:
    """Its five Vision Transformers."""
    models = load("torchvision").models
    torch = importlib.import_module("torch")
    for name in ("vit_b_16", "vit_b_32", "vit_l_16", "vit_l_32", "vit_h_14"):
        with torch.device("meta"):
            m = models.get_model(name)
        c = ViTConfig(
            image=m.image_size,
            patch=m.patch_size,
            width=m.hidden_dim,
            depth=len(m.encoder.layers),
            heads=m.encoder.layers[0].num_heads,
            hidden=m.mlp_dim,
            eps=m.encoder.ln.eps,
        )
        tags = {}
        for weights in models.get_model_weights(name):
            t = weights.transforms()
            (edge,), (size,) = t.resize_size, t.crop_size
            tags[weights.name] = {
                "image": [size, size],
                "channels": 3,
                "fit": "crop",
                "size": edge,
                "interpolation": t.interpolation.value,
                "background": 0,
                "mean": list(t.mean),
                "std": list(t.std),
            }
        yield name, (differing(c.normal()), tags)


# ------------------------------------------------------------------------------------------- table


def table() -> Json:
    """All of it, as architectures.json has it."""
    listed = dict(timm_entries())
    found = {name: entry for name, entry in listed.items() if not isinstance(entry, str)}
    others = {name: entry for name, entry in sorted(listed.items()) if isinstance(entry, str)}
    for name, base, tag, changes in HUB:
        fields, tags = found[base]
        found[name] = ({k: v for k, v in (fields | changes).items() if v != getattr(ViTConfig(), k)}, {"": tags[tag]})
    found |= dict(torchvision_entries())
    preprocess: list[Json | None] = []
    entries = {}
    for name, (fields, tags) in sorted(found.items()):
        preprocess += [
            p
            for i, p in enumerate(tags.values())
            if p is not None and p not in preprocess and p not in list(tags.values())[:i]
        ]
        entries[name] = {
            "fields": fields,
            "tags": {tag: None if p is None else preprocess.index(p) for tag, p in tags.items()},
        }
    versions = {library: metadata.version(library) for library in ("timm", "torchvision")}
    return {
        "network": NETWORK,
        "made_from": versions,
        "preprocess": preprocess,
        "architectures": entries,
        "others": others,
    }


def text(made: Json) -> str:
    """The table as JSON, a line for each entry."""
    preprocess = ",\n".join(f"  {json.dumps(p)}" for p in made["preprocess"])
    entries, others = (
        ",\n".join(f"  {json.dumps(name)}: {json.dumps(v)}" for name, v in made[key].items())
        for key in ("architectures", "others")
    )
    head = (
        f'"network": {json.dumps(made["network"])},\n"made_from": {json.dumps(made["made_from"])},\n'
        f'"preprocess": [\n{preprocess}\n]'
    )
    return f'{{\n{head},\n"architectures": {{\n{entries}\n}},\n"others": {{\n{others}\n}}\n}}\n'


if __name__ == "__main__":
    print(text(table()), end="")
