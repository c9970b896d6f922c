"""The image tower of SigLIP 2 in its NaFlex form as Hugging Face transformers saves it: Siglip2VisionModel,
Siglip2ForImageClassification, and whole Siglip2Model files, whose text tower is left out.

The names are those of SigLIP's tower (huggingface_siglip.py), but patches are projected by a matrix, and config.json
states the number of positions, which are those of a square grid: that grid is the network's here. The class resizes
them to the grid of each image, which its processor makes of about max_num_patches patches in the proportions of the
picture; here all images have one size. SigLIP 2 at a fixed size is of SigLIP's own class.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

from vit_jax.config.fields import pair
from vit_jax.models.vit_config import ViTConfig

from ..layout import Facts, Field, Json, Layout, Names, Refusal
from ..operations import TRANSPOSE
from ..rules import Row
from . import huggingface_encoders as encoders
from . import huggingface_siglip as siglip
from .huggingface import PROBLEMS, size
from .huggingface_images import naflex_processor
from .huggingface_siglip import BODIES, NUMBERS, TEXT

WHOLE, TOWER = "siglip2", "siglip2_vision_model"  # values of model_type
POSITIONS = "embeddings.position_embedding.weight"


def rows(c: ViTConfig) -> list[Row]:
    """One row for each tensor; values of a patch are in our order."""
    return siglip.rows(c, TRANSPOSE)


# ------------------------------------------------------------------------------------------ config


def image(names: Names, known: Json) -> int | None:
    """The side in pixels of the image whose square grid has the positions of a file; None where they are no square."""
    patch = known["patch"]
    rows, _ = pair(tuple(patch) if isinstance(patch, list) else patch)
    positions = encoders.axis(BODIES, 0, POSITIONS)(names) or 0
    side = math.isqrt(positions)
    return side * rows if side and side**2 == positions else None


FIELDS = siglip.FIELDS | {
    "image": Field(follow=image),
    "patch": Field(key="patch_size", encode=size, default=16),
    "channels": Field(key="num_channels", default=3),
}


def _convolution_shapes(names: Names) -> list[str]:
    """A clause where patches are a convolution, as in files of SigLIP at a fixed size, and no matrix."""
    return [] if siglip.image_shapes(names) else ["its patches are a convolution"]


# -------------------------------------------------------------------------------------- side files


def read_side(files: Mapping[str, Json]) -> Facts:
    """Facts from config.json and preprocessor_config.json."""
    return siglip.tower_facts(LAYOUTS[-1], files, (WHOLE, TOWER))


def write_side(config: ViTConfig, facts: Facts) -> dict[str, Json]:
    """config.json, and preprocessor_config.json where the class's own processor has such a preprocessing."""
    c = config.normal()
    plain = replace(facts, preprocess=None)
    files = siglip.tower_files(LAYOUTS[-1], c, plain, (WHOLE, TOWER), "Siglip2")
    stated = files["config.json"]
    stated.get("vision_config", stated)["num_patches"] = c.patches
    images = naflex_processor(facts.preprocess, pair(c.patch)[0]) if facts.preprocess else None
    return files | ({"preprocessor_config.json": images} if images else {})


LAYOUTS = (
    Layout(
        dialect="huggingface-siglip2",
        version="",
        title="the image tower of Hugging Face's SigLIP 2 (NaFlex), on one grid; the text tower is left out",
        network=ViTConfig,
        fields=FIELDS,
        rows=rows,
        signature=siglip.SIGNATURE,
        refusals=(Refusal("network", siglip.cannot_hold), Refusal("shapes", _convolution_shapes)),
        outside=(*TEXT, *NUMBERS),
        read_side=read_side,
        write_side=write_side,
        outputs=lambda c: PROBLEMS,
        resizes=lambda c: "flexi",
        proven="transformers 5.23.0",
    ),
)
