"""torch.nn.Transformer and its encoder, and torchvision's VisionTransformer and ResNet."""

from __future__ import annotations

import functools
import importlib
import warnings
from dataclasses import replace
from typing import Any

from vit_jax.config.fields import pair
from vit_jax.models.resnet_config import ResNetConfig
from vit_jax.models.vit_config import ViTConfig

from ... import rules
from ...dialects import LAYOUTS
from ..weights import Weights
from .built import Built, Places, fill_module, load, of_images, tensors, with_version


def vision(c: ViTConfig) -> Any:
    """torchvision's network of a config, with random weights."""
    load("torchvision")
    from torch import nn

    hidden = {"representation_size": c.head_hidden} if c.head_hidden else {}
    norm = functools.partial(nn.LayerNorm, eps=c.eps)
    cls = importlib.import_module("torchvision.models.vision_transformer").VisionTransformer
    sizes = pair(c.image)[0], pair(c.patch)[0], c.depth, c.heads, c.width, c.hidden
    module = cls(*sizes, num_classes=c.classes, norm_layer=norm, **hidden)
    if c.channels != 3:  # its constructor knows no other
        module.conv_proj = nn.Conv2d(c.channels, c.width, pair(c.patch), pair(c.patch))
    return module


def torchvision(weights: Weights) -> Built:
    """torchvision's VisionTransformer, which renames the older mlp names itself."""
    c: Any = weights.config
    module = fill_module(vision(c), tensors(weights.tensors))
    blocks = "encoder.layers.encoder_layer_"
    places: Places = {
        "tokens": (f"{blocks}0", "in"),
        **{f"blocks.{i}": (f"{blocks}{i}", "out") for i in range(c.depth)},
        "features": ("encoder.ln", "out"),
    }
    return Built(with_version("torchvision"), module, LAYOUTS["torchvision@2"].rows(c), of_images, places)


def resnet(c: ResNetConfig) -> Any:
    """torchvision's ResNet of a config, with random weights."""
    load("torchvision")
    from torch import nn

    resnets: Any = importlib.import_module("torchvision.models.resnet")

    class Narrow(resnets.ResNet):
        """The same with fewer channels in every stage: its constructor knows no other number than 64."""

        def _make_layer(self, block: Any, planes: int, *arguments: Any, **options: Any) -> Any:
            if planes == 64:
                self.inplanes = c.width
            return super()._make_layer(block, planes * c.width // 64, *arguments, **options)

    kind, per_group = resnets.Bottleneck, 64 * c.hidden / (c.groups * c.width)
    if not c.bottleneck:
        kind, per_group = resnets.BasicBlock, 64
    whole = c.width == 64
    module = (resnets.ResNet if whole else Narrow)(
        kind, list(c.stages), num_classes=c.classes, groups=c.groups, width_per_group=per_group
    )
    if not whole or c.channels != 3:
        module.conv1 = nn.Conv2d(c.channels, c.width, 7, 2, 3, bias=False)
    if not whole:
        module.bn1, module.fc = nn.BatchNorm2d(c.width), nn.Linear(c.features, c.classes)
    return module


def torchvision_resnet(weights: Weights) -> Built:
    """torchvision's ResNet, in evaluation mode. Its statistics are no parameters: they have no gradients."""
    c: Any = weights.config
    module = fill_module(resnet(c), tensors(weights.tensors))
    return Built(
        with_version("torchvision"), module, LAYOUTS["torchvision-resnet"].rows(c), of_images, {"pooled": ("fc", "in")}
    )


def our_resnet(weights: Weights) -> Built:
    """The same of a file of our own layout: of a network without a twin in torch_ref."""
    layout = LAYOUTS["torchvision-resnet"]
    state = rules.write(layout.rows(weights.config), weights.tensors, weights.name)
    return torchvision_resnet(replace(weights, layout=layout, tensors=state))


def torch_transformer(weights: Weights) -> Built:
    """torch.nn.Transformer or TransformerEncoder, with the masks that our config implies."""
    import torch

    c: Any = weights.config
    acts: dict[str, Any] = {
        "gelu": torch.nn.functional.gelu,
        "relu": torch.nn.functional.relu,
        "silu": torch.nn.functional.silu,
        "gelu_tanh": functools.partial(torch.nn.functional.gelu, approximate="tanh"),
        "quick_gelu": lambda x: x * torch.sigmoid(1.702 * x),
    }
    common: dict[str, Any] = {
        "activation": acts[c.activation],
        "layer_norm_eps": c.eps,
        "batch_first": True,
        "norm_first": c.norm_first,
        "bias": c.bias,
    }
    library = f"torch {torch.__version__}"
    with warnings.catch_warnings(action="ignore"):  # torch lists the fast paths that it will not take
        if not c.decoder_depth:
            norm = torch.nn.LayerNorm(c.width, c.eps, bias=c.norm_bias) if c.final_norm else None
            layer = torch.nn.TransformerEncoderLayer(c.width, c.heads, c.hidden, 0.0, **common)
            encoder = torch.nn.TransformerEncoder(layer, c.encoder_depth, norm)
            layers: Places = {f"encoder.blocks.{i}": (f"layers.{i}", "out") for i in range(c.encoder_depth)}
            return Built(library, fill_module(encoder, tensors(weights.tensors)), weights.rows, _encoder, layers)
        module = torch.nn.Transformer(c.width, c.heads, c.encoder_depth, c.decoder_depth, c.hidden, 0.0, **common)
    places: Places = {
        f"{stack}.blocks.{i}": (f"{stack}.layers.{i}", "out")
        for stack, depth in (("encoder", c.encoder_depth), ("decoder", c.decoder_depth))
        for i in range(depth)
    }

    def call(module: Any, source: Any, target: Any, source_padding: Any) -> Any:
        future = torch.ones(*[target.shape[1]] * 2, dtype=torch.bool).triu(1) if c.causal else None
        paddings = {"src_key_padding_mask": ~source_padding, "memory_key_padding_mask": ~source_padding}
        return module(source, target, tgt_mask=future, **paddings)

    places |= {"memory": ("encoder", "out")}
    return Built(library, fill_module(module, tensors(weights.tensors)), weights.rows, call, places)


def _encoder(module: Any, source: Any, source_padding: Any) -> Any:
    return module(source, src_key_padding_mask=~source_padding)
