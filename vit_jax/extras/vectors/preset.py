"""The preset that learns captions of vectors."""

from __future__ import annotations

from ...config.run import OptimConfig, RunConfig
from ...models.captioner_config import CaptionerConfig
from ...models.transformer_config import TransformerConfig
from ...presets.variants import Preset
from .config import FeatureData


def coco_caption() -> Preset:
    model = CaptionerConfig(
        memory="vectors", memory_width=512,
        text=TransformerConfig(
            width=256, heads=2, hidden=2048, encoder_depth=0, decoder_depth=2, activation="relu", norm_first=False,
            final_norm=False, eps=1e-5, dropout=0.1, attention_dropout=0.1, activation_dropout=0.1,
            embedding_dropout=0.1, max_length=30,
        ),
    )  # fmt: skip
    return Preset(
        RunConfig(
            task="caption-features",
            model=model,
            data=FeatureData(),
            optim=OptimConfig(name="adam", lr=1e-3, warmup=0.1, clip=1.0),
            epochs=5,
            batch=64,
        ),
        "COCO's captions from vectors; a notebook's decoder",
        "The captioning network of the course cs231n: 256 wide, 2 post-norm blocks, 2 heads; its "
        "memory is one vector of VGG-16 a picture. It reads the folder coco_captioning that the course hands out "
        "(--data.source coco-features:FOLDER; pip install '.[captions]'). Not yet trained here on all 400,000 of them; "
        "50 of 50 pictures it learns by heart in 300 steps (--batch 25 --epochs 150). Corrected: the loss is a mean "
        "over real tokens, not over padding; captions end at <END> and are searched for with a cache and without "
        "dropout; every epoch takes each caption once; all initial weights are drawn alike, the head's too; there are "
        "a validation, which chooses the weights, and a test.",
    )
