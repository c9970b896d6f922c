"""Attention maps: of an image network over its patches, and of a decoder over the words of the source sentence."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..config import Size, pair
from .figure import AnyPath, aspect, message_page, page, put, sheet, shortened


def draw_attention(
    images: np.ndarray, attention: np.ndarray, prefix: int, grid: Size, has_cls: bool, path: AnyPath
) -> None:
    """Draw a row per image: the attention of the last layer (mean of its heads, then up to four heads) and the rollout.

    images uint8 [m, h, w, C]; attention float [m, L, H, N, N], whose first `prefix` tokens are not patches;
    grid (gh, gw) of the patches. With `has_cls` the maps are those of token 0, else the mean over all patches.
    """
    m, layers, heads = attention.shape[:3]
    if not m:
        message_page(path, "No images to show attention for.")
        return
    shown = min(heads, 4)
    titles = [
        "image",
        f"last layer,\nmean of {heads} heads",
        *(f"head {i + 1}" for i in range(shown)),
        f"rollout of\n{layers} layers",
    ]
    if heads > shown:
        titles[-2] += f"\n({heads - shown} more not shown)"
    w, h = 1.7, 1.7 * aspect(images)
    width, height = 0.15 + len(titles) * (w + 0.12) + 1, 1.05 + m * (h + 0.15)
    with sheet(path, width, height) as ax:
        what = "from the cls token to the patches" if has_cls else "to the patches, mean over all patches"
        ax.text(width / 2, 0.25, f"Attention {what}", ha="center", va="center", size=12)
        for column, title in enumerate(titles):
            ax.text(0.15 + w / 2 + column * (w + 0.12), 0.98, title, ha="center", va="bottom")
        for i in range(m):
            last = to_patches(attention[i, -1].astype(np.float64), prefix, has_cls)  # [H, patches]
            maps = [last.mean(axis=0), *last[:shown], to_patches(rollout(attention[i]), prefix, has_cls)]
            y = 1.05 + i * (h + 0.15)
            put(ax, images[i], 0.15, y, w, h)
            # The image under a map is dimmed and grey, so that its bright areas do not look like attention.
            dimmed = (70 + 0.45 * images[i].mean(axis=-1, keepdims=True)).astype(np.uint8)
            overlay = {"cmap": "inferno", "vmin": 0, "vmax": 1, "alpha": 0.6, "interpolation": "nearest"}
            for column, values in enumerate(maps, start=1):
                x = 0.15 + column * (w + 0.12)
                put(ax, dimmed, x, y, w, h)
                put(ax, stretched(values).reshape(pair(grid)), x, y, w, h, **overlay)
        put(ax, np.linspace(1, 0, 256)[:, None], width - 0.9, 1.05, 0.18, h, cmap="inferno", interpolation="nearest")
        ax.text(width - 0.65, 1.05, "most in\nthe map", va="top", size=9)
        ax.text(width - 0.65, 1.05 + h, "least", va="bottom", size=9)


def stretched(values: np.ndarray) -> np.ndarray:
    """Values shifted and scaled to 0..1; all 0 if they are all equal."""
    spread = values.max() - values.min()
    return (values - values.min()) / (spread if spread > 0 else 1)


def to_patches(attention: np.ndarray, prefix: int, has_cls: bool) -> np.ndarray:
    """The attention that each patch receives from token 0, or from the mean patch: [..., N, N] -> [..., patches].

    The first `prefix` of the N tokens are not patches.
    """
    received = attention[..., 0, :] if has_cls else attention[..., prefix:, :].mean(axis=-2)
    return received[..., prefix:]


def rollout(attention: np.ndarray) -> np.ndarray:
    """Attention rollout, from the output tokens to the input tokens: [L, H, N, N] -> float64 [N, N].

    The product A_L ... A_1 of A_l = 0.5 mean_h(attention_l) + 0.5 I, each with rows normalised to sum 1 (Abnar and
    Zuidema 2020, section 3).
    """
    tokens = np.eye(attention.shape[-1])
    total = tokens
    for layer in attention.astype(np.float64).mean(axis=1):
        step = 0.5 * layer + 0.5 * tokens
        total = step / step.sum(axis=-1, keepdims=True) @ total
    return total


def draw_cross_attention(attention: np.ndarray, target: Sequence[str], source: Sequence[str], path: AnyPath) -> None:
    """Draw a row of maps per decoder layer: the mean of its heads, then up to four heads.

    attention float [L, H, T, S], from the T tokens of a translation (`target`) to the S words of its `source`.
    """
    layers, heads = attention.shape[:2]
    shown = min(heads, 4)
    width, height = 1 + (1 + shown) * (0.9 + 0.24 * len(source)), 0.8 + layers * (1.0 + 0.22 * len(target))
    with page(path, width, height) as figure:
        figure.suptitle("Cross-attention: from each word of the translation (row) to the source words (columns)")
        for layer, row in enumerate(figure.subplots(layers, 1 + shown, squeeze=False)):
            maps = [attention[layer].mean(0), *attention[layer, :shown]]
            for i, (ax, values) in enumerate(zip(row, maps, strict=True)):
                ax.grid(False)
                ax.imshow(values, cmap="viridis", vmin=0, vmax=1, aspect="auto")
                ax.set_title(f"layer {layer + 1}, " + (f"head {i}" if i else f"mean of {heads} heads"))
                ax.set_xticks(range(len(source)), [shortened(word, 12) for word in source], rotation=90)
                ax.set_yticks(range(len(target)), [shortened(word, 12) for word in target] if not i else [])
