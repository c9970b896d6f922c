"""SimpleViT of vit-pytorch (Beyer et al. 2022, arXiv 2205.01580); compared with 1.26.11.

Versions of the library that use the same names share one layout, which is named after the first of them. Positions are
2-D sinusoids that no file holds, the head takes the mean of the patches, attention has no biases. The modules are those
of vit-pytorch's ViT (vit_pytorch.py) under other numbers.
"""

from __future__ import annotations

import functools

from vit_jax.errors import UserError
from vit_jax.models.vit_config import ViTConfig

from ..layout import Field, Layout, Names, Refusal, always
from ..rules import Row
from . import vit_pytorch
from .modules import headless
from .plain_vit import PLAIN_VIT
from .vit_pytorch import STEM, Modules, block, ends_before

BLOCK = block("0.norm", "0.to_qkv", "0.to_out", "1.net.0", "1.net.1", "1.net.3")
VERSIONS = (
    Modules("0.35.3", "to_patch_embedding.1", BLOCK, "linear_head.0", "linear_head.1"),
    Modules("1.0", "to_patch_embedding.2", BLOCK, "linear_head.0", "linear_head.1", STEM),
    Modules("1.4.1", "to_patch_embedding.2", BLOCK, "transformer.norm", "linear_head", STEM),
)
HEADLESS = (
    "the SimpleViT of vit-pytorch 1.4.0 ends in a LayerNorm where the classes should be; "
    "train its head with a later version first"
)


def rows(config: ViTConfig, modules: Modules = VERSIONS[-1]) -> list[Row]:
    """The rows of a network under the names of these versions."""
    return vit_pytorch.rows(config, modules)


def fields(m: Modules) -> dict[str, Field]:
    """Where config fields come from. Before 1.4 the only norm after the blocks comes after pooling."""
    return (
        PLAIN_VIT
        | vit_pytorch.sizes(m)
        | {
            "cls_token": always(False),
            "pool": always("mean"),
            "position": always("sincos2d"),
            "position_trained": always(False),
            "out_bias": always(False),
            "final_norm": always(not ends_before(m, "1.4")),
            "head_norm": always(ends_before(m, "1.4")),
        }
    )


def cannot_hold(config: ViTConfig) -> list[str]:
    """Clauses for a network that SimpleViT cannot be, although each field has a possible value."""
    return headless(config) + (["width is 4, for which its positions divide by zero"] if config.width == 4 else [])


def unreadable(m: Modules, names: Names) -> list[str]:
    """A clause for a file of 1.4.0, which has the names of later versions."""
    return [HEADLESS] if len(names.get(f"{m.head}.weight", (0, 0))) == 1 else []


def signature(m: Modules) -> tuple[str, ...]:
    """The signature: names that no other versions have together."""
    modules = (
        m.patch,
        m.head,
        m.norm,
        *(m.stem_norms or ()),
        *(f"transformer.layers.0.{m.block[name]}" for name in ("attention.query", "attention.out", "mlp.fc2")),
    )
    present = tuple(f"{module}.weight".replace(".", r"\.") for module in modules)
    return present if m.stem_norms else (*present, r"!to_patch_embedding\.2\..*")


def layout_for(version: str) -> Layout:
    """The layout of a version of vit-pytorch's SimpleViT."""
    if version in ("1.4", "1.4.0"):
        raise UserError(f"simple-vit@{version}", HEADLESS)
    return vit_pytorch.layout_of_version(
        "simple-vit", version, LAYOUTS, "vit-pytorch has a SimpleViT from 0.35.3 on; name that version or a later one"
    )


def _layout(m: Modules) -> Layout:
    return Layout(
        dialect="simple-vit",
        version=m.since,
        title=f"vit-pytorch's SimpleViT from version {m.since} on",
        network=ViTConfig,
        fields=fields(m),
        rows=functools.partial(rows, modules=m),
        signature=signature(m),
        containers=("torch", "safetensors"),
        refusals=(
            Refusal("file", functools.partial(unreadable, m)),
            Refusal("network", cannot_hold),
        ),
        proven="vit-pytorch 1.26.11" if m is VERSIONS[-1] else "",
    )


LAYOUTS = tuple(_layout(m) for m in VERSIONS)
