"""By what a network and examples are known to be those that a job was begun with."""

from __future__ import annotations

import dataclasses
import json
from typing import TYPE_CHECKING, Any

import numpy as np

from ...config.trees import flatten
from ...files.digests import array_digest, bytes_digest, text_digest

if TYPE_CHECKING:
    from ...tasks.base import Task
    from ...tasks.predictor import Predictor

_SOME = 1024  # examples that are looked at together


def network_facts(model: Predictor, task: Task) -> dict[str, Any]:
    """A network as facts of a job: digests of its weights and of what it is; how its task searches."""
    from ...models.state import split_model

    arrays = flatten(split_model(model.model)[1])
    weights = {name: array_digest(np.asarray(array)) for name, array in sorted(arrays.items())}
    network = as_json([model.run.model.name, model.run.model, model.metadata])
    search = as_json(getattr(task, "decoding", None))
    return {"weights": text_digest(weights), "network": text_digest(network), "search": search}


def split_digest(split: Any) -> str:
    """A digest of the examples of a split, of images without reading them again."""
    digest, images = bytes_digest(), getattr(split, "images", None)
    if images is not None:
        known = images.digest or text_digest([split.name(i) for i in range(len(split))])
        arrays = [getattr(split, name) for name in ("rows", "labels", "target") if hasattr(split, name)]
        prepared = images.preprocess.to_dict()
        digest.update(text_digest([known, prepared, *map(array_digest, arrays)]).encode())
        return digest.hexdigest()
    for first in range(0, len(split), _SOME):
        examples = split.examples(np.arange(first, min(first + _SOME, len(split))))
        digest.update(text_digest({name: array_digest(x) for name, x in examples.items()}).encode())
    return digest.hexdigest()


def as_json(value: Any) -> Any:
    """A value as JSON has it, of dataclasses their fields, of anything else its text."""

    def other(each: Any) -> Any:
        return dataclasses.asdict(each) if dataclasses.is_dataclass(each) else repr(each)  # type: ignore[arg-type]

    return json.loads(json.dumps(value, default=other))
