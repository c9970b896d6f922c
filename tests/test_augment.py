"""Augmentation: crops are real shifts of the padded image, flips are flips, and an example's draws are its own."""

import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.stats import kstest, uniform

from vit_jax.augmentation import batch
from vit_jax.augmentation.batch import normalise
from vit_jax.augmentation.config import ImageAugment
from vit_jax.augmentation.crops import resample_windows

pytestmark = pytest.mark.usefixtures("quick_compilation")
augment, resample = jax.jit(batch.augment, static_argnums=2), jax.jit(resample_windows)


def keys(seed=0):
    return jax.random.split(jax.random.key(seed), BATCH)


BATCH = 1000  # in all tests: jax compiles for each shape


def pictures(batch=BATCH, h=5, w=7, channels=2):
    """No two pixels of an image are alike, and none is black."""
    draw = np.random.default_rng(0)
    return np.stack(
        [
            draw.permutation(np.arange(1, h * w * channels + 1)).astype(np.uint8).reshape(h, w, channels)
            for _ in range(batch)
        ]
    )


def shifts(image, padding):
    """{(row, column): crop} of the image padded with black."""
    h, w, _ = image.shape
    padded = np.zeros((h + 2 * padding, w + 2 * padding, image.shape[2]), np.uint8)
    padded[padding : padding + h, padding : padding + w] = image
    offsets = itertools.product(range(2 * padding + 1), repeat=2)
    return {(r, c): padded[r : r + h, c : c + w] for r, c in offsets}


def test_a_crop_is_one_of_all_shifts_of_the_padded_image_and_each_is_as_likely():
    padding, images = 2, pictures()
    got = np.asarray(augment(jnp.asarray(images), keys(), ImageAugment(crop_padding=padding)))
    assert got.dtype == np.uint8 and got.shape == images.shape
    seen = []
    for before, after in zip(images, got, strict=True):
        found = [offset for offset, crop in shifts(before, padding).items() if np.array_equal(crop, after)]
        assert len(found) == 1
        seen += found
    counts = np.zeros((5, 5))
    np.add.at(counts, tuple(np.transpose(seen)), 1)
    assert np.abs(counts - BATCH / 25).max() < 5 * math.sqrt(BATCH / 25)


def test_a_resized_crop_takes_each_place_that_fits_as_often():
    images = jnp.asarray(pictures())
    got = augment(images, keys(), ImageAugment(scale=(9 / 35, 9 / 35), ratio=(1.0, 1.0)))  # 3 x 3 of 5 x 7 pixels
    places = [[jnp.full(BATCH, n) for n in (top, 3, left, 3)] for top, left in np.ndindex(3, 5)]
    found = np.stack([(resample(images, *place) == got).all((1, 2, 3)) for place in places])
    assert (found.sum(0) == 1).all()
    assert np.abs(found.sum(1) - BATCH / 15).max() < 5 * math.sqrt(BATCH / 15)


@pytest.mark.parametrize(("ratio", "window"), [(3.0, (1, 2, 0, 7)), (0.5, (0, 5, 2, 2))])
def test_where_no_crop_fits_the_middle_is_taken_as_torchvision_does(ratio, window):
    images = jnp.asarray(pictures())
    got = augment(images, keys(), ImageAugment(scale=(0.99, 1.0), ratio=(ratio, ratio)))
    np.testing.assert_array_equal(got, resample(images, *(jnp.full(BATCH, n) for n in window)))


def test_an_erased_rectangle_has_the_areas_and_ratios_of_timm():
    size, chance = 128, 0.5
    images = jnp.zeros((BATCH, size, size, 1), jnp.uint8)
    erased = np.asarray(augment(images, keys(), ImageAugment(erase=chance)))[..., 0] > 0
    rows, columns = erased.any(2).sum(1), erased.any(1).sum(1)
    assert abs((rows > 0).mean() - chance) < 4 * 0.5 / math.sqrt(BATCH)
    whole = (rows > 0) & (rows < size) & (columns < size)
    area, ratio = rows[whole] * columns[whole] / size**2, rows[whole] / columns[whole]
    assert 0.018 < area.min() < 0.022 and 0.32 < area.max() < 0.34
    assert 0.29 < ratio.min() < 0.31 and 3.2 < ratio.max() < 3.45
    assert kstest(area, uniform(0.02, 1 / 3 - 0.02).cdf).pvalue > 1e-3


def test_a_flip_is_left_to_right_and_happens_to_half():
    images = pictures()
    got = np.asarray(augment(jnp.asarray(images), keys(), ImageAugment(flip=True)))
    flipped = (got == images[:, :, ::-1]).all((1, 2, 3))
    assert (flipped | (got == images).all((1, 2, 3))).all()
    assert abs(flipped.mean() - 0.5) < 4 * 0.5 / math.sqrt(BATCH)


BOTH = ImageAugment(crop_padding=2, flip=True)


def test_draws_repeat_with_their_key_and_do_not_depend_on_the_batch():
    images = jnp.asarray(pictures())
    got = np.asarray(augment(images, keys(), BOTH))
    np.testing.assert_array_equal(augment(images, keys(), BOTH), got)
    assert (np.asarray(augment(images, keys(seed=1), BOTH)) != got).any((1, 2, 3)).mean() > 0.95
    # The same image with the same key, wherever it stands and among others, is seen alike.
    others = np.random.default_rng(1).integers(0, BATCH, BATCH)
    np.testing.assert_array_equal(augment(images[others], keys()[others], BOTH), got[others])
    # One image with many keys is seen in all 50 ways.
    same = np.asarray(augment(jnp.broadcast_to(images[:1], images.shape), keys(), BOTH))
    assert len({image.tobytes() for image in same}) == 50


def test_crop_and_flip_are_drawn_apart():
    """Flipped and unflipped images are shifted alike."""
    images = jnp.asarray(pictures())
    crops = np.asarray(augment(images, keys(), ImageAugment(crop_padding=2)))
    both = np.asarray(augment(images, keys(), BOTH))
    flipped = (both == crops[:, :, ::-1]).all((1, 2, 3))
    assert (flipped | (both == crops).all((1, 2, 3))).all()
    high = (crops[:, 0] != 0).any((1, 2))  # not shifted down
    assert abs(high[flipped].mean() - high[~flipped].mean()) < 5 * math.sqrt(0.24 * 4 / BATCH)


def test_without_augmentation_images_stay():
    images = jnp.asarray(pictures())
    np.testing.assert_array_equal(augment(images, keys(), ImageAugment()), images)


@pytest.mark.parametrize(("dtype", "limit"), [("float32", 1e-6), ("float64", 1e-15), ("bfloat16", 2e-2)])
def test_normalisation_is_x_over_255_less_the_mean_over_the_std_a_channel_at_a_time(dtype, limit):
    images, mean, std = pictures(3, channels=3), (0.1, 0.5, 0.9), (0.2, 0.3, 0.4)
    with jax.enable_x64(True):
        got = normalise(jnp.asarray(images), mean, std, dtype)
    assert got.dtype == dtype
    expected = np.stack([(images[..., k] / 255 - mean[k]) / std[k] for k in range(3)], -1)
    np.testing.assert_allclose(np.asarray(got, np.float64), expected, rtol=0, atol=limit)
