"""Layouts that are recognised and cannot be converted: what each is, and why not or what to do.

A file of one of these may hold names of a layout that we do read; so they are looked for first.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from ..signature import Seen

NO_NETWORK = "this version has no such network"
ROTARY = "its attention turns queries and keys by their place, which this network has not"


@dataclass(frozen=True)
class Refused:
    """`marks`: as a Layout's, each has to match a whole name, or with a leading "!" none."""

    title: str
    why: str
    marks: tuple[str, ...]


ANY = r"(.*[./])?"  # whatever stands before
REFUSED = (
    Refused("a ViT behind a ResNet (timm's hybrid stem)", NO_NETWORK, (rf"{ANY}patch_embed\.backbone\..*",)),
    Refused("a ViT behind a ResNet (Google's hybrid)", NO_NETWORK, (rf"{ANY}conv_root[./]kernel",)),
    Refused("a ViT behind convolutions (torchvision)", NO_NETWORK, (rf"{ANY}conv_proj\.conv_last\.weight",)),
    Refused("a ResNet (torchvision, timm)", NO_NETWORK, (rf"{ANY}layer1\.0\.conv1\.weight", rf"{ANY}layer4\.0\.conv1\.weight", r"!.*attnpool\..*")),
    Refused("a ResNet (Google)", NO_NETWORK, (rf"{ANY}(root_block|init_conv|conv_init)[./].*", rf"{ANY}(block1|ResNetBlock_0|BottleneckResNetBlock_0)[./].*")),
    Refused("CLIP with a ResNet", NO_NETWORK, (rf"{ANY}attnpool\.positional_embedding", rf"{ANY}layer1\.0\.conv1\.weight")),
    Refused(
        "the teaching notebook's MNIST ViT", "its query, key and value layers stood in plain lists and were never saved: train it anew",
        (rf"{ANY}linear_mapper\.weight",),
    ),
    Refused("a Swin Transformer", "its attention is in shifted windows", (
        rf"{ANY}(layers|features)\.\d+\..*\.(relative_position_bias_table|cpb_mlp\..*)",)),
    Refused("BEiT or another ViT with relative positions", "attention with relative positions is another function", (
        rf"{ANY}(relative_position_bias_table|rel_pos_(h|w)|(shared_)?rel_pos(_bias)?\..*|.*\.rel_pos\..*)",)),
    Refused("EVA, or another ViT of timm's Eva class", f"it has no key bias and, in most versions, {ROTARY}", (rf"{ANY}blocks\.\d+\.attn\.(q_bias|v_bias)",)),
    Refused("a ViT with rotary positions (EVA-02, DINOv3, RoPE-ViT)", ROTARY, (rf"{ANY}(rope|rope_embed|rope_embeddings)\..*|{ANY}rope\.(freqs|periods).*",)),
    Refused("a ViT with layer scales and no table of positions (DINOv3 in timm)", ROTARY, (rf"{ANY}blocks\.0\.gamma_1", rf"!{ANY}pos_embed")),
    Refused("DINOv3", ROTARY, (rf"{ANY}(storage_tokens|embeddings\.register_tokens)", r"!.*pos_embed.*", r"!.*position_embeddings")),
    Refused("a ViT whose attention and mlp are side by side (timm)", "a parallel block is another function", (rf"{ANY}blocks\.\d+\.(in_proj\.weight|attns\.0\..*)",)),
    Refused("a ViT with differential attention (timm)", "differential attention is another function", (rf"{ANY}blocks\.\d+\.(attn\.)?lambda_q1",)),
    Refused("BEiT-3, or another ViT with norms inside attention or mlp", "this network has no norm there", (rf"{ANY}blocks\.\d+\.(attn|mlp)\.norm\.weight",)),
    Refused("a ViT with RMS norms (AIMv2 and others)", "its norms subtract no mean", (rf"{ANY}blocks\.0\.norm1\.weight", rf"!{ANY}blocks\.0\.norm1\.bias")),
    Refused("the text tower of CLIP alone", "it reads words, no images: give the file with the image tower", (
        r"(.*\.)?token_embedding\.weight", r"text_model\..*|transformer\.resblocks\.0\..*", r"!(visual|vision_model)\..*")),
    Refused("CLIP, SigLIP or a relative of theirs in Hugging Face's names", "give its image tower in OpenAI's or timm's names", (
        rf"{ANY}embeddings\.patch_embedding\.weight",)),
    Refused("OpenCLIP with an image tower of timm's", "save model.visual.trunk.state_dict() alone, which is timm's layout", (r"visual\.trunk\..*",)),
    Refused("OpenCLIP with attention pooling", "its pooling is another than ours", (r"(visual\.)?attn_pool\..*", r"(visual\.)?transformer\.resblocks\.0\..*")),
    Refused("SAM's image encoder", "attention with relative positions in windows is another function", (r"image_encoder\.(blocks|patch_embed)\..*",)),
    Refused("DINOv2 in the chunks of its training", "join its blocks first (blocks.CHUNK.I to blocks.I)", (r"(.*\.)?blocks\.\d+\.\d+\.norm1\.weight",)),
    Refused("the captioner (a ViT that reads to a decoder)", NO_NETWORK, (r"(vision_)?encoder\.patch\..*", r"decoder\..*cross_attention\..*")),
)  # fmt: skip


def why(names: Iterable[str]) -> str:
    """What a file with these names is and why it is refused, a clause; empty where no such file has them."""
    seen = Seen(names)
    return next((f"is {one.title}: {one.why}" for one in REFUSED if seen.meets(one.marks)), "")


def titles() -> list[str]:
    """What is refused, a line each with the reason."""
    return [f"{one.title}: {one.why}" for one in REFUSED]
