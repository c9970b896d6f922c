"""The doors as people use them: what they take, print and leave behind, and that what they print can be pasted."""

import contextlib
import importlib
import json
import math
import os
import re
import runpy
import shlex
import subprocess
import sys

import jax
import numpy as np
import pytest
from PIL import Image

import vit_jax
from tests.test_processes import python
from vit_jax import errors, runs
from vit_jax.commands import cli, train_options
from vit_jax.commands import train as train_command
from vit_jax.config import flags
from vit_jax.config.dotted import replace_fields
from vit_jax.config.run import RunConfig
from vit_jax.config.trees import flatten
from vit_jax.extras.report import hook
from vit_jax.extras.sets.archives import OFFICIAL
from vit_jax.files import terminal
from vit_jax.files.destination import OF_A_RUN
from vit_jax.models.lowering import rounds_factors
from vit_jax.presets.table import PRESETS, preset
from vit_jax.presets.variants import PURPOSES, VARIANTS
from vit_jax.runs.values import flat, from_dict
from vit_jax.training import finish, job

# A net that learns little but is built in a second or two. At a constant rate the compiled step is the
# same however long a run is, so that all of these share one.
TINY = shlex.split(
    "digits --model.width 16 --model.depth 1 --model.heads 2 --model.hidden 32 --optim.schedule constant "
    "--optim.lr 0.01 --optim.weight-decay 0 --loss.label-smoothing 0 --batch 64 --ema 0.9"
)
SCORES = (
    "accuracy",
    "accuracy_top5",
    *(f"{name}_{average}" for name in ("precision", "recall", "f1") for average in ("macro", "micro")),
)


def train(*arguments):
    return train_command.command([*TINY, *map(str, arguments)])


def tiny(*arguments) -> RunConfig:
    """The run that `train` would train."""
    return train_command.parse([*TINY, *map(str, arguments)])[1].run()


def lines(folder: runs.Run, kind: str) -> list:
    return [row for row in folder.metrics() if row["kind"] == kind]


def kept(folder: runs.Run, which: str = "best") -> dict:
    """{name: array} of a run's weights."""
    from vit_jax.weights.load import weights

    return flatten(weights(folder, folder.config().model, which)[1])


@pytest.fixture(scope="module", autouse=True)
def place(tmp_path_factory):
    """A working folder of its own, and programs that compile in half the time: their speed does not matter here."""
    folder = tmp_path_factory.mktemp("doors")
    jax.config.update("jax_disable_most_optimizations", True)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        yield folder
    jax.config.update("jax_disable_most_optimizations", False)


@pytest.fixture
def plain(monkeypatch):
    """Without pictures, which take longer than these runs."""
    monkeypatch.setattr(finish, "draw", lambda *a: None)
    monkeypatch.setattr(hook, "leave_report", lambda *a: None)


@pytest.fixture(scope="module")
def trained(place):
    """A finished run of three epochs, and what its command printed."""
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(open(place / "stdout", "w+")) as out:
        patch.setenv("COLUMNS", "80")
        assert train("--epochs", 3, "--name", "trained") == 0
        out.seek(0)
        yield runs.Run("runs/trained"), out.read()


# ------------------------------------------------------------------------------- what they take


def test_fields_override_the_preset(capsys):
    arguments = (
        "--model.depth 2 --model.patch 2 4 --data.source x.npz --optim.lr 3e-4 --batch 16 --seed 7 "
        "--optim.decay kernel norm --augment.flip"
    )
    assert train_command.command(["digits", *arguments.split(), "--print-config"]) == 0
    printed = from_dict(RunConfig, json.loads(capsys.readouterr().out))
    expected = {
        "model.depth": 2,
        "model.patch": (2, 4),
        "model.classes": 0,  # those of the other data
        "data.source": "x.npz",
        "optim.lr": 3e-4,
        "batch": 16,
        "seed": 7,
    }
    expected |= {"optim.decay": ("kernel", "norm"), "augment.flip": True}
    new, old = flat(printed), flat(preset("digits").run)
    assert {k: v for k, (v, _) in new.items() if v != old[k][0]} == expected


@pytest.mark.parametrize("name", ["digits", "numbers"])
def test_every_field_has_a_help_text(name):
    options = train_command.parse([name])[1]
    texts = {name: flag.help for name, flag in flags.flags(options).items()}
    assert texts.keys() > {name.replace("_", "-") for name in flat(options.run())}
    assert not [name for name, text in texts.items() if len(text) < 4]


def helped(capsys, *arguments) -> str:
    """What --help prints."""
    with pytest.raises(SystemExit) as ended:
        train_command.command([*arguments, "--help"])
    assert ended.value.code == 0
    return capsys.readouterr().out


def test_help_lists_presets_and_fields_within_the_terminal(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "150")
    text = helped(capsys)
    assert 80 < max(map(len, text.splitlines())) <= 150
    listing = text.partition("Presets:\n")[2].partition("The defaults below are those of digits")[0]
    names = [line.split()[0] for line in listing.splitlines() if line.strip()]
    assert names == [*PRESETS, "PRESET-RECIPE", "vit-SIZEPATCH"]
    assert preset("mnist").help not in " ".join(text.split())

    shown = " ".join(re.sub(r"[│─╭╮╰╯\s]+", " ", helped(capsys, "mnist")).split())
    assert preset("mnist").help in shown and "cifar10-48x4" not in shown
    for name in flat(preset("mnist").run):
        assert "--" + name.replace("_", "-") in shown
    assert shown.count("K, outputs of the head; 0: no head (in a run: set by the data)") == 1
    assert "those of mnist" in shown

    for asked in ("cifar10-48x4", "cifar10-48x4-fast"):
        shown = " ".join(helped(capsys, asked).split())
        assert "notebook prints 0.755 on test after 100 epochs" in shown
        assert (f"cifar10-48x4: {preset('cifar10-48x4').title}." in shown) == (asked != "cifar10-48x4")
        for name, variant in VARIANTS.items():
            base, _, kind = name.rpartition("-")
            other = f"{name}: {PURPOSES[kind]}. {variant.help}"
            assert (other in shown) == (base == "cifar10-48x4" and name != asked)


@pytest.mark.parametrize(
    "door", ["vit_jax.extras.sheet", "vit_jax.commands.evaluate", "vit_jax.commands.predict", "torch_ref.train"]
)
def test_help_fits_into_the_terminal(door, capsys, monkeypatch):
    if door == "torch_ref.train":
        pytest.importorskip("torch", reason="PyTorch is not installed")
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr(sys, "argv", [door, "--help"])
    with pytest.raises(SystemExit):
        importlib.import_module(door).main()
    text = capsys.readouterr().out
    assert "show this help" in text and max(map(len, text.splitlines())) <= 80


def test_help_says_what_a_preset_fetches(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    text = helped(capsys)
    assert max(map(len, text.splitlines())) <= 80
    for name in PRESETS:
        source = preset(name).run.data.source
        fetched = (
            f"{sum(archive.bytes for archive in OFFICIAL[source].archives) / 1e6:.0f} MB" if source in OFFICIAL else ""
        )
        (line,) = (line for line in text.splitlines() if line.split()[:1] == [name])
        assert line.endswith(f"; fetches {fetched}") if fetched else "fetches" not in line
        if name not in ("digits", "mnist"):
            continue
        shown = helped(capsys, name)
        assert max(map(len, shown.splitlines())) <= 80
        shown = " ".join(shown.split())
        said = f"Its data, {source}, is fetched once ({fetched}) and prepared in --data.dir, by default $TFDS_DATA_DIR"
        assert (said in shown) == bool(fetched) == ("with --data.no-download it must be there" in shown)


def test_no_jax_before_it_is_needed():
    """Help, a printed config and what is wrong with a command come before anything heavy is loaded."""
    codes = {
        "train --help": 0, "train digits --print-config": 0, "train digit": 2, "train digits --bath 3": 2,
        "train digits --batch 0": 2, "train --resume nothing": 2, "evaluate --help": 0, "evaluate nothing": 2,
        "predict --help": 0, "predict nothing nothing.png": 2,
    }  # fmt: skip
    program = """
import contextlib, io, sys
from vit_jax.commands import cli
for line in sys.argv[1:]:
    sys.argv = ["vit-jax", *line.split()]
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        try:
            code = cli.main()
        except SystemExit as ended:
            code = ended.code
    heavy = {"jax", "jaxlib", "flax", "optax", "orbax", "tensorflow_datasets", "sklearn", "matplotlib"}
    heavy |= {"bokeh", "jinja2"}
    print(line, code, *heavy & set(sys.modules))
"""
    done = python(program, *codes)
    assert done.stdout.splitlines() == [f"{line} {code}" for line, code in codes.items()], done.stderr


def test_a_command_line_is_parsed_once_and_its_run_checked_and_planned_once(place, plain, monkeypatch):
    calls = []
    for module, name in (
        (flags, "parse"),
        (train_command, "check_run"),
        (train_options, "check_run"),
        (job, "check_run"),
        (job, "plan_division"),
    ):
        wrapped = getattr(module, name)
        monkeypatch.setattr(
            module, name, lambda *a, wrapped=wrapped, name=name, **k: (calls.append(name), wrapped(*a, **k))[1]
        )
    assert train("--max-steps", 1, "--name", "once") == 0
    # Planned once for the data, which asks for the devices alone, and once for the rest.
    assert sorted(calls) == ["check_run", "parse", "plan_division", "plan_division"]


def test_dry_run_writes_nothing(capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    assert train("--dry-run", "--epochs", 2, "--stages", "0.5:model.dropout=0.2") == 0
    out = capsys.readouterr().out
    assert "stages   1 to 20: model.dropout 0.2; 21 to 40: as the fields say" in out
    assert "2,794 parameters" in out and "train 1,294, validation 144, test 359" in out
    assert "2 epochs of 20 steps; nothing was written" in out
    assert re.search(
        r"time     (about [\d.]+ minutes|a few seconds) of training here: \d+ s to compile, then 40 steps of \d+ ms",
        out,
    )
    assert "enlarged" not in out and train("--dry-run", "--model.image", 32, "--model.patch", 8) == 0
    assert "images are enlarged 4 times, from 8 to 32 pixels a side" in capsys.readouterr().out
    assert not list(tmp_path.iterdir())


# ---------------------------------------------------------------------------------- exit codes


@pytest.mark.parametrize(
    "raised, code, says",
    [
        (None, 0, ""),
        (errors.UserError("batch is 0:\ngive more"), 2, "vit-jax: error: batch is 0: give more\n"),
        (errors.CheckFailed("the loss is nan"), 3, "vit-jax: the loss is nan\n"),
        (errors.Interrupted("saved", "SIGINT"), 130, "vit-jax: saved\n"),
        (errors.Interrupted("saved", "SIGTERM"), 143, "vit-jax: saved\n"),
        (KeyboardInterrupt(), 130, "vit-jax: interrupted; what was not saved yet is lost\n"),
        (BrokenPipeError(), 0, ""),
    ],
    ids=str,
)
def test_exit_codes(raised, code, says, capsys):
    def body():
        if raised is not None:
            raise raised

    assert terminal.run_command(body) == code
    assert capsys.readouterr().err == says


def test_our_own_mistakes_keep_their_traceback():
    with pytest.raises(ZeroDivisionError):
        terminal.run_command(lambda: 1 // 0)


@pytest.mark.skipif(os.name == "nt", reason="a POSIX shell's pipes")
def test_a_reader_may_go_away(door):
    for words in ("vit_jax.train --help", "vit_jax --help"):
        program = f"{shlex.quote(sys.executable)} -m {words}; echo $? >&2"
        done = subprocess.run(["bash", "-c", f"({program}) | true"], capture_output=True, text=True)
        assert done.stderr == "0\n"


@pytest.mark.skipif(os.name == "nt", reason="a POSIX shell's pipes")
def test_training_goes_on_when_nobody_reads_what_it_prints(monkeypatch):
    from vit_jax.commands import train as command

    steps, (read, write) = [], os.pipe()

    def prints(arguments):
        for step in range(3):
            print("step", step, flush=True)
            steps.append(step)
        return 0

    os.close(read)
    monkeypatch.setattr(command, "command", prints)
    with open(write, "w") as stream:
        monkeypatch.setattr("sys.stdout", stream)
        assert command.main() == 0
    assert steps == [0, 1, 2]


def test_the_command_hands_on(capsys, monkeypatch):
    for arguments, code, says in (
        ([], 0, "usage: vit-jax"),
        (["--help"], 0, "evaluate"),
        (["--version"], 0, f"vit-jax {vit_jax.__version__}"),
        (["train", "--version"], 0, f"vit-jax {vit_jax.__version__}"),
        (["trian"], 2, "nearest: train"),
        (["evaluate", "nothing"], 2, "nothing: no such file, folder or run"),
        (["predict", "nothing", "nothing.png"], 2, "nothing: no such file, folder or run"),
    ):
        monkeypatch.setattr(sys, "argv", ["vit-jax", *arguments])
        assert cli.main() == code
        shown = capsys.readouterr()
        assert says in (shown.err if code else shown.out)


# ---------------------------------------------------------------------------- what a run leaves


def test_the_files_of_a_run(trained):
    folder, _ = trained
    record = folder.record()
    assert from_dict(RunConfig, record["config"]) == replace_fields(
        tiny("--epochs", 3, "--name", "trained"), {"data.target": "class", "loss.name": "cross_entropy"}
    )
    assert record["preset"] == "digits"
    assert record["class_names"] == list("0123456789")
    assert {p.name for p in folder.plots.iterdir()} == {
        *(f"{name}.png" for name in ("curves", "confusion", "per-class", "wrong", "patches", "positions", "attention")),
        *("reliability.png", "suspects.png", "suspects.csv", "sections.json"),
        *(f"{name}.json" for name in ("attention", "classes", "explanations", "positions")),
    }
    assert 1_000_000 < (folder.path / "report.html").stat().st_size < 3_000_000
    for file in folder.plots.glob("*.png"):
        with Image.open(file) as image:
            image.load()
            assert min(image.size) > 100
    samples = sorted(folder.samples.iterdir())
    assert [p.name[:2] for p in samples] == ["0-", "1-", "2-", "3-"]
    assert all(Image.open(p).size == (8, 8) for p in samples)
    assert folder.complete_steps()[0] == 60
    assert not list(folder.path.rglob("*.tmp"))
    assert {p.name for p in folder.path.iterdir()} <= OF_A_RUN  # so that no output of a command replaces it


def test_the_lines_of_metrics(trained):
    folder, _ = trained
    rows = lines(folder, "train")
    assert [row["step"] for row in rows] == [10, 20, 30, 40, 50, 60]
    measured = ("images_per_second", "memory", "cpu_seconds")
    names = ("loss", "accuracy", "lr", "grad_norm", "param_norm", "update_norm", *measured)
    for row in rows:
        assert row["epoch"] == row["step"] / 20
        assert all(math.isfinite(row[name]) and row[name] > 0 for name in names)
    assert rows[-1]["loss"] < rows[0]["loss"]


def test_both_weights_are_evaluated_each_epoch_and_test_once(trained):
    folder, _ = trained
    rows = lines(folder, "eval")
    seen = [(row["split"], row["weights"], row["step"]) for row in rows]
    watched = [("validation", weights, step) for step in (20, 40, 60) for weights in ("raw", "ema")]
    assert seen == [*watched, ("test", "raw", 60), ("test", "ema", 60)]
    assert all(math.isfinite(row[name]) for row in rows for name in ("loss", *SCORES))
    by = {(row["weights"], row["step"]): row["loss"] for row in rows}
    assert by["raw", 20] != by["ema", 20]


def test_the_summary(trained):
    folder, _ = trained
    summary = folder.summary()
    assert (summary["status"], summary["step"], summary["epoch"]) == ("finished", 60, 3.0)
    assert summary["validation"].keys() == {"raw", "ema"}
    assert summary["test"].keys() == {"last", "last_ema", "best"}
    rows = lines(folder, "eval")
    validations = [row for row in rows if row["split"] == "validation"]
    best = max(validations, key=lambda row: (row["accuracy"], -row["loss"]))  # of equals the one with the lower loss
    assert summary["best"] == {name: best[name] for name in ("step", "accuracy", "loss", "weights")}
    for key, split, weights in (
        ("last", "test", "raw"),
        ("last_ema", "test", "ema"),
        ("raw", "validation", "raw"),
        ("ema", "validation", "ema"),
    ):
        row = next(row for row in reversed(rows) if (row["split"], row["weights"]) == (split, weights))
        assert summary[split][key] == {name: row[name] for name in summary[split][key]}
        assert {"loss", *SCORES} < summary[split][key].keys()


def test_the_result_is_printed(trained):
    folder, out = trained
    summary = folder.summary()
    for split, weights, shown in (("validation", "raw", "last"), ("test", "last", "last"), ("test", "best", "best")):
        assert re.search(rf"{split} +{shown} +accuracy {summary[split][weights]['accuracy']:.4f}", out)
    assert "figures are in runs/trained/plots" in out
    assert "compiling the training step" in out


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM", "SIGHUP"])
def test_a_signal_while_the_interpreter_ends_changes_nothing(name):
    """jax cleans up there, and an interrupt in the middle of it would be a traceback after a run that is finished."""
    script = (
        "import atexit, os, signal, sys\nfrom vit_jax.files.terminal import run_command\n"
        f"atexit.register(os.kill, os.getpid(), signal.{name})\nsys.exit(run_command(lambda: 3))"
    )
    done = python(script)
    assert (done.returncode, done.stderr) == (3, "")


@pytest.mark.filterwarnings("ignore:.*found in sys.modules:RuntimeWarning")
def test_the_next_commands_run_as_pasted(place, capsys, plain, monkeypatch):
    """Those of a run that its budget ended: predict, evaluate, and resume, to the end of the run."""
    with pytest.MonkeyPatch.context() as patch:  # samples, but no plots

        def draw(loop, *_):
            from vit_jax.tasks.classify.draw import save_samples

            dataset, folder = loop.job.data, loop.job.folder
            split = dataset.splits["test"]
            folder.samples.mkdir()
            names = [dataset.class_names[label] for label in split.labels[:4]]
            return f"samples/{save_samples(folder.samples, split.take(np.arange(4)), names)[0]}"

        patch.setattr(finish, "draw", draw)
        assert train("--epochs", 1, "--name", "pasted", "--max-steps", 15) == 0
    out = capsys.readouterr().out
    assert "stopped: max_steps at step 15" in out
    commands = [line.strip() for line in out.partition("next:\n")[2].splitlines()]
    assert [command.split()[2] for command in commands] == ["vit_jax.predict", "vit_jax.evaluate", "vit_jax.train"]
    shown = []
    for command in commands:
        # A shell takes the line apart; what it would start is run here, where jax is imported already.
        echo = f"python() {{ printf '%s\\n' \"$@\"; }}; {command}"
        dash_m, module, *arguments = subprocess.check_output(["sh", "-c", echo], cwd=place, text=True).splitlines()
        assert dash_m == "-m"
        with monkeypatch.context() as patch, pytest.raises(SystemExit) as ended:
            patch.setattr(sys, "argv", [module, *arguments])
            runpy.run_module(module, run_name="__main__", alter_sys=True)
        shown.append(capsys.readouterr())
        assert not ended.value.code, shown[-1].err
    assert shown[0].out.strip() in tuple("0123456789")
    assert "at step 15, test: 359 examples" in shown[1].out
    assert "finished at step 20" in shown[2].out


def test_resume_takes_the_config_from_the_run_and_a_larger_budget(place, capsys, plain):
    assert train("--epochs", 2, "--name", "resumed", "--max-steps", 25) == 0
    os.rename("runs", "moved")
    try:
        capsys.readouterr()
        assert train_command.command(["--resume", "resumed", "--dir", "moved", "--max-steps", "0"]) == 0
        out = capsys.readouterr().out
        assert "going on after step 25" in out and "finished at step 40" in out
        assert [row["step"] for row in lines(runs.Run("moved/resumed"), "train")] == [10, 20, 30, 40]
    finally:
        os.rename("moved", "runs")


# ------------------------------------------------------------------------------- kinds of run


def test_seeds(place, plain, capsys, monkeypatch):
    monkeypatch.setattr(hook, "leave_report", lambda folder: (folder.path / "report.html").touch())
    assert train("--epochs", 1, "--name", "group", "--seeds", 2) == 0
    out = capsys.readouterr().out
    group = place / "runs" / "group"
    assert {p.name for p in group.iterdir()} == {"seed-0", "seed-1", "summary.json", "plots", "report.html"}
    assert [p.name for p in (group / "plots").iterdir()] == ["curves.png"]
    assert "the curves of all seeds are in runs/group/plots/curves.png" in out
    members = [runs.Run(group / f"seed-{seed}") for seed in (0, 1)]
    assert [member.config().seed for member in members] == [0, 1]
    summary = json.loads((group / "summary.json").read_text())
    assert summary["status"] == "finished" and summary["seeds"] == [0, 1]
    values = [member.summary()["test"]["last"]["accuracy"] for member in members]
    assert values[0] != values[1]
    row = summary["metrics"]["test.last.accuracy"]
    assert "seconds" in summary["metrics"] and not {"step", "best.step"} & summary["metrics"].keys()
    assert row["values"] == values
    assert row["mean"] == pytest.approx(sum(values) / 2, abs=1e-12)
    assert row["std"] == pytest.approx(abs(values[0] - values[1]) / math.sqrt(2), abs=1e-12)  # with n-1
    assert re.search(rf"test\.last\.accuracy +{row['mean']:.4f} \+- {row['std']:.4f}", out)

    assert train("--epochs", 1, "--name", "group", "--seeds", 2) == 0  # the same command again
    again = capsys.readouterr().out
    assert again.count("this run is finished") == 2 and len(re.findall("test +last +accuracy", again)) == 2
    assert json.loads((group / "summary.json").read_text())["metrics"] == summary["metrics"]


def test_overfitting_a_few_batches(place, plain, capsys):
    assert train("--overfit-batches", 2, "--max-steps", 20, "--name", "overfit") == 0
    folder = runs.Run("runs/overfit")
    evaluated = [row for row in lines(folder, "eval") if row["weights"] == "raw"]
    assert [(row["split"], row["step"]) for row in evaluated] == [("train", 10), ("train", 20)]
    assert evaluated[-1]["accuracy"] > evaluated[0]["accuracy"]
    assert folder.summary()["train"]["raw"]["accuracy"] == evaluated[-1]["accuracy"]
    assert "test" not in folder.summary()


@pytest.fixture
def narrow_again():
    """float64 is a setting of the whole process."""
    yield
    jax.config.update("jax_enable_x64", False)


@pytest.mark.parametrize("dtype", ["bfloat16", pytest.param("float64", marks=pytest.mark.slow)])
def test_other_dtypes(dtype, place, plain, narrow_again, capsys):

    assert train("--epochs", 1, "--compute-dtype", dtype, "--name", dtype) == 0
    folder = runs.Run(f"runs/{dtype}")
    assert folder.summary()["status"] == "finished"
    losses = [row["loss"] for row in lines(folder, "train")]
    assert losses[-1] < losses[0]
    expected = np.float64 if dtype == "float64" else np.float32
    assert {x.dtype for x in kept(folder, "last").values()} == {np.dtype(expected)}

    # Evaluated and used as it was trained, to the last digit that is stored.
    _, result = vit_jax.evaluate(f"runs/{dtype}", which="last")
    for name, value in folder.summary()["test"]["last_ema"].items():
        assert result.metrics[name] == pytest.approx(value, rel=1e-12)
    loaded = vit_jax.load(dtype, which="last")
    assert loaded.model.dtype == ("float32" if rounds_factors(dtype) else dtype)
    logits = loaded.logits([np.zeros((8, 8), np.uint8)])
    assert logits.dtype == expected and np.isfinite(logits).all()


# ------------------------------------------------------------------------------- as a library


@pytest.mark.parametrize(
    ("what", "fields", "network", "said"),
    [
        ("digits", {}, "ViT", {"classes": 10, "image": 8, "width": 64}),
        ("numbers", {"source_vocabulary": 9, "target_vocabulary": 9, "outputs": 9}, "Transformer", {"outputs": 9}),
        ("shapes", {"text.target_vocabulary": 8, "text.outputs": 8}, "Captioner", {}),
        (vit_jax.preset("digits", fields={"depth": 1}).run, {"pool": "mean"}, "ViT", {"depth": 1, "pool": "mean"}),
    ],
    ids=str,
)
def test_the_network_of_a_preset_or_a_run_is_built_untrained(what, fields, network, said):
    model = vit_jax.build(what, **fields)
    assert type(model).__name__ == network and {name: getattr(model.config, name) for name in said} == said


@pytest.mark.parametrize(
    ("what", "fields", "said"),
    [
        ("digit", {}, "there is no preset 'digit'.*digits"),
        ("digits", {"widht": 32}, "model.widht is no field.*model.width"),
        ("numbers", {}, "model.source_vocabulary is what the data decides: give source_vocabulary=..., target_voc"),
        (3, {}, "what is a int"),
    ],
    ids=str,
)
def test_a_network_that_cannot_be_built_is_one_sentence(what, fields, said):
    with pytest.raises(errors.UserError, match=said):
        vit_jax.build(what, **fields)
