"""Fifty steps of both trainers from the same weights on the same batches: `python -m tests.parity.curves [--png FILE]`.

In float64, with the presets' own optimizers, schedules, clipping and label smoothing; dropout and
augmentation are off, since the two draw other random numbers.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import numpy as np

from torch_ref.trainer import Trainer
from vit_jax.config.run import RunConfig
from vit_jax.config.trees import flatten
from vit_jax.data.batches import batches
from vit_jax.machine import backend
from vit_jax.models.build import start
from vit_jax.presets.table import preset
from vit_jax.runs import Run
from vit_jax.runs.values import to_dict
from vit_jax.training.job import Job, open_data, open_job

PRESETS = {"digits": "ViT, digits", "numbers": "Transformer, numbers"}
LIMIT = 1e-9  # of a loss


def quiet(run: RunConfig) -> RunConfig:
    """A run without random numbers in its steps, in float64."""
    return replace(run.without_randomness(), compute_dtype="float64")


def ours(job: Job, parameters: dict[str, Any], seen: list[dict[str, np.ndarray]]) -> np.ndarray:
    """The losses of our steps."""
    state, losses = job.engine.start(parameters), []
    for batch in seen:
        state, metrics = job.engine.train(state, batch)
        losses.append(float(metrics["loss"]))
    return np.array(losses)


def theirs(job: Job, parameters: dict[str, Any], seen: list[dict[str, np.ndarray]]) -> np.ndarray:
    """The losses of PyTorch's steps."""
    trainer = Trainer(job.run, job.steps, job.order.steps_per_epoch, job.data.metadata())
    trainer.load({name: np.asarray(x) for name, x in flatten(parameters).items()})
    return np.array([trainer.step(batch) for batch in seen])


def losses(name: str, steps: int = 50, shallow: bool = False) -> tuple[np.ndarray, np.ndarray]:
    """A preset's first losses, ours and PyTorch's: float64 [steps] each. `shallow` takes one block of each kind."""
    with jax.enable_x64(True):
        run = quiet(preset(name).run)
        if shallow:
            depths = {f: 1 for f in ("depth", "encoder_depth", "decoder_depth") if hasattr(run.model, f)}
            run = replace(run, model=replace(run.model, **depths))
        job = open_job(run, open_data(run), Run("nowhere"))
        parameters = start(job.run.model, jax.random.key(0), "float64")
        seen = list(batches(job.data.splits["train"], job.order, 0, steps))
        assert to_dict(job.run)["compute_dtype"] == "float64"
        return ours(job, parameters, seen), theirs(job, parameters, seen)


def draw(rows: dict[str, tuple[np.ndarray, np.ndarray]], path: Path) -> None:
    """Both curves over each other, and what is between them."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 5.4), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(2, len(rows), sharex=True, height_ratios=[2, 1], squeeze=False)
    for (name, (a, b)), (top, bottom) in zip(rows.items(), axes.T, strict=True):
        t = np.arange(1, len(a) + 1)
        top.plot(t, b, color="#d55e00", linewidth=5, alpha=0.45, label="PyTorch (torch_ref)")
        top.plot(t, a, color="#0072b2", linewidth=1.4, label="JAX (vit_jax)")
        top.set(title=PRESETS[name], ylabel="training loss")
        top.legend(frameon=False)
        difference = np.abs(a - b)
        bottom.semilogy(t, np.where(difference > 0, difference, np.nan), ".", color="#333333")
        bottom.axhline(LIMIT, color="#009e73", linewidth=1)
        bottom.text(1, LIMIT * 1.5, "limit", color="#009e73", va="bottom")
        bottom.set(xlabel="step", ylabel="|difference|", ylim=(1e-17, 1e-7))
    for axis in axes.flat:
        axis.grid(alpha=0.3)
        axis.spines[["top", "right"]].set_visible(False)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)


def main() -> int:
    """Exit code 3 where the two part."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--png", type=Path, help="draw the curves here")
    options = parser.parse_args()
    backend.configure_jax()
    rows = {name: losses(name, options.steps) for name in PRESETS}
    worst = 0.0
    for name, (a, b) in rows.items():
        worst = max(worst, float(np.abs(a - b).max()))
        print(
            f"{name:8} loss {a[0]:.4f} -> {a[-1]:.4f} in {len(a)} steps; "
            f"largest difference to PyTorch {np.abs(a - b).max():.1e}, limit {LIMIT:.0e}"
        )
    if options.png:
        draw(rows, options.png)
    return 0 if worst <= LIMIT else 3


if __name__ == "__main__":
    sys.exit(main())
