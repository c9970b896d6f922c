"""A file's network with its values: under the file's names, and under ours."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from vit_jax.config.network import NetworkConfig

from .. import rules
from ..layout import Facts, Layout
from ..rules import CARRIED, Row

if TYPE_CHECKING:
    from ..recognise.reading import Reading

Arrays = dict[str, np.ndarray]
Inputs = dict[str, Any]
LENGTHS = 7, 5  # of the sequences that a network takes, in their order


@dataclass
class Weights:
    """A file's `tensors` {name in the file: array}, its layout and its config; `name` is what reports call the file."""

    name: str
    layout: Layout
    config: NetworkConfig
    tensors: Mapping[str, np.ndarray]
    facts: Facts = field(default_factory=Facts)

    @classmethod
    def of(cls, reading: Reading, name: str) -> Weights:
        """All values of a reading's network, without tensors that are no part of it (a mask token)."""
        names = [
            name
            for row in reading.rows
            if not row.ours[:1] or not row.ours[0].startswith(CARRIED)
            for name in row.theirs
        ]
        return cls(name, reading.layout, reading.config, {n: reading.tensors[n].read() for n in names}, reading.facts)

    @cached_property
    def rows(self) -> list[Row]:
        """The rows of the layout that claim this file's tensors."""
        return rules.narrow(self.layout.rows(self.config), self.tensors)

    @cached_property
    def parameters(self) -> Arrays:
        """The parameters of the network, without carried tensors -> {our dotted name: array}."""
        return {n: a for n, a in rules.read(self.rows, self.tensors, self.name).items() if not n.startswith(CARRIED)}

    @cached_property
    def returned(self) -> Arrays:
        """The file's tensors, read to our parameters and written again."""
        return rules.write(self.rows, rules.read(self.rows, self.tensors, self.name), self.name, self.tensors)


def noise(c: NetworkConfig, batch: int = 3) -> Inputs:
    """Seeded inputs of a network: images [B, h, w, C], ids, vectors; sequences that take a padding differ in length."""
    rng, lengths = np.random.default_rng(0), iter(LENGTHS)
    inputs: Inputs = {}
    padding: Inputs = {}
    for one in c.inputs():
        if one.kind == "pixels":
            inputs[one.name] = rng.standard_normal((batch, *one.shape))
            continue
        n = next(lengths, LENGTHS[-1])
        n = min(n, one.longest or n)
        ids, size = one.kind == "ids", one.size
        inputs[one.name] = (
            rng.integers(min(4, size - 1), size, (batch, n)) if ids else rng.standard_normal((batch, n, size))
        )
        if one.padding:
            padding[one.padding] = np.arange(n) < n - np.arange(batch)[:, None] % max(n - 1, 1)
    return inputs | padding
