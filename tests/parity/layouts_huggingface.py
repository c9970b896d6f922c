"""Hugging Face's ViT and DeiT as files: what the library saves is read, computes the same, and goes back to the bit.

Each class but those for masked images, with random weights. What we write the library loads as its own,
with nothing missing, nothing unexpected and the same logits.
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

from convert import rules
from convert.dialects import LAYOUTS, huggingface
from convert.layout import Facts, Layout
from convert.recognise.config import resolve
from convert.verify.checks import Check, bits, values
from vit_jax.data.images.preprocess import Preprocess
from vit_jax.models.vit_config import ViTConfig

from .libraries import load
from .sides import ours

SMALL = dict(
    image_size=(4, 3),
    patch_size=(2, 1),
    num_channels=2,
    hidden_size=8,
    num_hidden_layers=2,
    num_attention_heads=2,
    intermediate_size=12,
    num_labels=5,
    attn_implementation="sdpa",  # its eager attention casts to float32
)
Arrays = dict[str, np.ndarray]


@dataclass(frozen=True)
class Saved:
    """A class of the library, the settings of one network of it, and what of its output ours is."""

    name: str
    settings: dict[str, Any] = field(default_factory=dict)
    arguments: dict[str, Any] = field(default_factory=dict)
    output: Callable[[Any], torch.Tensor] = lambda out: out.logits

    def build(self, dtype: torch.dtype) -> torch.nn.Module:
        transformers = load("transformers")
        config = getattr(transformers, self.name[: self.name.index("T") + 1] + "Config")(**{**SMALL, **self.settings})
        return randomise(getattr(transformers, self.name)(config, **self.arguments)).to(dtype).eval()

    def run(self, model: torch.nn.Module, images: np.ndarray) -> np.ndarray:
        given = torch.from_numpy(np.ascontiguousarray(images.transpose(0, 3, 1, 2)))
        with torch.no_grad():
            return self.output(model(pixel_values=given)).numpy()


CLASSES = [
    Saved("ViTForImageClassification"),
    Saved("ViTForImageClassification", dict(hidden_act="gelu_pytorch_tanh", qkv_bias=False, layer_norm_eps=1e-6)),
    Saved("DeiTForImageClassification", dict(hidden_act="quick_gelu")),
    Saved("DeiTForImageClassificationWithTeacher"),
    Saved("ViTModel", dict(pooler_output_size=6), output=lambda out: out.pooler_output),
    Saved("ViTModel", {}, dict(add_pooling_layer=False, use_mask_token=True), lambda out: out.last_hidden_state[:, 0]),
    Saved("DeiTModel", dict(pooler_act="linear"), output=lambda out: out.pooler_output),
]


def randomise(module: torch.nn.Module) -> torch.nn.Module:
    """Every parameter random, of a size that keeps its maps' inputs as large as they are."""
    generator = torch.Generator().manual_seed(0)
    for name, p in module.named_parameters():
        value = torch.randn(p.shape, generator=generator, dtype=torch.float64)
        if p.dim() in (2, 4) and "token" not in name:
            value = value / np.sqrt(np.prod(p.shape[1:]))
        elif "norm" in name:
            value = value * 0.3 + name.endswith("weight")
        p.data = value
    return module


def identify(state: Arrays, files: dict[str, Any]) -> tuple[list[str], Layout, ViTConfig]:
    """(names of the layouts that know these tensors, the first, the config by it and by the files beside)."""
    names = {name: array.shape for name, array in state.items()}
    found = [layout for layout in LAYOUTS.values() if layout.recognises(names)]
    return (
        [layout.name for layout in found],
        found[0],
        resolve(found[0], names, [("its config.json", found[0].read_side(files).config)], "file"),
    )


def written(folder: Path, state: Arrays, files: dict[str, Any]) -> None:
    """A folder of the library's, by other code than ours but for what it holds."""
    load("safetensors.numpy").save_file(state, folder / "model.safetensors", metadata={"format": "pt"})
    for name, content in files.items():
        (folder / name).write_text(json.dumps(content))


def compare(case: Saved, what: str, dtype: str) -> Iterator[Check]:
    """One network: both versions of its names read and written, the forward pass, the folder that we write loaded."""
    model = case.build(getattr(torch, dtype))
    images = np.random.default_rng(0).standard_normal((3, 4, 3, 2)).astype(dtype)
    logits = {"logits": case.run(model, images)}
    with tempfile.TemporaryDirectory() as name:
        model.save_pretrained(name)
        files = {"config.json": json.loads(Path(name, "config.json").read_text())}
        v4 = load("safetensors.numpy").load_file(Path(name, "model.safetensors"))
    v5 = {k: v.numpy() for k, v in model.state_dict().items()}
    readings = []
    for version, state in (("v5", v5), ("v4", v4)):
        known, layout, config = identify(state, files)
        yield Check(
            what,
            "transformers",
            f"{dtype}, recognised as {version} alone",
            float(known != [f"huggingface@{version}"]),
            0.0,
            ", ".join(known),
        )
        readings.append(rules.read(layout.rows(config), state))
        yield bits(what, f"transformers, {version} written", rules.write(layout.rows(config), readings[-1]), state)
    mine, other = ({k: v for k, v in p.items() if not k.startswith(rules.CARRIED)} for p in reversed(readings))
    yield bits(what, "v4, v5 read", other, mine)
    yield values(
        what, "transformers", dtype, {"logits": ours(config, mine, dtype).forward({"images": images})}, logits, dtype
    )
    version, state = ("v4", v4) if dtype == "float64" else ("v5", v5)
    yield from loaded(
        case, f"{what}, {version}", state, layout.write_side(config, layout.read_side(files)), images, logits
    )


def loaded(
    case: Saved, what: str, state: Arrays, files: dict[str, Any], images: np.ndarray, logits: Arrays
) -> Iterator[Check]:
    """The library's own loading of a folder with our side files: the class, its keys, its logits to the bit."""
    transformers = load("transformers")
    cls = (
        transformers.AutoModelForImageClassification
        if "Classification" in case.name
        else getattr(transformers, case.name)
    )
    with tempfile.TemporaryDirectory() as name:
        written(Path(name), state, files)
        model, info = cls.from_pretrained(
            name, output_loading_info=True, attn_implementation="sdpa", dtype="auto", **case.arguments
        )
    wrong = sorted(str(n) for said in info.values() for n in said) + [type(model).__name__] * (
        type(model).__name__ != case.name
    )
    yield Check(what, "transformers", "loads as its own, whole", float(len(wrong)), 0.0, ", ".join(wrong[:3]))
    yield bits(what, "transformers, logits of what it loads", {"logits": case.run(model.eval(), images)}, logits)


def processors() -> Iterator[Check]:
    """The pixels of an image by the preprocessor_config.json that we write; Pillow computes them for both sides."""
    from PIL import Image

    plain = dict(
        image=[8, 8],
        channels=3,
        fit="crop",
        size=10,
        interpolation="bicubic",
        background=255,
        mean=[0.485, 0.456, 0.406],
        std=[0.229, 0.224, 0.225],
    )
    grey = dict(channels=1, mean=[0.2], std=[0.3], size=0)
    changes = {
        "crop": {},
        "stretch": dict(fit="stretch", interpolation="bilinear"),
        "oblong crop": dict(image=[6, 8], size=8),
        "grey, covered": grey,
    }
    for name, change in changes.items():
        p: dict[str, Any] = plain | change
        with tempfile.TemporaryDirectory() as folder:
            for file, content in huggingface.write_side(ViTConfig(), Facts(preprocess=p)).items():
                Path(folder, file).write_text(json.dumps(content))
            processor = load("transformers").AutoImageProcessor.from_pretrained(folder, backend="pil")
        for h, w in ((12, 12), (13, 17), (20, 11)):
            image = Image.fromarray(np.random.default_rng(0).integers(0, 256, (h, w, 3), np.uint8)).convert(
                "RGB" if p["channels"] == 3 else "L"
            )
            theirs = processor(image, return_tensors="np")["pixel_values"][0].transpose(1, 2, 0)
            mine = (Preprocess.from_dict(p).apply(image) / 255 - p["mean"]) / p["std"]
            yield values(
                f"images, {name}",
                "transformers",
                f"of {h}x{w}",
                {"pixels": mine.astype(np.float32)},
                {"pixels": theirs},
                "float32",
            )


def layouts() -> Iterator[Check]:
    """All classes and preprocessings; none where the library is not installed."""
    try:
        load("transformers")
    except (ImportError, RuntimeError):
        return
    for number, case in enumerate(CLASSES):
        for dtype in ("float64", "float32"):
            yield from compare(case, f"{case.name} {number}", dtype)
    yield from processors()
