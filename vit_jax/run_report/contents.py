"""What a report shows of runs: the figures, texts and tables that the page lays out, and what is missing."""

from __future__ import annotations

import shlex
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from .. import presets, runs
from ..compare import Comparison, Line, Member, columns, curves, panels_of, text_of
from ..config import differences, flat, task_row
from ..errors import UserError
from ..report.curves import training_metric
from . import charts, parts

GIB = 1 << 30
RATES = "_per_second"


@dataclass(frozen=True)
class Table:
    """A titled table of texts; the first cell of each row is its heading."""

    title: str
    head: Sequence[str]
    rows: Sequence[Sequence[str]]


@dataclass(frozen=True)
class Chart:
    """A chart, and what is said of it to those who cannot see it: a sentence, and a table of values."""

    place: str  # the id of its element
    title: str
    drawn: Any  # JSON values for BokehJS
    sentence: str
    table: Table


@dataclass
class Contents:
    """All that a page shows."""

    title: str
    single: bool  # of one run
    headlines: list[tuple[str, str]]  # (what, value)
    differing: Table
    results: Table | None
    charts: list[Chart] = field(default_factory=list)
    classes: dict[str, Any] | None = None
    matrix: Any = None  # the chart of the confusion matrix, JSON values
    texts: dict[str, Any] | None = None
    attention: dict[str, Any] | None = None
    positions: dict[str, Any] | None = None
    tables: list[Table] = field(default_factory=list)  # cost, versions, certificate, all settings
    commands: list[tuple[str, str]] = field(default_factory=list)  # (of which run, the command)
    missing: list[str] = field(default_factory=list)


def contents_of(found: Comparison) -> Contents:
    """What the report of runs shows: of several what differs, of one also what its network learned."""
    single = len(found.lines) == 1 and not found.lines[0].group
    out = Contents(
        title=found.lines[0].name if len(found.lines) == 1 else f"{len(found.lines)} runs compared",
        single=single,
        headlines=_headlines(found.lines[0].members[0]) if single else [],
        differing=_from_preset(found.lines[0].members[0]) if single else _differing(found),
        results=_results(found),
        missing=list(found.notes),
    )
    _add_charts(out, found)
    for line in found.lines:
        out.missing += [f"{line.name}: {clause}" for member in line.members for clause in _faults(member)]
    if single:
        _add_network(out, found.lines[0].members[0])
    elif any(_kept(member) for line in found.lines for member in line.members):
        out.missing.append("classes, errors and attention are in the report of each run: `vit-jax report RUN`")
    out.tables += [_cost(found), _versions(found), *_certificates(found), _settings(found)]
    out.commands = [(line.name, command_of(line.members[0])) for line in found.lines]
    return out


# ------------------------------------------------------------------------------- settings and results


def _headlines(member: Member) -> list[tuple[str, str]]:
    """The state of a run and its best results, in a few words each."""
    summary = member.summary or {}
    step = summary.get("step", member.rows[-1]["step"] if member.rows else 0)
    out = [("status", str(summary.get("status", "has not ended"))), ("steps", f"{step:,}")]
    if isinstance(epoch := summary.get("epoch"), int | float):
        out.append(("epochs", f"{epoch:g}"))
    names = task_row(member.run.task).headlines
    test = summary.get("test")
    tested = next((test[w] for w in ("best", "last_ema", "last") if w in test), {}) if isinstance(test, dict) else {}
    for split, metrics in (("test", tested), ("validation", member.best)):
        out += [(f"{split} {word}", f"{metrics[name]:.4f}") for name, word in names.items() if name in metrics]
    return out


def _from_preset(member: Member) -> Table:
    """The settings in which a run differs from its preset; all of them where that is not known any more."""
    name = str(member.folder.record()["preset"])
    try:
        usual = presets.preset(name).run
        changed = differences(member.run, usual) | differences(member.run, usual, execution=True)
    except UserError:
        head, rows = ("setting", "this run"), [(k, text_of(v)) for k, (v, _) in flat(member.run).items()]
        return Table(f"The preset {name} is not known: all settings", head, rows)
    rows = [(key, text_of(own), text_of(preset)) for key, (own, preset) in changed.items() if key not in ("name", "dir")]
    title = f"Settings that differ from the preset {name}" if rows else f"All settings are those of the preset {name}"
    return Table(title, ("setting", "this run", "preset"), rows)


def _differing(found: Comparison) -> Table:
    rows = [(name, *map(text_of, values)) for name, values in found.fields().items()]
    title = "The differing fields" if rows else "No field differs"
    return Table(title, ("field", *(line.name for line in found.lines)), rows)


def _results(found: Comparison) -> Table | None:
    rows = [(title, *cells) for title, *cells in columns(found)[1]]
    return Table("Results", ("result", *(line.name for line in found.lines)), rows) if rows else None


def _settings(found: Comparison) -> Table:
    """Every field of all runs."""
    values = [{k: v for k, (v, _) in flat(line.members[0].run).items()} for line in found.lines]
    names = dict.fromkeys(name for each in values for name in each)
    rows = [(name, *(text_of(each[name]) if name in each else "" for each in values)) for name in names]
    return Table("All settings", ("setting", *(line.name for line in found.lines)), rows)


def command_of(member: Member) -> str:
    """The command that trains the same run again, under another name."""
    if member.run.data.source == task_row(member.run.task).given:
        return "the same call of vit_jax.train, with the same data"
    name = str(member.folder.record()["preset"])
    try:
        changed = differences(member.run, presets.preset(name).run)
    except UserError:
        name, changed = "", {}
    words = [*(["--name", f"{member.folder.path.name}-again"])]
    for key, (own, _) in changed.items():
        part, _, last = key.replace("_", "-").rpartition(".")
        dotted = f"{part}." if part else ""
        if isinstance(own, bool):
            words.append(f"--{dotted}{last}" if own else f"--{dotted}no-{last}")
        else:
            words += [f"--{dotted}{last}", *(map(str, own) if isinstance(own, tuple) else [str(own)])]
    config = [] if name else ["--config", str(member.folder.config_file)]
    return shlex.join(["python", "-m", "vit_jax.train", *([name] if name else []), *config, *words])


# ------------------------------------------------------------------------------- curves


def _add_charts(out: Contents, found: Comparison) -> None:
    """The curves: of one run all splits in one chart, of several a chart for each split with all runs."""
    first = found.lines[0].members[0]
    train = [row for row in first.rows if row["kind"] == "train"]
    metric = training_metric(train, first.metric)
    rates = list(dict.fromkeys(name for row in train for name in row if name.endswith(RATES)))
    panels: list[tuple[str, list[tuple[str, str]], str]] = [  # (title, curves as (split, name), unit)
        ("Loss", [("training", "loss"), ("validation", "loss"), ("train", "loss")], "loss"),
        *([(_worded(metric).capitalize(), [(s, metric) for s in ("training", "validation", "train")], _worded(metric))] * (metric not in ("", "loss"))),
        ("Learning rate", [("training", "lr")], "learning rate"),
        ("Gradient norm", [("training", "grad_norm")], "gradient norm"),
        *((_worded(name).capitalize(), [("training", name)], _worded(name)) for name in rates),
        ("Memory", [("training", "memory")], "GiB"),
    ]
    if first.metric not in (metric, "loss"):
        panels.insert(2, (_worded(first.metric).capitalize(), [("validation", first.metric)], _worded(first.metric)))
    if not out.single:
        compared = [(title, [where], _worded(where[1])) for title, where in panels_of(found).items()]
        panels = [(title[:1].upper() + title[1:], *rest) for title, *rest in compared] + [p for p in panels if p[1][0][1] not in ("loss", metric, first.metric)]  # type: ignore[misc]
    for title, wanted, unit in panels:
        shown = []
        for split, name in wanted:
            for line, series in zip(found.lines, curves(found, split, name), strict=True):
                if series is None or not len(series.values):
                    continue
                scale = 1 / GIB if name == "memory" else 1
                spread = None if series.spread is None else series.spread * scale
                label = {"train": "train, evaluated"}.get(split, split) if out.single else line.name
                noisy = split == "training" and name not in ("lr", "memory")
                shown.append(charts.Curve(label, series.epochs, series.values * scale, spread, noisy))
        if shown:
            out.charts.append(_chart(f"chart-{len(out.charts)}", title, shown, unit))
            if (most := max(len(curve.values) for curve in shown)) > charts.POINTS:
                out.missing.append(
                    f"{title}: {most:,} values are too many to draw; of each stretch the lowest and the highest are drawn, "
                    f"at most {charts.POINTS} of a curve"
                )
    if not out.charts:
        out.missing.append("there are no curves: metrics.jsonl has no values")


def _worded(name: str) -> str:
    return name.replace("_", " ")


def _chart(place: str, title: str, shown: Sequence[charts.Curve], unit: str) -> Chart:
    drawn = charts.as_json(charts.line_chart(shown, unit, log=title == "Gradient norm"), place)
    said = [
        f"{curve.name}: from {curve.values[0]:.4g} to {curve.values[-1]:.4g}, lowest {curve.values.min():.4g}, "
        f"highest {curve.values.max():.4g}"
        for curve in shown
    ]
    rows = []
    for curve in shown:
        places = np.unique(np.linspace(0, len(curve.values) - 1, min(len(curve.values), 25)).round().astype(int))
        rows += [(curve.name, f"{curve.epochs[i]:.4g}", f"{curve.values[i]:.5g}") for i in places]
    table = Table(f"{title}: values", ("curve", "epoch", unit), rows)
    return Chart(place, title, drawn, f"{title} over epochs. {'; '.join(said)}.", table)


def _faults(member: Member) -> list[str]:
    """What of a run's log is missing, a clause each."""
    out = []
    lost: dict[str, int] = {}
    for row in member.rows:
        for name in ("loss", "grad_norm", "param_norm"):
            value = row.get(name)
            if name in row and not (isinstance(value, int | float) and np.isfinite(value)):
                lost[name] = lost.get(name, 0) + 1
    out += [f"{count:,} values of {_worded(name)} are no numbers (NaN or infinite), and left out" for name, count in lost.items()]
    try:
        with open(member.folder.metrics_file, "rb") as file:
            broken = sum(1 for _ in file) - len(member.rows) if member.rows else 0
    except OSError:
        broken = 0
    out += [f"{broken:,} lines of metrics.jsonl cannot be read, and are left out"] * bool(broken)
    if member.summary is None:
        out.append("the run has not ended, so there is no result on test; repeat its command to go on with it")
    return out


# ------------------------------------------------------------------------------- the network


def _kept(member: Member) -> bool:
    return any((member.folder.plots / name).exists() for name in ("classes.json", "texts.json", "attention.json"))


def _add_network(out: Contents, member: Member) -> None:
    """What the run keeps of its network: the result on test, attention and positions."""
    plots = member.folder.plots
    for name, check in (
        ("classes", parts.classes),
        ("texts", parts.texts),
        ("attention", parts.attention),
        ("positions", parts.positions),
    ):
        found, fault = parts.read_part(plots, f"{name}.json", check)
        setattr(out, name, found)
        out.missing += [fault] * bool(fault)
    if out.classes:
        out.matrix = charts.as_json(charts.confusion_chart(out.classes["names"]), "matrix")
        if out.classes["left_out"]:
            out.missing.append(f"the confusion matrix lacks the {out.classes['left_out']:,} rarest of its cells")
    if out.attention:
        out.missing += [f"attention: {out.attention['note']}"] * bool(out.attention["note"])
        if not out.attention["examples"]:
            out.attention = None
    if not _kept(member):
        why = "it has not ended" if member.summary is None else "an older version trained it, or its task has none"
        out.missing.append(f"the run keeps no classes, worst errors and attention: {why}")


# ------------------------------------------------------------------------------- what it took


def _cost(found: Comparison) -> Table:
    """Time, memory and speed."""
    rows: dict[str, list[str]] = {}
    for i, line in enumerate(found.lines):
        for name, value in _spent(line).items():
            rows.setdefault(name, ["-"] * len(found.lines))[i] = value
    return Table("What it cost", ("", *(line.name for line in found.lines)), [(k, *v) for k, v in rows.items()])


def _spent(line: Line) -> dict[str, str]:
    """{what: its mean over the runs of a line, as text}."""
    found: dict[str, list[float]] = {}
    for member in line.members:
        train = [row for row in member.rows if row["kind"] == "train"]
        values: dict[str, Any] = {"seconds of wall clock": (member.summary or {}).get("seconds")}
        values["core-seconds of training steps"] = max((r["cpu_seconds"] for r in train if _is(r.get("cpu_seconds"))), default=None)
        values["peak memory, GiB"] = max((r["memory"] / GIB for r in train if _is(r.get("memory"))), default=None)
        for name in dict.fromkeys(name for row in train for name in row if name.endswith(RATES)):
            known = [row[name] for row in train if _is(row.get(name))]
            values[f"{_worded(name)} (median)"] = statistics.median(known) if known else None
        values["checkpoints, MB"] = _size(member.folder.checkpoints) / 1e6
        for name, value in values.items():
            if _is(value):
                found.setdefault(name, []).append(float(value))
    return {name: f"{statistics.fmean(values):,.4g}" if max(values) < 1000 else f"{statistics.fmean(values):,.0f}"
            for name, values in found.items()}  # fmt: skip


def _is(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and bool(np.isfinite(value))


def _size(folder: Path) -> int:
    """Bytes of the files in a folder and below."""
    try:
        return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
    except OSError:
        return 0


def _versions(found: Comparison) -> Table:
    """Versions and machine, as each run began."""
    rows: dict[str, list[str]] = {}
    for i, line in enumerate(found.lines):
        environment = line.members[0].folder.record().get("environment")
        for name, value in _flat_texts(environment if isinstance(environment, dict) else {}).items():
            rows.setdefault(name, ["-"] * len(found.lines))[i] = value
    return Table("Versions and machine", ("", *(line.name for line in found.lines)), [(k, *v) for k, v in rows.items()])


def _flat_texts(value: Mapping[str, Any]) -> dict[str, str]:
    out: dict[str, str] = {}
    for key, each in value.items():
        out |= _flat_texts(each) if isinstance(each, dict) else {str(key): text_of(each)}
    return out


def _certificates(found: Comparison) -> list[Table]:
    """Where weights were converted: whence, and what the comparison with their source found."""
    out = []
    for line in found.lines:
        folder = line.members[0].folder
        record = folder.record()
        for entry in ("init", "provenance"):
            if isinstance(record.get(entry), dict):
                rows = list(_flat_texts(record[entry]).items())
                out.append(Table(f"{line.name} began with converted weights", ("", ""), rows))
        for file in (folder.path.with_name(f"{folder.path.name}.certificate.json"), folder.path / "certificate.json"):
            if file.is_file():
                try:
                    rows = [(k, text_of(v)) for k, v in _dotted(runs.read_json(file)).items() if not k.startswith("config.fields")]
                except UserError as error:
                    rows = [("cannot be read", str(error))]
                out.append(Table(f"Certificate of {line.name}", ("", ""), rows))
    return out


def _dotted(value: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    out: dict[str, Any] = {}
    for key, each in value.items():
        if isinstance(each, dict):
            out |= _dotted(each, f"{prefix}{key}.")
        else:
            out[f"{prefix}{key}"] = "; ".join(map(str, each)) if isinstance(each, list) else each
    return out
