"""What runs on captions of vectors are, free of jax: their data, the spec of caption-features, and a preset."""

from __future__ import annotations

from dataclasses import dataclass

from ...config.fields import identity
from ...config.network import NetworkConfig
from ...config.run import DataConfig, OptimConfig, RunConfig
from ...errors import Field, UserError
from ...models.captioner_config import CaptionerConfig
from ...models.transformer_config import TransformerConfig
from ...presets.variants import Preset
from ...tasks.caption.spec import CaptioningSpec, stand_in_captions
from ...tasks.spec import Shape, StandIn
from ...tasks.translate.spec import check_decoder, check_network


@dataclass(frozen=True)
class FeatureData(DataConfig):
    """The source of pictures with captions, of which another network has made a vector each."""

    source: str = identity(
        "coco-features:coco_captioning",
        "coco-features:FOLDER, with coco2014_captions.h5, coco2014_vocab.json and train2014_vgg16_fc7_pca.h5 (or "
        "another width: train2014_vgg16_fc7.h5), and the same of val2014, as the course cs231n hands them out (extra: "
        "captions)",
        place=True,
    )
    validation: float = identity(
        0.05,
        "share of train, by picture, drawn by seed, for validation if the folder has no val2014; 0: none",
        at_least=0,
        below=1,
    )
    test: float = identity(
        0.05, "share of train, by picture, the same for every seed, for the final test; 0: none", at_least=0, below=1
    )
    length: int = identity(17, "most tokens of a caption, <END> included; longer captions are refused", at_least=2)


def parts(run: RunConfig) -> tuple[CaptionerConfig, FeatureData]:
    """The network and the data of a run that captions vectors."""
    return run.model, run.data  # type: ignore[return-value]


class CaptionFeaturesSpec(CaptioningSpec):
    """Vectors that another network made of pictures to captions."""

    data = FeatureData
    computes = "vit_jax.extras.vectors.task:CaptionFeatures"
    unit = "captions"

    @classmethod
    def trains(cls, model: NetworkConfig) -> bool:
        return isinstance(model, CaptionerConfig) and model.encoder is None

    @classmethod
    def stand_in(cls, run: RunConfig, length: int = 0) -> StandIn:
        c, data = parts(run)
        vectors: dict[str, Shape] = {"vectors": ((run.batch, 1, c.memory_width), "float32")}
        return stand_in_captions(run, 0, vectors, data.length, length, {})

    @classmethod
    def check(cls, run: RunConfig) -> None:
        model, data = parts(run)
        check_network(model, max(1, model.text.target_vocabulary, model.text.outputs))
        if model.memory != "vectors":
            raise UserError(
                Field("model.memory"), f"is {model.memory}, but the data has vectors of pictures", "set it to vectors"
            )
        check_decoder(model.text, "model.text", data.length, "data.length")


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
