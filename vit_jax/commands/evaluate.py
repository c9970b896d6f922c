"""Measure a run on a split of its data: `python -m vit_jax.evaluate RUN [--split test]`, or `vit_jax.evaluate(run)`."""

from __future__ import annotations

import math
import os
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .. import runs
from ..config import flags
from ..config.decoding import SearchFlags
from ..config.fields import check_ranges
from ..config.outputs import Outputs
from ..config.run import paths_in
from ..errors import DONE
from ..files.atomic import write_json
from ..files.destination import check_folder, check_outputs
from ..files.metrics import as_json
from ..files.output import print_table, write_csv
from ..files.terminal import print_note, print_wrapped, printable, run_command
from ..tasks.can import Draws, Tabulates
from ..text.classes import Spoken
from ..training.hooks import Hooks
from .measure import DataOptions, EvaluateFlags, Measured, Probe, Request, measure
from .selection import described_by, flag_advised, table_fields

if TYPE_CHECKING:
    from flax import nnx

    from ..tasks.base import Evaluation
    from ..tasks.predictor import Predictor

ROWS = 40  # most labels or numbers whose metrics are printed


def evaluate(
    path: str | os.PathLike[str] | Mapping[str, object] | Predictor | nnx.Module,
    split: str = "",
    which: str = "best",
    ema: bool | None = None,
    data_dir: str = "",
    batch: int = 0,
    source: str = "",
    data: Any = None,
    class_names: Sequence[str] = (),
    flip: bool = False,
    probe: Probe = "none",
    skip_unreadable: bool = False,
    source_language: str = "",
    target_language: str = "",
    prefix: str = "",
    task: str = "",
    data_range: tuple[float, ...] = (),
    bootstrap: int = 0,
    table: Mapping[str, Any] | None = None,
    share: str = "",
    outputs: str | os.PathLike[str] = "",
    joined: str | os.PathLike[str] = "",
    **search: Any,
) -> tuple[int, Evaluation]:
    """Measure a trained network on a split of its data, or on other data.

    What is to be known of the result, such as which classes were matched how, is printed on stderr.

    Args:
        path: a run's folder or URL (s3://, gs://), or its name inside runs/; with `data.source` also a file or folder
            of weights, in any layout that `python -m convert formats` lists. In Python also its summary as `train`
            returns it, and with `data` weights, too; or a network in memory, as `vit_jax.load` returns it: that of a
            run is measured on the run's data too.
        split: split of the data: train, validation, test or another that the data has; empty: test (of other data that
            has none: validation, or all).
        which: the weights of a run, as of `vit_jax.load`, as are the languages, `prefix` and `task`.
        data_dir: folder of prepared TFDS sets, if it has moved since training; empty: as then.
        batch: examples per batch; 0: as in training.
        source: measure on other data than the run's: folder:PATH, FILE.npz, csv:FILE[:FOLDER] or the name of a
            prepared set, prepared as the network's own, classes matched by name, as a whole where it has no splits; of
            sentences pairs:... or tsv:FILE; of captions captions:FOLDER, coco:... or coco-features:...; empty: the
            run's own data.
        data: examples in the forms that `vit_jax.train` takes. Where the run was trained on the same, its own split of
            them is measured, else all of a pair.
        class_names: those of `data`; empty: its labels are the numbers of the network's classes.
        flip: also measure the mean logits of each image and its mirror image, in a second column. In Python that is
            an Evaluation in the first one, its `flipped`.
        probe: measure the network's features ("pooled" of `capture`) instead of its answers, by a classifier that
            learns from those of train; knn: the weighted vote of the 20 nearest neighbours (cosine, temperature 0.07:
            DINO's); linear: a logistic regression on features as they are, not standardised, whose C of 1e-6 to 1e6 is
            chosen on validation, or without one on a tenth of train held out (as in CLIP and DINOv2); other data may
            then have any classes and is split as in training, and the network needs no head.
        skip_unreadable: leave out images that cannot be read, and say how many, instead of stopping.
        data_range: of other data with pixels of more than 8 bits, or floating-point ones: two numbers, LOW HIGH, the
            values that become black and white; empty: as in training.
        bootstrap: also give each metric a 95 % interval, from this many samples of the examples, drawn with
            replacement, such as 1000: how far it would vary with other examples. In Python these are the Evaluation's
            `intervals`; 0: none.
        table: of a source csv:FILE: its labels, separator, file_column or split_column, where they are others than in
            training and no columns are called as the network's outputs.
        share: with `outputs`: measure a fixed share of the examples, I/N such as 3/16, while other commands, on any
            machines, measure the others.
        outputs: with `share`: write the network's outputs for these examples to this .npz file; `vit-jax join` joins
            those of all shares.
        joined: compute nothing: measure the outputs in this file of `vit-jax join`; the result is that of one command.
        search: settings of the search for texts, such as beam=5 (the fields of config.decoding.Decoding).

    Returns:
        (step of the weights, Evaluation). That of a probe has its settings as `chosen`, and no loss.

    Raises:
        UserError: where there is no such split, the network does not have the classes, the run's own data is not what
            it was trained on, there are no images to mirror, or no classes for a probe.
    """
    from ..data.base import GivenData

    texts = dict[str, Any](source_language=source_language, target_language=target_language, prefix=prefix, task=task)
    other = DataOptions(source=source, dir=data_dir, range=tuple(data_range), **texts, **table_fields(table))
    name, network = _network(path, which, ema, other.spoken)
    given = GivenData.of(data, class_names)
    how = dict[str, Any](batch=batch, flip=flip, probe=probe, bootstrap=bootstrap, skip_unreadable=skip_unreadable)
    parts = dict[str, Any](share=share, outputs=os.fspath(outputs), joined=os.fspath(joined))
    asked = EvaluateFlags(run=name, split=split, weights=which, data=other, force=True, **how, **parts)
    check_ranges(asked)
    measured = measure(Request(flags=asked, ema=ema, search=search, given=given, network=network))
    for remark in (*measured.remarks, *measured.result.notes):
        print_note(remark, sys.stderr)
    return measured.net.step, measured.result


def _network(path: Any, which: str, ema: bool | None, spoken: Spoken) -> tuple[str, Predictor | None]:
    """(what messages call what is measured, the network if it is one in memory)."""
    path = runs.of_summary(path)
    if isinstance(path, (str, os.PathLike)):
        return os.fspath(path), None
    from ..weights.load import complete

    return "the network", complete(path, which, ema, spoken)


NAMES = {"run": "path", "data.source": "source", "data.dir": "data_dir", "data.range": "data_range"}


@described_by(evaluate, NAMES)
@dataclass(frozen=True, kw_only=True)
class Options(SearchFlags, EvaluateFlags):
    """Measure a trained network on a split of its data, or on other data.

    The flags from --beam on direct the search for a text; classes need none.
    """


def command(arguments: list[str]) -> int:
    """Measure what arguments ask for, and print it."""
    o = flags.parse(Options, arguments, prog="python -m vit_jax.evaluate")
    runs.mean_of(o.weights)
    reads = [*runs.read_from(o.run), *paths_in(o.data.source)]
    check_outputs({"csv": o.csv, "probabilities": o.probabilities}, o.force, reads)
    check_folder("report", o.report, o.force, reads)
    with flag_advised(o.skip_unreadable):
        search = flags.given_values(arguments, o, SearchFlags)
        m = measure(Request(flags=o, ema=o.averaged, search=search))
    what = f"{o.run} at step {m.net.step}" if m.net.step else o.run
    where = f"{m.name} of {o.data.source}" if o.data.source else m.name
    where += f", probe {o.probe}" if o.probe != "none" else ""
    title = f"{what}, {where}"
    _print_metrics(m, title, bool(o.probabilities or o.csv or o.report))
    if o.outputs:
        print(printable(f"  {o.outputs} has {len(m.examples):,} rows; vit-jax join joins those of all shares"))
    if o.probabilities:
        rows = write_csv(o.probabilities, *m.task.able(Tabulates).values(m.examples, m.result))
        print(printable(f"  {o.probabilities} has {rows:,} rows"))
    if o.csv:
        rows = write_csv(o.csv, *m.task.able(Tabulates).predicted(m.examples, m.result, m.metadata))
        print(printable(f"  {o.csv} has {rows:,} rows"))
    if o.report:
        print("\n".join(f"  {printable(line)}" for line in write_report(m, Path(o.report), title)))
    return DONE


def _print_metrics(m: Measured, title: str, writes: bool) -> None:
    """Print what was measured, as metrics and remarks; `writes`: whether files follow."""
    result = m.result
    print(printable(f"{title}: {len(result.predicted):,} examples"))
    for remark in (*m.remarks, *result.notes):
        print_wrapped(f"  note: {printable(remark)}")
    flipped = result.flipped.metrics if result.flipped else {}
    if flipped:
        print(f"  {'':18} {'plain':6}  with its mirror image")
    for name, value in result.metrics.items():
        print(printable(f"  {name:18} {_shown(result, name, value, flipped)}"))
    if flipped and (result.prints_each or writes):
        print("  tables, files and figures are of the plain images")
    if result.prints_each:
        _print_each(result, _names(m))


def _shown(result: Evaluation, name: str, value: float, flipped: Mapping[str, float]) -> str:
    """A metric, that with mirror images, and its interval; or a dash and why it has no value."""
    if math.isnan(value):
        return f"-       {result.undefined.get(name, 'no number: the network has diverged')}"
    words = [f"{value:.4f}", *([f"{flipped[name]:.4f}"] if flipped else [])]
    low, high = result.intervals.get(name, (math.nan, math.nan))
    return "  ".join([*words, *([f"{low:.4f} to {high:.4f}"] if not math.isnan(low) else [])])


def _names(m: Measured) -> Sequence[str]:
    """Those of the classes, labels or numbers that were measured."""
    return Outputs.of(m.metadata).names or m.net.columns


def _print_each(result: Evaluation, names: Sequence[str]) -> None:
    """Print the metrics of each of several labels or numbers as a table; of many those of the first."""
    if len(names) < 2:
        return
    columns = [
        [title.replace("_", " "), *("-" if math.isnan(x) else f"{x:.4g}" for x in values[:ROWS])]
        for title, values in result.each.items()
    ]
    print()
    print_table(["", *map(printable, names[:ROWS])], [columns], shutil.get_terminal_size((120, 24)).columns)
    if len(names) > ROWS:
        print(f"  {len(names) - ROWS:,} more are in the folder of --report")
    print()


def write_report(m: Measured, folder: Path, title: str) -> tuple[str, ...]:
    """Write what was measured into a folder: metrics.json, predictions.csv, and what the task draws of a result."""
    folder.mkdir(exist_ok=True)
    results = {"metrics": m.result, **({"flipped": m.result.flipped} if m.result.flipped else {})}
    facts = {"measured": title, "examples": len(m.result.predicted), "notes": [*m.remarks, *m.result.notes]}
    facts |= {"chosen": dict(m.result.chosen)} if m.result.chosen else {}
    for name, result in results.items():  # the loss of a network that has diverged is no number, which JSON lacks
        facts[name] = as_json(result.metrics)
    if m.result.each:
        names = _names(m)
        facts["each"] = {key: as_json(dict(zip(names, x.tolist(), strict=True))) for key, x in m.result.each.items()}
    facts |= {"undefined": dict(m.result.undefined)} if m.result.undefined else {}
    if m.result.intervals:
        ends = {name: dict(zip(("low", "high"), each, strict=True)) for name, each in m.result.intervals.items()}
        facts["intervals"] = {name: as_json(each) for name, each in ends.items()}
    write_json(folder / "metrics.json", facts)
    task, given = m.task, (m.examples, m.result, m.metadata)
    write_csv(folder / "predictions.csv", *task.able(Tabulates).predicted(*given))
    lines, parts = task.able(Draws).result(*given, folder, title)
    Hooks(replace(m.net.run, hooks=())).each("drawn", folder, parts)
    return *lines, f"{folder} has {', '.join(sorted(path.name for path in folder.iterdir()))}"


def main() -> int:
    """The command `python -m vit_jax.evaluate`; returns the exit code."""
    return run_command(lambda: command(sys.argv[1:]))
