"""Encoders of timm and Hugging Face, saved by their own library, fine-tuned by the commands and opened by it again.

Each way is two or three commands: train at another size with layer decay, and convert with the target that the run
knows. What comes back has the logits (or the feature) of `vit_jax.load` on the same pixels.
"""

import functools
import json
import shlex
from dataclasses import replace

import jax
import numpy as np
import pytest

import vit_jax
from tests.test_features import library
from vit_jax.errors import UserError
from vit_jax.models.build import definition, start
from vit_jax.models.state import merge
from vit_jax.models.vit_config import ViTConfig
from vit_jax.weights import start as starting

LINE = "--new-head --data.source digits --batch 32 --epochs 1 --max-steps 8 --data.validation 0"
RESIZED = "--model.image 48 --optim.layer-decay 0.75 --init-resize"
VISION = dict(hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=2, image_size=32,
              patch_size=8, attn_implementation="eager")  # fmt: skip
BOX = {"height": 32, "width": 32}


# ------------------------------------------------------------- folders as their libraries save them


def of_timm(path, architecture, **fields):
    """A folder that timm saves of a small network of an architecture, without a head."""
    torch, timm = pytest.importorskip("torch"), library("timm")
    from timm.models import save_for_hf

    torch.manual_seed(0)
    fields = dict(img_size=32, patch_size=8, embed_dim=32, depth=2, num_heads=2, num_classes=0) | fields
    model = timm.create_model(architecture, **fields)
    model.pretrained_cfg = dict(model.pretrained_cfg, input_size=(3, 32, 32), num_classes=0)
    save_for_hf(model, str(path), model_config={"model_args": fields}, safe_serialization=True)


def of_transformers(path, name, config, processor, **fields):
    """A folder that transformers saves of a small network of a class, with the file of its processor."""
    torch, transformers = pytest.importorskip("torch"), library("transformers")
    torch.manual_seed(0)
    settings = getattr(transformers, config)(**{**VISION, "initializer_range": 0.1, **fields})
    getattr(transformers, name)(settings).save_pretrained(path)
    getattr(transformers, processor)(size=BOX, crop_size=BOX).save_pretrained(path)


def two_towers(path):
    """A folder of a whole SiglipModel, as the public ones are."""
    torch, transformers = pytest.importorskip("torch"), library("transformers")
    torch.manual_seed(0)
    text = dict(vocab_size=7, hidden_size=32, intermediate_size=4, num_hidden_layers=1, num_attention_heads=2)
    config = transformers.SiglipConfig(text_config=text, vision_config=VISION)
    transformers.SiglipModel(config).save_pretrained(path)
    transformers.SiglipImageProcessorPil(size=BOX).save_pretrained(path)


SIGLIP = functools.partial(
    of_transformers, name="SiglipVisionModel", config="SiglipVisionConfig", processor="SiglipImageProcessorPil"
)
CLIP = functools.partial(of_transformers, config="CLIPVisionConfig", processor="CLIPImageProcessorPil")
DINOV2 = functools.partial(of_transformers, processor="BitImageProcessorPil")
FOLDERS = {
    "dinov3": functools.partial(of_timm, architecture="vit_small_patch16_dinov3_qkvb"),
    "eva02": functools.partial(of_timm, architecture="eva02_tiny_patch14_224"),
    "siglip": SIGLIP,
    "siglip-whole": two_towers,
    "clip": functools.partial(CLIP, name="CLIPVisionModelWithProjection"),
    "clip-tower": functools.partial(CLIP, name="CLIPVisionModel"),
    "dinov2": functools.partial(DINOV2, name="Dinov2Model", config="Dinov2Config", mlp_ratio=2),
    "dinov2-registers": functools.partial(
        DINOV2, name="Dinov2WithRegistersModel", config="Dinov2WithRegistersConfig", mlp_ratio=2
    ),
    "dinov3-hf": functools.partial(
        of_transformers, name="DINOv3ViTModel", config="DINOv3ViTConfig", processor="DINOv3ViTImageProcessor",
        num_register_tokens=2,
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def folder(working_folder):
    """`folder("siglip")` is the working folder, with what its library saves in siglip/."""

    def made(name):
        if not (working_folder / name).exists():
            FOLDERS[name](working_folder / name)
        return working_folder

    return made


def opened(path, x):
    """(the class, what it gives of images [B, h, w, C]) of a folder, opened by its own library.

    Logits, of a tower with a projection its outputs, of one without the pooled feature.
    """
    import torch

    config, x = json.loads((path / "config.json").read_text()), torch.tensor(x).permute(0, 3, 1, 2)
    with torch.no_grad():
        if "architecture" in config:
            return "timm", library("timm").create_model(f"local-dir:{path}", pretrained=True).eval()(x).numpy()
        (name,) = config["architectures"]
        model, report = getattr(library("transformers"), name).from_pretrained(path, output_loading_info=True)
        # Training alone masks patches, and a run keeps no token for that.
        assert {key.split(".")[-1] for key in report.pop("missing_keys")} <= {"mask_token"}
        assert not any(report.values()), report
        out = model.eval()(pixel_values=x)
    return name, next(out[key].numpy() for key in ("logits", "image_embeds", "pooler_output") if key in out)


# ------------------------------------------------------------------------------- there and back again

WAYS = {  # folder, what of it trains, how it goes back, the class that opens it
    "dinov3": ("dinov3", "timm", "", "timm"),
    "eva02": ("eva02", "timm", "", "timm"),
    "siglip, mean": ("siglip", "timm --model.pool mean", "", "SiglipForImageClassification"),
    "siglip, whole": ("siglip-whole", "timm --model.pool mean", "", "SiglipForImageClassification"),
    "siglip, tower": ("siglip", "timm", "--adapt head=drop", "SiglipVisionModel"),
    "siglip, map": ("siglip", "timm --lora.rank 4 --lora.maps *.attention.* *.mlp.*", "--to timm", "timm"),
    "clip": ("clip", "timm --lora.rank 4", "", "CLIPVisionModelWithProjection"),
    "clip-tower": ("clip-tower", "timm --model.no-head-bias", "", "CLIPVisionModelWithProjection"),
    "dinov2": ("dinov2-registers", "hf --model.pool cls_mean", "", "Dinov2WithRegistersForImageClassification"),
    "dinov3-hf": ("dinov3-hf", "timm", "--to timm-eva", "timm"),
    "dinov3-hf, tower": ("dinov3-hf", "timm", "--adapt head=drop", "DINOv3ViTModel"),
}


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
def test_a_folder_is_fine_tuned_at_another_size_and_its_library_opens_what_comes_back(folder, inside, way):
    name, trained, target, cls = WAYS[way]
    here, run = folder(name), way.replace(", ", "-")
    for line in (
        f"train --init {name} {LINE} {RESIZED} {trained} --name {run}",
        f"convert runs/{run} {run}-back {target}",
    ):
        result = inside(*shlex.split(line), cwd=here)
        assert result.returncode == 0 and "Traceback" not in result.stderr, result.stdout + result.stderr
    ours = vit_jax.load(f"runs/{run}", "last")
    pixels = np.random.default_rng(0).integers(0, 256, (5, 48, 48, 3)).astype(np.uint8)
    x = ((pixels / 255 - np.array(ours.preprocess.mean)) / np.array(ours.preprocess.std)).astype(np.float32)
    found, theirs = opened(here / f"{run}-back", x)
    expected = ours.model.capture(x, ["pooled", "logits"])
    expected = np.asarray(expected["pooled" if "head=drop" in target else "logits"])
    assert found == cls and theirs.shape == expected.shape
    np.testing.assert_allclose(theirs, expected, rtol=0, atol=1e-4 * np.abs(expected).max())


# -------------------------------------------------------------------------- what a new head goes back to


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """A folder with networks without a head, in layouts of Hugging Face."""
    path = tmp_path_factory.mktemp("written")
    for layout, c in BARE.items():
        network = merge(definition(c), start(c, jax.random.key(0)))
        vit_jax.export(network, path / layout, to=layout, fields={"mean": [0.3] * 3, "std": [0.4] * 3})
    return path


PLAIN = ViTConfig(image=8, patch=4, classes=0, width=8, depth=1, heads=2, hidden=16)
BARE = {
    "huggingface-siglip": replace(PLAIN, cls_token=False, pool="map", activation="gelu_tanh"),
    "huggingface-dinov2": replace(PLAIN, layer_scale=1.0),
    "huggingface-dinov3": replace(PLAIN, layer_scale=1.0, position="none", rotary="axial", key_bias=False, eps=1e-5),
    "huggingface-clip": replace(PLAIN, stem_bias=False, pre_norm=True, eps=1e-5, activation="quick_gelu"),
}


def begun(written, layout, **fields):
    """What a run with a new head of ten classes begins with."""
    run = vit_jax.preset("finetune", str(written / layout), {"new_head": True, "classes": 10, **fields}).run
    return starting.start(run, {})


@pytest.mark.parametrize(
    ("layout", "fields", "said"),
    [
        ("huggingface-siglip", {}, "with `model.pool mean` it could go back to huggingface-siglip, the layout of its "
         "weights; as it is it cannot: pool is 'map' and classes 10, but its classifier takes the mean of the tokens "
         "(pool 'mean'); choose a layout that holds it (`to timm`, `to big-vision`), or leave its head "
         "out with `adapt head=drop`"),
        ("huggingface-siglip", {"pool": "mean"}, "the head is new, with pool mean in place of map"),
        ("huggingface-dinov2", {}, "with `model.pool cls_mean` it could go back to huggingface-dinov2@v4, the layout "),
        ("huggingface-dinov2", {"pool": "cls_mean"}, "the head is new, with pool cls_mean in place of cls"),
        ("huggingface-dinov3", {}, "the head is new it cannot go back to huggingface-dinov3, the layout of its "
         "weights: classes is 10, but the layout has only 0; choose a layout that holds it (`to timm-eva`), or leave "
         "its head out with `adapt head=drop`"),
        ("huggingface-clip", {}, "with `model.head_bias False` it could go back to huggingface-clip, "),
        ("huggingface-clip", {"head_bias": False}, "the head is new, with head_bias False in place of True"),
    ],
)  # fmt: skip
def test_a_new_head_that_the_layout_cannot_hold_is_told_before_training(written, layout, fields, said):
    started = begun(written, layout, **fields)
    shown = " ".join(started.description.replace("\u00a0", " ").split())
    assert said in shown and ("go back" in said or "go back" not in shown)
    pool = [name for name in started.parameters if name.startswith("pool.")]
    assert bool(pool) is (layout.endswith("siglip") and not fields)


def test_a_new_head_has_no_pool_that_the_weights_lack(written):
    with pytest.raises(UserError, match=r"its model\.pool is cls, here it is map; give `model\.pool cls`$"):
        begun(written, "huggingface-dinov2", pool="map")
    with pytest.raises(
        UserError,
        match=r"its model\.pool is map, here it is mean; give `model\.pool map`, or add `new_head True` to start ",
    ):
        begun(written, "huggingface-siglip", pool="mean", new_head=False, classes=0)
