"""The numbers that are fed to both sides: weights that let faults show, and inputs."""

from __future__ import annotations

import zlib
from typing import Any

import numpy as np

from vit_jax.models.captioner_config import CaptionerConfig
from vit_jax.models.resnet_config import ResNetConfig
from vit_jax.models.transformer_config import TransformerConfig

from .cases import Case, Config

Inputs = dict[str, Any]


def weights(config: Config | ResNetConfig, which: str = "A", seed: int = 0) -> dict[str, np.ndarray]:
    """Float64 parameters {dotted name: array}, every one of them random.

    A: all of order 1 (kernels so that a map keeps its input's size). B: the same, with embeddings,
    tokens, positions, patches, out and fc2 times .003: activations so small that eps shows, while
    attention stays alive.
    """
    out = {}
    for name, (shape, kind, *_) in config.parameters().items():
        rng = np.random.default_rng([zlib.crc32(name.encode()), seed])
        value = rng.standard_normal(shape)
        if kind == "kernel":
            value = value / np.sqrt(np.prod(shape[:-1]))
        elif kind == "bias":
            value = value / 2
        elif kind in ("norm", "scale"):
            value = value * 0.3 + (0 if name.endswith(("bias", ".mean")) else 1)
            value = abs(value) if name.endswith(".variance") else value
        if which == "B" and _quiet(name, kind):
            value = value * 0.003
        out[name] = value
    return out


def _quiet(name: str, kind: str) -> bool:
    path = name.split(".")
    return (
        kind in ("token", "position", "embedding")
        or "patch" in path[:2]
        or (len(path) > 1 and path[-2] in ("out", "fc2"))
    )


def starts(case: Case) -> dict[str, np.ndarray]:
    """A network's own initial parameters, as float64."""
    import jax

    from vit_jax.config.trees import flatten
    from vit_jax.models.build import start

    return {k: np.asarray(v, np.float64) for k, v in flatten(start(case.config, jax.random.key(0))).items()}


def inputs(
    c: Config | ResNetConfig,
    batch: int = 3,
    which: str = "A",
    mean: float = 0.0,
    seed: int = 0,
    lengths: tuple[int, int] = (5, 4),
) -> Inputs:
    """What a network is called with: images, or source and target with their paddings.

    `mean` shifts vectors and pixels (their std is 1, or .003 with the weights B). With three rows the
    paddings hold a full row, a padded one and one that is all padding.
    """
    rng = np.random.default_rng(seed)
    scale = 0.003 if which == "B" else 1.0
    images = rng.standard_normal((batch, *shape)) + mean if (shape := c.pixels()) else None
    if images is not None and not isinstance(c, CaptionerConfig):
        return {"images": images}
    if isinstance(c, CaptionerConfig):  # the text half, and before it what is read
        out = inputs(c.text, batch, which, seed=seed, lengths=lengths)
        padding = out.pop("source_padding", None)
        if images is not None:
            return {**out, "source": images}
        vectors = rng.standard_normal((batch, lengths[0], c.memory_width)) + mean
        return {**out, "source": vectors, **({} if padding is None else {"memory_padding": padding})}
    assert isinstance(c, TransformerConfig)
    source, target = lengths

    def tokens(vocabulary: int, length: int) -> np.ndarray:
        if vocabulary:
            return rng.integers(0, vocabulary, (batch, length)).astype(np.int32)
        return (rng.standard_normal((batch, length, c.width)) + mean) * scale

    out = {
        "source": tokens(c.source_vocabulary, source),
        "target": tokens(c.target_vocabulary, target) if c.decoder_depth else None,
    }
    if batch == 3:
        out["source_padding"] = np.arange(source) < np.array([[source], [source - 2], [0]])
    if batch == 3 and c.decoder_depth:
        out["target_padding"] = np.arange(target) < np.array([[target], [target - 1], [target]])
    return out


def masks(c: TransformerConfig, which: str, lengths: tuple[int, int] = (5, 4), batch: int = 3, seed: int = 0) -> Inputs:
    """Masks of one sort, by the names of a call: none, causal, padding, both, empty rows, per head."""
    (source, target), rng = lengths, np.random.default_rng(seed + 1)
    out: Inputs = {"causal": which in ("causal", "both", "empty rows")}
    if which in ("padding", "both"):
        out["source_padding"] = np.arange(source) < rng.integers(2, source + 1, (batch, 1))
        out["target_padding"] = np.arange(target) < rng.integers(2, target + 1, (batch, 1))
        out["memory_padding"] = np.arange(source) < rng.integers(2, source + 1, (batch, 1))
    if which == "empty rows":
        # A source and a target that are all padding; a target padded on the left: causality empties its first row.
        out["source_padding"] = np.arange(source) < np.array([[source], [0], [2]])
        out["target_padding"] = np.stack([np.arange(target) > 0, np.zeros(target, bool), np.arange(target) < 2])
        out["memory_padding"] = out["source_padding"]
    if which == "per head":
        for name, rows, columns in (
            ("source_mask", source, source),
            ("target_mask", target, target),
            ("memory_mask", target, source),
        ):
            out[name] = rng.random((batch, c.heads, rows, columns)) < 0.6
            out[name][0, 0, 1] = False  # a row of one head with nothing to look at
    return out


MASKS = ("none", "causal", "padding", "both", "empty rows", "per head")


def zero_gradients(c: Config) -> set[str]:
    """Parameters whose true gradient is 0 with sequences of at least three tokens.

    softmax(q (k + b)) does not depend on a b common to all keys: so the key bias has none or, where
    keys are normed after it, the norm's bias. What the output does not read has none either.
    """
    names = c.parameters()
    if isinstance(c, CaptionerConfig):
        inner = () if c.encoder is None else zero_gradients(c.encoder)
        return {f"vit.{n}" for n in inner} | zero_gradients(c.text)
    if isinstance(c, TransformerConfig):
        return {n for n in names if n.endswith(".key.bias")}
    unread = () if c.pool == "cls_distill" else ("distill_head.", "distill_norm.")
    dead = ".key_norm.bias" if c.qk_norm else ".attention.key.bias"
    return {n for n in names if n.endswith(dead) or n == "pool.key.bias" or n.startswith(unread)}
