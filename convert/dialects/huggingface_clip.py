"""The image tower of CLIP as Hugging Face transformers saves it: CLIPVisionModelWithProjection, CLIPVisionModel,
CLIPForImageClassification, and whole CLIPModel files, whose text tower is left out.

The names are those of SigLIP's tower (huggingface_siglip.py) with a class token and a norm before the blocks. The
projection into the space shared with text is the head here: [D, K], without a bias. The classifier takes the mean of
the patches before the last norm, which it does not read and which is carried along.
"""

from __future__ import annotations

from collections.abc import Mapping

from vit_jax.models.vit_config import ViTConfig

from ..layout import Facts, Field, Json, Layout, Names, Refusal, always, length
from ..rules import Row, passthrough
from . import huggingface_encoders as encoders
from .huggingface import ACTIVATIONS, PROBLEMS, by_function_name
from .huggingface_siglip import BODIES, BODY, NUMBERS, TEXT, VISION, blocks, signature
from .modules import Tensors, module_rows, oblong

WHOLE, TOWER = "clip", "clip_vision_model"  # values of model_type
CLASSIFIER, PROJECTION = "classifier.weight", "visual_projection.weight"


def rows(c: ViTConfig) -> list[Row]:
    """One row for each tensor; in a classifier also of the last norm, which it does not read."""
    classifier = c.pool == "mean"
    modules = blocks(c) | {"pre_norm": f"{BODY}pre_layrnorm."}  # so named there
    modules |= {"head": "classifier." if classifier else "visual_projection."}
    tensors: Tensors = {
        "cls_token": (f"{BODY}embeddings.class_embedding", None),
        "position": (f"{BODY}embeddings.position_embedding.weight", None),
    }
    made = module_rows(c, modules, [], tensors)
    if classifier:
        return [*made, *(passthrough(f"{BODY}post_layernorm.{leaf}", (c.width,)) for leaf in ("weight", "bias"))]
    return made if c.classes else encoders.either(made, BODIES)


def classes(names: Names) -> int:
    """A solver: the outputs of the classifier, or of the projection."""
    return length(CLASSIFIER, 0)(names) or length(PROJECTION, 0, 0)(names)


FIELDS = VISION | {
    "patch": Field(key="patch_size", encode=VISION["patch"].encode, default=32, solve=VISION["patch"].solve),
    "eps": Field(key="layer_norm_eps", default=1e-5),
    "activation": by_function_name("hidden_act", ACTIVATIONS, "quick_gelu"),
    "stem_bias": always(False),
    "pre_norm": always(True),
    "classes": Field(solve=classes),
    "pool": Field(("cls", "mean"), solve=lambda names: "mean" if CLASSIFIER in names else "cls"),
    "final_norm": Field((True, False), solve=lambda names: CLASSIFIER not in names),
    "head_bias": Field((False, True), solve=lambda names: CLASSIFIER in names),
}


def cannot_hold(c: ViTConfig) -> list[str]:
    """Clauses for a network that no class of CLIP computes."""
    if c.pool == "mean" and not (c.classes and c.head_bias and not c.final_norm):
        return [*oblong(c), "the mean of the patches goes to a classifier with a bias, without a norm before it"]
    if c.pool == "cls" and (not c.final_norm or (c.classes and c.head_bias)):
        return [*oblong(c), "the class token goes through the last norm to a projection without a bias, or to none"]
    return oblong(c)


# -------------------------------------------------------------------------------------- side files


def read_side(files: Mapping[str, Json]) -> Facts:
    """Facts from config.json and preprocessor_config.json."""
    return encoders.read_side_files(LAYOUTS[-1], files, encoders.tower(files, WHOLE, TOWER), (TOWER,))


def write_side(config: ViTConfig, facts: Facts) -> dict[str, Json]:
    """config.json, and preprocessor_config.json where transformers has such a preprocessing."""
    c = config.normal()
    if c.pool == "mean":
        return encoders.around(LAYOUTS[-1], c, facts, "CLIPForImageClassification", (WHOLE, TOWER))
    architecture = "CLIPVisionModelWithProjection" if c.classes else "CLIPVisionModel"
    files = encoders.write_side_files(LAYOUTS[-1], c, facts, architecture, TOWER)
    if c.classes:
        files["config.json"]["projection_dim"] = c.classes
    return files


LAYOUTS = (
    Layout(
        dialect="huggingface-clip",
        version="",
        title="the image tower of Hugging Face's CLIP; the text tower is left out",
        network=ViTConfig,
        fields=FIELDS,
        rows=rows,
        signature=signature("embeddings.class_embedding", "pre_layrnorm.weight"),
        refusals=(Refusal("network", cannot_hold),),
        outside=(*TEXT, *NUMBERS),
        read_side=read_side,
        covers=True,
        write_side=write_side,
        outputs=lambda c: PROBLEMS if c.pool == "mean" else ("embedding",),
        proven="transformers 5.23.0",
    ),
)
