"""mBART in Hugging Face transformers: BART with its norms first, and a norm at the end of each stack."""

from __future__ import annotations

from .bart import own
from .marian import MARKS, TORCH, layout

LAYOUTS = (
    layout(
        "mbart", "", "Hugging Face mBART", own(TORCH, norm_first=True),
        (*MARKS, r"model\.encoder\.layernorm_embedding\.weight", r"model\.encoder\.layer_norm\.weight"),
        "mbart", "MBartForConditionalGeneration", (1, 2, None, 0, 2),
    ),
)  # fmt: skip
