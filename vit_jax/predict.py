"""Classify images with a trained run: `python -m vit_jax.predict RUN IMAGE-OR-FOLDER...`."""

from __future__ import annotations

import csv
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

from . import backend
from .errors import DONE, UserError, door

SUFFIXES = (".png", ".jpg", ".jpeg", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".ppm", ".pgm")
BATCH = 64
SHOWN = 8  # images in an attention picture


def image_files(paths: Sequence[str]) -> list[Path]:
    """The image files among paths and, sorted, inside folders. Raises UserError where there are none."""
    found: list[Path] = []
    for text in paths:
        path = Path(text)
        if path.is_dir():
            inside = sorted(p for p in path.rglob("*") if p.suffix.lower() in SUFFIXES and not p.name.startswith("."))
            if not inside:
                raise UserError(f"{text}: there are no images in this folder; known suffixes are {', '.join(SUFFIXES)}")
            found += inside
        elif path.exists():
            found.append(path)
        else:
            raise UserError(f"{text}: there is no such image or folder; check the path")
    return found


def predict(path: str, images: Sequence[str], top: int = 5, which: str = "best", ema: bool | None = None) -> Iterator[tuple[Path, list[tuple[str, float]]]]:
    """(file, its `top` classes as (name, probability)) for each image. Raises UserError."""
    files = image_files(images)  # before anything heavy starts
    model = _load(path, which, ema)
    for begin in range(0, len(files), BATCH):
        part = files[begin : begin + BATCH]
        yield from zip(part, model.predict(part, top), strict=True)


def _load(path: str, which: str, ema: bool | None) -> Any:
    backend.prepare()
    from .interop import load

    return load(path, which, ema)


def draw_attention(path: str, images: Sequence[str], out: Path, which: str = "best", ema: bool | None = None) -> None:
    """Attention maps over the first few images, as one PNG. Raises UserError."""
    from .report.plots import draw_attention as draw

    files = image_files(images)[:SHOWN]
    loaded = _load(path, which, ema)
    pixels, c = loaded.pixels(files), loaded.model.config
    maps = loaded.model.capture(loaded.task.images({"image": pixels}, loaded.model.dtype), ["attention"])["attention"]
    import numpy as np

    draw(pixels, np.asarray(maps), sum(n for _, n, _ in c.prefix), c.grid, c.cls_token, out)


def command(arguments: list[str]) -> int:
    """The command's body."""
    import tyro
    from tyro.conf import Positional

    def options(
        run: Positional[str],
        images: Positional[tuple[str, ...]],
        top: int = 3,
        csv: str = "",
        attention: str = "",
        weights: Literal["best", "last"] = "best",
        ema: bool = True,
        force: bool = False,
    ) -> dict[str, Any]:
        """Classify images, prepared as in the run's evaluation.

        Args:
            run: a run's folder, or its name inside runs/
            images: image files, or folders of them
            top: how many classes to name for each
            csv: also write a table to this file
            attention: also draw attention maps over the first images to this PNG
            weights: those that validation liked best (the last where nothing was chosen), or the last
            ema: take the averaged weights where the run kept them
            force: overwrite files that exist
        """
        return {"run": run, "images": images, "top": top, "csv": csv, "attention": attention, "which": weights, "ema": None if ema else False, "force": force}

    o = tyro.cli(options, args=arguments, prog="python -m vit_jax.predict")
    if not o["images"]:
        raise UserError("images: none given; name image files or folders after the run")
    if o["top"] < 1:
        raise UserError(f"top is {o['top']}: give a positive number")
    for flag in ("csv", "attention"):
        _check_output(flag, o[flag], o["force"])
    rows = []
    for file, classes in predict(o["run"], o["images"], o["top"], o["which"], o["ema"]):
        print(f"{file}: " + ", ".join(f"{name} {probability:.1%}" for name, probability in classes))
        rows += [(str(file), rank, name, f"{probability:.6f}") for rank, (name, probability) in enumerate(classes, 1)]
    if o["csv"]:
        _write_csv(Path(o["csv"]), rows)
    if o["attention"]:
        draw_attention(o["run"], o["images"], Path(o["attention"]), o["which"], o["ema"])
    return DONE


def _check_output(flag: str, path: str, force: bool) -> None:
    """Refuse an output that cannot be written before any work is done."""
    if not path:
        return
    if Path(path).exists() and not force:
        raise UserError(f"--{flag} {path}: exists already; add --force to overwrite it, or choose another name")
    folder = Path(path).absolute().parent
    if not folder.is_dir() or not os.access(folder, os.W_OK):
        raise UserError(f"--{flag} {path}: its folder is not there or cannot be written; choose another")


def _write_csv(path: Path, rows: list[tuple[str, int, str, str]]) -> None:
    temporary = path.with_name(path.name + ".tmp")
    with open(temporary, "w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(("file", "rank", "class", "probability"))
        writer.writerows(rows)
    os.replace(temporary, path)


def main() -> int:
    """`python -m vit_jax.predict`."""
    return door(lambda: command(sys.argv[1:]))


if __name__ == "__main__":
    sys.exit(main())
