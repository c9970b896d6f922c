"""What the tasks on images have in common: a trained network that takes images of any size."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import numpy as np
from jax import Array

from ..augmentation.batch import normalise
from ..data.images.preprocess import Preprocess
from ..data.inputs import list_images, prepare_image
from ..data.unreadable import Unreadable
from ..errors import UserError
from ..machine.numerics import with_fixed_settings
from .predictor import Predictor


class ImagePredictor(Predictor):
    """A trained network of images, with the preprocessing of its evaluation.

    `model(images)` calls the network on normalised images [B, h, w, C]. The methods take images of any size: paths of
    files, Pillow images, uint8 arrays [h, w] or [h, w, C], or tensors of PyTorch [C, h, w], uint8 or from 0 to 1 as
    torchvision makes them. For a list of n of them, or an array [n, h, w, C], they give n answers; for one image, one
    answer without the axis of the batch. Raises UserError where an image cannot be used.
    """

    @functools.cached_property
    def preprocess(self) -> Preprocess:
        """How images become the network's inputs."""
        return Preprocess.from_dict(self.trained.metadata["preprocess"])

    @property
    def metadata(self) -> dict[str, Any]:
        return {**self.trained.metadata, "preprocess": self.preprocess.to_dict()}

    @property
    def size(self) -> str:
        """The shape of the network's images, in print."""
        return "x".join(map(str, (*self.preprocess.image, self.preprocess.channels)))

    def as_list(self, images: Any) -> tuple[list[Any], bool]:
        return list_images(images, self.preprocess.channels)

    def readable(self, inputs: Sequence[Any]) -> tuple[list[Any], list[UserError]]:
        found: list[Any] = []
        errors: list[UserError] = []
        for image in inputs:
            try:
                prepare_image(image, self.preprocess)
                found.append(image)
            except Unreadable as error:
                errors.append(error)
        return found, errors

    def pixels(self, images: Any) -> np.ndarray:
        """Images preprocessed but not normalised -> uint8 [n, h, w, C], or [h, w, C] of one."""
        several, one = self.as_list(images)
        pixels = np.stack([prepare_image(image, self.preprocess) for image in several])
        return pixels[0] if one else pixels

    def inputs(self, images: Any) -> Array:
        """Images as the network takes them, preprocessed and normalised -> [n, h, w, C], or [h, w, C] of one."""
        return self.normalised(self.pixels(images))

    @with_fixed_settings
    def normalised(self, pixels: Any) -> Array:
        """Preprocessed pixels, uint8 [B, h, w, C], as the network takes them."""
        return normalise(pixels, self.preprocess.mean, self.preprocess.std, self.model.dtype)
