"""The place of this process among several: what `--hosts` states."""

from __future__ import annotations

import re
from dataclasses import dataclass

from ...errors import Field, UserError

FORMS = "auto, or ADDRESS:PORT,COUNT,INDEX such as 10.0.0.1:5000,2,0 on the first of two hosts"


@dataclass(frozen=True)
class Place:
    """Where process 0 listens, how many processes there are, and which of them this is, from 0."""

    address: str
    port: int
    count: int
    index: int


def read_place(text: str) -> Place | None:
    """The place that a value of --hosts states; None for auto, where JAX finds it.

    Raises:
        UserError: it states none.
    """
    if text == "auto":
        return None
    match = re.fullmatch(r"(\[[0-9a-fA-F:.%]+\]|[^\s:,\[\]]+):(\d{1,5}),(\d{1,6}),(\d{1,6})", text, re.ASCII)
    if not match:
        raise UserError(Field("hosts"), f"is {text[:80]!r}", f"give {FORMS}")
    address, (port, count, index) = match[1], map(int, match.groups()[1:])
    if not 0 < port < 2**16:
        raise UserError(Field("hosts"), f"is {text}", f"its port is {port}; give one of 1 to 65535")
    if not count:
        raise UserError(Field("hosts"), f"is {text}", "its COUNT is 0; give the number of processes")
    if index >= count:
        raise UserError(
            Field("hosts"), f"is {text}", f"its INDEX is {index}; give one of 0 to {count - 1} to each process"
        )
    return Place(address, port, count, index)
