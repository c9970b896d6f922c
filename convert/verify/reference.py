"""Our network, which every other side is compared with; and the comparison of one that a library built."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

import numpy as np

from vit_jax.config.network import NetworkConfig

from .checks import FORWARD, MODEL, OWN, Check, beyond_rounding, check_steps, gradients, values
from .libraries.built import Built
from .sides import ByRows, Ours
from .weights import Arrays, Inputs, Weights, noise


class Reference:
    """Our network of a config on given inputs (default: noise). What it has computed is not computed again."""

    def __init__(self, name: str, config: NetworkConfig, parameters: Arrays, inputs: Inputs | None = None):
        self.name, self.config, self.parameters = name, config, parameters
        self.inputs, self.outputs = noise(config) if inputs is None else inputs, config.captured()[-1]
        self._values: dict[str, Arrays] = {}
        self._gradients: Arrays | None = None

    def values(self, dtype: str) -> Arrays:
        """Of the forward pass, in its order."""
        if dtype not in self._values:
            self._values[dtype] = self._side(dtype).capture(self.inputs)
        return self._values[dtype]

    @property
    def cotangent(self) -> np.ndarray:
        """What the outputs are weighted with where one number is needed: for gradients, and as a target of steps."""
        return np.random.default_rng(1).standard_normal(self.values("float64")[self.outputs].shape)

    def gradients(self, cotangent: np.ndarray | None = None) -> Arrays:
        """Of every parameter and every floating-point input, for our own cotangent or another."""
        if cotangent is not None:
            return self._side("float64").gradients(self.inputs, cotangent)
        if self._gradients is None:
            self._gradients = self.gradients(self.cotangent)
        return self._gradients

    def steps(self, n: int, trained: frozenset[str]) -> Arrays:
        """The trained parameters after n steps."""
        return self._side("float64").steps(self.inputs, self.cotangent, n, trained)

    def neighbours(self, dtype: str) -> list[Reference]:
        """The same with every parameter moved to the next number of this dtype, up or down at random, three times."""
        rng, out = np.random.default_rng(2), []
        for _ in range(3):
            ways = {n: rng.choice(np.array([-np.inf, np.inf], dtype), np.shape(x)) for n, x in self.parameters.items()}
            others = {n: np.nextafter(x.astype(dtype), ways[n]) for n, x in self.parameters.items()}
            out.append(Reference(self.name, self.config, others, self.inputs))
        return out

    def _side(self, dtype: str) -> Ours:
        return Ours.network(self.config, self.parameters, dtype, compiled=True)


def compare_networks(weights: Weights, reference: Reference, built: Built, steps: int = 0) -> Iterator[Check]:
    """A file's network, as a library built it, against ours: outputs, blocks, gradients, steps."""
    subject, against, out = f"{weights.name} in {built.library}", reference.name, reference.outputs
    theirs = ByRows(built, weights.config)
    found = theirs.capture(reference.inputs)
    yield forward(subject, reference, found, "float64")
    if found[out].shape != reference.values("float64")[out].shape:
        return  # other classes: nothing that is computed of outputs can be compared
    alone = theirs.capture({k: v[:1] for k, v in reference.inputs.items()})
    batch = "a batch of one"
    yield values(subject, "itself", "forward, float64", {batch: alone[out]}, {batch: found[out][:1]}, "float64")
    yield from slopes(subject, reference, theirs.gradients(reference.inputs, reference.cotangent))
    if steps:  # on a copy, which they change
        trained = ByRows(replace(built, module=copy.deepcopy(built.module)), weights.config)
        ends = trained.steps(reference.inputs, reference.cotangent, steps)
        expected = reference.steps(steps, trained.trained)
        yield check_steps(subject, against, ends, expected, reference.parameters, steps)
    yield forward(subject, reference, ByRows(built, weights.config, "float32").capture(reference.inputs), "float32")


def forward(subject: str, reference: Reference, found: Arrays, dtype: str) -> Check:
    """A forward pass against ours: its outputs, and those inner values that its library shows."""
    expected = {n: value for n, value in reference.values(dtype).items() if n in found}

    def compare(found: Arrays, limits: Sequence[float] = (FORWARD[dtype],)) -> list[Check]:
        return [values(subject, reference.name, f"forward, {dtype}", found, expected, dtype, *limits)]

    def of_neighbours() -> list[Arrays]:
        return [_those_of(expected, each.values(dtype)) for each in reference.neighbours(dtype)]

    return beyond_rounding(compare, _those_of(expected, found), of_neighbours, dtype)[0]


def slopes(subject: str, reference: Reference, found: Arrays) -> list[Check]:
    """Gradients against ours."""
    expected = {n: g for n, g in reference.gradients().items() if n in found}

    def compare(found: Arrays, limits: Sequence[float] = (OWN, MODEL)) -> list[Check]:
        return gradients(subject, reference.name, found, expected, limits)

    def of_neighbours() -> list[Arrays]:
        return [_those_of(expected, each.gradients(reference.cotangent)) for each in reference.neighbours("float64")]

    return beyond_rounding(compare, found, of_neighbours, "float64")


def _those_of(names: Iterable[str], arrays: Arrays) -> Arrays:
    return {n: arrays[n] for n in names}
