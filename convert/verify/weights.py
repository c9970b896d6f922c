"""A file's network with its values: under the file's names, and under ours."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from vit_jax.config import ModelConfig, TransformerConfig, ViTConfig, pair

from .. import rules
from ..layout import Facts, Layout
from ..rules import CARRIED, Row

if TYPE_CHECKING:
    from ..reading import Reading

Arrays = dict[str, np.ndarray]
Inputs = dict[str, Any]


@dataclass
class Weights:
    """`tensors` {name in the file: array} in a layout, of a network; `name` is what reports call it."""

    name: str
    layout: Layout
    config: ModelConfig
    tensors: Mapping[str, np.ndarray]
    facts: Facts = field(default_factory=Facts)

    @classmethod
    def of(cls, reading: Reading, name: str) -> Weights:
        """All values of a reading's network: what is carried beside has no part in it."""
        names = [name for row in reading.rows if not row.ours[:1] or not row.ours[0].startswith(CARRIED) for name in row.theirs]
        return cls(name, reading.layout, reading.config, {n: reading.tensors[n].read() for n in names}, reading.facts)

    @cached_property
    def rows(self) -> list[Row]:
        """Those of the layout that this file's tensors are claimed by."""
        return rules.narrow(self.layout.rows(self.config), self.tensors)

    @cached_property
    def parameters(self) -> Arrays:
        """{our dotted name: array}. Raises UserError where the tensors are not those of the layout and config."""
        return {n: a for n, a in rules.read(self.rows, self.tensors, self.name).items() if not n.startswith(CARRIED)}

    @cached_property
    def returned(self) -> Arrays:
        """The file's tensors again, after the way to ours and back."""
        return rules.write(self.rows, rules.read(self.rows, self.tensors, self.name), self.name, self.tensors)


def noise(c: ModelConfig, batch: int = 3) -> Inputs:
    """Seeded inputs of a network: images [B, h, w, C]; or source and target, ids or vectors, the sources of unequal length."""
    rng = np.random.default_rng(0)
    if isinstance(c, ViTConfig):
        return {"images": rng.standard_normal((batch, *pair(c.image), c.channels))}
    source, target = (min(n, c.max_length or n) for n in (7, 5))
    sides = (("source", source, c.source_vocabulary), ("target", target, c.target_vocabulary))[: 2 if c.decoder_depth else 1]
    out = {side: _tokens(rng, c, (batch, n), vocabulary) for side, n, vocabulary in sides}
    return out | {"source_padding": np.arange(source) < source - np.arange(batch)[:, None] % (source - 1)}


def _tokens(rng: np.random.Generator, c: TransformerConfig, shape: tuple[int, int], vocabulary: int) -> np.ndarray:
    return rng.integers(min(4, vocabulary - 1), vocabulary, shape) if vocabulary else rng.standard_normal((*shape, c.width))


def captured(c: ModelConfig) -> list[str]:
    """What is compared of a forward pass, in its order."""
    if isinstance(c, ViTConfig):
        return ["tokens", *(f"blocks.{i}" for i in range(c.depth)), "features", "pooled", "logits"]
    return [*(f"encoder.blocks.{i}" for i in range(c.encoder_depth)), "memory", *(f"decoder.blocks.{i}" for i in range(c.decoder_depth)), "logits"]
