"""What people call the layouts, besides the names that `python -m convert formats` lists."""

from __future__ import annotations

# {name of a layout without its version: other names of it}, in lower case, with hyphens between words.
OTHER_NAMES = {
    our: tuple(names.split())
    for our, names in {
        "augreg": "google google-research vision-transformer google-vit vit-google i21k",
        "big-vision": "bigvision google-big-vision",
        "bart": "huggingface-bart facebook-bart",
        "clip": "openai openai-clip clip-openai open-clip openclip clip-vit",
        "cs231n": "cs-231n stanford-cs231n",
        "dinov2": "meta facebook meta-ai fair facebookresearch dino-v2 dino2 meta-dinov2 facebook-dinov2",
        "dinov3": "dino-v3 dino3 meta-dinov3 facebook-dinov3",
        "flax-seq2seq": "huggingface-flax-seq2seq",
        "flax-t5": "huggingface-flax-t5 flax-mt5",
        "huggingface": "hf transformers hugging-face huggingface-vit huggingface-deit vit-mae vit-msn deit",
        "huggingface-clip": "clip-vision-model",
        "huggingface-dinov2": "dinov2-with-registers huggingface-dino-v2",
        "huggingface-dinov3": "dinov3-vit huggingface-dino-v3",
        "huggingface-flax": "flax flax-vit huggingface-jax",
        "huggingface-siglip": "siglip siglip-vision-model",
        "huggingface-siglip2": "siglip2 siglip-2 siglip2-vision-model naflex",
        "m2m-100": "m2m100 m2m nllb nllb-200 nllb200 huggingface-nllb huggingface-m2m-100",
        "marian": "marianmt marian-mt opus opus-mt helsinki-nlp huggingface-marian",
        "mbart": "mbart50 mbart-50 mbart-cc25 huggingface-mbart",
        "simple-vit": "simplevit",
        "t5": "flan-t5 flan t5-1-1 byt5 ul2 huggingface-t5",
        "timm": "pytorch-image-models rwightman timm-vit huggingface-timm",
        "timm-eva": "eva eva02 eva-02 perception-encoder",
        "torch-ref": "torchref twin",
        "torch-transformer": "torch-nn-transformer nn-transformer torch-nn",
        "torchvision": "torch-vision tv torchvision-vit",
        "torchvision-resnet": "resnet",
        "vision-encoder-decoder": "visionencoderdecoder huggingface-vision-encoder-decoder",
        "vit-jax": "vitjax ours own",
        "vit-pytorch": "vitpytorch lucidrains",
        "vit-pytorch-distill": "distillwrapper distill-wrapper",
    }.items()
}
# {name: the others that it stands for as well}: of the files of a library, where the layout of the name does not fit.
FAMILIES = {
    our: tuple(others.split())
    for our, others in {
        "augreg": "big-vision",
        "dinov2": "dinov3",
        "huggingface": "huggingface-clip huggingface-dinov2 huggingface-dinov3 huggingface-siglip huggingface-siglip2 "
        "marian bart mbart m2m-100 t5 mt5 umt5 vision-encoder-decoder",
        "huggingface-flax": "flax-seq2seq flax-t5",
        "timm": "timm-eva",
        "torchvision": "torchvision-resnet",
        "vit-pytorch": "simple-vit vit-pytorch-distill",
    }.items()
}
_CANONICAL = {other: our for our, others in OTHER_NAMES.items() for other in others}


def canonical(name: str) -> str:
    """The name of a layout, without its version, as `formats` lists it, where it is known by another; else as given."""
    plain = name.strip().casefold().replace("_", "-").replace(" ", "-").replace(".", "-").replace("'s", "")
    for prefix in ("hf-", "transformers-", "hugging-face-"):
        if plain.startswith(prefix) and plain not in _CANONICAL:
            plain = "huggingface-" + plain.removeprefix(prefix)
    return _CANONICAL.get(plain, plain)
