"""What a preset is, and variants: other settings for the training of one whose network is a notebook's.

`PRESET-VARIANT` is the name of a preset as any other, such as cifar10-48x4-fast, with the network of PRESET.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from ..config.dotted import replace_fields
from ..config.run import Network, OfNetwork, OptimConfig, RunConfig


@dataclass(frozen=True)
class Preset(OfNetwork[Network]):
    """A named run."""

    run: RunConfig[Network]
    title: str  # a few words, for the list of all presets
    help: str = ""  # the whole text, if that is more


def on_other_data(run: RunConfig[Network]) -> RunConfig[Network]:
    """The run of a preset on other data than its own, which determines the sizes of its network, such as classes."""
    return replace_fields(run, {f"model.{name}": 0 for name in run.model.marked("from_data")})


# What learned most in a few epochs, from random weights: found for cifar10-stem on its validation images.
FEW_EPOCHS = OptimConfig(name="muon", lr=4e-3, muon_lr=0.02, beta2=0.99, weight_decay=0.2, schedule="one_cycle")

# What each variant is for, in the order of the help.
PURPOSES = {
    "notebook": "the settings of its notebook",
    "fast": "to pass its notebook's figure in few core-seconds",
    "best": "to reach the highest accuracy, in the epochs that its help names",
}


@dataclass(frozen=True)
class Variant:
    """Settings that replace those of a preset, and what they are and gave."""

    help: str
    fields: Mapping[str, Any]  # {dotted name of a field of the run: value}


@dataclass(frozen=True)
class Notebook:
    """What the notebook of a preset's network prints."""

    accuracy: float
    epochs: int
    split: str  # on which the notebook measured


_AS_THEY_ARE = {"augment.crop_padding": 0, "augment.flip": False}
_RELU_STEM = {
    **_AS_THEY_ARE,
    "optim.weight_decay": 0.03,
    "optim.cycle_momentum": True,
    "optim.clip": 0.0,
    "loss.label_smoothing": 0.0,
}
_ONE_CYCLE = replace(FEW_EPOCHS, weight_decay=0.1, pct_start=0.2, clip=1.0)
_FROM_WIDTH = "Weights start by width, not as in the network's source. "
# What learned most on held-out images at equal cost: benchmarks/results/2026-11-26-stages.md.
_STAGES = ("0.6:model.patch-dropout=0.75", "0.25:model.patch-dropout=0.5")
_STAGED = "most patches left out at first (--stages), so that an epoch costs half as much. "
_NO_DROPOUT = {"model.dropout": 0.0, "model.attention_dropout": 0.0, "model.activation_dropout": 0.0}
_256 = {
    **_NO_DROPOUT,
    "optim": replace(_ONE_CYCLE, lr=3e-3),
    "model.init": "fan_in",
    "model.attention_init": "same",
    "model.token_std": 0.02,
    "model.position_std": 0.02,
}
_768 = {
    **_NO_DROPOUT,
    "optim": replace(_ONE_CYCLE, lr=2e-3),
    "loss.label_smoothing": 0.1,
    "batch": 500,
    "model.init": "fan_in",
    "model.attention_init": "same",
}
_ON_A_GPU = {"compute_dtype": "bfloat16", "augment.policy": "autoaugment", "augment.cutmix": 1.0}
_256_STARTS = "Weights start by width, tokens and positions at 0.02, not as in the network's source. "
_BY_ANALOGY = "Chosen by analogy with cifar10-256x6 and not trained to its end yet."
_20X1 = {"optim": replace(FEW_EPOCHS, lr=0.01, weight_decay=0.0), "steps_per_dispatch": 10}
_ONE_SEED = "(one seed, trained on all of train: --data.validation 0)."
_THREE_SEEDS = _ONE_SEED.replace("one seed", "3 seeds")
_LARGE = "One cycle of Muon, 50 epochs, in bfloat16, for a GPU; AutoAugment, CutMix and stochastic depth, no dropout. "
_ADAMW = (
    "decay 0.03, with cycled momentum, 180 epochs; images as they are: the notebook does not show how it prepares them."
)
_48X4 = {"optim": _ONE_CYCLE, "model.init": "fan_in", "loss.label_smoothing": 0.1}

NOTEBOOKS = {
    "mnist-20x1": Notebook(0.9145, 5, "test"),
    "cifar10-48x4": Notebook(0.755, 100, "test"),
    "cifar10-128x6": Notebook(0.4229, 2, "test"),
    "cifar10-256x6": Notebook(0.788, 180, "validation"),
    "cifar100-256x24": Notebook(0.498, 180, "validation"),
    "cifar100-768x3": Notebook(0.419, 50, "validation"),
}

# {PRESET-VARIANT: it}
VARIANTS = {
    "mnist-20x1-notebook": Variant(
        "Adam at a constant rate of 0.01, batches of 16, 5 epochs.",
        {"batch": 16, "optim": OptimConfig(name="adam", lr=0.01, schedule="constant")},
    ),
    "mnist-20x1-fast": Variant(
        f"One cycle of Muon, 1 epoch. On test 0.927 +- 0.007 after 10 core-seconds {_THREE_SEEDS}",
        {**_20X1, "epochs": 1},
    ),
    "mnist-20x1-best": Variant(
        "One cycle of Muon, 40 epochs of batches of 128, shifted by up to a pixel. On test 0.973 +- 0.004 after "
        f"144 core-seconds {_THREE_SEEDS}",
        {**_20X1, "epochs": 40, "batch": 128, "augment.crop_padding": 1},
    ),
    "cifar10-48x4-notebook": Variant(
        "AdamW at a constant rate of 0.01, 100 epochs; decay, crops, flips and normalization as in its source, "
        "github.com/tintn/vision-transformer-from-scratch.",
        {
            "augment.crop_padding": 0,
            "augment.scale": (0.8, 1.0),
            "augment.normalize": "half",
            "optim": OptimConfig(lr=0.01, weight_decay=0.01, schedule="constant"),
        },
    ),
    "cifar10-48x4-fast": Variant(
        f"One cycle of Muon, 12 epochs, {_STAGED}{_FROM_WIDTH}On test 0.777 +- 0.004 after 218 core-seconds "
        f"{_THREE_SEEDS}",
        {**_48X4, "stages": _STAGES, "epochs": 12, "augment.crop_padding": 2},
    ),
    "cifar10-48x4-best": Variant(
        f"One cycle of Muon, 80 epochs. {_FROM_WIDTH}On test 0.842 {_ONE_SEED}",
        {**_48X4, "epochs": 80, "augment.crop_padding": 3},
    ),
    "cifar10-128x6-notebook": Variant(
        "Adam at a constant rate of 1e-4, 2 epochs, images as they are, not normalized.",
        {
            "augment.flip": False,
            "augment.normalize": "none",
            "optim": OptimConfig(name="adam", lr=1e-4, schedule="constant"),
            "loss.label_smoothing": 0.0,
        },
    ),
    "cifar10-128x6-fast": Variant(
        f"Those of the preset for 1 epoch. On test 0.504 after 81 core-seconds {_ONE_SEED}",
        {"epochs": 1},
    ),
    "cifar10-128x6-best": Variant(
        f"Those of the preset for 8 epochs of batches of 256, shifted by up to two pixels, {_STAGED}Chosen by "
        "analogy with cifar10-48x4 and not trained to its end yet.",
        {"epochs": 8, "batch": 256, "augment.crop_padding": 2, "stages": _STAGES},
    ),
    "cifar10-256x6-notebook": Variant(
        f"One cycle of AdamW, peak 3e-4, {_ADAMW}",
        {**_RELU_STEM, "optim.lr": 3e-4},
    ),
    "cifar10-256x6-fast": Variant(
        f"One cycle of Muon, 20 epochs, {_STAGED}No dropout. {_256_STARTS}On test 0.817 after 4,922 core-seconds "
        f"{_ONE_SEED}",
        {**_256, "stages": _STAGES, "epochs": 20, "augment.crop_padding": 2},
    ),
    "cifar10-256x6-best": Variant(
        f"{_LARGE}{_256_STARTS}On test 0.850 {_ONE_SEED}",
        {**_256, **_ON_A_GPU, "epochs": 50, "model.drop_path": 0.1},
    ),
    "cifar100-256x24-notebook": Variant(
        f"One cycle of AdamW, peak 1e-3, {_ADAMW}",
        {**_RELU_STEM, "optim.lr": 1e-3},
    ),
    "cifar100-256x24-fast": Variant(
        "One cycle of Muon, 10 epochs, three quarters of the patches left out in the first nine tenths of the "
        f"steps (--stages), in bfloat16, for a CPU with instructions for it. No dropout. {_256_STARTS}On test "
        f"0.507 after 5,728 core-seconds {_ONE_SEED}",
        {
            **_256,
            "stages": ("0.9:model.patch-dropout=0.75",),
            "epochs": 10,
            "augment.crop_padding": 2,
            "compute_dtype": "bfloat16",
        },
    ),
    "cifar100-256x24-best": Variant(
        f"{_LARGE}{_256_STARTS}{_BY_ANALOGY}",
        {**_256, **_ON_A_GPU, "epochs": 50, "model.drop_path": 0.2},
    ),
    "cifar100-768x3-notebook": Variant(
        "SGD at a constant rate of 0.01, 50 epochs, images as they are.",
        {**_AS_THEY_ARE, "optim": OptimConfig(name="sgd", lr=0.01, schedule="constant")},
    ),
    "cifar100-768x3-fast": Variant(
        f"One cycle of Muon, 10 epochs of batches of 500, {_STAGED}No dropout. {_FROM_WIDTH}On test 0.457 after "
        f"3,577 core-seconds {_ONE_SEED}",
        {**_768, "stages": _STAGES, "epochs": 10, "augment.crop_padding": 2},
    ),
    "cifar100-768x3-best": Variant(
        "One cycle of Muon, 50 epochs of batches of 500, in bfloat16, for a GPU; AutoAugment, CutMix, no "
        f"dropout. {_FROM_WIDTH}{_BY_ANALOGY}",
        {**_768, **_ON_A_GPU, "epochs": 50},
    ),
}
