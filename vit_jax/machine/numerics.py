"""What our numbers depend on in jax besides the config: set while they are computed, whatever the user's settings are.

A setting of jax comes from a variable such as JAX_DEFAULT_PRNG_IMPL, or from the user's own program, where it counts
for his own numbers as before. What is not set here but may change the last bits, `backend.environment` records.

Nor do they depend on meshes with Explicit axes, as jax.make_mesh makes them, where how an array is divided is a part of
its type, and each operation has to say how its result is divided. Networks do not say it: inside them the axes are
Auto, so that the compiler divides the work, and what they return is divided as their inputs are.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from jax import Array
    from jax.sharding import AbstractMesh

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


# Decorators of functions: within all our settings; and, of networks, whose callers decide on the rest, where dtypes and
# ranks are promoted.
with_fixed_settings = fixed_settings()
with_promotion = fixed_settings(names=PROMOTION)


F = TypeVar("F", bound=Callable[..., Any])


def mesh_agnostic(function: F) -> F:
    """A function or a network's method, for arrays on any mesh."""

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        import jax
        from jax.sharding import AxisType, PartitionSpec, reshard

        kinds, states = zip(*map(_split, args), strict=True) if args else ((), ())
        mesh = _explicit_mesh((states, kwargs))
        if mesh is None:
            return function(*args, **kwargs)
        sown = kwargs.pop("intermediates", None)
        given = next((x for kind, x in zip(kinds, args, strict=True) if kind is None), kwargs)
        automatic = mesh.update_axis_types(dict.fromkeys(mesh.explicit_axes, AxisType.Auto))
        with jax.sharding.use_abstract_mesh(automatic):
            states, kwargs = jax.tree.map(lambda x: reshard(x, PartitionSpec()) if _typed(x) else x, (states, kwargs))
            kwargs |= {} if sown is None else {"intermediates": sown}
            out = function(*map(_merge, kinds, states), **kwargs)

        if sown is not None:
            sown.update(_divided(sown, given, mesh))
        return _divided(out, given, mesh)

    return call  # type: ignore[return-value]


def _split(argument: Any) -> tuple[Any, Any]:
    """(a network's definition, its arrays); of another argument (None, the argument)."""
    from flax import nnx

    return nnx.split(argument) if isinstance(argument, nnx.Module) else (None, argument)


def _merge(definition: Any, value: Any) -> Any:
    from flax import nnx

    return value if definition is None else nnx.merge(definition, value)


def _divided(out: Any, given: Any, mesh: AbstractMesh) -> Any:
    """The arrays of `out`: each divided as its own one in `given`, where that is such a tree, else as the first one."""
    import jax
    from jax.sharding import NamedSharding, PartitionSpec, reshard

    likes = [jax.typeof(x) for x in jax.tree.leaves(given) if _typed(x)]
    structure: Any = jax.tree.structure(out)
    likes = likes if structure == jax.tree.structure(given) else likes[:1] * structure.num_leaves

    def divided(x: Any, like: Any) -> Any:
        same = next((n for n in (like.ndim, 1) if n and x.shape[:n] == like.shape[:n]), 0)
        return reshard(x, NamedSharding(mesh, PartitionSpec(*like.sharding.spec[:same])))

    return jax.tree.unflatten(structure, map(divided, jax.tree.leaves(out), likes))


def _typed(x: Any) -> bool:
    return hasattr(x, "shape") and hasattr(x, "dtype")


def _explicit_mesh(tree: Any) -> AbstractMesh | None:
    """The mesh on which an array of the tree is divided along an Explicit axis; None: there is none."""
    import jax

    context = jax.sharding.get_abstract_mesh()
    if not context.empty and not context.explicit_axes:  # within a network that is called so already
        return None
    shardings = [jax.typeof(x).sharding for x in jax.tree.leaves(tree) if _typed(x)]
    return next((s.mesh for s in shardings if s.mesh.explicit_axes and any(axes for axes in s.spec)), None)
