"""The models of vit_jax in idiomatic PyTorch, and the exchange of their weights under vit_jax's parameter names.

The public names are imported when they are first used: `python -m torch_ref.train` then can say that torch is missing.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .captioner import Captioner
    from .transformer import Transformer
    from .vit import ViT
    from .weights import Model, build, gradients, load, our_names, parameters

__all__ = ["Captioner", "Model", "Transformer", "ViT", "build", "gradients", "load", "our_names", "parameters"]


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    module = {"Captioner": "captioner", "Transformer": "transformer", "ViT": "vit"}.get(name, "weights")
    return getattr(import_module(f"{__name__}.{module}"), name)
