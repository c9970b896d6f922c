"""Hugging Face's ViT and DeiT: what config.json states and leaves out, what each class cannot be, preprocessing."""

import json
from dataclasses import replace

import numpy as np
import pytest

import vit_jax
from convert import rules
from convert.dialects import LAYOUTS
from convert.layout import Facts
from convert.recognise.config import resolve
from tests.installed import library
from tests.random_weights import tensors
from vit_jax.config.outputs import UNSTATED, Outputs
from vit_jax.data.images.preprocess import Preprocess
from vit_jax.errors import UserError
from vit_jax.models.vit_config import ViTConfig

V4, V5, FLAX = (LAYOUTS[name] for name in ("huggingface@v4", "huggingface@v5", "huggingface-flax"))
VIT = ViTConfig(image=(4, 6), patch=(2, 3), classes=5, width=8, depth=2, heads=2, hidden=12, eps=1e-12)
DEIT = replace(VIT, distill_token=True)
TEACHER = replace(DEIT, distill_head=True, pool="cls_distill")
POOLER = replace(VIT, classes=0, head_hidden=6)
CONFIGS = {
    "vit": VIT,
    "deit": DEIT,
    "teacher": TEACHER,
    "pooler": POOLER,
    "no bias": replace(VIT, query_bias=False, key_bias=False, value_bias=False),
}


def shapes(layout, config):
    return {name: array.shape for name, array in tensors(layout, config).items()}


def side(layout, config, **facts):
    """The JSON files that we write, as they are read again."""
    return json.loads(json.dumps(layout.write_side(config, Facts(**facts))))


# ------------------------------------------------------------------------------------------ config


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("layout", [V4, V5], ids=["v4", "v5"])
def test_a_config_that_is_written_is_read_again(layout, name):
    config = CONFIGS[name]
    assert not layout.cannot(config)
    said = layout.read_side(side(layout, config)).config
    assert resolve(layout, shapes(layout, config), [("its config.json", said)], "file") == config


def test_what_a_config_json_leaves_out_is_what_the_library_takes():
    config = replace(VIT, image=224, patch=16, heads=12, width=24, eps=1e-12)
    names = shapes(V4, config)
    said = V4.read_side(
        {"config.json": {"model_type": "vit", "hidden_size": 24, "num_hidden_layers": 2, "intermediate_size": 12}}
    ).config
    assert resolve(V4, names, [("its config.json", said)], "file") == config


@pytest.mark.parametrize(("config", "body"), [(replace(VIT, classes=0), "vit."), (replace(DEIT, classes=0), "deit.")])
def test_a_body_without_classes_may_be_named_and_a_masked_image_s_decoder_is_no_part_of_it(config, body):
    state = {f"{body}{name}": array for name, array in tensors(V4, config).items()} | {
        f"{body}embeddings.mask_token": np.ones((1, 1, 8), np.float32)
    }
    names = {**state, "decoder.0.weight": np.zeros((18, 8, 1, 1)), "decoder.0.bias": np.zeros(18)}
    assert [
        layout.name
        for layout in LAYOUTS.values()
        if layout.recognises({name: array.shape for name, array in names.items()})
    ] == ["huggingface@v4"]
    assert V4.left_out(names) == ["decoder.0.weight", "decoder.0.bias"]
    said = V4.read_side({**side(V4, config)}).config
    assert (
        resolve(V4, {name: array.shape for name, array in state.items()}, [("its config.json", said)], "file") == config
    )
    back = rules.read(V4.rows(config), state)
    assert back.keys() - config.shapes().keys() == {f"carried.{body}embeddings.mask_token"}
    assert rules.write(V4.rows(config), back, names=state).keys() == state.keys()
    assert not any(
        name.startswith(body) for name in rules.write(V4.rows(config), {n: back[n] for n in config.shapes()})
    )


def test_without_a_config_json_what_no_shape_tells_is_asked_for():
    with pytest.raises(
        UserError,
        match=r"image, heads, eps, activation;.*"
        r"`fields image=\.\.\. heads=\.\.\. eps=\.\.\. activation=\.\.\.",
    ):
        resolve(V4, shapes(V4, VIT), [], "file")


def test_a_config_json_that_its_tensors_contradict_is_refused():
    said = V4.read_side(side(V4, replace(VIT, hidden=16))).config
    with pytest.raises(UserError, match=r"hidden is 16 by its config.json but 12 by its shapes"):
        resolve(V4, shapes(V4, VIT), [("its config.json", said)], "file")


@pytest.mark.parametrize(
    "written", ["gelu", "gelu_python", "gelu_new", "gelu_pytorch_tanh", "swish", "silu", "relu", "quick_gelu"]
)
def test_every_spelling_of_an_activation_is_known(written):
    ours = {"gelu_python": "gelu", "gelu_new": "gelu_tanh", "gelu_pytorch_tanh": "gelu_tanh", "swish": "silu"}.get(
        written, written
    )
    assert V4.read_side({"config.json": {"hidden_act": written}}).config["activation"] == ours


@pytest.mark.parametrize(
    ("config", "told"),
    [
        ({"hidden_act": "mish"}, "hidden_act is 'mish'"),
        ({"hidden_act": ["gelu"]}, r"hidden_act is \['gelu'\]"),
        ({"model_type": "yolos"}, "model_type is 'yolos'"),
    ],
)
def test_another_network_s_config_json_is_refused(config, told):
    with pytest.raises(UserError, match=told):
        V4.read_side({"config.json": config})


@pytest.mark.parametrize(
    ("config", "told"),
    [
        (replace(VIT, key_bias=False), "query, key and value"),
        (replace(VIT, head_hidden=6), "no head follows its pooler"),
        (replace(DEIT, pool="cls_distill"), "distill_head is False and pool 'cls_distill'"),
        (replace(TEACHER, pool="cls"), "distill_head is True and pool 'cls'"),
        (replace(VIT, pool="mean"), "pool is 'mean'"),
    ],
)
def test_what_none_of_its_classes_computes_is_refused(config, told):
    (reason,) = V4.cannot(config)
    assert told in reason


@pytest.mark.parametrize(
    ("config", "told"),
    [
        (VIT, "image is 4x6, but the layout has only square ones; patch is 2x3"),
        (replace(POOLER, image=4, patch=2), "head_hidden is 6, but its pooler has the width of a token, 8"),
        (replace(DEIT, image=4, patch=2), "distill_token is True"),
    ],
)
def test_flax_has_fewer_networks(config, told):
    assert told in "; ".join(FLAX.cannot(config))


def test_flax_files_are_the_torch_files_with_slashes_and_other_orders():
    config = replace(VIT, image=4, patch=2)
    torch, flax = tensors(V4, config), tensors(FLAX, config)
    assert len(flax) == len(torch)
    for name, array in flax.items():
        theirs = torch[name.replace("/", ".").replace("kernel", "weight").replace("scale", "weight")]
        order = {"kernel": {2: (1, 0), 4: (2, 3, 1, 0)}}.get(name.rpartition("/")[2], {}).get(
            theirs.ndim, range(theirs.ndim)
        )
        assert np.array_equal(array, theirs.transpose(order)), name
    assert (
        resolve(FLAX, shapes(FLAX, config), [("its config.json", FLAX.read_side(side(FLAX, config)).config)], "file")
        == config
    )


# ------------------------------------------------------------------------------------------- files


def test_class_names_are_written_and_read():
    names = ("tench", "goldfish", "shark", "ray", "cock")
    files = side(V4, VIT, outputs=Outputs("set", names))
    assert files["config.json"]["label2id"]["shark"] == 2
    assert V4.read_side(files).outputs == Outputs("set", names)
    config = files["config.json"]
    sorted_by_name = {**config, "id2label": dict(sorted(config["id2label"].items(), key=lambda item: item[1]))}
    assert V4.read_side({"config.json": sorted_by_name}).outputs.names == names  # by their numbers, not as they stand
    assert V4.read_side(side(V4, VIT)).outputs == UNSTATED  # LABEL_0, ... are none
    assert len(side(V4, VIT, outputs=Outputs("", ("of", "another")))["config.json"]["id2label"]) == 5


# ----------------------------------------------------------------------------------- preprocessing

IMAGENET = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
CROP = Preprocess((4, 6), 3, "crop", 8, "bicubic", 255, *IMAGENET).to_dict()


@pytest.mark.parametrize(
    "preprocess",
    [
        CROP,
        CROP | dict(fit="stretch", size=4, interpolation="bilinear"),
        CROP | dict(image=[6, 6], size=6),
        CROP | dict(image=[8, 8], channels=1, mean=[0.2], std=[0.3], interpolation="nearest"),
    ],
)
def test_a_preprocessing_that_is_written_is_read_again(preprocess):
    facts = V4.read_side(side(V4, VIT, preprocess=preprocess))
    assert facts.preprocess == preprocess and not facts.notes


@pytest.mark.parametrize(
    "change", [dict(fit="pad"), dict(size=0), dict(size=5)]
)  # the last two: how much is scaled depends on the image
def test_a_preprocessing_that_the_library_lacks_is_not_written(change):
    assert "preprocessor_config.json" not in side(V4, VIT, preprocess=CROP | change)


def read(**config):
    facts = V4.read_side({"preprocessor_config.json": config})
    return facts.preprocess, facts.notes


def test_an_old_file_of_a_vit_means_a_stretched_square():
    preprocess, notes = read(
        feature_extractor_type="ViTFeatureExtractor", size=384, resample=2, image_mean=[0.5] * 3, image_std=[0.5] * 3
    )
    assert (preprocess["image"], preprocess["fit"]) == ([384, 384], "stretch")
    assert preprocess["mean"] == [0.5] * 3 and not notes


def test_a_vit_s_file_that_says_nothing_means_a_bilinear_square_of_half_and_half():
    """As the library's class has always had it (google/vit-base-patch16-224 was published so)."""
    for said in (dict(image_processor_type="ViTImageProcessor"), dict(feature_extractor_type="ViTFeatureExtractor")):
        preprocess, notes = read(**said)
        assert (preprocess["image"], preprocess["fit"]) == ([224, 224], "stretch")
        assert preprocess["interpolation"] == "bilinear"
        assert (preprocess["mean"], preprocess["std"], notes) == ([0.5] * 3, [0.5] * 3, ())


@pytest.mark.parametrize("kernel", ["nearest", "bilinear", "bicubic"])
def test_a_kernel_s_number_is_pillow_s(kernel):
    from PIL.Image import Resampling

    assert (
        read(image_processor_type="ViTImageProcessor", resample=int(Resampling[kernel.upper()]))[0]["interpolation"]
        == kernel
    )


def test_a_deit_s_stretch_before_its_crop_is_noted():
    preprocess, notes = read(
        image_processor_type="DeiTImageProcessor", image_mean=[0.485, 0.456, 0.406], image_std=[0.229, 0.224, 0.225]
    )
    assert (preprocess["image"], preprocess["fit"], preprocess["size"]) == ([224, 224], "crop", 256)
    assert preprocess["interpolation"] == "bicubic"
    assert len(notes) == 1 and "256 x 256" in notes[0]


def test_a_scale_of_its_own_goes_into_the_statistics():
    preprocess, _ = read(
        image_processor_type="ViTImageProcessor", rescale_factor=1 / 127.5, image_mean=[1.0] * 3, image_std=[1.0] * 3
    )
    assert preprocess["mean"] == pytest.approx([0.5] * 3) and preprocess["std"] == pytest.approx([0.5] * 3)
    assert read(image_processor_type="ViTImageProcessor", do_normalize=False)[0]["std"] == [1.0] * 3
    levels = dict(image_mean=[127.5] * 3, image_std=[51.0] * 3)  # of pixels from 0 to 255, which are not divided
    preprocess, _ = read(image_processor_type="ViTImageProcessor", do_rescale=False, **levels)
    assert preprocess["mean"] == pytest.approx([0.5] * 3) and preprocess["std"] == pytest.approx([0.2] * 3)


@pytest.mark.parametrize(
    "config",
    [
        dict(image_processor_type="ViTImageProcessor", resample=1),  # Lanczos
        dict(image_processor_type="CLIPImageProcessor", size={"shortest_edge": 224}),  # the rest depends on the version
        dict(image_processor_type="DeiTImageProcessor"),  # so do its mean and std
        dict(image_processor_type="ViTImageProcessor", resample=[2], image_mean="0.5"),
        dict(image_processor_type="ViTImageProcessor", do_center_crop=True, crop_size=256),
        dict(
            image_processor_type="BitImageProcessor",
            resample=3,
            size=224,
            do_center_crop=False,
            image_mean=[0.5],
            image_std=[0.5],
        ),
    ],
)
def test_a_preprocessing_without_a_counterpart_is_named_and_not_guessed(config):
    preprocess, (note,) = read(**config)
    assert preprocess is None and note.startswith("preprocessor_config.json: ")


@pytest.mark.parametrize("name", ["ViTMSNModel", "ViTMSNForImageClassification", "ViTMAEModel"])
def test_networks_of_other_classes_that_are_vits_are_read_as_such(name, tmp_path):
    """MSN's is a ViT under another name, and MAE's encoder one, where nothing is masked."""
    transformers, torch = library("transformers"), pytest.importorskip("torch")
    sizes = dict(hidden_size=8, num_hidden_layers=2, num_attention_heads=2, intermediate_size=12, image_size=8)
    settings = dict(patch_size=4, num_labels=3, **({"mask_ratio": 0.0} if "MAE" in name else {}))
    family = "ViTMAE" if "MAE" in name else "ViTMSN"
    theirs = getattr(transformers, name)(getattr(transformers, f"{family}Config")(**sizes, **settings)).eval()
    for parameter in theirs.parameters():
        torch.nn.init.normal_(parameter, std=0.2)
    theirs.set_attn_implementation("sdpa")
    theirs.save_pretrained(tmp_path)
    images = torch.randn(2, 3, 8, 8)
    with torch.no_grad():
        wanted = theirs(pixel_values=images)
    wanted = wanted.logits if "Classification" in name else wanted.last_hidden_state[:, 0]
    ours = vit_jax.load(tmp_path).model(images.permute(0, 2, 3, 1).numpy())
    assert np.abs(np.asarray(ours) - wanted.numpy()).max() < 1e-5
