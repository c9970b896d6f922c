"""The progress line and the metrics files."""

from __future__ import annotations

import io
import json
import math
import re
import sys
import types
from dataclasses import replace

import numpy as np
import pytest
from rich.console import Console

from vit_jax import runs
from vit_jax.errors import UserError, install
from vit_jax.presets.table import preset
from vit_jax.runs.values import to_dict
from vit_jax.training import progress
from vit_jax.training.hooks import Hooks
from vit_jax.training.log import Log
from vit_jax.training.progress import Progress

# ------------------------------------------------------------------------------------ progress


class Clock:
    """A clock that only we move."""

    now = 1000.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(progress, "time", clock)
    return clock


def terminal(width: int, encoding: str = "utf-8") -> Console:
    file = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
    return Console(file=file, width=width, force_terminal=True, color_system=None, legacy_windows=False)


def frames(console: Console) -> list[str]:
    """Every line that was drawn, without the terminal's control codes."""
    console.file.flush()
    text = console.file.buffer.getvalue().decode(console.file.encoding)
    return [line for line in re.split(r"[\r\n]+", re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text)) if line]


def run(console: Console, clock: Clock, steps: int = 100, epochs: int = 10, start: int = 1, **kwargs) -> list[str]:
    with Progress(epochs, 100, start, 64, console=console, **kwargs) as bar:
        bar.say("compiling")
        for step in range(start, start + steps):
            clock.now += 0.5
            values = {"loss": 1.2345, "accuracy": 0.5}
            bar.update(step, **({"values": values, "examples": 12345.0} if step % 10 == 0 else {}))
    return frames(console)


@pytest.mark.parametrize("width", [1, 5, 10, 20, 30, 40, 60, 80, 100, 160, 300])
@pytest.mark.parametrize("encoding", ["utf-8", "ascii"])
def test_bar_fits(width, encoding, clock):
    lines = run(terminal(width, encoding), clock)
    assert max(len(line) for line in lines if line != "compiling") <= width
    assert "compiling" in lines


def test_bar_shows_what_fits(clock):
    def last(width):
        return run(terminal(width), clock, steps=150)[-2]  # the very last says how long it took

    wide = last(160)
    for text in ("epoch 2/10", "━", "step 150/1000", "loss 1.2345", "accuracy 0.500", "12,345 images/s", "ETA 7:05"):
        assert text in wide
    normal = last(80)
    for text in ("epoch 2/10", "━", "loss 1.2345", "accuracy 0.500", "12,345 images/s", "ETA 7:05"):
        assert text in normal
    narrow = last(40)
    for text in ("2/10", "━", "loss 1.23", "acc 0.50", "ETA 7:05"):
        assert text in narrow
    assert run(terminal(80), clock)[-1].endswith("took 0:50")


def test_bar_shows_tokens_and_padding_only_where_there_is_room(clock):
    def last(width):
        console = terminal(width)
        with Progress(10, 100, 1, 64, console=console, unit="sentences") as bar:
            for step in range(1, 101):
                clock.now += 0.5
                bar.update(step, {"loss": 1.2345, "accuracy": 0.5}, examples=321.0, tokens=4321.0, padding=0.216)
        return frames(console)[-1]

    assert "321 sentences/s  4,321 tokens/s, 22% padding  took" in last(160)
    assert "321 sentences/s  took" in last(120) and "step 100/1000" in last(120)
    assert all(len(last(width)) <= width for width in (10, 40, 60, 80, 100, 120, 140, 160))


def test_bar_of_a_resumed_run_with_a_budget(clock):
    lines = run(terminal(160), clock, start=201, steps=50, stop=250)
    assert "epoch 2/10" in lines[0] and "step 200/250" in lines[0]
    full = lines[-1]
    assert "step 250/250" in full and "─" not in full


class Shell:
    """Of a fake IPython: what `display` was asked to show, as the kernel of a notebook or as a terminal."""

    def __init__(self, monkeypatch, kernel):
        self.outputs = []
        shell = types.SimpleNamespace(kernel=object()) if kernel else object()
        ipython, display = types.ModuleType("IPython"), types.ModuleType("IPython.display")
        ipython.get_ipython, display.display = lambda: shell, self.display
        monkeypatch.setitem(sys.modules, "IPython", ipython)
        monkeypatch.setitem(sys.modules, "IPython.display", display)

    def display(self, content, raw, display_id):
        assert raw and display_id and list(content) == ["text/plain"]
        lines = [content["text/plain"]]
        self.outputs.append(lines)
        return types.SimpleNamespace(update=lambda content, raw: lines.append(content["text/plain"]))


def test_a_notebook_gets_one_line_that_is_written_over(clock, monkeypatch, capsys):
    shell = Shell(monkeypatch, kernel=True)
    for _ in range(2):  # two calls in one process
        with Progress(10, 100, 1, 64) as bar:
            bar.say("compiling")
            for step in range(1, 201):
                clock.now += 0.25
                bar.update(step, {"loss": 1.5, "accuracy": 0.5})
    assert capsys.readouterr().out == "compiling\n" * 2, "what is said is printed; there are no lines of progress"
    first, second = shell.outputs
    assert "epoch 1/10" in first[0] and "epoch 2/10" in first[-2] and "ETA" in first[-2] and "loss 1.5000" in first[-1]
    assert first[-1].endswith("took 0:50") and "━" in first[-1] and "\x1b" not in "".join(first)
    assert all(len(line) <= 100 and len(line.splitlines()) == 1 for line in first) and len(second) == len(first)
    assert len(first) == 2 + 200 / 2, "twice a second"


@pytest.mark.parametrize("ipython", ["none", "a terminal's", "half imported"])
def test_without_a_notebook_there_are_lines(clock, monkeypatch, capsys, ipython):
    if ipython == "none":
        monkeypatch.setitem(sys.modules, "IPython", None)  # an import would raise
    elif ipython == "a terminal's":
        Shell(monkeypatch, kernel=False)
    else:
        monkeypatch.setitem(sys.modules, "IPython", types.ModuleType("IPython"))
    with Progress(1, 2, 1, 64) as bar:
        bar.update(2)
    assert capsys.readouterr().out.startswith("epoch 1/1  step 2/2")


def test_eta_is_of_the_last_minute_of_steps_without_evaluations(clock):
    console = terminal(160)
    with Progress(100, 100, 1, 64, console=console) as bar:
        for step in range(1, 1001):
            clock.now += 90 if step == 1 else 1.0 if step <= 900 else 0.5  # compilation; then steps get faster
            bar.update(step)
            if step % 100 == 0:
                clock.now += 300  # an evaluation and a save
                bar.restart()
        assert bar._speed() == pytest.approx(110 / 60, rel=0.02)  # 10 steps of 1 s, 100 of 0.5 s
        for step in range(1001, 1101):
            clock.now += 0.5
            bar.update(step)
        assert "128 images/s" in frames(console)[-1]  # 2 steps of 64 a second
        assert bar._cells(True)["eta"] == "ETA 1:14:10"  # 8,900 steps are left, 2 a second


def test_not_a_number_is_shown(clock):
    console = terminal(80)
    with Progress(1, 10, 1, 8, console=console) as bar:
        for value in (math.nan, math.inf, 1e30, -1e-30):
            clock.now += 1
            bar.update(1, {"loss": value, "accuracy": value}, examples=1e12)
    assert max(map(len, frames(console))) <= 80 and any("loss nan" in line for line in frames(console))


def test_unprintable_text(clock, capsys, monkeypatch):
    console = terminal(80, "ascii")
    with Progress(1, 10, 1, 8, console=console) as bar:
        bar.say("naïve [bold]→")
    assert "na?ve [bold]?" in frames(console)
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(io.BytesIO(), encoding="ascii"))
    Progress(1, 10, 1, 8).say("→")
    assert sys.stdout.buffer.getvalue() == b"?\n"


def test_long_text_is_not_broken(clock):
    console = terminal(20)
    with Progress(1, 10, 1, 8, console=console) as bar:
        bar.say("python -m vit_jax.predict runs/digits image.png")
    assert "python -m vit_jax.predict runs/digits image.png" in frames(console)


def test_bar_ends_with_an_error(clock):
    console = terminal(80)
    with pytest.raises(RuntimeError), Progress(1, 10, 1, 8, console=console) as bar:
        bar.update(3, {"loss": 0.5})
        raise RuntimeError
    assert console.file.buffer.getvalue().endswith(b"\x1b[?25h")  # the cursor is shown again
    assert "loss 0.5000" in frames(console)[-1]


def test_plain_lines(clock, capsys):
    with Progress(2, 100, 1, 64) as bar:
        bar.say("compiling")
        for step in range(1, 151):
            clock.now += 0.25
            bar.update(step, {"loss": 0.5, "accuracy": 0.25}, examples=1000.0)
    lines = capsys.readouterr().out.splitlines()
    # Every 10 s (40 steps), at the end of the epoch, and where it stopped.
    steps = [int(re.search(r"step (\d+)/200", line)[1]) for line in lines[1:]]
    assert lines[0] == "compiling" and steps == [40, 80, 100, 140, 150]
    assert lines[3].startswith("epoch 1/2  step 100/200  loss 0.5000  accuracy 0.250  1,000 images/s  ETA 0:25")
    assert lines[5].endswith("took 0:38") and "\x1b" not in "".join(lines)


def test_nothing_ran(clock, capsys):
    with Progress(2, 5, 11, 64):
        pass
    assert capsys.readouterr().out == ""


def test_redraws_are_rationed(clock):
    console = terminal(100)
    with Progress(1, 1000, 1, 64, console=console) as bar:
        before = len(frames(console))
        for step in range(1, 1001):
            clock.now += 0.001
            bar.update(step)
        assert len(frames(console)) - before <= 9


def test_durations():
    assert [progress._clock(s) for s in (0, 59.6, 3599, 3600, 90000)] == ["0:00", "1:00", "59:59", "1:00:00", "1d 1h"]


# ----------------------------------------------------------------------------------- metrics.jsonl

TRAIN = {"kind": "train", "step": 1, "epoch": 0.1, "loss": 2.0, "lr": 1e-3}


def strict(path) -> list[dict]:
    def refuse(name):
        raise AssertionError(f"{name} is not JSON")

    return [json.loads(line, parse_constant=refuse) for line in path.read_text(encoding="utf-8").splitlines()]


def test_rows_are_standard_json(tmp_path):
    path = tmp_path / "run" / "metrics.jsonl"
    log = Log(path, 0)
    log.write({**TRAIN, "loss": math.nan, "accuracy": -math.inf, "lr": np.float32(0.5), "memory": np.float32("inf")})
    assert strict(path)[0] == {**TRAIN, "loss": None, "accuracy": None, "lr": 0.5, "memory": None}
    log.write({**TRAIN, "step": np.int64(2)})
    assert [row["step"] for row in strict(path)] == [1, 2]  # flushed
    log.close()
    log.close()


def test_cut_back(tmp_path):
    path = tmp_path / "metrics.jsonl"
    kept = b'{"kind":"train","step":1,"loss":0.30000000000000004}\n{"kind": "eval", "step": 2}\n'
    path.write_bytes(kept + b'{"kind": "train", "step": 3}\n{"kind": "eval", "step": 3}\n{"kind": "train", "st')
    log = Log(path, 2)
    assert path.read_bytes() == kept  # byte for byte
    log.write({**TRAIN, "step": 3})
    log.close()
    assert [row["step"] for row in strict(path)] == [1, 2, 3]
    assert [p.name for p in tmp_path.iterdir()] == ["metrics.jsonl"]
    Log(path, 0).close()
    assert path.read_bytes() == b""


@pytest.mark.parametrize(
    "broken",
    [
        b"\xff\xfe\n",
        b"[]\n",
        pytest.param(b"[" * 200_000 + b"\n", id="deep"),
        b'{"kind": "train"}\n',
        b'{"step": "1"}\n',
    ],
)
def test_broken_lines_are_dropped(tmp_path, broken):
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(b'{"step": 1}\n' + broken + b'{"step": 2}')  # the last one lacks only its end
    Log(path, 5).close()
    assert path.read_bytes() == b'{"step": 1}\n{"step": 2}\n'


def test_cutting_back_is_atomic(tmp_path, monkeypatch):
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(b'{"step": 1}\n{"step": 2}\n')

    def fail(*_):
        raise OSError("power cut")

    monkeypatch.setattr("os.replace", fail)
    with pytest.raises(OSError, match="power cut"):
        Log(path, 1)
    assert path.read_bytes() == b'{"step": 1}\n{"step": 2}\n'


# ------------------------------------------------------------------------- TensorBoard and W&B

ROWS = [
    {"kind": "train", "step": 1, "epoch": 0.5, "loss": 2.0, "accuracy": math.nan, "memory": None},
    {"kind": "eval", "split": "validation", "weights": "raw", "step": 1, "epoch": 0.5, "loss": 1.0},
    {"kind": "eval", "split": "validation", "weights": "ema", "step": 1, "epoch": 0.5, "loss": 0.5},
    {"kind": "eval", "split": "train", "weights": "raw", "step": 1, "epoch": 0.5, "loss": 0.25},
]


def logging(path, step, **asked):
    """The log of a run that asks for TensorBoard or W&B, as training opens it."""
    run = replace(preset("digits").run, **asked)
    hooks = Hooks(run)
    path.parent.mkdir(parents=True, exist_ok=True)
    hooks.each("begin", runs.Run(path.parent), run, step)
    return Log(path, step, hooks)


def close(log):
    """End a log and its hooks, as training does."""
    log.close()
    log._hooks.each("close")


def test_asked_for_but_absent(tmp_path, monkeypatch):
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(b'{"step": 9}\n')
    for name, where in (("tensorboard", {"tensorboard": True}), ("wandb", {"wandb": "project"})):
        monkeypatch.setitem(sys.modules, name, None)
        with pytest.raises(UserError, match=re.escape(install(name))):
            logging(path, 0, **where)
    assert path.read_bytes() == b'{"step": 9}\n'  # nothing was cut


def test_tensorboard(tmp_path):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    folder = tmp_path / "tensorboard"

    def points(tag):
        events = EventAccumulator(str(folder), size_guidance={"scalars": 0})
        events.Reload()
        return [(event.step, event.value) for event in events.Scalars(tag)]

    log = logging(tmp_path / "metrics.jsonl", 0, tensorboard=True)
    for row in ROWS:
        log.write(row)
    assert points("train/loss") == [(1, 2.0)]  # at once, not only after close
    for step in (2, 3, 4):
        log.write({**TRAIN, "step": step, "loss": float(step)})
    close(log)
    assert points("validation/loss") == [(1, 1.0)]
    assert points("validation_ema/loss") == [(1, 0.5)]
    assert points("train_split/loss") == [(1, 0.25)]
    log = logging(tmp_path / "metrics.jsonl", 2, tensorboard=True)
    for step in (3, 4, 5):
        log.write({**TRAIN, "step": step, "loss": 10.0 * step})
    close(log)
    assert points("train/loss") == [(1, 2.0), (2, 2.0), (3, 30.0), (4, 40.0), (5, 50.0)]
    assert "tensorflow" not in sys.modules


def test_histograms_in_tensorboard_and_beside_the_log(tmp_path):
    """The same numbers in both; what a NaN has made is left out of TensorBoard, and null in the file."""
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    x = np.random.default_rng(0).normal(size=1000)
    counts, edges = np.histogram(x, 30)
    good = {"min": x.min(), "max": x.max(), "mean": x.mean(), "std": x.std(), "counts": counts}
    bad = {**good, "min": np.float32("nan"), "max": math.inf}
    log = logging(tmp_path / "metrics.jsonl", 0, tensorboard=True)
    log.write_histograms(5, {"gradients": {"head.kernel": good, "head.bias": bad}})
    close(log)
    events = EventAccumulator(str(tmp_path / "tensorboard"), size_guidance={"histograms": 0})
    events.Reload()
    assert events.Tags()["histograms"] == ["gradients/head.kernel"]
    (event,) = events.Histograms("gradients/head.kernel")
    value = event.histogram_value
    assert event.step == 5 and list(value.bucket) == list(counts)
    np.testing.assert_allclose(value.bucket_limit, edges[1:])
    np.testing.assert_allclose([value.num, value.sum, value.sum_squares], [1000, x.sum(), (x**2).sum()])
    (row,) = runs.Run(tmp_path).histograms()
    assert row["step"] == 5 and row["gradients"]["head.kernel"]["counts"] == counts.tolist()
    assert row["gradients"]["head.bias"]["min"] is None is row["gradients"]["head.bias"]["max"]


class FakeRun:
    def __init__(self, starting_step: int):
        self.starting_step, self.rows, self.finished = starting_step, [], False

    def log(self, values, step):
        self.rows.append((step, values))

    def finish(self):
        self.finished = True


@pytest.fixture
def wandb(monkeypatch):
    """A stand-in for the package, which remembers how it was called."""
    fake = types.ModuleType("wandb")
    fake.calls, fake.runs, fake.starting_step = [], [], 0

    def init(**kwargs):
        fake.calls.append(kwargs)
        fake.runs.append(FakeRun(fake.starting_step))
        return fake.runs[-1]

    fake.init = init
    monkeypatch.setitem(sys.modules, "wandb", fake)
    return fake


def test_wandb(tmp_path, wandb):
    path = tmp_path / "metrics.jsonl"
    log = logging(path, 0, wandb="vits")
    for row in ROWS:
        log.write(row)
    close(log)
    call = wandb.calls[0]
    assert (call["project"], call["name"], call["config"], call["resume"], call["dir"]) == (
        "vits",
        tmp_path.name,
        to_dict(replace(preset("digits").run, wandb="vits")),
        "allow",
        str(tmp_path),
    )
    values = [
        (1, {"train/epoch": 0.5, "train/loss": 2.0}),
        (1, {"validation/epoch": 0.5, "validation/loss": 1.0}),
        (1, {"validation_ema/epoch": 0.5, "validation_ema/loss": 0.5}),
        (1, {"train_split/epoch": 0.5, "train_split/loss": 0.25}),
    ]
    assert wandb.runs[0].rows == values and wandb.runs[0].finished
    # The run goes on from step 1, and W&B already has steps up to 3.
    wandb.starting_step = 4
    log = logging(path, 1, wandb="vits")
    for step in (2, 3, 4, 5):
        log.write({**TRAIN, "step": step})
    close(log)
    assert wandb.calls[1]["id"] == call["id"] and [step for step, _ in wandb.runs[1].rows] == [4, 5]
    # Another run is another id.
    close(logging(tmp_path / "other" / "metrics.jsonl", 0, wandb="vits"))
    assert wandb.calls[2]["id"] != call["id"]


def test_wandb_that_cannot_start(tmp_path, wandb):
    def init(**_):
        raise ValueError("api_key not configured (no-tty).\nmore")

    wandb.init = init
    with pytest.raises(
        UserError, match=r"wandb 'vits': cannot start \(api_key not configured \(no-tty\)\.\); run `wandb login`"
    ):
        logging(tmp_path / "metrics.jsonl", 0, wandb="vits")


def test_neither_is_imported_unasked(tmp_path, monkeypatch):
    for name in ("tensorboard", "wandb"):
        monkeypatch.setitem(sys.modules, name, None)  # an import would raise
    log = Log(tmp_path / "metrics.jsonl", 0)
    log.write(TRAIN)
    log.close()
