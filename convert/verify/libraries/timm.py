"""timm's VisionTransformer, of timm's own files and of those that it reads: CLIP's, DINOv2's, Google's .npz."""

from __future__ import annotations

import functools
import importlib
import re
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from vit_jax.config.fields import pair
from vit_jax.models.vit_config import ViTConfig

from ... import rules
from ...dialects import LAYOUTS, timm_folder
from ..weights import Weights
from .built import (
    Built,
    NotLoaded,
    Places,
    Unavailable,
    fill_module,
    load,
    of_images,
    tensors,
    to_float64,
    with_version,
)

POOLS = {"cls": "token", "mean": "avg", "mean_all": "avg", "map": "map", "map_all": "map"}


def network(c: ViTConfig, gate_apart: bool = False, **options: Any) -> Any:
    """timm's network of a config, with random weights."""
    load("timm")
    built = _options(c, gate_apart)
    if c.pool == "cls_distill":
        return importlib.import_module("timm.models.deit").VisionTransformerDistilled(**built | options)
    if c.pool not in POOLS:
        raise Unavailable(f"timm has no pooling {c.pool!r}")
    built |= {
        "global_pool": POOLS[c.pool],
        "pool_include_prefix": c.pool in ("mean_all", "map_all"),
        "class_token": c.cls_token,
        "reg_tokens": c.registers,
        "pos_embed": "none" if c.position == "none" else "learn",
        "no_embed_class": bool(c.prefix) and c.position_rows == c.patches,
        "fc_norm": c.head_norm,
        "final_norm": c.final_norm or c.head_norm,
    }
    return importlib.import_module("timm.models.vision_transformer").VisionTransformer(**built | options)


def _options(c: ViTConfig, gate_apart: bool) -> dict[str, Any]:
    """What timm's networks are built with, whatever their pooling."""
    from torch import nn

    layers = importlib.import_module("timm.layers")
    acts = {
        "gelu": nn.GELU,
        "gelu_tanh": functools.partial(nn.GELU, approximate="tanh"),
        "relu": nn.ReLU,
        "silu": nn.SiLU,
    }
    blocks = importlib.import_module("timm.models.vision_transformer")
    norms = {"layer": functools.partial(nn.LayerNorm, eps=c.eps, bias=c.norm_bias)}
    norms |= {"rms": functools.partial(layers.RmsNorm, eps=c.eps)}
    act = acts.get(c.activation) or layers.get_act_layer(c.activation)
    hidden, mlp = c.hidden, {}
    if c.gated and gate_apart:
        mlp = {"mlp_layer": layers.SwiGLU}
    elif c.gated:
        hidden, mlp = 2 * c.hidden, {"mlp_layer": functools.partial(layers.SwiGLUPacked, act_layer=act)}
    return {
        "img_size": pair(c.image),
        "patch_size": pair(c.patch),
        "in_chans": c.channels,
        "num_classes": c.classes,
        "embed_dim": c.width,
        "depth": c.depth,
        "num_heads": c.heads,
        "mlp_ratio": (hidden + 0.5) / c.width,  # timm cuts width times mlp_ratio down to an integer
        **timm_folder.blocks(c),
        "init_values": c.layer_scale or None,
        "pre_norm": c.pre_norm,
        "block_fn": blocks.ResPostBlock if c.branch_norm else blocks.Block,
        "norm_layer": norms[c.norm_kind],
        "act_layer": act,
        "embed_norm_layer": norms[c.norm_kind] if c.stem_norm else None,
        **mlp,
    }


def own_file(weights: Weights) -> Built:
    """A file of timm's names; older forms are read by timm's own filter."""
    c: Any = weights.config
    apart = any(".fc1_g." in name for name in weights.tensors)
    after = c.pool == "cls" and "fc_norm.weight" in weights.tensors  # of one token the norm may follow the pooling
    module = network(c, apart, **({"fc_norm": True} if after else {}))
    state = tensors(weights.tensors)
    if {n: x.shape for n, x in state.items()} != {n: x.shape for n, x in module.state_dict().items()}:
        state = _filter_state(state, module, adapt_layer_scale=True)
    return _with_names(c, fill_module(module, state), "timm@gate-apart" if apart else "timm", normed=not after)


def clip(weights: Weights) -> Built:
    """A file of CLIP's image tower, read by timm, which knows it by the prefix of its names."""
    c: Any = weights.config
    module = network(c)
    tower = {f"visual.{name.removeprefix('visual.')}": x for name, x in tensors(weights.tensors).items()}
    return _with_names(c, fill_module(module, _filter_state(tower, module)))


def dinov2(weights: Weights) -> Built:
    """A file of DINOv2's own names, read by timm, which knows it by its mask token.

    timm adds the class token's position to that token where there are registers: the parameters of both are then other
    ones than ours, and their gradients are not compared.
    """
    c: Any = weights.config
    module = network(c, **({"no_embed_class": True} if c.registers else {}))
    state = tensors({"mask_token": np.zeros((1, c.width)), **weights.tensors})
    built = _with_names(c, fill_module(module, _filter_state(state, module)))
    if c.registers:
        built.rows = [row for row in built.rows if not {"cls_token", "position"} & set(row.ours)]
    return built


def google(weights: Weights) -> Built:
    """A .npz of Google's vision_transformer or big_vision, read by timm's loader of such files."""
    c: Any = weights.config
    if c.head_hidden:
        raise Unavailable("timm's loader of .npz files leaves out the hidden layer of a head")
    if c.position != "learned":
        raise Unavailable(f"timm's network has no positions of the kind {c.position!r}")
    arrays = _modernise({name: to_float64(array) for name, array in weights.tensors.items()})
    patches = arrays.get("embedding/kernel", np.zeros(0))
    if c.channels != 3 and not np.array_equal(patches.astype(np.float32), patches):
        raise Unavailable(
            f"timm's loader rounds patches of {c.channels} channels to float32, and this file's are finer"
        )
    import torch

    module = network(c).double()
    for parameter in module.parameters():
        parameter.data.fill_(np.nan)  # so that a tensor that the loader passes over shows
    with tempfile.TemporaryDirectory() as folder, torch.no_grad():
        np.savez(path := str(Path(folder, "weights.npz")), **arrays)  # type: ignore[arg-type]
        try:
            module.load_pretrained(path)
        except NotImplementedError as error:
            raise Unavailable(f"timm's loader does not take {c.channels} channels ({error})") from error
        except (KeyError, RuntimeError, ValueError) as error:
            raise NotLoaded(f"timm's loader of .npz files: {error}") from error
    if left := [name for name, x in module.named_parameters() if x.isnan().all()]:
        raise NotLoaded(f"timm's loader of .npz files finds no {', '.join(left[:3])}")
    return _with_names(c, module)


def _modernise(arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Google's older names as big_vision names them today, by its own `fix_old_checkpoints` (big_vision/models/vit.py).

    timm reads today's, and the files before Linen as they are.
    """
    if any("MultiHeadDotProductAttention_1/" in name for name in arrays):
        return arrays
    inlined = ("probe", "MlpBlock_0/", "MultiHeadDotProductAttention_0/", "LayerNorm_0/")
    names = {name: re.sub(r"^Transformer/(posembed_input/)?(?=pos_embedding$)", "", name) for name in arrays}
    return {("MAPHead_0/" if new.startswith(inlined) else "") + new: arrays[name] for name, new in names.items()}


def _filter_state(state: dict[str, Any], module: Any, **options: Any) -> dict[str, Any]:
    """A state dict as timm's own reader of other names gives it."""
    return dict(
        importlib.import_module("timm.models.vision_transformer").checkpoint_filter_fn(state, module, **options)
    )


def _with_names(c: ViTConfig, module: Any, names: str = "timm", normed: bool = True) -> Built:
    """The module with timm's own names of its parameters; `normed`: its last norm is before the pooling."""
    places: Places = {"tokens": ("blocks.0", "in"), **{f"blocks.{i}": (f"blocks.{i}", "out") for i in range(c.depth)}}
    places |= {"features": ("norm", "out")} if c.final_norm and normed else {}
    rows = rules.narrow(LAYOUTS[names].rows(c), module.state_dict())
    return Built(with_version("timm"), module, rows, of_images, places)
