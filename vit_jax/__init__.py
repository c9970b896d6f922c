"""Vision Transformers and encoder-decoder Transformers in JAX: train, evaluate, use.

Names are fetched when they are first used, so that `import vit_jax` costs nothing.
"""

TYPE_CHECKING = False  # typing's own costs more to import than this whole package; type checkers know the name
if TYPE_CHECKING:
    from . import evaluate, predict, train
    from .config import RunConfig, TransformerConfig, ViTConfig
    from .errors import UserError
    from .models import build
    from .presets import preset
    from .transformer import Transformer
    from .vit import ViT
    from .weights import export, load

    __version__: str

_HOMES = {
    "RunConfig": "config",
    "TransformerConfig": "config",
    "ViTConfig": "config",
    "UserError": "errors",
    "build": "models",
    "export": "weights",
    "load": "weights",
    "preset": "presets",
    "Transformer": "transformer",
    "ViT": "vit",
}
_DOORS = ("evaluate", "predict", "train")

__all__ = [
    "RunConfig", "Transformer", "TransformerConfig", "UserError", "ViT", "ViTConfig", "__version__",
    "build", "evaluate", "export", "load", "predict", "preset", "train",
]  # fmt: skip


def __getattr__(name: str) -> object:
    if name == "__version__":
        from importlib import metadata

        try:
            return metadata.version("vit-jax")
        except metadata.PackageNotFoundError:  # run from a checkout that was never installed
            return "0+unknown"
    if name not in _HOMES and name not in _DOORS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    module = import_module(f"{__name__}.{_HOMES.get(name, name)}")
    return getattr(module, name) if name in _HOMES else module


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
