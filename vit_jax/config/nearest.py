"""The known names most like a mistaken one."""

from __future__ import annotations

import difflib

LONGEST, LISTED = 200, 20  # letters of a mistaken name that are compared; known names that are listed


def nearest(name: str, known: list[str]) -> str:
    """A clause naming the known names most like a mistaken one: '; nearest: ...'."""
    close = difflib.get_close_matches(name[:LONGEST], known, n=3, cutoff=0.4)
    more = f" and {len(known) - LISTED} more" if len(known) > LISTED else ""
    return f"; nearest: {', '.join(close)}" if close else f"; known: {', '.join(sorted(known)[:LISTED])}{more}"
