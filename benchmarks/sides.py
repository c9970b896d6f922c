"""The training step of one network on several sides: ours, flax's layers, and PyTorch; and the peak of matrix products.

All sides start from the same weights, take the same uint8 batch and do AdamW at a constant rate, without dropout,
augmentation or clipping; for T5, see t5_step.py. The networks of PRESETS have ours alone, which takes the first batch
of the preset's own data again and again, with its augmentation, dropout, schedule and so on.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from benchmarks import t5_step
from benchmarks.machine import measure
from benchmarks.torch_step import training_step
from vit_jax.augmentation.config import ImageAugment
from vit_jax.config.fields import pair
from vit_jax.config.network import NetworkConfig
from vit_jax.config.run import LossConfig, OptimConfig, RunConfig
from vit_jax.data.images.config import ImageData
from vit_jax.machine import backend
from vit_jax.models.transformer_config import TransformerConfig
from vit_jax.models.vit_config import ViTConfig, sized_config
from vit_jax.presets.table import preset

MEAN, STD = (0.5, 0.5, 0.5), (0.5, 0.5, 0.5)  # those of augment.normalize half
SIDES = ("flax", "torch", "compile")  # besides ours
PRESETS = ("digits", "numbers")  # trained as they are
NETS = ("48x4", "256x6", "256x24", "s16", "b16", "tiny", *t5_step.NETS, *PRESETS)

Step = Callable[[], Any]


def config(net: str) -> RunConfig:
    """The run of one of NETS."""
    if net in PRESETS:
        return preset(net).run
    if net in t5_step.NETS:
        return t5_step.config(net)
    tiny = ViTConfig(image=8, patch=4, classes=3, width=16, depth=1, heads=2, hidden=32)
    runs: dict[str, tuple[RunConfig, int]] = {
        "48x4": (preset("cifar10-48x4").run, 128),
        "256x6": (preset("cifar10-256x6").run, 64),
        "256x24": (preset("cifar100-256x24").run, 16),
        "s16": (RunConfig("classify", sized_config("vit-s16"), ImageData(), ImageAugment()), 4),
        "b16": (RunConfig("classify", sized_config("vit-b16"), ImageData(), ImageAugment()), 4),
        "tiny": (RunConfig("classify", tiny, ImageData(), ImageAugment()), 4),
    }
    return deterministic(*runs[net])


def deterministic(run: RunConfig, batch: int) -> RunConfig:
    """The run with this batch and without dropout, augmentation, label smoothing, clipping and schedule."""
    off: dict[str, Any] = {
        name: 0.0
        for name in ("dropout", "attention_dropout", "activation_dropout", "embedding_dropout", "head_dropout")
    }
    return replace(
        run,
        model=replace(run.model, classes=run.model.classes or 10, **off),
        batch=batch,
        augment=ImageAugment(normalize="half"),
        loss=LossConfig(),
        optim=OptimConfig(lr=1e-4, weight_decay=0.05, schedule="constant"),
    )


def data(model: ViTConfig | TransformerConfig, batch: int) -> dict[str, Any]:
    """A batch of random images, and labels of all classes; or of random pairs."""
    import numpy as np

    if isinstance(model, TransformerConfig):
        return t5_step.data(model, batch)
    images = np.random.default_rng(0).integers(0, 256, (batch, *pair(model.image), model.channels), dtype=np.uint8)
    return {"image": images, "label": (np.arange(batch) % model.classes).astype(np.int32)}


def run_of(net: str, activation: str = "", dtype: str = "float32") -> RunConfig:
    """The run of one of NETS, maybe with another activation of its mlps and another compute_dtype."""
    run = replace(config(net), compute_dtype=dtype)
    return replace(run, model=replace(run.model, activation=activation)) if activation else run


def build_net(net: str, side: str, activation: str = "", nnx_jit: bool = False, dtype: str = "float32") -> Step:
    """`build` for one of NETS."""
    run = run_of(net, activation, "float32" if side == "float32" else dtype)
    return preset_step(run, together(side)) if net in PRESETS else build(run, side, nnx_jit)


def build(run: RunConfig, side: str, nnx_jit: bool = False) -> Step:
    """A function that does one step of a side, waits for it and returns the loss; the first call compiles.

    All sides have the same weights and batch. The sides x2, x3, ... are ours with so many steps by one call.
    """
    batch = data(run.model, run.batch)
    if side in ("ours", "float32") or together(side) > 1:
        return vit_jax_step(run, batch, together(side))
    if side == "flax":
        return flax_step(run, batch, nnx_jit)
    return torch_step(run, batch, side == "compile")


def together(side: str) -> int:
    """How many steps a call of a side does: 10 of the side x10, else 1."""
    return int(side[1:]) if re.fullmatch(r"x[1-9]\d*", side) else 1


def weights(model: NetworkConfig) -> dict[str, Any]:
    """The nested dict of parameters from which all sides start."""
    import jax

    from vit_jax.models.build import start

    return start(model, jax.random.key(0))


def engine_of(run: RunConfig, batch: dict[str, Any]) -> Any:
    """The Engine of a run, as `vit_jax.train` sets it up, for data of the shape of a batch."""
    if run.task == "translate":
        return t5_step.engine_of(run)
    import numpy as np

    from vit_jax.runs import Run
    from vit_jax.training.job import checked_arguments, open_data, open_job, preflight

    n = max(len(batch["label"]), run.model.classes)
    images = np.resize(batch["image"], (n, *batch["image"].shape[1:])), np.arange(n) % run.model.classes
    run, given = checked_arguments(run, {"train": images, "validation": images, "test": images}, ())
    division, *rest = preflight(run)
    backend.configure_jax(division.devices)
    return open_job(run, open_data(run, given=given), Run("nowhere"), "run", *rest).engine


def vit_jax_step(run: RunConfig, batch: dict[str, Any], count: int = 1) -> Step:
    """Ours on a batch."""
    engine = engine_of(run, batch)  # before jax starts, which it configures
    return engine_step(engine, run, batch, count)


def preset_step(run: RunConfig, count: int = 1) -> Step:
    """Ours on the first batch of the run's own data."""
    from vit_jax.runs import Run
    from vit_jax.training.job import open_data, open_job, preflight

    division, *rest = preflight(run)
    backend.configure_jax(division.devices)
    from vit_jax.data.batches import batches

    job = open_job(run, open_data(run), Run("nowhere"), "run", *rest)
    with contextlib.closing(batches(job.data.splits["train"], job.order, 0, 1)) as stream:
        return engine_step(job.engine, job.run, next(stream), count)


def engine_step(engine: Any, run: RunConfig, batch: dict[str, Any], count: int) -> Step:
    """Steps of an engine, with the metrics that training logs; of several by one call the loss is that of the first."""
    import jax

    state = engine.start(weights(run.model))

    def step() -> Any:
        nonlocal state
        if count == 1:
            state, metrics = engine.train(state, batch)
        else:
            state, metrics = engine.train_together(state, [batch] * count)
        jax.block_until_ready(state)
        return metrics["loss"] if count == 1 else metrics["loss"][0]

    return step


def flax_step(run: RunConfig, batch: dict[str, Any], nnx_jit: bool = False) -> Step:
    """The network in flax's layers (plain.py), which returns the loss alone."""
    backend.configure_jax()
    import jax
    from flax import nnx

    from benchmarks.plain import PlainViT, Trainer
    from benchmarks.plain import load as fill
    from vit_jax.config.trees import flatten

    model = PlainViT(run.model, nnx.Rngs(0), jax.numpy.dtype(run.compute_dtype))
    fill(model, flatten(weights(run.model)), run.model)
    trainer = Trainer(model, run.optim, MEAN, STD, nnx_jit)

    def step() -> Any:
        value = trainer.step(batch["image"], batch["label"])
        jax.block_until_ready(nnx.state(model) if nnx_jit else trainer.parameters)
        return value

    return step


def torch_step(run: RunConfig, batch: dict[str, Any], compiled: bool) -> Step:
    """The model of torch_ref, eager or compiled, in bfloat16 under autocast; only kernels have weight decay."""
    backend.configure_jax()  # which also makes malloc keep freed memory: without it torch has many page faults
    if run.task == "translate":
        return t5_step.torch_step(run, weights(run.model), batch, compiled)
    import numpy as np
    import torch
    from torch.nn import functional as F

    import torch_ref
    from vit_jax.config.trees import flatten

    model = torch_ref.load(
        torch_ref.build(run.model), {k: np.asarray(v) for k, v in flatten(weights(run.model)).items()}
    ).train()
    decays = [p for name, p in model.named_parameters() if p.ndim > 1 and name != "position"]
    rest = [p for name, p in model.named_parameters() if p.ndim < 2 or name == "position"]
    o = run.optim
    groups = [{"params": decays, "weight_decay": o.weight_decay}, {"params": rest, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=o.lr, betas=(o.beta1, o.beta2), eps=o.eps)
    mean, std = (torch.tensor(x).view(-1, 1, 1) for x in (MEAN, STD))
    labels, images = torch.from_numpy(batch["label"]).long(), torch.from_numpy(batch["image"])

    def loss(images: Any, labels: Any) -> Any:
        with torch.autocast("cpu", torch.bfloat16, enabled=run.compute_dtype == "bfloat16"):
            logits = model((images.permute(0, 3, 1, 2).float() / 255 - mean) / std)
        return F.cross_entropy(logits.float(), labels)

    return training_step(loss, (images, labels), optimizer, compiled)


def matmul_peak(size: int, library: str, times: int = 5) -> float:
    """FLOP/s of the fastest of some products of two float32 matrices [size, size] by jax or torch; 2 per multiply-add.

    jax, which has cores for devices where the step divides a batch among them, multiplies on one device.
    """
    import numpy as np

    a = np.random.default_rng(0).standard_normal((size, size)).astype(np.float32)
    if library == "jax":
        import jax

        product, on_device = jax.jit(jax.numpy.matmul), jax.device_put(a)

        def work() -> Any:
            return product(on_device, on_device).block_until_ready()

    else:
        import torch

        tensor = torch.from_numpy(a)

        def work() -> Any:
            return tensor @ tensor

    work()
    return 2 * size**3 / min(measure(work, times).seconds)
