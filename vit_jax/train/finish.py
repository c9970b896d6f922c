"""The end of a run: test, pictures, summary, and what one may do next."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Any

from .. import runs
from ..config import task_row
from ..errors import Interrupted, UserError
from .loop import chosen_split, evaluate_all
from .session import Session

if TYPE_CHECKING:
    from ..tasks import Evaluation


def finish(s: Session, status: str) -> dict[str, Any]:
    """Read the test split once, draw the pictures, write summary.json and say where things are.

    Raises Interrupted where a signal ended the loop; everything is saved by then.
    """
    if s.caught.name:
        done = f"saved at step {s.step}" if s.saved == s.step else "nothing was to be saved yet"
        raise Interrupted(
            f"{s.caught.name}: {done}; go on with: python -m vit_jax.train --resume {shlex.quote(str(s.folder))}",
            s.caught.name,
        )
    summary: dict[str, Any] = {"status": status, "step": s.step, "epoch": s.epoch, "seconds": s.seconds, "best": s.best}
    watched, split = chosen_split(s)
    if split is not None:
        rows = [r for r in s.folder.metrics() if r["kind"] == "eval" and r.get("split") == watched]
        last = {r["weights"]: r for r in rows}
        summary[watched] = {weights: _numbers(r) for weights, r in last.items()}
    result = None
    for name, part in s.setup.dataset.splits.items():
        if name in ("train", "validation") or status != "finished" or s.run.overfit_batches:
            continue
        results = evaluate_all(s, name, part)
        summary[name] = {"last" if w == "raw" else "last_ema": r.metrics for w, r in results.items()}
        result = results["raw"] if name == "test" else result
        if s.best is not None and (best := _best(s, part, results)) is not None:
            summary[name]["best"] = best.metrics
    summary["sample"] = draw(s, result)
    runs.write_json(s.folder.summary_file, summary)
    show(s.folder, summary)
    return summary


def draw(s: Session, result: Evaluation | None) -> str:
    """The curves, and what the task has to show of the weights; `result` is the evaluation of the test split. Returns something to predict."""
    from ..layers import merge
    from ..report import draw_curves

    for place in (s.folder.plots, s.folder.samples):
        place.mkdir(exist_ok=True)
    draw_curves(s.folder.metrics(), s.folder.plots / "curves.png", s.run.loss.label_smoothing, s.task.chosen[0])
    network = merge(s.engine.definition, s.engine.gather(s.state).parameters)
    return s.task.pictures(network, s.setup.dataset, result, s.folder)


def _best(s: Session, test: Any, results: dict[str, Evaluation]) -> Evaluation | None:
    """The test result of the weights that validation chose; None, and a line that says so, where they are lost."""
    assert s.best is not None
    if s.best["step"] == s.step:
        return results.get("ema", results["raw"])
    try:
        saved = s.checkpoints.read(s.best["step"], runs.flatten(s.engine.gather(s.state).parameters))
    except UserError as error:
        print(f"skipped  the test of the best weights: {error}")
        return None
    tree = saved.state.ema if saved.state.ema is not None else saved.state.parameters
    return s.setup.evaluator.evaluate(s.setup.evaluator.place(tree), test, s.run.batch)


def _numbers(row: dict[str, Any]) -> dict[str, float]:
    return {k: v for k, v in row.items() if isinstance(v, float) and k != "epoch"}


def splits(summary: dict[str, Any]) -> dict[str, dict[str, dict[str, float]]]:
    """The results in a summary, {split: {weights: metrics}}, train and validation first."""
    found = {
        name: value
        for name, value in summary.items()
        if isinstance(value, dict) and all(isinstance(each, dict) for each in value.values())
    }
    return {name: found[name] for name in dict.fromkeys(("train", "validation", *found)) if name in found}


def show(folder: runs.Run, summary: dict[str, Any]) -> None:
    """The result, where things are, and what one may do next."""
    headlines = task_row(folder.config().task).headlines
    for split, results in splits(summary).items():
        for weights, m in results.items():
            told = "  ".join(f"{word} {m[name]:.4f}" for name, word in headlines.items() if name in m)
            print(f"{split:10} {'last' if weights == 'raw' else weights:8} {told}")
    print(
        f"{summary['status']} at step {summary['step']} after {summary['seconds']:.0f} s; pictures are in {folder}/plots"
    )
    place = shlex.quote(str(folder))
    print("next:")
    if sample := summary.get("sample"):
        file = folder.path / sample
        print(f"  python -m vit_jax.predict {place} {shlex.quote(str(runs.Run(file)) if file.is_file() else sample)}")
    print(f"  python -m vit_jax.evaluate {place}")
    if summary["status"] != "finished":
        more = " --max-steps 0" if summary["status"] == "stopped: max_steps" else ""
        print(f"  python -m vit_jax.train --resume {place}{more}")
