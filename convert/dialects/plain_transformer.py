"""The field table of the plain pre-norm Transformer, with which the tables of its layouts begin.

They replace what differs. Options that no layout of theirs has are so stated once.
"""

from __future__ import annotations

from vit_jax.models.transformer_config import TransformerConfig

from ..layout import Field, defaults

# Each table has these fields of its own.
OF_EACH = (
    *("width", "heads", "hidden", "encoder_depth", "decoder_depth", "activation", "eps", "position", "max_length"),
)
PLAIN_TRANSFORMER: dict[str, Field] = defaults(TransformerConfig, but=OF_EACH)
