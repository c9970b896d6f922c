"""Images whose size patches do not divide (384 = 27 x 14 + 6): libraries compute on the part that patches cover.

The network here is one for images of that part, prepared as whole images that are then trimmed. Each library computes
its own network on whole images, made by Pillow or by its own transform.
"""

import json
from dataclasses import replace

import numpy as np
import pytest
from PIL import Image
from safetensors.numpy import load_file, save_file

import vit_jax
from convert.recognise.reading import read
from tests.installed import library
from vit_jax.errors import UserError
from vit_jax.weights.start import preset

SMALL = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
SIZES = {"image_size": 15, "patch_size": 4}
TIMM = {"img_size": 15, "patch_size": 4, "embed_dim": 16, "depth": 1, "num_heads": 2, "num_classes": 3}
HALF = {"image_mean": [0.5] * 3, "image_std": [0.5] * 3, "resample": 3}
FAMILIES = {  # {class of transformers: (where its outputs are, what the layout is called here)}
    "SiglipVisionModel": ("pooler_output", "huggingface-siglip"),
    "CLIPVisionModelWithProjection": ("image_embeds", "huggingface-clip"),
    "ViTForImageClassification": ("logits", "huggingface"),
    "DeiTForImageClassification": ("logits", "huggingface"),
    "Dinov2ForImageClassification": ("logits", "huggingface-dinov2"),
    "Dinov2WithRegistersModel": ("pooler_output", "huggingface-dinov2"),
    "DINOv3ViTModel": ("pooler_output", "huggingface-dinov3"),
}
PHOTO = Image.fromarray(np.random.default_rng(0).integers(0, 256, (20, 31, 3), np.uint8))


@pytest.fixture(scope="module")
def libraries():
    return library("transformers"), library("timm")


def drawn(network):
    """A network with random parameters, in evaluation mode."""
    import torch

    torch.manual_seed(0)
    with torch.no_grad():
        for each in network.parameters():
            each.normal_(0, 0.3)
    return network.eval()


def save(transformers, path, name, **sizes):
    """A folder as transformers saves a class of this name, with a processor that stretches images to its size."""
    family = next(each for each in ("SiglipVision", "CLIPVision", "Dinov2WithRegisters", "Dinov2", "DINOv3ViT", "ViT",
                                    "DeiT") if name.startswith(each))  # fmt: skip
    network = getattr(transformers, name)(getattr(transformers, f"{family}Config")(**{**SMALL, **SIZES, **sizes}))
    drawn(network).save_pretrained(path)
    size = sizes.get("image_size", SIZES["image_size"])
    transformers.ViTImageProcessor(size={"height": size, "width": size}, **HALF).save_pretrained(path)
    return path


def outputs(transformers, path, name, size=15):
    """What the class computes of the photo, stretched by Pillow to its own size."""
    import torch

    whole = np.asarray(PHOTO.resize((size, size), Image.Resampling.BICUBIC), np.float32) / 127.5 - 1
    with torch.no_grad():
        found = getattr(transformers, name).from_pretrained(path)(torch.from_numpy(whole).permute(2, 0, 1)[None])
    return getattr(found, FAMILIES[name][0])[0].numpy()


def agree(ours, theirs):
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-5 * np.abs(theirs).max())


QUICK = ("ViTForImageClassification", "Dinov2WithRegistersModel")


@pytest.mark.parametrize(
    "name", [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in FAMILIES]
)
def test_networks_of_transformers_see_the_part_that_patches_cover(libraries, tmp_path, convert, name):
    transformers, _ = libraries
    path = save(transformers, tmp_path / "theirs", name)
    network, theirs = vit_jax.load(path), outputs(transformers, path, name)
    assert network.run.model.image == network.preprocess.image[0] == 12 and network.preprocess.trim == (3, 3)
    agree(network.logits(PHOTO), theirs)
    assert convert(path, tmp_path / "ours.safetensors")[0] == 0
    agree(vit_jax.load(tmp_path / "ours.safetensors").logits(PHOTO), theirs)
    for source in ("ours.safetensors", "theirs"):  # written back with their own size
        assert convert(tmp_path / source, tmp_path / source[:1], "--to", FAMILIES[name][1])[0] == 0
        assert json.loads((tmp_path / source[:1] / "config.json").read_text())["image_size"] == 15
        made = json.loads((tmp_path / source[:1] / "preprocessor_config.json").read_text())
        assert made["size"] == {"height": 15, "width": 15}
        agree(outputs(transformers, tmp_path / source[:1], name), theirs)


@pytest.mark.parametrize(
    ("name", "size"),
    [
        ("Dinov2ForImageClassification", 23),
        pytest.param("Dinov2WithRegistersModel", 18, marks=pytest.mark.slow),
    ],
)
def test_a_class_that_resizes_positions_does_it_for_the_part_that_patches_cover(libraries, tmp_path, name, size):
    transformers, _ = libraries
    path = save(transformers, tmp_path / "theirs", name, image_size=32)
    transformers.ViTImageProcessor(size={"height": size, "width": size}, **HALF).save_pretrained(path)
    network = vit_jax.load(path)
    assert network.preprocess.image == (size // 4 * 4,) * 2
    agree(network.logits(PHOTO), outputs(transformers, path, name, size))


@pytest.mark.parametrize(
    "architecture", ["vit_tiny_patch16_224", pytest.param("eva02_tiny_patch14_224", marks=pytest.mark.slow)]
)
def test_networks_of_timm_see_the_part_that_patches_cover(libraries, tmp_path, convert, architecture):
    timm = libraries[1]

    def theirs(folder):
        network = timm.create_model(f"local-dir:{folder}", pretrained=True).eval()
        how = timm.data.create_transform(**timm.data.resolve_data_config({}, model=network), is_training=False)
        return network(how(PHOTO)[None]).detach().numpy()[0]

    network = drawn(timm.create_model(architecture, **TIMM))
    network.pretrained_cfg |= {"input_size": (3, 15, 15)}
    timm.models.save_for_hf(network, tmp_path / "theirs", model_config={"model_args": TIMM}, safe_serialization=True)
    ours = vit_jax.load(tmp_path / "theirs")
    assert ours.preprocess.trim == (3, 3) and ours.preprocess.fit == "crop"
    agree(ours.logits(PHOTO), theirs(tmp_path / "theirs"))
    vit_jax.export(ours, tmp_path / "back", "timm" if "eva" not in architecture else "timm-eva")
    agree(theirs(tmp_path / "back"), theirs(tmp_path / "theirs"))
    stated = json.loads((tmp_path / "theirs/config.json").read_text())
    for name, does in (
        ("dynamic_img_pad", "timm pads images of 15x15"),
        ("dynamic_img_size", "takes there, such as 12"),
    ):
        changed = stated | {"model_args": TIMM | {name: True}}
        (tmp_path / "theirs/config.json").write_text(json.dumps(changed))
        code, _, error = convert(tmp_path / "theirs", tmp_path / "x.safetensors")
        assert code == 2 and does in error and name in error


def test_a_captioner_sees_the_part_that_patches_cover(libraries, tmp_path, convert):
    transformers, _ = libraries
    vit = transformers.ViTConfig(**SMALL, **SIZES)
    sizes = {"n_embd": 16, "n_layer": 1, "n_head": 2, "vocab_size": 9, "n_positions": 8, "add_cross_attention": True}
    text = transformers.GPT2Config(**sizes, bos_token_id=1, eos_token_id=2)
    both = transformers.VisionEncoderDecoderConfig.from_encoder_decoder_configs(vit, text)
    drawn(transformers.VisionEncoderDecoderModel(both)).save_pretrained(tmp_path / "theirs")
    with (reading := read(str(tmp_path / "theirs"))).source:
        assert reading.config.vit.image == 12
    code, _, error = convert(tmp_path / "theirs", tmp_path / "back", "--to", "vision-encoder-decoder")
    assert code == 0, error
    assert json.loads((tmp_path / "back/config.json").read_text())["encoder"]["image_size"] == 15


def test_a_file_whose_size_the_user_states_is_prepared_so_and_no_library_that_refuses_it_is(
    libraries, tmp_path, convert
):
    path = save(libraries[0], tmp_path / "theirs", "ViTForImageClassification")
    arrays = load_file(path / "model.safetensors")
    save_file(arrays, tmp_path / "bare.safetensors")
    stated = ("heads=2", "eps=1e-6", "activation=gelu", "mean=0.5", "std=0.5", "image=15")
    settings = [word for each in stated for word in ("--set", each)]
    assert convert(tmp_path / "bare.safetensors", tmp_path / "ours.npz", *settings)[0] == 0
    preprocess = vit_jax.load(tmp_path / "ours.npz").preprocess
    assert (preprocess.image, preprocess.trim, preprocess.size) == ((12, 12), (3, 3), 15)
    assert convert(path, tmp_path / "tv.pt", "--to", "torchvision", "--adapt", "eps=1e-6")[0] == 0
    (tmp_path / "tv.pt.json").unlink()
    code, _, error = convert(tmp_path / "tv.pt", tmp_path / "x", "--set", "heads=2", "--set", "image=15")
    assert code == 2 and "give an image of 12x12" in error and "image=12" not in error
    assert convert(tmp_path / "tv.pt", tmp_path / "x.npz", "--set", "heads=2", "--set", "image=12")[0] == 0


def test_a_run_trains_on_the_same_pixels_and_goes_back_with_the_size_of_its_weights(
    libraries, working_folder, tmp_path
):
    path = str(save(libraries[0], tmp_path / "theirs", "ViTForImageClassification", num_labels=3))
    images, labels = np.random.default_rng(0).integers(0, 256, (20, 21, 19, 3), np.uint8), np.arange(20) % 3
    fields = {"dir": str(tmp_path), "name": "run", "max_steps": 1, "batch": 4, "epochs": 1}
    run = preset("finetune", init=path, fields=fields).run
    assert run.model.image == 12 and run.data.trim == (3, 3)
    with pytest.raises(UserError, match=r"model.image 15x15 is not divisible by patch 4x4: give an image of 12x12"):
        preset("finetune", init=path, fields={"model.image": 15})
    vit_jax.train(run, data=(images, labels))
    trained = vit_jax.load(tmp_path / "run")
    assert trained.preprocess == replace(vit_jax.load(path).preprocess, size=0, background=255)
    vit_jax.export(trained, tmp_path / "back", "huggingface")
    assert json.loads((tmp_path / "back/config.json").read_text())["image_size"] == 15
    resized = preset("finetune", init=path, fields={"model.image": 24, "init_resize": "timm"}).run
    assert resized.data.trim == 0  # images of another size are no longer trimmed
