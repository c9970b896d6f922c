"""The config of the Vision Transformer: its options, its table of parameters and its cost."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Self

from ..config.fields import DEEPEST, Activation, Size, dropout_rate, identity, pair
from ..config.network import Input, NetworkConfig
from ..config.parameters import Parameter, Start, Table
from ..errors import Field, UserError

MAPS = ("map", "map_all")  # the pools with attention


@dataclass(frozen=True)
class ViTConfig(NetworkConfig):
    """The config of a Vision Transformer; its fields cover the differences between the published variants.

    The defaults are ViT-B/16 (Dosovitskiy et al. 2021, arXiv 2010.11929) in the form of timm and DeiT.
    """

    computes: ClassVar[str] = "vit_jax.models.vit:ViT"
    twin: ClassVar[str] = "torch_ref.vit:ViT"

    image: Size = identity(224, "height and width of an image, in pixels", at_least=1)
    channels: int = identity(3, "channels of an image: 3 for RGB, 1 for grey", at_least=1)
    patch: Size = identity(
        16, "height and width of a patch, in pixels; they must divide those of the image", at_least=1
    )
    classes: int = identity(
        1000, "K, outputs of the head; 0: no head (in a run: set by the data)", from_data=True, of_head=True, at_least=0
    )
    width: int = identity(768, "D, width of a token", at_least=1)
    depth: int = identity(12, "L, number of blocks", counts_blocks=True, at_least=1, at_most=DEEPEST)
    heads: int = identity(12, "H, attention heads per block", not_in_weights=True, at_least=1)
    head_width: int = identity(0, "Dh, width of a head; 0: width / heads", at_least=0)
    hidden: int = identity(3072, "F, width of the hidden layer of the mlp", at_least=1)

    stem: tuple[int, ...] = identity(
        (),
        "widths of convolutions before the patch projection, each of stride 2, then LayerNorm and GELU; they halve the "
        "image, so that a patch has 2, 4, 8, ... times fewer rows and columns where it is projected; empty: none",
        at_least=1,
    )
    stem_kernel: int = identity(4, "height and width of the kernels of these convolutions", choices=(3, 4))
    stem_bias: bool = identity(True, "the patch projection and the convolutions before it have biases")
    stem_pre_norm: bool = identity(False, "LayerNorm over the values of a patch, before the projection")
    stem_norm: bool = identity(False, "LayerNorm after the patch projection")
    stem_activation: Literal["none", "relu"] = identity("none", "activation after the patch projection")

    cls_token: bool = identity(True, "a learned class token, before the patches")
    distill_token: bool = identity(False, "a learned distillation token, after the class token (DeiT)")
    registers: int = identity(0, "number of learned register tokens, after those two (Darcet et al. 2024)", at_least=0)

    position: Literal["learned", "sincos2d", "sincos1d", "none"] = identity(
        "learned", "position embedding: learned, 2-D sinusoids, interleaved 1-D sinusoids, or none"
    )
    position_trained: bool = identity(True, "positions are trained; sinusoids are then their initial values")
    cls_position: bool = identity(True, "the class token has a position")
    distill_position: bool = identity(True, "the distillation token has a position")
    register_position: bool = identity(False, "the registers have positions")

    rotary: Literal["none", "axial", "mixed"] = identity(
        "none",
        "rotary positions, by which attention turns the queries and keys of patches: none; axial, computed, half of "
        "the angles for rows and half for columns (EVA-02, DINOv3); mixed, with frequencies that each head learns for "
        "both axes (RoPE-ViT)",
        not_in_weights=True,
    )
    rotary_pairs: Literal["halves", "neighbours"] = identity(
        "halves",
        "values of a head that are turned together: k and k + Dh/2 (halves), or 2k and 2k + 1 (neighbours)",
        not_in_weights=True,
    )
    rotary_places: Literal["centres", "indices"] = identity(
        "centres",
        "places of patches on an axis: of their centres, from -2 pi at one edge of the image to 2 pi at the other; or "
        "indices 0, 1, 2, ...",
        not_in_weights=True,
    )
    rotary_first: Literal["rows", "columns"] = identity(
        "rows", "the axis of the first half of the angles", not_in_weights=True
    )
    rotary_base: float = identity(
        100.0, "T: frequency k of an axis is T^(-4k / Dh); of mixed ones, at the start", not_in_weights=True, above=0
    )
    rotary_periods: Literal["exact", "bfloat16"] = identity(
        "exact",
        "periods T^(4k / Dh) of axial ones, one over the frequencies: exact; or rounded to bfloat16, as files "
        "of DINOv3 under Meta's names have them",
        not_in_weights=True,
    )
    rotary_offset: float = identity(0.0, "added to indices", not_in_weights=True)
    rotary_grid: Size = identity(
        0,
        "rows and columns of patches to which indices are scaled (those of pretraining), if not the image's; 0: none",
        not_in_weights=True,
        at_least=0,
    )

    pre_norm: bool = identity(False, "LayerNorm before the first block (CLIP)")
    norm_first: bool = identity(True, "LayerNorm before attention and mlp (pre-norm), else after the sum (post-norm)")
    branch_norm: bool = identity(
        False,
        "LayerNorm of what attention and mlp give, before the sum (res-post-norm), instead of where norm_first is",
    )
    final_norm: bool = identity(True, "LayerNorm after the last block")
    eps: float = identity(1e-6, "epsilon of every LayerNorm", not_in_weights=True, at_least=0)
    norm_kind: Literal["layer", "rms"] = identity(
        "layer", "all norms: LayerNorm; or RMSNorm, x / sqrt(mean(x^2) + eps), which subtracts no mean and has no bias"
    )
    norm_bias: bool = identity(True, "LayerNorms have a bias")
    layer_scale: float = identity(
        0.0, "initial value of LayerScale, a learned scale of each branch (CaiT); 0: no LayerScale"
    )

    query_bias: bool = identity(True, "the query projection has a bias")
    key_bias: bool = identity(True, "the key projection has a bias")
    value_bias: bool = identity(True, "the value projection has a bias")
    out_bias: bool = identity(True, "the output projection has a bias")
    qk_norm: bool = identity(False, "LayerNorm over the queries and keys of each head (ViT-22B)")
    attention_norm: bool = identity(False, "LayerNorm of what all heads give, before the output projection (BEiT-3)")

    activation: Activation = identity("gelu", "activation of the mlp; gelu is the exact erf form", not_in_weights=True)
    gated: bool = identity(False, "the activation of the mlp gates a second projection (as in SwiGLU)")
    mlp_bias: bool = identity(True, "the projections of the mlp have biases")
    mlp_norm: bool = identity(False, "LayerNorm inside the mlp, after its activation and gate (EVA-02)")

    embedding_dropout: float = dropout_rate("dropout rate of the tokens that enter the blocks")
    patch_dropout: float = dropout_rate("share of patch tokens that are left out in training")
    attention_dropout: float = dropout_rate("dropout rate of the attention weights")
    dropout: float = dropout_rate("dropout rate of the outputs of attention and mlp")
    activation_dropout: float = dropout_rate("dropout rate inside the mlp, after its activation")
    head_dropout: float = dropout_rate("dropout rate of the pooled feature")
    drop_path: float = dropout_rate("rate of stochastic depth in the last block; it rises linearly from 0 in the first")

    pool: Literal["cls", "mean", "mean_all", "map", "map_all", "cls_mean", "cls_distill"] = identity(
        "cls",
        "input of the head: the class token; the mean of the patches, or of all tokens (mean_all); attention pooling "
        "over the patches (map), or over all tokens (map_all); class token and mean of the patches, one after the "
        "other, 2 D wide (cls_mean); or the mean of class and distillation token",
        of_head=True,
    )
    pool_heads: int = identity(
        0, "heads of attention pooling; 0: those of the blocks", not_in_weights=True, of_head=True, at_least=0
    )
    pool_hidden: int = identity(
        0, "width of the hidden layer of the mlp in attention pooling; 0: that of the blocks", of_head=True, at_least=0
    )
    head_norm: bool = identity(False, "LayerNorm of the pooled feature, before the head")
    head_hidden: int = identity(0, "width of a hidden layer in the head; 0: none", at_least=0)
    head_activation: Literal["none", "tanh", "relu"] = identity(
        "tanh", "activation of that hidden layer", not_in_weights=True
    )
    head_bias: bool = identity(True, "the head has a bias", of_head=True)
    distill_head: bool = identity(False, "a second head, for the distillation token", of_head=True)
    distill_norm: bool = identity(False, "LayerNorm before the second head", of_head=True)

    init: Literal["trunc_normal", "normal", "fan_in", "xavier", "torch", "torchvision"] = identity(
        "trunc_normal",
        "initial kernels: normal of init_std, truncated at 2 std or not; truncated normal of std 1/sqrt(fan in); "
        "Xavier uniform; the default of Linear in PyTorch; or as torchvision (patches fan_in, mlp xavier, rest torch)",
        training_only=True,
    )
    attention_init: Literal["same", "torch"] = identity(
        "same",
        "initial query, key and value kernels: as init states, "
        "or as MultiheadAttention of PyTorch (Xavier uniform over the three as one; biases of attention 0)",
        training_only=True,
    )
    init_std: float = identity(0.02, "standard deviation of trunc_normal and normal", training_only=True)
    token_std: float = identity(
        0.02, "standard deviation of initial class, distillation and register tokens", training_only=True
    )
    position_std: float = identity(0.02, "standard deviation of initial learned positions", training_only=True)
    head_zero: bool = identity(False, "heads start at 0", training_only=True)

    recipes: ClassVar[Mapping[str, tuple[str, ...]]] = {
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

    # Derived from the fields above.

    @property
    def grid(self) -> tuple[int, int]:
        """The number of rows and columns of patches."""
        (h, w), (ph, pw) = pair(self.image), pair(self.patch)
        return h // ph, w // pw

    @property
    def patch_input(self) -> tuple[int, int, int]:
        """What the patch projection takes of a patch, (rows, columns, channels): its pixels, or the stem's outputs."""
        (h, w), stride = pair(self.patch), 2 ** len(self.stem)
        return h // stride, w // stride, (self.channels, *self.stem)[-1]

    @property
    def convolutions(self) -> tuple[tuple[int, int, int], ...]:
        """The convolutions of the stem in order, each as (channels in, channels out, rows times columns out)."""
        pixels = math.prod(pair(self.image))
        widths = itertools.pairwise((self.channels, *self.stem))
        return tuple((n_in, n_out, pixels // 4**i) for i, (n_in, n_out) in enumerate(widths, 1))

    @property
    def patches(self) -> int:
        """N, the number of patch tokens."""
        return math.prod(self.grid)

    @property
    def resolved_head_width(self) -> int:
        """Dh, the width of a head."""
        return self.head_width or self.width // self.heads

    @property
    def attention_bias(self) -> tuple[bool, bool, bool, bool]:
        """Which projections of attention have biases: query, key, value, out."""
        return self.query_bias, self.key_bias, self.value_bias, self.out_bias

    @property
    def resolved_pool_heads(self) -> int:
        """The number of heads of attention pooling."""
        return self.pool_heads or self.heads

    @property
    def pooled_width(self) -> int:
        """The width of the pooled feature."""
        return 2 * self.width if self.pool == "cls_mean" else self.width

    @property
    def prefix(self) -> tuple[tuple[str, int, bool], ...]:
        """The tokens before the patches, in order: (name of the parameter, number, whether they have positions)."""
        tokens = (
            ("cls_token", int(self.cls_token), self.cls_position),
            ("distill_token", int(self.distill_token), self.distill_position),
            ("register_tokens", self.registers, self.register_position),
        )
        return tuple(t for t in tokens if t[1])

    @property
    def position_rows(self) -> int:
        """The number of positions: of the prefix tokens that have one, then of the patches."""
        return sum(n for _, n, has_position in self.prefix if has_position) + self.patches

    @property
    def position_stored(self) -> bool:
        """Whether positions are a parameter; else they are computed, or there are none."""
        return self.position == "learned" or (self.position != "none" and self.position_trained)

    def inputs(self) -> tuple[Input, ...]:
        return (Input("images", "pixels", (*pair(self.image), self.channels)),)

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
        """The config in normal form: networks that compute the same function have equal ones.

        Square sizes are one number, head_width is 0 if it is width / heads, and fields without an effect have their
        defaults.
        """
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
        used |= dict.fromkeys(
            ("rotary_base", "rotary_periods"), self.rotary == "axial"
        )  # mixed ones only begin with it
        if self.layer_scale:
            changed["layer_scale"] = 1.0  # the initial value matters to training only
        defaults = {f.name: f.default for f in dataclasses.fields(self)}
        changed |= {name: defaults[name] for name, on in used.items() if not on}
        return dataclasses.replace(self, **changed)

    def parameters(self) -> dict[str, Parameter]:
        """Every parameter in reading order.

        Layers are those of timm 1.0.31 (param_groups_layer_decay): what precedes the blocks is 0, the last norm is of
        the last block's, and what follows is one more.
        """
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
        n, inner = self.patches + sum(count for _, count, _ in self.prefix), self.heads * self.resolved_head_width
        mlp = (3 if self.gated else 2) * self.width * self.hidden
        block = 4 * self.width * inner + 2 * n * inner + mlp
        stem = self.patches * math.prod(self.patch_input) * self.width
        stem += sum(self.stem_kernel**2 * n_in * n_out * places for n_in, n_out, places in self.convolutions)
        # Attention pooling: one query, and a key and a value for every token.
        keys = n if self.pool == "map_all" else self.patches
        pool = (
            2 * self.width * (self.width + keys * (self.width + 1))
            + mlp * (self.pool_hidden or self.hidden) // self.hidden
        )
        pool = pool if self.pool in MAPS else 0
        head = self.pooled_width * self.head_hidden + (self.head_hidden or self.pooled_width) * self.classes
        second = self.width * self.classes if self.pool == "cls_distill" and self.distill_head else 0
        return 2 * (stem + n * self.depth * block + pool + head + second)

    def activations(self) -> int:
        images = math.prod(pair(self.image)) * self.channels
        return images + sum(n_out * places for _, n_out, places in self.convolutions) + self.patches * self.width

    def largest(self) -> int:
        tokens = self.patches + sum(count for _, count, _ in self.prefix)
        # The stem's convolutions multiply the window of each place; their outputs are smaller.
        windows = (self.stem_kernel**2 * n_in * places for n_in, _, places in self.convolutions)
        return max(tokens * max(self.width, self.hidden), self.heads * tokens**2, *windows)


def _check_patches(c: ViTConfig) -> None:
    """The image, its patches and the convolutions before them."""
    (h, w), (ph, pw) = pair(c.image), pair(c.patch)
    if h % ph or w % pw:
        raise UserError(
            Field("image"), f"{h}x{w} is not divisible by patch {ph}x{pw}", "choose a patch that divides the image"
        )
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
    rows, columns = pair(c.rotary_grid)
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
