"""What faults cost: the scores that were measured, kept in files, and the prices that follow from them."""

from __future__ import annotations

import json
import statistics
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from digest import alike
from scipy import stats

PRICES = Path(__file__).parent / "prices"  # what is shipped; in own/, which git leaves out, what was measured here
NARROW = 0.01  # an interval within a point of zero: whatever the price is, it is small


@dataclass(frozen=True)
class Price:
    """What a fault costs in a metric: the mean over seeds of (right - with the fault), and its 95 % interval."""

    mean: float
    low: float
    high: float

    @property
    def verdict(self) -> str:
        """What the measurement allows to say."""
        if self.low > 0:
            return "costs"
        if self.high < 0:
            return "gains"
        return "next to nothing" if max(-self.low, self.high) <= NARROW else "unclear"


def price(right: list[float], fault: list[float]) -> Price:
    """The price of a fault from the values of the same seeds without and with it (Student's t of the differences)."""
    differences = [a - b for a, b in zip(right, fault, strict=True)]
    mean, n = statistics.fmean(differences), len(differences)
    half = float(stats.t.ppf(0.975, n - 1)) * statistics.stdev(differences) / n**0.5
    return Price(mean, mean - half, mean + half)


@dataclass(frozen=True)
class Race:
    """What was found: the scores of each variant, and with which another is compared than with the first."""

    scores: dict[str, dict[str, list[float]]]  # {variant: {metric: its value for each seed}}
    against: dict[str, str]
    core_seconds: dict[str, float]
    own: tuple[str, ...] = ()  # the variants that were measured on this machine

    @property
    def metrics(self) -> tuple[str, ...]:
        """Their names, the first one first."""
        return tuple(next(iter(self.scores.values())))

    def right(self, title: str) -> str:
        """The variant with which one is compared; empty if it is itself such a one."""
        first = next(iter(self.scores))
        return "" if title in (first, *self.against.values()) else self.against.get(title, first)

    def price(self, title: str, metric: str = "") -> Price:
        """What a variant costs in a metric (empty: the first)."""
        metric = metric or self.metrics[0]
        return price(self.scores[self.right(title)][metric], self.scores[title][metric])

    def rows(self, metric: str = "") -> list[tuple[str, ...]]:
        """A row for each variant, in percent of a metric (empty: the first).

        It has the variant, mean +- standard deviation over seeds, the price with its interval, and the verdict.
        """
        table = []
        for title, scores in self.scores.items():
            values = scores[metric or self.metrics[0]]
            row = (title, f"{100 * statistics.fmean(values):.2f} +- {100 * statistics.stdev(values):.2f}")
            if self.right(title):
                p = self.price(title, metric)
                table.append((*row, f"{100 * p.mean:+.2f} ({100 * p.low:+.2f} .. {100 * p.high:+.2f})", p.verdict))
            else:
                table.append((*row, "", ""))
        return table

    def markdown(self, *metrics: str) -> str:
        """`rows` as tables of Markdown, one for each metric (none: the first)."""
        tables = []
        for metric in metrics or self.metrics[:1]:
            seeds = len(next(iter(self.scores.values()))[metric])
            head = f"| variant | {metric}, %, mean +- sd of {seeds} seeds | price, points (95 %) | |"
            tables.append("\n".join([head, "|---|---|---|---|", *(f"| {' | '.join(r)} |" for r in self.rows(metric))]))
        if self.own:
            tables.append(f"Measured on this machine: {', '.join(self.own)}.")
        return "\n\n".join(tables)


def known_as(entry: dict[str, Any], stored: dict[str, Any]) -> dict[str, Any]:
    """What is stored of the same variant, whatever its title; else nothing."""
    for each in stored.values():
        if each.get("digest") == entry["digest"] and alike(each["sketch"], entry["sketch"]):
            return dict(each)
    return {}


def with_entry(entries: dict[str, Any], title: str, entry: dict[str, Any]) -> dict[str, Any]:
    """Entries with one more, which takes the place of one of the same digest; other entries keep their titles."""
    rest = {each: its for each, its in entries.items() if its["digest"] != entry["digest"]}
    titles = (title, *(f"{title} ({i})" for i in range(2, len(rest) + 3)))
    return {**rest, next(each for each in titles if each not in rest): entry}


def read(file: Path) -> dict[str, Any]:
    """{title: its entry} of a file of prices; nothing where there is none."""
    return dict(json.loads(file.read_text(encoding="utf-8"))["variants"]) if file.exists() else {}


def write(file: Path, content: dict[str, Any]) -> None:
    """Replace a file of prices, whole."""
    file.parent.mkdir(exist_ok=True)
    whole = file.with_suffix(".new")
    whole.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    whole.replace(file)


def shipped(name: str) -> Race:
    """What everyone gets with the notebooks."""
    content = json.loads((PRICES / f"{name}.json").read_text(encoding="utf-8"))
    variants = content["variants"]
    scores, seconds = ({t: each[part] for t, each in variants.items()} for part in ("scores", "core_seconds"))
    return Race(scores, content["against"], seconds)


if __name__ == "__main__":
    for path in sorted(PRICES.glob("*.json")):
        print(f"### {path.stem}\n\n{shipped(path.stem).markdown()}\n")
