"""Classify images, translate sentences or caption images with a trained network, or write an image's features.

python -m vit_jax.predict RUN-OR-WEIGHTS IMAGE-OR-FOLDER... [--features OUT.npz --blocks I,J]
python -m vit_jax.predict RUN SENTENCE-OR-FILE...
python -m vit_jax.predict RUN FILE-OF-VECTORS...
... | python -m vit_jax.predict RUN [--json] > FILE     one answer a line, in the order of the lines of stdin

In Python, `vit_jax.predict(run, inputs)`, or `vit_jax.load(run)` once and then its methods.
"""

from __future__ import annotations

import contextlib
import os
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, overload

from .. import runs
from ..config import flags
from ..config.decoding import AnswerFlags
from ..config.fields import option
from ..config.network import NetworkConfig
from ..config.ranges import check_ranges
from ..config.run import paths_in
from ..errors import DONE, Field, UserError
from ..explain.methods import BATCH as EXPLAINED
from ..explain.methods import IMAGES, TEXTS
from ..files.destination import check_outputs
from ..files.output import digits, write_csv
from ..files.shown import predictions
from ..files.terminal import lasting_output, print_wrapped, printable, run_command
from ..machine import backend
from ..text.languages import UNSTATED, Spoken
from .answering import Answering, Row
from .inputs import STDIN, Inputs, files_of, is_piped, with_images_of_tables
from .printing import Count, as_json, for_eyes, in_lines, is_terminal, prepare_stdout
from .selection import FileFlags, LanguageFlags, SelectionFlags
from .unreadable import UnreadableFlags, flag_advised

if TYPE_CHECKING:
    import numpy as np
    from flax import nnx

    from ..tasks.predictor import Predictor

Prediction = str | list[tuple[str, float]]  # of one input: a text, or [(class, probability), ...], or so
BATCH = 64  # inputs that are computed at a time
FILES = (".png", ".csv", ".npz")  # of an explanation


@overload
def predict(
    path: str | os.PathLike[str] | Mapping[str, object] | Predictor | nnx.Module,
    inputs: list[Any] | tuple[Any, ...],
    top: int = 3,
    which: str = "best",
    ema: bool | None = None,
    batch: int = BATCH,
    skip_unreadable: bool = False,
    source_language: str = "",
    target_language: str = "",
    **search: Any,
) -> list[tuple[Any, Prediction]]: ...
@overload
def predict(
    path: str | os.PathLike[str] | Mapping[str, object] | Predictor | nnx.Module,
    inputs: Any,
    top: int = 3,
    which: str = "best",
    ema: bool | None = None,
    batch: int = BATCH,
    skip_unreadable: bool = False,
    source_language: str = "",
    target_language: str = "",
    **search: Any,
) -> Prediction | list[tuple[Any, Prediction]]: ...
def predict(
    path: str | os.PathLike[str] | Mapping[str, object] | Predictor | nnx.Module,
    inputs: Any,
    top: int = 3,
    which: str = "best",
    ema: bool | None = None,
    batch: int = BATCH,
    skip_unreadable: bool = False,
    source_language: str = "",
    target_language: str = "",
    **search: Any,
) -> Prediction | list[tuple[Any, Prediction]]:
    """Classify images, translate sentences or caption images with a run, or with a file or folder of weights.

    `vit_jax.load` is the way to use one network many times. Features of images, as --features writes them, are what
    `vit_jax.load(path).features(images, blocks=[-1])` returns.

    Args:
        path: a run, or a file or folder of weights of any layout; or a network in memory, as `vit_jax.load` returns it.
        inputs: paths of images and of folders of images, csv:FILE[:FOLDER], or sentences; one of them, or a list. Also
            images as Pillow has them, or arrays uint8 [h, w] or [h, w, C], or [n, h, w, C].
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
    inputs = _given(inputs)
    one, spoken = isinstance(inputs, (str, os.PathLike)), Spoken(source_language, target_language)
    name = os.fspath(path) if isinstance(path, (str, os.PathLike)) else "the network"
    check_ranges(PredictFlags(run=name, inputs=(), top=top, batch=batch))
    several = [inputs] if one else inputs
    if isinstance(path, (str, os.PathLike)):  # inputs are checked before jax starts
        found = _found(takes(name), several, _image_column(name)) if _are_named(inputs) else None
        network = _network(name, which, ema, search, spoken)
    else:
        network = _network(path, which, ema, search, spoken)
        column = getattr(network.run.data, "file_column", "")
        found = _found(_kind(network.run.model), several, column) if _are_named(inputs) else None
    if found is None:
        return _predict_given(network, inputs, top, batch)
    answering = Answering(network, top, batch, skip_unreadable, _note)
    answers = [(answer.input, answer.value) for answer in answering.answers(found) if answer.plain]
    single = one and len(answers) == 1 and not _holds_several(inputs)
    return _shown(answers[0][1] if single else answers, answers, network)


def _given(inputs: Any) -> Any:
    """The inputs of `predict`, those of an iterator as a list. Raises UserError where there are none."""
    whole = isinstance(inputs, (str, os.PathLike, list, tuple)) or _is_array(inputs)
    if not whole and not isinstance(inputs, Iterable):
        raise UserError("inputs", f"is a {type(inputs).__name__}", "give paths, images or texts, one or a list of them")
    given = inputs if whole else list(inputs)
    if isinstance(given, (list, tuple)) and not given:
        raise UserError("inputs", "none given", "give at least one")
    return given


def _is_array(inputs: Any) -> bool:
    """Whether inputs are an array of any library, or an image of Pillow."""
    return hasattr(inputs, "__array__") or hasattr(inputs, "__array_interface__")


def _are_named(inputs: Any) -> bool:
    """Whether inputs are texts or paths, as a command has them, and not images or vectors themselves."""
    if not isinstance(inputs, (list, tuple)):
        return not _is_array(inputs)
    return all(isinstance(each, (str, os.PathLike)) for each in inputs)


def _predict_given(network: Predictor, inputs: Any, top: int, batch: int) -> Any:
    """`predict` of images or vectors in memory."""
    classes = network.task.searching({}) is None
    said = network.predict(inputs, **({"top": top} if classes else {}), batch=batch)
    single = network.listed(inputs)[1]
    pairs = [(0, said)] if single else [*enumerate(said)]
    return _shown(said if single else [*zip(inputs, said, strict=True)], pairs, network)


def _shown(said: Any, pairs: Sequence[tuple[Any, Any]], network: Predictor) -> Any:
    """What is said, as a list that a notebook shows as a table; one text as it is."""
    return said if isinstance(said, str) else predictions(said, pairs, network.header)


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
    """The kind of the inputs of a network.

    Args:
        path: of a run, or of weights of any layout.

    Returns:
        pixels, ids or vectors; "" where the weights do not tell.

    Raises:
        UserError: there is no run.
    """
    if not runs.is_foreign(path):
        return _kind(runs.find(path, weights=True).config().model)
    from ..weights.interop import config_in

    with contextlib.suppress(UserError):  # `_network` raises another, which says more
        return _kind(config_in(path))
    return ""


def _kind(model: NetworkConfig) -> str:
    return model.inputs()[0].kind


def _image_column(path: str) -> str:
    """The column of a run's own table that names the images; empty of other weights, and of data that is no table."""
    return "" if runs.is_foreign(path) else getattr(runs.find(path).config().data, "file_column", "")


def _found(kind: str, inputs: Sequence[Any], file_column: str) -> list[Any]:
    """The inputs of a kind as image files (with those inside folders), vectors or texts. Raises UserError."""
    given = with_images_of_tables(kind, inputs, file_column)
    return given if kind == "ids" else files_of(kind, given, _note)


def _holds_several(given: str | os.PathLike[str]) -> bool:
    """Whether an input is a folder or a table, whose answers are a list, and be it of one image."""
    return os.path.isdir(given) or (os.fspath(given).startswith("csv:") and not os.path.lexists(given))


def _note(remark: str) -> None:
    _say("note", remark)


def _say(label: str, text: str) -> None:
    """Print a line on stderr, where it is apart from answers."""
    print_wrapped(f"{label:8} {printable(text)}", sys.stderr)


def _network(
    path: str | Mapping[str, object] | Predictor | nnx.Module,
    which: str,
    ema: bool | None,
    search: Mapping[str, Any] | None = None,
    spoken: Spoken = UNSTATED,
) -> Predictor:
    """The network of a run, of a file of any layout or in memory, with these settings of its search and languages.

    A missing run is reported before jax starts.
    """
    if isinstance(path, str) and not runs.is_foreign(path):
        runs.find(path, weights=True)
    backend.configure_jax()
    from ..tasks.searching import searching
    from ..weights.load import complete

    model = complete(path, which, ema, spoken)
    return replace(model, task=searching(model.task, search)) if search else model


@dataclass(frozen=True, kw_only=True)
class DataFlags(LanguageFlags, FileFlags):
    """In which languages texts are, and which column of a table has the images."""


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
            "help": "image files, folders of images and csv:FILE[:FOLDER], the images of a table; or sentences, or "
            "files of them, one per line; or files of vectors (.npy, .npz, .h5), of one row as FILE:ROW. - stands for "
            "stdin, as no input does in a pipe: each line a sentence, an image file or FILE:ROW. Where stdout is no "
            "terminal, each answer is a line: the best class (--top of them), a text (--nbest of them), all labels or "
            "numbers with tabs between them; a blank "
            "line has a blank answer"
        }
    )
    top: int = option(3, "number of classes to print for each image, the most probable first", at_least=1)
    json: bool = option(False, "print each answer as a JSON object in a line: the input, names and probabilities")
    csv: str = option("", "also write the predictions to this file, as a CSV table")
    probabilities: str = option(
        "",
        "also write every probability to this file, as a CSV table: the file and a column for each class or label; of "
        "numbers their values",
    )
    attention: str = option(
        "", "also draw the attention on the first images, or on the first sentence, to this PNG file"
    )
    layer: str = option(
        "", "with --attention: the layer to draw, counted from 1, or all; empty: the last for images, all for sentences"
    )
    explain: Literal["", "ig", "chefer", "rollout", "occlusion"] = option(
        "",
        f"also explain what is said of the first {IMAGES} images, or {TEXTS} texts: what of the input counted, by ig "
        "(integrated gradients), chefer (attention weighted by gradients), rollout (attention alone, blind to the "
        "class) or occlusion; of classes with a score, insertion minus deletion",
    )
    class_: str = option(
        "",
        "with --explain: the class, label or number that is explained; empty: the most probable of each image",
    )
    explain_to: str = option(
        "explanation",
        "with --explain: the name of the three files that are written, NAME.png (the picture), NAME.csv (a row for "
        "each patch or word) and NAME.npz (arrays)",
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
    force: bool = option(
        False, "overwrite the files of --csv, --probabilities, --attention, --explain and --features if they exist"
    )
    data: DataFlags = field(default_factory=DataFlags)


@dataclass(frozen=True, kw_only=True)
class Options(AnswerFlags, PredictFlags):
    """Predict the classes of images, translate sentences, or describe images.

    The flags from --beam on are of the search for a text; classes need none.
    """


def command(arguments: list[str]) -> int:
    """Predict what arguments ask for, print and write it.

    Returns:
        The exit code.

    Raises:
        UserError: an argument is wrong, or an input cannot be used.
    """
    o = flags.parse(Options, arguments, prog="python -m vit_jax.predict")
    given = o.inputs or ((STDIN,) if is_piped() else ())
    if not given:
        raise UserError("inputs", "none given", "give image files or folders, or sentences, after the run")
    runs.mean_of(o.weights)
    stated = flags.given_fields(arguments, Options)
    _check_outputs(o, stated)
    kind = takes(o.run)
    inputs = Inputs(kind, with_images_of_tables(kind, given, o.data.file_column or _image_column(o.run)), _note)
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
    if o.probabilities:
        model.check_columns(o.probabilities)
    if o.explain:
        model.check_explained(o.explain, o.class_)
    writes = (
        o.csv or o.probabilities or o.attention or o.explain or o.features
    )  # to a file, also if nobody reads what is printed
    with flag_advised(o.skip_unreadable), lasting_output() if writes else contextlib.nullcontext():
        _answer(o, model, inputs, o.top if "top" in stated else o.nbest)
    return DONE


def _answer(o: Options, model: Predictor, inputs: Inputs, lines: int) -> None:
    """Print and write what is asked for; where other programs read the answers, so many lines an input."""
    layers, blocks = _layers(o.layer, model.layers), _blocks(o.blocks, model.layers)
    answering = Answering(model, o.top, o.batch, o.skip_unreadable, _note)
    if o.features:
        readable = answering.readable(inputs)
        print(printable(model.write_features(readable, Path(o.features), blocks, o.norm, o.batch)))
        first = readable[:BATCH]
    elif model.header or o.csv or o.json or not o.attention:  # without a head there are no answers, but attention
        first, rows, values = _print_answers(o, answering, inputs, lines)
        if o.csv:
            written = write_csv(o.csv, model.header, rows)
            _say("written", f"{o.csv} has {written:,} rows")
        if o.probabilities:
            table = ((name, *digits(each)) for name, each in values)
            write_csv(o.probabilities, ("file", *model.columns), table)
            _say("written", f"{o.probabilities} has {len(values):,} rows")
    else:
        first = answering.readable(inputs)[:BATCH]
    if o.attention:
        if not first:
            raise UserError(f"--attention {o.attention}", "no input is left to draw it on", "give one that can be read")
        model.draw_attention(first, Path(o.attention), layers, _caption(o.run, model, o.weights, o.averaged))
        _say("written", o.attention)
    if o.explain:
        _explain(o, model, first)


def _explain(o: Options, model: Predictor, first: list[Any]) -> None:
    """Explain the first inputs, and say how far that can be trusted."""
    if not first:
        raise UserError(f"--explain {o.explain}", "no input is left to explain", "give one that can be read")
    named = {"class_name": o.class_} if o.class_ else {}
    found = model.explain(first[: model.most_explained], o.explain, batch=min(o.batch, EXPLAINED), **named)
    _say("explain", found.sentence)
    for note in found.notes:
        _say("score", note)
    _say("written", ", ".join(found.write(o.explain_to, _caption(o.run, model, o.weights, o.averaged))))


def _print_answers(
    o: Options, answering: Answering, inputs: Inputs, lines: int
) -> tuple[list[Any], list[Row], list[tuple[str, np.ndarray]]]:
    """Print the answer to each input.

    Returns the first inputs that have one, the rows of a table of all, and the values of each, if they are asked for.
    """
    first, rows, values, count = list[Any](), list[Row](), list[Any](), Count(inputs.total)
    for_programs = o.json or not is_terminal()
    prepare_stdout(for_programs)
    for answer in answering.answers(inputs):
        if o.json:
            print(as_json(answer, answering.model.header), flush=True)
        elif for_programs:
            print(in_lines(answer, lines), flush=True)
        elif answer.rows:
            print(for_eyes(answer), flush=True)
        count.add()
        rows += answer.rows
        if o.probabilities and answer.values is not None:
            values.append((str(answer.input), answer.values))
        if answer.plain and len(first) < BATCH:
            first.append(answer.input)
    count.end()
    if not answering.asked:
        _note("there is nothing to answer: the inputs are empty")
    return first, rows, values


def _check_outputs(o: Options, stated: Sequence[str]) -> None:
    """Raise UserError where a file cannot be written, or a flag is of one that is not asked for.

    `stated` are the fields that the command line sets.
    """
    if o.layer and not o.attention:
        raise UserError(Field("layer"), f"is {o.layer}, but nothing is to be drawn", "add --attention FILE.png")
    if o.attention and not o.attention.lower().endswith(".png"):
        raise UserError(f"--attention {o.attention}", "the figure is a PNG", "give a name that ends in .png")
    for name, given in (("class", o.class_), ("explain_to", "explain_to" in stated)):
        if given and not o.explain:
            raise UserError(Field(name), "is of an explanation, and none is asked for", "add --explain ig")
    if o.blocks and not o.features:
        raise UserError(Field("blocks"), f"is {o.blocks[:40]}, but nothing is to be written", "add --features FILE.npz")
    if "norm" in stated and not o.blocks:
        raise UserError(
            "norm", "is of the outputs of blocks, and none are asked for", "add --blocks I,J, or leave it out"
        )
    if o.features and not o.features.lower().endswith(".npz"):
        raise UserError(f"--features {o.features}", "features are written as .npz", "give a name that ends in .npz")
    if o.features and (unused := [name for name in ("csv", "probabilities", "json", "top") if name in stated]):
        raise UserError(unused[0], "is of predictions, and with --features there are none", "leave one of them out")
    beside = o.features and os.path.dirname(os.path.realpath(o.features)) == os.path.realpath(o.run)
    if beside and runs.is_foreign(o.run):
        raise UserError(
            f"--features {o.features}", "in a folder of weights it would be taken for such", "choose another"
        )
    outputs = {"csv": o.csv, "probabilities": o.probabilities, "attention": o.attention, "features": o.features}
    reads = [*runs.read_from(o.run), *paths_in(*o.inputs)]
    for file in [f"{o.explain_to}{suffix}" for suffix in FILES] if o.explain else [""]:
        check_outputs({**outputs, "explain-to": file}, o.force, reads)


def main() -> int:
    """The command `python -m vit_jax.predict`; returns the exit code."""
    return run_command(lambda: command(sys.argv[1:]))
