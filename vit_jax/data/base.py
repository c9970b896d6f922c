"""The interface of a run's data. The training loop and the evaluation step use nothing else and name no kind of data.

`Task.open_data` returns a `Data`; training asks its `order` which examples each step takes, and evaluation goes through
a whole `Split`. All arrays are numpy arrays on the host; n is the number of examples of a split.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol, Self

import numpy as np

from ..errors import UserError

PARTS = 64  # most stretches of a split


class Listing(NamedTuple):
    """The n examples of a source's split, in stretches of equal length."""

    parts: list[str]
    n: int
    name: Callable[[int], str]  # of an example, in messages

    @classmethod
    def of(cls, digests: np.ndarray, name: Callable[[int], str]) -> Listing:
        """That of examples with these digests, uint8 [n, bytes]."""
        every = _every(len(digests))
        stretches = (digests[start : start + every] for start in range(0, len(digests), every))
        return cls([hashlib.blake2b(part.tobytes(), digest_size=4).hexdigest() for part in stretches],
                   len(digests), name)  # fmt: skip

    def first_difference(self, then: Any) -> str:
        """A clause on the first stretch that is not as it was in the `parts` of as many examples; else empty."""
        if not isinstance(then, list) or len(then) != len(self.parts):
            return ""
        i = next((i for i, pair in enumerate(zip(self.parts, then, strict=True)) if pair[0] != pair[1]), -1)
        every = _every(self.n)
        among = f"one of the {every} from {self.name(i * every)} on" if every > 1 else self.name(i)
        return f"its first example that is not as it was is {among}" if i >= 0 else ""


def _every(n: int) -> int:
    """Examples in a stretch."""
    return max(1, -(-n // PARTS))


SPLITS = ("train", "validation", "test")
Rows = Callable[[int], np.ndarray] | None  # of a batch of so many, those that this host takes, int [k]; None: all


@dataclass(frozen=True)
class GivenData:
    """Examples that Python gave, in place of a source that a config names."""

    data: Any  # those of train, or {split: its examples}, each in the form that the task takes
    class_names: Sequence[str] = ()

    @classmethod
    def of(cls, data: Any, class_names: Sequence[str]) -> Self | None:
        """What a function was given, if anything. Raises UserError where classes of no examples are named."""
        if data is None and class_names:
            raise UserError("class_names", "are those of examples given as data=...", "leave them out")
        return None if data is None else cls(data, class_names)

    @property
    def whole(self) -> bool:
        """Whether the examples come without splits."""
        return not isinstance(self.data, Mapping)

    def splits(self) -> dict[str, Any]:
        """{split: its examples}, train first; those without splits are train."""
        if self.whole:
            return {"train": self.data}
        if not self.data or not self.data.keys() <= {*SPLITS}:
            unknown = next((f"{name!r}" for name in self.data if name not in SPLITS), "empty")
            raise UserError(
                "data", f"its split is {unknown}", f"give {', '.join(SPLITS)}, of which train is needed to train"
            )
        return {name: self.data[name] for name in SPLITS if name in self.data}


def not_given(source: str, form: str) -> UserError:
    """The error for a run whose data was given in Python, where none is given."""
    return UserError(
        f"data.source {source}",
        "the data of this run was given in Python, and no file holds it",
        f"call vit_jax.train(run, data={form}) or vit_jax.evaluate(run, data={form}) with it",
    )


class Split(Protocol):
    """The examples of one split, numbered 0..n-1.

    Where examples have lengths, it also has them as `longest`, int [n], by which evaluation orders them.
    """

    def __len__(self) -> int:
        """n."""

    def subset(self, indices: np.ndarray) -> Split:
        """A split of only these examples. `indices` is int [k]."""

    def batch(self, indices: np.ndarray) -> dict[str, np.ndarray]:
        """The training batch of these examples, int [k], as {name: [B, ...]}, called from a background thread.

        B may exceed k: rows that pad a batch must not count in the task's loss. Every shape is compiled once, so the
        shapes should be few.
        """

    def examples(self, indices: np.ndarray) -> dict[str, np.ndarray]:
        """The same examples for evaluation, {name: [k, ...]}: exactly one row per index, and of few shapes."""


class Order(Protocol):
    """Which examples each training step takes, as a function of the seed and the step alone."""

    n: int
    steps_per_epoch: int

    @property
    def batch(self) -> float:
        """Examples per step, on average; for the reported speed."""

    def indices(self, step: int) -> np.ndarray:
        """int64 [k]: indices into the training split for a step, counted from 0. Any step may be asked for first."""


@dataclass(frozen=True, kw_only=True)
class Data:
    """The data of a run."""

    splits: Mapping[str, Any]  # {name: Split}: train first, then validation, test and others where there are any
    identity: dict[str, Any]  # JSON values that are equal exactly if the data is; they are written to config.json
    remarks: tuple[str, ...]  # sentences for the user, printed once when the data is opened
    listings: Mapping[str, Listing] = field(default_factory=dict)  # {split: ...}, for messages; empty where not known

    @property
    def name(self) -> str:
        """Its name, as printed."""
        return str(self.identity["name"])

    def same_as(self, recorded: dict[str, Any] | None) -> bool:
        """Whether this is the data that a run began with, as it has to be where it resumes.

        The name in the recorded identity does not count: it may be that of a folder. None: the data is not known, as of
        a converted run.
        """
        if recorded is None:
            return True
        return isinstance(recorded, dict) and {**recorded, "name": ""} == {**self.identity, "name": ""}

    def difference(self, record: Mapping[str, Any]) -> str:
        """A clause on how this differs from the data of a run, by its config.json; empty where it is `same_as` that.

        The first of these that differs: the number of examples, the classes, the words, the content.
        """
        then, now = record["data"], self.identity
        if self.same_as(then):
            return ""
        if not isinstance(then, dict):
            return "that of the run is damaged"
        if then.get("once") or now.get("once"):
            return "the batches of an iterator come once"
        if then.get("classes") != now.get("classes"):
            return _other_names(record.get("class_names"), self.metadata().get("class_names"))
        were, are = (each.get("sizes") or {} for each in (then, now))
        both = ("it", sum(were.values()), sum(are.values())), *((s, were.get(s, 0), are[s]) for s in are)
        for what, had, has in both:
            if had != has:
                return f"{what} has {has:,} examples, and had {had:,}"
        if then.get("vocabulary") != now.get("vocabulary"):
            return "its words, or how they are split, are others"
        kept = record.get("listings")
        for split, listing in self.listings.items():
            if clause := listing.first_difference(kept.get(split) if isinstance(kept, dict) else None):
                return clause
        return "its numbers of examples are the same, but their content is not"

    @property
    def contents(self) -> str:
        """A few words on the contents, as printed: "10 classes"."""
        raise NotImplementedError

    @property
    def sizes(self) -> dict[str, int]:
        """{field of the network's config: its value}, for the sizes that the data determines, such as classes."""
        raise NotImplementedError

    def metadata(self) -> dict[str, Any]:
        """JSON values without which the trained network could not be used, such as class names, for config.json.

        The keys are those of `TaskSpec.metadata`.
        """
        raise NotImplementedError

    def step_sizes(self, batch: int) -> dict[str, int]:
        """The sizes of a training batch, each of which the devices and the steps of accumulation have to divide.

        {the setting as the user knows it: rows}, one entry per shape that training batches have.
        """
        return {f"batch {batch}": batch}

    def order(self, batch: int, seed: int, batches: int = 0) -> Order:
        """The order of training; with `batches` only the first examples that fill so many are taken."""
        raise NotImplementedError


@dataclass(frozen=True)
class Other:
    """One split of other data than that which a network was trained on."""

    name: str  # of the split; "all" where the data has no splits
    split: Any
    total: int
    remarks: tuple[str, ...]


def choose_split(whose: str, there: Iterable[str], wanted: str) -> str:
    """The split of other data to evaluate: `wanted`, or test, validation or the first of those that are there."""
    names = [*there]
    name = wanted or next((each for each in ("test", "validation") if each in names), names[0])
    if name not in names:
        raise UserError(f"there is no split {name!r}", remedy=f"{whose} has {', '.join(names)}; choose one of them")
    return name


def _other_names(then: Any, now: Any) -> str:
    """A clause on the first class that has another name."""
    if not isinstance(then, list) or not isinstance(now, list) or len(then) != len(now):
        known = isinstance(then, list) and isinstance(now, list)
        return f"it has {len(now)} classes, and had {len(then)}" if known else "its classes are others"
    pairs = (f"its class {k} is {a!r}, and was {b!r}" for k, (a, b) in enumerate(zip(now, then, strict=True)) if a != b)
    return next(pairs, "its classes are others")
