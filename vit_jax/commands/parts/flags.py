"""The flags of commands that work on a share of a job."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...config.fields import option
from ...config.flags import given_texts
from ...errors import Field, UserError
from .job import check_place
from .tables import Format, check_format

PART_SIZE = 4096


@dataclass(frozen=True, kw_only=True)
class PartsFlags:
    """Where predictions are kept in parts."""

    parts: str = option(
        "",
        "compute a share of all predictions, as any number of such commands may do at the same time on any machines: "
        "parts of a table are written into this folder, s3:// or gs:// place, each once, until all are there; "
        "repeated, the command goes on, and it takes over the parts of one that was killed; an input that cannot be "
        "read is a row with the reason. With --csv, --probabilities or --features FILE the command then joins the "
        "parts to that file",
    )
    part_size: int = option(PART_SIZE, "with --parts: inputs of a part, which is in memory as a whole", at_least=1)
    format: Format = option("csv", "with --parts: what tables in parts are, CSV or parquet")
    merge: str = option(
        "",
        "with --parts: compute nothing, and join the parts to this file once all are there; RUN and inputs may then be "
        "left out",
    )


@dataclass(frozen=True, kw_only=True)
class MergeOptions:
    """Join predictions in parts to one table."""

    parts: str = option("", "where they are")
    merge: str = option("", "the table, or .npz of features")
    force: bool = option(False, "overwrite it if it exists")


def merges_alone(arguments: Sequence[str]) -> bool:
    """Whether arguments join parts without naming the network that they are of."""
    given = given_texts(arguments)
    return {"parts", "merge"} <= given.keys() <= {"", "parts", "merge", "force"} and not given[""]


def check_parts(o: Any, stated: Collection[str], whole: Collection[str], reads: Iterable[str | Path]) -> None:
    """Check that parts can be kept where they are to be, and that they are not mixed with what is done as a whole."""
    for name in ("part_size", "format", "merge"):
        if name in stated and not o.parts:
            raise UserError(Field(name), "is of a job in parts, and none is asked for", "add --parts OUT")
    for name in whole if o.parts else ():
        if name in stated:
            what = "is of a command that does all, and with --parts it does a share"
            raise UserError(Field(name), what, "leave one of them out")
    if o.parts:
        check_place(o.parts, reads)
        check_format(getattr(o, "format", ""))
