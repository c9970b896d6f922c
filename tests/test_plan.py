"""`vit-jax plan`: the devices that it compiles for, by their names; what it asks and what it says."""

import io
import itertools
import json
import signal
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.test_processes import python
from vit_jax.config.dotted import value_at
from vit_jax.errors import CheckFailed, UserError
from vit_jax.extras.plan import command as plan
from vit_jax.extras.plan import compile as plan_compile
from vit_jax.extras.plan import table as plan_table
from vit_jax.machine import targets
from vit_jax.machine.targets import GPUS, HERE, TPUS, prepare, published, read_target
from vit_jax.presets.table import preset
from vit_jax.runs.values import to_dict
from vit_jax.tasks.computed import task_class
from vit_jax.tasks.table import task_spec

slow = pytest.mark.slow


@pytest.mark.parametrize(
    ("name", "count", "topology"),
    [
        ("h100", 1, "1x1x1"), ("h100:8", 8, "1x1x8"), ("a100:16", 16, "1x2x8"), ("v5e:2x2", 4, "v5e:2x2"),
        ("v5e:16x16", 256, "v5e:16x16"), ("v5p:2x2", 4, "v5p:2x2x1"), ("v5p:8x8x16", 1024, "v5p:8x8x16"),
    ],
)  # fmt: skip
def test_a_name_says_which_devices_and_how_many(name, count, topology):
    target = read_target(name)
    assert (target.count, target.topology, target.present) == (count, topology, False)
    assert published(target.kind).peak and published(target.kind).bandwidth and target.memory > 15e9


def test_all_known_names_are_of_devices_whose_figures_are_published():
    for name in (*GPUS, *(f"{tpu}:2x2" for tpu in TPUS)):
        assert all(
            vars(published(read_target(name).kind))[figure] for figure in ("peak", "memory", "bandwidth", "link")
        )
    assert read_target("here") is HERE


@pytest.mark.parametrize(
    ("name", "remedy"),
    [
        ("h10", "h100.*v5e:2x2.*here"), ("", "h100"), ("H100", "h100"), ("h100:0", "h100:8"), ("h100:x", "h100:8"),
        ("h100:", "h100:8"), ("h100:9", "up to 8, or a multiple of it"), ("v5e", "v5e:2x2"), ("v5e:4", "v5e:2x2"),
        ("v5e:0x4", "v5e:2x2"), ("h100\n", "h100"), ("v6e:2x2x2", "v6e:4x4"), ("v5e:32x16", "at most 256"),
        ("v5p:32x32x32", "at most 8,960"),
    ],
)  # fmt: skip
def test_a_name_that_is_none_is_refused_with_those_that_are_known(name, remedy):
    with pytest.raises(UserError, match=rf"^target is .*{remedy}"):
        read_target(name)


@pytest.mark.parametrize(("name", "extra"), [("h100", "plan-cuda12"), ("v5e:2x2", "plan-tpu")])
def test_where_the_compiler_is_missing_the_command_that_installs_it_is_said(name, extra, monkeypatch):
    monkeypatch.setattr(targets.importlib.util, "find_spec", lambda module: None)
    with pytest.raises(UserError, match=rf"^target is {name}, .* not installed .*pip install '\S+\[{extra}\]'"):
        prepare(read_target(name))


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(7.58e-8, "75.8 ns"), (7.58e-5, "75.8 µs"), (0.0261, "26.1 ms"), (3.56, "3.6 s"), (4321.0, "4,321.0 s")],
)
def test_a_bound_is_in_the_unit_that_fits(seconds, text):
    assert plan_table.duration(seconds) == text


def linear(own, each, there, jump=0):
    """A compiler of programs that take `own` bytes and `each` more an example, and every fourth `jump` more."""

    class Fake:
        def __init__(self):
            self.length, self.asked = 0, []

        def figures(self, run, what="train", title=""):
            self.asked.append(run.batch)
            total = own + each * run.batch + jump * (run.batch // 8 % 4 == 0)
            memory = {"total": total, "there": there}
            return {"rows": run.batch, "devices": 4, "parts": 2, "platform": "gpu", "kind": "g", "memory": memory}

    return Fake()


@pytest.mark.parametrize("own", [0, 500, 9990])
@pytest.mark.parametrize("start", [8, 800, 8000])
@pytest.mark.parametrize("jump", [0, 0.5])
def test_the_largest_batch_is_found_with_few_compilations(own, start, jump):
    """To 1 % of it, of the multiples of 8; memory need not be quite linear."""
    compiler, run = linear(own, 0.1, 10_000, jump), replace(preset("digits").run, batch=start)
    found, beyond = plan.largest_batch(compiler, run, compiler.figures(run))
    assert len(compiler.asked) <= plan.MOST_TRIED
    fits = [b for b in range(8, 110_000, 8) if compiler.figures(replace(run, batch=b))["memory"]["total"] <= 10_000]
    assert max(fits) * 0.98 <= found["rows"] in fits and beyond not in fits
    assert beyond - found["rows"] <= max(8, found["rows"] / 80)


def test_a_network_that_fits_nowhere_is_said_to_with_what_would_make_it_fit():
    compiler, run = (
        linear(3 * 2**30, 0, 2**30),
        replace(preset("cifar10-256x6").run, batch=64, attention_kernel="plain"),
    )
    with pytest.raises(UserError, match=r"batch of 8 .* takes 3\.0 of 1\.0 GiB"):
        plan.largest_batch(compiler, run, compiler.figures(run))
    figures = compiler.figures(run)
    sentence = plan_table.advice(run, figures, {})
    assert sentence.startswith(
        "it lacks 2.0 GiB on each device; give --compute-dtype bfloat16, --attention-kernel auto"
    )
    smaller = {**figures, "memory": {"total": 1, "there": 2**30}}
    assert plan_table.advice(run, figures, {"remat dots": smaller}).endswith("; it fits with remat dots")
    assert "with none of remat dots" in plan_table.advice(run, figures, {"remat dots": figures})


def request(run):
    """What the process that compiles is asked for: the training step of a run, for what is here."""
    return {"run": to_dict(run), "target": "here", "what": "train", "length": 0}


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    return tmp_path / "vit-jax" / "plans"


def test_the_plan_of_what_is_here_is_compiled_once_and_kept(cache, capsys, monkeypatch):
    words, ask = ["digits", "--batch", "8", "--evaluate", "--json", "--accumulate", "1"], plan_compile._ask
    monkeypatch.setattr(plan_compile.backend, "configure_jax", lambda devices: None)

    def asked(request, title):
        """Of one step the process, and of the other what it would answer."""
        return ask(request, title) if request["what"] == "train" else plan_compile.answer(request)

    monkeypatch.setattr(plan_compile, "_ask", asked)
    assert plan.command(words) == 0
    said = json.loads(capsys.readouterr().out)
    train, evaluation = said["steps"]
    assert train["flops"] == pytest.approx(3 * preset("digits").run.model.flops() * 8, rel=0.1)
    assert evaluation["flops"] == pytest.approx(train["flops"] / 3, rel=0.1)
    weights = 4 * preset("digits").run.model.parameter_count()
    assert (train["memory"]["weights"], train["memory"]["moments"]) == (weights, 2 * weights)
    assert train["memory"]["total"] == sum(
        size for part, size in train["memory"].items() if part not in ("total", "there")
    )
    assert said["fits"] and train["bytes"] > 10 * weights
    assert len([*cache.iterdir()]) == 2
    monkeypatch.setattr(plan_compile, "_ask", None)  # nothing is compiled again
    assert plan.command(words) == 0
    assert json.loads(capsys.readouterr().out) == said
    assert plan.command([word for word in words if word != "--json"]) == 0
    assert "activations, temporaries" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("name", "damage"),
    [
        ("XLA_FLAGS", b""), ("LIBTPU_INIT_ARGS", b"[" * 100_000), ("JAX_DEFAULT_MATMUL_PRECISION", b'{"memory": {}}'),
        ("XLA_FLAGS", b'{"figures": {"memory": 9}, "digest": "0"}'),
    ],
)  # fmt: skip
def test_it_is_compiled_again_by_other_flags_of_compilers_and_where_what_was_kept_is_damaged(
    name, damage, cache, monkeypatch
):
    number, compiler, run = itertools.count(1), plan_compile.Compiler(read_target("h100")), preset("digits").run
    monkeypatch.setattr(plan_compile, "_ask", lambda *_: {"figures": {"memory": next(number)}})
    assert [compiler.figures(run)["memory"] for _ in range(2)] == [1, 1]
    (path,) = cache.iterdir()
    monkeypatch.setenv(name, "--another")
    assert [compiler.figures(run)["memory"] for _ in range(2)] == [2, 2]
    monkeypatch.delenv(name)
    path.write_bytes(damage)
    assert [compiler.figures(run)["memory"] for _ in range(2)] == [3, 3]


@pytest.mark.parametrize(
    ("answer", "error", "said"),
    [
        ({"failed": "INTERNAL: no tile"}, CheckFailed, "^the compiler of h100 fails at train: INTERNAL: no tile$"),
        ({"refused": ["batch", True, "is 7", "give 8"]}, UserError, "^batch is 7: give 8$"),
    ],
)
def test_what_a_compiler_says_is_said(answer, error, said, cache, monkeypatch):
    monkeypatch.setattr(plan_compile, "_ask", lambda request, title: answer)
    with pytest.raises(error, match=said):
        plan_compile.Compiler(read_target("h100")).figures(preset("digits").run)


def test_a_program_that_a_tpus_compiler_finds_too_large_does_not_fit(cache, monkeypatch, capsys):
    for said in (
        "Ran out of memory in memory space hbm. Used 26.78G of 15.75G hbm. Exceeded hbm capacity by 11.03G.",
        "Ran out of memory on HBM, the total memory for HLO temporaries (26.78G) exceeds available HBM (15.75G).",
    ):
        assert plan_compile.too_large(said) == pytest.approx((26.78 * 2**30, 15.75 * 2**30))
    assert plan_compile.too_large("INTERNAL: no tile") is None
    run, compiler = preset("numbers").run, plan_compile.Compiler(read_target("v5e:2x2"))

    def exceed(*_):
        raise RuntimeError(said)

    monkeypatch.setattr(targets.Here, "compile", exceed)
    monkeypatch.setattr(plan_compile.backend, "configure_jax", lambda devices: None)
    answer = plan_compile.answer(request(run))["figures"] | {"platform": "tpu", "kind": "TPU v5 lite", "devices": 4}
    monkeypatch.setattr(plan_compile, "_ask", lambda request, title: {"figures": answer})
    figures = compiler.figures(run)
    assert figures["rows"] == run.data.tokens // run.data.lengths[-1] != run.batch  # as many as were compiled
    plan_table.print_plan(run, "v5e:2x2", [figures], {}, None)
    said = capsys.readouterr().out
    assert "26.78 of 15.8 GiB: DOES NOT FIT" in said and "moments" in said and "nothing is published" not in said
    assert plan_table.advice(run, figures, {}).startswith(
        "it lacks 11.0 GiB on each device; give --compute-dtype bfloat16"
    )
    assert {title for title, _, _ in plan_table.variants(run, figures)} == {
        "bfloat16",
        "remat dots",
        "fsdp 4",
        "accumulate 2",
    }


@pytest.mark.parametrize(
    ("code", "lines", "said"),
    [
        (-6, "W001 a\nF0000 x.cc:7] Check failed: x\n*** SIGABRT\n", "with signal 6 (F0000 x.cc:7] Check failed: x)"),
        (1, "Failed to find b\nERROR: Unknown flag 'c'\n", "with 1 (ERROR: Unknown flag 'c')"),
        (-9, "I0000 no driver\n", "with signal 9, as where this machine's memory runs out"),
        (-11, "", "with signal 11"),
    ],
)  # fmt: skip
def test_a_compiler_that_ends_its_process_is_said_to_with_its_line(code, lines, said):
    assert plan_compile._ended(code, io.StringIO(lines)) == {"failed": f"it ended {said}"}
    with pytest.raises(RuntimeError, match="NameError"):  # which is a fault of ours
        plan_compile._ended(1, io.StringIO(f"{lines}Traceback (most recent call last):\nNameError: x\n"))


def test_without_a_disk_for_it_nothing_is_kept_and_that_is_said_once(cache, capsys, monkeypatch):
    cache.parent.mkdir()
    cache.write_text("a file where the folder would be")
    monkeypatch.setattr(plan_compile, "_ask", lambda request, title: {"figures": {"memory": {}}})
    compiler = plan_compile.Compiler(HERE)
    for batch in (8, 16):
        assert compiler.figures(replace(preset("digits").run, batch=batch)) == {"memory": {}}
    assert capsys.readouterr().err.count("what is compiled cannot be kept in") == 1


def test_an_interruption_ends_the_process_that_compiles(monkeypatch):
    started, real = [], plan_compile.subprocess.Popen

    def start(*args, **options):
        started.append(real(*args, **options))
        threading.Timer(0.2, signal.pthread_kill, [threading.main_thread().ident, signal.SIGINT]).start()
        return started[0]

    monkeypatch.setattr(plan_compile.subprocess, "Popen", start)
    with pytest.raises(KeyboardInterrupt):
        plan_compile._ask(request(preset("digits").run), "train")
    assert started[0].poll() is not None


def test_the_process_that_compiles_ends_with_that_which_asks():
    """However that ends: its end closes the pipe."""
    command = [sys.executable, "-m", "vit_jax.extras.plan.compile"]
    child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    said, _ = child.communicate(json.dumps(request(preset("digits").run)) + "\n")
    assert child.returncode == 1 and not said


@pytest.mark.parametrize(("name", "length"), [("digits", 0), ("numbers", 12), ("shapes", 0)])
def test_what_stands_for_data_has_the_shapes_of_the_data(name, length):
    run = preset(name).run
    run = replace(run, data=replace(run.data, drawn=200)) if name == "shapes" else run
    data, given = task_class(run.task).open_data(run), task_spec(run.task).stand_in(run, length)
    assert data.sizes.items() <= {n: value_at(given.run.model, n) for n in given.run.model.marked("from_data")}.items()
    train = data.splits["train"]
    rows = given.batch[next(iter(given.batch))][0][0]
    longest = np.argsort(getattr(train, "longest", np.zeros(len(train))))[-rows:]
    for there, stated in ((train.batch(longest), given.batch), (train.examples(longest[:8]), given.examples)):
        found = {key: (x.shape[1:], x.dtype.name) for key, x in there.items()}
        assert found == {key: (tuple(shape[1:]), dtype) for key, (shape, dtype) in stated.items()}


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["vit-s16"], r"model\.classes is 0: .* give the number"),
        (["transformer-512x6"], r"model\.source_vocabulary is 0, and so are model\.target_vocabulary, model\.outputs"),
        (["digits", "--decode"], "decode is for tasks that write texts"),
        (["numbers", "--length", "20"], r"length is 20, and the last of data\.lengths is 16: give at most 16"),
        (["digits", "--seeds", "3"], "--seeds: belongs to the command train"),
        (["cifar10-48x4-distil"], "teacher is empty"),
        (["digits", "--batch", "60", "--target", "h100:8"], "batch 60 is not divisible by 8 devices: .* multiple of 8"),
        (["numbers", "--target", "h100:8", "--data.tokens", "999"], "batch 62 is not divisible by 8 devices"),
        (["digits", "--fsdp", "3", "--target", "h100:8"], "fsdp is 3, .* the 8 devices of h100:8"),
    ],
)
def test_what_cannot_be_planned_is_refused_before_anything_is_compiled(words, said, monkeypatch):
    monkeypatch.setattr(plan_compile, "_ask", None)
    monkeypatch.setattr(plan, "check_compiler", lambda target: None)  # it need not be there for these
    with pytest.raises(UserError, match=said):
        plan.command(words)


TAKEN = """
import ctypes, gc, json, re, sys
from dataclasses import replace
from pathlib import Path
import jax, numpy as np
from vit_jax.presets.table import preset
from vit_jax.extras.plan.steps import Compiled

def step(batch):
    compiled = Compiled(replace(preset("cifar10-256x6").run, batch=batch, accumulate=1))
    program = compiled.target.compile(compiled.trace("train"))
    weights = jax.tree.map(lambda s: np.zeros(s.shape, s.dtype), compiled.engine.network_shapes())
    arrays = {name: np.zeros(shape, dtype) for name, (shape, dtype) in compiled.given.batch.items()}
    state, there = compiled.engine.start(weights), compiled.engine.devices.shard_batch(arrays)
    jax.block_until_ready((state, there))
    return compiled, lambda: jax.block_until_ready(program(state, there, compiled.engine.seed, {})), (state, there)

def status(key):
    return 1024 * int(re.search(rf"{key}:\\s+(\\d+)", Path("/proc/self/status").read_text())[1])

step(2)[1]()  # what libraries load and keep at their first use
compiled, run, given = step(64)
planned = compiled.figures("train")["memory"]["total"]
gc.collect(), ctypes.CDLL(None).malloc_trim(0)
Path("/proc/self/clear_refs").write_text("5")  # the peak begins here
before, arguments = status("VmRSS"), sum(x.nbytes for x in jax.tree.leaves(given))
run()
print(json.dumps([planned, arguments + status("VmHWM") - before]))
"""


@slow
@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="the peak of a process is read as Linux has it")
def test_the_memory_that_is_planned_here_is_what_a_step_takes():
    ran = python(TAKEN, JAX_PLATFORMS="cpu", JAX_ENABLE_COMPILATION_CACHE="false")
    planned, taken = json.loads(ran.stdout)
    assert planned == pytest.approx(taken, rel=0.05) and planned > 5e8
