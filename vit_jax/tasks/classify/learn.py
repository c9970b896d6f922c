"""Images to one of K classes, to a set of K labels, or to K numbers: what differs by kind is in kinds/."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
from jax import Array

from ...augmentation.batch import augment, normalise
from ...augmentation.config import ImageAugment
from ...config.dotted import replace_fields
from ...config.outputs import Outputs
from ...config.run import LossConfig, RunConfig
from ...data.base import GivenData, Other
from ...data.images.open import open_images, open_other_images
from ...data.images.preprocess import Preprocess
from ...data.images.splits import Dataset, Split
from ...data.images.stream import open_stream, stream_in
from ...errors import UserError
from ...figures.parts import Part
from ...files.output import digits
from ...kinds.base import Kind
from ...kinds.classes import Classes, Classified, score
from ...kinds.table import kind_of
from ...models.layers import fold
from ...models.vit import ViT
from ...models.vit_config import ViTConfig
from ..base import Batch, Evaluation, Task
from ..can import Abilities, Calibrates, Counts, Draws, Examines, MeasuresOthers, Probes, Tabulates
from ..predictor import Predictor
from ..table import task_spec
from .draw import draw_inside, of_several_classes, save_samples
from .spec import ClassifySpec, parts
from .use import Classifier, ResNetClassifier, captured

FLIP = "flip_"  # begins the names of outputs of an image and its mirror image
SAMPLES = 4


class CountsWeights(Counts):
    """Images count by the weights of their classes, labels where they are known."""

    def denominator(self, batch: Batch) -> Array | None:
        return self.task.kind.denominator(batch)  # type: ignore[no-any-return]


class ExaminesClasses(Examines):
    """What its kind measures of a final result."""

    def examine(self, config: ViTConfig, split: Split, out: dict[str, np.ndarray]) -> Evaluation:
        """With all that its kind measures of a final result."""
        return self.task.measured(self.task.kind.examined, split, out)

    def resample(self, config: ViTConfig, split: Split, out: dict[str, np.ndarray]) -> dict[str, float]:
        return self.task.kind.with_ranks(split, out).metrics

    def at_chance(self, split: Split, result: Evaluation) -> str:
        return self.task.kind.at_chance(split, result)

    def mirrored(self) -> Classify:
        """The task whose evaluations also have those of the mean of the logits of an image and its mirror image."""
        return replace(self.task, mirrors=True)


class MeasuresImages(MeasuresOthers):
    """Other images with labels."""

    def open_data(
        self, run: RunConfig, metadata: Mapping[str, Any], split: str, given: GivenData | None = None
    ) -> Other:
        """Images that the network was not trained on, with their labels as the network has them."""
        preprocess = Preprocess.from_dict(metadata["preprocess"])
        c, data, _ = parts(run)
        return open_other_images(data, split, preprocess, kind_of(Outputs.of(metadata), c.classes).outputs, given)


class ProbesClasses(Probes):
    """A network of images gives features."""

    @property
    def unprobed(self) -> str:
        """Why a probe cannot learn from the data of training, which have no classes; empty: it can."""
        return "" if isinstance(self.task.kind, Classes) else f"this network was trained on {self.task.kind.each[1]}"

    def probed(self) -> ClassifyProbe:
        return ClassifyProbe(**{f.name: getattr(self.task, f.name) for f in fields(Classify)})


class CalibratesKind(Calibrates):
    """Temperature and thresholds."""

    @property
    def decides(self) -> tuple[str, ...]:
        return self.task.kind.calibrated  # type: ignore[no-any-return]

    def calibrate(self, split: Split, out: dict[str, np.ndarray]) -> tuple[dict[str, Any], Classify]:
        """The temperature and the thresholds that its kind finds."""
        task = self.task
        found = task.kind.calibration(split.labels, out["logits"])
        outputs = replace(task.kind.outputs, temperature=found.temperature or 1.0, thresholds=found.thresholds)
        entries = {"examples": len(split), **vars(found), "notes": list(found.notes)}
        entries["thresholds"] = list(found.thresholds)
        return entries, replace(task, kind=replace(task.kind, outputs=outputs))


class TabulatesKind(Tabulates):
    """Labels, and what is predicted of each image."""

    def predicted(
        self, split: Split, result: Evaluation, metadata: Mapping[str, Any]
    ) -> tuple[tuple[str, ...], Iterable[tuple[str | int, ...]]]:
        return self.task.kind.table(split, result)

    def values(self, split: Split, result: Evaluation) -> tuple[tuple[str, ...], Iterable[tuple[str | int, ...]]]:
        """For each image its file or its place in the data, the truth, and every probability or number."""
        truth = self.task.kind.truths(split.labels)
        values = zip(*truth.values(), self.task.kind.values_of(result), strict=True)
        rows = ((split.name(i), *true, *digits(row)) for i, (*true, row) in enumerate(values))
        return ("file", *truth, *self.task.kind.names), rows


class DrawsImages(Draws):
    """What is inside a network of images, and what its kind draws of results."""

    def result(
        self, split: Split, result: Evaluation, metadata: Mapping[str, Any], folder: Path, caption: str
    ) -> tuple[tuple[str, ...], Sequence[Part]]:
        return (), self.task.kind.draw_result(split, result, folder, caption)

    def network(
        self, network: ViT, data: Dataset, plots: Path, samples: Path, caption: str
    ) -> tuple[str, Sequence[Part]]:
        """Write sample images with several labels, and figures of patches, position embeddings and attention."""
        split = data.splits.get("test") or data.splits.get("validation") or data.splits["train"]
        if not hasattr(split, "images"):  # batches of an iterator, which are gone
            return "", ()
        kind = kind_of(data.outputs)
        chosen = of_several_classes(kind.groups(split.labels), SAMPLES)
        images, truth = split.take(chosen), [kind.words(each) for each in split.labels[chosen]]
        saved = save_samples(samples, images, truth, data.preprocess.range)
        found = captured(network, self.task.images({"image": images}, network.dtype), ("logits", "attention"))
        inside = draw_inside(network, images, found, plots, caption, truth, self.task.kind)
        return f"{samples.name}/{saved[0]}" if saved else "", inside


@dataclass(frozen=True)
class Classify(Task):
    """The task `classify`. A batch is {"image": uint8 [B, h, w, C], "label": by its kind}, in training also "row"."""

    augment: ImageAugment
    mean: tuple[float, ...]  # per channel, of pixels in 0..1
    std: tuple[float, ...]
    kind: Kind = field(default_factory=Classes)
    mirrors: bool = field(default=False, kw_only=True)  # `outputs` also has those of an image and its mirror image

    predictor: ClassVar[type[Predictor]] = Classifier
    can: ClassVar[Abilities] = (
        *(CountsWeights, ExaminesClasses, MeasuresImages, ProbesClasses),
        *(CalibratesKind, TabulatesKind, DrawsImages),
    )

    @property
    def selection_metric(self) -> tuple[str, int]:
        return self.kind.selection_metric

    @classmethod
    def open_data(cls, run: RunConfig, given: GivenData | None = None, fetch: bool = True) -> Dataset:
        c, data, augment = parts(run)
        if given is not None and stream_in(given) is not None:
            return cls._open_stream(run, given)
        how = {name: getattr(augment, name) for name in ("normalize", "mean", "std", "repeats")}
        how |= {"classes": c.classes, "seed": run.seed, "given": given, "fetch": fetch}
        opened = open_images(data, c.image, c.channels, **how)
        cls.check_kind(run, opened.outputs.kind)
        kind, validation = kind_of(opened.outputs), opened.splits.get("validation")
        if validation is not None and not len(kind.present(validation.labels)):
            what = "no image of its validation split has any label, so it cannot choose the best weights"
            raise UserError(f"data.source {data.source}", what, "give images that have, or set `data.validation 0`")
        found, remarks = kind.balanced(run, opened.splits["train"].labels)
        return replace(opened, of_loss=found, remarks=(*opened.remarks, *remarks))

    @classmethod
    def _open_stream(cls, run: RunConfig, given: GivenData) -> Dataset:
        """`open_data` of an iterator of batches."""
        c, data, augment = parts(run)
        preprocess = Preprocess.of(data, c.image, c.channels, augment.mean, augment.std)
        opened = open_stream(data, preprocess, augment.normalize, c.classes, given, run.epochs, run.max_steps)
        cls.check_kind(run, opened.outputs.kind)
        usual = ClassifySpec.loss()
        if (run.loss.class_weights, run.loss.prior) != (usual.class_weights, usual.prior) or data.sampling != "natural":
            _ = opened.splits["train"].labels  # which says that they are not known
        return opened

    @classmethod
    def check_kind(cls, run: RunConfig, kind: str) -> None:
        """Raise UserError where a run cannot learn labels of a kind."""
        spec: Any = task_spec(run.task)  # a ClassifySpec
        spec.check_kind(run, kind)

    @classmethod
    def from_run(cls, run: RunConfig, metadata: Mapping[str, Any]) -> Self:
        """The task of a run, with the mean and std of its preprocessing."""
        preprocess = metadata["preprocess"]
        c, data, augment = parts(run)
        mean, std = tuple(preprocess["mean"]), tuple(preprocess["std"])
        kind = kind_of(Outputs.of(metadata), c.classes, run.loss, metadata)
        alike = data.sampling != "natural" or run.loss.class_weights != "none" or run.loss.prior
        return cls(augment, mean, std, replace(kind, alike=alike))

    def prepare(self, batch: Batch, keys: Array) -> Batch:
        """The batch with its images augmented: batch uint8 [B, h, w, C], keys [B]."""
        keys = fold(keys, 0)
        if not self.augment.mixes:
            return {**batch, "image": augment(batch["image"], keys, self.augment)}
        targets = self.kind.targets(batch["label"])
        images, targets = augment(batch["image"], keys, self.augment, labels=targets)
        return {**batch, "image": images, "target": targets}

    def images(self, batch: Batch, dtype: Any) -> Array:
        """The network's input: the images of a batch, normalised. Returns [B, h, w, C]."""
        return normalise(batch["image"], self.mean, self.std, dtype)

    def loss(
        self, model: ViT, batch: Batch, keys: Array, denominator: Array | None = None
    ) -> tuple[Array, dict[str, Array]]:
        """The loss of a prepared batch, as its kind of labels says: keys [B] -> (loss [], {metric: []})."""
        return self.kind.loss(model(self.images(batch, model.dtype), keys=fold(keys, 1)), batch, denominator)

    def outputs(self, model: ViT, batch: Batch) -> dict[str, Array]:
        """What `score` needs of each image: the `outcomes` of its kind of labels. Returns [B, ...]."""
        images = self.images(batch, model.dtype)
        logits = model(images)
        out = self.kind.outcomes(logits, batch["label"])
        if self.mirrors:
            both = self.kind.outcomes((logits + model(images[:, :, ::-1])) / 2, batch["label"])
            out |= {f"{FLIP}{name}": values for name, values in both.items()}
        return out

    def score(self, config: ViTConfig, split: Split, out: dict[str, np.ndarray]) -> Evaluation:
        return self.measured(self.kind.score, split, out)

    def measured(self, measure: Callable[..., Evaluation], split: Split, out: dict[str, np.ndarray]) -> Evaluation:
        """What a method of the kind measures of a split; with `mirrors` also of the outputs of mirror images."""
        plain = measure(split, {name: x for name, x in out.items() if not name.startswith(FLIP)})
        if not self.mirrors:
            return plain
        return replace(
            plain, flipped=measure(split, {n.removeprefix(FLIP): x for n, x in out.items() if n.startswith(FLIP)})
        )


@dataclass(frozen=True)
class ClassifyProbe(Classify):
    """`classify` as a probe sees it: the network gives features, and the classes are those of any data."""

    @classmethod
    def open_data(cls, run: RunConfig, given: GivenData | None = None, fetch: bool = True) -> Dataset:
        """The images of a run, as `Classify` opens them, of any number of classes."""
        changes = {"model.classes": 0, "data.target": "class", "loss": LossConfig()}
        return super().open_data(replace_fields(run, changes), given, fetch)

    def outputs(self, model: ViT, batch: Batch) -> dict[str, Array]:
        """{"pooled": [B, D]}: the input of the network's head."""
        return {"pooled": model.capture(self.images(batch, model.dtype), ("pooled",))["pooled"]}

    def score(self, config: ViTConfig, split: Split, out: dict[str, np.ndarray]) -> Classified:
        """The metrics of a split, but no loss, from {"scores": [n, K]}, the share that a probe gives each class."""
        truth, scores = split.labels, out["scores"]
        own = np.take_along_axis(scores, truth[:, None].astype(np.int64), 1)
        before = np.arange(scores.shape[1]) < truth[:, None]
        rank = ((scores > own) | ((scores == own) & before)).sum(1)
        return score(truth, scores.argmax(1), scores.max(1), None, rank, scores.shape[1])


@dataclass(frozen=True)
class ClassifyResNet(Classify):
    """The task `classify-resnet`: `classify` with a network that has no attention to be drawn."""

    predictor: ClassVar[type[Predictor]] = ResNetClassifier
