"""Networks and runs as frozen dataclasses. Nothing here imports jax, so every tool can read a config.

A field that changes the result of a run is *identity*: with another value it is another run. A field that only states
where or for how long the run computes (devices, logging, budget, folders) is *execution* and may change on resume.
Reading order: ranges, fields, dotted, trees, tree, network, vit, transformer, captioner, resnet, nearest, sizes,
networks; run, groups, images, augmentation, sentences, decoding, captions, features; classify, distil, translate,
caption, tasks; check, formats, values.
"""

from .augmentation import ImageAugment
from .captioner import CaptionerConfig
from .captions import CaptionData
from .dotted import leaves, replaced, value_at
from .features import FeatureData
from .fields import Activation, Kind, Size, pair
from .groups import frozen_at_first, moments, muon_kernels, optimizer_of_others, rate_scales, roles, trainable
from .images import ImageData
from .lora import adapted, averaged, factor_names, factor_shapes, factors, kept_beside, trainable_table
from .nearest import nearest, similar
from .network import Input, NetworkConfig, Teacher
from .networks import NETWORKS, network_named
from .resnet import ResNetConfig
from .run import NO_DATA, AugmentConfig, DataConfig, LoraConfig, LossConfig, OptimConfig, RunConfig, profiled
from .sentences import SentenceData
from .sizes import SIZES, is_sized, size_of, sized
from .transformer import TransformerConfig
from .tree import Parameter, Start, Table
from .vit import ViTConfig
from .vocabulary import SPECIALS

__all__ = [
    "NETWORKS",
    "NO_DATA",
    "SIZES",
    "SPECIALS",
    "Activation",
    "AugmentConfig",
    "CaptionData",
    "CaptionerConfig",
    "DataConfig",
    "FeatureData",
    "ImageAugment",
    "ImageData",
    "Input",
    "Kind",
    "LoraConfig",
    "LossConfig",
    "NetworkConfig",
    "OptimConfig",
    "Parameter",
    "ResNetConfig",
    "RunConfig",
    "SentenceData",
    "Size",
    "Start",
    "Table",
    "Teacher",
    "TransformerConfig",
    "ViTConfig",
    "adapted",
    "averaged",
    "factor_names",
    "factor_shapes",
    "factors",
    "frozen_at_first",
    "is_sized",
    "kept_beside",
    "leaves",
    "moments",
    "muon_kernels",
    "nearest",
    "network_named",
    "optimizer_of_others",
    "pair",
    "profiled",
    "rate_scales",
    "replaced",
    "roles",
    "similar",
    "size_of",
    "sized",
    "trainable",
    "trainable_table",
    "value_at",
]
