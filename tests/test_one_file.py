"""A task and a network in a package (tests/ink): every command takes them, and no other file was touched for them."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from vit_jax.runs import Run
from vit_jax.tasks.can import HasFrozen

OURS = ("memory", "cpu_seconds", "digits_per_second")  # of a row of metrics: the machine's, not the run's


@pytest.fixture(scope="module", autouse=True)
def installed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """The package, as pip installs it, where child processes find it."""
    folder = tmp_path_factory.mktemp("site")
    pip = [sys.executable, "-m", "pip", "install", "-q", "--no-index", "--no-deps", "--no-build-isolation"]
    subprocess.run([*pip, "--target", folder, Path(__file__).parent / "ink"], check=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(folder), prepend=os.pathsep)
        yield


def doors(cwd: Path, *commands: str, devices: int = 1) -> list[str]:
    """What each command prints, in one child process in which the package is installed."""
    env = {
        **os.environ,
        "XLA_FLAGS": f"--xla_force_host_platform_device_count={devices}",
        "COLUMNS": "120",
        "PYTHONUNBUFFERED": "1",
    }
    command = [sys.executable, "-m", "tests.doors", *commands]
    done = subprocess.run(
        command, cwd=cwd, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=300
    )
    parts = ("\n" + done.stdout).split("\n$ ")[1:]
    printing = [command for command in commands if not command.startswith(("kill ", "without "))]
    assert len(parts) == len(printing) or done.returncode == -9, done.stdout[-3000:]
    return parts


def rows(folder: Path) -> list[dict[str, object]]:
    return [
        {k: v for k, v in json.loads(line).items() if k not in OURS}
        for line in (folder / "metrics.jsonl").read_text().splitlines()
    ]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a trained run and what all doors said, in said.json."""
    place = tmp_path_factory.mktemp("ink")
    (place / "samples").mkdir()
    for i in range(4):
        pixels = np.random.default_rng(i).integers(0, 256, (8, 8), np.uint8)
        Image.fromarray(pixels).save(place / f"samples/{i}.png")
    (place / "said.json").write_text(
        json.dumps(
            doors(
                place,
                "train --help",
                "train ink",
                "evaluate ink",
                "evaluate ink --split longer",
                "predict ink samples",
                "predict ink samples --attention a.png",
                "train ink --data.threshold 300",
                "train ink --augment.flip",
                "train ink --optim.name muon",
                "train ink --scan",
                "convert runs/ink ink.safetensors",
                "convert ink.safetensors runs/back",
                "predict back samples",
                "convert inspect ink.safetensors",
                "convert verify runs/ink runs/back",
                "convert ink.safetensors x.pt --to torch-ref",
                "convert formats",
                "without figures",
                "train ink --name from --init runs/ink --max-steps 1",
                "train ink --name moved --max-steps 2",
                "export ink exported.safetensors",
                "predict exported.safetensors samples",
                "train ink --name other --data.threshold 64 --init exported.safetensors --max-steps 1",
            )
        )
    )
    return place


@pytest.fixture(scope="module")
def said(place: Path) -> dict[str, str]:
    parts = [part.partition("\n") for part in json.loads((place / "said.json").read_text())]
    return {command: text for command, _, text in parts}


def test_help_lists_its_preset_and_the_fields_of_its_own(said):
    text = said["train --help"]
    assert "How much ink there is in a digit." in text
    flags = ("augment.flip", "data.threshold 300", "optim.name muon", "scan")
    for part in (f"train ink --{flag}" for flag in flags):
        assert "error" in said[part] and "exit 2" in said[part]
    assert "no field --augment.flip" in said["train ink --augment.flip"]
    assert "needs hidden kernels to update, and this network has none" in said["train ink --optim.name muon"]
    assert "scan is chosen, but a Perceptron has no stack of equal blocks: leave it out" in said["train ink --scan"]


def test_it_learns_and_the_lowest_error_is_chosen(place, said):
    evaluations = [row for row in rows(place / "runs/ink") if row["kind"] == "eval" and row["split"] == "validation"]
    summary = json.loads((place / "runs/ink/summary.json").read_text())
    assert evaluations[-1]["error"] < evaluations[0]["error"] < 0.6
    assert summary["best"]["error"] == min(row["error"] for row in evaluations)
    assert summary["best"]["step"] == min(evaluations, key=lambda row: row["error"])["step"]
    assert all({"loss", "error"} <= row.keys() and "accuracy" not in row for row in rows(place / "runs/ink"))
    assert "error" in said["train ink"] and {p.name for p in (place / "runs/ink/plots").iterdir()} == {
        "curves.png",
        "furthest.txt",
        "ink.png",
    }


def test_it_evaluates_and_predicts(place, said):
    test = next(row for row in rows(place / "runs/ink") if row["kind"] == "eval" and row["split"] == "test")
    assert f"error              {test['error']:.4f}" in said["evaluate ink"]
    assert "data has train, validation, test" in said["evaluate ink --split longer"]
    *lines, exit = said["predict ink samples"].splitlines()
    assert len(lines) == 4 and all(0 <= float(line.rpartition(" ")[2]) <= 2 for line in lines) and exit == "exit 0"
    assert "a Perceptron has none" in said["predict ink samples --attention a.png"]


def test_convert_takes_it_out_of_a_run_and_into_one(place, said):
    assert said["predict back samples"] == said["predict ink samples"]
    assert "vit-jax@perceptron" in said["convert inspect ink.safetensors"]
    assert "vit-jax@perceptron" in said["convert formats"]
    assert "exit 0" in said["train ink --name from --init runs/ink --max-steps 1"]


def test_what_is_exported_starts_a_run_and_predicts_as_its_own(said):
    assert "exit 0" in said["train ink --name other --data.threshold 64 --init exported.safetensors --max-steps 1"]
    assert said["predict exported.safetensors samples"] == said["predict ink samples"]


def test_the_teacher_is_an_argument_of_the_compiled_step_and_is_neither_trained_nor_saved(place, monkeypatch):
    import jax

    monkeypatch.syspath_prepend(Path(__file__).parent / "ink")
    import ink

    from vit_jax.models.build import definition, start
    from vit_jax.models.networks import NETWORKS
    from vit_jax.plugins import Plugin
    from vit_jax.training.engine.evaluator import Evaluator
    from vit_jax.training.engine.optim import Optimizer
    from vit_jax.training.job import make_engine

    monkeypatch.setitem(NETWORKS.ours, "perceptron", Plugin(ink.PerceptronConfig))
    run, table = ink.preset().run, ink.PerceptronConfig().parameters()
    task = ink.Ink(128, (0.0,), (1.0,)).able(HasFrozen).load(None)
    batch = {"image": np.random.default_rng(0).integers(0, 256, (4, 8, 8, 1), np.uint8), "label": np.zeros(4, np.int32)}
    for parallel in ("jit", "pmap"):
        engine = make_engine(
            replace(run, parallel=parallel), partial(definition, run.model), task, Optimizer(run.optim, 10, 5, table)
        )
        losses = []
        for threshold in (128, 0, 256, 128):
            engine.frozen_arrays = engine.to_devices({"threshold": np.float32(threshold)})
            state, metrics = engine.train(engine.start(start(run.model, jax.random.key(0))), batch)
            losses.append(float(metrics["loss"]))
        assert losses[0] == losses[3] and len(set(losses)) == 3  # nothing of it is a constant
        assert parallel == "pmap" or engine.compiled._cache_size() == 1
        assert {name for tree in (state.parameters, state.moments) for name in tree} == {"fc1", "fc2", "mu", "nu"}
    evaluator = Evaluator(run.model, definition(run.model), task)
    outputs = []
    for threshold in (128, 0):
        evaluator.frozen_arrays = {"threshold": np.float32(threshold)}
        outputs.append(evaluator.outputs(start(run.model, jax.random.key(0)), batch)["error"])
    assert (outputs[0] != outputs[1]).any()
    record = json.loads((place / "runs/ink/config.json").read_text())
    assert len(record["frozen"]) == 32 and "threshold" not in str(
        [p.name for p in (place / "runs/ink/checkpoints").rglob("*")]
    )


@pytest.fixture(scope="module")
def refused_and_killed(place: Path, rewrite_record: Callable[..., None]) -> str:
    """One process of two devices: it is asked to go on with another teacher, then trains until it is killed."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("vit_jax.runs.folder.check_record", lambda *_: None)  # this process does not know the task
        rewrite_record(Run(place / "runs/moved"), frozen="0" * 32)
    refused, _ = doors(
        place, "train --resume runs/moved --max-steps 4", "kill in save 2", "train ink --name killed", devices=2
    )
    return refused


def test_a_run_does_not_go_on_with_another_teacher(refused_and_killed):
    assert "exit 2" in refused_and_killed
    assert "its frozen arrays (a teacher) are not those that this run began with" in refused_and_killed


def test_verify_says_that_it_has_no_twin(said):
    text = said["convert verify runs/ink runs/back"]
    assert ("no twin" if find_spec("torch") else "PyTorch cannot be imported") in text
    assert "the same tensors; no forward pass was compared" in text and "exit 0" in text
    refused = said["convert ink.safetensors x.pt --to torch-ref"]
    assert "exit 2" in refused and "Perceptron" in refused


def test_jit_pmap_and_accumulation_agree_and_a_killed_run_goes_on_to_the_bit(place, refused_and_killed):
    """`prepare` mixes examples of the whole batch: had the batch been cut before, the losses would be others."""
    alike = {
        "two": "",
        "both": "--parallel pmap --accumulate 2",
    }
    cut_off = rows(place / "runs/killed")
    steps = sorted(int(p.name) for p in (place / "runs/killed/checkpoints").iterdir())
    assert len(steps) == 2 and [p.stem for p in (place / "runs/killed/digests").iterdir()] == [str(steps[0])]
    doors(
        place,
        "without figures",
        "train ink --name killed",
        *(f"train ink --name {name} {flags}" for name, flags in alike.items()),
        devices=2,
    )
    assert len(cut_off) < len(rows(place / "runs/two"))
    assert rows(place / "runs/killed") == rows(place / "runs/two")
    one = rows(place / "runs/ink")
    for name in alike:
        for a, b in zip(one, rows(place / "runs" / name), strict=True):
            assert b["loss"] == pytest.approx(a["loss"], rel=2e-6), name
            assert b["error"] == pytest.approx(a["error"], rel=2e-6), name
