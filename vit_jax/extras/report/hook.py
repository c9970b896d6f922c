"""The hook that leaves a report where a run or a group ends."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path

from ... import runs
from ...config.run import RunConfig
from ...errors import UserError
from ...figures.parts import Part
from ...files.reading import show_path
from ...files.terminal import printable
from ...training.hooks import Hook
from .command import FILE, report


class LeaveReport(Hook):
    """Keeps what figures show, and writes the report at the end, if it is not there already."""

    @staticmethod
    def asked_for(run: RunConfig) -> bool:
        return True

    def drawn(self, plots: Path, parts: Sequence[Part]) -> None:
        from .keep import keep  # which loads numpy

        for part in parts:
            keep(plots, part)

    def end(self, folder: runs.Run, again: bool) -> None:
        if not (again and (folder.path / FILE).exists()):
            leave_report(folder)


def leave_report(folder: runs.Run) -> None:
    """Write the report at the end of a run or a group, and say where it is; a run does not fail for want of it."""
    try:
        print(f"report     {printable(show_path(report(folder.path)))}")
    except UserError as error:
        again = f"write it elsewhere with `vit-jax report {shlex.quote(str(folder))} --out FILE.html`"
        print(f"skipped    the report: {printable(f'{error.fault}; {again}')}")
    except ImportError as error:  # in an environment that was made for an older version
        again = f"install it, then write the report with `vit-jax report {shlex.quote(str(folder))}`"
        print(f"skipped    the report: {printable(f'{error}; {again}')}")
