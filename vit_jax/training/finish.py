"""The end of a run: test, figures, summary and the commands to go on with; and what the runs of a group came to."""

from __future__ import annotations

import shlex
import statistics
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from .. import runs
from ..config.dotted import value_at
from ..config.run import RunConfig
from ..config.trees import flatten
from ..errors import Interrupted, UserError
from ..files.atomic import sync_tree
from ..files.metrics import HISTOGRAMS, as_json
from ..files.places import is_kept, publish, publish_several
from ..files.reading import show_path
from ..files.terminal import print_note, print_wrapped, printable
from ..plugins import CAPABILITIES
from ..reports import compare
from ..reports.compare import draw_curves_of
from ..reports.comparison import gather, mean_and_spread, splits
from ..runs.several import VARIED, kind_of
from ..tasks.can import Calibrates, Draws, Examines
from ..tasks.capability import blaming
from ..tasks.table import task_spec
from .hooks import Hooks
from .log import TOKENS
from .loop import Loop
from .progress import show_figures

if TYPE_CHECKING:
    from ..tasks.base import Evaluation, Task
    from ..weights.checkpoint import SavedState


def finish(loop: Loop, status: str) -> dict[str, Any]:
    """Evaluate the test split, draw figures, write summary.json and print the results."""
    job, state = loop.job, loop.state
    if loop.agreement.signal:
        job.hosts.barrier()
        raise _interruption(loop)
    summary: dict[str, Any] = {"status": status, "step": state.step, "epoch": job.epochs_of(state.step)}
    summary |= {"seconds": state.seconds, "best": state.best}
    watched, split = loop.evaluating.watched_split()
    if split is not None:
        summary[watched] = _last_evaluation(loop, watched, split)
    summary |= _speeds(job.folder.metrics())
    best, calibration, task, result = None, None, job.task, None
    if status == "finished" and not job.run.overfit_batches:
        best = best_weights(loop)
        calibration, task = _calibrate(loop, best)
        summary |= {"calibration": calibration} if calibration else {}
        tested, result, notes = _test(loop, task, best)
        summary |= tested | ({"notes": notes} if notes else {})
    network = whole(loop, best)
    if not job.hosts.owner:
        job.hosts.barrier()
        return summary
    summary["sample"] = draw(loop, task, result, network, best is not None)
    # With a summary nothing is done again: what it stands for has to outlast a power cut as well.
    loop.recording.log.sync()
    for folder in (job.folder.plots, job.folder.samples):
        sync_tree(folder)
    job.folder.write_summary(summary, loop.recording.log.written())
    job.hooks.each("end", job.folder, False)
    publish(job.folder.path)
    show(job.folder, summary)
    job.hosts.barrier()
    return summary


def _interruption(loop: Loop) -> Interrupted:
    """The error of a run that a signal has ended: what is saved, and how to go on."""
    job, state = loop.job, loop.state
    done = f"saved at step {state.step}" if loop.saving.step == state.step else "nothing was to be saved yet"
    again = _going_on(job.folder, job.run)
    if (kind := kind_of(job.folder.path)) and not _given_in_python(job.run):  # one of the runs of --seeds or --folds
        again = f"the same command, which goes on with this {kind} and then trains the others"
    return Interrupted(f"{loop.agreement.signal}: {done}; go on with: {again}", loop.agreement.signal)


def _last_evaluation(loop: Loop, name: str, split: Any) -> dict[str, dict[str, Any]]:
    """{weights: metrics} of the last weights on a split, from the log, or measured where it lacks them."""
    job, at = loop.job, {"kind": "eval", "split": name, "step": loop.state.step}
    rows = [row for row in job.folder.metrics() if all(row.get(key) == value for key, value in at.items())]
    values = {r["weights"]: {k: v for k, v in r.items() if isinstance(v, float) and k != "epoch"} for r in rows}
    if found := job.hosts.share(values):  # of the owner's log
        return found
    # A budget ended between evaluations: a run that goes on must not find this one in its log.
    return {weights: as_json(result.metrics) for weights, result in loop.evaluating.measure(name, split).items()}


def _test(loop: Loop, task: Task, best: dict[str, Any] | None) -> tuple[dict[str, Any], Evaluation | None, list[str]]:
    """The test of a finished run on all splits that it neither trained on nor chose by.

    Returns ({split: {weights: metrics}}, the result on "test" of the best weights, else of the last, notes).
    """
    job, state = loop.job, loop.state
    entries, notes = dict[str, Any](), list[str]()
    shown: dict[str, Evaluation] = {}
    last = state.best is not None and state.best["step"] == state.step
    examine = task.able(Examines).examine
    for name, split in job.data.splits.items():
        if name in ("train", "validation"):
            continue
        results = loop.evaluating.measure_and_log(name, split, {_best_kind(loop): task} if last else {})
        entries[name] = {"last" if w == "raw" else "last_ema": as_json(r.metrics) for w, r in results.items()}
        shown[name] = results["raw"]
        if state.best is not None and best is not None:
            if last:
                shown[name] = results[_best_kind(loop)]
            else:
                shown[name] = job.evaluator.measure(_on_devices(loop, best), split, job.run.batch, examine)
            entries[name]["best"] = as_json(shown[name].metrics)
        notes += shown[name].notes
        if chance := job.task.able(Examines).at_chance(split, shown[name]):
            remedy = "nothing was learned: try another `optim.lr`, more `epochs`, and look at the labels"
            notes.append(f"on {name} {chance}: {remedy}")
    decided = job.task.able(Calibrates).decides
    if decided and "validation" not in job.data.splits:
        what = " and ".join(f"no {each}" for each in decided)
        notes.append(f"{what}: there is no validation split to choose them on")
    return entries, shown.get("test"), [*dict.fromkeys(notes)]


def show_again(folder: runs.Run, summary: dict[str, Any]) -> None:
    """Print the results of a finished run; its hooks do what is missing if its end was killed before that."""
    try:
        Hooks(folder.config()).each("end", folder, True)
    except UserError as error:  # such as a hook that is installed no more
        print_note(str(error))
    show(folder, summary)


def _speeds(rows: list[dict[str, Any]]) -> dict[str, float]:
    """Of the rows of a log {"tokens_per_second" and "mfu": the median, "padding": the mean}, as far as it has them."""
    found = {}
    for name, middle in ((TOKENS, statistics.median), ("padding", statistics.fmean), ("mfu", statistics.median)):
        if values := [row[name] for row in rows if row["kind"] == "train" and row.get(name) is not None]:
            found[name] = middle(values)
    return found


def draw(loop: Loop, task: Task, result: Evaluation | None, parameters: dict[str, Any], best: bool) -> str:
    """Draw the training curves and the task's figures."""
    from ..figures.figure import weights_caption
    from ..models.state import merge

    job, state = loop.job, loop.state
    for folder in (job.folder.plots, job.folder.samples):
        folder.mkdir(exist_ok=True)
    step = state.best["step"] if state.best else None
    draw_curves_of(job.run, job.folder.metrics(), job.folder.plots / "curves.png", job.task.selection_metric[0], step)
    caption = weights_caption("last", "raw", state.step, job.epochs_of(state.step))
    if best and step is not None:
        caption = weights_caption("best", _best_kind(loop), step, step / job.order.steps_per_epoch)
    data = job.data
    network = merge(job.evaluator.definition, parameters)
    draws = task.able(Draws)
    sample, parts = draws.network(network, data, job.folder.plots, job.folder.samples, caption)
    job.hooks.each("drawn", job.folder.plots, parts)
    if result is not None:
        measured = f"test split, {caption}"
        _, parts = draws.result(data.splits["test"], result, data.metadata(), job.folder.plots, measured)
        job.hooks.each("drawn", job.folder.plots, parts)
    for name, each in CAPABILITIES.items():
        with blaming(name, goes_on=True):
            job.hooks.each("drawn", job.folder.plots, each.draw(task, network, data, result, job.folder.plots, caption))
    return sample


def _calibrate(loop: Loop, best: dict[str, Any] | None) -> tuple[dict[str, Any] | None, Task]:
    """(what summary.json keeps of what validation decides for the best weights, the task that reads outputs so)."""
    job, state = loop.job, loop.state
    validation, calibrates = job.data.splits.get("validation"), job.task.able(Calibrates)
    if best is None or state.best is None or validation is None or not calibrates.decides:
        return None, job.task
    out = job.evaluator.outputs_of(_on_devices(loop, best), validation, job.run.batch)
    entries, task = calibrates.calibrate(validation, out)
    return {"step": state.best["step"], "weights": _best_kind(loop), **entries}, task


def _on_devices(loop: Loop, parameters: dict[str, Any]) -> dict[str, Any]:
    """What `best_weights` returned, as an evaluation takes it."""
    return parameters if loop.job.hosts.several else loop.job.evaluator.to_devices(parameters)


def _best_kind(loop: Loop) -> str:
    """Which weights validation chose, "raw" or "ema"."""
    return (loop.state.best or {}).get("weights", "ema" if loop.job.run.ema else "raw")


def best_weights(loop: Loop) -> dict[str, Any] | None:
    """The weights with the best validation; None without validation, or, with a printed reason, if they are lost."""
    job, state = loop.job, loop.state
    if state.best is None:
        return None
    now = _best_of(loop, loop.engine.gather(state.tree))
    if state.best["step"] == state.step:
        return now
    read, reason = None, ""
    try:
        if job.hosts.owner:
            read = _best_of(loop, loop.checkpoints.read(state.best["step"], job.run.model.shapes()).state)
    except UserError as error:
        reason = str(error)
    if reason := job.hosts.share(reason):
        print(f"skipped  the test of the best weights: {printable(reason)}")
        return None
    return loop.engine.devices.broadcast(read, now) if job.hosts.several else read


def _best_of(loop: Loop, state: SavedState) -> dict[str, Any]:
    """The weights of a state, or their average, whichever validation chose."""
    averaged = state.averaged
    return averaged if _best_kind(loop) == "ema" and averaged is not None else state.parameters


def whole(loop: Loop, weights: dict[str, Any] | None) -> dict[str, Any]:
    """These weights as a network on this host takes them, or the last if there are none; of use at the owner only."""
    import jax

    job, state = loop.job, loop.state
    tree = loop.engine.gather(state.tree).parameters if weights is None else weights
    tree = loop.engine.devices.to_host(tree) if job.hosts.several else tree
    return jax.tree.map(jax.numpy.asarray, tree) if job.hosts.owner else {}


def _shown(value: float | None) -> str:
    """A metric in print; of one without a value the notes say why."""
    return "-" if value is None else f"{value:.4f}"


def describe_calibration(found: dict[str, Any]) -> str:
    """What validation has decided, in a line."""
    words = [f"temperature {found['temperature']:.4g}"] if found["temperature"] else []
    words += [f"{len(found['thresholds']):,} thresholds"] if found["thresholds"] else []
    by = f"by {found['examples']:,} examples of validation, for the best weights"
    return "; ".join([f"{' and '.join(words)} {by}" if words else "nothing", *found["notes"]])


def _given_in_python(run: RunConfig) -> bool:
    """Whether the run's data was given in Python, so that no command can open it."""
    return run.data.source == run.data.given


def _going_on(folder: runs.Run, run: RunConfig) -> str:
    """How to continue a run."""
    if _given_in_python(run) and folder.exists() and folder.record()["data"].get("once"):
        return "nothing: the batches of an iterator come once, so a new run has to begin"
    if _given_in_python(run):
        return "the same call of vit_jax.train, with the same data"
    return f"python -m vit_jax.train --resume {shlex.quote(str(folder))}"


def show(folder: runs.Run, summary: dict[str, Any]) -> None:
    """Print the results of a run, the folder of its figures, and commands to go on with."""
    run = folder.config()
    names = task_spec(run.task).main_metrics
    for split, results in splits(summary).items():
        for weights, m in results.items():
            values = "  ".join(f"{word} {_shown(m[name])}" for name, word in names.items() if name in m)
            print(printable(f"{split:10} {'last' if weights == 'raw' else weights:8} {values}"))
    if TOKENS in summary:
        share = summary["padding"]
        print(f"speed      {summary[TOKENS]:,.0f} target tokens a second; {share:.1%} of the batches' ids are padding")
    if "mfu" in summary:
        print(f"speed      MFU {summary['mfu']:.1%}: the share of the devices' peak in bfloat16 that was used")
    if calibration := summary.get("calibration"):
        print(printable(f"calibrated {describe_calibration(calibration)}"))
    for note in summary.get("notes", ()):
        print_wrapped(printable(f"note       {note}"))
    if best := summary.get("best"):
        kind = {"raw": " (raw weights)", "ema": " (averaged weights)"}.get(best.get("weights", ""), "")
        print(f"best       step {best['step']}{kind}, chosen by validation")
    print(
        f"{printable(summary['status'])} at step {summary['step']} after {summary['seconds']:.0f} s; "
        f"figures are in {folder}/plots"
    )
    others = {"tensorboard": "events for TensorBoard", HISTOGRAMS: "histograms", "wandb": "W&B's own files"}
    for name, what in others.items():
        if (folder.path / name).exists():
            print(f"written    {folder}/{name}: {what}")
    path = shlex.quote(str(folder))
    print("next:")
    if sample := summary.get("sample"):
        file = folder.path / sample
        given = (str if is_kept(str(folder)) else show_path)(file) if file.is_file() else sample
        print(printable(f"  python -m vit_jax.predict {path} {shlex.quote(given)}"))
    python = _given_in_python(run)
    print(f"  vit_jax.evaluate({str(folder)!r}, data=...)" if python else f"  python -m vit_jax.evaluate {path}")
    if summary["status"] != "finished":
        more = " --max-steps 0" if summary["status"] == "stopped: max_steps" and not python else ""
        print(f"  {_going_on(folder, run)}{more}")
    show_figures(folder.plots)


def sum_up(inside: Sequence[runs.Run], summaries: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Write, draw and print what the runs of a group have come to; returns the content of its summary.json."""
    group, kind = runs.Run(inside[0].path.parent), kind_of(inside[0].path)
    summary: dict[str, Any] = {
        "status": ", ".join(sorted({each["status"] for each in summaries})),
        f"{kind}s": [value_at(folder.config(), VARIED[kind]) for folder in inside],
        "metrics": spread_of(summaries),
    }
    group.write_summary(summary, {})
    print(f"\n{group}: {len(inside)} {kind}s, mean and standard deviation")
    printed = ("seconds", *task_spec(inside[0].config().task).main_metrics)
    for name, row in summary["metrics"].items():
        if name.endswith(printed):
            print(f"  {name:28} {row['mean']:.4f} +- {row['std']:.4f}")
    compare.draw(gather([str(group.path)]), group.plots / "curves.png")
    print(f"the curves of all {kind}s are in {group}/plots/curves.png")
    Hooks(inside[0].config()).each("end", group, False)
    publish_several(group.path)
    return summary


def spread_of(summaries: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """{metric: {"mean", "std" (with n-1), "values"}} of the numbers that all summaries have."""
    rows = list[dict[str, float]]()
    for summary in summaries:
        values = flatten({**splits({**summary}), "seconds": summary["seconds"]}, strict=False).items()
        rows.append({k: float(x) for k, x in values if isinstance(x, (int, float)) and not isinstance(x, bool)})
    return {name: mean_and_spread([row[name] for row in rows]) for name in rows[0] if all(name in row for row in rows)}
