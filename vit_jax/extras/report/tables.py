"""The tables of a report: settings, results, cost, versions, certificates; and the command that repeats a run."""

from __future__ import annotations

import shlex
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...config.dotted import value_at
from ...config.run import RunConfig
from ...config.trees import flatten
from ...errors import UserError
from ...figures.figure import weights_caption
from ...files.atomic import read_json
from ...files.metrics import spelled_out
from ...machine.targets import GIB
from ...presets.images import finetuned
from ...presets.table import FINETUNE, preset
from ...reports.compare import columns, text_of
from ...reports.comparison import Comparison, Line, Member, is_number
from ...runs.folder import CONVERTED, PROVENANCE
from ...runs.values import differences, flat, marked_fields, with_fields
from ...tasks.table import task_spec

RATE = "_per_second"
LOCATIONS = ("name", "dir", "data.dir")
CERTIFICATE = "certificate.json"  # convert writes RUN.certificate.json beside what it has compared


@dataclass(frozen=True)
class Table:
    """A titled table of texts; the first cell of each row is its heading."""

    title: str
    head: Sequence[str]
    rows: Sequence[Sequence[str]]


# ------------------------------------------------------------------------------- settings


def _preset_of(member: Member) -> tuple[str, RunConfig | None]:
    """(the name of a run's preset, its run); None where this version does not know it."""
    name = str(member.folder.record()["preset"])
    try:
        return name, finetuned(type(member.run.model)) if name == FINETUNE else preset(name).run
    except UserError:
        return name, None


def is_converted(member: Member) -> bool:
    """Whether convert made this run, and nothing has been trained since."""
    return member.ended == CONVERTED


def from_preset(member: Member) -> Table:
    """The settings in which a run differs from its preset; all of them where that is not known."""
    name, usual = _preset_of(member)
    if usual is None:
        rows = [(key, text_of(value)) for key, (value, _) in flat(member.run).items()]
        why = "converted, not trained" if is_converted(member) else f"the preset {name} is not known here"
        return Table(f"All settings: {why}", ("setting", "this run"), rows)
    changed = differences(member.run, usual) | differences(member.run, usual, execution=True)
    changes = [(k, text_of(own), text_of(preset)) for k, (own, preset) in changed.items() if k not in LOCATIONS]
    title = (
        f"Settings that differ from the preset {name}" if changes else f"All settings are those of the preset {name}"
    )
    return Table(title, ("setting", "this run", "preset"), changes)


def differing(found: Comparison) -> Table:
    """The fields in which runs differ, as `compare` finds them."""
    rows = [(name, *map(text_of, values)) for name, values in found.fields.items()]
    return Table("The differing fields" if rows else "No field differs", _head("field", found), rows)


def settings(found: Comparison) -> Table:
    """Every field of all runs."""
    each = [{key: text_of(value) for key, (value, _) in flat(line.members[0].run).items()} for line in found.lines]
    return _side_by_side("All settings", "setting", found, each)


def command_of(line: Line) -> str:
    """The command that trains a run or a group again, under another name."""
    member = line.members[0]
    if member.run.data.source == member.run.data.given:
        return "the same call of vit_jax.train, with the same data"
    if is_converted(member):
        return "nothing was trained: the weights were converted, as the tables above say"
    name, usual = _preset_of(member)
    folder = member.folder.path
    again = f"{(folder.parent if line.group else folder).name}-again"
    words = [name] if usual else ["--config", str(member.folder.config_file)]
    words += ["--name", again] + ([f"--{line.kind}s", str(len(line.members))] if line.group else [])
    for key, own in _fields_to_state(member, member.run, usual).items() if usual else ():
        part, _, last = key.replace("_", "-").rpartition(".")
        flag = f"--{part}." if part else "--"
        if isinstance(own, bool):
            words.append(f"{flag}{last}" if own else f"{flag}no-{last}")
        else:
            words += [f"{flag}{last}", *map(str, own if isinstance(own, tuple) else [own])]
    return shlex.join(["python", "-m", "vit_jax.train", *words])


def _fields_to_state(member: Member, run: RunConfig, usual: RunConfig) -> dict[str, Any]:
    """{field: value} of what the command that repeats a run has to state beside its preset, whose run is `usual`."""
    stated = {name: own for name, (own, _) in differences(run, usual).items()}
    for name, own in ((name, value_at(run, name)) for name in marked_fields(run, "from_data") - stated.keys()):
        if value_at(usual, name) or not own or name.startswith("model."):
            continue
        left_open = task_spec(run.task).with_data(
            with_fields(run, {name: value_at(usual, name)}), member.folder.record()
        )
        # What the labels of other data are may have been stated: nothing records whether they tell it.
        if value_at(left_open, name) != own or (name.startswith("data.") and "data.source" in stated):
            stated[name] = own
    return stated


# ------------------------------------------------------------------------------- results and cost


def headlines(member: Member) -> list[tuple[str, str]]:
    """The state of a run, its whole epochs, and its best results with the weights that they are of, in a few words."""
    summary = member.summary or {}
    step = summary.get("step", member.rows[-1]["step"] if member.rows else 0)
    out = [("status", member.ended), ("steps", f"{step:,}")]
    if is_number(epoch := summary.get("epoch", "")):
        out.append(("epochs", f"{int(epoch):,} of {member.run.epochs:,}"))
    if temperature := (summary.get("calibration") or {}).get("temperature"):
        out.append(("temperature", f"{temperature:.4g}"))
    test = summary.get("test")
    by_weights: dict[str, Any] = test if isinstance(test, dict) else {}
    kind = next((kind for kind in ("best", "last_ema", "last") if kind in by_weights), "best")
    for split, which, metrics in (("test", kind, by_weights.get(kind, {})), ("validation", "best", member.best)):
        known = [(word, metrics.get(name)) for name, word in task_spec(member.run.task).main_metrics.items()]
        told = [(f"{split} {word}", f"{value:.4f}") for word, value in known if is_number(value)]
        out += [(f"{split}, by the", _which(member, which, step)), *told] if told else []
    return out


def _which(member: Member, kind: str, last: int) -> str:
    """Which weights a result is of: best, last or last_ema, with epoch and step; `last` is the last step."""
    which, _, averaged = kind.partition("_")
    own = which == "best" and is_number(member.best.get("step"))
    step = member.best["step"] if own else last
    averaged = member.best.get("weights", "raw") if own else averaged or "raw"
    epoch = {row["step"]: row.get("epoch") for row in member.rows}.get(step)
    return weights_caption(which, averaged, step, epoch if is_number(epoch) else None)


def results(found: Comparison) -> Table:
    """The results of runs, as `compare` prints them."""
    return Table("Results", _head("result", found), [(title, *cells) for title, *cells in columns(found)[1]])


def cost(found: Comparison) -> Table:
    """Time, memory and speed; of a group the means."""
    return _side_by_side("What it cost", "", found, [_spent(line) for line in found.lines])


def _spent(line: Line) -> dict[str, str]:
    values: dict[str, list[float]] = {}
    for member in line.members:
        for name, value in _cost_of(member).items():
            if is_number(value):
                values.setdefault(name, []).append(float(value))
    means = {name: statistics.fmean(each) for name, each in values.items()}
    return {name: f"{mean:,.4g}" if abs(mean) < 1000 else f"{mean:,.0f}" for name, mean in means.items()}


def _cost_of(member: Member) -> dict[str, Any]:
    train = [row for row in member.rows if row["kind"] == "train"]

    def logged(name: str) -> list[float]:
        return [row[name] for row in train if is_number(row.get(name))]

    memory = max(logged("memory"), default=None)
    return {
        "seconds of wall clock": (member.summary or {}).get("seconds"),
        "core-seconds of training steps": max(logged("cpu_seconds"), default=None) or None,
        "peak memory, GiB": memory and memory / GIB,
        **{f"{spelled_out(name)} (median)": statistics.median(logged(name)) for name in rates(train) if logged(name)},
        "checkpoints, MB": _size(member.folder.checkpoints) / 1e6,
    }


def rates(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """The names of the speeds in rows of a log, the MFU among them."""
    return list(dict.fromkeys(name for row in rows for name in row if name.endswith(RATE) or name == "mfu"))


def _size(folder: Path) -> int:
    """Bytes of the files in a folder and below."""
    try:
        return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
    except OSError:
        return 0


# ------------------------------------------------------------------------------- where it comes from


def versions(found: Comparison) -> Table:
    """Versions and machine, as each run began."""
    each = []
    for line in found.lines:
        environment = line.members[0].folder.record().get("environment")
        entries = _entries(environment) if isinstance(environment, dict) else {}
        each.append({name.removeprefix("versions."): text_of(value) for name, value in entries.items()})
    return _side_by_side("Versions and machine", "", found, each)


def certificates(found: Comparison) -> list[Table]:
    """Of runs whose weights were converted: whence, and what the comparison with their source found."""
    out = []
    for line in found.lines:
        folder = line.members[0].folder
        origin = folder.record().get("init")
        if isinstance(origin, dict):
            rows = [(name, text_of(value)) for name, value in _entries(origin).items()]
            out.append(Table(f"{line.name} began with these weights", ("", ""), rows))
        titles = {folder.path / PROVENANCE: "was converted from", folder.path / CERTIFICATE: "has this certificate"}
        titles[folder.path.with_name(f"{folder.path.name}.{CERTIFICATE}")] = "has this certificate of its conversion"
        out += [Table(f"{line.name} {title}", ("", ""), _rows(file)) for file, title in titles.items() if file.exists()]
    return out


def _rows(file: Path) -> list[tuple[str, str]]:
    """A JSON file as rows of a table, without the fields of a config."""
    try:
        entries = _entries(read_json(file))
    except UserError as error:
        return [("cannot be read", str(error))]
    return [(name, text_of(value)) for name, value in entries.items() if not name.startswith("config.fields")]


def _entries(value: Mapping[str, Any]) -> dict[str, Any]:
    """Nested JSON objects as {dotted name: value}; a list is joined to a text."""
    entries = flatten(value, strict=False)
    return {name: "; ".join(map(str, each)) if isinstance(each, list) else each for name, each in entries.items()}


def _head(first: str, found: Comparison) -> list[str]:
    return [first, *(line.name for line in found.lines)]


def _side_by_side(title: str, first: str, found: Comparison, each: Sequence[Mapping[str, str]]) -> Table:
    """A table of {row: text} of each line of a comparison."""
    names = dict.fromkeys(name for texts in each for name in texts)
    return Table(title, _head(first, found), [(name, *(texts.get(name, "-") for texts in each)) for name in names])
