"""What can be known to be wrong with a run before its data is opened and anything is written."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from .. import runs
from ..config.run import RunConfig
from ..errors import UserError
from ..machine.hosts.group import Hosts
from ..machine.memory import check_memory
from ..runs.check import check_run
from ..runs.complete import check_complete, check_name
from ..weights.start.again import check_unchanged
from ..weights.start.start import check as check_start
from ..weights.teacher import teacher_of
from .log import check_extras

if TYPE_CHECKING:
    from ..data.base import Data


def ready(
    run: RunConfig, preset: str, folder: runs.Run | None = None, seeds: int = 0, data: Data | None = None
) -> runs.Run:
    """The folder in which to train a run (or a group of `seeds` runs), new or with this run in it; writes nothing.

    `folder` is that of a run to resume, `data` are examples that the caller holds. Raises UserError if a field is
    invalid, an extra is not installed, the memory of this machine too small, the folder that of another run or not to
    be written, or the weights of `init`, as far as they are needed, or the teacher do not fit.
    """
    check_complete(check_run(run))
    check_memory(run, teacher_of(run, values=False))
    check_extras(run.tensorboard, run.wandb)
    if folder is None:
        if run.init:
            check_unchanged(run, check_name(run.name or preset))
        folder = runs.choose(run, run.name or preset, named=bool(run.name), seeds=seeds, data=data)
    runs.check_place(folder.path)
    if (run.init or run.init_encoder) and not folder.complete_steps():
        check_start(run)
    return folder


# Fields that each host may have in its own way: the places of its files.
OF_A_HOST = ("data.dir", "dir", "name")


def check_hosts(run: RunConfig, hosts: Hosts) -> None:
    """Raise UserError where several hosts cannot train a run."""
    if hosts.several and run.parallel == "pmap":
        raise UserError("hosts: parallel is pmap, which is of one host only; set it to jit")


def beside(run: RunConfig) -> RunConfig:
    """The run as a host trains it that does not own its folder: nothing is written for the user there."""
    return replace(run, tensorboard=False, wandb="", profile_steps="")
