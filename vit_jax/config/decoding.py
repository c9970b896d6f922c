"""How answers are generated token by token: the settings of a search, and those of Hugging Face in our words."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from ..errors import Field, UserError
from .fields import check_ranges, option


@dataclass(frozen=True)
class SearchFlags:
    """The settings of greedy and beam search. Lengths count the generated tokens, the end among them."""

    beam: int = option(
        1,
        "hypotheses that are kept at each step (beam search); 1: the likeliest token (greedy)",
        at_least=1,
        at_most=1000,
    )
    length_penalty: float = option(
        1.0,
        "a, in the score of an answer of L tokens: the sum of their log-probabilities / L^a; more prefers long ones",
    )
    penalty: Literal["hf", "gnmt"] = option(
        "hf", "L^a as in transformers and fairseq, or ((5 + L) / 6)^a as in GNMT (arXiv 1609.08144)"
    )
    early_stopping: Literal["false", "true", "never"] = option(
        "false",
        "when a beam search ends once it has as many answers as hypotheses: at once (true), or when no hypothesis is "
        "better than the worst answer, by the penalty of its present length (false) or of the greatest (never)",
    )
    min_length: int = option(0, "fewest tokens of an answer", at_least=0, at_most=100_000)
    max_length: int = option(
        0, "most tokens of an answer; 0: as many as the network or its data allow", at_least=0, at_most=100_000
    )
    no_repeat_ngram: int = option(
        0, "no answer has the same n tokens in succession twice; 0: it may", at_least=0, at_most=100_000
    )


@dataclass(frozen=True)
class AnswerFlags(SearchFlags):
    """Those settings, and which and how many answers there are."""

    nbest: int = option(
        1, "answers to each input, with their scores: the best of the beam, or draws", at_least=1, at_most=1000
    )
    sample: bool = option(False, "draw each token at random")
    temperature: float = option(1.0, "with sample: what the logits are divided by", above=0)
    top_k: int = option(0, "with sample: draw from the k likeliest tokens alone; 0: from all", at_least=0)
    top_p: float = option(
        1.0, "with sample: draw from the likeliest tokens that together have this probability", above=0, at_most=1
    )
    seed: int = option(
        0,
        "with sample: seed of the draws, which are the same for the same input at the same position in the list",
        at_least=0,
        below=2**31,
    )


@dataclass(frozen=True)
class Decoding(AnswerFlags):
    """The settings of a search: greedy by default, beam search with `beam` above 1, or random with `sample`."""

    banned: tuple[tuple[int, ...], ...] = ()


def check_decoding(d: Decoding) -> Decoding:
    """The settings, unchanged."""
    check_ranges(d)
    if d.max_length and d.min_length > d.max_length:
        raise UserError(
            Field("min_length"), f"is {d.min_length} but max_length is {d.max_length}", "raise one or lower the other"
        )
    for sequence in d.banned:
        if not sequence or any(i < 0 for i in sequence):
            raise UserError(
                Field("banned"), f"has {list(sequence)}", "give sequences of at least one id, each 0 or more"
            )
    if d.sample:
        if d.beam > 1:
            raise UserError(
                Field("beam"), f"is {d.beam} but sample is set, and draws have no beam", "leave one of them out"
            )
        return d
    if d.nbest > d.beam:
        raise UserError(
            Field("nbest"),
            f"is {d.nbest} but beam is {d.beam}, so there are no more answers than that",
            f"set beam to {d.nbest} or more, or sample",
        )
    for name in ("temperature", "top_k", "top_p", "seed"):
        if getattr(d, name) != getattr(Decoding, name):
            raise UserError(
                Field(name), f"is {getattr(d, name)} but nothing is drawn", f"set sample, or leave {name} out"
            )
    return d


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
    """The settings of a generation_config.json in our words -> (the settings, the names of those that we lack and that
    would matter).

    A search by them finds what `generate` of transformers finds, except that without a max_length we have no limit,
    where `generate` stops at 20. There max_length counts the decoder's first input too.
    """
    known = {name: value for name, value in stated.items() if value is not None}

    def value(name: str, what: str, default: Any) -> Any:
        found = known.get(name, default)
        if type(found) not in TYPES[what]:
            raise UserError("generation_config.json", f"{name} is {found!r:.60}: give {what}")
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
        raise UserError("generation_config.json", f"bad_words_ids is {banned!r:.60}: give lists of whole numbers")
    found["banned"] = tuple(tuple(each) for each in banned if each != [end])
    lacking = [name for name, harmless in LACKING.items() if name in known and known[name] not in harmless]
    return check_decoding(Decoding(**found)), tuple(sorted(lacking))
