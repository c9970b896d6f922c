"""The Vision Transformer (Dosovitskiy et al. 2021, arXiv 2010.11929) in PyTorch: the twin of vit_jax/models/vit.py.

It has the same classes in the same order under the same names. Images have torch's axes, [B, C, h, w].
Dimensions: B batch, h and w image height and width, C channels, N tokens, D width, H heads, L blocks, K classes.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from vit_jax.models.vit_config import ViTConfig
from vit_jax.models.vit_options import MAPS

from . import rotary
from .attention import Attention, AttentionPool
from .initial import initialise
from .layers import ACTIVATIONS, NORMS, Convolution, Intermediates, Mlp, apply_blocks, capture, drop_path, sow


class Patches(nn.Conv2d):
    """Images to patch tokens: a convolution with its stride equal to its kernel size."""

    def __init__(self, c: ViTConfig):
        rows, columns, channels = c.patch_input
        self.size = rows, columns
        super().__init__(channels, c.width, self.size, self.size, bias=c.stem_bias)
        self.activation = ACTIVATIONS[c.stem_activation]
        self.pre_norm = norm(c, rows * columns * channels) if c.stem_pre_norm else None
        self.norm = norm(c) if c.stem_norm else None

    def forward(self, images: Tensor) -> Tensor:  # [B, C, h, w] -> [B, N, D]
        if self.pre_norm is None:
            x = super().forward(images).flatten(2).transpose(1, 2)  # [B, D, gh, gw] -> [B, (gh gw), D]
        else:
            x = F.unfold(images, self.size, stride=self.size).transpose(1, 2)  # [B, (gh gw), (C p q)]
            x = F.linear(self.pre_norm(x), self.weight.flatten(1), self.bias)
        x = x if self.norm is None else self.norm(x)
        return self.activation(x)


class Block(nn.Module):
    """Attention, then mlp, each added to its input; norms before them (pre-norm), after them, or after the sum."""

    def __init__(self, c: ViTConfig, index: int):
        super().__init__()
        self.norm_first, self.branch_norm, self.dropout = c.norm_first, c.branch_norm, nn.Dropout(c.dropout)
        self.drop_path = c.drop_path * index / max(c.depth - 1, 1)
        self.norm1 = norm(c)
        self.attention = Attention(
            c.width,
            c.heads,
            c.resolved_head_width,
            bias=c.attention_bias,
            query_norm=norm(c, c.resolved_head_width) if c.qk_norm else None,
            key_norm=norm(c, c.resolved_head_width) if c.qk_norm else None,
            inner_norm=norm(c, c.heads * c.resolved_head_width) if c.attention_norm else None,
            dropout=c.attention_dropout,
            pairs="" if c.rotary == "none" else c.rotary_pairs,
            mixed=c.rotary == "mixed",
        )
        self.scale1 = nn.Parameter(torch.full((c.width,), c.layer_scale)) if c.layer_scale else None
        self.norm2 = norm(c)
        self.mlp = Mlp(
            c.width,
            c.hidden,
            c.activation,
            gated=c.gated,
            bias=c.mlp_bias,
            dropout=c.activation_dropout,
            inner_norm=norm(c, c.hidden) if c.mlp_norm else None,
        )
        self.scale2 = nn.Parameter(torch.full((c.width,), c.layer_scale)) if c.layer_scale else None

    def forward(self, x: Tensor, *, rotary: Tensor | None = None, intermediates: Intermediates | None = None) -> Tensor:
        """x after the block: x [B, N, D] -> [B, N, D]."""
        if self.branch_norm:
            x = x + self._branch(self.attend(x, rotary, intermediates), self.scale1, self.norm1)
            return x + self._branch(self.mlp(x), self.scale2, self.norm2)
        if self.norm_first:
            x = x + self._branch(self.attend(self.norm1(x), rotary, intermediates), self.scale1)
            return x + self._branch(self.mlp(self.norm2(x)), self.scale2)
        x = self.norm1(x + self._branch(self.attend(x, rotary, intermediates), self.scale1))
        return self.norm2(x + self._branch(self.mlp(x), self.scale2))

    def attend(self, x: Tensor, rotary: Tensor | None, intermediates: Intermediates | None) -> Tensor:
        """Self-attention: [B, N, D] -> [B, N, D]."""
        return self.attention(x, x, x, rotary=rotary, intermediates=intermediates)

    def _branch(self, y: Tensor, scale: Tensor | None, norm: nn.Module | None = None) -> Tensor:
        """What a branch adds to its input: `y` after dropout, norm, LayerScale (Touvron et al. 2021), drop path."""
        y = self.dropout(y)
        y = y if norm is None else norm(y)
        y = y if scale is None else y * scale
        return drop_path(y, self.drop_path, self.training)


class ViT(nn.Module):
    """A Vision Transformer: `model(images) -> logits`.

    Initial weights are drawn with torch's global generator.

    Raises:
        UserError: for a config that its `check` refuses.
    """

    def __init__(self, config: ViTConfig):
        super().__init__()
        config.check()
        c = self.config = config
        self.stem = nn.Sequential(
            *(Convolution(n_in, n_out, c.stem_kernel, c.stem_bias, norm(c, n_out)) for n_in, n_out, _ in c.convolutions)
        )
        self.patch = Patches(c)
        self.cls_token = _tokens(c.cls_token, 1, c.width)
        self.distill_token = _tokens(c.distill_token, 1, c.width)
        self.register_tokens = _tokens(c.registers > 0, c.registers, c.width)
        self.position = _tokens(c.position_stored, c.position_rows, c.width)
        self.pre_norm = norm(c) if c.pre_norm else None
        self.blocks = nn.ModuleList(Block(c, i) for i in range(c.depth))
        self.norm = norm(c) if c.final_norm else None
        self.pool = attention_pool(c) if c.pool in MAPS else None
        self.head_norm = norm(c, c.pooled_width) if c.head_norm else None
        self.head_hidden = nn.Linear(c.pooled_width, c.head_hidden) if c.head_hidden else None
        self.head = nn.Linear(c.head_hidden or c.pooled_width, c.classes, c.head_bias) if c.classes else None
        self.distill_norm = norm(c) if c.distill_norm else None
        self.distill_head = nn.Linear(c.width, c.classes, c.head_bias) if c.distill_head and c.classes else None
        self.embedding_dropout, self.head_dropout = nn.Dropout(c.embedding_dropout), nn.Dropout(c.head_dropout)
        self.start()

    def forward(self, images: Tensor, *, intermediates: Intermediates | None = None) -> Tensor:
        """The logits of images.

        Args:
            images: floating-point [B, C, h, w], normalised as in training. A network that stores no positions takes any
                h and w that its patch divides.
            intermediates: receives the inner values that it asks for, by their names in `capture`.

        Returns:
            [B, K]; without a head the features [B, D].

        Raises:
            ValueError: for images of another shape, or of integers.
        """
        return self.classify(self.encode(images, intermediates=intermediates), intermediates)

    def both(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """The logits of the class token and of the distillation token, each by its own head -> ([B, K], [B, K])."""
        if self.cls_token is None or self.head is None or self.distill_head is None:
            raise ValueError("the network has no class token and distillation token with a head each")
        return self.two_logits(self.encode(images))

    def capture(self, images: Tensor, names: Iterable[str]) -> dict[str, Tensor]:
        """Inner values of an evaluation pass: names [B, N, D] -> {name: tensor}."""
        known = [*self.config.captured(), "attention"]
        return capture(self, names, known, lambda wanted: self(images, intermediates=wanted))

    def encode(self, images: Tensor, *, intermediates: Intermediates | None = None) -> Tensor:
        """The tokens of images after the last block and norm, before pooling -> [B, N, D]."""
        c = sized(self.config, images)
        if not images.is_floating_point():
            raise ValueError(f"images are {images.dtype}: give floating-point numbers, normalised as in training")
        x, table = self._embed(images.to(self.patch.weight.dtype), c)  # [B, N, D]
        sow(intermediates, "tokens", x)

        def call(block: nn.Module, x: Tensor, intermediates: Intermediates) -> Tensor:
            return block(x, rotary=table, intermediates=intermediates)

        x = apply_blocks(self.blocks, x, call, intermediates)
        x = x if self.norm is None else self.norm(x)
        sow(intermediates, "features", x)
        return x

    def _embed(self, images: Tensor, c: ViTConfig) -> tuple[Tensor, Tensor | None]:
        """What enters the blocks: prefix tokens, then patches. Shapes: images [B, C, h, w] -> [B, N, D]."""
        patches = self.patch(self.stem(images))
        positions = self._positions(c, patches)
        patches = patches if positions is None else patches + positions[:, -c.patches :]
        patches, table = self.drop_patches(patches, rotary_table(c, patches))
        tokens, row = [], 0
        for name, count, has_position in c.prefix:
            token = getattr(self, name)  # [1, count, D]
            if has_position and positions is not None:
                token, row = token + positions[:, row : row + count], row + count
            tokens.append(token.expand(len(images), -1, -1))
        x = self.embedding_dropout(torch.cat([*tokens, patches], dim=1))
        return x if self.pre_norm is None else self.pre_norm(x), table

    def _positions(self, c: ViTConfig, like: Tensor) -> Tensor | None:
        """The position embedding [1, rows, D], stored or computed; None if there is none."""
        if self.position is not None:
            return self.position
        return None if c.position == "none" else sinusoids(c).to(like)

    def drop_patches(self, x: Tensor, table: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """Keep a random share of the patch tokens, in their order (PatchDropout, Liu et al. 2022, arXiv 2208.07220).
        Shapes: x [B, n, D], table [n, ...] -> (tokens [B, kept, D], the rows of the table for them [B, kept, ...]).
        """
        rate, (batch, n, width) = self.config.patch_dropout, x.shape
        if not self.training or not rate:
            return x, table
        kept = max(1, round(n * (1 - rate)))
        chosen = torch.rand(batch, n, device=x.device).topk(kept).indices.sort().values  # [B, kept]
        x = x.gather(1, chosen.unsqueeze(-1).expand(-1, -1, width))
        return x, None if table is None else table[chosen]

    def classify(self, x: Tensor, intermediates: Intermediates | None = None) -> Tensor:
        """Pool the tokens [B, N, D] and apply the head: logits [B, K], or the feature [B, D or 2 D] without a head."""
        c = self.config
        first = c.first_patch
        if c.pool == "cls":
            pooled = x[:, 0]
        elif c.pool == "cls_distill":
            pooled = x[:, :2].mean(1)
        elif self.pool is not None:
            pooled = self.pool.pool(x if c.pool == "map_all" else x[:, first:])
        elif c.pool == "cls_mean":
            pooled = torch.cat([x[:, 0], x[:, first:].mean(1)], -1)
        elif c.pool in ("mean", "mean_all"):
            pooled = x[:, first if c.pool == "mean" else 0 :].mean(1)
        else:
            raise ValueError(f"pool {c.pool}")
        sow(intermediates, "pooled", pooled)
        if c.pool == "cls_distill" and self.distill_head is not None:  # DeiT: two heads for two tokens
            logits, distilled = self.two_logits(x)
            return (logits + distilled) / 2
        return self.logits(pooled)

    def two_logits(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """`both`, from the tokens [B, N, D]."""
        assert self.distill_head is not None
        token = x[:, 1] if self.distill_norm is None else self.distill_norm(x[:, 1])
        return self.logits(x[:, 0]), self.distill_head(token)

    def logits(self, pooled: Tensor) -> Tensor:
        """The head, with its norm, hidden layer and dropout if there are any: [B, D] -> [B, K]."""
        x = pooled if self.head_norm is None else self.head_norm(pooled)
        if self.head_hidden is not None:
            x = ACTIVATIONS[self.config.head_activation](self.head_hidden(x))
        x = self.head_dropout(x)
        return x if self.head is None else self.head(x)

    @torch.no_grad()
    def start(self) -> None:
        """Draw all initial weights, in place."""
        c = self.config
        initialise(
            self,
            init=c.init,
            attention_init=c.attention_init,
            init_std=c.init_std,
            token_std=c.token_std,
            position_std=c.position_std,
            scale=c.layer_scale,
        )
        if c.head_zero:
            for head in (self.head, self.distill_head):
                if head is not None:
                    nn.init.zeros_(head.weight)
                    if head.bias is not None:
                        nn.init.zeros_(head.bias)
        if self.position is not None and c.position != "learned":
            self.position.copy_(sinusoids(c))
        for name, parameter in self.named_parameters():
            if name.endswith(".frequencies"):
                parameter.copy_(rotary.mixed_frequencies(c.heads, c.resolved_head_width, c.rotary_base))


def sized(config: ViTConfig, images: Tensor) -> ViTConfig:
    """The config for images of this size: images [B, C, h, w]."""
    c, (ph, pw) = config, config.patch_size
    channels, *expected = c.channels, *c.image_size
    if images.ndim != 4 or images.shape[1] != channels or (c.position_stored and [*images.shape[2:]] != expected):
        raise ValueError(
            f"images {list(images.shape)} are not [B, {channels}, {', '.join(map(str, expected))}], "
            "which this network takes"
        )
    h, w = images.shape[2:]
    if not h * w or h % ph or w % pw:
        raise ValueError(f"images of {h}x{w} pixels are not divisible by the patch {ph}x{pw}: give a size that is")
    return dataclasses.replace(c, image=(h, w))


def _tokens(present: bool, count: int, width: int) -> nn.Parameter | None:
    return nn.Parameter(torch.zeros(1, count, width)) if present else None


def attention_pool(c: ViTConfig) -> AttentionPool:
    """The pool with attention, whose mlp may be of another width than those of the blocks."""
    mlp = Mlp(c.width, c.pool_hidden or c.hidden, c.activation, gated=c.gated, bias=c.mlp_bias)
    return AttentionPool(c.width, c.resolved_pool_heads, norm(c), mlp)


def norm(c: ViTConfig, width: int = 0) -> nn.Module:
    """A norm of the config's kind over the last axis, of this width; 0: D."""
    return NORMS[c.norm_kind](width or c.width, c.eps, c.norm_bias)


# ------------------------------------------------------------------------------------- positions


def sinusoids(c: ViTConfig) -> Tensor:
    """Positions [1, rows, D], float64: prefix tokens that have one (zeros if sincos2d), then patches, row by row."""
    if c.position == "sincos1d":
        return sincos1d(c.position_rows, c.width)
    if c.position == "sincos2d":
        return F.pad(sincos2d(*c.grid, c.width), (0, 0, c.position_rows - c.patches, 0))
    raise ValueError(f"position {c.position}")


def rotary_table(c: ViTConfig, like: Tensor) -> Tensor | None:
    """What rotary attention needs of each patch: axial [n, Dh/2] angles, mixed [n, 2] places; None without it."""
    if c.rotary == "none":
        return None
    table = rotary.patch_positions(c.grid, c.rotary_places, c.rotary_first, c.rotary_offset, c.rotary_reference)
    if c.rotary == "axial":
        table = rotary.axial(table, c.resolved_head_width, c.rotary_base, c.rotary_periods)
    return table.to(like.device, torch.promote_types(like.dtype, torch.float32))


def sincos1d(length: int, width: int) -> Tensor:
    """[1, length, D]: column 2i is sin(t / 10000^(2i/D)), column 2i+1 the cosine (Vaswani et al. 2017, 3.5)."""
    column = torch.arange(width)
    frequency = 10000.0 ** (-2 * (column // 2).double() / width)
    angles = torch.outer(torch.arange(length).double(), frequency)
    return torch.where(column % 2 == 0, angles.sin(), angles.cos()).unsqueeze(0)


def sincos2d(rows: int, columns: int, width: int) -> Tensor:
    """[1, rows*columns, D]: sin and cos of x w, then of y w, with w_k = 10000^(-k / (D/4 - 1)) (Beyer et al. 2022)."""
    quarter = width // 4
    omega = torch.logspace(0, -4, quarter, dtype=torch.float64) if quarter > 1 else torch.ones(1, dtype=torch.float64)
    y, x = torch.meshgrid(torch.arange(rows), torch.arange(columns), indexing="ij")
    x, y = torch.outer(x.flatten().double(), omega), torch.outer(y.flatten().double(), omega)
    return torch.cat([x.sin(), x.cos(), y.sin(), y.cos()], dim=1).unsqueeze(0)
