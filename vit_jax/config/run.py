"""The config of a training run: data, augmentation, optimizer, loss, and the settings of the run itself."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Literal, Self, get_args

from ..errors import Field, UserError
from .fields import Decaying, execution, identity
from .network import NetworkConfig

if TYPE_CHECKING:
    from typing_extensions import TypeVar

    Network = TypeVar("Network", bound=NetworkConfig, default=NetworkConfig, covariant=True)

    class OfNetwork(Generic[Network]):
        """What has a config of a network, of a class that type checkers are told: `RunConfig[ViTConfig]`."""

else:  # fields are read by the types of their annotations, which therefore are classes
    Network = NetworkConfig

    class OfNetwork:
        """The same: at run time `RunConfig[ViTConfig]` is RunConfig."""

        __class_getitem__ = classmethod(lambda cls, network: cls)


NO_DATA = "unknown"  # the data.source of a run that was made from weights only


def paths_in(*texts: str) -> list[Path]:
    """The files and folders, of those that texts such as pairs:FILE,FILE name, that are there."""
    pieces = {piece for text in texts for piece in (text, text.partition(":")[2], *re.split("[:,]", text)) if piece}
    return [Path(path) for piece in sorted(pieces) if os.path.exists(path := os.path.expanduser(piece))]


@dataclass(frozen=True)
class DataConfig:
    """The source of examples and their splits. Each kind of data has a subclass with more fields."""

    source: str = identity("", "where examples come from", place=True)
    validation: float = identity(
        0.1,
        "share of train, drawn by seed, for validation if the dataset has no such split; 0: none",
        at_least=0,
        below=1,
    )
    test: float = identity(
        0.2,
        "share (stratified, the same for every seed) for the final test if the dataset has no test split",
        at_least=0,
        below=1,
    )

    given: ClassVar[str] = ""  # the source of a run whose examples Python gave; empty: there is no such run

    def in_folder(self, folder: Path) -> Self:
        """The same, but it reads in a run's folder what that keeps of its data, such as a tokenizer."""
        return self

    def paths(self) -> list[Path]:
        """The files and folders that it is read from."""
        return paths_in(self.source)

    @classmethod
    def fields_with_weights(cls, folder: Path) -> dict[str, Any]:
        """{field of a run: value} by what lies in the folder of weights from which it starts, such as a tokenizer."""
        return {}


@dataclass(frozen=True)
class AugmentConfig:
    """Augmentation of training examples on the device. Each kind of data that has any has a subclass with fields."""

    def without_randomness(self) -> Self:
        """The same, without what is drawn at random."""
        return self

    @property
    def together(self) -> int:
        """How many neighbours of a batch are mixed with each other, so that no device may have fewer of them."""
        return 1

    @property
    def pixel_bytes(self) -> int:
        """The bytes of a number of an image as augmentation leaves it."""
        return 1


DECOUPLED = ("adamw", "muon", "lion")  # optimizers whose weight decay is no part of the gradient


@dataclass(frozen=True)
class OptimConfig:
    """Optimizer and learning-rate schedule, with the formulas and names of PyTorch."""

    name: Literal["sgd", "momentum", "adam", "adamw", "muon", "lion"] = identity(
        "adamw",
        "optimizer; muon: Muon for the hidden kernels (inside blocks; with model.stem also of all its convolutions but "
        "the first, and of the patch projection), adamw for all other parameters; weight decay is an L2 term of the "
        f"gradient, or in {', '.join(DECOUPLED[:-1])} and {DECOUPLED[-1]} rate * weight_decay * parameter",
    )
    lr: float = identity(
        1e-3,
        "peak learning rate; of muon: that of the parameters that adamw updates; lion needs about a fifth of adamw's, "
        "and five times its weight_decay",
        above=0,
    )
    muon_lr: float = identity(
        0.02, "muon: peak learning rate of the hidden kernels; schedules scale both rates", above=0
    )
    muon_momentum: float = identity(0.95, "muon: decay of the first moment of the hidden kernels", at_least=0, below=1)
    momentum: float = identity(0.9, "momentum of the momentum optimizer", at_least=0, below=1)
    nesterov: bool = identity(False, "momentum optimizer: Nesterov momentum")
    beta1: float = identity(
        0.9,
        "adam, adamw and muon's adamw: decay of the first moment; lion: its weight in the direction",
        at_least=0,
        below=1,
    )
    beta2: float = identity(0.999, "adam, adamw and muon's adamw: decay of the second moment", at_least=0, below=1)
    lion_beta2: float = identity(0.99, "lion: decay of the moment", at_least=0, below=1)
    eps: float = identity(1e-8, "adam, adamw and muon's adamw: epsilon", at_least=0)
    weight_decay: float = identity(0.0, "weight decay", at_least=0)
    decay: tuple[Decaying, ...] = identity(
        ("kernel",), f"kinds of parameters that decay: {' '.join(get_args(Decaying))}"
    )
    layer_decay: float = identity(
        1.0,
        "D: rates fall from the head (1) to the input, as in timm: block I of L trains at D^(L-I) of the rate, what "
        "precedes the blocks at D^(L+1); 1: off",
        above=0,
        at_most=1,
    )
    freeze: tuple[str, ...] = identity(
        (),
        "patterns of dotted names of parameters that do not train (no update, decay, moment or average), such as "
        "'patch.*' 'blocks.[0-5].*'; * matches any characters; empty: all train",
    )
    freeze_epochs: float = identity(
        0.0,
        "epochs (also a fraction of one) during which freeze holds; then these parameters train as well, with new "
        "moments; 0: the whole run",
        at_least=0,
    )
    clip: float = identity(
        0.0,
        "largest global gradient norm c, over what trains: gradients are scaled by min(1, c/(norm+1e-6)); 0: off",
        at_least=0,
    )
    schedule: Literal["constant", "cosine", "one_cycle", "inverse_sqrt"] = identity(
        "cosine", "how the learning rate changes over the run"
    )
    warmup: float = identity(0.0, "epochs of linear warm-up before constant, cosine and inverse_sqrt", at_least=0)
    warmup_steps: int = identity(0, "steps of linear warm-up, in place of warmup; 0: warmup's epochs", at_least=0)
    final: float = identity(0.0, "cosine: ends at this share of lr", at_least=0)
    pct_start: float = identity(0.3, "one_cycle: share of the run in which the rate rises", at_least=0, below=1)
    div_factor: float = identity(25.0, "one_cycle: starts at lr / div_factor, and ends at 1/10,000 of that", above=0)
    cycle_momentum: bool = identity(
        False,
        "one_cycle: beta1, momentum and muon_momentum fall from 0.95 to 0.85 while the rate rises, and then rise again "
        "(the default of PyTorch)",
    )


BY_LENGTH = ("cosine", "one_cycle")  # schedules that depend on the length of the run

# The moments of each optimizer, as checkpoints and optax name them: arrays of the shape of the parameter. Of muon: of
# the kernels that it updates itself.
MOMENTS: dict[str, tuple[str, ...]] = {
    "sgd": (), "momentum": ("trace",), "adam": ("mu", "nu"), "adamw": ("mu", "nu"), "lion": ("mu",), "muon": ("mu",),
}  # fmt: skip


@dataclass(frozen=True)
class LoraConfig:
    """Low-rank adaptation of given weights: Hu et al. 2021 (arXiv 2106.09685)."""

    rank: int = identity(
        0,
        "with init: train two factors A and B of this rank beside each kernel W that lora.maps matches, and the head; "
        "all else stays as it is. The network computes with W + alpha/rank A B, B starts at 0, and checkpoints hold "
        "the sum, so that the run is used and converted like any other; 0: off",
        at_least=0,
    )
    alpha: float = identity(16.0, "with lora.rank: how much the factors count", above=0)
    maps: tuple[str, ...] = identity(
        ("*.query.kernel", "*.value.kernel"),
        "with lora.rank: patterns of dotted names of the kernels, such as '*.attention.*' '*.mlp.*'; * matches any "
        "characters",
    )


@dataclass(frozen=True)
class LossConfig:
    """The training loss of a task with a cross entropy."""  # of a task that needs more, a subclass with more fields

    name: Literal["", "cross_entropy", "binary", "squared"] = identity(
        "",
        "cross_entropy: for classes and words; binary: for each class or label by itself, a mean over them "
        "(BCEWithLogitsLoss, as in DeiT III); squared: for numbers, normalised by mean and std of the training split "
        "(MSELoss); empty: the one for data.target, for classes cross_entropy. Evaluations of classes report the cross "
        "entropy in any case",
        from_data=True,
    )
    label_smoothing: float = identity(
        0.0, "e: how much of a target is spread over classes, as smoothing says", at_least=0, below=1
    )
    smoothing: Literal["torch", "fairseq"] = identity(
        "torch",
        "with label_smoothing e: torch: targets are 1-e on the true one of K classes plus e/K on all; "
        "fairseq: 1-e on the true one and e/(K-1) on each other",
    )

    class_weights: str = identity(
        "none",
        "for images: weights of the K classes, each with n_k of n training images: none; balanced: n/(K n_k); "
        "effective: (1-b)/(1-b^n_k) with b 0.999, over its mean (Cui et al. 2019); or a file with a line NAME,WEIGHT "
        "for each. As in PyTorch the loss is divided by the sum of the weights. For a set of labels it is pos_weight, "
        "the weight of labels that are present: balanced: (n-n_k)/n_k, at most 100",
    )
    prior: bool = identity(
        False,
        "for images with classes: training adds the logarithm of each class's share of the training images to its "
        "logit, so that rare classes are not neglected (logit adjustment: Menon et al. 2020, arXiv 2007.07314)",
    )
    focal: float = identity(
        0.0,
        "g: each term of a cross entropy times (1-p)^g, p the probability of the true class (Lin et al. 2017); 0: off",
        at_least=0,
        at_most=20,
    )

    def spread_over_all(self, classes: int) -> float:
        """label_smoothing as PyTorch counts it: the share that is spread over all classes, the true one included."""
        return self.label_smoothing * {"torch": 1, "fairseq": classes / max(classes - 1, 1)}[self.smoothing]


@dataclass(frozen=True)
class RunConfig(OfNetwork[Network]):
    """One training run.

    `task` is a name in tasks/table.py; model, data, augment and loss have the classes that its spec names.
    """

    task: str = field(metadata={"help": "the task that is learnt; set by the preset", "execution": False})
    model: Network
    data: DataConfig
    augment: AugmentConfig = field(default_factory=AugmentConfig)
    optim: OptimConfig = field(default_factory=OptimConfig)
    lora: LoraConfig = field(default_factory=LoraConfig)
    loss: LossConfig = field(default_factory=LossConfig)
    epochs: int = identity(10, "passes over the training set", at_least=1)
    stages: tuple[str, ...] = identity(
        (),
        "train at first with other dropout rates of the network: SHARE:FIELD=RATE,FIELD=RATE for each stage, a share "
        "of all steps; the rest is trained as the fields say; to leave out most patches at first, and none in the end, "
        "is much cheaper: '0.6:model.patch-dropout=0.75' '0.25:model.patch-dropout=0.5'; empty: one stage",
    )
    batch: int = identity(
        128,
        "examples per step, over all devices and accumulation; "
        "on sentences, whose steps have --data.tokens tokens: examples per evaluation batch",
        at_least=1,
    )
    accumulate: int = execution(
        0,
        "number of microbatches into which each device's share of a batch is split, to save memory; 1: no split; 0: "
        "chosen for speed: 1 on a GPU or TPU; on a CPU each core becomes a device with microbatches that fit its "
        "cache, if batch and network allow it, else one device with microbatches that fit half of the memory (with "
        "any other value a CPU is one device)",
        at_least=0,
    )
    ema: float = identity(
        0.0, "decay of a moving average of the weights, which is evaluated too; 0: none", at_least=0, below=1
    )
    ema_warmup: bool = identity(
        False,
        "with ema: the decay after t steps is at most (1 + t) / (10 + t), so that early weights are soon forgotten",
    )
    patience: int = identity(0, "stop after this many epochs without a better validation result; 0: never", at_least=0)
    overfit_batches: int = identity(
        0,
        "train only on the first N batches, without augmentation and dropout, for 100 steps (or --max-steps); 0: off",
        at_least=0,
    )
    init: str = identity(
        "",
        "start from the weights of an earlier run (a folder or name), of a file or folder of any layout in "
        "`python -m convert formats`, or of hf://owner/name; they also decide the network and how inputs are prepared; "
        "empty: random",
        place=True,
    )
    init_encoder: str = identity(
        "",
        "for a captioner: start its encoder from a ViT, named as for init; the ViT decides the fields of model.vit and "
        "how images are prepared, and all else is random; optim.freeze 'vit.*' keeps the encoder fixed, for "
        "optim.freeze-epochs epochs; empty: random",
        place=True,
    )
    new_head: bool = identity(
        False,
        "with init: start with a new, random head, as for other classes; model.pool may then be another, if the "
        "weights have all that it needs",
    )
    init_resize: Literal["none", "timm", "hf", "dino", "torchvision", "google", "flexi"] = identity(
        "none", "with init: for another model.image, resample positions as this library does; none: refuse another"
    )
    init_channels: Literal["none", "timm"] = identity(
        "none", "with init: for other model.channels, fit the patch projection as timm does; none: refuse others"
    )
    teacher: str = identity(
        "",
        "for distillation: the trained network that this one learns from, itself unchanged; a run (a folder or name), "
        "a file or folder of any layout in `python -m convert formats`, or hf://owner/name; without augmentation also "
        "its logits of all train images, FILE.npy or FILE.npz (logits [n, K], and labels [n], to check their order)",
        place=True,
    )
    seed: int = identity(
        0,
        "seed of all randomness: initial weights, order, validation split, dropout, augmentation",
        at_least=0,
        below=2**32,  # jax silently drops all but 32 bits
    )
    compute_dtype: Literal["float32", "bfloat16", "float64"] = identity(
        "float32",
        "dtype of activations; parameters, norms, softmax and loss are at least float32; a CPU with instructions for "
        "bfloat16 rounds the factors of the products of linear layers to it, and nothing else",
    )
    parallel: Literal["jit", "pmap"] = execution(
        "jit", "jit over a mesh of all devices, or pmap with one replica per device"
    )
    fsdp: int = execution(
        1,
        "devices among which each parameter, its moments and its average are split (FSDP), so that each holds a "
        "share of them; it divides the number of devices; 1: each holds all",
        at_least=1,
    )
    scan: bool = execution(
        False,
        "in training, compute the blocks of a network as one compiled loop over their stacked weights, so that the "
        "program does not grow with the depth, but weights are in memory once more; off by default: a CPU compiles "
        "no sooner and takes 1.4 to 1.7 times the scratch memory, without remat; a GPU or TPU is not measured yet",
    )
    remat: Literal["none", "full", "dots"] = execution(
        "none",
        "which values inside the blocks are computed again in the backward pass (less memory, more time): none, all "
        "(full), or all but the products with weights (dots); on a CPU this saves memory only together with scan",
    )
    attention_kernel: Literal["auto", "plain", "fused"] = execution(
        "auto",
        "how attention is computed in training; auto: by the fused kernel of cuDNN where it can be, in bfloat16 on "
        "NVIDIA GPUs from Ampere on, which moves less memory, and plain elsewhere; fused: also elsewhere by one "
        "function, that of XLA; attention stays plain in float64, with dropout of its weights, and under a mask that "
        "may hide all keys from a token, as a padding mask may",
    )
    steps_per_dispatch: int = execution(
        1,
        "training steps in one compiled call, where no log line, evaluation or save falls between them and their "
        "batches have equal shapes; more than 1 is faster if a step is short; signals and budgets of time are checked "
        "between calls",
        at_least=1,
    )
    max_steps: int = execution(0, "budget: save and end after this step; 0: none", at_least=0)
    max_minutes: float = execution(0.0, "budget: save and end after these minutes; 0: none", at_least=0)
    name: str = execution(
        "", "folder of the run inside dir; empty: the name of the preset, with a number if another run has that"
    )
    dir: str = execution("runs", "folder of all runs, or where they are kept: s3://BUCKET/PATH, gs://BUCKET/PATH")
    keep: int = execution(2, "number of newest checkpoints to keep, besides the best", at_least=1)
    save_minutes: float = execution(10.0, "minutes between checkpoints within a long epoch", at_least=0)
    async_save: bool = execution(
        False,
        "write checkpoints in a thread while training goes on, from a copy of all arrays in memory; if one cannot be "
        "written, the run ends after the step that is under way",
    )
    stall_minutes: float = execution(
        10.0, "with --hosts: name a host whose step has stood still for so many minutes; 0: never", at_least=0
    )
    log_every: int = execution(10, "steps between lines of metrics.jsonl", at_least=1)
    profile_steps: str = execution(
        "",
        "FIRST:LAST, such as 20:25: trace these steps, counted from 1, into the run's folder, to see where their time "
        "goes; empty: none",
    )
    histograms: int = execution(
        0,
        "N: at steps 1, N + 1, 2N + 1, ... write histograms of all parameters and of their gradients, to "
        "histograms.jsonl in the run's folder and to TensorBoard; each costs the time of a step; 0: none",
        at_least=0,
    )
    tensorboard: bool = execution(False, "write TensorBoard events to the run folder (extra: tensorboard)")
    wandb: str = execution("", "Weights & Biases project to log to (extra: wandb); empty: none")
    hooks: tuple[str, ...] = execution(
        (), "what other packages do around the run, each NAME or NAME:ARGUMENT; `vit-jax plugins` lists them"
    )

    def without_randomness(self) -> Self:
        """The run without augmentation and dropout."""
        augment = self.augment.without_randomness()
        return replace(self, model=self.model.without_dropout(), augment=augment, stages=())

    @property
    def parameter_dtype(self) -> str:
        """That of its parameters: float64 if it computes so, else float32."""
        return "float64" if self.compute_dtype == "float64" else "float32"

    @property
    def parameter_bytes(self) -> int:
        """The bytes of a parameter, and of an activation on a CPU, where XLA computes bfloat16 in float32."""
        return 8 if self.parameter_dtype == "float64" else 4


def profiled_steps(steps: str) -> range:
    """The steps of the field profile_steps, a text such as 20:25; none of an empty one."""
    match = re.fullmatch(r"(\d{1,9}):(\d{1,9})", steps, re.ASCII)
    first, last = map(int, match.groups()) if match else (1, 0)
    if steps and not 1 <= first <= last:
        raise UserError(
            Field("profile_steps"), f"is {steps!r}", "give FIRST:LAST, two steps counted from 1, such as 20:25"
        )
    return range(first, last + 1)
