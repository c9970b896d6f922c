"""Evaluate a run on a split: `python -m vit_jax.evaluate RUN [--split test]`."""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

from . import backend, runs
from .errors import DONE, UserError, door

if TYPE_CHECKING:
    from .evaluation import Evaluation


def evaluate(
    path: str, split: str = "test", which: str = "best", ema: bool | None = None, data_dir: str = "", batch: int = 0
) -> tuple[int, Evaluation]:
    """(step, evaluation) of a run's weights on one of its splits.

    `which` and `ema` choose the weights as in `vit_jax.load`. Raises UserError where the split is
    not there, or the data is not what the run began with.
    """
    backend.prepare()
    import jax
    import jax.numpy as jnp

    from . import evaluation
    from .data import open_dataset
    from .interop import weights
    from .optim import Optimizer
    from .step import Engine
    from .tasks import task
    from .vit import definition

    folder = runs.find(path)
    run = folder.config()
    run = replace(run, batch=batch or run.batch, accumulate=1, parallel="jit", data=replace(run.data, dir=data_dir or run.data.dir))
    run = replace(run, batch=run.batch + -run.batch % jax.device_count())
    if run.compute_dtype == "float64":
        jax.config.update("jax_enable_x64", True)
    step, tree, skipped = weights(folder, run.model, which, ema)
    for reason in skipped:
        print(f"skipped {reason}")
    dataset = open_dataset(run)
    if dataset.identity != folder.record()["data"]:
        raise UserError(f"{folder}: data.source {run.data.source} is not the data that this run was trained on; restore it")
    if split not in dataset.splits:
        raise UserError(f"split {split!r}: this data has {', '.join(dataset.splits)}")
    network = definition(run.model, dtype=run.compute_dtype)
    engine = Engine(run, network, task(run, dataset.preprocess.mean, dataset.preprocess.std), Optimizer(run.optim, 1, 1))
    parameters = jax.device_put(jax.tree.map(jnp.asarray, tree), engine.replicated)
    return step, evaluation.evaluate(engine, parameters, dataset.splits[split], run.model.classes, run.batch)


def command(arguments: list[str]) -> int:
    """The command's body."""
    import tyro
    from tyro.conf import Positional

    def options(
        run: Positional[str],
        split: Literal["train", "validation", "test"] = "test",
        weights: Literal["best", "last"] = "best",
        ema: bool = True,
        data_dir: str = "",
        batch: int = 0,
    ) -> dict[str, Any]:
        """Evaluate a run on a whole split: loss, accuracy, precision, recall and F1.

        Args:
            run: a run's folder, or its name inside runs/
            split: which part of the data
            weights: those that validation liked best (the last where nothing was chosen), or the last
            ema: take the averaged weights where the run kept them
            data_dir: folder of prepared TFDS sets, where it has moved
            batch: images at a time; 0: as in training
        """
        return {"path": run, "split": split, "which": weights, "ema": None if ema else False, "data_dir": data_dir, "batch": batch}

    chosen = tyro.cli(options, args=arguments, prog="python -m vit_jax.evaluate")
    step, result = evaluate(**chosen)
    print(f"{chosen['path']} at step {step}, {chosen['split']}: {len(result.predicted):,} examples")
    for name, value in result.metrics.items():
        print(f"  {name:16} {value:.4f}")
    return DONE


def main() -> int:
    """`python -m vit_jax.evaluate`."""
    return door(lambda: command(sys.argv[1:]))


if __name__ == "__main__":
    sys.exit(main())
