"""Model FLOPs utilization (MFU): what a network has to multiply, over what its devices could in the same time.

Chowdhery et al. 2022 (arXiv 2204.02311, appendix B): the FLOPs are those of the network itself, so that work which is
done twice to save memory does not count. Importing this file loads no jax.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from ..config.network import NetworkConfig, Teacher
from ..config.run import RunConfig


def step_flops(model: NetworkConfig, examples: float = 1) -> float:
    """FLOPs of a training step: three times those of the forward pass, since the backward pass has two products for
    each of its; 0 for a network whose FLOPs data determine.
    """
    return 3 * model.training_flops() * examples


def most_examples(run: RunConfig, teacher: Teacher | None, device: str, devices: int) -> float:
    """Examples per second at which devices would work at their peak: an MFU of 1."""
    flops = 0.0 if run.optim.freeze or run.lora.rank else step_flops(run.model)
    if flops and teacher is not None and teacher.config is not None:
        of_teacher = teacher.config.flops()
        flops = flops + of_teacher if of_teacher else 0.0
    return devices * published(device).peak / flops if flops else 0.0


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
