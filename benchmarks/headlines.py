"""Each network of the notebooks beside what its notebook prints: a table, and accuracy over core-seconds.

    python -m benchmarks.headlines [RUN ...] [--dir runs] [--note TEXT] [--into FILE.md]

A RUN is a run or a group of seeds, by path or by name inside --dir: what belongs to it is kept as a file in
results/headlines. From all that are kept the table is made, a row for each, which replaces the one in --into, and the
picture, a panel for each network with its notebook's figure as a line: curves are of validation, or of the training
batches where there is none (dashed); a cross is the test split after the last step. Both say by which recipe of
vit_jax/presets/recipes.py a run was trained, whatever its epochs, or else by which settings.

Core-seconds are those of the training steps, without compilation, evaluations and saving. Without validation a run is
known to have passed its notebook's figure only where it ends.
"""

from __future__ import annotations

import argparse
import json
import re
import shlex
import statistics
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))  # the checkout's own code, however this is started

from benchmarks.curve import points
from vit_jax.commands.train import parse
from vit_jax.errors import UserError
from vit_jax.figures.comparison import COLORS
from vit_jax.figures.curves import smooth
from vit_jax.figures.figure import page
from vit_jax.files.atomic import read_json
from vit_jax.files.terminal import run_command
from vit_jax.presets.recipes import NOTEBOOKS, RECIPES
from vit_jax.presets.table import preset
from vit_jax.reports.comparison import Line, gather, result_on_test
from vit_jax.reports.tables import commands_of
from vit_jax.runs.values import differences

RESULTS = Path(__file__).parent / "results"
KEPT, PAGE, PICTURE = RESULTS / "headlines", RESULTS / "2026-11-26-headlines.md", "headlines.png"
POINTS = 200  # most that are kept of a curve
HEAD = (
    "network", "its notebook", "recipe", "epochs", "test", "core-seconds", "passed its notebook after", "seeds",
    "config", "trained on", "command, after `python -m vit_jax.train`",
)  # fmt: skip
BESIDE = {"data.validation", "seed"}  # what a recipe leaves open
AGAIN = re.compile(r"^python -m vit_jax\.train | --name \S+-again")  # what a command has besides preset and settings


@dataclass(frozen=True)
class Headline:
    """What is kept of a run, or of a group of seeds."""

    preset: str
    epochs: int
    status: str
    metric: str
    test: list[float]  # of each seed
    core_seconds: float  # the mean over the seeds, as in the curves
    config: str  # the beginning of the digest of the first config.json
    machine: str
    command: str
    note: str  # what else was going on, such as other programs
    curves: dict[str, list[list[float]]]  # {split: [[epoch, core-seconds, value], ...]}

    @property
    def network(self) -> str:
        """The preset without its recipe."""
        return RECIPES[self.preset][0] if self.preset in RECIPES else self.preset

    @property
    def recipe(self) -> str:
        """That by which it was trained, or "preset"; with other settings than these the digest of its config."""
        run = parse(shlex.split(self.command.partition(";")[0]))[1].run()
        usual = {"preset": preset(self.network)} | {
            kind: preset(name) for name, (base, kind) in RECIPES.items() if base == self.network
        }
        others = {kind: differences(run, each.run).keys() - BESIDE for kind, each in usual.items()}
        return min(
            (kind for kind in others if others[kind] <= {"epochs"}),
            key=lambda kind: len(others[kind]),
            default=self.config,
        )

    @property
    def label(self) -> str:
        """What tells it from the other runs of its network."""
        seeds = f", {len(self.test)} seeds" if len(self.test) > 1 else ""
        return f"{self.recipe}: {self.epochs} epoch{'s' * (self.epochs != 1)}{seeds}"


def headline(line: Line, note: str = "") -> Headline:
    """What is kept of a run or a group. Raises UserError where it has logged no CPU time."""
    member = line.members[0]
    record, curves = member.folder.record(), {split: curve(line, split) for split in ("train", "validation", "test")}
    if not curves["train"]:
        raise UserError(line.name, "its metrics.jsonl has no cpu_seconds", "train it with this version of vit-jax")
    environment, versions = record["environment"], record["environment"]["versions"]
    names = ("python", "jax", "flax", "optax")
    return Headline(
        preset=str(record["preset"]),
        epochs=member.run.epochs,
        status=member.ended,
        metric=member.metric,
        test=[float(x) for each in line.members if (x := result_on_test(each.summary or {}).get(member.metric))],
        core_seconds=curves["train"][-1][1],
        config=str(read_json(member.folder.config_file)["digest"])[:8],
        machine=f"{environment['cpu']}, {environment['cores']} cores; "
        + ", ".join(f"{name} {versions[name]}" for name in names),
        command="; ".join(AGAIN.sub("", command) for command in commands_of(line)),
        note=note,
        curves={split: points for split, points in curves.items() if points},
    )


def curve(line: Line, split: str) -> list[list[float]]:
    """[epoch, core-seconds, value] at each step at which a split was measured, of the training batches smoothed."""
    each = [points(member, split) for member in line.members]
    steps = sorted(set(each[0]).intersection(*each[1:]))
    if not steps:
        return []
    epochs = {row["step"]: row["epoch"] for row in line.members[0].rows if "epoch" in row}
    found = np.array([[p[step] for step in steps] for p in each]).mean(0)  # [points, 2]
    if split == "train":
        found[:, 1] = smooth(found[:, 1], len(found) // 25)
    shown = np.unique(np.linspace(0, len(steps) - 1, min(POINTS, len(steps))).round().astype(int))
    return [[round(epochs[steps[i]], 3), round(found[i, 0], 1), round(found[i, 1], 5)] for i in shown]


def passed(line: Headline) -> str:
    """When it was first above its notebook's figure: on validation, else on test."""
    if not (notebook := NOTEBOOKS.get(line.network)):
        return ""
    for split in ("validation", "test"):
        for epoch, seconds, value in line.curves.get(split, ()):
            if value > notebook.accuracy:
                return f"{epoch:.3g} epoch{'s' * (epoch != 1)}, {seconds:,.0f} core-seconds ({split})"
    return "not passed"


def row(line: Headline) -> list[str]:
    """The cells of a run or a group, in the order of HEAD."""
    notebook = NOTEBOOKS.get(line.network)
    return [
        f"`{line.network}`",
        f"{notebook.accuracy:.4g} on {notebook.split}, {notebook.epochs} epochs" if notebook else "",
        line.recipe,
        f"{line.epochs}" if line.status == "finished" else f"{line.epochs} ({line.status})",
        f"**{statistics.fmean(line.test):.4f}**" if line.test else "",
        f"{line.core_seconds:,.0f}",
        passed(line),
        f"{len(line.test)}" + (f" (+-{statistics.stdev(line.test):.4f})" if len(line.test) > 1 else ""),
        line.config,
        line.machine + (f"; {line.note}" if line.note else ""),
        f"`{line.command}`",
    ]


def table(lines: Sequence[Headline]) -> str:
    """All rows as Markdown."""
    rows = [HEAD, ["---"] * len(HEAD), *map(row, lines)]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in rows)


def replace_table(text: str, new: str) -> str:
    """A text with its table of headlines replaced; the table comes last where there is none."""
    first = f"| {' | '.join(HEAD[:2])} |"  # the other columns may have been others
    if first not in text:
        return f"{text}\n{new}\n"
    before, _, after = text.partition(first)
    rest = after.splitlines(keepends=True)[1:]
    length = next((i for i, each in enumerate(rest) if not each.startswith("|")), len(rest))
    return before + new + "\n" + "".join(rest[length:])


def draw(lines: Sequence[Headline], path: Path) -> None:
    """Draw a panel for each network as a PNG."""
    networks: dict[str, list[Headline]] = {}
    for line in lines:
        networks.setdefault(line.network, []).append(line)
    columns = min(2, len(networks))
    height = -(-len(networks) // columns)
    with page(path, 6.5 * columns, 4.2 * height) as figure:
        axes = list(figure.subplots(height, columns, squeeze=False).flat)
        for ax in axes[len(networks) :]:
            ax.axis("off")
        for ax, (name, each) in zip(axes, networks.items(), strict=False):
            if notebook := NOTEBOOKS.get(name):
                label = f"its notebook: {notebook.accuracy:.4g} after {notebook.epochs} epochs ({notebook.split})"
                ax.axhline(notebook.accuracy, color="black", lw=1, ls=":", label=label)
            for color, line in zip(COLORS, each, strict=False):
                _plot(ax, line, color)
            ax.set(title=name, xlabel="core-seconds of training steps", ylabel=each[0].metric, xlim=(0, None))
            ax.legend(loc="lower right", fontsize="small")


def _plot(ax: Any, line: Headline, color: str) -> None:
    split = "validation" if "validation" in line.curves else "train"
    _, seconds, values = zip(*line.curves[split], strict=True)
    ls = "-" if split == "validation" else "--"
    ax.plot(seconds, values, color=color, ls=ls, label=f"{line.label} ({split})")
    for _, spent, value in line.curves.get("test", ())[-1:]:
        ax.plot([spent], [value], color=color, marker="x", ms=9, mew=2)


def kept(folder: Path) -> list[Headline]:
    """All that are kept, network by network, the shortest first."""
    found = [Headline(**read_json(file)) for file in sorted(folder.glob("*.json"))]
    order = [*NOTEBOOKS, *sorted({line.network for line in found} - NOTEBOOKS.keys())]
    return sorted(found, key=lambda line: (order.index(line.network), line.epochs))


def command(o: Any) -> int:
    folder, into = Path(o.kept), Path(o.into)
    if o.runs:
        folder.mkdir(parents=True, exist_ok=True)
        for line in gather(o.runs, o.dir).lines:
            text = json.dumps(asdict(headline(line, o.note)))
            (folder / f"{Path(line.name).name}.json").write_text(text + "\n", encoding="utf-8")
    lines = kept(folder)
    if not lines:
        raise UserError("no run is kept yet", remedy="name one")
    draw(lines, folder / PICTURE)
    before = into.read_text(encoding="utf-8") if into.exists() else "# Headlines\n"
    into.write_text(replace_table(before, table(lines)), encoding="utf-8")
    print(f"{table(lines)}\n\nwritten to {into}, drawn to {folder / PICTURE}")
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="*", help="runs or groups of seeds, as paths or names inside --dir")
    parser.add_argument("--dir", default="runs", help="folder of all runs")
    parser.add_argument("--note", default="", help="of these runs: what else the machine did")
    parser.add_argument("--into", default=PAGE, help="Markdown file whose table is replaced")
    parser.add_argument("--kept", default=KEPT, help="folder of what is kept of runs, and of the picture")
    options = parser.parse_args()
    return run_command(lambda: command(options))


if __name__ == "__main__":
    sys.exit(main())
