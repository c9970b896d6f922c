"""A training step in PyTorch, eager or compiled, as benchmarks.step times it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def training_step(
    loss: Callable[..., Any], inputs: tuple[Any, ...], optimizer: Any, compiled: bool
) -> Callable[[], Any]:
    """A step that returns its loss.

    Args:
        loss: of the inputs, a scalar.
        inputs: tensors.
        optimizer: of the parameters that the loss depends on.
        compiled: whether the loss goes through torch.compile.
    """
    import torch

    differentiated = torch.compile(loss) if compiled else loss

    def step() -> Any:
        optimizer.zero_grad()
        value = differentiated(*inputs)
        value.backward()
        optimizer.step()
        return value.detach()

    return step
