"""One public layout a file: its table of rows."""

from . import torch_ref

DIALECTS = {"torch_ref": torch_ref}

__all__ = ["DIALECTS", "torch_ref"]
