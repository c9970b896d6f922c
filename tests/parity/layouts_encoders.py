"""Hugging Face's vision encoders as files: what each class saves is read, computes the same, and goes back to the bit.

Every parameter is random. What the class computes in float64 and float32 is compared at every block, with gradients;
and the folder that we write the library loads as its own, with nothing missing, nothing unexpected and the same logits.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from convert import adapt, rules
from convert.layout import Layout
from convert.verify import Weights
from convert.verify.checks import Check, bits, values
from convert.verify.libraries import transformers_encoders
from convert.verify.reference import Reference, compare_networks, forward
from convert.verify.sides import ByRows
from vit_jax.models import positions
from vit_jax.models.vit_config import ViTConfig

from .layouts_huggingface import identify, randomise, written
from .libraries import load

SMALL = dict(
    image_size=4,
    patch_size=2,
    num_channels=2,
    hidden_size=8,
    num_hidden_layers=2,
    num_attention_heads=2,
)
TEXT = dict(
    vocab_size=7,
    hidden_size=8,
    intermediate_size=4,
    num_hidden_layers=1,
    num_attention_heads=2,
    max_position_embeddings=3,
)
Arrays = dict[str, np.ndarray]


@dataclass(frozen=True)
class Saved:
    """A class of the library, the settings of one network of it, and the dialect of its files.

    Of a model of two towers `settings` are those of the image tower and `whole` those of the model; `tower` is what of
    the model is compared, and `back` the class that our files name.
    """

    name: str
    config: str
    dialect: str
    settings: dict[str, Any] = field(default_factory=dict)
    whole: dict[str, Any] | None = None
    tower: Callable[[Any], Any] = lambda model: model
    back: str = ""

    def build(self) -> torch.nn.Module:
        transformers = load("transformers")
        tower = {**SMALL, **self.settings}
        if "num_patches" in tower:  # of which SigLIP 2 speaks instead
            del tower["image_size"]
        given = tower if self.whole is None else {"vision_config": tower, "text_config": TEXT, **self.whole}
        # Its eager attention casts to float32.
        config = getattr(transformers, self.config)(**given, attn_implementation="sdpa")
        return randomise(getattr(transformers, self.name)(config)).double().eval()


class Projected(torch.nn.Module):
    """A whole CLIPModel as its image tower with the projection."""

    def __init__(self, model: Any):
        super().__init__()
        self.vision_model, self.visual_projection = model.vision_model, model.visual_projection
        self.whole = [model]  # no submodule

    def forward(self, pixel_values: torch.Tensor) -> Any:
        return self.whole[0].get_image_features(pixel_values=pixel_values)


DINO = dict(mlp_ratio=3)
HIDDEN = dict(intermediate_size=12)
NAFLEX = HIDDEN | dict(num_patches=9)
SIGLIP, SIGLIP2, CLIP = "huggingface-siglip", "huggingface-siglip2", "huggingface-clip"
PROJECTION = "CLIPVisionModelWithProjection"


def dinov2() -> list[Saved]:
    plain, registers = ("Dinov2", "Dinov2WithRegisters")

    def one(family: str, name: str, **settings: Any) -> Saved:
        return Saved(f"{family}{name}", f"{family}Config", "huggingface-dinov2", DINO | settings)

    gated = dict(use_swiglu_ffn=True)
    return [
        one(plain, "Model"),
        one(plain, "Model", **gated, use_mask_token=False, qkv_bias=False, patch_size=[4, 2]),
        one(plain, "ForImageClassification", num_labels=5),
        one(registers, "Model", num_register_tokens=3, hidden_act="gelu_pytorch_tanh", layer_norm_eps=1e-4),
        one(registers, "ForImageClassification", **gated, num_labels=5),
    ]


def dinov3() -> list[Saved]:
    """At a square and at oblong sizes, with two frequencies an axis."""

    def one(**settings: Any) -> Saved:
        return Saved(
            "DINOv3ViTModel", "DINOv3ViTConfig", "huggingface-dinov3", HIDDEN | dict(hidden_size=16) | settings
        )

    return [
        one(num_register_tokens=3),
        one(num_register_tokens=1, image_size=[4, 6], use_gated_mlp=True, hidden_act="silu"),
        one(image_size=[8, 4], patch_size=[2, 4], rope_theta=1000.0, key_bias=True, query_bias=False, mlp_bias=False),
    ]


def angles() -> Iterator[Check]:
    """DINOv3's tables of cosines and sines in float32, as the library has them, at sizes of a model of another size."""
    transformers = load("transformers")
    for h, w in ((4, 4), (6, 10), (32, 30)):
        config = transformers.DINOv3ViTConfig(**{**SMALL, "hidden_size": 64})
        theirs = transformers.DINOv3ViTModel(config).eval().rope_embeddings(torch.zeros(1, 2, h, w))
        places = positions.patch_positions((h // 2, w // 2), "centres", "rows")
        turned = np.tile(positions.axial(places, 32, 100.0), 2)
        mine = {"cosines": np.cos(turned).astype(np.float32), "sines": np.sin(turned).astype(np.float32)}
        expected = dict(zip(mine, (table.numpy() for table in theirs), strict=True))
        yield values("DINOv3, angles", "transformers", f"of {h}x{w} pixels", mine, expected, "float32", 2e-6)


def two_towers() -> list[Saved]:
    """SigLIP, SigLIP 2 and CLIP."""
    labels, back = dict(num_labels=5), "Siglip2VisionModel"
    return [
        Saved("SiglipVisionModel", "SiglipVisionConfig", SIGLIP, HIDDEN),
        Saved("SiglipVisionModel", "SiglipVisionConfig", SIGLIP, HIDDEN | dict(vision_use_head=False)),
        Saved("SiglipModel", "SiglipConfig", SIGLIP, HIDDEN, {}, lambda model: model.vision_model, "SiglipVisionModel"),
        Saved("SiglipForImageClassification", "SiglipConfig", SIGLIP, HIDDEN, labels),
        Saved("Siglip2VisionModel", "Siglip2VisionConfig", SIGLIP2, NAFLEX),
        Saved("Siglip2VisionModel", "Siglip2VisionConfig", SIGLIP2, NAFLEX | dict(vision_use_head=False)),
        Saved("Siglip2Model", "Siglip2Config", SIGLIP2, NAFLEX, {}, lambda model: model.vision_model, back),
        Saved("Siglip2ForImageClassification", "Siglip2Config", SIGLIP2, NAFLEX, labels),
        Saved("CLIPVisionModel", "CLIPVisionConfig", CLIP, HIDDEN),
        Saved(PROJECTION, "CLIPVisionConfig", CLIP, HIDDEN | dict(projection_dim=6, hidden_act="gelu")),
        Saved("CLIPModel", "CLIPConfig", CLIP, HIDDEN, dict(projection_dim=6), Projected, PROJECTION),
        Saved("CLIPForImageClassification", "CLIPConfig", CLIP, HIDDEN, labels),
    ]


CLASSES = [*dinov2(), *dinov3(), *two_towers()]


def saved(model: torch.nn.Module) -> tuple[Arrays, dict[str, Any]]:
    """The tensors and the JSON files that save_pretrained writes."""
    with tempfile.TemporaryDirectory() as name:
        model.save_pretrained(name)
        files = {file.name: json.loads(file.read_text()) for file in Path(name).glob("*.json")}
        return load("safetensors.numpy").load_file(Path(name, "model.safetensors")), files


def compare(case: Saved, what: str) -> Iterator[Check]:
    """One network: its file read and written, the forward pass and gradients, the folder that we write loaded."""
    model = case.build()
    state, files = saved(model)
    known, layout, config = identify(state, files)
    alone = [name.partition("@")[0] for name in known] == [case.dialect]
    yield Check(what, "transformers", "recognised as its layout alone", float(not alone), 0.0, ", ".join(known))
    kept = {name: array for name, array in state.items() if name not in layout.left_out(state)}
    rows = rules.narrow(layout.rows(config), kept)
    parameters = rules.read(rows, kept)
    yield bits(what, "transformers, written", rules.write(layout.rows(config), parameters, names=kept), kept)
    mine = {name: array for name, array in parameters.items() if not name.startswith(rules.CARRIED)}
    weights = Weights(what, layout, config, kept)
    reference = Reference("ours", config, mine)
    yield from compare_networks(weights, reference, transformers_encoders.wrap_class(case.tower(model), weights))
    yield from loaded(what, layout, config, kept, files, reference, case.back or case.name)


def resized(number: int, size: tuple[int, int]) -> Iterator[Check]:
    """A class on images of another size than its config's, for which it resizes its positions in the call."""
    case, (h, w) = CLASSES[number], size
    model = case.build()
    state, files = saved(model)
    _, layout, config = identify(state, files)
    (resize,) = adapt.adaptations(config, [f"resize={h}x{w}:{layout.resizes(config)}"])
    mine = rules.read(rules.narrow(layout.rows(config), state), state)
    mine = {name: array for name, array in mine.items() if not name.startswith(rules.CARRIED)}
    reference = Reference("ours, resized", resize.config, adapt.apply(resize, mine))
    what = f"{case.name} {number}, {h}x{w} pixels"
    built = transformers_encoders.wrap_class(model, Weights(what, layout, config, state))
    yield forward(what, reference, ByRows(built, config).capture(reference.inputs), "float64")


def loaded(
    what: str,
    layout: Layout,
    config: ViTConfig,
    state: Arrays,
    files: dict[str, Any],
    reference: Reference,
    own: str,
) -> Iterator[Check]:
    """The library's own loading of a folder with our side files: the class that they name, its keys, its outputs."""
    transformers = load("transformers")
    side = layout.write_side(config, layout.read_side(files))
    (name,) = side["config.json"]["architectures"]
    with tempfile.TemporaryDirectory() as folder:
        written(Path(folder), state, side)
        model, info = getattr(transformers, name).from_pretrained(
            folder, output_loading_info=True, attn_implementation="sdpa", dtype="auto"
        )
        auto = transformers.AutoConfig.from_pretrained(folder)
    wrong = sorted(str(n) for said in info.values() for n in said)
    wrong += [f"{name} instead of {own}"] * (name != own) + [auto.model_type] * (
        auto.model_type != model.config.model_type
    )
    yield Check(what, "transformers", "loads as its own, whole", float(len(wrong)), 0.0, ", ".join(wrong[:3]))
    again = transformers_encoders.wrap_class(model.double().eval(), Weights(what, layout, config, state))
    yield from (
        c for c in compare_networks(Weights(what, layout, config, state), reference, again) if "forward" in c.quantity
    )


def layouts() -> Iterator[Check]:
    """All classes; none where the library is not installed."""
    try:
        load("transformers")
    except (ImportError, RuntimeError):
        return
    for number, case in enumerate(CLASSES):
        yield from compare(case, f"{case.name} {number}")
    yield from angles()
    for number, case in enumerate(CLASSES):
        if case.name in ("Dinov2ForImageClassification", "Dinov2WithRegistersModel", "Siglip2VisionModel"):
            for size in ((8, 8), (6, 10)):
                yield from resized(number, size)
