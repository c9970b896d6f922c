"""The two sides of a comparison: the same calls on each, numpy arrays in and out, by our names and in our shapes.

`forward(inputs)` gives the outputs, `capture(inputs)` the inner values of the forward pass by name,
`gradients(inputs, cotangent)` those of sum(outputs * cotangent) for every parameter and, as `input.NAME`, for every
floating-point input; `steps` the parameters after steps of SGD with momentum. Frameworks are imported when a side is
made.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Set
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from vit_jax.config.network import NetworkConfig

from .. import operations
from ..operations import Constant, Operation, Tie
from ..rules import CARRIED, Row
from ..write.program.network import on_cpu
from .libraries.built import Built
from .weights import Arrays, Inputs

RATE, MOMENTUM = 1e-2, 0.9  # of SGD: Adam would make whole steps of rounding errors where a gradient is 0


class Ours:
    """A network or layer of ours in JAX, with parameters {dotted name: array} and a function that calls it.

    `call(model, **inputs)` defaults to the arguments of the network's row. `compiled`: each pass is compiled, which
    pays where a network is large.
    """

    def __init__(
        self,
        model: Any,
        parameters: Mapping[str, np.ndarray],
        dtype: str = "float64",
        call: Callable[..., Any] | None = None,
        compiled: bool = False,
    ):
        import jax
        import jax.numpy as jnp

        from vit_jax.config.trees import unflatten
        from vit_jax.models.state import replace_parameters

        self.model, self.dtype, self.call = model, dtype, call or _call
        self.compile: Callable[[Any], Any] = jax.jit if compiled else lambda function: function
        with on_cpu(dtype):
            self.tree = unflatten({n: jnp.asarray(a, dtype) for n, a in parameters.items()})
            replace_parameters(model, self.tree)

    @classmethod
    def network(
        cls, config: NetworkConfig, parameters: Mapping[str, np.ndarray], dtype: str = "float64", compiled: bool = False
    ) -> Ours:
        """The network of a config."""
        import jax.numpy as jnp

        from vit_jax.models.build import network_class

        kinds: dict[str, Any] = {"dtype": jnp.dtype(dtype), "param_dtype": jnp.dtype(dtype)}
        with on_cpu(dtype):
            return cls(network_class(config)(config, **kinds), parameters, dtype, compiled=compiled)

    def arrays(self, inputs: Inputs) -> Inputs:
        """The inputs as jax's arrays, floating-point ones in the side's dtype."""
        import jax.numpy as jnp

        return {
            k: jnp.asarray(v) if isinstance(v, np.ndarray) else v for k, v in _cast_inputs(inputs, self.dtype).items()
        }

    def forward(self, inputs: Inputs) -> np.ndarray:
        with on_cpu(self.dtype):
            given, definition = self.arrays(inputs), self._definition()
            return np.asarray(self.compile(lambda tree: self.call(definition(tree), **given))(self.tree))

    def capture(self, inputs: Inputs) -> Arrays:
        """Of a network alone."""
        wanted = self.model.config.captured()
        with on_cpu(self.dtype):
            given, definition = self.arrays(inputs), self._definition()
            seen = self.compile(lambda tree: definition(tree).capture(names=wanted, **given))(self.tree)
            return {n: np.asarray(seen[n]) for n in wanted}

    def gradients(self, inputs: Inputs, cotangent: np.ndarray) -> Arrays:
        import jax
        import jax.numpy as jnp

        from vit_jax.config.trees import flatten

        with on_cpu(self.dtype):
            given, definition = self.arrays(inputs), self._definition()
            floats = {k: v for k, v in given.items() if hasattr(v, "dtype") and jnp.issubdtype(v.dtype, jnp.floating)}
            weighted = jnp.asarray(cotangent, self.dtype)

            def total(tree: Any, floats: Inputs) -> Any:
                return jnp.sum(self.call(definition(tree), **{**given, **floats}) * weighted)

            tree, slopes = self.compile(jax.grad(total, argnums=(0, 1)))(self.tree, floats)
            found = {n: np.asarray(g) for n, g in flatten(tree).items()}
            return found | {f"input.{k}": np.asarray(g) for k, g in slopes.items()}

    def steps(self, inputs: Inputs, target: np.ndarray, n: int, trained: Set[str]) -> Arrays:
        """The parameters after steps of SGD on the mean squared difference from a target: inputs [B, ...] -> {dotted
        name: array} of those that are trained.
        """
        import jax
        import jax.numpy as jnp
        import optax

        from vit_jax.config.trees import flatten, unflatten

        with on_cpu(self.dtype):
            given, definition, wanted = self.arrays(inputs), self._definition(), jnp.asarray(target, self.dtype)
            everything, optimizer = flatten(self.tree), optax.sgd(RATE, MOMENTUM)

            def loss(some: Any) -> Any:
                return jnp.mean((self.call(definition(unflatten({**everything, **some})), **given) - wanted) ** 2)

            some = {n: a for n, a in everything.items() if n in trained}
            slope, state = self.compile(jax.grad(loss)), optimizer.init(some)
            for _ in range(n):
                updates, state = optimizer.update(slope(some), state)
                some = optax.apply_updates(some, updates)
            return {n: np.asarray(a) for n, a in some.items()}

    def _definition(self) -> Callable[[Any], Any]:
        """The model as a function of its tree of parameters."""
        from vit_jax.models.state import merge, split_model

        definition = split_model(self.model)[0]
        return lambda tree: merge(definition, tree)


def _call(model: Any, **inputs: Any) -> Any:
    return model(**inputs)


class Torch:
    """A torch module in evaluation mode, called as `call(module, **inputs)`; a subclass maps its parameters to ours."""

    def __init__(self, module: Any, call: Callable[..., Any], dtype: str = "float64"):
        import torch

        self.module, self.call, self.dtype = module.to(getattr(torch, dtype)).eval(), call, dtype

    def parameters(self) -> dict[str, Any]:
        """The tensors to take gradients of, by name."""
        raise NotImplementedError

    def ours(self, arrays: Arrays) -> Arrays:
        """Arrays under the names of `parameters`, under our names and in our shapes."""
        raise NotImplementedError

    def arrays(self, inputs: Inputs) -> dict[str, Any]:
        """The inputs as torch's tensors, floating-point ones in the side's dtype."""
        import torch

        return {
            k: torch.from_numpy(np.ascontiguousarray(v)) if isinstance(v, np.ndarray) else v
            for k, v in _cast_inputs(inputs, self.dtype).items()
        }

    def run(self, given: dict[str, Any]) -> Any:
        with exact_attention():
            return self.call(self.module, **given)

    def forward(self, inputs: Inputs) -> np.ndarray:
        import torch

        with torch.no_grad():
            return np.asarray(self.run(self.arrays(inputs)).numpy())

    def gradients(self, inputs: Inputs, cotangent: np.ndarray) -> Arrays:
        import torch

        given, parameters = self.arrays(inputs), self.parameters()
        floats = {
            f"input.{k}": v.requires_grad_()
            for k, v in given.items()
            if isinstance(v, torch.Tensor) and v.is_floating_point()
        }
        total = (self.run(given) * torch.from_numpy(cotangent.astype(self.dtype))).sum()
        wanted = {**parameters, **floats}
        slopes = torch.autograd.grad(total, list(wanted.values()), allow_unused=True)
        found = {
            k: (torch.zeros_like(v) if g is None else g).numpy()
            for (k, v), g in zip(wanted.items(), slopes, strict=True)
        }
        return self.ours({k: found[k] for k in parameters}) | {k: found[k] for k in floats}


class ByRows(Torch):
    """A module that a library built; its rows name as many of its parameters as they can."""

    def __init__(self, built: Built, config: NetworkConfig, dtype: str = "float64"):
        super().__init__(built.module, built.call, dtype)
        self.built, self.captured = built, config.captured()
        named = dict(self.module.named_parameters(remove_duplicate=False))
        self.rows = [r for row in built.rows if (r := _gradient_row(row, named)) is not None]
        self.trained = frozenset(n for row in self.rows for n in row.ours)
        self.named = {n: named[n] for row in self.rows for n in row.theirs}
        for parameter in self.module.parameters():
            parameter.requires_grad_(any(parameter is p for p in self.named.values()))

    def parameters(self) -> dict[str, Any]:
        return self.named

    def ours(self, arrays: Arrays) -> Arrays:
        return {
            n: np.array(a)
            for row in self.rows
            for n, a in zip(row.ours, row.read([arrays[t] for t in row.theirs]), strict=True)
        }

    def values(self) -> Arrays:
        """The parameters themselves, by our names."""
        return self.ours({n: p.detach().numpy() for n, p in self.named.items()})

    def capture(self, inputs: Inputs) -> Arrays:
        """Those that the library's modules show; the outputs are always among them."""
        import torch

        with torch.no_grad(), exact_attention():
            if self.built.capture is not None:
                seen = self.built.capture(self.module, self.arrays(inputs), self.captured)
            else:
                seen = self._hooked(inputs)
        return {n: seen[n].numpy() for n in self.captured if n in seen}

    def _hooked(self, inputs: Inputs) -> dict[str, Any]:
        """Inner values from hooks at the places of the modules that have them."""
        seen: dict[str, Any] = {}

        def keep(name: str, value: Any) -> None:
            seen[name] = value[0] if isinstance(value, tuple) else value

        hooks = []
        for name, (path, side) in self.built.places.items():
            module = self.module.get_submodule(path)
            if side == "in":
                hooks.append(
                    module.register_forward_pre_hook(
                        lambda m, given, named, name=name: keep(name, given or next(iter(named.values()))),
                        with_kwargs=True,
                    )
                )
            else:
                hooks.append(module.register_forward_hook(lambda m, given, made, name=name: keep(name, made)))
        seen[self.captured[-1]] = self.run(self.arrays(inputs))
        for hook in hooks:
            hook.remove()
        return seen

    def steps(self, inputs: Inputs, target: np.ndarray, n: int) -> Arrays:
        """The named parameters after n steps; the module is trained afterwards."""
        import torch

        given, wanted = self.arrays(inputs), torch.from_numpy(target.astype(self.dtype))
        optimizer = torch.optim.SGD([p for p in self.module.parameters() if p.requires_grad], RATE, MOMENTUM)
        for _ in range(n):
            optimizer.zero_grad()
            ((self.run(given) - wanted) ** 2).mean().backward()
            optimizer.step()
        return self.values()


def _cast_inputs(inputs: Inputs, dtype: str) -> Inputs:
    """Floating-point inputs in this dtype; ids and masks as they are."""
    return {k: v.astype(dtype) if isinstance(v, np.ndarray) and v.dtype.kind == "f" else v for k, v in inputs.items()}


@contextlib.contextmanager
def exact_attention() -> Iterator[None]:
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
    """The first of several copies of one parameter: in it the gradients of all have come together."""

    def read(self, arrays: operations.Arrays) -> operations.Arrays:
        return arrays[:1]

    def write(self, arrays: operations.Arrays) -> operations.Arrays:
        return arrays


def _gradient_row(row: Row, parameters: Mapping[str, Any]) -> Row | None:
    """The row for gradients, without constants and copies; None unless all its tensors are parameters of the module."""
    constant = [o.index for o in row.operations if isinstance(o, Constant)]
    theirs = tuple(n for i, n in enumerate(row.theirs) if i not in constant)
    operations: tuple[Operation, ...] = tuple(
        _First() if isinstance(o, Tie) else o for o in row.operations if not isinstance(o, Constant)
    )
    if not theirs or not row.ours or row.ours[0].startswith(CARRIED) or not all(n in parameters for n in theirs):
        return None
    return replace(row, theirs=theirs, operations=operations)
