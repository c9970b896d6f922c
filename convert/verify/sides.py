"""The two sides of a comparison: the same calls, numpy arrays in and out, by our names and in our shapes.

`capture(inputs)` gives the values of the forward pass, `gradients(inputs, cotangent)` those of every parameter,
`steps(inputs, target, n)` the parameters that theirs trains after n steps of SGD with momentum. Frameworks are imported when a side is made.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Set
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from vit_jax.config import ModelConfig, network_of

from .. import rules
from ..rules import CARRIED, Constant, Operation, Row, Tie
from .libraries import Built
from .weights import Arrays, Inputs

RATE, MOMENTUM = 1e-2, 0.9  # of SGD: Adam would make steps of the rounding where a gradient is 0


class Ours:
    """Our network of a config, in JAX."""

    def __init__(self, config: ModelConfig, parameters: Mapping[str, np.ndarray], dtype: str):
        import jax.numpy as jnp

        from vit_jax.layers import replace_parameters
        from vit_jax.models import network_class
        from vit_jax.runs import unflatten

        self.row, self.dtype, self.captured = network_of(config), dtype, network_of(config).captured(config)
        with _on_cpu(dtype):
            kinds: dict[str, Any] = dict(dtype=jnp.dtype(dtype), param_dtype=jnp.dtype(dtype))
            self.model: Any = network_class(config)(config, **kinds)
            self.tree = unflatten({n: jnp.asarray(a.astype(dtype)) for n, a in parameters.items()})
            replace_parameters(self.model, self.tree)

    def capture(self, inputs: Inputs) -> Arrays:
        import jax

        from vit_jax.layers import merge, split

        with self._arrays(inputs) as (given, masks):
            definition = split(self.model)[0]
            seen = jax.jit(lambda tree: merge(definition, tree).capture(*given, self.captured, **masks))(self.tree)
            return {n: np.asarray(seen[n]) for n in self.captured}

    def gradients(self, inputs: Inputs, cotangent: np.ndarray) -> Arrays:
        import jax
        import jax.numpy as jnp

        from vit_jax.layers import merge, split
        from vit_jax.runs import flatten

        with self._arrays(inputs) as (given, masks):
            definition = split(self.model)[0]
            weighed = jnp.asarray(cotangent, self.dtype)
            slope = jax.jit(jax.grad(lambda tree: jnp.sum(merge(definition, tree)(*given, **masks) * weighed)))
            return {n: np.asarray(g) for n, g in flatten(slope(self.tree)).items()}

    def steps(self, inputs: Inputs, target: np.ndarray, n: int, trained: Set[str]) -> Arrays:
        """`trained` names the parameters that change."""
        import jax
        import jax.numpy as jnp
        import optax

        from vit_jax.layers import merge, split
        from vit_jax.runs import flatten, unflatten

        with self._arrays(inputs) as (given, masks):
            definition, wanted, optimizer, all_of = (
                split(self.model)[0],
                jnp.asarray(target, self.dtype),
                optax.sgd(RATE, MOMENTUM),
                flatten(self.tree),
            )

            def loss(some: Any) -> Any:
                return jnp.mean((merge(definition, unflatten({**all_of, **some}))(*given, **masks) - wanted) ** 2)

            some = {n: a for n, a in all_of.items() if n in trained}
            slope, state = jax.jit(jax.grad(loss)), optimizer.init(some)
            for _ in range(n):
                updates, state = optimizer.update(slope(some), state)
                some = optax.apply_updates(some, updates)
            return {n: np.asarray(a) for n, a in some.items()}

    @contextlib.contextmanager
    def _arrays(self, inputs: Inputs) -> Iterator[tuple[list[Any], Inputs]]:
        import jax

        with _on_cpu(self.dtype):
            given = {k: jax.numpy.asarray(v) for k, v in cast(inputs, self.dtype).items()}
            by_place = self.row.arguments  # the others are masks, which it takes by name
            yield [given.get(name) for name in by_place], {k: v for k, v in given.items() if k not in by_place}


class Theirs:
    """A torch module that another library built from the tensors of a file."""

    def __init__(self, built: Built, config: ModelConfig, dtype: str):
        import torch

        self.built, self.captured, self.dtype = built, network_of(config).captured(config), dtype
        self.module = built.module.to(getattr(torch, dtype)).eval()
        named = dict(self.module.named_parameters(remove_duplicate=False))
        self.rows = [r for row in built.rows if (r := _trained(row, named)) is not None]
        self.trained = frozenset(n for row in self.rows for n in row.ours)
        self.named = {n: named[n] for row in self.rows for n in row.theirs}
        for parameter in self.module.parameters():
            parameter.requires_grad_(any(parameter is p for p in self.named.values()))

    def capture(self, inputs: Inputs) -> Arrays:
        import torch

        seen: Arrays = {}

        def keep(name: str, value: Any) -> None:
            seen[name] = (value[0] if isinstance(value, tuple) else value).detach().numpy()

        hooks = []
        for name, (path, side) in self.built.places.items():
            module = self.module.get_submodule(path)
            if side == "in":
                hooks.append(
                    module.register_forward_pre_hook(
                        lambda m, given, keywords, name=name: keep(name, given or next(iter(keywords.values()))),
                        with_kwargs=True,
                    )
                )
            else:
                hooks.append(module.register_forward_hook(lambda m, given, made, name=name: keep(name, made)))
        with torch.no_grad(), _exact_attention():
            seen[self.captured[-1]] = self._run(inputs).numpy()
        for hook in hooks:
            hook.remove()
        return {n: seen[n] for n in self.captured if n in seen}

    def gradients(self, inputs: Inputs, cotangent: np.ndarray) -> Arrays:
        import torch

        with _exact_attention():
            self.module.zero_grad()
            (self._run(inputs) * torch.from_numpy(cotangent.astype(self.dtype))).sum().backward()
        return self._ours(
            {n: (torch.zeros_like(p) if p.grad is None else p.grad).numpy() for n, p in self.named.items()}
        )

    def steps(self, inputs: Inputs, target: np.ndarray, n: int) -> Arrays:
        """Leaves the module trained."""
        import torch

        wanted = torch.from_numpy(target.astype(self.dtype))
        optimizer = torch.optim.SGD([p for p in self.module.parameters() if p.requires_grad], RATE, MOMENTUM)
        for _ in range(n):
            optimizer.zero_grad()
            with _exact_attention():
                ((self._run(inputs) - wanted) ** 2).mean().backward()
            optimizer.step()
        return self._ours({n: p.detach().numpy() for n, p in self.named.items()})

    def _run(self, inputs: Inputs) -> Any:
        import torch

        given = {k: torch.from_numpy(np.ascontiguousarray(v)) for k, v in cast(inputs, self.dtype).items()}
        return self.built.call(self.module, given)

    def _ours(self, tensors: Arrays) -> Arrays:
        return {
            n: np.array(a)
            for row in self.rows
            for n, a in zip(row.ours, row.read([tensors[t] for t in row.theirs]), strict=True)
        }


@contextlib.contextmanager
def _on_cpu(dtype: str) -> Iterator[None]:
    """jax on the processor, where products are not rounded to less than their dtype, and float64 stays float64."""
    import jax

    with jax.enable_x64(dtype == "float64"), jax.default_device(jax.devices("cpu")[0]):
        yield


def cast(inputs: Inputs, dtype: str) -> Inputs:
    """Floating-point inputs in this dtype; ids and masks as they are."""
    return {k: v.astype(dtype) if v.dtype.kind == "f" else v for k, v in inputs.items()}


@contextlib.contextmanager
def _exact_attention() -> Iterator[None]:
    """Without torch's fast path, which is another function: NaN on empty rows, tanh GELU taken for erf."""
    import torch

    before = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(before)


@dataclass(frozen=True)
class _First:
    """Of copies of one parameter, the first: gradients of all came together in it."""

    def read(self, arrays: rules.Arrays) -> rules.Arrays:
        return arrays[:1]

    def write(self, arrays: rules.Arrays) -> rules.Arrays:
        return arrays


def _trained(row: Row, parameters: Mapping[str, Any]) -> Row | None:
    """The row for gradients: without constants and copies; None where its tensors are not all parameters of the module."""
    constant = [o.place for o in row.operations if isinstance(o, Constant)]
    theirs = tuple(n for i, n in enumerate(row.theirs) if i not in constant)
    operations: tuple[Operation, ...] = tuple(
        _First() if isinstance(o, Tie) else o for o in row.operations if not isinstance(o, Constant)
    )
    if not theirs or not row.ours or row.ours[0].startswith(CARRIED) or not all(n in parameters for n in theirs):
        return None
    return replace(row, theirs=theirs, operations=operations)
