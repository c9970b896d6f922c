"""The known names that are most similar to a mistaken one."""

from __future__ import annotations

import difflib

LONGEST, LISTED = 200, 25  # letters of a name that are compared; names that a message lists at most


def nearest(name: str, known: list[str]) -> str:
    """A clause with the most similar known names, '; nearest: ...', or with all known names if none is similar."""
    more = f" and {len(known) - LISTED} more" if len(known) > LISTED else ""
    return similar(name, known) or f"; known: {', '.join(sorted(known)[:LISTED])}{more}"


def similar(name: str, known: list[str]) -> str:
    """A clause with the most similar known names, '; nearest: ...'; empty if none is similar."""
    close = difflib.get_close_matches(name[:LONGEST], known, n=3, cutoff=0.4)
    return f"; nearest: {', '.join(close)}" if close else ""
