"""Which examples a split has and a step takes: seeded permutations, stratified splits, folds, the order of training.

All of it is a function of integers. Permutations sort the raw output of a bit generator, which numpy guarantees to be
the same in every version, unlike the result of its `shuffle`.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Container, Iterator
from typing import Literal

import numpy as np

from ..config.run import DataConfig
from ..errors import Field, UserError
from ..kinds.labels import Positives

Sampling = Literal["natural", "sqrt", "balanced"]

# The first number of a permutation's seed is its purpose, so that no two purposes share a permutation.
ORDER, VALIDATION, TEST, NUMBERS, SHUFFLE, SHAPES, CLASS_ROW, QUOTA_TIES, CLASS_OFFSETS, FOLDS = range(10)
BLOCKS, WINDOWS, CORRUPTION = 10, 11, 12


def permutation(n: int, *seed: int) -> np.ndarray:
    """int64 [n]: 0..n-1 in an order that `seed` determines, a purpose followed by other integers."""
    return np.argsort(_raw(n, *seed), kind="stable")


def _raw(n: int, *seed: int) -> np.ndarray:
    """uint64 [n], as random as `seed`."""
    return np.random.Philox(np.random.SeedSequence(seed)).random_raw(n)


def hold_out(labels: np.ndarray, share: float, *seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Hold out a share of examples, by class: labels int [n] -> (indices that stay, indices held out), int64 and
    ascending.

    `share` of each class, rounded down, is held out, and one more of the classes with the largest remainders, until
    `share` of all examples is reached. At least one example of each class stays.
    """
    counts = np.bincount(labels)
    wanted = share * counts
    give = np.floor(wanted).astype(np.int64)
    missing = round(share * len(labels)) - give.sum()
    give[np.argsort(give - wanted, kind="stable")[:missing]] += 1
    give = np.clip(give, 0, np.maximum(counts - 1, 0))

    shuffled = permutation(len(labels), *seed)
    by_class = shuffled[np.argsort(labels[shuffled], kind="stable")]
    rank = np.arange(len(labels)) - np.repeat(np.cumsum(counts) - counts, counts)  # within the class
    held = rank < np.repeat(give, counts)
    return np.sort(by_class[~held]), np.sort(by_class[held])


def lacking(data: DataConfig, there: Container[str], seed: int) -> Iterator[tuple[str, float, tuple[int, ...]]]:
    """(name, share of train, seed) of each split to hold out: test first and without the run's seed, so that it depends
    neither on that nor on the share of validation.
    """
    for name, share, salt in (("test", data.test, (TEST,)), ("validation", data.validation, (VALIDATION, seed))):
        if share and name not in there:
            yield name, share, salt


def count_taken(n: int, batch: int, batches: int = 0) -> int:
    """How many of n examples training goes through."""
    taken = min(n, batches * batch or n)
    if taken < batch:
        raise UserError(Field("batch"), f"{batch} is larger than the training set of {taken}", "lower `batch`")
    return taken


class Order:
    """Which examples a step takes, as a function of the seed and the step alone. With `repeats` (Hoffer et al. 2020,
    arXiv 1901.09335) an epoch has as many steps, of 1/repeats of the examples.

    Each epoch permutes the n examples and cuts them into n // batch batches; the remaining examples, others in every
    epoch, are left out.
    """

    def __init__(self, n: int, batch: int, seed: int, shuffle: bool = True, repeats: int = 1):
        if not 1 <= batch <= n:
            raise UserError(
                Field("batch"), f"is {batch} but there are {n} examples to train on", f"give a batch of 1 to {n}"
            )
        self.n, self.batch, self.seed, self.shuffle = n, batch, seed, shuffle
        self.steps_per_epoch = n // batch
        self.different = -(-batch // repeats)  # examples of a batch
        # An epoch and its permutation, in one tuple, so that two threads never see a mixture.
        self._latest = (-1, np.arange(n))

    def indices(self, step: int) -> np.ndarray:
        """int64 [batch]: the examples of a step, counted from 0."""
        epoch, i = divmod(step, self.steps_per_epoch)
        latest, examples = self._latest
        if self.shuffle and latest != epoch:
            examples = permutation(self.n, ORDER, epoch, self.seed)
            self._latest = (epoch, examples)
        return np.resize(examples[i * self.different : (i + 1) * self.different], self.batch)


class SampledOrder:
    """Which examples a step takes where rare classes come more often than they are there: labels int [n].

    Like `Order` a function of the seed and the step alone. An epoch has as many steps, and each class a quota of their
    examples. A class is spread evenly over the epoch, so that batches have nearly equal numbers of it. It is read from
    an endless row, one permutation of its examples after another, so that none comes twice more often than another.
    """

    def __init__(self, labels: np.ndarray, batch: int, seed: int, sampling: Sampling):
        self.n, self.batch, self.seed = len(labels), batch, seed
        self.steps_per_epoch = self.n // batch
        self.members = [np.flatnonzero(labels == label) for label in np.unique(labels)]  # of each class, ascending
        weights = [math.sqrt(len(rows)) if sampling == "sqrt" else 1.0 for rows in self.members]
        # Of an epoch, in examples.
        self.shares = np.array(weights) * (self.steps_per_epoch * batch / math.fsum(weights))
        self._epoch = functools.lru_cache(maxsize=2)(self._sample)  # two threads may be in two epochs

    def indices(self, step: int) -> np.ndarray:
        """int64 [batch]: the examples of a step, counted from 0."""
        epoch, i = divmod(step, self.steps_per_epoch)
        return self._epoch(epoch)[i * self.batch : (i + 1) * self.batch]

    def _sample(self, epoch: int) -> np.ndarray:
        """int64 [steps_per_epoch * batch]: the examples of an epoch."""
        examples, places = [], []  # of each class; a place is in [0, 1)
        for k, quota in enumerate(self._quotas(epoch).tolist()):
            examples.append(self._draw(k, epoch, quota))
            offsets = (_raw(quota, CLASS_OFFSETS, k, epoch, self.seed) >> np.uint64(11)) / 2.0**53
            places.append((np.arange(quota) + offsets) / quota)
        return np.concatenate(examples)[np.argsort(np.concatenate(places), kind="stable")]

    def _quotas(self, epoch: int) -> np.ndarray:
        """int64 [K]: the examples of each class in an epoch, shares rounded by the method of largest remainders."""
        quotas = np.floor(self.shares).astype(np.int64)
        ties = permutation(len(quotas), QUOTA_TIES, epoch, self.seed)
        order = ties[np.argsort((quotas - self.shares)[ties], kind="stable")]
        quotas[order[: self.steps_per_epoch * self.batch - quotas.sum()]] += 1
        return quotas

    def _draw(self, k: int, epoch: int, count: int) -> np.ndarray:
        """int64 [count]: the next examples of class k in its row.

        An epoch starts where those before it end if each takes as many as it may at most, so that nothing is carried.
        """
        members, start = self.members[k], (math.floor(self.shares[k]) + 1) * epoch
        first, skipped = divmod(start, len(members))
        rounds = range(first, (start + count) // len(members) + 1)
        row = np.concatenate([permutation(len(members), CLASS_ROW, k, each, self.seed) for each in rounds])
        return members[row[skipped : skipped + count]]


class TokenOrder:
    """Which examples a step takes if all examples of a batch are padded to the same length: padded int [n].

    Like `Order` a function of the seed and the step alone. Each epoch permutes the n examples, groups them by length,
    cuts each group into batches (the last of a group may be smaller) and permutes the batches; no example is left out.
    """

    def __init__(self, padded: np.ndarray, rows: dict[int, int], seed: int):
        self.n, self.padded, self.rows, self.seed = len(padded), padded, rows, seed
        self.steps_per_epoch = sum(-(-int((padded == length).sum()) // most) for length, most in rows.items())
        self.batch = self.n / self.steps_per_epoch  # examples per step, on average
        self._latest: tuple[int, list[np.ndarray]] = (-1, [])  # an epoch and its batches, as in `Order`

    def indices(self, step: int) -> np.ndarray:
        """int64 [k]: the examples of a step, counted from 0."""
        epoch, i = divmod(step, self.steps_per_epoch)
        latest, batches = self._latest
        if latest != epoch:
            examples = permutation(self.n, ORDER, epoch, self.seed)
            ordered = []
            for length, most in self.rows.items():
                members = examples[self.padded[examples] == length]
                ordered += [members[start : start + most] for start in range(0, len(members), most)]
            batches = [ordered[j] for j in permutation(len(ordered), ORDER, epoch, self.seed, 1)]
            self._latest = (epoch, batches)
        return batches[i]


PARTS = 20  # that a share is held out as some of


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
