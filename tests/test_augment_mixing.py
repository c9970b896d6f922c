"""Mixup and CutMix: pairs, their shares and rectangles, and the loss of mixed targets."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.stats import beta, kstest

from vit_jax.augmentation.config import ImageAugment
from vit_jax.augmentation.mixing import QUANTILES, mix_pairs, quantiles
from vit_jax.errors import UserError
from vit_jax.machine.division import check_shares
from vit_jax.presets.table import preset
from vit_jax.tasks.classify.learn import Classify
from vit_jax.training.job import plan

BATCH, SIZE, CLASSES = 1000, 12, 7


pytestmark = pytest.mark.usefixtures("quick_compilation")


LABELS = np.random.default_rng(0).integers(0, CLASSES, BATCH)
# Each image is of one level, that of its place in the pair and its class.
IMAGES = np.broadcast_to(
    (20 + 30 * LABELS + 5 * (np.arange(BATCH) % 2))[:, None, None, None], (BATCH, SIZE, SIZE, 1)
).astype(np.uint8)
ONE_HOT = np.eye(CLASSES)[LABELS]


mix_compiled = jax.jit(mix_pairs, static_argnums=3)


def mix(seed=0, images=IMAGES, **fields):
    """(images, targets, the share that each image has of itself)."""
    config, keys = ImageAugment(**fields), jax.random.split(jax.random.key(seed), len(images))
    labels = jnp.asarray(LABELS[: len(images)])
    got, targets = map(np.asarray, mix_compiled(jnp.asarray(images), jax.nn.one_hot(labels, CLASSES), keys, config))
    other = ONE_HOT[np.arange(len(images)) ^ 1]
    own = ONE_HOT[: len(images)]
    different = (own != other).any(1)
    share = np.where(different, (targets * own).sum(1), np.nan)
    np.testing.assert_allclose(
        targets[different], (share[:, None] * own + (1 - share[:, None]) * other)[different], 1e-6
    )
    np.testing.assert_allclose(targets[~different], own[~different], atol=1e-6)
    return got, targets, share


def partners(array):
    return array[np.arange(len(array)) ^ 1]


@pytest.mark.parametrize("alpha", [0.002, 0.1, 0.8, 1.0, 3.0, 32.0, 2000.0])
def test_shares_are_the_quantiles_of_beta(alpha):
    middles = (np.arange(QUANTILES) + 0.5) / QUANTILES
    np.testing.assert_allclose(quantiles(alpha), beta.ppf(middles, alpha, alpha), rtol=0, atol=4e-5)


def test_mixup_blends_partners_by_a_share_from_beta():
    got, targets, share = mix(mixup=0.8)
    assert got.dtype == np.float32 and targets.dtype == np.float32
    known = ~np.isnan(share)
    s = share[known, None, None, None]
    expected = s * IMAGES[known] + (1 - s) * partners(IMAGES)[known]
    np.testing.assert_allclose(got[known], expected, rtol=0, atol=1e-3)
    np.testing.assert_allclose(share[::2], share[1::2], atol=1e-6)  # both of a pair have the same
    assert kstest(share[::2][known[::2]], beta(0.8, 0.8).cdf).pvalue > 1e-3


def test_cutmix_pastes_one_rectangle_of_the_partner_into_both_of_a_pair():
    got, _, share = mix(cutmix=1.0)
    assert got.dtype == np.uint8
    foreign = (got != IMAGES)[..., 0]
    np.testing.assert_array_equal(got, np.where(foreign[..., None], partners(IMAGES), IMAGES))
    np.testing.assert_array_equal(foreign, partners(foreign))
    rows, columns = foreign.any(2).sum(1), foreign.any(1).sum(1)
    np.testing.assert_array_equal(foreign.sum((1, 2)), rows * columns)  # a rectangle
    known = ~np.isnan(share)
    np.testing.assert_allclose(share[known], 1 - foreign.mean((1, 2))[known], atol=1e-6)
    # Rectangles reach every pixel, and those in the middle more often than those in a corner.
    often = foreign.mean(0)
    assert often.min() > 0.06 and often[SIZE // 2, SIZE // 2] > 1.5 * often[0, 0]
    assert len(np.unique(rows)) > SIZE / 2
    # Of shares close to 1/2 all have 8 = floor(12 sqrt(1/2)) rows and columns, but for those that an edge cuts off.
    foreign = (mix(cutmix=2000.0)[0] != IMAGES)[..., 0]
    assert foreign.any(2).sum(1).max() == foreign.any(1).sum(1).max() == 8


def test_a_pair_takes_one_of_both_each_as_often():
    got, _, share = mix(mixup=1.0, cutmix=1.0)
    foreign = got != IMAGES
    cut = foreign.any((1, 2, 3)) & (np.round(got) == got).all((1, 2, 3))
    untouched = share[~np.isnan(share)] == 1
    assert untouched.mean() < 0.05  # a few rectangles are outside the image
    assert abs(cut.sum() / foreign.any((1, 2, 3)).sum() - 0.5) < 0.08


def test_draws_are_of_the_pairs_own_key():
    """A pair is mixed alike whatever else is in the batch."""
    keys = jax.random.split(jax.random.key(4), BATCH)
    config = ImageAugment(mixup=0.8, cutmix=1.0)
    whole = mix_compiled(jnp.asarray(IMAGES), ONE_HOT, keys, config)
    part = mix_compiled(jnp.asarray(IMAGES[40:60]), ONE_HOT[40:60], keys[40:60], config)
    for a, b in zip(whole, part, strict=True):
        np.testing.assert_array_equal(a[40:60], b)


def test_a_devices_share_must_have_whole_pairs():
    check_shares({"batch 32": 32}, 8, 1, 2)
    check_shares({"batch 24": 24}, 8, 1, 1)
    with pytest.raises(
        UserError, match=r"^batch 24 on 8 devices is 3 each, but .* mixes 2 .* choose a multiple of 16$"
    ):
        check_shares({"batch 24": 24}, 8, 1, 2)


def test_overfit_batches_augments_nothing():
    run = preset("digits").run
    every = ImageAugment(
        flip=True, scale=(0.5, 1.0), policy="randaugment", erase=0.5, mixup=0.8, cutmix=1.0, repeats=3, normalize="half"
    )
    run = dataclasses.replace(run, augment=every, overfit_batches=2)
    quiet, order, _ = plan(run, Classify.open_data(run))
    assert quiet.augment == ImageAugment(normalize="half") and len(set(order.indices(0))) == run.batch
