"""The fields of configs, each with its help text and marked as identity or execution."""

from __future__ import annotations

from dataclasses import field
from typing import Any, Literal, Unpack

from .ranges import Bounds, Range

Size = int | tuple[int, int]
Activation = Literal["gelu", "gelu_tanh", "quick_gelu", "relu", "silu"]
Decaying = Literal["kernel", "bias", "norm", "token", "position", "scale", "embedding"]
Kind = Literal[Decaying, "frequency", "relative"]

DEEPEST = 1000  # blocks: as many as the deepest Transformer that was published (Wang et al. 2022, arXiv 2203.00555)
# What other code needs to know of a field, of a network (`NetworkConfig.marked`) or of augmentation (not_drawn).
Mark = Literal[
    "training_only", "drops", "not_in_weights", "from_data", "of_head", "counts_blocks", "place", "not_drawn"
]


def identity(
    default: Any,
    help: str,
    *,
    training_only: bool = False,
    not_in_weights: bool = False,
    from_data: bool = False,
    of_head: bool = False,
    counts_blocks: bool = False,
    place: bool = False,
    not_drawn: bool = False,
    **bounds: Unpack[Bounds],
) -> Any:
    """A field that changes the result of a run."""
    marks: dict[Mark, bool] = {
        "training_only": training_only,
        "not_in_weights": not_in_weights,
        "from_data": from_data,
        "of_head": of_head,
        "counts_blocks": counts_blocks,
        "place": place,
        "not_drawn": not_drawn,
    }
    return _field(default, help, Range(**bounds), execution=False, marks={mark for mark, on in marks.items() if on})


def dropout_rate(help: str) -> Any:
    """A field that is the rate at which training drops values: an identity field that is 0 by default."""
    return _field(0.0, help, Range(at_least=0, below=1), execution=False, marks={"training_only", "drops"})


def execution(default: Any, help: str, **bounds: Unpack[Bounds]) -> Any:
    """A field that may change when a run is resumed."""
    return _field(default, help, Range(**bounds), execution=True)


def option(default: Any, help: str, *, also: str = "", **bounds: Unpack[Bounds]) -> Any:
    """An option of a command, which is no part of a run; `also` is another name that it has."""
    return _field(default, help, Range(**bounds), also=also)


def _field(default: Any, help: str, allowed: Range, **metadata: Any) -> Any:
    help = "; ".join(filter(None, (help, str(allowed))))
    return field(default=default, metadata={"help": help, "range": allowed, **metadata})


def pair(size: Size) -> tuple[int, int]:
    """A size as (height, width); an integer stands for a square."""
    return (size, size) if isinstance(size, int) else (size[0], size[1])


def are_texts(value: Any) -> bool:
    """Whether a JSON value is a list of strings."""
    return isinstance(value, list) and all(isinstance(each, str) for each in value)
