"""Measure a run on a split of its data: `python -m vit_jax.evaluate RUN [--split test]`, or `vit_jax.evaluate(run)`."""

from __future__ import annotations

import contextlib
import functools
import math
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from .. import runs
from ..config import flags
from ..config.decoding import SearchFlags
from ..config.dotted import replace_fields
from ..config.fields import option
from ..config.ranges import check_ranges
from ..config.run import DataConfig, RunConfig, paths_in
from ..errors import DONE, Field, UserError
from ..files.atomic import write_json
from ..files.destination import check_folder, check_outputs
from ..files.output import write_csv
from ..files.terminal import printable, run_command
from ..machine import backend
from ..machine.numerics import fixed_settings
from ..tasks.table import task_spec
from ..text.languages import Spoken
from .selection import LanguageFlags, SelectionFlags
from .unreadable import UnreadableFlags, flag_advised

if TYPE_CHECKING:
    from ..data.base import Data, Given
    from ..tasks.base import Evaluation, Predictor, Task

Probe = Literal["none", "knn", "linear"]


def evaluate(
    path: str | os.PathLike[str],
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
    data_range: tuple[float, ...] = (),
    **search: Any,
) -> tuple[int, Evaluation]:
    """Measure a trained network on a split of its data, or on other data.

    What is to be known of the result, such as which classes were matched how, is printed on stderr.

    A probe measures not the network's answers but how well its features, "pooled" of `capture`, tell the classes of the
    data: a classifier learns from the features of train, and is measured on the split. "knn" is DINO's vote of the 20
    nearest neighbours (cosine, temperature 0.07), "linear" a logistic regression on features as they are, whose C is
    chosen on validation, or without one on a tenth of train, as in CLIP and DINOv2. The data may then have any classes,
    and the network none; it is split as training would split it.

    Args:
        path: a run; with `source` or `data` also a file or folder of weights of any layout.
        split: of the data; empty: test, of other data that has none validation, or all.
        which: the weights of a run, as of `vit_jax.load`.
        ema: likewise.
        data_dir: takes the place of data.dir.
        batch: examples in a step; 0: as in training.
        source: other data than the run's, as data.source names it (folder:PATH, FILE.npz, ...): images prepared as the
            network's own, classes matched by name. A folder without splits is measured as a whole.
        data: examples in the forms that `vit_jax.train` takes. Where the run was trained on the same, its own split of
            them is measured, else all of a pair.
        class_names: those of `data`; empty: its labels are the numbers of the network's classes.
        flip: whether the Evaluation has a second one with it, `flipped`: of the mean of the logits of each image and
            its mirror image.
        probe: none, knn or linear.
        skip_unreadable: leave out images that cannot be read, and say how many, instead of stopping.
        source_language: of other data, as of `vit_jax.load`.
        target_language: likewise.
        data_range: (low, high), the values of other images that become black and white; empty: those of training.
        search: settings of the search for texts, such as beam=5 (the fields of config.decoding.Decoding).

    Returns:
        (step of the weights, Evaluation). That of a probe has its settings as `chosen`, and no loss.

    Raises:
        UserError: where there is no such split, the network does not have the classes, the run's own data is not what
            it was trained on, there are no images to mirror, or no classes for a probe.
    """
    if not isinstance(path, (str, os.PathLike)):
        raise UserError(
            f"path is a {type(path).__name__}", remedy="give the folder of a run, or a file or folder of weights"
        )
    if class_names and data is None:
        raise UserError("class_names", "are those of examples given as data=...", "leave them out")
    from ..data.base import Given

    measured = measure(
        Request(
            path=os.fspath(path),
            split=split,
            which=which,
            ema=ema,
            data_dir=data_dir,
            batch=batch,
            source=source,
            given=None if data is None else Given(data, class_names),
            flip=flip,
            probe=probe,
            skip_unreadable=skip_unreadable,
            spoken=Spoken(source_language, target_language),
            data_range=tuple(data_range),
            search=search,
        )
    )
    for remark in (*measured.remarks, *measured.result.notes):
        print(f"note     {printable(remark)}", file=sys.stderr)
    return measured.net.step, measured.result


@dataclass(frozen=True, kw_only=True)
class Request:
    """What is to be measured, as the arguments of `evaluate` say it."""

    path: str
    split: str
    which: str
    ema: bool | None
    data_dir: str
    batch: int
    source: str
    given: Given | None  # examples from Python
    flip: bool
    probe: Probe
    skip_unreadable: bool
    spoken: Spoken  # the languages of other data
    data_range: tuple[float, ...]  # of other images
    search: Mapping[str, Any]

    def check(self) -> None:
        """Raise UserError on what can be known to be wrong before anything is opened."""
        check_ranges(EvaluateFlags(run=self.path, batch=self.batch, probe=self.probe))
        if self.given is not None and (self.source or self.data_dir):
            raise UserError("data", f"is given, and so is {self.source or self.data_dir}", "leave one of them out")
        if self.flip and self.probe != "none":
            raise UserError(
                "flip", f"is of the network's logits, and the probe {self.probe} has none", "leave one of them out"
            )
        runs.mean_of(self.which)
        if self.spoken and not self.source and self.given is None:
            raise UserError(
                "the languages of texts",
                "are of other data than the run's own, which it has stated",
                "leave them out, or name that with --data.source",
            )
        if runs.is_foreign(self.path) and not self.source and self.given is None:
            raise UserError(
                self.path,
                "no run here, and weights alone have no data of their own",
                "name the data to measure it on, as in --data.source folder:PATH",
            )


@dataclass(frozen=True)
class Measured:
    """An evaluation, and what it was made of."""

    net: Predictor
    name: str  # of the split
    examples: Any  # the split
    result: Evaluation
    remarks: tuple[str, ...]  # sentences for the user
    metadata: Mapping[str, Any]  # what results are named by: the network's, with a probe those of the data


def measure(request: Request) -> Measured:
    """`evaluate`, with what it was made of. Raises UserError."""
    request.check()
    path, given = request.path, request.given
    folder = None if runs.is_foreign(path) else runs.find(path)
    recorded = folder.record()["data"] if folder else None
    backend.configure_jax()
    from ..data.images.splits import Split
    from ..models.state import split_model as parts
    from ..tasks.computed import searching
    from ..training.engine.step import Evaluator
    from ..weights.load import complete
    from ..weights.teacher import open_teacher
    from .probe import measure_probe

    with backend.restore_precision():
        net = complete(path, request.which, request.ema, request.spoken)
    if request.probe == "none" and net.unmeasured:
        raise UserError(path, *net.unmeasured)
    task = searching(_asked_for(net, request), request.search)
    source = request.source if given is None else net.run.data.given
    run = replace(net.run, data=_with_source(net.run.data, source, request.data_dir))
    run = replace(run, data=run.data.in_folder(folder.path)) if folder else run
    run = replace(run, data=_of_images(run.data, request))
    other = given is not None or bool(source and source != net.run.data.source)
    with fixed_settings(run.compute_dtype):
        definition, tree = parts(net.model)
        if request.probe != "none":
            dataset, name = _learnable(net, run, task, request, None if other else recorded)
            examples, remarks = dataset.splits[name], dataset.remarks
        else:
            opened = _other(net, run, request, recorded) if other else _own(run, request.split, recorded)
            name, examples, remarks = opened
        task = task.load_auxiliary(open_teacher(run)) if task.auxiliary_in_outputs else task
        evaluator, batch = Evaluator(run.model, definition, task), request.batch or run.batch
        parameters = evaluator.to_devices(tree)
        if request.probe != "none":
            features = functools.partial(evaluator.outputs_of, parameters, batch=batch)
            result = measure_probe(request.probe, features, dataset, name, task, run)
        else:
            result = evaluator.measure(parameters, examples, batch)
            remarks = (*remarks, *(examples.wide_remarks() if other and isinstance(examples, Split) else ()))
    metadata = net.metadata if request.probe == "none" else dataset.metadata()
    return Measured(net, name, examples, result, remarks, metadata)


def _asked_for(net: Predictor, request: Request) -> Task:
    """The task of a network, with mirror images or of its features. Raises UserError where it has no such."""
    probe = request.probe
    task = net.task.mirrored() if request.flip else net.task if probe == "none" else net.task.probed()
    if task is None:
        asked, needed = ("flip", "images") if request.flip else (f"probe {probe}", "images with classes")
        raise UserError(asked, f"is for {needed}, and {request.path} is of the task {net.run.task}", "leave it out")
    return task


def _learnable(net: Predictor, run: RunConfig, task: Task, request: Request, recorded: Any) -> tuple[Data, str]:
    """(data with a train split that a probe learns from, the split to measure), prepared as the network's own.

    `task` is what `Task.probed` returned; `recorded` is the identity of the run's own data, None of other data.
    """
    run = replace_fields(run, task_spec(run.task).prepared_as(net.metadata, {}))
    dataset = task.open_data(run, request.given)
    if not dataset.same_as(recorded):
        raise _not_its_data(run)
    train, *others = dataset.splits
    name = request.split or ("test" if "test" in others else "validation")
    if name in others:
        return dataset, name
    if not others:
        raise UserError("split", "the data has only train, which a probe learns from", "give data with a test split")
    why = "split is train, which a probe learns from" if name == train else f"there is no split {name!r}"
    raise UserError(why, remedy=f"choose {' or '.join(others)}")


def _with_source(data: DataConfig, source: str, folder: str) -> DataConfig:
    """The data config with another source, and another folder of prepared sets, where they are given."""
    changes = {name: value for name, value in (("source", source), ("dir", folder)) if value}
    if folder and not hasattr(data, "dir"):
        raise UserError(
            Field("data.dir"),
            f"is {folder}, but this run reads its data from data.source {data.source}",
            "leave the flag out",
        )
    return replace(data, **changes)  # type: ignore[arg-type]  # texts


def _own(run: RunConfig, split: str, recorded: Any) -> tuple[str, Any, tuple[str, ...]]:
    """(name of the split, its examples, remarks) of the data that a run was trained on, as `recorded`."""
    from ..tasks.computed import task_class

    dataset = task_class(run.task).open_data(run)
    if not dataset.same_as(recorded):
        raise _not_its_data(run)
    # What else is to be known of its data, training has said.
    return *_find_split(dataset, split), tuple(each for each in dataset.remarks if "unreadable" in each)


def _of_images(data: DataConfig, request: Request) -> DataConfig:
    """The data config with what is asked for of images. Raises UserError where there are none."""
    from ..data.images.config import ImageData
    from ..data.images.wide import is_range

    for name, value in (("skip_unreadable", request.skip_unreadable), ("data.range", request.data_range)):
        if value and not isinstance(data, ImageData):
            raise UserError(Field(name), "is for images, and this network takes none", "leave it out")
    if not isinstance(data, ImageData):
        return data
    stated = request.data_range
    if not is_range(stated):
        raise UserError(Field("data.range"), f"is {stated}", "give two numbers, the second one greater")
    if stated and not request.source and request.given is None:
        raise UserError(Field("data.range"), "is of other images than the run's own", "add --data.source")
    skip = request.skip_unreadable or data.skip_unreadable
    return replace(data, skip_unreadable=skip, range=stated or data.range)


def _not_its_data(run: RunConfig) -> UserError:
    return UserError(f"data.source {run.data.source} is not the data that this run was trained on", remedy="restore it")


def _other(net: Predictor, run: RunConfig, request: Request, recorded: Any) -> tuple[str, Any, tuple[str, ...]]:
    """(name of the split, its examples, remarks) of other data; `recorded` is the identity of that of training."""
    from ..tasks.computed import task_class

    split, given, opened = request.split, request.given, task_class(run.task).open_other_data
    sizes = recorded.get("sizes") if isinstance(recorded, dict) else None
    if isinstance(sizes, dict) and opened(run, net.metadata, "", given).total == sum(sizes.values()):
        # It may be a copy of the data that the run was trained on: then only the run's own splits are new to it.
        dataset, named = None, given
        if given is not None and not given.class_names:
            named = replace(given, class_names=tuple(net.metadata.get("class_names", ())))
        with contextlib.suppress(UserError):
            dataset = task_class(run.task).open_data(run, named)
        if dataset is not None and dataset.same_as({**recorded, "name": dataset.identity["name"]}):
            return *_find_split(dataset, split), (
                "this is the data that the run was trained on, with the run's splits",
            )
    other = opened(run, net.metadata, split, given)
    return other.name, other.split, other.remarks


def _find_split(dataset: Data, name: str) -> tuple[str, Any]:
    """(name, split) of the data of a run, test by default."""
    name = name or "test"
    if name not in dataset.splits:
        raise UserError(
            f"there is no split {name!r}", remedy=f"this run's data has {', '.join(dataset.splits)}; choose one of them"
        )
    return name, dataset.splits[name]


@dataclass(frozen=True, kw_only=True)
class DataOptions(LanguageFlags):
    """Where the data is, and in which languages texts are."""

    source: str = option(
        "",
        "measure on other data than the run's: folder:PATH, FILE.npz or the name of a prepared set, "
        "classes matched by name; of sentences pairs:... or tsv:FILE; of captions captions:FOLDER, coco:... or "
        "coco-features:...; empty: the run's own data",
    )
    dir: str = option("", "folder of prepared TFDS sets, if it has moved since training; empty: as then")
    range: tuple[float, ...] = option(
        (),
        "of other data with pixels of more than 8 bits, or floating-point ones: two numbers, LOW HIGH, the values that "
        "become black and white; empty: as in training",
    )


@dataclass(frozen=True, kw_only=True)
class EvaluateFlags(UnreadableFlags, SelectionFlags):
    """What is measured, on what, and what is written."""

    run: str = field(
        metadata={
            "help": "a run's folder, or its name inside runs/; with --data.source also a file or folder of weights, "
            "in any layout that `python -m convert formats` lists"
        }
    )
    split: str = field(
        default="",
        metadata={
            "help": "split of the data: train, validation, test or another that the data has; "
            "empty: test (of other data that has none: validation, or all)",
            "foreign": ("val", "valid", "dev"),
        },
    )
    batch: int = option(0, "examples per batch; 0: as in training", at_least=0)
    flip: bool = option(
        False, "print a second column: the figures of the mean of the logits of each image and its mirror image"
    )
    probe: Probe = option(
        "none",
        "measure the network's features instead of its answers, by a classifier that learns from those of "
        "train; knn: the weighted vote of the 20 nearest neighbours (cosine, temperature 0.07: DINO's); linear: a "
        "logistic regression on features as they are, not standardised, whose C of 1e-6 to 1e6 is chosen on "
        "validation, or without one on a tenth of train held out (as in CLIP and DINOv2); --data.source may then "
        "have any classes and is split as in training, and the network needs no head",
    )
    csv: str = option("", "also write a row for each example to this file, as a CSV table")
    report: str = option(
        "",
        "also write the metrics, a row for each example and the worst examples into this folder: of images "
        "figures too, of sentences a text",
    )
    force: bool = option(False, "overwrite the file of --csv, and files in the folder of --report")
    data: DataOptions = field(default_factory=DataOptions)


@dataclass(frozen=True, kw_only=True)
class Options(SearchFlags, EvaluateFlags):
    """Measure a trained network on a split of its data, or on other data.

    The flags from --beam on are of the search for a text; classes need none.
    """


def command(arguments: list[str]) -> int:
    """Parse the arguments, measure and print; returns the exit code. Raises UserError."""
    o = flags.parse(Options, arguments, prog="python -m vit_jax.evaluate")
    runs.mean_of(o.weights)
    reads = [*runs.read_from(o.run), *paths_in(o.data.source)]
    check_outputs({"csv": o.csv}, o.force, reads)
    check_folder("report", o.report, o.force, reads)
    with flag_advised(o.skip_unreadable):
        m = measure(
            Request(
                path=o.run,
                split=o.split,
                which=o.weights,
                ema=o.averaged,
                data_dir=o.data.dir,
                batch=o.batch,
                source=o.data.source,
                given=None,
                flip=o.flip,
                probe=o.probe,
                skip_unreadable=o.skip_unreadable,
                spoken=o.data.spoken,
                data_range=o.data.range,
                search=flags.given_values(arguments, o, SearchFlags),
            )
        )
    what = f"{o.run} at step {m.net.step}" if m.net.step else o.run
    where = f"{m.name} of {o.data.source}" if o.data.source else m.name
    where += f", probe {o.probe}" if o.probe != "none" else ""
    print(printable(f"{what}, {where}: {len(m.result.predicted):,} examples"))
    for remark in (*m.remarks, *m.result.notes):
        print(f"  note: {printable(remark)}")
    flipped = m.result.flipped.metrics if m.result.flipped else {}
    if flipped:
        print(f"  {'':16} {'plain':6}  with its mirror image")
    for name, value in m.result.metrics.items():
        print(f"  {name:16} {value:.4f}" + (f"  {flipped[name]:.4f}" if flipped else ""))
    if o.csv:
        write_csv(o.csv, *m.net.task.table(m.examples, m.result, m.metadata))
    if o.report:
        print("\n".join(f"  {printable(line)}" for line in write_report(m, Path(o.report), f"{what}, {where}")))
    return DONE


def write_report(m: Measured, folder: Path, title: str) -> tuple[str, ...]:
    """Write what was measured, and its worst examples, into a folder, which is made; returns lines to print.

    metrics.json, predictions.csv, and what the task draws of a result; `title` says what was measured.
    """
    folder.mkdir(exist_ok=True)
    results = {"metrics": m.result, **({"flipped": m.result.flipped} if m.result.flipped else {})}
    facts = {"measured": title, "examples": len(m.result.predicted), "notes": [*m.remarks, *m.result.notes]}
    facts |= {"chosen": dict(m.result.chosen)} if m.result.chosen else {}
    for name, result in results.items():  # the loss of a network that has diverged is no number, which JSON lacks
        facts[name] = {key: value if math.isfinite(value) else None for key, value in result.metrics.items()}
    write_json(folder / "metrics.json", facts)
    task, given = m.net.task, (m.examples, m.result, m.metadata)
    write_csv(folder / "predictions.csv", *task.table(*given))
    lines = task.draw_result(*given, folder, title)
    return *lines, f"{folder} has {', '.join(sorted(path.name for path in folder.iterdir()))}"


def main() -> int:
    """The command `python -m vit_jax.evaluate`; returns the exit code."""
    return run_command(lambda: command(sys.argv[1:]))
