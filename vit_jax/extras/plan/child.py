"""A process that compiles one step for `vit-jax plan`: a line of JSON from stdin, JSON to stdout.

It is a process of its own because a compiler takes minutes in which Python hears no signal, may end the process where
it fails, writes to stderr what concerns nobody, and keeps its memory; and because a CPU is divided into devices once.
"""

from __future__ import annotations

import json
import os
import re
import sys
import threading
from typing import Any

from ...config.run import RunConfig
from ...errors import Field, UserError
from ...machine import backend
from ...machine.division import plan_division
from ...machine.targets import prepare, read_target
from ...runs.values import from_dict


def main() -> int:
    """Answer the request on stdin."""
    request = json.loads(sys.stdin.readline())
    threading.Thread(target=_end_with_parent, daemon=True).start()
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # libraries print to stdout too
    json.dump(answer(request), answers)
    answers.close()
    return 0


def _end_with_parent() -> None:
    """End this process when stdin closes: the process that asks is gone, however it ended."""
    os.read(0, 1)
    os._exit(1)


def answer(request: dict[str, Any]) -> dict[str, Any]:
    """What is asked for, or why it cannot be had."""
    target, run, what = read_target(str(request["target"])), from_dict(RunConfig, request["run"]), request["what"]
    compiled = None
    try:
        prepare(target)
        backend.configure_jax(plan_division(run).devices if target.present else 1)
        from .steps import Compiled

        compiled = Compiled(run, target, request["length"])
        return {"figures": compiled.figures(what)}
    except UserError as error:
        return {"refused": [error.subject, isinstance(error.subject, Field), error.what, error.remedy]}
    except Exception as error:
        said = str(error)
        if compiled and (found := too_large(said)):
            figures = compiled.described(what)
            needed, there = found
            return {"figures": figures | {"memory": figures["memory"] | {"total": needed, "there": there}}}
        if type(error).__name__ not in ("XlaRuntimeError", "JaxRuntimeError"):
            raise
        return {"failed": next(filter(None, said.splitlines()), type(error).__name__)}


def too_large(said: str) -> tuple[float, float] | None:
    """What a TPU's compiler says of a program that does not fit: (bytes that it needs, bytes that there are)."""
    size = r"([\d.]+)([KMGT])"
    for form in (rf"Used {size} of {size} hbm", rf"temporaries \({size}\) exceeds available HBM \({size}\)"):
        if found := re.search(form, said):
            needed, there = (float(found[i]) * 1024 ** ("KMGT".index(found[i + 1]) + 1) for i in (1, 3))
            return needed, there
    return None


if __name__ == "__main__":
    sys.exit(main())
