"""The devices of a run, as a value: those that are there, or those of a named target that need not be.

Programs are compiled for either, and run on those that are there. Nothing else asks jax which devices it has. Importing
this file loads no jax.
"""

from __future__ import annotations

import functools
import importlib.util
import math
import os
import re
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from ..errors import Field, UserError, install
from .limits import host_memory

GIB, MIB = 2**30, 2**20


@dataclass(frozen=True)
class Published:
    """The figures of what jax calls a device; 0: not stated."""

    peak: float = 0
    memory: int = 0
    bandwidth: float = 0
    link: float = 0
    network: float = 0


# The first whose name a device's has as whole words counts. Sources:
# - peak, bandwidth and link of NVIDIA's GPUs: the data sheet of each (half of the peak with sparsity, half of NVLink's
#   bandwidth, which counts both directions; without NVLink PCIe 4.0 x16), of RTX cards the whitepapers of their
#   architectures, and of A10G, whose sheet AWS has, the page of its G5 instances.
# - their memory: what nvidia-smi and XLA's gpu_specs/*.txtpb say is there, a little less than on the sheet.
# - network: one InfiniBand adapter of 400 Gb/s a GPU in a DGX H100, H200 or B200 and of 200 Gb/s in a DGX A100.
# - TPUs: docs.cloud.google.com/tpu/docs/v5e and the like, half of the "bidirectional ICI bandwidth (per chip)", since
#   that counts both directions; a device is half a chip of TPU v2 and v3.
PUBLISHED = {
    "B200": Published(2250e12, 182_642 * MIB, 7.7e12, 900e9, 50e9),
    "H200 NVL": Published(836e12, 143_771 * MIB, 4.8e12, 450e9, 50e9),
    "H200": Published(989e12, 144_384 * MIB, 4.8e12, 450e9, 50e9),
    "H100 PCIe": Published(756e12, 81_559 * MIB, 2e12, 300e9, 50e9),
    "H100 NVL": Published(835e12, 95_830 * MIB, 3.9e12, 300e9, 50e9),
    "H100": Published(989e12, 81_042 * MIB, 3.35e12, 450e9, 50e9),
    "A100": Published(312e12, 81_158 * MIB, 2.039e12, 300e9, 25e9),
    "L40S": Published(362e12, 46_068 * MIB, 864e9, 32e9),
    "L4": Published(121e12, 23_034 * MIB, 300e9, 32e9),
    "A10G": Published(70e12, 23_028 * MIB, 600e9, 32e9),
    "A10": Published(125e12, 23_028 * MIB, 600e9, 32e9),
    "RTX 4090": Published(165e12, 24_564 * MIB, 1008e9, 32e9),
    "RTX 3090": Published(71e12, 24_576 * MIB, 936e9, 32e9),
    "TPU v6 lite": Published(918e12, 32 * GIB, 1638e9, 400e9),
    "TPU v5 lite": Published(197e12, 16 * GIB, 819e9, 200e9),
    "TPU v5": Published(459e12, 95 * GIB, 2765e9, 600e9),
    "TPU v5p": Published(459e12, 95 * GIB, 2765e9, 600e9),
    "TPU v4": Published(275e12, 32 * GIB, 1228e9, 300e9),
    "TPU v3": Published(61.5e12, 16 * GIB, 450e9),
    "TPU v2": Published(22.5e12, 8 * GIB, 350e9),
}
UNKNOWN = Published()


def published(device: str) -> Published:
    """What the maker of a device states."""
    if "MIG" in device:
        return UNKNOWN
    named = (v for name, v in PUBLISHED.items() if re.search(rf"\b{name}\b(?! (?:D|Ti|Laptop|lite)\b)", device))
    return next(named, UNKNOWN)


class Here:
    """The devices that are there. Asking for any of them starts jax."""

    name = "here"
    present = True  # whether programs can run on them

    @property
    def devices(self) -> list[Any]:
        """jax's devices, of all hosts."""
        import jax

        return jax.devices()

    @property
    def platform(self) -> str:
        """cpu, gpu or tpu."""
        import jax

        return jax.default_backend()

    @property
    def kind(self) -> str:
        """What jax calls each of them."""
        return str(self.devices[0].device_kind)

    @property
    def count(self) -> int:
        """How many there are, with those of other hosts."""
        return len(self.devices)

    @property
    def a_host(self) -> int:
        """How many this host has."""
        import jax

        return len(jax.local_devices())

    @property
    def capability(self) -> tuple[int, int]:
        """The compute capability of an NVIDIA GPU, 9.0 as (9, 0); (0, 0) of anything else."""
        import jax

        found = re.fullmatch(r"(\d+)\.(\d+)", str(getattr(jax.local_devices()[0], "compute_capability", "")))
        return (int(found[1]), int(found[2])) if found else (0, 0)

    @property
    def memory(self) -> int:
        """The bytes that each has, or that all devices of a CPU share; 0: unknown."""
        return self.own_memory() or host_memory()

    def own_memory(self) -> int:
        """The bytes that each device has apart from the host; 0: none, as of a CPU, or unknown."""
        import jax

        devices = [device for device in jax.local_devices() if device.platform != "cpu"]
        return min((int((d.memory_stats() or {}).get("bytes_limit", 0)) for d in devices), default=0)

    def compile(self, traced: Any) -> Any:
        """What jax.jit(f).trace(...) gives, compiled."""
        return traced.lower().compile()


@dataclass(frozen=True)
class Named:
    """The devices of a named target, for which programs can be compiled wherever its compiler is installed."""

    name: str
    platform: str  # gpu or tpu
    kind: str  # what jax calls each of them
    count: int
    topology: str  # as XLA's compiler takes it
    a_host: int  # of them one host has so many
    capability: tuple[int, int] = (0, 0)
    config: str = field(default="", repr=False)  # of a GPU, what XLA's compiler is told of it

    present = False

    @functools.cached_property
    def devices(self) -> list[Any]:
        """jax's devices, which are descriptions only."""
        check_compiler(self)
        from jax.experimental.topologies import get_topology_desc

        words: dict[str, Any] = {"topology": self.topology, "target_config": self.config} if self.config else {}
        name = "" if self.config else self.topology
        try:
            found = get_topology_desc(name, "cuda" if self.config else "tpu", **words).devices
        except Exception as error:
            said = (str(error).splitlines() or [type(error).__name__])[0][:200]
            raise UserError(
                Field("target"), f"is {self.name}, of which the compiler says: {said}", "give another topology"
            ) from error
        return list(found)

    @property
    def memory(self) -> int:
        """The bytes that each has."""
        return published(self.kind).memory

    def compile(self, traced: Any) -> Any:
        """What jax.jit(f).trace(...) gives, compiled for these devices."""
        lowered = traced.lower(lowering_platforms=("cuda" if self.config else "tpu",))
        # Without a device nothing tunes Triton's tiles, so that products are left to cuBLAS.
        return lowered.compile({"xla_gpu_enable_triton_gemm": False} if self.config else None)


Target = Here | Named
HERE = Here()


class Gpu(NamedTuple):
    """What XLA's compiler has to know of an NVIDIA GPU, from NVIDIA's specifications and XLA's gpu_specs/*.txtpb."""

    kind: str
    capability: tuple[int, int]
    cores: int  # streaming multiprocessors
    clock: float  # GHz, boost
    l2: int  # MiB of the second-level cache
    bandwidth: int  # bytes/s
    units: int = 128  # float32 units a core
    threads: int = 2048  # a core
    shared: tuple[int, int] = (233472, 232448)  # bytes of shared memory: of a core, that a block may ask for


_ADA: tuple[int, tuple[int, int]] = (1536, (102400, 101376))
GPUS = {
    "h100": Gpu("NVIDIA H100 80GB HBM3", (9, 0), 132, 1.98, 50, 3352320000000),
    "h200": Gpu("NVIDIA H200", (9, 0), 132, 1.98, 50, 4800000000000),
    "b200": Gpu("NVIDIA B200", (10, 0), 148, 1.965, 126, 7672320000000),
    "a100": Gpu("NVIDIA A100-SXM4-80GB", (8, 0), 108, 1.41, 40, 2039040000000, 64, 2048, (167936, 166912)),
    "l4": Gpu("NVIDIA L4", (8, 9), 58, 2.04, 48, 300096000000, 128, *_ADA),
    "a10g": Gpu("NVIDIA A10G", (8, 6), 80, 1.71, 6, 600096000000, 128, *_ADA),
    "rtx4090": Gpu("NVIDIA GeForce RTX 4090", (8, 9), 128, 2.52, 72, 1008096000000, 128, *_ADA),
}


class Tpu(NamedTuple):
    """What there is of a TPU."""

    kind: str
    axes: int  # along which its chips are linked
    most: int


TPUS = {
    "v6e": Tpu("TPU v6 lite", 2, 256),
    "v5e": Tpu("TPU v5 lite", 2, 256),
    "v5p": Tpu("TPU v5", 3, 8960),
    "v4": Tpu("TPU v4", 3, 4096),
}
A_HOST = 8
KNOWN = ", ".join([*GPUS, *(f"{gpu}:8" for gpu in ("h100",)), *(f"{tpu}:2x2" for tpu in TPUS), "here"])


def read_target(text: str) -> Target:
    """The target of a name."""
    kind, colon, rest = text.partition(":")
    if text == HERE.name:
        return HERE
    if kind in GPUS and (not colon or re.fullmatch(r"[1-9]\d{0,4}", rest)):
        return _gpus(text, kind, int(rest or 1))
    if kind in TPUS and re.fullmatch(r"[1-9]\d{0,2}x[1-9]\d{0,2}(x[1-9]\d{0,2})?", rest):
        return _tpus(text, kind, rest.split("x"))
    how = f"{kind} with a topology, such as {kind}:2x2" if kind in TPUS else f"one of {KNOWN}"
    if kind in GPUS:
        how = f"how many there are, such as {kind}:8"
    raise UserError(Field("target"), f"is {text[:60]!r}, which is not known", f"give {how}")


def _tpus(name: str, kind: str, sizes: list[str]) -> Named:
    """The chips of a topology, along each of whose axes there are so many."""
    tpu, count = TPUS[kind], math.prod(map(int, sizes))
    if len(sizes) > tpu.axes:
        fault = f"is {name}, but a topology of {kind} has two axes, not {len(sizes)}"
        raise UserError(Field("target"), fault, f"give such as {kind}:4x4")
    if count > tpu.most:
        most = f"give a topology of at most {tpu.most:,}"
        raise UserError(Field("target"), f"is {name}, but a pod of {kind} has {tpu.most:,} chips, not {count:,}", most)
    topology = "x".join([*sizes, *["1"] * (tpu.axes - len(sizes))])
    return Named(name, "tpu", tpu.kind, count, f"{kind}:{topology}", count)


def _gpus(name: str, kind: str, count: int) -> Named:
    """So many GPUs, on as few hosts as have them."""
    gpu = GPUS[kind]
    hosts = -(-count // A_HOST)
    if count % hosts:
        raise UserError(
            Field("target"),
            f"is {name}, but a host has {A_HOST} of them",
            f"give up to {A_HOST}, or a multiple of it",
        )
    return Named(
        name, "gpu", gpu.kind, count, f"1x{hosts}x{count // hosts}", count // hosts, gpu.capability, _gpu_config(gpu)
    )


def _gpu_config(gpu: Gpu) -> str:
    """XLA's GpuTargetConfigProto as text, of the fields that its compiler needs."""
    numbers = {
        "threads_per_block_limit": 1024,
        "threads_per_warp": 32,
        "shared_memory_per_block": 49152,
        "shared_memory_per_core": gpu.shared[0],
        "threads_per_core_limit": gpu.threads,
        "core_count": gpu.cores,
        "fpus_per_core": gpu.units,
        "block_dim_limit_x": 2147483647,
        "block_dim_limit_y": 65535,
        "block_dim_limit_z": 65535,
        "memory_bandwidth": gpu.bandwidth,
        "l2_cache_size": gpu.l2 * 2**20,
        "clock_rate_ghz": gpu.clock,
        "device_memory_size": published(gpu.kind).memory,
        "shared_memory_per_block_optin": gpu.shared[1],
        "registers_per_core_limit": 65536,
        "registers_per_block_limit": 65536,
    }
    fields = " ".join(f"{name}: {value}" for name, value in numbers.items())
    major, minor = gpu.capability
    return (
        f"gpu_device_info {{ {fields} cuda_compute_capability {{ major: {major} minor: {minor} }} }} "
        f'platform_name: "CUDA" dnn_version_info {{ major: 9 minor: 8 }} device_description_str: "{gpu.kind}"'
    )


def prepare(target: Target) -> None:
    """Let jax, which must not have started, compile for a target without its devices."""
    if isinstance(target, Here):
        return
    check_compiler(target)
    os.environ |= WITHOUT_DEVICES


def check_compiler(target: Named) -> None:
    """Raise UserError where the compiler of a target is not installed."""
    extra, size, modules = COMPILERS[target.platform]
    if not any(importlib.util.find_spec(module) for module in modules):
        raise UserError(
            Field("target"),
            f"is {target.name}, and its compiler is not installed here",
            f"install it, best in an environment of its own ({size}): {install(extra)}",
        )


# No look for a driver, none for the metadata of Google's cloud, no lock as on a TPU that one process alone may use; and
# what is computed is computed on the CPU.
WITHOUT_DEVICES = {
    "JAX_SKIP_CUDA_CONSTRAINTS_CHECK": "1",
    "TPU_SKIP_MDS_QUERY": "1",
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
    "JAX_PLATFORMS": "cpu",
}
# {platform: (extra, its size, modules of which one is enough)}
COMPILERS = {
    "gpu": ("plan-cuda12", "3.4 GB", ("jax_cuda12_plugin", "jax_cuda13_plugin")),
    "tpu": ("plan-tpu", "1.5 GB", ("libtpu",)),
}
