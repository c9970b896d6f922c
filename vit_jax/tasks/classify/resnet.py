"""Image classification by a ResNet: evaluated and predicted with as any classifier, never trained."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...errors import UserError
from ..base import Trained
from .learn import Classifier, Classify


@dataclass(frozen=True)
class ClassifyResNet(Classify):
    """The task `classify-resnet`: `classify` with a network that has no attention to be drawn."""

    def predictor(self, network: Any, trained: Trained) -> ResNetClassifier:
        """The network with its preprocessing and class names."""
        return ResNetClassifier(**vars(super().predictor(network, trained)))


class ResNetClassifier(Classifier):
    """A ResNet with the preprocessing of its evaluation and its class names."""

    @property
    def layers(self) -> int:
        """0: a ResNet has no attention."""
        return 0

    def draw_attention(self, inputs: Sequence[Any], path: Path, layers: Sequence[int] = (), caption: str = "") -> None:
        """Raise UserError: a ResNet has no attention."""
        raise UserError("attention", "a ResNet has none", "leave the flag out")
