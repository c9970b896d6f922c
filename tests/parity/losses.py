"""Losses and shifts of both sides against hand-written ids and torch's CrossEntropyLoss."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch

from convert.verify.checks import Check, distance
from convert.write.program.network import on_cpu
from torch_ref import tasks as reference
from torch_ref.labels import class_loss
from vit_jax.augmentation.config import ImageAugment
from vit_jax.config.run import LossConfig, RunConfig
from vit_jax.data.images.config import ImageData
from vit_jax.kinds.classes import Classes
from vit_jax.models.vit_config import ViTConfig
from vit_jax.tasks.can import Counts
from vit_jax.tasks.classify.distil import distillation_loss
from vit_jax.tasks.classify.distil_spec import DistilLoss
from vit_jax.tasks.classify.learn import Classify
from vit_jax.tasks.computed import task_of
from vit_jax.tasks.translate import learn as sentences
from vit_jax.text.vocabulary import closed_vocabulary

WORDS = closed_vocabulary(f"w{i}" for i in range(6))  # pad 0, begin 1, end 2; 9 in all
IDS = WORDS.ids
# A full row, two shorter ones, and one that only fills the batch up.
SOURCE = np.array([[5, 6, 7], [4, 0, 0], [8, 8, 0], [0, 0, 0]], np.int32)
TARGET = np.array([[3, 4, 5, 6], [7, 0, 0, 0], [8, 3, 0, 0], [0, 0, 0, 0]], np.int32)
READ = np.array([[1, 3, 4, 5, 6], [1, 7, 0, 0, 0], [1, 8, 3, 0, 0], [1, 0, 0, 0, 0]])
SAID = np.array([[3, 4, 5, 6, 2], [7, 2, 0, 0, 0], [8, 3, 2, 0, 0], [0, 0, 0, 0, 0]])
REAL = np.array([[1, 1, 1, 1, 1], [1, 1, 0, 0, 0], [1, 1, 1, 0, 0], [0, 0, 0, 0, 0]], bool)
HAND, CROSS = "hand-written ids", "torch.nn.CrossEntropyLoss"


class Says:
    """A network that answers anything with these logits."""

    def __init__(self, logits: Any):
        self.logits, self.dtype = logits, logits.dtype

    def __call__(self, *inputs: Any, **keywords: Any) -> Any:
        return self.logits


def shifts() -> Iterator[Check]:
    """What the decoder reads and what it is to say, real places only."""
    with on_cpu("float64"):
        given = jnp.asarray(TARGET), jnp.asarray(SOURCE)
        read, said, real = (np.asarray(x) for x in sentences.shift_target(*given, IDS, IDS.pad))
    yield Check("shifted: where it is real", HAND, "ids", float((real != REAL).sum()), 0)
    yield Check("shifted: what is read", HAND, "ids", float((read != READ)[REAL].sum()), 0)
    yield Check("shifted: what is said", HAND, "ids", float((said != SAID)[REAL].sum()), 0)
    read, said = (x.numpy() for x in reference.shift_target(torch.from_numpy(TARGET).long(), IDS))
    yield Check("torch_ref's shifted: what is read", HAND, "ids", float((read != READ)[REAL].sum()), 0)
    yield Check("torch_ref's shifted: what is said", HAND, "ids", float((said != np.where(REAL, SAID, -100)).sum()), 0)


def translate(smoothing: float) -> Iterator[Check]:
    """The mean over real tokens, and its gradient."""
    logits = np.random.default_rng(0).standard_normal((4, 5, 9)) * 3
    leaf = torch.from_numpy(logits).requires_grad_()
    expected = torch.nn.CrossEntropyLoss(ignore_index=0, label_smoothing=smoothing)(
        leaf.flatten(0, 1), torch.from_numpy(SAID).flatten()
    )
    expected.backward()
    subject, batch = f"translation, smoothing {smoothing:g}", {"source": SOURCE, "target": TARGET}
    with on_cpu("float64"):
        task = sentences.Translate(smoothing, 5, WORDS, WORDS)
        given = {k: jnp.asarray(v) for k, v in batch.items()}
        count, at = task.able(Counts).denominator(given), jnp.asarray(logits)
        loss, back = jax.vjp(lambda x: task.loss(Says(x), given, None, count)[0], at)  # type: ignore[arg-type]
        slope = np.asarray(back(jnp.ones_like(loss))[0])
    yield Check(subject, CROSS, "loss", abs(float(loss) - expected.item()), 1e-12)
    yield Check(subject, CROSS, "its gradient", distance(slope, leaf.grad.numpy()), 1e-12)
    given = torch.from_numpy(SOURCE).long(), torch.from_numpy(TARGET).long()
    model: Any = Says(leaf.detach())
    theirs = reference.translate_loss(model, *given, LossConfig(label_smoothing=smoothing), IDS, IDS.pad)
    yield Check(f"torch_ref's {subject}", CROSS, "loss", abs(theirs.item() - expected.item()), 1e-12)


def classify(smoothing: float, name: str = "cross_entropy", mixed: bool = False) -> Iterator[Check]:
    """The mean over images, and its gradient; labels are numbers or, of mixed images, shares of each class."""
    draw = np.random.default_rng(0)
    logits, labels = draw.standard_normal((4, 5)) * 3, np.array([0, 4, 2, 2], np.int32)
    targets = draw.dirichlet(np.ones(5), 4) if mixed else np.eye(5)[labels]
    leaf, against = torch.from_numpy(logits).requires_grad_(), CROSS
    if name == "binary":
        smooth = torch.from_numpy((1 - smoothing) * targets + smoothing / 5)
        expected, against = torch.nn.BCEWithLogitsLoss()(leaf, smooth), "torch.nn.BCEWithLogitsLoss"
    else:
        given = torch.from_numpy(targets) if mixed else torch.from_numpy(labels).long()
        expected = torch.nn.CrossEntropyLoss(label_smoothing=smoothing)(leaf, given)
    expected.backward()
    subject = f"classification, {name}, {'mixed, ' if mixed else ''}smoothing {smoothing:g}"
    batch = {"image": np.zeros((4, 2, 2, 1), np.uint8), "label": labels, **({"target": targets} if mixed else {})}
    config = LossConfig(name=name, label_smoothing=smoothing)  # type: ignore[arg-type]
    with on_cpu("float64"):
        task = Classify(ImageAugment(), (0.0,), (1.0,), Classes(settings=config))
        keys = jax.random.split(jax.random.key(0), 4)
        at = jnp.asarray(logits)
        loss, back = jax.vjp(lambda x: task.loss(Says(x), batch, keys)[0], at)  # type: ignore[arg-type]
        slope = np.asarray(back(jnp.ones_like(loss))[0])
    yield Check(subject, against, "loss", abs(float(loss) - expected.item()), 1e-12)
    yield Check(subject, against, "its gradient", distance(slope, leaf.grad.numpy()), 1e-12)
    given = torch.from_numpy(targets) if mixed else torch.from_numpy(labels).long()
    theirs = class_loss(leaf.detach(), given, config, None)
    yield Check(f"torch_ref's {subject}", against, "loss", abs(theirs.item() - expected.item()), 1e-12)


def distil(c: DistilLoss) -> Iterator[Check]:
    """Both heads of a student with a teacher, and the gradients of each."""
    logits, distilled, teacher = 3 * np.random.default_rng(0).standard_normal((3, 4, 5))
    labels = np.array([0, 4, 2, 2], np.int32)
    leaves = [torch.from_numpy(x).requires_grad_() for x in (logits, distilled)]
    expected = reference.distil_loss(*leaves, torch.from_numpy(teacher), torch.from_numpy(labels).long(), c)
    expected.backward()
    how = "hard" if c.hard else "soft, divided by classes" if c.divide_by_classes else "soft"
    subject = f"distillation, {how}, smoothing {c.label_smoothing:g}"
    run = RunConfig("distil", ViTConfig(), ImageData(), ImageAugment(), loss=c, compute_dtype="float64")
    with on_cpu("float64"):
        task = task_of(run, {"preprocess": {"mean": [0.0], "std": [1.0]}, "class_names": [*"abcde"]})

        def loss(*heads: Any) -> Any:
            labelled = task.kind.loss(heads[0], {"label": labels}, None)[0]
            return (1 - c.alpha) * labelled + c.alpha * distillation_loss(heads[1], jnp.asarray(teacher), c)

        value, slopes = jax.value_and_grad(loss, (0, 1))(jnp.asarray(logits), jnp.asarray(distilled))
    yield Check(subject, "torch_ref", "loss", abs(float(value) - expected.item()), 1e-12)
    for name, slope, leaf in zip(("class", "distillation"), slopes, leaves, strict=True):
        assert leaf.grad is not None
        apart = distance(np.asarray(slope), leaf.grad.numpy())
        yield Check(subject, "torch_ref", f"its gradient, {name} head", apart, 1e-12)


def losses() -> Iterator[Check]:
    """All of the above."""
    yield from shifts()
    for smoothing in (0.0, 0.1):
        yield from translate(smoothing)
        for name, mixed in itertools.product(("cross_entropy", "binary"), (False, True)):
            yield from classify(smoothing, name, mixed)
        for c in (
            DistilLoss(name="binary"),
            DistilLoss(),
            DistilLoss(divide_by_classes=True, alpha=0.2),
            DistilLoss(hard=True),
        ):
            yield from distil(replace(c, label_smoothing=smoothing))
