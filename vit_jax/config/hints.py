"""What a mistaken name was meant to be, in the shell and in Python: what others call it, or what is most like it."""

from __future__ import annotations

import dataclasses
import difflib
import re
from collections.abc import Mapping, Sequence
from typing import Any

from .gone import instead_of
from .synonyms import FLAGS, REASONS

Names = Mapping[str, str]  # {a field as a flag is typed, without dashes before it: optim.weight-decay; its help}


def names_of(config: Any, prefix: str = "") -> dict[str, str]:
    """The help of each field of a config, also of those of the configs inside it -> {name: help}, the names as flags
    without dashes.
    """
    found: dict[str, str] = {}
    for f in dataclasses.fields(config):
        name, part = f"{prefix}{f.name.replace('_', '-')}", getattr(config, f.name, None)
        if dataclasses.is_dataclass(part):
            found |= names_of(part, f"{name}.")
        else:
            found[name] = f.metadata.get("help", "")
    return found


def hint(
    word: str,
    known: Names,
    reasons: Mapping[str, str] = REASONS,
    inside: str = "",
    else_: str = "",
) -> str:
    """A clause: what takes the place of an unknown name here, why nothing does, or the names most similar to it.

    `inside`: the part of a run's config whose fields the caller names without it.
    """

    def write(names: Sequence[str]) -> list[str]:
        return [name.replace("-", "_").removeprefix(f"{inside}.") for name in names]

    if gone := instead_of(word):
        return f": {gone}"
    wanted = word.lstrip("-").lower().replace("_", "-")
    for name in (wanted, wanted.rpartition(".")[2]):
        if (reason := reasons.get(name)) and _has_all(known, reason):
            return f": {reason}"
        if ours := [flag for flag in FLAGS.get(name, ()) if flag in known]:
            return f"; here it is {' or '.join(write(ours))}"
    close = _similar(wanted[:200], known)
    return f"; nearest: {', '.join(write(close))}" if close else else_


def _has_all(known: Names, text: str) -> bool:
    """Whether there are all fields that a text names."""
    named = (word.replace("_", "-") for word in re.findall(r"`([a-z][a-z._]*)", text))
    return all(any(name.startswith(word) for name in known) for word in named)


def _similar(wanted: str, known: Names) -> list[str]:
    """The names that are most similar to a word, by themselves or by their help texts, at most three."""
    words = wanted.rpartition(".")[2].replace("-", " ")

    def similarity(name: str, text: str) -> float:
        pairs = ((wanted, name), (words, name.rpartition(".")[2].replace("-", " ")))
        in_help = 0.7 + 0.3 * len(words) / len(text) if len(words) > 1 and f" {words} " in f" {text} " else 0.0
        return max(in_help, *(difflib.SequenceMatcher(None, *pair).ratio() for pair in pairs))

    found = sorted(((similarity(name, text), name) for name, text in known.items()), reverse=True)
    return [name for score, name in found if score >= max(0.6, found[0][0] - 0.2)][:3]


LONGEST, LISTED = 200, 25  # letters of a name that are compared; names that a message lists at most


def nearest(name: str, known: list[str]) -> str:
    """A clause with the most similar known names, '; nearest: ...', or with all known names if none is similar."""
    more = f" and {len(known) - LISTED} more" if len(known) > LISTED else ""
    return similar(name, known) or f"; known: {', '.join(sorted(known)[:LISTED])}{more}"


def similar(name: str, known: list[str]) -> str:
    """A clause with the most similar known names. Returns '; nearest: ...', of similar names those first that begin
    with `name`; empty if none is similar.
    """
    given, folded = name[:LONGEST].casefold(), {each.casefold(): each for each in known}
    close = difflib.get_close_matches(given, folded, n=len(folded) or 1, cutoff=0.4)
    close.sort(key=lambda each: not each.startswith(given))
    return f"; nearest: {', '.join(folded[each] for each in close[:3])}" if close else ""
