"""Containers: files of named tensors. Each kind opens to lazy tensors, and is written from an iterator of arrays."""

from __future__ import annotations

import os

from vit_jax.errors import UserError
from vit_jax.files.places import local_copy

from .kinds import PROGRAMS, SUFFIXES, check_file, is_program, open_file, writer
from .source import Source, Step

__all__ = ["PROGRAMS", "SUFFIXES", "check_file", "is_program", "open_source", "writer"]


def open_source(path: str, file: str = "", step: Step = None, training: bool = False) -> Source:
    """Open a file, a folder or hf://owner/name. Reads headers only, no values."""
    if path.startswith("hf://"):
        from .hub import fetch

        path = fetch(path, file)
    path = local_copy(path)
    if os.path.isdir(path):
        from .folder import open_folder

        return open_folder(path, file, step, training)
    if os.path.isfile(path) and (file or step is not None):
        raise UserError(path, "is a file", "leave out `file` and `step`, which choose in a folder")
    if path.endswith(".index.json"):
        from .folder import open_shards

        return open_shards(path)
    return open_file(path)
