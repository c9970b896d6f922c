"""Vision Transformers and encoder-decoder Transformers in JAX: training, evaluation and prediction.

The public names are imported when they are first used, so `import vit_jax` takes almost no time.
"""

TYPE_CHECKING = False  # importing typing would take longer than this package; type checkers know the name
if TYPE_CHECKING:
    from .captioner import Captioner
    from .compare import compare
    from .config import CaptionerConfig, RunConfig, TransformerConfig, ViTConfig
    from .errors import UserError
    from .evaluate import evaluate
    from .models import build
    from .predict import predict
    from .starting import preset
    from .train import train
    from .transformer import Transformer
    from .vit import ViT
    from .weights import export, load

    __version__: str

_MODULES = {  # public name: the module that has it
    "Captioner": "captioner",
    "CaptionerConfig": "config",
    "RunConfig": "config",
    "TransformerConfig": "config",
    "ViTConfig": "config",
    "UserError": "errors",
    "build": "models",
    "export": "weights",
    "load": "weights",
    "preset": "starting",
    "Transformer": "transformer",
    "ViT": "vit",
}
_COMMANDS = ("compare", "evaluate", "predict", "train")  # modules that can be called; type checkers see their functions

__all__ = [
    "Captioner", "CaptionerConfig", "RunConfig", "Transformer", "TransformerConfig", "UserError", "ViT", "ViTConfig",
    "__version__", "build", "compare", "evaluate", "export", "load", "predict", "preset", "train",
]  # fmt: skip


def __getattr__(name: str) -> object:
    if name == "__version__":
        from importlib import metadata

        try:
            return metadata.version("vit-jax")
        except metadata.PackageNotFoundError:  # a checkout that was never installed
            return "0+unknown"
    if name not in _MODULES and name not in _COMMANDS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    module = import_module(f"{__name__}.{_MODULES.get(name, name)}")
    return getattr(module, name) if name in _MODULES else module


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
