"""Evaluate a run on a split: `python -m vit_jax.evaluate RUN [--split test]`."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Literal

from . import backend, runs
from .config import DataConfig, RunConfig
from .errors import DONE, UserError, door

if TYPE_CHECKING:
    from .tasks import Evaluation


def evaluate(
    path: str, split: str = "test", which: str = "best", ema: bool | None = None, data_dir: str = "", batch: int = 0
) -> tuple[int, Evaluation]:
    """(step, evaluation) of a run's weights on one of its splits.

    `which` and `ema` choose the weights as in `vit_jax.load`. Raises UserError where the split is
    not there, or the data is not what the run began with.
    """
    if batch < 0:
        raise UserError(f"batch is {batch}: give a positive number, or 0 for as many as in training")
    folder = runs.find(path)
    run = folder.config()
    if data_dir:
        run = replace(run, data=_moved(run.data, data_dir))
    backend.prepare()
    with backend.precision(run.compute_dtype):
        return _evaluate(folder, run, split, which, ema, batch or run.batch)


def _moved(data: DataConfig, folder: str) -> DataConfig:
    """The data, which lies elsewhere now."""
    if not hasattr(data, "dir"):
        raise UserError(
            f"data.dir is {folder}, but this run reads its data from data.source {data.source}: leave the flag out"
        )
    return replace(data, dir=folder)  # type: ignore[call-arg]  # it has that field


def _evaluate(
    folder: runs.Run, run: RunConfig, split: str, which: str, ema: bool | None, batch: int
) -> tuple[int, Evaluation]:
    from .models import definition
    from .step import Evaluator
    from .tasks import TASKS, task
    from .weights import read, weights

    step, tree = weights(folder, run.model, which, ema)
    dataset = TASKS[run.task].open(run)
    if folder.record()["data"] not in (None, dataset.identity):  # none: of a converted run, whose file did not say
        raise UserError(
            f"{folder}: data.source {run.data.source} is not the data that this run was trained on; restore it"
        )
    if split not in dataset.splits:
        raise UserError(
            f"split {split!r} is not there: this run's data has {', '.join(dataset.splits)}; choose one of them"
        )
    its = task(run, dataset.record()).bring(lambda path: read(path, run.dir))
    evaluator = Evaluator(run.model, definition(run.model, dtype=run.compute_dtype), its)
    return step, evaluator.evaluate(evaluator.place(tree), dataset.splits[split], batch)


@dataclass(frozen=True)
class DataOptions:
    """Where data lies."""

    dir: str = field(
        default="", metadata={"help": "folder of prepared TFDS sets, where it has moved; empty: as in training"}
    )


@dataclass(frozen=True)
class Options:
    """Evaluate a run on a whole split: the loss and what its task measures."""

    run: str = field(metadata={"help": "a run's folder, or its name inside runs/"})
    split: str = field(
        default="test", metadata={"help": "which part of the data: train, validation, test, or another that it has"}
    )
    weights: Literal["best", "last"] = field(
        default="best",
        metadata={"help": "those that validation liked best (the last where nothing was chosen), or the last"},
    )
    ema: bool = field(default=True, metadata={"help": "take the averaged weights where the run kept them"})
    batch: int = field(default=0, metadata={"help": "examples at a time; 0: as in training"})
    data: DataOptions = field(default_factory=DataOptions)


def command(arguments: list[str]) -> int:
    """The command's body."""
    import tyro

    o = tyro.cli(
        Options,
        args=arguments,
        prog="python -m vit_jax.evaluate",
        config=(tyro.conf.PositionalRequiredArgs, tyro.conf.PositionalMetavarFromFieldName),
    )
    step, result = evaluate(o.run, o.split, o.weights, None if o.ema else False, o.data.dir, o.batch)
    print(f"{o.run} at step {step}, {o.split}: {len(result.predicted):,} examples")
    for name, value in result.metrics.items():
        print(f"  {name:16} {value:.4f}")
    return DONE


def main() -> int:
    """`python -m vit_jax.evaluate`."""
    return door(lambda: command(sys.argv[1:]))


if __name__ == "__main__":
    sys.exit(main())
