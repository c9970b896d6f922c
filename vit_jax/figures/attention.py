"""Attention maps: of an image network over its patches, of a decoder over the words of a sentence or over patches."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from ..config.fields import Size, pair
from ..files.output import shorten
from .figure import GREY, AnyPath, aspect, message_page, page, put, sheet

HEADS = 4
OVER = {"cmap": "inferno", "vmin": 0, "vmax": 1, "alpha": 0.6, "interpolation": "nearest"}  # a map over its image
# Most maps side by side in a figure of all layers, and most words.
LINE = 13
WORDS = 6


def draw_attention(
    images: np.ndarray,
    attention: np.ndarray,
    prefix: int,
    grid: Size,
    has_cls: bool,
    path: AnyPath,
    *,
    layers: Sequence[int] = (),
    labels: Sequence[str] = (),
    caption: str = "",
) -> None:
    """Draw a row per image: the attention of a layer (mean of its heads, then up to four heads) and the rollout.
    Shapes: images uint8 [m, h, w, C], attention float [m, L, H, N, N]. Layers count from 0; empty: the last. Of several
    only the mean of the heads is drawn.
    """
    m, depth, heads = attention.shape[:3]
    if not m:
        message_page(path, "No images to show attention for.")
        return
    chosen = list(layers) or [depth - 1]
    titles = _several(chosen, heads) if len(chosen) > 1 else _one(chosen[0], depth, heads)
    lines, columns = math.ceil(len(titles) / LINE), min(len(titles), LINE)
    w, h = 1.7, 1.7 * aspect(images)
    below, top = 0.15 + 0.17 * max((label.count("\n") + 1 for label in labels), default=0), 1.3
    tall = lines * (h + 0.15) + (lines - 1) * 0.25  # an image's rows of maps; from the second on with titles above
    width, height = max(0.15 + (columns + 1) * (w + 0.12) + 1, 6.5), top + m * (tall + below)
    with sheet(path, width, height) as ax:
        what = "from the cls token to the patches" if has_cls else "to the patches, mean over all patches"
        ax.text(width / 2, 0.25, f"Attention {what}", ha="center", va="center", size=12)
        ax.text(width / 2, 0.5, caption, ha="center", va="center", size=9, color=GREY)
        for i in range(m):
            y = top + i * (tall + below)
            put(ax, images[i], 0.15, y, w, h)
            for text in labels[i : i + 1]:
                ax.text(0.15 + w / 2, y + h + 0.06, text, ha="center", va="top", size=8.5)
            for k, values in enumerate(_maps(attention[i], chosen, prefix, has_cls)):
                x, below_image = 0.15 + (1 + k % LINE) * (w + 0.12), k // LINE * (h + 0.4)
                put(ax, _dimmed(images[i]), x, y + below_image, w, h)
                put(ax, stretch(values).reshape(pair(grid)), x, y + below_image, w, h, **OVER)
                if not i or k >= LINE:
                    ax.text(x + w / 2, y + below_image - 0.07, titles[k], ha="center", va="bottom")
        _color_bar(ax, width - 0.9, top, h)


def _dimmed(image: np.ndarray) -> np.ndarray:
    """The image under a map, dimmed and grey, so that its bright areas do not look like attention."""
    return (70 + 0.45 * image.mean(axis=-1, keepdims=True)).astype(np.uint8)


def _color_bar(ax: Any, x: float, y: float, h: float) -> None:
    put(ax, np.linspace(1, 0, 256)[:, None], x, y, 0.18, h, cmap="inferno", interpolation="nearest")
    ax.text(x + 0.25, y, "most in\nthe map", va="top", size=9)
    ax.text(x + 0.25, y + h, "least", va="bottom", size=9)


def _one(layer: int, depth: int, heads: int) -> list[str]:
    """The titles of the maps of one layer, counted from 0, and of the rollout."""
    titles = ["last layer" if layer == depth - 1 else f"layer {layer + 1}"]
    if heads > 1:
        titles = [f"{titles[0]},\nmean of {heads} heads", *(f"head {i + 1}" for i in range(min(heads, HEADS)))]
    if heads > HEADS:
        titles[-1] += f"\n({heads - HEADS} more not shown)"
    return [*titles, f"rollout of\n{_count(depth)}"]


def _several(layers: Sequence[int], heads: int) -> list[str]:
    """The titles of the maps of several layers, and of the rollout."""
    titles = [f"layer {layer + 1}" for layer in layers]
    if heads > 1:
        titles[0] += f",\nmean of {heads} heads"
    return [*titles, "rollout"]


def _count(layers: int) -> str:
    return f"{layers} layer" if layers == 1 else f"{layers} layers"


def _maps(attention: np.ndarray, layers: Sequence[int], prefix: int, has_cls: bool) -> list[np.ndarray]:
    """The maps of one image, float64 [patches] each: of the layers, and the rollout; attention [L, H, N, N]."""
    received = [to_patches(attention[layer].astype(np.float64), prefix, has_cls) for layer in layers]  # [H, patches]
    heads = list(received[0][:HEADS]) if len(layers) == 1 and attention.shape[1] > 1 else []
    return [
        *(each.mean(axis=0) for each in received),
        *heads,
        to_patches(rollout(attention.astype(np.float64).mean(1)), prefix, has_cls),
    ]


def stretch(values: np.ndarray) -> np.ndarray:
    """Values shifted and scaled to 0..1; all 0 if they are all equal."""
    spread = values.max() - values.min()
    return (values - values.min()) / (spread if spread > 0 else 1)


def to_patches(attention: np.ndarray, prefix: int, has_cls: bool) -> np.ndarray:
    """The attention that each patch receives from token 0, or from the mean patch: attention [..., N, N] -> [...,
    patches].
    """
    received = attention[..., 0, :] if has_cls else attention[..., prefix:, :].mean(axis=-2)
    return received[..., prefix:]


def draw_cross_attention(
    attention: np.ndarray,
    target: Sequence[str],
    source: Sequence[str],
    path: AnyPath,
    *,
    layers: Sequence[int] = (),
    caption: str = "",
) -> None:
    """Draw a row of maps per decoder layer: the mean of its heads, then up to four heads. Shapes: attention float [L,
    H, T, S].
    """
    chosen, heads = list(layers) or list(range(len(attention))), attention.shape[1]
    shown = min(heads, HEADS)
    width, height = 1 + (1 + shown) * (0.9 + 0.24 * len(source)), 0.8 + len(chosen) * (1.0 + 0.22 * len(target))
    with page(path, max(width, 7.5), height + 0.3) as figure:
        title = "Cross-attention: from each word of the translation (row) to the source words (columns)"
        figure.suptitle(f"{title}\n{caption}" if caption else title)
        for layer, row in zip(chosen, figure.subplots(len(chosen), 1 + shown, squeeze=False), strict=True):
            maps = [attention[layer].mean(0), *attention[layer, :shown]]
            for i, (ax, values) in enumerate(zip(row, maps, strict=True)):
                ax.grid(False)
                ax.imshow(values, cmap="viridis", vmin=0, vmax=1, aspect="auto")
                ax.set_title(f"layer {layer + 1}, " + (f"head {i}" if i else f"mean of {heads} heads"))
                ax.set_xticks(range(len(source)), [shorten(word, 12) for word in source], rotation=90)
                ax.set_yticks(range(len(target)), [shorten(word, 12) for word in target] if not i else [])


def draw_words(
    image: np.ndarray,
    attention: np.ndarray,
    words: Sequence[str],
    path: AnyPath,
    *,
    layers: Sequence[int] = (),
    caption: str = "",
) -> None:
    """Draw an image, and beside it, for each word of its caption, the patches that the decoder attends to there: image
    uint8 [h, w, C], attention float [L, H, T, gh, gw].
    """
    depth, heads = attention.shape[:2]
    chosen = [attention[layer].mean(0) for layer in layers] or [attention.mean((0, 1))]  # [T, gh, gw] each
    names = [f"layer {layer + 1}" for layer in layers] or [f"mean of {_count(depth)}"]
    names = [f"{name}, {heads} heads" for name in names]
    lines, columns = math.ceil(len(words) / WORDS), min(len(words), WORDS)
    w, h, top = 1.35, 1.35 * aspect(image), 0.95
    tall = 0.3 + lines * (h + 0.28)  # all words of one layer
    width = max(0.15 + (columns + 1) * (w + 0.12) + 1, 6.5)
    with sheet(path, width, top + len(chosen) * tall + 0.1) as ax:
        title = "Cross-attention: from each word of the caption to the patches"
        ax.text(width / 2, 0.25, title, ha="center", va="center", size=12)
        ax.text(width / 2, 0.5, caption, ha="center", va="center", size=9, color=GREY)
        for i, (maps, name) in enumerate(zip(chosen, names, strict=True)):
            y = top + i * tall
            ax.text(0.15, y - 0.07, name, va="bottom", size=9, color=GREY)
            put(ax, image, 0.15, y + 0.2, w, h)
            for k, (values, word) in enumerate(zip(maps, words, strict=True)):
                x, down = 0.15 + (1 + k % WORDS) * (w + 0.12), y + 0.2 + k // WORDS * (h + 0.28)
                put(ax, _dimmed(image), x, down, w, h)
                put(ax, stretch(values), x, down, w, h, **OVER)
                ax.text(x + w / 2, down - 0.05, shorten(word, 14), ha="center", va="bottom")
        _color_bar(ax, width - 0.9, top + 0.2, h)


def rollout(attention: np.ndarray) -> np.ndarray:
    """Attention rollout, from the output tokens to the input tokens (Abnar and Zuidema 2020, section 3): attention [L,
    N, N] -> float64 [N, N].

    It is the product A_L ... A_1 of A_l = 0.5 attention_l + 0.5 I, each with rows normalised to sum 1. It knows no
    class: it is the same for all outputs.
    """
    total = np.eye(attention.shape[-1])
    for layer in attention.astype(np.float64):
        total = half_kept(layer) @ total
    return total


def half_kept(layer: np.ndarray) -> np.ndarray:
    """Half of the attention [N, N] and half of the token itself, with rows that sum to 1."""
    step = 0.5 * layer + 0.5 * np.eye(len(layer))
    return step / step.sum(axis=-1, keepdims=True)
