"""What a trained network can besides answering, by name: CAPABILITIES in vit_jax/plugins.py. Nothing here loads jax."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from ..errors import UserError
from ..figures.parts import Part
from ..files.terminal import print_note
from ..plugins import CAPABILITIES

EXPLAIN_STEPS = 16  # of integrated gradients: with 8 the maps point as well, with 50 their sum is nearer
EXPLAIN_BATCH = 16  # inputs: gradients take more memory than answers


class Capability:
    """What a trained network can besides answering: methods, flags of `predict`, and pictures at the end of a run.

    Each method that it does not define does nothing. Its methods for Python may have any other name:
    `vit_jax.load(...).capability(NAME)` makes it. Importing its module loads no jax.

    Args:
        predictor: what `vit_jax.load` has returned. Raises UserError where that cannot have it.
    """

    # A frozen dataclass of the fields that `predict` has for it, made by config.fields.option, with defaults.
    flags: ClassVar[type | None] = None

    def __init__(self, predictor: Any):
        self.predictor = predictor

    @classmethod
    def asked(cls, options: Any, stated: Sequence[str]) -> bool:
        """Whether the flags of `predict` ask for it; `stated` are the fields that are given.

        Raises UserError where they contradict each other. Nothing is opened yet.
        """
        return False

    @classmethod
    def outputs(cls, options: Any) -> Sequence[Mapping[str, str]]:
        """{field: file} of each file that is written where it is asked for."""
        return ()

    def check(self, options: Any) -> None:
        """Where it is asked for, before the first answer. Raises UserError where the network cannot do that."""

    def after_answers(self, options: Any, inputs: Sequence[Any], caption: str) -> Iterable[tuple[str, str]]:
        """Where it is asked for, with the first inputs that have an answer: the lines to print, (label, text).

        `caption` is a line for figures, which says what the network is.
        """
        return ()

    @classmethod
    def draw(cls, task: Any, network: Any, data: Any, result: Any, plots: Path, caption: str) -> Sequence[Part]:
        """At the end of a run: draw into the folder `plots`. Returns what a page about the run is to show.

        The result is that of the test split, or None; `data` are as `Task.open_data` returns them.
        """
        return ()


@contextlib.contextmanager
def blaming(name: str, goes_on: bool = False) -> Iterator[None]:
    """A context in which what a capability of another package raises becomes a sentence that names both.

    It is a UserError or, where all goes on without the capability, a note.
    """
    try:
        with CAPABILITIES.blaming(name):
            yield
    except UserError as error:
        if name in CAPABILITIES.ours or not goes_on:
            raise
        subject, said = f"the capability {name!r} of the package {CAPABILITIES.plugins()[name].package}", str(error)
        print_note(said if said.startswith(subject) else f"{subject}: {said}", sys.stderr)
