"""timm's VisionTransformer and VisionTransformerDistilled: one table, for a distilled network is a config.

The last norm is `norm` before pooling or `fc_norm` after it; with class token pooling both are one function, which is
ours under `norm`. A gated mlp is packed into fc1, the gate first (timm's SwiGLUPacked), or lies apart as fc1_g and fc1_x
(its SwiGLU). Either all tokens before the patches have positions or none has (no_embed_class). The oldest files hold
the patches as a matrix (D, C*p*q). DeiT III's own call the layer scales gamma_1 and gamma_2 instead of ls1.gamma, as
timm's networks with rotary positions do, which are another function.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable

from vit_jax.config import ViTConfig, pair

from ..layout import PLAIN_VIT, Field, Json, Layout, Names, always, count, has, length
from ..rules import Order, Row
from .modules import TOKEN, TOKENS, Tensors, module_rows
from .timm_folder import read_side, unstated, write_side

QKV = ("query", "key", "value")


def rows(c: ViTConfig, apart: bool = False, matrix: bool = False, scale: str = "ls{}.gamma") -> list[Row]:
    """The tensors of a network: with the gate `apart`, patches as a `matrix`, and what a layer scale is called."""
    modules = {
        "patch": "patch_embed.proj.",
        "patch.norm": "patch_embed.norm.",
        "pre_norm": "norm_pre.",
        "norm": "norm.",
    }
    modules |= {"head_norm": "fc_norm.", "head": "head.", "distill_head": "head_dist."}
    modules |= {
        "pool.query": "attn_pool.q.",
        "pool.key": "attn_pool.kv.",
        "pool.out": "attn_pool.proj.",
        "pool.norm": "attn_pool.norm.",
    }
    modules |= {f"pool.mlp.fc{n}": f"attn_pool.mlp.fc{n}." for n in (1, 2)}
    tensors: Tensors = {
        "cls_token": ("cls_token", TOKEN),
        "distill_token": ("dist_token", TOKEN),
        "register_tokens": ("reg_token", TOKENS),
    }
    tensors |= {"position": ("pos_embed", TOKENS), "pool.probe": ("attn_pool.latent", TOKEN)}
    if matrix:
        (p, q), channels = pair(c.patch), c.channels
        tensors["patch.kernel"] = (
            "patch_embed.proj.weight",
            Order("d (c p q)", "(p q c) d", dict(c=channels, p=p, q=q)),
        )
    packed: list[tuple[str, ...]] = [("pool.key", "pool.value")]
    for i in range(c.depth):
        mine = f"blocks.{i}"
        modules |= blocks(mine, ("fc1_g", "fc1_x") if apart else ("fc1", "fc1"))
        tensors |= {f"{mine}.scale{n}": (f"{mine}.{scale.format(n)}", None) for n in (1, 2)}
        packed += [tuple(f"{mine}.attention.{part}" for part in QKV)] + (
            [(f"{mine}.mlp.gate", f"{mine}.mlp.fc1")] if c.gated and not apart else []
        )
    others = {f"norm.{leaf}": f"fc_norm.{leaf}" for leaf in ("weight", "bias")} if c.pool == "cls" else {}
    made = module_rows(c, modules, packed, tensors)
    return [
        dataclasses.replace(r, optional=frozenset({others[r.theirs[0]]})) if r.theirs[0] in others else r for r in made
    ]


def blocks(block: str, mlp: tuple[str, str]) -> dict[str, str]:
    """{our module: timm's} in one block; `mlp` are its gate and its first layer."""
    names = {
        "norm1": "norm1",
        "norm2": "norm2",
        "attention.query": "attn.qkv",
        "attention.out": "attn.proj",
        "mlp.fc2": "mlp.fc2",
    }
    names |= {
        "attention.query_norm": "attn.q_norm",
        "attention.key_norm": "attn.k_norm",
        "mlp.gate": f"mlp.{mlp[0]}",
        "mlp.fc1": f"mlp.{mlp[1]}",
    }
    return {f"{block}.{ours}": f"{block}.{theirs}." for ours, theirs in names.items()}


# ------------------------------------------------------------------------------------------ fields


def pool(names: Names) -> str | None:
    """What names tell of pooling: the rest looks the same for every pooling."""
    return "cls_distill" if "dist_token" in names else "map" if "attn_pool.latent" in names else None


def normed(before: bool) -> Callable[[Names, Json], bool]:
    """Whether there is a norm before (or after) pooling: for the class token alone, both are before."""

    def follow(names: Names, said: Json) -> bool:
        first, last = "norm.weight" in names, "fc_norm.weight" in names
        if said["pool"] == "cls":
            return before and (first or last)
        return first if before else last

    return follow


def placed(token: str, otherwise: bool) -> Callable[[Names, Json], bool | None]:
    """Whether a token has a position: the table then has more rows than there are patches."""

    def follow(names: Names, said: Json) -> bool | None:
        rows = length("pos_embed", 1)(names)
        if token not in names or rows is None:
            return otherwise
        (h, w), (p, q) = (
            pair(tuple(said[name]) if isinstance(said[name], list) else said[name]) for name in ("image", "patch")
        )
        return bool(p and q) and rows != (h // p) * (w // q)

    return follow


def patch(names: Names) -> int | tuple[int, int] | None:
    """The patch of a convolution."""
    rows, columns = (length("patch_embed.proj.weight", axis)(names) for axis in (2, 3))
    return (rows if rows == columns else (rows, columns)) if rows and columns else None


def heads(names: Names) -> int | None:
    """Norms of queries and keys have the width of a head."""
    width, each = (length(f"blocks.0.{norm}.weight", 0)(names) for norm in ("norm1", "attn.q_norm"))
    return width // each if width and each else None


def gated(names: Names) -> bool:
    """Whether the first layer of an mlp gives what the second takes and as much again."""
    first, second = length("blocks.0.mlp.fc1.weight", 0, 0)(names), length("blocks.0.mlp.fc2.weight", 1, 0)(names)
    return "blocks.0.mlp.fc1_g.weight" in names or first == 2 * second > 0


FIELDS = PLAIN_VIT | {
    "image": Field(), "patch": Field(solve=patch), "eps": Field((1e-6, 1e-5)), "activation": Field(), "heads": Field(solve=heads),
    "channels": Field(solve=lambda names: length("patch_embed.proj.weight", 1)(names) if patch(names) else None),
    "classes": Field(solve=length("head.weight", 0, 0)), "width": Field(solve=length("patch_embed.proj.weight", 0)),
    "depth": Field(solve=lambda names: count(names, r"blocks\.(\d+)\..*") or None), "hidden": Field(solve=length("blocks.0.mlp.fc2.weight", 1)),
    "stem_bias": Field(solve=has("patch_embed.proj.bias")), "stem_norm": Field(solve=has("patch_embed.norm.weight")),
    "cls_token": Field(solve=has("cls_token")), "distill_token": Field(solve=has("dist_token")), "registers": Field(solve=length("reg_token", 1, 0)),
    "position": Field(("learned", "none"), solve=lambda names: "learned" if "pos_embed" in names else None),  # rotary ones leave no trace
    "cls_position": Field(follow=placed("cls_token", True)), "register_position": Field(follow=placed("reg_token", False)),
    "pre_norm": Field(solve=has("norm_pre.weight")), "final_norm": Field(follow=normed(True)), "head_norm": Field(follow=normed(False)),
    "layer_scale": Field(solve=lambda names: float(has("blocks.0.ls1.gamma")(names))),
    **{f"{part}_bias": Field(solve=has("blocks.0.attn.qkv.bias")) for part in QKV},
    "out_bias": Field(solve=has("blocks.0.attn.proj.bias")), "mlp_bias": Field(solve=has("blocks.0.mlp.fc2.bias")),
    "qk_norm": Field(solve=has("blocks.0.attn.q_norm.weight")), "gated": Field(solve=gated), "pool": Field(solve=pool),
    "distill_head": Field(solve=has("head_dist.weight")),
}  # fmt: skip


def limits(c: ViTConfig) -> list[str]:
    """What timm's class cannot be told."""
    prefix = {c.cls_position} if c.cls_token else set()
    prefix |= {c.register_position} if c.registers else set()
    distilled = c.distill_token or c.pool == "cls_distill"
    reasons = {
        "stem_bias and pre_norm are the same, it has one of the two": c.stem_bias == c.pre_norm,
        "its query, key and value have biases together or not at all": len({c.query_bias, c.key_bias, c.value_bias}) > 1,
        "its out projection and mlp have biases together or not at all": c.out_bias != c.mlp_bias,
        "its tokens before the patches have positions together or not at all": len(prefix) > 1 and c.position != "none",
        "it norms before pooling or after it, not both": c.final_norm and c.head_norm,
        "with class token pooling its last norm is final_norm, not head_norm": c.pool == "cls" and c.head_norm,
        "its attention pooling has a plain mlp with biases": c.pool == "map" and (c.gated or not c.mlp_bias),
        "heads do not divide width": bool(c.width % c.heads),
        "its distilled network has two heads on two tokens, with positions, no registers and no other norm": distilled
        and (c.pool != "cls_distill" or c.distill_head != bool(c.classes) or c.registers > 0 or not c.distill_position or not c.cls_position
             or c.position != "learned" or c.head_norm),
    }  # fmt: skip
    return [reason for reason, holds in reasons.items() if holds]


# ----------------------------------------------------------------------------------------- layouts

MARKS = (
    r"patch_embed\.proj\.weight",
    r"blocks\.0\.attn\.qkv\.weight",
    r"blocks\.0\.norm1\.weight",
    r"!register_tokens",
)
BESIDE = (r"mask_token|decoder_.*",)  # of DINOv2's and MAE's training
GAMMA = r"blocks\.0\.gamma_1"
PLAIN = (*MARKS, r"blocks\.0\.mlp\.fc1\.weight")


def axes(number: int) -> Callable[[Names], bool]:
    """Whether the patches have this many axes."""
    return lambda names: len(names["patch_embed.proj.weight"]) == number


OLDEST = Layout(
    "timm",
    "patch-matrix",
    "timm's VisionTransformer before 2020, patches as a matrix",
    ViTConfig,
    FIELDS | {"gated": always(False)},
    functools.partial(rows, matrix=True),
    (*PLAIN, f"!{GAMMA}"),
    ("torch", "safetensors"),
    limits,
    fits=axes(2),
    proven="timm 1.0.31",
)
DEIT3_FIELDS = FIELDS | {"layer_scale": always(1.0), "gated": always(False), "position": always("learned")}
DEIT3 = Layout(
    "timm",
    "deit3",
    "DeiT III's own files, layer scales as gamma_1",
    ViTConfig,
    DEIT3_FIELDS,
    functools.partial(rows, scale="gamma_{}"),
    (*PLAIN, GAMMA, "pos_embed"),
    ("torch", "safetensors"),
    limits,
    fits=axes(4),
    proven="timm 1.0.31",
    ambiguous="timm's networks with rotary positions have the same names, they cannot be converted; DeiT III's can",
)
APART = Layout(
    "timm",
    "gate-apart",
    "timm's VisionTransformer with its SwiGLU",
    ViTConfig,
    FIELDS | {"gated": always(True)},
    functools.partial(rows, apart=True),
    (*MARKS, r"blocks\.0\.mlp\.fc1_g\.weight"),
    limits=limits,
    fits=axes(4),
    proven="timm 1.0.31",
)
TIMM = Layout(
    "timm",
    "",
    "timm's VisionTransformer and VisionTransformerDistilled",
    ViTConfig,
    FIELDS,
    rows,
    (*PLAIN, f"!{GAMMA}"),
    ("safetensors", "torch"),
    limits,
    unstated,
    read_side,
    write_side,
    fits=axes(4),
    proven="timm 1.0.31",
    beside=BESIDE,
)
LAYOUTS = (OLDEST, DEIT3, APART, TIMM)
