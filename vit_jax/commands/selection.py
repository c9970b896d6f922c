"""Flags of several commands: which weights of a run, in which languages texts are, what the columns of a table are."""

from __future__ import annotations

import contextlib
import inspect
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass
from types import MappingProxyType
from typing import Any, TypeVar

from ..config.fields import option
from ..config.hints import nearest
from ..data.images.preprocess import FIELD, Unreadable
from ..errors import UserError
from ..text.classes import Spoken

T = TypeVar("T")


def described_by(function: Callable[..., Any], names: Mapping[str, str]) -> Callable[[type[T]], type[T]]:
    """A decorator of a class of flags, of which those without help are arguments of a function, and described there.

    Its docstring counts, up to what is so `In Python` alone; `names` are {flag: argument} where they differ.
    """
    section = (inspect.getdoc(function) or "").partition("\nArgs:\n")[2].partition("\n\n")[0]
    entries = re.findall(r"^    (\w+): (.*(?:\n {8}.*)*)", section, re.MULTILINE)
    texts = {name: " ".join(text.split()).partition(" In Python")[0].removesuffix(".") for name, text in entries}

    def describe(options: Any, prefix: str = "") -> Any:
        for f in fields(options):
            name, allowed = f"{prefix}{f.name}", str(f.metadata.get("range", ""))
            part: Any = f.default_factory
            if is_dataclass(part):
                describe(part, f"{name}.")
            elif f.metadata["help"] == allowed:
                said = filter(None, (texts.get(names.get(name, name), ""), allowed))
                f.metadata = MappingProxyType({**f.metadata, "help": "; ".join(said)})
        return options

    return describe


@dataclass(frozen=True, kw_only=True)
class LanguageFlags:
    """In which languages texts are, of a tokenizer that knows several, and what stands before them."""

    source_language: str = option(
        "", "with a tokenizer of several languages: the code of that of sources; empty: as its files say"
    )
    target_language: str = option("", "the code of the language of targets; empty: likewise")
    prefix: str = option(
        "", "for weights without a run: text before every source, as in 'translate English to German: '"
    )
    task: str = option(
        "",
        "for weights without a run: a task that their config.json lists (task_specific_params), such as "
        "summarization: its prefix and its settings of the search",
    )

    @property
    def spoken(self) -> Spoken:
        """Both of them."""
        return Spoken(self.source_language, self.target_language, self.prefix, self.task)


@dataclass(frozen=True, kw_only=True)
class FileFlags:
    """Which column of a table has the images."""

    file_column: str = option("", "with csv:FILE: the column of the files; empty: as in training, else by its name")


@dataclass(frozen=True, kw_only=True)
class TableFlags(FileFlags):
    """What the columns of a table are, where they are others than in training."""

    labels: tuple[str, ...] = option(
        (), "with csv:FILE: the columns of the labels; empty: as in training, else those named as the outputs"
    )
    separator: str = option("", "with csv:FILE: what stands between the labels of a cell; empty: as in training")
    split_column: str = option("", "with csv:FILE: the column of the splits; empty: as in training, else split")

    @property
    def table(self) -> dict[str, Any]:
        """{field of data: value} of those that are given."""
        names = [f.name for f in fields(TableFlags)]
        return {name: value for name in names if (value := getattr(self, name))}


def table_fields(given: Mapping[str, Any] | None) -> dict[str, Any]:
    """What Python states of the columns of a table, as `TableFlags.table`."""
    found = dict(given or {})
    known = {f.name: f.default for f in fields(TableFlags)}
    if isinstance(found.get("labels"), str):
        found["labels"] = (found["labels"],)
    for name, value in found.items():
        if name not in known:
            raise UserError(f"table has {name!r}{nearest(str(name), [*known])}", remedy=f"it takes {', '.join(known)}")
        texts = [*value] if isinstance(known[name], tuple) and isinstance(value, (list, tuple)) else [value]
        if not all(isinstance(text, str) for text in texts):
            wanted = "texts" if isinstance(known[name], tuple) else "a text"
            raise UserError(f"table[{name!r}]", f"is {value!r}", f"give {wanted}")
    return {name: tuple(x) if isinstance(x, list) else x for name, x in found.items() if x}


@dataclass(frozen=True, kw_only=True)
class SelectionFlags:
    """Which checkpoint of a run, and which of its weights."""

    weights: str = option(
        "best",
        "best: the checkpoint with the best validation (without any: the last); last: the last one; "
        "mean:K: the mean of the weights of the last K that the run has kept (--keep of train); also --which",
        also="which",
    )
    ema: bool = option(
        True,
        "take the averaged weights where validation chose them, or with --weights last where there are any; "
        "--no-ema: always the raw ones",
    )

    @property
    def averaged(self) -> bool | None:
        """`ema` as `vit_jax.load` takes it: None, as validation chose, or False, the raw weights."""
        return None if self.ema else False


@dataclass(frozen=True, kw_only=True)
class UnreadableFlags:
    """What is done about images that cannot be read."""

    skip_unreadable: bool = option(
        False,
        "leave out unreadable images, and report how many, instead of stopping",
        also="data.skip-unreadable",  # as in training
    )


@contextlib.contextmanager
def flag_advised(skip: bool) -> Iterator[None]:
    """A context in which the error of an unreadable image names the flag, unless it was given."""
    try:
        yield
    except Unreadable as error:
        if not skip and FIELD not in error.remedy:
            error.add(f", or leave such images out with {FIELD}")
        raise
