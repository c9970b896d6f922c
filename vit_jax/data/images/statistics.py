"""The mean and standard deviation by which pixels are normalised."""

from __future__ import annotations

from typing import Any

import numpy as np

from ...errors import Field, UserError
from ...files.digests import array_digest
from .preprocess import Preprocess
from .sources.index import compute_once

_CHUNK = 64

# {source: (shape of an image, mean, population std per channel)} of training sets in their original size, for pixels in
# 0..1, computed in float64.
_KNOWN: dict[str, tuple[tuple[int, int, int], tuple[float, ...], tuple[float, ...]]] = {
    "mnist": ((28, 28, 1), (0.130660,), (0.308108,)),
    "cifar10": ((32, 32, 3), (0.491400, 0.482158, 0.446531), (0.247032, 0.243485, 0.261588)),
    "cifar100": ((32, 32, 3), (0.507075, 0.486549, 0.440918), (0.267334, 0.256438, 0.276150)),
}
_IMAGENET: tuple[tuple[float, ...], tuple[float, ...]] = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))


def statistics(
    normalize: str, source: str, preprocess: Preprocess, train: Any
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """(mean, std) of each channel, for pixels in 0..1; those measured on images not in memory are kept for later."""
    channels = preprocess.channels
    if normalize == "none":
        return (0.0,) * channels, (1.0,) * channels
    if normalize == "half":
        return (0.5,) * channels, (0.5,) * channels
    if normalize == "imagenet":
        if channels not in (1, 3):
            raise UserError(
                Field("augment.normalize"),
                f"is imagenet but model.channels is {channels}",
                "ImageNet's statistics are for 3 channels; choose set or half",
            )
        mean, std = _IMAGENET
        return (mean, std) if channels == 3 else ((sum(mean) / 3,), (sum(std) / 3,))
    if normalize != "set":
        raise ValueError(f"normalize {normalize}")
    known = _KNOWN.get(source.partition(":")[0])
    if known and preprocess.leaves_unchanged(*known[0]):
        return known[1:]
    number = min(len(train), 10_000)
    chosen = np.arange(number) * len(train) // number
    if train.images.in_memory:
        return _measure(train, chosen, channels)
    decided_by = [train.images.digest, array_digest(train.rows[chosen]), preprocess.to_dict()]
    mean, std = compute_once(decided_by, lambda: _measure(train, chosen, channels))
    return tuple(mean), tuple(std)


def _measure(train: Any, chosen: np.ndarray, channels: int) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """(mean, std) of each channel over the chosen images, computed from histograms and so exact."""
    counts = np.zeros((channels, 256), np.int64)
    for start in range(0, len(chosen), _CHUNK):
        pixels = train.take(chosen[start : start + _CHUNK])
        for channel in range(channels):
            counts[channel] += np.bincount(pixels[..., channel].reshape(-1), minlength=256)
    share, levels = counts / counts.sum(1, keepdims=True), np.arange(256) / 255
    mean = share @ levels
    std = np.sqrt((share * (levels - mean[:, None]) ** 2).sum(1))
    return tuple(mean.tolist()), tuple(np.maximum(std, 1e-3).tolist())  # a constant channel has no std to divide by
