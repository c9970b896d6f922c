"""Image classification by a ResNet: evaluated and predicted with as any classifier, never trained."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ..predictor import Predictor
from .learn import Classify
from .use import Classifier


class ResNetClassifier(Classifier):
    """A ResNet with the preprocessing of its evaluation and its class names: it has no attention to draw."""

    layers = 0
    draw_attention = Predictor.draw_attention


@dataclass(frozen=True)
class ClassifyResNet(Classify):
    """The task `classify-resnet`: `classify` with a network that has no attention to be drawn."""

    predictor: ClassVar[type[Predictor]] = ResNetClassifier
