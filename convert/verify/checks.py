"""What is compared, how far apart it is, and how far it may be."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

import numpy as np

from vit_jax.config import ModelConfig, function_fields, network_of, normal

from ..layout import Facts
from ..rules import same
from .libraries import Built
from .sides import Ours, Theirs
from .weights import Arrays, Inputs, Weights, noise

# Of the largest value. Correct code stays below 1e-13 and 2e-6; the smallest fault that outputs show is eps 1e-12 for
# 1e-6, 2e-6: for float64 alone to see.
FORWARD = {"float64": 1e-12, "float32": 1e-5}
# A gradient, of its tensor's own largest where that is at least SIZEABLE of the model's, and of the model's for all.
OWN, MODEL, SIZEABLE = 1e-10, 1e-11, 1e-3
STEPS = 1e-9  # of parameters after steps, as a share of the largest way that one of them went


@dataclass(frozen=True)
class Check:
    """One comparison: of what, with what, in which quantity, how far apart, how far allowed."""

    subject: str
    against: str
    quantity: str
    difference: float
    limit: float
    where: str = ""  # the first layer, or the tensor, in which the two part; else where they are farthest apart

    @property
    def passed(self) -> bool:
        return bool(self.difference <= self.limit)  # NaN is no pass

    def __str__(self) -> str:
        place = f" at {self.where}" if self.where else ""
        return f"{self.subject} against {self.against}, {self.quantity}: {self.difference:.1e}, allowed {self.limit:.0e}{place}"


# --------------------------------------------------------------------------- without a forward pass


def returned(weights: Weights) -> Check:
    """The file's tensors, read to ours and written again, bit for bit."""
    return bits(
        weights.name, "itself", "tensors after the way to ours and back", dict(weights.tensors), weights.returned
    )


def configs(a: str, b: str, first: ModelConfig, second: ModelConfig) -> Check:
    """The fields that decide the function."""
    if type(first) is not type(second):
        return Check(a, b, "config", np.inf, 0.0, f"{type(first).__name__} and {type(second).__name__}")
    x, y = normal(first), normal(second)
    apart = [
        f"{n} {getattr(x, n)!r} and {getattr(y, n)!r}" for n in function_fields(first) if getattr(x, n) != getattr(y, n)
    ]
    return Check(a, b, "config", float(len(apart)), 0.0, ", ".join(apart))


def statistics(a: str, b: str, first: Facts, second: Facts) -> Check:
    """The mean and standard deviation of pixels, where both files say them."""
    if first.preprocess is None or second.preprocess is None:
        return Check(a, b, "statistics of pixels, where both say them", 0.0, 0.0)
    apart = {n: float(np.abs(np.subtract(first.preprocess[n], second.preprocess[n])).max()) for n in ("mean", "std")}
    where = max(apart, key=apart.__getitem__)
    return Check(a, b, "statistics of pixels, where both say them", apart[where], 1e-6, where)


def bits(subject: str, against: str, quantity: str, a: Arrays, b: Arrays) -> Check:
    """Names, shapes, dtypes and bits: what outputs cannot tell apart (a lost key bias, permuted heads)."""
    if a.keys() != b.keys():
        return Check(
            subject, against, quantity, np.inf, 0.0, f"only one has {', '.join(sorted(a.keys() ^ b.keys())[:3])}"
        )
    apart = [n for n in a if not same(a[n], b[n])]
    return Check(subject, against, quantity, float(len(apart)), 0.0, ", ".join(apart[:3]))


# ------------------------------------------------------------------------------------ by computing


def forward(subject: str, against: str, theirs: Arrays, ours: Arrays, dtype: str) -> Check:
    """Captured values in the order of the pass: the first that parts is named. Theirs may lack inner ones."""
    worst, where, limit = 0.0, "", FORWARD[dtype]
    for name in (n for n in ours if n in theirs):
        apart = relative(theirs[name], ours[name])
        if not apart <= limit:
            return Check(subject, against, f"forward, {dtype}", apart, limit, name)
        if apart > worst:
            worst, where = apart, name
    return Check(subject, against, f"forward, {dtype}", worst, limit, where)


def gradients(subject: str, against: str, theirs: Arrays, ours: Arrays) -> Iterator[Check]:
    """Float64 gradients of a random sum of the outputs, by both limits."""
    size = {n: float(np.abs(g).max(initial=0.0)) for n, g in ours.items()}
    largest = max(size.values(), default=0.0) or 1.0
    apart = {n: distance(theirs[n], ours[n]) for n in ours if n in theirs}
    own = {n: d / size[n] for n, d in apart.items() if size[n] >= SIZEABLE * largest}
    for quantity, found, limit in (
        ("of its tensor's largest", own, OWN),
        ("of the model's largest", {n: d / largest for n, d in apart.items()}, MODEL),
    ):
        where = _first(found, limit)
        yield Check(subject, against, f"gradients, float64, {quantity}", found.get(where, 0.0), limit, where)


def stepped(subject: str, against: str, theirs: Arrays, ours: Arrays, start: Arrays, n: int) -> Check:
    """Parameters after steps of SGD with momentum."""
    way = (
        max((float(np.abs(ours[name] - start[name].astype(np.float64)).max(initial=0.0)) for name in ours), default=0.0)
        or 1.0
    )
    apart = {name: distance(theirs[name], ours[name]) / way for name in ours}
    where = _first(apart, STEPS)
    return Check(subject, against, f"parameters after {n} steps, float64", apart.get(where, 0.0), STEPS, where)


def _first(apart: dict[str, float], limit: float) -> str:
    """The first name that is beyond the limit, else the one farthest apart."""
    return next((n for n, d in apart.items() if not d <= limit), max(apart, key=apart.__getitem__, default=""))


class Reference:
    """Our network of a config on given inputs: every other side is compared with it. What it computes is kept."""

    def __init__(self, name: str, config: ModelConfig, parameters: Arrays, inputs: Inputs | None = None):
        self.name, self.config, self.parameters = name, config, parameters
        self.inputs, self.outputs = noise(config) if inputs is None else inputs, network_of(config).captured(config)[-1]
        self._values: dict[str, Arrays] = {}
        self._gradients: Arrays | None = None

    def values(self, dtype: str) -> Arrays:
        """Of the forward pass."""
        if dtype not in self._values:
            self._values[dtype] = Ours(self.config, self.parameters, dtype).capture(self.inputs)
        return self._values[dtype]

    @property
    def cotangent(self) -> np.ndarray:
        """What the outputs are weighed with where one number is needed: for gradients, and as a target of steps."""
        return np.random.default_rng(1).standard_normal(self.values("float64")[self.outputs].shape)

    def gradients(self) -> Arrays:
        """Of every parameter."""
        if self._gradients is None:
            self._gradients = Ours(self.config, self.parameters, "float64").gradients(self.inputs, self.cotangent)
        return self._gradients

    def steps(self, n: int, trained: frozenset[str]) -> Arrays:
        """The trained parameters after n steps."""
        return Ours(self.config, self.parameters, "float64").steps(self.inputs, self.cotangent, n, trained)


def compared(weights: Weights, reference: Reference, built: Built, steps: int = 0) -> Iterator[Check]:
    """A library's network, loaded with the file's tensors, against ours: outputs, blocks, gradients, steps."""
    subject, against = f"{weights.name} in {built.library}", reference.name
    theirs = Theirs(built, weights.config, "float64")
    found = theirs.capture(reference.inputs)
    yield forward(subject, against, found, reference.values("float64"), "float64")
    out = reference.outputs
    if found[out].shape != reference.values("float64")[out].shape:
        return  # other classes: nothing that is computed of outputs can be compared
    alone = theirs.capture({k: v[:1] for k, v in reference.inputs.items()})
    yield forward(subject, "itself", {"a batch of one": alone[out]}, {"a batch of one": found[out][:1]}, "float64")
    yield from gradients(
        subject, against, theirs.gradients(reference.inputs, reference.cotangent), reference.gradients()
    )
    if steps:  # on a copy, which they change
        trained = Theirs(replace(built, module=copy.deepcopy(built.module)), weights.config, "float64")
        yield stepped(
            subject,
            against,
            trained.steps(reference.inputs, reference.cotangent, steps),
            reference.steps(steps, trained.trained),
            reference.parameters,
            steps,
        )
    yield forward(
        subject,
        against,
        Theirs(built, weights.config, "float32").capture(reference.inputs),
        reference.values("float32"),
        "float32",
    )


def distance(a: np.ndarray, b: np.ndarray) -> float:
    """The largest |a - b|; infinite where shapes or dtypes differ, or a value is no number."""
    if a.shape != b.shape or a.dtype != b.dtype or not (np.isfinite(a).all() and np.isfinite(b).all()):
        return np.inf
    return float(np.abs(a - b).max(initial=0.0))


def relative(a: np.ndarray, b: np.ndarray) -> float:
    """The distance as a share of b's largest value."""
    apart = distance(a, b)
    return apart / (float(np.abs(b).max(initial=0.0)) or 1.0) if apart else 0.0


def failed(checks: Iterable[Check]) -> list[Check]:
    """Those beyond their limits."""
    return [c for c in checks if not c.passed]
