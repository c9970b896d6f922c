"""Train a preset in PyTorch: `python -m torch_ref.train [PRESET] [--field value ...]`, or with `--resume FILE.pt`.

Configs and batches are those of vit_jax. Losses and metrics (tasks.py), schedules and optimizers (optim.py) and the
choice of decaying parameters are those of PyTorch or written here, so that a comparison with vit_jax can find errors.
Validation after each epoch, the best weights, and the other splits at the end are as in vit_jax (evaluation.py).
"""

from __future__ import annotations

import math
import os
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, fields, is_dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vit_jax.config import flags
from vit_jax.config.fields import option
from vit_jax.config.hints import REASONS
from vit_jax.config.run import RunConfig
from vit_jax.data.batches import batches
from vit_jax.errors import DONE, CheckFailed, Field, UserError, install
from vit_jax.files.atomic import write_json
from vit_jax.files.terminal import run_command
from vit_jax.machine.division import check_memory
from vit_jax.presets.table import DEFAULT, preset
from vit_jax.runs import check_place
from vit_jax.runs.check import check_complete, check_name, check_run
from vit_jax.tasks.table import task_spec

if TYPE_CHECKING:
    from .evaluation import Evaluations
    from .trainer import Trainer

# The fields of a run that are computed here; all others are refused, unless they have their defaults.
COMPUTED = {
    *("task", "epochs", "stages", "batch", "ema", "ema_warmup", "init", "seed", "compute_dtype"),
    *("max_steps", "max_minutes", "name", "dir", "log_every"),
    *("augment.crop_padding", "augment.flip", "augment.repeats", "augment.normalize", "augment.mean", "augment.std"),
    *("optim.name", "optim.lr", "optim.muon_lr", "optim.muon_momentum", "optim.momentum", "optim.nesterov"),
    *("optim.beta1", "optim.beta2", "optim.lion_beta2", "optim.eps", "optim.weight_decay", "optim.decay"),
    *("optim.layer_decay", "optim.freeze", "optim.freeze_epochs", "optim.clip", "optim.schedule", "optim.warmup"),
    *("optim.warmup_steps", "optim.final", "optim.pct_start", "optim.div_factor", "optim.cycle_momentum"),
    *("loss.name", "loss.label_smoothing", "loss.smoothing", "loss.focal"),
}
WHOLE = ("model", "data")  # every network has a twin, which tests/parity compares; vit_jax opens the data
# Fields of how vit_jax executes a run that may have any value here, and why.
WITHOUT_EFFECT = {
    "keep": "one file is written, at the end",
    "steps_per_dispatch": "it saves time between compiled calls, of which there are none",
    "stall_minutes": "it watches the other machines of a run, of which there are none",
}
WRITTEN = (".pt", ".safetensors", "-best.safetensors", ".json")  # ends of the names of the files of a run


@dataclass(frozen=True)
class Options(RunConfig):
    """The arguments of the command: the fields of a run, and this."""

    resume: str = option("", "continue the run that was saved in this FILE.pt, with its config as the default")


def check_supported(run: RunConfig) -> None:
    """Raise UserError naming the first field that vit_jax.train has and this module does not."""
    if task_spec(run.task).has_teacher:
        raise UserError(
            Field("task"), f"is {run.task}, whose teacher the PyTorch reference does not have", "choose another preset"
        )
    for name, value, default in settings(run):
        # With accumulate 1 the whole batch at once, as here by default.
        if name not in COMPUTED | WITHOUT_EFFECT.keys() and value != default and (name, value) != ("accumulate", 1):
            what = f"is {_words(value)}, which the PyTorch reference does not have"
            raise UserError(Field(name), what, f"leave it at {_words(default)}")


def settings(config: Any, prefix: str = "") -> Iterator[tuple[str, Any, Any]]:
    """(dotted name, value, default) of every field of a run, without those of its network and its data."""
    for f in fields(config):
        name, value = prefix + f.name, getattr(config, f.name)
        if not is_dataclass(value):
            yield name, value, f.default
        elif name not in WHOLE:
            yield from settings(value, f"{name}.")


def _words(value: Any) -> str:
    """A value as it is typed after its flag."""
    return " ".join(map(str, value)) if isinstance(value, tuple) else str(value) or "''"


def train(run: RunConfig, name: str = "run", file: str = "") -> Path:
    """Train a run to its end or its budget, and save it.

    Beside FILE.pt are written FILE.safetensors (the weights), FILE-best.safetensors (those of the best validation) and
    FILE.json (the results, as in summary.json of vit_jax).
    """
    check_supported(check_run(run))
    check_memory(check_complete(run))
    require_torch()
    import torch

    from .evaluation import Evaluations
    from .tasks import task_of
    from .trainer import Trainer, starting_weights

    path = Path(file) if file else free(Path(run.dir), run.name or f"{name}-torch", bool(run.name))
    data = task_of(run).open_data(run)
    run = replace(run, model=run.model.with_sizes(data.sizes))
    order = data.order(run.batch, run.seed)
    epoch = order.steps_per_epoch
    steps = run.epochs * epoch
    trainer = Trainer(run, steps, epoch, data.metadata(), device="cuda" if torch.cuda.is_available() else "cpu")
    evaluations = Evaluations(trainer, data.splits)
    stop = min(steps, run.max_steps or steps)
    if file:
        _restore(trainer, evaluations, data.identity, file, stop)
    elif run.init:
        starting_weights(trainer, run.init)
    count = sum(p.numel() for p in trainer.model.parameters())
    going_on = f"; going on after step {trainer.done}" if file else ""
    print(
        f"{name}: {count:,} parameters on {trainer.device}, {run.epochs} epochs of {epoch} steps{going_on}", flush=True
    )
    began = time.monotonic()
    spent = steps_until(trainer, evaluations, batches(data.splits["train"], order, trainer.done, stop), stop, began)
    status = "finished" if trainer.done == steps else "stopped: max_minutes" if spent else "stopped: max_steps"
    summary = evaluations.summary(status)
    trainer.save(path, preset=name, data=data.identity, **data.metadata(), best=evaluations.best)
    evaluations.save(path)
    write_json(path.with_suffix(".json"), summary)
    show(summary)
    print(f"{path}: step {trainer.done} after {time.monotonic() - began:.0f} s")
    return path


def _restore(trainer: Trainer, evaluations: Evaluations, data: dict[str, Any], file: str, stop: int) -> None:
    """Go on with a saved run on data of this identity, until the step `stop`. Raises UserError where it cannot."""
    from .trainer import checkpoint, resume

    saved = checkpoint(file)
    if saved.get("data") not in (None, data):
        raise UserError(
            f"resume {file}",
            f"data.source {trainer.run.data.source} is not the data that this run began with",
            "restore it",
        )
    resume(trainer, saved, file)
    evaluations.restore(saved.get("best"), Path(file))
    if trainer.done >= stop:
        raise UserError(
            f"resume {file}",
            f"has made {trainer.done} steps, and is to end after {stop}",
            "give a larger `max_steps`, or 0 for the whole run",
        )


def steps_until(trainer: Trainer, evaluations: Evaluations, stream: Any, stop: int, began: float) -> bool:
    """Train on a stream of batches."""
    run, (steps, epoch), first, total = trainer.run, trainer.length, trainer.done + 1, 0.0
    for t, batch in enumerate(stream, first):
        rate = trainer.schedule.get_last_lr()[0]
        loss = trainer.step(batch)
        if not math.isfinite(loss):
            raise CheckFailed(f"the loss is {loss} at step {t}; lower `optim.lr`")
        total += loss
        spent = bool(run.max_minutes and time.monotonic() - began > 60 * run.max_minutes)
        if t % run.log_every == 0 or t == stop or spent:
            mean = total / min((t - 1) % run.log_every + 1, t - first + 1)
            print(f"step {t}/{steps}  loss {mean:.4f}  lr {rate:.3g}", flush=True)
            total = 0.0
        if t % epoch == 0:
            evaluations.validate()
        if spent:
            return t < steps
    return False


def show(summary: dict[str, Any]) -> None:
    """Print the results of each split."""
    for split, results in summary.items():
        for weights, metrics in results.items() if isinstance(results, dict) and split != "best" else ():
            print(f"{split:10} {weights:8} " + "  ".join(f"{name} {value:.4f}" for name, value in metrics.items()))


def require_torch() -> None:
    """Raise UserError if PyTorch is not installed."""
    try:
        import torch  # noqa: F401
    except ImportError as error:
        raise UserError("PyTorch is not installed", remedy=f"run `{install('torch')}`") from error


def free(folder: Path, name: str, given: bool) -> Path:
    """A new path for the file of a run, with none of the files that it leaves beside it there yet."""
    check_place(folder)
    stem, number = check_name(name), 2
    while there := [path for end in WRITTEN if os.path.lexists(path := folder / f"{stem}{end}")]:
        if given:
            raise UserError(there[0], "exists", "choose another `name`")
        stem, number = f"{name}-{number}", number + 1
    return folder / f"{stem}.pt"


def parse(arguments: list[str]) -> tuple[str, RunConfig, str]:
    """What command-line arguments say -> (name of the preset, run, file to resume or "")."""
    words = list(arguments)
    name = words.pop(0) if words and not flags.is_flag(words[0]) else ""
    file = flags.value_of(flags.given_texts(words), "resume")
    if file and name:
        raise UserError(f"resume {file} brings its own config", f"leave out the preset {name!r}")
    if file:
        require_torch()
        from .trainer import checkpoint, saved_run

        saved = checkpoint(file)
        base, name = saved_run(saved, file), str(saved.get("preset", DEFAULT))
    else:
        name = name or DEFAULT
        base = preset(name).run
    options = flags.parse(
        Options,
        words,
        default=Options(**{f.name: getattr(base, f.name) for f in fields(RunConfig)}),
        prog="python -m torch_ref.train",
        description="Train a preset in PyTorch, on the same data.\n\n--init takes FILE.safetensors or a state dict.\n\n"
        f"The defaults below are those of {name}.",
        reasons=REASONS | dict.fromkeys(("device", "cuda", "gpu", "cpu", "no-cuda"), DEVICE),
    )
    return name, RunConfig(**{f.name: getattr(options, f.name) for f in fields(RunConfig)}), file


DEVICE = "PyTorch takes a GPU if it finds one; to use the CPU set CUDA_VISIBLE_DEVICES= before the command"


def command(arguments: list[str]) -> int:
    """The body of the command; returns its exit code."""
    name, run, file = parse(arguments)
    train(run, name, file)
    return DONE


def main() -> int:
    """Run `python -m torch_ref.train`; the exit codes are those of vit_jax.errors."""
    return run_command(lambda: command(sys.argv[1:]))


if __name__ == "__main__":
    sys.exit(main())
