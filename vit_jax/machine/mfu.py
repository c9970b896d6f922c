"""Model FLOPs utilization (MFU): what a network has to multiply, over what its devices could in the same time.

Chowdhery et al. 2022 (arXiv 2204.02311, appendix B): the FLOPs are those of the network itself, so that work which is
done twice to save memory does not count. Importing this file loads no jax.
"""

from __future__ import annotations

from ..config.network import NetworkConfig, Teacher
from ..config.run import RunConfig
from .published import published


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
