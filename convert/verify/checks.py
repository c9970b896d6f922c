"""What is compared, how far apart it is, and how far apart it may be: for `--verify` and for tests/parity alike."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from vit_jax.config.dotted import value_at
from vit_jax.config.network import NetworkConfig

from ..layout import Facts
from ..operations import same
from .weights import Weights

# As a share of the largest value. Correct code stays below 1e-13 in float64 and 2e-6 in float32. The smallest fault
# that outputs show is an eps of 1e-12 for 1e-6: 2e-6, which float64 alone can see; tanh for erf GELU is 1e-4.
FORWARD = {"float64": 1e-12, "float32": 1e-5}
# A gradient, as a share of its tensor's largest value where that is at least SIZEABLE of the model's largest (OWN), and
# as a share of the model's largest (MODEL).
OWN, MODEL, SIZEABLE = 1e-11, 1e-12, 1e-3
# Where scores of attention are large, as those of T5 may be, rounding alone shows more. Then right code may lie so many
# times as far apart as our own results move when each parameter is moved by its last bit, up to FARTHEST.
ROUNDINGS = 30
FARTHEST = {"float64": 1e-9, "float32": 1e-3}
STEPS = 1e-10  # of parameters after steps, as a share of the largest change of one
BITS = "tensors, bit for bit"
Arrays = Mapping[str, np.ndarray]


@dataclass(frozen=True)
class Check:
    """One comparison: of what, with what, in which quantity, how far apart, how far allowed."""

    subject: str
    against: str
    quantity: str
    difference: float
    limit: float
    where: str = ""  # the first layer or tensor beyond the limit, else the one farthest apart

    @property
    def passed(self) -> bool:
        return bool(self.difference <= self.limit)  # NaN does not pass

    def __str__(self) -> str:
        place = f" at {self.where}" if self.where else ""
        how = f"{self.difference:.1e}{place}, allowed {self.limit:.0e}"
        return f"{self.subject} against {self.against}, {self.quantity}: {how}"


def failures(checks: Iterable[Check]) -> list[Check]:
    """Those beyond their limits."""
    return [c for c in checks if not c.passed]


# --------------------------------------------------------------------------- without a forward pass


def check_return(weights: Weights) -> Check:
    """The file's tensors, read to ours and written again, bit for bit."""
    quantity = "tensors, read and written again"
    return bits(weights.name, "itself", weights.returned, weights.tensors, quantity)


def configs(a: str, b: str, first: NetworkConfig, second: NetworkConfig) -> Check:
    """The number of fields that decide the function and differ."""
    if type(first) is not type(second):
        return Check(a, b, "config", np.inf, 0.0, f"{type(first).__name__} and {type(second).__name__}")
    x, y = first.normal(), second.normal()
    names = [n for n in first.function_fields() if value_at(x, n) != value_at(y, n)]
    where = ", ".join(f"{n} {value_at(x, n)!r} and {value_at(y, n)!r}" for n in names)
    return Check(a, b, "config", float(len(names)), 0.0, where)


def statistics(a: str, b: str, first: Facts, second: Facts) -> Check:
    """The mean and standard deviation of pixels, where both files state them."""
    if first.preprocess is None or second.preprocess is None:
        return Check(a, b, "statistics of pixels, where both state them", 0.0, 0.0)
    apart = {n: float(np.abs(np.subtract(first.preprocess[n], second.preprocess[n])).max()) for n in ("mean", "std")}
    where = _first(apart, 1e-6)
    return Check(a, b, "statistics of pixels, where both state them", apart[where], 1e-6, where)


def bits(subject: str, against: str, found: Arrays, expected: Arrays, quantity: str = BITS) -> Check:
    """Names, shapes, dtypes and bits: what outputs cannot tell apart (a lost key bias, permuted heads)."""
    if found.keys() != expected.keys():
        only = ", ".join(sorted(found.keys() ^ expected.keys())[:3])
        return Check(subject, against, quantity, np.inf, 0.0, f"only one has {only}")
    apart = [n for n in expected if not same(found[n], expected[n])]
    return Check(subject, against, quantity, float(len(apart)), 0.0, ", ".join(apart[:3]))


# ------------------------------------------------------------------------------------ by computing


def values(
    subject: str, against: str, quantity: str, found: Arrays, expected: Arrays, dtype: str, limit: float | None = None
) -> Check:
    """Arrays arrays in the order of the forward pass, each of this dtype; names the first that is beyond the limit."""
    limit = FORWARD[dtype] if limit is None else limit
    if list(found) != list(expected):
        names = sorted(found.keys() ^ expected.keys()) or list(found)
        return Check(subject, against, quantity, np.inf, limit, f"names {names}")
    apart = {n: relative(found[n], expected[n]) if found[n].dtype == dtype else np.inf for n in expected}
    where = _first(apart, limit)
    return Check(subject, against, quantity, apart.get(where, 0.0), limit, where)


def gradients(
    subject: str, against: str, found: Arrays, expected: Arrays, limits: Sequence[float] = (OWN, MODEL)
) -> list[Check]:
    """Float64 gradients of one number, by both limits."""
    if found.keys() != expected.keys():
        names = f"names {sorted(found.keys() ^ expected.keys())}"
        return [Check(subject, against, "gradients, float64", np.inf, limits[0], names)]
    size = {n: float(np.abs(g).max(initial=0.0)) for n, g in expected.items()}
    largest = max(size.values(), default=0.0) or 1.0
    apart = {n: distance(found[n], expected[n]) for n in expected}
    own = {n: d / size[n] for n, d in apart.items() if size[n] >= SIZEABLE * largest}
    model = {n: d / largest for n, d in apart.items()}
    checks = []
    for whose, shares, limit in zip(("its tensor's", "the model's"), (own, model), limits, strict=True):
        where = _first(shares, limit)
        quantity = f"gradients, float64, of {whose} largest"
        checks.append(Check(subject, against, quantity, shares.get(where, 0.0), limit, where))
    return checks


def beyond_rounding(
    compare: Callable[..., list[Check]], found: Arrays, of_neighbours: Callable[[], Sequence[Arrays]], dtype: str
) -> list[Check]:
    """Comparisons, whose limits follow rounding where one of them fails."""
    checks = compare(found)
    if not failures(checks) or not all(np.isfinite(c.difference) for c in checks):
        return checks
    others = [compare(each, [np.inf] * len(checks)) for each in of_neighbours()]
    spread = [max(each.difference for each in same) for same in zip(*others, strict=True)]
    limits = [max(c.limit, min(ROUNDINGS * s, FARTHEST[dtype])) for c, s in zip(checks, spread, strict=True)]
    return compare(found, limits)


def check_steps(subject: str, against: str, found: Arrays, expected: Arrays, start: Arrays, n: int) -> Check:
    """Parameters after n steps of an optimizer, from the same start."""
    changes = (float(np.abs(expected[name] - start[name].astype(np.float64)).max(initial=0.0)) for name in expected)
    largest = max(changes, default=0.0) or 1.0
    apart = {name: distance(found[name], expected[name]) / largest for name in expected}
    where = _first(apart, STEPS)
    return Check(subject, against, f"parameters after {n} steps, float64", apart.get(where, 0.0), STEPS, where)


def distance(found: np.ndarray, expected: np.ndarray) -> float:
    """The largest |found - expected|; infinite where shapes or dtypes differ, or a value is no number."""
    if found.shape != expected.shape or found.dtype != expected.dtype:
        return np.inf
    if not (np.isfinite(found).all() and np.isfinite(expected).all()):
        return np.inf
    return float(np.abs(found - expected).max(initial=0.0))


def relative(found: np.ndarray, expected: np.ndarray) -> float:
    """The distance as a share of the largest expected value."""
    apart = distance(found, expected)
    return apart / (float(np.abs(expected).max(initial=0.0)) or 1.0) if apart else 0.0


def _first(apart: Mapping[str, float], limit: float) -> str:
    """The first name that is beyond the limit, else the one farthest apart."""
    return next((n for n, d in apart.items() if not d <= limit), max(apart, key=apart.__getitem__, default=""))
