"""Open the shards that a source names: wds:PATTERN, tars of webdataset, or parquet:PATTERN."""

from __future__ import annotations

import os

from ...config.gone import instead_of
from ...errors import UserError
from .index import open_indexes
from .parquet import scan_parquet
from .pattern import find_shards
from .samples import Samples
from .tar import scan_tar

SCANS = {"wds:": scan_tar, "parquet:": scan_parquet}  # {how a source begins: what reads a shard}
MDS = "mds:"  # began the shards of MosaicML's streaming


def names_shards(source: str) -> bool:
    """Whether a data.source names shards. Raises UserError of a kind that is read no more."""
    if source.startswith(MDS):
        raise UserError(source, "names shards of MDS, which are not read", instead_of(MDS))
    return source.startswith(tuple(SCANS))


def open_samples(field: str, source: str, place: str, verify: bool = False) -> Samples:
    """The samples of shards."""
    kind, pattern = next((kind, source.removeprefix(kind)) for kind in SCANS if source.startswith(kind))
    shards = find_shards(field, pattern, place)
    indexes = open_indexes(shards, SCANS[kind], verify)
    samples = Samples(shards.store, indexes, shards.short, os.path.basename(shards.store.url))
    samples.check_alike(field)
    return samples
