"""Measure a run on a split of its data: `python -m vit_jax.evaluate RUN [--split test]`, or `vit_jax.evaluate(run)`."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Literal

from . import backend, runs
from .callable_module import make_callable
from .config import DataConfig, RunConfig
from .errors import DONE, UserError, run_command

if TYPE_CHECKING:
    from .tasks import Evaluation


def evaluate(
    path: str, split: str = "test", which: str = "best", ema: bool | None = None, data_dir: str = "", batch: int = 0
) -> tuple[int, Evaluation]:
    """Measure a run's network on a split of its data: (step of the weights, Evaluation).

    `which` ("best" or "last") and `ema` select the weights as in `vit_jax.load`. `data_dir` replaces data.dir, `batch`
    (0: as in training) is the number of examples per step. Raises UserError if there is no such split, or if the data
    is not what the run was trained on.
    """
    if batch < 0:
        raise UserError(f"batch is {batch}: give a positive number, or 0 for that of training")
    folder = runs.find(path)
    run = folder.config()
    if data_dir:
        run = replace(run, data=_moved(run.data, data_dir))
    backend.configure_jax()
    with backend.precision(run.compute_dtype):
        return _measure(folder, run, split, which, ema, batch or run.batch)


def _moved(data: DataConfig, folder: str) -> DataConfig:
    """The data config with another folder of prepared sets."""
    if not hasattr(data, "dir"):
        raise UserError(
            f"data.dir is {folder}, but this run reads its data from data.source {data.source}: leave the flag out"
        )
    return replace(data, dir=folder)  # type: ignore[call-arg]  # checked above


def _measure(
    folder: runs.Run, run: RunConfig, split: str, which: str, ema: bool | None, batch: int
) -> tuple[int, Evaluation]:
    from .models import definition
    from .step import Evaluator
    from .tasks import TASKS, task_of
    from .weights import read, weights

    step, tree = weights(folder, run.model, which, ema)
    dataset = TASKS[run.task].open_data(run)
    if not dataset.same_as(folder.record()["data"]):
        raise UserError(
            f"{folder}: data.source {run.data.source} is not the data that this run was trained on; restore it"
        )
    if split not in dataset.splits:
        raise UserError(
            f"there is no split {split!r}: this run's data has {', '.join(dataset.splits)}; choose one of them"
        )
    task = task_of(run, dataset.metadata()).load_frozen(lambda path: read(path, run.dir))
    evaluator = Evaluator(run.model, definition(run.model, dtype=run.compute_dtype), task)
    return step, evaluator.measure(evaluator.to_devices(tree), dataset.splits[split], batch)


@dataclass(frozen=True)
class DataOptions:
    """Where the data is."""

    dir: str = field(
        default="", metadata={"help": "folder of prepared TFDS sets, if it has moved since training; empty: as then"}
    )


@dataclass(frozen=True)
class Options:
    """Measure a trained network on a split of its data."""

    run: str = field(metadata={"help": "a run's folder, or its name inside runs/"})
    split: str = field(
        default="test", metadata={"help": "split of the data: train, validation, test or another that the data has"}
    )
    weights: Literal["best", "last"] = field(
        default="best",
        metadata={"help": "best: the checkpoint with the best validation (without any: the last); last: the last one"},
    )
    ema: bool = field(
        default=True, metadata={"help": "use the exponential moving average of the weights if the run has one"}
    )
    batch: int = field(default=0, metadata={"help": "examples per batch; 0: as in training"})
    data: DataOptions = field(default_factory=DataOptions)


def command(arguments: list[str]) -> int:
    """Parse the arguments, measure and print; returns the exit code. Raises UserError."""
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
    """The command `python -m vit_jax.evaluate`; returns the exit code."""
    return run_command(lambda: command(sys.argv[1:]))


make_callable(__name__)

if __name__ == "__main__":
    sys.exit(main())
