"""Random weights of a network: by our names, and as a file of a layout holds them."""

from __future__ import annotations

from typing import Any

import numpy as np

from convert import rules
from convert.layout import Layout
from vit_jax.config.network import NetworkConfig


def weights(config: NetworkConfig, seed: int = 0, dtype: Any = np.float32) -> dict[str, np.ndarray]:
    """{our name: array}; biases, norms and tokens are random, too."""
    draw = np.random.default_rng(seed)
    return {name: draw.standard_normal(shape).astype(dtype) for name, shape in config.shapes().items()}


def tensors(layout: Layout, config: NetworkConfig, seed: int = 0, dtype: Any = np.float32) -> dict[str, np.ndarray]:
    """{name in the file: array}."""
    return rules.write(layout.rows(config), weights(config, seed, dtype))
