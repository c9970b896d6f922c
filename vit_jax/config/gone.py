"""What earlier versions had: the names of flags, fields, arguments and commands, and what takes their place."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from ..errors import UserError

_SHARES = "each command takes a fixed share of the rows: --share I/N of predict and evaluate, and then vit-jax join"

# {name, without dashes before it: a clause that says what to use}
GONE = {
    "data.lanes": "shards are read by one reader; to mix more of their images, give a greater `data.window`",
    "data.disk-cache": "parts of shards are not kept on disk; copy the shards here and name their folder as `data.dir`",
    "shards": "write tars of webdataset with tarfile of Python, or parquet with the datasets of Hugging Face",
    "mds:": "write the images as tars of webdataset (wds:) or as parquet (parquet:)",
    "continue": "a run trains on in one way, as if so many epochs had been given at first: give `resume RUN` and more "
    "`epochs`; for a schedule that begins anew start a new run from its weights with `init RUN`",
    "halving": "`pruner halving` ends runs that fall behind",
    "by-device": "give the same command once for each GPU, with CUDA_VISIBLE_DEVICES=0, 1, ... before it",
    "points": "`trials N` tries so many of all combinations",
    "parts": _SHARES,
    "part-size": _SHARES,
    "merge": _SHARES,
}

# {field of a run's config: its values with which the run is the same without it; none listed: all of them}
SAME_WITHOUT: dict[str, tuple[Any, ...]] = {"data.lanes": (0, 1), "data.disk_cache": ()}


def instead_of(name: str) -> str:
    """What takes the place of a flag, field or command that is gone; empty of others."""
    return GONE.get(name.lstrip("-").replace("_", "-"), "")


def check_arguments(given: Iterable[str]) -> None:
    """Raise UserError for an argument that a function had, and TypeError for one that it never had."""
    for name in given:
        if reason := GONE.get(name.rstrip("_").replace("_", "-")):
            raise UserError(f"{name} is gone", remedy=reason)
        raise TypeError(f"there is no argument {name!r}")
