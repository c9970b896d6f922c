"""The arguments of the commands: a dataclass of options and the words of a command line make an instance.

A mistake is one sentence with the flag, the value and the remedy. A flag that is given twice counts as given last. tyro
prints the help.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import re
import types
import typing
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NoReturn, TypeVar

from ..errors import Field, UserError
from . import hints
from .fields import check_ranges
from .hints import REASONS, VALUES, similar

T = TypeVar("T")


@dataclass(frozen=True)
class Flag:
    """One option of a command."""

    name: str  # as it is typed, without the dashes: optim.weight-decay
    hint: Any
    help: str
    required: bool = False  # a positional argument
    foreign: tuple[str, ...] = ()  # what other programs write for its values
    also: str = ""  # another name, by which Python and messages call it

    @property
    def many(self) -> bool:
        """Whether several values may follow it."""
        return any(typing.get_origin(hint) is tuple for hint in alternatives(self.hint))


def flags(options: Any, prefix: str = "") -> dict[str, Flag]:
    """{name: Flag} of a dataclass, or of an instance, whose parts then have the classes that they have there."""
    hints = typing.get_type_hints(options if isinstance(options, type) else type(options))
    found: dict[str, Flag] = {}
    for f in dataclasses.fields(options):
        name, part = prefix + _spelt(f.name.rstrip("_")), getattr(options, f.name, hints[f.name])
        if dataclasses.is_dataclass(part) or dataclasses.is_dataclass(part := hints[f.name]):
            found |= flags(part, f"{name}.")
        else:
            required = isinstance(options, type) and f.default is f.default_factory is dataclasses.MISSING
            m = f.metadata
            found[name] = Flag(name, hints[f.name], m["help"], required, m.get("foreign", ()), m.get("also", ""))
    return found


def parse(
    options: type[T],
    arguments: Sequence[str],
    *,
    default: T | None = None,
    prog: str,
    description: str | None = None,
    reasons: Mapping[str, str] = REASONS,
) -> T:
    """The options that the words of a command line give."""
    if {"-h", "--help"} & {*arguments}:
        _print_help(options, arguments, default, prog, description)
    known = flags(options if default is None else default)
    parsed: T = _filled(options if default is None else default, read_words(arguments, known, reasons))
    check_ranges(parsed)
    return parsed


def _print_help(
    options: type[T], words: Sequence[str], default: T | None, prog: str, description: str | None
) -> NoReturn:
    import tyro

    for name, kind in typing.get_type_hints(options).items():
        if name.endswith("_"):  # it is named after a keyword of Python, such as continue_
            options.__annotations__[name] = typing.Annotated[kind, tyro.conf.arg(name=name.rstrip("_"))]
    # AvoidSubcommands: the default determines the class of each part, so there is no choice on the command line.
    config = (tyro.conf.AvoidSubcommands, tyro.conf.PositionalRequiredArgs, tyro.conf.PositionalMetavarFromFieldName)
    given: dict[str, Any] = {} if default is None else {"default": default}
    tyro.cli(options, args=words, prog=prog, description=description, config=config, **given)
    raise SystemExit(0)


def _filled(options: Any, values: Mapping[str, Any], prefix: str = "") -> Any:
    """An instance of a dataclass, or of that of an instance, with values of flags in place of the defaults."""
    given = {}
    for f in dataclasses.fields(options):
        name, part = prefix + _spelt(f.name.rstrip("_")), getattr(options, f.name, None)
        if isinstance(options, type) and f.default_factory is not dataclasses.MISSING:
            part = f.default_factory()
        if name in values:
            given[f.name] = values[name]
        elif dataclasses.is_dataclass(part) and any(flag.startswith(f"{name}.") for flag in values):
            given[f.name] = _filled(part, values, f"{name}.")
    return options(**given) if isinstance(options, type) else dataclasses.replace(options, **given)


def read_words(words: Sequence[str], known: Mapping[str, Flag], reasons: Mapping[str, str] = REASONS) -> dict[str, Any]:
    """{name: value} of the flags and of the positional arguments that a command line gives."""
    needed = [flag for flag in known.values() if flag.required]
    given: dict[str, Any] = {}
    positional: list[str] = []
    rest = list(words)
    while rest:
        word = rest.pop(0)
        if word == "--":
            positional += rest
            break
        if not is_flag(word):
            positional.append(word)
            continue
        name, equals, value = word.partition("=")
        flag, on = _flag(name, known, reasons)
        values = [value] if equals else []
        while rest and not is_flag(rest[0]) and flag.hint is not bool and (flag.many or not values):
            values.append(rest.pop(0))
        if flag.hint is bool and rest and not values and is_boolean(rest[0], exact=bool(needed)):
            values.append(rest.pop(0))
        given[flag.name] = _read_values(flag, values, on=on)
    if len(positional) < len(needed) and not (missing := needed[len(positional)]).many:
        raise UserError(f"{missing.name.upper()} is missing", remedy=f"give {missing.help.partition(';')[0]}")
    if len(positional) > len(needed) and not any(flag.many for flag in needed):
        raise UserError(
            f"the argument {show_word(positional[len(needed)])} follows no --field", "name its field, or leave it out"
        )
    for place, flag in enumerate(needed):  # one that takes many is the last
        given[flag.name] = _read_values(flag, positional[place:] if flag.many else positional[place : place + 1])
    return given


def is_flag(word: str) -> bool:
    """Whether a word of a command line is a flag, and no value: - alone and negative numbers are values."""
    return len(word) > 1 and word.startswith("-") and not re.match(r"-\.?\d", word)


def is_boolean(word: str, exact: bool) -> bool:
    """Whether a word that follows a flag is true or false; `exact`: only as Python spells it, as others are inputs."""
    return (word if exact else word.capitalize()) in ("True", "False")


def given_fields(words: Sequence[str], options: Any) -> list[str]:
    """The dotted names of the fields that the flags of a command line set."""
    known, words = flags(options), list(words)
    before = words[: words.index("--")] if "--" in words else words
    found = [_flag(word.partition("=")[0], known, REASONS)[0] for word in before if is_flag(word)]
    return [flag.name.replace("-", "_") for flag in found]


def given_values(words: Sequence[str], options: Any, part: type) -> dict[str, Any]:
    """The values of those fields of one class that a command line sets -> {field: value}."""
    names = {f.name for f in dataclasses.fields(part)}
    return {name: getattr(options, name) for name in given_fields(words, type(options)) if name in names}


def given_texts(words: Sequence[str]) -> dict[str, list[str]]:
    """{flag: the texts after it} of a command line, before its words are checked; "" has those before the first."""
    found: dict[str, list[str]] = {"": []}
    name = ""
    for word in words:
        if word == "--":
            break
        if is_flag(word):
            flag, equals, text = word.partition("=")
            name = _spelt(flag)
            found[name] = [text] if equals else []
        else:
            found[name].append(word)
    return found


def split_words(words: Sequence[str], options: Any) -> tuple[list[str], list[str]]:
    """The words of a command line in two -> (the words of its flags, the others)."""
    ours, others = list[str](), list[str]()
    known, current = flags(options), others
    for word in words:
        if is_flag(word):
            current = ours if _spelt(word.partition("=")[0]) in known else others
        current.append(word)
    return ours, others


def value_of(given: Mapping[str, Sequence[str]], name: str) -> str:
    """The first text that follows a flag."""
    return next(iter(given.get(name, ())), "")


def _spelt(word: str) -> str:
    """The name of a flag as it stands in the table: without dashes before it, and with dashes inside."""
    return word.removeprefix("--").replace("_", "-")


def _flag(word: str, known: Mapping[str, Flag], reasons: Mapping[str, str]) -> tuple[Flag, bool]:
    """(the flag that a word names, False if it switches it off). Raises UserError if there is none."""
    name = _spelt(word)
    found = known.get(name) or next((flag for flag in known.values() if flag.also == name), None)
    if found is not None and not found.required and word.startswith("--"):
        return found, True
    part, _, last = name.rpartition(".")
    positive = known.get(f"{part}.{last[3:]}" if part else last[3:]) if last.startswith("no-") else None
    if positive is not None and positive.hint is bool:
        return positive, False
    raise UserError(f"there is no field {show_word(word)}{instead(word, known, reasons)}")


def instead(word: str, known: Mapping[str, Flag], reasons: Mapping[str, str] = REASONS) -> str:
    """A clause: what takes the place of an unknown flag here, why nothing does, or the flags most similar to it."""
    names = {name: flag.help for name, flag in known.items() if not flag.required}
    return hints.hint(word, names, reasons, else_="; --help lists them")


def _read_values(flag: Flag, values: Sequence[str], *, on: bool = True) -> Any:
    """The value that the texts after a flag are. Raises UserError unless they are one of its type."""
    name, said = f"--{flag.name}", " ".join(_cut_middle(value) or "''" for value in values)
    if flag.hint is bool:
        if values and not (on and is_boolean(values[0], exact=False)):
            part, dot, last = flag.name.rpartition(".")
            given = f"{name} {said}" if on else f"--{part}{dot}no-{last} {said}"
            raise UserError(given, remedy=f"give {name} True or {name} False")
        return values[0].lower() == "true" if values else on
    hints = alternatives(flag.hint)
    if not values and not (flag.many and any(t[-1:] == (...,) for t in map(typing.get_args, hints))):
        raise UserError(Field(name), "has no value", f"give {describe_type(flag.hint)}")
    if values and values[0] in flag.foreign:
        raise UserError(f"{name} {values[0]}", f"here it is {VALUES[values[0]]}")
    for hint in hints:
        with contextlib.suppress(ValueError):
            return _read(hint, values)
    choices = [str(value) for hint in hints for value in _choices(hint)]
    if choices:
        wrong = next(value for value in values if value not in choices)
        ours = VALUES.get(wrong.lower())
        clause = f"; here it is {ours}" if ours in choices else similar(wrong, choices) if len(choices) > 5 else ""
        raise UserError(f"{name} {_cut_middle(wrong)}", f"choose {describe_type(flag.hint)}{clause}")
    raise UserError(f"{name} {said}", f"give {describe_type(flag.hint)}")


def alternatives(hint: Any) -> tuple[Any, ...]:
    """The types of a union, or the one type."""
    return typing.get_args(hint) if typing.get_origin(hint) in (typing.Union, types.UnionType) else (hint,)


def _choices(hint: Any) -> tuple[Any, ...]:
    if typing.get_origin(hint) is Literal:
        return typing.get_args(hint)
    return _choices(typing.get_args(hint)[0]) if typing.get_origin(hint) is tuple else ()


def _read(hint: Any, texts: Sequence[str]) -> Any:
    """The value of a type that is no union. Raises ValueError if the texts are none."""
    kind, parts = typing.get_origin(hint), typing.get_args(hint)
    if kind is tuple:
        each = parts[:1] * len(texts) if parts[-1] is ... else parts
        return tuple(_read(part, [text]) for part, text in zip(each, texts, strict=True))
    (text,) = texts
    if kind is Literal:
        return parts[parts.index(text)]
    value = hint(text)
    if hint is float and not math.isfinite(value):
        raise ValueError(text)
    return value


def describe_type(hint: Any) -> str:
    """The values of a type, in words."""
    origin, parts = typing.get_origin(hint), typing.get_args(hint)
    if len(alternatives(hint)) > 1:
        return " or ".join(map(describe_type, alternatives(hint)))
    if origin is Literal:
        return f"one of {', '.join(map(str, filter(None, parts)))}"  # empty: as if it were not given
    if origin is tuple:
        several = f"any of {', '.join(map(str, _choices(hint)))}" if _choices(hint) else f"{_PLURAL[parts[0]]}"
        return several if parts[-1] is ... else f"{len(parts)} {_PLURAL[parts[0]]}"
    return {int: "a whole number", float: "a finite number", str: "a text", bool: "true or false"}[hint]


_PLURAL = {int: "whole numbers", float: "finite numbers", str: "texts"}


def show_word(word: str) -> str:
    """A word of a command line for a message: printable, and cut if it is long."""
    return _cut_middle(word) if word.startswith("-") else repr(_cut_middle(word))


def _cut_middle(word: str) -> str:
    text = "".join(c if c.isprintable() else c.encode("unicode_escape", "backslashreplace").decode() for c in word)
    return text if len(text) <= 100 else f"{text[:60]}...{text[-20:]}"
