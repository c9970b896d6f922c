"""Presets for images of the user's own, from given weights or from random ones."""

from __future__ import annotations

from dataclasses import replace

from ..augmentation.config import ImageAugment
from ..config.network import NetworkConfig
from ..config.run import OptimConfig, RunConfig
from ..data.images.config import ImageData
from ..models.sizes import sized_config
from ..tasks.table import untrained_run
from .entry import Preset


def finetune() -> Preset:
    return Preset(
        RunConfig(
            task="classify",
            model=sized_config("vit-s16", classes=0, head_zero=True),
            data=ImageData(source=""),
            augment=ImageAugment(flip=True, normalize="half"),
            optim=OptimConfig(lr=3e-5, weight_decay=0.1, warmup=1.0, clip=1.0),
            epochs=10,
            batch=32,
        ),
        "given weights (--init) on your images (--data.source)",
        "Ten epochs at a small rate, for the weights of --init; without these it is a ViT-S/16 from random weights, on "
        "images of yours: --data.source folder:PATH, FILE.npz or a set by name, which sets the number of classes. The "
        "optimizer is that of Wortsman et al. 2022 (arXiv 2109.01903): AdamW, lr 3e-5, decay 0.1, a warm-up, cosine "
        "to 0, gradients clipped at 1, ten epochs; their batch is 512, here it is 32, for small sets. The head starts "
        "at 0, as in Dosovitskiy et al. 2021 (arXiv 2010.11929). Compare rates from 1e-5 to 1e-4 on validation.",
    )


def finetuned(network: type[NetworkConfig]) -> RunConfig:
    """The run of `finetune` for weights of a network: of another than a ViT with the task and the data of that."""
    run = finetune().run
    if isinstance(run.model, network):
        return run
    other = untrained_run(network())
    data = replace(type(other.data)(), source=run.data.source)
    return replace(run, task=other.task, model=other.model, data=data, augment=other.augment)


def published_preset(name: str) -> Preset:
    """`vit-SIZEPATCH`, from random weights."""
    model = sized_config(name, classes=0)
    return Preset(
        RunConfig(
            task="classify",
            model=model,
            data=ImageData(source=""),
            augment=ImageAugment(crop_padding=28, flip=True, normalize="half"),
            optim=OptimConfig(lr=2.5e-4, weight_decay=0.1, warmup=8.0, clip=1.0),
            epochs=90,
            batch=256,
        ),
        f"ViT, {model.width} wide, {model.depth} blocks on {model.patch}x{model.patch} patches",
        f"A plain ViT, {model.width} wide, {model.depth} blocks on {model.patch}x{model.patch} patches of 224x224 "
        "pixels, from random weights, on images of yours: --data.source folder:PATH, FILE.npz or a set by name, "
        "which sets the number of classes. The optimizer is that of Beyer et al. 2022 (arXiv 2205.01580) for "
        "ImageNet: AdamW, warm-up of 8 epochs, cosine to 0, 90 epochs, gradients clipped at 1, decay 0.1 (theirs, "
        "1e-4, is not multiplied by the rate 1e-3), and their rate at batch 1024 scaled to 256. Images are flipped and "
        "shifted by up to 28 pixels, where they use RandAugment and mixup. With few images, start from weights "
        "(--init).",
    )
