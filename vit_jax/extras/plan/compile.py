"""Steps that `vit-jax plan` has compiled, each in a process of its own (`main`), or finds compiled before.

It is a process of its own because a compiler takes minutes in which Python hears no signal, may end the process where
it fails, writes to stderr what concerns nobody, and keeps its memory; and because a CPU is divided into devices once.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import importlib.metadata
import json
import os
import re
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Any

from ...config.run import RunConfig
from ...errors import CheckFailed, Field, UserError
from ...files.atomic import make_folder, read_json, write_json
from ...files.digests import text_digest
from ...files.terminal import print_note, printable
from ...machine import backend
from ...machine.division import plan_division
from ...machine.targets import WITHOUT_DEVICES, Target, prepare, read_target
from ...runs.values import from_dict, to_dict

CUDA = ("jax-cuda{}-plugin", "nvidia-cudnn-cu{}")
PACKAGES = ("jax", "jaxlib", "libtpu", *(name.format(version) for version in (12, 13) for name in CUDA))
FLAGS = ("XLA_FLAGS", "LIBTPU_INIT_ARGS")
UNSEEN = ("name", "dir", "wandb", "tensorboard", "hooks")  # fields that no program depends on


class Compiler:
    """What compiles steps for a target."""

    def __init__(self, target: Target, again: bool = False, length: int = 0):
        self.target, self.again, self.length = target, again, length
        self._kept = True

    def figures(self, run: RunConfig, what: str = "train", title: str = "") -> dict[str, Any]:
        """What a step asks of each device, as extras/plan/steps.py gives it."""
        values = {name: value for name, value in to_dict(run).items() if name not in UNSEEN}
        request = {"run": values, "target": self.target.name, "what": what, "length": self.length}
        file = backend.cache_folder("plans") / f"{text_digest([request, versions(self.target), sources()])}.json"
        if not (self.again or run.teacher) and (found := _read(file)):  # a teacher's file may have changed
            return found
        answer = _ask(request, f"{what}{title} for {self.target.name}")
        if "refused" in answer:
            subject, is_field, fault, remedy = answer["refused"]
            raise UserError(Field(subject) if is_field else subject, fault, remedy)
        if "failed" in answer:
            raise CheckFailed(f"the compiler of {self.target.name} fails at {what}{title}: {answer['failed']}")
        self._keep(file, answer["figures"])
        return dict(answer["figures"])

    def _keep(self, file: Path, figures: Mapping[str, Any]) -> None:
        """Keep figures for another time, if the disk lets them; it is said once if not."""
        try:
            make_folder(file.parent)
            write_json(file, {"figures": dict(figures), "digest": text_digest(figures)})
        except OSError as error:
            if self._kept:
                print_note(f"what is compiled cannot be kept in {file.parent} ({error.strerror})", sys.stderr)
            self._kept = False


def _read(file: Path) -> dict[str, Any]:
    """The figures in a file; empty if it is not there, or damaged."""
    with contextlib.suppress(OSError, UserError):
        found = read_json(file)
        if found.get("digest") == text_digest(found.get("figures")):
            return dict(found["figures"])
    return {}


def versions(target: Target) -> dict[str, str]:
    """What decides besides a run and this package what a compiler makes: {package or setting: version or value}."""
    found = {}
    for name in PACKAGES:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found[name] = importlib.metadata.version(name)
    if target.present:
        found |= {"cpu": f"{backend.cpu_name()}, {backend.cores()} cores"}
    settings = {name: value for name, value in os.environ.items() if name in FLAGS or name.startswith("JAX_")}
    return found | {name: value for name, value in settings.items() if target.present or name not in WITHOUT_DEVICES}


@functools.cache
def sources() -> str:
    """A digest of this package's own files, which change in a checkout while its version does not."""
    digest = hashlib.sha256()
    for path in sorted(Path(__file__).parents[2].rglob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()


def _ask(request: Mapping[str, Any], title: str) -> dict[str, Any]:
    """What a process answers that compiles. It ends with this one, which holds its stdin open."""
    root = str(Path(__file__).parents[3])
    paths = os.pathsep.join([root, *filter(None, [os.environ.get("PYTHONPATH")])])
    command = [sys.executable, "-P", "-m", f"{__package__}.compile"]
    with tempfile.TemporaryFile("w+") as errors, progress(title):
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": errors}
        environment = {**os.environ, "PYTHONPATH": paths}
        child = subprocess.Popen(command, env=environment, text=True, **pipes)  # type: ignore[call-overload]
        try:
            with contextlib.suppress(BrokenPipeError):
                child.stdin.write(json.dumps(request) + "\n")
                child.stdin.flush()
            said = child.stdout.read()
            child.wait()
        finally:
            child.kill()
            child.wait()
            child.stdout.close()
            with contextlib.suppress(BrokenPipeError):
                child.stdin.close()
        if child.returncode == 0:
            return dict(json.loads(said))
        return _ended(child.returncode, errors)


def _ended(code: int, errors: IO[str]) -> dict[str, Any]:
    """The answer for a process that ended without one, as where a compiler aborts or exits."""
    errors.seek(0)
    lines = [line.strip() for line in errors.read().splitlines() if line.strip()]
    if code > 0 and any(line.startswith("Traceback ") for line in lines):
        raise RuntimeError("\n".join(["the process that compiles ended with an error:", *lines[-40:]]))
    how = f"it ended with {code}" if code > 0 else f"it ended with signal {-code}"
    if code == -9:  # SIGKILL
        return {"failed": f"{how}, as where this machine's memory runs out"}
    told = next((line for line in lines if re.match(r"F\d|ERROR", line)), lines[-1] if lines else "")
    return {"failed": how + (f" ({told[:300]})" if told else "")}


@contextlib.contextmanager
def progress(title: str) -> Iterator[None]:
    """A context with a line on stderr while something is compiled: on a terminal with its seconds, else once."""
    text = f"compiling {printable(title)} ..."
    if sys.stderr is None or not sys.stderr.isatty():
        print(text, file=sys.stderr, flush=True)
        yield
        return
    from rich import progress as columns
    from rich.console import Console

    console, shown = Console(stderr=True), columns.TextColumn("{task.description}", markup=False)
    with columns.Progress(shown, columns.TimeElapsedColumn(), console=console, transient=True) as bar:
        bar.add_task(text, total=None)
        yield


def main() -> int:
    """Answer the request on stdin, a line of JSON, with JSON on stdout."""
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
