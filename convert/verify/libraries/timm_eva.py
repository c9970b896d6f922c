"""timm's Eva, of timm's own files: EVA, EVA-02, DINOv3, Perception Encoder and RoPE-ViT."""

from __future__ import annotations

import contextlib
import functools
import importlib
from collections.abc import Iterator
from typing import Any

from vit_jax.config.fields import pair
from vit_jax.models.vit_config import ViTConfig

from ... import rules
from ...dialects import LAYOUTS, timm_eva_folder
from ...layout import Layout
from ..weights import Weights
from .built import Built, Places, Unavailable, fill_module, load, of_images, tensors, with_version

POOLS = {"cls": "token", "mean": "avg", "map": "map", "map_all": "map"}


def _rotary(c: ViTConfig) -> dict[str, Any]:
    """The arguments of timm's Eva that state rotary positions."""
    centres = c.rotary_places == "centres"
    return {
        "use_rot_pos_emb": True,
        "rope_type": "mixed" if c.rotary == "mixed" else "dinov3" if centres else "cat",
        "rope_temperature": c.rotary_base,
        "rope_rotate_half": c.rotary_pairs == "halves",
        "rope_grid_indexing": {"rows": "ij", "columns": "xy"}[c.rotary_first],
        "rope_grid_offset": c.rotary_offset,
        "ref_feat_shape": pair(c.rotary_grid) if c.rotary_grid else None,
    }


def network(c: ViTConfig, apart: bool = False, gate_apart: bool = False, **options: Any) -> Any:
    """timm's network of a config, in float64 with random weights."""
    load("timm")
    import torch

    if c.pool not in POOLS:
        raise Unavailable(f"timm has no pooling {c.pool!r}")
    built: dict[str, Any] = {
        "img_size": pair(c.image),
        "patch_size": pair(c.patch),
        "in_chans": c.channels,
        "num_classes": c.classes,
        "global_pool": POOLS[c.pool],
        "embed_dim": c.width,
        "depth": c.depth,
        "num_heads": c.heads,
        **timm_eva_folder.blocks(c, apart, gate_apart),
        "mlp_ratio": (c.hidden + 0.5) / c.width,  # timm cuts width times mlp_ratio down to an integer
        "norm_layer": functools.partial(torch.nn.LayerNorm, eps=c.eps),
        "no_embed_class": bool(c.prefix) and c.position_rows == c.patches,
        "use_abs_pos_emb": c.position != "none",
        "use_post_norm": c.branch_norm,
        "use_pre_transformer_norm": c.pre_norm,
        "use_post_transformer_norm": c.final_norm,
        "use_fc_norm": c.head_norm,
        "attn_pool_num_heads": c.resolved_pool_heads,
        "attn_pool_mlp_ratio": ((c.pool_hidden or c.hidden) + 0.5) / c.width,
    }
    built |= _rotary(c) if c.rotary != "none" else {}
    with wide_angles():
        module = importlib.import_module("timm.models.eva").Eva(**built | options, dtype=torch.float64)
    if c.rotary == "mixed":  # whose angles are computed in each call
        widen(module.rope)
    return module


@contextlib.contextmanager
def wide_angles() -> Iterator[None]:
    """A context in which timm's rotary code has float64 angles: float32, a float64 network is exact to 1e-10 alone."""
    import torch

    module, tensor = importlib.import_module("timm.layers.pos_embed_sincos"), torch.Tensor

    class Wide:
        float32 = torch.float64

        def __getattr__(self, name: str) -> Any:
            return getattr(torch, name)

    owners = [module, *(each for each in vars(module).values() if isinstance(each, type))]
    found = {f for owner in owners for f in vars(owner).values() if getattr(f, "__defaults__", None)}
    functions = [f for f in found if torch.float32 in f.__defaults__]
    defaults = [f.__defaults__ for f in functions]
    as_float = tensor.float
    try:
        module.torch, tensor.float = Wide(), tensor.double  # type: ignore[attr-defined, method-assign, assignment]
        for f, values in zip(functions, defaults, strict=True):
            f.__defaults__ = tuple(torch.float64 if value is torch.float32 else value for value in values)
        yield
    finally:
        module.torch, tensor.float = torch, as_float  # type: ignore[attr-defined, method-assign]
        for f, values in zip(functions, defaults, strict=True):
            f.__defaults__ = values


def widen(rope: Any) -> None:
    """Let a module of learned frequencies, and copies of it, compute its angles within `wide_angles`."""
    plain = type(rope)

    def get_embed(self: Any, *args: Any, **kwargs: Any) -> Any:
        with wide_angles():
            return plain.get_embed(self, *args, **kwargs)

    rope.__class__ = type(plain.__name__, (plain,), {"get_embed": get_embed})


def own_file(weights: Weights) -> Built:
    """A file of timm's own names."""
    c: Any = weights.config
    apart, gate = (any(part in name for name in weights.tensors) for part in (".q_proj.", ".fc1_g."))
    return _wrap_module(fill_module(network(c, apart, gate), tensors(weights.tensors)), weights.layout, c)


def _wrap_module(module: Any, layout: Layout, c: ViTConfig) -> Built:
    """timm's network with what can be seen and trained of it, under the names of one of timm's layouts."""
    places: Places = {"tokens": ("blocks.0", "in"), **{f"blocks.{i}": (f"blocks.{i}", "out") for i in range(c.depth)}}
    places |= {"features": ("norm", "out")} if c.final_norm else {}
    rows = rules.narrow(layout.rows(c), module.state_dict())
    return Built(with_version("timm"), module, rows, of_images, places)


def dinov3(weights: Weights) -> Built:
    """A file of Meta's names of DINOv3, read by timm, which knows it by its registers.

    timm computes the periods of its rotary positions. Those that a file has rounded to bfloat16 are put in their place.
    """
    c: Any = weights.config
    if not c.registers:
        raise Unavailable("timm knows DINOv3 under Meta's names by its registers, and there are none")
    if not (c.out_bias and c.mlp_bias):
        raise Unavailable("timm's network has biases after attention and in its mlp")
    module = network(c, gate_apart=c.gated)
    state = importlib.import_module("timm.models.eva").checkpoint_filter_fn(tensors(weights.tensors), module)
    module = fill_module(module, state)
    if c.rotary_periods != "exact":
        module.rope.periods.copy_(tensors({"": weights.tensors["rope_embed.periods"]})[""])
        with wide_angles():
            module.rope._cache_embed(module.rope.feat_shape)
    return _wrap_module(module, LAYOUTS["timm-eva@gate-apart" if c.gated else "timm-eva"], c)
