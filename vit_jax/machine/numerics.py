"""What our numbers depend on in jax besides the config: set while they are computed, whatever the user's settings are.

A setting of jax comes from a variable such as JAX_DEFAULT_PRNG_IMPL, or from the user's own program, where it counts
for his own numbers as before. What is not set here but may change the last bits, `backend.environment` records.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

if TYPE_CHECKING:
    from jax import Array

P = ParamSpec("P")
R = TypeVar("R")
PRNG = "threefry2x32"  # of all random numbers; others draw other ones, and depend on how a batch is divided
# {name in jax, and with "jax_" in jax.config: its value}; the last ones only check, and end what they find fault with.
SETTINGS: dict[str, Any] = {
    "default_prng_impl": PRNG, "threefry_partitionable": True, "default_matmul_precision": None,
    "numpy_dtype_promotion": "standard", "numpy_rank_promotion": "allow", "disable_jit": False, "debug_nans": False,
    "debug_infs": False, "debug_key_reuse": False, "check_tracer_leaks": False, "legacy_prng_key": "allow",
}  # fmt: skip
PROMOTION = ("numpy_dtype_promotion", "numpy_rank_promotion")
GUARDS = ("host_to_device", "device_to_host", "device_to_device")  # of transfers, which jax can forbid


def random_key(seed: Array | int) -> Array:
    """The PRNG key of a seed, an int below 2^32 or an integer []: that of jax.random.key where nothing is set."""
    import jax
    import jax.numpy as jnp

    if isinstance(seed, int):
        return jax.random.wrap_key_data(jnp.array([0, seed], jnp.uint32), impl=PRNG)
    words = jnp.stack([jnp.zeros((), jnp.uint32), seed.astype(jnp.uint32)])
    return jax.random.wrap_key_data(words, impl=PRNG)


@contextlib.contextmanager
def fixed_settings(compute_dtype: str = "", names: Iterable[str] = tuple(SETTINGS)) -> Iterator[None]:
    """A context in which jax has our settings, for this thread."""
    import jax

    with contextlib.ExitStack() as stack:
        for name in names:
            if getattr(jax.config, f"jax_{name}", SETTINGS[name]) != SETTINGS[name]:
                stack.enter_context(getattr(jax, name)(SETTINGS[name]))
        if any(getattr(jax.config, f"jax_transfer_guard_{way}", None) not in (None, "allow") for way in GUARDS):
            stack.enter_context(jax.transfer_guard("allow"))
        if compute_dtype:
            stack.enter_context(jax.enable_x64(compute_dtype == "float64"))
        yield


def with_promotion(function: Callable[P, R]) -> Callable[P, R]:
    """A network's function where dtypes and ranks are promoted; its caller decides on the rest."""

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        with fixed_settings(names=PROMOTION):
            return function(*args, **kwargs)

    return call


def with_fixed_settings(function: Callable[P, R]) -> Callable[P, R]:
    """The function within `fixed_settings`."""

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        with fixed_settings():
            return function(*args, **kwargs)

    return call
