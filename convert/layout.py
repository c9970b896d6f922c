"""What a layout is: rows of tensors, a table of config fields, the names it is recognised by, and its side files.

A dialect file lists one Layout for each version. A config is never guessed: each of its fields has the only value that
the layout knows, or comes from shapes, from a file that states it, or from the user.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, get_origin

from vit_jax.config.dotted import leaves, replace_fields, value_at
from vit_jax.config.fields import Size, pair
from vit_jax.config.network import NetworkConfig
from vit_jax.config.outputs import UNSTATED, Outputs

from .operations import Shape
from .rules import Row

Names = Mapping[str, Shape]  # the tensors of a file: {name: shape}
Json = dict[str, Any]
UNKNOWN = object()


@dataclass(frozen=True)
class Field:
    """Where one field of our config comes from in a layout, and which values it can have there.

    Args:
        among: the only possible values; a single one needs no source. Empty: any, of a field that is no choice.
        solve: `solve(names)` computes the value from {name: shape} of a file, or gives None where that does not tell.
        key: where config.json states it, with dots into nested objects.
        decode: what config.json states as our value.
        default: the value of the layout's own library where the key is absent; UNKNOWN: it has none.
        follow: `follow(names, values)` does as `solve`, from names and the fields that do not follow (the width of a
            head, once the number of heads is known).
        usual: the value that is taken where nothing states one, of a network whose tensors fit all of them; UNKNOWN: it
            has to be stated.
    """

    among: tuple[Any, ...] = ()
    solve: Callable[[Names], Any] | None = None
    key: str = ""
    decode: Callable[[Any], Any] = lambda value: value
    encode: Callable[[Any], Any] = lambda value: value
    default: Any = UNKNOWN
    follow: Callable[[Names, Json], Any] | None = None
    usual: Any = UNKNOWN

    def allows(self, value: Any) -> bool:
        """Whether the field can have this value in the layout: of the same type, too (1 is not True)."""
        return not self.among or any(value == each and type(value) is type(each) for each in self.among)


def always(value: Any) -> Field:
    """A field that has one value in all files that the layout's own library writes.

    Args:
        value: that one. Of a file with the same tensors the user may state another (--set): its network is then not the
            library's.
    """
    return Field((value,))


def defaults(network: type[NetworkConfig], but: Collection[str]) -> dict[str, Field]:
    """A table in which every field has its default in all files; without those that are named."""
    return {name: always(leaves(network)[name].default) for name in network.function_fields() if name not in but}


@dataclass(frozen=True)
class Facts:
    """What side files or metadata state: fields of our config, preprocessing, outputs, as far as they do."""

    config: Json = field(default_factory=dict)
    preprocess: Json | None = None  # as vit_jax's Preprocess.to_dict
    outputs: Outputs = UNSTATED  # their kind, and the names of classes or labels
    extra: Json = field(
        default_factory=dict
    )  # by the library's own keys: ids of special tokens, settings of generation
    notes: tuple[str, ...] = ()  # what they say that ours cannot, a sentence each, to be shown


Stage = Literal["shapes", "choice", "file", "function", "network", "statement", "loading"]


@dataclass(frozen=True)
class Refusal:
    """Why a layout does not take what it is given, and at which stage of a conversion that is asked.

    Of a file, whose names match the layout's signature ({name: shape} is given):

    - shapes: its shapes are those of another layout, so this one does not recognise it
    - choice: files that compute another function look the same, so only --from can choose this layout
    - file: it cannot be read as it is
    - function: it computes another function than our network would

    Of a network that is to be written (its config is given):

    - network: tensors of this layout cannot hold it, although each field has a value that the layout knows
    - statement: they can, but no file beside them can state its config, so that only bare tensors are written
    - loading: it is written, and its library does not load the file without the help that the reason names

    Args:
        reasons: a clause, or gives clauses from what is given, none where there is nothing to refuse.
        flag: of function, the --accept that goes on all the same.
    """

    stage: Stage
    reasons: str | Callable[[Any], list[str]]
    flag: str = ""

    def clauses(self, given: Any) -> list[str]:
        """The reasons that hold for a file's names and shapes, or for a config."""
        return [self.reasons] if isinstance(self.reasons, str) else self.reasons(given)


def no_facts(files: Mapping[str, Json]) -> Facts:
    """What files beside weights state to a layout whose library keeps none there."""
    return Facts()


@dataclass(frozen=True, kw_only=True, eq=False)
class Layout:
    """One public layout of one kind of network, in one version: a table of rows, and a table of config fields.

    Args:
        dialect: the file in dialects/, with dashes.
        version: empty where there is only one.
        title: a few words on it.
        network: the class of the config.
        fields: where each field of our config comes from.
        rows: `rows(config)` are the tensors.
        signature: regular expressions by which a file is recognised; each has to match a whole name of the file or,
            with a leading "!", none.
        in_memory: as `rows`, under the names of its library's modules, which adapters have, where files have others.
        containers: of its files; the first is that of a folder we write.
        refusals: the exceptions, each with its stage.
        read_side: {file name: JSON} -> Facts, of the files that the layout's library wants beside the weights.
        write_side: (config, facts) -> {file name: JSON}, the inverse.
        outside: regular expressions of tensors in such files that are no part of the network: left out, and reported.
        outputs: `outputs(config)` are the kinds of outputs that side files state of a head; a single one is what the
            library's class computes, and needs no statement.
        covers: whether the library takes images whose size is no multiple of the patch, and computes on the rows and
            columns that patches cover.
        resizes: `resizes(config)` is the kernel of --adapt resize by which the layout's library fits positions to the
            images of each call (where none are stored, any kernel); empty where its network takes images of one size.
        tokenizer: whether its library keeps a tokenizer beside the weights.
        extras: the keys of Facts.extra that write_side cannot do without: --set may give them.
        in_float16: what a user of weights that are rounded to float16 has to know, a sentence.
        holds_all: whether it holds every network of its class. Any other has to list the values of each field that is a
            choice, so that it refuses a value that is newer than its table.
        proven: the third party whose forward pass was compared, in tests/parity; empty: none was.

    Raises:
        ValueError: where a choice lists no values.
    """

    dialect: str
    version: str
    title: str
    network: type[NetworkConfig]
    fields: Mapping[str, Field]
    rows: Callable[[Any], list[Row]]
    signature: tuple[str, ...]
    in_memory: Callable[[Any], list[Row]] | None = None
    containers: tuple[str, ...] = ("safetensors", "torch")
    refusals: tuple[Refusal, ...] = ()
    read_side: Callable[[Mapping[str, Json]], Facts] = no_facts
    write_side: Callable[[Any, Facts], dict[str, Json]] = lambda config, facts: {}
    outside: tuple[str, ...] = ()
    outputs: Callable[[Any], Collection[str]] = lambda config: ()
    covers: bool = False
    resizes: Callable[[Any], str] = lambda config: ""
    tokenizer: bool = False
    extras: tuple[str, ...] = ()
    in_float16: str = ""
    holds_all: bool = False
    proven: str = ""

    def __post_init__(self) -> None:
        for name, field_ in self.fields.items():
            if not (field_.among or self.holds_all) and get_origin(leaves(self.network)[name].hint) is Literal:
                raise ValueError(
                    f"{self.name}: {name} is a choice, but its Field lists no values: add those it can have"
                )

    @property
    def name(self) -> str:
        """What --from and --to call it."""
        return f"{self.dialect}@{self.version}" if self.version else self.dialect

    @property
    def flags(self) -> tuple[str, ...]:
        """Values of --accept that files of this layout may need, because they compute another function."""
        return tuple(refusal.flag for refusal in self.refusals if refusal.flag)

    @property
    def reads_side_files(self) -> bool:
        """Whether files beside the weights may state the network's config."""
        return self.read_side is not no_facts

    def refuses(self, stage: Stage, given: Any = None) -> list[str]:
        """Why the layout does not take a file's {name: shape}, or a config, at a stage; empty where it does."""
        return [clause for refusal in self.refusals if refusal.stage == stage for clause in refusal.clauses(given)]

    def recognises(self, names: Names) -> bool:
        """Whether names and shapes are those of this layout; one without a signature recognises nothing."""
        return bool(self.signature) and matches(names, self.signature) and not self.refuses("shapes", names)

    def left_out(self, names: Iterable[str]) -> list[str]:
        """Those of the names that are no part of the network."""
        return [name for name in names if any(re.fullmatch(pattern, name) for pattern in self.outside)]

    def cannot(self, config: Any, weights_only: bool = False, stated: Collection[str] = ()) -> list[str]:
        """Why a config has no file of this layout.

        Args:
            weights_only: whether the files beside the weights are left out.
            stated: fields in which the user states another value than those that the layout knows.

        Returns:
            A clause for each reason; empty where it has a file.
        """
        if not isinstance(config, self.network):
            return [f"it holds a {self.network.name}, this is a {config.name}"]
        config, unseen = config.normal(), self.network.marked("not_in_weights")
        reasons = [
            f"{name} is {value_at(config, name)!r}, but the layout has "
            + ("none" if f.among == ((),) else f"only {' or '.join(map(repr, f.among))}")
            for name, f in self.fields.items()
            if not f.allows(value_at(config, name)) and not (weights_only and name in unseen) and name not in stated
            if not self._idle(config, name)
        ]
        return reasons or self.refuses("network", config) or ([] if weights_only else self.refuses("statement", config))

    def departures(self, config: Any) -> list[str]:
        """Where a config departs from what the layout's own library always computes, a clause each."""
        config = config.normal()
        return [
            f"{name} is {value_at(config, name)!r} instead of {f.among[0]!r}"
            for name, f in self.fields.items()
            if len(f.among) == 1 and not f.allows(value_at(config, name)) and not self._idle(config, name)
        ]

    def _idle(self, config: Any, name: str) -> bool:
        """Whether one of a field's own values would change nothing: a head's bias where there is no head."""
        return any(replace_fields(config, {name: value}).normal() == config for value in self.fields[name].among)


def matches(names: Iterable[str], signature: Iterable[str]) -> bool:
    """Whether each expression of a signature matches a whole name or, with a leading "!", none."""
    return all(
        any(map(re.compile(pattern.removeprefix("!")).fullmatch, names)) != pattern.startswith("!")
        for pattern in signature
    )


# ------------------------------------------------------------------------------------- side files


def declared_fields(layout: Layout, config: Json) -> Json:
    """The fields of our config that a config.json states: by the keys of the layout's table, with its defaults."""
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
    """The part of a config.json that states a config, by the keys of the layout's table."""
    out: Json = {}
    for name, f in layout.fields.items():
        if f.key:
            *path, leaf = f.key.split(".")
            node = out
            for key in path:
                node = node.setdefault(key, {})
            node[leaf] = f.encode(value_at(config, name))
    return out


def look(values: Any, key: str) -> Any:
    """The value under a key with dots, or UNKNOWN."""
    for part in key.split("."):
        if not isinstance(values, Mapping) or part not in values:
            return UNKNOWN
        values = values[part]
    return values


# ------------------------------------------------------------------- sizes that patches do not divide

WHOLE = "image"  # the key of Facts.extra for the stated size of images, where patches do not cover them


def covered(image: Size, patch: Size) -> Size:
    """The part of an image that patches cover, in whole rows and columns of them."""
    h, w = (side // each * each for side, each in zip(pair(image), pair(patch), strict=True))
    return h if h == w else (h, w)


def whole_size(image: Size, patch: Size, facts: Facts) -> Size:
    """The size of images that a library's files state for a network: theirs from before, where patches cover it so."""
    made = whole(facts.preprocess)["image"] if facts.preprocess else None
    for size in (facts.extra.get(WHOLE), made):
        if size and pair(covered(size, patch)) == pair(image):
            return size[0] if size[0] == size[1] else (size[0], size[1])
    return image


def whole(preprocess: Json) -> Json:
    """A preprocessing (JSON) before its images are trimmed."""
    (h, w), (rows, columns) = preprocess["image"], preprocess.get("trim", (0, 0))
    return {name: x for name, x in preprocess.items() if name != "trim"} | {"image": [h + rows, w + columns]}


# -------------------------------------------------------------------------------- what tables share


def count(names: Iterable[str], pattern: str) -> int:
    """How many different numbers stand at (\\d+) of a pattern that matches whole names (the largest may be any)."""
    return len({int(m[1]) for name in names if (m := re.fullmatch(pattern, name))})


def has(*names: str) -> Callable[[Names], bool]:
    """A `solve`: whether a file has any of these names or, for one that ends in a dot, a name that begins with it."""
    return lambda given: any(
        any(n.startswith(name) for n in given) if name.endswith(".") else name in given for name in names
    )


def length(name: str, axis: int, otherwise: Any = None) -> Callable[[Names], Any]:
    """A `solve`: the length of a tensor's axis.

    Args:
        axis: its number; from the end where it is below 0.
        otherwise: the value where a file has no such tensor or axis.
    """
    return lambda given: (
        given[name][axis] if name in given and len(given[name]) > (axis if axis >= 0 else -axis - 1) else otherwise
    )


__all__ = [
    "UNKNOWN",
    "WHOLE",
    "Facts",
    "Field",
    "Json",
    "Layout",
    "Names",
    "Refusal",
    "always",
    "count",
    "covered",
    "declared_fields",
    "defaults",
    "has",
    "length",
    "look",
    "matches",
    "statement",
    "whole",
    "whole_size",
]  # fmt: skip
