"""float64 and float32 beside each other: what is drawn is the same, and what is announced is of the dtype of a run."""

import dataclasses
import inspect
import re
import typing

import jax
import numpy as np
import pytest

from vit_jax.augmentation.batch import augment
from vit_jax.augmentation.config import ImageAugment
from vit_jax.augmentation.policies import POLICIES
from vit_jax.config.run import OptimConfig
from vit_jax.machine.numerics import fixed_settings
from vit_jax.presets.table import build, preset
from vit_jax.runs import Run
from vit_jax.tasks.computed import task_of
from vit_jax.training.announce import announce
from vit_jax.training.job import open_data, open_job

# Each way of drawing that augmentation has; `test_every_field_is_tried` fails where one is missing.
DRAWN = {
    "padded crop, mixing": dict(crop_padding=2, flip=True, erase=0.5, mixup=0.8, cutmix=0.8),
    "resized crop, policy": dict(scale=(0.2, 0.9), ratio=(0.5, 1.0), policy="randaugment", layers=1, magnitude=5.0),
}
# The fields of ImageAugment that draw nothing.
FIXED = {"normalize", "mean", "std", "repeats", "with_numbers"}


def test_every_field_is_tried():
    names = {f.name for f in dataclasses.fields(ImageAugment)}
    assert {f.name for f in dataclasses.fields(ImageAugment) if "not_drawn" in f.metadata["marks"]} == FIXED
    assert names == FIXED.union(*DRAWN.values()), "add it to DRAWN in tests/test_precision.py"


def test_every_step_of_augment_folds_a_number_of_its_own():
    """Two steps with one number would draw alike: every flipped image would be cropped alike, for example."""
    numbers = re.findall(r"fold\(keys, (\w+)\)", inspect.getsource(augment))
    assert len(numbers) > 5 and len(numbers) == len({*numbers}), "give the new step the next number"


def in_both(function, *arguments):
    """The results of a function without and with 64-bit types; the program counts, not how well it is optimised."""
    results = []
    jax.config.update("jax_disable_most_optimizations", True)
    for wide in (False, True):
        with jax.enable_x64(wide):
            results.append(jax.tree.map(np.asarray, jax.jit(function)(*arguments)))
    jax.config.update("jax_disable_most_optimizations", False)
    return results


def same(a, b):
    assert jax.tree.map(lambda x: x.dtype, a) == jax.tree.map(lambda x: x.dtype, b)
    jax.tree.map(np.testing.assert_array_equal, a, b)


@pytest.mark.parametrize("name", DRAWN)
def test_what_is_drawn_does_not_depend_on_enable_x64(name):
    run = dataclasses.replace(preset("digits").run, augment=ImageAugment(**DRAWN[name]))
    task = task_of(run, {"preprocess": {"mean": [0.5], "std": [0.5]}})
    images = np.random.default_rng(0).integers(0, 256, (64, 8, 8, 1)).astype(np.uint8)
    batch = {"image": images, "label": np.arange(64, dtype=np.int32) % 10}
    keys = jax.random.split(jax.random.key(1), 64)
    narrow, wide = in_both(lambda batch, keys: task.prepare(batch, keys), batch, keys)
    assert (narrow["image"] != images).any((1, 2, 3)).sum() > 20
    same(narrow, wide)


def test_what_policies_draw_does_not_depend_on_enable_x64():
    policies = [name for name in typing.get_args(typing.get_type_hints(ImageAugment)["policy"]) if name != "none"]

    def drawn(keys):
        return {name: list(POLICIES[name][0](keys, ImageAugment(policy=name), 8, 8)) for name in policies}

    same(*in_both(drawn, jax.random.split(jax.random.key(1), 64)))


def test_parts_of_a_batch_are_announced_where_there_are_several(capsys):
    for accumulate, told in ((1, ""), (2, "; each computes its share of a batch in 2 microbatches")):
        run = dataclasses.replace(preset("digits").run, accumulate=accumulate)
        announce(open_job(run, open_data(run), Run("nowhere")))
        assert re.search(rf"float32{told}\nversions", capsys.readouterr().out)


def test_memory_is_counted_in_the_parameters_dtype(capsys):
    def memory(**fields):
        run = dataclasses.replace(preset("digits").run, **fields)
        with fixed_settings(run.compute_dtype):
            announce(open_job(run, open_data(run), Run("nowhere")))
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
