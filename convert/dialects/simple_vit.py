"""vit-pytorch's SimpleViT (Beyer et al. 2022, arXiv 2205.01580), one layout for each run of versions with the same names.

Positions are 2-D sinusoids that no file holds, the head sees the mean of the patches, and attention has no
biases. The modules are those of vit-pytorch's ViT but for the head's and the mlp's numbers.
"""

from __future__ import annotations

from vit_jax.config import ViTConfig
from vit_jax.errors import UserError

from ..layout import PLAIN_VIT, Field, Layout, Names, always
from ..rules import Row
from . import vit_pytorch
from .vit_pytorch import STEM, Modules, before, block

BLOCK = block("0.norm", "0.to_qkv", "0.to_out", "1.net.0", "1.net.1", "1.net.3")
GENERATIONS = (
    Modules("0.35.3", "to_patch_embedding.1", BLOCK, "linear_head.0", "linear_head.1"),
    Modules("1.0", "to_patch_embedding.2", BLOCK, "linear_head.0", "linear_head.1", STEM),
    Modules("1.4.1", "to_patch_embedding.2", BLOCK, "transformer.norm", "linear_head", STEM),
)
HEADLESS = "the SimpleViT of vit-pytorch 1.4.0 ends in a LayerNorm where the classes should be; train its head with a later version first"


def rows(config: ViTConfig, modules: Modules = GENERATIONS[-1]) -> list[Row]:
    """The tensors of a network under the names of a run of versions."""
    return vit_pytorch.rows(config, modules)


def fields(m: Modules) -> dict[str, Field]:
    """Where the config comes from. Before 1.4 the only norm behind the blocks comes after pooling."""
    return PLAIN_VIT | vit_pytorch.sizes(m) | {
        "cls_token": always(False), "pool": always("mean"), "position": always("sincos2d"), "position_trained": always(False),
        "out_bias": always(False), "final_norm": always(not before(m, "1.4")), "head_norm": always(before(m, "1.4")),
    }  # fmt: skip


def limits(config: ViTConfig) -> list[str]:
    """Why SimpleViT cannot be a config whose fields all are its own."""
    told = ["classes is 0, and it always has a head"] if not config.classes else []
    return told + (["width is 4, for which its positions divide by zero"] if config.width == 4 else [])


def refuses(m: Modules, names: Names) -> list[str]:
    """1.4.0 has the names of later versions."""
    return [HEADLESS] if len(names.get(f"{m.head}.weight", (0, 0))) == 1 else []


def marks(m: Modules) -> tuple[str, ...]:
    """Names that no other run of versions has together."""
    modules = (
        m.patch,
        m.head,
        m.norm,
        *(m.stem_norms or ()),
        *(f"transformer.layers.0.{m.block[name]}" for name in ("attention.query", "attention.out", "mlp.fc2")),
    )
    present = tuple(f"{module}.weight".replace(".", r"\.") for module in modules)
    return present if m.stem_norms else (*present, r"!to_patch_embedding\.2\..*")


def generation(version: str) -> Layout:
    """The layout of a version of vit-pytorch's SimpleViT. Raises UserError before 0.35.3 and for 1.4.0."""
    if version in ("1.4", "1.4.0"):
        raise UserError(f"simple-vit@{version}: {HEADLESS}")
    return vit_pytorch.held(
        "simple-vit", version, LAYOUTS, "vit-pytorch has a SimpleViT from 0.35.3 on; name that version or a later one"
    )


def _layout(m: Modules) -> Layout:
    return Layout(
        "simple-vit",
        m.since,
        f"vit-pytorch's SimpleViT from version {m.since} on",
        ViTConfig,
        fields(m),
        lambda c: rows(c, m),
        marks(m),
        ("torch", "safetensors"),
        limits,
        refuses=lambda names: refuses(m, names),
        proven="vit-pytorch 1.26.11" if m is GENERATIONS[-1] else "",
    )


LAYOUTS = tuple(_layout(m) for m in GENERATIONS)
