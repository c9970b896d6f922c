"""The table of networks. To add one, write its config (config/network.py) and name its class here, or in a package of
yours as an entry point of vit_jax.networks.
"""

from __future__ import annotations

from ..config.hints import nearest
from ..config.network import NetworkConfig
from ..errors import UserError
from ..plugins import Plugin, Table

NETWORKS: Table[type[NetworkConfig]] = Table(
    "network",
    "networks",
    {
        "vit": Plugin("vit_jax.models.vit_config:ViTConfig"),
        "transformer": Plugin("vit_jax.models.transformer_config:TransformerConfig"),
        "resnet": Plugin("vit_jax.models.resnet_config:ResNetConfig"),
        "captioner": Plugin("vit_jax.models.captioner_config:CaptionerConfig"),
    },
    base=NetworkConfig,
)


def network_named(name: str) -> type[NetworkConfig]:
    """The config class of a network."""
    found = {network.name: network for network in reversed([*NETWORKS.values()])}  # of two the first, which is ours
    if name not in found:
        raise UserError(f"the network {name!r} is not known to this version of vit-jax{nearest(name, list(found))}")
    return found[name]
