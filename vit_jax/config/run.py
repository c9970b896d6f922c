"""A training run: data, augmentation, optimizer, loss, and all that is said once for the whole run."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import Any, Literal

from ..errors import UserError
from .fields import Kind, execution, identity
from .transformer import TransformerConfig, check_transformer
from .vit import ViTConfig, check_vit

ModelConfig = ViTConfig | TransformerConfig
# The kind of network that a task trains.
NETWORKS: dict[str, type[ModelConfig]] = {"classify": ViTConfig, "translate": TransformerConfig}


@dataclass(frozen=True)
class DataConfig:
    """Where examples come from and how an image meets the network's size."""

    source: str = identity("digits", "digits, a prepared TFDS set by name (mnist, cifar10, ...), folder:PATH or FILE.npz; of sentences: numbers, or pairs:FROM-TO:FOLDER")
    dir: str = execution("", "folder that holds prepared TFDS sets; empty: TFDS's own (~/tensorflow_datasets)")
    validation: float = identity(0.1, "share of train held out for choices, by seed, where the set has no validation split; 0: none")
    test: float = identity(0.2, "share held out for the final test (stratified, the same for every seed) where the set has no test split")
    fit: Literal["crop", "stretch", "pad"] = identity(
        "crop", "an image of another shape is scaled to cover and cut at its centre, stretched, or scaled to fit and padded"
    )
    size: int = identity(0, "shorter side, in pixels, that crop scales to first; 0: just enough to cover")
    interpolation: Literal["bilinear", "bicubic", "nearest"] = identity("bilinear", "kernel that resizes images (antialiased)")
    background: int = identity(255, "grey level under transparent pixels and around padded images, 0-255")
    skip_unreadable: bool = identity(False, "leave unreadable images out (they are counted) instead of stopping")
    tokens: int = identity(768, "sentences: tokens a batch, padding included; a batch is of one length")
    lengths: tuple[int, ...] = identity((4, 8, 12, 16), "sentences: ascending lengths to which they are padded, an end included; the last one is the longest")
    shuffle_sources: bool = identity(False, "sentences: give each target of train the source of another, a control that must fall to chance")
    memory: float = execution(4.0, "gigabytes; a set that needs less is decoded once and kept")
    threads: int = execution(0, "threads that decode images; 0: one a core")


@dataclass(frozen=True)
class AugmentConfig:
    """What happens to training images on the device, and how all images are normalised."""

    crop_padding: int = identity(0, "pixels of padding from which a random crop of the image's size is taken; 0: none")
    flip: bool = identity(False, "flip left and right at random")
    normalize: Literal["set", "half", "imagenet", "none"] = identity(
        "set", "mean and std taken from pixels in 0..1: of the training set, 0.5, ImageNet's, or 0 and 1"
    )


@dataclass(frozen=True)
class OptimConfig:
    """Optimizer and learning-rate schedule, with torch's formulas and names."""

    name: Literal["sgd", "momentum", "adam", "adamw"] = identity("adamw", "optimizer (weight decay is L2 in all but adamw)")
    lr: float = identity(1e-3, "peak learning rate")
    momentum: float = identity(0.9, "momentum of the momentum optimizer")
    nesterov: bool = identity(False, "Nesterov's form of it")
    beta1: float = identity(0.9, "decay of adam's first moment")
    beta2: float = identity(0.999, "decay of adam's second moment")
    eps: float = identity(1e-8, "adam's epsilon")
    weight_decay: float = identity(0.0, "weight decay")
    decay: tuple[Kind, ...] = identity(("kernel",), "kinds of parameter that decay: kernel bias norm token position scale embedding")
    clip: float = identity(0.0, "largest global gradient norm c; gradients are scaled by min(1, c/(norm+1e-6)); 0: off")
    schedule: Literal["constant", "cosine", "one_cycle", "inverse_sqrt"] = identity("cosine", "learning rate over the run")
    warmup: float = identity(0.0, "epochs of linear warm-up before constant, cosine and inverse_sqrt")
    final: float = identity(0.0, "cosine ends at this share of lr")
    pct_start: float = identity(0.3, "one_cycle: share of the run that rises")
    div_factor: float = identity(25.0, "one_cycle: starts at lr / div_factor")
    final_div_factor: float = identity(1e4, "one_cycle: ends at lr / div_factor / final_div_factor")
    cycle_momentum: bool = identity(False, "one_cycle: beta1 (or momentum) goes max, base, max against the rate, as torch does unasked")
    base_momentum: float = identity(0.85, "lowest value of that cycle")
    max_momentum: float = identity(0.95, "highest value of that cycle")


@dataclass(frozen=True)
class LossConfig:
    """The training loss: cross entropy."""

    label_smoothing: float = identity(0.0, "e: targets are 1-e on the class plus e/K on all K (torch's form)")


@dataclass(frozen=True)
class RunConfig:
    """One training run: what is learnt, from what, how, and where it is kept."""

    task: Literal["classify", "translate"] = identity("classify", "what is learnt: classes of images, or sentences from sentences")
    model: ModelConfig = field(default_factory=ViTConfig)
    data: DataConfig = field(default_factory=DataConfig)
    augment: AugmentConfig = field(default_factory=AugmentConfig)
    optim: OptimConfig = field(default_factory=OptimConfig)
    loss: LossConfig = field(default_factory=LossConfig)
    epochs: int = identity(10, "passes over the training set")
    batch: int = identity(128, "examples a step, over all devices and accumulation (sentences: those evaluated at a time; a step has data.tokens)")
    accumulate: int = execution(1, "parts into which a batch is cut to save memory")
    ema: float = identity(0.0, "decay of an average of the weights, evaluated beside them; 0: none")
    patience: int = identity(0, "stop after this many epochs without a better validation accuracy; 0: never")
    overfit_batches: int = identity(0, "train on the first N batches only, no augmentation or dropout, 100 steps unless --max-steps says more; 0: off")
    init: str = identity("", "start from the weights of this run (a folder or name), or of a file or folder of any layout in `python -m convert formats`; empty: random")
    new_head: bool = identity(False, "with init: start the head anew instead of refusing other classes")
    seed: int = identity(0, "the one seed: initial weights, order, validation split, dropout, augmentation")
    compute_dtype: Literal["float32", "bfloat16", "float64"] = identity("float32", "dtype of activations (parameters, norms, softmax and loss stay float32)")
    parallel: Literal["jit", "pmap"] = execution("jit", "jit over a mesh of all devices, or pmap with one replica a device")
    max_steps: int = execution(0, "budget: save and end after this step; 0: none")
    max_minutes: float = execution(0.0, "budget: save and end after these minutes; 0: none")
    name: str = execution("", "folder of the run inside dir; empty: the preset's name, with a number where that is taken")
    dir: str = execution("runs", "folder that holds runs")
    keep: int = execution(2, "newest checkpoints kept, beside the best")
    save_minutes: float = execution(10.0, "minutes after which a long epoch is saved in between")
    log_every: int = execution(10, "steps between lines of metrics.jsonl")
    tensorboard: bool = execution(False, "write TensorBoard events to the run folder (extra: tensorboard)")
    wandb: str = execution("", "Weights & Biases project to log to (extra: wandb); empty: none")

    @property
    def vit(self) -> ViTConfig:
        """The network of a run on images."""
        assert isinstance(self.model, ViTConfig)
        return self.model

    @property
    def transformer(self) -> TransformerConfig:
        """The network of a run on sentences."""
        assert isinstance(self.model, TransformerConfig)
        return self.model


def check_text(run: RunConfig) -> None:
    """Raise UserError naming the first field of a run on sentences that cannot be."""
    model, data = run.transformer, run.data
    n = max(1, model.source_vocabulary, model.target_vocabulary, model.outputs)  # stands for what the data will decide
    sizes: dict[str, Any] = {name: getattr(model, name) or n for name in ("source_vocabulary", "target_vocabulary", "outputs")}
    check_transformer(dataclasses.replace(model, **sizes))
    if not data.lengths or data.lengths[0] < 2 or list(data.lengths) != sorted(set(data.lengths)):
        raise UserError(f"data.lengths is {list(data.lengths)}: give ascending numbers of at least 2")
    if data.tokens < data.lengths[-1]:
        raise UserError(f"data.tokens is {data.tokens}, which holds no sentence of the last of data.lengths {data.lengths[-1]}: give at least that")
    if 0 < model.max_length < data.lengths[-1]:
        raise UserError(f"model.max_length is {model.max_length} but the last of data.lengths is {data.lengths[-1]}: raise one or lower the other")
    if not model.causal:
        raise UserError("model.causal is False, so a target would see the words that it is to say: set it to True")


def check_run(run: RunConfig) -> RunConfig:
    """Return the run, or raise UserError naming the first field that cannot be."""
    if not isinstance(run.model, NETWORKS[run.task]):
        raise UserError(f"task is {run.task}, which trains a {NETWORKS[run.task].__name__}: start from a preset of that task")
    if isinstance(run.model, ViTConfig):
        check_vit(dataclasses.replace(run.model, classes=run.model.classes or 1))
    else:
        check_text(run)
    for name in ("epochs", "batch", "accumulate", "log_every", "keep"):
        if getattr(run, name) < 1:
            raise UserError(f"{name} is {getattr(run, name)}: give a positive number")
    for name in ("patience", "overfit_batches", "max_steps", "max_minutes", "save_minutes"):
        if not getattr(run, name) >= 0:
            raise UserError(f"{name} is {getattr(run, name)}: give 0 or more")
    if not 0 <= run.seed < 2**32:  # jax keeps 32 bits of a seed and drops the others in silence
        raise UserError(f"seed is {run.seed}: give a number of at least 0 and below 2^32")
    if run.batch % run.accumulate:
        raise UserError(f"batch {run.batch} is not divisible by accumulate {run.accumulate}: change one of them")
    for name, share in (("data.validation", run.data.validation), ("data.test", run.data.test), ("ema", run.ema), ("loss.label_smoothing", run.loss.label_smoothing)):
        if not 0 <= share < 1:
            raise UserError(f"{name} is {share}: give a number of at least 0 and below 1")
    if run.patience and not run.data.validation:
        raise UserError(f"patience is {run.patience} but data.validation is 0: early stopping needs a validation split")
    if run.new_head and not run.init:
        raise UserError("new_head is True but init is empty: name the run whose weights to start from")
    for name in ("lr", "div_factor", "final_div_factor"):
        if not getattr(run.optim, name) > 0:
            raise UserError(f"optim.{name} is {getattr(run.optim, name)}: give a positive number")
    for name in ("weight_decay", "clip", "warmup", "final", "eps"):
        if not getattr(run.optim, name) >= 0:
            raise UserError(f"optim.{name} is {getattr(run.optim, name)}: give 0 or more")
    for name in ("momentum", "beta1", "beta2", "base_momentum", "max_momentum", "pct_start"):
        if not 0 <= getattr(run.optim, name) < 1:
            raise UserError(f"optim.{name} is {getattr(run.optim, name)}: give a number of at least 0 and below 1")
    if run.augment.crop_padding < 0:
        raise UserError(f"augment.crop_padding is {run.augment.crop_padding}: give 0 or more")
    return run
