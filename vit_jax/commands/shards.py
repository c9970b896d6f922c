"""The command `vit-jax shards SOURCE OUT`: a set of labelled images as tars of webdataset, each with its index."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field, replace
from pathlib import Path

from ..config import flags
from ..config.fields import option
from ..data.images.config import FOLDER, ImageData
from ..data.images.sources.open import open_image_source
from ..data.progress import progress
from ..data.shards.write import flags_of, write_splits
from ..errors import DONE, UserError
from ..files.stores.open import open_store
from ..files.terminal import run_command

USAGE = "vit-jax shards SOURCE OUT"


@dataclass(frozen=True)
class Options:
    """The arguments of the command after the source and the place."""

    data: ImageData = field(default_factory=lambda: ImageData(source=""))
    megabytes: int = option(256, "bytes of a shard, in millions, about", at_least=1, at_most=4096)


def parse(arguments: list[str]) -> tuple[str, str, Options]:
    """(source, place, options) that arguments ask for."""
    words = list(arguments)
    first: list[str] = []
    while words and len(first) < 2 and not flags.is_flag(words[0]):
        first.append(words.pop(0))
    description = (
        "Writes images and their labels as tars of webdataset, with an index of each, into OUT, a folder, s3:// or "
        "gs://. SOURCE is a folder of classes, or what --data.source takes. Encoded images are copied byte by byte."
    )
    options = flags.parse(Options, words, prog=USAGE, description=description)
    if len(first) < 2:
        raise UserError(f"say what to read and where to write: {USAGE}, such as vit-jax shards pets s3://bucket/pets")
    return first[0], first[1], options


def command(arguments: list[str]) -> int:
    """The body of the command; returns its exit code."""
    source, out, options = parse(arguments)
    source = f"{FOLDER}{source}" if Path(source).is_dir() else source
    found = open_image_source(replace(options.data, source=source))
    store = open_store(out)
    if there := store.list():
        raise UserError(out, f"holds {there[0]} already", "give an empty place, so that nothing is mixed or lost")
    total = sum(len(each.labels) for each in found.splits.values())
    with progress("writing", total, "images") as show:
        for each in write_splits(store, found, options.megabytes * 1_000_000, show):
            print(f"{each.split}: {each.images:,} images in {each.shards:,} shards, {each.size / 1e9:.3g} GB")
    print(f"train on them with --data.source 'wds:*.tar' --data.dir {store.url}{flags_of(found)}")
    return DONE


def main() -> int:
    """Entry point of the command."""
    return run_command(lambda: command(sys.argv[1:]))
