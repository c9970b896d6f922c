"""The first step of setting up a run: what can be known to be wrong before its data is opened, or anything written."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from .. import runs
from ..config.network import Teacher
from ..config.run import RunConfig
from ..errors import Field, UserError
from ..machine.division import Division, plan_division
from ..machine.hosts.group import ALONE, Hosts
from ..machine.memory import check_memory
from ..presets.entry import on_other_data
from ..presets.table import preset
from ..runs.check import check_complete, check_name, check_run
from ..runs.values import with_fields
from ..weights.opening import check_unchanged, open_teacher
from ..weights.start import check as check_start
from .hooks import Hook, Hooks

if TYPE_CHECKING:
    from ..data.base import Given

# Fields that each host may have in its own way: the places of its files.
OF_A_HOST = ("data.dir", "dir", "name")


@dataclass(frozen=True)
class CheckedRun:
    """A run that can be set up, and what was found out about it."""

    run: RunConfig
    division: Division  # as planned before jax starts
    teacher: Teacher | None
    hooks: Hooks


def checked_arguments(
    run: Any, data: Any, class_names: Sequence[str], fields: Mapping[str, Any] = {}
) -> tuple[RunConfig, Given | None]:
    """The arguments of `train`, checked; `fields` are other values of fields of `run`."""
    if isinstance(run, str):
        run = preset(run).run if data is None else on_other_data(preset(run).run)
    if not isinstance(run, RunConfig):
        what = f"run is a {type(run).__name__}"
        raise UserError(what, remedy="give a preset's name, or a RunConfig such as vit_jax.preset('digits').run")
    run = with_fields(run, fields) if fields else run
    if data is None:
        if class_names:
            raise UserError("class_names", "are those of examples given as data=...", "leave them out")
        return check_run(run), None
    from ..data.base import Given

    source = run.data.given
    if not source:
        raise UserError("data", f"the task {run.task} takes none from Python", "give data.source")
    return check_run(replace(run, data=replace(run.data, source=source))), Given(data, class_names)


def preflight(run: RunConfig, hosts: Hosts = ALONE) -> CheckedRun:
    """Plan how a run that `check_run` has passed is divided, and open its teacher."""
    if hosts.several and run.parallel == "pmap":
        raise UserError("hosts", "parallel is pmap, which works on one host only", "set it to jit")
    check_complete(run)
    division = plan_division(run, hosts.count)
    teacher = open_teacher(run, before_reading=lambda teacher: check_memory(run, teacher, division))
    if teacher is None:
        check_memory(run, None, division)
    hooks = Hooks(run)
    hooks.check(run)
    for name, hook in hooks.of.items() if hosts.several else ():
        if type(hook).due is not Hook.due:
            raise UserError(Field("hooks"), f"{name} wants steps alone, and there are several hosts", "leave it out")
    return CheckedRun(run, division, teacher, hooks)


def choose_folder(
    run: RunConfig, preset: str, folder: runs.Run | None = None, group: str = "", *, difference: runs.Difference
) -> runs.Run:
    """The folder in which to train a run, new or with this run in it; writes nothing."""
    if folder is None:
        if run.init:
            check_unchanged(run, check_name(run.name or preset))
        folder = runs.choose(run, run.name or preset, bool(run.name), group, difference)
    else:
        runs.check_content(folder, run, difference)
    runs.check_place(folder.path)
    if (run.init or run.init_encoder) and not folder.complete_steps():
        check_start(run)
    return folder


def without_outputs(run: RunConfig) -> RunConfig:
    """The run as a host trains it that does not own its folder: nothing is written for the user there."""
    return replace(run, tensorboard=False, wandb="", profile_steps="", hooks=())
