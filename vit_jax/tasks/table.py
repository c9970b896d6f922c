"""The tasks by name, and what is looked up in all of them. Nothing here loads jax."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..config.hints import nearest
from ..config.network import NetworkConfig
from ..config.run import RunConfig
from ..errors import Field, UserError
from ..plugins import Plugin, Table
from .spec import TaskSpec

TASKS: Table[type[TaskSpec]] = Table(
    "task",
    "tasks",
    {
        "classify": Plugin("vit_jax.tasks.classify.spec:ClassifySpec"),
        "translate": Plugin("vit_jax.tasks.translate.spec:TranslateSpec"),
        "caption": Plugin("vit_jax.tasks.caption.spec:CaptionSpec"),
        "caption-features": Plugin("vit_jax.extras.vectors.spec:CaptionFeaturesSpec"),
        "distil": Plugin("vit_jax.tasks.classify.distil_spec:DistilSpec"),
        "classify-resnet": Plugin("vit_jax.tasks.classify.spec:ClassifyResNetSpec"),
    },
    base=TaskSpec,
)


def task_spec(name: str) -> type[TaskSpec]:
    """The spec of a task."""
    if name not in TASKS:
        raise UserError(Field("task"), f"{name!r} is not known to this version of vit-jax{nearest(name, list(TASKS))}")
    return TASKS[name]


def untrained_run(model: NetworkConfig) -> RunConfig:
    """A run with this network that was never trained, of the first task that trains such networks."""
    for name, spec in TASKS.items():
        if spec.trains(model):
            return spec.untrained(name, model)
    raise UserError(f"no task of this version of vit-jax trains a {model.name}", remedy="write it as FILE.safetensors")


def metadata_checks() -> dict[str, Callable[[Any], bool]]:
    """{name of a metadata entry: whether a JSON value has the form that some task has under this name}."""
    checks: dict[str, list[Callable[[Any], bool]]] = {}
    for spec in TASKS.values():
        for name, entry in spec.metadata.items():
            checks.setdefault(name, []).append(entry.valid)
    return {name: _any_of(some) for name, some in checks.items()}


def _any_of(checks: list[Callable[[Any], bool]]) -> Callable[[Any], bool]:
    return lambda value: any(check(value) for check in checks)
