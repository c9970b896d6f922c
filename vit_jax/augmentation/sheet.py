"""Images of a run and the views of them that training would see, to be drawn."""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np

from ..config import ImageAugment, RunConfig
from ..data import open_images
from ..data.order import SHUFFLE, permutation
from ..layers import fold
from ..report.views import draw_views
from .batch import augment
from .mixing import mixed

LISTED = 2  # classes that the line under a mixed view names


@dataclass(frozen=True)
class Sheet:
    """n images with their classes, and V views of each with the shares of classes, where these are mixed."""

    originals: np.ndarray  # uint8 [n, h, w, C]
    labels: np.ndarray  # int [n]
    views: np.ndarray  # uint8 [n, V, h, w, C]
    targets: np.ndarray | None  # float32 [n, V, K]
    class_names: tuple[str, ...]

    def draw(self, path: str | os.PathLike[str], title: str, caption: str) -> None:
        """Write the contact sheet as a PNG."""
        names = [self.class_names[label] for label in self.labels]
        under = None if self.targets is None else [[self.shares(view) for view in row] for row in self.targets]
        draw_views(path, self.originals, self.views, names, under, title, caption)

    def shares(self, target: np.ndarray) -> str:
        """The largest classes of a target, float32 [K], in words."""
        order = np.argsort(-target, kind="stable")[:LISTED]
        return " + ".join(f"{target[k]:.0%} {self.class_names[k]}" for k in order if target[k] >= 0.005)


def views_of(run: RunConfig, images: int, views: int) -> Sheet:
    """The views of up to `images` training images in the first `views` steps. Raises UserError where data does.

    The draws are those of the training step, if the images stood first in its batch.
    """
    c, data, config = cast(Any, (run.model, run.data, run.augment))  # of images
    how = {name: getattr(config, name) for name in ("normalize", "mean", "std")}
    dataset = open_images(data, c.image, c.channels, **how, classes=0, seed=run.seed)  # 0: as many as the data has
    split = dataset.splits["train"]
    count = min(images, len(split) - len(split) % 2)
    examples = split.examples(permutation(len(split), SHUFFLE, run.seed)[:count])
    classes = len(dataset.class_names)

    @partial(jax.jit, static_argnums=1)
    def seen(step: jax.Array, config: ImageAugment) -> tuple[jax.Array, jax.Array | None]:
        of_step = jax.random.fold_in(jax.random.key(run.seed), step)
        keys = fold(jax.vmap(jax.random.fold_in, (None, 0))(of_step, jnp.arange(count)), 0)
        changed = augment(jnp.asarray(examples["image"]), keys, config)
        if not config.mixes:
            return changed, None
        changed, targets = mixed(changed, jnp.asarray(examples["label"]), fold(keys, 5), config, classes, 0)
        return jnp.round(changed).astype(jnp.uint8), targets

    steps = [seen(jnp.int32(step), config) for step in range(views)]
    targets = np.stack([np.asarray(t) for _, t in steps], 1) if config.mixes else None
    pictures = np.stack([np.asarray(x) for x, _ in steps], 1)
    return Sheet(examples["image"], examples["label"], pictures, targets, dataset.class_names)
