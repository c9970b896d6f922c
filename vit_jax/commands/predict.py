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

from .. import runs
from ..config import flags
from ..config.decoding import AnswerFlags
from ..errors import DONE, Field, UserError
from ..explain.methods import BATCH as EXPLAINED
from ..files.destination import check_outputs
from ..files.output import GrowingCsv, digits
from ..files.terminal import lasting_output, printable, run_command
from .parts.features import share_of_features
from .parts.flags import MergeOptions, merges_alone
from .parts.job import facts_of
from .parts.predictions import check_file, merge_parts, share_of_answers
from .parts.share import begin_share, compute_share
from .prediction.answering import Answering
from .prediction.flags import BATCH, Options, blocks, check_flags, layers
from .prediction.inputs import STDIN, Inputs, is_piped
from .prediction.network import caption, image_column, open_network, takes
from .prediction.printing import Count, as_json, for_eyes, in_lines, is_terminal, note, prepare_stdout, say
from .unreadable import flag_advised

if TYPE_CHECKING:
    from ..tasks.predictor import Predictor


def command(arguments: list[str]) -> int:
    """Predict what arguments ask for, print and write it."""
    if merges_alone(arguments):
        return _merge_alone(arguments)
    o = flags.parse(Options, arguments, prog="python -m vit_jax.predict")
    given = o.inputs or ((STDIN,) if is_piped() else ())
    if not given:
        raise UserError("inputs", "none given", "give image files or folders, or sentences, after the run")
    runs.mean_of(o.weights)
    stated = flags.given_fields(arguments, Options)
    check_flags(o, stated)
    kind = takes(o.run)
    inputs = Inputs(kind, given, o.data.file_column or image_column(o.run), note)
    if o.parts and inputs.total is None:
        raise UserError("inputs", "is stdin, which another worker cannot read", "give a file that lists them")
    model = open_network(o.run, o.weights, o.averaged, flags.given_values(arguments, o, AnswerFlags), o.data.spoken)
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
    if o.parts:
        return _answer_part(o, model, inputs)
    writes = (
        o.csv or o.probabilities or o.attention or o.explain or o.features
    )  # to a file, also if nobody reads what is printed
    with flag_advised(o.skip_unreadable), lasting_output() if writes else contextlib.nullcontext():
        _answer(o, model, inputs, o.top if "top" in stated else o.nbest)
    return DONE


def _answer_part(o: Options, model: Predictor, inputs: Inputs) -> int:
    """Compute a share of all answers, or join all of them to a table."""
    if o.features:
        model.features([model.blank], wanted := blocks(o.blocks, model.layers), o.norm)
        share = share_of_features(model, inputs.sources, wanted, o.norm, o.batch)
    else:
        share = share_of_answers(model, inputs.sources, o.format, o.top, o.batch, bool(o.probabilities))
    file = o.merge or o.csv or o.probabilities or o.features
    if file:
        check_file(o.parts, {"what": share.what, **share.settings}, file)
    if o.merge:
        facts_of(o.parts)
    job = begin_share(o.parts, model, inputs, share, o.part_size)
    if not o.merge:
        compute_share(job, share, note)
    if file:
        print(printable(merge_parts(o.parts, file)))
    else:
        print(printable(f"join them with --parts {o.parts} --merge TABLE{share.suffix}"))
    return DONE


def _merge_alone(arguments: list[str]) -> int:
    """Join parts to a table without the network that they are of."""
    o = flags.parse(MergeOptions, arguments, prog="python -m vit_jax.predict")
    check_outputs({"merge": o.merge}, o.force)
    print(printable(merge_parts(o.parts, o.merge)))
    return DONE


def _answer(o: Options, model: Predictor, inputs: Inputs, lines: int) -> None:
    """Print and write what is asked for; where other programs read the answers, so many lines an input."""
    shown, wanted = layers(o.layer, model.layers), blocks(o.blocks, model.layers)
    answering = Answering(model, o.top, o.batch, o.skip_unreadable, note)
    if o.features:
        readable = answering.readable(inputs)
        print(printable(model.write_features(readable, Path(o.features), wanted, o.norm, o.batch)))
        first = readable[:BATCH]
    elif model.header or o.csv or o.json or not o.attention:  # without a head there are no answers, but attention
        first = _print_answers(o, answering, inputs, lines)
    else:
        first = answering.readable(inputs)[:BATCH]
    if o.attention:
        if not first:
            raise UserError(f"--attention {o.attention}", "no input is left to draw it on", "give one that can be read")
        model.draw_attention(first, Path(o.attention), shown, caption(o.run, model, o.weights, o.averaged))
        say("written", o.attention)
    if o.explain:
        _explain(o, model, first)


def _explain(o: Options, model: Predictor, first: list[Any]) -> None:
    """Explain the first inputs, and say how far that can be trusted."""
    if not first:
        raise UserError(f"--explain {o.explain}", "no input is left to explain", "give one that can be read")
    named = {"class_name": o.class_} if o.class_ else {}
    found = model.explain(first[: model.most_explained], o.explain, batch=min(o.batch, EXPLAINED), **named)
    say("explain", found.sentence)
    for remark in found.notes:
        say("score", remark)
    say("written", ", ".join(found.write(o.explain_to, caption(o.run, model, o.weights, o.averaged))))


def _print_answers(o: Options, answering: Answering, inputs: Inputs, lines: int) -> list[Any]:
    """Print the answer to each input, and add it to the tables that are asked for; returns the first that have one."""
    model, first, count = answering.model, list[Any](), Count(inputs.total)
    for_programs = o.json or not is_terminal()
    prepare_stdout(for_programs)
    with growing_csv(o.csv, model.header) as answers, growing_csv(o.probabilities, ("file", *model.columns)) as values:
        for answer in answering.answers(inputs):
            answers.add(answer.rows)
            if o.probabilities and answer.values is not None:
                values.add([(str(answer.input), *digits(answer.values))])
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
        note("there is nothing to answer: the inputs are empty")
    return first


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
