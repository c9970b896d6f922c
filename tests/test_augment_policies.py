"""The operations of policies against Pillow, timm and torchvision, and how often a policy takes each."""

import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from PIL import Image, ImageEnhance, ImageFilter, ImageOps

from tests.installed import library
from vit_jax.augmentation import crops, operations, policies
from vit_jax.augmentation.config import ImageAugment
from vit_jax.augmentation.operations import NUMBER, OPERATIONS

BATCH, H, W = 48, 13, 18


pytestmark = pytest.mark.usefixtures("quick_compilation")


def pictures(channels=3, batch=BATCH, h=H, w=W):
    """Images of all contrasts, also flat ones."""
    draw = np.random.default_rng(channels)
    low = draw.integers(0, 200, (batch, 1, 1, channels))
    span = draw.integers(0, 256, (batch, 1, 1, channels)) % (256 - low)
    span[:2] = 0
    return (low + draw.random((batch, h, w, channels)) * (span + 0.999)).astype(np.uint8)


def pillow(image):
    return Image.fromarray(image[..., 0] if image.shape[-1] == 1 else image)


def each(images, values, change):
    """`change(Pillow image, value)` of each image, uint8 [B, h, w, C]."""
    changed = [np.asarray(change(pillow(i), v)) for i, v in zip(images, np.asarray(values).tolist(), strict=True)]
    return np.stack(changed).reshape(images.shape)


def ours(name, images, values):
    """The operation of that name alone, compiled with all others."""
    chosen = jnp.full(len(images), NUMBER[name], jnp.int32)
    return np.asarray(EVERYTHING(jnp.asarray(images), chosen, jnp.asarray(values, jnp.float32)))


EVERYTHING = jax.jit(lambda images, chosen, values: operations.apply(images, chosen, values, tuple(OPERATIONS)))
FACTORS = np.round(np.random.default_rng(1).uniform(0, 2, BATCH) * operations.ONE) / operations.ONE
FACTORS[:3] = 0, 1, 2


def enhanced(which):
    return FACTORS, lambda image, factor: which(image).enhance(factor)


def of_values(values, change):
    return np.resize(np.array(values), BATCH), change


# {operation: (a value for each image, what Pillow makes of an image with it)}
PILLOW = {
    "identity": of_values([0], lambda image, _: image),
    "brightness": enhanced(ImageEnhance.Brightness),
    "contrast": enhanced(ImageEnhance.Contrast),
    "colour": enhanced(ImageEnhance.Color),
    "sharpness": enhanced(ImageEnhance.Sharpness),
    "blur": of_values(np.arange(0.1, 2.0, 0.04).round(2), lambda i, sigma: i.filter(ImageFilter.GaussianBlur(sigma))),
    "posterize": of_values(range(1, 9), lambda image, bits: ImageOps.posterize(image, int(bits))),
    "solarize": of_values([0, 1, 100, 127.5, 128, 255, 256], ImageOps.solarize),
    "autocontrast": of_values([0], lambda image, _: ImageOps.autocontrast(image)),
    "equalize": of_values([0], lambda image, _: ImageOps.equalize(image)),
}


@pytest.mark.parametrize("channels", [3, 1])
def test_blends_and_tables_are_pillows_to_the_bit(channels):
    images = pictures(channels)
    for name, (values, change) in PILLOW.items():
        np.testing.assert_array_equal(ours(name, images, values), each(images, values, change), err_msg=name)
    inverted = each(images, FACTORS, lambda image, _: ImageOps.invert(image))
    np.testing.assert_array_equal(ours("solarize", images, np.zeros(BATCH)), inverted)


def test_autocontrast_is_pillows_for_every_lowest_and_highest_level():
    pairs = np.array([(low, high) for low in range(256) for high in range(low + 1, 256)], np.uint8)
    levels = np.linspace(pairs[:, 0], pairs[:, 1], 24).round().astype(np.uint8).T  # [n, 24]
    found = jax.jit(lambda x: operations.looked_up(x, operations.autocontrast_table(x).astype(jnp.uint8)))
    got = np.asarray(found(levels[:, :, None, None]))[..., 0, 0]
    low, high = pairs.astype(np.float64).T[:, :, None]
    scale = 255.0 / (high - low)
    np.testing.assert_array_equal(got, (levels * scale + -low * scale).astype(np.uint8))  # ImageOps.autocontrast


def test_equalize_is_pillows_for_large_images_too():
    images = (np.random.default_rng(0).beta(2, 5, (1, 700, 701, 1)) * 255).astype(np.uint8)
    counts = np.bincount(images.ravel(), minlength=256)[None, None]
    table = np.asarray(jax.jit(operations.equalize_table)(jnp.asarray(counts, jnp.int32)))[0, 0]
    expected = each(images, [0], lambda image, _: ImageOps.equalize(image))
    np.testing.assert_array_equal(table.astype(np.uint8)[images], expected)


# ------------------------------------------------------------------------------- against libraries


def source(name, value, h, w):
    """(column, row) that each pixel comes from, float64 [h, w], by the map of the operation, centres at .5."""
    x, y = np.meshgrid(np.arange(w) + 0.5, np.arange(h) + 0.5)
    cos, sin = math.cos(math.radians(value)), math.sin(math.radians(value))
    return {
        "shear_x": (x + value * y, y),
        "shear_y": (x, y + value * x),
        "translate_x": (x - value, y),
        "translate_y": (x, y - value),
        "rotate": (cos * (x - w / 2) - sin * (y - h / 2) + w / 2, sin * (x - w / 2) + cos * (y - h / 2) + h / 2),
    }[name]


def test_affine_operations_are_torchvisions_nearest():
    """To the pixel, but for those whose source lies within 1e-4 of the edge of a pixel, where float32 may round."""
    library("torchvision")
    import torch
    from torchvision.transforms import InterpolationMode
    from torchvision.transforms import functional as F

    def affine(image, **changed):
        how = dict(angle=0.0, translate=[0, 0], scale=1.0, shear=[0.0, 0.0]) | changed
        return F.affine(image, **how, interpolation=InterpolationMode.NEAREST, fill=[128.0] * 3)

    def sheared(image, *shear):
        return affine(image, shear=[math.degrees(math.atan(s)) for s in shear], center=[0, 0])

    theirs = {
        "shear_x": lambda image, v: sheared(image, v, 0.0),
        "shear_y": lambda image, v: sheared(image, 0.0, v),
        "translate_x": lambda image, v: affine(image, translate=[int(v), 0]),
        "translate_y": lambda image, v: affine(image, translate=[0, int(v)]),
        "rotate": lambda image, v: F.rotate(image, v, InterpolationMode.NEAREST, fill=[128.0] * 3),
    }
    draw = np.random.default_rng(5)
    values = {name: draw.uniform(-0.99, 0.99, BATCH) for name in ("shear_x", "shear_y")}
    values |= {name: draw.integers(-12, 13, BATCH).astype(float) for name in ("translate_x", "translate_y")}
    values["rotate"] = draw.uniform(-135, 135, BATCH)
    images, compared = pictures(), 0
    for name, change in theirs.items():
        got = ours(name, images, values[name])
        for image, after, value in zip(images, got, values[name].astype(np.float32).tolist(), strict=True):
            expected = change(torch.from_numpy(image).permute(2, 0, 1), value).permute(1, 2, 0).numpy()
            sure = np.min([np.abs(at - at.round()) for at in source(name, value, H, W)], 0) > 1e-4
            np.testing.assert_array_equal(after[sure], expected[sure], err_msg=f"{name} {value}")
            compared += sure.sum()
    assert compared > 0.97 * 5 * BATCH * H * W


def test_a_resized_crop_is_torchvisions():
    """Within one level: both round, and theirs in fixed point."""
    library("torchvision")
    import torch
    from torchvision.transforms import functional as F

    from vit_jax.augmentation.crops import resample_windows

    images, draw = pictures(), np.random.default_rng(2)
    height, width = draw.integers(1, H + 1, BATCH), draw.integers(1, W + 1, BATCH)
    top, left = draw.integers(0, H + 1 - height), draw.integers(0, W + 1 - width)
    got = np.asarray(jax.jit(resample_windows)(images, top, height, left, width))
    for image, after, *window in zip(images, got, top, left, height, width, strict=True):
        tensor = torch.from_numpy(image).permute(2, 0, 1)
        expected = F.resized_crop(tensor, *map(int, window), [H, W]).permute(1, 2, 0).numpy()
        assert np.abs(after.astype(int) - expected).max() <= 1, window


def test_rand_augment_has_the_operations_and_strengths_of_timm():
    library("timm")
    from timm.data import auto_augment as timm

    names = [
        *("AutoContrast", "Equalize", "Invert", "Rotate", "PosterizeIncreasing", "SolarizeIncreasing", "SolarizeAdd"),
        *("ColorIncreasing", "ContrastIncreasing", "BrightnessIncreasing", "SharpnessIncreasing"),
        *("ShearX", "ShearY", "TranslateXRel", "TranslateYRel"),
    ]
    rows = policies.rand_augment_rows(100, 200)
    assert names == timm._RAND_INCREASING_TRANSFORMS and len(rows) == len(names)
    values = jax.jit(lambda which, level, sign: policies._values(rows, which, level, sign))
    which, sign = np.repeat(np.arange(15), 2), np.tile([1.0, -1.0], 15)
    for level in (0.0, 2.5, 3.3, 9.0, 10.0):
        operation, value = map(np.asarray, values(which, np.float32(level / 10), sign.astype(np.float32)))
        np.testing.assert_array_equal(operation, [NUMBER[rows[i].operation] for i in which])
        for name, row, pair in zip(names, rows, value.reshape(15, 2), strict=True):
            if name in ("AutoContrast", "Equalize", "Invert"):
                assert (pair == 0).all()  # level 0 of solarize inverts
                continue
            both = {float(*timm.LEVEL_TO_ARG[name](level, {})) for _ in range(40)}  # it draws the sign
            size = {"translate_x": 200, "translate_y": 100}.get(row.operation, 1)
            expected = [size * min(both), size * max(both)]
            np.testing.assert_allclose(np.sort(pair), expected, rtol=1e-5, err_msg=name)


def torchvisions(name):
    library("torchvision")
    from torchvision.transforms import autoaugment

    return autoaugment, {
        "Identity": "identity", "ShearX": "shear_x", "ShearY": "shear_y", "TranslateX": "translate_x",
        "TranslateY": "translate_y", "Rotate": "rotate", "Brightness": "brightness", "Color": "colour",
        "Contrast": "contrast", "Sharpness": "sharpness", "Posterize": "posterize", "Solarize": "solarize",
        "AutoContrast": "autocontrast", "Equalize": "equalize", "Invert": "invert",
    }  # fmt: skip


VALUES = policies._values


def same_row(row, magnitudes, signed, bins):
    """Whether a row has a table of torchvision, one value for each bin."""
    values = VALUES((row,), np.zeros(bins, int), (np.arange(bins) / (bins - 1)).astype(np.float32), np.ones(bins, "f"))
    for k, value in enumerate(np.asarray(values.value)):
        expected = float(magnitudes[k]) if magnitudes.ndim else 0.0
        expected = int(expected + 1e-4) if row.operation.startswith("translate") else expected
        if row.operation == "posterize":
            value = np.clip(np.round(value), 1, 8)
        if row.operation in ("brightness", "colour", "contrast", "sharpness"):
            expected += 1
        assert float(value) == pytest.approx(expected, abs=1e-4), (row, k)
    assert row.signed == signed


def test_trivial_augment_has_the_table_of_torchvision():
    module, called = torchvisions("trivialaugment")
    space = module.TrivialAugmentWide()._augmentation_space(31)
    assert [row.operation for row in policies.TRIVIAL_ROWS] == [called[name] for name in space]
    for row, (magnitudes, signed) in zip(policies.TRIVIAL_ROWS, space.values(), strict=True):
        same_row(row, magnitudes, signed, 31)


def test_auto_augment_has_the_policy_of_torchvision():
    module, called = torchvisions("autoaugment")
    theirs = module.AutoAugment(module.AutoAugmentPolicy.CIFAR10)
    listed = [tuple((called[name], p, k or 0) for name, p, k in pair) for pair in theirs.policies]
    assert [*policies.CIFAR_POLICY] == listed
    rows = policies.auto_augment_rows(H, W)
    for name, (magnitudes, signed) in theirs._augmentation_space(10, (H, W)).items():
        if name != "Invert":
            same_row(rows[called[name]], magnitudes, signed, 10)


# ----------------------------------------------------------------------------------- what is drawn

MANY = 4000


def drawn(policy, **fields):
    """[(operation, value), ...] of each layer of a policy for MANY images of 32 pixels."""
    config = ImageAugment(policy=policy, **fields)
    draw, used = policies.POLICIES[policy]
    compiled = jax.jit(lambda keys: list(draw(keys, config, 32, 32)))
    layers = [(np.asarray(a), np.asarray(b)) for a, b in compiled(jax.random.split(jax.random.key(3), MANY))]
    for i, (operation, _) in enumerate(layers):  # what is not `used` would not be computed
        assert {*operation.tolist()} <= {NUMBER[name] for name in (*used[min(i, len(used) - 1)], "identity")}
    return layers


def near(count, chance, of=MANY):
    return abs(count - of * chance) < 5 * math.sqrt(of * chance * (1 - chance))


def test_rand_augment_does_half_of_its_operations_all_as_often():
    layers = drawn("randaugment", layers=3, magnitude=5.0)
    assert len(layers) == 3
    for operation, value in layers:
        assert near((operation == NUMBER["identity"]).sum(), 1 / 2)
        counted = [(NUMBER[name], 3 if name == "solarize" else 1) for name in ("rotate", "equalize")]
        assert all(near((operation == number).sum(), 1 / 30) for number, _ in counted)
        assert near((operation == NUMBER["solarize"]).sum(), 2 / 30)  # inverting is solarizing from 0
        degrees = value[operation == NUMBER["rotate"]]
        assert near((degrees > 0).sum(), 1 / 2, len(degrees))
        assert abs(degrees).mean() == pytest.approx(15, abs=1.5) and abs(degrees).std() == pytest.approx(1.5, abs=0.4)
    assert near((layers[0][0] == layers[1][0]).sum(), 1 / 4 + (13 * 1 + 4) / 900)  # drawn apart


def test_trivial_augment_takes_any_operation_at_any_strength():
    ((operation, value),) = drawn("trivialaugment")
    assert all(near((operation == NUMBER[row.operation]).sum(), 1 / 14) for row in policies.TRIVIAL_ROWS)
    assert len({*np.abs(value[operation == NUMBER["rotate"]]).tolist()}) == 31


def test_auto_augment_takes_pairs_with_their_chances():
    (first, _), (second, _) = drawn("autoaugment")
    for layer, operation in enumerate((first, second)):
        for name in ("equalize", "autocontrast", "sharpness", "brightness"):
            chance = sum(p for n, p, _ in (pair[layer] for pair in policies.CIFAR_POLICY) if n == name) / 25
            assert near((operation == NUMBER[name]).sum(), chance), (layer, name)
    together = sum(a[1] * b[1] for a, b in policies.CIFAR_POLICY if (a[0], b[0]) == ("shear_y", "translate_y")) / 25
    assert near(((first == NUMBER["shear_y"]) & (second == NUMBER["translate_y"])).sum(), together)


def test_three_augment_takes_one_of_three_and_then_jitters_in_any_order():
    (first, value), *jitter = drawn("three_augment")
    for name in ("colour", "solarize", "blur"):
        assert near((first == NUMBER[name]).sum(), 1 / 3)
    assert {*value[first == NUMBER["colour"]]} == {0} and {*value[first == NUMBER["solarize"]]} == {128}
    sigma = value[first == NUMBER["blur"]]
    assert 0.1 <= sigma.min() < 0.12 and 1.98 < sigma.max() <= 2
    orders = list(zip(*(operation.tolist() for operation, _ in jitter), strict=True))
    for order in itertools.permutations(NUMBER[name] for name in ("brightness", "contrast", "colour")):
        assert near(orders.count(order), 1 / 6)
    for _, factor in jitter:
        assert 0.7 <= factor.min() < 0.71 and 1.29 < factor.max() <= 1.3


def test_a_policy_does_to_an_image_what_it_drew_for_it():
    """All layers together are Pillow's operations one after the other."""
    images, config = pictures(batch=64, h=16, w=16), ImageAugment(policy="three_augment")
    keys = jax.random.split(jax.random.key(7), 64)
    got = np.asarray(jax.jit(lambda images, keys: policies.apply_policy(images, keys, config))(images, keys))
    expected = images
    for operation, value in jax.jit(lambda keys: list(policies.POLICIES["three_augment"][0](keys, config, 16, 16)))(
        keys
    ):
        done = []
        for image, number, v in zip(expected, np.asarray(operation), np.asarray(value), strict=True):
            name = next(name for name in NUMBER if NUMBER[name] == number)
            v = np.round(v, 2) if name == "blur" else np.round(np.float64(v) * operations.ONE) / operations.ONE
            done.append(np.asarray(PILLOW[name][1](pillow(image), float(v))))
        expected = np.stack(done)
    np.testing.assert_array_equal(got, expected)
    assert (got != images).any((1, 2, 3)).all() and got.dtype == np.uint8


def test_the_greatest_magnitude_with_its_noise_is_no_stronger_than_timms_strongest():
    (operation, value), *_ = drawn("randaugment", layers=1, magnitude=10.0)
    turned = np.abs(value[operation == NUMBER["rotate"]])
    assert len(turned) > 20 and turned.max() == 30 and turned.min() < 30


@pytest.mark.parametrize(
    ("size", "window"), [((10, 20), (10, 20)), ((10, 40), (10, 30)), ((40, 10), (20, 10)), ((20, 10), (20, 10))]
)
def test_where_no_crop_fits_the_middle_is_taken_as_the_bounds_of_the_ratio_allow(size, window):
    (top, height), (left, width) = crops._window(jax.random.key(0), *size, (9.0, 9.0), (0.5, 3.0))
    assert (int(height), int(width)) == window
    assert (int(top), int(left)) == ((size[0] - window[0]) // 2, (size[1] - window[1]) // 2)
