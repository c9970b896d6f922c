"""What earlier versions had: the names of flags, fields, arguments and commands, and what takes their place."""

from __future__ import annotations

# {name, without dashes before it: a clause that says what to use}
GONE = {
    "halving": "pruner halving ends runs that fall behind",
    "by-device": "give the same command once for each GPU, with CUDA_VISIBLE_DEVICES=0, 1, ... before it",
    "points": "trials N tries so many of all combinations",
}


def instead_of(name: str) -> str:
    """What takes the place of a flag, field or command that is gone; empty of others."""
    return GONE.get(name.lstrip("-").replace("_", "-"), "")
