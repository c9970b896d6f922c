"""The benchmarks compare like with like, and what they print is what they measured."""

import functools
import importlib
import itertools
import json
import random
import re
import shlex
import statistics
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import jax
import numpy as np
import pytest
from flax import nnx

sys.path.insert(0, str(Path(__file__).parents[1]))  # benchmarks/ is not installed

from benchmarks import (
    accelerators,
    choices,
    curve,
    endurance,
    gpu,
    headlines,
    inference,
    loading,
    machine,
    plain,
    plain_translator,
    power_cut,
    shards,
    sides,
    step,
    t5_step,
    throughput,
)
from vit_jax.augmentation.config import ImageAugment
from vit_jax.commands.train import parse
from vit_jax.config.run import RunConfig
from vit_jax.config.trees import flatten
from vit_jax.data.images.config import ImageData
from vit_jax.errors import UserError
from vit_jax.extras.plan import command as plan
from vit_jax.kinds.classes import Classes
from vit_jax.machine.targets import published
from vit_jax.models.build import definition, start
from vit_jax.models.state import merge
from vit_jax.models.vit_config import ViTConfig
from vit_jax.reports.comparison import Line, Member
from vit_jax.runs.check import check_run
from vit_jax.tasks.can import Counts
from vit_jax.tasks.classify.learn import Classify
from vit_jax.tasks.translate.learn import Translate
from vit_jax.text.tokenizer import Ids
from vit_jax.training import finish
from vit_jax.training.engine.engine import Engine
from vit_jax.training.engine.optim import Optimizer

# All that the compared nets have between them: a ReLU after the patches, a hidden layer in the head.
SMALL = ViTConfig(
    image=8,
    patch=4,
    classes=3,
    width=16,
    depth=1,
    heads=2,
    hidden=32,
    eps=1e-5,
    activation="gelu_tanh",
    stem_activation="relu",
    head_hidden=24,
    head_activation="relu",
    init_std=0.3,
)
# Names of our translator as its twin has them.
TRANSLATOR = {
    r"target\.embedding": "table.embedding", r"head\.bias": "bias", r"coder\.blocks": "coder", r"mlp\.": "",
    r"(encoder.*)norm2": r"\1norm3", "self_attention": "attention", "cross_attention": "cross",
}  # fmt: skip
pytestmark = pytest.mark.usefixtures("quick_compilation")
RUN = RunConfig("classify", SMALL, ImageData(), ImageAugment())


def test_the_twin_is_the_same_network_and_takes_the_same_steps():
    run = sides.deterministic(RUN, 4)
    batch, weights = sides.data(SMALL, run.batch), start(SMALL, jax.random.key(1))
    classify, network = Classify(run.augment, sides.MEAN, sides.STD, Classes(settings=run.loss)), definition(SMALL)
    twin = plain.PlainViT(SMALL, nnx.Rngs(0))
    plain.load(twin, flatten(weights), SMALL)

    @jax.jit
    def both(images):
        images = classify.images({"image": images}, np.float32)
        return twin(images), merge(network, weights)(images)

    np.testing.assert_allclose(*both(batch["image"]), atol=1e-5)

    define, optimizer = functools.partial(definition, SMALL), Optimizer(run.optim, 100, 10, SMALL.parameters())
    engine = Engine(run, define, classify, optimizer)
    trainer = plain.Trainer(twin, run.optim, sides.MEAN, sides.STD)
    state = engine.start(weights)
    for _ in range(2):
        state, metrics = engine.train(state, batch)
        np.testing.assert_allclose(metrics["loss"], trainer.step(batch["image"], batch["label"]), atol=1e-5)
    ours = plain.weights(flatten(state.parameters), SMALL)
    theirs = {".".join(map(str, path)): x[...] for path, x in nnx.to_flat_state(trainer.parameters)}
    assert ours.keys() == theirs.keys()
    for name, x in ours.items():
        if not name.endswith("key.bias"):  # its gradient vanishes, and Adam makes a step of the rounding
            np.testing.assert_allclose(theirs[name], x, atol=1e-6, err_msg=name)


@pytest.mark.slow
def test_the_twin_of_the_translator_has_its_loss():
    """Padded sources and targets, with the ids of Marian."""
    run = accelerators.opus(3)
    c = replace(run.model, width=8, heads=2, hidden=12, encoder_depth=1, decoder_depth=2)
    c = replace(c, source_vocabulary=11, target_vocabulary=11, outputs=11, init_std=0.5)
    weights, twin = start(c, jax.random.key(1)), plain_translator.PlainTranslator(c, nnx.Rngs(0))
    moved = {}
    for name, x in flatten(weights).items():
        for ours, theirs in TRANSLATOR.items():
            name = re.sub(ours, theirs, name)
        moved[name] = x
    state = nnx.state(twin, nnx.Param)
    for path, variable in nnx.to_flat_state(state):
        variable.set_value(moved.pop(".".join(map(str, path))).reshape(variable.shape))
    assert not moved
    nnx.update(twin, state)
    source, target = np.array([[3, 4, 10, 10], [5, 6, 7, 8], [9, 1, 2, 10]]), np.array([[4, 5], [6, 10], [7, 10]])
    ids = SimpleNamespace(ids=Ids(pad=10, begin=10, end=0))
    task = Translate(0.0, 5, ids, ids)
    keys, batch = jax.random.split(jax.random.key(0), 3), {"source": source, "target": target}
    loss, _ = task.loss(merge(definition(c), weights), batch, keys, task.able(Counts).denominator(batch))
    np.testing.assert_allclose(plain_translator.loss(twin, source, target, pad=10), loss, rtol=1e-5)


def test_every_compared_net_has_a_twin():
    for net in {*sides.NETS} - {*sides.PRESETS, *t5_step.NETS}:
        plain._check(sides.config(net).model)
    with pytest.raises(ValueError, match="no counterpart"):
        plain._check(replace(SMALL, norm_first=False))


@pytest.mark.parametrize("library", ["torch", pytest.param("transformers", marks=pytest.mark.slow)])
def test_the_pytorch_side_starts_from_the_same_loss_and_goes_the_same_way(library, monkeypatch):
    monkeypatch.setitem(sys.modules, "torchvision", None)  # one that does not fit torch would keep T5 from loading
    pytest.importorskip(library, reason=f"{library} is not installed")
    run = sides.deterministic(RUN, 4) if library == "torch" else sides.config("t5-tiny")
    works = {side: sides.build(run, side) for side in ("ours", "torch")}
    losses = [{side: float(work()) for side, work in works.items()} for _ in range(3)]
    np.testing.assert_allclose([x["torch"] for x in losses], [x["ours"] for x in losses], atol=1e-4)
    assert losses[-1]["ours"] < losses[0]["ours"]
    two_by_one_call = sides.build(run, "x2")
    assert [float(two_by_one_call()) for _ in range(2)] == [losses[0]["ours"], losses[2]["ours"]]
    assert [sides.together(side) for side in ("ours", "x2", "x10", "x0", "xN", "torch")] == [1, 2, 10, 1, 1, 1]


# ------------------------------------------------------------------------------------------ benchmarks.step


def test_a_measured_step_counts_its_wall_and_cpu_time():
    cost = machine.measure(lambda: time.sleep(0.02), 3)  # which waits and does not work
    assert len(cost.seconds) == 3 and min(cost.seconds) >= 0.02 and cost.cpu < 0.02


def test_all_sides_work_in_turn_in_processes_of_their_own(monkeypatch):
    """Two sides that print what they are told to; the second round begins with the other side."""
    worker = "import json, sys\nprint(json.dumps(dict(loss=1.0, peak=dict(jax=5.0))), flush=True)\n"
    worker += "for line in sys.stdin: print(json.dumps([[0.1] * int(line), 0.3, 4]), flush=True)"
    started = step.subprocess.Popen
    monkeypatch.setattr(step.subprocess, "Popen", lambda command, **how: started([sys.executable, "-c", worker], **how))
    told = []
    steps = step.Side.steps
    monkeypatch.setattr(
        step.Side, "steps", lambda side, times: (told.append((side.name, times)), steps(side, times))[1]
    )
    how = dict(activation="", nnx_jit=False, dtype="float32", sides=["other"], against=Path("/"), seconds=0.5)
    options = step.argparse.Namespace(**how)
    found = step.measured("tiny", options, 2)
    assert found["peak"] == {"jax": 5.0} and found["flops"] == 3 * sides.config("tiny").model.flops() * 4
    assert found["sides"]["other"]["rounds_ms"] == [100.0, 100.0] and found["sides"]["ours"]["cpu_ms"] == 60
    ours, other = "ours of tiny", "other of tiny"
    assert told == [(ours, 1), (other, 1), (other, 5), (ours, 5), (ours, 5), (other, 5)]


def a_process(ours, flax):
    """What a process with two rounds finds out, with these milliseconds."""
    row = {"cpu_ms": 150.0, "wall_ms": 100.0, "faults": 7.0}
    rows = {"ours": ours, "flax": flax}
    table = {k: {**row, "median_ms": statistics.median(v), "min_ms": min(v), "rounds_ms": v} for k, v in rows.items()}
    return {"batch": 4, "flops": 5e9, "load": "0", "peak": {"jax": 50e9, "torch": 100e9}, "sides": table}


def test_the_figures_of_several_processes(monkeypatch, capsys):
    """Cores are CPU over wall time, MFU is of the faster library's products, ratios are other over ours."""
    found = [a_process([100, 100], [150, 130]), a_process([90, 110], [90, 220])]
    alone = a_process([125, 125], [1, 1])
    table = step.summary(found, alone)
    assert table["ours"]["cores"] == 1.5 and table["ours"]["one_core_cpu_ms"] == 150
    assert table["ours"]["mfu"] == pytest.approx(5e9 / 0.1 / 100e9)
    assert table["flax"]["median_ms"] == statistics.median([140, 155]) and table["flax"]["min_ms"] == 90
    ratios = step.ratios(found, "flax")
    assert ratios["processes"] == [pytest.approx(1.4), pytest.approx(1.5)] and ratios["low"] == 1.3

    monkeypatch.setattr(step, "measured", lambda net, o, rounds, one_core=False: alone if one_core else found[0])
    options = step.argparse.Namespace(processes=2, rounds=2, sides=["flax"], one_core=True)
    row = step.compare("48x4", options, goals=True)
    assert row["ratios"]["flax"]["processes"] == [1.4, 1.4]
    assert "goal 1.4; on one core 1.00" in capsys.readouterr().out


@pytest.mark.parametrize("words", ["--nets 48x5", "--sides jax", "--against nowhere", "--rounds 0"])
def test_a_mistake_in_a_flag_of_the_step_is_refused(words, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["step", *words.split()])
    with pytest.raises(SystemExit) as caught:
        step.main()
    assert caught.value.code == 2 and words.split()[0] in capsys.readouterr().err


# ------------------------------------------------------------------------------------------ the others


def test_inference_is_of_the_same_logits_on_both_sides(monkeypatch):
    pytest.importorskip("torch", reason="PyTorch is not installed")
    monkeypatch.setattr(inference.importlib.util, "find_spec", lambda name: None)  # timm takes seconds to import
    (row,) = inference.compare("tiny", [2], 1, 0.0)  # ends where the logits differ
    assert row["images_per_second"].keys() == {"ours", "torch_ref"} and min(row["images_per_second"].values()) > 0


def test_loading_takes_all_images_of_all_sources(tmp_path):
    rows = loading.measured(40, 40, 1, False, shape=(80, 60))
    assert [row["what"] for row in rows] == ["arrays", "jpeg", "decoded"]
    assert all(row["images_per_second"]["ours"] > 0 for row in rows)


def test_the_benchmark_of_shards_takes_all_images_of_each_form(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    shards.write_all(tmp_path, shards.draw(130, 32))
    for source in (f"wds:{tmp_path}/tars/*.tar", f"parquet:{tmp_path}/parquet/*.parquet", f"folder:{tmp_path}/folder"):
        assert [*shards.our_side(source)()] == [64, 64]


def test_the_dataloader_makes_the_images_that_ours_makes(tmp_path):
    loading.write_jpegs(tmp_path, 4, 500, 375)
    given = ImageData(source=f"folder:{tmp_path}", validation=0.0, test=0.0)
    run = RunConfig("classify", ViTConfig(image=loading.SIZE, classes=0), given, ImageAugment())
    split, theirs = Classify.open_data(run).splits["train"], loading.Jpegs(tmp_path)
    assert len(split) == len(theirs) == 4
    for i in range(4):
        image, label = theirs[i]
        np.testing.assert_array_equal(split.take(np.array([i]))[0], image)
        assert split.labels[i] == label


def test_throughput_is_measured_at_each_batch_that_fits(monkeypatch):
    ours = throughput.ours

    def limited(run):
        if run.batch > 4:
            raise RuntimeError("RESOURCE_EXHAUSTED: out of memory")
        return ours(run)

    monkeypatch.setitem(throughput.STEPS, "ours", limited)
    run = sides.deterministic(RUN, 1)
    found = throughput.measured("ours", run, [4, 8], 1, 1, 64)
    assert found["rows"][1].keys() == {"batch", "error"} and found["best"] == found["rows"][0]
    work = 3 * run.model.flops() * found["best"]["images_per_second"]
    assert found["best"]["mfu"] == pytest.approx(work / found["peak"]) and not found["stated"]


def test_the_peak_of_a_gpu_is_that_of_its_own_form():
    names = {
        "NVIDIA H100 80GB HBM3": 989e12, "NVIDIA H100 PCIe": 756e12, "NVIDIA L4": 121e12, "NVIDIA L40S": 362e12,
        "NVIDIA A100-SXM4-80GB": 312e12, "NVIDIA A10G": 70e12, "NVIDIA GeForce RTX 4090": 165e12,
        "TPU v5 lite": 197e12, "TPU v5": 459e12, "TPU v4": 275e12,
    }  # fmt: skip
    others = "NVIDIA L40, NVIDIA RTX A1000, NVIDIA GH200 480GB, NVIDIA A100-SXM4-40GB MIG 1g.5gb, "
    names |= dict.fromkeys((others + "NVIDIA GeForce RTX 4090 Laptop GPU, TPU v4 lite, cpu").split(", "), 0.0)
    assert {name: published(name).peak for name in names} == names


def test_choices_are_measured_beside_each_other_and_one_that_fails_is_a_row(tmp_path, monkeypatch, capsys):
    def process(words):
        return {"error": "out of memory"} if words["choice"] == "scan" else choices.work(words)

    monkeypatch.setattr(choices, "process", process)  # in this process
    line = f"choices --nets tiny --choices plain,scan+remat,scan --steps 2 --json {tmp_path / 'found.json'}"
    monkeypatch.setattr(sys, "argv", line.split())
    assert choices.main() == 1
    plain_, remat, scan = json.loads((tmp_path / "found.json").read_text())["rows"]
    assert remat["loss"] == pytest.approx(plain_["loss"], rel=1e-5) and scan["error"] == "out of memory"
    assert min(min(row[name] for name in ("compile", "compile_cpu", "scratch", "ms")) for row in (plain_, remat)) > 0
    printed = capsys.readouterr().out
    assert f"scratch {plain_['scratch']:9,.1f} MB  step {plain_['ms']:8.1f} ms" in printed
    assert "scan              out of memory" in printed
    monkeypatch.setattr(choices, "process", lambda words: {"loss": 1.0 + len(words["choice"])})
    with pytest.raises(SystemExit, match="the choices do not compute the same network"):
        choices.main()


def test_every_command_of_the_gpu_script_is_one_of_ours(tmp_path):
    asked = {"OUT": str(tmp_path), "DATA": "sets", "SEEDS": "2"}
    full, toy = gpu.Settings.read(asked), gpu.Settings.read(asked | {"TOY": "1"})
    first, *rest = gpu.VARIANTS
    for s, recipe, warm in [(toy, first, True), (toy, first, False), *((full, each, False) for each in (first, *rest))]:
        _, options, _ = parse(gpu.training(recipe, s, warm))
        check_run(options.run())
        assert options.seeds == (0 if warm else 2) and options.data.dir == ("" if s.toy else "sets")


def test_the_table_of_the_gpu_script(tmp_path, monkeypatch, capsys):
    """What failed is a row as well, and what is done is not done again."""
    s = gpu.Settings.read({"OUT": str(tmp_path), "PYTHON": sys.executable})
    done, failing = gpu.VARIANTS[0], replace(gpu.VARIANTS[1], train="no-such-preset")
    metrics = {"test.last.accuracy": {"mean": 0.9, "std": 0.01, "values": [0.89, 0.91]}, "seconds": {"mean": 90.0}}
    member = tmp_path / done.name / "seed-0"
    member.mkdir(parents=True)
    (member / "metrics.jsonl").write_text('{"images_per_second": 5}\n{"kind": "eval"}\n')
    (member.parent / "summary.json").write_text(json.dumps({"metrics": metrics}))
    (tmp_path / f"{done.name}-warm").mkdir()
    (tmp_path / f"{done.name}-warm/summary.json").write_text('{"seconds": 30}')
    monkeypatch.setattr(gpu, "call", lambda command, log: f"failed with 2, see {log}")
    text = gpu.table(
        [gpu.trained(done, s), gpu.trained(failing, s), gpu.speed("vit-b16-timm", s), gpu.chosen("scan", s)], "Title"
    )
    rows = [line.split(" | ") for line in text.splitlines() if line.startswith("| ") and "---" not in line]
    assert rows[1][3:5] == ["90.00 % +-1.00 (test.last.accuracy); 5 images/s", "1.5; the two steps that compile 0.5"]
    assert all("failed with 2" in row[3] for row in rows[2:]) and len(rows) == 5
    assert shlex.split(rows[1][5])[0].startswith("`python")


@pytest.mark.parametrize("toy", ["", "1"])
def test_the_gpu_script_begins_with_what_the_plan_bounds(toy, tmp_path, monkeypatch):
    """The words are those of `vit-jax plan`, and what it writes is read."""
    s = gpu.Settings.read({"OUT": str(tmp_path), "PYTHON": sys.executable, "TOY": toy})
    step = {"rows_per_second": 5000.4, "mfu": 0.5, "bounds": {"binds": "memory"}}

    def call(command, log, output):
        assert command[:4] == [sys.executable, "-m", "vit_jax", "plan"]
        options, _, run = plan.parse(command[4:])
        assert options.json
        assert (run.compute_dtype, run.attention_kernel) == ("bfloat16", "plain") and run.model.classes == 1000
        output.write_text(json.dumps({"steps": [step]}))
        return ""

    monkeypatch.setattr(gpu, "call", call)
    assert gpu.planned("vit-b16-ours-plain", s) == "at most 5,000 images/s, MFU 50.0%, by memory"


@pytest.mark.parametrize("setting", [{"ONLY": "vit"}, {"SEEDS": "0"}])
def test_a_mistake_in_a_setting_of_the_gpu_script_is_refused(setting):
    with pytest.raises(SystemExit, match=next(iter(setting))):
        gpu.Settings.read(setting)


def test_accuracy_is_drawn_over_the_cpu_time_of_its_step(tmp_path, capsys):
    def member(more, timed=(10, 20)):
        rows = []
        for step_ in (10, 20):
            spent = {"cpu_seconds": step_ / 10 + more} if step_ in timed else {}
            rows.append({"kind": "train", "step": step_, "accuracy": 0.1, **spent})
            rows.append(
                {"kind": "eval", "split": "validation", "weights": "raw", "step": step_, "accuracy": step_ / 40 + more}
            )
        return Member(None, RUN, None, None, {}, rows, "finished")

    line = Line("group", [member(0.0), member(0.2)], True)
    seconds, values, spread = curve.averaged(line, "validation")
    np.testing.assert_allclose([seconds, values, spread], [[1.1, 2.1], [0.35, 0.6], [0.2 / 2**0.5] * 2])
    curve.draw([line], tmp_path / "curve.png")
    assert (tmp_path / "curve.png").stat().st_size > 1000
    assert "validation 0.6000 after 2 core-seconds" in capsys.readouterr().out
    for timed in ((), (20,)):  # by an older version, and the same resumed by this one
        with pytest.raises(UserError, match="no cpu_seconds"):
            curve.draw([Line("old", [member(0.0, timed)], False)], tmp_path / "old.png")
    assert not (tmp_path / "old.png").exists()


def test_headlines_keep_what_a_group_learned_and_replace_their_table_alone(tmp_path):
    def member(more):
        train = [{"kind": "train", "step": i, "epoch": i / 10, "accuracy": 0.1, "cpu_seconds": 2.0 * i + more}
                 for i in range(1, 1001)]  # fmt: skip
        seen = [{"kind": "eval", "split": "validation", "weights": "raw", "step": 10 * i, "epoch": float(i),
                 "accuracy": i / 100 + more} for i in (74, 75, 76, 100)]  # fmt: skip
        return Member(None, RUN, None, None, {}, [*train, *seen], "finished")

    group = Line("group", [member(0.0), member(0.01)], True)
    found = headlines.curve(group, "validation")
    np.testing.assert_allclose(found, [[i, 20 * i, i / 100 + 0.005] for i in (74, 75, 76, 100)], atol=0.011)
    assert len(headlines.curve(group, "train")) == headlines.POINTS and not headlines.curve(group, "test")

    curves = {"train": [[0.1, 2.0, 0.1], [100.0, 2000.0, 0.9]], "validation": found}
    fields = dict(status="finished", metric="accuracy", core_seconds=2e3, config="abc", machine="m", command="c")
    line = headlines.Headline("cifar10-48x4-fast", 100, test=[0.8, 0.82], note="", curves=curves, **fields)
    line = replace(line, command="cifar10-48x4-fast --epochs 100 --data.validation 0.2 --seeds 2")
    row = dict(zip(headlines.RUNS, headlines.run_row(line), strict=True))
    assert line.label == "fast: 100 epochs, 2 seeds" and row["recipe"] == "fast"
    assert row["run of"] == "`cifar10-48x4`" and row["test"] == "0.8100 +- 0.0141" and row["seeds"] == "2"
    assert row["passed its notebook after"] == "76 epochs, 1,520 core-seconds (validation)"
    missed = replace(line, curves={"train": curves["train"], "test": [[100.0, 2000.0, 0.75]]})
    assert headlines.passed(missed) is None
    (*_, best) = headlines.network_row([missed, line])
    assert best == "fast: 100 epochs, 2 seeds: **0.8100 +- 0.0141** on test, 2,000 core-seconds"
    text = "# Title\n\nbefore\n"
    for new in headlines.tables([line]):
        text = headlines.replace_table(text, new) + "\nafter | this\n"
    again = functools.reduce(headlines.replace_table, headlines.tables([line, missed]), text)
    for before, after in zip(headlines.tables([line, missed]), headlines.tables([line]), strict=True):
        again = again.replace(before, after)
    assert again == text
    headlines.draw([line, missed, replace(line, preset="cifar10-stem")], tmp_path / "headlines.png")
    assert (tmp_path / "headlines.png").stat().st_size > 1000


@pytest.mark.slow
def test_fine_tuning_is_measured_beside_training_from_scratch(tmp_path, monkeypatch, capsys):
    """In small, from the digits at 28 px; the command repeated trains nothing, and the table is the same."""
    from benchmarks import finetune

    line = "finetune --source digits --epochs 1 --steps 10 --seeds 2 --rates 2e-3 --rows 'from scratch' 'head only'"
    monkeypatch.setattr(sys, "argv", [*shlex.split(line), "--out", str(tmp_path)])
    monkeypatch.setattr(finish, "draw", lambda *a: "")
    assert finetune.main() == 0
    first = capsys.readouterr().out.splitlines()[2:]
    assert [row.split(" | ")[:4] for row in first[2:]] == [
        ["| from scratch", "10", "139,978", "0.002"],
        ["| head only", "10", "650", "0.002"],
    ]
    files = {file: file.stat().st_mtime_ns for file in tmp_path.glob("*/metrics.jsonl")}
    assert len(files) == 5 and finetune.main() == 0
    assert capsys.readouterr().out.splitlines()[2:] == first
    assert {file: file.stat().st_mtime_ns for file in files} == files


# --------------------------------------------------------------------------------------- a power cut


def hexed(text: str) -> str:
    """Strings of a line in the form that strace -xx gives them."""
    return re.sub(r"'([^']*)'", lambda m: "".join(f"\\x{ord(c):02x}" for c in m[1]), text)


def test_the_functions_that_tell_what_a_killed_run_was_doing_exist():
    for module, owner, name, _ in (*endurance.ELSE, *endurance.SAVING):
        place = importlib.import_module(module)
        assert callable(getattr(getattr(place, owner) if owner else place, name))


def test_what_a_run_does_to_its_files_is_read_from_the_lines_of_strace():
    """A sync counts when it returns, here after a write that another thread did meanwhile; other folders do not."""
    lines = [
        """1.0 mkdir("'/r/a'", 0777) = 0 <0.1>""",
        """1.2 openat(AT_FDCWD<'/r'>, "'/r/a/x'", O_WRONLY|O_CREAT, 0666) = 3<'/r/a/x'> <0.1>""",
        """1.4 write(3<'/r/a/x'>, "'abcd'", 4) = 4 <0.0>""",
        """1.5 fsync(3<'/r/a/x'>) = 0 <9.0>""",
        """2.0 lseek(3<'/r/a/x'>, 1, SEEK_SET) = 1 <0.0>""",
        """2.1 writev(3<'/r/a/x'>, [{iov_base="'B'", iov_len=1}, {iov_base="'C'", iov_len=1}], 2) = 2 <0.0>""",
        """2.2 pwrite64(3<'/r/a/x'>, "'A'", 1, 0) = 1 <0.0>""",
        """3.0 openat(4<'/r/a'>, "'x'", O_WRONLY|O_APPEND) = 5<'/r/a/x'> <0.0>""",
        """3.1 write(5<'/r/a/x'>, "'e'", 1) = 1 <0.0>""",
        """3.2 ftruncate(5<'/r/a/x'>, 3) = 0 <0.0>""",
        """3.3 rename("'/r/a'", "'/r/b'") = 0 <0.0>""",
        """3.4 unlinkat(7<'/r/b'>, "'x'", 0) = 0 <0.0>""",
        """3.5 rmdir("'/r/c'") = -1 ENOENT (No such file or directory) <0.0>""",
        """3.6 mkdir("'/elsewhere'", 0777) = 0 <0.1>""",
        """3.7 write(1<'pipe:[7]'>, "'text'", 4) = 4 <0.0>""",
    ]
    found = power_cut.events(map(hexed, lines), "/r")
    event = power_cut.Event
    assert found == [
        event("mkdir", "/r/a"),
        event("create", "/r/a/x"),
        event("write", "/r/a/x", data=b"abcd"),
        event("write", "/r/a/x", data=b"BC", place=1),
        event("write", "/r/a/x", data=b"A", place=0),
        event("write", "/r/a/x", data=b"e", place=4),
        event("truncate", "/r/a/x", place=3),
        event("rename", "/r/a", "/r/b"),
        event("remove", "/r/b/x"),
        event("sync", "/r/a/x"),
    ]
    disk = power_cut.Disk("/r")
    for each in found[:7]:
        disk.apply(each)
    assert dict(power_cut.files(disk.top)) == {"a/x": b"ABC"}
    with pytest.raises(NotImplementedError, match="link of /r/a"):
        disk.apply(event("link", "/r/a"))


def test_a_power_cut_takes_what_was_not_synced_and_leaves_what_was(tmp_path):
    event = power_cut.Event
    disk, made = power_cut.Disk("/r"), itertools.count()

    def after(way, seed=0):
        place = tmp_path / str(next(made))
        disk.make(place, power_cut.WAYS[way], random.Random(seed))
        return {p.name: p.read_bytes() for p in place.iterdir()}

    disk.apply(event("create", "/r/a"))
    disk.apply(event("write", "/r/a", data=b"xy"))
    assert (after(0), after(1)) == ({}, {"a": b""})
    disk.apply(event("sync", "/r/a"))
    assert (after(0), after(1)) == ({}, {"a": b"xy"}), "its content, but not yet its name"
    disk.apply(event("sync", "/r"))
    disk.apply(event("write", "/r/a", data=b"z", place=2))
    assert after(0) == after(1) == {"a": b"xy"}
    disk.apply(event("rename", "/r/a", "/r/b"))
    assert (after(0), after(1)) == ({"a": b"xy"}, {"b": b"xy"})
    either = [{name: content} for name in "ab" for content in (b"xy", b"xyz")]
    drawn = [after(2, seed) for seed in range(40)]
    assert all(each in drawn for each in either) and all(each in either for each in drawn)
    disk.apply(event("sync", "/r"))
    disk.apply(event("remove", "/r/b"))
    assert (after(0), after(1)) == ({"b": b"xy"}, {})


# --------------------------------------------------------------------------------------- benchmarks.claims

PAGE = Path(__file__).parents[1] / "docs" / "claims.md"


def test_every_verdict_follows_from_the_stored_figures_and_is_the_one_that_the_page_states():
    """The interval is scipy's of a paired t-test; the tables are in docs/claims.md word for word."""
    from scipy.stats import ttest_rel

    from benchmarks.claims import page, verdict
    from benchmarks.claims.claims import CLAIMS
    from benchmarks.claims.session import stored

    text = PAGE.read_text(encoding="utf-8")
    assert [line for line in page.markdown(CLAIMS).splitlines() if line not in text.splitlines()] == []
    for claim in CLAIMS:
        content = stored(claim.experiment)
        values = page.figures(content)
        assert content["scale"] == 1
        said = []
        for each in claim.comparisons:
            found = verdict.difference(each, values)
            more, less = (
                np.array(values[side]) * (100 if each.unit == "points" else 1) for side in (each.more, each.less)
            )
            assert len(more) == len(less) == len(content["seeds"]) >= 3
            if (more - less).std():
                low, high = ttest_rel(more, less).confidence_interval(0.95)
                assert (found.mean, found.low, found.high) == pytest.approx(((more - less).mean(), low, high))
            else:  # no interval: the same with every seed
                assert found.low == found.high == found.mean == more[0] - less[0]
            said.append("holds" if found.low > 0 else "the opposite holds" if found.high < 0 else "not shown")
            assert f"| {found.verdict} |" in text and found.verdict == said[-1]
        of_all = verdict.verdict(claim, values)
        if len({*said}) == 1:
            assert of_all == {"the opposite holds": "does not hold: the opposite does"}.get(said[0], said[0])
        else:
            phrases = {"holds": "holds in", "the opposite holds": "the opposite in", "not shown": "not shown in"}
            assert of_all.startswith(f"of {len(said)} comparisons ")
            assert all(f"{phrases[kind]} {said.count(kind)}" in of_all for kind in said)
        assert f"| {claim.says} | **{of_all}** | `{claim.experiment}` |" in text


def test_networks_that_are_compared_get_the_same_batches_and_equal_layers_have_equal_weights():
    import jax
    from flax import nnx

    from benchmarks.claims import sequences, training

    places = training.batches(3, 1000, 25)  # two and a half epochs
    assert places.shape == (25, training.BATCH) and (places == training.batches(3, 1000, 25)).all()
    assert sorted(places[:10].ravel()) == sorted(places[10:20].ravel()) == [*range(1000)]
    assert len({*places[20:].ravel()}) == 500 and (places[:10] != places[10:20]).any()
    layers = [layer(nnx.Rngs(0)) for layer in sequences.LAYERS.values()]
    sizes = [sum(x.size for x in jax.tree.leaves(nnx.state(layer, nnx.Param))) for layer in layers]
    assert sizes[0] == pytest.approx(sizes[1], rel=0.01)
    for task, order in (("copied", 1), ("backwards", -1)):
        strings = sequences.strings(50, task, range(17, 25), 0)
        for source, target in zip(strings["source"], strings["target"], strict=True):
            digits = source[source > 0]
            assert 17 <= len(digits) <= 24 and target[target > 0].tolist() == [1, *digits[::order], 2]


@pytest.mark.slow
def test_an_experiment_of_claims_in_small_prints_its_verdicts_and_stores_nothing():
    root = Path(__file__).parents[1]
    before = sorted((root / "benchmarks" / "results" / "claims").iterdir())
    command = [sys.executable, "-m", "benchmarks.claims"]
    done = subprocess.run([*command, "length", "--scale", "0.01"], capture_output=True, text=True, cwd=root, check=True)
    assert "| Sinusoids go on to sequences longer than those that were learned | **" in done.stdout
    assert sorted((root / "benchmarks" / "results" / "claims").iterdir()) == before
    wrong = subprocess.run([*command, "lengths"], capture_output=True, text=True, cwd=root, check=False)
    assert wrong.returncode == 2 and "there is no experiment lengths; there are networks, " in wrong.stderr
