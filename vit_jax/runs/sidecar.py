"""Files that a run keeps beside config.json, which records their digests: those of a tokenizer."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..errors import UserError
from ..files.atomic import RESTORE, make_folder, write_bytes
from ..files.digests import content_digest
from ..files.reading import check_regular, read_regular, show_path

NAME = re.compile(r"(?!\.)[\w.-]+")  # nothing that leads elsewhere
LARGEST = 1 << 28  # bytes
MOST = 100


def are_files(value: Any) -> bool:
    """Whether a JSON value is {path inside a run's folder: digest}."""
    return (
        isinstance(value, dict)
        and len(value) <= MOST
        and all(isinstance(digest, str) for digest in value.values())
        and all("/" in path and all(map(NAME.fullmatch, path.split("/"))) for path in value)
    )


def write_files(folder: Path, files: Mapping[str, bytes]) -> dict[str, str]:
    """Write files {path inside the folder: content}; returns their digests for config.json."""
    for path, content in files.items():
        make_folder((folder / path).parent)
        write_bytes(folder / path, content)
    return {path: content_digest(content) for path, content in files.items()}


def read_files(folder: Path, digests: Mapping[str, str]) -> dict[str, bytes]:
    """The content of files of a run -> {path: content}."""
    found = {}
    for path, digest in digests.items():
        file = folder / path
        check_regular(file, link=False)
        found[path] = read_regular(file, LARGEST, RESTORE)
        if content_digest(found[path]) != digest:
            raise UserError(show_path(file), "is not the file that the run began with", RESTORE)
    return found
