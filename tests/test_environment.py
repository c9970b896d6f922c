"""No setting of jax, of the environment or of the user's own program changes what is computed, or it is said."""

import contextlib
import os
import subprocess
import sys
from dataclasses import replace

import jax
import numpy as np
import pytest
from flax import nnx

import vit_jax
from vit_jax.machine import backend, numerics
from vit_jax.machine.numerics import random_key
from vit_jax.runs import Run

OTHER = {
    "default_prng_impl": "rbg", "threefry_partitionable": False, "default_matmul_precision": "bfloat16",
    "numpy_dtype_promotion": "strict", "numpy_rank_promotion": "raise", "debug_nans": True, "debug_infs": True,
    "enable_x64": True, "transfer_guard": "disallow", "legacy_prng_key": "error",
}  # fmt: skip
TINY = {"classes": 3, "width": 8, "depth": 1, "heads": 2, "hidden": 8, "patch": (4, 4), "dropout": 0.1}
PIXELS = np.random.default_rng(0).integers(0, 256, (60, 8, 8), np.uint8)


def results(folder):
    """Digests of trained weights, and predictions, of a run with dropout and augmentation; initial weights."""
    start = vit_jax.preset("digits").run
    model, augment = replace(start.model, **TINY), replace(start.augment, mixup=0.5)
    run = replace(start, dir=str(folder), name="a", batch=16, max_steps=3, model=model, augment=augment, ema=0.9)
    data = PIXELS, np.arange(60) % 3
    vit_jax.train(run, data=data)
    network = vit_jax.load(folder / "a")
    built = nnx.to_pure_dict(nnx.state(vit_jax.build("vit-ti16", 3, 16, depth=1), nnx.Param))
    return (
        Run(folder / "a").saved(3)["arrays"],
        network.predict(PIXELS[:4], top=3),
        np.asarray(network.logits(PIXELS[:4])).tolist(),
        np.asarray(network.model(np.ones((2, 8, 8, 1), np.float32))).tolist(),
        [np.asarray(leaf).tolist() for leaf in jax.tree.leaves(built)],
    )


def test_no_setting_of_the_users_changes_a_result(tmp_path, quick_compilation, without_pictures):
    plain = results(tmp_path / "plain")
    with contextlib.ExitStack() as stack:
        for name, value in OTHER.items():
            stack.enter_context(getattr(jax, name)(value))
        assert results(tmp_path / "other") == plain
        assert jax.config.jax_default_prng_impl == "rbg" and jax.config.jax_numpy_rank_promotion == "raise"
    assert {*numerics.SETTINGS} - {*OTHER} == {"disable_jit", "debug_key_reuse", "check_tracer_leaks"}, "slow"


@pytest.mark.parametrize("seed", [0, 7, 2**31, 2**32 - 1])
def test_keys_are_those_of_jax(seed):
    for x64 in (False, True):
        with jax.enable_x64(x64):
            theirs = jax.random.key_data(jax.random.key(seed)).tolist()
            assert jax.random.key_data(random_key(seed)).tolist() == theirs
            assert jax.random.key_data(jax.jit(random_key)(np.uint32(seed))).tolist() == theirs


BAD = {"JAX_ENABLE_X64": "maybe", "JAX_PLATFORMS": "nonsense", "MPLBACKEND": "nonsense"}  # others: VALUES
START = """
import vit_jax
from vit_jax.files.terminal import run_command
from vit_jax.machine import backend
def start():
    backend.configure_jax() if "{way}" == "command" else vit_jax.ViT
    from vit_jax.figures.figure import message_page
    message_page("{file}", "drawn")
raise SystemExit(run_command(start))
"""


@pytest.mark.parametrize("name", BAD)
def test_what_jax_does_not_start_with_is_named(name, tmp_path):
    way = "python" if name == "JAX_ENABLE_X64" else "command"
    start = START.format(way=way, file=tmp_path / "a.png")
    env = {**os.environ, name: BAD[name]}
    done = subprocess.run([sys.executable, "-c", start], env=env, capture_output=True, text=True, timeout=120)
    if name == "MPLBACKEND":
        assert (done.returncode, done.stderr) == (0, "") and (tmp_path / "a.png").exists()
    else:
        assert done.returncode == 2 and done.stderr.startswith(f"vit-jax: error: {name} is {BAD[name]!r}: "), (
            done.stderr
        )
        assert done.stderr.count("\n") == 1 and "unset it" in done.stderr


def test_what_may_change_the_last_bits_is_recorded(monkeypatch):
    for name in [name for name in os.environ if name.startswith("JAX_")]:
        monkeypatch.delenv(name)
    assert "jax_variables" not in backend.environment()
    monkeypatch.setenv("JAX_DEFAULT_PRNG_IMPL", "rbg")  # which changes none
    monkeypatch.setenv("JAX_DISABLE_MOST_OPTIMIZATIONS", "1")
    assert backend.environment()["jax_variables"] == "JAX_DISABLE_MOST_OPTIMIZATIONS=1"


TRAIN = """
import json, vit_jax
from dataclasses import replace
from vit_jax.files.terminal import run_command
from vit_jax.runs import Run
def train():
    run = replace(vit_jax.preset("digits").run, max_steps=5, dir="{folder}", name="a")
    vit_jax.train(run)
    print(json.dumps([Run("{folder}/a").saved(5)["arrays"], str(vit_jax.evaluate("{folder}/a"))]))
raise SystemExit(run_command(train))
"""
VALUES = {
    "JAX_DEFAULT_PRNG_IMPL": ("rbg", "unsafe_rbg", "x"), "JAX_NUMPY_DTYPE_PROMOTION": ("strict", "x"),
    "JAX_NUMPY_RANK_PROMOTION": ("raise", "warn", "x"), "JAX_ENABLE_X64": ("1", "x"),
    "JAX_NUM_CPU_DEVICES": ("0", "-3", "x"), "JAX_PLATFORMS": ("", "x", "tpu"),
    "JAX_DEFAULT_MATMUL_PRECISION": ("float32", "bfloat16", "x"), "JAX_DEBUG_NANS": ("1", "x"),
    "JAX_DISABLE_JIT": ("1",), "JAX_THREEFRY_PARTITIONABLE": ("0",), "JAX_RANDOM_SEED_OFFSET": ("5", "x"),
    "JAX_TRANSFER_GUARD": ("disallow",), "JAX_LEGACY_PRNG_KEY": ("error",), "JAX_DEBUG_KEY_REUSE": ("1",),
    "XLA_FLAGS": ("x", "--x", "--xla_force_host_platform_device_count=x"), "MPLBACKEND": ("x", "tkagg"),
}  # fmt: skip


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """What a process with other variables prints: its exit code, its last line, what is on stderr."""

    def train(**variables):
        code = TRAIN.format(folder=tmp_path_factory.mktemp("runs"))
        env = {**os.environ, **variables}
        done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True)
        return done.returncode, done.stdout.splitlines()[-1:], done.stderr

    return train, train()


@pytest.mark.slow
@pytest.mark.parametrize(("name", "value"), [(name, value) for name, each in VALUES.items() for value in each])
def test_a_process_computes_the_same_or_names_the_variable(name, value, trained):
    train, (_, plain, _) = trained
    code, printed, said = train(**{name: value})
    if code:
        assert code == 2 and said.splitlines()[-1].startswith(f"vit-jax: error: {name} is {value!r}: "), said
    else:
        assert printed == plain
