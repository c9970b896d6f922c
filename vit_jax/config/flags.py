"""The arguments of the commands: a dataclass of options and the words of a command line make an instance.

tyro parses, and prints the help. Before it does, every word is checked here, so that a mistake is one sentence with the
flag, the value and the remedy. A flag that is given twice counts as given last.
"""

from __future__ import annotations

import dataclasses
import math
import re
import types
import typing
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

from ..errors import Field, UserError
from . import hints
from .nearest import similar
from .ranges import check_ranges
from .synonyms import REASONS, VALUES

T = TypeVar("T")


@dataclass(frozen=True)
class Flag:
    """One option of a command."""

    name: str  # as it is typed, without the dashes: optim.weight-decay
    hint: Any  # the type of its value
    help: str
    required: bool = False  # it has no default, so it is a positional argument
    foreign: tuple[str, ...] = ()  # what other programs write for its values

    @property
    def many(self) -> bool:
        """Whether several values may follow it."""
        return any(typing.get_origin(hint) is tuple for hint in alternatives(self.hint))


def flags(options: Any, prefix: str = "") -> dict[str, Flag]:
    """{name: Flag} of a dataclass, or of an instance, whose parts then have the classes that they have there."""
    hints = typing.get_type_hints(options if isinstance(options, type) else type(options))
    found: dict[str, Flag] = {}
    for f in dataclasses.fields(options):
        name, part = prefix + f.name.rstrip("_").replace("_", "-"), getattr(options, f.name, hints[f.name])
        if dataclasses.is_dataclass(part) or dataclasses.is_dataclass(part := hints[f.name]):
            found |= flags(part, f"{name}.")
        else:
            required = isinstance(options, type) and f.default is f.default_factory is dataclasses.MISSING
            found[name] = Flag(name, hints[f.name], f.metadata["help"], required, f.metadata.get("foreign", ()))
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
    """The options that the words of a command line give.

    Args:
        options: a dataclass, whose fields are the flags.
        arguments: the words.
        default: an instance with the defaults; None: those of the class, of which fields without a default are
            positional.
        prog: the command as help shows it.
        description: the text before the flags in help.
        reasons: of flags that other programs have, what takes their place.

    Returns:
        An instance of `options`.

    Raises:
        UserError: for the first mistake.
        SystemExit: with 0, after printing help.
    """
    import tyro

    words = list(arguments)
    if not {"-h", "--help"} & {*words}:
        words = check_words(words, flags(options if default is None else default), reasons)
    _name_keywords(options)
    # AvoidSubcommands: the default determines the class of each part, so there is no choice on the command line.
    config = (tyro.conf.AvoidSubcommands, tyro.conf.PositionalRequiredArgs, tyro.conf.PositionalMetavarFromFieldName)
    common: dict[str, Any] = {"args": words, "prog": prog, "description": description, "config": config}
    parsed: T = tyro.cli(options, **common) if default is None else tyro.cli(options, default=default, **common)
    check_ranges(parsed)
    return parsed


def _name_keywords(options: type) -> None:
    """Let tyro know a field that is named after a keyword of Python, such as continue_, without the underscore."""
    import tyro

    for name, kind in typing.get_type_hints(options).items():
        if name.endswith("_"):
            options.__annotations__[name] = typing.Annotated[kind, tyro.conf.arg(name=name.rstrip("_"))]


def check_words(words: Sequence[str], known: Mapping[str, Flag], reasons: Mapping[str, str] = REASONS) -> list[str]:
    """The words of a command line, flags first, then positional arguments.

    Args:
        words: as they were typed, without the program's name.
        known: the flags that there are, by name without dashes.
        reasons: of flags that other programs have, what takes their place.

    Raises:
        UserError: for the first mistake: an unknown flag, a value that is missing, of another type or too many.
    """
    needed = [flag for flag in known.values() if flag.required]
    given: list[str] = []
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
        if flag.hint is bool and rest and rest[0].lower() in ("true", "false") and not needed:
            values += rest[:1]
        _check_values(flag, values, on=on)
        given += [f"{name}={values[0]}", *values[1:]] if equals else [name, *values]
    if len(positional) < len(needed) and not (missing := needed[len(positional)]).many:
        raise UserError(f"{missing.name.upper()} is missing", remedy=f"give {missing.help.partition(';')[0]}")
    if len(positional) > len(needed) and not any(flag.many for flag in needed):
        raise UserError(
            f"the argument {show_word(positional[len(needed)])} follows no --field", "name its field, or leave it out"
        )
    return [*given, *(["--", *positional] if positional else [])]


def is_flag(word: str) -> bool:
    """Whether a word of a command line is a flag, and no value: - alone and negative numbers are values."""
    return len(word) > 1 and word.startswith("-") and not re.match(r"-\.?\d", word)


def given_fields(words: Sequence[str], options: Any) -> list[str]:
    """The dotted names of the fields that the flags of a command line set.

    Args:
        words: the command line; after -- there are no flags.
        options: a dataclass or an instance, whose fields are the flags.

    Raises:
        UserError: for a flag that is none of them.
    """
    known, words = flags(options), list(words)
    before = words[: words.index("--")] if "--" in words else words
    found = [_flag(word.partition("=")[0], known, REASONS)[0] for word in before if is_flag(word)]
    return [flag.name.replace("-", "_") for flag in found]


def given_values(words: Sequence[str], options: Any, part: type) -> dict[str, Any]:
    """The values of those fields of one class that a command line sets.

    Args:
        words: the command line.
        options: what it was parsed to.
        part: a dataclass, whose fields `options` has too.

    Returns:
        {field: value}.
    """
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
    """The words of a command line in two.

    Args:
        words: flags, each followed by its values.
        options: a dataclass, whose fields are some of the flags.

    Returns:
        (the words of its flags, the others).
    """
    ours, others = list[str](), list[str]()
    known, current = flags(options), others
    for word in words:
        if is_flag(word):
            current = ours if _spelt(word.partition("=")[0]) in known else others
        current.append(word)
    return ours, others


def value_of(given: Mapping[str, Sequence[str]], name: str) -> str:
    """The first text that follows a flag.

    Args:
        given: what `given_texts` returns.
        name: the flag, without dashes.

    Returns:
        The text; '' if there is none.
    """
    return next(iter(given.get(name, ())), "")


def _spelt(word: str) -> str:
    """The name of a flag as it stands in the table: without dashes before it, and with dashes inside."""
    return word.removeprefix("--").replace("_", "-")


def _flag(word: str, known: Mapping[str, Flag], reasons: Mapping[str, str]) -> tuple[Flag, bool]:
    """(the flag that a word names, False if it switches it off). Raises UserError if there is none."""
    name = _spelt(word)
    found = known.get(name)
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


def _check_values(flag: Flag, values: Sequence[str], *, on: bool = True) -> None:
    """Raise UserError unless the texts after a flag are values of its type."""
    name, said = f"--{flag.name}", " ".join(_cut_middle(value) or "''" for value in values)
    if flag.hint is bool:
        if values:
            part, dot, last = flag.name.rpartition(".")
            off = f"--{part}{dot}no-{last}"
            raise UserError(f"{name if on else off}={said}", "takes no value", f"write {name} or {off}")
        return
    hints = alternatives(flag.hint)
    if not values and not (flag.many and any(t[-1:] == (...,) for t in map(typing.get_args, hints))):
        raise UserError(Field(name), "has no value", f"give {describe_type(flag.hint)}")
    if values and values[0] in flag.foreign:
        raise UserError(f"{name} {values[0]}", f"here it is {VALUES[values[0]]}")
    if any(_fits(hint, values) for hint in hints):
        return
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
    """The values of a Literal, or of a tuple of them."""
    if typing.get_origin(hint) is Literal:
        return typing.get_args(hint)
    return _choices(typing.get_args(hint)[0]) if typing.get_origin(hint) is tuple else ()


def _fits(hint: Any, values: Sequence[str]) -> bool:
    """Whether texts are the values of a type that is no union."""
    if typing.get_origin(hint) is tuple:
        parts = typing.get_args(hint)
        each = parts[:1] * len(values) if parts[-1] is ... else parts
        return len(each) == len(values) and all(_fits(part, [v]) for part, v in zip(each, values, strict=True))
    if len(values) != 1:
        return False
    if typing.get_origin(hint) is Literal:
        return values[0] in typing.get_args(hint)
    try:
        return hint is str or math.isfinite(hint(values[0]))
    except OverflowError:  # a whole number that is too large for a float
        return True
    except ValueError:
        return False


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
