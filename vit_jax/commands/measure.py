"""What is measured: a network on its own data or on others, by its answers or by a probe of its features."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal

from .. import runs
from ..config.dotted import replace_fields
from ..config.fields import option
from ..config.run import DataConfig, RunConfig, paths_in
from ..errors import Field, UserError
from ..files.destination import check_outputs
from ..machine import backend
from ..machine.numerics import fixed_settings
from ..scores.intervals import bootstrap
from ..tasks.can import Examines, HasFrozen, MeasuresOthers, Probes
from ..tasks.table import task_spec
from .selection import LanguageFlags, SelectionFlags, TableFlags, UnreadableFlags
from .share import OUTPUTS, facts_of, read_outputs, read_share, split_digest, write_outputs

if TYPE_CHECKING:
    from ..data.base import Data, GivenData
    from ..tasks.base import Evaluation, Task
    from ..tasks.predictor import Predictor
    from ..training.engine.evaluator import Evaluator

Probe = Literal["none", "knn", "linear"]
FEWEST = 40  # samples that an interval of 95 % takes: one of them lies beyond either end


@dataclass(frozen=True, kw_only=True)
class DataOptions(LanguageFlags, TableFlags):
    """Where the data is, in which languages texts are, and what the columns of a table are."""

    # As `EvaluateFlags`.
    source: str = option("", "")
    dir: str = option("", "")
    range: tuple[float, ...] = option((), "")


@dataclass(frozen=True, kw_only=True)
class EvaluateFlags(UnreadableFlags, SelectionFlags):
    """What is measured, on what, and what is written."""

    # What has no help here is an argument of `evaluate`, which describes it.
    run: str = field(metadata={"help": ""})
    split: str = field(default="", metadata={"help": "", "foreign": ("val", "valid", "dev")})
    batch: int = option(0, "", at_least=0)
    flip: bool = option(False, "")
    probe: Probe = option("none", "")
    bootstrap: int = option(0, "", at_least=0, at_most=1_000_000)
    csv: str = option("", "also write a row for each example to this file, as a CSV table")
    probabilities: str = option(
        "",
        "also write every probability to this file, as a CSV table: the file, the truth and a column for each class or "
        "label; for numbers their values",
    )
    report: str = option(
        "",
        "also write the metrics, a row for each example and the worst examples into this folder: for images "
        "figures too, for sentences a text",
    )
    force: bool = option(
        False, "overwrite the files of --csv, --probabilities and --outputs, and files in the folder of --report"
    )
    share: str = option("", "")
    outputs: str = option("", "")
    joined: str = option("", "")
    data: DataOptions = field(default_factory=DataOptions)


@dataclass(frozen=True, kw_only=True)
class Request:
    """What is to be measured."""

    flags: EvaluateFlags  # `run` is what messages call a network in memory
    ema: bool | None  # as of `vit_jax.load`
    search: Mapping[str, Any]
    given: GivenData | None = None
    network: Predictor | None = None

    @property
    def run(self) -> runs.Run | None:
        """The run that the weights are of; None where there is none."""
        if self.network is not None:
            return runs.Run(self.network.trained.folder) if self.network.trained.folder else None
        path = self.flags.run
        return None if runs.is_foreign(path) else runs.find(path, weights=True)

    def check(self) -> None:
        """Raise UserError on what can be known to be wrong before anything is opened."""
        f, other = self.flags, bool(self.flags.data.source) or self.given is not None
        if self.given is not None and (f.data.source or f.data.dir):
            raise UserError("data", f"is given, and so is {f.data.source or f.data.dir}", "leave one of them out")
        for name in ("flip", "bootstrap", "probabilities"):
            if getattr(f, name) and f.probe != "none":
                what = "needs the network's own answers, and a probe takes their place"
                raise UserError(Field(name), what, "leave one of them out")
        if 0 < f.bootstrap < FEWEST:
            what = f"is {f.bootstrap}, and an interval of 95 % leaves out one sample in {FEWEST} on each side"
            raise UserError(Field("bootstrap"), what, f"give {FEWEST} or more, such as 1000")
        self._check_share()
        runs.mean_of(f.weights)
        if f.data.spoken and not other:
            raise UserError(
                "the languages of texts",
                "belong to data other than the run's own, whose languages it knows",
                "leave them out, or name that with `data.source`",
            )
        if self.run is None and not other:
            raise UserError(
                f.run,
                "no run here, and weights alone have no data of their own",
                "name the data to measure it on, as in `data.source folder:PATH`",
            )

    def _check_share(self) -> None:
        """Raise UserError where a share lacks its file, or what is of all examples is asked of it."""
        f = self.flags
        if bool(f.share) != bool(f.outputs):
            lacking, there = ("outputs", "share") if f.share else ("share", "outputs")
            raise UserError(Field(there), "is given alone", f"give {lacking}, too: a share writes what it computes")
        for name in ("csv", "probabilities", "report", "bootstrap", "joined") if f.share else ():
            if getattr(f, name):
                what = f"needs all examples, and {f.share} is a share of them"
                raise UserError(Field(name), what, "leave it out, join all shares, and then give it with joined")
        if f.probe != "none" and (f.share or f.joined):
            what = f"is {f.probe}, which learns from all of train"
            raise UserError(Field("probe"), what, "leave out share and joined")
        if f.outputs:
            if not f.outputs.lower().endswith(".npz"):
                raise UserError(Field("outputs"), f"is {f.outputs}", "give a name that ends in .npz")
            reads = [] if self.network is not None else [*runs.read_from(f.run), *paths_in(f.data.source)]
            check_outputs({"outputs": f.outputs}, f.force, reads)


@dataclass(frozen=True)
class Measured:
    """An evaluation, and what it was made of."""

    net: Predictor
    name: str
    examples: Any
    result: Evaluation
    remarks: tuple[str, ...]
    metadata: Mapping[str, Any]  # what results are named by: the network's, with a probe those of the data
    task: Task


def _outputs(
    net: Any, task: Any, f: EvaluateFlags, name: str, examples: Any, batch: int, evaluator: Evaluator, weights: Any
) -> tuple[Any, str, Any]:
    """(the outputs of examples, what these are, they themselves): of a share only its own, which are written too."""
    share = read_share(f.share)
    if not share and not f.joined:
        return evaluator.outputs_of(weights, examples, batch=batch), name, examples
    more = {"content": OUTPUTS, "inputs": split_digest(examples), "split": name, "flip": f.flip}
    facts = facts_of(net, task, len(examples), batch, **more)
    if f.joined:
        return read_outputs(f.joined, facts), name, examples
    assert share is not None
    out, rows = evaluator.outputs_in(weights, examples, batch, share.batches(-(-len(examples) // batch)))
    write_outputs(f.outputs, out, rows, facts)
    return out, f"share {f.share} of {name}", examples.subset(rows)


def measure(request: Request) -> Measured:
    """Measure a network."""
    request.check()
    f, folder = request.flags, request.run
    recorded = folder.record()["data"] if folder else None
    backend.configure_jax()
    from ..data.images.splits import Split
    from ..models.state import split_model
    from ..tasks.computed import task_of
    from ..tasks.generated import searching
    from ..training.engine.evaluator import Evaluator
    from ..weights.load import complete
    from .probe import measure_probe

    with backend.restore_precision():
        net = request.network or complete(f.run, f.weights, request.ema, f.data.spoken)
    if f.probe == "none" and (why := net.refusals.get("measures")):
        raise UserError(f.run, *why)
    if f.probabilities:
        net.check_columns(f.probabilities)
    task = searching(_asked_for(net, f), request.search)
    run, other = _on_data(net, request, folder)
    with fixed_settings(run.compute_dtype):
        definition, tree = split_model(net.model)
        task = _with_frozen_arrays(task, run)
        evaluator = Evaluator(run.model, definition, task)
        batch = f.batch or run.batch
        outputs = functools.partial(evaluator.outputs_of, evaluator.to_devices(tree), batch=batch)
        if f.probe != "none":
            data, name = _learnable(net, run, task, request, None if other else recorded)
            result, metadata = measure_probe(f.probe, outputs, data, name, task, run), data.metadata()
            return Measured(net, name, data.splits[name], result, data.remarks, metadata, task_of(run, metadata))
        name, examples, remarks = _other(net, run, request, recorded) if other else _own(run, f.split, recorded)
        weights = evaluator.to_devices(tree)
        out, name, examples = _outputs(net, task, f, name, examples, batch, evaluator, weights)
        result = task.able(Examines).examine(run.model, examples, out)
        if f.bootstrap:
            result = replace(result, intervals=_intervals(task, run, examples, out, f.bootstrap))
        remarks = (*remarks, *(examples.wide_remarks() if other and isinstance(examples, Split) else ()))
        return Measured(net, name, examples, result, remarks, net.metadata, net.task)


def _with_frozen_arrays(task: Task, run: RunConfig) -> Task:
    """The task with the arrays that do not learn, if its outputs need them."""
    from ..weights.opening import open_teacher

    frozen = task.able(HasFrozen)
    return frozen.load(open_teacher(run)) if frozen.in_outputs else task  # type: ignore[no-any-return]


def _on_data(net: Predictor, request: Request, folder: runs.Run | None) -> tuple[RunConfig, bool]:
    """(the run of a network with the data that is to be measured, whether that is other data than its own)."""
    asked, data = request.flags.data, net.run.data
    source = asked.source if request.given is None else data.given
    other = request.given is not None or bool(source and source != data.source)
    if asked.dir and not hasattr(data, "dir"):
        reads = f"is {asked.dir}, but this run reads its data from data.source {source or data.source}"
        raise UserError(Field("data.dir"), reads, "leave the flag out")
    changes: dict[str, Any] = {name: x for name, x in (("source", source), ("dir", asked.dir)) if x}
    data = replace(data, **changes)
    data = data.in_folder(folder.path) if folder else data
    return replace(net.run, data=_of_images(data, request)), other


def _intervals(
    task: Task, run: RunConfig, examples: Any, out: Mapping[str, Any], samples: int
) -> dict[str, tuple[float, float]]:
    """Bootstrap intervals of the metrics of a split, from the outputs of all its examples."""

    def metrics(rows: Any) -> dict[str, float]:
        few = {name: values[rows] for name, values in out.items()}
        return task.able(Examines).resample(run.model, examples.subset(rows), few)

    return bootstrap(metrics, len(examples), samples, getattr(examples, "groups", None))


def _asked_for(net: Predictor, f: EvaluateFlags) -> Task:
    """The task of a network, with mirror images or of its features. Raises UserError where it has no such."""
    task = net.task
    if f.flip or f.probe != "none":
        task = task.able(Examines).mirrored() if f.flip else task.able(Probes).probed()
    if task is None:
        asked, needed = ("flip", "images") if f.flip else (f"probe {f.probe}", "images with classes")
        raise UserError(asked, f"is for {needed}, and {f.run} is of the task {net.run.task}", "leave it out")
    return task


def _learnable(net: Predictor, run: RunConfig, task: Task, request: Request, recorded: Any) -> tuple[Data, str]:
    """(data with a train split that a probe learns from, the split to measure), prepared as the network's own.

    `task` is what `Probes.probed` returned; `recorded` is the identity of the run's own data, None of other data.
    """
    from ..data.images.config import ImageData

    if recorded is not None and (wrong := task.able(Probes).unprobed):
        raise UserError("probe", f"tells classes apart, and {wrong}", "give `data.source` of images with classes")
    run = replace_fields(run, task_spec(run.task).prepared_as(net.metadata, {}))
    if recorded is None and isinstance(run.data, ImageData):  # other classes are in other columns
        run = replace(run, data=replace(run.data.without_table(), **request.flags.data.table))
    dataset = task.open_data(run, request.given)
    if not dataset.same_as(recorded):
        raise _not_its_data(run)
    train, *others = dataset.splits
    name = request.flags.split or ("test" if "test" in others else "validation")
    if name in others:
        return dataset, name
    if not others:
        raise UserError("split", "the data has only train, which a probe learns from", "give data with a test split")
    why = "split is train, which a probe learns from" if name == train else f"there is no split {name!r}"
    raise UserError(why, remedy=f"choose {' or '.join(others)}")


def _own(run: RunConfig, split: str, recorded: Any) -> tuple[str, Any, tuple[str, ...]]:
    """(name of the split, its examples, remarks) of the data that a run was trained on, as `recorded`."""
    from ..tasks.computed import task_class

    dataset = task_class(run.task).open_data(run)
    if not dataset.same_as(recorded):
        raise _not_its_data(run)
    # What else is to be known of its data, training has said.
    return *_find_split(dataset, split), tuple(each for each in dataset.remarks if "unreadable" in each)


def _of_images(data: DataConfig, request: Request) -> DataConfig:
    """The data config with what is asked for of images and of a table. Raises UserError where there are none."""
    from ..data.images.config import FittedImages, ImageData
    from ..data.images.high_bit_depth import is_range
    from ..data.images.sources.open import table_of

    skip, asked, given = request.flags.skip_unreadable, request.flags.data, request.given is not None
    for name, value in (("skip_unreadable", skip), ("data.range", asked.range)):
        if value and not isinstance(data, FittedImages):
            raise UserError(Field(name), "is for images, and this network takes none", "leave it out")
    column = next((f"data.{name}" for name in asked.table), "")
    if column and not isinstance(data, ImageData):
        raise UserError(Field(column), "is for labelled images, and this network learned from none", "leave it out")
    if column and not asked.source:
        raise UserError(Field(column), "is of another table than the run's own", "add `data.source csv:FILE`")
    if isinstance(data, ImageData):
        data = data.without_table() if given or (asked.source and table_of(data) is None) else data
        data = replace(data, **asked.table)
    if not isinstance(data, FittedImages):
        return data
    if not is_range(asked.range):
        raise UserError(Field("data.range"), f"is {asked.range}", "give two numbers, the second one greater")
    if asked.range and not asked.source and not given:
        raise UserError(Field("data.range"), "is of other images than the run's own", "add `data.source`")
    return replace(data, skip_unreadable=skip or data.skip_unreadable, range=asked.range or data.range)


def _not_its_data(run: RunConfig) -> UserError:
    return UserError(f"data.source {run.data.source} is not the data that this run was trained on", remedy="restore it")


def _other(net: Predictor, run: RunConfig, request: Request, recorded: Any) -> tuple[str, Any, tuple[str, ...]]:
    """(name of the split, its examples, remarks) of other data; `recorded` is the identity of that of training."""
    from ..tasks.computed import task_class

    split, given, opened = request.flags.split, request.given, net.task.able(MeasuresOthers).open_data
    sizes = recorded.get("sizes") if isinstance(recorded, dict) else None
    if isinstance(sizes, dict) and opened(run, net.metadata, "", given).total == sum(sizes.values()):
        # It may be a copy of the data that the run was trained on: then only the run's own splits are new to it.
        dataset, named = None, given
        if given is not None and not given.class_names:
            named = replace(given, class_names=tuple(net.metadata.get("class_names", ())))
        with contextlib.suppress(UserError):
            dataset = task_class(run.task).open_data(run, named)
        if dataset is not None and dataset.same_as(recorded):
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
