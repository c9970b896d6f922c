"""Labels that are suspected to be wrong, by confident learning (Northcutt et al. 2021, arXiv 1911.00068).

The predictions have to be of images that the network was not trained on.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

NEARLY = 1e-6  # probabilities that differ by less are equal


@dataclass(frozen=True)
class Suspects:
    """m images whose label is suspected, the least probable label first; arrays [m]."""

    images: np.ndarray
    guesses: np.ndarray
    probability: np.ndarray

    def __len__(self) -> int:
        return len(self.images)


def suspect_classes(labels: np.ndarray, probabilities: np.ndarray) -> Suspects:
    """The images that are confidently taken for another class than the given one: labels int [n], probabilities float
    [n, K].

    An image is confidently of a class if its probability is at least the mean of that class's probability over the
    images that are labelled so; of several such classes it is of the one with the greatest probability of all. Images
    whose label has the greatest probability are never suspected. These are the off-diagonal entries of the confident
    joint, which cleanlab's find_label_issues(filter_by="confident_learning") returns.
    """
    p, classes = probabilities.astype(np.float64), probabilities.shape[1]
    own = np.take_along_axis(p, labels[:, None].astype(np.int64), 1)[:, 0]
    counts = np.bincount(labels, minlength=classes)
    usual = np.bincount(labels, own, minlength=classes) / np.maximum(counts, 1)
    usual = np.where(counts > 0, np.maximum(usual, 2 * NEARLY), np.inf)
    confident = p >= usual - NEARLY  # [n, K]
    several = confident.sum(1) > 1
    guess = np.where(several, p.argmax(1), confident.argmax(1))
    suspected = confident.any(1) & (guess != labels) & (p.max(1) > own + NEARLY)
    found = np.flatnonzero(suspected)
    found = found[np.argsort(own[found], kind="stable")]
    return Suspects(found, guess[found], own[found])


def join_suspects(each: Sequence[Suspects]) -> tuple[Suspects, np.ndarray]:
    """(the suspects of all labels, the least probable first; int [m], the label of each), from those of each label."""
    labels = np.repeat(np.arange(len(each)), [len(one) for one in each])
    images, guesses, p = (np.concatenate([getattr(one, name) for one in each]) for name in vars(each[0]))
    order = np.argsort(p, kind="stable")
    return Suspects(images[order], guesses[order], p[order]), labels[order]


def suspect_labels(truth: np.ndarray, probabilities: np.ndarray) -> list[Suspects]:
    """`suspect_classes` of each of K labels by itself, among the images of which it is known: truth int8 [n, K],
    probabilities float [n, K].

    `Suspects.guesses` are 1 where an image seems to have the label, else 0.
    """
    found = []
    for k in range(truth.shape[1]):
        known = np.flatnonzero(truth[:, k] >= 0)
        p = probabilities[known, k].astype(np.float64)
        one = suspect_classes(truth[known, k].astype(np.int64), np.stack([1 - p, p], 1))
        found.append(Suspects(known[one.images], one.guesses, one.probability))
    return found
