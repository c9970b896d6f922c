"""What a layout is: its rows, its table of config fields, how its names look, and its side files.

A dialect file lists one Layout a version. A config is never guessed: each field of it comes from
the layout itself (it knows no other value), from shapes, from a file that states it, or from the user.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from vit_jax.config import ModelConfig, network_of, normal

from .rules import Row, Shape
from .signature import Seen

Names = Mapping[str, Shape]  # the tensors of a file: {name: shape}
Json = dict[str, Any]
UNKNOWN = object()


@dataclass(frozen=True)
class Field:
    """Where one field of our config comes from, and which of its values this layout can say.

    `among`: the only values that it can have; with one value, that is known without asking. `solve`: from the
    names and shapes of a file (None where they do not tell). `follow`: from these and the fields that do not follow
    (the width of a head, once their number is known). `key`: where config.json states it, dotted into nested objects,
    as `encode` of our value (`decode` goes back); `default` is what the layout's own library takes where the key is
    absent (UNKNOWN: nothing).
    """

    among: tuple[Any, ...] = ()
    solve: Callable[[Names], Any] | None = None
    key: str = ""
    decode: Callable[[Any], Any] = lambda value: value
    encode: Callable[[Any], Any] = lambda value: value
    default: Any = UNKNOWN
    follow: Callable[[Names, Json], Any] | None = None

    def says(self, value: Any) -> bool:
        """Whether the layout can have this value."""
        return not self.among or any(value == each and type(value) is type(each) for each in self.among)


def always(value: Any) -> Field:
    """A field of which the layout knows one value."""
    return Field((value,))


@dataclass(frozen=True)
class Facts:
    """What files beside the tensors say: config fields of ours, preprocessing and class names, where they say so."""

    config: Json = field(default_factory=dict)
    preprocess: Json | None = None  # as vit_jax's Preprocess.to_dict
    class_names: list[str] | None = None
    extra: Json = field(
        default_factory=dict
    )  # what its library wants beside, by its own keys: ids of special tokens, settings of generation
    notes: tuple[str, ...] = ()  # what they say that ours cannot, a sentence each, to be shown


@dataclass(frozen=True)
class Layout:
    """One public layout of one kind of network, in one version.

    `marks`: regular expressions, each of which has to match a whole name of a file of this layout, or with a
    leading "!" must match none; `fits(names)` says by shapes what names alone do not. `rows(config)` are its tensors.
    `limits(config)` says, a clause each, why a config whose fields are all among those allowed still cannot be;
    `unstated(config)`, why its files can be but not be stated beside them. `read_side({file name: JSON}) -> Facts` and
    `write_side(config, facts) -> {file name: JSON}` are the files that its library wants beside the weights.
    `refuses(names)` says, a clause each with its remedy, why a file that looks like this cannot be read. `beside` are
    regular expressions of names that such files hold and that are no part of the network: left out, and named.
    """

    dialect: str  # the file in dialects/, with dashes
    version: str  # "" where there is only one
    title: str
    network: type[ModelConfig]
    fields: Mapping[str, Field]
    rows: Callable[[Any], list[Row]]
    marks: tuple[str, ...]
    containers: tuple[str, ...] = (
        "safetensors",
        "torch",
    )  # what its files come in; the first is that of a folder we write
    limits: Callable[[Any], list[str]] = lambda config: []
    unstated: Callable[[Any], list[str]] = lambda config: []
    read_side: Callable[[Mapping[str, Json]], Facts] = lambda files: Facts()
    write_side: Callable[[Any, Facts], dict[str, Json]] = lambda config, facts: {}
    refuses: Callable[[Names], list[str]] = lambda names: []
    beside: tuple[str, ...] = ()
    fits: Callable[[Names], bool] = lambda names: True
    extras: tuple[str, ...] = ()  # the keys of Facts.extra that write_side cannot do without: --set may say them
    ambiguous: str = ""  # a clause, where files of a layout that computes another function look the same: only --from can name this one
    proven: str = ""  # the third party whose forward pass was compared, in tests/parity; empty: none was
    lacks: str = ""  # what a file of its library holds and one of ours does not, a sentence
    warns: str = ""  # a flag's name and what it admits, where files of this layout compute another function than ours

    @property
    def name(self) -> str:
        """What --from and --to call it."""
        return f"{self.dialect}@{self.version}" if self.version else self.dialect

    def recognises(self, names: Names | Iterable[str] | Seen) -> bool:
        """Whether the names, and the shapes where they are given, are those of this layout."""
        seen = names if isinstance(names, Seen) else Seen(names)
        return bool(self.marks) and seen.meets(self.marks) and (seen.shapes is None or self.fits(seen.shapes))

    def left_out(self, names: Iterable[str]) -> list[str]:
        """Those of the names that are no part of the network."""
        return [name for name in names if any(re.fullmatch(pattern, name) for pattern in self.beside)]

    def cannot(self, config: Any, weights_only: bool = False) -> list[str]:
        """Why a config has no file of this layout, a clause each; empty where it has one."""
        if not isinstance(config, self.network):
            return [f"it holds a {network_of(self.network).name}, this is a {network_of(config).name}"]
        config, unseen = normal(config), network_of(self.network).unseen
        said = [
            f"{name} is {getattr(config, name)!r}, it says only {' or '.join(map(repr, f.among))}"
            for name, f in self.fields.items()
            if not f.says(getattr(config, name))
            and not (weights_only and name in unseen)
            and not self._idle(config, name)
        ]
        return said or self.limits(config) or ([] if weights_only else self.unstated(config))

    def _idle(self, config: Any, name: str) -> bool:
        """Whether one of a field's own values would change nothing: a head's bias where there is no head."""
        return any(normal(dataclasses.replace(config, **{name: value})) == config for value in self.fields[name].among)


# ------------------------------------------------------------------------------------- side files


def stated(layout: Layout, config: Json) -> Json:
    """The fields of ours that a config.json states by the keys of the layout's table, with its library's defaults."""
    out: Json = {}
    for name, f in layout.fields.items():
        if f.key:
            value = look(config, f.key)
            if value is UNKNOWN and f.default is not UNKNOWN:
                out[name] = f.default
            elif value is not UNKNOWN:
                out[name] = f.decode(value)
    return out


def statement(layout: Layout, config: Any) -> Json:
    """A config.json's part that states a config by the keys of the layout's table."""
    out: Json = {}
    for name, f in layout.fields.items():
        if f.key:
            *path, leaf = f.key.split(".")
            node = out
            for key in path:
                node = node.setdefault(key, {})
            node[leaf] = f.encode(getattr(config, name))
    return out


def look(values: Any, key: str) -> Any:
    """The value under a dotted key, or UNKNOWN."""
    for part in key.split("."):
        if not isinstance(values, Mapping) or part not in values:
            return UNKNOWN
        values = values[part]
    return values


# ------------------------------------------------------------------------------- which config it is


# -------------------------------------------------------------------------------- what tables share


def count(names: Iterable[str], pattern: str) -> int:
    """How many numbers stand at (\\d+) of a pattern that matches whole names. Not the largest: a stranger's may be any."""
    return len({int(m[1]) for name in names if (m := re.fullmatch(pattern, name))})


def has(*names: str) -> Callable[[Names], bool]:
    """A solver: whether a file has any of these names (or, with a trailing dot, one that begins so)."""
    return lambda given: any(
        any(n.startswith(name) for n in given) if name.endswith(".") else name in given for name in names
    )


def length(name: str, axis: int, otherwise: Any = None) -> Callable[[Names], Any]:
    """A solver: the length of a tensor's axis, or `otherwise` where a file lacks it."""
    return lambda given: (
        given[name][axis] if name in given and len(given[name]) > (axis if axis >= 0 else -axis - 1) else otherwise
    )


# The plain pre-norm ViT: tables begin with it and say what differs. Fields that are left out have to be said by each.
PLAIN_VIT: dict[str, Field] = {
    **{name: always(False) for name in ("stem_pre_norm", "stem_norm", "distill_token", "pre_norm", "qk_norm", "gated", "head_norm", "distill_head", "distill_norm")},
    **{name: always(True) for name in ("stem_bias", "cls_token", "position_trained", "cls_position", "distill_position", "norm_first", "final_norm", "norm_bias")},
    **{name: always(True) for name in ("query_bias", "key_bias", "value_bias", "out_bias", "mlp_bias", "head_bias")},
    "stem_activation": always("none"), "registers": always(0), "position": always("learned"), "register_position": always(False),
    "layer_scale": always(0.0), "head_width": always(0), "head_hidden": always(0), "head_activation": always("tanh"), "pool": always("cls"),
}  # fmt: skip
__all__ = [
    "PLAIN_VIT", "UNKNOWN", "Facts", "Field", "Json", "Layout", "Names", "always", "count", "has", "length", "look",
    "stated", "statement",
]  # fmt: skip
