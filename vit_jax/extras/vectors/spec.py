"""The spec of caption-features: captions of vectors that another network made of pictures."""

from __future__ import annotations

from ...config.network import NetworkConfig
from ...config.run import RunConfig
from ...errors import Field, UserError
from ...models.captioner_config import CaptionerConfig
from ...tasks.caption.spec import CaptioningSpec, stand_in_captions
from ...tasks.spec import Shape, StandIn
from ...tasks.translate.spec import check_decoder, check_network
from .config import FeatureData


class CaptionFeaturesSpec(CaptioningSpec):
    """Vectors that another network made of pictures to captions."""

    data = FeatureData
    computes = "vit_jax.extras.vectors.task:CaptionFeatures"

    @classmethod
    def trains(cls, model: NetworkConfig) -> bool:
        """Captioners that see vectors."""
        return isinstance(model, CaptionerConfig) and model.encoder is None

    @classmethod
    def stand_in(cls, run: RunConfig, length: int = 0) -> StandIn:
        """Vectors with captions of one length."""
        c, data = run.model, run.data
        assert isinstance(c, CaptionerConfig) and isinstance(data, FeatureData)
        vectors: dict[str, Shape] = {"vectors": ((run.batch, 1, c.memory_width), "float32")}
        return stand_in_captions(run, 0, vectors, data.length, length, {})

    @classmethod
    def check(cls, run: RunConfig) -> None:
        """Raise UserError naming the first invalid field of a run on vectors with captions."""
        model, data = run.model, run.data
        assert isinstance(model, CaptionerConfig) and isinstance(data, FeatureData)
        check_network(model, max(1, model.text.target_vocabulary, model.text.outputs))
        if model.memory != "vectors":
            raise UserError(
                Field("model.memory"), f"is {model.memory}, but the data has vectors of pictures", "set it to vectors"
            )
        check_decoder(model.text, "model.text", data.length, "data.length")
