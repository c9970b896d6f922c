"""M2M-100 and NLLB as Hugging Face transformers saves them (versions 4 and 5; compared with 5.23).

Marian (marian.py) with norms first, one after each stack, no bias of the logits, and fairseq's sinusoids, which are not
stored: the first token has position 2, the one after that of padding. The language of a translation is its first token,
which generation_config.json forces (forced_bos_token_id).
"""

from __future__ import annotations

import functools
from typing import Any

from ..layout import Field, Layout, Refusal, always
from .marian import BASE, TORCH, Style, cannot_hold, layout, stated_activation, table_rows

FIRST = 2  # the position of the first token


def _layout(style: Style, **more: Any) -> Layout:
    """The layout of the class with a head, or of that without."""
    vocabulary = Field(solve=table_rows(style, "target"))
    return layout(
        dialect="m2m-100",
        model_type="m2m_100",
        special={
            "position": always("fairseq"),
            "position_offset": always(FIRST),
            "max_length": Field(key="max_position_embeddings", default=1024),
            "tie": always("embeddings" if style.base else "all"),
            "source_vocabulary": vocabulary,
            "target_vocabulary": vocabulary,
            "outputs": always(0) if style.base else vocabulary,
            "output_bias": always(style.base),  # without a head it means nothing, and is True as by default
            "activation": stated_activation("relu"),
            "scale_embedding": Field(key="scale_embedding", default=True),
        },
        norms=(False, True),
        bias=False,
        style=style,
        refusals=(Refusal("network", functools.partial(cannot_hold, base=style.base)),),
        outside=(r"(model\.)?(encoder|decoder)\.embed_positions\.weights",),  # as older versions saved them
        proven="transformers 5.23.0",
        **more,
    )


LAYOUTS = (
    _layout(
        BASE,
        version="base",
        architecture="M2M100Model",
        title="Hugging Face M2M-100 and NLLB without their head",
    ),
    _layout(TORCH, architecture="M2M100ForConditionalGeneration", title="Hugging Face M2M-100 and NLLB"),
)
