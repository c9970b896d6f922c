"""The steps of every preset are lowered for a GPU and a TPU too: what is for a CPU alone is in neither of the two."""

from dataclasses import replace
from functools import partial

import jax
import numpy as np
import pytest

from vit_jax.config.dotted import value_at
from vit_jax.config.network import Teacher
from vit_jax.config.trees import unflatten
from vit_jax.models.build import definition
from vit_jax.models.fused import NARROW
from vit_jax.models.vit_config import ViTConfig
from vit_jax.presets.table import PRESETS, preset
from vit_jax.tasks.can import HasFrozen
from vit_jax.tasks.computed import task_of
from vit_jax.tasks.table import task_spec
from vit_jax.training.engine.engine import Engine
from vit_jax.training.engine.evaluator import Evaluator
from vit_jax.training.engine.optim import Optimizer

WORDS = ["<pad>", "<bos>", "<eos>", "<unk>", "one", "two"]
METADATA = {
    "preprocess": {"mean": [0.5], "std": [0.5]},
    "vocabulary": {"source": WORDS, "target": WORDS},
    "words": WORDS,
}


def abstract(shape, dtype):
    return jax.ShapeDtypeStruct(shape, dtype)


def batch_of(run):
    """A batch of a preset with METADATA, as shapes: images and labels, or the ids of sentences."""
    if run.task == "translate":
        return {name: abstract((run.batch, 7), np.int32) for name in ("source", "target")}
    if run.task == "caption-features":
        return {
            "vectors": abstract((run.batch, 1, run.model.memory_width), np.float32),
            "target": abstract((run.batch, 11), np.int32),
        }
    image = abstract((run.batch, *run.model.pixels()), np.uint8)
    if run.task == "caption":
        return {"image": image, "target": abstract((run.batch, 11), np.int32)}
    return {"image": image, "label": abstract((run.batch,), np.int32)}


def a_teacher(channels):
    """The teacher of runs that need one: a small network whose weights are zero."""
    config = ViTConfig(image=8, patch=4, channels=channels, classes=10, width=8, depth=1, heads=2, hidden=8)
    metadata = {"preprocess": {"image": [8, 8], "interpolation": "bilinear", "mean": [0.5], "std": [0.5]}}
    arrays = {name: np.zeros(shape, np.float32) for name, shape in config.shapes().items()}
    return Teacher("teacher", "", config, metadata, arrays)


QUICK = ("digits", "numbers", "shapes")


@pytest.mark.parametrize(
    "name", [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in [*PRESETS, "vit-s16"]]
)
def test_the_steps_of_a_preset_are_lowered_for_each_platform(name):
    """From shapes alone, so nothing is computed or compiled."""
    run = preset(name).run
    open_sizes = {size: 10 for size in run.model.marked("from_data") if not value_at(run.model, size)}
    given = task_spec(run.task).stand_in(replace(run, model=run.model.with_sizes(open_sizes)))
    run = given.run
    task = task_of(run, given.metadata).able(HasFrozen).load(a_teacher(getattr(run.model, "channels", 1)))
    define, optimizer = partial(definition, run.model), Optimizer(run.optim, 100, 10, run.model.parameters())
    engine, evaluator = Engine(run, define, task, optimizer), Evaluator(run.model, define(), task)
    weights = unflatten({name: abstract(shape, np.float32) for name, shape in run.model.shapes().items()})
    batch, examples = ({k: abstract(*v) for k, v in each.items()} for each in (given.batch, given.examples))
    training = engine.compiled.trace(jax.eval_shape(engine.start, weights), batch, engine.seed, engine.frozen_arrays)
    evaluation = evaluator.compiled.trace(weights, examples, evaluator.frozen_arrays)
    for platform in ("cuda", "tpu", "cpu"):
        texts = [step.lower(lowering_platforms=(platform,)).as_text() for step in (training, evaluation)]
        assert all("dot_general" in text for text in texts)
        parts = [getattr(run.model, part, run.model) for part in ("vit", "text")]  # of a captioner, both
        narrow = all(part.resolved_head_width < NARROW for part in parts)
        assert ["optimization_barrier" in text for text in texts] == [platform == "cpu" and narrow, False]
