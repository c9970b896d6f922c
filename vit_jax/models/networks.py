"""The table of networks. To add one, write its config (config/network.py) and name its class here."""

from __future__ import annotations

from ..config.hints import nearest
from ..config.network import NetworkConfig
from ..errors import UserError
from .captioner_config import CaptionerConfig
from .resnet_config import ResNetConfig
from .transformer_config import TransformerConfig
from .vit_config import ViTConfig

NETWORKS: dict[str, type[NetworkConfig]] = {
    "vit": ViTConfig,
    "transformer": TransformerConfig,
    "resnet": ResNetConfig,
    "captioner": CaptionerConfig,
}


def network_named(name: str) -> type[NetworkConfig]:
    """The config class of a network."""
    found = {network.name: network for network in NETWORKS.values()}
    if name not in found:
        raise UserError(f"the network {name!r} is not known to this version of vit-jax{nearest(name, list(found))}")
    return found[name]
