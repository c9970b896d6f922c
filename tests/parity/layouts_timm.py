"""Files of timm, torchvision and their relatives: a library's own module with random weights, and our tables' reading.

The state dict is recognised, and its config resolved from shapes and from what no tensor shows; our network gives the
library's logits; what our rows write again is what was read, to the bit, and loads strictly. timm opens the folders
that we write. CLIP's and DINOv2's files are written by our tables and read by timm.
"""

from __future__ import annotations

import functools
import importlib
import json
import re
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from convert import rules
from convert.dialects import LAYOUTS
from convert.layout import Facts
from convert.recognise.config import resolve
from convert.recognise.layouts import Recognition, which_layout
from convert.verify import Weights
from convert.verify import libraries as builders
from convert.verify.checks import Check, bits, values
from convert.verify.libraries.timm import network
from convert.verify.libraries.timm_eva import network as eva
from convert.verify.sides import ByRows
from vit_jax.models.vit_config import ViTConfig

from .cases import VIT
from .libraries import absent, load, timm, torchvision
from .sides import ours
from .weights import inputs, weights

NO_SIDE = LAYOUTS["timm@patch-matrix"].write_side  # of layouts that have none
UNSEEN = ("image", "heads", "activation", "eps", "pool", "position")  # what no tensor of these files tells
Arrays = dict[str, np.ndarray]
State = dict[str, torch.Tensor]


@dataclass(frozen=True)
class File:
    """A network of a library: `said` of its config, and what its older files call the tensors."""

    library: str
    name: str
    build: Callable[[], nn.Module]
    said: dict[str, Any]
    layout: str = "timm"
    older: Callable[[Arrays], Arrays] = lambda state: state
    load: Callable[[State, Any], State] = lambda state, module: state  # the library's own reader of such files
    angles: str = "none"  # rotary positions


def randomise(module: nn.Module, which: str, dtype: str) -> nn.Module:
    """Every parameter random, as tests.parity.weights has them; B: activations so small that eps shows."""
    generator = torch.Generator().manual_seed(0)
    for name, p in module.named_parameters():
        value = torch.randn(p.shape, generator=generator, dtype=torch.float64)
        if p.dim() in (2, 4):
            value = value / np.sqrt(np.prod(p.shape[1:]))
        elif p.dim() == 1:
            value = value * 0.3 + bool(re.search(r"(norm\w*|ln\w*)\.weight$|gamma(_\d)?$", name))
        if which == "B" and re.search(r"token|pos_embed|patch_embed|conv_proj|proj\.|fc2|mlp\.3|class", name):
            value = value * 0.003
        p.data = value
    return module.to(getattr(torch, dtype)).eval()


def run(module: nn.Module, images: np.ndarray) -> Arrays:
    """The module's logits of images [B, h, w, C]."""
    with torch.no_grad():
        return {"logits": module(torch.from_numpy(np.ascontiguousarray(images.transpose(0, 3, 1, 2)))).numpy()}


def compare(f: File) -> Iterator[Check]:
    """Layout, logits, the file written back, and timm's folder."""
    layout = LAYOUTS[f.layout]
    for which, dtype in (("A", "float64"), ("B", "float64"), ("A", "float32")):
        module = randomise(f.build(), which, dtype)
        file = f.older({k: v.detach().numpy().copy() for k, v in module.state_dict().items()})
        names = {k: v.shape for k, v in file.items()}
        known = layout.refuses("choice", names) or which_layout("file", Recognition.of(names), "", "") is layout
        yield Check(f.name, f.library, f"recognised as {f.layout}", 0.0 if known else np.inf, 0.0)
        config = resolve(layout, names, [("--set", f.said)], "file")
        parameters = rules.read(layout.rows(config), file)
        back = rules.write(layout.rows(config), parameters, names=file)
        yield bits(f.name, f.library, back, file)
        module.load_state_dict(f.load({k: torch.from_numpy(v) for k, v in back.items()}, module), strict=True)
        images = inputs(config, which=which)["images"].astype(dtype)
        logits = {"logits": ours(config, parameters, dtype).forward({"images": images})}
        yield values(f.name, f.library, f"a file of {dtype}, weights {which}", logits, run(module, images), dtype)
    if layout.write_side is not NO_SIDE and not layout.cannot(config):
        yield folder(f, config, parameters, images, module)


def folder(f: File, c: ViTConfig, parameters: Arrays, images: np.ndarray, module: nn.Module) -> Check:
    """The folder that we write, opened by timm itself; its config.json says the whole config."""
    layout = LAYOUTS[f.layout]
    written = rules.write(layout.rows(c), parameters)
    with tempfile.TemporaryDirectory() as place:
        side = layout.write_side(c, Facts())["config.json"]
        Path(place, "config.json").write_text(json.dumps(side))
        importlib.import_module("safetensors.numpy").save_file(written, Path(place, "model.safetensors"))
        opened = load("timm").create_model(f"local-dir:{place}", pretrained=True).eval()
    said = layout.read_side({"config.json": json.loads(json.dumps(side))}).config
    again = resolve(layout, {k: v.shape for k, v in written.items()}, [("its config.json", said)], "folder")
    exact = {"limit": 0.0} if f.angles == "none" else {}  # timm's own angles are less exact than those of `module`
    what, found = "the folder that we write, opened by timm", (run(module, images), run(opened, images))
    result = values(f.name, "timm", what, *found, "float32", **exact)
    return (
        result
        if layout.rows(again) == layout.rows(c) and again.eps == c.eps
        else replace(result, difference=np.inf, where="config.json")
    )


# --------------------------------------------------------------------------- networks of libraries


def in_timm() -> Iterator[File]:
    """timm's: those whose forward pass the suite compares, and what is only in files."""
    layers, vit = (importlib.import_module(name) for name in ("timm.layers", "timm.models.vision_transformer"))

    def one(
        name: str,
        said: dict[str, Any],
        layout: str = "timm",
        config: dict[str, Any] | None = None,
        older: Any = None,
        **options: Any,
    ) -> File:
        c = replace(VIT, **{k: v for k, v in said.items() if k in ("activation", "eps")}, **(config or {}))
        base = {"image": c.image, "heads": c.heads, "activation": c.activation, "eps": c.eps}
        more = (
            {}
            if older is None
            else {
                "older": older,
                "load": lambda state, module: vit.checkpoint_filter_fn(state, module, adapt_layer_scale=True),
            }
        )
        return File(
            "timm",
            name,
            lambda: network(c, **options),
            base | {"pool": "cls", "position": "learned"} | said,
            layout,
            **more,
        )

    for o in timm():
        said = {name: getattr(o.config, name) for name in UNSEEN}
        layout = "timm@gate-apart" if o.config.gated else "timm"
        yield File("timm", o.name, functools.partial(o.build, o.config), said, layout)
    mean = {"pool": "mean"}
    no_head = {"classes": 0, "pool": "cls_distill", "distill_token": True}
    yield one("norm after the class token is taken", {}, fc_norm=True)
    yield one("no positions", {"position": "none"}, pos_embed="none")
    yield one("norm in the stem", {}, embed_norm_layer="layernorm")
    yield one("packed SwiGLU", {"activation": "silu"}, mlp_layer=layers.SwiGLUPacked)
    yield one("packed gate of GELU", {"activation": "gelu"}, mlp_layer=layers.SwiGLUPacked)
    yield one(
        "gate apart, layer scale", {"activation": "silu"}, "timm@gate-apart", mlp_layer=layers.SwiGLU, init_values=0.1
    )
    yield one("mean, norm before, class token", mean, global_pool="avg", fc_norm=False)
    yield one(
        "mean, registers without positions",
        mean,
        global_pool="avg",
        fc_norm=True,
        class_token=False,
        reg_tokens=3,
        no_embed_class=True,
    )
    yield one(
        "mean of all, no prefix position",
        {"pool": "mean_all"},
        global_pool="avg",
        fc_norm=True,
        pool_include_prefix=True,
        reg_tokens=1,
        no_embed_class=True,
    )
    yield one(
        "attention pooling beside tokens, norm after", {"pool": "map"}, global_pool="map", reg_tokens=2, fc_norm=True
    )
    yield one("no norm, registers (RADIO)", {}, final_norm=False, reg_tokens=3, no_embed_class=True)
    yield one("pre-norm, eps 1e-6", {"activation": "quick_gelu"}, pre_norm=True)
    yield one("ReLU, eps 1e-5", {"activation": "relu", "eps": 1e-5}, qk_norm=True)
    yield one("inner norms (BEiT-3)", {"eps": 1e-5}, scale_attn_norm=True, scale_mlp_norm=True)
    yield one("norms after the branches", {"branch_norm": True}, config={"branch_norm": True})
    rms = {"norm_kind": "rms"}
    yield one("RMS norms", rms, config=rms | {"norm_bias": True}, qk_norm=True)
    aim = rms | mean | {"activation": "silu", "eps": 1e-5}
    options = dict(cls_token=False, stem_norm=True, gated=True, out_bias=False, mlp_bias=False) | rms | mean
    options |= dict.fromkeys(("query_bias", "key_bias", "value_bias"), False)
    yield one("RMS norms, gate apart (AIMv2)", aim, "timm@gate-apart", options, gate_apart=True)
    every = {"pool": "map_all"}
    yield one("attention pooling over all tokens", every, config=every | {"cls_token": False, "registers": 2})
    yield one("no head", {}, config={"classes": 0})
    yield one("distilled, no head", {"pool": "cls_distill"}, config=no_head)
    yield one(
        "layer scales as gamma_1",
        {},
        "timm@deit3",
        init_values=0.1,
        no_embed_class=True,
        older=lambda s: renamed(s, r"ls(\d)\.gamma", r"gamma_\1"),
    )
    yield one(
        "patches as a matrix",
        {"patch": VIT.patch, "channels": 3},
        "timm@patch-matrix",
        older=lambda s: s | {"patch_embed.proj.weight": s["patch_embed.proj.weight"].reshape(VIT.width, -1)},
    )


# {what is special: a network of timm's Eva}; DINOV3, EVA02, ROPE and PE as timm's published ones have it.
ROTARY = dict(rotary="axial", width=16, heads=2, hidden=24)
NO_KEY = dict(key_bias=False)
SILU = dict(gated=True, activation="silu")
DINOV3 = ROTARY | NO_KEY | dict(position="none", registers=4, layer_scale=1.0, eps=1e-5)
INDICES = dict(rotary_places="indices", rotary_pairs="neighbours")
EVA02 = ROTARY | NO_KEY | SILU | INDICES | dict(rotary_base=1e4, rotary_grid=16, pool="mean")
MEAN = dict(final_norm=False, head_norm=True)
ROPE = ROTARY | INDICES | dict(rotary_first="columns", layer_scale=1.0)
PE = ROTARY | INDICES | dict(rotary_first="columns", rotary_base=1e4, rotary_offset=1.0, rotary_grid=(4, 5), eps=1e-5)
PE |= dict(stem_bias=False, pre_norm=True)
MIXED = dict(rotary="mixed", rotary_base=100.0)
EVA: dict[str, dict[str, Any]] = {
    "timm-eva, EVA": NO_KEY | MEAN | dict(pool="mean"),
    "timm-eva, EVA-02 Tiny": EVA02 | MEAN,
    "timm-eva, EVA-02 Enormous": NO_KEY | dict(branch_norm=True),
    "timm-eva, DINOv3": DINOV3,
    "timm-eva, DINOv3 without biases, mean": DINOV3 | dict(query_bias=False, value_bias=False, pool="mean"),
    "timm-eva, RoPE-ViT": ROPE | dict(position="none"),
    "timm-eva, RoPE-ViT beside positions": ROPE | dict(cls_position=False),
    "timm-eva, RoPE-ViT mixed": ROPE | MIXED | dict(position="none"),
    "timm-eva, RoPE-ViT mixed beside positions, q/k norm": ROPE | MIXED | dict(cls_position=False, qk_norm=True),
    "timm-eva, Perception Encoder": PE | dict(pool="map_all", pool_heads=4, pool_hidden=32),
    "timm-eva, Perception Encoder without class token": PE | dict(pool="map", cls_token=False, rotary_offset=0.0),
    "timm-eva, Perception Encoder without last norm": PE | dict(final_norm=False, pool="mean", classes=0),
    "timm-eva@gate-apart, DINOv3 with gate": DINOV3 | SILU,
    "timm-eva@apart, EVA-02 Base": EVA02 | MEAN | dict(mlp_norm=True),
    "timm-eva@apart, EVA-02 CLIP": EVA02 | dict(mlp_norm=True, attention_norm=True, pool="cls"),
}


def in_timm_eva() -> Iterator[File]:
    """timm's Eva, in the forms in which it is published; its angles are computed in float64 (wide_angles)."""
    for name, config in EVA.items():
        layout, c = name.partition(",")[0], replace(VIT, **config)
        seen = (n for n, field in LAYOUTS[layout].fields.items() if field.solve or len(field.among) == 1)
        said = {n: getattr(c, n) for n in LAYOUTS[layout].fields.keys() - {*seen}}
        said |= {n: getattr(c, n) for n in ("heads", "pool", "rotary", "branch_norm")}
        forms = dict(apart="@apart" in layout, gate_apart="@" in layout)
        yield File("timm", name, functools.partial(eva, c, **forms), said, layout, angles=c.rotary)


def renamed(state: Arrays, pattern: str, by: str) -> Arrays:
    """A state dict with other names."""
    return {re.sub(pattern, by, name): value for name, value in state.items()}


def in_torchvision() -> Iterator[File]:
    """torchvision's, under both generations of names: its class renames the older by itself."""
    for o in torchvision():
        said = {"image": o.config.image, "heads": o.config.heads}
        yield File("torchvision", o.name, functools.partial(o.build, o.config), said, "torchvision@2")
        yield File(
            "torchvision",
            f"{o.name}, older names",
            functools.partial(o.build, o.config),
            said,
            "torchvision@1",  # type: ignore[misc]
            lambda s: renamed(renamed(s, r"mlp\.0", "mlp.linear_1"), r"mlp\.3", "mlp.linear_2"),
        )


# --------------------------------------------------------------------------- files of other origin


@dataclass(frozen=True)
class Relative:
    """A file of ours under names that timm's own readers take, and tensors beside that serve training alone."""

    layout: str
    name: str
    config: dict[str, Any]
    extra: dict[str, tuple[int, ...]] = field(default_factory=dict)


def relatives() -> Iterator[Relative]:
    """CLIP's image tower, DINOv2."""
    clip = dict(stem_bias=False, pre_norm=True, eps=1e-5, head_bias=False, image=4, patch=2)
    dino = dict(registers=3, classes=0, layer_scale=1.0)
    gated = dict(gated=True, activation="silu")
    mask = {"mask_token": (1, VIT.width)}
    for name in ("clip@whole", "clip"):
        yield Relative(name, "quick GELU", clip | dict(activation="quick_gelu"))
        yield Relative(name, "GELU", clip)
    yield Relative("dinov2", "registers", dino, mask)
    yield Relative("dinov2", "gated mlp", dino | gated | dict(registers=0), mask)
    yield Relative("dinov2", "registers, gated mlp", dino | gated, mask)


def compare_relative(r: Relative) -> Iterator[Check]:
    """Our network against timm's of the file that we write, as timm reads it."""
    subject, c, layout = f"{r.layout}, {r.name}", replace(VIT, **r.config), LAYOUTS[r.layout]
    for which, dtype in (("A", "float64"), ("B", "float64"), ("A", "float32")):
        p = {k: v.astype(dtype) for k, v in weights(c, which).items()}
        extra = {f"carried.{name}": np.ones(shape, dtype) for name, shape in r.extra.items()}
        file = rules.write(layout.rows(c), p | extra)
        names = {k: v.shape for k, v in file.items()}
        found = which_layout("file", Recognition.of(names), "", "")
        said = {name: getattr(c, name) for name in UNSEEN if len(layout.fields[name].among) != 1}
        again = resolve(layout, names, [("--set", said)], "file")
        wrong = found is not layout or layout.rows(again) != layout.rows(c)
        yield Check(subject, "timm", "recognised and resolved", np.inf if wrong else 0.0, 0.0)
        yield bits(subject, "timm", rules.read(layout.rows(again), file), p | extra)
        built, why = builders.build(Weights("file", layout, c, file))
        assert built is not None, why
        given = inputs(c, which=which)
        mine, theirs = ours(c, p, dtype).forward(given), ByRows(built, c, dtype).forward(given)
        yield values(
            subject, "timm", f"a file of {dtype}, weights {which}", {"logits": mine}, {"logits": theirs}, dtype
        )


def layouts() -> Iterator[Check]:
    """Every comparison whose library is here."""
    missing = absent()
    if "torchvision" not in missing:
        for f in in_torchvision():
            yield from compare(f)
    if "timm" not in missing:
        for f in (*in_timm(), *in_timm_eva()):
            yield from compare(f)
        for r in relatives():
            yield from compare_relative(r)
