"""Open the shards that a source names: wds:PATTERN, tars of webdataset, parquet:PATTERN, or mds:PATTERN."""

from __future__ import annotations

import os

from .index import open_indexes
from .mds import scan_mds
from .parquet import scan_parquet
from .pattern import find_shards
from .samples import Samples
from .tar import scan_tar

SCANS = {"wds:": scan_tar, "parquet:": scan_parquet, "mds:": scan_mds}  # {how a source begins: what reads a shard}


def names_shards(source: str) -> bool:
    """Whether a data.source names shards."""
    return source.startswith(tuple(SCANS))


def open_samples(field: str, source: str, place: str, verify: bool = False) -> Samples:
    """The samples of shards."""
    kind, pattern = next((kind, source.removeprefix(kind)) for kind in SCANS if source.startswith(kind))
    shards = find_shards(field, pattern, place)
    indexes = open_indexes(shards, SCANS[kind], verify)
    samples = Samples(shards.store, indexes, shards.short, os.path.basename(shards.store.url))
    samples.check_alike(field)
    return samples
