"""Use a trained run, or weights of any layout: `python -m vit_jax.predict RUN-OR-FILE IMAGE-OR-FOLDER...`, or `RUN TEXT... | -` to translate."""

from __future__ import annotations

import csv
import os
import shlex
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np

from . import backend, runs
from .errors import DONE, UserError, door

if TYPE_CHECKING:
    from .interop import Loaded, Translator

BATCH = 64
SHOWN = 8  # images in an attention picture


def image_files(paths: Sequence[str]) -> list[Path]:
    """The image files among paths and, sorted, inside folders. Raises UserError where there are none."""
    from .data.images import EXTENSIONS

    found: list[Path] = []
    for text in paths:
        path = Path(text)
        if path.is_dir():
            inside = sorted(p for p in path.rglob("*") if p.suffix.lower() in EXTENSIONS and not p.name.startswith("."))
            if not inside:
                raise UserError(f"{text}: there are no images in this folder; known suffixes are {', '.join(sorted(EXTENSIONS))}")
            found += inside
        elif path.exists():
            found.append(path)
        else:
            raise UserError(f"{text}: there is no such image or folder; check the path")
    return found


def predict(path: str, images: Sequence[str], top: int = 3, which: str = "best", ema: bool | None = None) -> Iterator[tuple[Path, list[tuple[str, float]]]]:
    """(file, its `top` classes as (name, probability)) for each image. Raises UserError."""
    files = image_files(images)  # before anything heavy starts
    return _classes(_images(path, which, ema), files, top)


def translate(path: str, texts: Sequence[str], which: str = "best", ema: bool | None = None) -> Iterator[tuple[str, str]]:
    """(sentence, its translation) for each sentence. Raises UserError."""
    return _translations(_sentences(path, which, ema), texts)


def draw_attention(path: str, images: Sequence[str], out: Path, which: str = "best", ema: bool | None = None) -> None:
    """Attention maps over the first few images, as one PNG. Raises UserError."""
    files = image_files(images)
    _draw_attention(_images(path, which, ema), files, out)


def _images(path: str, which: str, ema: bool | None) -> Loaded:
    """The network of a run on images, or of a file that says how they become inputs. Raises UserError where it is another."""
    from .interop import Loaded

    model = _load(path, which, ema)
    if not isinstance(model, Loaded):
        raise UserError(f"{path}: this run translates sentences; give it texts, not images")
    return model


def _sentences(path: str, which: str, ema: bool | None) -> Translator:
    """The network of a run on sentences. Raises UserError where it is another."""
    from .interop import Translator

    model = _load(path, which, ema)
    if not isinstance(model, Translator):
        raise UserError(f"{path}: this network classifies images; give it image files or folders, not texts")
    return model


def _load(path: str, which: str, ema: bool | None) -> Loaded | Translator:
    """The network of a run or of a file of any layout; that there is such a run is known before jax starts."""
    foreign = runs.is_foreign(path)
    if not foreign:
        runs.find(path)
    elif which != "best" or ema is not None:
        raise UserError(f"{path}: is no run, so --weights and --ema have nothing to choose from; leave them out")
    backend.prepare()
    from .interop import Network, Transformer, convert_first, load

    try:
        model = load(path, which, ema)
    except UserError as error:
        raise (convert_first(error, path) if foreign else error) from error
    if isinstance(model, Network) and isinstance(model.model, Transformer):
        raise UserError(f"{path}: holds a Transformer without its vocabulary; to translate, give a run that was trained here")
    if isinstance(model, Network):
        way = f"python -m convert {shlex.quote(path)} X.safetensors --set mean=0.5 --set std=0.5"
        raise UserError(f"{path}: does not say how images become inputs; say it with `{way}` (its own mean and std of pixels in 0..1), then give X.safetensors here")
    return model


def _translations(model: Translator, texts: Sequence[str]) -> Iterator[tuple[str, str]]:
    model.ids(texts)  # all are known to be good before the first is translated
    for begin in range(0, len(texts), BATCH):
        part = list(texts[begin : begin + BATCH])
        yield from zip(part, model.translate(part), strict=True)


def _classes(model: Loaded, files: Sequence[Path], top: int) -> Iterator[tuple[Path, list[tuple[str, float]]]]:
    for begin in range(0, len(files), BATCH):
        part = files[begin : begin + BATCH]
        yield from zip(part, model.predict(part, top), strict=True)


def _draw_attention(model: Loaded, files: Sequence[Path], out: Path) -> None:
    from .report.gallery import draw_attention

    pixels = model.pixels(files[:SHOWN])
    maps = model.model.capture(model.task.images({"image": pixels}, model.model.dtype), ["attention"])["attention"]
    draw_attention(model.model.config, pixels, np.asarray(maps), out)


@dataclass(frozen=True)
class Options:
    """Classify images, prepared as in the run's evaluation or as a file of weights says, or translate sentences."""

    run: str = field(metadata={"help": "a run's folder, or its name inside runs/; for images also weights of any layout in `python -m convert formats`"})
    inputs: tuple[str, ...] = field(metadata={"help": "image files, or folders of them; sentences, or - for one a line of stdin"})
    top: int = field(default=3, metadata={"help": "how many classes to name for each image"})
    csv: str = field(default="", metadata={"help": "also write a table to this file"})
    attention: str = field(default="", metadata={"help": f"also draw attention maps over the first {SHOWN} images, or of the first sentence, to this PNG"})
    weights: Literal["best", "last"] = field(
        default="best", metadata={"help": "those that validation liked best (the last where nothing was chosen), or the last"}
    )
    ema: bool = field(default=True, metadata={"help": "take the averaged weights where the run kept them"})
    force: bool = field(default=False, metadata={"help": "overwrite files that exist"})


def command(arguments: list[str]) -> int:
    """The command's body."""
    import tyro

    o = tyro.cli(Options, args=arguments, prog="python -m vit_jax.predict", config=(tyro.conf.PositionalRequiredArgs, tyro.conf.PositionalMetavarFromFieldName))
    if not o.inputs:
        raise UserError("inputs: none given; name image files or folders, or texts, after the run")
    if o.top < 1:
        raise UserError(f"top is {o.top}: give a positive number")
    for flag, path in (("csv", o.csv), ("attention", o.attention)):
        _check_output(flag, path, o.force)
    if _is_on_sentences(o.run):
        return _translate_command(o)
    files = image_files(o.inputs)
    model = _images(o.run, o.weights, None if o.ema else False)
    rows = []
    for file, classes in _classes(model, files, o.top):
        print(f"{file}: " + ", ".join(f"{name} ({probability:.1%})" for name, probability in classes))
        rows += [(str(file), rank, name, f"{probability:.6f}") for rank, (name, probability) in enumerate(classes, 1)]
    if o.csv:
        _write_csv(Path(o.csv), ("file", "rank", "class", "probability"), rows)
    if o.attention:
        _draw_attention(model, files, Path(o.attention))
    return DONE


def _is_on_sentences(path: str) -> bool:
    """Whether there is a run here that translates."""
    from .config import TransformerConfig

    if runs.is_foreign(path):
        return False
    try:
        folder = runs.find(path)
    except UserError:  # it is said when the run is loaded, after what is wrong with the inputs
        return False
    return isinstance(folder.config().model, TransformerConfig)


def _translate_command(o: Options) -> int:
    texts = [line for text in o.inputs for line in (sys.stdin.read().splitlines() if text == "-" else [text])]
    model = _sentences(o.run, o.weights, None if o.ema else False)
    rows = []
    for text, translation in _translations(model, texts):
        print(f"{text}: {translation}")
        rows.append((text, translation))
    if o.csv:
        _write_csv(Path(o.csv), ("source", "translation"), rows)
    if o.attention:
        from .report import draw_cross_attention

        asked, said, maps = model.attention(texts[0])
        draw_cross_attention(maps, said, asked, o.attention)
    return DONE


def _check_output(flag: str, path: str, force: bool) -> None:
    """Refuse an output that cannot be written before any work is done."""
    if not path:
        return
    if Path(path).is_dir():
        raise UserError(f"--{flag} {path}: is a folder; give the name of a file")
    if Path(path).exists() and not force:
        raise UserError(f"--{flag} {path}: exists already; add --force to overwrite it, or choose another name")
    folder = Path(path).absolute().parent
    if not folder.is_dir() or not os.access(folder, os.W_OK):
        raise UserError(f"--{flag} {path}: its folder is not there or cannot be written; choose another")


def _write_csv(path: Path, header: tuple[str, ...], rows: Sequence[tuple[str | int, ...]]) -> None:
    temporary = path.with_name(path.name + ".tmp")
    with open(temporary, "w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(header)
        writer.writerows(rows)
    os.replace(temporary, path)


def main() -> int:
    """`python -m vit_jax.predict`."""
    return door(lambda: command(sys.argv[1:]))


if __name__ == "__main__":
    sys.exit(main())
