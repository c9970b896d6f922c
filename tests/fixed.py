"""A stand-in for a network, for tests of what is computed from its answer."""

import jax.numpy as jnp


class Fixed:
    """A network whose answer is known."""

    dtype = "float64"

    def __init__(self, logits):
        self.logits = logits

    def __call__(self, images, *, keys=None):
        return jnp.asarray(self.logits)
