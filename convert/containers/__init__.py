"""Files of tensors: each kind opens to named lazy tensors, and writes from an iterator."""

from __future__ import annotations

import os

from vit_jax.errors import UserError

from .kinds import SUFFIXES, check_file, open_file, writer
from .source import Source

__all__ = ["SUFFIXES", "check_file", "open_source", "writer"]


def open_source(path: str, file: str = "", step: int | None = None) -> Source:
    """Open a file, a folder or hf://owner/name; `file` and `step` name one of several candidates in a folder.

    Headers are read, values not. Raises UserError where there is no such thing, it is no file of weights, or is damaged.
    """
    if path.startswith("hf://"):
        from .hub import fetch

        path = fetch(path, file)
    if os.path.isdir(path):
        from .folder import open_folder

        return open_folder(path, file, step)
    if os.path.isfile(path) and (file or step is not None):
        raise UserError(f"{path}: is a file; --file and --step choose in a folder")
    if path.endswith(".index.json"):
        from .folder import open_shards

        return open_shards(path)
    return open_file(path)
