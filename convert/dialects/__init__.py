"""The layouts of public libraries, one file for each: names and axes of their tensors, and where configs come from.

LAYOUTS has them all by name. Of the versions of one dialect the newest comes last.
"""

from ..layout import Layout
from . import (
    augreg,
    bart,
    big_vision,
    clip,
    cs231n,
    dinov2,
    dinov3,
    flax_seq2seq,
    huggingface,
    huggingface_clip,
    huggingface_dinov2,
    huggingface_dinov3,
    huggingface_flax,
    huggingface_siglip,
    huggingface_siglip2,
    marian,
    mbart,
    notebook_48,
    notebook_256,
    notebook_768,
    notebook_transformer,
    simple_vit,
    timm,
    timm_eva,
    torch_ref,
    torch_transformer,
    torchvision,
    torchvision_resnet,
    vision_encoder_decoder,
    vit_jax,
    vit_pytorch,
    vit_pytorch_distill,
)

MODULES = (
    torch_ref,
    timm,
    timm_eva,
    torchvision,
    torchvision_resnet,
    clip,
    dinov2,
    dinov3,
    vit_pytorch,
    simple_vit,
    vit_pytorch_distill,
    vit_jax,
    torch_transformer,
    marian,
    huggingface,
    huggingface_clip,
    huggingface_dinov2,
    huggingface_dinov3,
    huggingface_flax,
    huggingface_siglip,
    huggingface_siglip2,
    bart,
    mbart,
    flax_seq2seq,
    vision_encoder_decoder,
    cs231n,
    augreg,
    big_vision,
    notebook_transformer,
    notebook_768,
    notebook_48,
    notebook_256,
)
LAYOUTS: dict[str, Layout] = {layout.name: layout for module in MODULES for layout in module.LAYOUTS}
DIALECTS = {module.LAYOUTS[-1].dialect: module for module in MODULES}

__all__ = ["DIALECTS", "LAYOUTS", "MODULES"]
