"""Train a network, on one host or several, or once for each of several seeds or folds."""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import tempfile
import weakref
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

from .. import runs
from ..config.dotted import replace_fields
from ..config.hints import naming_gone
from ..config.run import RunConfig
from ..errors import UserError
from ..files.places import local_copy, own, publish
from ..files.reading import show_path
from ..files.terminal import print_note
from ..machine import backend
from ..machine.hosts import Hosts, join_hosts
from ..machine.numerics import fixed_settings
from ..runs.check import check_complete, check_run
from ..runs.folder import recorded_ending
from ..runs.several import VARIED, members_of
from ..runs.values import LENGTH, flat, with_fields
from .announce import announce
from .finish import finish, show_again, sum_up
from .hooks import Event, Summary
from .job import OF_A_HOST, Job, Origin, checked_arguments, choose_folder, open_job, preflight
from .loop import Loop
from .progress import Told, suppress_output, telling, told
from .state import run_now
from .stopping import Caught, signals

if TYPE_CHECKING:
    from ..data.base import GivenData

T = TypeVar("T")


@naming_gone
def train(
    run: RunConfig | str | None = None,
    *,
    data: Any = None,
    class_names: Sequence[str] = (),
    preset: str = "run",
    folder: str | os.PathLike[str] | runs.Run | None = None,
    hosts: str = "",
    resume: str | os.PathLike[str] | runs.Run = "",
    epochs: int = 0,
    fields: Mapping[str, Any] | None = None,
    progress: Told = "full",
) -> Summary:
    """Train a run until its end or its budget, from its last checkpoint if it has one.

    Args:
        run: the config, such as `vit_jax.preset("digits").run`; or a preset's name, whose sizes then follow `data`.
        data: examples in place of `run.data.source`: a pair (images, labels), images uint8 [n, h, w] or [n, h, w, C]
            and labels: classes, int [n] from 0; sets of labels, 0 and 1 in [n, K], -1 where unknown; or numbers, float
            [n] or [n, K]; run.data.target says which where that can be taken in two ways. For texts a list of pairs
            (source, target); for captions a pair (images, captions), each caption a text or a list of texts. Or
            {"train": ..., "validation": ..., "test": ...} of such; splits that are missing are held out from train. The
            same call with the same examples continues the run.
        class_names: the names of the classes of `data`, in order; empty: their numbers.
        preset: names the folder of a run without a name.
        folder: the run's folder; None: run.dir/run.name, or run.dir/PRESET with a number appended if that is taken.
        hosts: of several processes that all make this call and train the run together: "auto" where Slurm, MPI, a TPU
            pod, Kubernetes or Ray has started them, or "ADDRESS:PORT,COUNT,INDEX"; process 0 owns the folder. It has to
            be the first use of jax in the process, but for jax.distributed.initialize. Empty: this process trains
            alone.
        resume: in place of `run`, a run to go on with (its folder, or its name in runs/), or a group of them.
        epochs: how many the run is to have in all: with `resume` more than it had train it on, as if as many had been
            given at first; 0: as many as it has.
        fields: {dotted name: value} of what else changes: {"augment.flip": False}, {"data.source": "folder:moved"}.
        progress: what is printed, or shown in a notebook: full, short (the progress and the results) or none.

    Returns:
        The content of summary.json and "folder", the run's; in the processes of other hosts what these know of it.

    Raises:
        UserError: for what the user can mend, and where another host is lost.
        CheckFailed: where the loss is NaN or infinite.
        Interrupted: after a signal, once everything is saved.
    """
    changed = {**(fields or {}), **({"epochs": epochs} if epochs else {})}
    with telling(progress):
        if resume and (inside := members_of(resume)):
            given: dict[str, Any] = {"data": data, "class_names": class_names, "hosts": hosts, "fields": changed}
            return cast(Summary, sum_up(inside, [train(resume=member, **given) for member in inside]))
        return exhausted(run_steps(run, preset, folder, resume, changed, data, class_names, hosts))


@naming_gone
def steps(
    run: RunConfig | str | None = None,
    *,
    data: Any = None,
    class_names: Sequence[str] = (),
    preset: str = "run",
    folder: str | os.PathLike[str] | runs.Run | None = None,
    hosts: str = "",
    resume: str | os.PathLike[str] | runs.Run = "",
    epochs: int = 0,
    fields: Mapping[str, Any] | None = None,
) -> Generator[Event, None, None]:
    """Train a run as `train` does, and tell each step and each evaluation as an Event to the loop that asks for them.

    `for event in vit_jax.steps(run): print(event.step, event.metrics["loss"])` trains the run to its end. Whoever
    leaves the loop before (by break, or an error) finds the last step saved: the same call goes on from there. It takes
    and raises what `train` does.

    Args:
        hosts: as of `train`; each host has to make the same loop.
        resume: as of `train`, but a single run.

    Returns:
        An iterator over the Events: `kind` is step, evaluation or end, `step` counts the steps done, `metrics` are
        those of the step's batch or of the `split`. `event.network()` is a copy of the network at that time; the end
        has the `summary` that `train` returns.
    """

    def events() -> Generator[Event, None, None]:
        changed = {**(fields or {}), **({"epochs": epochs} if epochs else {})}
        given = run, preset, folder, resume, changed, data, class_names, hosts
        summary = yield from run_steps(*given, begin)
        yield Event("end", summary["step"], summary["epoch"], summary=summary)

    def begin(folder: runs.Run) -> None:
        _LOOPS[os.path.realpath(folder.path)] = itself[0]

    itself = list[weakref.ref[Generator[Event, None, None]]]()
    generator = events()
    itself.append(weakref.ref(generator))  # it must not hold itself: a loop that is left ends at once
    return generator


# {folder of a run: the loop of this process over its steps}. An error that ends a loop keeps it, with the folder's
# lock, where it is still shown, as in a notebook: the next call ends it.
_LOOPS: dict[str, weakref.ref[Generator[Event, None, None]]] = {}


def exhausted(steps: Generator[Any, None, T]) -> T:
    """What a generator returns after its last event."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]


def run_steps(
    run: Any,  # a RunConfig or a preset's name, unless the caller gave something else
    preset: str,
    folder: str | os.PathLike[str] | runs.Run | None,
    resume: str | os.PathLike[str] | runs.Run,
    fields: Mapping[str, Any],
    data: Any,
    class_names: Sequence[str],
    hosts: str,
    begin: Callable[[runs.Run], None] = lambda folder: None,
) -> Generator[Event, None, Summary]:
    """The events of `steps`, but the end, and then the summary."""
    if resume:
        folder = _resumed(run, folder, resume)
        run, preset, fields = with_fields(folder.config(), fields), folder.record()["preset"], {}
    else:
        folder, preset = _folder_named(folder), run if isinstance(run, str) and preset == "run" else preset
    minutes = run.stall_minutes if isinstance(run, RunConfig) else 0.0  # what is no run is refused below
    with join_hosts(hosts, minutes) as group:
        try:
            run, given = checked_arguments(run, data, class_names, fields)
        except UserError as error:
            if resume and folder and (changed := runs.changed_beside(error, folder, run)):
                raise runs.other_run(folder, changed) from error
            raise
        group.compare({name: value for name, (value, _) in flat(run).items() if name not in OF_A_HOST})
        return (yield from steps_with(group, run, preset, folder, bool(resume), given, begin))


def _folder_named(folder: Any) -> runs.Run | None:
    """The folder that `train` is given for a run."""
    if folder is None or isinstance(folder, runs.Run):
        return folder
    if not isinstance(folder, (str, os.PathLike)) or not os.fspath(folder):
        raise UserError("folder", f"is {folder!r:.60}", "give the path of a run's folder, or leave it out")
    return runs.Run(local_copy(os.fspath(folder)))


def _resumed(run: Any, folder: Any, resume: str | os.PathLike[str] | runs.Run) -> runs.Run:
    """The run that `resume` names, in place of which nothing else is given."""
    for name, value in (("run", run), ("folder", folder)):
        if value is not None:
            raise UserError(name, "is given, and so is resume", "leave one of them out")
    return resume if isinstance(resume, runs.Run) else runs.find(os.fspath(resume))


def steps_with(
    hosts: Hosts,
    run: RunConfig,
    preset: str,
    folder: runs.Run | None,
    resumed: bool,  # the folder is named as that of a run to go on with
    given: GivenData | None = None,
    begin: Callable[[runs.Run], None] = lambda folder: None,
) -> Generator[Event, None, Summary]:
    """Train on some hosts, telling what happens."""
    if not hosts.owner:  # it writes nothing for the user
        run = replace(run, tensorboard=False, wandb="", profile_steps="", hooks=())
    division, teacher, hooks = preflight(run, hosts)
    origin = Origin(given, hosts=hosts)
    with contextlib.ExitStack() as stack:
        goes_on = False
        if hosts.owner:
            folder = choose_folder(run, preset, folder, difference=origin.difference)
            stack.enter_context(_own_folder(folder))
            begin(folder)
            run, goes_on = run_now(folder, run, resumed)
        else:
            private = stack.enter_context(tempfile.TemporaryDirectory(prefix="vit-jax-"))
            folder = runs.Run(Path(private) / "run")  # for copies of the small files of the run that the owner has
            stack.enter_context(contextlib.redirect_stdout(stack.enter_context(open(os.devnull, "w"))))
        run = replace(run, **hosts.share({name: getattr(run, name) for name in (*LENGTH, "max_steps")}))
        if summary := _shared_summary(folder, hosts, goes_on):
            anew = "choose another `name` or `seed` to train anew"
            on = f"`resume {shlex.quote(str(folder))}` and `epochs N`"
            print(f"{folder}: this run is finished; {anew}, or train it on with {on}")
            if hosts.owner:
                show_again(folder, summary)
            return _with_folder(summary, folder)
        caught = stack.enter_context(signals())
        hosts.barrier()  # where jax starts, each host waits for the others, but not long
        backend.configure_jax(division.devices)

        def job() -> Job:
            return open_job(run, origin.open(run, folder), folder, preset, teacher, hooks, hosts)

        return _with_folder((yield from _settled(_trained(job, caught), run.compute_dtype)), folder)


def _trained(open_: Callable[[], Job], caught: Caught) -> Generator[Event, None, dict[str, Any]]:
    """Set a run up, train and finish it; the generator of what happens returns the content of summary.json."""
    job = open_()
    with contextlib.nullcontext() if told.get() == "full" else suppress_output():
        announce(job)
    with _undone_unless_begun(job.folder):
        loop = Loop(job, caught)
    ending = recorded_ending(job.folder) if job.hosts.owner else contextlib.nullcontext()
    with contextlib.closing(loop.recording.log), ending:
        publish(job.folder.path)
        summary = finish(loop, (yield from loop.until_end()))
        yield from loop.new_events()
    return summary


def _with_folder(summary: dict[str, Any], folder: runs.Run) -> Summary:
    return cast(Summary, {**summary, "folder": str(folder)})


def _settled(steps: Generator[Event, None, T], compute_dtype: str) -> Generator[Event, None, T]:
    """The same steps with our settings of jax, which the caller does not have between them."""
    try:
        while True:
            with fixed_settings(compute_dtype):
                try:
                    event = next(steps)
                except StopIteration as end:
                    return end.value  # type: ignore[no-any-return]
            yield event
    finally:
        with fixed_settings(compute_dtype):
            steps.close()


@contextlib.contextmanager
def _own_folder(folder: runs.Run) -> Iterator[None]:
    """A context in which this process has locked the run's folder, which is gone afterwards if it was not used."""
    made = [place for place in (folder.path, *folder.path.parents) if not place.exists()]
    left = _LOOPS.pop(os.path.realpath(folder.path), lambda: None)()
    if left is not None:
        with contextlib.suppress(ValueError):  # it is this very call that it makes
            left.close()
    with folder.lock(), own(folder.path):
        try:
            yield
        finally:
            if not folder.exists():
                with contextlib.suppress(OSError):  # the folder holds other files
                    (folder.path / ".lock").unlink()
                    for place in made:
                        place.rmdir()


@contextlib.contextmanager
def _undone_unless_begun(folder: runs.Run) -> Iterator[None]:
    """A context in which a run begins: where it cannot (W&B has no key), a folder that had no run stays as it was."""
    before = None if folder.exists() else {*folder.path.iterdir()} if folder.path.is_dir() else set[Path]()
    try:
        yield
    except BaseException:
        if before is not None and folder.path.is_dir():
            for path in {*folder.path.iterdir()} - before:
                shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
        raise


def _shared_summary(folder: runs.Run, hosts: Hosts, goes_on: bool) -> dict[str, Any] | None:
    """The summary of a finished run, on all hosts; else None, and they have the config.json of a run that is there."""
    summary = _finished_summary(folder) if hosts.owner and not goes_on else None
    record = folder.metadata() if hosts.owner and hosts.several and folder.exists() else None
    shared = hosts.share({"summary": summary, "record": record})
    if shared["record"] and not shared["summary"] and not hosts.owner:
        folder.create(shared["record"])
    return shared["summary"]


def _finished_summary(folder: runs.Run) -> dict[str, Any] | None:
    """The summary of a finished run, None if it is damaged and written again; what else differs is printed."""
    try:
        summary = folder.summary()
    except UserError:
        print_note(f"{show_path(folder.summary_file)}: is damaged; it is written again")
        return None
    if not summary or summary["status"] != "finished":
        return None
    for remark in filter(None, (folder.remark(), folder.log_remark())):
        print_note(remark)
    return summary


def train_group(run: RunConfig, kind: str, count: int, preset: str = "run") -> dict[str, Any]:
    """Train several runs that differ in their seed, or one for each fold of the data (cross-validation)."""
    numbers = range(run.seed, run.seed + count) if kind == "seed" else range(count)
    group = choose_folder(check_complete(check_run(run)), preset, group=kind, difference=Origin().difference)
    inside = [runs.Run(group.path / f"{kind}-{number}") for number in numbers]
    varied = (replace_fields(run, {VARIED[kind]: number}) for number in numbers)
    return sum_up(inside, [train(its, preset=preset, folder=at) for its, at in zip(varied, inside, strict=True)])
