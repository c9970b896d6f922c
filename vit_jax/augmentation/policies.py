"""Policies: which operations an image undergoes, drawn with its key. All are tables over operations.py.

RandAugment is timm's (rand-mM-nN-mstdS-inc1), TrivialAugment and AutoAugment (the policy found on CIFAR-10) are
torchvision's, 3-Augment is that of DeiT III. Affine operations take the nearest pixel; outside an image is grey 128.
Posterize keeps at least one bit, where timm at magnitude 10 keeps none and makes the image black.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from ..models.layers import fold
from .config import ImageAugment
from .operations import NUMBER, apply


class Row(NamedTuple):
    """One operation of a policy: its value is `base` +- `range` * level, for levels of 0 to 1."""

    operation: str
    base: float = 0.0
    range: float = 0.0
    signed: bool = False  # whether the sign is drawn; otherwise it is +
    whole: bool = False  # whether `range` * level is cut off to a whole number


class Drawn(NamedTuple):
    """One layer of a policy: the operation of each image, int32 [B], and its value, float32 [B]."""

    operation: Array
    value: Array


def apply_policy(images: Array, keys: Array, config: ImageAugment) -> Array:
    """The images after the policy of a config: uint8 [B, h, w, C], keys [B] -> uint8 [B, h, w, C]."""
    if config.policy == "none":
        return images
    draw, used = POLICIES[config.policy]
    for layer, drawn in enumerate(draw(keys, config, images.shape[1], images.shape[2])):
        images = apply(images, *drawn, used[min(layer, len(used) - 1)])
    return images


def _uniform(keys: Array, count: int) -> Array:
    """float32 [B, count], uniform in 0..1 (1 excluded)."""
    return jax.vmap(lambda key: jax.random.uniform(key, (count,), jnp.float32))(keys)


def _one_of(uniform: Array, count: int) -> Array:
    """int32 [B]: one of `count` numbers, from float32 [B] of `_uniform`."""
    return jnp.minimum((uniform * count).astype(jnp.int32), count - 1)


def _values(rows: tuple[Row, ...], chosen: Array, level: Array, sign: Array) -> Drawn:
    """The operations of the chosen rows, int [B], and their values at a level, float32 [B]; `sign` [B] is 1 or -1."""
    number, base, span, signed, whole = (
        jnp.asarray(np.array(column, dtype))[chosen]
        for column, dtype in zip(
            zip(*((NUMBER[row.operation], *row[1:]) for row in rows), strict=True),
            (np.int32, np.float32, np.float32, bool, bool),
            strict=True,
        )
    )
    change = span * level
    change = jnp.where(whole, jnp.trunc(change), change) * jnp.where(signed, sign, 1)
    return Drawn(number, base + change)


def _sign(uniform: Array) -> Array:
    return jnp.where(uniform < 0.5, jnp.float32(-1), jnp.float32(1))


# ------------------------------------------------------------------------------------- RandAugment


STRENGTH_STD = 0.5  # of the strength of an operation


def rand_augment_rows(h: int, w: int) -> tuple[Row, ...]:
    """timm's operations of "increasing" strength."""
    return (
        Row("autocontrast"), Row("equalize"), Row("solarize"), Row("rotate", 0, 30, True),
        Row("posterize", 4, -4, whole=True), Row("solarize", 256, -256, whole=True),
        Row("solarize_add", 0, 110, whole=True), Row("colour", 1, 0.9, True), Row("contrast", 1, 0.9, True),
        Row("brightness", 1, 0.9, True), Row("sharpness", 1, 0.9, True), Row("shear_x", 0, 0.3, True),
        Row("shear_y", 0, 0.3, True), Row("translate_x", 0, 0.45 * w, True), Row("translate_y", 0, 0.45 * h, True),
    )  # fmt: skip


def _rand_augment(keys: Array, config: ImageAugment, h: int, w: int) -> Iterator[Drawn]:
    """Layers of one operation each, any as likely, and done with probability 1/2; the level is normal, within 0..1."""
    rows = rand_augment_rows(h, w)
    for layer in range(config.layers):
        of_layer = fold(keys, layer)
        which, done, sign = _uniform(fold(of_layer, 0), 3).T
        normal = jax.vmap(lambda key: jax.random.normal(key, (), jnp.float32))(fold(of_layer, 1))
        level = jnp.clip((config.magnitude + STRENGTH_STD * normal) / 10, 0, 1)
        drawn = _values(rows, _one_of(which, len(rows)), level, _sign(sign))
        yield Drawn(jnp.where(done < 0.5, drawn.operation, NUMBER["identity"]), drawn.value)


# ---------------------------------------------------------------------------------- TrivialAugment

BINS = 31  # strengths of TrivialAugment
TRIVIAL_ROWS = (
    Row("identity"), Row("shear_x", 0, 0.99, True), Row("shear_y", 0, 0.99, True),
    Row("translate_x", 0, 32, True, whole=True), Row("translate_y", 0, 32, True, whole=True),
    Row("rotate", 0, 135, True), Row("brightness", 1, 0.99, True), Row("colour", 1, 0.99, True),
    Row("contrast", 1, 0.99, True), Row("sharpness", 1, 0.99, True), Row("posterize", 8, -6),
    Row("solarize", 255, -255), Row("autocontrast"), Row("equalize"),
)  # fmt: skip


def _trivial_augment(keys: Array, config: ImageAugment, h: int, w: int) -> Iterator[Drawn]:
    """One operation at one strength, all as likely (Mueller and Hutter 2021, arXiv 2103.10158, wide)."""
    which, strength, sign = _uniform(keys, 3).T
    level = _one_of(strength, BINS).astype(jnp.float32) / (BINS - 1)
    yield _values(TRIVIAL_ROWS, _one_of(which, len(TRIVIAL_ROWS)), level, _sign(sign))


# ------------------------------------------------------------------------------------- AutoAugment


# Cubuk et al. 2019, arXiv 1805.09501, table 7: (operation, its probability, its strength of 0..9), twice.
CIFAR_POLICY = (
    (("invert", 0.1, 0), ("contrast", 0.2, 6)), (("rotate", 0.7, 2), ("translate_x", 0.3, 9)),
    (("sharpness", 0.8, 1), ("sharpness", 0.9, 3)), (("shear_y", 0.5, 8), ("translate_y", 0.7, 9)),
    (("autocontrast", 0.5, 0), ("equalize", 0.9, 0)), (("shear_y", 0.2, 7), ("posterize", 0.3, 7)),
    (("colour", 0.4, 3), ("brightness", 0.6, 7)), (("sharpness", 0.3, 9), ("brightness", 0.7, 9)),
    (("equalize", 0.6, 0), ("equalize", 0.5, 0)), (("contrast", 0.6, 7), ("sharpness", 0.6, 5)),
    (("colour", 0.7, 7), ("translate_x", 0.5, 8)), (("equalize", 0.3, 0), ("autocontrast", 0.4, 0)),
    (("translate_y", 0.4, 3), ("sharpness", 0.2, 6)), (("brightness", 0.9, 6), ("colour", 0.2, 8)),
    (("solarize", 0.5, 2), ("invert", 0.0, 0)), (("equalize", 0.2, 0), ("autocontrast", 0.6, 0)),
    (("equalize", 0.2, 0), ("equalize", 0.6, 0)), (("colour", 0.9, 9), ("equalize", 0.6, 0)),
    (("autocontrast", 0.8, 0), ("solarize", 0.2, 8)), (("brightness", 0.1, 3), ("colour", 0.7, 0)),
    (("solarize", 0.4, 5), ("autocontrast", 0.9, 0)), (("translate_y", 0.9, 9), ("translate_y", 0.7, 9)),
    (("autocontrast", 0.9, 0), ("solarize", 0.8, 3)), (("equalize", 0.8, 0), ("invert", 0.1, 0)),
    (("translate_y", 0.7, 9), ("autocontrast", 0.9, 0)),
)  # fmt: skip


def auto_augment_rows(h: int, w: int) -> dict[str, Row]:
    """What the names of a policy mean, with strength/9 as the level."""
    rows = (
        Row("shear_x", 0, 0.3, True), Row("shear_y", 0, 0.3, True), Row("rotate", 0, 30, True),
        Row("translate_x", 0, 150 / 331 * w, True, whole=True), Row("translate_y", 0, 150 / 331 * h, True, whole=True),
        Row("brightness", 1, 0.9, True), Row("colour", 1, 0.9, True), Row("contrast", 1, 0.9, True),
        Row("sharpness", 1, 0.9, True), Row("posterize", 8, -4), Row("solarize", 255, -255),
        Row("autocontrast"), Row("equalize"),
    )  # fmt: skip
    return {row.operation: row for row in rows} | {"invert": Row("solarize")}


def _auto_augment(keys: Array, config: ImageAugment, h: int, w: int) -> Iterator[Drawn]:
    """One of the pairs of the policy; of each pair both operations in turn, with their probabilities."""
    means = auto_augment_rows(h, w)
    which = _one_of(_uniform(fold(keys, 0), 1)[:, 0], len(CIFAR_POLICY))
    draws = _uniform(fold(keys, 1), 4)
    for layer, column in enumerate(zip(*CIFAR_POLICY, strict=True)):
        rows = tuple(means[name] for name, _, _ in column)
        chance, strength = (jnp.asarray(np.array(x, np.float32))[which] for x in list(zip(*column, strict=True))[1:])
        drawn = _values(rows, which, strength / 9, _sign(draws[:, 2 * layer]))
        done = draws[:, 2 * layer + 1] < chance
        yield Drawn(jnp.where(done, drawn.operation, NUMBER["identity"]), drawn.value)


# --------------------------------------------------------------------------------------- 3-Augment

JITTER = 0.3  # largest change of brightness, contrast and colour
SIGMA = (0.1, 2.0)  # pixels


def _three_augment(keys: Array, config: ImageAugment, h: int, w: int) -> Iterator[Drawn]:
    """Grey, solarized or blurred, one of them; then brightness, contrast and colour jitter, in any order.

    Touvron et al. 2022 (DeiT III), arXiv 2204.07118, section 3.2.
    """
    which, blur, *jitter = _uniform(fold(keys, 0), 5).T
    first = _one_of(which, 3)
    number = jnp.asarray([NUMBER[name] for name in ("colour", "solarize", "blur")], jnp.int32)[first]
    sigma = SIGMA[0] + (SIGMA[1] - SIGMA[0]) * blur
    yield Drawn(number, jnp.select([first == 0, first == 1], [jnp.float32(0), jnp.float32(128)], sigma))
    names = jnp.asarray([NUMBER[name] for name in ("brightness", "contrast", "colour")], jnp.int32)
    order = jax.vmap(lambda key: jnp.argsort(jax.random.bits(key, (3,), jnp.uint32)))(fold(keys, 1))  # [B, 3]
    for layer, uniform in enumerate(jitter):
        yield Drawn(names[order[:, layer]], 1 + JITTER * (2 * uniform - 1))


def _names(rows: tuple[Row, ...]) -> tuple[str, ...]:
    return tuple(row.operation for row in rows)


# {policy: (its draws, the operations that occur in each of its layers; the last in all further ones)}
POLICIES: dict[str, tuple[Callable[[Array, ImageAugment, int, int], Iterator[Drawn]], list[tuple[str, ...]]]] = {
    "randaugment": (_rand_augment, [_names(rand_augment_rows(1, 1))]),
    "trivialaugment": (_trivial_augment, [_names(TRIVIAL_ROWS)]),
    "autoaugment": (
        _auto_augment,
        [
            tuple(auto_augment_rows(1, 1)[name].operation for name, chance, _ in column if chance)
            for column in zip(*CIFAR_POLICY, strict=True)
        ],
    ),
    "three_augment": (_three_augment, [("colour", "solarize", "blur"), ("brightness", "contrast", "colour")]),
}
