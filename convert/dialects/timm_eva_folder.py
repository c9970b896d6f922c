"""timm's config.json for its Eva class: rotary positions and what else no tensor shows, as arguments of the class.

As in timm_folder.py, a folder that is written names an architecture for the epsilon of the norms, and states everything
else by arguments. One that is read states what its architecture does, changed by the arguments that it gives.
"""

from __future__ import annotations

import functools
import re
from typing import Any

from vit_jax.config.fields import pair
from vit_jax.errors import UserError
from vit_jax.models.vit_config import ViTConfig

from ..layout import Facts, Json
from . import timm_folder
from .architectures import name_of
from .timm_folder import choose_value, ratio

POOLS = {"token": "cls", "avg": "mean", "map": "map_all"}
KINDS = {"cat": ("axial", "indices"), "mixed": ("mixed", "indices"), "dinov3": ("axial", "centres")}
AXES = {"ij": "rows", "xy": "columns"}
KEPT = ("heads", "eps", "branch_norm", "pool_heads")  # an architecture's, where not changed
NAMES = {1e-6: "eva02_tiny_patch14_224", 1e-5: "vit_pe_core_tiny_patch16_384"}  # without layer scale, by their epsilon
OWN = re.compile(r"(eva02|eva_giant)_.*|vit_.*(dinov3|rope|pe_|lingbot).*")  # names of networks of the class
PLAIN = {"use_rot_pos_emb": False, "rope_type": "cat", "rope_temperature": 1e4, "rope_grid_indexing": "ij"}
PLAIN |= {"rope_grid_offset": 0.0, "rope_rotate_half": False, "ref_feat_shape": None}  # the class's own defaults


def cannot_state(c: ViTConfig) -> list[str]:
    """A clause for an epsilon that no architecture of the class has."""
    return [] if c.eps in NAMES else [f"eps is {c.eps!r}, but timm's config.json can only state 1e-06 or 1e-05"]


def _rotary_arguments(fields: Json) -> Json:
    """The arguments that state rotary positions; `fields` are all of a config that speak of them."""
    if fields["rotary"] == "none":
        return dict(PLAIN)
    kind = (fields["rotary"], fields["rotary_places"])
    grid = fields["rotary_grid"]
    return {
        "use_rot_pos_emb": True,
        "rope_type": next(name for name, each in KINDS.items() if each == kind),
        "rope_temperature": fields["rotary_base"],
        "rope_grid_indexing": next(name for name, first in AXES.items() if first == fields["rotary_first"]),
        "rope_grid_offset": fields["rotary_offset"],
        "rope_rotate_half": fields["rotary_pairs"] == "halves",
        "ref_feat_shape": list(pair(grid)) if grid else None,
    }


def _rotary_fields(args: Json) -> Json:
    """Config fields of the rotary positions that arguments state, as far as they do. Raises UserError on others."""
    if not args.get("use_rot_pos_emb", True):
        return {"rotary": "none"}
    fields: Json = {}
    if "rope_type" in args:
        fields["rotary"], fields["rotary_places"] = choose_value("rope_type", args["rope_type"], KINDS)
    if "rope_grid_indexing" in args:
        fields["rotary_first"] = choose_value("rope_grid_indexing", args["rope_grid_indexing"], AXES)
    if "rope_rotate_half" in args:
        fields["rotary_pairs"] = "halves" if args["rope_rotate_half"] else "neighbours"
    if "rope_temperature" in args:
        fields["rotary_base"] = float(args["rope_temperature"])
    offset, reference = float(args.get("rope_grid_offset", 0.0)), args.get("ref_feat_shape")
    if args.get("rope_type") == "cat":
        fields["rotary_offset"] = offset
        rows, columns = pair(tuple(reference) if isinstance(reference, list) else reference or 0)
        fields["rotary_grid"] = rows if rows == columns else (rows, columns)
    elif args.get("rope_type") == "mixed":  # to which timm gives neither
        fields |= {"rotary_offset": 0.0, "rotary_grid": 0}
    elif args.get("rope_type") == "dinov3" and offset:
        raise UserError(
            "config.json",
            f"rope_grid_offset is {offset} with rope_type 'dinov3', but rotary positions of centres have no offset "
            "here",
            "it cannot be converted",
        )
    return fields


def arguments(args: Json, known: Json) -> Json:
    """Config fields from model_args and, where it does not state them, from the architecture's."""
    fields = {ours: known[ours] for ours in KEPT if ours in known}
    fields |= {ours: args[theirs] for ours, theirs in timm_folder.PLAIN.items() if theirs in args}
    fields |= _rotary_fields({**(_rotary_arguments(known) if "rotary" in known else {}), **args})
    if "use_post_norm" in args:
        fields["branch_norm"] = bool(args["use_post_norm"])
    if "attn_pool_num_heads" in args:
        fields["pool_heads"] = args["attn_pool_num_heads"] or 0
    if args.get("global_pool") is not None:
        fields["pool"] = choose_value("global_pool", args["global_pool"], POOLS)
    elif "pool" in known:
        fields["pool"] = known["pool"]
    return fields


read_side = functools.partial(timm_folder.read_side, arguments=arguments)


def blocks(c: ViTConfig, apart: bool, gate_apart: bool) -> dict[str, Any]:
    """The arguments of timm's Eva that state its blocks and prefix tokens."""
    return {
        "qkv_bias": c.query_bias,
        "qkv_fused": not apart,
        "qk_norm": c.qk_norm,
        "swiglu_mlp": c.gated,
        "swiglu_align_to": int(gate_apart),  # a width that 1 divides, which has timm keep the gate apart
        "scale_mlp": c.mlp_norm,
        "scale_attn_inner": c.attention_norm,
        "attn_type": "rope" if c.key_bias else "eva",
        "init_values": c.layer_scale or None,
        "class_token": c.cls_token,
        "num_reg_tokens": c.registers,
    }


def write_side(c: ViTConfig, beside: Facts, apart: bool = False, gate_apart: bool = False) -> dict[str, Json]:
    """The config.json with which `timm.create_model("local-dir:FOLDER", pretrained=True)` builds the network -> {file
    name: JSON}.
    """
    args: dict[str, Any] = {
        **timm_folder.sizes(c),
        "mlp_ratio": ratio(c.hidden, c.width),
        **blocks(c, apart, gate_apart),
        "no_embed_class": not (c.cls_position if c.cls_token else c.register_position),
        "use_abs_pos_emb": c.position == "learned",
        **_rotary_arguments(vars(c)),
        "use_post_norm": c.branch_norm,
        "use_pre_transformer_norm": c.pre_norm,
        "use_post_transformer_norm": c.final_norm,
        "use_fc_norm": c.head_norm,
        "attn_pool_num_heads": c.resolved_pool_heads,
        "attn_pool_mlp_ratio": ratio(c.pool_hidden or c.hidden, c.width),
    }
    pool = next(name for name, ours in POOLS.items() if ours.removesuffix("_all") == c.pool.removesuffix("_all"))
    return timm_folder.folder(c, beside, name_of(c, OWN) or NAMES[c.eps], pool, args)
