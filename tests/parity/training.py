"""Ten optimizer steps of ours and of torch_ref.train, from the same random weights on the same batches."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from convert.verify.checks import STEPS, Check, distance
from convert.write.program.network import on_cpu
from torch_ref.trainer import Trainer
from vit_jax.augmentation.config import ImageAugment
from vit_jax.config.run import AugmentConfig, LossConfig, OptimConfig, RunConfig
from vit_jax.config.trees import flatten, unflatten
from vit_jax.data.images.config import ImageData
from vit_jax.data.texts.config import SentenceData
from vit_jax.extras.vectors.spec import FeatureData
from vit_jax.models.build import definition
from vit_jax.models.captioner_config import CaptionerConfig
from vit_jax.models.layers import fold
from vit_jax.models.vit_config import ViTConfig
from vit_jax.tasks.can import Counts
from vit_jax.tasks.computed import task_of
from vit_jax.text.vocabulary import COURSE
from vit_jax.training.engine.engine import Engine
from vit_jax.training.engine.optim import Optimizer
from vit_jax.training.job import engine_at, engines_of

from . import dropping
from .cases import CAPTIONER, TRANSFORMER, VIT, Config, grid
from .weights import weights, zero_gradients

STEPS_RUN, EPOCH, RATE = 10, 5, 1e-3
STEPS_ZERO = 1e-7  # of parameters whose true gradient is 0: Adam makes whole steps of rounding errors
LOSSES = {"float64": 1e-9, "float32": 1e-5}
NETWORKS: dict[str, Config] = {
    "ViT": replace(VIT, image=(8, 6), patch=(4, 2), stem=(6,), layer_scale=0.1),
    "Transformer, all tied": replace(TRANSFORMER, source_vocabulary=9, outputs=9, tie="all", position="learned"),
    "Captioner of vectors": replace(
        CAPTIONER, memory="vectors", memory_width=6, text=replace(CAPTIONER.text, outputs=9, norm_first=False)
    ),
}
OPTIMIZERS = {
    "SGD": OptimConfig(name="sgd", schedule="constant"),
    "momentum, Nesterov, L2, one cycle": OptimConfig(
        name="momentum", nesterov=True, weight_decay=0.05, schedule="one_cycle"
    ),
    "momentum, clipped": OptimConfig(name="momentum", clip=0.1, schedule="constant"),
    "Adam, L2, warm-up and cosine": OptimConfig(name="adam", weight_decay=0.05, warmup=0.4, schedule="cosine"),
    "AdamW, warm-up and cosine, clipped, mlp frozen, layer decay": OptimConfig(
        name="adamw", weight_decay=0.05, warmup=0.4, schedule="cosine", clip=0.1, freeze=("*mlp*",), layer_decay=0.7
    ),
    "AdamW, one cycle of rate and momentum": OptimConfig(
        name="adamw", weight_decay=0.05, schedule="one_cycle", cycle_momentum=True
    ),
    "Lion, one cycle of rate and momentum": OptimConfig(
        name="lion", weight_decay=0.05, schedule="one_cycle", cycle_momentum=True
    ),
    "Muon, warm-up and cosine, clipped": OptimConfig(
        name="muon", weight_decay=0.05, warmup=0.4, schedule="cosine", clip=0.1
    ),
    "Muon, one cycle of rate and momentum": OptimConfig(
        name="muon", weight_decay=0.05, schedule="one_cycle", cycle_momentum=True
    ),
}


# Those of the captioner, whose optimizers are those of the others: its task is what is new.
OF_CAPTIONER = ("SGD", "Adam, L2, warm-up and cosine", "Lion, one cycle of rate and momentum")


def make_run(c: Config, optim: OptimConfig, dtype: str) -> RunConfig:
    kind: Any = ("translate", c, SentenceData(), AugmentConfig())
    if isinstance(c, ViTConfig):
        kind = ("classify", c, ImageData(), ImageAugment())
    elif isinstance(c, CaptionerConfig):
        kind = ("caption-features", c, FeatureData(), AugmentConfig())
    return RunConfig(
        *kind, optim=replace(optim, lr=RATE), loss=LossConfig(label_smoothing=0.1), compute_dtype=dtype, batch=4
    )


# What such a run keeps of its data: the statistics of pixels, a vocabulary of words alone, the words of captions.
KEPT = {"preprocess": {"mean": [0.3], "std": [0.7]}, "vocabulary": {"source": [], "target": []}, "words": [*COURSE]}


def batches(c: Config) -> list[dict[str, np.ndarray]]:
    """Ten batches; sentences are padded, and the last row of each batch is nothing but padding."""
    rng, out = np.random.default_rng(0), []
    for _ in range(STEPS_RUN):
        if isinstance(c, ViTConfig):
            out.append(
                {
                    "image": rng.integers(0, 256, (4, *grid(c))).astype(np.uint8),
                    "label": rng.integers(0, c.classes, 4).astype(np.int32),
                }
            )
            continue
        text = c.text if isinstance(c, CaptionerConfig) else c
        one = {}
        for name, length, vocabulary in (("source", 5, text.source_vocabulary), ("target", 4, text.target_vocabulary)):
            if not vocabulary:  # the captioner reads a vector, in float32 as its data has it
                one["vectors"] = rng.standard_normal((4, 1, c.memory_width)).astype(np.float32)
                continue
            ids = rng.integers(3, vocabulary, (4, length)).astype(np.int32)
            one[name] = np.where(np.arange(length) < np.array([[length], [length - 1], [3], [0]]), ids, 0).astype(
                np.int32
            )
        out.append(one)
    return out


@functools.lru_cache(maxsize=8)
def compiled(c: Config, dtype: str) -> Any:
    """(loss, gradients) of a batch, compiled once for all optimizers."""
    run = make_run(c, OptimConfig(), dtype)
    engine = Engine(
        run,
        functools.partial(definition, c, dtype, dtype),
        task_of(run, KEPT),
        Optimizer(run.optim, STEPS_RUN, EPOCH, c.parameters()),
    )

    def gradients(tree: Any, batch: Any) -> Any:
        keys = fold(jax.random.split(jax.random.key(0), 4), 0)  # of dropout, which is off
        prepared = engine.task.prepare(batch, keys)
        return engine.gradients(engine.task, tree, prepared, keys, engine.task.able(Counts).denominator(batch))

    return jax.jit(gradients)


def ours(c: Config, optim: OptimConfig, dtype: str) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray], list[float]]:
    """Our parameters, moments and losses after ten steps."""
    with on_cpu(dtype):
        optimizer = Optimizer(make_run(c, optim, dtype).optim, STEPS_RUN, EPOCH, c.parameters())
        tree = unflatten({k: jnp.asarray(v, dtype) for k, v in weights(c).items()})
        state, losses = optimizer.init(tree), []
        for batch in batches(c):
            loss, _, gradients = compiled(c, dtype)(tree, batch)
            updates, state = optimizer.update(gradients, state, tree)
            tree = jax.tree.map(jnp.add, tree, updates)
            losses.append(float(loss))
        return _numpy(tree), _numpy(state.moments), losses


def _numpy(tree: Any) -> dict[str, np.ndarray]:
    return {k: np.asarray(v) for k, v in flatten(tree).items()}


def theirs(
    c: Config, optim: OptimConfig, dtype: str
) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray], list[float]]:
    """The same of torch_ref's Trainer."""
    import torch_ref

    trainer = Trainer(make_run(c, optim, dtype), STEPS_RUN, EPOCH, KEPT)
    trainer.load({k: v.astype(dtype) for k, v in weights(c).items()})
    losses = [trainer.step(batch) for batch in batches(c)]
    return (
        torch_ref.parameters(trainer.model),
        {f"{role}.{k}": v for role, tree in trainer.moments().items() for k, v in tree.items()},
        losses,
    )


def ten_steps(name: str, c: Config, optim: OptimConfig, dtype: str = "float64") -> Iterator[Check]:
    """Parameters and moments in float64, losses in either precision."""
    subject, against = f"{name}, {STEPS_RUN} steps", "torch_ref.train"
    (mine, moments, losses), (their, their_moments, their_losses) = ours(c, optim, dtype), theirs(c, optim, dtype)
    apart = max(abs(a - b) / abs(b) if a == a else np.inf for a, b in zip(losses, their_losses, strict=True))
    yield Check(subject, against, f"losses, {dtype}", apart, LOSSES[dtype])
    if dtype != "float64":
        return
    zero = unlearnt(c)
    without = 2 * STEPS_RUN * RATE if optim.name == "lion" else STEPS_ZERO  # a rounding error's sign is a whole step
    for quantity, a, b, limit in (
        ("parameters", {k: v for k, v in mine.items() if k not in zero}, their, STEPS),
        ("parameters without a gradient", {k: v for k, v in mine.items() if k in zero}, their, without),
        ("moments", moments, their_moments, STEPS),
    ):
        each = {k: distance(v, b[k]) for k, v in a.items()}
        if each:
            worst = max(each, key=each.__getitem__)
            yield Check(subject, against, quantity, each[worst], limit, worst)


STAGED = ("0.3:model.dropout=0.5", "0.4:model.dropout=0.2,model.activation-dropout=0.4")


def in_stages(name: str, c: Config) -> Iterator[Check]:
    """Ten steps in three stages of other dropout rates, the last without, one mask fed to both sides in each."""
    run = replace(make_run(c, OPTIMIZERS["momentum, clipped"], "float64"), stages=STAGED, accumulate=1)
    trainer = Trainer(run, STEPS_RUN, EPOCH, KEPT)
    trainer.load(weights(c))
    with dropping.fed() as (mine, theirs), on_cpu("float64"):
        define = functools.partial(definition, c, "float64", "float64")
        engine = Engine(run, define, task_of(run, KEPT), Optimizer(run.optim, STEPS_RUN, EPOCH, c.parameters()))
        engines = engines_of(engine, run, STEPS_RUN)
        state = engine.start(unflatten({k: jnp.asarray(v) for k, v in weights(c).items()}))
        losses = []
        for i, batch in enumerate(batches(c)):
            mine.count = theirs.count = 0  # a compiled step has the same masks in all its calls
            state, metrics = engine_at(engines, i).train(state, batch)
            losses.append((float(metrics["loss"]), trainer.step(batch)))
        got = _numpy(state.parameters)
    against = "torch_ref.train, one mask fed to both"
    apart = max(abs(a - b) / abs(b) for a, b in losses)
    yield Check(name, against, "losses, float64", apart, LOSSES["float64"])
    import torch_ref

    expected = torch_ref.parameters(trainer.model)
    each = {k: distance(v, expected[k]) for k, v in got.items() if k not in unlearnt(c)}
    worst = max(each, key=each.__getitem__)
    yield Check(name, against, "parameters", each[worst], STEPS, worst)


def unlearnt(c: Config) -> set[str]:
    """Parameters whose true gradient is 0: of attention to a single vector, also those that choose where to look."""
    zero = zero_gradients(c)
    if isinstance(c, CaptionerConfig):
        zero |= {n for n in c.parameters() if ".cross_attention.query." in n or ".cross_attention.key." in n}
    return zero


def training() -> Iterator[Check]:
    """Every optimizer and schedule on a ViT and a Transformer, some on a captioner; losses of the last in float32."""
    for network, c in NETWORKS.items():
        of_captioner = isinstance(c, CaptionerConfig)
        for title, optim in OPTIMIZERS.items():
            if of_captioner and title not in OF_CAPTIONER:
                continue
            optim = optim if isinstance(c, ViTConfig) else replace(optim, layer_decay=1.0)
            yield from ten_steps(f"{network}, {title}", c, optim)
        yield from ten_steps(f"{network}, {title}", c, optim, "float32")
    yield from in_stages("ViT, 10 steps in three stages", NETWORKS["ViT"])
