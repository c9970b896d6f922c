"""Layouts that are recognised but cannot be converted: what each is, and the reason or the remedy.

They are looked for first, as a file of one of these may also have the names of a layout that can be read.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from ..layout import matches

NO_NETWORK = "no network here has this architecture"
DECODER_ONLY = "no network here is a decoder without an encoder"
NO_ATTENTION = r"!.*(att|qkv|query|token|pos_emb|patch_emb).*"


@dataclass(frozen=True)
class RefusedLayout:
    """A layout that cannot be converted. `signature`: expressions that each match a whole name, or with "!" none."""

    title: str
    why: str
    signature: tuple[str, ...]


ANY = r"(.*[./])?"  # any prefix
BODY = (
    r"((model|transformer|gpt_neox|backbone|bert|roberta|distilbert|electra|module)\.)*"  # what holds a text's network
)
NO_IMAGES = r"!.*(patch_embed|vision|visual).*"  # else one part may be a ViT, which --key chooses
RESNET = (rf"{ANY}layer1\.0\.conv1\.weight", rf"{ANY}layer4\.0\.conv1\.weight", r"!.*attnpool\..*")
BEFORE = "give the weights that it was made from, or those that its library makes of it by dequantising"
QUANTISED = {  # {by whom: names that such files have}
    "GPTQ": (r".*\.qweight", r".*\.qzeros", r".*\.g_idx"),
    "AWQ": (r".*\.qweight", r".*\.qzeros", r"!.*\.g_idx"),
    "bitsandbytes, in 4 bits": (r".*\.(weight\.)?(absmax|quant_map|quant_state\.bitsandbytes__\w+)",),
    "bitsandbytes, in 8 bits": (r".*\.SCB",),
    "Quanto": (r".*\.weight\._(data|scale|qdata)",),
    "HQQ": (r".*\.W_q",),
    "AQLM": (r".*\.codebooks", r".*\.codes"),
    "compressed-tensors": (r".*\.weight_packed",),
    "its library": (r".*\.(weight_scale(s|_inv)?|weight_zero_point|_packed_params\.dtype|input_scale)",),
}
REFUSED = (
    *(RefusedLayout(f"quantised by {who}", BEFORE, names) for who, names in QUANTISED.items()),
    RefusedLayout(
        "a LoRA adapter of peft, which has no weights of its own",
        "give the network that it is for, and `adapt lora=merge:FOLDER`",
        (r"base_model\.model\..*\.lora_\w+(\.weight)?", r"!.*\.base_layer\..*"),
    ),
    RefusedLayout(
        "a model of peft that is not merged",
        "save model.merge_and_unload().state_dict()",
        (r".*\.base_layer\.weight", r".*\.lora_A\..*"),
    ),
    RefusedLayout(
        "a network with factors of LoRA beside its weights",
        "merge them with the library that trained it, and save the state_dict() of that",
        (rf"{ANY}lora_(A|B|a|b|down|up).*",),
    ),
    RefusedLayout(
        "T5Gemma",
        "it has rotary positions, grouped keys and norms around each part, which the encoder-decoder here lacks",
        (rf"{BODY}encoder\.(text_model\.)?layers\.0\.pre_self_attn_layernorm\..*",),
    ),
    RefusedLayout(
        "a VisionEncoderDecoder without GPT-2 (transformers)",
        "the captioner here has the decoder of GPT-2; take its ViT alone with `key encoder`",
        (
            r"encoder\.encoder\.layer\.0\.layernorm_before\.weight",
            r"decoder\..*",
            r"!decoder\.transformer\.h\.0\.crossattention\.q_attn\.weight",
            r"!.*(lambda_1|relative_position).*",
        ),
    ),
    RefusedLayout("a ViT behind a ResNet (timm's hybrid stem)", NO_NETWORK, (rf"{ANY}patch_embed\.backbone\..*",)),
    RefusedLayout("a ViT behind a ResNet (Google's hybrid)", NO_NETWORK, (rf"{ANY}conv_root[./]kernel",)),
    RefusedLayout("a ViT behind convolutions (torchvision)", NO_NETWORK, (rf"{ANY}conv_proj\.conv_last\.weight",)),
    RefusedLayout(
        "a ResNet without batch norm (timm)",
        "the one here has stored statistics in its norms",
        (*RESNET, r"!.*running_var"),
    ),
    RefusedLayout(
        "a ResNet with another stem or other blocks than torchvision's (timm)",
        NO_NETWORK,
        (
            *RESNET,
            rf"{ANY}(conv1\.\d+\..*|layer\d\.\d+\.(?!((conv|bn)[123]|downsample\.[01])\.\w+$).*)",
        ),
    ),
    RefusedLayout(
        "a ResNet without its head",
        "the one here has its head; give the whole file, with fc.weight and fc.bias",
        (*RESNET, rf"!{ANY}fc\.weight"),
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
        "Sapiens2, or another ViT with grouped keys and values (timm)",
        "the network here has as many heads of keys and values as of queries",
        (rf"{ANY}blocks\.\d+\.attn\.k_proj\.bias", rf"{ANY}blocks\.0\.gamma_1", rf"!{ANY}blocks\.0\.gamma_2"),
    ),
    RefusedLayout(
        "a ViT with rotary positions under its publisher's names (EVA-02, DINOv3, RoPE-ViT)",
        "networks with rotary positions are read under timm's names: load it into timm's class, and save that",
        (rf"{ANY}(rope|rope_embed|rope_embeddings)\.(?!freqs$).*", r"!rope_embed\.periods"),
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
        "the text tower of CLIP alone",
        "it encodes texts; give the file with the image tower",
        (
            r"(.*\.)?token_embedding\.weight",
            r"text_model\..*|transformer\.resblocks\.0\..*",
            r"!(visual|vision_model)\..*",
        ),
    ),
    RefusedLayout(
        "a relative of CLIP and SigLIP under Hugging Face's names (BLIP and others)",
        "its tower has other attention; give its image tower under OpenAI's or timm's names",
        (r"(vision_model\.)?embeddings\.patch_embedding\.weight", r"!.*encoder\.layers\.0\.self_attn\.q_proj\.weight"),
    ),
    RefusedLayout(
        "a model around the image tower of CLIP, SigLIP or a similar network (Hugging Face)",
        "only its tower can be read",
        (
            rf"{ANY}embeddings\.patch_embedding\.weight",
            r"!(vision_model\.)?embeddings\.patch_embedding\.weight",
        ),
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
        "a ViT with blocks in chunks, blocks.CHUNK.I, of which some are missing",
        "a file that is read has all chunks, and I counts from 0 over all of them or in each",
        (r"(.*\.)?blocks\.\d+\.\d+\.norm1\.weight",),
    ),
    RefusedLayout(
        "ConvMixer",
        "it has convolutions where the network here has attention",
        (rf"{ANY}\d+\.0\.fn\.0\.weight", rf"{ANY}\d+\.0\.fn\.2\.running_mean"),
    ),
    RefusedLayout(
        "an MLP-Mixer, ResMLP or gMLP",
        "it has layers across tokens where the network here has attention",
        (rf"{ANY}(mlp_tokens|linear_tokens|token_mixing|mlp_channels)[./].*",),
    ),
    RefusedLayout(
        "an MLP-Mixer (mlp-mixer-pytorch)",
        "it has layers across tokens where the network here has attention",
        (r"(.*\.)?\d+\.0\.fn\.0\.weight", r"(.*\.)?\d+\.0\.norm\.weight", r"(.*\.)?\d+\.1\.fn\.3\.weight"),
    ),
    RefusedLayout(
        "a decoder-only language model (GPT-2, BLOOM, Falcon, ...)",
        DECODER_ONLY,
        (rf"{BODY}(wte|w|word_embeddings|tokens_embed)\.weight", rf"{BODY}(h\.0|blocks\.0\.attn)\..*", NO_IMAGES),
    ),
    RefusedLayout(
        "a decoder-only language model (LLaMA, Mistral, Qwen, ...)",
        DECODER_ONLY,
        (
            rf"{BODY}(embed_tokens|embed_in|tok_embeddings)\.weight",
            rf"{BODY}layers\.0\.(self_attn|attention|mlp|feed_forward)\..*",
            r"!(.*\.)?(encoder|decoder)\..*",
            NO_IMAGES,
        ),
    ),
    RefusedLayout(
        "a decoder without an encoder (OPT, BartForCausalLM, ...)",
        DECODER_ONLY,
        (rf"{BODY}decoder\.embed_tokens\.weight", rf"{BODY}decoder\.layers\.0\..*", r"!(.*\.)?encoder\..*", NO_IMAGES),
    ),
    RefusedLayout(
        "an encoder of texts (BERT and others)",
        NO_NETWORK,
        (rf"{BODY}embeddings\.word_embeddings\.weight", rf"{BODY}(encoder\.)?layer\.0\.attention\..*", NO_IMAGES),
    ),
    RefusedLayout(
        "LongT5",
        "its encoder attends to neighbours and summaries, where the network here attends to all tokens",
        (rf"{BODY}encoder\.block\.0\.layer\.0\.(Local|TransientGlobal)SelfAttention\..*",),
    ),
    RefusedLayout(
        "Switch Transformers",
        "it chooses an expert for each token, and the network here has one mlp",
        (rf"{BODY}encoder\.block\.0\.layer\.0\.SelfAttention\..*", rf"{BODY}encoder\.block\.\d+\.layer\.1\.mlp\..*"),
    ),
    RefusedLayout("Pop2Piano", "its encoder reads sound", (r"mel_conditioner\..*",)),
    RefusedLayout(
        "Whisper", "its encoder reads sound", (rf"{BODY}encoder\.conv2\.weight", rf"{BODY}decoder\.layers\.0\..*")
    ),
    RefusedLayout(
        "Mamba", "it has state spaces where the network here has attention", (rf"{BODY}layers\.0\.mixer\.A_log",)
    ),
    RefusedLayout(
        "CaiT",
        "its attention mixes its heads, and its class token has blocks of its own",
        (rf"{ANY}blocks_token_only\.0\..*",),
    ),
    RefusedLayout(
        "Hiera, or the image encoder of SAM 2",
        "its width grows from block to block",
        (rf"{ANY}blocks\.\d+\.proj\.weight", rf"{ANY}blocks\.0\.attn\.qkv\.weight"),
    ),
    RefusedLayout(
        "a convolutional network (ConvNeXt and others)",
        NO_NETWORK,
        (rf"{ANY}stages\.0\.(blocks\.)?0\.(conv_dw|dwconv|conv1)\..*", NO_ATTENTION),
    ),
    RefusedLayout(
        "a convolutional network (it has batch norms and no attention)",
        NO_NETWORK,
        (r".*running_mean", NO_ATTENTION, rf"!{ANY}layer4\.0\.conv1\.weight"),
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
