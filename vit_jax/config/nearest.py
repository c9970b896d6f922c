"""The known names that are most similar to a mistaken one."""

from __future__ import annotations

import difflib

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
