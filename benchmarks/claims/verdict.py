"""What stored figures say about a claim: differences of the same seeds, their intervals, and a verdict."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from scipy import stats

Figures = Mapping[str, Sequence[float]]  # {what was measured: a value for each seed}


@dataclass(frozen=True)
class Comparison:
    """The claim says that the values of `more` are larger than those of `less`."""

    more: str
    less: str
    title: str = ""  # empty: "MORE against LESS"
    unit: str = "points"  # of the differences: points of percent, or that of the values

    def __str__(self) -> str:
        return self.title or f"{self.more} against {self.less}"


@dataclass(frozen=True)
class Claim:
    """A claim, the experiment whose figures test it, and what these have to show."""

    says: str
    experiment: str
    comparisons: tuple[Comparison, ...]


@dataclass(frozen=True)
class Difference:
    """The mean over seeds of (more - less) and its 95 % interval (Student's t of the differences of equal seeds)."""

    mean: float
    low: float
    high: float

    @property
    def verdict(self) -> str:
        if self.low > 0:
            return "holds"
        return "the opposite holds" if self.high < 0 else "not shown"


def difference(comparison: Comparison, figures: Figures) -> Difference:
    """The difference that a comparison is about, in its unit."""
    scale = 100 if comparison.unit == "points" else 1
    pairs = zip(figures[comparison.more], figures[comparison.less], strict=True)
    values = [scale * (more - less) for more, less in pairs]
    mean, n = statistics.fmean(values), len(values)
    half = float(stats.t.ppf(0.975, n - 1)) * statistics.stdev(values) / n**0.5
    return Difference(mean, mean - half, mean + half)


def verdict(claim: Claim, figures: Figures) -> str:
    """One word about the whole claim where all comparisons say the same; else in how many of them it holds."""
    verdicts = [difference(comparison, figures).verdict for comparison in claim.comparisons]
    if len(set(verdicts)) == 1:
        return {"the opposite holds": "does not hold: the opposite does"}.get(verdicts[0], verdicts[0])
    kinds = {"holds": "holds in", "the opposite holds": "the opposite in", "not shown": "not shown in"}
    counts = ", ".join(f"{phrase} {verdicts.count(kind)}" for kind, phrase in kinds.items() if kind in verdicts)
    return (
        f"of {len(verdicts)} comparisons it {counts}"
        if "holds" in verdicts
        else f"of {len(verdicts)} comparisons {counts}"
    )
