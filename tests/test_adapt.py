"""--adapt: folding keeps the function, grids and patches are resampled as published, the impossible is refused."""

import itertools
from dataclasses import dataclass, replace
from functools import partial
from typing import ClassVar

import ml_dtypes
import numpy as np
import pytest

from convert import adapt
from convert.adapt.kernels import POSITIONS, resample
from convert.adapt.vit import STATISTICS
from convert.layout import Facts
from tests.random_weights import weights
from vit_jax.config.network import NetworkConfig
from vit_jax.config.outputs import UNSTATED, Outputs
from vit_jax.data.images.preprocess import Preprocess
from vit_jax.errors import UserError
from vit_jax.models.transformer_config import TransformerConfig
from vit_jax.models.vit_config import ViTConfig

VIT = ViTConfig(image=(8, 12), patch=(4, 2), channels=3, classes=5, width=8, depth=2, heads=2, hidden=12, head_width=3)
DEIT = replace(VIT, distill_token=True, distill_head=True, pool="cls_distill")
random = partial(weights, dtype=np.float64)


def adapted(config, *texts, dtype=np.float64):
    """(config, parameters) after the texts, from random ones."""
    given = random(config, dtype=dtype)
    for adaptation in adapt.adaptations(config, texts):
        config, given = adaptation.config, adapt.apply(adaptation, given)
    return config, given


def logits(config, given, images):
    """Ours in float64."""
    import jax

    from vit_jax.config.trees import unflatten
    from vit_jax.models.state import replace_parameters
    from vit_jax.models.vit import ViT

    with jax.enable_x64(True):
        model = ViT(config, dtype=np.float64, param_dtype=np.float64)
        replace_parameters(model, unflatten({k: jax.numpy.asarray(v) for k, v in given.items()}))
        return np.asarray(model(jax.numpy.asarray(images)))


def pictures(config, batch=2):
    h, w = config.image if isinstance(config.image, tuple) else (config.image,) * 2
    return np.random.default_rng(1).random((batch, h, w, config.channels))


# ------------------------------------------------------------------------------ what every one keeps

EVERY = {
    "resize=16x12:timm": VIT,
    "resize=16x16:flexi": DEIT,
    "resize=16x12:hf": replace(VIT, image=8, patch=4),
    "patch=8x3:flexi": VIT,
    "patch=2:timm": VIT,
    "head=drop": DEIT,
    "head=new:7": DEIT,
    "head=new:3:normal": replace(VIT, head_hidden=6, head_bias=False),
    "head=new:4": replace(VIT, classes=0),
    "fold=layer_scale": replace(VIT, layer_scale=0.1, out_bias=False),
    "fold=cls_position": DEIT,
    "unfold=cls_position": replace(DEIT, cls_position=False),
    "fold=positions": replace(VIT, position="sincos2d", position_trained=False),
    "unfold=qkv_bias": replace(VIT, query_bias=False, key_bias=False),
    "channels=4": VIT,
    "statistics=half:imagenet": replace(VIT, stem_bias=False),
    "eps=1e-12": VIT,
    "activation=relu": VIT,
}


@pytest.mark.parametrize("dtype", [np.float32, ml_dtypes.bfloat16])
@pytest.mark.parametrize("text", EVERY)
def test_the_parameters_made_are_those_of_the_new_config_in_the_dtype_of_the_old(text, dtype):
    before = random(EVERY[text], dtype=dtype)
    (adaptation,) = adapt.adaptations(EVERY[text], [text])
    after = adapt.apply(adaptation, before)
    assert {k: v.shape for k, v in after.items()} == adaptation.config.shapes()
    assert {v.dtype for v in after.values()} == {np.dtype(dtype)} and all(v.flags.c_contiguous for v in after.values())
    touched = {n for step in adaptation.steps for n in step.takes}
    assert all(after[n] is before[n] for n in before if n not in touched)
    for step in adaptation.steps:
        assert dict(step.makes) == {n: adaptation.config.shapes()[n] for n in step.makes}


# -------------------------------------------------------------------------------------- foldings

EXACT = {
    "layer scale": (replace(VIT, layer_scale=0.1), ["fold=layer_scale"]),
    "layer scale after the sum": (
        replace(VIT, layer_scale=0.1, norm_first=False, out_bias=False, mlp_bias=False),
        ["fold=layer_scale"],
    ),
    "class position": (VIT, ["fold=cls_position"]),
    "class position of three prefix tokens": (
        replace(DEIT, registers=2, register_position=True),
        ["fold=cls_position"],
    ),
    "class position of 2-D sinusoids": (
        replace(VIT, position="sincos2d", position_trained=False),
        ["fold=cls_position"],
    ),
    "class position, a row of zeros": (replace(VIT, cls_position=False), ["unfold=cls_position"]),
    "2-D sinusoids as a table": (
        replace(VIT, position="sincos2d", position_trained=False, width=16, registers=2, register_position=True),
        ["fold=positions"],
    ),
    "1-D sinusoids as a table, without the class's": (
        replace(VIT, position="sincos1d", position_trained=False, width=7, heads=1),
        ["fold=positions", "fold=cls_position"],
    ),
    "trained sinusoids are a table": (replace(VIT, position="sincos2d"), ["fold=positions"]),
    "biases of zeros": (replace(VIT, query_bias=False, value_bias=False), ["unfold=qkv_bias"]),
    "the same size": (VIT, ["resize=8x12:dino"]),
}


@pytest.mark.parametrize("case", EXACT)
def test_a_folding_keeps_the_function(case):
    config, texts = EXACT[case]
    images, before = pictures(config), random(config)
    after, folded = adapted(config, *texts)
    expected, found = logits(config, before, images), logits(after, folded, images)
    assert np.abs(found - expected).max() <= 4e-15 * np.abs(expected).max()
    assert all(a.says.endswith("the function stays") and not a.changes for a in adapt.adaptations(config, texts))


@pytest.mark.parametrize("text", ["eps=1e-3", "activation=relu", "resize=16x24:timm", "patch=2:flexi", "channels=1"])
def test_what_changes_the_function_is_marked_so_and_says_so(text):
    (adaptation,) = adapt.adaptations(replace(VIT, channels=3), [text])
    assert adaptation.changes and "the function changes" in adaptation.says


@pytest.mark.parametrize("stem_bias", [True, False])
def test_statistics_change_with_the_pixels(stem_bias):
    config = replace(VIT, stem_bias=stem_bias)
    images, before = pictures(config), random(config)
    after, given = adapted(config, "statistics=imagenet:half")
    imagenet, half = (
        lambda x, s=STATISTICS[name]: (x - np.array(s[0])) / np.array(s[1]) for name in ("imagenet", "half")
    )
    expected, found = logits(config, before, imagenet(images)), logits(after, given, half(images))
    assert np.abs(found - expected).max() <= 4e-15 * np.abs(expected).max()


# ---------------------------------------------------------------------------------- by hand


def test_one_channel_takes_a_grey_picture_as_three_took_it():
    config = replace(VIT, position="none", depth=1)
    before, grey = random(config), pictures(replace(config, channels=1))
    after, given = adapted(config, "channels=1")
    assert np.allclose(logits(after, given, grey), logits(config, before, grey.repeat(3, -1)), rtol=0, atol=1e-13)


def test_behind_convolutions_the_first_takes_the_channels_and_positions_follow_the_grid():
    config = replace(VIT, position="none", depth=1, stem=(6,), patch=2)
    before, grey = random(config), pictures(replace(config, channels=1))
    after, given = adapted(config, "channels=1")
    assert np.allclose(logits(after, given, grey), logits(config, before, grey.repeat(3, -1)), rtol=0, atol=1e-13)
    config = replace(VIT, stem=(6,))
    (larger, given), rows = adapted(config, "resize=16x24:timm"), random(config)["position"]
    assert (larger.stem, larger.grid) == ((6,), (4, 12))
    assert np.array_equal(given["position"][1:], resample(rows[1:], config.grid, larger.grid, POSITIONS["timm"]))


@pytest.mark.parametrize(("n", "colours"), [(2, "rg"), (3, "rgb"), (4, "rgbr"), (7, "rgbrgbr")])
def test_more_channels_are_the_colours_over_and_over(n, colours):
    before, (_, after) = random(VIT)["patch.kernel"].reshape(8, 3, 8), adapted(VIT, f"channels={n}")
    for i, colour in enumerate(colours):
        assert np.allclose(after["patch.kernel"].reshape(8, n, 8)[:, i], before[:, "rgb".index(colour)] * 3 / n)


def test_new_heads_are_zeros_or_small_and_always_the_same():
    _, zero = adapted(DEIT, "head=new:4")
    assert not any(zero[f"{name}.{leaf}"].any() for name in ("head", "distill_head") for leaf in ("kernel", "bias"))
    config, drawn = adapted(replace(DEIT, width=64, hidden=80), "head=new:400:normal")
    assert config.classes == 400 and not drawn["head.bias"].any()
    assert abs(drawn["head.kernel"].std() - 0.02) < 5e-4 and abs(drawn["head.kernel"].mean()) < 5e-4
    assert abs(np.corrcoef(drawn["head.kernel"].ravel(), drawn["distill_head.kernel"].ravel())[0, 1]) < 0.05
    assert np.array_equal(
        drawn["head.kernel"], adapted(replace(DEIT, width=64, hidden=80), "head=new:400:normal")[1]["head.kernel"]
    )


# -------------------------------------------------------------------------------------- resizing


def test_kernels_are_told_apart_by_what_they_make():
    table = np.random.default_rng(0).standard_normal((16, 5))
    for size in ((6, 6), (3, 3)):
        made = {name: resample(table, (4, 4), size, kernel) for name, kernel in POSITIONS.items()}
        for a, b in itertools.combinations(made, 2):
            assert np.abs(made[a] - made[b]).max() > 0.05, (a, b)


@pytest.mark.parametrize(
    ("name", "how"),
    [
        ("hf", dict(align_corners=False)),
        ("timm", dict(align_corners=False, antialias=True)),
        ("torchvision", dict(align_corners=True)),
    ],
)
def test_cubic_kernels_are_those_of_torch(name, how):
    """transformers, timm, torchvision resample with torch's bicubic: slope -0.75, or -0.5 where it is antialiased."""
    torch = pytest.importorskip("torch")
    table = np.random.default_rng(0).standard_normal((16, 5))
    image = torch.from_numpy(table.T.reshape(1, 5, 4, 4))
    for size in ((6, 6), (3, 3)):
        there = torch.nn.functional.interpolate(image, size, mode="bicubic", **how)[0].numpy()  # [5, h, w]
        assert np.abs(resample(table, (4, 4), size, POSITIONS[name]) - there.reshape(5, -1).T).max() < 1e-13


@pytest.mark.parametrize("kernel", POSITIONS)
def test_a_constant_table_stays_constant(kernel):
    for size in ((7, 7), (3, 3), (1, 1), (12, 12)):
        assert np.allclose(resample(np.full((25, 2), 3.0), (5, 5), size, POSITIONS[kernel]), 3.0, rtol=0, atol=1e-14)


def test_prefix_rows_stay_as_they_are():
    config = replace(DEIT, registers=2, register_position=True)
    before, (_, after) = random(config)["position"], adapted(config, "resize=16x16:timm")
    assert np.array_equal(after["position"][:4], before[:4]) and after["position"].shape == (4 + 4 * 8, 8)


def test_adaptations_follow_each_other():
    config, after = adapted(VIT, "patch=8x4:flexi", "resize=32x32:timm", "head=drop", "eps=1e-5")
    assert (config.patch, config.image, config.grid, config.classes, config.eps) == ((8, 4), 32, (4, 8), 0, 1e-5)
    assert {k: v.shape for k, v in after.items()} == config.shapes()


# ------------------------------------------------------------------------------ what lies beside

FACTS = Facts(
    preprocess=Preprocess((8, 12), 3, "crop", 9, "bicubic", 0, (0.5,) * 3, (0.5,) * 3).to_dict(),
    outputs=Outputs("class", tuple("abcde")),
)


def facts(text, given=FACTS):
    (adaptation,) = adapt.adaptations(VIT, [text])
    return adaptation.facts(given)


def test_preprocessing_and_class_names_follow_the_network():
    assert facts("resize=16x24:timm").preprocess == {**FACTS.preprocess, "image": [16, 24], "size": 18}
    assert facts("channels=1").preprocess is None
    assert facts("head=new:5").outputs == facts("head=drop").outputs == UNSTATED
    assert facts("eps=1e-5") == FACTS
    assert facts("resize=16x24:timm", Facts()) == facts("statistics=half:imagenet", Facts()) == Facts()


@pytest.mark.parametrize(
    ("name", "mean", "std"),
    [
        ("none", [0.0] * 3, [1.0] * 3),
        ("imagenet", [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]),
        ("clip", [0.48145466, 0.4578275, 0.40821073], [0.26862954, 0.26130258, 0.27577711]),
    ],
)
def test_statistics_are_those_that_were_published_under_the_name(name, mean, std):
    after = facts(f"statistics=half:{name}")
    assert after.preprocess == {**FACTS.preprocess, "mean": mean, "std": std}
    (back,) = adapt.adaptations(VIT, [f"statistics={name}:half"])
    assert back.facts(after) == FACTS


@pytest.mark.parametrize(
    ("size", "image", "side"), [("16x14", [16, 14], 16), ("12x10", [12, 10], 11)]
)  # 9/8 of 14 is 15.75, of 10 it is 11.25
def test_the_side_that_images_are_cropped_from_is_the_nearest_to_the_proportion(size, image, side):
    assert facts(f"resize={size}:timm").preprocess == {**FACTS.preprocess, "image": image, "size": side}


def test_statistics_that_the_files_contradict_are_refused():
    with pytest.raises(UserError, match=r"the files state mean \[0.5, 0.5, 0.5\].*which is not imagenet"):
        facts("statistics=imagenet:half")


# -------------------------------------------------------------------------------------- bad input

REFUSED = {
    "resise=8x8:timm": "there is no operation 'resise'; nearest: resize",
    "resize": "resize needs a value, as in resize=HEIGHTxWIDTH:KERNEL",
    "resize=8x12": "there is no kernel ''; known: timm, hf, dino, torchvision, google, flexi",
    "resize=8x-4:timm": "is not a size in pixels",
    "resize=9x12:timm": "image 9x12 is not divisible by patch 4x2",
    "resize=16x12:hf": "hf resamples only square grids, and the old one is 2x6; take timm or flexi",
    "head=none": "'none' is none of drop, new:CLASSES",
    "fold=layer_scale": "this network has no layer scale; leave it out",
    "fold=scale": "fold has no value 'scale'; nearest: layer_scale",
    "unfold=cls_position": "only a class token without one",
    "channels=0": "'0' is not a whole number of at least 1",
    "statistics=half": "'half' is not FROM:TO",
    "statistics=half:mine": "each one of none, half, imagenet, clip",
    "eps=-1": "'-1' is not a number of at least 0",
    "eps=inf": "'inf' is not a number",
    "activation=Gelu": "there is no activation 'Gelu'; nearest: gelu, gelu_tanh",
}


@pytest.mark.parametrize("text", REFUSED)
def test_what_cannot_be_is_refused_in_a_sentence(text):
    with pytest.raises(UserError) as error:
        adapt.adaptations(VIT, [text])
    assert REFUSED[text] in str(error.value) and "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("config", "text", "reason"),
    [
        (replace(VIT, channels=1), "channels=3", "takes 1 channels, and only 3 can be changed"),
        (replace(VIT, stem_pre_norm=True), "channels=1", "pixels are normalised before"),
        (replace(VIT, stem=(6,)), "statistics=half:imagenet", "pad images with zeros"),
        (replace(VIT, position="sincos1d", position_trained=False), "fold=cls_position", "give fold=positions first"),
        (
            TransformerConfig(),
            "resize=8x8:timm",
            "resize is for a ViT and this is a Transformer, which can only have eps, activation, lora changed",
        ),
    ],
)
def test_a_network_that_an_operation_is_not_for_is_refused(config, text, reason):
    with pytest.raises(UserError, match=reason):
        adapt.adaptations(config, [text])


def test_a_transformer_may_have_another_eps_and_activation():
    one, two = adapt.adaptations(TransformerConfig(), ["eps=1e-5", "activation=relu"])
    assert (two.config.eps, two.config.activation) == (1e-5, "relu") and not (one.steps or two.steps)


@dataclass(frozen=True)
class Tiny(NetworkConfig):
    computes: ClassVar[str] = "tests:Tiny"
    eps: float = 1e-6

    def parameters(self):
        return {}

    def inputs(self):
        return ()


def test_any_network_may_have_what_it_has_a_field_for():
    (one,) = adapt.adaptations(Tiny(), ["eps=1e-5"])
    assert one.config == Tiny(1e-5) and not one.steps
    for text, whose in (("activation=relu", "networks with a field activation"), ("head=drop", "a ViT")):
        with pytest.raises(
            UserError, match=f"is for {whose} and this is a Tiny, which can only have eps, lora changed"
        ):
            adapt.adaptations(Tiny(), [text])
    assert adapt.texts_to_fit(Tiny(), ["activation=relu", "eps=1e-3"], lambda c: c == Tiny(1e-3)) == ["eps=1e-3"]
