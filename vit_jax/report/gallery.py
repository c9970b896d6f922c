"""What a run leaves to look at: curves always; where it was tested, its mistakes; its patches, positions, attention."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ..config import ViTConfig, pair
from ..data import Dataset, Texts
from ..runs import Run
from ..tasks import Classified, Evaluation, Translate
from . import plots

if TYPE_CHECKING:
    from ..data import Split
    from ..step import Engine

SAMPLES = 4
WRONG = 36


def draw_all(folder: Run, dataset: Dataset | Texts, engine: Engine, parameters: dict[str, Any], result: Evaluation | None) -> None:
    """Write plots/*.png and samples/*.png.

    `result` is the evaluation on the test split; without it nothing that needs test is drawn.
    """
    for place in (folder.plots, folder.samples):
        place.mkdir(exist_ok=True)
    plots.draw_curves(folder.metrics(), folder.plots / "curves.png", engine.run.loss.label_smoothing)
    if isinstance(dataset, Texts):
        _draw_sentences(folder, dataset, engine, parameters)
        return
    split = dataset.splits.get("test") or dataset.splits["train"]
    images = split.take(np.arange(min(SAMPLES, len(split))))
    if dataset.preprocess.channels in (1, 3):  # others cannot be had from an image file
        _save_samples(folder, images, split, dataset.class_names)
    _draw_inside(folder, images, engine, parameters)
    if isinstance(result, Classified):
        _draw_result(folder, dataset, result)


def _draw_sentences(folder: Run, dataset: Texts, engine: Engine, parameters: dict[str, Any]) -> None:
    """A few sentences with their translations, and where the decoder looked in the first."""
    import jax

    from ..layers import merge

    split = dataset.splits.get("test") or dataset.splits["train"]
    source, target = (x[:SAMPLES] for x in (split.source, split.target))

    @jax.jit
    def attention(parameters: dict[str, Any], source: jax.Array) -> tuple[jax.Array, jax.Array]:
        assert isinstance(engine.task, Translate)
        return engine.task.attention(merge(engine.definition, parameters), source)

    found, maps = map(np.asarray, attention(parameters, source))
    asked, truth, said = ([v.decode(row) for row in rows] for v, rows in ((dataset.source, source), (dataset.target, target), (dataset.target, found)))
    lines = ["\t".join(row) for row in [("source", "truth", "translation"), *zip(asked, truth, said, strict=True)]]
    (folder.samples / "sentences.tsv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    rows, columns = [*said[0].split(), "<eos>"][: found.shape[1]], asked[0].split()  # one that never ends has no end
    plots.draw_cross_attention(maps[0, :, :, : len(rows), : len(columns)], rows, columns, folder.plots / "cross-attention.png")


def _save_samples(folder: Run, images: np.ndarray, split: Split, names: tuple[str, ...]) -> None:
    from PIL import Image

    shutil.rmtree(folder.samples)
    folder.samples.mkdir()
    for i, image in enumerate(images):
        safe = "".join(c if c.isalnum() else "_" for c in names[split.labels[i]])[:40]
        Image.fromarray(image[..., 0] if image.shape[-1] == 1 else image).save(folder.samples / f"{i}-{safe}.png")


def _draw_inside(folder: Run, images: np.ndarray, engine: Engine, parameters: dict[str, Any]) -> None:
    """Patches, positions and attention of a network on images uint8 [m, h, w, C]."""
    import jax

    from ..layers import merge
    from ..vit import sinusoids

    c, network = engine.run.model, engine.definition
    assert isinstance(c, ViTConfig)

    @jax.jit
    def attention(parameters: dict[str, Any], images: jax.Array) -> jax.Array:
        model = merge(network, parameters)
        its: Any = engine.task
        return model.capture(its.images({"image": images}, model.dtype), ["attention"])["attention"]

    plots.draw_patches(visible(images)[0], pair(c.patch), folder.plots / "patches.png")
    draw_attention(c, images, np.asarray(attention(parameters, images)), folder.plots / "attention.png")
    if c.position != "none":
        position = np.asarray(parameters["position"]) if c.position_stored else sinusoids(c)
        plots.draw_positions(position, c.positions - c.patches, c.grid, folder.plots / "positions.png")


def visible(images: np.ndarray) -> np.ndarray:
    """Images [m, h, w, C] as one can look at them: the first three channels, or the first where there are fewer."""
    return images[..., : 3 if images.shape[-1] >= 3 else 1]


def draw_attention(c: ViTConfig, images: np.ndarray, maps: np.ndarray, path: Path) -> None:
    """Attention maps [m, L, H, N, N] over images uint8 [m, h, w, C]: of the class token where the head reads it, else of the patches."""
    prefix = sum(count for _, count, _ in c.prefix)
    plots.draw_attention(visible(images), maps, prefix, c.grid, c.pool in ("cls", "cls_distill"), path)


def _draw_result(folder: Run, dataset: Dataset, result: Classified) -> None:
    """The confusion matrix, per-class scores and the most confident mistakes on the test split."""
    split, names = dataset.splits["test"], dataset.class_names
    plots.draw_confusion(result.confusion, names, folder.plots / "confusion.png")
    each = result.per_class
    plots.draw_per_class(each["precision"], each["recall"], each["f1"], names, folder.plots / "per-class.png")
    wrong = np.flatnonzero(result.predicted != split.labels)
    worst = wrong[np.argsort(-result.confidence[wrong], kind="stable")][:WRONG]
    plots.draw_wrong(
        visible(split.take(worst)), split.labels[worst], result.predicted[worst], result.confidence[worst], names, folder.plots / "wrong.png"
    )
