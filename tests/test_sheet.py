"""The contact sheet: it shows the very views that training sees, and every mistake is one sentence."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from PIL import Image

from vit_jax.augmentation.config import ImageAugment
from vit_jax.extras.sheet import views_of
from vit_jax.presets.table import preset
from vit_jax.tasks.computed import task_class, task_of
from vit_jax.training.engine.step import example_keys

pytestmark = pytest.mark.usefixtures("quick_compilation")


def test_the_sheet_is_drawn_with_the_settings_as_they_were_typed(inside, tmp_path):
    words = ["--augment.flip", "--augment.cutmix", "1", "--images", "4", "--views", "3"]
    drawn = inside("sheet", "digits", "sheet.png", *words)
    assert (drawn.returncode, drawn.stderr) == (0, "")
    assert drawn.stdout == "sheet.png: 4 images, 3 views of each\n"
    with Image.open(tmp_path / "sheet.png") as image:
        wide, pixels = image.size, np.asarray(image.convert("RGB"))
    assert wide[0] > 500 and wide[1] > 500 and len(np.unique(pixels)) > 10
    assert {path.name for path in tmp_path.iterdir()} == {"sheet.png"}
    again = inside("sheet", "digits", "sheet.png", *words)
    assert again.returncode == 2 and "sheet.png: exists already; add `force True` to overwrite it" in again.stderr


def test_the_views_are_those_that_the_training_step_would_see():
    run = preset("digits").run
    config = ImageAugment(crop_padding=1, flip=True, erase=0.5, mixup=0.8, cutmix=1.0)
    run = dataclasses.replace(run, seed=5, augment=config)
    sheet = views_of(run, 6, 2)
    dataset = task_class(run.task).open_data(run)
    run = dataclasses.replace(run, model=dataclasses.replace(run.model, classes=10))
    task = task_of(run, dataset.metadata())
    batch = {"image": sheet.originals, "label": jnp.asarray([int(label) for label in sheet.labels])}
    prepare = jax.jit(lambda step: task.prepare(batch, example_keys(5, step, jnp.arange(6))))
    for step in range(2):
        seen = prepare(jnp.int32(step))
        assert np.abs(np.asarray(seen["image"]) - sheet.views[:, step]).max() <= 0.51
        np.testing.assert_allclose(seen["target"], sheet.targets[:, step], atol=1e-6)
    assert sheet.shares(np.array([0.1, 0, 0.9])) == "90% 2 + 10% 0" and sheet.shares(np.array([0.0, 1.0])) == "100% 1"


def test_images_may_be_of_other_classes_than_the_presets():
    run = preset("digits").run
    sheet = views_of(dataclasses.replace(run, model=dataclasses.replace(run.model, classes=3)), 2, 1)
    assert len(sheet.class_names) == 10 and sheet.views.shape == (2, 1, 8, 8, 1)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("", "PRESET is missing; give vit-jax sheet PRESET FILE.png"),
        ("digits", "FILE.png is missing; give vit-jax sheet PRESET FILE.png"),
        ("numbers x.png", "numbers: its examples are no images, and nothing augments them; give a preset of images"),
        ("digits x.jpg", "x.jpg: the sheet is a PNG; give a name that ends in .png"),
        ("digits /proc/x.png", "/proc/x.png: its folder cannot be written; choose another"),
        ("digits x.png --images 0", "images is 0: give 1 to 64"),
        ("digits x.png --views 41", "views is 41: give 1 to 40"),
        ("digits x.png --images 3 --augment.mixup 1", "images is 3, but neighbours are mixed: give an even number"),
        ("vit-s16 x.png", "data.source is empty: give `data.source"),
    ],
)
def test_a_mistake_is_one_sentence_and_writes_nothing(words, said, inside, tmp_path):
    refused = inside("sheet", *words.split())
    assert refused.returncode == 2 and refused.stdout == ""
    assert said in refused.stderr and refused.stderr.count("\n") == 1
    assert not list(tmp_path.iterdir())
