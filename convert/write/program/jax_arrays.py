"""Arrays of jax, also with lengths that are free while a function is traced. They need jax's 64-bit types."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .preprocess import Axis


class JaxArrays:
    """The functions that preprocess.py takes of a library of arrays."""

    def __getattr__(self, name: str) -> Any:
        """One of the array API standard."""
        import jax.numpy as jnp

        return getattr(jnp, name)

    def constant(self, value: Any, dtype: str) -> Any:
        """An array of this value."""
        import jax.numpy as jnp

        return jnp.array(value, dtype)

    def length(self, x: Any, axis: int) -> Any:
        """The length of an axis, int64 []."""
        import jax.numpy as jnp

        return jnp.asarray(x.shape[axis], "int64")

    def indices(self, x: Any, axis: int) -> Any:
        """0, 1, ... along an axis, float64."""
        return self.arange(x.shape[axis])

    def arange(self, count: Any) -> Any:
        """0, 1, ..., float64 [count]."""
        import jax.numpy as jnp

        return jnp.arange(count, dtype="float64")

    def added_up(self, scale: Any, axis: Axis) -> Any:
        """scale / 2 + i scale, added up one by one, at the places i of an axis that are not before its image."""
        import jax

        first = jax.lax.fori_loop(0, axis.start, lambda _, place: place + scale, scale * 0.5)
        _, places = jax.lax.scan(lambda place, _: (place + scale, place), first, length=axis.made)
        before = jax.numpy.minimum(axis.start, 0)
        return jax.numpy.roll(places, -before)

    def cond(self, test: Any, yes: Callable[[], Any], no: Callable[[], Any]) -> Any:
        """What one of two functions gives."""
        import jax

        return jax.lax.cond(test, yes, no)
