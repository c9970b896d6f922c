"""Configs of distillation (Hinton et al. 2015, arXiv 1503.02531): the loss of a student, and a teacher."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from .fields import ModelConfig, identity
from .run import LossConfig


@dataclass(frozen=True)
class DistilLoss(LossConfig):
    """The loss of a student with two heads (Touvron et al. 2021, arXiv 2012.12877, equations 2 and 3).

    It is (1 - alpha) times the loss of the class head against the labels, plus alpha times that of the distillation
    head against the teacher.
    """

    alpha: float = identity(0.5, "weight of the distillation head's loss; that of the class head's is 1 - alpha")
    temperature: float = identity(
        3.0,
        "T of soft distillation: T^2 times the KL divergence of the probabilities of student and teacher, "
        "whose logits are divided by T",
    )
    hard: bool = identity(False, "the distillation head learns the teacher's predicted class, not its probabilities")
    divide_by_classes: bool = identity(
        False, "soft distillation: divide the divergence by the number of classes too, as the code of DeiT does"
    )


@dataclass(frozen=True)
class Teacher:
    """A trained network that the loss of another run compares with, or the logits that one gave."""

    path: str  # of a run, of weights or of logits, as the run states it
    layout: str
    config: ModelConfig | None  # None: there are only logits
    metadata: Mapping[str, Any]  # the entries of its own task's metadata that are known
    # {dotted name of a parameter: array}, empty where only headers were read; or "logits", float [n, K], of the train
    # images of the run's source, and "labels", int [n], where they are stated.
    arrays: Mapping[str, Any]
