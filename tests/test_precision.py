"""float64 and float32 beside each other: a run gives its own result whatever was computed before it in the process."""

import dataclasses
import json
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from vit_jax import backend, train
from vit_jax.augment import augment
from vit_jax.config import ImageAugment, OptimConfig
from vit_jax.models import build
from vit_jax.presets import preset
from vit_jax.train.session import announce, set_up


@pytest.fixture
def losses(tmp_path, monkeypatch):
    """losses(name, dtype): those of the four steps of a run."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys.modules["vit_jax.train.finish"], "draw", lambda *_: None)
    base = preset("digits").run
    run = dataclasses.replace(
        base,
        model=dataclasses.replace(base.model, width=8, depth=1, heads=2, hidden=8, dropout=0.1),
        augment=dataclasses.replace(base.augment, crop_padding=1, flip=True),
        epochs=1,
        batch=128,
        max_steps=4,
        log_every=1,
    )

    def of(name, dtype):
        train.train(dataclasses.replace(run, name=name, compute_dtype=dtype))
        return [json.loads(line)["loss"] for line in (tmp_path / f"runs/{name}/metrics.jsonl").read_text().splitlines()]

    return of


def test_a_float64_run_leaves_the_process_as_it_found_it(losses):
    assert not jax.config.jax_enable_x64
    first, _, again = losses("a", "float32"), losses("b", "float64"), losses("c", "float32")
    assert first == again and len(first) == 4 and not jax.config.jax_enable_x64
    jax.config.update("jax_enable_x64", True)  # also where the caller has set it
    try:
        assert losses("d", "float32") == first and jax.config.jax_enable_x64
    finally:
        jax.config.update("jax_enable_x64", False)


ON = {int: 2, bool: True, float: 0.5}  # a value of each field of augmentation that turns it on
FIXED = ("normalize", "mean", "std")  # the fields of ImageAugment that draw nothing
DRAWN = {f.name: ON[type(f.default)] for f in dataclasses.fields(ImageAugment) if f.name not in FIXED}


@pytest.mark.parametrize("name", DRAWN)
def test_what_is_drawn_does_not_depend_on_enable_x64(name):
    config = ImageAugment(**{name: DRAWN[name]})
    images = np.random.default_rng(0).integers(0, 256, (64, 8, 8, 1)).astype(np.uint8)
    seen = []
    for wide in (False, True):
        with jax.enable_x64(wide):
            seen.append(np.asarray(augment(jnp.asarray(images), jax.random.split(jax.random.key(1), 64), config)))
    assert (seen[0] != images).any((1, 2, 3)).sum() > 20
    np.testing.assert_array_equal(*seen)


def test_memory_is_counted_in_the_parameters_dtype(capsys):
    def memory(**fields):
        run = dataclasses.replace(preset("digits").run, **fields)
        with backend.precision(run.compute_dtype):
            announce(set_up(run))
        return float(
            next(line for line in capsys.readouterr().out.splitlines() if line.startswith("memory")).split()[1]
        )

    count = 102_666  # parameters, as the line above it says
    assert memory() == pytest.approx(4 * count * 4 / 1e6, abs=0.06)
    assert memory(compute_dtype="float64") == pytest.approx(8 * count * 4 / 1e6, abs=0.06)
    assert memory(optim=OptimConfig(name="sgd"), ema=0.9) == pytest.approx(4 * count * 3 / 1e6, abs=0.06)


def test_pixels_that_were_not_normalised_are_refused():
    model = build("vit-ti16", classes=3, image=32, depth=1, width=8, heads=2, hidden=8)
    for dtype in (np.uint8, np.int32, bool):
        with pytest.raises(
            ValueError, match=f"images are {np.dtype(dtype).name}: give floating-point numbers, normalised"
        ):
            model(np.zeros((1, 32, 32, 3), dtype))
