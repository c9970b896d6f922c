"""What a child does with a file beyond reading it: choosing its weights, cutting it while it is open."""

from __future__ import annotations

import os
from typing import Any

from convert.containers import open_source
from convert.recognise import weights_in


def weights(path: str, key: str = "", name: str = "w") -> Any:
    """(label, arrays, what was passed over) of the sets of weights that have a tensor of this name."""
    with open_source(path) as source:
        label, tensors, left_out, _ = weights_in.choose(source, lambda found: name in found, key)
        return label, {each: tensor.read() for each, tensor in tensors.items()}, [*left_out, *source.skipped]


def cut_while_open(path: str, size: int) -> Any:
    """Open a file, cut it to `size` bytes, then read all."""
    with open_source(path) as source:
        os.truncate(path, size)
        return [tensor.read() for tensor in source.tree.values()]
