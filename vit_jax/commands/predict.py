"""Classify images, translate sentences or caption images with a trained network, or write an image's features.

python -m vit_jax.predict RUN-OR-WEIGHTS IMAGE-OR-FOLDER... [--features OUT.npz --blocks I,J]
python -m vit_jax.predict RUN SENTENCE-OR-FILE...
python -m vit_jax.predict RUN FILE-OF-VECTORS...
... | python -m vit_jax.predict RUN [--json] > FILE     one answer a line, in the order of the lines of stdin

In Python, `vit_jax.predict(run, inputs)`, or `vit_jax.load(run)` once and then its methods.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from .. import runs
from ..config import flags
from ..config.decoding import AnswerFlags
from ..errors import DONE, Field, UserError
from ..files.output import GrowingCsv, digits
from ..files.terminal import lasting_output, print_note, printable, run_command
from ..tasks.can import Searches
from ..tasks.capability import Capability, blaming
from .prediction.answering import (
    Answering,
    Count,
    Row,
    as_json,
    for_eyes,
    in_lines,
    is_terminal,
    prepare_stdout,
    say,
)
from .prediction.arguments import BATCH, Options, blocks, check_flags, layers
from .prediction.inputs import STDIN, Inputs, caption, is_piped, open_network, takes
from .prediction.sources import digest_of
from .selection import flag_advised
from .share import JOB, LEFT_OUT, ROW, check_draws, facts_of, read_share, title_of

if TYPE_CHECKING:
    from ..tasks.predictor import Predictor


def command(arguments: list[str]) -> int:
    """Predict what arguments ask for, print and write it."""
    o = flags.parse(Options, arguments, prog="python -m vit_jax.predict")
    given = o.inputs or ((STDIN,) if is_piped() else ())
    if not given:
        raise UserError("inputs", "none given", "give image files or folders, or sentences, after the run")
    runs.mean_of(o.weights)
    stated = flags.given_fields(arguments, Options)
    asked = check_flags(o, stated)
    kind, column = takes(o.run)
    inputs = Inputs(kind, given, o.data.file_column or column)
    if share := read_share(o.share):
        inputs.take(share, o.batch)
    model = open_network(o.run, o.weights, o.averaged, flags.given_values(arguments, o, AnswerFlags), o.data.spoken)
    if "top" in stated:
        texts = f"for {o.top} texts of each input give `beam {o.top}` and `nbest {o.top}`"
        says_text = model.task.able(Searches).with_settings({}) is not None
        no_top = ("this network says a text and no classes", texts) if says_text else model.refusals.get("top")
        if no_top:
            raise UserError(Field("top"), f"is {o.top}, but {no_top[0]}", no_top[1])
    if o.probabilities:
        model.check_columns(o.probabilities)
    able = dict[str, Capability]()
    # To a file, also if nobody reads what is printed.
    writes = bool(o.csv or o.probabilities or o.attention or o.features)
    for name, each in asked.items():
        with blaming(name):
            able[name] = each(model)
            able[name].check(o)
            writes = writes or bool(each.outputs(o))
    with flag_advised(o.skip_unreadable), lasting_output() if writes else contextlib.nullcontext():
        first = _answer(o, model, inputs, o.top if "top" in stated else o.nbest)
        for name, one in able.items():
            with blaming(name):
                for label, text in one.after_answers(o, first, caption(o.run, model, o.weights, o.averaged)):
                    say(label, text)
    return DONE


def _title(o: Options, model: Predictor, inputs: Inputs) -> str:
    """What the files of a share are named by; empty where there is none."""
    if not o.share:
        return ""
    check_draws(model.task, o.skip_unreadable)
    settings = {"blocks": o.blocks, "norm": o.norm} if o.features else {"top": o.top}
    what = {"content": "features" if o.features else "predictions", "inputs": digest_of(inputs.sources)[:16]}
    return title_of(facts_of(model, model.task, sum(map(len, inputs.sources)), o.batch, **what, **settings))


def _answer(o: Options, model: Predictor, inputs: Inputs, lines: int) -> list[Any]:
    """Print and write what is asked for; where other programs read the answers, so many lines an input.

    Returns the first inputs that have an answer.
    """
    shown, wanted = layers(o.layer, model.layers), blocks(o.blocks, model.layers)
    answering = Answering(model, o.top, o.batch, o.skip_unreadable, inputs.before)
    title = _title(o, model, inputs)
    if o.features:
        readable = answering.readable(inputs)
        numbers = np.array([*readable], np.int64)
        more = {ROW: numbers, LEFT_OUT: np.setdiff1d(inputs.rows, numbers), JOB: title} if title else {}
        first = [*readable.values()]
        print(printable(model.write_features(first, Path(o.features), wanted, o.norm, o.batch, **more)))
    elif model.header or o.csv or o.json or not o.attention:  # without a head there are no answers, but attention
        first = _print_answers(o, answering, inputs, lines, title)
    else:
        first = [*answering.readable(inputs).values()]
    if o.attention:
        if not first:
            raise UserError(f"--attention {o.attention}", "no input is left to draw it on", "give one that can be read")
        model.draw_attention(first[:BATCH], Path(o.attention), shown, caption(o.run, model, o.weights, o.averaged))
        say("written", o.attention)
    return first


def _print_answers(o: Options, answering: Answering, inputs: Inputs, lines: int, title: str) -> list[Any]:
    """Print the answer to each input, and add it to the tables that are asked for; returns the first that have one."""
    model, first, count = answering.model, list[Any](), Count(inputs.total)
    for_programs = o.json or not is_terminal()
    prepare_stdout(for_programs)
    named = (title,) if title else ()
    with (
        growing_csv(o.csv, (*named, *model.header)) as answers,
        growing_csv(o.probabilities, (*named, "file", *model.columns)) as values,
    ):
        for number, answer in enumerate(answering.answers(inputs), inputs.rows.start):
            answers.add(_numbered(answer.rows, number, title))
            if o.probabilities and (title or answer.values is not None):
                every = [] if answer.values is None else [(str(answer.input), *digits(answer.values))]
                values.add(_numbered(every, number, title))
            if o.json:
                print(as_json(answer, model.header), flush=True)
            elif for_programs:
                print(in_lines(answer, lines), flush=True)
            elif answer.rows:
                print(for_eyes(answer), flush=True)
            count.add()
            if answer.plain and len(first) < BATCH:
                first.append(answer.input)
    count.end()
    if not answering.asked:
        print_note("there is nothing to answer: the inputs are empty", sys.stderr)
    return first


def _numbered(rows: Sequence[Row], number: int, title: str) -> Sequence[Row]:
    """The rows of an input with its number before them, of one without rows that alone, if they are a share's."""
    return [(number, *row) for row in rows or [()]] if title else rows


@contextlib.contextmanager
def growing_csv(path: str, header: Sequence[str]) -> Iterator[GrowingCsv]:
    """A context with a table that grows, or with none where `path` is empty; at the end its rows are told."""
    table = GrowingCsv(path, header)
    yield table
    table.add([])
    if path:
        say("written", f"{path} has {table.rows:,} rows")


def main() -> int:
    """The command `python -m vit_jax.predict`; returns the exit code."""
    return run_command(lambda: command(sys.argv[1:]))
