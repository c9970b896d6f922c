"""How answers are generated token by token: the settings of a search, and those of Hugging Face in our words."""

from __future__ import annotations

import math
import numbers
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Literal

from ..errors import UserError


def setting(default: Any, help: str) -> Any:
    """A setting of a search, which is a flag of the commands that generate."""
    return field(default=default, metadata={"help": help})


@dataclass(frozen=True)
class SearchFlags:
    """The settings of greedy and beam search. Lengths count the generated tokens, the end among them."""

    beam: int = setting(1, "hypotheses that are kept at each step (beam search); 1: the likeliest token (greedy)")
    length_penalty: float = setting(
        1.0,
        "a, in the score of an answer of L tokens: the sum of their log-probabilities / L^a; more prefers long ones",
    )
    penalty: Literal["hf", "gnmt"] = setting(
        "hf", "L^a as in transformers and fairseq, or ((5 + L) / 6)^a as in GNMT (arXiv 1609.08144)"
    )
    early_stopping: Literal["false", "true", "never"] = setting(
        "false",
        "when a beam search ends that has as many answers as hypotheses: at once (true), or when no hypothesis is "
        "better than the worst of them, by the penalty of its present length (false) or of the greatest (never)",
    )
    min_length: int = setting(0, "fewest tokens of an answer")
    max_length: int = setting(0, "most tokens of an answer; 0: as many as the network or its data allow")
    no_repeat_ngram: int = setting(0, "no answer has the same n tokens in succession twice; 0: it may")


@dataclass(frozen=True)
class AnswerFlags(SearchFlags):
    """Those settings, and which and how many answers there are."""

    nbest: int = setting(1, "answers to each input, the best of the beam, with their scores; or so many draws")
    sample: bool = setting(False, "draw each token at random")
    temperature: float = setting(1.0, "with sample: what the logits are divided by")
    top_k: int = setting(0, "with sample: draw from the k likeliest tokens alone; 0: from all")
    top_p: float = setting(1.0, "with sample: draw from the likeliest tokens that together have this probability")
    seed: int = setting(0, "with sample: seed of the draws, which are the same for the same input at the same place")


@dataclass(frozen=True)
class Decoding(AnswerFlags):
    """The settings of a search: greedy by default, beam search with `beam` above 1, or random with `sample`."""

    banned: tuple[tuple[int, ...], ...] = ()  # sequences of ids that are in no answer


OF_DRAWS = ("temperature", "top_k", "top_p", "seed")
MOST = {
    "beam": 1000,
    "nbest": 1000,
    "min_length": 100_000,
    "max_length": 100_000,
    "no_repeat_ngram": 100_000,
    "seed": 2**31 - 1,
}


KINDS: dict[type, tuple[Any, str]] = {
    bool: (bool, "True or False"),
    int: (numbers.Integral, "a whole number"),
    float: (numbers.Real, "a number"),
}  # {the type of a default: (what a value has to be, that in words)}


def check_decoding(d: Decoding) -> Decoding:
    """Return the settings unchanged. Raises UserError naming the first invalid one."""
    for f in fields(d):
        value, kind = getattr(d, f.name), type(f.default)
        if kind in KINDS and not (isinstance(value, KINDS[kind][0]) and (kind is bool or not isinstance(value, bool))):
            raise UserError(f"{f.name} is {value!r:.40}: give {KINDS[kind][1]}")
    for name in ("beam", "nbest", "min_length", "max_length", "no_repeat_ngram", "top_k", "seed"):
        value, least = getattr(d, name), 1 if name in ("beam", "nbest") else 0
        if not least <= value <= MOST.get(name, math.inf):
            most = f", at most {MOST[name]}" if name in MOST else ""
            raise UserError(f"{name} is {value}: give {least} or more{most}")
    for name, allowed in (("penalty", ("hf", "gnmt")), ("early_stopping", ("false", "true", "never"))):
        if getattr(d, name) not in allowed:
            raise UserError(f"{name} is {getattr(d, name)!r}: choose {', '.join(allowed[:-1])} or {allowed[-1]}")
    if not math.isfinite(d.length_penalty):
        raise UserError(f"length_penalty is {d.length_penalty}: give a finite number")
    if d.max_length and d.min_length > d.max_length:
        raise UserError(f"min_length is {d.min_length} but max_length is {d.max_length}: raise one or lower the other")
    for sequence in d.banned:
        if not sequence or any(i < 0 for i in sequence):
            raise UserError(f"banned has {list(sequence)}: give sequences of at least one id, each 0 or more")
    if d.sample:
        _check_draws(d)
        return d
    if d.nbest > d.beam:
        raise UserError(
            f"nbest is {d.nbest} but beam is {d.beam}, so there are no more answers than that: "
            f"set beam to {d.nbest} or more, or sample"
        )
    for name in OF_DRAWS:
        if getattr(d, name) != getattr(Decoding, name):
            raise UserError(f"{name} is {getattr(d, name)} but nothing is drawn: set sample, or leave {name} out")
    return d


def _check_draws(d: Decoding) -> None:
    if d.beam > 1:
        raise UserError(f"beam is {d.beam} but sample is set, and draws have no beam: leave one of them out")
    if not 0 < d.temperature < math.inf:
        raise UserError(f"temperature is {d.temperature}: give a positive number")
    if not 0 < d.top_p <= 1:
        raise UserError(f"top_p is {d.top_p}: give a number above 0 and at most 1")


# ----------------------------------------------------------------------- as transformers states them

TYPES = {
    "a whole number": (int,), "a number": (int, float), "true or false": (bool,),
    "true, false or a text": (bool, str), "a list": (list,),
}  # fmt: skip
# What we have for a setting of generation_config.json: its name there, ours, and what it is.
SETTINGS = (
    ("num_beams", "beam", "a whole number"),
    ("num_return_sequences", "nbest", "a whole number"),
    ("length_penalty", "length_penalty", "a number"),
    ("no_repeat_ngram_size", "no_repeat_ngram", "a whole number"),
    ("min_length", "min_length", "a whole number"),
    ("do_sample", "sample", "true or false"),
)
DRAWS = (
    ("temperature", "temperature", "a number"), ("top_k", "top_k", "a whole number"), ("top_p", "top_p", "a number")
)  # fmt: skip
# Settings that we lack, with the values at which they change nothing.
LACKING: dict[str, tuple[Any, ...]] = {
    **dict.fromkeys(("repetition_penalty", "encoder_repetition_penalty"), (1,)),
    **dict.fromkeys(("num_beam_groups", "guidance_scale", "typical_p", "top_h"), (1,)),
    **dict.fromkeys(("encoder_no_repeat_ngram_size", "epsilon_cutoff", "eta_cutoff", "min_p", "penalty_alpha"), (0,)),
    **dict.fromkeys(("suppress_tokens", "begin_suppress_tokens", "force_words_ids", "constraints"), ([],)),
    **dict.fromkeys(("diversity_penalty", "remove_invalid_values", "renormalize_logits"), (0,)),
    **dict.fromkeys(("sequence_bias", "exponential_decay_length_penalty", "max_time", "stop_strings"), ()),
}


def from_generation_config(stated: Mapping[str, Any], end: int) -> tuple[Decoding, tuple[str, ...]]:
    """(the settings of a generation_config.json in our words, the names of those that we lack and that would matter).

    A search by them finds what `generate` of transformers finds, except that without a max_length we have no limit,
    where `generate` stops at 20. There max_length counts the decoder's first input too; `end` is the id of the end,
    which is never banned. Raises UserError on a value of a wrong type, and as `check_decoding` does.
    """
    known = {name: value for name, value in stated.items() if value is not None}

    def value(name: str, what: str, default: Any) -> Any:
        found = known.get(name, default)
        if type(found) not in TYPES[what]:
            raise UserError(f"generation_config.json: {name} is {found!r:.60}: give {what}")
        return found

    found = {ours: value(name, what, getattr(Decoding, ours)) for name, ours, what in SETTINGS}
    if found["sample"]:
        found |= {ours: value(name, what, 50 if ours == "top_k" else 1.0) for name, ours, what in DRAWS}
    limit = "max_new_tokens" if "max_new_tokens" in known else "max_length"
    most = value(limit, "a whole number", 0)
    found["max_length"] = most - 1 if limit == "max_length" and most > 1 else most
    before_end = value("min_new_tokens", "a whole number", 0)
    found["min_length"] = max(found["min_length"], before_end + 1 if before_end else 0)
    found["early_stopping"] = str(value("early_stopping", "true, false or a text", False)).lower()
    banned = value("bad_words_ids", "a list", [])
    if not all(isinstance(each, list) and all(type(i) is int for i in each) for each in banned):
        raise UserError(f"generation_config.json: bad_words_ids is {banned!r:.60}: give lists of whole numbers")
    found["banned"] = tuple(tuple(each) for each in banned if each != [end])
    lacking = [name for name, harmless in LACKING.items() if name in known and known[name] not in harmless]
    return check_decoding(Decoding(**found)), tuple(sorted(lacking))
