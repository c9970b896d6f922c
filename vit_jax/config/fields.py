"""What a field of a config is: its help, and whether it is identity or execution."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

Size = int | tuple[int, int]
Activation = Literal["gelu", "gelu_tanh", "quick_gelu", "relu", "silu"]
Kind = Literal["kernel", "bias", "norm", "token", "position", "scale", "embedding"]


def identity(default: Any, help: str) -> Any:
    """A field that changes the result."""
    return field(default=default, metadata={"help": help, "execution": False})


def execution(default: Any, help: str) -> Any:
    """A field that may change when a run is resumed."""
    return field(default=default, metadata={"help": help, "execution": True})


def pair(size: Size) -> tuple[int, int]:
    """A size in two directions (height, width)."""
    return (size, size) if isinstance(size, int) else (size[0], size[1])


def are_texts(value: Any) -> bool:
    """Whether a JSON value is a list of texts."""
    return isinstance(value, list) and all(isinstance(each, str) for each in value)


@dataclass(frozen=True)
class ModelConfig:
    """A network: each kind of network has a config class of its own, with a row in networks.py."""
