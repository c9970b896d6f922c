"""Results on a split: confusion matrix, scores per class, wrong predictions, reliability, numbers over the truth."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from ..files.output import shorten
from ..scores.calibration import Reliability
from .figure import BLUE, GREY, ORANGE, SKY, AnyPath, message_page, page

PANELS = 12  # most numbers that are drawn
POINTS = 5000


def draw_confusion(confusion: np.ndarray, class_names: Sequence[str], path: AnyPath, caption: str = "") -> None:
    """Draw a confusion matrix: rows are the true class, columns the predicted one; colours are shares of the row.
    Shapes: confusion int [K, K].
    """
    confusion = np.asarray(confusion)
    k = len(confusion)
    share = confusion / np.maximum(confusion.sum(axis=1, keepdims=True), 1)
    side = min(max(0.52 * k, 4.5), 11)
    with page(path, side + 2.6, side + 1.6) as figure:
        from matplotlib.colors import PowerNorm

        ax = figure.subplots()
        ax.grid(False)
        # A square root makes rare confusions visible next to a diagonal near 1.
        picture = ax.imshow(share, cmap="Blues", norm=PowerNorm(0.5, 0, 1), interpolation="nearest")
        bar = figure.colorbar(
            picture, ax=ax, label="share of the true class", shrink=0.7, ticks=[0, 0.01, 0.05, 0.2, 0.5, 1]
        )
        bar.ax.set_yticklabels(["0", "0.01", "0.05", "0.2", "0.5", "1"])
        right, total = int(np.trace(confusion)), int(confusion.sum())
        title = [
            "Confusion matrix: rows are the truth, columns the prediction",
            f"{right:,} of {total:,} right",
            caption,
        ]
        ax.set_title("\n".join(filter(None, title)))
        ax.set(xlabel="predicted class", ylabel="true class")
        every = math.ceil(k / 120)  # at most 120 names fit
        named, size = np.arange(0, k, every), 9 if k <= 30 else 6
        names = [shorten(class_names[i], 20) for i in named.tolist()]
        ax.set_xticks(named, names, size=size, rotation=90 if k > 10 or max(map(len, names), default=0) > 4 else 0)
        ax.set_yticks(named, names, size=size)
        if k <= 20:
            for i, j in zip(*np.nonzero(confusion), strict=True):
                color = "white" if share[i, j] > 0.4 else "black"
                ax.text(j, i, str(confusion[i, j]), ha="center", va="center", size=9, color=color)


def draw_per_class(
    precision: np.ndarray,
    recall: np.ndarray,
    f1: np.ndarray,
    class_names: Sequence[str],
    path: AnyPath,
    caption: str = "",
    what: str = "class",
) -> None:
    """Draw scores of each class: as bars, or above 30 classes as dots, sorted by F1. Shapes: precision float [K],
    recall float [K], f1 float [K].
    """
    scores = np.stack([precision, recall, f1]).astype(np.float64)  # [3, K]
    scores = np.nan_to_num(scores)
    if scores.shape[1] <= 30:
        _bars(scores, class_names, path, caption, what)
    else:
        _dots(scores, class_names, path, caption)


SCORES = {"precision": SKY, "recall": ORANGE, "F1": BLUE}


def _bars(scores: np.ndarray, class_names: Sequence[str], path: AnyPath, caption: str, what: str) -> None:
    """Draw three bars per class; scores [3, K]."""
    rows = np.arange(scores.shape[1])
    with page(path, 8, 0.45 * len(rows) + 1.6) as figure:
        ax = figure.subplots()
        ax.set_title("\n".join(filter(None, [f"Precision, recall and F1 of each {what}", caption])))
        ax.set(xlabel="score", xlim=(0, 1))
        ax.set_yticks(rows, [shorten(name, 30) for name in class_names])
        ax.set_ylim(len(rows) - 0.4, -0.6)  # the first class on top
        ax.grid(axis="y", visible=False)
        for i, (name, color) in enumerate(SCORES.items()):
            ax.barh(rows + (i - 1) * 0.26, scores[i], 0.24, color=color, label=name)
        figure.legend(loc="outside lower center", ncols=3)


def _dots(scores: np.ndarray, class_names: Sequence[str], path: AnyPath, caption: str) -> None:
    """Draw a row of three dots per class, best F1 first, in columns of about 50 classes; scores [3, K].

    Of more than 500 classes only the 250 best and the 250 worst are drawn.
    """
    order = np.argsort(-scores[2], kind="stable")
    title = f"Precision, recall and F1 of {len(order)} classes, sorted by F1"
    if len(order) > 500:
        order = np.concatenate([order[:250], order[-250:]])
        title += ": the 250 best and the 250 worst"
    columns = min(math.ceil(len(order) / 50), 5)
    each = math.ceil(len(order) / columns)
    with page(path, 4.6 * columns, 0.19 * each + 1.4) as figure:
        figure.suptitle(f"{title}\n{caption}" if caption else title, x=0.01, ha="left")
        panels = figure.subplots(1, columns, squeeze=False)[0]
        for ax, start in zip(panels, range(0, len(order), each), strict=True):
            classes = order[start : start + each]
            rows = np.arange(len(classes))
            ax.set(xlabel="score", xlim=(-0.02, 1.02), ylim=(each - 0.4, -0.6))
            ax.set_yticks(rows, [shorten(class_names[i], 22) for i in classes], size=8)
            ax.hlines(rows, scores[:, classes].min(axis=0), scores[:, classes].max(axis=0), color="#BBBBBB", lw=1.5)
            for i, (name, color) in enumerate(SCORES.items()):
                ax.plot(scores[i, classes], rows, "o", ms=5 if name == "F1" else 4, color=color, label=name)
        figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=3)


def draw_reliability(
    measured: Mapping[str, Reliability], path: AnyPath, what: str, drawn: float | None = None, caption: str = ""
) -> None:
    """Draw the share of predictions that are right over their confidence, and below it how many there are."""
    if not any(each.counts.sum() for each in measured.values()):
        message_page(path, "There are no predictions of which it is known whether they are right.")
        return
    title = ["Reliability: how often predictions are right, over their probability"]
    title += [] if drawn is None else [f"labels drawn from these probabilities have ECE {drawn:.3f} on as many"]
    with page(path, max(0.5 + 4.2 * len(measured), 7.5), 5.4) as figure:
        figure.suptitle("\n".join(filter(None, [*title, caption])), x=0.01, ha="left")
        panels = figure.subplots(2, len(measured), squeeze=False, sharex=True, height_ratios=(3, 1))
        for (name, each), ax, below in zip(measured.items(), *panels, strict=True):
            middle, width = (np.arange(len(each.counts)) + 0.5) / len(each.counts), 0.92 / len(each.counts)
            there = each.counts > 0
            ax.bar(middle[there], each.right[there], width, color=BLUE)
            ax.plot([0, 1], [0, 1], color=GREY, lw=1, ls="--")
            ax.plot(each.confidence[there], each.right[there], "o", ms=4, color=ORANGE, mec="white", mew=0.5)
            ax.set(title=f"{name}: ECE {each.error:.3f}", xlim=(0, 1), ylim=(0, 1))
            below.bar(middle, each.counts, width, color=GREY)
            below.set(xlabel="probability")
        panels[0, 0].set_ylabel(what)
        panels[1, 0].set_ylabel("predictions")


def draw_numbers(
    truth: np.ndarray,
    predicted: np.ndarray,
    names: Sequence[str],
    each: Mapping[str, np.ndarray],
    baseline: np.ndarray,
    path: AnyPath,
    caption: str = "",
    whose: str = "training",
) -> None:
    """Draw for each number the predictions over the truth, and the errors over the predictions: truth float [n, K],
    predicted float [n, K], each float [K], baseline float [K].
    """
    rows = np.isfinite(predicted).all(1)
    if not rows.any():
        message_page(path, "No prediction is a number.")
        return
    truth, predicted = truth[rows], predicted[rows]
    step = -(-len(truth) // POINTS)
    some = f", of every {step}th image" if step > 1 else ""
    count = min(len(names), PANELS)
    left = f"; the first {count} of {len(names)} numbers" if count < len(names) else ""
    size = max(1.5, 5 - np.log10(len(truth)))
    with page(path, max(3.4 * count + 0.4, 6.5), 6.2) as figure:
        title = f"Predictions and their errors{some}{left}; dashed: right, orange: the mean of {whose}"
        figure.suptitle("\n".join(filter(None, [title, caption])), x=0.01, ha="left")
        panels = figure.subplots(2, count, squeeze=False)
        for k, (above, below) in enumerate(panels.T):
            true, said = truth[::step, k], predicted[::step, k]
            ends = [min(true.min(), said.min()), max(true.max(), said.max())]
            above.plot(ends, ends, color=GREY, lw=1, ls="--")
            above.axhline(baseline[k], color=ORANGE, lw=1)
            above.plot(true, said, "o", ms=size, color=BLUE, alpha=0.5, mew=0)
            r2 = "-" if np.isnan(each["r2"][k]) else f"{each['r2'][k]:.3f}"
            # Above the exponent of the axis, which stands beside the last line of a title.
            above.set_title(f"{shorten(names[k], 24)}\nRMSE {each['rmse'][k]:.4g}, R² {r2}", pad=18)
            above.set(xlabel="truth", ylabel="" if k else "prediction")
            below.axhline(0, color=GREY, lw=1, ls="--")
            below.plot(said, said - true, "o", ms=size, color=BLUE, alpha=0.5, mew=0)
            below.set(xlabel="prediction", ylabel="" if k else "prediction - truth")
            for ax in (above, below):  # long numbers would meet
                ax.locator_params("x", nbins=4)
