"""The layouts of public libraries, one file for each: names and axes of their tensors, and where configs come from.

LAYOUTS has them all by name; of the versions of one dialect the newest comes last. Modules of other packages,
of the same form, are entry points of vit_jax.layouts.
"""

from vit_jax.plugins import LAYOUTS as layouts_of_others

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
    flax_t5,
    huggingface,
    huggingface_clip,
    huggingface_dinov2,
    huggingface_dinov3,
    huggingface_flax,
    huggingface_siglip,
    huggingface_siglip2,
    m2m_100,
    marian,
    mbart,
    notebook_48,
    notebook_256,
    notebook_768,
    notebook_transformer,
    simple_vit,
    t5,
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

# Those of other packages come first: of two with one name ours is the last, and stays.
MODULES = (
    *(module for module in layouts_of_others.values() if getattr(module, "LAYOUTS", ())),
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
    t5,
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
    m2m_100,
    flax_seq2seq,
    flax_t5,
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
