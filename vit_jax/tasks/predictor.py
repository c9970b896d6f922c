"""The base classes of what a trained network is used by, of any inputs and of images, and what it says."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn, Self

import numpy as np
from jax import Array

from ..augmentation.batch import normalise
from ..config.run import RunConfig
from ..data.images.preprocess import Preprocess, Unreadable
from ..data.inputs import list_images, prepare_image
from ..errors import Field, UserError
from ..machine.numerics import with_fixed_settings
from ..models.build import describe_network
from ..plugins import CAPABILITIES

BATCH = 64


@dataclass(frozen=True)
class Trained:
    """What is known of trained weights."""

    run: RunConfig  # of weights from elsewhere, an untrained one with the same network
    metadata: Mapping[str, Any]  # has the entries of `Data.metadata`
    step: int  # after so many training steps; 0 if unknown
    folder: Path | None = None  # that of the run; None of weights from elsewhere


@dataclass(frozen=True)
class Answer:
    """The prediction for one input."""

    input: Any  # as it was given to `Predictor.answer`
    value: Any  # as a Python caller wants it
    line: str  # to print; may be several
    rows: Sequence[tuple[str | int, ...]]  # of a CSV table with the columns `Predictor.header`
    plain: tuple[str, ...]  # best first, each a line for another program
    values: np.ndarray | None = None  # float [K], of `Predictor.columns`


def check_positive(**numbers: int) -> None:
    """Raise UserError unless all of these numbers are positive."""
    for name, number in numbers.items():
        if number < 1:
            raise UserError(Field(name), f"is {number}", "give a positive number")


def batches(inputs: Sequence[Any], batch: int) -> Iterator[tuple[int, Any]]:
    """(number of the first, inputs) of each part of the inputs, at most `batch` in one."""
    check_positive(batch=batch)
    for first in range(0, len(inputs), batch):
        yield first, inputs[first : first + batch]


@dataclass(frozen=True, repr=False)
class Predictor:
    """A trained network with all that prediction needs, as `vit_jax.load` returns and `vit_jax.predict` uses it.

    `predict`, `features` and `capture` are as the task has them: see Classifier, Translator, Describer. All methods
    raise UserError where an input cannot be used, or the network lacks what is asked for.
    """

    model: Any
    task: Any  # its Task, of base.py
    trained: Trained

    @property
    def refusals(self) -> Mapping[str, tuple[str, str]]:
        """{what it has not, of attention, features, explanations, measures and top: (what is wrong, a remedy)}.

        Of the first three only where more is to be said than that the network has none.
        """
        return {}

    def __repr__(self) -> str:
        return f"{type(self).__name__}({describe_network(self.run.model)})"

    @property
    def run(self) -> RunConfig:
        """Its run; of weights from elsewhere, an untrained one with the same network."""
        return self.trained.run

    @property
    def metadata(self) -> Mapping[str, Any]:
        """The entries of its task's metadata, as config.json has them."""
        return self.trained.metadata

    @property
    def step(self) -> int:
        """The training steps of its weights; 0 if unknown."""
        return self.trained.step

    @property
    def header(self) -> tuple[str, ...]:
        """The names of the columns of `Answer.rows`; none where there can be no answers, for want of a head."""
        return "input", "answer"

    @property
    def columns(self) -> tuple[str, ...]:
        """What `Answer.values` are of, K names; none where answers have none."""
        return ()

    def check_columns(self, file: str) -> None:
        """Raise UserError where there are no values that could be written to a file."""
        if not self.columns:
            what = f"is {file}, but this network predicts no classes, labels or numbers"
            raise UserError(Field("probabilities"), what, "leave it out")

    @property
    def layers(self) -> int:
        """The number of layers whose attention `draw_attention` can draw; 0 if the network has no attention."""
        return 0

    def whole(self) -> Self:
        """Itself, once it is checked to have all that its use takes."""
        return self

    def read(self, inputs: Sequence[Any]) -> Sequence[Any]:
        """The inputs as `answers` takes them. Raises UserError where one can be seen to be unusable."""
        return inputs

    def as_list(self, inputs: Any) -> tuple[Any, bool]:
        """(one or several inputs as a list, whether only one was given)."""
        return list(inputs), False

    def readable(self, inputs: Sequence[Any]) -> tuple[list[Any], list[UserError]]:
        """(the image files that can be read, an error for each of the others)."""
        raise UserError(Field("skip_unreadable"), "is for images, and this network takes none", "leave it out")

    def answer(self, inputs: Sequence[Any], top: int = 3, batch: int = BATCH, begin: int = 0) -> Iterator[Answer]:
        """One Answer per input, in order; what can be seen to be unusable is refused before the first is computed.

        Args:
            inputs: paths of files, or texts, as the network takes images, vectors or ids.
            top: the number of alternatives to return, for tasks that have alternatives.
            batch: the most inputs to compute at a time.
            begin: the number of inputs before these, for draws.
        """
        for first, some in batches(self.read(inputs), batch):
            yield from self.answers(some, top, begin + first)

    def answers(self, inputs: Sequence[Any], top: int, first: int) -> Iterable[Answer]:
        """The Answer for each of some inputs, as `read` made them, which are computed together.

        `top` is the number of alternatives to return, `first` the number of the first input among all, for draws.
        """
        raise NotImplementedError

    def predict(self, inputs: Any, /, *args: Any, **options: Any) -> Any:
        """What the network says of each input: the classes of an image, or a text; of one input that alone.

        Options are `top`, `batch` and, of texts, settings of their search, such as beam=4.
        """
        several, one = self.as_list(inputs)
        values = [answer.value for answer in self.answer(several, *args, **options)]
        return values[0] if one else values

    def features(self, inputs: Any, /, *args: Any, **options: Any) -> dict[str, np.ndarray]:
        """The features of images, as `Classifier.features` gives them."""
        self.refuse("features")

    def capture(self, inputs: Any, /, names: Iterable[str], *args: Any, **options: Any) -> dict[str, np.ndarray]:
        """Inner values of the network on the inputs: {name: array [n, ...]}, or [...] of one input.

        The names are those of the network's own `capture`, such as attention, logits.
        """
        self.refuse("inner values")

    def explain(self, inputs: Any, /, method: Any = "ig", *args: Any, **options: Any) -> Any:
        """What counted in the inputs for what the network says of them, an explained.Explanation.

        The method is ig or rollout; options are `class_name`, `steps` and `batch`.
        """
        return self.capability("explain").explain(inputs, method, *args, **options)

    def capability(self, name: str) -> Any:
        """What the network can besides answering, by a name that `vit-jax plugins` lists."""
        if name not in CAPABILITIES:
            raise UserError(f"there is no capability {name!r}", remedy=f"give one of {', '.join(CAPABILITIES)}")
        return CAPABILITIES[name](self)

    def draw_attention(
        self, inputs: Sequence[Any], path: Path | None = None, layers: Sequence[int] = (), caption: str = ""
    ) -> Any:
        """Draw the network's attention on the first inputs; returns matplotlib's Figure, which a notebook shows.

        Args:
            path: of a PNG; None: none is written.
            layers: those to draw, counted from 0; empty: as the task prefers.
            caption: a line under the title.
        """
        self.refuse("attention")

    def write_features(
        self,
        inputs: Sequence[Any],
        path: Path,
        blocks: Sequence[int] = (),
        norm: bool = True,
        batch: int = BATCH,
        **more: Any,
    ) -> str:
        """Write the features of the inputs to `path` as a .npz, and return a line that says what is in it.

        `blocks` and `norm` are as of `Classifier.features`, `more` has arrays that are written beside them.
        """
        self.refuse("features")

    def refuse(self, what: str) -> NoReturn:
        """Say that the network has no such thing. Raises UserError."""
        raise UserError(what, *self.refusals.get(what, (f"a {self.run.model.name} has none", "leave the flag out")))


class ImagePredictor(Predictor):
    """A trained network of images, with the preprocessing of its evaluation.

    `model(images)` calls the network on normalised images [B, h, w, C]. The methods take images of any size: paths of
    files, Pillow images, uint8 arrays [h, w] or [h, w, C], or tensors of PyTorch [C, h, w], uint8 or from 0 to 1 as
    torchvision makes them. For a list of n of them, or an array [n, h, w, C], they give n answers; for one image, one
    answer without the axis of the batch. Raises UserError where an image cannot be used.
    """

    @functools.cached_property
    def preprocess(self) -> Preprocess:
        """How images become the network's inputs."""
        return Preprocess.from_dict(self.trained.metadata["preprocess"])

    @property
    def metadata(self) -> dict[str, Any]:
        return {**self.trained.metadata, "preprocess": self.preprocess.to_dict()}

    @property
    def size(self) -> str:
        """The shape of the network's images, in print."""
        return "x".join(map(str, (*self.preprocess.image, self.preprocess.channels)))

    def as_list(self, images: Any) -> tuple[list[Any], bool]:
        return list_images(images, self.preprocess.channels)

    def readable(self, inputs: Sequence[Any]) -> tuple[list[Any], list[UserError]]:
        found: list[Any] = []
        errors: list[UserError] = []
        for image in inputs:
            try:
                prepare_image(image, self.preprocess)
                found.append(image)
            except Unreadable as error:
                errors.append(error)
        return found, errors

    def pixels(self, images: Any) -> np.ndarray:
        """Images preprocessed but not normalised -> uint8 [n, h, w, C], or [h, w, C] of one."""
        several, one = self.as_list(images)
        pixels = np.stack([prepare_image(image, self.preprocess) for image in several])
        return pixels[0] if one else pixels

    def inputs(self, images: Any) -> Array:
        """Images as the network takes them, preprocessed and normalised -> [n, h, w, C], or [h, w, C] of one."""
        return self.normalised(self.pixels(images))

    @with_fixed_settings
    def normalised(self, pixels: Any) -> Array:
        """Preprocessed pixels, uint8 [B, h, w, C], as the network takes them."""
        return normalise(pixels, self.preprocess.mean, self.preprocess.std, self.model.dtype)
