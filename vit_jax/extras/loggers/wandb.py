"""The hook that sends rows to Weights & Biases."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from ... import runs
from ...config.run import RunConfig
from ...errors import Field, UserError, install
from ...runs.values import to_dict
from ...training.hooks import Hook


class Wandb(Hook):
    """Sends each row."""

    project: Project | None = None

    @staticmethod
    def asked_for(run: RunConfig) -> bool:
        return bool(run.wandb)

    def check(self, run: RunConfig) -> None:
        if find_spec("wandb") is None:
            raise UserError(Field("wandb"), "is set but not installed", install("wandb"))

    def begin(self, folder: runs.Run, run: RunConfig, step: int) -> None:
        self.project = Project(folder.path, run.wandb, folder.path.name, to_dict(run))

    def row(self, step: int, values: Mapping[str, float]) -> None:
        if self.project:
            self.project.write(step, values)

    def close(self) -> None:
        if self.project:
            self.project.close()


class Project:
    """Sends rows to Weights & Biases. The id there is stored in the run's folder: a resumed run continues there."""

    def __init__(self, folder: Path, project: str, name: str, config: dict[str, Any] | None):
        try:
            import wandb
        except ImportError as error:
            raise UserError(Field("wandb"), "is set but not installed", install("wandb")) from error
        id_file = folder / "wandb" / "id"
        id_file.parent.mkdir(parents=True, exist_ok=True)
        if not id_file.is_file():
            id_file.write_text(secrets.token_hex(8), encoding="ascii")
        try:
            self._run = wandb.init(
                project=project,
                name=name or None,
                config=config,
                id=id_file.read_text(encoding="ascii"),
                resume="allow",
                dir=str(folder),
            )
        except Exception as error:  # not logged in, no network, a bad project name: none of them is a bug here
            reason = (str(error).strip() or type(error).__name__).splitlines()[0]
            raise UserError(
                f"wandb {project!r}", f"cannot start ({reason})", "run `wandb login`, or set WANDB_MODE=offline"
            ) from error
        # Rows that W&B has from before an interruption cannot be removed, and need not be: a run repeats its steps.
        self._first = getattr(self._run, "starting_step", 0)

    def write(self, step: int, values: Mapping[str, float]) -> None:
        if step >= self._first:
            self._run.log(dict(values), step=step)

    def close(self) -> None:
        self._run.finish()
