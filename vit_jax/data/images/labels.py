"""The labels of images, by what is learned of them: one class, a set of labels, or numbers (config/outputs.py).

What a source, a split and a batch of images do with labels is in one class of each kind here; what a network and its
task do with them is in tasks/classify/kind.py. n is the number of examples, K that of classes, labels or numbers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np

from ...config.hints import nearest
from ...config.outputs import Outputs
from ...errors import UserError
from ..order import Positives, hold_out, hold_out_groups
from .config import composed, numbered_classes
from .sources.base import Source
from .sources.layout import WHOLE

UNKNOWN = -1  # in a set: nobody knows whether the label is there
PARTS = 5  # of the range of a number, each with as many examples: a part that is held out has its share of each


class Labels:
    """The base class of labels of a kind."""

    each: ClassVar[tuple[str, str]]  # what one of the K is called, and several
    least: ClassVar[int] = 1  # of the K that a part of the data has to have, to be measured

    def contents(self, outputs: Outputs) -> str:
        """K in words, as printed: 10 classes."""
        return f"{len(outputs.names)} {self.each[len(outputs.names) != 1]}"

    def check(self, field: str, source: Source) -> None:
        """Raise UserError where nothing could be learned of the labels of a source."""

    def present(self, labels: np.ndarray) -> np.ndarray:
        """Those of the K that any example has, int [k], ascending."""
        raise NotImplementedError

    def positives(self, labels: np.ndarray) -> Positives:
        """What folds and groups that are held out get their share of."""
        raise NotImplementedError

    def has(self, label: np.ndarray, some: np.ndarray) -> bool:
        """Whether an example has any of these of the K."""
        raise NotImplementedError

    def hold_out(
        self, labels: np.ndarray, groups: np.ndarray | None, share: float, *seed: int
    ) -> tuple[np.ndarray, np.ndarray]:
        """(indices of examples that stay, and of those held out), alike in their labels, with groups whole."""
        return hold_out_groups(len(labels), self.positives(labels), groups, share, *seed)

    def fitted(self, field: str, outputs: Outputs, train: np.ndarray) -> Outputs:
        """The outputs with what the training part decides."""
        return outputs

    def in_batch(self, labels: np.ndarray, outputs: Outputs) -> np.ndarray:
        """The labels of a batch, as a loss takes them."""
        return labels

    def matched(self, field: str, split: str, source: Source, network: Sequence[str]) -> tuple[np.ndarray, str]:
        """(the labels of other data as a network has them, [n, ...], a remark where they are not matched by name)."""
        raise NotImplementedError

    def groups(self, labels: np.ndarray) -> np.ndarray:
        """int [n], equal of examples with similar labels, by which pictures take different ones."""
        raise NotImplementedError

    def words(self, label: Any, outputs: Outputs) -> str:
        """The label of an example, in words."""
        raise NotImplementedError

    def remarks(self, outputs: Outputs, splits: Mapping[str, np.ndarray]) -> tuple[str, ...]:
        """What is to be known of the labels of each split, {name: labels}."""
        out = []
        for name, labels in splits.items():
            names = [outputs.names[k] for k in np.setdiff1d(np.arange(len(outputs.names)), self.present(labels))]
            if names:
                listed = ", ".join(names[:3]) + (", ..." if len(names) > 3 else "")
                averages = "" if name == "train" else "; its macro averages are over the others"
                of = f"{len(names)} of the {self.contents(outputs)}"
                out.append(f"{name} has no example of {of} ({listed}){averages}")
        return tuple(out)


class Classes(Labels):
    """One of K classes, int32 [n]."""

    each = "class", "classes"
    least = 2

    def check(self, field: str, source: Source) -> None:
        """Labels are numbers of classes, and train has two or more of these."""
        classes = len(source.outputs.names)
        for name, examples in source.splits.items():
            low, high = examples.labels.min(), examples.labels.max()
            if low < 0 or high >= classes:
                raise UserError(
                    field,
                    f"labels of its {name} split go from {low} to {high} but there are {classes} classes",
                    "number them from 0" + (", as labels - 1" if low == 1 and high == classes else ""),
                )
        if source.counted:
            check_counted(field, source)
        present = self.present(source.splits["train"].labels)
        if len(present) < 2:
            raise UserError(
                field, f"its only class is {source.outputs.names[present[0]]}", "classification needs two or more"
            )

    def present(self, labels: np.ndarray) -> np.ndarray:
        return np.unique(labels)

    def positives(self, labels: np.ndarray) -> Positives:
        return Positives(np.arange(len(labels)), labels)

    def has(self, label: np.ndarray, some: np.ndarray) -> bool:
        return label in some

    def groups(self, labels: np.ndarray) -> np.ndarray:
        return labels

    def words(self, label: Any, outputs: Outputs) -> str:
        return outputs.names[label]

    def hold_out(
        self, labels: np.ndarray, groups: np.ndarray | None, share: float, *seed: int
    ) -> tuple[np.ndarray, np.ndarray]:
        return hold_out(labels, share, *seed) if groups is None else super().hold_out(labels, groups, share, *seed)

    def matched(self, field: str, split: str, source: Source, network: Sequence[str]) -> tuple[np.ndarray, str]:
        """Only classes that the split has need be the network's."""
        if source.counted:
            check_counted(field, source, len(network))
        labels, names = source.splits[split].labels, source.outputs.names
        present = self.present(labels)
        if present[0] < 0 or present[-1] >= len(names):
            of = "" if split == WHOLE else f" of its {split} split"
            raise UserError(
                field,
                f"labels{of} go from {present[0]} to {present[-1]} but there are {len(names)} classes",
                "number them from 0",
            )
        places, remark = _match_names(field, names, present, network, self.each)
        return places[labels], remark


class LabelSets(Labels):
    """For each of K labels whether it is there: int8 [n, K], 1, 0, or -1 where nobody knows."""

    each = "label", "labels"

    def check(self, field: str, source: Source) -> None:
        """Every label of another split is one that train has."""
        names, train = source.outputs.names, self.present(source.splits["train"].labels)
        if not len(train):
            raise UserError(field, "no image of its train split has any label", "give images that have some")
        for split, examples in source.splits.items():
            if len(extra := np.setdiff1d(self.present(examples.labels), train)):
                raise UserError(
                    field,
                    f"label {names[extra[0]]} is in {split} but not in train",
                    "add examples of it to train, or leave it out",
                )

    def present(self, labels: np.ndarray) -> np.ndarray:
        return np.flatnonzero((labels == 1).any(0))

    def positives(self, labels: np.ndarray) -> Positives:
        return Positives(*np.nonzero(labels == 1))

    def has(self, label: np.ndarray, some: np.ndarray) -> bool:
        return bool((label[some] == 1).any())

    def groups(self, labels: np.ndarray) -> np.ndarray:
        return np.unique(labels, axis=0, return_inverse=True)[1].reshape(-1)

    def words(self, label: Any, outputs: Outputs) -> str:
        return ", ".join(outputs.names[k] for k in np.flatnonzero(label == 1)) or "none"

    def matched(self, field: str, split: str, source: Source, network: Sequence[str]) -> tuple[np.ndarray, str]:
        """Labels of the network that the data has no column of are unknown."""
        labels, known = source.splits[split].labels, np.arange(len(source.outputs.names))
        places, remark = _match_names(field, source.outputs.names, known, network, self.each)
        out = np.full((len(labels), len(network)), UNKNOWN, np.int8)
        out[:, places] = labels
        return out, remark

    def remarks(self, outputs: Outputs, splits: Mapping[str, np.ndarray]) -> tuple[str, ...]:
        """Which labels a split lacks, and how much of it nobody knows."""
        unknown = {name: (labels == UNKNOWN).mean() for name, labels in splits.items()}
        said = [f"{share:.1%} of {name}" for name, share in unknown.items() if share]
        masked = (f"unknown labels count neither in training nor in metrics: {', '.join(said)}",) if said else ()
        return (*super().remarks(outputs, splits), *masked)


class Numbers(Labels):
    """K numbers, finite: float64 [n, K], in the user's units. Batches have them normalised."""

    each = "number", "numbers"

    def present(self, labels: np.ndarray) -> np.ndarray:
        return np.arange(labels.shape[1])

    def positives(self, labels: np.ndarray) -> Positives:
        return Positives(*np.nonzero(_parts(labels)))

    def has(self, label: np.ndarray, some: np.ndarray) -> bool:
        return bool(len(some))

    def groups(self, labels: np.ndarray) -> np.ndarray:
        return _parts(labels[:, :1]).argmax(1)

    def words(self, label: Any, outputs: Outputs) -> str:
        return ", ".join(f"{name} {value:.4g}" for name, value in zip(outputs.names, label, strict=True))

    def matched(self, field: str, split: str, source: Source, network: Sequence[str]) -> tuple[np.ndarray, str]:
        """Every number of the network has to be there."""
        labels, known = source.splits[split].labels, np.arange(len(source.outputs.names))
        places, remark = _match_names(field, source.outputs.names, known, network, self.each)
        if len(missing := np.setdiff1d(np.arange(len(network)), places)):
            raise UserError(field, f"lacks the number {network[missing[0]]} of the network", "add it")
        return labels[:, np.argsort(places)], remark

    def fitted(self, field: str, outputs: Outputs, train: np.ndarray) -> Outputs:
        """The outputs with the mean and the population std of the training part: train float64 [n, K]."""
        with np.errstate(over="ignore"):  # what overflows is refused below
            mean, std = train.mean(0), train.std(0)
        for name, values, spread in zip(outputs.names, train.T, std, strict=True):
            if values.min() == values.max() or not (np.isfinite(spread) and spread > 0):
                what = f"is {values[0]:g} of every image" if values.min() == values.max() else "has no finite std"
                raise UserError(field, f"{name} {what} to train on", "leave it out, or give images that differ in it")
        return replace(outputs, mean=tuple(mean.tolist()), std=tuple(std.tolist()))

    def in_batch(self, labels: np.ndarray, outputs: Outputs) -> np.ndarray:
        """float32, with mean 0 and std 1 over the training part; of a network that gives the numbers, as they are."""
        if not outputs.mean:
            return labels.astype(np.float32)
        return ((labels - np.array(outputs.mean)) / np.array(outputs.std)).astype(np.float32)


LABELS = {"class": Classes(), "set": LabelSets(), "number": Numbers()}


def labels_of(outputs: Outputs) -> Labels:
    """The labels of a kind."""
    return LABELS[outputs.kind]


def _match_names(
    field: str, names: Sequence[str], present: np.ndarray, network: Sequence[str], each: tuple[str, str]
) -> tuple[np.ndarray, str]:
    """The places of names of the data among those of a network: present int [k]."""
    known = [composed(name) for name in network]
    place = {name: k for k, name in enumerate(known)}
    used = [names[k] for k in present]
    twice = sorted({name for name in used if known.count(composed(name)) > 1}) if len(place) < len(network) else []
    if twice:
        raise UserError(field, f"several {each[1]} of the network are called {twice[0]!r}", "rename one of them")
    unknown = [name for name in used if composed(name) not in place]
    if not unknown:
        return np.array([place.get(composed(name), -1) for name in names], np.int32), ""
    in_order = np.arange(len(names), dtype=np.int32)
    if list(names) == numbered_classes(len(names)) and present[-1] < len(network):
        return in_order, f"its {each[1]} have no names: their numbers are taken as the network's"
    numbered = list(network) == numbered_classes(len(network))
    if numbered and len(names) == len(network):
        return in_order, f"the network's {each[1]} are only numbers: the data's are matched by order"
    listed = ", ".join(map(repr, unknown[:5])) + (f" and {len(unknown) - 5} more" if len(unknown) > 5 else "")
    ours = ", ".join(map(repr, network[:3])) + (f", ... {network[-1]!r}" if len(network) > 3 else "")
    hint = nearest(unknown[0], list(network)) if len(unknown) == 1 and not numbered else ""
    raise UserError(
        field,
        f"the network has no {each[0]} {listed}{hint}",
        f"its {len(network)} are {ours}: rename these {each[1]} of the data, or leave them out",
    )


def _parts(labels: np.ndarray) -> np.ndarray:
    """bool [n, K * PARTS]: in which part of the range of each number, of equally many examples, each example lies."""
    n, k = labels.shape
    ranks = labels.argsort(0, kind="stable").argsort(0, kind="stable")
    out = np.zeros((n, k, PARTS), bool)
    np.put_along_axis(out, (ranks * PARTS // n)[..., None], True, 2)
    return out.reshape(n, -1)


def check_counted(field: str, source: Source, classes: int = 0) -> None:
    """Check labels without names, which are the numbers of classes."""
    labels = {name: np.unique(each.labels) for name, each in source.splits.items() if len(each.labels)}
    first, last = min(each[0] for each in labels.values()), max(each[-1] for each in labels.values())
    if first > 0 and (not classes or last >= classes):
        raise UserError(
            field,
            f"labels go from {first} to {last}, and none is 0" + (f" of {classes} classes" if classes else ""),
            f"subtract {first} if they begin at {first}; if not, name all classes from 0 on as class_names",
        )
    for name, each in labels.items() if not classes else ():
        if len(extra := np.setdiff1d(each, labels["train"])):
            raise UserError(
                field, f"label {extra[0]} is in {name} but not in train", "add examples of it to train, or leave it out"
            )
