"""vit-pytorch's files, by version: its modules load what we write, compute our logits, and return it to the bit.

The newest version is the library's own, where it is installed. Of the older ones stand twins here, with their
names: each was once loaded with the same state as the library's own module and gave the same numbers.
"""

from __future__ import annotations

import functools
import importlib.metadata
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from convert import rules
from convert.dialects import LAYOUTS
from convert.recognise.config import resolve
from convert.verify.checks import Check, bits, values
from convert.verify.libraries import load, vit_pytorch
from vit_jax.config.fields import pair
from vit_jax.models.vit_config import ViTConfig

from .cases import VIT
from .sides import ours
from .weights import inputs, weights


@dataclass(frozen=True)
class Case:
    """A module of others, the config that its layout reads, and what a user has to say."""

    layout: str
    name: str
    config: ViTConfig
    build: Callable[[ViTConfig], nn.Module]
    said: tuple[str, ...]
    call: Callable[[Any, Tensor], Tensor] = lambda model, images: model(images)
    against: str = "a twin"
    shown: str = ""  # the pooling that ours is run with, where it shows more than the config's own


def compare(case: Case) -> Iterator[Check]:
    """Strict loading of what we write, logits in float64 and float32, the config from shapes, and the way back."""
    layout, c = LAYOUTS[case.layout], case.config
    subject = f"{case.layout}, {case.name}"
    for dtype in ("float64", "float32"):
        p = {name: array.astype(dtype) for name, array in weights(c).items()}
        module = case.build(c).to(getattr(torch, dtype)).eval()
        module.load_state_dict(
            {name: torch.from_numpy(array) for name, array in rules.write(layout.rows(c), p).items()}
        )
        images = inputs(c)["images"].astype(dtype)
        with torch.no_grad():
            theirs = case.call(module, torch.from_numpy(images).permute(0, 3, 1, 2).contiguous()).numpy()
        mine = ours(replace(c, pool=case.shown or c.pool), p, dtype).forward({"images": images})
        yield values(subject, case.against, dtype, {"logits": mine}, {"logits": theirs}, dtype)
    state = {name: tensor.numpy() for name, tensor in module.state_dict().items()}
    names = {name: array.shape for name, array in state.items()}
    known = [each.name for each in LAYOUTS.values() if each.recognises(names)]
    yield Check(
        subject, case.against, "recognised as nothing else", float(known != [case.layout]), 0.0, ", ".join(known)
    )
    config = resolve(layout, names, [("--set", {name: getattr(c, name) for name in case.said})], "file")
    wrong = [name for name in layout.fields if getattr(config.normal(), name) != getattr(c.normal(), name)]
    yield Check(subject, case.against, "config from shapes", float(len(wrong)), 0.0, ", ".join(wrong))
    yield bits(subject, case.against, rules.read(layout.rows(config), state), p)


# --------------------------------------------------------------------------------------- its modules


class Fn(nn.Module):
    """A function after a LayerNorm (PreNorm), or added to its input (Residual)."""

    def __init__(self, fn: nn.Module, norm: int = 0):
        super().__init__()
        self.fn, self.residual = fn, not norm
        if norm:
            self.norm = nn.LayerNorm(norm)

    def forward(self, x: Tensor) -> Tensor:
        return self.fn(x) + x if self.residual else self.fn(self.norm(x))


class Attention(nn.Module):
    """to_qkv and to_out, and from 1.4 on the norm."""

    def __init__(self, c: ViTConfig, norm: bool, plain_out: bool):
        super().__init__()
        inner = c.heads * c.resolved_head_width
        self.heads, self.norm = c.heads, nn.LayerNorm(c.width) if norm else nn.Identity()
        self.to_qkv = nn.Linear(c.width, 3 * inner, bias=False)
        self.to_out: nn.Module = (
            nn.Linear(inner, c.width, bias=False)
            if plain_out
            else nn.Sequential(nn.Linear(inner, c.width), nn.Dropout(0.0))
        )

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (
            part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in self.to_qkv(self.norm(x)).chunk(3, -1)
        )
        weights = (q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5).softmax(-1)
        return self.to_out((weights @ v).transpose(1, 2).flatten(2))


class FeedForward(nn.Module):
    """net: Linear, GELU, Linear, with dropouts after both unless it is SimpleViT's, and from 1.4 on the norm before."""

    def __init__(self, c: ViTConfig, norm: bool, dropouts: bool):
        super().__init__()
        drop = [nn.Dropout(0.0)] if dropouts else []
        self.net = nn.Sequential(
            *([nn.LayerNorm(c.width)] if norm else []),
            nn.Linear(c.width, c.hidden),
            nn.GELU(),
            *drop,
            nn.Linear(c.hidden, c.width),
            *drop,
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x)


class Patches(nn.Module):
    """[B, C, h, w] -> [B, N, p q C], as its Rearrange has them."""

    def __init__(self, c: ViTConfig):
        super().__init__()
        self.patch = pair(c.patch)

    def forward(self, images: Tensor) -> Tensor:
        p, q = self.patch
        return images.unfold(2, p, p).unfold(3, q, q).permute(0, 2, 3, 4, 5, 1).flatten(3).flatten(1, 2)


class Stack(nn.Module):
    """Its Transformer: layers, and from 1.4 on a norm behind them."""

    def __init__(self, layers: list[nn.ModuleList], norm: nn.Module | None):
        super().__init__()
        self.layers, self.norm = nn.ModuleList(layers), norm or nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            for part in layer:
                x = part(x) if isinstance(part, Fn) and part.residual else part(x) + x
        return self.norm(x)


class Network(nn.Module):
    """The ViT of a version, or its SimpleViT: images [B, C, h, w] to logits; with a token [1, D], and its output."""

    def __init__(self, version: str, c: ViTConfig):
        super().__init__()
        number = tuple(map(int, version.split(".")))
        self.simple, self.mean, d = c.position == "sincos2d", c.pool != "cls", c.width
        pixels, modern = c.channels * int(np.prod(pair(c.patch))), number >= (1, 4)
        stem = (
            [nn.LayerNorm(pixels), nn.Linear(pixels, d), nn.LayerNorm(d)] if number >= (1,) else [nn.Linear(pixels, d)]
        )
        if number < (0, 7):
            self.patches, self.patch_to_embedding = Patches(c), stem[0]
        else:
            self.to_patch_embedding = nn.Sequential(Patches(c), *stem)
        if self.simple:
            self.positions = torch.from_numpy(sincos2d(*c.grid, d))
        else:
            lead = () if number >= (1, 16, 1) else (1,)
            self.cls_token, self.pos_embedding = (
                nn.Parameter(torch.zeros(*lead, int(c.cls_token), d)),
                nn.Parameter(torch.zeros(*lead, c.position_rows, d)),
            )
        layers = [
            self.layer(c, wrapped=not modern and not self.simple, residual=number < (0, 10)) for _ in range(c.depth)
        ]
        self.transformer = Stack(layers, nn.LayerNorm(d) if modern else None)
        head = nn.Linear(d, c.classes) if modern else nn.Sequential(nn.LayerNorm(d), nn.Linear(d, c.classes))
        setattr(self, "linear_head" if self.simple else "mlp_head", head)

    def layer(self, c: ViTConfig, wrapped: bool, residual: bool) -> nn.ModuleList:
        parts: list[nn.Module] = [Attention(c, not wrapped, self.simple), FeedForward(c, not wrapped, not self.simple)]
        parts = [Fn(part, c.width) for part in parts] if wrapped else parts
        return nn.ModuleList([Fn(part) for part in parts] if residual else parts)

    def forward(self, images: Tensor, token: Tensor | None = None) -> Any:
        x = (
            self.patch_to_embedding(self.patches(images))
            if hasattr(self, "patches")
            else self.to_patch_embedding(images)
        )
        if self.simple:
            return self.linear_head(self.transformer(x + self.positions.to(x.dtype)).mean(1))
        cls = self.cls_token.reshape(1, -1, x.shape[-1]).expand(len(x), -1, -1)
        x = torch.cat([cls, x], 1) + self.pos_embedding.reshape(1, -1, x.shape[-1])
        if token is not None:
            x = torch.cat([x, token.reshape(1, 1, -1).expand(len(x), -1, -1)], 1)
        x = self.transformer(x)
        last, x = (x[:, -1], x[:, :-1]) if token is not None else (None, x)
        logits = self.mlp_head(x.mean(1) if self.mean else x[:, 0])
        return logits if token is None else (logits, last)


class Wrapper(nn.Module):
    """DistillWrapper's parameters, without a teacher."""

    def __init__(self, version: str, c: ViTConfig):
        super().__init__()
        self.student = Network(version, c)
        self.distillation_token = nn.Parameter(
            torch.zeros(1, c.width) if version == "1.16.5" else torch.zeros(1, 1, c.width)
        )
        self.distill_mlp = nn.Sequential(
            nn.LayerNorm(c.width) if c.distill_norm else nn.Identity(), nn.Linear(c.width, c.classes)
        )


def sincos2d(rows: int, columns: int, width: int) -> np.ndarray:
    """SimpleViT's positions, a row of the grid after another, number by number."""
    out = np.zeros((rows * columns, width))
    quarter = width // 4
    for n, k in np.ndindex(rows * columns, quarter):
        y, x, omega = n // columns, n % columns, 10000 ** (-k / (quarter - 1))
        out[n, k::quarter] = np.sin(x * omega), np.cos(x * omega), np.sin(y * omega), np.cos(y * omega)
    return out


# -------------------------------------------------------------------------------------------- cases

BEFORE = replace(VIT, query_bias=False, key_bias=False, value_bias=False, eps=1e-5)
DUAL = replace(BEFORE, stem_pre_norm=True, stem_norm=True)
MEAN_AFTER = dict(pool="mean_all", final_norm=False, head_norm=True)
NO_CLASS = dict(cls_token=False, pool="mean")
SIMPLE = dict(cls_token=False, pool="mean", position="sincos2d", position_trained=False, out_bias=False)
TOKEN = dict(distill_token=True, distill_position=False, distill_head=True, distill_norm=True)
SIZES = ("image", "patch", "heads")


def student(wrapper: Any, images: Tensor) -> Tensor:
    """The logits that a DistillWrapper trains, the token present."""
    return wrapper.student(images, wrapper.distillation_token)[0]


def both(wrapper: Any, images: Tensor) -> Tensor:
    """The mean of both heads' logits."""
    logits, token = wrapper.student(images, wrapper.distillation_token)
    return (logits + wrapper.distill_mlp(token)) / 2


def generations() -> Iterator[Case]:
    """Every run of versions, by a twin."""
    square = dict(image=4, patch=2)

    def vit(version: str, name: str, config: ViTConfig, *said: str) -> Case:
        return Case(f"vit-pytorch@{version}", name, config, lambda c: Network(version, c), (*SIZES, *said))

    for version, base in (
        ("0.6.7", replace(BEFORE, **square)),
        ("0.7", replace(BEFORE, **square)),
        ("0.10", BEFORE),
        ("1.0", DUAL),
    ):
        yield vit(version, "cls", replace(base, head_width=3), "pool")
        yield vit(version, "mean", replace(base, **MEAN_AFTER), "pool")
    yield vit("1.4", "cls", replace(DUAL, head_width=3), "pool")
    yield vit("1.4", "mean", replace(DUAL, pool="mean_all"), "pool")
    yield vit("1.16", "mean", replace(DUAL, **NO_CLASS))
    yield vit("1.16.1", "cls", replace(DUAL, head_width=3))
    yield vit("1.16.1", "mean", replace(DUAL, **NO_CLASS))
    for version, config in (
        ("0.35.3", replace(BEFORE, **SIMPLE, final_norm=False, head_norm=True)),
        ("1.0", replace(DUAL, **SIMPLE, final_norm=False, head_norm=True)),
        ("1.4.1", replace(DUAL, **SIMPLE, head_width=3)),
    ):
        yield Case(f"simple-vit@{version}", "mean", config, functools.partial(Network, version), SIZES)
    after = dict(final_norm=False, head_norm=True)
    for version, config in (
        ("0.7", replace(BEFORE, **square, **TOKEN, **after)),
        ("0.10", replace(BEFORE, **TOKEN, **after)),
        ("1.0", replace(DUAL, **TOKEN, **after)),
        ("1.4", replace(DUAL, **TOKEN)),
        ("1.16.5", replace(DUAL, **{**TOKEN, "distill_norm": False})),
    ):
        yield Case(
            f"vit-pytorch-distill@{version}",
            "student",
            config,
            functools.partial(Wrapper, version),
            SIZES,
            student,
        )  # type: ignore[misc]
        yield Case(
            f"vit-pytorch-distill@{version}",
            "both heads",
            config,
            functools.partial(Wrapper, version),
            SIZES,
            both,
            shown="cls_distill",
        )  # type: ignore[misc]


def newest() -> Iterator[Case]:
    """The library's own modules."""

    def one(
        layout: str,
        name: str,
        build: Callable[[ViTConfig], nn.Module],
        call: Any = Case.call,
        shown: str = "",
        **config: Any,
    ) -> Case:
        return Case(layout, name, replace(DUAL, **config), build, SIZES, call, f"vit-pytorch {version}", shown)

    version = importlib.metadata.version("vit-pytorch")
    plain, distill = "vit-pytorch@1.16.1", "vit-pytorch-distill@1.16.5"
    yield one(plain, "cls", vit_pytorch.plain)
    yield one(plain, "heads of 3", vit_pytorch.plain, head_width=3)
    yield one(plain, "mean", vit_pytorch.plain, **NO_CLASS)
    yield one("simple-vit@1.4.1", "mean", vit_pytorch.plain, **SIMPLE)
    yield one(distill, "student", vit_pytorch.wrapper, student, **TOKEN)
    yield one(distill, "both heads", vit_pytorch.wrapper, both, "cls_distill", **TOKEN)
    yield one(
        distill, "both heads, no norm", vit_pytorch.wrapper, both, "cls_distill", **{**TOKEN, "distill_norm": False}
    )
    yield one(distill, "mean", vit_pytorch.wrapper, student, **NO_CLASS, **TOKEN)


def installed() -> bool:
    """Whether the library is here and starts."""
    try:
        load("torchvision"), load("vit_pytorch")
    except (ImportError, RuntimeError):
        return False
    return True


def layouts() -> Iterator[Check]:
    """All of them; the library's own where it is installed."""
    for case in [*generations(), *(newest() if installed() else ())]:
        yield from compare(case)
