"""Meshes with Explicit axes, as jax.make_mesh makes them: how an array is divided is then a part of its type.

Each operation has to say how its result is divided, unless that follows from its inputs. Networks do not say it: inside
them the axes are Auto, so that the compiler divides the work, and what they return is divided as their inputs are.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from jax.sharding import AbstractMesh

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
    """Whether a leaf is an array."""
    return hasattr(x, "shape") and hasattr(x, "dtype")


def _explicit_mesh(tree: Any) -> AbstractMesh | None:
    """The mesh on which an array of the tree is divided along an Explicit axis; None: there is none."""
    import jax

    context = jax.sharding.get_abstract_mesh()
    if not context.empty and not context.explicit_axes:  # within a network that is called so already
        return None
    shardings = [jax.typeof(x).sharding for x in jax.tree.leaves(tree) if _typed(x)]
    return next((s.mesh for s in shardings if s.mesh.explicit_axes and any(axes for axes in s.spec)), None)
