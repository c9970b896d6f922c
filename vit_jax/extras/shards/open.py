"""Open shards: tars of webdataset (wds:PATTERN), or parquet files (parquet:PATTERN)."""

from __future__ import annotations

import os

from ...data.items import Asked
from .index import Scan, open_indexes
from .parquet import scan_parquet
from .pattern import find_shards
from .samples import Samples
from .tar import scan_tar


def open_wds(pattern: str, asked: Asked) -> Samples:
    """The samples of tars."""
    return _open(pattern, asked, scan_tar)


def open_parquet(pattern: str, asked: Asked) -> Samples:
    """The rows of parquet files."""
    return _open(pattern, asked, scan_parquet)


def _open(pattern: str, asked: Asked, scan: Scan) -> Samples:
    """The samples of the shards that a pattern names."""
    shards = find_shards(asked.field, pattern, asked.folder)
    indexes = open_indexes(shards, scan, asked.verify)
    samples = Samples(shards.store, indexes, shards.short, os.path.basename(shards.store.url))
    samples.check_alike(asked.field)
    return samples
