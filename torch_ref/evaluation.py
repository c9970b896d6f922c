"""The evaluation of a run in training: validation after each epoch, the best weights, the other splits at the end."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from safetensors.numpy import load_file, save_file
from torch import Tensor

from vit_jax.data.batches import evaluation_batches
from vit_jax.errors import CheckFailed

from .trainer import Trainer, tensors
from .weights import Model, load, our_names

Metrics = dict[str, float]


@torch.no_grad()
def measure(trainer: Trainer, model: Model, split: Any) -> Metrics:
    """The metrics of a model on all examples of a split, each once, in batches of the run's size."""
    model.eval()
    parts: dict[str, list[Tensor]] = {}
    order: list[np.ndarray] = []
    for batch, indices in evaluation_batches(split, trainer.run.batch):
        with trainer.precision():
            out = trainer.task.outputs(model, tensors(batch, trainer.device), trainer.dtype)
        for name, values in out.items():
            parts.setdefault(name, []).append(values[: len(indices)].cpu())
        order.append(indices)
    places = torch.from_numpy(np.argsort(np.concatenate(order)))
    metrics = trainer.task.metrics(split, {name: torch.cat(values)[places] for name, values in parts.items()})
    if not math.isfinite(metrics["loss"]):
        raise CheckFailed(f"the loss of an evaluation is {metrics['loss']} at step {trainer.done}; lower `optim.lr`")
    return metrics


class Evaluations:
    """What a run has measured: the last validation, and the best, with its weights.

    `splits` are those of the data. `best` is {"step", the selection metric, "loss", "weights": "raw" | "ema"}, or None
    before the first validation.
    """

    def __init__(self, trainer: Trainer, splits: Mapping[str, Any]):
        self.trainer, self.splits = trainer, splits
        self.last: dict[str, Metrics] = {}
        self.step = -1  # of the last validation
        self.best: dict[str, Any] | None = None
        self.weights: dict[str, Any] = {}  # of the best, under vit_jax's names

    def restore(self, best: dict[str, Any] | None, path: Path) -> None:
        """Take the best from the files of a run that is resumed."""
        file = _best_file(path)
        if best is not None and file.is_file():
            self.best, self.weights = best, dict(load_file(file))

    def save(self, path: Path) -> None:
        """Write the best weights beside the file of a run."""
        if self.best is not None:
            save_file(self.weights, _best_file(path))

    def models(self) -> dict[str, Model]:
        """The networks to measure: that of the weights, and that of their average."""
        average = self.trainer.average
        return {"raw": self.trainer.model, **({} if average is None else {"ema": cast(Model, average.module)})}

    def validate(self) -> None:
        """Measure the weights and their average on the validation split, if there is one, and keep the best."""
        split, trainer = self.splits.get("validation"), self.trainer
        if split is None or self.step == trainer.done:
            return
        self.last, self.step = {w: measure(trainer, model, split) for w, model in self.models().items()}, trainer.done
        metric, sign = trainer.task.selection

        def rank(found: Mapping[str, Any]) -> tuple[float, float]:
            return sign * found[metric], -found["loss"]

        weights = max(self.last, key=lambda each: (*rank(self.last[each]), each == "ema"))
        if self.best is None or rank(self.last[weights]) > rank(self.best):
            chosen = self.last[weights]
            self.best = {"step": trainer.done, metric: chosen[metric], "loss": chosen["loss"], "weights": weights}
            model = self.models()[weights]
            self.weights = our_names(model, model.state_dict())
        for name, found in self.last.items():
            text = f"{metric.replace('_', ' ')} {found[metric]:.4f} loss {found['loss']:.4f}"
            print(f"epoch {trainer.done / trainer.length[1]:g}: validation {name} {text}", flush=True)

    def summary(self, status: str) -> dict[str, Any]:
        """What NAME.json holds: the entries of a run's summary.json that have a meaning here."""
        trainer = self.trainer
        epoch = trainer.done / trainer.length[1]
        # A budget that ends between evaluations measures for the summary alone.
        best, weights = self.best, self.weights
        self.validate()
        if not epoch.is_integer():
            self.best, self.weights = best, weights
        found: dict[str, Any] = {"status": status, "step": trainer.done, "epoch": epoch, "best": self.best}
        if self.last:
            found["validation"] = self.last
        for name, split in self.splits.items():
            if name not in ("train", "validation") and status == "finished":
                found[name] = {
                    "last" if w == "raw" else "last_ema": measure(trainer, model, split)
                    for w, model in self.models().items()
                }
                if self.best is not None:
                    found[name]["best"] = self._of_best(split)
        return found

    def _of_best(self, split: Any) -> Metrics:
        """The metrics of the best weights on a split."""
        model = self.trainer.model
        current = our_names(model, model.state_dict())
        try:
            return measure(self.trainer, load(model, self.weights), split)
        finally:
            load(model, current)


def _best_file(path: Path) -> Path:
    """The file of a run's best weights, beside the file of the run."""
    return path.with_name(f"{path.stem}-best.safetensors")
