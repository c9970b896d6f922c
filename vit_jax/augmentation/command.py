"""The command `python -m vit_jax.augmentation PRESET FILE.png`: a contact sheet of what training sees of its images."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field, replace
from typing import Any

from .. import backend, flags
from ..config import AugmentConfig, DataConfig, ImageAugment, RunConfig, check_run, task_row
from ..config.complete import check_complete
from ..errors import DONE, UserError, run_command
from ..presets import preset
from ..report.table import check_output

USAGE = "python -m vit_jax.augmentation PRESET FILE.png"


@dataclass(frozen=True)
class Options:
    """The arguments of the command after the preset and the file."""

    data: DataConfig
    augment: AugmentConfig
    seed: int = field(default=0, metadata={"help": "seed of the choice of images and of all that is drawn"})
    images: int = field(default=8, metadata={"help": "images, each a row"})
    views: int = field(default=10, metadata={"help": "views of each image, as in so many steps of training"})
    force: bool = field(default=False, metadata={"help": "overwrite the file if it exists"})


def parse(arguments: list[str]) -> tuple[str, str, RunConfig, Options]:
    """(name of the preset, path of the file, its run, options) from command-line arguments.

    Raises UserError, or SystemExit(0) after printing help.
    """
    words = list(arguments)
    first: list[str] = []
    while words and len(first) < 2 and not flags.is_flag(words[0]):
        first.append(words.pop(0))
    helping = bool({"-h", "--help"} & {*words})
    name, file = [*first, "", ""][:2]
    if not helping and not file:
        raise UserError(f"{'FILE.png' if name else 'PRESET'} is missing: give {USAGE}, then flags")
    run = preset(name or "digits").run
    if type(run.augment) is not ImageAugment:
        raise UserError(f"{name}: its examples are no images, and nothing augments them; give a preset of images")
    if "class_names" not in task_row(run.task).metadata:
        raise UserError(f"{name}: its images have no classes, by which they are drawn; give a preset that classifies")
    options = flags.parse(
        Options,
        words,
        default=Options(run.data, run.augment, run.seed),
        prog=USAGE,
        description="Draw images of a preset, and several views of each as its training sees them.\n\n"
        f"The defaults below are those of {name or 'digits'}.",
    )
    if not file.lower().endswith(".png"):
        raise UserError(f"{file}: the sheet is a PNG; give a name that ends in .png")
    check_output("", file, options.force)
    return name, file, run, options


def command(arguments: list[str]) -> int:
    """The body of the command; returns its exit code."""
    name, file, run, o = parse(arguments)
    run = check_complete(check_run(replace(run, data=o.data, augment=o.augment, seed=o.seed)))
    check_counts(o)
    backend.configure_jax()
    from .sheet import views_of

    drawn = views_of(run, o.images, o.views)
    drawn.draw(file, f"{name}: what training sees of {len(drawn.originals)} images", settings(o.augment))
    print(f"{file}: {len(drawn.originals)} images, {o.views} views of each")
    return DONE


def check_counts(o: Options) -> None:
    """Raise UserError unless there are as many images and views as a sheet can have."""
    for name, value, most in (("images", o.images, 64), ("views", o.views, 40)):
        if not 1 <= value <= most:
            raise UserError(f"{name} is {value}: give 1 to {most}")
    if o.augment.mixes and o.images % 2:  # type: ignore[attr-defined]  # an ImageAugment
        raise UserError(f"images is {o.images}, but neighbours are mixed: give an even number")


def settings(augment: Any) -> str:
    """The fields of an augmentation that are not at their defaults, as they are typed, for a line of text."""
    usual, words = ImageAugment(), []
    for name, value in vars(augment).items():
        if value != getattr(usual, name) and name not in ("normalize", "mean", "std"):
            shown = " ".join(map(str, value)) if isinstance(value, tuple) else "" if value is True else str(value)
            words.append(f"{name.replace('_', '-')} {shown}".strip())
    return ", ".join(words) or "no augmentation"


def main() -> int:
    """Run `python -m vit_jax.augmentation`; returns the exit code."""
    return run_command(lambda: command(sys.argv[1:]))
