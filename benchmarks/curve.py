"""Accuracy, or BLEU, over core-seconds: what runs have learned for the CPU time that their training steps took.

    python -m benchmarks.curve RUN [RUN ...] [--dir runs] [--out curve.png]

A RUN is a run or a group of seeds, by path or by name inside --dir. The CPU time is the `cpu_seconds` of metrics.jsonl:
of all threads, without compilation, evaluations and saving. The metric is the one by which the runs choose their best
weights, on validation; of a run without validation, on its training batches (dashed). A cross is the test split after
the last step. Groups are drawn as the mean over their seeds with a band of one standard deviation. The values are
printed too.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))  # the checkout's own code, however this is started

from vit_jax.errors import UserError
from vit_jax.figures.curves import COLORS, smooth
from vit_jax.figures.figure import page
from vit_jax.files.output import shorten
from vit_jax.files.terminal import run_command
from vit_jax.reports.comparison import Line, Member, gather

Points = dict[int, tuple[float, float]]  # {step: (core-seconds, accuracy)}


def points(member: Member, split: str) -> Points:
    """The accuracy of a run on a split ("train": its training batches), at the steps whose CPU time is known."""
    training = [r for r in member.rows if r["kind"] == "train"]
    whole = all("cpu_seconds" in r for r in training)  # not of a run that an older version began
    spent = {r["step"]: r["cpu_seconds"] for r in training if whole and r["cpu_seconds"]}
    if split == "train":
        rows = training
    else:
        rows = [r for r in member.rows if r.get("split") == split and r["weights"] == member.kind]
    known = [r for r in rows if r["step"] in spent and isinstance(r.get(member.metric), float)]
    return {r["step"]: (spent[r["step"]], r[member.metric]) for r in known}


def averaged(line: Line, split: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(core-seconds, accuracy, its standard deviation), each [points], over the seeds at the steps that all have."""
    each = [points(member, split) for member in line.members]
    steps = sorted(set(each[0]).intersection(*each[1:]))
    table = np.array([[p[step] for step in steps] for p in each], np.float64).reshape(len(each), len(steps), 2)
    return table[..., 0].mean(0), table[..., 1].mean(0), table[..., 1].std(0, ddof=min(1, len(each) - 1))


def draw(lines: list[Line], path: Path) -> None:
    """Draw the curves as a PNG. Raises UserError where a run has logged no CPU time, or they differ in their metric."""
    metrics = {member.metric: line.name for line in lines for member in line.members}
    if len(metrics) > 1:
        (one, first), (other, second), *_ = metrics.items()
        raise UserError(f"{first} is judged by {one} and {second} by {other}", remedy="draw them into two pictures")
    metric = next(iter(metrics)).replace("_", " ").replace("bleu", "BLEU")
    with page(path, 8, 5) as figure:
        ax = figure.subplots()
        for i, line in enumerate(lines):
            color, name = COLORS[i % len(COLORS)], shorten(line.name, 48)
            split = "validation" if averaged(line, "validation")[0].size else "train"
            seconds, values, spread = averaged(line, split)
            if not seconds.size:
                raise UserError(
                    line.name,
                    "its metrics.jsonl has no cpu_seconds, or not in all rows",
                    "train it again with this version of vit-jax",
                )
            shown = smooth(values, len(values) // 25) if split == "train" else values
            ls, marker = ("--", "") if split == "train" else ("-", "o" if len(values) <= 40 else "")
            ax.plot(seconds, shown, color=color, ls=ls, marker=marker, ms=3.5, label=name + f" ({split})")
            if len(line.members) > 1:
                ax.fill_between(seconds, shown - spread, shown + spread, color=color, alpha=0.18, lw=0)
            text = f"{line.name}: {split} {values[-1]:.4f} after {seconds[-1]:,.0f} core-seconds"
            tested = averaged(line, "test")
            if tested[0].size:
                ax.plot(tested[0][-1:], tested[1][-1:], color=color, marker="x", ms=9, mew=2)
                text += f", test {tested[1][-1]:.4f}"
                if len(line.members) > 1:
                    text += f" +-{tested[2][-1]:.4f}"
            print(text)
        title = f"{metric[0].upper()}{metric[1:]} over CPU time"
        ax.set(title=title, xlabel="core-seconds of training steps", ylabel=metric, xlim=(0, None))
        ax.legend(loc="lower right")


def command(o: Any) -> int:
    found = gather(o.runs, o.dir)
    draw(found.lines, Path(o.out))
    for note in found.notes:
        print(f"note: {note}")
    print(f"drawn to {o.out}; a cross is the test split")
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", help="runs or groups of seeds, as paths or names inside --dir")
    parser.add_argument("--dir", default="runs", help="folder of all runs")
    parser.add_argument("--out", default="curve.png", help="PNG file")
    options = parser.parse_args()
    return run_command(lambda: command(options))


if __name__ == "__main__":
    sys.exit(main())
