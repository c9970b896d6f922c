"""The fields of configs, each with its help text and marked as identity or execution."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

Size = int | tuple[int, int]
Activation = Literal["gelu", "gelu_tanh", "quick_gelu", "relu", "silu"]
Decaying = Literal["kernel", "bias", "norm", "token", "position", "scale", "embedding"]  # kinds that can decay
Kind = Literal[Decaying, "frequency"]

DEEPEST = 1000  # blocks: as many as the deepest Transformer that was published (Wang et al. 2022, arXiv 2203.00555)


def identity(default: Any, help: str) -> Any:
    """A field that changes the result of a run."""
    return field(default=default, metadata={"help": help, "execution": False})


def execution(default: Any, help: str) -> Any:
    """A field that may change when a run is resumed."""
    return field(default=default, metadata={"help": help, "execution": True})


def pair(size: Size) -> tuple[int, int]:
    """A size as (height, width); an integer stands for a square."""
    return (size, size) if isinstance(size, int) else (size[0], size[1])


def are_texts(value: Any) -> bool:
    """Whether a JSON value is a list of strings."""
    return isinstance(value, list) and all(isinstance(each, str) for each in value)


@dataclass(frozen=True)
class ModelConfig:
    """The base class of the configs of networks. Each kind of network has its own subclass and a row in networks.py."""
