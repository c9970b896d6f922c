"""Train a preset in PyTorch: `python -m torch_ref.train [PRESET] [--field value ...]`, or with `--resume FILE.pt`.

Configs and batches are those of vit_jax. Losses (tasks.py), schedules, optimizers and the choice of decaying parameters
are those of PyTorch or written here, so that a comparison with vit_jax can find errors.
"""

from __future__ import annotations

import argparse
import math
import os
import sys
import time
from collections.abc import Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR, LRScheduler, OneCycleLR
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from convert.optimizer import TORCH_NAMES
from vit_jax.config import (
    OptimConfig,
    RunConfig,
    check_run,
    differences,
    from_dict,
    roles,
    to_dict,
    with_sizes,
)
from vit_jax.data import batches
from vit_jax.errors import DONE, CheckFailed, UserError, run_command
from vit_jax.presets import preset
from vit_jax.runs import sync_file, sync_folder

from . import Model, build, load, named
from .tasks import task_of

Batch = Mapping[str, np.ndarray]
DTYPES = {"float32": torch.float32, "bfloat16": torch.float32, "float64": torch.float64}  # of parameters


# ------------------------------------------------------------------------ optimizers and schedules


def decay_groups(model: nn.Module, c: OptimConfig) -> list[dict[str, Any]]:
    """Parameter groups for torch.optim: those that decay and those that do not, by the kind of each parameter."""
    decays: dict[bool, dict[str, nn.Parameter]] = {True: {}, False: {}}
    for path, module in model.named_modules():
        for name, parameter in module.named_parameters(path, recurse=False):
            decays[kind_of(module, name.rpartition(".")[2]) in c.decay][name] = parameter
    return [
        {"params": [*its.values()], "param_names": [*its], "weight_decay": c.weight_decay * on}
        for on, its in decays.items()
        if its
    ]


def kind_of(module: nn.Module, name: str) -> str:
    """The kind of the parameter `name` of a module, one of those that OptimConfig.decay lists.

    Raises ValueError on a parameter whose kind is not known.
    """
    if isinstance(module, nn.LayerNorm):
        return "norm"
    if isinstance(module, nn.Embedding):
        return "embedding"
    kinds = {
        "weight": "kernel", "bias": "bias", "position": "position", "scale1": "scale", "scale2": "scale",
        "cls_token": "token", "distill_token": "token", "register_tokens": "token", "probe": "token",
    }  # fmt: skip
    if name not in kinds:
        raise ValueError(
            f"{type(module).__name__}.{name} has no kind, so weight decay is undefined: add it to `kind_of`"
        )
    return kinds[name]


def make_optimizer(model: nn.Module, c: OptimConfig) -> Optimizer:
    """The optimizer of PyTorch with this name; weight decay is an L2 term of the gradient in all but adamw."""
    groups = decay_groups(model, c)
    if c.name in ("sgd", "momentum"):
        momentum = c.momentum if c.name == "momentum" else 0.0
        return torch.optim.SGD(groups, lr=c.lr, momentum=momentum, nesterov=c.nesterov and c.name == "momentum")
    cls = torch.optim.AdamW if c.name == "adamw" else torch.optim.Adam
    return cls(groups, lr=c.lr, betas=(c.beta1, c.beta2), eps=c.eps)


def make_schedule(optimizer: Optimizer, c: OptimConfig, steps: int, epoch: int, done: int = 0) -> LRScheduler:
    """The schedule of the learning rate for the steps t = done .. steps-1; an epoch has `epoch` steps.

    With `done` above 0 the optimizer has the state of that many steps. The formulas are those of
    vit_jax.optim.learning_rate.
    """
    if c.schedule == "one_cycle":
        return OneCycleLR(
            optimizer,
            c.lr,
            total_steps=steps,
            pct_start=c.pct_start,
            div_factor=c.div_factor,
            final_div_factor=c.final_div_factor,
            cycle_momentum=c.cycle_momentum,
            base_momentum=c.base_momentum,
            max_momentum=c.max_momentum,
            last_epoch=done - 1,
        )
    warmup = round(c.warmup * epoch)

    def share(t: int) -> float:
        if t < warmup:
            return (t + 1) / warmup
        if c.schedule == "inverse_sqrt":
            return (max(warmup, 1) / (t + 1)) ** 0.5
        if c.schedule == "cosine":
            angle = math.pi * min(t - warmup, steps - warmup) / max(steps - warmup, 1)
            return c.final + (1 - c.final) * 0.5 * (1 + math.cos(angle))
        return 1.0

    return LambdaLR(optimizer, share, last_epoch=done - 1)


# ---------------------------------------------------------------------------------------- training


class Trainer:
    """The state of a run in training: `trainer.step(batch) -> loss`.

    For the schedule, `steps` is the length of the run and `epoch` that of an epoch, in steps. `metadata` is that of the
    data. The sizes of the run's network must be those of the data.
    """

    def __init__(self, run: RunConfig, steps: int, epoch: int, metadata: Mapping[str, Any], *, device: str = "cpu"):
        torch.manual_seed(run.seed)
        self.run, self.task = run, task_of(run)(run, metadata)
        self.device, self.dtype = torch.device(device), DTYPES[run.compute_dtype]
        self.model: Model = build(run.model).to(self.device, self.dtype)
        self.optimizer = make_optimizer(self.model, run.optim)
        self.length = (steps, epoch)
        self.schedule = make_schedule(self.optimizer, run.optim, *self.length)
        self.done = 0  # number of updates
        self.average = AveragedModel(self.model, multi_avg_fn=get_ema_multi_avg_fn(run.ema)) if run.ema else None

    def load(self, parameters: Mapping[str, np.ndarray]) -> Trainer:
        """Load parameters {vit_jax's dotted name: array}. Raises UserError if they are those of another network."""
        load(self.model, parameters)
        if self.average is not None:
            self.average.module.load_state_dict(self.model.state_dict())
        return self

    def restore(self, saved: Mapping[str, Any]) -> Trainer:
        """Restore the content of a file of `save`: weights, their average, moments (matched by name) and steps."""
        self.model.load_state_dict(saved["model"])
        groups = self.optimizer.state_dict()["param_groups"]
        saved_ids = {
            name: i
            for group in saved["optimizer"]["param_groups"]
            for name, i in zip(group["param_names"], group["params"], strict=True)
        }
        ids = {name: i for group in groups for name, i in zip(group["param_names"], group["params"], strict=True)}
        state = saved["optimizer"]["state"]
        self.optimizer.load_state_dict(
            {
                "state": {i: state[saved_ids[name]] for name, i in ids.items() if saved_ids[name] in state},
                "param_groups": groups,
            }
        )
        self.done = saved["step"]
        self.schedule = make_schedule(self.optimizer, self.run.optim, *self.length, self.done)
        if self.average is not None:
            self.average.module.load_state_dict(saved.get("ema", saved["model"]))
            self.average.n_averaged.fill_(self.done + 1)
        return self

    def loss(self, batch: Batch) -> Tensor:
        """The training loss [] of a batch {name: array}."""
        tensors = {name: torch.from_numpy(np.ascontiguousarray(array)).to(self.device) for name, array in batch.items()}
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.run.compute_dtype == "bfloat16"):
            return self.task.loss(self.model, tensors, self.dtype)

    def step(self, batch: Batch) -> float:
        """Do one update and return the loss before it. Random draws depend only on the seed and the step."""
        torch.manual_seed(int(np.random.SeedSequence((self.run.seed, self.done)).generate_state(1)[0]))
        self.model.train()
        self.optimizer.zero_grad()
        loss = self.loss(batch)
        loss.backward()
        if self.run.optim.clip:
            nn.utils.clip_grad_norm_(self.model.parameters(), self.run.optim.clip)
        if self.average is not None and not self.done:
            self.average.update_parameters(self.model)  # the first call copies the weights
        self.optimizer.step()
        self.schedule.step()
        if self.average is not None:
            self.average.update_parameters(self.model)
        self.done += 1
        return loss.item()

    def moments(self) -> dict[str, dict[str, np.ndarray]]:
        """The moments of the optimizer, {role: {vit_jax's dotted name: array}}; zeros before the first step.

        The roles are mu and nu, or trace, or none.
        """
        state = self.optimizer.state
        return {
            role: named(
                self.model,
                {
                    name: state[p].get(TORCH_NAMES[role], torch.zeros_like(p))
                    for name, p in self.model.named_parameters()
                },
            )
            for role in roles(self.run.optim)
        }

    def save(self, path: Path, **others: Any) -> None:
        """Write {model, optimizer, step, config}, ema if there is one, and `others` to a file, atomically.

        FILE.safetensors beside it has the weights under vit_jax's names, for --init of vit_jax.train.
        """
        state: dict[str, Any] = {
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "step": self.done,
            "config": to_dict(self.run),
            **others,
        }
        if self.average is not None:
            state["ema"] = self.average.module.state_dict()
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_name(path.name + ".tmp")
        torch.save(state, partial)
        weights = path.with_suffix(".safetensors")
        save_file(named(self.model, self.model.state_dict()), f"{weights}.tmp")
        for temporary, final in ((Path(f"{weights}.tmp"), weights), (partial, path)):
            sync_file(temporary)
            os.replace(temporary, final)
        sync_folder(path.parent)


def starting_weights(trainer: Trainer, path: str) -> None:
    """Load a trainer's weights from FILE.safetensors with vit_jax's names, a PyTorch state dict, or a file of `save`.

    Raises UserError on any other file.
    """
    try:
        if path.endswith(".safetensors"):
            trainer.load(load_file(path))
        else:
            trainer.load(named(trainer.model, state_dict(path)))
    except UserError as error:
        raise UserError(f"init {path}: {error}") from error
    except (OSError, SafetensorError) as error:
        raise UserError(
            f"init {path}: cannot be read ({str(error).partition(chr(10))[0]}); "
            "give FILE.safetensors or a PyTorch state dict"
        ) from error


def state_dict(path: str) -> dict[str, Tensor]:
    """The state dict in a file, at the top or under "model".

    Raises UserError if there is none, OSError if the file cannot be opened.
    """
    try:
        saved = torch.load(path, map_location="cpu", weights_only=True)
        saved = saved.get("model", saved)
        if all(isinstance(tensor, Tensor) for tensor in saved.values()):
            return saved
    except OSError:
        raise
    except Exception as error:  # torch.load raises RuntimeError, UnpicklingError, EOFError, KeyError and others
        raise UserError("is not a PyTorch file; give FILE.safetensors or a state dict") from error
    raise UserError("is not a state dict of tensors; give what torch.save(model.state_dict(), path) writes")


def resume(trainer: Trainer, saved: Mapping[str, Any], path: str) -> None:
    """Restore a trainer from the content of a file. Raises UserError if that is of another run, or not from `save`."""
    if changed := differences(saved_run(saved, path), trainer.run):
        listed = ", ".join(f"{k} {old!r} -> {new!r}" for k, (old, new) in changed.items())
        raise UserError(f"resume {path}: holds another run, which differs in {listed}; leave these as they were")
    try:
        trainer.restore(saved)
    except (KeyError, TypeError, ValueError, AttributeError, RuntimeError) as error:
        raise UserError(
            f"resume {path}: its model or optimizer is missing or damaged ({type(error).__name__}); "
            "give a file that this command saved"
        ) from error


def checkpoint(path: str) -> dict[str, Any]:
    """The content of a file that `save` wrote. Raises UserError on any other file."""
    try:
        saved = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # as in state_dict
        reason = f"cannot be read ({error.strerror})" if isinstance(error, OSError) else "is not a PyTorch file"
        raise UserError(f"resume {path}: {reason}; give one that this command saved") from error
    if not isinstance(saved, dict) or not {"model", "optimizer", "step", "config"} <= saved.keys():
        raise UserError(
            f"resume {path}: does not hold model, optimizer, step and config; "
            "give a file that this command saved, or start from its weights with --init"
        )
    return saved


def saved_run(saved: Mapping[str, Any], path: str) -> RunConfig:
    """The config in the content of a file that `save` wrote. Raises UserError if it is not valid."""
    try:
        return from_dict(RunConfig, saved["config"])
    except (AttributeError, TypeError, UserError) as error:
        raise UserError(
            f"resume {path}: its config is not a run's ({error}); give a file that this command saved"
        ) from error


def check_supported(run: RunConfig) -> None:
    """Raise UserError naming the first field that vit_jax.train has and this module does not."""
    lacks = (
        "accumulate",
        "parallel",
        "patience",
        "overfit_batches",
        "new_head",
        "init_resize",
        "init_channels",
        "tensorboard",
        "wandb",
    )
    defaults = {f.name: f.default for f in fields(RunConfig)}
    for name in lacks:
        if getattr(run, name) != defaults[name]:
            raise UserError(
                f"{name} is {getattr(run, name)}, which the PyTorch reference does not have: "
                f"leave it at {defaults[name]!r}"
            )


def train(run: RunConfig, name: str = "run", file: str = "") -> Path:
    """Train a run to its end or its budget, save it, and return the path of the file.

    With `file` it resumes the run that was saved there, and saves it there again. `name` is the name of the preset.
    Raises UserError, and CheckFailed if the loss is not finite.
    """
    check_supported(check_run(run))
    data = task_of(run).open_data(run)
    run = replace(run, model=with_sizes(run.model, data.sizes))
    order = data.order(run.batch, run.seed)
    epoch = order.steps_per_epoch
    steps = run.epochs * epoch
    trainer = Trainer(run, steps, epoch, data.metadata(), device="cuda" if torch.cuda.is_available() else "cpu")
    others = {"preset": name, "data": data.identity, **data.metadata()}
    if file:
        saved = checkpoint(file)
        if not data.same_as(saved.get("data")):
            raise UserError(
                f"resume {file}: data.source {run.data.source} is not the data that this run began with; restore it"
            )
        resume(trainer, saved, file)
    elif run.init:
        starting_weights(trainer, run.init)
    path = Path(file) if file else free(Path(run.dir), run.name or f"{name}-torch", bool(run.name))
    count = sum(p.numel() for p in trainer.model.parameters())
    stop, began, total = min(steps, run.max_steps or steps), time.monotonic(), 0.0
    if trainer.done >= stop:
        raise UserError(
            f"resume {file}: has made {trainer.done} steps, and is to end after {stop}; "
            "give a larger --max-steps, or 0 for the whole run"
        )
    going_on = f"; going on after step {trainer.done}" if file else ""
    print(
        f"{name}: {count:,} parameters on {trainer.device}, {run.epochs} epochs of {epoch} steps{going_on}", flush=True
    )
    first = trainer.done + 1
    for t, batch in enumerate(batches(data.splits["train"], order, trainer.done, stop), first):
        rate = trainer.schedule.get_last_lr()[0]
        loss = trainer.step(batch)
        if not math.isfinite(loss):
            raise CheckFailed(f"the loss is {loss} at step {t}; lower --optim.lr")
        total += loss
        spent = run.max_minutes and time.monotonic() - began > 60 * run.max_minutes
        if t % run.log_every == 0 or t == stop or spent:
            print(
                f"step {t}/{steps}  loss {total / min((t - 1) % run.log_every + 1, t - first + 1):.4f}  lr {rate:.3g}",
                flush=True,
            )
            total = 0.0
        if spent:
            break
    trainer.save(path, **others)
    print(f"{path}: step {trainer.done} after {time.monotonic() - began:.0f} s")
    return path


def free(folder: Path, name: str, given: bool) -> Path:
    """A new path for the file of a run. Raises UserError if the user gave the name (`given`) and it is taken."""
    path, number = folder / f"{name}.pt", 2
    while path.exists() or path.with_suffix(".safetensors").exists():
        if given:
            raise UserError(f"{path}: exists; choose another --name")
        path, number = folder / f"{name}-{number}.pt", number + 1
    return path


def parse(arguments: list[str]) -> tuple[str, RunConfig, str]:
    """(name of the preset, run, file to resume or "") from command-line arguments.

    Raises UserError; the parser exits with 2 on arguments that it does not know.
    """
    import tyro

    own = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    own.add_argument("--resume", default="")
    known, arguments = own.parse_known_args(arguments)
    name, file = arguments[0] if arguments and not arguments[0].startswith("-") else "", known.resume
    if file and name:
        raise UserError(f"--resume {file} brings its own config: leave out the preset {name!r}")
    saved = checkpoint(file) if file else {}
    base = saved_run(saved, file) if file else preset(name or "digits").run
    rest = arguments[bool(name) :]
    name = name or str(saved.get("preset", "digits"))
    text = (
        f"Train a preset in PyTorch, on the same data. The defaults below are those of {name}. "
        "--init takes FILE.safetensors or a state dict. "
        "--resume FILE.pt resumes the run that was saved there, whose config is then the default."
    )
    run = tyro.cli(
        RunConfig,
        args=rest,
        default=base,
        prog="python -m torch_ref.train",
        description=text,
        config=(tyro.conf.AvoidSubcommands,),
    )
    return name, run, file


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
