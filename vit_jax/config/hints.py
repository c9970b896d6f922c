"""What a mistaken name was meant to be, in the shell and in Python.

What other programs (timm, Hugging Face, torchvision, DeiT, nanoGPT, ...) or earlier versions call it, or what is most
like it.
"""

from __future__ import annotations

import dataclasses
import difflib
import functools
import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ParamSpec, TypeVar

from ..errors import UserError

P = ParamSpec("P")
R = TypeVar("R")

# {their flag: our fields}; a command has some of the fields.
FLAGS: dict[str, tuple[str, ...]] = {
    their: tuple(ours.split())
    for ours, theirs in {
        "epochs": "epoch num-epochs n-epochs max-epochs num-train-epochs train-epochs",
        "max-steps": "steps num-steps max-iters iterations max-iter num-iterations train-steps total-steps",
        "batch": "batch-size bs b train-batch-size per-device-train-batch-size eval-batch-size mini-batch batchsize",
        "accumulate": "accum grad-accum accum-iter grad-accum-steps gradient-accumulation-steps accumulation-steps",
        "optim.name": "opt optimizer optim",
        "optim.lr": "lr learning-rate base-lr max-lr blr",
        "optim.weight-decay": "wd decay",
        "optim.schedule": "sched scheduler lr-scheduler lr-schedule lr-scheduler-type",
        "optim.warmup": "warmup-epochs lr-warmup-epochs",
        "optim.warmup-steps": "warmup-steps warmup-updates lr-warmup-steps num-warmup-steps",
        "optim.layer-decay": "layer-decay ld lr-layer-decay llrd",
        "optim.freeze": "freeze frozen",
        "tune": "freeze-backbone head-only attn-only",
        "tune probe": "linear-probe linprobe",
        "probe": "knn knn-eval nb-knn linear-eval lin-eval",
        "features": "dump-features extract-features feature-file",
        "blocks": "out-indices indices intermediate-layers out-features n-last-blocks",
        "optim.final": "min-lr lr-min",
        "optim.clip": "clip-grad grad-clip clip max-grad-norm clip-norm gradient-clip-val clip-grad-norm",
        "optim.beta1": "betas adam-beta1 opt-betas",
        "optim.beta2": "adam-beta2",
        "optim.eps": "opt-eps adam-epsilon",
        "loss.label-smoothing": "smoothing label-smooth label-smoothing-factor",
        "loss.alpha": "distillation-alpha distill-alpha",
        "loss.temperature": "distillation-tau distill-temperature tau",
        "loss.hard": "distillation-type hard-distillation",
        "teacher": "teacher-model teacher-path teacher-checkpoint",
        "ema-warmup": "model-ema-warmup use-ema-warmup",
        "ema": "model-ema ema-decay model-ema-decay use-ema",
        "patience": "early-stopping early-stop patience-epochs",
        "compute-dtype dtype": "amp precision bf16 mixed-precision amp-dtype float32 fp32",
        "compute-dtype": "dtype",
        "to": "format target output-format out-format target-layout layout",
        "from": "input-format source-format source-layout",
        "adapt": "resize",
        "data.threads": "workers num-workers j dataloader-num-workers threads",
        "data.source": "dataset data-set train-dir train-data data-path dataset-name data",
        "data.dir": "data-dir root data-root datadir",
        "data.labels": "labels label-column label-column-name label-col target-column targets-column",
        "data.file-column": "image-column image-column-name image-col path-col fn-col filename-col",
        "data.target": "problem-type target-type multi-label multilabel regression",
        "data.separator": "label-delim label-separator sep delimiter",
        "data.split-column": "split-col valid-col",
        "data.group": "group-column groups patient patient-column group-col",
        "data.validation": "val-split val validation-split valid-split",
        "data.interpolation": "interpolation train-interpolation",
        "model.image": "img-size image-size input-size imgsz resolution res crop-size img",
        "model.patch": "patch-size patch",
        "model.classes": "num-classes n-classes nb-classes classes num-labels",
        "model.channels": "in-chans in-channels num-channels channels",
        "model.width": "dim d-model hidden-size embed-dim n-embd emb width",
        "model.depth": "num-layers n-layers layers num-hidden-layers n-layer depth",
        "model.heads": "num-heads n-head nhead n-heads num-attention-heads heads",
        "model.hidden": "mlp-dim intermediate-size dim-feedforward d-ff ffn-dim",
        "model.dropout": "drop dropout drop-rate hidden-dropout-prob",
        "model.drop-path": "drop-path drop-path-rate stochastic-depth",
        "model.pool": "global-pool pooling",
        "loss.class-weights": "class-weights class-weight pos-weight weights-of-classes cls-weight",
        "loss.focal": "focal focal-gamma focal-loss fl-gamma",
        "loss.prior": "logit-adjustment logit-adjust prior balanced-softmax",
        "augment.flip": "hflip horizontal-flip",
        "augment.policy": "aa auto-augment autoaugment randaugment rand-aug trivial-augment three-augment",
        "augment.magnitude": "ra-magnitude ra-m",
        "augment.erase": "reprob random-erase random-erasing cutout",
        "augment.scale": "scale random-resized-crop rrc",
        "augment.ratio": "ratio",
        "augment.mixup": "mixup mixup-alpha",
        "augment.cutmix": "cutmix cutmix-alpha",
        "augment.repeats": "aug-repeats repeated-aug repeated-augmentation",
        "init": "pretrained initial-checkpoint finetune model-name-or-path from-pretrained",
        "resume": "resume-from resume-from-checkpoint auto-resume",
        "new-head": "reset-head ignore-mismatched-sizes reset-classifier",
        "dir": "out-dir output-dir save-dir log-dir logdir outdir checkpoint-dir workdir",
        "name": "run-name experiment exp-name exp run-id",
        "config": "config-file cfg conf yaml",
        "seed": "random-seed rng-seed manual-seed",
        "seeds": "num-seeds repeats n-runs",
        "folds": "k-folds n-folds num-folds cv kfold n-splits",
        "log-every": "log-interval print-freq log-freq logging-steps log-every-n-steps",
        "save-minutes": "save-freq save-every save-interval save-steps",
        "keep": "save-total-limit checkpoint-hist keep-last",
        "parallel": "strategy distributed ddp",
        "remat": "grad-checkpointing gradient-checkpointing activation-checkpointing checkpoint-activations recompute",
        "scan": "scan-layers scan-blocks",
        "attention-kernel": "flash-attention flash-attn flash fused-attn attn-implementation sdpa use-flash-attn",
        "wandb": "wandb-project log-wandb use-wandb",
        "tensorboard": "tb",
        "top": "topk top-k k num-predictions",
        "split": "set subset",
        "init weights": "weights checkpoint ckpt load",
        "out dir csv": "output out output-file",
        "csv": "results-file results",
        "beam": "beams num-beams beam-size beam-width",
        "nbest": "n-best num-return-sequences num-hypotheses",
        "length-penalty": "lenpen len-penalty",
        "no-repeat-ngram": "no-repeat-ngram-size",
        "max-length": "max-new-tokens max-len max-decoding-length",
        "min-length": "min-new-tokens min-len",
        "sample": "do-sample sampling",
        "force": "overwrite yes y f exist-ok",
    }.items()
    for their in theirs.split()
}

# {their flag: why there is none here, and what to do instead}
REASONS: dict[str, str] = {
    their: reason
    for reason, theirs in {
        "jax takes the devices that it finds; to choose, set JAX_PLATFORMS=cpu or CUDA_VISIBLE_DEVICES=0 "
        "before the command": "device devices gpu gpus cuda cpu tpu num-gpus no-cuda use-cuda accelerator",
        "float16 would need a scaled loss; use `compute_dtype bfloat16`": "fp16 half float16",
        "it is not here alone; `augment.policy three_augment` has it among others": "color-jitter gray-scale "
        "gaussian-blur solarization",
        "images are flipped left to right only, by `augment.flip`": "vflip vertical-flip",
        "the network is the first argument, such as vit-s16 or cifar10-48x4, and its sizes are the fields "
        "`model.FIELD`": "model arch architecture network model-name preset",
        "one process takes all devices of its machine, so leave it out": "local-rank world-size nproc-per-node "
        "num-processes dist-url rank",
        "a `split` is measured by the one text that greedy or beam search (`beam`) finds; several texts and draws are "
        "for python -m vit_jax.predict": "nbest sample temperature top-k top-p",
        "tables are CSV, also with --share, which pyarrow makes parquet (csv.read_csv, parquet.write_table)": "format",
        "a run is measured by python -m vit_jax.evaluate RUN": "eval evaluate test-only eval-only do-eval",
    }.items()
    for their in theirs.split()
}

# {their value: ours}
VALUES = {
    "bf16": "bfloat16", "amp": "bfloat16", "fp16": "bfloat16", "float16": "bfloat16", "half": "bfloat16",
    "fp32": "float32", "full": "float32", "fp64": "float64", "double": "float64",
    "cos": "cosine", "onecycle": "one_cycle", "noam": "inverse_sqrt", "none": "constant", "fixed": "constant",
    "adam_w": "adamw", "sgdm": "momentum", "nesterov": "momentum",
    "swish": "silu", "gelu_new": "gelu_tanh", "gelu_pytorch_tanh": "gelu_tanh", "quickgelu": "quick_gelu",
    "gap": "mean", "avg": "mean", "token": "cls", "ddp": "pmap", "cubic": "bicubic", "linear": "bilinear",
    "val": "validation", "valid": "validation", "dev": "validation",
}  # fmt: skip


_SHARES = "each command takes a fixed share of the rows: --share I/N of predict and evaluate, and then vit-jax join"

# {name, without dashes before it: a clause that says what to use}
GONE = {
    "data.lanes": "shards are read by one reader; to mix more of their images, give a greater `data.window`",
    "data.disk-cache": "shards are not cached on disk; copy them here and name their folder as `data.dir`",
    "data.corrupt-rate": "15 % of the tokens are taken out, as in T5; `data.corrupt_length` says in how long spans",
    "augment.magnitude-std": "it is 0.5, as in timm; give `augment.magnitude`",
    "augment.mix-chance": "all pairs are mixed; to mix less, lower `augment.mixup` or `augment.cutmix`",
    "augment.mix-switch": "with both each pair takes one of the two; to have one alone, give `augment.mixup` or "
    "`augment.cutmix`",
    "augment.mix-off": "all epochs mix; for last epochs without, start a new run from the weights (init) with neither",
    "optim.base-momentum": "it is 0.85, as in PyTorch; for a constant one leave `optim.cycle_momentum` out",
    "optim.max-momentum": "it is 0.95, as in PyTorch; for a constant one leave `optim.cycle_momentum` out",
    "optim.final-div-factor": "it is 10,000, as in PyTorch; or give schedule cosine and `optim.final`",
    "pairs": "a conversion between two layouts says what stands in its way",
    "shards": "write tars of webdataset with tarfile of Python, or parquet with the datasets of Hugging Face",
    "mds:": "write the images as tars of webdataset (wds:) or as parquet (parquet:)",
    "continue": "a run trains on in one way, as if so many epochs had been given at first: give `resume RUN` and more "
    "`epochs`; for a schedule that begins anew, start a new run from its weights with `init RUN`",
    "halving": "`pruner halving` ends runs that fall behind",
    "by-device": "give the same command once for each GPU, with CUDA_VISIBLE_DEVICES=0, 1, ... before it",
    "points": "`trials N` tries N of all combinations",
    "parts": _SHARES,
    "part-size": _SHARES,
    "merge": _SHARES,
}

# {field of a run's config: its values with which the run is the same without it; none listed: all of them}
SAME_WITHOUT: dict[str, tuple[Any, ...]] = {
    "data.lanes": (0, 1),
    "data.disk_cache": (),
    "data.corrupt_rate": (0.15,),
    "augment.magnitude_std": (0.5,),
    "augment.mix_chance": (1.0,),
    "augment.mix_switch": (0.5,),
    "augment.mix_off": (0,),
    "optim.base_momentum": (0.85,),
    "optim.max_momentum": (0.95,),
    "optim.final_div_factor": (1e4,),
}


def instead_of(name: str) -> str:
    """What takes the place of a flag, field or command that is gone; empty of others."""
    return GONE.get(name.lstrip("-").replace("_", "-"), "")


def naming_gone(function: Callable[P, R]) -> Callable[P, R]:
    """A function that says of an argument that it had what takes its place, a UserError."""
    known = inspect.signature(function).parameters

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        for name in kwargs.keys() - known.keys():
            if reason := instead_of(name.rstrip("_")):
                raise UserError(f"{name} is gone", remedy=reason)
        return function(*args, **kwargs)

    return call


Names = Mapping[str, str]  # {a field as a flag is typed, without dashes before it: optim.weight-decay; its help}


def names_of(config: Any, prefix: str = "") -> dict[str, str]:
    """{name, as a flag without dashes: help} of a config's fields, also of those of the configs inside it."""
    found: dict[str, str] = {}
    for f in dataclasses.fields(config):
        name, part = f"{prefix}{f.name.replace('_', '-')}", getattr(config, f.name, None)
        if dataclasses.is_dataclass(part):
            found |= names_of(part, f"{name}.")
        else:
            found[name] = f.metadata.get("help", "")
    return found


def hint(
    word: str,
    known: Names,
    reasons: Mapping[str, str] = REASONS,
    inside: str = "",
    else_: str = "",
) -> str:
    """A clause: what takes the place of an unknown name here, why nothing does, or the names most similar to it.

    `inside`: the part of a run's config whose fields the caller names without it.
    """

    def write(names: Sequence[str]) -> list[str]:
        return [name.replace("-", "_").removeprefix(f"{inside}.") for name in names]

    if gone := instead_of(word):
        return f": {gone}"
    wanted = word.lstrip("-").lower().replace("_", "-")
    for name in (wanted, wanted.rpartition(".")[2]):
        if (reason := reasons.get(name)) and _has_all(known, reason):
            return f": {reason}"
        if ours := [flag for flag in FLAGS.get(name, ()) if flag in known]:
            return f"; here it is {' or '.join(write(ours))}"
    close = _similar(wanted[:200], known)
    return f"; nearest: {', '.join(write(close))}" if close else else_


def _has_all(known: Names, text: str) -> bool:
    """Whether there are all fields that a text names."""
    named = (word.replace("_", "-") for word in re.findall(r"`([a-z][a-z._]*)", text))
    return all(any(name.startswith(word) for name in known) for word in named)


def _similar(wanted: str, known: Names) -> list[str]:
    """The names that are most similar to a word, by themselves or by their help texts, at most three."""
    words = wanted.rpartition(".")[2].replace("-", " ")

    def similarity(name: str, text: str) -> float:
        pairs = ((wanted, name), (words, name.rpartition(".")[2].replace("-", " ")))
        in_help = 0.7 + 0.3 * len(words) / len(text) if len(words) > 1 and f" {words} " in f" {text} " else 0.0
        return max(in_help, *(difflib.SequenceMatcher(None, *pair).ratio() for pair in pairs))

    found = sorted(((similarity(name, text), name) for name, text in known.items()), reverse=True)
    return [name for score, name in found if score >= max(0.6, found[0][0] - 0.2)][:3]


LONGEST, LISTED = 200, 25  # letters of a name that are compared; names that a message lists at most


def nearest(name: str, known: list[str]) -> str:
    """A clause with the most similar known names, '; nearest: ...', or with all known names if none is similar."""
    more = f" and {len(known) - LISTED} more" if len(known) > LISTED else ""
    return similar(name, known) or f"; known: {', '.join(sorted(known)[:LISTED])}{more}"


def similar(name: str, known: list[str]) -> str:
    """A clause with the most similar known names, first those that begin with `name`; empty if none is similar."""
    given, folded = name[:LONGEST].casefold(), {each.casefold(): each for each in known}
    close = difflib.get_close_matches(given, folded, n=len(folded) or 1, cutoff=0.4)
    close.sort(key=lambda each: not each.startswith(given))
    return f"; nearest: {', '.join(folded[each] for each in close[:3])}" if close else ""
