"""Which library multiplies on a CPU: chosen by measurement, kept in the cache whatever state that is in, recorded."""

import importlib.metadata
import json
import os
from dataclasses import replace

import numpy as np
import pytest

from vit_jax import train
from vit_jax.machine import backend, bfloat16, product_kinds
from vit_jax.machine.product_kinds import KINDS, best, choose_kind, options
from vit_jax.machine.targets import read_target
from vit_jax.presets.table import preset
from vit_jax.runs import Run
from vit_jax.training import finish, setup
from vit_jax.training.resume import compare_environments

TIMES = {"ynnpack": 1.3, "eigen": 1.1, "onednn": 1.0}


@pytest.fixture
def measured(monkeypatch, tmp_path):
    """A jaxlib that has a choice, with measurements that are told; the list of those that were made."""
    made = []

    def measure(dtype, kinds=tuple(KINDS)):
        made.append((dtype, kinds))
        return {name: TIMES[name] for name in kinds if name != "onednn"}

    monkeypatch.setattr(importlib.metadata, "version", lambda _: "0.12.0.1")
    monkeypatch.setattr(product_kinds, "measure", measure)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("XLA_FLAGS", raising=False)
    return made


def test_it_is_measured_once_for_each_dtype_and_version(measured, monkeypatch, tmp_path):
    assert [choose_kind("float32") for _ in range(3)] == ["eigen"] * 3 and len(measured) == 1
    assert choose_kind("bfloat16") == "eigen" and len(measured) == 2
    monkeypatch.setattr(importlib.metadata, "version", lambda _: "0.13.1")
    assert choose_kind("float32") == "eigen" and len(measured) == 3
    monkeypatch.setattr(product_kinds, "cpu_name", lambda: "another")
    assert choose_kind("float32") == "eigen" and len(measured) == 4
    kept = [json.loads(path.read_text()) for path in (tmp_path / "vit-jax/products").iterdir()]
    assert len(kept) == 4 and all(each["kind"] == "eigen" and each["ms"]["ynnpack"] == 1300 for each in kept)


@pytest.mark.parametrize(("recorded", "kind"), [("ynnpack", "ynnpack"), ("onednn", "eigen"), ("other", "eigen")])
def test_a_run_keeps_its_kind_where_that_works(measured, recorded, kind):
    assert choose_kind("float32", recorded) == kind


def test_there_is_no_choice_elsewhere(measured, monkeypatch):
    assert choose_kind("float64", "eigen") == choose_kind("float32", "eigen", read_target("h100")) == ""
    for flags in ("--xla_cpu_use_xnnpack=true", "--a=1 --xla_cpu_experimental_ynn_fusion_type=-dot"):
        monkeypatch.setenv("XLA_FLAGS", flags)
        assert choose_kind("float32", "eigen") == ""
    monkeypatch.delenv("XLA_FLAGS")
    monkeypatch.setattr(importlib.metadata, "version", lambda _: "0.10.2")
    assert choose_kind("float32", "eigen") == choose_kind("bfloat16") == "" and not measured
    # In 0.10.2 configure_jax chooses Eigen on Intel CPUs, which is no faster in bfloat16.
    monkeypatch.setattr(backend, "_eigen", True)
    monkeypatch.setattr(bfloat16, "has_instructions", lambda: True)
    assert (choose_kind("float32"), choose_kind("bfloat16")) == ("", "ynnpack")
    assert options("ynnpack") == backend.few_rows() and options("") == {}


def unwritable(folder):
    folder.parent.mkdir(parents=True)
    folder.write_text("a file")


def holding(content):
    def damage(folder):
        choose_kind("float32")
        (path,) = folder.iterdir()
        path.unlink()
        path.mkdir() if content is None else os.mkfifo(path) if content == "fifo" else path.write_bytes(content)

    return damage


DAMAGES = {
    "the folder is a file": unwritable, "empty": holding(b""), "no JSON": holding(b"\xff{"), "a list": holding(b"[1]"),
    "another kind": holding(b'{"kind": "mkl"}'), "no text": holding(b'{"kind": ["eigen"]}'),
    "a folder": holding(None), "a pipe": holding("fifo"), "deep": holding(b"[" * 100_000),
    "large": holding(b'{"kind": "eigen", "x": "' + b"x" * (17 << 20) + b'"}'),
}  # fmt: skip


@pytest.mark.parametrize("name", DAMAGES)
def test_a_cache_in_any_state_costs_a_measurement_at_most(name, measured, tmp_path):
    DAMAGES[name](tmp_path / "vit-jax/products")
    before = len(measured)
    assert choose_kind("float32") == "eigen" and len(measured) == before + 1


@pytest.mark.parametrize(
    ("times", "kind"),
    [
        ((1.0, 0.99, 0.9), "ynnpack"), ((1.0, 0.9, 0.85), "eigen"), ((1.0, 0.9, 0.7), "onednn"),
        ((1.0, 1.2, 0.8), "onednn"), ((1.0, 2.0, 2.0), "ynnpack"),
    ],
)  # fmt: skip
def test_another_kind_is_chosen_where_it_gains_more_than_measurements_differ(times, kind):
    assert best(dict(zip(KINDS, times, strict=True))) == kind


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_only_kinds_that_compute_rightly_here_are_measured(dtype, monkeypatch):
    """Those that this jaxlib has, and neither one of which it does not know the options nor one that is wrong."""
    monkeypatch.setitem(KINDS, "eigen", {"xla_no_such_option": True})
    assert [*product_kinds.measure(dtype, ("ynnpack", "eigen"))] == ["ynnpack"]
    compute = product_kinds._program
    monkeypatch.setattr(
        product_kinds, "_program", lambda *a: (lambda: [2 * np.asarray(x) for x in compute(*a)[0]()], compute(*a)[1])
    )
    assert product_kinds.measure(dtype, ("ynnpack",)) == {}


def test_a_run_records_its_kind_and_goes_on_with_it(monkeypatch, tmp_path, capsys):
    model = {"classes": 3, "width": 8, "depth": 1, "heads": 2, "hidden": 8, "patch": (4, 4)}
    start = preset("digits").run
    run = replace(start, dir=str(tmp_path), name="a", batch=16, model=replace(start.model, **model))
    data, given = (np.zeros((60, 8, 8), np.uint8), np.arange(60) % 3), []
    monkeypatch.setattr(setup, "choose_kind", lambda dtype, recorded: given.append(recorded) or recorded or "ynnpack")
    monkeypatch.setattr(finish, "draw", lambda *_: None)
    for steps in (1, 2):
        train(replace(run, max_steps=steps), data=data)
        assert ", products by ynnpack\n" in capsys.readouterr().out
    assert given == ["", "ynnpack"] and Run(tmp_path / "a").record()["environment"]["products"] == "ynnpack"
    compare_environments({"versions": {}}, {"versions": {"jax": "0.12"}, "products": "ynnpack"})  # where there is none
    assert "because of: products ynnpack -> \n" in capsys.readouterr().out
