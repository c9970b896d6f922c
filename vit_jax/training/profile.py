"""A trace of some training steps, by jax's profiler."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from ..config.run import profiled_steps


class Profile:
    """Traces the steps that `profile_steps` names ("FIRST:LAST", counted from 1; empty: none) into a folder.

    Within `with`, `begin` is called before each step and `end` after it. `say` prints a line.
    """

    def __init__(self, steps: str, folder: Path, say: Callable[[str], None]):
        self.steps, self.folder, self.say = profiled_steps(steps), folder, say
        self.first = 0  # of the trace that has begun

    def __enter__(self) -> Profile:
        return self

    def __exit__(self, *error: object) -> None:
        if self.first:
            self._stop(f"from step {self.first} on, as training ended before step {self.steps[-1]}")

    def begin(self, step: int) -> None:
        """Start the trace if this is one of its steps: the first, or that with which a resumed run begins."""
        import jax

        if step in self.steps and not self.first:
            jax.profiler.start_trace(self.folder, create_perfetto_trace=True)
            self.first = step

    def end(self, step: int, results: Any) -> None:
        """End the trace if this is its last step."""
        import jax

        if self.first and step == self.steps[-1]:
            jax.block_until_ready(results)  # the step itself has only been sent
            self._stop(f"of steps {self.first} to {step}")

    def _stop(self, what: str) -> None:
        import jax

        jax.profiler.stop_trace()
        self.first = 0
        newest = max(
            self.folder.rglob("perfetto_trace.json.gz"), key=lambda file: file.stat().st_mtime, default=self.folder
        )
        self.say(f"profile  a trace {what}: open {newest} at https://ui.perfetto.dev")
