"""Searches over trained networks: ours against the twin's, and against `generate` of transformers, every answer."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch

import vit_jax
from convert.verify.checks import Check
from convert.write.program.network import on_cpu
from torch_ref import decode as reference
from vit_jax.config.decoding import Decoding, from_generation_config
from vit_jax.config.trees import flatten
from vit_jax.decode.search import Found, filter_logits, generate
from vit_jax.models.state import merge, split_model
from vit_jax.text.tokenizer import Ids

from . import trained
from .layouts_seq2seq import compared as outputs
from .layouts_seq2seq import seq2seq
from .libraries import absent, load
from .sides import ours, torch_twin
from .weights import Inputs

SCORES = 1e-4  # of the scores, which are float32 on both sides
Rows = list[list[int]]


def searched(model: Any, source: np.ndarray, ids: Ids, pad: int, d: Decoding, room: int) -> Found:
    """The answers of a Transformer to sources int [B, S], padded with `pad`, as arrays of numpy."""
    definition, tree = split_model(model)

    @jax.jit
    def run(tree: Any, source: Any) -> Found:
        network, padding = merge(definition, tree), source != pad
        return generate(network, network.encode(source, padding), padding, ids, d, room)

    return Found(*map(np.asarray, run(tree, jnp.asarray(source, jnp.int32))))


def rows_of(found: Found) -> Rows:
    """The tokens of all answers, those of one input in succession."""
    n = found.lengths.size
    tokens = found.tokens.reshape(n, -1)
    return [row[:length].tolist() for row, length in zip(tokens, found.lengths.reshape(n), strict=True)]


def compared(
    subject: str, against: str, what: str, found: Rows, expected: Rows, scores: Any = None, theirs: Any = None
) -> Iterator[Check]:
    """All tokens, and the scores where there are any; says how much the answers differ among themselves."""
    apart = sum(a != b for a, b in zip(found, expected, strict=True))
    first = next((f"{a} for {b}" for a, b in zip(found, expected, strict=True) if a != b), "")
    kinds, lengths = len({tuple(row) for row in expected}), len({len(row) for row in expected})
    each = np.mean([len(set(row)) for row in expected])
    seen = f"{len(expected)} answers, {kinds} distinct, of {lengths} lengths and {each:.1f} distinct tokens each"
    yield Check(subject, against, f"{what}: {seen}", float(apart), 0.0, first)
    if scores is not None:
        difference = float(np.abs(np.ravel(scores) - np.ravel(theirs)).max())
        yield Check(subject, against, f"{what}: scores", difference, SCORES)


# --------------------------------------------------------------------------------------- the twin

TWIN_SETTINGS = {
    "greedy": Decoding(),
    "beam 4": Decoding(beam=4, nbest=4),
    "beam 4, short answers": Decoding(beam=4, nbest=4, length_penalty=0.6, early_stopping="true"),
    "beam 4, at least 6": Decoding(beam=4, nbest=4, min_length=6),
    "beam 3, never, gnmt": Decoding(beam=3, nbest=3, penalty="gnmt", early_stopping="never", no_repeat_ngram=2),
}


def twin(subject: str, name: str, ids: Ids = trained.OUR_IDS, room: int = 16) -> Iterator[Check]:
    """A Transformer with its cache by ours, and by the twin's search over the twin's cache, in float64."""
    d, (weights, source) = TWIN_SETTINGS[name], trained.ours()
    mine, other = ours(trained.OURS, weights), torch_twin(trained.OURS, weights).module
    with on_cpu("float64"):
        found = searched(mine.model, source, ids, 0, d, room)
    expected = []
    with torch.no_grad():
        for row in source:
            alone = torch.from_numpy(row[row != 0])[None]
            cache = other.init_cache(other.encode(alone), None, room)
            expected += reference.search(other.decode_step, cache, ids, d, room)
    scores = [answer.score for answer in expected]
    yield from compared(
        subject, "torch_ref", f"search, {name}", rows_of(found), [a.tokens for a in expected], found.scores, scores
    )


def twins() -> Iterator[Check]:
    """Every setting, and forced tokens with a least length."""
    for name in TWIN_SETTINGS:
        yield from twin("Transformer, trained", name)
    forced = replace(trained.OUR_IDS, forced_begin=5, forced_end=2)
    yield from twin("Transformer, trained, forced ends", "beam 4", forced, 9)


# ----------------------------------------------------------------------------------- transformers

# As generation_config.json says them.
BEAM = {"num_beams": 4, "num_return_sequences": 4, "max_length": 22}
GENERATE: dict[str, dict[str, Any]] = {
    "greedy": {"max_length": 22},
    "greedy, no trigram twice, banned words": {
        "max_length": 22, "no_repeat_ngram_size": 3, "bad_words_ids": [[17], [40, 41], [100], [250]],
    },
    **{
        f"beam 4, penalty {penalty:g}, early stopping {early}": {
            **BEAM, "length_penalty": penalty, "early_stopping": early
        }
        for penalty in (1.0, 0.6)
        for early in (False, True, "never")
    },
    "beam 4, penalty 0, never": {**BEAM, "length_penalty": 0.0, "early_stopping": "never"},
    "beam 4, penalty -0.5": {**BEAM, "length_penalty": -0.5},
    "beam 4, penalty 2": {**BEAM, "length_penalty": 2.0},
    "beam 4, no bigram twice, at least 8": {**BEAM, "no_repeat_ngram_size": 2, "min_length": 8},
    "beam 4, banned words, at least 5 new": {
        **BEAM, "bad_words_ids": [[17], [100], [250], [60, 61], [30]], "min_new_tokens": 5,
    },
    "beam 4, forced beginning": {**BEAM, "forced_bos_token_id": 77},
    "beam 4, no forced end, 9 new": {"num_beams": 4, "num_return_sequences": 4, "max_new_tokens": 9, "forced": False},
}  # fmt: skip


def generated(name: str, setting: str) -> Iterator[Check]:
    """The answers to 200 sources of a trained model by `generate`, and by ours from the folder that it was saved to."""
    model, folder, source, ids = trained.huggingface(name)
    stated = dict(GENERATE[setting])
    begin = stated.get("forced_bos_token_id")
    ids = replace(ids, forced_begin=begin, forced_end=ids.forced_end if stated.pop("forced", True) else None)
    special = dict(pad_token_id=ids.pad, eos_token_id=ids.end, decoder_start_token_id=ids.begin)
    config = load("transformers").GenerationConfig(
        **stated, **special, forced_eos_token_id=ids.forced_end, return_dict_in_generate=True, output_scores=True
    )
    given = torch.from_numpy(source)
    with torch.no_grad():
        out = model.generate(given, attention_mask=(given != ids.pad).long(), generation_config=config)
    expected = [until_end(row[1:], ids.end) for row in out.sequences.tolist()]
    d, _ = from_generation_config({k: v for k, v in stated.items() if k != "forced_bos_token_id"}, ids.end)
    found = searched(vit_jax.load(folder).model, source, ids, ids.pad, d, d.max_length)
    scores = getattr(out, "sequences_scores", None)
    theirs = None if scores is None else scores.numpy()
    mine = None if scores is None else found.scores
    yield from compared(f"{name}, trained", "generate", setting, rows_of(found), expected, mine, theirs)


def read(name: str) -> Iterator[Check]:
    """The logits of a trained model, and that its answers differ so much that comparing tokens means something."""
    model, folder, source, ids = trained.huggingface(name)
    net, subject = vit_jax.load(folder).model, f"{name}, trained"
    p = {path: np.asarray(x, np.float64) for path, x in flatten(split_model(net)[1]).items()}
    target = np.concatenate([np.full((len(source), 1), ids.begin), source[:, :-1]], 1)  # any ids
    given = {"source": source.astype(np.int32), "target": target.astype(np.int32), "source_padding": source != ids.pad}

    def theirs(given: Inputs, dtype: str) -> Any:
        return seq2seq(copy.deepcopy(model), net.config, given, dtype)

    yield from outputs(subject, "transformers", net.config, p, given, theirs)
    rows = rows_of(searched(net, source, ids, ids.pad, Decoding(), 22))
    few = max(200 - len({*map(tuple, rows)}), 10 - len({*map(len, rows)}), 0)
    yield Check(subject, "200 distinct answers of 10 lengths", "so many less", float(few), 0.0)


def until_end(row: list[int], end: int) -> list[int]:
    """A row up to its end, that among them."""
    return row[: row.index(end) + 1] if end in row else row


def filters() -> Iterator[Check]:
    """Temperature, top_k and top_p of logits against those of transformers."""
    processing = load("transformers").generation.logits_process
    logits = np.random.default_rng(0).normal(size=(50, 40)).astype(np.float32) * 3
    for temperature, k, p in ((0.7, 6, 0.8), (1.0, 0, 0.5), (2.0, 10, 1.0), (1.0, 0, 0.999)):
        theirs = processing.TemperatureLogitsWarper(temperature)(None, torch.from_numpy(logits))
        theirs = processing.TopKLogitsWarper(k)(None, theirs) if k else theirs
        theirs = processing.TopPLogitsWarper(p)(None, theirs).numpy() if p < 1 else theirs.numpy()
        mine = np.asarray(
            filter_logits(jnp.asarray(logits), Decoding(sample=True, temperature=temperature, top_k=k, top_p=p))
        )
        apart = (np.isfinite(mine) != np.isfinite(theirs)).sum() + (~np.isclose(mine, theirs, rtol=1e-6)).sum()
        yield Check(f"temperature {temperature:g}, top_k {k}, top_p {p:g}", "transformers", "logits", float(apart), 0.0)


def transformers() -> Iterator[Check]:
    """Everything against transformers, if it is installed."""
    if "transformers" in absent():
        return
    yield from filters()
    for name in ("marian", "bart", "m2m-100"):
        yield from read(name)
        for setting in GENERATE if name != "m2m-100" else ("greedy", "beam 4, forced beginning"):
            yield from generated(name, setting)
