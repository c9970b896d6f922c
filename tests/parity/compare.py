"""What a comparison gives, and the limits that it has to keep."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

Arrays = Mapping[str, np.ndarray]

# Relative to the largest value. Float64 of correct code stays below 1e-13, float32 below 2e-6; the smallest
# fault that logits can show in float32 is 1e-4 (tanh for erf GELU), in float64 3e-6 (eps 1e-5 for 1e-6).
FORWARD = {"float64": 1e-12, "float32": 1e-5}
# A gradient: of its tensor's own largest where that is at least SIZEABLE of the model's, and of the model's for all.
OWN, MODEL, SIZEABLE = 1e-11, 1e-12, 1e-3
DIFFERENCES = 1e-6  # central differences, h = 1e-4
STEPS, STEPS_ZERO = 1e-10, 1e-7  # ten optimizer steps: all tensors; those whose true gradient is 0
LOSSES = {"float64": 1e-9, "float32": 1e-5}


@dataclass(frozen=True)
class Result:
    """One comparison: what, with what, in which quantity, how far apart, how far allowed."""

    subject: str
    against: str
    quantity: str
    difference: float
    limit: float
    where: str = ""  # the first layer or the tensor in which the two part

    @property
    def passed(self) -> bool:
        return bool(self.difference <= self.limit)  # NaN is no pass

    def __str__(self) -> str:
        place = f" at {self.where}" if self.where else ""
        return (
            f"{self.subject} against {self.against}, {self.quantity}: {self.difference:.1e} > {self.limit:.0e}{place}"
        )


def failures(results: Iterable[Result]) -> str:
    """One line for each comparison that is beyond its limit; empty where all pass."""
    return "\n".join(str(r) for r in results if not r.passed)


def distance(ours: np.ndarray, theirs: np.ndarray) -> float:
    """The largest |ours - theirs|; infinite where shapes or dtypes differ, or a value is no number."""
    if ours.shape != theirs.shape or ours.dtype != theirs.dtype:
        return np.inf
    if not (np.isfinite(ours).all() and np.isfinite(theirs).all()):
        return np.inf
    return float(np.abs(ours - theirs).max(initial=0.0))


def relative(ours: np.ndarray, theirs: np.ndarray) -> float:
    """The distance as a share of their largest value."""
    apart = distance(ours, theirs)
    return apart / (float(np.abs(theirs).max(initial=0.0)) or 1.0) if apart else 0.0


def values(
    subject: str, against: str, quantity: str, ours: Arrays, theirs: Arrays, dtype: str, limit: float | None = None
) -> Result:
    """Named arrays in the order of the forward pass, each in this dtype: the first that parts is the one named."""
    limit = FORWARD[dtype] if limit is None else limit
    worst, where = 0.0, ""
    if list(ours) != list(theirs):
        return Result(
            subject, against, quantity, np.inf, limit, f"names {sorted(set(ours) ^ set(theirs)) or list(ours)}"
        )
    for name in ours:
        apart = relative(ours[name], theirs[name]) if ours[name].dtype == dtype else np.inf
        if not apart <= limit:
            return Result(subject, against, quantity, apart, limit, name)
        if apart > worst:
            worst, where = apart, name
    return Result(subject, against, quantity, worst, limit, where)


def gradients(subject: str, against: str, ours: Arrays, theirs: Arrays, zero: set[str]) -> list[Result]:
    """Both limits of float64 gradients; `zero` names those whose true gradient is 0, for the second alone."""
    if ours.keys() != theirs.keys():
        return [Result(subject, against, "gradients", np.inf, OWN, f"names {sorted(ours.keys() ^ theirs.keys())}")]
    size = {name: float(np.abs(g).max(initial=0.0)) for name, g in theirs.items()}
    largest = max(size.values())
    apart = {name: distance(ours[name], theirs[name]) for name in ours}
    own = {name: apart[name] / size[name] for name in ours if name not in zero and size[name] >= SIZEABLE * largest}
    model = {name: apart[name] / (largest or 1.0) for name in ours}
    worst, place = max(own, key=own.__getitem__), max(model, key=model.__getitem__)
    return [
        Result(subject, against, "gradients, of each tensor's largest", own[worst], OWN, worst),
        Result(subject, against, "gradients, of the model's largest", model[place], MODEL, place),
    ]


def tensors(subject: str, against: str, ours: Arrays, theirs: Arrays) -> Result:
    """Bit for bit: what logits cannot tell apart (a dropped key bias, permuted heads)."""
    if ours.keys() != theirs.keys():
        return Result(
            subject, against, "tensors, bit for bit", np.inf, 0.0, f"names {sorted(ours.keys() ^ theirs.keys())}"
        )
    different = [n for n in ours if ours[n].shape != theirs[n].shape or ours[n].tobytes() != theirs[n].tobytes()]
    return Result(subject, against, "tensors, bit for bit", float(len(different)), 0.0, ", ".join(different[:3]))
