"""The compiled programs of a search: no weight is transposed or copied in them."""

import re

import jax
import numpy as np
import pytest

from vit_jax.config.decoding import Decoding
from vit_jax.config.trees import unflatten
from vit_jax.decode.search import generate
from vit_jax.machine import backend
from vit_jax.models.build import definition
from vit_jax.models.state import merge
from vit_jax.models.transformer_config import TransformerConfig
from vit_jax.text.tokenizer import Ids

# No size is another's, nor that of a batch, so that a shape tells a weight.
C = TransformerConfig(
    width=24,
    heads=2,
    hidden=40,
    encoder_depth=1,
    decoder_depth=1,
    max_length=13,
    source_vocabulary=59,
    target_vocabulary=59,
    outputs=59,
    tie="all",
)
SEARCHES = {"beam": Decoding(beam=3), "greedy": Decoding(), "sample": Decoding(sample=True, top_k=7)}


def moved(text: str) -> list[str]:
    """The transposes and copies, in compiled HLO, of arrays with the shape of a weight matrix, either way round."""
    weights = {tuple(sorted(shape)) for shape in C.shapes().values() if len(shape) == 2}
    found = re.findall(r"(\w+)\[(\d+),(\d+)\]\S* (transpose|copy)\(", text)
    return [f"{what} {a}x{b}" for _, a, b, what in found if tuple(sorted((int(a), int(b)))) in weights]


@pytest.mark.parametrize(
    "name", ["beam", *(pytest.param(name, marks=pytest.mark.slow) for name in ("greedy", "sample"))]
)
def test_a_compiled_search_moves_no_weight(name):
    """Of 5 sources of 7 tokens."""

    def run(tree, source, keys):
        network = merge(definition(C), tree)
        return generate(network, network.encode(source), None, Ids(0, 1, 2), SEARCHES[name], 11, keys=keys)

    tree = unflatten({name: jax.ShapeDtypeStruct(shape, np.float32) for name, shape in C.shapes().items()})
    keys = jax.eval_shape(lambda: jax.random.split(jax.random.key(0), 5))
    compiled = jax.jit(run, **backend.few_rows())  # as vit_jax.tasks.generated compiles it
    text = compiled.lower(tree, jax.ShapeDtypeStruct((5, 7), np.int32), keys).compile().as_text()
    assert " while(" in text and "dot" in text and not moved(text)


def test_a_program_that_transposes_a_weight_is_found():
    def run(table):
        turned = lambda i, x: x + jax.lax.optimization_barrier(table.T).sum()  # noqa: E731
        return jax.lax.fori_loop(0, 3, turned, 0.0)

    assert moved(jax.jit(run).lower(jax.ShapeDtypeStruct((59, 24), np.float32)).compile().as_text())
