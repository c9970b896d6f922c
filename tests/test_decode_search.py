"""Search against all answers there are, against the twin's, and by its own identities. (generate: tests/parity.)"""

import functools
import itertools
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests import recurrent
from tests.recurrent import BEGIN, END, PAD, V
from vit_jax.config.decoding import Decoding, check_decoding, from_generation_config
from vit_jax.decode.buckets import in_buckets, lengths_to, rooms
from vit_jax.decode.search import Found, filter_logits, search
from vit_jax.errors import UserError
from vit_jax.models.build import definition, start
from vit_jax.models.decoder import Cache
from vit_jax.models.state import merge
from vit_jax.models.transformer_config import TransformerConfig
from vit_jax.tasks.generated import Search
from vit_jax.tasks.translate.use import search_translations
from vit_jax.text.tokenizer import Ids

pytestmark = pytest.mark.usefixtures("quick_compilation")

IDS = Ids(pad=PAD, begin=BEGIN, end=END, banned=(PAD, BEGIN))
BEAM = Decoding(beam=4, nbest=4)


COUNT = 20  # inputs, in most tests, so that they share compiled programs


@functools.cache
def program(settings, room, ids, step):
    return jax.jit(
        lambda memory, rows, keys: search(
            step, recurrent.take, recurrent.start(memory), rows, ids, settings, room, keys
        )
    )


def found(settings, memory, room=10, ids=IDS, rows=None, step=recurrent.step, keys=None):
    rows = np.ones(len(memory), bool) if rows is None else rows
    return Found(*map(np.asarray, program(settings, room, ids, step)(memory, rows, keys)))


def answers(out):
    """The tokens of each answer, without what fills its row."""
    return [
        [row[:n].tolist() for row, n in zip(*each, strict=True)] for each in zip(out.tokens, out.lengths, strict=True)
    ]


# ------------------------------------------------------------------------------- all answers there are


def every_answer(memory, vocabulary, longest, settings):
    """[(score, tokens)] of all answers to one input, the best first, each read anew from its beginning."""
    w = recurrent.weights(vocabulary)

    def scored(tokens):
        state, total = np.zeros_like(memory), 0.0
        for before, token in zip([BEGIN % vocabulary, *tokens], tokens, strict=False):
            state = np.tanh(state @ w["recurrent"] * 0.7 + w["embedding"][before] + memory)
            logits = (state @ w["out"] * 0.8).astype(np.float64)
            total += logits[token] - np.log(np.exp(logits).sum())
        base = len(tokens) if settings.penalty == "hf" else (5 + len(tokens)) / 6
        return total / base**settings.length_penalty

    def whole(tokens):
        return END not in tokens[:-1] and (tokens[-1] == END or len(tokens) == longest)

    some = itertools.chain(*(itertools.product(range(vocabulary), repeat=n) for n in range(1, longest + 1)))
    return sorted(((scored(tokens), list(tokens)) for tokens in some if whole(tokens)), reverse=True)


def test_a_beam_that_holds_everything_finds_the_best_of_all_answers():
    vocabulary, longest, n, settings = 4, 4, 128, Decoding(penalty="gnmt", length_penalty=0.7)
    ids, memory = Ids(pad=1, begin=BEGIN % vocabulary, end=END), recurrent.inputs(3)
    w = recurrent.weights(vocabulary)
    out = found(replace(settings, beam=n, nbest=20), memory, longest, ids, step=lambda t, c: recurrent.step(t, c, w))
    for got, scores, one in zip(answers(out), out.scores, memory, strict=True):
        expected = every_answer(one, vocabulary, longest, settings)[:20]
        assert got == [tokens for _, tokens in expected]
        np.testing.assert_allclose(scores, [score for score, _ in expected], atol=1e-5)
    assert len({str(each) for each in answers(out)}) == 3, "the answers differ from input to input"


# ------------------------------------------------------------------------------- the twin's search

SETTINGS = {
    "short answers, at once": replace(BEAM, length_penalty=0.6, early_stopping="true"),
    "long answers, never": replace(BEAM, length_penalty=0.9, early_stopping="never"),
    "shorter answers, never": Decoding(beam=6, nbest=6, length_penalty=-0.1, early_stopping="never"),
    "rules": replace(
        BEAM, no_repeat_ngram=2, min_length=4, banned=((3,), (4, 5), (1, 2), (6, 6, 6)), length_penalty=-0.5
    ),
    "forced, gnmt, at most 6": replace(BEAM, penalty="gnmt", length_penalty=0.8, max_length=6),
    "greedy": Decoding(no_repeat_ngram=3, banned=((2, 2),), min_length=2),
}


@pytest.mark.parametrize("name", SETTINGS)
def test_the_search_is_that_of_the_twin(name):
    torch = pytest.importorskip("torch")
    from torch_ref import decode as twin

    changed = {"forced": dict(forced_begin=5, forced_end=END), "rules": dict(pad=END)}  # as GPT-2's, whose end fills
    ids = replace(IDS, **changed.get(name.partition(",")[0], {}))
    memory, settings = recurrent.inputs(COUNT), SETTINGS[name]
    out = found(settings, memory, ids=ids)
    for got, scores, one in zip(answers(out), out.scores, memory, strict=True):
        cache = recurrent.TorchCache(torch.zeros(1, recurrent.WIDTH), torch.from_numpy(one)[None])
        expected = twin.search(recurrent.torch_step, cache, ids, settings, 10)
        assert got == [answer.tokens for answer in expected]
        np.testing.assert_allclose(scores, [answer.score for answer in expected], rtol=1e-5, atol=1e-5)
    best = [each[0] for each in answers(out)]
    assert out.complete.all()
    assert len({len(one) for each in answers(out) for one in each}) >= 4
    assert len(set(map(str, best))) >= 12


# --------------------------------------------------------------------------------------- identities


@pytest.mark.parametrize("settings", [BEAM, Decoding(sample=True, nbest=2, top_p=0.9)])
def test_a_batch_of_sixteen_is_sixteen_of_one(settings):
    memory, keys = recurrent.inputs(16), jax.random.split(jax.random.key(3), 16)
    every = found(settings, memory, keys=keys)
    for i in range(16):
        alone = found(settings, memory[i : i + 1], keys=keys[i : i + 1])
        assert answers(alone) == answers(every)[i : i + 1]
        np.testing.assert_allclose(alone.scores[0], every.scores[i], rtol=1e-5, atol=1e-5)


def test_rows_that_fill_the_batch_are_not_searched():
    memory, rows, steps = recurrent.inputs(COUNT), np.arange(COUNT) < 1, []

    def noted(tokens, cache):
        jax.debug.callback(lambda: steps.append(1))
        return recurrent.step(tokens, cache)

    for settings, step in ((Decoding(), noted), (SETTINGS["short answers, at once"], recurrent.step)):
        every = found(settings, memory, step=step)
        jax.effects_barrier()
        steps.clear()
        out = found(settings, memory, rows=rows, step=step)
        jax.effects_barrier()
        assert answers(out)[0] == answers(every)[0] and out.complete.all()
        assert (out.lengths[1:] == 0).all() and (out.tokens[1:] == PAD).all()
        assert settings.beam > 1 or len(steps) == out.lengths[0, 0] < every.lengths.max()


# ------------------------------------------------------------------------------- a Transformer with its cache

C = TransformerConfig(
    width=16, heads=2, hidden=24, encoder_depth=1, decoder_depth=1, max_length=12, source_vocabulary=V,
    target_vocabulary=V, outputs=V, tie="all", init="normal", init_std=0.7, embedding_std=0.6,
)  # fmt: skip


@pytest.fixture(scope="module")
def transformer():
    return merge(definition(C), start(C, jax.random.key(2)))


@pytest.fixture(scope="module")
def sources():
    rng = np.random.default_rng(0)
    rows = rng.integers(1, BEGIN, (12, 6)).astype(np.int32)
    return np.where(np.arange(6) < rng.choice([2, 4, 6], (12, 1)), rows, PAD)


def test_a_beam_over_the_cache_is_one_that_reads_everything_anew(transformer, sources):
    """So the rows of the cache follow their beams, and all beams read the memory of their own source."""

    @jax.jit
    def cached(source):
        padding = source != PAD
        cache = transformer.init_cache(transformer.encode(source, padding), padding, 10)
        return search(transformer.decode_step, Cache.take, cache, padding.any(1), IDS, BEAM, 10)

    def anew(tokens, cache):
        source, said, count = cache
        said = jax.lax.dynamic_update_slice_in_dim(said, tokens[:, None], count, axis=1)
        logits = transformer(source, said, source_padding=source != PAD)
        return jax.lax.dynamic_index_in_dim(logits, count, 1, keepdims=False), (source, said, count + 1)

    @jax.jit
    def uncached(source):
        cache = source, jnp.zeros((len(source), 10), jnp.int32), jnp.int32(0)
        choose = lambda cache, rows: (cache[0][rows], cache[1][rows], cache[2])  # noqa: E731
        return search(anew, choose, cache, jnp.ones(len(source), bool), IDS, BEAM, 10)

    out, expected = cached(sources), uncached(sources)
    assert answers(out) == answers(expected)
    np.testing.assert_allclose(out.scores, expected.scores, atol=1e-5)
    assert len({str(each) for each in answers(out)}) >= 10, "the answers differ from source to source"

    # A score is what the network, reading an answer at once, gives it.
    source, said = np.repeat(sources, 4, 0), np.asarray(out.tokens).reshape(-1, 10)
    read = np.concatenate([np.full((len(said), 1), BEGIN), said[:, :-1]], 1)
    logits = transformer(source, read, source_padding=source != PAD)
    gains = np.take_along_axis(np.asarray(jax.nn.log_softmax(logits)), said[..., None], 2)[..., 0]
    lengths = np.asarray(out.lengths).reshape(-1)
    sums = np.where(np.arange(10) < lengths[:, None], gains, 0).sum(1)
    np.testing.assert_allclose(np.ravel(out.scores), sums / lengths, rtol=1e-5, atol=1e-5)


# ------------------------------------------------------------------------------------------ sampling


def test_a_draw_of_the_likeliest_token_alone_is_greedy_search():
    memory, keys = recurrent.inputs(COUNT), jax.random.split(jax.random.key(0), COUNT)
    greedy = found(Decoding(), memory)
    for settings in (Decoding(sample=True, top_k=1), Decoding(sample=True, temperature=1e-4, top_p=0.5)):
        drawn = found(settings, memory, keys=keys)
        assert answers(drawn) == answers(greedy)
        np.testing.assert_allclose(drawn.scores, greedy.scores, atol=1e-6)


@pytest.mark.parametrize("settings", [dict(temperature=0.7, top_k=12), dict(top_k=15, top_p=0.8, temperature=1.5)])
def test_draws_have_the_frequencies_of_the_filtered_softmax(settings):
    """20,000 draws, by chi-square; what is left out is never drawn."""
    from scipy.stats import chisquare

    logits, d, n = (
        np.random.default_rng(0).normal(size=20).astype(np.float32) * 1.5,
        Decoding(sample=True, **settings),
        20_000,
    )
    step = lambda tokens, cache: (jnp.broadcast_to(jnp.asarray(logits), (len(tokens), 20)), cache)  # noqa: E731
    out = found(
        d,
        np.zeros((n, 1), np.float32),
        1,
        Ids(pad=1, begin=1, end=0),
        step=step,
        keys=jax.random.split(jax.random.key(5), n),
    )
    counts = np.bincount(out.tokens[:, 0, 0], minlength=20)

    scaled = logits.astype(np.float64) / d.temperature
    order = np.argsort(-scaled)[: d.top_k or 20]
    shares = np.exp(scaled[order]) / np.exp(scaled[order]).sum()
    order = order[: 1 + np.searchsorted(np.cumsum(shares), d.top_p)]
    shares = np.exp(scaled[order]) / np.exp(scaled[order]).sum()
    assert counts[order].sum() == n and len(order) > 4
    assert chisquare(counts[order], shares * n).pvalue > 0.01


def test_draws_depend_on_their_keys_alone():
    memory, keys = recurrent.inputs(1).repeat(6, 0), jax.random.split(jax.random.key(1), 6)
    d = Decoding(sample=True, nbest=3)
    out = answers(found(d, memory, keys=keys))
    assert len({str(one) for each in out for one in each}) > 12
    turned = answers(found(d, memory, keys=keys[::-1]))
    assert turned == out[::-1]
    with jax.enable_x64(True):
        assert answers(found(d, memory, keys=keys)) == out
    with pytest.raises(ValueError, match="keys are missing"):
        found(d, memory)


def test_of_equal_logits_all_stay():
    scores = jnp.array([[1.0, 3.0, 3.0, 0.0]])
    assert np.isfinite(filter_logits(scores, Decoding(sample=True, top_k=1))).tolist() == [[False, True, True, False]]


# ------------------------------------------------------------------------------------------- buckets


def test_many_lengths_are_searched_in_few_shapes():
    rng, shapes = np.random.default_rng(0), []
    given = [rng.integers(1, 7, n) for n in rng.integers(1, 17, 45)]

    def run(ids, numbers, room):
        """An answer of as many tokens as the input, which is complete where there is room for that."""
        shapes.append((ids.shape, room))
        assert all(np.array_equal(row[row != PAD], given[i]) for row, i in zip(ids, numbers, strict=True))
        count = (ids != PAD).sum(1)
        tokens = np.where(np.arange(room) < count[:, None], numbers[:, None], PAD)
        return tokens[:, None], count[:, None] / 2, np.minimum(count, room)[:, None], count <= room

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("vit_jax.decode.buckets.ROOMS", (6, 12))
        out = in_buckets(run, given, PAD, (4, 8, 16), 20, 16)
        assert rooms(4, 20) == (6, 12, 20)
        assert rooms(8, 20) == (12, 20)
        assert rooms(16, 20) == (20,)
        assert rooms(4, 5) == (5,)
    assert lengths_to(10) == (10,) and lengths_to(64) == (16, 32, 64) and lengths_to(70) == (16, 32, 64, 70)
    assert lengths_to(70, 70) == lengths_to(70) and lengths_to(70, 129) == (16, 32, 64, 128, 256)
    for i, (each, answer) in enumerate(zip(given, out, strict=True)):
        assert answer.scores[0] == len(each) / 2 and answer.tokens[0, : len(each)].tolist() == [i] * len(each)
    assert len(set(shapes)) <= 5 and {shape[1] for shape, _ in shapes} == {4, 8, 16}
    with pytest.raises(ValueError, match="17 tokens, more than the greatest length 16"):
        in_buckets(run, [np.ones(17, np.int32)], PAD, (4, 8, 16), 20, 16)


def test_more_room_finds_the_same_answers():
    """Those that fit, at once; and the search says which did not."""
    memory, settings = recurrent.inputs(COUNT), replace(BEAM, max_length=12, early_stopping="true")
    little, much = found(settings, memory, room=5), found(settings, memory, room=12)
    assert 3 < little.complete.sum() < 17 and much.complete.all()
    for a, b, complete in zip(answers(little), answers(much), little.complete, strict=True):
        assert not complete or a == b


def test_a_text_ends_with_its_end_and_the_search_with_the_last():
    steps, rows = [], jnp.ones(3, bool)

    def counting(tokens, cache):
        """Says the numbers after where a row begins, up to 6, then the end. The cache counts the steps."""
        jax.debug.callback(lambda: steps.append(1))
        begins, done = cache
        return 30 * jax.nn.one_hot(jnp.where(begins + done > 6, END, begins + done), V), (begins, done + 1)

    said = [[4, 5, 6, END], [6, END, PAD, PAD], [END, PAD, PAD, PAD]]
    for room in (6, 3):
        out = search(counting, None, (jnp.array([4, 6, 7]), jnp.int32(0)), rows, IDS, Decoding(), room)
        jax.effects_barrier()
        assert len(steps) == min(room, 4) and out.tokens.dtype == jnp.int32
        assert out.tokens[:, 0, :4].tolist() == [row[:room] for row in said]
        assert out.lengths[:, 0].tolist() == [min(n, room) for n in (4, 2, 1)] and out.complete.all()
        assert out.without_ends(IDS)[0, 0, :3].tolist() == [4, 5, 6] and float(jnp.abs(out.scores).max()) < 1e-4
        steps.clear()
    cut = search(counting, None, (jnp.array([4, 6, 7]), jnp.int32(0)), rows, IDS, Decoding(max_length=9), 3)
    assert cut.complete.tolist() == [False, True, True], "with room for more the first would go on"


def test_little_room_is_not_taken_for_the_greatest_length(transformer, sources):
    def translated(room):
        greedy = Search(IDS, 10, Decoding())
        return jax.jit(lambda rows: search_translations(transformer, rows, greedy, PAD, room))(sources)

    ends = (np.asarray(translated(10).lengths) <= 3)[:, 0]
    assert translated(3).complete.tolist() == ends.tolist() and 0 < ends.sum() < len(sources)


# ------------------------------------------------------------------------------------------ refusals

BAD = {
    "beam is '3': give a whole number": dict(beam="3"),
    "beam is 2.5: give a whole number": dict(beam=2.5),
    "min_length is True: give a whole number": dict(min_length=True),
    "sample is 1: give True or False": dict(sample=1),
    "temperature is 'hot': give a number": dict(temperature="hot", sample=True),
    "max_length is 1000000000000: give 0 to 100000": dict(max_length=10**12),
    "nbest is 3 but beam is 2.*set beam to 3 or more, or sample": dict(nbest=3, beam=2),
    "min_length is 9 but max_length is 8": dict(min_length=9, max_length=8),
    "penalty is 'wu': choose hf or gnmt": dict(penalty="wu"),
    "early_stopping is True: choose false, true or never": dict(early_stopping=True),
    r"banned has \[\]": dict(banned=((),)),
    r"banned has \[3, -1\]": dict(banned=((3, -1),)),
    "top_k is 5 but nothing is drawn": dict(top_k=5),
    "top_p is 0.5 but nothing is drawn": dict(top_p=0.5),
    "temperature is 2.0 but nothing is drawn": dict(temperature=2.0),
    "beam is 4 but sample is set": dict(beam=4, sample=True),
}


@pytest.mark.parametrize(("message", "changed"), BAD.items(), ids=[str(value) for value in BAD.values()])
def test_settings_that_cannot_be_are_refused(message, changed):
    with pytest.raises(UserError, match=message) as caught:
        check_decoding(Decoding(**changed))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("ids", "settings", "message"),
    [
        (
            replace(IDS, end=V),
            Decoding(),
            f"end has the id {V}, but the network gives {V} logits, of ids up to {V - 1}",
        ),
        (replace(IDS, forced_begin=99), BEAM, "forced_begin has the id 99"),
        (replace(IDS, banned=(12,)), Decoding(), "banned has the id 12"),
        (IDS, Decoding(banned=((1, 20),)), "banned has the id 20"),
    ],
)
def test_ids_of_another_vocabulary_are_refused(ids, settings, message):
    with pytest.raises(UserError, match=message):
        found(settings, recurrent.inputs(2), ids=ids)


# ---------------------------------------------------------------------------- generation_config.json


def test_settings_of_transformers_become_ours():
    stated = {
        "num_beams": 6, "num_return_sequences": 2, "length_penalty": 0.6, "early_stopping": True, "max_length": 512,
        "min_length": 3, "no_repeat_ngram_size": 3, "bad_words_ids": [[58100], [0], [4, 5]], "pad_token_id": 58100,
        "transformers_version": "4.33.0", "repetition_penalty": 1.0, "top_k": 10, "suppress_tokens": None,
    }  # fmt: skip
    settings, lacking = from_generation_config(stated, end=0)
    assert settings == Decoding(
        beam=6, nbest=2, length_penalty=0.6, early_stopping="true", max_length=511, min_length=3, no_repeat_ngram=3,
        banned=((58100,), (4, 5)),
    ) and lacking == ()  # fmt: skip
    assert from_generation_config({}, 0) == (Decoding(), ())
    drawn = {"do_sample": True, "temperature": 0.7, "max_new_tokens": 30, "max_length": 20, "min_new_tokens": 4}
    assert from_generation_config({**drawn, "repetition_penalty": 1.3, "num_beam_groups": 2}, 0) == (
        Decoding(sample=True, temperature=0.7, top_k=50, max_length=30, min_length=5),
        ("num_beam_groups", "repetition_penalty"),
    )


@pytest.mark.parametrize(
    ("stated", "message"),
    [
        ({"num_beams": "4"}, "generation_config.json: num_beams is '4': give a whole number"),
        ({"num_beams": True}, "num_beams is True: give a whole number"),
        ({"length_penalty": [1]}, r"length_penalty is \[1\]: give a number"),
        ({"bad_words_ids": [3]}, r"bad_words_ids is \[3\]: give lists of whole numbers"),
        ({"early_stopping": "soon"}, "early_stopping is 'soon': choose"),
        ({"do_sample": 1}, "do_sample is 1: give true or false"),
        ({"num_beams": 0}, "beam is 0"),
    ],
)
def test_a_generation_config_that_cannot_be_is_refused(stated, message):
    with pytest.raises(UserError, match=message):
        from_generation_config(stated, 0)
