"""The notebooks' ViTs: torch modules with their names and their forward passes, as the notebooks' text has them.

The 768-wide one is compared with its encoder told that the batch comes first, which is the network that we
say it becomes; that its own is another one is shown, too.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from convert import rules
from convert.dialects import notebook_768
from convert.verify.checks import Check, relative
from vit_jax.config.fields import pair
from vit_jax.models.vit_config import ViTConfig

from .cases import VIT
from .layouts_vit_pytorch import Case, compare
from .sides import ours
from .weights import inputs, weights


class Net768(nn.Module):
    """A convolution, trained positions, torch's encoder, the mean, a Linear: images [B, C, h, w] to logits."""

    def __init__(self, c: ViTConfig, batch_first: bool):
        super().__init__()
        self.conv1 = nn.Conv2d(c.channels, c.width, pair(c.patch), pair(c.patch), bias=False)
        self.positional_encoding = nn.Parameter(torch.zeros(1, c.patches, c.width))
        layer = nn.TransformerEncoderLayer(c.width, c.heads, c.hidden, batch_first=batch_first)
        self.transformer_encoder = nn.TransformerEncoder(layer, c.depth, enable_nested_tensor=False)
        self.fc = nn.Linear(c.width, c.classes)

    def forward(self, images: Tensor) -> Tensor:
        x = self.conv1(images).flatten(2).transpose(1, 2) + self.positional_encoding
        return self.fc(self.transformer_encoder(x).mean(1))


class Head(nn.Module):
    """One head of attention: [B, N, D] to [B, N, Dh]."""

    def __init__(self, width: int, head: int):
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(width, head) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        scores = self.query(x) @ self.key(x).transpose(-1, -2) / self.query.out_features**0.5
        return scores.softmax(-1) @ self.value(x)


class Net48(nn.Module):
    """Per-head Linears, tanh GELU, no last norm: images [B, C, h, w] to logits."""

    def __init__(self, c: ViTConfig):
        super().__init__()
        self.embedding = nn.Module()
        self.embedding.cls_token = nn.Parameter(torch.zeros(1, 1, c.width))
        self.embedding.position_embeddings = nn.Parameter(torch.zeros(1, c.position_rows, c.width))
        self.embedding.patch_embeddings = nn.Module()
        self.embedding.patch_embeddings.projection = nn.Conv2d(c.channels, c.width, pair(c.patch), pair(c.patch))
        self.encoder = nn.Module()
        self.encoder.blocks = nn.ModuleList(self.block(c) for _ in range(c.depth))
        self.classifier = nn.Linear(c.width, c.classes)

    def block(self, c: ViTConfig) -> nn.Module:
        block = nn.Module()
        block.layernorm_1, block.layernorm_2, block.attention, block.mlp = (
            nn.LayerNorm(c.width),
            nn.LayerNorm(c.width),
            nn.Module(),
            nn.Module(),
        )
        block.attention.heads = nn.ModuleList(Head(c.width, c.resolved_head_width) for _ in range(c.heads))
        block.attention.output_projection = nn.Linear(c.heads * c.resolved_head_width, c.width)
        block.mlp.dense_1, block.mlp.dense_2 = nn.Linear(c.width, c.hidden), nn.Linear(c.hidden, c.width)
        return block

    def forward(self, images: Tensor) -> Tensor:
        e: Any = self.embedding
        x = e.patch_embeddings.projection(images).flatten(2).transpose(1, 2)
        x = torch.cat([e.cls_token.expand(len(x), -1, -1), x], 1) + e.position_embeddings
        for block in self.encoder.blocks:
            normed = block.layernorm_1(x)
            x = x + block.attention.output_projection(torch.cat([head(normed) for head in block.attention.heads], -1))
            x = x + block.mlp.dense_2(nn.functional.gelu(block.mlp.dense_1(block.layernorm_2(x)), approximate="tanh"))
        return self.classifier(x[:, 0])


class Block256(nn.Module):
    """torch's attention over tokens [N, B, D] and a two-layer mlp, norms first."""

    def __init__(self, c: ViTConfig):
        super().__init__()
        self.norm1, self.attn, self.norm2 = (
            nn.LayerNorm(c.width),
            nn.MultiheadAttention(c.width, c.heads),
            nn.LayerNorm(c.width),
        )
        self.fc1, self.fc2 = nn.Linear(c.width, c.hidden), nn.Linear(c.hidden, c.width)

    def forward(self, x: Tensor) -> Tensor:
        normed = self.norm1(x)
        x = x + self.attn(normed, normed, normed)[0]
        return x + self.fc2(nn.functional.gelu(self.fc1(self.norm2(x))))


class Net256(nn.Module):
    """Patches (channel, row, column) through a Linear and a ReLU, a two-layer head: images [B, C, h, w] to logits."""

    def __init__(self, c: ViTConfig):
        super().__init__()
        self.patch = pair(c.patch)
        self.input = nn.Linear(c.channels * self.patch[0] * self.patch[1], c.width)
        self.class_embed, self.pos_embed = (
            nn.Parameter(torch.zeros(1, 1, c.width)),
            nn.Parameter(torch.zeros(1, c.position_rows, c.width)),
        )
        self.transformer = nn.Sequential(*(Block256(c) for _ in range(c.depth)))
        self.fc1, self.fc2 = nn.Linear(c.width, c.head_hidden), nn.Linear(c.head_hidden, c.classes)

    def forward(self, images: Tensor) -> Tensor:
        patches = nn.functional.unfold(images, self.patch, stride=self.patch).transpose(1, 2)  # [B, N, C p q]
        x = self.input(patches).relu()
        x = torch.cat([self.class_embed.expand(len(x), -1, -1), x], 1) + self.pos_embed
        x = self.transformer(x.transpose(0, 1)).transpose(0, 1)
        return self.fc2(self.fc1(x[:, 0]).relu())


BASE = replace(VIT, eps=1e-5, final_norm=False)
WIDE = replace(BASE, norm_first=False, activation="relu", stem_bias=False, cls_token=False, pool="mean")  # 768
HEADS = replace(BASE, activation="gelu_tanh")  # 48
RELU = replace(BASE, stem_activation="relu", head_hidden=6, head_activation="relu")  # 256


def across_the_batch() -> Check:
    """The 768-wide notebook's own network with the same weights: it must not come near to ours."""
    p, images = weights(WIDE), inputs(WIDE)["images"]
    module = Net768(WIDE, batch_first=False).double().eval()
    module.load_state_dict(
        {name: torch.from_numpy(array) for name, array in rules.write(notebook_768.rows(WIDE), p).items()}
    )
    with torch.no_grad():
        theirs = module(torch.from_numpy(images).permute(0, 3, 1, 2)).numpy()
    near = relative(ours(WIDE, p).forward({"images": images}), theirs) < 1e-2
    return Check("notebook-768, attending across the batch", "a twin", "is another function", float(near), 0.0)


def cases() -> list[Case]:
    """The three, one of them with narrow heads, too."""
    sizes = ("image", "heads")
    return [
        Case("notebook-768", "batch first", WIDE, lambda c: Net768(c, True), sizes),
        Case("notebook-48", "as it is", HEADS, Net48, ("image",)),
        Case("notebook-48", "heads of 3", replace(HEADS, head_width=3), Net48, ("image",)),
        Case("notebook-256", "as it is", RELU, Net256, (*sizes, "patch")),
    ]


def layouts() -> Iterator[Check]:
    """All of them."""
    yield across_the_batch()
    for case in cases():
        yield from compare(case)
