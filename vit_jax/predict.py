"""Use a trained run, or weights of any layout: `python -m vit_jax.predict RUN-OR-FILE IMAGE-OR-FOLDER...`, or `RUN TEXT... | -`."""

from __future__ import annotations

import csv
import os
import shlex
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from . import backend, runs
from .config import network_of, task_row
from .errors import DONE, UserError, door

if TYPE_CHECKING:
    from .tasks import Ready


def image_files(paths: Sequence[str]) -> list[Path]:
    """The image files among paths and, sorted, inside folders. Raises UserError where there are none."""
    from .data.images import EXTENSIONS

    found: list[Path] = []
    for text in paths:
        path = Path(text)
        if path.is_dir():
            inside = sorted(p for p in path.rglob("*") if p.suffix.lower() in EXTENSIONS and not p.name.startswith("."))
            if not inside:
                raise UserError(
                    f"{text}: there are no images in this folder; known suffixes are {', '.join(sorted(EXTENSIONS))}"
                )
            found += inside
        elif path.exists():
            found.append(path)
        else:
            raise UserError(f"{text}: there is no such image or folder; check the path")
    return found


def predict(
    path: str, inputs: Sequence[str], top: int = 3, which: str = "best", ema: bool | None = None
) -> Iterator[tuple[Any, Any]]:
    """(input, what the network says) for each image file or folder, or for each text.

    Of a run on images: (file, its `top` classes as [(name, probability), ...]); of one on sentences: (text, its translation).
    Raises UserError.
    """
    inputs = checked(path, inputs)
    return ((answer.input, answer.value) for answer in _load(path, which, ema).answer(inputs, top))


def draw_attention(path: str, inputs: Sequence[str], out: Path, which: str = "best", ema: bool | None = None) -> None:
    """Where a network looks, as one PNG: over the first few images, or of the first text. Raises UserError."""
    inputs = checked(path, inputs)
    _load(path, which, ema).draw_attention(inputs, out)


def takes(path: str) -> str:
    """What a run is given: files or texts. Weights of other layouts are given files."""
    if runs.is_foreign(path):
        return "files"
    try:
        folder = runs.find(path)
    except UserError:  # it is said when the run is loaded, after what is wrong with the inputs
        return "files"
    return task_row(folder.config().task).takes


def checked(path: str, inputs: Sequence[str]) -> list[Any]:
    """The inputs of a run: its image files, or its texts as they are. Raises UserError before anything heavy starts."""
    if isinstance(inputs, str):
        raise UserError(f"inputs: {inputs[:40]!r} is one text; give a list of at least one")
    return image_files(inputs) if takes(path) == "files" else list(inputs)


def _load(path: str, which: str, ema: bool | None) -> Ready:
    """The network of a run or of a file of any layout; that there is such a run is known before jax starts."""
    foreign = runs.is_foreign(path)
    if not foreign:
        runs.find(path)
    elif which != "best" or ema is not None:
        raise UserError(f"{path}: is no run, so --weights and --ema have nothing to choose from; leave them out")
    backend.prepare()
    from .interop import convert_first
    from .weights import BareNetwork, load

    try:
        model = load(path, which, ema)
    except UserError as error:
        raise (convert_first(error, path) if foreign else error) from error
    if not isinstance(model, BareNetwork):
        return model
    if "preprocess" not in model.lacks:
        name, lacks = network_of(model.run.model).name, ", ".join(model.lacks)
        raise UserError(f"{path}: holds a {name} without its {lacks}; give a run that was trained here")
    way = f"python -m convert {shlex.quote(path)} X.safetensors --set mean=0.5 --set std=0.5"
    raise UserError(
        f"{path}: does not say how images become inputs; say it with `{way}` (its own mean and std of pixels in 0..1), then give X.safetensors here"
    )


@dataclass(frozen=True)
class Options:
    """What a trained network says: classes of images, prepared as in the run's evaluation or as a file of weights says, or translations."""

    run: str = field(
        metadata={
            "help": "a run's folder, or its name inside runs/; for images also weights of any layout in `python -m convert formats`"
        }
    )
    inputs: tuple[str, ...] = field(
        metadata={"help": "image files, or folders of them; sentences, or - for one a line of stdin"}
    )
    top: int = field(default=3, metadata={"help": "how many classes to name for each image"})
    csv: str = field(default="", metadata={"help": "also write a table to this file"})
    attention: str = field(
        default="",
        metadata={"help": "also draw attention maps over the first few images, or of the first sentence, to this PNG"},
    )
    weights: Literal["best", "last"] = field(
        default="best",
        metadata={"help": "those that validation liked best (the last where nothing was chosen), or the last"},
    )
    ema: bool = field(default=True, metadata={"help": "take the averaged weights where the run kept them"})
    force: bool = field(default=False, metadata={"help": "overwrite files that exist"})


def command(arguments: list[str]) -> int:
    """The command's body."""
    import tyro

    o = tyro.cli(
        Options,
        args=arguments,
        prog="python -m vit_jax.predict",
        config=(tyro.conf.PositionalRequiredArgs, tyro.conf.PositionalMetavarFromFieldName),
    )
    if not o.inputs:
        raise UserError("inputs: none given; name image files or folders, or texts, after the run")
    if o.top < 1:
        raise UserError(f"top is {o.top}: give a positive number")
    for flag, path in (("csv", o.csv), ("attention", o.attention)):
        _check_output(flag, path, o.force)
    inputs = (
        o.inputs
        if takes(o.run) == "files"
        else [line for text in o.inputs for line in (sys.stdin.read().splitlines() if text == "-" else [text])]
    )
    inputs = checked(o.run, inputs)
    model = _load(o.run, o.weights, None if o.ema else False)
    rows = []
    for answer in model.answer(inputs, o.top):
        print(answer.line)
        rows += answer.rows
    if o.csv:
        _write_csv(Path(o.csv), model.header, rows)
    if o.attention:
        model.draw_attention(inputs, Path(o.attention))
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
