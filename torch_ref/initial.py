"""Initial values of a model's weights, drawn with torch's generator."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from .attention import Attention
from .decoder_model import Head


@torch.no_grad()
def initialise(
    model: nn.Module,
    *,
    init: str,
    attention_init: str,
    init_std: float,
    token_std: float,
    position_std: float,
    relative_std: float = 0.0,
    scale: float = 0.0,
) -> None:
    """Draw initial values for every parameter of a model, in place, with torch's global generator.

    The arguments are the config's fields of these names. Biases are 0 (drawn if `init` is "torch"), norms start at 1
    and 0.
    """
    for name, module in model.named_modules():
        if isinstance(module, (nn.LayerNorm, nn.RMSNorm)):
            module.reset_parameters()
        elif isinstance(module, nn.Embedding):
            nn.init.normal_(module.weight, std=token_std)
        elif hasattr(module, "weight"):  # linear maps: nn.Linear, the patches, the head of a Transformer
            torchvision = "fan_in" if name == "patch" else "xavier" if ".mlp." in name else "torch"
            if module.weight is not None:  # None: the head is tied to an embedding
                start_kernel(module.weight, torchvision if init == "torchvision" else init, init_std)
            if module.bias is not None:
                bound = module.weight[0].numel() ** -0.5 if init == "torch" and module.weight is not None else 0.0
                nn.init.uniform_(module.bias, -bound, bound)
    for module in model.modules():
        if type(module) is Attention and attention_init == "torch":  # not AttentionPool
            start_as_multihead(module)
        if isinstance(module, Head) and module.weight is not None and init == "t5":
            nn.init.normal_(module.weight)
        if type(module) is Attention and init == "t5":
            module.query.weight.mul_(module.head_width**-0.5)
    std = {"table": relative_std, "position": position_std}
    std |= dict.fromkeys(("cls_token", "distill_token", "register_tokens", "probe"), token_std)
    for name, parameter in model.named_parameters():
        leaf = name.rpartition(".")[2]
        if leaf in ("scale1", "scale2"):
            nn.init.constant_(parameter, scale)
        elif leaf in std:
            nn.init.normal_(parameter, std=std[leaf])


def start_as_multihead(attention: Attention) -> None:
    """Fill query, key and value as torch.nn.MultiheadAttention does, which has them in one matrix; biases are 0."""
    for linear in (attention.query, attention.key, attention.value):
        start_kernel(linear.weight, "xavier_of_three", 0.0)
    for linear in (attention.query, attention.key, attention.value, attention.out):
        if linear.bias is not None:
            nn.init.zeros_(linear.bias)


def start_kernel(weight: Tensor, init: str, std: float) -> None:
    """Fill the weight of a linear map, in place: weight [out, in...]."""
    weight = weight.flatten(1)  # a convolution with its stride equal to its size is a linear map of a patch
    n_out, n_in = weight.shape
    if init in ("normal", "t5"):
        nn.init.normal_(weight, std=std if init == "normal" else n_in**-0.5)
    elif init in ("trunc_normal", "fan_in"):
        # Truncation at two standard deviations reduces the standard deviation by this factor.
        std = (std if init == "trunc_normal" else n_in**-0.5) / 0.87962566103423978
        nn.init.trunc_normal_(weight, std=std, a=-2 * std, b=2 * std)
    elif init == "xavier":
        nn.init.xavier_uniform_(weight)
    else:
        bound = {"torch": n_in**-0.5, "xavier_of_three": (6 / (n_in + 3 * n_out)) ** 0.5}[init]
        nn.init.uniform_(weight, -bound, bound)
