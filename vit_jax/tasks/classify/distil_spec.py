"""The task distil (Hinton et al. 2015, arXiv 1503.02531): the loss of a student, a teacher, and who may teach whom."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from functools import partial
from typing import Any

from ...config.fields import identity
from ...config.network import Teacher
from ...config.outputs import Outputs, other_classes
from ...config.run import LossConfig, RunConfig
from ...errors import Field, UserError
from ...kinds.table import class_of
from ..image_spec import show_value
from .spec import ClassifySpec, TellsClasses, parts


@dataclass(frozen=True)
class DistilLoss(LossConfig):
    """The loss of a student with two heads (Touvron et al. 2021, arXiv 2012.12877, equations 2 and 3).

    It is (1 - alpha) times the loss of the class head against the labels, plus alpha times that of the distillation
    head against the teacher.
    """

    alpha: float = identity(
        0.5, "weight of the distillation head's loss; that of the class head's is 1 - alpha", at_least=0, at_most=1
    )
    temperature: float = identity(
        3.0,
        "T of soft distillation: T^2 times the KL divergence of the probabilities of student and teacher, "
        "whose logits are divided by T",
        above=0,
    )
    hard: bool = identity(False, "the distillation head learns the teacher's predicted class, not its probabilities")
    divide_by_classes: bool = identity(
        False, "soft distillation: divide the divergence by the number of classes too, as the code of DeiT does"
    )


class DistilSpec(ClassifySpec):
    """Classification learnt from labels and from a teacher at once, by a ViT with two heads."""

    computes = "vit_jax.tasks.classify.distil:Distil"
    loss = DistilLoss
    has_teacher = True

    @classmethod
    def check(cls, run: RunConfig) -> None:
        super().check(run)
        model: Any = run.model
        loss: Any = run.loss
        if not model.distill_head:
            raise UserError(
                Field("model.distill_head"),
                "is False, but the task distil trains that head",
                "set model.distill_token and model.distill_head to True",
            )
        if model.pool not in ("cls", "cls_distill"):
            raise UserError(
                Field("model.pool"),
                f"is {model.pool}, but the task distil trains a head of the class token and one of the distillation "
                "token",
                "set model.pool to cls, to predict by the first, or to cls_distill, by both",
            )
        if loss.hard and loss.divide_by_classes:
            raise UserError(
                Field("loss.divide_by_classes"),
                "is True but loss.hard is True, which has no divergence to divide",
                "set one of them",
            )

    @classmethod
    def check_kind(cls, run: RunConfig, kind: str) -> None:
        """Raise UserError on labels that are no classes."""
        if kind not in ("", "class"):
            what = f"is {kind}, but the task distil learns classes from a teacher"
            raise UserError(Field("data.target"), what, "give labels that are classes, or start from another preset")
        super().check_kind(run, kind)

    @classmethod
    def check_teacher(cls, teacher: Teacher, run: RunConfig, data: Any) -> None:
        if teacher.config is None:
            _check_logits(teacher, run, data)
        else:
            _check_network(teacher, run, data)


def _check_network(teacher: Teacher, run: RunConfig, data: Any) -> None:
    (student, _, _), path, c = parts(run), teacher.path, teacher.config
    assert c is not None
    refused = partial(UserError, f"teacher {path}")
    if not isinstance(c, TellsClasses):
        raise refused(f"holds a {c.name}", "give a network that classifies images")
    if not c.classes:
        raise refused("has no head and so no classes", "give a network that classifies images")
    if student.classes not in (0, c.classes):
        raise refused(
            f"has {c.classes} classes and this run has {student.classes}", "give a teacher of the same classes"
        )
    if (kind := Outputs.of(teacher.metadata).kind) not in ("", "class"):
        raise refused(f"its outputs are {class_of(kind).says}", "give a network that predicts classes")
    names = data.metadata()["class_names"] if data else ()
    if clause := other_classes(teacher.metadata.get("class_names", ()), names):
        raise refused(clause, "give a teacher of the same classes in the same order")
    if c.channels != student.channels:
        raise refused(
            f"takes images of {c.channels} channels and this run has {student.channels}", "give a teacher of as many"
        )
    if "preprocess" not in teacher.metadata:
        raise refused(
            "does not state how images are preprocessed",
            f"state that with `python -m convert {shlex.quote(path)} X.safetensors --set mean=... --set std=...`, the "
            "mean and std of the pixels in 0..1 that it was trained with (a number a channel, with commas), then give "
            "X.safetensors here",
        )


def _check_logits(teacher: Teacher, run: RunConfig, data: Any) -> None:
    refused, (images, classes) = partial(UserError, f"teacher {teacher.path}"), teacher.arrays["logits"].shape
    (student, _, _), own, still = parts(run), vars(run.augment), vars(run.augment.without_randomness())
    # Copies of an image are the image, and overfit_batches does not augment.
    drawn = [name for name, value in own.items() if value != still[name] and name != "repeats"]
    if drawn and not run.overfit_batches:
        raise refused(
            "holds logits of images without augmentation, but "
            f"{', '.join(f'augment.{name} is {show_value(own[name])}' for name in drawn)}: "
            "give the network itself, or set "
            f"{', '.join(f'augment.{name} to {show_value(still[name])}' for name in drawn)}"
        )
    if student.classes not in (0, classes):
        raise refused(
            f"has logits of {classes} classes and this run has {student.classes}",
            "give those of a teacher of the same classes",
        )
    if data is None:
        return
    labels = data.splits["train"].source_labels
    if len(labels) != images:
        raise refused(
            f"has logits of {images} images and data.source {run.data.source} has {len(labels)} to train on, those "
            "that are held out included",
            "give one row for each, in their order",
        )
    stated = labels if data.stands_in else teacher.arrays.get("labels", labels)
    if stated.shape != labels.shape or (stated != labels).any():
        raise refused(
            f"its labels are not those of data.source {run.data.source}",
            "give logits of the same images in the same order",
        )
