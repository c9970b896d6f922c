"""What every test shares: jax on the CPU, compiled programs kept between test runs, and the doors as a user starts them."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from vit_jax.backend import cache_folder

ROOT = Path(__file__).parents[1]

# Read when jax is first imported, so before any test module; the processes that tests start inherit them.
os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(cache_folder().with_name("tests")))
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES", "-1")
os.environ.setdefault("MPLBACKEND", "agg")
os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])


@pytest.fixture(autouse=True, scope="module")
def forgotten_programs() -> Iterator[None]:
    """Compiled programs leave memory with their module: a whole run would hold six gigabytes of them."""
    yield
    if "jax" in sys.modules:
        sys.modules["jax"].clear_caches()


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
