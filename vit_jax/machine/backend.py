"""Settings to make before jax starts: allocator, XLA flags, compilation cache. Importing this file loads no jax."""

from __future__ import annotations

import contextlib
import ctypes
import glob
import importlib.metadata
import os
import platform
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ..errors import UserError
from .limits import core_limits
from .numerics import SETTINGS
from .targets import HERE

EIGEN = "--xla_cpu_experimental_ynn_fusion_type=-dot,-individual_dot"
MOST_DEVICES = 1024  # of a CPU
KNOWN_FLAGS = rf"--xla_force_host_platform_device_count=\d{{1,3}}|{EIGEN}"  # XLA starts with these
# Variables of jax that change no number: they are not recorded.
INERT = r"JAX_(PLATFORMS|.*CACHE.*|COORDINATOR_.*|.*LOG.*|.*TRACEBACK.*|TRANSFER_GUARD.*|NUM_CPU_DEVICES)"
_eigen = False  # whether configure_jax has chosen Eigen for products of matrices
_made = False  # whether a CPU is several devices because configure_jax was asked for that


def configure_jax(host_devices: int = 1) -> None:
    """Set up this process before the first import of jax, for speed only; no setting of the user's is overridden."""
    if "jax" not in sys.modules:
        check_flags()
        _keep_freed_memory(arenas=1 if host_devices == 1 else 2 * host_devices)
        _cpu_flags()
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    with naming_variables():
        import jax

        if host_devices > 1:
            _make_devices(host_devices)
        jax.devices()
    if not jax.config.jax_compilation_cache_dir:
        with contextlib.suppress(OSError):  # a read-only home means no cache, not no training
            folder = cache_folder()
            folder.mkdir(parents=True, exist_ok=True)
            jax.config.update("jax_compilation_cache_dir", str(folder))
            jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.3)
            jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)


@contextlib.contextmanager
def naming_variables() -> Iterator[None]:
    """A context in which an exception of jax's start becomes a UserError that names the variable that is to blame."""
    try:
        yield
    except (UserError, ImportError):
        raise
    except Exception as error:
        said = (str(error).splitlines() or [type(error).__name__])[0][:200]
        names = sorted((name for name in os.environ if name.startswith("JAX_")), key="JAX_PLATFORMS".__eq__)
        named = [name for name in names if name.lower() in said.lower() or repr(os.environ[name]) in said]
        if "process_index" in said and "JAX_NUM_CPU_DEVICES" in names:  # what jax says of 0 devices
            named = ["JAX_NUM_CPU_DEVICES"]
        if not named and "JAX_PLATFORMS" in names:
            named = ["JAX_PLATFORMS"]
        if not named:
            raise
        raise _bad_variable(named[0], said) from error


def _bad_variable(name: str, said: str) -> UserError:
    subject = f"{name} is {os.environ[name][:60]!r}"
    if name == "JAX_PLATFORMS":
        return UserError(subject, "jax finds no such device here", "unset it, or set it to cpu")
    return UserError(subject, f"jax does not start with it ({said})", "unset it")


def check_flags() -> None:
    """Check the variables by which XLA would end the process, or never start; another process tries unknown flags."""
    count = os.environ.get("JAX_NUM_CPU_DEVICES", "")
    if count.isdecimal() and int(count) > MOST_DEVICES:
        raise _bad_variable("JAX_NUM_CPU_DEVICES", f"more than {MOST_DEVICES} devices")
    flags = os.environ.get("XLA_FLAGS", "")
    if all(re.fullmatch(KNOWN_FLAGS, flag) for flag in flags.split()):
        return
    command, said = [sys.executable, "-c", "from jaxlib import xla_client; xla_client.make_cpu_client()"], ""
    try:
        tried = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=60)
        if tried.returncode and "Traceback" not in tried.stderr:  # it was ended, without a word of Python
            told = re.search(r"(unknown flag|failed|could not|invalid|error)[^\n]*", tried.stderr, re.IGNORECASE)
            said = told[0][:200].strip() if told else f"it ends with {tried.returncode}"
    except subprocess.TimeoutExpired:
        said = "it has not started after a minute"
    if said:
        raise UserError(f"XLA_FLAGS is {flags[:200]!r}", f"XLA does not start with it ({said})", "unset it")


def made_devices() -> bool:
    """Whether this process has several devices on a CPU because `configure_jax` was asked for them."""
    return _made


def _make_devices(count: int) -> None:
    """Divide the CPU into devices, unless the user has done so or jax has started."""
    global _made
    import jax

    asked = jax.config.jax_num_cpu_devices >= 0 or "host_platform_device_count" in os.environ.get("XLA_FLAGS", "")
    if not asked:
        with contextlib.suppress(RuntimeError):  # jax has started
            jax.config.update("jax_num_cpu_devices", count)
            _made = True


@contextlib.contextmanager
def restore_precision() -> Iterator[None]:
    """A context after which jax allows float64 if and only if it did before, whatever was loaded in between."""
    import jax

    before = jax.config.jax_enable_x64
    try:
        yield
    finally:
        jax.config.update("jax_enable_x64", before)


def cache_folder(name: str = "xla") -> Path:
    """The folder of a cache that later processes reuse: "xla" of compiled programs, "corpora" of sentences as ids."""
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return Path(base) / "vit-jax" / name


def _keep_freed_memory(arenas: int) -> None:
    """Make glibc reuse freed blocks: otherwise XLA's scratch buffers cause page faults in every step.

    Large buffers are reused in one arena only. The small ones of several devices need more of them, for each device and
    for each thread that helps it, because threads wait for each other's arena: 1.5 times the time of a step.
    Measured at 1.2 to 1.4 times the speed on small networks; the process never gives back its peak memory.
    """
    if platform.libc_ver()[0] != "glibc" or any(name.startswith("MALLOC_") for name in os.environ):
        return
    with contextlib.suppress(OSError, AttributeError):
        libc = ctypes.CDLL(None)
        libc.mallopt(-4, 0)  # M_MMAP_MAX
        libc.mallopt(-1, -1)  # M_TRIM_THRESHOLD: never
        libc.mallopt(-8, arenas)  # M_ARENA_MAX


def _cpu_flags() -> None:
    """Multiply with Eigen, not YNNPACK, on Intel CPUs in jaxlib 0.10.2: it is faster, and unknown flags end XLA."""
    global _eigen
    flags = os.environ.get("XLA_FLAGS", "")
    if importlib.metadata.version("jaxlib") == "0.10.2" and "Intel" in cpu_name() and "ynn_fusion" not in flags:
        os.environ["XLA_FLAGS"] = f"{flags} {EIGEN}".strip()
        _eigen = True


def few_rows() -> dict[str, Any]:
    """Options of jax.jit for a program that multiplies few rows by large matrices, such as one that decodes."""
    dots = "LIBRARY_FUSION_TYPE_DOT,LIBRARY_FUSION_TYPE_INDIVIDUAL_DOT"
    return {"compiler_options": {"xla_cpu_experimental_ynn_fusion_type": dots}} if _eigen else {}


def cpu_name() -> str:
    """The name of the CPU as the system reports it."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def cores() -> int:
    """The number of CPU cores that this process may use: those it may run on, or fewer in a container with a limit."""
    count = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, int(min([count, *core_limits()])))


def accelerators() -> bool:
    """Whether jax may find a GPU or TPU: there are files of one, and JAX_PLATFORMS names no CPU first."""
    patterns = ("/dev/nvidia[0-9]*", "/dev/kfd", "/dev/accel*", "/dev/vfio/[0-9]*")
    return os.environ.get("JAX_PLATFORMS", "").partition(",")[0] != "cpu" and any(
        glob.glob(pattern) for pattern in patterns
    )


def unused_gpu() -> bool:
    """Whether an NVIDIA GPU is present but jax runs on the CPU."""
    there = glob.glob("/dev/nvidia[0-9]*") or glob.glob("/proc/driver/nvidia/gpus/*")
    return bool(there) and HERE.platform == "cpu"


def environment() -> dict[str, Any]:
    """What affects the bits of a result besides the config: versions, devices, cores, XLA flags."""
    fixed = {f"JAX_{name.upper()}" for name in SETTINGS}  # otherwise while our numbers are computed
    known = (name for name in sorted(os.environ) if name.startswith("JAX_") and name not in fixed)
    variables = [f"{name}={os.environ[name]}" for name in known if not re.fullmatch(INERT, name)]
    names = ("vit-jax", "jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "numpy")
    versions = {}
    for name in names:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            versions[name] = importlib.metadata.version(name)
    return {
        "versions": {"python": platform.python_version(), **versions},
        "platform": HERE.platform,
        "device": HERE.kind,
        "devices": HERE.count,
        "cpu": cpu_name(),
        "cores": cores(),
        "xla_flags": os.environ.get("XLA_FLAGS", ""),
        **({"jax_variables": " ".join(variables)} if variables else {}),
    }


def memory_peak() -> int:
    """Peak memory in bytes: of the first local device, or of this process on CPU; 0 if unknown."""
    import jax

    stats = jax.local_devices()[0].memory_stats()
    if stats and "peak_bytes_in_use" in stats:
        return int(stats["peak_bytes_in_use"])
    try:
        import resource
    except ImportError:  # Windows
        return 0
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
