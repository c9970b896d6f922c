"""--adapt: foldings keep the function, new grids and patches are resampled as published, and what cannot be is refused in a sentence."""

import functools
import re
from dataclasses import replace

import ml_dtypes
import numpy as np
import pytest

from convert import adapt
from convert.adapt.kernels import PATCHES, POSITIONS, Kernel, cubic, resample, resample_patches
from convert.adapt.operations import STATISTICS
from convert.layout import Facts
from vit_jax.config import TransformerConfig, ViTConfig, parameters
from vit_jax.errors import UserError

VIT = ViTConfig(image=(8, 12), patch=(4, 2), channels=3, classes=5, width=8, depth=2, heads=2, hidden=12, head_width=3)
DEIT = replace(VIT, distill_token=True, distill_head=True, pool="cls_distill")


def random(config, dtype=np.float64):
    rng = np.random.default_rng(0)
    return {name: rng.normal(size=shape).astype(dtype) for name, shape in parameters(config).items()}


def adapted(config, *texts, dtype=np.float64):
    """(config, parameters) after the texts, from random ones."""
    given = random(config, dtype)
    for adaptation in adapt.plan(config, texts):
        config, given = adaptation.config, adapt.apply(adaptation, given)
    return config, given


def logits(config, given, images):
    """Ours in float64."""
    import jax

    from vit_jax.layers import replace_parameters
    from vit_jax.runs import unflatten
    from vit_jax.vit import ViT

    with jax.enable_x64(True):
        model = ViT(config, dtype=np.float64, param_dtype=np.float64)
        replace_parameters(model, unflatten({k: jax.numpy.asarray(v) for k, v in given.items()}))
        return np.asarray(model(jax.numpy.asarray(images)))


def pictures(config, batch=2):
    h, w = config.image if isinstance(config.image, tuple) else (config.image,) * 2
    return np.random.default_rng(1).random((batch, h, w, config.channels))


# ------------------------------------------------------------------------------ what every one keeps

EVERY = {
    "resize=16x12:timm": VIT, "resize=16x16:flexi": DEIT, "resize=16x12:hf": replace(VIT, image=8, patch=4), "patch=8x3:flexi": VIT, "patch=2:timm": VIT,
    "head=drop": DEIT, "head=new:7": DEIT, "head=new:3:normal": replace(VIT, head_hidden=6, head_bias=False), "head=new:4": replace(VIT, classes=0),
    "fold=layer_scale": replace(VIT, layer_scale=0.1, out_bias=False), "fold=cls_position": DEIT, "unfold=cls_position": replace(DEIT, cls_position=False),
    "fold=positions": replace(VIT, position="sincos2d", position_trained=False), "unfold=qkv_bias": replace(VIT, query_bias=False, key_bias=False),
    "channels=4": VIT, "statistics=half:imagenet": replace(VIT, stem_bias=False), "eps=1e-12": VIT, "activation=relu": VIT,
}  # fmt: skip


@pytest.mark.parametrize("dtype", [np.float32, ml_dtypes.bfloat16])
@pytest.mark.parametrize("text", EVERY)
def test_the_parameters_made_are_those_of_the_new_config_in_the_dtype_of_the_old(text, dtype):
    before = random(EVERY[text], dtype)
    (adaptation,) = adapt.plan(EVERY[text], [text])
    after = adapt.apply(adaptation, before)
    assert {k: v.shape for k, v in after.items()} == parameters(adaptation.config)
    assert {v.dtype for v in after.values()} == {np.dtype(dtype)} and all(v.flags.c_contiguous for v in after.values())
    touched = {n for step in adaptation.steps for n in step.takes}
    assert all(after[n] is before[n] for n in before if n not in touched)
    for step in adaptation.steps:
        assert dict(step.makes) == {n: parameters(adaptation.config)[n] for n in step.makes}


# -------------------------------------------------------------------------------------- foldings

EXACT = {
    "layer scale": (replace(VIT, layer_scale=0.1), ["fold=layer_scale"]),
    "layer scale after the sum": (replace(VIT, layer_scale=0.1, norm_first=False, out_bias=False, mlp_bias=False), ["fold=layer_scale"]),
    "class position": (VIT, ["fold=cls_position"]),
    "class position of three prefix tokens": (replace(DEIT, registers=2, register_position=True), ["fold=cls_position"]),
    "class position of 2-D sinusoids": (replace(VIT, position="sincos2d", position_trained=False), ["fold=cls_position"]),
    "class position, a row of zeros": (replace(VIT, cls_position=False), ["unfold=cls_position"]),
    "2-D sinusoids as a table": (replace(VIT, position="sincos2d", position_trained=False, registers=2, register_position=True), ["fold=positions"]),
    "1-D sinusoids as a table, without the class's": (
        replace(VIT, position="sincos1d", position_trained=False, width=7, heads=1), ["fold=positions", "fold=cls_position"],
    ),
    "trained sinusoids are a table": (replace(VIT, position="sincos2d"), ["fold=positions"]),
    "biases of zeros": (replace(VIT, query_bias=False, value_bias=False), ["unfold=qkv_bias"]),
    "the same size": (VIT, ["resize=8x12:dino"]),
}  # fmt: skip


@pytest.mark.parametrize("case", EXACT)
def test_a_folding_keeps_the_function(case):
    config, texts = EXACT[case]
    images, before = pictures(config), random(config)
    after, folded = adapted(config, *texts)
    expected, found = logits(config, before, images), logits(after, folded, images)
    assert np.abs(found - expected).max() <= 4e-15 * np.abs(expected).max()
    assert all(a.exact or "stay" in a.says for a in adapt.plan(config, texts))


@pytest.mark.parametrize("stem_bias", [True, False])
def test_statistics_change_with_the_pixels(stem_bias):
    config = replace(VIT, stem_bias=stem_bias)
    images, before = pictures(config), random(config)
    after, given = adapted(config, "statistics=imagenet:half")
    imagenet, half = (lambda x, s=STATISTICS[name]: (x - np.array(s[0])) / np.array(s[1]) for name in ("imagenet", "half"))
    expected, found = logits(config, before, imagenet(images)), logits(after, given, half(images))
    assert np.abs(found - expected).max() <= 4e-15 * np.abs(expected).max()


# ---------------------------------------------------------------------------------- by hand

def test_one_channel_takes_a_grey_picture_as_three_took_it():
    config = replace(VIT, position="none", depth=1)
    before, grey = random(config), pictures(replace(config, channels=1))
    after, given = adapted(config, "channels=1")
    assert np.allclose(logits(after, given, grey), logits(config, before, grey.repeat(3, -1)), rtol=0, atol=1e-13)


@pytest.mark.parametrize(("n", "colours"), [(2, "rg"), (3, "rgb"), (4, "rgbr"), (7, "rgbrgbr")])
def test_more_channels_are_the_colours_over_and_over(n, colours):
    before, (_, after) = random(VIT)["patch.kernel"].reshape(8, 3, 8), adapted(VIT, f"channels={n}")
    for i, colour in enumerate(colours):
        assert np.allclose(after["patch.kernel"].reshape(8, n, 8)[:, i], before[:, "rgb".index(colour)] * 3 / n)
