"""Texts as pairs for pretraining: what is taken out of a text, as the source, and what was taken out, as the target.

Span corruption: Raffel et al. 2020 (arXiv 1910.10683); the mixture of denoisers: Tay et al. 2022 (arXiv 2205.05131).
All of it is a function of whole numbers: the seed of the run, the epoch and the number of the text.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ...errors import Field, UserError
from ...text.tokenizer import Tokenizer
from ..order import CORRUPTION, permutation
from .config import SentenceData

SENTINEL = "<extra_id_{}>"  # stands for the span of that number that was taken out
MODES = ("[NLU]", "[NLG]", "[S2S]")  # of UL2: a little, or much, is taken out, or all from some place on
MOST = 1000  # sentinels that are looked for


@dataclass(frozen=True)
class Denoiser:
    """A way to corrupt a text."""

    rate: float
    mean: float
    mode: tuple[int, ...] = ()

    def counts(self, length: int) -> tuple[int, int]:
        """(tokens that are taken out, spans of them) of a text of `length` tokens, at least 2; as T5 counts them."""
        noise = min(max(round(length * self.rate), 1), length - 1)
        return noise, min(max(round(noise / self.mean), 1), noise, length - noise)

    def sizes(self, length: int) -> tuple[int, int]:
        """The most ids of (source, target) that a text of `length` tokens becomes, without ends."""
        noise, spans = self.counts(length) if self.rate else (length - 1, 0)
        kept = length - noise if self.rate else length - 1
        return len(self.mode) + kept + spans, noise + spans + bool(self.rate)


@dataclass(frozen=True)
class Corruption:
    """The denoisers of a run, one of which each text has in each epoch; `sentinels` are ids, the first one first."""

    denoisers: tuple[Denoiser, ...]
    sentinels: np.ndarray
    seed: int

    def pair(self, text: np.ndarray, epoch: int, number: int) -> tuple[np.ndarray, np.ndarray]:
        """The source and the target that a text becomes: text int [N]."""
        key = CORRUPTION, self.seed, epoch, number
        d = self.denoisers[permutation(len(self.denoisers), *key)[0]] if len(self.denoisers) > 1 else self.denoisers[0]
        mode, length = np.array(d.mode, np.int32), len(text)
        if not d.rate:
            cut = 1 + permutation(length - 1, *key, 0)[0]
            return np.concatenate([mode, text[:cut]]).astype(np.int32), text[cut:].astype(np.int32)
        noise, spans = d.counts(length)
        out, kept = (segments(n, spans, *key, i) for i, n in enumerate((noise, length - noise)))
        ends = np.cumsum(np.stack([kept, out], 1).reshape(-1))  # kept and taken out in turn, the first one kept
        parts = np.split(text, ends[:-1])
        marks = self.sentinels[: spans + 1, None]
        source = [x for i in range(spans) for x in (parts[2 * i], marks[i])]
        target = [x for i in range(spans) for x in (marks[i], parts[2 * i + 1])]
        return np.concatenate([mode, *source]).astype(np.int32), np.concatenate([*target, marks[spans]]).astype(
            np.int32
        )

    def longest(self, room: int, ends: int) -> int:
        """The most tokens of a text whose source, with so many `ends`, and target, with one, fit into `room` ids."""
        for length in range(int(2 * room), 1, -1):
            if all(s + ends <= room and t + 1 <= room for s, t in (d.sizes(length) for d in self.denoisers)):
                return length
        return 1


def segments(items: int, count: int, *seed: int) -> np.ndarray:
    """The lengths, int [count], of a random partition of items into so many parts that are not empty."""
    cuts = np.sort(permutation(items - 1, *seed)[: count - 1]) + 1
    return np.diff(np.concatenate([[0], cuts, [items]]))


def corruption_of(data: SentenceData, source: Tokenizer, seed: int) -> Corruption:
    """The corruption that a run states."""
    if data.corrupt == "spans":
        denoisers = [Denoiser(data.corrupt_rate, data.corrupt_length)]
    else:
        regular, extreme, sequential = modes = [_mode(source, name) for name in MODES]
        if len({*modes}) < len(modes):
            what = f"is ul2, but data.tokenizer {data.tokenizer} says {', '.join(MODES)} alike"
            raise UserError(Field("data.corrupt"), what, "give spans, or another tokenizer")
        denoisers = [Denoiser(0.15, 3, regular)] * 2  # a third each: the same twice, as the extreme ones are two
        denoisers += [Denoiser(0.5, 3, extreme), Denoiser(0.15, 32, extreme), *[Denoiser(0, 0, sequential)] * 2]
    found = [source.number(SENTINEL.format(i)) for i in range(MOST)]
    known = found[: found.index(None)] if None in found else found
    out = Corruption(tuple(denoisers), np.array(known, np.int32), seed)
    longest = out.longest(data.lengths[-1], len(source.after))
    if longest < 2:
        what = f"is {data.lengths[-1]}, in which no text of two tokens has room"
        raise UserError(Field("data.lengths"), what, "give greater lengths")
    needed = 1 + max(d.counts(longest)[1] for d in denoisers if d.rate)
    if len(known) < needed:
        has = (
            f"has {len(known)} sentinels, {SENTINEL.format(0)} and so on,"
            if known
            else "has no sentinels (<extra_id_0>)"
        )
        raise UserError(
            f"data.tokenizer {data.tokenizer}",
            f"{has} and texts of {longest} tokens, which the last of data.lengths allows, need {needed}",
            "give the folder of a tokenizer of T5, or lower data.lengths" if known else "give the folder of one of T5",
        )
    return out


def _mode(tokenizer: Tokenizer, name: str) -> tuple[int, ...]:
    """The ids of a mode token, which some vocabularies have as one piece and others as several."""
    ids = tokenizer.encode(name).tolist()
    return tuple(ids[: len(ids) - len(tokenizer.after)])
