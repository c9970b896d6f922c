"""The command `vit-jax sheet PRESET FILE.png`: a contact sheet of what training sees of its images."""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from ..augmentation.config import ImageAugment
from ..config import flags
from ..config.fields import option
from ..config.run import AugmentConfig, DataConfig, RunConfig
from ..data.images.config import ImageData
from ..errors import DONE, Field, UserError
from ..figures.figure import GREY, AnyPath, aspect, put, sheet
from ..files.destination import check_output
from ..files.output import shorten
from ..files.terminal import run_command
from ..machine import backend
from ..machine.numerics import random_key, with_fixed_settings
from ..presets.table import preset
from ..runs.check import check_complete, check_run
from ..tasks.image_spec import TakesImages
from ..tasks.table import task_spec

if TYPE_CHECKING:
    import jax

USAGE = "vit-jax sheet PRESET FILE.png"
LISTED = 2  # classes that the line under a mixed view names
CELL, GAP, NAME, TOP = 0.95, 0.06, 1.05, 0.75  # inches: a picture's width, between pictures, for names, for the title


@dataclass(frozen=True)
class Options:
    """The arguments of the command after the preset and the file."""

    data: DataConfig
    augment: AugmentConfig
    seed: int = option(0, "seed of the choice of images and of all that is drawn")
    images: int = option(8, "images, each a row", at_least=1, at_most=64)
    views: int = option(10, "views of each image, as in so many steps of training", at_least=1, at_most=40)
    force: bool = option(False, "overwrite the file if it exists")


def parse(arguments: list[str]) -> tuple[str, str, RunConfig, Options]:
    """What arguments ask for -> (name of the preset, path of the file, its run, options)."""
    words = list(arguments)
    first: list[str] = []
    while words and len(first) < 2 and not flags.is_flag(words[0]):
        first.append(words.pop(0))
    helping = bool({"-h", "--help"} & {*words})
    name, file = [*first, "", ""][:2]
    if not helping and not file:
        raise UserError(f"{'FILE.png' if name else 'PRESET'} is missing", remedy=f"give {USAGE}, then flags")
    run = preset(name or "digits").run
    if type(run.augment) is not ImageAugment:
        raise UserError(name, "its examples are no images, and nothing augments them", "give a preset of images")
    if "class_names" not in task_spec(run.task).metadata:
        raise UserError(name, "its images have no classes, by which they are drawn", "give a preset that classifies")
    options = flags.parse(
        Options,
        words,
        default=Options(run.data, run.augment, run.seed),
        prog=USAGE,
        description="Draw images of a preset, and several views of each as its training sees them.\n\n"
        f"The defaults below are those of {name or 'digits'}.",
    )
    if not file.lower().endswith(".png"):
        raise UserError(file, "the sheet is a PNG", "give a name that ends in .png")
    check_output("", file, options.force, options.data.paths())
    return name, file, run, options


def command(arguments: list[str]) -> int:
    """The body of the command; returns its exit code."""
    name, file, run, o = parse(arguments)
    run = check_complete(check_run(replace(run, data=o.data, augment=o.augment, seed=o.seed)))
    if o.augment.mixes and o.images % 2:  # type: ignore[attr-defined]  # an ImageAugment
        raise UserError(Field("images"), f"is {o.images}, but neighbours are mixed", "give an even number")
    backend.configure_jax()
    drawn = views_of(run, o.images, o.views)
    drawn.draw(file, f"{name}: what training sees of {len(drawn.originals)} images", settings(o.augment))
    print(f"{file}: {len(drawn.originals)} images, {o.views} views of each")
    return DONE


def settings(augment: Any) -> str:
    """The fields of an augmentation that are not at their defaults, as they are typed, for a line of text."""
    usual, words = ImageAugment(), []
    for name, value in vars(augment).items():
        if value != getattr(usual, name) and name not in ("normalize", "mean", "std"):
            shown = " ".join(map(str, value)) if isinstance(value, tuple) else "" if value is True else str(value)
            words.append(f"{name.replace('_', '-')} {shown}".strip())
    return ", ".join(words) or "no augmentation"


@dataclass(frozen=True)
class Sheet:
    """n images with their classes, and V views of each with the shares of classes, where these are mixed."""

    originals: np.ndarray  # uint8 [n, h, w, C]
    labels: tuple[str, ...]  # [n], in words
    views: np.ndarray  # uint8 [n, V, h, w, C]
    targets: np.ndarray | None  # float32 [n, V, K]
    class_names: tuple[str, ...]

    def draw(self, path: AnyPath, title: str, caption: str) -> None:
        """Write the contact sheet as a PNG: images one below the other, and right of each its views."""
        height = CELL * aspect(self.originals)
        down = height + (0.22 if self.targets is not None else GAP)
        first = NAME + CELL + 0.2  # where the views begin
        width = first + self.views.shape[1] * (CELL + GAP) + 0.1
        with sheet(path, width, TOP + 0.25 + len(self.originals) * down + 0.1) as ax:
            ax.text(0.15, 0.3, title, size=13, weight="bold")
            ax.text(0.15, 0.55, shorten(caption, round(width * 13)), size=9, color=GREY)
            ax.text(NAME + CELL / 2, TOP + 0.12, "image", ha="center", size=9, color=GREY)
            ax.text(first, TOP + 0.12, "views", size=9, color=GREY)
            for i, (image, name) in enumerate(zip(self.originals, self.labels, strict=True)):
                y = TOP + 0.25 + i * down
                ax.text(NAME - 0.1, y + height / 2, shorten(name, 13), ha="right", va="center", size=9)
                put(ax, image, NAME, y, CELL, height, vmin=0, vmax=255)
                for k, view in enumerate(self.views[i]):
                    x = first + k * (CELL + GAP)
                    put(ax, view, x, y, CELL, height, vmin=0, vmax=255)
                    if self.targets is not None:
                        line = shorten(self.shares(self.targets[i, k]), 24)
                        ax.text(x + CELL / 2, y + height + 0.11, line, ha="center", va="center", size=5.2, color=GREY)

    def shares(self, target: np.ndarray) -> str:
        """The largest classes of a target, float32 [K], in words."""
        order = np.argsort(-target, kind="stable")[:LISTED]
        return " + ".join(f"{target[k]:.0%} {self.class_names[k]}" for k in order if target[k] >= 0.005)


@with_fixed_settings
def views_of(run: RunConfig, images: int, views: int) -> Sheet:
    """Views of training images, with the draws of the training step, if the images stood first in its batch."""
    import jax
    import jax.numpy as jnp

    from ..augmentation.batch import augment
    from ..data.images.open import open_images
    from ..data.order import SHUFFLE, permutation
    from ..kinds.table import kind_of
    from ..models.layers import fold

    c, data, config = run.model, run.data, run.augment
    assert isinstance(c, TakesImages) and isinstance(data, ImageData) and isinstance(config, ImageAugment)
    how = {name: getattr(config, name) for name in ("normalize", "mean", "std")}
    dataset = open_images(data, c.image, c.channels, **how, classes=0, seed=run.seed)  # 0: as many as the data has
    split = dataset.splits["train"]
    count = min(images, len(split) - len(split) % 2)
    rows = permutation(len(split), SHUFFLE, run.seed)[:count]
    examples, kind = split.examples(rows), kind_of(dataset.outputs)

    @partial(jax.jit, static_argnums=1)
    def seen(step: jax.Array, config: ImageAugment) -> tuple[jax.Array, jax.Array | None]:
        of_step = jax.random.fold_in(random_key(run.seed), step)
        keys = fold(jax.vmap(jax.random.fold_in, (None, 0))(of_step, jnp.arange(count)), 0)
        originals = jnp.asarray(examples["image"])
        if not config.mixes:
            return augment(originals, keys, config), None
        labels = kind.targets(jnp.asarray(examples["label"]))
        changed, targets = augment(originals, keys, config, labels=labels)
        return jnp.round(changed).astype(jnp.uint8), targets

    steps = [seen(jnp.int32(step), config) for step in range(views)]
    targets = np.stack([np.asarray(t) for _, t in steps], 1) if config.mixes else None
    pictures = np.stack([np.asarray(x) for x, _ in steps], 1)
    words = tuple(kind.words(label) for label in split.labels[rows])
    return Sheet(examples["image"], words, pictures, targets, dataset.class_names)


def main() -> int:
    """Run `vit-jax sheet`; returns the exit code."""
    return run_command(lambda: command(sys.argv[1:]))
