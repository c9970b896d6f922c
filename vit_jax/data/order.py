"""Which examples: seeded permutations, stratified shares, and the order of training.

Everything is a function of integers alone. Permutations sort a bit generator's raw words, because
numpy promises that those stay the same in every version, and does not for its `shuffle`.
"""

from __future__ import annotations

import numpy as np

from ..errors import UserError

# What a permutation is for: the first word of its seed, so that no two uses share one.
ORDER, VALIDATION, TEST, NUMBERS, SHUFFLE = range(5)


def permutation(n: int, *seed: int) -> np.ndarray:
    """int64 [n]: 0..n-1 in an order given by `seed`, a purpose and what else it depends on."""
    return np.argsort(np.random.Philox(np.random.SeedSequence(seed)).random_raw(n), kind="stable")


def hold_out(labels: np.ndarray, share: float, *seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Split examples by class: ascending int64 indices of those that stay and of those held out.

    Each class gives its share rounded down; the classes with the largest remainders give one more,
    up to the share of the whole. The last example of a class always stays.
    """
    counts = np.bincount(labels)
    wanted = share * counts
    give = np.floor(wanted).astype(np.int64)
    missing = round(share * len(labels)) - give.sum()
    give[np.argsort(give - wanted, kind="stable")[:missing]] += 1
    give = np.clip(give, 0, np.maximum(counts - 1, 0))

    shuffled = permutation(len(labels), *seed)
    by_class = shuffled[np.argsort(labels[shuffled], kind="stable")]
    place = np.arange(len(labels)) - np.repeat(np.cumsum(counts) - counts, counts)  # within the class
    held = place < np.repeat(give, counts)
    return np.sort(by_class[~held]), np.sort(by_class[held])


class Order:
    """Which examples step s sees: a function of (seed, s) alone, so any step can be asked for first.

    An epoch is a permutation of the n examples cut into n // batch batches; the remainder, another
    one each epoch, is left out. Without `shuffle` every epoch goes 0, 1, 2, ...
    """

    def __init__(self, n: int, batch: int, seed: int, shuffle: bool = True):
        if not 1 <= batch <= n:
            raise UserError(f"batch is {batch} but there are {n} examples to train on: give a batch of 1 to {n}")
        self.n, self.batch, self.seed, self.shuffle = n, batch, seed, shuffle
        self.steps_per_epoch = n // batch
        self._latest = (-1, np.arange(n))  # an epoch and its permutation, replaced whole

    def indices(self, step: int) -> np.ndarray:
        """int64 [batch]: the examples of a step."""
        epoch, place = divmod(step, self.steps_per_epoch)
        known, examples = self._latest
        if self.shuffle and known != epoch:
            examples = permutation(self.n, ORDER, epoch, self.seed)
            self._latest = (epoch, examples)
        return examples[place * self.batch : (place + 1) * self.batch]


class TokenOrder:
    """Which examples step s sees when every batch holds examples of one padded length, a function of (seed, s) alone.

    An epoch has each of the n examples once: they are permuted, sorted out by length, cut into batches of as
    many rows as a batch of that length has (the last one of a length may have fewer), and the batches are permuted.
    """

    def __init__(self, padded: np.ndarray, rows: dict[int, int], seed: int):
        self.n, self.padded, self.rows, self.seed = len(padded), padded, rows, seed
        self.steps_per_epoch = sum(-(-int((padded == length).sum()) // most) for length, most in rows.items())
        self.batch = self.n / self.steps_per_epoch  # examples a step, on average
        self._latest: tuple[int, list[np.ndarray]] = (-1, [])  # an epoch and its batches, replaced whole

    def indices(self, step: int) -> np.ndarray:
        """int64 [k]: the examples of a step."""
        epoch, place = divmod(step, self.steps_per_epoch)
        known, batches = self._latest
        if known != epoch:
            examples = permutation(self.n, ORDER, epoch, self.seed)
            cut = []
            for length, most in self.rows.items():
                members = examples[self.padded[examples] == length]
                cut += [members[i : i + most] for i in range(0, len(members), most)]
            batches = [cut[i] for i in permutation(len(cut), ORDER, epoch, self.seed, 1)]
            self._latest = (epoch, batches)
        return batches[place]
