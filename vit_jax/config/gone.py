"""What earlier versions had: the names of flags, fields, arguments and commands, and what takes their place."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

from ..errors import UserError

P = ParamSpec("P")
R = TypeVar("R")

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
