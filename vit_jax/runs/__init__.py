"""The run folder: its layout, config.json, digests and lock. Nothing here imports jax, so every tool can read runs.

files, digests, beside (the files of a tokenizer), record (what config.json may hold), log (metrics.jsonl), folder
(`Run`), several (runs by one name), choice (which folder).
"""

from __future__ import annotations

from ..config.trees import flatten, unflatten
from .beside import read_files
from .choice import check_place, choose, find, is_foreign, mean_of, same_data, same_identity
from .digests import array_digest, bytes_digest, parts_digest, text_digest, with_digest, without_digest
from .files import (
    check_regular,
    make_folder,
    read_json,
    shown,
    sync_file,
    sync_folder,
    sync_tree,
    write_json,
    write_text,
)
from .folder import Run
from .locks import locked, try_lock
from .log import HISTOGRAMS, NO_LOG
from .record import record_of

__all__ = [
    "HISTOGRAMS",
    "NO_LOG",
    "Run",
    "array_digest",
    "bytes_digest",
    "check_place",
    "check_regular",
    "choose",
    "find",
    "flatten",
    "is_foreign",
    "locked",
    "make_folder",
    "mean_of",
    "parts_digest",
    "read_files",
    "read_json",
    "record_of",
    "same_data",
    "same_identity",
    "shown",
    "sync_file",
    "sync_folder",
    "sync_tree",
    "text_digest",
    "try_lock",
    "unflatten",
    "with_digest",
    "without_digest",
    "write_json",
    "write_text",
]
