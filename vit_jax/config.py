"""What a network and a run are, as frozen dataclasses: no jax here, so every tool can read them.

A field that changes the result is part of a run's *identity*; one that only says where or for how
long it runs (devices, logging, budget, where data lies) is *execution* and may change on resume.
"""

from __future__ import annotations

import dataclasses
import difflib
import math
import types
import typing
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar

from .errors import UserError

Size = int | tuple[int, int]
Activation = Literal["gelu", "gelu_tanh", "quick_gelu", "relu", "silu"]
Kind = Literal["kernel", "bias", "norm", "token", "position", "scale"]
T = TypeVar("T")


def identity(default: Any, help: str) -> Any:
    """A field that changes the result."""
    return field(default=default, metadata={"help": help, "execution": False})


def execution(default: Any, help: str) -> Any:
    """A field that may change when a run is resumed."""
    return field(default=default, metadata={"help": help, "execution": True})


def pair(size: Size) -> tuple[int, int]:
    """A size in two directions (height, width)."""
    return (size, size) if isinstance(size, int) else (size[0], size[1])


# ---------------------------------------------------------------------------------- the network


@dataclass(frozen=True)
class ViTConfig:
    """Every choice that makes one published Vision Transformer differ from another.

    Defaults are ViT-B/16 (Dosovitskiy et al. 2021, arXiv 2010.11929) as timm and DeiT write it.
    """

    image: Size = identity(224, "image height and width, in pixels")
    channels: int = identity(3, "channels of an image: 3 for RGB, 1 for grey")
    patch: Size = identity(16, "patch height and width, in pixels; must divide the image")
    classes: int = identity(1000, "outputs of the head; 0: no head (in a run: as many as the data has)")
    width: int = identity(768, "D, the width of a token")
    depth: int = identity(12, "L, the number of blocks")
    heads: int = identity(12, "H, the attention heads of a block")
    head_width: int = identity(0, "Dh, the width of one head; 0: width / heads")
    hidden: int = identity(3072, "F, the width inside the mlp")

    stem_bias: bool = identity(True, "the patch projection has a bias")
    stem_pre_norm: bool = identity(False, "LayerNorm over a patch's pixels before its projection")
    stem_norm: bool = identity(False, "LayerNorm over a token right after the patch projection")
    stem_activation: Literal["none", "relu"] = identity("none", "what follows the patch projection")

    cls_token: bool = identity(True, "a learned class token comes first")
    distill_token: bool = identity(False, "a learned distillation token follows it (DeiT)")
    registers: int = identity(0, "learned register tokens, after those (Darcet et al. 2024)")

    position: Literal["learned", "sincos2d", "sincos1d", "none"] = identity(
        "learned", "position embedding: learned, 2-D or interleaved 1-D sinusoids, none"
    )
    position_trained: bool = identity(True, "positions are trained (sinusoids are then a start)")
    cls_position: bool = identity(True, "the class token has a position")
    distill_position: bool = identity(True, "the distillation token has a position")
    register_position: bool = identity(False, "the registers have positions")

    pre_norm: bool = identity(False, "LayerNorm before the first block (CLIP)")
    norm_first: bool = identity(True, "norms come before attention and mlp (else after the sum)")
    final_norm: bool = identity(True, "LayerNorm after the last block")
    eps: float = identity(1e-6, "epsilon of every LayerNorm")
    norm_bias: bool = identity(True, "LayerNorms have a bias")
    layer_scale: float = identity(0.0, "start of the learned scale of each branch (CaiT); 0: none")

    query_bias: bool = identity(True, "the query projection has a bias")
    key_bias: bool = identity(True, "the key projection has a bias")
    value_bias: bool = identity(True, "the value projection has a bias")
    out_bias: bool = identity(True, "the output projection has a bias")
    qk_norm: bool = identity(False, "LayerNorm over each head's query and key (ViT-22B)")

    activation: Activation = identity("gelu", "mlp activation; gelu is the exact erf form")
    gated: bool = identity(False, "the mlp's activation gates a second projection (SwiGLU)")
    mlp_bias: bool = identity(True, "the mlp's projections have biases")

    embedding_dropout: float = identity(0.0, "dropout rate of the tokens that enter the blocks")
    patch_dropout: float = identity(0.0, "share of patch tokens left out in training")
    attention_dropout: float = identity(0.0, "dropout rate of the attention weights")
    dropout: float = identity(0.0, "dropout rate of what attention and mlp add to a token")
    activation_dropout: float = identity(0.0, "dropout rate inside the mlp, after its activation")
    head_dropout: float = identity(0.0, "dropout rate of the pooled feature")
    drop_path: float = identity(0.0, "stochastic depth of the last block, rising linearly from 0")

    pool: Literal["cls", "mean", "mean_all", "map", "cls_distill"] = identity(
        "cls", "what the head sees: class token, mean of patches or of all tokens, attention "
        "pooling over patches, or class and distillation token averaged"
    )
    head_norm: bool = identity(False, "LayerNorm of the pooled feature, before the head")
    head_hidden: int = identity(0, "width of a hidden layer in the head; 0: none")
    head_activation: Literal["none", "tanh", "relu"] = identity("tanh", "what follows that layer")
    head_bias: bool = identity(True, "the head has a bias")
    distill_head: bool = identity(False, "a second head, for the distillation token")
    distill_norm: bool = identity(False, "LayerNorm before that second head")

    init: Literal["trunc_normal", "normal", "fan_in", "xavier", "torch", "torchvision"] = identity(
        "trunc_normal", "start of the kernels: normal of init_std (cut at 2 std, or not), normal of std 1/sqrt(fan in), "
        "Xavier uniform, torch's Linear default, or torchvision's ViT (patches by fan in, mlp Xavier, the rest torch)"
    )
    attention_init: Literal["same", "torch"] = identity(
        "same", "start of query, key, value: as init says, or as torch's MultiheadAttention (Xavier over the three as one, attention biases 0)"
    )
    init_std: float = identity(0.02, "standard deviation for trunc_normal and normal")
    token_std: float = identity(0.02, "standard deviation of class, distillation, register tokens")
    position_std: float = identity(0.02, "standard deviation of learned positions")
    head_zero: bool = identity(False, "heads start at zero")

    # What follows from the fields above.

    @property
    def grid(self) -> tuple[int, int]:
        """Rows and columns of patches."""
        (h, w), (ph, pw) = pair(self.image), pair(self.patch)
        return h // ph, w // pw

    @property
    def patches(self) -> int:
        """N, the number of patch tokens."""
        return math.prod(self.grid)

    @property
    def dim_head(self) -> int:
        """Dh, resolved."""
        return self.head_width or self.width // self.heads

    @property
    def prefix(self) -> tuple[tuple[str, int, bool], ...]:
        """Tokens before the patches, in order: (parameter, how many, whether they have positions)."""
        tokens = (
            ("cls_token", int(self.cls_token), self.cls_position),
            ("distill_token", int(self.distill_token), self.distill_position),
            ("register_tokens", self.registers, self.register_position),
        )
        return tuple(t for t in tokens if t[1])

    @property
    def positions(self) -> int:
        """Rows of the position embedding: prefix tokens that have one, then the patches."""
        return sum(n for _, n, placed in self.prefix if placed) + self.patches

    @property
    def position_stored(self) -> bool:
        """Whether positions are a parameter (else they are computed, or there are none)."""
        return self.position == "learned" or (self.position != "none" and self.position_trained)


def check_vit(c: ViTConfig) -> ViTConfig:
    """Return the config, or raise UserError naming the first field that cannot be."""
    (h, w), (ph, pw) = pair(c.image), pair(c.patch)
    sizes = dict(channels=c.channels, width=c.width, depth=c.depth, heads=c.heads, hidden=c.hidden)
    for name, value in sizes.items():
        if value < 1:
            raise UserError(f"model.{name} is {value}: give a positive number")
    optional = dict(classes=c.classes, head_width=c.head_width, registers=c.registers, head_hidden=c.head_hidden, eps=c.eps)
    for name, number in optional.items():
        if not number >= 0:
            raise UserError(f"model.{name} is {number}: give 0 or more")
    if min(h, w, ph, pw) < 1 or h % ph or w % pw:
        raise UserError(f"model.image {h}x{w} is not divisible by model.patch {ph}x{pw}: choose a patch that divides the image")
    if not c.head_width and c.width % c.heads:
        raise UserError(f"model.width {c.width} is not divisible by model.heads {c.heads}: change one, or give model.head_width")
    if c.pool == "map" and c.width % c.heads:
        raise UserError(f"model.width {c.width} is not divisible by model.heads {c.heads}, which pool map needs: change one of them")
    if c.pool == "cls" and not c.cls_token:
        raise UserError("model.pool is cls but model.cls_token is False: set model.pool to mean, or model.cls_token to True")
    if c.pool == "cls_distill" and not (c.cls_token and c.distill_token):
        raise UserError("model.pool is cls_distill, which needs model.cls_token and model.distill_token: set both to True")
    if c.distill_head and not c.distill_token:
        raise UserError("model.distill_head is True but model.distill_token is False: set both or none")
    if c.distill_norm and not c.distill_head:
        raise UserError("model.distill_norm is True but model.distill_head, which it belongs to, is False: set both or none")
    if c.position == "learned" and not c.position_trained:
        raise UserError("model.position is learned but model.position_trained is False: choose sincos2d or sincos1d for fixed positions")
    if c.position == "sincos2d" and c.width % 4:
        raise UserError(f"model.width {c.width} is not divisible by 4, which model.position sincos2d needs: change one of them")
    for f in dataclasses.fields(c):
        value = getattr(c, f.name)
        if (f.name.endswith("dropout") or f.name == "drop_path") and not 0 <= value < 1:
            raise UserError(f"model.{f.name} is {value}: give a rate of at least 0 and below 1")
    return c


def parameters(c: ViTConfig) -> dict[str, tuple[int, ...]]:
    """Every parameter of the network as {dotted name: shape}, in reading order.

    This is the canonical tree: what checkpoints hold and what weight conversion is a table over.
    """
    d, (ph, pw), inner = c.width, pair(c.patch), c.heads * c.dim_head
    shapes: dict[str, tuple[int, ...]] = {}

    def dense(name: str, n_in: int, n_out: int, bias: bool = True) -> None:
        shapes[f"{name}.kernel"] = (n_in, n_out)
        if bias:
            shapes[f"{name}.bias"] = (n_out,)

    def norm(name: str, width: int = d) -> None:
        shapes[f"{name}.scale"] = (width,)
        if c.norm_bias:
            shapes[f"{name}.bias"] = (width,)

    def mlp(name: str) -> None:
        dense(f"{name}.fc1", d, c.hidden, c.mlp_bias)
        if c.gated:
            dense(f"{name}.gate", d, c.hidden, c.mlp_bias)
        dense(f"{name}.fc2", c.hidden, d, c.mlp_bias)

    if c.stem_pre_norm:
        norm("patch.pre_norm", ph * pw * c.channels)
    dense("patch", ph * pw * c.channels, d, c.stem_bias)
    if c.stem_norm:
        norm("patch.norm")
    for name, count, _ in c.prefix:
        shapes[name] = (count, d) if name == "register_tokens" else (d,)
    if c.position_stored:
        shapes["position"] = (c.positions, d)
    if c.pre_norm:
        norm("pre_norm")
    for i in range(c.depth):
        block = f"blocks.{i}"
        norm(f"{block}.norm1")
        dense(f"{block}.attention.query", d, inner, c.query_bias)
        dense(f"{block}.attention.key", d, inner, c.key_bias)
        dense(f"{block}.attention.value", d, inner, c.value_bias)
        if c.qk_norm:
            norm(f"{block}.attention.query_norm", c.dim_head)
            norm(f"{block}.attention.key_norm", c.dim_head)
        dense(f"{block}.attention.out", inner, d, c.out_bias)
        if c.layer_scale:
            shapes[f"{block}.scale1"] = (d,)
        norm(f"{block}.norm2")
        mlp(f"{block}.mlp")
        if c.layer_scale:
            shapes[f"{block}.scale2"] = (d,)
    if c.final_norm:
        norm("norm")
    if c.pool == "map":
        shapes["pool.probe"] = (d,)
        for name in ("query", "key", "value", "out"):
            dense(f"pool.{name}", d, d)
        norm("pool.norm")
        mlp("pool.mlp")
    if c.head_norm:
        norm("head_norm")
    if c.head_hidden:
        dense("head_hidden", d, c.head_hidden)
    if c.classes:
        dense("head", c.head_hidden or d, c.classes, c.head_bias)
    if c.distill_norm:
        norm("distill_norm")
    if c.distill_head and c.classes:
        dense("distill_head", d, c.classes, c.head_bias)
    return shapes


def kind(name: str) -> Kind:
    """What sort of parameter a dotted name is; decay masks and initial values go by it."""
    *path, leaf = name.split(".")
    if path and "norm" in path[-1]:
        return "norm"
    if leaf in ("kernel", "bias"):
        return typing.cast(Kind, leaf)
    if leaf in ("scale1", "scale2"):
        return "scale"
    return "position" if leaf == "position" else "token"


def flops(c: ViTConfig) -> int:
    """Floating-point operations of one image's forward pass (2 a multiply-add, matmuls only)."""
    ph, pw = pair(c.patch)
    n, inner = c.patches + sum(count for _, count, _ in c.prefix), c.heads * c.dim_head
    mlp = (3 if c.gated else 2) * c.width * c.hidden
    block = 4 * c.width * inner + 2 * n * inner + mlp
    stem = c.patches * ph * pw * c.channels * c.width
    # Attention pooling: one probe asks, every patch has a key and a value.
    pool = 2 * c.width * (c.width + c.patches * (c.width + 1)) + mlp if c.pool == "map" else 0
    head = c.width * c.head_hidden + (c.head_hidden or c.width) * c.classes
    second = c.width * c.classes if c.pool == "cls_distill" and c.distill_head else 0
    return 2 * (stem + n * c.depth * block + pool + head + second)


# -------------------------------------------------------------------------------------- the run


@dataclass(frozen=True)
class DataConfig:
    """Where examples come from and how an image meets the network's size."""

    source: str = identity("digits", "digits, a prepared TFDS set by name (mnist, cifar10, ...), folder:PATH or FILE.npz")
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
    decay: tuple[Kind, ...] = identity(("kernel",), "kinds of parameter that decay: kernel bias norm token position scale")
    clip: float = identity(0.0, "largest global gradient norm c; gradients are scaled by min(1, c/(norm+1e-6)); 0: off")
    schedule: Literal["constant", "cosine", "one_cycle"] = identity("cosine", "learning rate over the run")
    warmup: float = identity(0.0, "epochs of linear warm-up before constant and cosine")
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

    task: Literal["classify"] = identity("classify", "what is learnt")
    model: ViTConfig = field(default_factory=ViTConfig)
    data: DataConfig = field(default_factory=DataConfig)
    augment: AugmentConfig = field(default_factory=AugmentConfig)
    optim: OptimConfig = field(default_factory=OptimConfig)
    loss: LossConfig = field(default_factory=LossConfig)
    epochs: int = identity(10, "passes over the training set")
    batch: int = identity(128, "examples a step, over all devices and accumulation")
    accumulate: int = execution(1, "parts into which a batch is cut to save memory")
    ema: float = identity(0.0, "decay of an average of the weights, evaluated beside them; 0: none")
    patience: int = identity(0, "stop after this many epochs without a better validation accuracy; 0: never")
    overfit_batches: int = identity(0, "train on the first N batches only, no augmentation or dropout, 100 steps unless --max-steps says more; 0: off")
    init: str = identity("", "start from the weights of this run (a folder); empty: random")
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


def check_run(run: RunConfig) -> RunConfig:
    """Return the run, or raise UserError naming the first field that cannot be."""
    check_vit(dataclasses.replace(run.model, classes=run.model.classes or 1))
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


# ----------------------------------------------------------------------- configs as plain values


def to_dict(config: Any) -> dict[str, Any]:
    """A config as JSON's own types (tuples become lists)."""
    return {
        f.name: to_dict(v) if dataclasses.is_dataclass(v := getattr(config, f.name)) else list(v) if isinstance(v, tuple) else v
        for f in dataclasses.fields(config)
    }


def from_dict(cls: type[T], values: dict[str, Any], where: str = "") -> T:
    """The config that `to_dict` wrote. Absent fields keep their defaults.

    Raises UserError on a field that does not exist or a value of the wrong type.
    """
    hints = typing.get_type_hints(cls)
    kwargs: dict[str, Any] = {}
    for name, value in values.items():
        if name not in hints:
            raise UserError(f"config: there is no field {where}{name}{nearest(name, list(hints))}")
        hint = hints[name]
        if dataclasses.is_dataclass(hint):
            if not isinstance(value, dict):
                raise UserError(f"config: {where}{name} is {value!r}, which is not a group of fields")
            kwargs[name] = from_dict(typing.cast(type, hint), value, f"{where}{name}.")
        else:
            value = tuple(value) if isinstance(value, list) else value
            value = float(value) if hint is float and type(value) is int else value
            if not _fits(value, hint):
                raise UserError(f"config: {where}{name} is {value!r}, which is not {_described(hint)}")
            kwargs[name] = value
    return cls(**kwargs)


def _fits(value: Any, hint: Any) -> bool:
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is Literal:
        return value in arguments
    if origin in (typing.Union, types.UnionType):
        return any(_fits(value, a) for a in arguments)
    if origin is tuple:
        items = arguments[:1] * len(value) if isinstance(value, tuple) and arguments[-1:] == (...,) else arguments
        return isinstance(value, tuple) and len(items) == len(value) and all(map(_fits, value, items))
    return type(value) is hint


def _described(hint: Any) -> str:
    """A field's type, in words."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is Literal:
        return f"one of {', '.join(map(str, arguments))}"
    if origin is tuple:
        return f"a list, each {_described(arguments[0])}" if arguments[-1] is ... else f"[{', '.join(map(_described, arguments))}]"
    return " or ".join(map(_described, arguments)) if arguments else hint.__name__


def flat(config: Any, prefix: str = "") -> dict[str, tuple[Any, bool]]:
    """{dotted field: (value, is execution)}."""
    out: dict[str, tuple[Any, bool]] = {}
    for f in dataclasses.fields(config):
        value = getattr(config, f.name)
        if dataclasses.is_dataclass(value):
            out |= flat(value, f"{prefix}{f.name}.")
        else:
            out[prefix + f.name] = (value, f.metadata.get("execution", False))
    return out


def differences(old: RunConfig, new: RunConfig, execution: bool = False) -> dict[str, tuple[Any, Any]]:
    """Identity fields (or, if asked, execution fields) in which two runs differ: {field: (old, new)}.

    A new run that leaves model.classes at 0 takes the old one's.
    """
    if new.model.classes == 0:
        new = dataclasses.replace(new, model=dataclasses.replace(new.model, classes=old.model.classes))
    a, b = flat(old), flat(new)
    return {k: (a[k][0], b[k][0]) for k in a if a[k][1] == execution and a[k][0] != b[k][0]}


def nearest(name: str, known: list[str]) -> str:
    """A clause naming the known names most like a mistaken one: '; nearest: ...'."""
    close = difflib.get_close_matches(name, known, n=3, cutoff=0.4)
    return f"; nearest: {', '.join(close)}" if close else f"; known: {', '.join(sorted(known))}"
