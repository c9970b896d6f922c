"""Files that change while they are read. Light: it is imported by the child processes."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np

from convert.containers import open_source


def cut(path: str, name: str) -> Any:
    """Read a tensor of a file that was cut after its header had been read."""
    with open_source(path) as source:
        os.truncate(path, os.path.getsize(path) - 4)
        return source.tree[name].read()


def grown(path: str, name: str) -> Any:
    """Read a tensor of a file that has grown since its header was read."""
    with open_source(path) as source:
        with open(path, "ab") as file:
            file.write(bytes(4))
        return source.tree[name].read()


def rewritten(path: str, name: str) -> tuple[bytes, bytes]:
    """A tensor's bytes when they were read, and the same array's after the file was written over in place."""
    with open_source(path) as source:
        array = source.tree[name].read()
    before = array.tobytes()
    Path(path).write_bytes(np.random.default_rng(0).bytes(os.path.getsize(path)))
    return before, array.tobytes()
