"""What earlier versions had: the names of flags, fields, arguments and commands, and what takes their place."""

from __future__ import annotations

_SHARES = "each command takes a fixed share of the rows: --share I/N of predict and evaluate, and then vit-jax join"

# {name, without dashes before it: a clause that says what to use}
GONE = {"parts": _SHARES, "part-size": _SHARES, "merge": _SHARES}
