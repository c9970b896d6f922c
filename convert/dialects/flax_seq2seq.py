"""Marian, BART and mBART as the Flax classes of transformers' version 4 saved them: msgpack, the same modules, matrices (in, out).

They have one table of embeddings for source, target and head, and no table of Marian's sinusoids.
"""

from __future__ import annotations

from . import bart, marian
from .marian import IDS_OF, Style, layout, marks

FLAX = Style(
    "/", {"kernel": "kernel", "scale": "scale", "bias": "bias", "embedding": "embedding", "position": "embedding"}, ()
)

LAYOUTS = (
    layout(
        "flax-seq2seq", "mbart", "mBART of transformers' old Flax classes", bart.own(FLAX, norm_first=True), marks(FLAX, embedding_norm=True, final_norm=True),
        "mbart", "MBartForConditionalGeneration", IDS_OF["mbart"], FLAX, containers=("msgpack",), proven="transformers 4.40.2",
    ),
    layout(
        "flax-seq2seq", "bart", "BART of transformers' old Flax classes", bart.own(FLAX), marks(FLAX, embedding_norm=True, final_norm=False),
        "bart", "BartForConditionalGeneration", IDS_OF["bart"], FLAX, containers=("msgpack",), proven="transformers 4.40.2",
    ),
    layout(
        "flax-seq2seq", "marian", "Marian of transformers' old Flax classes", marian.own(FLAX, ("all",)), marks(FLAX, embedding_norm=False, final_norm=False),
        "marian", "MarianMTModel", IDS_OF["marian"], FLAX, limits=marian.limits, containers=("msgpack",), proven="transformers 4.40.2",
    ),
)  # fmt: skip
