"""The state of a run in training, and the files that hold it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from convert.optimizer import TORCH_NAMES
from vit_jax.config.dotted import replace_fields
from vit_jax.config.groups import moments
from vit_jax.config.run import RunConfig
from vit_jax.config.stages import stages_of
from vit_jax.errors import UserError, about
from vit_jax.files.atomic import replacing, sync_file, sync_folder
from vit_jax.runs.values import differences, from_dict, to_dict

from .optim import freeze, frozen, make_optimizer, make_schedule
from .tasks import task_of
from .weights import Model, build, load, names, our_names

Batch = Mapping[str, np.ndarray]
DTYPES = {"float32": torch.float32, "bfloat16": torch.float32, "float64": torch.float64}  # of parameters


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
        freeze(self.model, names(self.model), run.optim)
        self.optimizer = make_optimizer(self.model, run.optim)
        self.length = (steps, epoch)
        ours = names(self.model)
        late = run.optim.freeze_epochs and run.optim.freeze
        self.late = [p for name, p in self.model.named_parameters() if late and frozen(ours[name], run.optim)]
        self.release = round(run.optim.freeze_epochs * epoch)  # the first step at which `late` trains
        self.schedule = make_schedule(self.optimizer, run.optim, *self.length)
        self.stages = in_stages(self.model, run, steps)
        self.done = 0  # number of updates
        self.average = AveragedModel(self.model, multi_avg_fn=averaging(run)) if run.ema else None

    def load(self, parameters: Mapping[str, np.ndarray]) -> Trainer:
        """Load parameters."""
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
        with self.precision():
            return self.task.loss(self.network(), tensors(batch, self.device), self.dtype)

    def network(self) -> Model:
        """The network of the next step, which drops at the rates of its stage."""
        return next((network for end, network in self.stages if self.done < end), self.model)

    def precision(self) -> Any:
        """The context in which the network computes: bfloat16 where the run says so."""
        return torch.autocast(self.device.type, torch.bfloat16, enabled=self.run.compute_dtype == "bfloat16")

    def step(self, batch: Batch) -> float:
        """Do one update and return the loss before it. Random draws depend only on the seed and the step."""
        torch.manual_seed(int(np.random.SeedSequence((self.run.seed, self.done)).generate_state(1)[0]))
        self.network().train()
        self.optimizer.zero_grad()
        loss = self.loss(batch)
        loss.backward()
        if self.done < self.release:
            for parameter in self.late:
                parameter.grad = None  # which the optimizer skips, and begins to count steps at the first that is there
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
        """The moments of the optimizer; zeros before the first step."""
        state = self.optimizer.state
        out = {}
        for role, kept in moments(self.run.optim, self.run.model.parameters()).items():
            tensors = {
                name: state[p].get(TORCH_NAMES[role], torch.zeros_like(p)) if p in state else torch.zeros_like(p)
                for name, p in self.model.named_parameters()
            }
            out[role] = {name: x for name, x in our_names(self.model, tensors).items() if name in kept}
        return out

    def save(self, path: Path, **others: Any) -> None:
        """Write {model, optimizer, step, config}, and ema if there is one, to a file, atomically.

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
        with replacing(path) as partial, replacing(path.with_suffix(".safetensors")) as weights:
            torch.save(state, partial)
            save_file(our_names(self.model, self.model.state_dict()), weights)
            for temporary in (weights, partial):
                sync_file(temporary)
        sync_folder(path.parent)


def in_stages(model: Model, run: RunConfig, steps: int) -> list[tuple[int, Model]]:
    """The networks of the stages of a run, which differ in their dropout rates and share their parameters -> [(number
    of steps before which the stage ends, its network)], in order.
    """
    found, share = [], 0.0
    for part, rates in stages_of(run):
        share += part
        network = build(replace_fields(run, rates).model)
        for mine, given in zip(network.modules(), model.modules(), strict=True):
            mine._parameters, mine._buffers = given._parameters, given._buffers
        found.append((round(share * steps), network))
    return found


def averaging(run: RunConfig) -> Any:
    """How AveragedModel moves an average towards new weights; its third argument is 1 at the first step."""
    if not run.ema_warmup:
        return get_ema_multi_avg_fn(run.ema)

    def move(averages: list[Tensor], weights: list[Tensor], step: Tensor) -> None:
        decay = min(run.ema, (1 + step.item()) / (10 + step.item()))
        get_ema_multi_avg_fn(decay)(averages, weights, step)

    return move


def tensors(batch: Batch, device: torch.device) -> dict[str, Tensor]:
    """A batch {name: array} as tensors on a device."""
    return {name: torch.from_numpy(np.ascontiguousarray(array)).to(device) for name, array in batch.items()}


def starting_weights(trainer: Trainer, path: str) -> None:
    """Load a trainer's weights from a file."""
    try:
        with about(f"init {path}"):
            if path.endswith(".safetensors"):
                trainer.load(load_file(path))
            else:
                trainer.load(our_names(trainer.model, state_dict(path)))
    except (OSError, SafetensorError) as error:
        raise UserError(
            f"init {path}",
            f"cannot be read ({str(error).partition(chr(10))[0]})",
            "give FILE.safetensors or a PyTorch state dict",
        ) from error


def state_dict(path: str) -> dict[str, Tensor]:
    """The state dict in a file, at the top or under "model"."""
    try:
        saved = torch.load(path, map_location="cpu", weights_only=True)
        saved = saved.get("model", saved)
        if all(isinstance(tensor, Tensor) for tensor in saved.values()):
            return saved
    except OSError:
        raise
    except Exception as error:  # torch.load raises RuntimeError, UnpicklingError, EOFError, KeyError and others
        raise UserError("is not a PyTorch file", remedy="give FILE.safetensors or a state dict") from error
    raise UserError("is not a state dict of tensors", remedy="give what torch.save(model.state_dict(), path) writes")


def resume(trainer: Trainer, saved: Mapping[str, Any], path: str) -> None:
    """Restore a trainer from the content of a file."""
    if changed := differences(saved_run(saved, path), trainer.run):
        listed = ", ".join(f"{k} {old!r} -> {new!r}" for k, (old, new) in changed.items())
        raise UserError(
            f"resume {path}",
            f"holds another run, which differs in {listed}",
            f"leave these as they were, or start a new run from its weights with `init {path}` and `name NEW` in "
            f"place of `resume {path}`",
        )
    try:
        trainer.restore(saved)
    except (KeyError, TypeError, ValueError, AttributeError, RuntimeError) as error:
        raise UserError(
            f"resume {path}",
            f"its model or optimizer is missing or damaged ({type(error).__name__})",
            "give a file that this command saved",
        ) from error


def checkpoint(path: str) -> dict[str, Any]:
    """The content of a file that `save` wrote."""
    try:
        saved = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # as in state_dict
        reason = f"cannot be read ({error.strerror})" if isinstance(error, OSError) else "is not a PyTorch file"
        raise UserError(f"resume {path}", reason, "give one that this command saved") from error
    if not isinstance(saved, dict) or not {"model", "optimizer", "step", "config"} <= saved.keys():
        raise UserError(
            f"resume {path}",
            "does not hold model, optimizer, step and config",
            "give a file that this command saved, or start from its weights with `init`",
        )
    return saved


def saved_run(saved: Mapping[str, Any], path: str) -> RunConfig:
    """The config in the content of a file that `save` wrote."""
    try:
        return from_dict(RunConfig, saved["config"])
    except (AttributeError, TypeError, UserError) as error:
        raise UserError(
            f"resume {path}", f"its config is not a run's ({error})", "give a file that this command saved"
        ) from error
