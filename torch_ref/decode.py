"""The search for an answer in PyTorch, one input at a time: the counterpart of vit_jax/decode.

It is written for reading: rules are sets of ids, hypotheses are lists, and the cache holds copies of all that a
hypothesis needs. Only `likeliest`, by which training is validated, takes whole batches. V is the number of logits.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from vit_jax.config.decoding import Decoding, check_decoding
from vit_jax.text.tokenizer import Ids

Step = Callable[[Tensor, Any], tuple[Tensor, Any]]  # tokens int64 [R], cache -> logits [R, V], cache


@dataclass(frozen=True)
class Answer:
    """The tokens of an answer, its end among them, and its score."""

    tokens: list[int]
    score: float


def search(
    step: Step, cache: Any, ids: Ids, d: Decoding, longest: int, generator: torch.Generator | None = None
) -> list[Answer]:
    """The answers to one input: step int64 [R]."""
    check_decoding(d)
    longest = min(d.max_length or longest, longest)
    if d.beam > 1:
        return beam(step, cache, ids, d, longest)[: d.nbest]
    if not d.sample:
        return [one_by_one(step, cache, ids, d, longest, lambda scores: int(scores.argmax()))]

    def draw(scores: Tensor) -> int:
        return int(torch.multinomial(filter_logits(scores, d).softmax(0), 1, generator=generator))

    return [one_by_one(step, cache, ids, d, longest, draw) for _ in range(d.nbest)]


def likeliest(model: Any, memory: Tensor, padding: Tensor | None, length: int, ids: Ids) -> Tensor:
    """The likeliest next token, one after the other: memory [B, S, D], padding bool [B, S] -> int64 [B, length],
    without ends, padded.
    """
    cache = model.init_cache(memory, padding, length)
    found = torch.full((len(memory), length), ids.pad, device=memory.device)
    read, ended = torch.full_like(found[:, 0], ids.begin), torch.zeros_like(found[:, 0], dtype=torch.bool)
    for t in range(length):
        logits, cache = model.decode_step(read, cache)
        logits[:, list(ids.banned)] = -torch.inf
        read = logits.argmax(-1)
        ended |= read == ids.end
        if ended.all():
            break
        found[:, t] = read.masked_fill(ended, ids.pad)  # a text that has ended goes on, but nothing of it is read
    return found


def one_by_one(step: Step, cache: Any, ids: Ids, d: Decoding, longest: int, choose: Callable[[Tensor], int]) -> Answer:
    """The answer of which one token is chosen after the other."""
    tokens: list[int] = []
    total = 0.0
    while len(tokens) < longest and ids.end not in tokens:
        logits, cache = step(torch.tensor([tokens[-1] if tokens else ids.begin]), cache)
        scores = logits[0].float()
        token = choose(apply_rules(scores, tokens, ids, d, longest))
        total += 0.0 if forced_token(tokens, ids, longest) is not None else scores.log_softmax(0)[token].item()
        tokens.append(token)
    return Answer(tokens, total / penalty(len(tokens), d))


def beam(step: Step, cache: Any, ids: Ids, d: Decoding, longest: int) -> list[Answer]:
    """The answers of a beam search, as `generate` of transformers finds them."""
    running: list[list[int]] = [[] for _ in range(d.beam)]
    totals = torch.tensor([0.0] + [-1e9] * (d.beam - 1))  # all begin alike, and only one may go on
    cache, answers = cache.take(torch.zeros(d.beam, dtype=torch.long)), list[Answer]()
    for length in range(1, longest + 1):
        logits, cache = step(torch.tensor([tokens[-1] if tokens else ids.begin for tokens in running]), cache)
        gains = logits.float().log_softmax(1)
        gains = torch.stack([apply_rules(g, t, ids, d, longest) for g, t in zip(gains, running, strict=True)])
        best, index = (totals[:, None] + gains).flatten().topk(2 * d.beam)
        candidates = [(i // gains.shape[1], i % gains.shape[1]) for i in index.tolist()]
        going = [place for place, (_, token) in enumerate(candidates) if token != ids.end and length < longest]
        for place, (parent, token) in enumerate(candidates[: d.beam]):
            if place not in going:
                answers.append(Answer([*running[parent], token], best[place].item() / penalty(length, d)))
        answers = sorted(answers, key=lambda answer: -answer.score)[: d.beam]
        if not going or (d.early_stopping == "true" and len(answers) == d.beam):
            break
        later = longest if d.early_stopping == "never" and d.length_penalty > 0 else length
        if len(answers) == d.beam and best[going[0]].item() / penalty(later, d) <= answers[-1].score:
            break
        going = going[: d.beam]
        running = [[*running[parent], token] for parent, token in (candidates[place] for place in going)]
        totals, cache = best[going], cache.take(torch.tensor([candidates[place][0] for place in going]))
    return answers


def apply_rules(scores: Tensor, tokens: list[int], ids: Ids, d: Decoding, longest: int) -> Tensor:
    """The scores of the next token by the rules of a search: scores [V] -> [V]."""
    only = forced_token(tokens, ids, longest)
    if only is not None:
        return torch.full_like(scores, -math.inf).index_fill(0, torch.tensor(only), 0.0)
    return scores.index_fill(0, torch.tensor(sorted(forbidden(tokens, ids, d)), dtype=torch.long), -math.inf)


def forced_token(tokens: list[int], ids: Ids, longest: int) -> int | None:
    """The token that has to come next. Its id; None where any may come."""
    if ids.forced_end is not None and len(tokens) == longest - 1:
        return ids.forced_end
    return None if tokens else ids.forced_begin


def forbidden(tokens: list[int], ids: Ids, d: Decoding) -> set[int]:
    """The tokens that may not come next."""
    read, out = [ids.begin, *tokens], set(ids.banned)
    for *before, last in d.banned:
        if len(read) >= len(before) and read[len(read) - len(before) :] == before:
            out.add(last)
    if n := d.no_repeat_ngram:
        last_ones = read[len(read) - n + 1 :]
        grams = [read[i : i + n] for i in range(len(read) - n + 1)]
        out |= {gram[-1] for gram in grams if gram[:-1] == last_ones}
    return out | ({ids.end} if len(tokens) + 1 < d.min_length else set())


def penalty(length: int, d: Decoding) -> float:
    """What the sum of the log-probabilities of an answer of this length is divided by."""
    return {"hf": length, "gnmt": (5 + length) / 6}[d.penalty] ** d.length_penalty


def filter_logits(scores: Tensor, d: Decoding) -> Tensor:
    """Logits [V] / temperature, with -inf where top_k and then top_p leave a token out."""
    scores = scores / d.temperature
    if 0 < d.top_k < len(scores):
        scores = scores.masked_fill(scores < scores.topk(d.top_k).values[-1], -math.inf)
    ordered, index = scores.sort(descending=True)
    shares = ordered.softmax(0)
    before = shares.cumsum(0) - shares  # of the likelier ones
    return scores.index_fill(0, index[before >= d.top_p], -math.inf)
