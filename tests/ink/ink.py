"""A task and a network in one file, and a package: what a stranger writes to add both (pyproject.toml names them).

A two-layer perceptron says how much ink is in an image of a digit, as a frozen teacher measures it; the lowest error is
chosen. After `pip install ./tests/ink` it is there for every command: `vit-jax train ink`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from vit_jax.augmentation.batch import normalise
from vit_jax.config.fields import identity
from vit_jax.config.network import Input, NetworkConfig, Table
from vit_jax.config.run import OptimConfig, RunConfig
from vit_jax.data.images.config import ImageData
from vit_jax.data.images.open import open_images
from vit_jax.figures.figure import page
from vit_jax.models.layers import Linear, fold
from vit_jax.models.lowering import PLAIN
from vit_jax.presets.variants import Preset
from vit_jax.tasks.base import Task
from vit_jax.tasks.can import Draws, HasFrozen
from vit_jax.tasks.image_spec import Preprocessing
from vit_jax.tasks.predictor import Answer, ImagePredictor
from vit_jax.tasks.spec import TaskSpec


@dataclass(frozen=True)
class PerceptronConfig(NetworkConfig):
    """Pixels to one number."""

    computes: ClassVar[str] = "ink:Perceptron"
    names: ClassVar[tuple[str, ...]] = (r"fc1\.kernel", r"fc2\.kernel", r"!.*attention.*")
    examples: ClassVar[dict[str, tuple[int, ...]]] = {"image": (8,), "channels": (1,), "hidden": (16, 5)}

    image: int = identity(8, "image height and width, in pixels")
    channels: int = identity(1, "channels of an image")
    hidden: int = identity(16, "width of the hidden layer", at_least=1)

    def parameters(self) -> Table:
        table = Table()
        table.dense("fc1", self.image**2 * self.channels, self.hidden)
        table.dense("fc2", self.hidden, 1)
        return table

    def inputs(self) -> tuple[Input, ...]:
        return (Input("images", "pixels", (self.image, self.image, self.channels)),)


class Perceptron(nnx.Module):
    """Images [B, h, w, C] to [B, 1]."""

    def __init__(
        self, config: PerceptronConfig, *, rngs=None, dtype=jnp.float32, param_dtype=jnp.float32, lowering=PLAIN
    ):
        self.config, self.dtype = config, jnp.dtype(dtype)
        self.fc1 = Linear(config.image**2 * config.channels, config.hidden, True, param_dtype, lowering)
        self.fc2 = Linear(config.hidden, 1, True, param_dtype, lowering)

    def __call__(self, images: Any, *, keys: Any = None) -> Any:
        return self.fc2(jnp.tanh(self.fc1(images.astype(self.dtype).reshape(images.shape[0], -1))))

    def capture(self, images: Any, names: Any) -> dict[str, Any]:
        return {name: {"logits": self}[name](images) for name in names}


@dataclass(frozen=True)
class InkData(ImageData):
    """Images, and what counts as ink."""

    threshold: int = identity(128, "grey level from which a pixel is ink", at_least=0, at_most=255)


class InkSpec(TaskSpec):
    """What is known of the task without jax."""

    network = PerceptronConfig
    data = InkData
    computes = "ink:Ink"
    unit = "digits"
    main_metrics: ClassVar = {"error": "error", "loss": "loss"}
    metadata: ClassVar = {"preprocess": Preprocessing()}


class InkPredictor(ImagePredictor):
    """What a trained network is used by."""

    header = "file", "ink"

    def answers(self, inputs: Any, top: int, first: int) -> Any:
        for file, said in zip(inputs, self.task.top_k(self.model, self.pixels(inputs)).tolist(), strict=True):
            yield Answer(file, said, f"{file}: {said:.4f}", [(str(file), f"{said:.6f}")], (f"{said:.6f}",))


class HasTeacher(HasFrozen):
    """The teacher's array."""

    in_outputs = True

    def load(self, teacher: Any, target: Any = None) -> Ink:
        return replace(self.task, frozen_arrays={"threshold": np.float32(self.task.threshold)})


class DrawsInk(Draws):
    """A figure of the network beside its teacher, and the image with the most ink."""

    def result(self, split: Any, result: Any, metadata: Any, folder: Any, caption: str) -> tuple[Any, Any]:
        (folder / "furthest.txt").write_text(f"{split.name(int(result.predicted.argmax()))}\n", encoding="utf-8")
        return (), ()

    def network(self, network: Any, data: Any, plots: Any, samples: Any, caption: str) -> tuple[str, Any]:
        images = data.splits["test"].take(np.arange(50))
        with page(plots / "ink.png", 5, 5) as figure:
            axes = figure.subplots(subplot_kw={"xlabel": "teacher", "ylabel": "perceptron", "title": caption})
            axes.plot(np.asarray(self.task.teacher(images)), np.asarray(self.task.top_k(network, images)), "o")
        return "", ()


@dataclass(frozen=True)
class Ink(Task):
    """The task. A batch is {image: uint8 [B, h, w, C], label: int32 [B]}; the teacher is its auxiliary array."""

    threshold: int
    mean: tuple[float, ...]
    std: tuple[float, ...]

    selection_metric: ClassVar[tuple[str, int]] = ("error", -1)
    predictor: ClassVar[type] = InkPredictor
    can: ClassVar = (HasTeacher, DrawsInk)

    @classmethod
    def open_data(cls, run: RunConfig, given: Any = None, fetch: bool = True) -> Any:
        c = run.model
        return open_images(run.data, c.image, c.channels, seed=run.seed, given=given, fetch=fetch)

    @classmethod
    def from_run(cls, run: RunConfig, metadata: Any) -> Ink:
        return cls(run.data.threshold, tuple(metadata["preprocess"]["mean"]), tuple(metadata["preprocess"]["std"]))

    def prepare(self, batch: Any, keys: Any) -> Any:
        """Each image mixed with the one as far from the batch's other end."""
        share = jax.vmap(lambda key: jax.random.uniform(key, dtype=jnp.float32))(fold(keys, 0))[:, None, None, None]
        image = batch["image"].astype(jnp.float32)
        return {**batch, "image": jnp.rint(share * image + (1 - share) * image[::-1]).astype(jnp.uint8)}

    def teacher(self, image: Any) -> Any:
        return (image.astype(jnp.float32) >= self.frozen_arrays["threshold"]).mean((1, 2, 3))  # [B]

    def top_k(self, model: Any, image: Any, keys: Any = None) -> Any:
        return model(normalise(image, self.mean, self.std, model.dtype), keys=keys)[:, 0]  # [B]

    def loss(self, model: Any, batch: Any, keys: Any, denominator: Any = None) -> tuple[Any, dict[str, Any]]:
        error = self.top_k(model, batch["image"], keys) - self.teacher(batch["image"])
        return jnp.square(error).mean(), {"error": jnp.abs(error).mean()}

    def outputs(self, model: Any, batch: Any) -> dict[str, Any]:
        said = self.top_k(model, batch["image"])
        error = said - self.teacher(batch["image"])
        return {"predicted": said, "loss": jnp.square(error), "error": jnp.abs(error)}


def preset() -> Preset:
    run = RunConfig("ink", PerceptronConfig(), InkData(), optim=OptimConfig(lr=1e-2), epochs=3, batch=256, log_every=1)
    return Preset(run, "How much ink there is in a digit.")
