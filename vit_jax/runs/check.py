"""Whether a run's config is valid, and whether it has what training needs besides: data, a name, perhaps a teacher."""

from __future__ import annotations

from ..config.fields import check_ranges
from ..config.groups import check_groups, check_lora, trainable_table
from ..config.run import LossConfig, RunConfig, profiled_steps
from ..config.stages import stages_of
from ..errors import Field, UserError
from ..files.terminal import JOINERS
from ..tasks.spec import TaskSpec
from ..tasks.table import TASKS, task_spec
from .values import part_classes

LONGEST = 200  # bytes of a run's name: file systems take 255, of which names that are made from it need some


def check_run(run: RunConfig) -> RunConfig:
    """The run, unchanged. Raises UserError on the first field that is invalid, or contradicts another."""
    spec = task_spec(run.task)
    for name, part in part_classes(run.task).items():
        if (given := type(getattr(run, name))) is not part:
            what = f"is of class {given.__name__}, but the task {run.task} needs {part.__name__}"
            raise UserError(Field(name), what, "give one, or start from a preset of that task")
    _check_loss(run, spec)
    if run.teacher and not spec.has_teacher:
        learning = ", ".join(name for name, each in TASKS.items() if each.has_teacher)
        raise UserError(
            Field("teacher"),
            f"is {run.teacher}, but the task {run.task} learns from none",
            f"leave it out, or start from a preset of the task {learning}",
        )
    check_ranges(run)
    spec.check(run)
    run.model.check_stack({"scan": run.scan, "remat": run.remat != "none"})
    check_settings(run)
    check_lora(run)
    check_groups(run.optim, trainable_table(run))
    return run


def _check_loss(run: RunConfig, spec: type[TaskSpec]) -> None:
    if run.loss.name not in ("", *spec.losses):
        raise UserError(
            Field("loss.name"),
            f"is {run.loss.name}, which the task {run.task} does not have",
            f"choose {' or '.join(spec.losses)}",
        )
    for name in ("class_weights", "prior", "focal"):
        value = getattr(run.loss, name)
        if value != getattr(LossConfig, name) and not spec.weighs:
            raise UserError(
                Field(f"loss.{name}"), f"is {value}, which the task {run.task} does not have", "leave it out"
            )


def check_settings(run: RunConfig) -> None:
    """Raise UserError naming the first fields of the run itself, not of its parts, that contradict each other."""
    if run.accumulate and run.batch % run.accumulate:
        raise UserError(
            Field("batch"), f"{run.batch} is not divisible by accumulate {run.accumulate}", "change one of them"
        )
    profiled_steps(run.profile_steps)
    stages_of(run)
    for name, why in (("fsdp", "where each device holds all parameters"), ("steps_per_dispatch", "one step a call")):
        if run.parallel == "pmap" and getattr(run, name) > 1:
            raise UserError(Field(name), f"is {getattr(run, name)}, but parallel is pmap, {why}", "set it to jit")
    if run.ema_warmup and not run.ema:
        raise UserError(
            Field("ema_warmup"),
            f"is {run.ema_warmup} but ema is {run.ema:g}",
            "give ema a decay, such as 0.999, or leave it out",
        )
    if run.patience and not run.data.validation:
        raise UserError(
            Field("patience"), f"is {run.patience} but data.validation is 0", "early stopping needs a validation split"
        )
    check_encoder(run)
    for name in ("new_head", "init_resize", "init_channels"):
        if getattr(run, name) not in (False, "none") and not run.init:
            raise UserError(Field(name), f"is {getattr(run, name)} but init is empty", "name the weights to start from")


def check_encoder(run: RunConfig) -> None:
    """Raise UserError where a run has `init_encoder`, but no encoder that could start from it."""
    if run.init_encoder and not run.model.encoder_field:
        what = f"is {run.init_encoder}, but a {run.model.name} has no encoder of its own"
        raise UserError(Field("init_encoder"), what, "give the weights as init")
    if run.init_encoder and run.init:
        what = f"is {run.init_encoder} and init is {run.init}, which has an encoder"
        raise UserError(Field("init_encoder"), what, "leave one of them out")


def check_complete(run: RunConfig) -> RunConfig:
    """The run, unchanged. Raises UserError where it cannot be trained yet: it has no data, no teacher, a bad name."""
    check_trained(run.task)
    if not run.data.source:
        raise UserError(
            Field("data.source"), "is empty", "give `data.source folder:PATH`, FILE.npz or the name of a set"
        )
    if task_spec(run.task).has_teacher and not run.teacher:
        raise UserError(
            Field("teacher"), "is empty", "give `teacher` and the run, file or folder of the network to learn from"
        )
    return run


def check_trained(task: str) -> None:
    """Raise UserError if the network of a task is only used, never trained."""
    network = task_spec(task).network
    if network.frozen:
        raise UserError(
            Field("task"),
            f"is {task}, but a {network.name} is only used, never trained",
            f"{network.frozen}; train another network, which can learn from this one as its `teacher`",
        )


def check_name(name: str) -> str:
    """The name of a run, unchanged."""
    if not is_name(name):
        raise UserError(
            Field("name"),
            f"is {name[:LONGEST]!r}",
            f"give the name of one folder, of at most {LONGEST} bytes, without slashes; `dir` says where it is",
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
