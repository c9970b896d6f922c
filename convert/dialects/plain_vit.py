"""The field table of the plain pre-norm ViT, with which the tables of its layouts begin: they replace what differs."""

from __future__ import annotations

from vit_jax.models.vit_config import ViTConfig

from ..layout import Field, defaults

# Each table has these fields of its own.
OF_EACH = ("image", "channels", "patch", "classes", "width", "depth", "heads", "hidden", "eps", "activation")
PLAIN_VIT: dict[str, Field] = defaults(ViTConfig, but=OF_EACH)
