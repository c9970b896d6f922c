"""timm's VisionTransformer and VisionTransformerDistilled, with timm's config.json (timm_folder.py).

Compared with 1.0.31. The last norm is `norm` before pooling or `fc_norm` after it; with class token pooling both are
one function, and `norm` here. Positions belong to all tokens before the patches or to none (no_embed_class). A gated
mlp is packed into fc1, the gate first (timm's SwiGLUPacked).

Versions: `gate-apart` has the gate as a layer of its own, fc1_g beside fc1_x (timm's SwiGLU); `patch-matrix` are the
oldest files, with patches as a matrix (D, C*p*q); `deit3` are DeiT III's own files, which call the layer scales gamma_1
and gamma_2. So do timm's networks with rotary positions (timm_eva.py), which compute another function.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable

from vit_jax.config.fields import pair
from vit_jax.models.vit_config import ViTConfig

from ..layout import Field, Json, Layout, Names, Refusal, always, count, has, length
from ..operations import Order, Stack
from ..rules import Row
from .huggingface import PROBLEMS
from .modules import TOKEN, TOKENS, Tensors, module_rows
from .plain_vit import PLAIN_VIT
from .timm_folder import cannot_state, read_side, write_side

QKV = ("query", "key", "value")
MAPS = ("map", "map_all")


MODULES = {
    "patch": "patch_embed.proj.", "patch.norm": "patch_embed.norm.", "pre_norm": "norm_pre.", "norm": "norm.",
    "head_norm": "fc_norm.", "head": "head.", "distill_head": "head_dist.", "pool.query": "attn_pool.q.",
    "pool.key": "attn_pool.kv.", "pool.out": "attn_pool.proj.", "pool.norm": "attn_pool.norm.",
    "pool.mlp.fc1": "attn_pool.mlp.fc1.", "pool.mlp.fc2": "attn_pool.mlp.fc2.",
}  # fmt: skip
TENSORS: Tensors = {
    "cls_token": ("cls_token", TOKEN), "distill_token": ("dist_token", TOKEN), "register_tokens": ("reg_token", TOKENS),
    "position": ("pos_embed", TOKENS), "pool.probe": ("attn_pool.latent", TOKEN),
}  # fmt: skip


def rows(
    c: ViTConfig, separate_gate: bool = False, matrix: bool = False, scale: str = "ls{}.gamma", separate: bool = False
) -> list[Row]:
    """The rows of a network."""
    modules, tensors = MODULES.copy(), TENSORS.copy()
    if matrix:
        (p, q), channels = pair(c.patch), c.channels
        tensors["patch.kernel"] = (
            "patch_embed.proj.weight",
            Order("d (c p q)", "(p q c) d", dict(c=channels, p=p, q=q)),
        )
    packed: list[tuple[str, ...]] = [("pool.key", "pool.value")]
    for i in range(c.depth):
        ours = f"blocks.{i}"
        modules |= blocks(ours, ("fc1_g", "fc1_x") if separate_gate else ("fc1", "fc1"))
        tensors |= {f"{ours}.scale{n}": (f"{ours}.{scale.format(n)}", None) for n in (1, 2)}
        if separate:
            modules |= {f"{ours}.attention.{part}": f"{ours}.attn.{part[0]}_proj." for part in QKV}
        else:
            packed.append(tuple(f"{ours}.attention.{part}" for part in QKV))
            if len({c.query_bias, c.key_bias, c.value_bias}) > 1:
                tensors |= {f"{ours}.attention.{part}.bias": (f"{ours}.attn.{part[0]}_bias", None) for part in QKV}
        if c.gated and not separate_gate:
            packed.append((f"{ours}.mlp.gate", f"{ours}.mlp.fc1"))
    others = {f"norm.{leaf}": f"fc_norm.{leaf}" for leaf in ("weight", "bias")} if c.pool == "cls" else {}
    made = module_rows(c, modules, packed, tensors, others=frequencies(c))
    return [
        dataclasses.replace(r, optional=frozenset({others[r.theirs[0]]})) if r.theirs[0] in others else r for r in made
    ]


def frequencies(c: ViTConfig) -> list[Row]:
    """The row of learned rotary frequencies: those of all blocks are one tensor [2, L, H, Dh/2]."""
    names = tuple(name for name in c.shapes() if name.endswith(".frequencies"))
    axes_of_blocks = (Order("t l h f", "l t h f"), Stack(len(names)))
    return [Row(("rope.freqs",), names, tuple(c.shapes()[name] for name in names), axes_of_blocks)] if names else []


def blocks(block: str, mlp: tuple[str, str]) -> dict[str, str]:
    """The names of the modules in one block -> {our module: timm's}."""
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
        "attention.inner_norm": "attn.norm",
        "mlp.inner_norm": "mlp.norm",
        "mlp.gate": f"mlp.{mlp[0]}",
        "mlp.fc1": f"mlp.{mlp[1]}",
    }
    return {f"{block}.{ours}": f"{block}.{theirs}." for ours, theirs in names.items()}


# ------------------------------------------------------------------------------------------ fields


def pool(names: Names) -> str | None:
    """A solver: the pooling where names show it. None where they do not: several kinds have the same names, and
    attention pooling may take tokens before the patches, or leave them out.
    """
    if "dist_token" in names:
        return "cls_distill"
    return "map" if "attn_pool.latent" in names and not has("cls_token", "reg_token")(names) else None


def norm_kind(names: Names) -> str | None:
    """A solver: norms with biases are LayerNorms; of others the names do not tell what they subtract."""
    return "layer" if "blocks.0.norm1.bias" in names else None


def branch_norm(names: Names) -> bool | None:
    """A solver: blocks with layer scales have no norms after the branches; of others the names do not tell."""
    return False if has("blocks.0.ls1.gamma", "blocks.0.gamma_1")(names) else None


def _has_pool_norm(before: bool) -> Callable[[Names, Json], bool]:
    """A solver: whether there is a norm before (or after) pooling; with class token pooling it counts as before."""

    def follow(names: Names, known: Json) -> bool:
        first, last = "norm.weight" in names, "fc_norm.weight" in names
        if known["pool"] == "cls":
            return before and (first or last)
        return first if before else last

    return follow


def _has_position(token: str, otherwise: bool) -> Callable[[Names, Json], bool | None]:
    """A solver: whether a token has a position, so that the table has more rows than there are patches."""

    def follow(names: Names, known: Json) -> bool | None:
        rows = length("pos_embed", 1)(names)
        if token not in names or rows is None:
            return otherwise
        (h, w), (p, q) = (
            pair(tuple(known[name]) if isinstance(known[name], list) else known[name]) for name in ("image", "patch")
        )
        return bool(p and q) and rows != (h // p) * (w // q)

    return follow


def patch(names: Names) -> int | tuple[int, int] | None:
    """The patch size, from the last two axes of the convolution's kernel; None where it is not 4-D."""
    rows, columns = (length("patch_embed.proj.weight", axis)(names) for axis in (2, 3))
    return (rows if rows == columns else (rows, columns)) if rows and columns else None


def heads(names: Names) -> int | None:
    """A solver: the number of heads, where norms of queries and keys show the width of one."""
    width, each = (length(f"blocks.0.{norm}.weight", 0)(names) for norm in ("norm1", "attn.q_norm"))
    return width // each if width and each else None


def _is_gated(names: Names) -> bool:
    """A solver: whether the first layer of the mlp has twice the outputs that the second takes."""
    first, second = length("blocks.0.mlp.fc1.weight", 0, 0)(names), length("blocks.0.mlp.fc2.weight", 1, 0)(names)
    return "blocks.0.mlp.fc1_g.weight" in names or first == 2 * second > 0


PLAIN_NORMS = {name: PLAIN_VIT[name] for name in ("norm_kind", "branch_norm", "attention_norm", "mlp_norm")}
FIELDS = PLAIN_VIT | {
    "image": Field(),
    "patch": Field(solve=patch),
    "eps": Field((1e-6, 1e-5)),
    "activation": Field(("gelu", "gelu_tanh", "quick_gelu", "relu", "silu")),
    "heads": Field(solve=heads),
    "channels": Field(solve=lambda names: length("patch_embed.proj.weight", 1)(names) if patch(names) else None),
    "classes": Field(solve=length("head.weight", 0, 0)),
    "width": Field(solve=length("patch_embed.proj.weight", 0)),
    "depth": Field(solve=lambda names: count(names, r"blocks\.(\d+)\..*") or None),
    "hidden": Field(solve=length("blocks.0.mlp.fc2.weight", 1)),
    "stem_bias": Field(solve=has("patch_embed.proj.bias")),
    "stem_norm": Field(solve=has("patch_embed.norm.weight")),
    "cls_token": Field(solve=has("cls_token")),
    "distill_token": Field(solve=has("dist_token")),
    "registers": Field(solve=length("reg_token", 1, 0)),
    "position": Field(
        ("learned", "none"), solve=lambda names: "learned" if "pos_embed" in names else None
    ),  # rotary ones leave no trace
    "cls_position": Field(follow=_has_position("cls_token", True)),
    "register_position": Field(follow=_has_position("reg_token", False)),
    "pre_norm": Field(solve=has("norm_pre.weight")),
    "final_norm": Field(follow=_has_pool_norm(True)),
    "head_norm": Field(follow=_has_pool_norm(False)),
    "layer_scale": Field(solve=lambda names: float(has("blocks.0.ls1.gamma")(names))),
    **{f"{part}_bias": Field(solve=has("blocks.0.attn.qkv.bias")) for part in QKV},
    "out_bias": Field(solve=has("blocks.0.attn.proj.bias")),
    "mlp_bias": Field(solve=has("blocks.0.mlp.fc2.bias")),
    "qk_norm": Field(solve=has("blocks.0.attn.q_norm.weight")),
    "attention_norm": Field(solve=has("blocks.0.attn.norm.weight")),
    "mlp_norm": Field(solve=has("blocks.0.mlp.norm.weight")),
    "norm_kind": Field(("layer", "rms"), solve=norm_kind),
    "branch_norm": Field(
        (False, True), solve=branch_norm, usual=False
    ),  # timm's default; an architecture states others
    "gated": Field(solve=_is_gated),
    "pool": Field(("cls", "mean", "mean_all", "map", "map_all", "cls_distill"), solve=pool),
    "distill_head": Field(solve=has("head_dist.weight")),
}


def cannot_hold(c: ViTConfig) -> list[str]:
    """Clauses for a network that timm's class cannot build."""
    prefix = {c.cls_position} if c.cls_token else set()
    prefix |= {c.register_position} if c.registers else set()
    distilled = c.distill_token or c.pool == "cls_distill"
    qkv_biases = {c.query_bias, c.key_bias, c.value_bias}
    reasons = {
        "stem_bias and pre_norm are equal, but timm has exactly one of the two": c.stem_bias == c.pre_norm,
        "timm's query, key and value all have biases or all have none": len(qkv_biases) > 1,
        "timm's out projection and mlp both have biases or both have none": c.out_bias != c.mlp_bias,
        "timm's tokens before the patches all have positions or all have none": len(prefix) > 1
        and c.position != "none",
        "timm norms before pooling or after it, not both": c.final_norm and c.head_norm,
        "with class token pooling timm's last norm is final_norm, not head_norm": c.pool == "cls" and c.head_norm,
        "timm's attention pooling has a plain mlp with biases": c.pool in MAPS and (c.gated or not c.mlp_bias),
        "with norms after its branches timm's block has no layer scale": c.branch_norm and bool(c.layer_scale),
        "heads do not divide width": bool(c.width % c.heads),
        "timm's distilled network has two heads on two tokens, with positions, no registers, no head_norm": distilled
        and (
            c.pool != "cls_distill"
            or c.distill_head != bool(c.classes)
            or c.registers > 0
            or not c.distill_position
            or not c.cls_position
            or c.position != "learned"
            or c.head_norm
        ),
    }
    return [reason for reason, holds in reasons.items() if holds]


# ----------------------------------------------------------------------------------------- layouts

SIGNATURE = (
    r"patch_embed\.proj\.weight",
    r"blocks\.0\.attn\.qkv\.weight",
    r"blocks\.0\.norm1\.weight",
    r"!register_tokens",
    r"!blocks\.0\.attn\.q_bias",  # timm's Eva has these
    r"!rope\.freqs",
    r"!rope_embed\.periods",  # Meta's DINOv3
)
TRAINING_ONLY = (r"mask_token|decoder_.*",)  # tensors that only the training of DINOv2 and MAE needs
GAMMA = r"blocks\.0\.gamma_1"
PLAIN = (*SIGNATURE, r"blocks\.0\.mlp\.fc1\.weight")


def _perceptive(names: Names | None) -> list[str]:
    """A clause where a file has the names of a Perception Encoder: tokens are normed first, and the last norm lacks."""
    names = names or {}
    pooled = "attn_pool.latent" in names or not {"norm.weight", "fc_norm.weight"} & set(names)
    return [PERCEPTIVE] if "norm_pre.weight" in names and pooled else []


def axes(number: int) -> Callable[[Names], list[str]]:
    """A refusal of files whose patches have another number of axes."""

    def reasons(names: Names) -> list[str]:
        found = len(names["patch_embed.proj.weight"])
        return [] if found == number else [f"its patches have {found} axes"]

    return reasons


OLDEST = Layout(
    dialect="timm",
    version="patch-matrix",
    title="timm's VisionTransformer before 2020, patches as a matrix",
    network=ViTConfig,
    covers=True,
    fields=FIELDS | PLAIN_NORMS | {"gated": always(False)},
    rows=functools.partial(rows, matrix=True),
    signature=(*PLAIN, f"!{GAMMA}"),
    containers=("torch", "safetensors"),
    refusals=(
        Refusal("shapes", axes(2)),
        Refusal("network", cannot_hold),
    ),
    proven="timm 1.0.31",
)
PERCEPTIVE = "a Perception Encoder, which has rotary positions, has the same names as this VisionTransformer"
ROTARY = "timm's networks with rotary positions (RoPE-ViT) have the same names as DeiT III's"
DEIT3_FIELDS = (
    FIELDS | PLAIN_NORMS | {"layer_scale": always(1.0), "gated": always(False), "position": always("learned")}
)
DEIT3 = Layout(
    dialect="timm",
    version="deit3",
    title="DeiT III's own files, layer scales as gamma_1",
    network=ViTConfig,
    covers=True,
    fields=DEIT3_FIELDS,
    rows=functools.partial(rows, scale="gamma_{}"),
    signature=(*PLAIN, GAMMA, "pos_embed"),
    containers=("torch", "safetensors"),
    refusals=(
        Refusal("shapes", axes(4)),
        Refusal("choice", ROTARY),
        Refusal("network", cannot_hold),
    ),
    proven="timm 1.0.31",
)
APART = Layout(
    dialect="timm",
    version="gate-apart",
    title="timm's VisionTransformer with its SwiGLU",
    network=ViTConfig,
    covers=True,
    fields=FIELDS | {"gated": always(True)},
    rows=functools.partial(rows, separate_gate=True),
    signature=(*SIGNATURE, r"blocks\.0\.mlp\.fc1_g\.weight", f"!{GAMMA}"),
    refusals=(
        Refusal("shapes", axes(4)),
        Refusal("network", cannot_hold),
        Refusal("statement", functools.partial(cannot_state, gate_apart=True)),
    ),
    read_side=read_side,
    write_side=functools.partial(write_side, gate_apart=True),
    outputs=lambda c: PROBLEMS,
    proven="timm 1.0.31",
)
TIMM = Layout(
    dialect="timm",
    version="",
    title="timm's VisionTransformer and VisionTransformerDistilled",
    network=ViTConfig,
    covers=True,
    fields=FIELDS,
    rows=rows,
    signature=(*PLAIN, f"!{GAMMA}"),
    containers=("safetensors", "torch"),
    refusals=(
        Refusal("shapes", axes(4)),
        Refusal("choice", _perceptive),
        Refusal("network", cannot_hold),
        Refusal("statement", cannot_state),
    ),
    read_side=read_side,
    write_side=write_side,
    outputs=lambda c: PROBLEMS,
    proven="timm 1.0.31",
    outside=TRAINING_ONLY,
)
LAYOUTS = (OLDEST, DEIT3, APART, TIMM)
