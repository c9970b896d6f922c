"""The files beside weights: those of current libraries are read, and what is there and not read is named."""

from __future__ import annotations

import json

import numpy as np
import pytest
from safetensors.numpy import save_file

from convert import rules
from convert.dialects import LAYOUTS, open_clip_config
from convert.dialects.huggingface_images import preprocess
from convert.layout import Facts
from convert.recognise.reading import read
from tests.installed import library
from vit_jax.data.images.preprocess import Preprocess
from vit_jax.errors import UserError
from vit_jax.models.vit_config import ViTConfig

VIT = ViTConfig(image=8, patch=4, classes=5, width=64, depth=1, heads=1, hidden=20)
CLIP = ViTConfig(
    image=8, patch=4, classes=5, width=64, depth=1, heads=2, hidden=20, activation="quick_gelu", eps=1e-5,
    stem_bias=False, pre_norm=True, head_bias=False,
)  # fmt: skip
VALUES = {"mean": [0.48, 0.46, 0.41], "std": [0.27, 0.26, 0.28]}
PROCESSOR = {
    "image_processor_type": "ViTImageProcessor",
    "size": {"height": 8, "width": 8},
    "resample": 3,
    **{f"image_{name}": value for name, value in VALUES.items()},
}


def folder(path, layout, config, **files):
    """A folder of a network's weights with these files beside them, {name: JSON}."""
    path.mkdir()
    shapes = rules.file_shapes(rules.narrow(LAYOUTS[layout].rows(config)))
    save_file({name: np.ones(shape, np.float32) for name, shape in shapes.items()}, path / "model.safetensors")
    for name, content in files.items():
        (path / name).write_text(json.dumps(content))
    return str(path)


def facts_of(path):
    with (reading := read(path)).source:
        return reading


def test_an_image_processor_inside_processor_config_is_that_of_the_network(tmp_path):
    """Transformers 5 saves it so, and takes it before a preprocessor_config.json."""
    config = LAYOUTS["huggingface@v4"].write_side(VIT, Facts())
    other = PROCESSOR | {"resample": 2}
    for name, beside in {
        "5": {"processor_config.json": {"image_processor": PROCESSOR}},
        "4": {"preprocessor_config.json": PROCESSOR, "processor_config.json": {"processor_class": "ViTProcessor"}},
        "both": {"processor_config.json": {"image_processor": PROCESSOR}, "preprocessor_config.json": other},
    }.items():
        facts = facts_of(folder(tmp_path / name, "huggingface@v4", VIT, **config, **beside)).facts
        assert facts.preprocess["interpolation"] == "bicubic" and facts.preprocess["mean"] == VALUES["mean"]
        assert [("preprocessor_config.json" in note) for note in facts.notes] == [True] * (name == "both")


@pytest.mark.parametrize("name", ["CLIP", "Siglip", "ViT", "Bit"])
def test_what_transformers_5_saves_of_a_processor_is_read(name, tmp_path):
    kind = getattr(library("transformers"), f"{name}ImageProcessor")
    size = {"shortest_edge": 12} if name in ("CLIP", "Bit") else {"height": 8, "width": 8}
    theirs = kind(size=size, crop_size={"height": 8, "width": 8}, do_resize=True)
    (tmp_path / "processor_config.json").write_text(json.dumps({"image_processor": theirs.to_dict()}))
    made, notes = preprocess({"processor_config.json": json.loads((tmp_path / "processor_config.json").read_text())})
    assert made and not notes
    picture = np.random.default_rng(0).integers(0, 255, (40, 40, 3), np.uint8)
    from PIL import Image

    ours = Preprocess.from_dict(made)
    pixels = (ours.apply(Image.fromarray(picture)) / 255 - np.array(made["mean"])) / np.array(made["std"])
    wanted = theirs(Image.fromarray(picture), return_tensors="np")["pixel_values"][0].transpose(1, 2, 0)
    assert np.abs(pixels - wanted).max() < 1.01 / 255 / min(made["std"])  # torchvision's kernels round otherwise


OPEN_CLIP = {
    "model_cfg": {"quick_gelu": True, "vision_cfg": {"image_size": 8, "width": 64, "head_width": 32, "patch_size": 4}},
    "preprocess_cfg": VALUES,
}


@pytest.mark.parametrize("layout", ["clip", "clip@whole"])
def test_openclips_config_states_its_tower_and_how_images_are_prepared(layout, tmp_path):
    for mode, fit in {"shortest": "crop", "squash": "stretch", "longest": "pad"}.items():
        config = {
            **OPEN_CLIP,
            "preprocess_cfg": {**VALUES, "resize_mode": mode, "size": 8, "interpolation": "bilinear"},
        }
        path = folder(tmp_path / mode, layout, CLIP, **{"open_clip_config.json": config})
        found = facts_of(path)
        assert found.config.normal() == CLIP.normal() and not found.facts.notes
        stated = {**VALUES, "image": [8, 8], "size": 8, "fit": fit, "interpolation": "bilinear", "background": 0}
        assert found.facts.preprocess == stated | {"channels": 3}


@pytest.mark.parametrize(
    ("config", "says"),
    [
        ({"model_cfg": {"vision_cfg": {"pool_type": "avg"}}}, "pool_type is 'avg', which the tower here lacks"),
        ({"model_cfg": {"vision_cfg": {"attentional_pool": True}}}, "attentional_pool is True"),
        ({"model_cfg": [1]}, "is no object"),
        ({"preprocess_cfg": 3}, "is no object"),
    ],
)
def test_a_tower_of_openclips_that_is_another_is_refused(config, says):
    with pytest.raises(UserError, match=says):
        open_clip_config.read_side({"open_clip_config.json": config})


@pytest.mark.parametrize("value", [{"size": "8"}, {"size": [8]}, {"resize_mode": ["squash"]}, {"resize_mode": "any"}])
def test_a_preprocessing_of_openclips_without_a_counterpart_is_noted(value):
    facts = open_clip_config.read_side({"open_clip_config.json": {"preprocess_cfg": value}})
    assert facts.preprocess is None and "has no counterpart here" in facts.notes[0]


def test_what_is_beside_the_weights_and_not_read_is_named(tmp_path):
    config = LAYOUTS["huggingface@v4"].write_side(VIT, Facts())
    names = ["tokenizer.json", "vocab.json", "open_clip_config.json", "modeling_mine.py", "args.yaml", "README.md"]
    path = folder(tmp_path / "x", "huggingface@v4", VIT, **config, **{name: {} for name in names})
    wanted = (
        "beside the weights, and not read: the config of OpenCLIP's towers (open_clip_config.json), a tokenizer "
        "(tokenizer.json, vocab.json), settings of a training (args.yaml), code of its own, which is not run "
        "(modeling_mine.py)"
    )
    for place in (path, f"{path}/model.safetensors"):
        assert facts_of(place).facts.notes == (wanted,)
