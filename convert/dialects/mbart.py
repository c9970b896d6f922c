"""mBART as Hugging Face transformers saves it (versions 4 and 5; compared with 5.23).

BART (bart.py) with its norms first, and a norm after each stack.
"""

from __future__ import annotations

from .bart import special_fields
from .marian import BASE, TORCH, layout

LAYOUTS = (
    layout(
        model_type="mbart",
        architecture="MBartModel",
        version="base",
        title="Hugging Face mBART without its head",
        special=special_fields(BASE, norm_first=True),
        norms=(True, True),
        style=BASE,
        proven="transformers 5.23.0",
    ),
    layout(
        model_type="mbart",
        architecture="MBartForConditionalGeneration",
        title="Hugging Face mBART",
        special=special_fields(TORCH, norm_first=True),
        norms=(True, True),
        proven="transformers 5.23.0",
    ),
)
