"""The config of the Vision Transformer: its options (vit_options.py), checked, its table of parameters, its cost.

Published sizes have names: `vit-SIZEPATCH`, such as vit-s16, vit-b32, vit-h14.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, Self

from ..config.fields import pair
from ..config.hints import hint, names_of, nearest
from ..config.network import Input, NetworkConfig, Parameter, Start, Table
from ..errors import Field, UserError
from .vit_options import MAPS, ViTOptions


@dataclass(frozen=True)
class ViTConfig(ViTOptions, NetworkConfig):
    """Options of the ViT."""

    computes: ClassVar[str] = "vit_jax.models.vit:ViT"
    twin: ClassVar[str] = "torch_ref.vit:ViT"

    tuning_modes: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "full": ("*",), "head": ("head.*", "distill_head.*"),
        "attention": ("blocks.*.attention.*", "position", "head.*", "distill_head.*"),
    }  # fmt: skip
    names: ClassVar[tuple[str, ...]] = (r"patch\.kernel", r"blocks\.0\.attention\.query\.kernel")
    examples: ClassVar[Mapping[str, tuple[Any, ...]]] = {
        "image": (8, (8, 12)), "patch": (4, (4, 2), 2), "channels": (3, 1), "classes": (5, 0), "width": (12, 8),
        "depth": (2, 1), "heads": (2, 1), "head_width": (0, 5), "hidden": (20, 16, 24), "registers": (0, 2),
        "stem": ((), (6,)), "stem_kernel": (4, 3),
        "eps": (1e-6, 1e-5, 1e-12, 1e-3), "layer_scale": (0.0, 1.0), "head_hidden": (0, 7, 12),
        "pool_heads": (0, 1), "pool_hidden": (0, 14),
        "rotary_base": (100.0, 1e4), "rotary_offset": (0.0, 1.0), "rotary_grid": (0, (3, 2)),
    }  # fmt: skip
    combinations: ClassVar[tuple[Mapping[str, Any], ...]] = (
        {}, {"cls_token": False, "pool": "mean"}, {"cls_token": False, "pool": "mean_all"},
    )  # fmt: skip

    def inputs(self) -> tuple[Input, ...]:
        return (Input("images", "pixels", (*self.image_size, self.channels)),)

    def any_size(self) -> tuple[int, int] | None:
        """The patch, if positions are rotary or there are none."""
        return self.patch_size if self.position == "none" else None

    def check(self) -> None:
        super().check()
        _check_patches(self)
        if not self.head_width and self.width % self.heads:
            raise UserError(
                Field("width"), f"{self.width} is not divisible by heads {self.heads}", "change one, or give head_width"
            )
        _check_pool(self)
        if self.position == "learned" and not self.position_trained:
            raise UserError(
                Field("position"),
                "is learned but position_trained is False",
                "choose sincos2d or sincos1d for fixed positions",
            )
        _check_rotary(self)
        if self.position == "sincos2d" and self.width % 4:
            raise UserError(
                Field("width"),
                f"{self.width} is not divisible by 4, which position sincos2d needs",
                "change one of them",
            )

    def normal(self) -> Self:
        changed: dict[str, Any] = {"head_width": 0} if self.head_width * self.heads == self.width else {}
        if self.position_stored:
            changed["position"] = "learned"  # the initial values matter to training only
        if self.pool in ("mean_all", "map_all") and not self.prefix:
            changed["pool"] = self.pool.removesuffix("_all")
        changed |= {"pool_heads": 0} if self.pool_heads == self.heads else {}
        changed |= {"pool_hidden": 0} if self.pool_hidden == self.hidden else {}
        for name in ("image", "patch", "rotary_grid"):
            rows, columns = pair(getattr(self, name))
            changed[name] = rows if rows == columns else (rows, columns)
        used = {
            "cls_position": self.cls_token, "distill_position": self.distill_token, "register_position": self.registers,
            "head_activation": self.head_hidden, "head_bias": self.classes, "distill_head": self.classes,
            "stem_kernel": self.stem,
        }  # fmt: skip
        used |= {"pool_heads": self.pool in MAPS, "pool_hidden": self.pool in MAPS}
        used |= {"norm_first": not self.branch_norm, "norm_bias": self.norm_kind == "layer"}
        if self.position == "none":
            used |= dict.fromkeys(("cls_position", "distill_position", "register_position", "position_trained"), False)
        used |= dict.fromkeys(("rotary_pairs", "rotary_places", "rotary_first"), self.rotary != "none")
        indices = self.rotary != "none" and self.rotary_places == "indices"
        used |= dict.fromkeys(("rotary_offset", "rotary_grid"), indices)
        used |= dict.fromkeys(("rotary_base", "rotary_periods"), self.rotary == "axial")  # mixed ones begin with it
        if self.layer_scale:
            changed["layer_scale"] = 1.0  # the initial value matters to training only
        defaults = {f.name: f.default for f in dataclasses.fields(self)}
        changed |= {name: defaults[name] for name, on in used.items() if not on}
        return dataclasses.replace(self, **changed)

    def parameters(self) -> dict[str, Parameter]:
        table = Table(self.norm_bias and self.norm_kind == "layer", self.init, self.attention_init, self.init_std)
        _add_tokens(table, self)
        table.muon = True
        for i in range(self.depth):
            table.layer = i + 1
            _add_block(table, self, f"blocks.{i}")
        table.muon = False
        if self.final_norm:
            table.norm("norm", self.width)
        table.layer = self.depth + 1
        _add_pool_and_heads(table, self)
        return table

    def captured(self) -> list[str]:
        return ["tokens", *(f"blocks.{i}" for i in range(self.depth)), "features", "pooled", "logits"]

    def describe(self) -> tuple[str, str]:
        stem = f", stem {' '.join(map(str, self.stem))}" if self.stem else ""
        what = f"ViT {self.width} x {self.depth}, {self.heads} heads, {self.patches} patches{stem}"
        return what, f"{self.flops() / 1e6:,.1f} MFLOP an image"

    def pipeline(self) -> str:
        return "image-classification" if self.classes else "image-feature-extraction"

    def flops(self) -> int:
        """Floating-point operations of the forward pass of one image: products and convolutions, 2 per multiply-add."""
        return self._flops(self.patches)

    def training_flops(self) -> int:
        return self._flops(max(1, round(self.patches * (1 - self.patch_dropout))))  # those that dropout leaves

    def _flops(self, patches: int) -> int:
        """`flops` where so many patches enter the blocks."""
        n, inner = self.first_patch + patches, self.heads * self.resolved_head_width
        mlp = (3 if self.gated else 2) * self.width * self.hidden
        block = 4 * self.width * inner + 2 * n * inner + mlp
        stem = self.patches * math.prod(self.patch_input) * self.width
        stem += sum(self.stem_kernel**2 * n_in * n_out * places for n_in, n_out, places in self.convolutions)
        # Attention pooling: one query, and a key and a value for every token.
        keys = n if self.pool == "map_all" else patches
        pool = (
            2 * self.width * (self.width + keys * (self.width + 1))
            + mlp * (self.pool_hidden or self.hidden) // self.hidden
        )
        pool = pool if self.pool in MAPS else 0
        head = self.pooled_width * self.head_hidden + (self.head_hidden or self.pooled_width) * self.classes
        second = self.width * self.classes if self.pool == "cls_distill" and self.distill_head else 0
        return 2 * (stem + n * self.depth * block + pool + head + second)

    def activations(self) -> int:
        images = math.prod(self.image_size) * self.channels
        return images + sum(n_out * places for _, n_out, places in self.convolutions) + self.patches * self.width

    def largest(self) -> int:
        # The stem's convolutions multiply the window of each place; their outputs are smaller.
        windows = (self.stem_kernel**2 * n_in * places for n_in, _, places in self.convolutions)
        return max(self.tokens * max(self.width, self.hidden), self.heads * self.tokens**2, *windows)


def _check_patches(c: ViTConfig) -> None:
    """The image, its patches and the convolutions before them."""
    (h, w), (ph, pw) = c.image_size, c.patch_size
    if h % ph or w % pw:
        near = f"{max(h // ph, 1) * ph}x{max(w // pw, 1) * pw}"
        remedy = f"give an image of {near}, or a patch that divides it"
        what = "smaller than" if h < ph or w < pw else "not divisible by"
        raise UserError(Field("image"), f"{h}x{w} is {what} patch {ph}x{pw}", remedy)
    if ph % 2 ** len(c.stem) or pw % 2 ** len(c.stem):
        raise UserError(
            Field("patch"),
            f"{ph}x{pw} is not divisible by {2 ** len(c.stem)}, and stem {' '.join(map(str, c.stem))} halves it once "
            "for each width",
            "choose a patch that is, or fewer widths",
        )


def _check_pool(c: ViTConfig) -> None:
    """The pool, and the tokens that it and the second head read."""
    if c.pool in MAPS and c.width % c.resolved_pool_heads:
        raise UserError(
            Field("width"),
            f"{c.width} is not divisible by {c.resolved_pool_heads}, the heads of pool {c.pool}",
            "change it, or heads, or give pool_heads",
        )
    if c.pool in ("cls", "cls_mean") and not c.cls_token:
        raise UserError(Field("pool"), f"is {c.pool} but cls_token is False", "set pool to mean, or cls_token to True")
    if c.pool == "cls_distill" and not (c.cls_token and c.distill_token):
        raise UserError(Field("pool"), "is cls_distill, which needs cls_token and distill_token", "set both to True")
    if c.distill_head and not c.distill_token:
        raise UserError(Field("distill_head"), "is True but distill_token is False", "set both or none")
    if c.distill_norm and not c.distill_head:
        raise UserError(
            Field("distill_norm"), "is True but distill_head, which it precedes, is False", "set both or none"
        )


def _check_rotary(c: ViTConfig) -> None:
    if c.rotary != "none" and c.resolved_head_width % 4:
        raise UserError(
            Field("rotary"),
            f"is {c.rotary}, which needs heads of a width that is divisible by 4, not {c.resolved_head_width}",
            "change heads or head_width",
        )
    rows, columns = c.rotary_reference
    if bool(rows) != bool(columns):
        raise UserError(Field("rotary_grid"), f"is {rows}x{columns}", "give rows and columns, or 0")


def _add_tokens(table: Table, c: ViTConfig) -> None:
    """The parameters of what makes an image tokens."""
    d = c.width
    for i, (n_in, n_out, _) in enumerate(c.convolutions):
        table.dense(f"stem.{i}", c.stem_kernel**2 * n_in, n_out, c.stem_bias)
        table.norm(f"stem.{i}.norm", n_out)
        table.muon = True  # for what follows the first convolution
    if c.stem_pre_norm:
        table.norm("patch.pre_norm", math.prod(c.patch_input))
    table.dense("patch", math.prod(c.patch_input), d, c.stem_bias, torchvision="fan_in")
    table.muon = False
    if c.stem_norm:
        table.norm("patch.norm", d)
    for name, count, _ in c.prefix:
        shape = (count, d) if name == "register_tokens" else (d,)
        table[name] = Parameter(shape, "token", Start("normal", c.token_std))
    if c.position_stored:
        drawn = Start("normal", c.position_std) if c.position == "learned" else Start("computed")
        table["position"] = Parameter((c.position_rows, d), "position", drawn)
    if c.pre_norm:
        table.norm("pre_norm", d)


def _add_block(table: Table, c: ViTConfig, block: str) -> None:
    """The parameters of the block of this name."""
    d, inner, scale = c.width, c.heads * c.resolved_head_width, Start("constant", c.layer_scale)
    table.norm(f"{block}.norm1", d)
    norms = dict.fromkeys(("query_norm", "key_norm"), c.resolved_head_width) if c.qk_norm else {}
    table.attention(f"{block}.attention", d, inner, c.attention_bias, norms)
    if c.attention_norm:
        table.norm(f"{block}.attention.inner_norm", inner)
    if c.rotary == "mixed":
        shape = (2, c.heads, c.resolved_head_width // 2)
        table[f"{block}.attention.frequencies"] = Parameter(shape, "frequency", Start("computed"))
    if c.layer_scale:
        table[f"{block}.scale1"] = Parameter((d,), "scale", scale)
    table.norm(f"{block}.norm2", d)
    table.mlp(f"{block}.mlp", d, c.hidden, c.mlp_bias, c.gated)
    if c.mlp_norm:
        table.norm(f"{block}.mlp.inner_norm", c.hidden)
    if c.layer_scale:
        table[f"{block}.scale2"] = Parameter((d,), "scale", scale)


def _add_pool_and_heads(table: Table, c: ViTConfig) -> None:
    """The parameters of what follows the blocks and their last norm."""
    d = c.width
    if c.pool in MAPS:
        table["pool.probe"] = Parameter((d,), "token", Start("normal", c.token_std))
        for name in ("query", "key", "value", "out"):
            table.dense(f"pool.{name}", d, d)
        table.norm("pool.norm", d)
        table.mlp("pool.mlp", d, c.pool_hidden or c.hidden, c.mlp_bias, c.gated)
    if c.head_norm:
        table.norm("head_norm", c.pooled_width)
    if c.head_hidden:
        table.dense("head_hidden", c.pooled_width, c.head_hidden)
    table.head = True
    if c.classes:
        table.dense("head", c.head_hidden or c.pooled_width, c.classes, c.head_bias, zero=c.head_zero)
    if c.distill_norm:
        table.norm("distill_norm", d)
    if c.distill_head and c.classes:
        table.dense("distill_head", d, c.classes, c.head_bias, zero=c.head_zero)


# Published sizes, by name.


class Shape(NamedTuple):
    """The sizes of a ViT: width D, depth L, hidden width of the mlp F, heads H."""

    width: int
    depth: int
    hidden: int
    heads: int


# Ti and S: Touvron et al. 2021 (DeiT, arXiv 2012.12877), table 1. B, L and H: Dosovitskiy et al. 2021 (arXiv
# 2010.11929), table 1. g: Zhai et al. 2022 (arXiv 2106.04560), table 2.
SIZES = {
    "ti": Shape(192, 12, 768, 3),
    "s": Shape(384, 12, 1536, 6),
    "b": Shape(768, 12, 3072, 12),
    "l": Shape(1024, 24, 4096, 16),
    "h": Shape(1280, 32, 5120, 16),
    "g": Shape(1408, 40, 6144, 16),
}

_NAME = re.compile(rf"vit-({'|'.join(SIZES)})([1-9][0-9]{{0,3}})", re.IGNORECASE)


def sized_config(name: str, classes: int = 1000, image: int = 224, **fields: Any) -> ViTConfig:
    """The config of a published size."""
    if not isinstance(name, str):
        raise UserError("name", f"is {name!r:.40}", "give the name of a network, such as vit-s16")
    found = _NAME.fullmatch(name)
    if found is None:
        known = [f"vit-{size}{patch}" for size in SIZES for patch in (8, 14, 16, 32)]
        raise UserError(f"there is no network {name!r}{nearest(name, known)}")
    shape = SIZES[found[1].lower()]._asdict()
    given: dict[str, Any] = {**shape, "image": image, **fields}
    own = names_of(ViTConfig(), "model.")
    for unknown in (each for each in given if f"model.{each.replace('_', '-')}" not in own):
        clause = hint(unknown, own, inside="model")
        raise UserError(unknown, f"is no argument{clause or '; those of ViTConfig are'}")
    given |= {name: tuple(value) for name, value in given.items() if isinstance(value, list)}
    return ViTConfig(patch=int(found[2]), classes=classes, **given)


def is_sized(name: str) -> bool:
    """Whether a text is `vit-SIZEPATCH`, for any patch below 10,000."""
    return _NAME.fullmatch(name) is not None


_WORDS = {"tiny": "ti", "small": "s", "base": "b", "large": "l", "huge": "h", "giant": "g", **{s: s for s in SIZES}}
_THEIRS = re.compile(rf"(?:vit|deit)[-_]?({'|'.join(_WORDS)})[-_/]?(?:patch)?([1-9]\d?)(?!\d)", re.IGNORECASE)


def size_of(name: str) -> str:
    """The size that others call vit_base_patch16_224, vit_b_16 or google/vit-base-patch16-224; '' if it is none."""
    found = _THEIRS.search(name[:100])
    return f"vit-{_WORDS[found[1].lower()]}{found[2]}" if found else ""
