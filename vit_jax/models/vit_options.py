"""The fields of the ViT's config, one by one, and the sizes that follow from them."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from typing import Literal

from ..config.fields import DEEPEST, Activation, Size, dropout_rate, identity, pair

MAPS = ("map", "map_all")  # the pools with attention


@dataclass(frozen=True)
class ViTOptions:
    """The fields of a ViTConfig, which cover the differences between the published variants.

    The defaults are ViT-B/16 (Dosovitskiy et al. 2021, arXiv 2010.11929) in the form of timm and DeiT.
    """

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
        "positions of patches on an axis: of their centres, from -2 pi at one edge of the image to 2 pi at the other; "
        "or indices 0, 1, 2, ...",
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
        "initial query, key and value kernels: as model.init, "
        "or as MultiheadAttention of PyTorch (Xavier uniform over the three as one; biases of attention 0)",
        training_only=True,
    )
    init_std: float = identity(0.02, "standard deviation of trunc_normal and normal", training_only=True)
    token_std: float = identity(
        0.02, "standard deviation of initial class, distillation and register tokens", training_only=True
    )
    position_std: float = identity(0.02, "standard deviation of initial learned positions", training_only=True)
    head_zero: bool = identity(False, "heads start at 0", training_only=True)

    # Derived from the fields above.

    @property
    def image_size(self) -> tuple[int, int]:
        """Height and width of an image, in pixels."""
        return pair(self.image)

    @property
    def patch_size(self) -> tuple[int, int]:
        """Height and width of a patch, in pixels."""
        return pair(self.patch)

    @property
    def rotary_reference(self) -> tuple[int, int]:
        """Rows and columns of `rotary_grid`; 0 where there is none."""
        return pair(self.rotary_grid)

    @property
    def grid(self) -> tuple[int, int]:
        """The number of rows and columns of patches."""
        (h, w), (ph, pw) = self.image_size, self.patch_size
        return h // ph, w // pw

    @property
    def patch_input(self) -> tuple[int, int, int]:
        """What the patch projection takes of a patch, (rows, columns, channels): its pixels, or the stem's outputs."""
        (h, w), stride = self.patch_size, 2 ** len(self.stem)
        return h // stride, w // stride, (self.channels, *self.stem)[-1]

    @property
    def convolutions(self) -> tuple[tuple[int, int, int], ...]:
        """The convolutions of the stem in order, each as (channels in, channels out, rows times columns out)."""
        pixels = math.prod(self.image_size)
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
    def first_patch(self) -> int:
        """The number of tokens before the patches."""
        return sum(count for _, count, _ in self.prefix)

    @property
    def tokens(self) -> int:
        """The number of all tokens that enter the blocks."""
        return self.first_patch + self.patches

    @property
    def position_rows(self) -> int:
        """The number of positions: of the prefix tokens that have one, then of the patches."""
        return sum(n for _, n, has_position in self.prefix if has_position) + self.patches

    @property
    def position_stored(self) -> bool:
        """Whether positions are a parameter; else they are computed, or there are none."""
        return self.position == "learned" or (self.position != "none" and self.position_trained)
