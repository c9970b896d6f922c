"""What a network and a run are, as frozen dataclasses: no jax here, so every tool can read them.

A field that changes the result is part of a run's *identity*; one that only says where or for how
long it runs (devices, logging, budget, where data lies) is *execution* and may change on resume.
"""

from .fields import Activation, Kind, Size, pair
from .run import AugmentConfig, DataConfig, LossConfig, ModelConfig, OptimConfig, RunConfig, check_run
from .transformer import TransformerConfig, check_transformer
from .tree import kind, parameters
from .values import differences, flat, from_dict, nearest, to_dict
from .vit import ViTConfig, check_vit, flops

__all__ = [
    "Activation", "AugmentConfig", "DataConfig", "Kind", "LossConfig", "ModelConfig", "OptimConfig", "RunConfig", "Size",
    "TransformerConfig", "ViTConfig", "check_run", "check_transformer", "check_vit", "differences", "flat", "flops",
    "from_dict", "kind", "nearest", "pair", "parameters", "to_dict",
]  # fmt: skip
