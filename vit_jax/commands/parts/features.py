"""Features in parts: arrays of some inputs each, joined to one .npz."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ...errors import UserError
from ...files.output import write_npz
from ..prediction.sources import Source
from .job import Job
from .share import REASON, Share, batches_of

if TYPE_CHECKING:
    from ...tasks.predictor import Predictor

FEATURES, FILES = "features", "files"


def share_of_features(
    model: Predictor, sources: Sequence[Source], blocks: Sequence[int], norm: bool, batch: int
) -> Share:
    """Arrays of features, each with a row for every input; of one that cannot be read it is NaN."""

    def content(start: int, stop: int) -> bytes:
        names, reasons, parts = list[str](), list[str](), list[Mapping[str, np.ndarray]]()
        for asked in batches_of(model, sources, start, stop, batch):
            found = model.features(asked.filled(model.blank), blocks, norm, len(asked.given))
            for array in found.values():
                array[~np.array(asked.usable)] = np.nan
            parts.append(found)
            names += map(str, asked.given)
            reasons += [asked.reason(i) for i in range(len(asked.given))]
        file = io.BytesIO()
        arrays: dict[str, Any] = {FILES: np.array(names), REASON: np.array(reasons)}
        arrays |= {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
        np.savez(file, **arrays)
        return file.getvalue()

    return Share(FEATURES, ".npz", {"blocks": [*blocks], "norm": norm}, content)


def join_features(job: Job, path: str) -> str:
    """Write the arrays of all parts as one .npz, one part at a time in memory; returns a line that says what it has."""
    texts: dict[str, list[str]] = {FILES: [], REASON: []}

    def arrays() -> Iterator[Mapping[str, np.ndarray]]:
        for part in range(job.count):
            found = _read(job, part)
            for name, each in texts.items():
                each += found.pop(name).tolist()
            yield found

    shapes = write_npz(path, arrays(), int(job.facts["inputs"]), **texts)
    unread = sum(map(bool, texts[REASON]))
    more = f"; {unread:,} could not be read, see {REASON}" if unread else ""
    return f"{path}: {', '.join(f'{name} {list(shape)}' for name, shape in shapes.items())}{more}"


def _read(job: Job, part: int) -> dict[str, np.ndarray]:
    """The arrays of a part. Raises UserError where it is damaged."""
    try:
        with np.load(io.BytesIO(job.read(part)), allow_pickle=False) as found:
            return {name: found[name] for name in found.files}
    except (ValueError, KeyError, OSError, EOFError, zipfile.BadZipFile) as error:
        where = f"{job.store.url}/{job.name(part)}"
        raise UserError(where, f"is damaged ({error})", "delete it, and repeat the command that computes it") from error
