"""Marian, BART and mBART as the Flax classes of Hugging Face transformers saved them (version 4; compared with 4.40).

msgpack files with the modules of the torch files (marian.py, bart.py), and matrices (in, out). Source, target and head
share one table of embeddings; Marian's sinusoidal positions are not stored.
"""

from __future__ import annotations

from ..layout import Refusal
from . import bart, marian
from .marian import Style, layout

FLAX = Style(
    "/", {"kernel": "kernel", "scale": "scale", "bias": "bias", "embedding": "embedding", "position": "embedding"}, ()
)

LAYOUTS = (
    layout(
        dialect="flax-seq2seq",
        version="mbart",
        model_type="mbart",
        architecture="MBartForConditionalGeneration",
        title="mBART of transformers' old Flax classes",
        special=bart.special_fields(FLAX, norm_first=True),
        norms=(True, True),
        style=FLAX,
        containers=("msgpack",),
        proven="transformers 4.40.2",
    ),
    layout(
        dialect="flax-seq2seq",
        version="bart",
        model_type="bart",
        architecture="BartForConditionalGeneration",
        title="BART of transformers' old Flax classes",
        special=bart.special_fields(FLAX),
        norms=(True, False),
        style=FLAX,
        containers=("msgpack",),
        proven="transformers 4.40.2",
    ),
    layout(
        dialect="flax-seq2seq",
        version="marian",
        model_type="marian",
        architecture="MarianMTModel",
        title="Marian of transformers' old Flax classes",
        special=marian.special_fields(FLAX, ("all",)),
        norms=(False, False),
        style=FLAX,
        containers=("msgpack",),
        refusals=(Refusal("network", marian.cannot_hold),),
        proven="transformers 4.40.2",
    ),
)
