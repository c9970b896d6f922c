"""Distillation: image classification that is learnt from labels and from a teacher, another classifier, at once.

The student has a class token and a distillation token with a head each (DeiT: Touvron et al. 2021, arXiv 2012.12877).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import Array

from ...augmentation.batch import normalise
from ...config.network import Teacher
from ...config.run import RunConfig
from ...config.trees import unflatten
from ...machine.targets import HERE, Target
from ...models.build import definition
from ...models.layers import accumulation_dtype, fold
from ...models.lowering import of_evaluation
from ...models.state import merge
from ...models.vit import ViT
from ..base import Batch
from ..can import Abilities, HasFrozen
from .distil_spec import DistilLoss
from .learn import Classify

KERNELS = {"bilinear": "linear", "bicubic": "cubic", "nearest": "nearest"}  # of Preprocess: of jax.image.resize


class HasTeacher(HasFrozen):
    """The arrays of a teacher."""

    def load(self, teacher: Teacher | None, target: Target = HERE) -> Distil:
        """The task with its teacher's weights and normalisation, or logits, in the dtype of its parameters."""
        assert teacher is not None, "check_complete requires one"
        task: Distil = self.task
        wanted = np.dtype(accumulation_dtype(task.dtype))
        if teacher.config is None:
            return replace(task, frozen_arrays={"logits": teacher.arrays["logits"].astype(wanted)})
        preprocess = teacher.metadata["preprocess"]
        (h, w), trim = preprocess["image"], tuple(preprocess.get("trim", (0, 0)))
        return replace(
            task,
            teacher=definition(teacher.config, task.dtype, wanted, of_evaluation(task.dtype, target)),
            size=(h + trim[0], w + trim[1]),
            trim=trim,
            interpolation=preprocess["interpolation"],
            frozen_arrays={
                "parameters": unflatten({name: array.astype(wanted) for name, array in teacher.arrays.items()}),
                "mean": np.asarray(preprocess["mean"], wanted),
                "std": np.asarray(preprocess["std"], wanted),
            },
        )


@dataclass(frozen=True)
class Distil(Classify):
    """The task `distil`: `classify` with the loss of a student. Its auxiliary arrays are the teacher's.

    Evaluation and prediction do not need the teacher: they use the head or heads that the network's `pool` states.
    """

    can: ClassVar[Abilities] = (HasTeacher, *Classify.can)

    distil: DistilLoss = field(default_factory=DistilLoss)
    dtype: str = "float32"  # in which both networks compute
    # Of a teacher that is a network: its definition, as `models.definition` gives it, the height and width of images
    # that its preprocessing makes, how many rows and columns of these it trims off, and how images are resized to that.
    teacher: Any = None
    size: tuple[int, int] = (0, 0)
    trim: tuple[int, int] = (0, 0)
    interpolation: str = "bilinear"

    @classmethod
    def from_run(cls, run: RunConfig, metadata: Mapping[str, Any]) -> Distil:
        """The task of a run, without its teacher."""
        task = super().from_run(run, metadata)
        loss: Any = run.loss  # a DistilLoss
        return replace(task, distil=loss, dtype=run.compute_dtype)

    def prepare(self, batch: Batch, keys: Array) -> Batch:
        """As of `classify`; where the teacher is given as its logits, with "taught" too, those of the batch [B, K]."""
        batch, given = super().prepare(batch, keys), self.frozen_arrays.get("logits")  # of all images, [n, K]
        return batch if given is None else {**batch, "taught": given[batch["row"]]}

    def loss(
        self, model: ViT, batch: Batch, keys: Array, denominator: Array | None = None
    ) -> tuple[Array, dict[str, Array]]:
        """The loss of a prepared batch: keys [B] -> []."""
        logits, distilled = model.both(self.images(batch, model.dtype), keys=fold(keys, 1))  # [B, K] each
        from_labels, metrics = self.kind.loss(logits, batch, denominator)
        taught = batch["taught"] if "taught" in batch else self.teacher_logits(batch["image"])
        distillation = distillation_loss(distilled, taught, self.distil)
        alpha, agreement = self.distil.alpha, (distilled.argmax(-1) == taught.argmax(-1)).mean()
        metrics |= {"distillation": distillation, "agreement": agreement}
        return (1 - alpha) * from_labels + alpha * distillation, metrics

    def teacher_logits(self, images: Array) -> Array:
        """The teacher's logits in evaluation mode, [B, K]: images [B, h, w, C].

        An image of another size than the teacher's is resized as a whole, by the teacher's own kernel, antialiased; of
        that the teacher sees what its preprocessing does not trim off.
        """
        if images.shape[1:3] != self.size:
            shape = (len(images), *self.size, images.shape[-1])
            images = images.astype(accumulation_dtype(self.dtype))
            images = jax.image.resize(images, shape, KERNELS[self.interpolation]).clip(0, 255)  # bicubic overshoots
        images = images[:, : self.size[0] - self.trim[0], : self.size[1] - self.trim[1]]
        network = merge(self.teacher, self.frozen_arrays["parameters"])
        return network(normalise(images, self.frozen_arrays["mean"], self.frozen_arrays["std"], jnp.dtype(self.dtype)))


def distillation_loss(student: Array, teacher: Array, c: DistilLoss) -> Array:
    """The loss of a student against a teacher, a mean over the batch: student logits [B, K], teacher logits [B, K].

    Soft: T^2 KL(p || q), p and q the softmax of the teacher's and the student's logits divided by T (Hinton et al.
    2015). Hard: the cross entropy with the class that the teacher predicts.
    """
    if c.hard:
        return optax.softmax_cross_entropy_with_integer_labels(student, teacher.argmax(-1)).mean()
    log_p, log_q = (jax.nn.log_softmax(logits / c.temperature) for logits in (teacher, student))
    divergence = (jnp.exp(log_p) * (log_p - log_q)).sum(-1).mean()
    return c.temperature**2 * divergence / (student.shape[-1] if c.divide_by_classes else 1)
