"""Modules that can be called: `vit_jax.train(run)` is `vit_jax.train.train(run)`, however the module was imported."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any


class CallableModule(ModuleType):
    """A module that, when called, calls its function of the same name."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the module's function of the same name."""
        return self._function(*args, **kwargs)

    @property
    def _function(self) -> Callable[..., Any]:
        return self.__dict__[self.__name__.rpartition(".")[2]]

    @property
    def __signature__(self) -> inspect.Signature:  # for editors, and for `?` in notebooks
        return inspect.signature(self._function)


def make_callable(name: str) -> None:
    """Make the module `name`, which is being imported, a CallableModule; call it as the module's last line."""
    if name != "__main__":  # a command, whose module nobody calls
        sys.modules[name].__class__ = CallableModule
