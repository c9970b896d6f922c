"""BART as Hugging Face transformers saves it (versions 4 and 5; compared with 5.23).

Post-norm, a norm after the embeddings, one table of embeddings for source, target and head. Positions are learned; the
first token has row 2 of their table.
"""

from __future__ import annotations

from ..layout import Field, Names, always
from .marian import BASE, TORCH, Style, layout, table_rows

OFFSET = 2  # rows of the tables of positions before the row of the first token


def special_fields(style: Style, norm_first: bool = False) -> dict[str, Field]:
    """The fields in which BART differs from Marian."""
    positions = style.name("model.encoder.embed_positions", "position")

    def longest(names: Names) -> int | None:
        return names[positions][0] - OFFSET if names.get(positions) else None

    vocabulary = Field(solve=table_rows(style, "target"))
    return {
        "norm_first": always(norm_first),
        "final_norm": always(norm_first),
        "embedding_norm": always(True),
        "position": always("learned"),
        "position_offset": always(OFFSET),
        "max_length": Field(solve=longest, key="max_position_embeddings"),
        "tie": always("embeddings" if style.base else "all"),
        "source_vocabulary": vocabulary,
        "target_vocabulary": vocabulary,
    }


LAYOUTS = (
    layout(
        model_type="bart",
        architecture="BartModel",
        version="base",
        title="Hugging Face BART without its head",
        special=special_fields(BASE),
        norms=(True, False),
        style=BASE,
        proven="transformers 5.23.0",
    ),
    layout(
        model_type="bart",
        architecture="BartForConditionalGeneration",
        title="Hugging Face BART",
        special=special_fields(TORCH),
        norms=(True, False),
        proven="transformers 5.23.0",
    ),
)
