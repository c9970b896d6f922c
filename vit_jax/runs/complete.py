"""What a run needs besides valid fields before it can be trained: a network that can be, data, perhaps a teacher."""

from __future__ import annotations

from ..config.run import RunConfig
from ..errors import Field, UserError
from ..files.terminal import JOINERS
from ..tasks.table import task_spec

LONGEST = 200  # bytes of a run's name: file systems take 255, of which names that are made from it need some


def check_complete(run: RunConfig) -> RunConfig:
    """The run, unchanged.

    Raises:
        UserError: it lacks something without which it cannot be trained.
    """
    check_trained(run.task)
    if not run.data.source:
        raise UserError(
            Field("data.source"), "is empty", "give --data.source folder:PATH, FILE.npz or the name of a set"
        )
    if task_spec(run.task).has_teacher and not run.teacher:
        raise UserError(
            Field("teacher"), "is empty", "give --teacher and the run, file or folder of the network to learn from"
        )
    return run


def check_trained(task: str) -> None:
    """Raise UserError if the network of a task is only used, never trained."""
    network = task_spec(task).network
    if network.frozen:
        raise UserError(
            Field("task"),
            f"is {task}, but a {network.name} is only used, never trained",
            f"{network.frozen}; train another network, which can learn from this one as its --teacher",
        )


def check_name(name: str) -> str:
    """The name of a run, unchanged.

    Raises:
        UserError: it is not that of one folder inside run.dir.
    """
    if not is_name(name):
        raise UserError(
            Field("name"),
            f"is {name[:LONGEST]!r}",
            f"give the name of one folder, of at most {LONGEST} bytes, without slashes; --dir says where it is",
        )
    return name


def is_name(name: str) -> bool:
    """Whether a text can be the name of a run, which becomes that of a folder."""
    return (
        all(c.isprintable() or c in JOINERS for c in name)
        and name not in ("", ".", "..")
        and not name.startswith("-")
        and not set(name) & set("/\\")
        and len(name.encode("utf-8", "surrogatepass")) <= LONGEST
    )
