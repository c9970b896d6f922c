"""The run folder: its layout, config.json, which folder a run gets, or a name means. Free of jax."""

from .choice import (
    Difference,
    changed_beside,
    check_place,
    choose,
    find,
    is_foreign,
    mean_of,
    of_summary,
    other_content,
    other_run,
    read_from,
    same_identity,
)
from .folder import Run
from .record import read_files, record_of

__all__ = [
    "Difference", "Run", "changed_beside", "check_place", "choose", "find", "is_foreign",
    "mean_of", "of_summary", "other_content", "other_run", "read_files", "read_from", "record_of", "same_identity",
]  # fmt: skip
