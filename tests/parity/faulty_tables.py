"""Faults planted in every layout's table, each to be caught by a computation that the table has no part in.

A table that reads as wrongly as it writes passes every comparison of tensors. So a file is written by the faulty table
and computed independently of it: by the library that `--verify` uses or, where there is none, by a network of this
suite that was written by hand under the layout's names.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any
from unittest import mock

import numpy as np
import torch

from convert import rules
from convert.dialects import LAYOUTS
from convert.operations import TRANSPOSE, Order
from convert.rules import Row
from convert.verify import Weights
from convert.verify.checks import Check, values
from convert.verify.libraries import build, library_of
from convert.verify.sides import ByRows
from vit_jax.config.fields import pair
from vit_jax.models.captioner_config import CaptionerConfig
from vit_jax.models.resnet_config import ResNetConfig
from vit_jax.models.transformer_config import TransformerConfig
from vit_jax.models.vit_config import ViTConfig

from . import layouts_captions, layouts_notebooks, layouts_timm, layouts_vit_pytorch
from .cases import CAPTIONER, T5, T5_1, VIT, Config
from .layouts_seq2seq import BART, M2M, MARIAN, MBART, NOTEBOOK, T5_BASE, T5_ENCODER, UMT5, VECTORS, Notebook, some
from .layouts_vit_pytorch import DUAL, NO_CLASS, SIMPLE, TOKEN
from .sides import ours
from .weights import inputs, weights

Rows = list[Row]
TANH, SQUARE = replace(VIT, activation="gelu_tanh"), replace(VIT, image=4, patch=2)
NO_TOKEN = dict(cls_token=False, pool="map")
CLIP = replace(SQUARE, stem_bias=False, pre_norm=True, eps=1e-5, head_bias=False, activation="quick_gelu")
DINO = replace(VIT, registers=3, classes=0, layer_scale=1.0)
GATED = dict(gated=True, activation="silu")
HF_DINO = replace(SQUARE, hidden=16, layer_scale=1.0, pool="cls_mean")
HF_DINOV3 = replace(
    SQUARE,
    image=(4, 6),
    width=16,
    eps=1e-5,
    layer_scale=1.0,
    key_bias=False,
    position="none",
    rotary="axial",
    classes=0,
)
HF_SIGLIP = replace(SQUARE, cls_token=False, pool="mean", activation="gelu_tanh")
TEACHER = dict(distill_token=True, distill_head=True, pool="cls_distill")
HEADLESS = dict(outputs=0, tie="embeddings")
PLAIN_VECTORS = replace(VECTORS, encoder_depth=2, decoder_depth=2, activation="relu")
# As ViT and GPT-2 have it, of two widths.
VIT_GPT2 = replace(
    CAPTIONER,
    vit=replace(CAPTIONER.vit, registers=0, eps=1e-12),
    text=replace(
        CAPTIONER.text,
        activation="gelu_tanh",
        eps=1e-5,
        position="learned",
        outputs=9,
        tie="decoder",
        output_bias=False,
    ),
)
RESNET = ResNetConfig(image=(9, 8), classes=5, stages=(2, 1, 1, 1), width=4, hidden=6, groups=2)
# {layout, and where there are several what is special: a network of it}
EXAMPLES: dict[str, Any] = {
    "vit-jax@vit": VIT,
    "vit-jax@transformer": MARIAN,
    "vit-jax@captioner": CAPTIONER,
    "vit-jax@resnet": RESNET,
    "torch-ref@vit": VIT,
    "torch-ref@transformer": MARIAN,
    "torch-ref@captioner": CAPTIONER,
    "timm": VIT,
    "timm, gated": replace(VIT, **GATED),
    "timm, map": replace(TANH, **NO_TOKEN),
    "timm, all tokens": replace(
        VIT,
        registers=2,
        register_position=True,
        layer_scale=0.1,
        qk_norm=True,
        pool="mean",
        final_norm=False,
        head_norm=True,
    ),
    "timm, no positions": replace(VIT, position="none"),
    "timm, distilled without head": replace(VIT, **{**TEACHER, "distill_head": False}, classes=0),
    "timm, norms inside": replace(VIT, attention_norm=True, mlp_norm=True),
    "timm@gate-apart": replace(VIT, **GATED, stem_norm=True),
    "timm@gate-apart, RMS": replace(VIT, **GATED, norm_kind="rms", stem_norm=True),
    "timm@patch-matrix": replace(VIT, **TEACHER),
    "timm@deit3": replace(VIT, layer_scale=1.0, cls_position=False),
    **{name: replace(VIT, **config) for name, config in layouts_timm.EVA.items()},
    "torchvision@1": SQUARE,
    "torchvision@2": replace(SQUARE, head_hidden=6),
    "torchvision-resnet": RESNET,
    "torchvision-resnet, two convolutions a block": replace(RESNET, bottleneck=False, hidden=4, groups=1),
    "clip": CLIP,
    "clip@whole": replace(CLIP, activation="gelu"),
    "dinov2": DINO,
    "dinov2, gated": replace(DINO, **GATED),
    "dinov2, gated without registers": replace(DINO, **GATED, registers=0),
    "dinov3": replace(HF_DINOV3, registers=2, rotary_periods="bfloat16"),
    "dinov3, gated without biases": replace(HF_DINOV3, **GATED, registers=3, query_bias=False, value_bias=False),
    "augreg@pre-linen": TANH,
    "augreg@linen": replace(TANH, cls_token=False, pool="mean"),
    "big-vision@loop": replace(TANH, cls_position=False),
    "big-vision@scan": replace(TANH, cls_token=False, pool="mean"),
    "big-vision@2021": replace(TANH, **NO_TOKEN),
    "big-vision@2021-inlined": replace(TANH, **NO_TOKEN),
    "huggingface@v4": replace(VIT, eps=1e-12, **TEACHER),
    "huggingface@v5": replace(TANH, query_bias=False, key_bias=False, value_bias=False),
    "huggingface@v4, no head": replace(VIT, classes=0),
    "huggingface@v4, pooler": replace(VIT, classes=0, head_hidden=8),
    "huggingface-dinov2@v4": replace(HF_DINO, registers=2),
    "huggingface-dinov2@v4, gated, no registers": replace(HF_DINO, **GATED),
    "huggingface-dinov2@v5": replace(HF_DINO, **GATED, registers=3, classes=0, pool="cls"),
    "huggingface-dinov2@v5, plain": replace(HF_DINO, classes=0, pool="cls", activation="gelu_tanh"),
    "huggingface-dinov3": replace(HF_DINOV3, registers=2),
    "huggingface-dinov3, gated": replace(HF_DINOV3, **GATED, query_bias=False, value_bias=False, image=(8, 4)),
    "huggingface-siglip": replace(HF_SIGLIP, classes=0, pool="map"),
    "huggingface-siglip, mean": HF_SIGLIP,
    "huggingface-siglip2": replace(HF_SIGLIP, classes=0, pool="map"),
    "huggingface-clip": CLIP,
    "huggingface-clip, mean": replace(CLIP, pool="mean", final_norm=False, head_bias=True),
    "huggingface-flax": replace(SQUARE, eps=1e-12),
    "huggingface-flax, pooler": replace(SQUARE, eps=1e-12, classes=0, head_hidden=8),
    "vit-pytorch@1.16.1": replace(DUAL, head_width=3),
    "vit-pytorch@1.16": replace(DUAL, **NO_CLASS),
    "vit-pytorch@1.4": replace(DUAL, pool="mean_all"),
    "simple-vit@1.4.1": replace(DUAL, **SIMPLE),
    "vit-pytorch-distill@1.16.5": replace(DUAL, **TOKEN),
    "vit-pytorch-distill@1.4": replace(DUAL, **TOKEN),
    "torch-transformer": PLAIN_VECTORS,
    "torch-transformer@encoder": replace(PLAIN_VECTORS, decoder_depth=0),
    "marian": MARIAN,
    "marian@base": replace(MARIAN, **HEADLESS),
    "bart": BART,
    "bart@base": replace(BART, **HEADLESS),
    "mbart": MBART,
    "mbart@base": replace(MBART, **HEADLESS),
    "m2m-100": M2M,
    "m2m-100@base": replace(M2M, **HEADLESS),
    "t5": T5,
    "t5, gated": T5_1,
    "t5@base": T5_BASE,
    "t5@encoder": T5_ENCODER,
    "mt5": T5_1,
    "mt5@base": T5_BASE,
    "mt5@encoder": T5_ENCODER,
    "umt5": UMT5,
    "umt5@base": replace(T5_BASE, relative="blocks"),
    "umt5@encoder": replace(T5_ENCODER, relative="blocks"),
    "flax-seq2seq@marian": MARIAN,
    "flax-seq2seq@bart": BART,
    "flax-seq2seq@mbart": MBART,
    "flax-t5": T5,
    "flax-t5, gated": T5_1,
    "flax-t5@base": T5_BASE,
    "flax-t5@encoder": T5_ENCODER,
    "vision-encoder-decoder": VIT_GPT2,
    "vision-encoder-decoder, one width": replace(VIT_GPT2, vit=replace(VIT_GPT2.vit, width=8)),
    "notebook-transformer": NOTEBOOK,
    **{name: c for name, (c, _, _) in layouts_captions.GENERATIONS.items()},
}
BY_HAND = "a network written by hand"


@functools.cache
def by_hand() -> dict[str, layouts_vit_pytorch.Case]:
    """{layout: a network of this suite under its names}, for layouts that no library builds."""
    cases = [*layouts_vit_pytorch.generations(), *layouts_notebooks.cases()]
    return {case.layout: case for case in reversed(cases) if library_of(LAYOUTS[case.layout]) is None}


def examples() -> dict[str, Any]:
    """A network or more of every layout."""
    return EXAMPLES | {name: case.config for name, case in by_hand().items()}


def given(c: Any) -> dict[str, Any]:
    """What a network is called with: sentences with their paddings, where it knows any."""
    if isinstance(c, CaptionerConfig) and c.encoder is None:
        return layouts_captions.course_inputs()
    if isinstance(c, ViTConfig | ResNetConfig | CaptionerConfig):
        return inputs(c)
    absent = {"target"} if not c.decoder_depth else {"source_padding"} if c is NOTEBOOK else set()
    return {k: v for k, v in some(c).items() if k not in absent}


@functools.cache
def expected(example: str) -> dict[str, np.ndarray]:
    """The values of our network, in the order of its pass."""
    c = examples()[example]
    return ours(c, weights(c)).capture(given(c))


def computed(example: str) -> Check:
    """A file that the layout's table writes, computed independently of the table, against ours."""
    c, layout = examples()[example], LAYOUTS[example.partition(",")[0]]
    file = rules.write(layout.rows(c), weights(c))
    if layout.name in by_hand():
        library, found = BY_HAND, hand_written(by_hand()[layout.name], file)
    elif example == "notebook-transformer":
        library, found = BY_HAND, notebook(c, file)
    elif layout.name in layouts_captions.GENERATIONS:
        side = layouts_captions.course_side(layout.name, c, file)
        library, found = BY_HAND, {"logits": side.forward(given(c))}
    else:
        built, why = build(Weights(example, layout, c, file))
        assert built is not None, why
        library, found = built.library, ByRows(built, c).capture(given(c))
    mine = expected(example)
    shown = {name: value for name, value in mine.items() if name in found}
    return values(example, library, "forward, float64", found, shown, "float64")


def hand_written(case: layouts_vit_pytorch.Case, file: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The logits of a module of this suite with a file's tensors."""
    module = case.build(case.config).double().eval()
    module.load_state_dict({name: torch.from_numpy(array) for name, array in file.items()})
    images = torch.from_numpy(inputs(case.config)["images"]).permute(0, 3, 1, 2).contiguous()
    with torch.no_grad():
        return {"logits": case.call(module, images).numpy()}


def notebook(c: TransformerConfig, file: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The same of the notebook's encoder-decoder, which knows no padding."""
    module = Notebook(c).double()
    module.load_state_dict({name: torch.from_numpy(array) for name, array in file.items()})
    with torch.no_grad():
        out = module(*(torch.from_numpy(given(c)[side]) for side in ("source", "target")))
    return {name: value.numpy() for name, value in out.items()}


# -------------------------------------------------------------------------------------------- faults


def exchanged(a: str, b: str) -> Callable[[Rows, Config], Rows]:
    """Two of our modules under each other's names."""

    def other(name: str) -> str:
        parts = [{a: b, b: a}.get(part, part) for part in name.split(".")]
        return ".".join(parts)

    return lambda rows, c: [replace(r, ours=tuple(map(other, r.ours))) for r in rows]


def after(name: str, operation: Callable[[Any], Order]) -> Callable[[Rows, Config], Rows]:
    """One operation more on the tensors of ours that end so."""

    def fault(rows: Rows, c: Config) -> Rows:
        return [
            replace(r, operations=(*r.operations, operation(c))) if any(n.endswith(name) for n in r.ours) else r
            for r in rows
        ]

    return fault


def pixels(c: Any) -> Order:
    """The numbers of a patch in another order."""
    vit = getattr(c, "vit", c)
    (p, q), channels = pair(vit.patch), vit.channels
    return Order("(p q c) d", "(c p q) d", dict(p=p, q=q, c=channels))


@dataclass(frozen=True)
class Kind:
    """A fault, and the networks that have what it is about."""

    name: str
    plant: Callable[[Rows, Config], Rows]
    possible: Callable[[Any], bool] = lambda c: True


def has_attention(c: Any) -> bool:
    """Whether a network is made of attention and mlp."""
    return hasattr(c, "heads") or isinstance(c, CaptionerConfig)


def has_patches(c: Any) -> bool:
    """Whether a network projects the patches of an image."""
    return isinstance(c, ViTConfig) or (isinstance(c, CaptionerConfig) and c.encoder is not None)


def is_resnet(c: Any) -> bool:
    """Whether a network is made of convolutions and batch norms."""
    return isinstance(c, ResNetConfig)


KINDS = (
    Kind("norm1 and norm2 exchanged", exchanged("norm1", "norm2"), has_attention),
    Kind(
        "query and key exchanged",
        exchanged("query", "key"),
        # with one bias of the two, the names would tell
        lambda c: has_attention(c) and getattr(c, "query_bias", True) == getattr(c, "key_bias", True),
    ),
    Kind(
        "square out projection transposed",
        after("attention.out.kernel", lambda c: TRANSPOSE),
        lambda c: hasattr(c, "heads") and c.heads * c.resolved_head_width == c.width,
    ),
    Kind("gate and first layer exchanged", exchanged("gate", "fc1"), lambda c: getattr(c, "gated", False)),
    Kind(
        "pixels of a patch in another order",
        after("patch.kernel", pixels),
        has_patches,
    ),
    Kind("mean and variance of batch norm exchanged", exchanged("mean", "variance"), is_resnet),
    Kind(
        "rows and columns of kernels exchanged",
        after("convs.1.kernel", lambda c: Order("h w i o", "w h i o")),
        is_resnet,
    ),
)


@dataclass(frozen=True)
class TableFault:
    """A fault in the table of an example's layout."""

    example: str
    kind: Kind

    @property
    def name(self) -> str:
        return f"{self.example}: {self.kind.name}"

    def caught(self) -> Check | None:
        """The comparison that sees it, if one does, and the same comparison passes without the fault."""
        right = _right(self.example)
        if not right.passed:
            return None
        layout = LAYOUTS[self.example.partition(",")[0]]
        faulty = replace(layout, rows=lambda c: self.kind.plant(layout.rows(c), c))
        with mock.patch.dict(LAYOUTS, {layout.name: faulty}):
            wrong = computed(self.example)
        return None if wrong.passed else wrong

    def library(self) -> str:
        """Who computes the example."""
        return _right(self.example).against


@functools.cache
def _right(example: str) -> Check:
    return computed(example)


def faults(absent: Iterable[str] = ()) -> list[TableFault]:
    """Every fault that an example can have; without those that a library would have to catch that is `absent`."""
    missing = {name.replace("_", "-") for name in absent}
    out = []
    for example, c in examples().items():
        library = library_of(LAYOUTS[example.partition(",")[0]])
        if library is None or library.name not in missing:
            out += [TableFault(example, kind) for kind in KINDS if kind.possible(c)]
    return out
