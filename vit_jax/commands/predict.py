"""Classify images, translate sentences or caption images with a trained network, or write an image's features.

python -m vit_jax.predict RUN-OR-WEIGHTS IMAGE-OR-FOLDER... [--features OUT.npz --blocks I,J]
python -m vit_jax.predict RUN SENTENCE-OR-FILE...
python -m vit_jax.predict RUN FILE-OF-VECTORS...

In Python, `vit_jax.predict(run, inputs)`, or `vit_jax.load(run)` once and then its methods.
"""

from __future__ import annotations

import contextlib
import os
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .. import runs
from ..config import flags
from ..config.decoding import AnswerFlags
from ..config.fields import option
from ..config.network import NetworkConfig
from ..config.ranges import check_ranges
from ..config.run import paths_in
from ..errors import DONE, Field, UserError
from ..files.destination import check_outputs
from ..files.lines import Line, read_lines
from ..files.output import write_csv
from ..files.reading import open_regular
from ..files.terminal import printable, run_command
from ..machine import backend
from ..text.languages import UNSTATED, Spoken
from .selection import LanguageFlags, SelectionFlags
from .unreadable import UnreadableFlags, flag_advised

if TYPE_CHECKING:
    from ..tasks.base import Predictor

BATCH = 64  # inputs that are computed at a time
FILES = (".txt", ".tsv", ".csv", ".gz")  # what ends so is meant as a file's name, not as a sentence


def _image_files(paths: Sequence[str]) -> list[Path]:
    """Paths of image files; each folder is replaced by the images in it and below, sorted.

    What other files are there, stderr says. Raises UserError for a path that does not exist or a folder without images.
    """
    from ..data.images.preprocess import EXTENSIONS
    from ..data.images.tree import Folder, Unused

    found: list[Path] = []
    unused = Unused()
    for text in paths:
        path = Path(text)
        if path.is_dir():
            inside = sorted(map(Path, Folder(str(path)).image_paths(unused)))
            if not inside:
                only = f", only {unused}" if len(unused) else ""
                raise UserError(
                    text,
                    f"there are no images in this folder{only}",
                    f"known suffixes are {', '.join(sorted(EXTENSIONS))}",
                )
            found += inside
        elif path.exists():
            found.append(path)
        else:
            raise UserError(text, "there is no such image or folder", "check the path")
    for remark in unused.remarks():
        _note(remark)
    return found


def predict(
    path: str | os.PathLike[str],
    inputs: Any,
    top: int = 3,
    which: str = "best",
    ema: bool | None = None,
    batch: int = BATCH,
    skip_unreadable: bool = False,
    source_language: str = "",
    target_language: str = "",
    **search: Any,
) -> Any:
    """Classify images, translate sentences or caption images with a run, or with a file or folder of weights.

    `vit_jax.load` is the way to use one network many times. Features of images, as --features writes them, are what
    `vit_jax.load(path).features(images, blocks=[-1])` returns.

    Args:
        path: a run, or a file or folder of weights of any layout.
        inputs: paths of images and of folders of images, or sentences; one of them, or a list.
        top: the number of classes of each image, the most probable first.
        which: the weights of a run, as of `vit_jax.load`.
        ema: likewise.
        batch: inputs that are computed at a time.
        skip_unreadable: leave out images that cannot be read, and say on stderr how many, instead of stopping.
        source_language: as of `vit_jax.load`.
        target_language: likewise.
        search: settings of the search for a text, such as beam=5 (the fields of config.decoding.Decoding).

    Returns:
        For one image or sentence its prediction, else a list of (input, prediction). A prediction is a list of classes
        [(name, probability), ...], or a text; with nbest=3, a list of three (text, score).

    Raises:
        UserError: where the weights or an input cannot be used.
    """
    path, one = os.fspath(path), isinstance(inputs, (str, os.PathLike))
    check_ranges(PredictFlags(run=path, inputs=(), top=top, batch=batch))
    found = _check_inputs(path, [inputs] if one else inputs)
    network = _network(path, which, ema, search, Spoken(source_language, target_language))
    _note_wide(network, found)
    readable = _readable(network, found) if skip_unreadable else found
    answers = [(answer.input, answer.value) for answer in network.answer(readable, top, batch)]
    return answers[0][1] if one and len(answers) == 1 and not os.path.isdir(inputs) else answers


def draw_attention(
    path: str,
    inputs: Sequence[str],
    out: Path,
    which: str = "best",
    ema: bool | None = None,
    layer: str | int = "",
) -> None:
    """Draw the attention on the first images, or on the first sentence.

    Args:
        path: a run, or a file or folder of weights of any layout.
        inputs: paths of images, or sentences.
        out: a PNG file.
        which: the weights of a run, as of `vit_jax.load`.
        ema: likewise.
        layer: the number of a layer, counted from 1, or all; empty: the last layer for images, all for sentences.

    Raises:
        UserError: where the network has no such layer, and as `predict`.
    """
    inputs = _check_inputs(path, inputs)
    model = _network(path, which, ema)
    model.draw_attention(inputs, out, _layers(str(layer), model.layers), _caption(path, model, which, ema))


def _layers(text: str, depth: int) -> list[int]:
    """The layers that --layer names, counted from 0, of a network of `depth` layers. Raises UserError."""
    if not text or not depth:  # a network without attention says so when that is to be drawn
        return []
    if text == "all":
        return list(range(depth))
    numbers = [str(n) for n in range(1, depth + 1)]
    if text not in numbers:
        raise UserError(Field("layer"), f"is {text[:20]}", f"give a number from 1 to {depth}, or all")
    return [numbers.index(text)]


def _blocks(text: str, depth: int) -> list[int]:
    """The blocks that --blocks names, of a network of `depth` of them. Raises UserError."""
    if text == "all":
        return list(range(depth or 1))  # a network without any says so when it is to write them
    if not re.fullmatch(r"(-?[0-9]{1,6}(,-?[0-9]{1,6})*)?", text):
        raise UserError(
            Field("blocks"), f"is {text[:40]}", "give numbers with commas between them, such as 2,5,-1, or all"
        )
    return [int(number) for number in filter(None, text.split(","))]


def _caption(path: str, model: Predictor, which: str, ema: bool | None) -> str:
    """A line for a figure: what was given, and which of its weights were used."""
    from ..figures.figure import weights_caption
    from ..files.output import shorten

    if runs.is_foreign(path):
        return shorten(path.rstrip("/"), 60)

    folder, step, best = runs.find(path), model.step, None
    if which == "best" and (steps := folder.complete_steps()):
        with contextlib.suppress(UserError):
            best = folder.saved(steps[0])["notes"].get("best")
    if runs.mean_of(which):
        return f"{shorten(folder.path.name, 40)}: {which} weights up to step {step:,}"
    averaged = folder.config().ema and ema is not False and (ema or (best or {}).get("weights", "ema") == "ema")
    epoch = next((row["epoch"] for row in folder.metrics() if row["step"] == step and "epoch" in row), None)
    words = weights_caption("best" if best else "last", "ema" if averaged else "raw", step, epoch)
    return f"{shorten(folder.path.name, 40)}: {words}"


def takes(path: str) -> str:
    """The kind of the inputs of a run, or of weights of any layout: pixels, ids or vectors; "" where none is found.

    Raises UserError where there is no run.
    """
    if not runs.is_foreign(path):
        return _kind(runs.find(path).config().model)
    from ..weights.interop import config_in

    with contextlib.suppress(UserError):  # `_network` raises another, which says more
        return _kind(config_in(path))
    return ""


def _kind(model: NetworkConfig) -> str:
    return model.inputs()[0].kind


def _check_inputs(path: str, inputs: Sequence[str]) -> list[Any]:
    """The inputs as image files (with those inside folders), vectors or texts, before jax starts. Raises UserError."""
    kind = takes(path)
    if kind == "vectors":
        from ..data.captions.vectors import vectors_in

        vectors_in(inputs)  # which raises where one cannot be read
    return _image_files(inputs) if kind == "pixels" else list(inputs)


def _readable(model: Predictor, inputs: Sequence[Any]) -> Sequence[Any]:
    """The images that can be read; stderr says which cannot. Raises UserError where there is none."""
    from ..data.unreadable import left_out

    found, errors = model.readable(inputs)
    if len(errors) == len(inputs) == 1:
        raise errors[0]
    if not found:
        raise UserError(f"none of the {len(inputs):,} images can be read", errors[0].fault, errors[0].remedy)
    if errors:
        _note(left_out([error.subject for error in errors]))
    return found


def _note_wide(model: Predictor, inputs: Sequence[Any]) -> None:
    """Say on stderr what becomes of pixels with more than 8 bits, where the network states no range of theirs."""
    from ..data.inputs import wide_remarks

    if not model.metadata.get("preprocess", {"range": True}).get("range"):
        for remark in wide_remarks(inputs):
            _note(remark)


def _note(remark: str) -> None:
    print(f"note     {printable(remark)}", file=sys.stderr)


def sentences(inputs: Sequence[str]) -> list[str]:
    """Sentences as they are typed; a file is replaced by its lines, and - by those on stdin. Raises UserError."""
    found: list[str] = []
    for text in inputs:
        if text != "-" and (len(text) > 255 or not os.path.lexists(text) or os.path.isdir(text)):
            if "/" in text and os.path.isdir(text):
                raise UserError(text, "is a folder", "give a sentence, or a file of them, one per line")
            if text.endswith(FILES) and " " not in text:
                raise UserError(text, "there is no such file", "give a sentence, or a file of them, one per line")
            found.append(text)
            continue
        where = "stdin" if text == "-" else text
        try:
            with contextlib.nullcontext(sys.stdin.buffer) if text == "-" else open_regular(text) as file:
                lines = read_lines(file, where, blank="give one sentence per line")
                found += (Line(line, f"{where} line {i}") for i, line in enumerate(lines, 1))
        except OSError as error:
            raise UserError(where, f"cannot be read ({error.strerror or error})", "give UTF-8 text") from error
    return found


def _network(
    path: str, which: str, ema: bool | None, search: Mapping[str, Any] | None = None, spoken: Spoken = UNSTATED
) -> Predictor:
    """The network of a run, or of a file of any layout, with these settings of its search, and these languages.

    A missing run is reported before jax starts.
    """
    if not runs.is_foreign(path):
        runs.find(path)
    backend.configure_jax()
    from ..tasks.searching import searching
    from ..weights.load import complete

    model = complete(path, which, ema, spoken)
    return replace(model, task=searching(model.task, search)) if search else model


@dataclass(frozen=True, kw_only=True)
class PredictFlags(UnreadableFlags, SelectionFlags):
    """What is predicted, by which weights, and what is written."""

    run: str = field(
        metadata={
            "help": "a run's folder, or its name inside runs/; or a file or folder of weights, in any layout that "
            "`python -m convert formats` lists"
        }
    )
    inputs: tuple[str, ...] = field(
        metadata={
            "help": "image files and folders of images; or sentences, or files of them, one per line (-: stdin); or "
            "files of vectors (.npy, .npz, .h5), of one row as FILE:ROW"
        }
    )
    top: int = option(3, "number of classes to print for each image, the most probable first", at_least=1)
    csv: str = option("", "also write the predictions to this file, as a CSV table")
    attention: str = option(
        "", "also draw the attention on the first images, or on the first sentence, to this PNG file"
    )
    layer: str = option(
        "", "with --attention: the layer to draw, counted from 1, or all; empty: the last for images, all for sentences"
    )
    features: str = option(
        "",
        "write features of the images to this .npz file, in place of predictions: files, the names [n], "
        "and pooled [n, D], the input of the head",
    )
    blocks: str = option(
        "",
        "with --features: also the outputs of these blocks, as maps.I [n, gh, gw, D] at the patches and "
        "prefix.I [n, P, D] at the tokens before them (class, distillation, registers); numbers from 0 with commas "
        "between them, -1 is the last, or all",
    )
    norm: bool = option(
        True,
        "with --blocks: apply the network's last norm to the outputs of every block, as Dinov2Backbone "
        "does; --no-norm: as they are, as timm's forward_intermediates gives them by default",
    )
    batch: int = option(BATCH, "inputs that are computed at a time; fewer take less memory", at_least=1)
    force: bool = option(False, "overwrite the files of --csv, --attention and --features if they exist")
    data: LanguageFlags = field(default_factory=LanguageFlags)


@dataclass(frozen=True, kw_only=True)
class Options(AnswerFlags, PredictFlags):
    """Predict the classes of images, translate sentences, or describe images.

    The flags from --beam on are of the search for a text; classes need none.
    """


def command(arguments: list[str]) -> int:
    """Parse the arguments, predict, print and write; returns the exit code. Raises UserError."""
    o = flags.parse(Options, arguments, prog="python -m vit_jax.predict")
    if not o.inputs:
        raise UserError("inputs", "none given", "give image files or folders, or sentences, after the run")
    runs.mean_of(o.weights)
    stated = flags.given_fields(arguments, Options)
    _check_outputs(o, stated)
    inputs = _check_inputs(o.run, sentences(o.inputs) if takes(o.run) == "ids" else o.inputs)
    model = _network(o.run, o.weights, o.averaged, flags.given_values(arguments, o, AnswerFlags), o.data.spoken)
    if "top" in stated and model.task.searching({}) is not None:
        raise UserError(
            Field("top"),
            f"is {o.top}, but this network says a text and no classes",
            f"for {o.top} texts of each input give --beam {o.top} --nbest {o.top}",
        )
    if "top" in stated and model.no_top:
        what, remedy = model.no_top
        raise UserError(Field("top"), f"is {o.top}, but {what}", remedy)
    with flag_advised(o.skip_unreadable):
        _note_wide(model, inputs)
        _answer(o, model, _readable(model, inputs) if o.skip_unreadable else inputs)
    return DONE


def _answer(o: Options, model: Predictor, inputs: Sequence[Any]) -> None:
    """Print and write what is asked for."""
    layers, blocks = _layers(o.layer, model.layers), _blocks(o.blocks, model.layers)
    if o.features:
        print(printable(model.write_features(inputs, Path(o.features), blocks, o.norm, o.batch)))
    elif model.header or o.csv or not o.attention:  # a network without a head has no answers, but attention
        rows = []
        for answer in model.answer(inputs, o.top, o.batch):
            print("\n".join(map(printable, answer.line.split("\n"))))
            rows += answer.rows
        if o.csv:
            write_csv(o.csv, model.header, rows)
    if o.attention:
        model.draw_attention(inputs, Path(o.attention), layers, _caption(o.run, model, o.weights, o.averaged))


def _check_outputs(o: Options, stated: Sequence[str]) -> None:
    """Raise UserError where a file cannot be written, or a flag is of one that is not asked for.

    `stated` are the fields that the command line sets.
    """
    if o.layer and not o.attention:
        raise UserError(Field("layer"), f"is {o.layer}, but nothing is to be drawn", "add --attention FILE.png")
    if o.attention and not o.attention.lower().endswith(".png"):
        raise UserError(f"--attention {o.attention}", "the figure is a PNG", "give a name that ends in .png")
    if o.blocks and not o.features:
        raise UserError(Field("blocks"), f"is {o.blocks[:40]}, but nothing is to be written", "add --features FILE.npz")
    if "norm" in stated and not o.blocks:
        raise UserError(
            "norm", "is of the outputs of blocks, and none are asked for", "add --blocks I,J, or leave it out"
        )
    if o.features and not o.features.lower().endswith(".npz"):
        raise UserError(f"--features {o.features}", "features are written as .npz", "give a name that ends in .npz")
    if o.features and (unused := [name for name in ("csv", "top") if name in stated]):
        raise UserError(unused[0], "is of predictions, and with --features there are none", "leave one of them out")
    beside = o.features and os.path.dirname(os.path.realpath(o.features)) == os.path.realpath(o.run)
    if beside and runs.is_foreign(o.run):
        raise UserError(
            f"--features {o.features}", "in a folder of weights it would be taken for such", "choose another"
        )
    outputs = {"csv": o.csv, "attention": o.attention, "features": o.features}
    check_outputs(outputs, o.force, [*runs.read_from(o.run), *paths_in(*o.inputs)])


def main() -> int:
    """The command `python -m vit_jax.predict`; returns the exit code."""
    return run_command(lambda: command(sys.argv[1:]))
