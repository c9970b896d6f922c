"""A training run: data, augmentation, optimizer, loss, and all that is said once for the whole run."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from .fields import Kind, ModelConfig, execution, identity


@dataclass(frozen=True)
class DataConfig:
    """Where examples come from, and how they are cut into splits. Each kind of data adds its own fields."""

    source: str = identity("", "where examples come from")
    validation: float = identity(
        0.1, "share of train held out for choices, by seed, where the set has no validation split; 0: none"
    )
    test: float = identity(
        0.2, "share held out for the final test (stratified, the same for every seed) where the set has no test split"
    )


@dataclass(frozen=True)
class AugmentConfig:
    """What happens to training examples on the device. Each kind of data that has any adds its own fields."""


@dataclass(frozen=True)
class OptimConfig:
    """Optimizer and learning-rate schedule, with torch's formulas and names."""

    name: Literal["sgd", "momentum", "adam", "adamw"] = identity(
        "adamw", "optimizer (weight decay is L2 in all but adamw)"
    )
    lr: float = identity(1e-3, "peak learning rate")
    momentum: float = identity(0.9, "momentum of the momentum optimizer")
    nesterov: bool = identity(False, "Nesterov's form of it")
    beta1: float = identity(0.9, "decay of adam's first moment")
    beta2: float = identity(0.999, "decay of adam's second moment")
    eps: float = identity(1e-8, "adam's epsilon")
    weight_decay: float = identity(0.0, "weight decay")
    decay: tuple[Kind, ...] = identity(
        ("kernel",), "kinds of parameter that decay: kernel bias norm token position scale embedding"
    )
    clip: float = identity(0.0, "largest global gradient norm c; gradients are scaled by min(1, c/(norm+1e-6)); 0: off")
    schedule: Literal["constant", "cosine", "one_cycle", "inverse_sqrt"] = identity(
        "cosine", "learning rate over the run"
    )
    warmup: float = identity(0.0, "epochs of linear warm-up before constant, cosine and inverse_sqrt")
    final: float = identity(0.0, "cosine ends at this share of lr")
    pct_start: float = identity(0.3, "one_cycle: share of the run that rises")
    div_factor: float = identity(25.0, "one_cycle: starts at lr / div_factor")
    final_div_factor: float = identity(1e4, "one_cycle: ends at lr / div_factor / final_div_factor")
    cycle_momentum: bool = identity(
        False, "one_cycle: beta1 (or momentum) goes max, base, max against the rate, as torch does unasked"
    )
    base_momentum: float = identity(0.85, "lowest value of that cycle")
    max_momentum: float = identity(0.95, "highest value of that cycle")


# What each optimizer remembers of a parameter from step to step: Adam's two moments, momentum's trace.
_ROLES: dict[str, tuple[str, ...]] = {"sgd": (), "momentum": ("trace",), "adam": ("mu", "nu"), "adamw": ("mu", "nu")}


def roles(c: OptimConfig) -> tuple[str, ...]:
    """What an optimizer keeps of each parameter, by the names that checkpoints have for it; each has its parameter's shape."""
    return _ROLES[c.name]


@dataclass(frozen=True)
class LossConfig:
    """The training loss, where it is a cross entropy."""

    label_smoothing: float = identity(0.0, "e: targets are 1-e on the class plus e/K on all K (torch's form)")


@dataclass(frozen=True)
class RunConfig:
    """One training run: what is learnt, from what, how, and where it is kept.

    `task` names a row of tasks.py; model, data and augment are of the classes that its row gives.
    """

    task: str = field(metadata={"help": "what is learnt; it comes with the preset", "execution": False})
    model: ModelConfig
    data: DataConfig
    augment: AugmentConfig = field(default_factory=AugmentConfig)
    optim: OptimConfig = field(default_factory=OptimConfig)
    loss: LossConfig = field(default_factory=LossConfig)
    epochs: int = identity(10, "passes over the training set")
    batch: int = identity(
        128,
        "examples a step, over all devices and accumulation; where the data counts a step in tokens, examples evaluated at a time",
    )
    accumulate: int = execution(1, "parts into which a batch is cut to save memory")
    ema: float = identity(0.0, "decay of an average of the weights, evaluated beside them; 0: none")
    patience: int = identity(0, "stop after this many epochs without a better result on validation; 0: never")
    overfit_batches: int = identity(
        0,
        "train on the first N batches only, no augmentation or dropout, 100 steps unless --max-steps says more; 0: off",
    )
    init: str = identity(
        "",
        "start from the weights of this run (a folder or name), or of a file or folder of any layout in `python -m convert formats`; empty: random",
    )
    new_head: bool = identity(False, "with init: start the head anew instead of refusing other classes")
    seed: int = identity(0, "the one seed: initial weights, order, validation split, dropout, augmentation")
    compute_dtype: Literal["float32", "bfloat16", "float64"] = identity(
        "float32", "dtype of activations (parameters, norms, softmax and loss stay float32)"
    )
    parallel: Literal["jit", "pmap"] = execution(
        "jit", "jit over a mesh of all devices, or pmap with one replica a device"
    )
    max_steps: int = execution(0, "budget: save and end after this step; 0: none")
    max_minutes: float = execution(0.0, "budget: save and end after these minutes; 0: none")
    name: str = execution(
        "", "folder of the run inside dir; empty: the preset's name, with a number where that is taken"
    )
    dir: str = execution("runs", "folder that holds runs")
    keep: int = execution(2, "newest checkpoints kept, beside the best")
    save_minutes: float = execution(10.0, "minutes after which a long epoch is saved in between")
    log_every: int = execution(10, "steps between lines of metrics.jsonl")
    tensorboard: bool = execution(False, "write TensorBoard events to the run folder (extra: tensorboard)")
    wandb: str = execution("", "Weights & Biases project to log to (extra: wandb); empty: none")
