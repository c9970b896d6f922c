"""The claims with their figures and verdicts: as Markdown, and as a picture."""

from __future__ import annotations

import statistics
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from vit_jax.figures.figure import BLUE, GREY, ORANGE, AnyPath, page

from .session import RESULTS, stored
from .verdict import Claim, Comparison, Figures, difference, verdict

COLORS = {"holds": BLUE, "the opposite holds": ORANGE, "not shown": GREY}
SAID = ("the claim holds", "the opposite holds", "neither is shown")


def figures(content: dict[str, Any]) -> Figures:
    """The figures of what an experiment has stored."""
    return {title: each["values"] for title, each in content["figures"].items()}


def core_seconds(content: dict[str, Any]) -> int:
    """The CPU time of a whole experiment, with compilation and tests."""
    return round(sum(each["core_seconds"] for each in content["figures"].values()))


def markdown(claims: Iterable[Claim], folder: Path = RESULTS) -> str:
    """A table of all claims, then a table of the comparisons of each. Raises FileNotFoundError without figures."""
    claims = list(claims)
    contents = {claim.experiment: stored(claim.experiment, folder) for claim in claims}
    lines = ["| claim | verdict | command, after `python -m benchmarks.claims` | core-seconds |", "|---|---|---|---|"]
    for claim in claims:
        content = contents[claim.experiment]
        found = verdict(claim, figures(content))
        lines.append(f"| {claim.says} | **{found}** | `{claim.experiment}` | {core_seconds(content):,} |")
    for claim in claims:
        lines += ["", f"### {claim.says}", "", *comparisons(claim, figures(contents[claim.experiment]))]
    return "\n".join(lines)


def comparisons(claim: Claim, values: Figures) -> list[str]:
    """The lines of a claim's table: what is compared, both means, the difference with its interval, what it says."""
    seeds = len(values[claim.comparisons[0].more])
    lines = [f"| compared | mean +- sd of {seeds} seeds | difference (95 %) | |", "|---|---|---|---|"]
    for each in claim.comparisons:
        found = difference(each, values)
        sides = " against ".join(spread(values[side], each.unit) for side in (each.more, each.less))
        mean, low, high = (number(x, each.unit, "+") for x in (found.mean, found.low, found.high))
        interval = f"{mean} ({low} .. {high}) {each.unit}"
        lines.append(f"| {each} | {sides} | {interval} | {found.verdict} |")
    return lines


def spread(values: Iterable[float], unit: str) -> str:
    """The mean and the standard deviation over seeds; of points in percent."""
    values = [100 * v if unit == "points" else v for v in values]
    mean, deviation = (number(x, unit) for x in (statistics.fmean(values), statistics.stdev(values)))
    return f"{mean} +- {deviation}{' %' if unit == 'points' else ''}"


def number(x: float, unit: str, sign: str = "-") -> str:
    """Points to two decimals, other units to three digits; sign "+" states that of positive ones too."""
    return f"{x:{sign}.2f}" if unit == "points" else f"{x:{sign}.3g}"


def draw(claims: Iterable[Claim], path: AnyPath, folder: Path = RESULTS) -> None:
    """Draw the differences of all comparisons in points with their intervals, below each claim, as a PNG."""
    rows: list[tuple[str, Comparison | None, Figures]] = []
    for claim in claims:
        pointed = [each for each in claim.comparisons if each.unit == "points"]
        values = figures(stored(claim.experiment, folder))
        if pointed:
            rows.append((claim.says, None, values))
        rows += [(str(each), each, values) for each in pointed]
    with page(path, 11, 0.24 * len(rows) + 1.2) as figure:
        ax = figure.subplots()
        ax.axvline(0, color="#000000", lw=0.8)
        for y, (_, each, values) in enumerate(rows):
            if each is not None:
                found = difference(each, values)
                color = COLORS[found.verdict]
                ax.plot([found.low, found.high], [y, y], color=color, lw=2, solid_capstyle="butt")
                ax.plot(found.mean, y, "o", color=color, ms=5)
        ax.set_yticks(range(len(rows)), [title for title, *_ in rows])
        for label, (_, each, _) in zip(ax.get_yticklabels(), rows, strict=True):
            label.set_fontweight("bold" if each is None else "normal")
            label.set_fontsize(8.5)
        ax.set_ylim(len(rows) - 0.4, -0.6)
        ax.set_xscale("symlog", linthresh=5)
        figure.supxlabel(
            "first minus second, in points of accuracy (digits: of right strings); mean, 95 % interval", fontsize=9
        )
        ax.set_xticks([-50, -20, -5, -2, 0, 2, 5, 20, 50], [-50, -20, -5, -2, 0, 2, 5, 20, 50])
        ax.minorticks_off()
        handles = [ax.plot([], [], "o-", color=color, lw=2)[0] for color in COLORS.values()]
        figure.legend(handles, SAID, loc="outside upper center", ncols=3, fontsize=9)
