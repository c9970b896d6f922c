"""The network of a program as a function of normalised images, computed by jax, which the kinds of programs trace.

Dimensions: B batch, h and w image height and width, C channels, K outputs.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from vit_jax.config.network import NetworkConfig

LARGEST = (1 << 31) - (64 << 20)  # bytes of weights in one file: protobuf and flatbuffers hold less than 2 GiB in all


class Forward:
    """The forward pass of a network in float32: `forward(images)`, [B, h, w, C] to [B, K], to be traced."""

    def __init__(self, config: NetworkConfig, arrays: Mapping[str, np.ndarray]):
        from vit_jax.machine.backend import configure_jax

        configure_jax()
        import jax
        import jax.numpy as jnp

        from vit_jax.config.trees import unflatten
        from vit_jax.models.build import definition

        shape = config.pixels()
        assert shape is not None
        self.traced: dict[int, Any] = {}  # {opset of ONNX: the model that was traced}
        self.config, self.shape, self.nbytes = config, shape, sum(4 * array.size for array in arrays.values())
        with on_cpu():
            self.definition = definition(config)
            self.tree = jax.tree.map(lambda x: jnp.asarray(x, jnp.float32), unflatten(arrays))

    def __call__(self, images: Any) -> Any:
        from vit_jax.models.state import merge

        return merge(self.definition, self.tree)(images)

    def given(self, images: np.ndarray) -> np.ndarray:
        """Normalised images [B, H, W, C] as this function takes them."""
        return images

    def computed(self, images: np.ndarray, dtype: str = "float32") -> np.ndarray:
        """Its outputs for images, computed by jax in this dtype."""
        import jax

        from vit_jax.models.build import definition
        from vit_jax.models.state import merge

        with on_cpu(dtype):
            made = definition(self.config, np.dtype(dtype), np.dtype(dtype))
            tree = jax.tree.map(lambda x: x.astype(dtype), self.tree)
            return np.asarray(jax.jit(lambda tree, images: merge(made, tree)(images))(tree, images.astype(dtype)))


@contextlib.contextmanager
def on_cpu(dtype: str = "float32") -> Iterator[None]:
    """jax on the processor, where products are not rounded to less than their dtype, and float64 stays float64."""
    import jax

    with jax.enable_x64(dtype == "float64"), jax.default_device(jax.devices("cpu")[0]):
        yield
