"""Ours against the Vision Transformers that people use: timm, torchvision, Hugging Face and vit-pytorch.

Each is built by its own library, as `--verify` does it, and has our weights by the name maps of this file, which share
nothing with convert's tables. What a library cannot express is not asked of it. A library that is not installed is
reported, and not compared.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from convert.verify import libraries as builders
from convert.verify.checks import Check, gradients, values
from convert.verify.libraries import load
from vit_jax.config.fields import pair
from vit_jax.models.vit_config import ViTConfig

from .cases import VIT
from .sides import ByMap, ours
from .torch_nn import Tensors, names_linear, names_norm
from .weights import inputs, weights


@dataclass(frozen=True)
class Original:
    """One network of a library: its config in our words, the module, its parameters from ours."""

    library: str
    name: str
    config: ViTConfig
    build: Callable[[ViTConfig], nn.Module]
    mapping: Callable[[ViTConfig, Tensors], Tensors]
    call: Callable[[Any, Tensor], Tensor] = lambda model, images: model(images)


def compare(o: Original) -> Iterator[Check]:
    """Float64 on both weight sets, float32, and gradients."""
    for which, dtype in (("A", "float64"), ("B", "float64"), ("A", "float32")):
        p, given = weights(o.config, which), inputs(o.config, which=which)
        theirs = ByMap(
            o.build(o.config),
            p,
            functools.partial(o.mapping, o.config),
            lambda model, images: o.call(model, images.permute(0, 3, 1, 2)),
            dtype,
        )
        mine = ours(o.config, p, dtype)
        y = mine.forward(given)
        yield values(
            o.name, o.library, f"{dtype}, weights {which}", {"logits": y}, {"logits": theirs.forward(given)}, dtype
        )
        if which == "A" and dtype == "float64":
            cotangent = np.random.default_rng(1).standard_normal(y.shape)
            yield from gradients(
                o.name,
                o.library,
                mine.gradients(given, cotangent),
                theirs.gradients(given, cotangent),
            )


# --------------------------------------------------------------------------------- names they share


def convolution(c: ViTConfig, p: Tensors, theirs: str) -> Tensors:
    """Our patch kernel (p q c, d) as a convolution's (d, c, p, q)."""
    (rows, columns), out = pair(c.patch), {}
    out[f"{theirs}weight"] = p["patch.kernel"].reshape(rows, columns, c.channels, c.width).permute(3, 2, 0, 1)
    return out | ({f"{theirs}bias": p["patch.bias"]} if c.stem_bias else {})


def packed(p: Tensors, ours: str, theirs: str) -> Tensors:
    """q, k, v as rows of one matrix, and of one bias."""
    parts = [f"{ours}.{part}" for part in ("query", "key", "value")]
    out = {f"{theirs}weight": torch.cat([p[f"{part}.kernel"].T for part in parts])}
    return out | (
        {f"{theirs}bias": torch.cat([p[f"{part}.bias"] for part in parts])} if f"{parts[0]}.bias" in p else {}
    )


# -------------------------------------------------------------------------------------------- timm


def timm_names(c: ViTConfig, p: Tensors) -> Tensors:
    out = convolution(c, p, "patch_embed.proj.") | {"pos_embed": p["position"][None]}
    for name, theirs in (("cls_token", "cls_token"), ("distill_token", "dist_token"), ("register_tokens", "reg_token")):
        out |= {theirs: p[name].reshape(1, -1, c.width)} if name in p else {}
    for name, theirs in (("pre_norm", "norm_pre."), ("norm", "norm."), ("head_norm", "fc_norm.")):
        out |= names_norm(p, name, theirs) if f"{name}.scale" in p else {}
    for i in range(c.depth):
        mine, its = f"blocks.{i}", f"blocks.{i}."
        out |= names_norm(p, f"{mine}.norm1", f"{its}norm1.") | names_norm(p, f"{mine}.norm2", f"{its}norm2.")
        out |= packed(p, f"{mine}.attention", f"{its}attn.qkv.") | names_linear(
            p, f"{mine}.attention.out", f"{its}attn.proj."
        )
        if c.qk_norm:
            out |= names_norm(p, f"{mine}.attention.query_norm", f"{its}attn.q_norm.") | names_norm(
                p, f"{mine}.attention.key_norm", f"{its}attn.k_norm."
            )
        if c.layer_scale:
            out |= {f"{its}ls{n}.gamma": p[f"{mine}.scale{n}"] for n in (1, 2)}
        for part, theirs in (("fc1", "fc1_x" if c.gated else "fc1"), ("gate", "fc1_g"), ("fc2", "fc2")):
            out |= (
                names_linear(p, f"{mine}.mlp.{part}", f"{its}mlp.{theirs}.") if f"{mine}.mlp.{part}.kernel" in p else {}
            )
    if c.pool == "map":
        out |= {
            "attn_pool.latent": p["pool.probe"][None, None],
            "attn_pool.kv.weight": torch.cat([p["pool.key.kernel"].T, p["pool.value.kernel"].T]),
        }
        out |= {"attn_pool.kv.bias": torch.cat([p["pool.key.bias"], p["pool.value.bias"]])} | names_norm(
            p, "pool.norm", "attn_pool.norm."
        )
        for name, theirs in (("query", "q"), ("out", "proj"), ("mlp.fc1", "mlp.fc1"), ("mlp.fc2", "mlp.fc2")):
            out |= names_linear(p, f"pool.{name}", f"attn_pool.{theirs}.")
    out |= names_linear(p, "head", "head.")
    return out | (names_linear(p, "distill_head", "head_dist.") if c.distill_head else {})


def timm() -> list[Original]:
    def one(name: str, config: dict[str, Any], **options: Any) -> Original:
        build = functools.partial(builders.timm.network, gate_apart=True, **options)
        return Original("timm", name, replace(VIT, **config), build, timm_names)

    no_cls = dict(cls_token=False, pool="mean")
    return [
        one("plain", {}),
        one("tanh GELU, eps 1e-5", dict(activation="gelu_tanh", eps=1e-5)),
        one("distilled", dict(distill_token=True, distill_head=True, pool="cls_distill")),
        one("4 registers without positions", dict(registers=4, cls_position=False)),
        one("2 registers with positions", dict(registers=2, register_position=True)),
        one("layer scale", dict(layer_scale=0.1)),
        one("qk-norm", dict(qk_norm=True)),
        one("no qkv bias", dict(query_bias=False, key_bias=False, value_bias=False)),
        one("no out bias", dict(out_bias=False, mlp_bias=False)),
        one("no final norm", dict(final_norm=False)),
        one("mean, norm after pooling", dict(pool="mean", final_norm=False, head_norm=True)),
        one("mean, norm before, no class token", no_cls),
        one("mean of all", dict(pool="mean_all", registers=2, register_position=True)),
        one("attention pooling", dict(cls_token=False, pool="map", activation="gelu_tanh")),
        one("pre-norm, quick GELU (CLIP)", dict(pre_norm=True, stem_bias=False, activation="quick_gelu", eps=1e-5)),
        one("SwiGLU", dict(gated=True, activation="silu")),
    ]


# ------------------------------------------------------------------------------------- torchvision


def torchvision_names(c: ViTConfig, p: Tensors) -> Tensors:
    out = convolution(c, p, "conv_proj.") | {
        "class_token": p["cls_token"][None, None],
        "encoder.pos_embedding": p["position"][None],
    }
    for i in range(c.depth):
        mine, its = f"blocks.{i}", f"encoder.layers.encoder_layer_{i}."
        out |= names_norm(p, f"{mine}.norm1", f"{its}ln_1.") | names_norm(p, f"{mine}.norm2", f"{its}ln_2.")
        qkv = packed(p, f"{mine}.attention", "")
        out |= {f"{its}self_attention.in_proj_{leaf}": value for leaf, value in qkv.items()}
        out |= names_linear(p, f"{mine}.attention.out", f"{its}self_attention.out_proj.")
        out |= names_linear(p, f"{mine}.mlp.fc1", f"{its}mlp.0.") | names_linear(p, f"{mine}.mlp.fc2", f"{its}mlp.3.")
    out |= names_norm(p, "norm", "encoder.ln.") | names_linear(p, "head", "heads.head.")
    return out | (names_linear(p, "head_hidden", "heads.pre_logits.") if c.head_hidden else {})


def torchvision() -> list[Original]:
    square = replace(VIT, image=4, patch=2)  # it knows no other
    return [
        Original("torchvision", "plain", square, builders.torch_nn.vision, torchvision_names),
        Original(
            "torchvision",
            "hidden layer in the head",
            replace(square, head_hidden=6),
            builders.torch_nn.vision,
            torchvision_names,
        ),
    ]


# ------------------------------------------------------------------------------------ Hugging Face


def huggingface_names(c: ViTConfig, p: Tensors) -> Tensors:
    body = "deit." if c.distill_token else "vit."
    out = convolution(c, p, f"{body}embeddings.patch_embeddings.projection.")
    out |= {
        f"{body}embeddings.cls_token": p["cls_token"][None, None],
        f"{body}embeddings.position_embeddings": p["position"][None],
    }
    if c.distill_token:
        out[f"{body}embeddings.distillation_token"] = p["distill_token"][None, None]
    for i in range(c.depth):
        mine, its = f"blocks.{i}", f"{body}layers.{i}."
        out |= names_norm(p, f"{mine}.norm1", f"{its}layernorm_before.") | names_norm(
            p, f"{mine}.norm2", f"{its}layernorm_after."
        )
        for name, theirs in (("query", "q"), ("key", "k"), ("value", "v"), ("out", "o")):
            out |= names_linear(p, f"{mine}.attention.{name}", f"{its}attention.{theirs}_proj.")
        out |= names_linear(p, f"{mine}.mlp.fc1", f"{its}mlp.fc1.") | names_linear(
            p, f"{mine}.mlp.fc2", f"{its}mlp.fc2."
        )
    out |= names_norm(p, "norm", f"{body}layernorm.")
    if c.distill_head:
        return (
            out
            | names_linear(p, "head", "cls_classifier.")
            | names_linear(p, "distill_head", "distillation_classifier.")
        )
    return out | names_linear(p, "head", "classifier.")


def huggingface() -> list[Original]:
    def one(name: str, **config: Any) -> Original:
        return Original(
            "transformers",
            name,
            replace(VIT, **config),
            builders.transformers.network,
            huggingface_names,
            lambda model, images: model(pixel_values=images).logits,
        )

    return [
        one("ViT, eps 1e-12", eps=1e-12),
        one("ViT, tanh GELU, no qkv bias", activation="gelu_tanh", query_bias=False, key_bias=False, value_bias=False),
        one("DeiT", distill_token=True),
        one("DeiT with teacher", distill_token=True, distill_head=True, pool="cls_distill"),
    ]


# ------------------------------------------------------------------------------------- vit-pytorch


def lucidrains_names(c: ViTConfig, p: Tensors) -> Tensors:
    out = names_norm(p, "patch.pre_norm", "to_patch_embedding.1.") | names_linear(p, "patch", "to_patch_embedding.2.")
    out |= names_norm(p, "patch.norm", "to_patch_embedding.3.")
    if c.position == "learned":
        out |= {
            "cls_token": p["cls_token"][None] if c.cls_token else torch.zeros(0, c.width),
            "pos_embedding": p["position"],
        }
    for i in range(c.depth):
        mine, its = f"blocks.{i}", f"transformer.layers.{i}."
        out |= names_norm(p, f"{mine}.norm1", f"{its}0.norm.") | packed(p, f"{mine}.attention", f"{its}0.to_qkv.")
        out |= names_linear(p, f"{mine}.attention.out", f"{its}0.to_out.0." if c.out_bias else f"{its}0.to_out.")
        mlp = ("0", "1", "4") if c.position == "learned" else ("0", "1", "3")
        out |= names_norm(p, f"{mine}.norm2", f"{its}1.net.{mlp[0]}.")
        out |= names_linear(p, f"{mine}.mlp.fc1", f"{its}1.net.{mlp[1]}.") | names_linear(
            p, f"{mine}.mlp.fc2", f"{its}1.net.{mlp[2]}."
        )
    return (
        out
        | names_norm(p, "norm", "transformer.norm.")
        | names_linear(p, "head", "mlp_head." if c.position == "learned" else "linear_head.")
    )


def lucidrains() -> list[Original]:
    base = replace(
        VIT, stem_pre_norm=True, stem_norm=True, query_bias=False, key_bias=False, value_bias=False, eps=1e-5
    )
    simple = dict(cls_token=False, pool="mean", position="sincos2d", position_trained=False, out_bias=False)

    def one(name: str, **config: Any) -> Original:
        return Original("vit_pytorch", name, replace(base, **config), builders.vit_pytorch.plain, lucidrains_names)

    return [
        one("ViT, cls"),
        one("ViT, mean", cls_token=False, pool="mean"),
        one("ViT, heads of 3", head_width=3),
        one("SimpleViT", **simple),
    ]


LIBRARIES: dict[str, Callable[[], list[Original]]] = {
    "timm": timm,
    "torchvision": torchvision,
    "transformers": huggingface,
    "vit_pytorch": lucidrains,
}


def absent() -> dict[str, str]:
    """Libraries that are not compared, and why."""
    out = {}
    for library in LIBRARIES:
        try:
            load(library)
        except (ImportError, RuntimeError) as error:
            out[library] = str(error)
    return out


def originals() -> list[Original]:
    """Every network of every library that is here."""
    missing = absent()
    return [o for library, listed in LIBRARIES.items() if library not in missing for o in listed()]


def libraries() -> Iterator[Check]:
    """All of their comparisons."""
    for o in originals():
        yield from compare(o)
