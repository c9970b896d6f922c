"""All that a report shows of runs, and what is missing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ...files.metrics import spelled_out
from ...files.reading import bounded_lines, open_regular
from ...reports.comparison import Comparison, Member, is_number
from . import charts, parts, tables
from .charts import Chart, charts_of
from .tables import Table

FIGURE_FILES = ("classes", "sections", "texts", "explanations", "attention", "positions")  # what keep.py writes


@dataclass
class PageContents:
    """All that a page shows."""

    title: str
    single: bool
    headlines: list[tuple[str, str]]  # (what, value)
    differing: Table
    results: Table
    charts: list[Chart]
    tables: list[Table]  # cost, versions, certificates
    settings: Table
    commands: list[tuple[str, str]]  # (of which run, the command that repeats it)
    missing: list[str]
    classes: dict[str, Any] | None = None
    matrix: Any = None  # JSON values
    sections: list[dict[str, Any]] | None = None
    texts: dict[str, Any] | None = None
    explanations: list[dict[str, Any]] | None = None
    attention: dict[str, Any] | None = None
    positions: dict[str, Any] | None = None


def contents_of(found: Comparison) -> PageContents:
    """What the report of runs shows: of several what differs, of one also what its network learned."""
    first = found.lines[0]
    single = len(found.lines) == 1 and not first.group
    drawn, thinned = charts_of(found, single)
    out = PageContents(
        title=first.name if len(found.lines) == 1 else f"{len(found.lines)} runs compared",
        single=single,
        headlines=tables.headlines(first.members[0]) if single else [],
        differing=tables.from_preset(first.members[0]) if len(found.lines) == 1 else tables.differing(found),
        results=tables.results(found),
        charts=drawn,
        tables=[tables.cost(found), tables.versions(found), *tables.certificates(found)],
        settings=tables.settings(found),
        commands=[(line.name, tables.command_of(line)) for line in found.lines],
        missing=[*found.notes, *thinned],
    )
    for line in found.lines:
        out.missing += [f"{member.folder}: {clause}" for member in line.members for clause in _faults(member)]
        if stages := line.members[0].run.stages:
            out.missing.append(
                f"{line.name}: training curves jump wherever a stage begins (`stages {' '.join(stages)}`)"
            )
    if single:
        _add_network(out, first.members[0])
    else:
        out.missing.append("classes, errors and attention are in the report.html of each run")
    return out


def _faults(member: Member) -> list[str]:
    """What of a run's log is missing, or is not as its command would have it, a clause each."""
    out = []
    ends = [row["step"] for row in member.rows if row["kind"] == "eval" and row.get("split") == "test"]
    if ends and ends[0] < member.rows[-1]["step"]:
        what = (
            f"it ended at step {ends[0]:,} and was trained on, with the rates of {member.run.epochs} epochs from there"
        )
        out.append(f"{what}, which its command has from the first step")
    for name in ("loss", "grad_norm", "param_norm"):
        lost = sum(1 for row in member.rows if name in row and not is_number(row[name]))
        if lost:
            out.append(f"{lost:,} values of {spelled_out(name)} are no numbers (NaN or infinite), and left out")
    broken = _lines(member) - len(member.rows) if member.rows else 0
    if broken:
        out.append(f"{broken:,} lines of metrics.jsonl cannot be read, and are left out")
    if member.summary is None and not tables.is_converted(member):
        out.append("it has not ended, so there is no result on test; repeat its command to go on with it")
    return out


def _lines(member: Member) -> int:
    try:
        with open_regular(member.folder.metrics_file) as file:
            return sum(1 for _ in bounded_lines(file))
    except OSError:
        return len(member.rows)


def _add_network(out: PageContents, member: Member) -> None:
    """What the run keeps of its network: the result on test, attention and positions."""
    kept = {name: f"{name}.json" for name in FIGURE_FILES if (member.folder.plots / f"{name}.json").exists()}
    for name, file in kept.items():
        found, fault = parts.read_part(member.folder.plots / file, getattr(parts, name))
        setattr(out, name, found)
        if fault:
            out.missing.append(fault)
    if out.classes:
        out.matrix = charts.as_json(charts.confusion_chart(out.classes["names"]), "matrix")
        if left := out.classes["left_out"]:
            out.missing.append(f"the confusion matrix lacks the {left:,} rarest of its cells")
    if out.attention and out.attention["note"]:
        out.missing.append(f"attention: {out.attention['note']}")
        out.attention = out.attention if out.attention["examples"] else None
    absent = [
        words for name, words in (("classes", "result of each class"), ("attention", "attention")) if name not in kept
    ]
    absent = [] if kept.keys() & {"texts", "sections"} and absent == ["result of each class"] else absent
    if absent:
        ended = "the run was not tested, or its task has none" if member.summary else "the run has not ended"
        why = "the weights were converted, not trained here" if tables.is_converted(member) else ended
        out.missing.append(f"no {' and no '.join(absent)}: {why}")
