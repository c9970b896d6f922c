"""Figures of a run, each one PNG: matplotlib's Figure on the Agg canvas, never pyplot, so that no display is needed.

The colours are Okabe and Ito's (told apart by colour-blind eyes) and matplotlib's Blues, viridis and inferno.
"""

from __future__ import annotations

import contextlib
import math
import os
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from ..config import Size, pair
from .log import NO_METRICS

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

DPI = 120
BLUE, ORANGE, GREEN, SKY, GREY = "#0072B2", "#D55E00", "#009E73", "#56B4E9", "#777777"
TINT = (190, 215, 235)  # between patches: neither black nor white ones melt into it
STYLE: dict[str, Any] = {
    "font.size": 10,
    "axes.titlesize": 11,
    "figure.titlesize": 12,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "axes.grid": True,
    "grid.color": "#E0E0E0",
    "legend.frameon": False,
    "text.parse_math": False,  # a class may be called $x$
}
Path_ = str | os.PathLike[str]


@contextlib.contextmanager
def page(
    path: Path_, width: float, height: float, layout: Literal["constrained"] | None = "constrained"
) -> Iterator[Figure]:
    """A figure of that many inches, written to `path` when the block ends: whole or not at all.

    What the user's matplotlibrc says does not matter here.
    """
    import matplotlib
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(path.name + ".tmp")
    with matplotlib.rc_context(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # glyphs that the font lacks, layouts that are tight: not the user's concern
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(STYLE)  # type: ignore[arg-type]
        figure = Figure(figsize=(width, height), dpi=DPI, layout=layout)
        FigureCanvasAgg(figure)
        yield figure
        try:
            figure.savefig(temporary, format="png")
            os.replace(temporary, path)
        finally:
            temporary.unlink(missing_ok=True)


def short(name: str, most: int) -> str:
    """A name cut to at most that many characters."""
    return name if len(name) <= most else name[: most - 1] + "…"


def _nothing(path: Path_, text: str) -> None:
    """A figure that only says why there is nothing to see."""
    with page(path, 6, 2) as figure:
        figure.text(0.5, 0.5, text, ha="center", va="center", size=13, color=GREY)


# -------------------------------------------------------------------------------------- curves


def draw_curves(
    rows: list[dict[str, Any]], path: Path_, label_smoothing: float = 0.0, chosen: str = "accuracy"
) -> None:
    """Loss, the task's metric, learning rate and gradient norm over epochs, from the rows of metrics.jsonl.

    `chosen` is the metric of evaluations that chooses among checkpoints; in training the same is shown, or the task's first one.
    Values may be absent or None; there may be no evaluation, or only one row. The training loss is named after its label
    smoothing, because evaluations are not smoothed and lie below it.
    """
    train = [row for row in rows if row.get("kind") == "train"]
    metric = trained_metric(train, chosen)
    # (of training, of evaluations): the loss, a metric of both or the one that chooses, and what only training has.
    panels = [
        ("loss", "loss"),
        *([(metric, metric if chosen == "loss" else chosen)] if metric else []),
        ("lr", ""),
        ("grad_norm", ""),
    ]
    titles = {"lr": "Learning rate", "grad_norm": "Gradient norm"}
    with page(path, 11, 7.5) as figure:
        figure.suptitle("Training curves")
        axes = list(figure.subplots(2, 2).flat)
        for ax, (name, evaluated) in zip(axes, panels, strict=False):
            title = titles.get(name, name.replace("_", " ").capitalize())
            ax.set(title=title, xlabel="epoch", ylabel=title.lower())
            label = f"train (labels smoothed by {label_smoothing:g})" if name == "loss" and label_smoothing else "train"
            _trained(ax, train, name, label, smoothed=name != "lr")
            if name == "grad_norm":
                _log_axis(ax, column(train, name))
            elif evaluated:
                _evaluated(ax, rows, evaluated, name)
                ax.legend()
            if not ax.get_lines():
                ax.text(0.5, 0.5, "no values", transform=ax.transAxes, ha="center", color=GREY)
        for ax in axes[len(panels) :]:  # a task without metrics has three panels
            ax.set_visible(False)


def trained_metric(train: list[dict[str, Any]], chosen: str) -> str:
    """The metric of training to show beside one of evaluation: the same, else the task's first; '' where a task has none.

    Of no rows nothing is known: then it is that one.
    """
    names = [name for row in train for name in row if name not in NO_METRICS and not name.endswith("_per_second")]
    if not names and chosen != "loss":
        return chosen
    return chosen if chosen in names else names[0] if names else ""


def _trained(ax: Axes, rows: list[dict[str, Any]], name: str, label: str, smoothed: bool) -> None:
    """The training rows: as they are, faint, and their moving mean."""
    x, y = column(rows, "epoch"), column(rows, name)
    if not np.isfinite(y).any():
        return
    marker = "." if len(y) <= 40 else ""
    if not smoothed:
        ax.plot(x, y, color=BLUE, marker=marker)
        return
    ax.plot(x, y, color=BLUE, alpha=0.25, lw=1)
    ax.plot(x, smooth(y, len(y) // 25), color=BLUE, marker=marker, label=label)


def _evaluated(ax: Axes, rows: list[dict[str, Any]], name: str, beside: str) -> None:
    """The evaluations, a line for each split and each of raw and averaged weights; named where `beside` is another metric."""
    for split, color in {"train": SKY, "validation": ORANGE, "test": GREEN}.items():
        for weights, line in {"raw": "-", "ema": "--"}.items():
            chosen = [
                r
                for r in rows
                if r.get("kind") == "eval" and r.get("split") == split and r.get("weights", "raw") == weights
            ]
            x, y = column(chosen, "epoch"), column(chosen, name)
            if np.isfinite(y).any():
                label = ("whole train split" if split == "train" else split) + (" (EMA)" if weights == "ema" else "")
                label += "" if name == beside else f", {name.replace('_', ' ')}"
                look = (
                    {"ls": "", "marker": "o", "ms": 8}
                    if len(y) == 1
                    else {"ls": line, "marker": "o" if len(y) <= 40 else "", "ms": 4}
                )
                ax.plot(x, y, color=color, mfc="white" if weights == "ema" else color, label=label, **look)


def _log_axis(ax: Axes, values: np.ndarray) -> None:
    """A logarithmic y axis with plain numbers, where there is something to put on it."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    values = values[np.isfinite(values) & (values > 0)]
    if not len(values):
        return
    ax.set_yscale("log", nonpositive="mask")
    few = values.max() < 30 * values.min()
    ax.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if few else (1,)))
    ax.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    ax.yaxis.set_minor_formatter(NullFormatter())


def column(rows: list[dict[str, Any]], name: str) -> np.ndarray:
    """One value of every row, float64 [rows]; NaN where it is absent or None."""
    return np.array([np.nan if row.get(name) is None else row[name] for row in rows], dtype=np.float64)


def smooth(values: np.ndarray, window: int) -> np.ndarray:
    """Centred moving mean over about `window` values [n] -> [n]; NaNs are left out, the ends average over what there is."""
    kernel = np.ones(min(window, len(values) - 1) // 2 * 2 + 1)  # odd, and no longer than the values
    known = np.isfinite(values)
    total, count = np.convolve(np.where(known, values, 0), kernel, "same"), np.convolve(known, kernel, "same")
    return np.where(count > 0.5, total / np.maximum(count, 1), np.nan)


# ------------------------------------------------------------------------------------- classes


def draw_confusion(confusion: np.ndarray, class_names: Sequence[str], path: Path_) -> None:
    """Counts, int [K, K], rows truth and columns prediction; colour is the share of the row."""
    confusion = np.asarray(confusion)
    k = len(confusion)
    share = confusion / np.maximum(confusion.sum(axis=1, keepdims=True), 1)
    side = min(max(0.52 * k, 4.5), 11)
    with page(path, side + 2.6, side + 1.6) as figure:
        from matplotlib.colors import PowerNorm

        ax = figure.subplots()
        ax.grid(False)
        # The root makes rare confusions visible beside a diagonal near 1.
        picture = ax.imshow(share, cmap="Blues", norm=PowerNorm(0.5, 0, 1), interpolation="nearest")
        bar = figure.colorbar(
            picture, ax=ax, label="share of the true class", shrink=0.7, ticks=[0, 0.01, 0.05, 0.2, 0.5, 1]
        )
        bar.ax.set_yticklabels(["0", "0.01", "0.05", "0.2", "0.5", "1"])
        right, total = int(np.trace(confusion)), int(confusion.sum())
        ax.set_title(f"Confusion matrix: rows are the truth, columns the prediction\n{right} of {total} right")
        ax.set(xlabel="predicted class", ylabel="true class")
        every = math.ceil(k / 120)  # names that fit
        places, size = np.arange(0, k, every), 9 if k <= 30 else 6
        names = [short(class_names[i], 20) for i in places.tolist()]
        ax.set_xticks(places, names, size=size, rotation=90 if k > 10 or max(map(len, names), default=0) > 4 else 0)
        ax.set_yticks(places, names, size=size)
        if k <= 20:
            for i, j in zip(*np.nonzero(confusion), strict=True):
                ax.text(
                    j,
                    i,
                    str(confusion[i, j]),
                    ha="center",
                    va="center",
                    size=9,
                    color="white" if share[i, j] > 0.4 else "black",
                )


def draw_per_class(
    precision: np.ndarray, recall: np.ndarray, f1: np.ndarray, class_names: Sequence[str], path: Path_
) -> None:
    """Precision, recall and F1, float [K] each: grouped bars, or above 30 classes a table of dots sorted by F1."""
    scores = np.stack([precision, recall, f1]).astype(np.float64)  # [3, K]
    scores = np.nan_to_num(scores)
    if scores.shape[1] <= 30:
        _bars(scores, class_names, path)
    else:
        _dots(scores, class_names, path)


SCORES = {"precision": SKY, "recall": ORANGE, "F1": BLUE}


def _bars(scores: np.ndarray, class_names: Sequence[str], path: Path_) -> None:
    """Three bars a class; scores [3, K]."""
    places = np.arange(scores.shape[1])
    with page(path, 8, 0.45 * len(places) + 1.6) as figure:
        ax = figure.subplots()
        ax.set(title="Precision, recall and F1 of each class", xlabel="score", xlim=(0, 1))
        ax.set_yticks(places, [short(name, 30) for name in class_names])
        ax.set_ylim(len(places) - 0.4, -0.6)  # the first class on top
        ax.grid(axis="y", visible=False)
        for i, (name, color) in enumerate(SCORES.items()):
            ax.barh(places + (i - 1) * 0.26, scores[i], 0.24, color=color, label=name)
        figure.legend(loc="outside upper right", ncols=3)


def _dots(scores: np.ndarray, class_names: Sequence[str], path: Path_) -> None:
    """A row a class, best F1 first, in columns of about 50; of very many classes both ends. scores [3, K]."""
    order = np.argsort(-scores[2], kind="stable")
    title = f"Precision, recall and F1 of {len(order)} classes, sorted by F1"
    if len(order) > 500:
        order = np.concatenate([order[:250], order[-250:]])
        title += ": the 250 best and the 250 worst"
    columns = min(math.ceil(len(order) / 50), 5)
    each = math.ceil(len(order) / columns)
    with page(path, 4.6 * columns, 0.19 * each + 1.4) as figure:
        figure.suptitle(title, x=0.01, ha="left")
        panels = figure.subplots(1, columns, squeeze=False)[0]
        for ax, start in zip(panels, range(0, len(order), each), strict=True):
            chosen = order[start : start + each]
            places = np.arange(len(chosen))
            ax.set(xlabel="score", xlim=(-0.02, 1.02), ylim=(each - 0.4, -0.6))
            ax.set_yticks(places, [short(class_names[i], 22) for i in chosen], size=8)
            ax.hlines(places, scores[:, chosen].min(axis=0), scores[:, chosen].max(axis=0), color="#BBBBBB", lw=1.5)
            for i, (name, color) in enumerate(SCORES.items()):
                ax.plot(scores[i, chosen], places, "o", ms=5 if name == "F1" else 4, color=color, label=name)
        figure.legend(*panels[0].get_legend_handles_labels(), loc="outside upper right", ncols=3)


# -------------------------------------------------------------------------------------- images


@contextlib.contextmanager
def sheet(path: Path_, width: float, height: float) -> Iterator[Axes]:
    """A page to lay pictures on: one Axes in inches from its upper left corner. Much quicker than an Axes a picture."""
    with page(path, width, height, layout=None) as figure:
        ax = figure.add_axes((0, 0, 1, 1))
        ax.set(xlim=(0, width), ylim=(height, 0))
        ax.axis("off")
        yield ax


def _put(ax: Axes, picture: np.ndarray, x: float, y: float, w: float, h: float, **how: Any) -> None:
    """Lay a picture, [rows, columns] or [rows, columns, 1 or 3], on a sheet; a small one keeps its pixels."""
    picture = _colored(picture) if picture.ndim == 3 else picture
    blocks = "nearest" if max(picture.shape[:2]) <= 128 else "auto"
    ax.imshow(picture, extent=(x, x + w, y + h, y), aspect="auto", **{"interpolation": blocks} | how)


def _colored(image: np.ndarray) -> np.ndarray:
    """[h, w, 1 or 3] -> [h, w, 3]."""
    return np.broadcast_to(image, (*image.shape[:2], 3))


def _tall(images: np.ndarray) -> float:
    """Height over width of images [..., h, w, C], within what a page can take."""
    return min(max(images.shape[-3] / images.shape[-2], 0.3), 3)


def draw_wrong(
    images: np.ndarray,
    truth: np.ndarray,
    predicted: np.ndarray,
    confidence: np.ndarray,
    class_names: Sequence[str],
    path: Path_,
) -> None:
    """Up to 36 images that were classified wrongly, in the order given.

    images uint8 [m, h, w, C], truth and predicted int [m], confidence float [m] of the prediction.
    """
    m = min(len(images), 36)
    if not m:
        _nothing(path, "No wrong predictions: every image was classified right.")
        return
    columns = min(m, 6)
    w, h = 1.6, 1.6 * _tall(images)
    width = max(0.15 + columns * (w + 0.15), 5.2)
    with sheet(path, width, 0.5 + math.ceil(m / columns) * (h + 0.6)) as ax:
        ax.text(
            width / 2,
            0.25,
            "Wrong predictions: true class → predicted class (confidence)",
            ha="center",
            va="center",
            size=12,
        )
        for i in range(m):
            x, y = 0.15 + i % columns * (w + 0.15), 0.95 + i // columns * (h + 0.6)
            _put(ax, images[i], x, y, w, h)
            true, wrong = short(class_names[truth[i]], 22), short(class_names[predicted[i]], 14)
            ax.text(x + w / 2, y - 0.06, f"{true}\n→ {wrong} ({confidence[i]:.2f})", ha="center", va="bottom", size=8.5)


def draw_patches(image: np.ndarray, patch: Size, path: Path_) -> None:
    """An image, uint8 [h, w, C], beside the patches that it is cut into, numbered as the tokens are where numbers fit."""
    ph, pw = pair(patch)
    patches = split(_colored(image), ph, pw)  # [gh, gw, ph, pw, 3]
    gh, gw = patches.shape[:2]
    zoom = math.ceil(32 / min(ph, pw))
    w, h = 5.2, 5.2 * _tall(image)
    with sheet(path, 2 * w + 0.45, h + 0.6) as ax:
        ax.text(0.15 + w / 2, 0.35, f"image, {image.shape[0]} x {image.shape[1]}", ha="center", size=11)
        ax.text(
            0.3 + 1.5 * w,
            0.35,
            f"{gh} x {gw} patches of {ph} x {pw} are {gh * gw} tokens, row by row",
            ha="center",
            size=11,
        )
        _put(ax, image, 0.15, 0.45, w, h)
        gap = math.ceil(0.1 * zoom * min(ph, pw))
        canvas = tile(patches.repeat(zoom, axis=2).repeat(zoom, axis=3), gap, TINT)
        _put(ax, canvas, 0.3 + w, 0.45, w, h, interpolation="nearest")
        down, right = (
            h * (zoom * ph + gap) / canvas.shape[0],
            w * (zoom * pw + gap) / canvas.shape[1],
        )  # inches from patch to patch
        size = min(10, 28 * down, 70 * right / len(str(gh * gw - 1)))  # points
        if size < 5:
            return
        from matplotlib.patheffects import withStroke

        outline = [withStroke(linewidth=1.5, foreground="black")]
        for token in range(gh * gw):
            x, y = 0.3 + w + (token % gw + 0.06) * right, 0.45 + (token // gw + 0.06) * down
            ax.text(x, y, str(token), size=size, color="white", va="top", path_effects=outline)


def split(image: np.ndarray, ph: int, pw: int) -> np.ndarray:
    """Cut an image into patches: '(gh ph) (gw pw) c -> gh gw ph pw c'."""
    h, w, channels = image.shape
    return image.reshape(h // ph, ph, w // pw, pw, channels).swapaxes(1, 2)


def tile(pictures: np.ndarray, gap: int, fill: float | tuple[int, int, int]) -> np.ndarray:
    """A grid of pictures as one, with gaps between: [R, C, h, w, ...] -> [R*(h+gap)-gap, C*(w+gap)-gap, ...]."""
    rows, columns, h, w, *rest = pictures.shape
    out = np.full((rows, h + gap, columns, w + gap, *rest), fill, pictures.dtype)
    out[:, :h, :, :w] = pictures.swapaxes(1, 2)
    return out.reshape(rows * (h + gap), columns * (w + gap), *rest)[
        : rows * (h + gap) - gap, : columns * (w + gap) - gap
    ]


# ---------------------------------------------------------------------- positions and attention


def draw_positions(position: np.ndarray, prefix: int, grid: Size, path: Path_) -> None:
    """How similar each patch's position is to all others: a small map a patch, arranged as the patches are.

    position [rows, D]; its first `prefix` rows belong to tokens before the patches; grid (gh, gw).
    Dosovitskiy et al. 2021, figure 7 (centre). Of a grid beyond 14 only some rows and columns are drawn.
    """
    gh, gw = pair(grid)
    cosine = similarity(np.asarray(position)[prefix:]).reshape(gh, gw, gh, gw)
    rows, columns = (np.unique(np.linspace(0, n - 1, min(n, 14)).round().astype(int)) for n in (gh, gw))
    zoom = math.ceil(48 / max(gh, gw))
    maps = cosine[np.ix_(rows, columns)].repeat(zoom, axis=2).repeat(zoom, axis=3)
    gap = math.ceil(0.12 * zoom * min(gh, gw))
    with page(path, 8.5, 7.5 * min(max(gh / gw, 0.3), 3) + 0.6) as figure:
        ax = figure.subplots()
        ax.grid(False)
        for side in ax.spines.values():
            side.set_visible(False)
        picture = ax.imshow(
            tile(maps, gap, np.nan), cmap="viridis", vmin=min(cosine.min(), 0), vmax=1, interpolation="nearest"
        )
        figure.colorbar(picture, ax=ax, label="cosine similarity", shrink=0.7)
        ax.set_title("Positions: each small map compares one patch with all patches")
        ax.set(xlabel="column of the patch", ylabel="row of the patch")
        ax.set_xticks(np.arange(len(columns)) * (zoom * gw + gap) + zoom * gw / 2, columns)
        ax.set_yticks(np.arange(len(rows)) * (zoom * gh + gap) + zoom * gh / 2, rows)
        ax.tick_params(length=0)


def similarity(vectors: np.ndarray) -> np.ndarray:
    """Cosine of every pair of rows: [N, D] -> float64 [N, N]; 0 where a row is zero."""
    vectors = vectors.astype(np.float64)
    length = np.linalg.norm(vectors, axis=1, keepdims=True)
    unit = np.divide(vectors, length, out=np.zeros_like(vectors), where=length > 0)
    return unit @ unit.T


def draw_attention(
    images: np.ndarray, attention: np.ndarray, prefix: int, grid: Size, has_cls: bool, path: Path_
) -> None:
    """A row an image: where the last layer looks (mean of its heads, up to four of them), and the rollout of all layers.

    images uint8 [m, h, w, C], attention float [m, L, H, N, N]; the first `prefix` of the N tokens come before the patches.
    """
    m, layers, heads = attention.shape[:3]
    if not m:
        _nothing(path, "No images to show attention for.")
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
    w, h = 1.7, 1.7 * _tall(images)
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
            _put(ax, images[i], 0.15, y, w, h)
            faint = 70 + 0.45 * images[i].mean(
                axis=-1, keepdims=True
            )  # so that the image's own light does not pass for attention
            for column, values in enumerate(maps, start=1):
                x = 0.15 + column * (w + 0.12)
                _put(ax, faint.astype(np.uint8), x, y, w, h)
                _put(
                    ax,
                    stretched(values).reshape(pair(grid)),
                    x,
                    y,
                    w,
                    h,
                    cmap="inferno",
                    vmin=0,
                    vmax=1,
                    alpha=0.6,
                    interpolation="nearest",
                )
        _put(ax, np.linspace(1, 0, 256)[:, None], width - 0.9, 1.05, 0.18, h, cmap="inferno", interpolation="nearest")
        ax.text(width - 0.65, 1.05, "most in\nthe map", va="top", size=9)
        ax.text(width - 0.65, 1.05 + h, "least", va="bottom", size=9)


def stretched(values: np.ndarray) -> np.ndarray:
    """Values shifted and scaled to 0..1; all 0 where they are all the same."""
    spread = values.max() - values.min()
    return (values - values.min()) / (spread if spread > 0 else 1)


def to_patches(attention: np.ndarray, prefix: int, has_cls: bool) -> np.ndarray:
    """How much each patch is attended to: [..., N, N] -> [..., N - prefix]; by the cls token, or by the mean patch."""
    seen = attention[..., 0, :] if has_cls else attention[..., prefix:, :].mean(axis=-2)
    return seen[..., prefix:]


def rollout(attention: np.ndarray) -> np.ndarray:
    """Attention of the outputs to the inputs through all layers: [L, H, N, N] -> float64 [N, N].

    A_l = 0.5 mean_h(attention_l) + 0.5 I with rows that sum to 1; result A_L ... A_1 (Abnar and Zuidema 2020, section 3).
    """
    tokens = np.eye(attention.shape[-1])
    total = tokens
    for layer in attention.astype(np.float64).mean(axis=1):
        step = 0.5 * layer + 0.5 * tokens
        total = step / step.sum(axis=-1, keepdims=True) @ total
    return total


def draw_cross_attention(attention: np.ndarray, said: Sequence[str], asked: Sequence[str], path: Path_) -> None:
    """Where the decoder looked for each word that it said: a layer a row; the mean of the heads, then up to four of them.

    attention float [L, H, T, S] for T words said and S words asked.
    """
    layers, heads = attention.shape[:2]
    shown = min(heads, 4)
    with page(path, 1 + (1 + shown) * (0.9 + 0.24 * len(asked)), 0.8 + layers * (1.0 + 0.22 * len(said))) as figure:
        figure.suptitle("Cross-attention: each word said (rows) looks at the words asked (columns)")
        for layer, row in enumerate(figure.subplots(layers, 1 + shown, squeeze=False)):
            for i, (ax, map_) in enumerate(
                zip(row, [attention[layer].mean(0), *attention[layer, :shown]], strict=True)
            ):
                ax.grid(False)
                ax.imshow(map_, cmap="viridis", vmin=0, vmax=1, aspect="auto")
                ax.set_title(f"layer {layer + 1}, " + (f"head {i}" if i else f"mean of {heads} heads"))
                ax.set_xticks(range(len(asked)), [short(word, 12) for word in asked], rotation=90)
                ax.set_yticks(range(len(said)), [short(word, 12) for word in said] if not i else [])
