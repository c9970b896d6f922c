"""Real processes that are killed, asked to end, or hit a limit: what they leave, and that the same command goes on."""

import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from vit_jax.errors import INTERRUPTED
from vit_jax.runs import Run
from vit_jax.weights.checkpoint import Checkpoints

slow = pytest.mark.slow
EPOCH, STEPS = 5, 15  # steps
CLOCKS = {"seconds", "cpu_seconds", "images_per_second", "sentences_per_second", "tokens_per_second"}
TINY = shlex.split(
    "digits --name run --epochs 3 --batch 256 --accumulate 2 --ema 0.8 --keep 1 --log-every 4 "
    "--model.width 16 --model.depth 1 --model.heads 2 --model.hidden 16 --model.patch 4 --model.init-std 0.2 "
    "--model.dropout 0.1 --model.attention-dropout 0.1 --model.drop-path 0.2 "
    "--augment.flip --augment.crop-padding 1 --optim.lr 3e-2 --optim.clip 1"
)

# Runs the training door as a user would, but for one moment at which the process kills itself, as nothing can prevent.
# What is watched or replaced is the surroundings of a moment; the product has no hooks for it.
DRIVER = """
import os, shutil, signal, sys, threading, time
from pathlib import Path

moment = sys.argv.pop(1)

def die(*_, **__):
    os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(60)

def on_call(place, name, act, number=1, after=False, when=lambda *a, **k: True):
    function, calls = getattr(place, name), []
    def wrapped(*args, **kwargs):
        hit = False
        if when(*args, **kwargs):
            calls.append(name)
            hit = len(calls) == number
        if hit and not after:
            act(*args, **kwargs)
        out = function(*args, **kwargs)
        if hit and after:
            act(*args, **kwargs)
        return out
    setattr(place, name, wrapped)

def soon(seconds):
    return lambda *_, **__: threading.Timer(seconds, die).start()

def when_there(pattern):
    def watch():
        while not list(Path("runs").glob(pattern)):
            time.sleep(0.0005)
        die()
    return lambda *_, **__: threading.Thread(target=watch, daemon=True).start()

def half(path, *_, **__):
    files = sorted(p for p in Path(path).rglob("*") if p.is_file())
    for file in files[: len(files) // 2]:
        file.unlink()
    die()

def to(name):
    return lambda source, target: Path(target).match(name)

from vit_jax import runs
from vit_jax.machine import backend
from vit_jax.weights import checkpoint
from vit_jax.commands import train as command
from vit_jax.extras.report import hook
from vit_jax.training import finish, train as training
if moment == "start-up":
    on_call(backend, "configure_jax", die)
elif moment == "data":
    on_call(training, "set_up", die, after=True)
elif moment == "config.json":
    on_call(os, "replace", die, when=to("config.json"))
else:
    import vit_jax.weights.checkpoint
    from vit_jax.training.engine.evaluator import Evaluator as evaluator
    from vit_jax.training.engine.engine import Engine as engine
    MOMENTS = {
        "compilation": lambda: on_call(engine, "train", soon(0.05)),
        "first step": lambda: on_call(engine, "train", die, after=True),
        "step": lambda: on_call(engine, "train", die, 8, after=True),
        "log": lambda: on_call(
            vit_jax.training.log.Log,
            "write",
            lambda self, *_, **__: (self._file.write(b'{"kind": "tr'), self._file.flush(), die()),
            5,
        ),
        "evaluation": lambda: on_call(evaluator, "measure", die, 4),
        "saving": lambda: on_call(
            checkpoint.Checkpoints, "save", when_there("run/checkpoints/5.orbax-checkpoint-tmp*/*")
        ),
        "saving again": lambda: on_call(
            checkpoint.Checkpoints, "save", when_there("run/checkpoints/10.orbax-checkpoint-tmp*/*")
        ),
        "renamed": lambda: on_call(checkpoint, "sync_tree", die),
        "renamed again": lambda: on_call(checkpoint, "sync_tree", die, 2),
        "digest": lambda: on_call(os, "replace", die, 2, when=to("digests/*.json")),
        "saved": lambda: on_call(os, "replace", die, 2, after=True, when=to("digests/*.json")),
        "deletion begins": lambda: on_call(
            Path, "rename", die, when=lambda self, target: Path(target).match("*.deleted*")
        ),
        "deletion": lambda: on_call(shutil, "rmtree", half, when=lambda path, *_, **__: Path(path).match("*.deleted*")),
        "last save": lambda: on_call(checkpoint, "sync_tree", die, 3),
        "last deletion": lambda: on_call(
            shutil, "rmtree", half, 2, when=lambda path, *_, **__: Path(path).match("*.deleted*")
        ),
        "test": lambda: on_call(evaluator, "measure", die, 8),
        "summary": lambda: on_call(os, "replace", die, when=to("summary.json")),
        "report": lambda: on_call(hook, "leave_report", die),
        "shown": lambda: on_call(finish, "show", die),
        "": lambda: None,
    }
    finish.draw = hook.leave_report = lambda *_: None
    MOMENTS[moment]()
sys.exit(command.main())
"""


class Place:
    """A folder in which processes train, as a user's working folder, by a command of so many steps."""

    def __init__(self, path: Path, command: Sequence[str] = TINY, steps: int = STEPS):
        self.path, self.run, self.command, self.steps = path, Run(path / "runs" / "run"), command, steps
        path.mkdir(exist_ok=True)
        (path / "driver.py").write_text(DRIVER)

    def start(self, *extra: object, moment: str = "", **env: str) -> "subprocess.Popen[str]":
        command = [sys.executable, "driver.py", moment, *self.command, *map(str, extra)]
        return subprocess.Popen(
            command, cwd=self.path, env={**os.environ, **env}, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )

    def train(self, *extra: object, moment: str = "", **env: str) -> "subprocess.CompletedProcess[str]":
        process = self.start(*extra, moment=moment, **env)
        out, err = process.communicate(timeout=600)
        return subprocess.CompletedProcess([moment], process.returncode, out, err)

    def killed(self, moment: str, **env: str) -> None:
        done = self.train(moment=moment, **env)
        assert done.returncode == -signal.SIGKILL, f"{moment}: {done.returncode} {done.stdout} {done.stderr}"

    def finished(self) -> None:
        done = self.train()
        assert done.returncode == 0 and not done.stderr, done.stdout + done.stderr

    def end(self) -> dict[str, object]:
        """What is left: the arrays' digests, proved true, the notes, the log and the summary, without clocks."""
        saved, skipped = Checkpoints(self.run).restore(self.run.config().model.shapes())
        assert saved is not None and not skipped and saved.step == self.steps
        record = json.loads(self.run.digest_file(self.steps).read_text())
        return {
            "arrays": record["arrays"],
            "notes": {k: v for k, v in record["notes"].items() if k not in CLOCKS},
            "rows": [{k: v for k, v in row.items() if k not in {*CLOCKS, "memory"}} for row in self.run.metrics()],
            "summary": {k: v for k, v in (self.run.summary() or {}).items() if k not in CLOCKS},
            "steps": sorted(p.name for p in self.run.checkpoints.iterdir()),
            "digests": sorted(p.name for p in self.run.digests.iterdir()),
            "folders": sorted(p.name for p in (self.path / "runs").iterdir()),
            "files": sorted(p.name for p in self.run.path.iterdir()),
        }


@pytest.fixture
def place(tmp_path) -> Place:
    return Place(tmp_path)


@pytest.fixture(scope="module")
def expected(tmp_path_factory) -> dict[str, object]:
    """What an uninterrupted run ends with; each epoch is its best so far, so each save makes the one before it old."""
    place = Place(tmp_path_factory.mktemp("uninterrupted"))
    place.finished()
    left = place.end()
    assert left["steps"] == [str(STEPS)]
    return left


# ------------------------------------------------------------------------------------------- SIGKILL


# What is left on disk by the moment: the steps that count, of the last save before it.
MOMENTS = {
    "start-up": [],
    "data": [],
    "config.json": [],
    "compilation": [],
    "first step": [],
    "step": [EPOCH],
    "log": [EPOCH],
    "evaluation": [EPOCH],
    "saving": [],
    "saving again": [EPOCH],
    "renamed": [],
    "renamed again": [EPOCH],
    "digest": [EPOCH],
    "saved": [2 * EPOCH, EPOCH],
    "deletion begins": [2 * EPOCH],
    "deletion": [2 * EPOCH],
    "last save": [2 * EPOCH],
    "last deletion": [STEPS],
    "test": [STEPS],
    "summary": [STEPS],
    "report": [STEPS],
    "shown": [STEPS],
}


@slow
@pytest.mark.parametrize("moment", MOMENTS)
def test_killed_at_any_moment(place, expected, moment):
    # A compilation that takes its time, and not from the cache.
    place.killed(moment, **({"JAX_ENABLE_COMPILATION_CACHE": "false"} if moment == "compilation" else {}))
    assert place.run.complete_steps() == MOMENTS[moment]
    place.finished()
    assert place.end() == expected


# {what learns to say texts: its command; three epochs}
TEXTS = {
    "captions": "shapes --data.drawn 96 --batch 16 --model.vit.width 16 --model.vit.depth 1 --model.vit.heads 2 "
    "--model.vit.hidden 16 --model.vit.dropout 0.1 --model.text.width 12 --model.text.decoder-depth 1 "
    "--model.text.heads 2 --model.text.hidden 16 --model.text.dropout 0.1",
    "bpe": "numbers --data.source tsv:pairs.tsv --data.tokenizer bpe --data.vocabulary 520 --data.lengths 16 48 "
    "--data.tokens 480 --model.width 16 --model.heads 2 --model.hidden 16 --model.encoder-depth 1 "
    "--model.decoder-depth 1 --model.dropout 0.1",
}


@slow
@pytest.mark.parametrize("learns", TEXTS)
def test_texts_go_on_to_the_same_bits_after_a_kill(tmp_path, learns):
    """Captions of pictures, and translations by a tokenizer that was trained for the run."""
    command = [*shlex.split(TEXTS[learns]), "--name", "run", "--epochs", "3", "--log-every", "4", "--keep", "1"]
    whole, killed = (Place(tmp_path / name, command) for name in ("whole", "killed"))
    for place in (whole, killed):
        (place.path / "pairs.tsv").write_text("".join(f"{i} dogs run\t{i} Hunde rennen\n" for i in range(150)))
    whole.finished()
    whole.steps = killed.steps = whole.run.summary()["step"]
    killed.killed("step")
    begun = killed.run.complete_steps()
    assert begun and begun[0] < 8 < whole.steps
    killed.finished()
    assert killed.end() == whole.end()


def benchmark(name: str, *flags: str) -> str:
    """What `python -m benchmarks.NAME` prints, which ends with 1 where a run is not as one without a fault."""
    done = subprocess.run([sys.executable, "-m", f"benchmarks.{name}", *flags], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@slow
def test_killed_at_random_moments_of_its_cpu_time_and_still_the_same():
    """Also while a checkpoint is written in a thread; `--kills 200` is the whole series."""
    said = benchmark("endurance", "--kills", "6", "--seed", "3")
    assert "6 of 6 |" in said.splitlines()[-3 - said.count("said ")]


@slow
@pytest.mark.skipif(not shutil.which("strace"), reason="strace is not installed")
def test_after_a_power_cut_the_newest_save_that_had_returned_is_found():
    said = benchmark("power_cut", "--cuts", "30", "--lives", "2")
    assert said.count(": equal") == 4 and "wrong" not in said and said.count(" newest") >= 2


# ---------------------------------------------------------------------------------- SIGTERM and SIGINT


LONG = ["--epochs", 4000, "--save-minutes", 60]


def read_until(process: "subprocess.Popen[str]", text: str) -> None:
    assert process.stdout is not None
    for line in process.stdout:
        if text in line:
            return
    raise AssertionError(process.communicate())


@slow
@pytest.mark.parametrize("name", INTERRUPTED)
@pytest.mark.parametrize("said", ["run ", "compiling", "first step", "epoch 3:"])
def test_told_to_end_from_outside(place, name, said):
    """One sentence, the code of the signal, and a checkpoint of the step that was under way."""
    process = place.start(*LONG)
    read_until(process, said)
    process.send_signal(signal.Signals[name])
    began = time.monotonic()
    out, err = process.communicate(timeout=120)
    assert process.returncode == INTERRUPTED[name], out + err
    assert err.count("\n") == 1 and err.startswith(f"vit-jax: {name}: "), err
    if "saved at step" in err:
        step = int(err.split("saved at step ")[1].split(";")[0])
        assert place.run.complete_steps()[0] == step
        resumed = place.train(*LONG, "--max-steps", step + 1)
        assert resumed.returncode == 0 and f"going on after step {step}" in resumed.stdout
    else:
        assert "ended at once" in err and said != "epoch 3:"
        assert time.monotonic() - began < 60


@slow
def test_a_second_process_is_turned_away(place):
    first = place.start(*LONG)
    read_until(first, "first step")
    second = place.train(*LONG)
    assert second.returncode == 2
    assert (
        second.stderr == f"vit-jax: error: {Path('runs', 'run')}: in use by process {first.pid}; "
        "wait for it, end it, or choose another `name`\n"
    )
    first.kill()
    first.communicate()
    third = place.train(*LONG, "--max-steps", 3)
    assert third.returncode == 0, "the lock died with its process: " + third.stderr


# --------------------------------------------------------------------------- walls: disk, rights, memory


def one_sentence(done: "subprocess.CompletedProcess[str]") -> str:
    """The sentence on stderr of a door that ended with code 2."""
    assert done.returncode == 2, done.stdout + done.stderr
    assert done.stderr.count("\n") == 1 and done.stderr.startswith("vit-jax: error: "), done.stderr
    return done.stderr


@slow
@pytest.mark.skipif(os.name == "nt" or os.geteuid() != 0, reason="only root can mount")
def test_a_small_disk(tmp_path, expected):
    """From the very first file on: at whatever size the wall is, one sentence; and after it the whole run."""
    small = tmp_path / "small"
    small.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", str(small)], capture_output=True, text=True
    )
    if mounted.returncode:
        pytest.skip(f"cannot mount a small file system: {mounted.stderr.strip()}")
    try:
        place = Place(small)
        for free in (0, 8_192, 40_000, 120_000, 200_000):
            filler = small / "filler"
            filler.write_bytes(bytes(shutil.disk_usage(small).free - free))
            said = one_sentence(place.train(JAX_ENABLE_COMPILATION_CACHE="false"))
            assert "disk is full" in said, (free, said)
            filler.unlink()
            assert not list(place.run.path.rglob("*tmp*"))
        place.finished()
        assert place.end() == expected
    finally:
        subprocess.run(["umount", str(small)], check=True)
