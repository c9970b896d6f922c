"""M2M-100 and NLLB as Hugging Face transformers saves them (versions 4 and 5; compared with 5.23).

Marian (marian.py) with norms first, one after each stack, no bias of the logits, and fairseq's sinusoids, which are not
stored: the first token has position 2, the one after that of padding. The language of a translation is its first token,
which generation_config.json forces (forced_bos_token_id).
"""

from __future__ import annotations

from ..layout import Field, Refusal, always
from .marian import TORCH, cannot_hold, layout, stated_activation, table_rows

FIRST = 2  # the position of the first token
_vocabulary = Field(solve=table_rows(TORCH, "target"))

LAYOUTS = (
    layout(
        dialect="m2m-100",
        model_type="m2m_100",
        architecture="M2M100ForConditionalGeneration",
        title="Hugging Face M2M-100 and NLLB",
        special={
            "norm_first": always(True),
            "final_norm": always(True),
            "embedding_norm": always(False),
            "position": always("fairseq"),
            "position_offset": always(FIRST),
            "max_length": Field(key="max_position_embeddings", default=1024),
            "tie": always("all"),
            "source_vocabulary": _vocabulary,
            "target_vocabulary": _vocabulary,
            "outputs": _vocabulary,
            "output_bias": always(False),
            "activation": stated_activation("relu"),
            "scale_embedding": Field(key="scale_embedding", default=True),
        },
        norms=(False, True),
        bias=False,
        refusals=(Refusal("network", cannot_hold),),
        outside=(r"model\.(encoder|decoder)\.embed_positions\.weights",),  # as older versions saved them
        proven="transformers 5.23.0",
    ),
)
