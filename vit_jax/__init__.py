"""Vision Transformers and encoder-decoder Transformers in JAX: training, evaluation and prediction.

The public names are imported when they are first used, so `import vit_jax` takes almost no time.
"""

TYPE_CHECKING = False  # importing typing would take longer than this package; type checkers know the name
if TYPE_CHECKING:
    from .augmentation.batch import augment
    from .commands.evaluate import evaluate
    from .commands.prediction.arguments import predict
    from .config.run import RunConfig
    from .errors import UserError
    from .extras.report.command import report
    from .extras.sweep.sweep import sweep
    from .models.captioner import Captioner
    from .models.captioner_config import CaptionerConfig
    from .models.transformer import Transformer
    from .models.transformer_config import TransformerConfig
    from .models.vit import ViT
    from .models.vit_config import ViTConfig
    from .presets.table import build
    from .reports.compare import compare, figure
    from .training.engine.optim import optimizer
    from .training.train import steps, train
    from .weights.export import export
    from .weights.load import load
    from .weights.start import preset

    __version__: str

_MODULES = {  # public name: the module that has it
    "Captioner": "models.captioner",
    "CaptionerConfig": "models.captioner_config",
    "RunConfig": "config.run",
    "TransformerConfig": "models.transformer_config",
    "ViTConfig": "models.vit_config",
    "UserError": "errors",
    "augment": "augmentation.batch",
    "build": "presets.table",
    "compare": "reports.compare",
    "evaluate": "commands.evaluate",
    "export": "weights.export",
    "figure": "reports.compare",
    "load": "weights.load",
    "optimizer": "training.engine.optim",
    "predict": "commands.prediction.arguments",
    "preset": "weights.start",
    "report": "extras.report.command",
    "steps": "training.train",
    "sweep": "extras.sweep.sweep",
    "train": "training.train",
    "Transformer": "models.transformer",
    "ViT": "models.vit",
}

__all__ = [
    "Captioner", "CaptionerConfig", "RunConfig", "Transformer", "TransformerConfig", "UserError", "ViT", "ViTConfig",
    "__version__", "augment", "build", "compare", "evaluate", "export", "figure", "load", "optimizer", "predict",
    "preset", "report", "steps", "sweep", "train",
]  # fmt: skip


def __getattr__(name: str) -> object:
    if name == "__version__":
        from .files.terminal import version

        return version()
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import sys
    from importlib import import_module

    from .machine.backend import check_flags, naming_variables

    if "jax" not in sys.modules:
        check_flags()
    with naming_variables():
        return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
