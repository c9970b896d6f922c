"""Each network of the notebooks beside what its notebook prints: two tables, and accuracy over core-seconds.

    python -m benchmarks.headlines [RUN ...] [--dir runs] [--note TEXT] [--into FILE.md]

A RUN is a run or a group of seeds, by path or by name inside --dir: what belongs to it is kept as a file in
results/headlines. From all that are kept two tables are made, a row for each network and a row for each run, which
replace those in --into, and the picture, a panel for each network with its notebook's figure as a line: curves are of
validation, or of the training batches where there is none (dashed); a cross is the test split after the last step; the
circle is where the notebook's epochs end, at the cost of an epoch of its recipe here. All say by which recipe of
vit_jax/presets/variants.py a run was trained, whatever its epochs, or else by which settings.

Core-seconds are those of the training steps, without compilation, evaluations and saving. Without validation a run is
known to have passed its notebook's figure only where it ends. The notebook's own runs are not repeated to their end
where that takes hours: their cost is that of an epoch by its recipe, times its epochs.
"""

from __future__ import annotations

import argparse
import functools
import json
import re
import shlex
import statistics
import sys
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))  # the checkout's own code, however this is started

from benchmarks.curve import points
from vit_jax.commands.train import parse
from vit_jax.errors import UserError
from vit_jax.extras.report.tables import command_of
from vit_jax.figures.curves import COLORS, smooth
from vit_jax.figures.figure import GREY, page
from vit_jax.files.atomic import read_json
from vit_jax.files.terminal import run_command
from vit_jax.presets.table import preset
from vit_jax.presets.variants import NOTEBOOKS, VARIANTS, Notebook
from vit_jax.reports.comparison import Line, gather, result_on_test
from vit_jax.runs.values import differences

RESULTS = Path(__file__).parent / "results"
KEPT, PAGE, PICTURE = RESULTS / "headlines", RESULTS / "2026-11-26-headlines.md", "headlines.png"
POINTS = 200  # most that are kept of a curve
NOTEBOOK = "notebook"  # the recipe with the settings of the notebook itself
NETWORKS = (
    "network", "its notebook", "core-seconds of that by its recipe", "ours passes it after", "times cheaper",
    "best of ours",
)  # fmt: skip
RUNS = (
    "run of", "recipe", "epochs", "test", "seeds", "validation", "core-seconds", "passed its notebook after", "config",
    "trained on", "command, after `python -m vit_jax.train`",
)  # fmt: skip
BESIDE = {"data.validation", "seed"}  # what a recipe leaves open
NAMED = 2  # most fields by whose names other settings are told
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
        return self.preset.rpartition("-")[0] if self.preset in VARIANTS else self.preset

    @property
    def recipe(self) -> str:
        """That by which it was trained, or "preset"; or the fields in which it differs, or the digest of its config."""
        run = parse(shlex.split(self.command.partition(";")[0]))[1].run()
        usual = {"preset": preset(self.network)} | {
            name.rpartition("-")[2]: preset(name) for name in VARIANTS if name.rpartition("-")[0] == self.network
        }
        others = {kind: differences(run, each.run).keys() - BESIDE for kind, each in usual.items()}
        nearest = min(others, key=lambda kind: (len(others[kind] - {"epochs"}), len(others[kind])))
        if len(fields := sorted(others[nearest] - {"epochs"})) > NAMED:
            return self.config
        return f"{nearest}, other {' and '.join(fields)}" if fields else nearest

    @property
    def trained(self) -> float:
        """The epochs that it has come to."""
        return self.curves["train"][-1][0]

    @property
    def length(self) -> str:
        """Its epochs in words, with those of its recipe where it has not come to their end."""
        whole = "" if self.trained > self.epochs - 0.01 else f" of {self.epochs}"
        return f"{self.trained:.3g}{whole} epoch{'s' * (whole != '' or self.epochs != 1)}"

    @property
    def label(self) -> str:
        """What tells it from the other runs of its network."""
        return f"{self.recipe}: {self.length}{self.seeds}"

    @property
    def seeds(self) -> str:
        """How many, in words that follow others, where there are several."""
        return f", {len(self.test)} seeds" if len(self.test) > 1 else ""


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
        command=AGAIN.sub("", command_of(line)),
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


def passed(line: Headline) -> tuple[float, float, str] | None:
    """(epoch, core-seconds, split) of when it was first above its notebook's figure: on validation, else on test."""
    if notebook := NOTEBOOKS.get(line.network):
        for split in ("validation", "test"):
            for epoch, seconds, value in line.curves.get(split, ()):
                if value > notebook.accuracy:
                    return epoch, seconds, split
    return None


def price(lines: Sequence[Headline]) -> float | None:
    """The core-seconds of as many epochs as the notebook has, by its recipe; None without a run by it."""
    own = [line for line in lines if line.recipe == NOTEBOOK]
    return own[-1].core_seconds / own[-1].trained * NOTEBOOKS[own[-1].network].epochs if own else None


def network_row(lines: Sequence[Headline]) -> list[str]:
    """The cells of the runs of a network, in the order of NETWORKS."""
    name = lines[0].network
    notebook, cost, ours = NOTEBOOKS[name], price(lines), [line for line in lines if line.recipe != NOTEBOOK]
    passing = [(found[1], _when(*found), line) for line in ours if (found := passed(line))]
    least, when, first = min(passing, key=lambda each: each[0], default=(0.0, "", None))
    tested = max((line for line in ours if line.test), key=lambda line: statistics.fmean(line.test), default=None)
    return [
        f"`{name}`",
        f"{notebook.accuracy:.4g} on {notebook.split}, {notebook.epochs} epochs",
        f"{cost:,.0f}" if cost else "",
        f"{first.recipe}: {when}{first.seeds}" if first else "not passed yet",
        f"{cost / least:.3g}" if cost and first else "",
        f"{tested.label}: **{_mean(tested)}** on test, {tested.core_seconds:,.0f} core-seconds" if tested else "",
    ]


def run_row(line: Headline) -> list[str]:
    """The cells of a run or a group, in the order of RUNS."""
    found = passed(line)
    seen = line.curves.get("validation", ())
    return [
        f"`{line.network}`",
        line.recipe,
        line.length.removesuffix("s").removesuffix(" epoch"),
        _mean(line) if line.test else "",
        f"{max(1, len(line.test))}",
        f"{seen[-1][2]:.4f}" if seen else "",
        f"{line.core_seconds:,.0f}",
        (_when(*found) if found else "not passed") if line.network in NOTEBOOKS else "",
        line.config,
        line.machine + (f"; {line.note}" if line.note else ""),
        f"`{line.command}`",
    ]


def _when(epoch: float, seconds: float, split: str) -> str:
    return f"{epoch:.3g} epoch{'s' * (epoch != 1)}, {seconds:,.0f} core-seconds ({split})"


def _mean(line: Headline) -> str:
    """The mean on test, with the standard deviation of several seeds."""
    spread = f" +- {statistics.stdev(line.test):.4f}" if len(line.test) > 1 else ""
    return f"{statistics.fmean(line.test):.4f}{spread}"


def by_network(lines: Sequence[Headline]) -> dict[str, list[Headline]]:
    """{network: its runs}, in the order of the runs."""
    found: dict[str, list[Headline]] = {}
    for line in lines:
        found.setdefault(line.network, []).append(line)
    return found


def tables(lines: Sequence[Headline]) -> list[str]:
    """The networks of notebooks, then all runs, each as Markdown."""
    networks = [network_row(each) for name, each in by_network(lines).items() if name in NOTEBOOKS]
    return [_markdown(NETWORKS, networks), _markdown(RUNS, map(run_row, lines))]


def _markdown(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (head, ["---"] * len(head), *rows))


def replace_table(text: str, new: str) -> str:
    """A text with the table replaced that has the same titles of two columns; it comes last where there is none."""
    first = "|".join([*new.split("|")[:3], ""])
    if first not in text:
        return f"{text}\n{new}\n"
    before, _, after = text.partition(first)
    rest = after.splitlines(keepends=True)[1:]
    length = next((i for i, each in enumerate(rest) if not each.startswith("|")), len(rest))
    return before + new + "\n" + "".join(rest[length:])


def draw(lines: Sequence[Headline], path: Path) -> None:
    """Draw a panel for each network as a PNG, over core-seconds on a logarithmic axis."""
    networks = by_network(lines)
    columns = min(2, len(networks))
    height = -(-len(networks) // columns)
    with page(path, 5.2 * columns, 4.7 * height) as figure:
        axes = list(figure.subplots(height, columns, squeeze=False).flat)
        for ax in axes[len(networks) :]:
            ax.axis("off")
        for ax, (name, each) in zip(axes, networks.items(), strict=False):
            if notebook := NOTEBOOKS.get(name):
                _plot_notebook(ax, notebook, price(each))
            ours = iter(COLORS)
            for line in each:
                _plot(ax, line, GREY if line.recipe == NOTEBOOK else next(ours))
            ax.set(title=name, xlabel="core-seconds of training steps", ylabel=each[0].metric, xscale="log")
            ax.set_xlim(left=min(line.core_seconds for line in each) / 50)
            ax.xaxis.set_major_formatter("{x:,.10g}")
            ax.legend(loc="upper left", bbox_to_anchor=(0, -0.15), fontsize="small")  # below: curves are everywhere


def _plot_notebook(ax: Any, notebook: Notebook, cost: float | None) -> None:
    label = f"its notebook: {notebook.accuracy:.4g} after {notebook.epochs} epochs ({notebook.split})"
    ax.axhline(notebook.accuracy, color="black", lw=1, ls=":", label=label)
    if cost:
        ax.plot([cost], [notebook.accuracy], color="black", marker="o", mfc="white", ms=7, ls="")


def _plot(ax: Any, line: Headline, color: str) -> None:
    split = "validation" if len(line.curves.get("validation", ())) > 1 else "train"
    _, seconds, values = zip(*line.curves[split], strict=True)
    ls = "-" if split == "validation" else "--"
    ax.plot(seconds, values, color=color, ls=ls, label=f"{line.label} ({split})")
    for _, spent, value in line.curves.get("test", ())[-1:]:
        ax.plot([spent], [value], color=color, marker="x", ms=9, mew=2)


def kept(folder: Path) -> list[Headline]:
    """All that are kept, network by network, those by its notebook's recipe first, then the shortest."""
    found = [Headline(**read_json(file)) for file in sorted(folder.glob("*.json"))]
    order = [*NOTEBOOKS, *sorted({line.network for line in found} - NOTEBOOKS.keys())]
    return sorted(found, key=lambda line: (order.index(line.network), line.recipe != NOTEBOOK, line.epochs))


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
    made = tables(lines)
    into.write_text(functools.reduce(replace_table, made, before), encoding="utf-8")
    print("\n\n".join(made) + f"\n\nwritten to {into}, drawn to {folder / PICTURE}")
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="*", help="runs or groups of seeds, as paths or names inside --dir")
    parser.add_argument("--dir", default="runs", help="folder of all runs")
    parser.add_argument("--note", default="", help="of these runs: what else the machine did")
    parser.add_argument("--into", default=PAGE, help="Markdown file whose tables are replaced")
    parser.add_argument("--kept", default=KEPT, help="folder of what is kept of runs, and of the picture")
    options = parser.parse_args()
    return run_command(lambda: command(options))


if __name__ == "__main__":
    sys.exit(main())
