"""Greedy search of what is known, and a decoder with its cache against the whole forward pass."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from vit_jax.config.decoding import Decoding
from vit_jax.decode.search import search
from vit_jax.models.build import start
from vit_jax.models.state import merge, split_model
from vit_jax.models.transformer import Transformer
from vit_jax.models.transformer_config import TransformerConfig
from vit_jax.tasks.generated import Search
from vit_jax.tasks.translate.use import search_translations, translation_ids
from vit_jax.text.vocabulary import closed_vocabulary

IDS = closed_vocabulary([]).ids


def counting(tokens, cache):
    """Says the numbers after where a row begins, up to 6, then 2, the end. The cache counts the steps."""
    begins, steps = cache
    following = jnp.where(begins + steps > 6, 2, begins + steps)
    return 30 * jax.nn.one_hot(following, 9), (begins, steps + 1)


def test_a_text_ends_with_its_end_and_the_search_with_the_last():
    steps = []

    def noted(tokens, cache):
        jax.debug.callback(lambda: steps.append(1))
        return counting(tokens, cache)

    begins, rows = jnp.array([4, 6, 7]), jnp.ones(3, bool)
    said = [[4, 5, 6, 2, 0, 0], [6, 2, 0, 0, 0, 0], [2, 0, 0, 0, 0, 0]]
    for room in (6, 3):
        found = search(noted, None, (begins, jnp.int32(0)), rows, IDS, Decoding(), room)
        jax.effects_barrier()
        assert found.tokens.dtype == jnp.int32 and len(steps) == min(room, 4)
        assert found.tokens[:, 0].tolist() == [row[:room] for row in said]
        assert found.lengths[:, 0].tolist() == [min(n, room) for n in (4, 2, 1)] and found.complete.all()
        assert float(jnp.abs(found.scores).max()) < 1e-4
        assert found.without_ends(IDS)[0, 0].tolist() == [4, 5, 6, 0, 0, 0][:room]
        steps.clear()
    cut = search(counting, None, (begins, jnp.int32(0)), rows, IDS, Decoding(max_length=9), 3)
    assert cut.complete.tolist() == [False, True, True], "with room for more the first would go on"


# -------------------------------------------------------------------- with the network and its cache

V, LENGTH = 11, 8


@pytest.fixture(scope="module")
def model(quick_compilation):
    """Weights large enough that translations differ from source to source, and some end."""
    sizes = dict(width=16, heads=2, hidden=24, encoder_depth=1, decoder_depth=2, max_length=12)
    words = dict(source_vocabulary=V, target_vocabulary=V, outputs=V)
    c = TransformerConfig(**sizes, **words, init="normal", init_std=0.7, embedding_std=1.0)
    definition, _ = split_model(Transformer(c))
    weights = start(c, jax.random.key(5))
    weights["head"]["bias"] = weights["head"]["bias"].at[IDS.end].set(2.0)  # so that some sentences end
    return merge(definition, weights)


@pytest.fixture(scope="module")
def sources():
    random = np.random.default_rng(0)
    rows = random.integers(3, V, (32, 6)).astype(np.int32)
    return np.where(np.arange(6) < random.choice([1, 4, 6], (32, 1)), rows, IDS.pad)


def uncached(forward, source):
    """The same search by the whole forward pass for every word, one sentence alone and without padding, in numpy.

    The decoder always reads LENGTH ids, so that few shapes are compiled; it is causal, and those to come are padding.
    """
    source = source[source != IDS.pad][None]
    said = []
    while len(said) < LENGTH:
        read = [IDS.begin, *said] + [IDS.pad] * (LENGTH - 1 - len(said))
        logits = np.array(forward(jnp.asarray(source), jnp.asarray([read])))[0, len(said)]
        logits[[IDS.pad, IDS.begin]] = -np.inf
        if logits.argmax() == IDS.end:
            break
        said.append(int(logits.argmax()))
    return said + [IDS.pad] * (LENGTH - len(said))


@pytest.fixture(scope="module")
def translate(model):
    """Ids of sources to ids of translations."""
    compiled = jax.jit(lambda sources: translation_ids(model, sources, Search(IDS, LENGTH, Decoding()), IDS.pad))
    return lambda sources: np.asarray(compiled(jnp.asarray(sources)))


@pytest.fixture(scope="module")
def found(translate, sources):
    return translate(sources)


def test_cached_is_uncached(model, sources, found):
    forward = jax.jit(lambda source, target: model(source, target))
    expected = [uncached(forward, source) for source in sources[:12]]
    assert found[:12].tolist() == expected
    assert len({tuple(row) for row in expected}) > 5, "the translations differ, so that the test can see something"
    assert any(IDS.pad in row for row in expected) and any(IDS.pad not in row for row in expected), (
        "some end and some do not"
    )


def test_little_room_is_not_taken_for_the_greatest_length(model, sources, found):
    cut = search_translations(model, jnp.asarray(sources), Search(IDS, LENGTH, Decoding()), IDS.pad, 3)
    ends = (found == IDS.pad).any(1) & ((found != IDS.pad).sum(1) < 3)
    assert np.asarray(cut.complete).tolist() == ends.tolist() and 0 < ends.sum() < 32


def test_a_batch_of_one_is_a_batch_of_many(translate, sources, found):
    for i in range(0, 32, 5):
        assert translate(sources[i : i + 1]).tolist() == found[i : i + 1].tolist()
