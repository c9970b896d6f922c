"""Named runs (presets) and named sizes of Vision Transformers.

A preset is a RunConfig with a help text: what it trains, what it corrects in the notebook that it comes from, and
measured results.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

from .config import (
    ImageAugment,
    ImageData,
    LossConfig,
    OptimConfig,
    RunConfig,
    SentenceData,
    TransformerConfig,
    ViTConfig,
    nearest,
)
from .errors import UserError


class Shape(NamedTuple):
    """The sizes of a ViT: width D, depth L, hidden width of the mlp F, heads H."""

    width: int
    depth: int
    hidden: int
    heads: int


# Ti and S: Touvron et al. 2021 (DeiT, arXiv 2012.12877), table 1. B, L and H: Dosovitskiy et al. 2021 (arXiv
# 2010.11929), table 1. g: Zhai et al. 2022 (arXiv 2106.04560), table 2.
SIZES = {
    "ti": Shape(192, 12, 768, 3),
    "s": Shape(384, 12, 1536, 6),
    "b": Shape(768, 12, 3072, 12),
    "l": Shape(1024, 24, 4096, 16),
    "h": Shape(1280, 32, 5120, 16),
    "g": Shape(1408, 40, 6144, 16),
}


def sized(name: str, classes: int = 1000, image: int = 224, **fields: Any) -> ViTConfig:
    """The config of `vit-SIZEPATCH`, such as vit-s16, vit-b32, vit-h14; `fields` are other fields of ViTConfig.

    Raises UserError on an unknown name.
    """
    size, patch = name.lower().removeprefix("vit-").rstrip("0123456789"), name[len(name.rstrip("0123456789")) :]
    if not name.lower().startswith("vit-") or size not in SIZES or not patch or int(patch) < 1:
        raise UserError(
            f"there is no network {name!r}{nearest(name, [f'vit-{s}{p}' for s in SIZES for p in (14, 16, 32)])}"
        )
    shape = SIZES[size]._asdict()
    return ViTConfig(image=image, patch=int(patch), classes=classes, **{**shape, **fields})


@dataclass(frozen=True)
class Preset:
    """A named run and its help text."""

    run: RunConfig
    help: str


def _digits() -> Preset:
    model = ViTConfig(
        image=8,
        channels=1,
        patch=2,
        classes=10,
        width=64,
        depth=3,
        heads=4,
        hidden=128,
        init_std=0.1,
        position_std=0.2,
        token_std=0.2,
    )
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
        "1,797 handwritten digits, which are part of scikit-learn, so nothing is downloaded. "
        "A plain ViT, 64 wide, 3 blocks, in a form that timm and Hugging Face have too; about a minute on two cores.",
    )


def _numbers() -> Preset:
    model = TransformerConfig(
        width=64,
        heads=4,
        hidden=128,
        encoder_depth=2,
        decoder_depth=2,
        tie="all",
        scale_embedding=True,
        init="fan_in",
        embedding_std=0.125,
    )
    return Preset(
        RunConfig(
            task="translate",
            model=model,
            data=SentenceData(source="numbers"),
            optim=OptimConfig(name="adam", lr=2e-3, schedule="inverse_sqrt", warmup=1.6),
            loss=LossConfig(label_smoothing=0.1),
            epochs=8,
            batch=250,
        ),
        "English number words to German ones (twenty one thousand one: ein und zwanzig tausend eins), generated, "
        "so nothing is downloaded. It translates all of 1,000 unseen numbers below 100,000 exactly (three seeds, last "
        "step; about 70 CPU seconds each), and none that are longer than those in training. To check that it needs "
        "the sources: --data.shuffle-sources.",
    )


def _transformer_512x6() -> Preset:
    model = TransformerConfig(
        width=512,
        heads=6,
        head_width=85,
        hidden=2048,
        encoder_depth=6,
        decoder_depth=6,
        activation="relu",
        norm_first=False,
        final_norm=False,
        eps=1e-5,
        dropout=0.1,
        attention_dropout=0.1,
        activation_dropout=0.1,
        embedding_dropout=0.1,
    )
    return Preset(
        RunConfig(
            task="translate",
            model=model,
            data=SentenceData(source="pairs:en-de:multi30k", tokens=4608, lengths=(12, 16, 24, 48)),
            optim=OptimConfig(name="adam", lr=5e-4, beta2=0.98, schedule="inverse_sqrt", warmup=10, clip=1.0),
            loss=LossConfig(label_smoothing=0.1),
            epochs=30,
            batch=64,
        ),
        "The encoder-decoder of the second notebook: 6+6 post-norm layers, 512 wide, 6 heads of 85. The notebook's "
        "network takes and returns vectors; here it has embeddings and a head, and reads files train.en, train.de, ... "
        "(--data.source pairs:en-de:FOLDER). 200 small steps on Multi30k lower the loss from 8.4 to 6.0. "
        "Corrected: positions have one frequency per pair of columns (the notebook has a single one: model.position "
        "one_frequency); padding and later target tokens are masked; the head gives logits.",
    )


def _mnist() -> Preset:
    model = ViTConfig(
        image=28,
        channels=1,
        patch=4,
        classes=10,
        width=64,
        depth=4,
        heads=4,
        hidden=128,
        init_std=0.1,
        position_std=0.2,
        token_std=0.2,
    )
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
        "MNIST, 64 wide, 4 blocks on 4x4 patches; test accuracy 0.987 (one seed).",
    )


def _mnist_20x1() -> Preset:
    model = ViTConfig(
        image=28,
        channels=1,
        patch=4,
        classes=10,
        width=20,
        depth=1,
        heads=2,
        hidden=20,
        eps=1e-5,
        activation="relu",
        position="sincos1d",
        final_norm=False,
        init="torch",
    )
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
        "MNIST, the smallest ViT of the notebooks: 20 wide, one block. Corrected: patches are 4x4 tiles, not strips of "
        "a flattened image; query, key and value are trained; they project the whole token instead of slices of it, "
        "and attention has an output projection; LayerNorm is over a token, not over the whole image; the loss takes "
        "logits, not probabilities. Positions start as the notebook's sinusoids and are trained.",
    )


def _cifar100_768x3() -> Preset:
    model = ViTConfig(
        image=32,
        patch=8,
        classes=100,
        width=768,
        depth=3,
        heads=8,
        hidden=2048,
        eps=1e-5,
        stem_bias=False,
        cls_token=False,
        position="sincos1d",
        norm_first=False,
        final_norm=False,
        activation="relu",
        dropout=0.1,
        attention_dropout=0.1,
        activation_dropout=0.1,
        pool="mean",
        init="torch",
        attention_init="torch",
    )
    return Preset(
        RunConfig(
            task="classify",
            model=model,
            data=ImageData(source="cifar100"),
            augment=ImageAugment(crop_padding=4, flip=True),
            optim=OptimConfig(lr=5e-4, weight_decay=0.1, warmup=1, clip=1.0),
            epochs=50,
            batch=128,
        ),
        "CIFAR-100, 768 wide, 3 post-norm layers on 8x8 patches. Corrected: attention is among the tokens of an image, "
        "not across the batch; the validation loss is a mean over images, like the training loss.",
    )


def _vit_1024x6() -> Preset:
    model = ViTConfig(
        image=256,
        patch=32,
        classes=0,
        width=1024,
        depth=6,
        heads=16,
        head_width=64,
        hidden=2048,
        eps=1e-5,
        query_bias=False,
        key_bias=False,
        value_bias=False,
        dropout=0.1,
        attention_dropout=0.1,
        activation_dropout=0.1,
        embedding_dropout=0.1,
        init="torch",
        token_std=1.0,
        position_std=1.0,
    )
    return Preset(
        RunConfig(
            task="classify",
            model=model,
            data=ImageData(source="folder:images"),
            augment=ImageAugment(crop_padding=16, flip=True),
            optim=OptimConfig(lr=3e-4, weight_decay=0.05, warmup=5, clip=1.0),
            epochs=100,
            batch=128,
        ),
        "The network in the README of vit-pytorch, 1024 wide, 6 blocks, for a folder of images "
        "(--data.source folder:PATH); the folder sets the number of classes.",
    )


def _cifar10_48x4() -> Preset:
    model = ViTConfig(
        image=32,
        patch=4,
        classes=10,
        width=48,
        depth=4,
        heads=4,
        hidden=192,
        eps=1e-5,
        activation="gelu_tanh",
        init="normal",
    )
    return Preset(
        RunConfig(
            task="classify",
            model=model,
            data=ImageData(source="cifar10"),
            augment=ImageAugment(crop_padding=4, flip=True),
            optim=OptimConfig(lr=2e-3, weight_decay=0.05, warmup=5, clip=1.0),
            epochs=100,
            batch=256,
        ),
        "CIFAR-10, 48 wide, 4 blocks on 4x4 patches, tanh GELU. Corrected: there is a final LayerNorm; "
        "initial weights are normal with std 0.02 (the notebook calls a function that it never defines); "
        "the learning rate has a schedule; choices are made on validation, not on test.",
    )


def _cifar10_128x6(**fields: Any) -> Preset:
    model = ViTConfig(
        image=32,
        patch=8,
        classes=10,
        width=128,
        depth=6,
        heads=4,
        hidden=256,
        init="torchvision",
        attention_init="torch",
        token_std=0.0,
        head_zero=True,
        **fields,
    )
    return Preset(
        RunConfig(
            task="classify",
            model=model,
            data=ImageData(source="cifar10"),
            augment=ImageAugment(flip=True),
            optim=OptimConfig(lr=1e-3, beta2=0.99, weight_decay=0.05, schedule="one_cycle"),
            epochs=2,
            batch=64,
        ),
        "CIFAR-10 in two epochs, a ViT in the form of torchvision: 128 wide, 6 blocks on 8x8 patches, the head starts "
        "at 0. Corrected: inputs are normalised; the schedule fits two epochs; weights start at random, not from "
        "overfitting one batch; the test split is evaluated once.",
    )


def _cifar10_128x6_gap() -> Preset:
    return Preset(
        _cifar10_128x6(cls_token=False, pool="mean", position="sincos1d", position_trained=False).run,
        "cifar10-128x6 as the text of its notebook describes it: average pooling and fixed 1-D sinusoids.",
    )


def _relu_stem(depth: int, classes: int, source: str, lr: float, dropout: float) -> RunConfig:
    model = ViTConfig(
        image=32,
        patch=4,
        classes=classes,
        width=256,
        depth=depth,
        heads=8,
        hidden=512,
        eps=1e-5,
        stem_activation="relu",
        dropout=dropout,
        attention_dropout=dropout,
        activation_dropout=dropout,
        head_hidden=512,
        head_activation="relu",
        init="torch",
        attention_init="torch",
        token_std=1.0,
        position_std=1.0,
    )
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


def _cifar100_256x24() -> Preset:
    return Preset(
        _relu_stem(24, 100, "cifar100", 6e-4, 0.1),
        "CIFAR-100, 256 wide, 24 blocks, ReLU after the patch projection and in the head; needs a GPU." + _CORRECTED,
    )


def _cifar10_256x6() -> Preset:
    return Preset(
        _relu_stem(6, 10, "cifar10", 1e-3, 0.2),
        "CIFAR-10, 256 wide, 6 blocks, ReLU after the patch projection and in the head; needs a GPU."
        + _CORRECTED
        + " The head has 10 classes, not 100.",
    )


FINETUNE = "finetune"  # the base of runs that start from given weights, which decide its network


def _finetune() -> Preset:
    return Preset(
        RunConfig(
            task="classify",
            model=ViTConfig(classes=0),
            data=ImageData(source=""),
            augment=ImageAugment(flip=True),
            optim=OptimConfig(lr=1e-4, weight_decay=0.05, warmup=0.5, clip=1.0),
            epochs=5,
            batch=32,
        ),
        "Fine-tuning from the weights of --init, which decide the network and how images are prepared: a small rate "
        "and few epochs on the images of --data.source.",
    )


PRESETS = {
    "digits": _digits,
    "numbers": _numbers,
    "transformer-512x6": _transformer_512x6,
    "mnist": _mnist,
    "mnist-20x1": _mnist_20x1,
    "cifar10-48x4": _cifar10_48x4,
    "cifar10-128x6": _cifar10_128x6,
    "cifar10-128x6-gap": _cifar10_128x6_gap,
    "cifar10-256x6": _cifar10_256x6,
    "cifar100-256x24": _cifar100_256x24,
    "cifar100-768x3": _cifar100_768x3,
    "vit-1024x6": _vit_1024x6,
    FINETUNE: _finetune,
}


def preset(name: str) -> Preset:
    """The preset with this name. Raises UserError with similar names if there is none."""
    if name not in PRESETS:
        raise UserError(f"there is no preset {name!r}{nearest(name, list(PRESETS))}")
    return PRESETS[name]()
