"""Several processes train one run: as one would, and none is left alone when another is lost."""

import functools
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from vit_jax.commands import train as command
from vit_jax.config.trees import flatten
from vit_jax.errors import UserError
from vit_jax.machine import watch
from vit_jax.machine.hosts import Hosts, differing, join_hosts
from vit_jax.machine.launchers import read_place
from vit_jax.runs import Run
from vit_jax.training.stopping import VOTES, Agreement
from vit_jax.weights.checkpoint import Checkpoints

SMALL = ["digits", "--model.width", 16, "--model.depth", 2, "--model.heads", 2, "--model.hidden", 32, "--log-every", 1]
# Everything is drawn: dropout, drop path, crops, mixing.
DRAWN = [*SMALL, "--batch", 32, "--model.dropout", 0.1, "--model.drop-path", 0.1, "--augment.mixup", 0.4]
DRAWN += ["--optim.clip", 1, "--ema", 0.9, "--data.validation", 0.1]

# A training command that something happens to: at the Nth call of a function the process is killed or stopped, or the
# function raises. What it is given: the function, N, what happens, and the words of the command.
PLANTED = """
import importlib, os, signal, sys, time
where, count, how, *words = sys.argv[1:]
module, owner, name = {
    "step": ("vit_jax.training.engine.engine", "Engine", "train"),
    "save": ("vit_jax.training.engine.engine", "Engine", "gather"),
    "evaluate": ("vit_jax.training.engine.evaluator", "Evaluator", "outputs"),
}[where]
sys.argv = ["train", *words]
import vit_jax.commands.train as command
there = importlib.import_module(module)
there = getattr(there, owner) if owner else there
original, calls = getattr(there, name), []
def planted(*args, **more):
    calls.append(1)
    if len(calls) == int(count):
        print("now", time.time(), flush=True, file=sys.stderr)
        if how == "raise":
            raise RuntimeError("planted")
        signals = {"kill": signal.SIGKILL, "stop": signal.SIGSTOP, "end": signal.SIGTERM}
        os.kill(os.getpid(), signals[how])
    return original(*args, **more)
setattr(there, name, planted)
sys.exit(command.main())
"""


def free_port() -> int:
    with socket.create_server(("", 0)) as server:
        return server.getsockname()[1]


class Two:
    """Two processes with the same command, in folders of their own."""

    def __init__(self, place: Path):
        self.place, self.processes = place, []

    def start(self, *words: object, devices: int = 1, victim: int = -1, plant: tuple[object, ...] = ()) -> "Two":
        port = free_port()
        for index in (0, 1):
            program = ["-c", PLANTED, *plant] if index == victim else ["-m", "vit_jax.train"]
            self.spawn(index, *program, *words, "--hosts", f"127.0.0.1:{port},2,{index}", devices=devices)
        return self

    def spawn(self, index: int, *words: object, devices: int = 1, given: Mapping[str, str] = os.environ) -> None:
        """Start Python with these words, in this environment."""
        folder = self.place / str(index)
        folder.mkdir(exist_ok=True)
        process = subprocess.Popen(
            [sys.executable, *map(str, words)],
            cwd=folder,
            env={**given, "JAX_NUM_CPU_DEVICES": str(devices), "TMPDIR": str(folder)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            stdin=subprocess.DEVNULL,
            text=True,
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # ignored in the background
        )
        self.processes.append(process)

    def end(self, timeout: float = 500) -> list[tuple[int, str, str]]:
        """(exit code, stdout, stderr) of each, once both have ended."""
        found = []
        try:
            for process in self.processes:
                out, err = process.communicate(timeout=timeout)
                found.append((process.returncode, out, err))
        finally:
            self.kill()
        self.processes = []
        return found

    def kill(self) -> None:
        for process in self.processes:
            process.kill()
            process.wait()


@pytest.fixture
def two(tmp_path):
    both = Two(tmp_path)
    yield both
    both.kill()


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> Path:
    """The folder of a run of two processes that nothing has ended."""
    place = tmp_path_factory.mktemp("whole")
    found = Two(place).start(*DRAWN, "--epochs", 2, "--name", "run").end()
    assert [code for code, _, _ in found] == [0, 0], found
    return place / "0/runs/run"


def arrays(folder: Path, step: int) -> dict[str, np.ndarray]:
    run = Run(folder)
    saved = Checkpoints(run).read(step, run.config().model.shapes()).state
    return {f"{item}.{name}": x for item in ("parameters", "moments", "ema")
            for name, x in flatten(getattr(saved, item)).items()}  # fmt: skip


def rows(folder: Path) -> list[dict[str, object]]:
    """The rows of a log, without what depends on the clock."""
    clocks = {"images_per_second", "memory", "cpu_seconds"}
    return [{k: v for k, v in row.items() if k not in clocks} for row in Run(folder).metrics()]


def sentences(err: str) -> list[str]:
    return [line for line in err.splitlines() if line.startswith("vit-jax:")]


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_two_processes_of_four_devices_train_as_one_device(two, door, tmp_path, dtype):
    flags = [*DRAWN, "--compute-dtype", dtype, "--max-steps", 10]
    flags += ["--model.width", 64, "--model.hidden", 128]  # arrays that are large enough to be split
    one = door("train", *flags, "--accumulate", 1, "--name", "one", JAX_NUM_CPU_DEVICES="1")
    assert one.returncode == 0, one.stderr
    expected, losses = arrays(tmp_path / "runs/one", 10), rows(tmp_path / "runs/one")
    for name, more in (("shared", ()), ("split", ("--fsdp", 4)), ("whole", ("--fsdp", 8))):
        found = two.start(*flags, *more, "--name", name, devices=4).end()
        assert [code for code, _, _ in found] == [0, 0], found
        folder = tmp_path / "0/runs" / name
        # Gloo's threads print how many they have reached, and cut into each other's lines.
        printed = [line for line in found[1][1].splitlines() if "[Gloo]" not in line and "peer ranks" not in line]
        assert not "".join(printed) and not (tmp_path / "1/runs").exists()  # only the owner prints and writes
        assert [row["loss"] for row in rows(folder)] == pytest.approx([row["loss"] for row in losses], abs=1e-5)
        assert [row["kind"] for row in rows(folder)] == [row["kind"] for row in losses]
        if dtype == "float64":
            there = arrays(folder, 10)
            assert there.keys() == expected.keys()
            for array, x in expected.items():
                limit = 1e-7 if array.endswith("key.bias") else 1e-10
                np.testing.assert_allclose(there[array], x, rtol=0, atol=limit, err_msg=f"{name} {array}")


@pytest.mark.slow
def test_a_run_of_two_processes_goes_on_with_one_and_with_two_from_its_folder(two, door, tmp_path):
    flags = [*DRAWN, "--max-steps", 20]
    found = two.start(*flags, "--name", "run", "--fsdp", 2).end()
    assert [code for code, _, _ in found] == [0, 0], found
    runs = tmp_path / "0/runs"
    resumed = two.start("--resume", "run", "--max-steps", 30, "--fsdp", 2).end()
    assert [code for code, _, _ in resumed] == [0, 0] and "going on after step 20" in resumed[0][1], resumed
    alone = door("train", "--resume", "run", "--max-steps", 40, "--fsdp", 1, cwd=tmp_path / "0")
    assert alone.returncode == 0 and "going on after step 30" in alone.stdout, alone.stderr
    assert "hosts 2 -> 1" in alone.stdout
    assert [row["step"] for row in rows(runs / "run") if row["kind"] == "train"] == [*range(1, 41)]


@pytest.mark.slow
@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
@pytest.mark.parametrize("index", [0, 1])
def test_a_signal_to_either_saves_the_same_step_and_the_run_goes_on_to_the_bit(
    two, whole, tmp_path, index, number, code
):
    flags = [*DRAWN, "--epochs", 2]
    two.start(*flags, "--name", "cut")
    log = tmp_path / "0/runs/cut/metrics.jsonl"
    wait_until(lambda: log.exists() and log.read_bytes().count(b"\n") > 5)
    two.processes[index].send_signal(number)
    found = two.end()
    assert [each[0] for each in found] == [code, code], found
    saved = [re.search(r"saved at step (\d+)", err)[1] for _, _, err in found]
    assert saved[0] == saved[1] and (tmp_path / f"0/runs/cut/digests/{saved[0]}.json").exists()
    assert [each[0] for each in two.start(*flags, "--name", "cut").end()] == [0, 0]
    same(whole, tmp_path / "0/runs/cut")


@pytest.mark.slow
@pytest.mark.parametrize("index", [0, 1])
def test_a_signal_during_an_evaluation_breaks_it_off_for_both_and_it_is_repeated(two, whole, tmp_path, index):
    flags = [*DRAWN, "--epochs", 2, "--name", "cut"]
    found = two.start(*flags, victim=index, plant=("evaluate", 3, "end")).end()
    assert [each[0] for each in found] == [143, 143], found
    assert "saved at step 40" in found[0][2] and [row["kind"] for row in rows(tmp_path / "0/runs/cut")][-1] == "train"
    assert [each[0] for each in two.start(*flags).end()] == [0, 0]
    same(whole, tmp_path / "0/runs/cut")


def wait_until(so, seconds: float = 120) -> None:
    deadline = time.monotonic() + seconds
    while not so():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def same(one: Path, two: Path) -> None:
    """Two runs have the same log and the same arrays, to the bit."""
    assert rows(one) == rows(two)
    steps = Run(one).complete_steps()
    assert steps == Run(two).complete_steps()
    for step in steps:
        assert Run(one).saved(step)["arrays"] == Run(two).saved(step)["arrays"]


@pytest.mark.slow
@pytest.mark.parametrize("how", ["kill", "raise", "stop"])
@pytest.mark.parametrize(("where", "count"), [("step", 50), ("save", 2), ("evaluate", 5)])
@pytest.mark.parametrize("victim", [0, 1])
def test_a_process_that_is_lost_ends_the_other_and_the_run_goes_on_to_the_bit(
    two, whole, tmp_path, victim, where, count, how
):
    flags = [*DRAWN, "--epochs", 2]
    two.start(*flags, "--name", "cut", victim=victim, plant=(where, count, how))
    other = two.processes[1 - victim]
    try:
        _, err = other.communicate(timeout=120)
        ended = time.time()
    finally:
        if how == "stop":
            two.processes[victim].kill()
        _, told = two.processes[victim].communicate(timeout=120)
    code = two.processes[victim].returncode
    two.processes = []
    assert code == (1 if how == "raise" else -signal.SIGKILL), told
    assert other.returncode == 2, err
    assert ended - float(re.search(r"^now (\S+)", told, re.MULTILINE)[1]) < 15
    assert len(sentences(err)) == 1 and f"host {victim} " in sentences(err)[0], err
    assert "Traceback" not in err
    words = {"kill": "its process has ended", "raise": "has ended: planted", "stop": "silent"}
    assert words[how] in sentences(err)[0]
    if how == "kill":
        again = two.start(*flags, "--name", "cut").end()
        assert [each[0] for each in again] == [0, 0], again
        same(whole, tmp_path / "0/runs/cut")


CALLS = """
import dataclasses, sys, numpy as np, vit_jax
if __name__ == "__main__":
    run = vit_jax.preset("digits").run
    run = dataclasses.replace(run, batch=16, max_steps=4, ema=0.9)
    rng = np.random.default_rng(0)
    data = rng.integers(0, 256, (90, 8, 8), dtype=np.uint8), np.arange(90) % 10
    for name in ("one", "two", "one"):
        summary = vit_jax.train(dataclasses.replace(run, name=name), data=data, hosts=sys.argv[1])
        print("ended", name, summary["status"], summary["step"], flush=True)
    vit_jax.train(dataclasses.replace(run, name="one", seed=1), data=data, hosts=sys.argv[1])
"""


@pytest.mark.slow
def test_python_trains_with_several_processes_one_run_after_the_other(two, tmp_path):
    port = free_port()
    for index in (0, 1):
        two.spawn(index, "-c", CALLS, f"127.0.0.1:{port},2,{index}")
    for code, out, err in two.end():
        assert [line for line in out.splitlines() if line.startswith("ended")] == [
            f"ended {name} stopped: max_steps 4" for name in ("one", "two", "one")
        ], err
        assert code == 2 and "UserError" in err, err  # the last is another run; jax's end waits for nobody
    assert sorted(path.name for path in (tmp_path / "0/runs").iterdir()) == ["one", "two"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ({1: ["--seed", "1"]}, "hosts differ: host 1 has seed ['1'], host 0 none; make them the same on all hosts"),
        ({0: ["--batch", "33"], 1: ["--batch", "33"]}, "batch 33 is not divisible by 2 devices: choose"),
        ({0: ["--resume", "none"], 1: ["--resume", "none"]}, "none: no such folder or run"),
    ],
)
def test_what_two_processes_cannot_train_is_refused_by_both_and_leaves_nothing(two, tmp_path, words, sentence):
    port = free_port()
    for index in (0, 1):
        preset = [] if "--resume" in words.get(index, ()) else SMALL
        line = ["-m", "vit_jax.train", *preset, *words.get(index, ()), "--hosts", f"127.0.0.1:{port},2,{index}"]
        two.spawn(index, *line)
    for code, _, err in two.end():
        assert code == 2 and len(sentences(err)) == 1, err
        assert sentence in sentences(err)[0]
    assert not (tmp_path / "0/runs").exists() and not (tmp_path / "1/runs").exists()


# What is fast: no process is started.


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("two", "hosts is 'two': give auto, or ADDRESS:PORT,COUNT,INDEX"),
        ("host:1,2", "hosts is 'host:1,2': give auto"),
        ("host:0,2,0", "its port is 0"),
        ("host:1,0,0", "its COUNT is 0"),
        ("host:1,2,2", "its INDEX is 2; give one of 0 to 1"),
    ],
)
def test_a_place_that_is_none_is_refused(text, sentence):
    with pytest.raises(UserError) as caught:
        read_place(text)
    assert sentence in str(caught.value) and "\n" not in str(caught.value)


def test_places_are_read_and_one_process_needs_no_others(monkeypatch):
    place = read_place("[fe80::1]:5000,3,2")
    assert (place.address, place.port, place.count, place.index) == ("[fe80::1]", 5000, 3, 2)
    with join_hosts("") as hosts:
        assert hosts.owner and not hosts.several and hosts.share({"a": 1}) == {"a": 1}


def test_processes_that_do_not_come_together_say_why(monkeypatch):
    hosts = sys.modules["vit_jax.machine.hosts"]
    monkeypatch.setattr(hosts, "ANSWER", 0.3)
    port = free_port()
    for index, why in (
        (1, f"nothing answers at 127.0.0.1:{port} "),
        (0, "of 3 processes those with INDEX 1, 2 have not"),
    ):
        with pytest.raises(UserError, match=why):
            command.command(["digits", "--hosts", f"127.0.0.1:{port},3,{index}"])
    with socket.create_server(("", 0)) as taken, pytest.raises(UserError, match="cannot listen at port"):
        command.command(["digits", "--hosts", f"127.0.0.1:{taken.getsockname()[1]},2,0"])
    with pytest.raises(UserError, match="hosts is auto, but no srun, mpirun, TPU pod or Kubernetes has started this"):
        command.command(["digits", "--hosts", "auto"])


@pytest.mark.parametrize(
    ("others", "why"),
    [
        ([(1, 4)], "process 0 has COUNT 3, but .* 4; give all the same"),
        ([(1, 2)], "process 0 has COUNT 3, but .* 2; give all the same"),
        ([(1, 3), (1, 3)], "has INDEX 1, as another process has; give each its own"),
    ],
)
def test_places_that_do_not_belong_together_are_refused_by_all(others, why):
    first, port, told = watch.Watch(0, 0), free_port(), []

    def join(index, count):
        try:
            watch.Watch(index, 0).join("127.0.0.1", port, count, 5)
        except UserError as error:
            told.append(str(error))

    threads = [threading.Thread(target=join, args=other) for other in others]
    for thread in threads:
        thread.start()
    with pytest.raises(UserError, match=why) as caught:
        first.gather(port, 3, 5)
    first.leave({"failed": str(caught.value)})
    for thread in threads:
        thread.join(10)
    assert len(told) == len(others) and all("process 0, at 127.0.0.1" in each for each in told)


def test_who_comes_early_waits_longer_than_process_0_does(monkeypatch):
    waits = []

    class Noted(socket.socket):
        def settimeout(self, seconds):
            waits.append(seconds)
            super().settimeout(seconds)

    both, port = [watch.Watch(0, 0), watch.Watch(1, 0)], free_port()
    first = threading.Thread(target=both[0].gather, args=(port, 2, 7))
    first.start()
    monkeypatch.setattr(socket, "socket", Noted)
    both[1].join("127.0.0.1", port, 2, 7)
    first.join(5)
    assert max(filter(None, waits)) > 7
    for each in both:
        each.leave({})


def test_the_first_difference_between_hosts_is_told():
    same = {"jax": "0.10.2", "data": "a"}
    assert differing([same, dict(same), dict(same)]) == ""
    told = differing([same, dict(same), {"jax": "0.10.1", "data": "a", "seed": 1}])
    assert told == (
        "hosts differ: host 2 has jax 0.10.1, host 0 0.10.2; seed 1, host 0 none; make them the same on all hosts"
    )


class Store:
    """The values and barriers of jax's coordination service, for hosts that are threads."""

    def __init__(self):
        self.values, self.changed = {}, threading.Condition()

    def key_value_set(self, key, value):
        with self.changed:
            self.values[key] = value
            self.changed.notify_all()

    def blocking_key_value_get(self, key, milliseconds):
        with self.changed:
            if not self.changed.wait_for(lambda: key in self.values, milliseconds / 1000):
                raise RuntimeError("DEADLINE_EXCEEDED")
            return self.values[key]


def test_values_of_any_length_and_files_reach_all_hosts():
    store = Store()
    value = {"text": "ä" * 3_000_000, "files": {"tokenizer.json": bytes(range(256))}, "none": None}
    found = []
    threads = [threading.Thread(target=lambda i=i: found.append(Hosts(i, 3, store).share(value if i == 0 else None)))
               for i in (2, 1, 0)]  # fmt: skip
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert found == [value] * 3


def come_together(three):
    port = free_port()
    threads = [threading.Thread(target=each.join, args=("127.0.0.1", port, len(three), 5)) for each in three[1:]]
    for thread in threads:
        thread.start()
    three[0].gather(port, len(three), 5)
    for thread in threads:
        thread.join(5)


@pytest.fixture
def watches(monkeypatch):
    """The watches of three hosts, connected; their ends are recorded as `ended`, {index: exit code}, of the first."""
    monkeypatch.setattr(watch, "PING", 0.05)
    monkeypatch.setattr(watch, "SILENT", 0.8)
    monkeypatch.setattr(watch, "GRACE", 0.1)
    three = [watch.Watch(index, 0.2 / 60) for index in range(3)]
    ended = {}
    for each in three:
        each.exit = functools.partial(ended.setdefault, each.index)
    three[0].ended = ended
    come_together(three)
    for each in three:
        each.begin()
        each.working = True
    yield three
    for each in three:
        each.leave({})


def test_a_stranger_at_the_port_is_turned_away():
    both, port = [watch.Watch(0, 0), watch.Watch(1, 0)], free_port()
    first = threading.Thread(target=both[0].gather, args=(port, 2, 5))
    first.start()
    for said in (b"GET / HTTP/1.1\r\n\r\n", b'{"vit-jax": 1}\n', b"[]\n"):
        with socket.socket() as stranger:
            while stranger.connect_ex(("127.0.0.1", port)):
                time.sleep(0.01)
            stranger.sendall(said)
            stranger.settimeout(5)
            assert not stranger.recv(10)
    both[1].join("127.0.0.1", port, 2, 5)
    first.join(5)
    assert [*both[0].peers] == [1] and [*both[1].peers] == [0]
    for each in both:
        each.leave({})


def test_a_lost_peer_is_told_to_all_by_its_name_and_step(watches):
    watches[2].heartbeat(7)
    time.sleep(0.3)
    watches[2].peers[0].connection.shutdown(socket.SHUT_RDWR)
    for each in watches[:2]:
        assert re.match(r"host 2 \(.*\) was lost at step 7: its process has ended", each.wait_for_fault(5))
    wait_until(lambda: watches[0].ended.keys() >= {0, 1}, 5)
    assert {*watches[0].ended.values()} == {2}


def test_a_silent_peer_is_told_to_all(watches, monkeypatch):
    watches[1].ending = True  # its words stop; its connection stays
    for each in (watches[0], watches[2]):
        assert re.match(r"host 1 \(.*\) was lost at step 0: it has been silent for", each.wait_for_fault(5))


def test_a_process_that_was_stopped_itself_blames_nobody(watches, monkeypatch):
    """Its clock has gone on, and it has heard nobody meanwhile."""
    clock = time.monotonic
    monkeypatch.setattr(watch.time, "monotonic", lambda: clock() + 5)
    assert not any(each.wait_for_fault(0.2) for each in watches)


def test_a_peer_that_fails_is_told_with_its_reason(watches):
    watches[1].leave({"failed": "the disk is full"})
    for each in (watches[0], watches[2]):
        assert re.match(r"host 1 \(.*\) has ended: the disk is full", each.wait_for_fault(5))


def test_a_peer_that_is_done_is_missed_only_while_it_is_needed(watches):
    watches[0].working = False
    watches[1].leave({"done": 1})
    assert watches[0].wait_for_fault(0.5) == ""
    watches[0].working = True
    watches[2].leave({"done": 1})
    assert "host 2" in watches[0].wait_for_fault(5)


def test_the_host_that_has_done_least_is_named_once_when_all_stand_still(watches, capsys):
    for index, step in ((0, 5), (1, 4), (2, 5)):
        for done in range(1, step + 1):
            watches[index].heartbeat(done)
    time.sleep(0.6)
    noted = [line for line in capsys.readouterr().err.splitlines() if line.startswith("note")]
    assert len(noted) == 1 and re.match(r"note     host 1 \(.*\) has stood still at step 4 for", noted[0]), noted


def test_a_save_that_hosts_agreed_on_is_done_once():
    agreement = Agreement(SimpleNamespace(several=True), SimpleNamespace(name=""), time.monotonic() + 60, 60.0)
    agreement.read(np.array([name in ("time", "save") for name in VOTES]))  # another host's time is over
    assert {"time", "save"} <= agreement.known
    agreement.has_saved()
    assert "time" in agreement.known and "save" not in agreement.known


def test_what_a_run_states_is_json():
    """What hosts compare and share is what config.json holds."""
    json.dumps(command.flags.given_texts(["digits", "--model.image", "28", "28", "--flag", "--x=1"]))
    assert command.flags.given_texts(["digits", "--a", "1", "2", "--b", "--c=3"]) == {
        "": ["digits"], "a": ["1", "2"], "b": [], "c": ["3"]
    }  # fmt: skip
