"""Vision Transformers and encoder-decoder Transformers in JAX: training, evaluation and prediction.

The public names are imported when they are first used, so `import vit_jax` takes almost no time.
"""

TYPE_CHECKING = False  # importing typing would take longer than this package; type checkers know the name
if TYPE_CHECKING:
    from .augmentation.batch import augment
    from .captioner import Captioner
    from .commands.evaluate import evaluate
    from .commands.predict import predict
    from .config import CaptionerConfig, RunConfig, TransformerConfig, ViTConfig
    from .errors import UserError
    from .models import build
    from .optim import optimizer
    from .run_report.compare import compare
    from .starting.start import preset
    from .training.train import train
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
    "augment": "augmentation.batch",
    "build": "models",
    "compare": "run_report.compare",
    "evaluate": "commands.evaluate",
    "export": "weights",
    "load": "weights",
    "optimizer": "optim",
    "predict": "commands.predict",
    "preset": "starting.start",
    "train": "training.train",
    "Transformer": "transformer",
    "ViT": "vit",
}

__all__ = [
    "Captioner", "CaptionerConfig", "RunConfig", "Transformer", "TransformerConfig", "UserError", "ViT", "ViTConfig",
    "__version__", "augment", "build", "compare", "evaluate", "export", "load", "optimizer", "predict",
    "preset", "train",
]  # fmt: skip


def __getattr__(name: str) -> object:
    if name == "__version__":
        from importlib import metadata

        try:
            return metadata.version("vit-jax")
        except metadata.PackageNotFoundError:  # a checkout that was never installed
            return "0+unknown"
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
