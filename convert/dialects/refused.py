"""Layouts that are recognised but cannot be converted: what each is, and the reason or the remedy.

They are looked for first, as a file of one of these may also have the names of a layout that can be read.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from ..layout import matches

NO_NETWORK = "no network here has this architecture"
ROTARY = "its attention has rotary positions, which the network here lacks"


@dataclass(frozen=True)
class RefusedLayout:
    """A layout that cannot be converted. `signature`: expressions that each match a whole name, or with "!" none."""

    title: str
    why: str
    signature: tuple[str, ...]


ANY = r"(.*[./])?"  # any prefix
REFUSED = (
    RefusedLayout("a ViT behind a ResNet (timm's hybrid stem)", NO_NETWORK, (rf"{ANY}patch_embed\.backbone\..*",)),
    RefusedLayout("a ViT behind a ResNet (Google's hybrid)", NO_NETWORK, (rf"{ANY}conv_root[./]kernel",)),
    RefusedLayout("a ViT behind convolutions (torchvision)", NO_NETWORK, (rf"{ANY}conv_proj\.conv_last\.weight",)),
    RefusedLayout(
        "a ResNet (torchvision, timm)",
        NO_NETWORK,
        (rf"{ANY}layer1\.0\.conv1\.weight", rf"{ANY}layer4\.0\.conv1\.weight", r"!.*attnpool\..*"),
    ),
    RefusedLayout(
        "a ResNet (Google)",
        NO_NETWORK,
        (
            rf"{ANY}(root_block|init_conv|conv_init)[./].*",
            rf"{ANY}(block1|ResNetBlock_0|BottleneckResNetBlock_0)[./].*",
        ),
    ),
    RefusedLayout(
        "CLIP with a ResNet", NO_NETWORK, (rf"{ANY}attnpool\.positional_embedding", rf"{ANY}layer1\.0\.conv1\.weight")
    ),
    RefusedLayout(
        "the teaching notebook's MNIST ViT",
        "its query, key and value layers were in plain lists and were never saved; train it again",
        (rf"{ANY}linear_mapper\.weight",),
    ),
    RefusedLayout(
        "a Swin Transformer",
        "its attention is within shifted windows, which the network here lacks",
        (rf"{ANY}(layers|features)\.\d+\..*\.(relative_position_bias_table|cpb_mlp\..*)",),
    ),
    RefusedLayout(
        "BEiT or another ViT with relative positions",
        "its attention has relative positions, which the network here lacks",
        (rf"{ANY}(relative_position_bias_table|rel_pos_(h|w)|(shared_)?rel_pos(_bias)?\..*|.*\.rel_pos\..*)",),
    ),
    RefusedLayout(
        "EVA, or another ViT of timm's Eva class",
        f"it has no key bias and, in most versions, {ROTARY}",
        (rf"{ANY}blocks\.\d+\.attn\.(q_bias|v_bias)",),
    ),
    RefusedLayout(
        "a ViT with rotary positions (EVA-02, DINOv3, RoPE-ViT)",
        ROTARY,
        (rf"{ANY}(rope|rope_embed|rope_embeddings)\..*|{ANY}rope\.(freqs|periods).*",),
    ),
    RefusedLayout(
        "a ViT with layer scales and no table of positions (DINOv3 in timm)",
        ROTARY,
        (rf"{ANY}blocks\.0\.gamma_1", rf"!{ANY}pos_embed"),
    ),
    RefusedLayout(
        "DINOv3",
        ROTARY,
        (rf"{ANY}(storage_tokens|embeddings\.register_tokens)", r"!.*pos_embed.*", r"!.*position_embeddings"),
    ),
    RefusedLayout(
        "a ViT whose attention and mlp are side by side (timm)",
        "the network here has them one after the other",
        (rf"{ANY}blocks\.\d+\.(in_proj\.weight|attns\.0\..*)",),
    ),
    RefusedLayout(
        "a ViT with differential attention (timm)",
        "the network here has no differential attention",
        (rf"{ANY}blocks\.\d+\.(attn\.)?lambda_q1",),
    ),
    RefusedLayout(
        "BEiT-3, or another ViT with norms inside attention or mlp",
        "the network here has no norm there",
        (rf"{ANY}blocks\.\d+\.(attn|mlp)\.norm\.weight",),
    ),
    RefusedLayout(
        "a ViT with RMS norms (AIMv2 and others)",
        "its norms subtract no mean",
        (rf"{ANY}blocks\.0\.norm1\.weight", rf"!{ANY}blocks\.0\.norm1\.bias"),
    ),
    RefusedLayout(
        "the text tower of CLIP alone",
        "it encodes texts; give the file with the image tower",
        (
            r"(.*\.)?token_embedding\.weight",
            r"text_model\..*|transformer\.resblocks\.0\..*",
            r"!(visual|vision_model)\..*",
        ),
    ),
    RefusedLayout(
        "CLIP, SigLIP or a similar network under Hugging Face's names",
        "give its image tower under OpenAI's or timm's names",
        (rf"{ANY}embeddings\.patch_embedding\.weight",),
    ),
    RefusedLayout(
        "OpenCLIP with an image tower of timm's",
        "save model.visual.trunk.state_dict() alone, which is timm's layout",
        (r"visual\.trunk\..*",),
    ),
    RefusedLayout(
        "OpenCLIP with attention pooling",
        "its attention pooling differs from the one here",
        (r"(visual\.)?attn_pool\..*", r"(visual\.)?transformer\.resblocks\.0\..*"),
    ),
    RefusedLayout(
        "SAM's image encoder",
        "its attention is in windows with relative positions, which the network here lacks",
        (r"image_encoder\.(blocks|patch_embed)\..*",),
    ),
    RefusedLayout(
        "DINOv2 with blocks in chunks, as in its training",
        "join its blocks first (blocks.CHUNK.I to blocks.I)",
        (r"(.*\.)?blocks\.\d+\.\d+\.norm1\.weight",),
    ),
    RefusedLayout(
        "the captioner (a ViT followed by a decoder)",
        NO_NETWORK,
        (r"(vision_)?encoder\.patch\..*", r"decoder\..*cross_attention\..*"),
    ),
)


def why(names: Iterable[str]) -> str:
    """A clause saying what a file with these names is and why it is refused; empty where it is no such file."""
    names = dict.fromkeys(names)
    return next((f"is {one.title}: {one.why}" for one in REFUSED if matches(names, one.signature)), "")


def titles() -> list[str]:
    """What is refused, with the reason: one line for each layout."""
    return [f"{one.title}: {one.why}" for one in REFUSED]
