"""mBART in Hugging Face transformers: BART with its norms first, and a norm at the end of each stack."""

from __future__ import annotations

from .bart import own
from .marian import BASE, IDS_OF, TORCH, layout, marks

LAYOUTS = (
    layout(
        "mbart", "base", "Hugging Face mBART without its head", own(BASE, norm_first=True), marks(BASE, embedding_norm=True, final_norm=True),
        "mbart", "MBartModel", IDS_OF["mbart"], BASE, proven="transformers 5.23.0",
    ),
    layout(
        "mbart", "", "Hugging Face mBART", own(TORCH, norm_first=True),
        marks(TORCH, embedding_norm=True, final_norm=True),
        "mbart", "MBartForConditionalGeneration", IDS_OF["mbart"], proven="transformers 5.23.0",
    ),
)  # fmt: skip
