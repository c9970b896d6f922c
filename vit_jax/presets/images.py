"""Presets that learn image classification, the last two on images of the user's own: from given weights, or not."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Literal

from ..augmentation.config import ImageAugment
from ..config.network import NetworkConfig
from ..config.run import LossConfig, OptimConfig, RunConfig
from ..data.images.config import ImageData
from ..models.vit_config import ViTConfig, sized_config
from ..tasks.classify.distil_spec import DistilLoss
from ..tasks.table import untrained_run
from .variants import FEW_EPOCHS, Preset

# For type checkers: the names of presets whose network is a ViT, and what they are.
ImageName = Literal[
    "digits", "mnist", "mnist-stem", "mnist-20x1", "cifar10-48x4", "cifar10-48x4-distil", "cifar10-stem",
    "cifar10-128x6", "cifar10-128x6-gap", "cifar10-256x6", "cifar100-256x24", "cifar100-768x3", "vit-1024x6",
    "distil-1024x6",
    "mnist-20x1-notebook", "mnist-20x1-fast", "mnist-20x1-best", "cifar10-48x4-notebook", "cifar10-48x4-fast",
    "cifar10-48x4-best", "cifar10-128x6-notebook", "cifar10-128x6-fast", "cifar10-128x6-best", "cifar10-256x6-notebook",
    "cifar10-256x6-fast", "cifar10-256x6-best", "cifar100-256x24-notebook", "cifar100-256x24-fast",
    "cifar100-256x24-best", "cifar100-768x3-notebook", "cifar100-768x3-fast", "cifar100-768x3-best",
    "vit-ti8", "vit-ti14", "vit-ti16", "vit-ti32", "vit-s8", "vit-s14", "vit-s16", "vit-s32",
    "vit-b8", "vit-b14", "vit-b16", "vit-b32", "vit-l8", "vit-l14", "vit-l16", "vit-l32",
    "vit-h8", "vit-h14", "vit-h16", "vit-h32", "vit-g8", "vit-g14", "vit-g16", "vit-g32",
]  # fmt: skip
ImagePreset = Preset[ViTConfig]


def digits() -> Preset:
    model = ViTConfig(
        image=8, channels=1, patch=2, classes=10, width=64, depth=3, heads=4, hidden=128,
        init_std=0.1, position_std=0.2, token_std=0.2,
    )  # fmt: skip
    return Preset(
        RunConfig(
            task="classify",
            model=model,
            data=ImageData(source="digits"),
            augment=ImageAugment(),
            optim=OptimConfig(lr=2e-3, beta2=0.99, weight_decay=0.05, schedule="one_cycle", pct_start=0.2),
            loss=LossConfig(label_smoothing=0.1),
            epochs=30,
            batch=32,
        ),
        "handwritten digits of scikit-learn; about a minute",
        "1,797 handwritten digits, which are part of scikit-learn, so nothing is downloaded. "
        "A plain ViT, 64 wide, 3 blocks, in a form that timm and Hugging Face have too; about a minute on two cores.",
    )


def mnist(**fields: Any) -> Preset:
    model = ViTConfig(
        image=28, channels=1, patch=4, classes=10, width=64, depth=4, heads=4, hidden=128,
        init_std=0.1, position_std=0.2, token_std=0.2, **fields,
    )  # fmt: skip
    return Preset(
        RunConfig(
            task="classify",
            model=model,
            data=ImageData(source="mnist"),
            augment=ImageAugment(crop_padding=2),
            optim=OptimConfig(lr=3e-3, beta2=0.99, weight_decay=0.05, schedule="one_cycle"),
            epochs=5,
            batch=128,
        ),
        "MNIST, 64 wide, 4 blocks",
        "MNIST, 64 wide, 4 blocks on 4x4 patches; test accuracy 0.987 (one seed).",
    )


def mnist_stem() -> Preset:
    run = mnist(stem=(32, 64), init="fan_in", head_zero=True).run
    return Preset(
        replace(run, optim=FEW_EPOCHS, epochs=6),
        "MNIST, 2 convolutions, then 4 blocks",
        "mnist with two convolutions of stride 2 (32 and 64 wide) before its 49 tokens, and Muon for the hidden "
        "kernels: test accuracy 0.995 (one seed, trained on all of train: --data.validation 0).",
    )


def mnist_20x1() -> Preset:
    model = ViTConfig(
        image=28, channels=1, patch=4, classes=10, width=20, depth=1, heads=2, hidden=20, eps=1e-5,
        activation="relu", position="sincos1d", final_norm=False, init="torch",
    )  # fmt: skip
    return Preset(
        RunConfig(
            task="classify",
            model=model,
            data=ImageData(source="mnist"),
            augment=ImageAugment(normalize="none"),
            optim=OptimConfig(lr=2e-2, beta2=0.99, schedule="one_cycle"),
            epochs=5,
            batch=32,
        ),
        "MNIST, 20 wide, one block",
        "MNIST, the smallest ViT of the notebooks: 20 wide, one block. Corrected: patches are 4x4 tiles, not strips of "
        "a flattened image; query, key and value are trained; they project the whole token instead of slices of it, "
        "and attention has an output projection; LayerNorm is over a token, not over the whole image; the loss takes "
        "logits, not probabilities. Positions start as the notebook's sinusoids and are trained.",
    )


def cifar100_768x3() -> Preset:
    model = ViTConfig(
        image=32, patch=8, classes=100, width=768, depth=3, heads=8, hidden=2048, eps=1e-5,
        stem_bias=False, cls_token=False, position="sincos1d", norm_first=False, final_norm=False,
        activation="relu", dropout=0.1, attention_dropout=0.1, activation_dropout=0.1, pool="mean",
        init="torch", attention_init="torch",
    )  # fmt: skip
    return Preset(
        RunConfig(
            task="classify",
            model=model,
            data=ImageData(source="cifar100"),
            augment=ImageAugment(crop_padding=4, flip=True),
            optim=OptimConfig(lr=5e-4, weight_decay=0.1, warmup=1.0, clip=1.0),
            epochs=50,
            batch=128,
        ),
        "CIFAR-100, 768 wide, 3 post-norm layers",
        "CIFAR-100, 768 wide, 3 post-norm layers on 8x8 patches. Corrected: attention is among the tokens of an image, "
        "not across the batch; the validation loss is a mean over images, like the training loss.",
    )


def vit_1024x6(heads: int = 16, **fields: Any) -> Preset:
    model = ViTConfig(
        image=256, patch=32, classes=0, width=1024, depth=6, heads=heads, head_width=64, hidden=2048,
        eps=1e-5, query_bias=False, key_bias=False, value_bias=False, dropout=0.1,
        attention_dropout=0.1, activation_dropout=0.1, embedding_dropout=0.1, init="torch",
        token_std=1.0, position_std=1.0, **fields,
    )  # fmt: skip
    return Preset(
        RunConfig(
            task="classify",
            model=model,
            data=ImageData(source="folder:images"),
            augment=ImageAugment(crop_padding=16, flip=True),
            optim=OptimConfig(lr=3e-4, weight_decay=0.05, warmup=5.0, clip=1.0),
            epochs=100,
            batch=128,
        ),
        "a folder of images, 1024 wide, 6 blocks",
        "The network in the README of vit-pytorch, 1024 wide, 6 blocks, for a folder of images "
        "(--data.source folder:PATH); the folder sets the number of classes.",
    )


def distil_1024x6() -> Preset:
    # As in the notebook's vit-pytorch, 0.29: a LayerNorm before each head instead of one after the last block.
    heads = dict(final_norm=False, head_norm=True, distill_head=True, distill_norm=True)
    run = vit_1024x6(8, distill_token=True, distill_position=False, **heads).run
    return Preset(
        replace(run, task="distil", loss=DistilLoss()),
        "as vit-1024x6, with a --teacher",
        "The DistillableViT in the README of vit-pytorch, 1024 wide, 6 blocks, 8 heads, for a folder of images "
        "(--data.source folder:PATH) and a classifier of the same classes (--teacher), which it learns to imitate: "
        "soft distillation with T 3, alpha 0.5; it predicts by the class token alone. Corrected: the teacher is in "
        "evaluation mode (in the notebook its batch norm used the statistics of each batch of noise).",
    )


def cifar10_48x4(**fields: Any) -> Preset:
    model = ViTConfig(
        image=32, patch=4, classes=10, width=48, depth=4, heads=4, hidden=192, eps=1e-5,
        activation="gelu_tanh", init="normal", **fields,
    )  # fmt: skip
    return Preset(
        RunConfig(
            task="classify",
            model=model,
            data=ImageData(source="cifar10"),
            augment=ImageAugment(crop_padding=4, flip=True),
            optim=OptimConfig(lr=2e-3, weight_decay=0.05, warmup=5.0, clip=1.0),
            epochs=100,
            batch=256,
        ),
        "CIFAR-10, 48 wide, 4 blocks",
        "CIFAR-10, 48 wide, 4 blocks on 4x4 patches, tanh GELU. Corrected: there is a final LayerNorm; "
        "initial weights are normal with std 0.02 (the notebook calls a function that it never defines); "
        "the learning rate has a schedule; choices are made on validation, not on test.",
    )


def cifar10_48x4_distil() -> Preset:
    run = cifar10_48x4(distill_token=True, distill_head=True, pool="cls_distill").run
    return Preset(
        replace(run, task="distil", loss=DistilLoss()),
        "as cifar10-48x4, with a --teacher",
        "cifar10-48x4 with a distillation token and head as in DeiT (Touvron et al. 2021, arXiv 2012.12877), which "
        "learns to imitate a trained classifier of CIFAR-10 (--teacher): soft distillation with T 3, alpha 0.5; "
        "--loss.hard for the teacher's predicted class. It predicts by the mean of both heads.",
    )


def cifar10_stem() -> Preset:
    model = ViTConfig(
        image=32, patch=8, classes=10, width=128, depth=4, heads=4, hidden=256, stem=(32, 64, 128),
        cls_token=False, pool="mean", init="fan_in", head_zero=True,
    )  # fmt: skip
    return Preset(
        RunConfig(
            task="classify",
            model=model,
            data=ImageData(source="cifar10"),
            augment=ImageAugment(crop_padding=3, flip=True),
            optim=replace(FEW_EPOCHS, pct_start=0.2),
            loss=LossConfig(label_smoothing=0.1),
            epochs=16,
            batch=250,
        ),
        "CIFAR-10, 3 convolutions, then 4 blocks",
        "CIFAR-10 in 16 epochs, for minutes on two CPU cores: three convolutions of stride 2 (32, 64, 128 wide) make "
        "16 tokens of an image, for 4 blocks, 128 wide; the head takes their mean. Muon updates the hidden kernels; "
        "what matters most is their weight decay: validation accuracy after 3 epochs is 0.664 without it, 0.676 with "
        "0.05, 0.684 with 0.1, and 0.698 with 0.2 and a head that starts at 0. On test 0.846 (one seed, trained on "
        "all of train: --data.validation 0).",
    )


def cifar10_128x6(**fields: Any) -> Preset:
    model = ViTConfig(
        image=32, patch=8, classes=10, width=128, depth=6, heads=4, hidden=256, init="torchvision",
        attention_init="torch", token_std=0.0, head_zero=True, **fields,
    )  # fmt: skip
    return Preset(
        RunConfig(
            task="classify",
            model=model,
            data=ImageData(source="cifar10"),
            augment=ImageAugment(flip=True),
            optim=FEW_EPOCHS,
            loss=LossConfig(label_smoothing=0.1),
            epochs=2,
            batch=64,
        ),
        "CIFAR-10 in 2 epochs, 128 wide, 6 blocks",
        "CIFAR-10 in two epochs, a ViT in the form of torchvision: 128 wide, 6 blocks on 8x8 patches, the head starts "
        "at 0. Corrected: inputs are normalised; the schedule fits two epochs; weights start at random, not from "
        "overfitting one batch; the test split is evaluated once. AdamW at 1e-3, without label smoothing, reaches "
        "0.508 on test; Muon 0.588 (one seed).",
    )


def cifar10_128x6_gap() -> Preset:
    return Preset(
        cifar10_128x6(cls_token=False, pool="mean", position="sincos1d", position_trained=False).run,
        "CIFAR-10, as 128x6 with average pooling",
        "cifar10-128x6 as the text of its notebook describes it: average pooling and fixed 1-D sinusoids.",
    )


def _relu_stem(depth: int, classes: int, source: str, lr: float, dropout: float) -> RunConfig:
    model = ViTConfig(
        image=32, patch=4, classes=classes, width=256, depth=depth, heads=8, hidden=512, eps=1e-5,
        stem_activation="relu", dropout=dropout, attention_dropout=dropout,
        activation_dropout=dropout, head_hidden=512, head_activation="relu", init="torch",
        attention_init="torch", token_std=1.0, position_std=1.0,
    )  # fmt: skip
    return RunConfig(
        task="classify",
        model=model,
        data=ImageData(source=source),
        augment=ImageAugment(crop_padding=4, flip=True),
        optim=OptimConfig(lr=lr, weight_decay=0.05, schedule="one_cycle", clip=1.0),
        loss=LossConfig(label_smoothing=0.1),
        epochs=180,
        batch=256,
    )


_CORRECTED = (
    " Corrected: there is a final LayerNorm; the schedule has as many steps as the run, so the rate ends near 0; "
    "weight decay is on kernels only; momentum is not cycled; F1 is computed on the whole split."
)


def cifar100_256x24() -> Preset:
    return Preset(
        _relu_stem(24, 100, "cifar100", 6e-4, 0.1),
        "CIFAR-100, 256 wide, 24 blocks",
        "CIFAR-100, 256 wide, 24 blocks, ReLU after the patch projection and in the head. Its 180 epochs are for a "
        "GPU; cifar100-256x24-fast takes 5,728 core-seconds of a CPU." + _CORRECTED,
    )


def cifar10_256x6() -> Preset:
    return Preset(
        _relu_stem(6, 10, "cifar10", 1e-3, 0.2),
        "CIFAR-10, 256 wide, 6 blocks",
        "CIFAR-10, 256 wide, 6 blocks, ReLU after the patch projection and in the head. Its 180 epochs are for a GPU; "
        "cifar10-256x6-fast takes 4,922 core-seconds of a CPU." + _CORRECTED + " The head has 10 classes, not 100.",
    )


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
