"""Parts of data that are alike and keep groups whole: folds of cross-validation, and shares that are held out.

A group, such as the images of a patient, is never in two parts. Without groups each example is one.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from .order import permutation

PARTS = 20  # that a share is held out as some of


class Positives(NamedTuple):
    """What examples have that each part gets its share of: entry i says that example `rows[i]` has `columns[i]`."""

    rows: np.ndarray  # int [p]
    columns: np.ndarray  # int [p]


def assign_folds(n: int, positives: Positives, groups: np.ndarray | None, folds: int, *seed: int) -> np.ndarray:
    """The fold of each example: groups int [n] -> int64 [n].

    A group has a vector: its share of all examples, and of all that have each of the columns. The groups with the
    greatest entries come first, and each goes to the fold where it adds least to the sum of squares of what folds have.
    """
    group = np.arange(n) if groups is None else np.unique(groups, return_inverse=True)[1].reshape(-1)
    number, width = int(group.max(initial=-1)) + 1, int(positives.columns.max(initial=-1)) + 2
    # Sparse rows of the vectors: the last column counts all examples.
    cells = np.concatenate([group[positives.rows] * width + positives.columns, group * width + (width - 1)])
    cell, count = np.unique(cells, return_counts=True)
    owner, column = np.divmod(cell, width)
    share = count / np.bincount(column, count, minlength=width)[column]
    starts = np.searchsorted(owner, np.arange(number + 1))
    shuffled = permutation(number, *seed)
    greatest = np.maximum.reduceat(share, starts[:-1]) if number else share
    have = np.zeros((folds, width))
    fold = np.empty(number, np.int64)
    for g in shuffled[np.argsort(-greatest[shuffled], kind="stable")]:
        own = slice(starts[g], starts[g + 1])
        # (have + c)^2 - have^2 = 2 have c + c^2, and c^2 is the same for all folds; rounded, so that equal ones tie
        cost = (have[:, column[own]] * share[own]).sum(1).round(12)
        fold[g] = cost.argmin()
        have[fold[g], column[own]] += share[own]
    return fold[group]


def hold_out_groups(
    n: int, positives: Positives, groups: np.ndarray | None, share: float, *seed: int
) -> tuple[np.ndarray, np.ndarray]:
    """Hold out whole groups, about a share of all examples and of those that have each of the columns: groups int [n].

    What only some held out have is given back, as far as a group has it: each column stays with one group at least.
    """
    groups = np.arange(n) if groups is None else groups
    names, group = np.unique(groups, return_inverse=True)
    whole = abs(share * PARTS - round(share * PARTS)) < 1e-9
    parts = min(len(names), PARTS if whole else 5 * PARTS if share >= 1 / (5 * PARTS) else round(1 / share))
    taken = min(max(round(share * parts), 1), parts - 1)
    # At equal distance: the rarest positives are in the first folds, one in each.
    chosen = ((np.arange(taken) + 0.5) * parts / max(taken, 1)).astype(int)
    held = np.isin(assign_folds(n, positives, groups, parts, *seed), chosen)
    group, sizes = group.reshape(-1), np.bincount(group.reshape(-1))
    stays = np.bincount(positives.columns, ~held[positives.rows])
    for column in np.setdiff1d(positives.columns, np.flatnonzero(stays)):
        owners = np.unique(group[positives.rows[positives.columns == column]])
        held[group == owners[sizes[owners].argmin()]] = False
    return np.flatnonzero(~held), np.flatnonzero(held)
