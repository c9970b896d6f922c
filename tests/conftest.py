"""What all tests share: jax on the CPU, a cache of compiled programs, and the commands as a user starts them."""

import contextlib
import gc
import importlib
import io
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from vit_jax.machine.backend import cache_folder
from vit_jax.plugins import COMMANDS

ROOT = Path(__file__).parents[1]

# Read when jax is first imported, so before any test module; the processes that tests start inherit them.
os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(cache_folder().with_name("tests")))
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES", "-1")
os.environ.setdefault("MPLBACKEND", "agg")
os.environ.pop("COLUMNS", None)  # lines are as wide as without a terminal, wherever the tests were started
# No test reaches the network: the processes that tests start by this proxy, which is not there, this one by `offline`.
os.environ.update({name: "http://127.0.0.1:9" for name in ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY")})
os.environ.update(no_proxy="127.0.0.1,localhost", NO_PROXY="127.0.0.1,localhost")
# Checkpoints are hundreds of small files, which are written and removed sooner in memory, where it has room.
MEMORY = Path("/dev/shm")
if (
    os.access(MEMORY, os.W_OK)
    and shutil.disk_usage(MEMORY).free > 4 << 30
    and not os.statvfs(MEMORY).f_flag & os.ST_NOEXEC  # tests run scripts there
):
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(MEMORY))
os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])


@pytest.fixture(autouse=True, scope="session")
def interruptible() -> Iterator[None]:
    """SIGINT as in the foreground: a job that a script starts with `&`, and all that it starts, would ignore it."""
    before = signal.getsignal(signal.SIGINT)
    if before == signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture(autouse=True, scope="session")
def offline() -> Iterator[None]:
    """Only this machine has an address."""
    find = socket.getaddrinfo

    def find_here(host: Any, *args: Any, **kwargs: Any) -> Any:
        if host not in (None, "", "localhost", "127.0.0.1", "::1", socket.gethostname()):
            raise socket.gaierror(socket.EAI_NONAME, "tests do not reach the network")
        return find(host, *args, **kwargs)

    socket.getaddrinfo = find_here
    yield
    socket.getaddrinfo = find


@pytest.fixture(autouse=True, scope="session")
def hurried() -> Iterator[None]:
    """No test waits for the disk, since none outlives a loss of power, nor before it asks a store once more.

    Rubbish is collected less often, and never looked for among what is there by now: the modules and the tests.
    """
    from vit_jax.extras.stores import objects

    threshold = gc.get_threshold()
    gc.collect()
    gc.freeze()
    gc.set_threshold(100_000, 20, 50)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda file: None)
        patch.setattr(objects, "PAUSE", 0.01)
        patch.setattr(objects, "RETRIES", {**objects.RETRIES, "initial_delay": "1ms", "max_delay": "10ms"})
        yield
    gc.set_threshold(*threshold)


@pytest.fixture(autouse=True, scope="module")
def forgotten_programs() -> Iterator[None]:
    """Compiled programs leave memory with their module: a whole run would hold six gigabytes of them."""
    yield
    if "jax" in sys.modules:
        sys.modules["jax"].clear_caches()


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let predict print as on a terminal, for eyes."""
    monkeypatch.setattr("vit_jax.commands.predict.is_terminal", lambda: True)


@pytest.fixture(scope="module")
def quick_compilation() -> Iterator[None]:
    """Programs are compiled without most optimizations, for tests of what is computed and not of how fast."""
    import jax

    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", False)


@pytest.fixture(autouse=True, scope="session")
def own_caches(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """No corpus that other code has encoded, index of images or copy of a run is taken from the user's cache."""
    from vit_jax.data.images.sources import index
    from vit_jax.data.texts import corpus
    from vit_jax.extras.stores import copies as mirror

    folder = tmp_path_factory.mktemp("caches")
    with pytest.MonkeyPatch.context() as patch:
        for module in (corpus, index, mirror):
            patch.setattr(module, "cache_folder", lambda name: folder / name)
        yield


Door = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def door(tmp_path: Path) -> Door:
    """`door("train", "digits", "--epochs", 1, XLA_FLAGS="...")` runs `python -m vit_jax.train digits --epochs 1`.

    In a process of its own, inside tmp_path unless `cwd` says otherwise; capitals are environment variables.
    """

    def run(
        name: str, *args: object, timeout: float = 300, cwd: Path = tmp_path, **env: str
    ) -> "subprocess.CompletedProcess[str]":
        command = [sys.executable, "-m", f"vit_jax.{name}", *map(str, args)]
        return subprocess.run(
            command,
            cwd=cwd,
            env={**os.environ, **env},
            timeout=timeout,
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
        )

    return run


@pytest.fixture
def convert(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    """`python -m convert` in this process: its exit code, stdout and stderr."""

    def call(*arguments: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["convert", *map(str, arguments)])
        code = importlib.import_module("convert.__main__").main()
        shown = capsys.readouterr()
        return code, shown.out, shown.err

    return call


@pytest.fixture
def inside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Door:
    """As `door`, but in this process, where jax is already imported: for what a command does once it has started."""

    def run(name: str, *args: object, cwd: Path = tmp_path) -> "subprocess.CompletedProcess[str]":
        main = importlib.import_module(COMMANDS.ours[name].target.partition(":")[0]).main
        words = [name, *map(str, args)]
        capsys.readouterr()
        with monkeypatch.context() as patch:
            patch.chdir(cwd)
            patch.setattr(sys, "argv", words)
            code = main()
        shown = capsys.readouterr()
        return subprocess.CompletedProcess(words, code, shown.out, shown.err)

    return run


@pytest.fixture(scope="session")
def rewrite_record() -> Callable[..., None]:
    """`rewrite_record(run, class_names=[...])` changes config.json and its copies in the checkpoints."""
    from vit_jax.files.atomic import write_json
    from vit_jax.files.digests import with_digest
    from vit_jax.runs import Run

    def rewrite(run: Run, **changes: object) -> None:
        record = {**run.record(), **changes}
        run.write_record(record)
        for step in run.complete_steps():
            write_json(run.digest_file(step), with_digest({**run.saved(step), "config": record}))

    return rewrite


@contextlib.contextmanager
def no_pictures() -> Iterator[None]:
    """Runs that end leave no figures and no report, which take longer than a short training."""
    from vit_jax.extras.report import hook
    from vit_jax.training import finish

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(finish, "draw", lambda *a: "")
        patch.setattr(hook, "leave_report", lambda *a: None)
        yield


@pytest.fixture(scope="module")
def without_pictures() -> Iterator[None]:
    """For a module whose tests train and look at no picture."""
    with no_pictures():
        yield


@pytest.fixture(scope="module")
def working_folder(
    tmp_path_factory: pytest.TempPathFactory, quick_compilation: None, without_pictures: None
) -> Iterator[Path]:
    """A folder for a module whose tests train: no figures, no report, programs that compile in half the time."""
    folder = tmp_path_factory.mktemp("working")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        yield folder


@pytest.fixture(scope="session")
def digits_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of a tiny network on the digits, trained for 3 epochs with averaged weights; tests use a copy of it."""
    import jax

    from vit_jax.commands import train as command

    folder = tmp_path_factory.mktemp("digits")
    size = "--model.width 16 --model.depth 1 --model.heads 2 --model.hidden 32"
    rest = (
        "--optim.schedule constant --optim.lr 0.01 --optim.weight-decay 0 --loss.label-smoothing 0 --batch 64 --ema 0.9"
    )
    jax.config.update("jax_disable_most_optimizations", True)
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(io.StringIO()), no_pictures():
        patch.chdir(folder)
        assert command.command(["digits", *size.split(), *rest.split(), "--epochs", "3"]) == 0
    jax.config.update("jax_disable_most_optimizations", False)
    return folder / "runs" / "digits"
