"""Model FLOPs utilization (MFU): what a network has to multiply, over what its devices could in the same time.

Chowdhery et al. 2022 (arXiv 2204.02311, appendix B): the FLOPs are those of the network itself, so that work which is
done twice to save memory does not count. Importing this file loads no jax.
"""

from __future__ import annotations

import re

from ..config.network import NetworkConfig, Teacher
from ..config.run import RunConfig

# FLOP/s of dense bfloat16 products, summed in float32, of what jax calls a device: from NVIDIA's data sheets (half of
# those with sparsity), of RTX cards from its architectures' whitepapers, and from Google's pages on each TPU (a device
# is half a chip of TPU v2 and v3). The first that the device's name has as whole words counts.
PEAKS = {
    "B200": 2250e12, "H200 NVL": 836e12, "H200": 989e12, "H100 PCIe": 756e12, "H100 NVL": 835e12, "H100": 989e12,
    "A100": 312e12, "L40S": 362e12, "L4": 121e12, "A10": 125e12, "RTX 4090": 165e12, "RTX 3090": 71e12,
    "TPU v6 lite": 918e12, "TPU v5 lite": 197e12, "TPU v5": 459e12, "TPU v5p": 459e12, "TPU v4": 275e12,
    "TPU v3": 61.5e12, "TPU v2": 22.5e12,
}  # fmt: skip


def published_peak(device: str) -> float:
    """FLOP/s in dense bfloat16 products that the maker of a device states; 0 if PEAKS does not have it.

    A slice of a GPU (MIG), and a slower card whose name only goes on (RTX 4090 Laptop GPU, TPU v4 lite), are not that
    device.
    """
    if "MIG" in device:
        return 0.0
    return next((v for name, v in PEAKS.items() if re.search(rf"\b{name}\b(?! (?:D|Ti|Laptop|lite)\b)", device)), 0.0)


def step_flops(model: NetworkConfig, examples: float = 1) -> float:
    """FLOPs of a training step: three times those of the forward pass, since the backward pass has two products for
    each of its; 0 for a network whose FLOPs data determine.
    """
    return 3 * model.flops() * examples


def most_examples(run: RunConfig, teacher: Teacher | None, device: str, devices: int) -> float:
    """Examples per second at which devices would work at their peak: an MFU of 1.

    Args:
        run: with the sizes of its data.
        teacher: whose forward pass is counted too.
        device: the name of each device.
        devices: how many there are.

    Returns:
        That rate, of the peak in bfloat16, also for a run in float32. 0 where the peak or the FLOPs are unknown, as on
            a CPU, for sentences, and where parameters are frozen, which leaves out a part of the backward pass.
    """
    flops = 0.0 if run.optim.freeze or run.lora.rank else step_flops(run.model)
    if flops and teacher is not None and teacher.config is not None:
        of_teacher = teacher.config.flops()
        flops = flops + of_teacher if of_teacher else 0.0
    return devices * published_peak(device) / flops if flops else 0.0
