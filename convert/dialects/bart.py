"""BART in Hugging Face transformers: post-norm, learned positions from row 2 on, a norm after the embeddings, one table for all."""

from __future__ import annotations

from ..layout import Field, Names, always
from .marian import BASE, IDS_OF, TORCH, Style, layout, marks, table_rows

OFFSET = 2  # rows of the tables of positions before that of the first token


def own(style: Style, norm_first: bool = False) -> dict[str, Field]:
    """BART's fields; with norms first and a norm at the end of each stack, mBART's."""
    places = style.name("model.encoder.embed_positions", "position")

    def longest(names: Names) -> int | None:
        return names[places][0] - OFFSET if places in names else None

    return {
        "norm_first": always(norm_first), "final_norm": always(norm_first), "embedding_norm": always(True), "position": always("learned"),
        "position_offset": always(OFFSET), "max_length": Field(solve=longest, key="max_position_embeddings"), "tie": always("embeddings" if style.base else "all"),
        **dict.fromkeys(("source_vocabulary", "target_vocabulary"), Field(solve=table_rows(style, "model.shared"))),
    }  # fmt: skip


LAYOUTS = (
    layout(
        "bart", "base", "Hugging Face BART without its head", own(BASE), marks(BASE, embedding_norm=True, final_norm=False),
        "bart", "BartModel", IDS_OF["bart"], BASE, proven="transformers 5.23.0",
    ),
    layout(
        "bart", "", "Hugging Face BART", own(TORCH), marks(TORCH, embedding_norm=True, final_norm=False),
        "bart", "BartForConditionalGeneration", IDS_OF["bart"], proven="transformers 5.23.0",
    ),
)  # fmt: skip
