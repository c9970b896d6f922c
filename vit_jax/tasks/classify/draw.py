"""The pictures of an image classifier: sample images, and the figures of a run and of a prediction."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ...data.images.high_bit_depth import Range, of_range
from ...figures import attention
from ...figures.classification import draw_confusion, draw_per_class, draw_wrong
from ...figures.patches import draw_patches, draw_positions
from ...figures.report_data import keep_attention, keep_classes, keep_positions
from ...models.vit import ViT, fixed_positions
from ...models.vit_config import ViTConfig
from .kinds.base import Kind
from .score import Classified

WRONG = 36


def save_samples(folder: Path, images: np.ndarray, names: Sequence[str], stated: Range = ()) -> list[str]:
    """Replace the files of a folder of samples: images uint8 [m, h, w, C]."""
    from PIL import Image

    shutil.rmtree(folder)
    folder.mkdir()
    grey = bool((images == images[..., :1]).all())
    if images.shape[-1] not in (1, 3) or (stated and not grey):
        return []
    files = []
    for i, (image, name) in enumerate(zip(images, names, strict=False)):
        pixels = image[..., 0] if stated or image.shape[-1] == 1 else image
        pixels = of_range(pixels, *stated) if stated else pixels
        suffix = "tif" if pixels.dtype == np.float32 else "png"
        files.append(f"{i}-{''.join(c if c.isalnum() else '_' for c in name)[:40]}.{suffix}")
        Image.fromarray(pixels).save(folder / files[-1])
    return files


def of_several_classes(labels: np.ndarray, count: int) -> np.ndarray:
    """Indices of some images, int [k], of as many classes as there are: labels int [n].

    The classes are evenly spread over those of the split in order of their first image; of each the first image is
    taken, then, where there are fewer classes than `count`, the second, and so on. The first image is always taken.
    """
    first = np.sort(np.unique(labels, return_index=True)[1])  # the first image of each class
    spread = first[np.linspace(0, len(first) - 1, min(count, len(first))).round().astype(int)]
    in_turn = [np.flatnonzero(labels == labels[i]) for i in spread]
    rounds = [images[k] for k in range(count) for images in in_turn if k < len(images)]
    return np.array(rounds[:count])


def draw_inside(
    network: ViT,
    images: np.ndarray,
    found: Mapping[str, Any],
    plots: Path,
    caption: str,
    truth: Sequence[str],
    kind: Kind,
) -> None:
    """Draw patches, position embeddings and attention of a network, and keep the latter two for report.html: images
    uint8 [m, h, w, C].
    """
    c = network.config
    draw_patches(visible(images)[0], c.patch_size, plots / "patches.png")
    logits = np.asarray(found["logits"])
    labels = [kind.caption(name, kind.top_k(x, 1)) for name, x in zip(truth, logits, strict=True)]
    below, file = f"{caption}; true {kind.truth} → {kind.legend}", plots / "attention.png"
    maps = np.asarray(found["attention"])
    draw_attention(c, images, maps, file, labels=labels, caption=below)
    titles = [label.replace("\n", " ") for label in labels]
    looks = zip(titles, visible(images), maps, strict=True)
    examples = [{"title": title, "image": image, "grid": c.grid, "weights": x} for title, image, x in looks]
    names = [name.replace("_", " ") for name, count, _ in c.prefix for _ in range(count)]
    keep_attention(plots, below, examples, names)
    if c.position != "none":
        position = np.asarray(network.position[...]) if network.position is not None else fixed_positions(c)
        prefix = c.position_rows - c.patches
        draw_positions(position, prefix, c.grid, plots / "positions.png", caption)
        keep_positions(plots, caption, position, prefix, c.grid)


def visible(images: np.ndarray) -> np.ndarray:
    """Images [m, h, w, C] as RGB or grey: their first three channels, or the first where there are fewer than three."""
    return images[..., : 3 if images.shape[-1] >= 3 else 1]


def draw_attention(c: ViTConfig, images: np.ndarray, maps: np.ndarray, path: Path | None, **options: Any) -> None:
    """Draw attention maps: of the class token where the head reads that token, else the mean over all patches. Shapes:
    images uint8 [m, h, w, C], maps float [m, L, H, N, N].
    """
    of_class = c.pool in ("cls", "cls_distill", "cls_mean")
    attention.draw_attention(visible(images), maps, c.first_patch, c.grid, of_class, path, **options)


def most_confident(result: Classified, labels: np.ndarray) -> np.ndarray:
    """The numbers of the images that are classified wrong, int [m], the most confident first."""
    wrong = np.flatnonzero(result.predicted != labels)
    return wrong[np.argsort(-result.confidence[wrong], kind="stable")]


def draw_result(split: Any, result: Classified, names: Sequence[str], folder: Path, caption: str) -> None:
    """Draw and keep the confusion matrix, the scores per class and the most confident mistakes on a split."""
    draw_confusion(result.confusion, names, folder / "confusion.png", caption)
    each = result.per_class
    draw_per_class(each["precision"], each["recall"], each["f1"], names, folder / "per-class.png", caption)
    worst = most_confident(result, split.labels)[:WRONG]
    images, truth = visible(split.take(worst)), split.labels[worst]
    predicted, confidence = result.predicted[worst], result.confidence[worst]
    draw_wrong(images, truth, predicted, confidence, names, folder / "wrong.png", caption)
    columns = (map(split.name, worst.tolist()), images, truth.tolist(), predicted.tolist(), confidence.tolist())
    keys = ("name", "image", "true", "predicted", "confidence")
    rows = [dict(zip(keys, row, strict=True)) for row in zip(*columns, strict=True)]
    keep_classes(folder, caption, names, result.confusion, each, rows)
