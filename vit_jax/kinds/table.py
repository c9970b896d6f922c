"""The kinds of outputs by name, and which of them the labels of a source are. Nothing here loads jax."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from ..config.fields import are_texts
from ..config.outputs import Outputs, is_entry, numbered_classes
from ..config.run import LossConfig
from ..errors import Field, UserError
from ..files.lines import quote
from ..plugins import Plugin, Table
from .base import Kind
from .labels import UNKNOWN, Labels, as_number, first_of, first_row, joint_names, no_number, with_comma, zero_or_one

KINDS: Table[type[Kind]] = Table(
    "kind",
    "kinds",
    {
        "class": Plugin("vit_jax.kinds.classes:Classes"),
        "set": Plugin("vit_jax.kinds.label_sets:LabelSets"),
        "number": Plugin("vit_jax.kinds.numbers:Numbers"),
    },
)
EMBEDDING = "embedding"  # the kind of a network without a head, which is not trained for that

if TYPE_CHECKING:
    Target = str
else:
    Target = Literal["", *KINDS.plugins()]  # what data.target may be; empty: not stated


def class_of(name: str) -> type[Kind]:
    """The kind of a name; of outputs that nothing can be told of, the base class."""
    return Kind if name in ("", EMBEDDING) else KINDS[name]


def kind_of(
    outputs: Outputs, count: int = 0, loss: LossConfig | None = None, metadata: Mapping[str, Any] | None = None
) -> Kind:
    """The kind of so many outputs: several of which nothing is stated are classes; those without names have numbers."""
    if not outputs.kind and count > 1:
        outputs = replace(outputs, kind="class")
    kind = class_of(outputs.kind)
    if kind.losses and not outputs.names:
        outputs = replace(outputs, names=tuple(numbered_classes(count)))
    weights, log_prior = (tuple((metadata or {}).get(name, ())) for name in ("loss_weights", "log_prior"))
    return kind(outputs, loss or LossConfig(), weights, log_prior)


def are_outputs(value: Any) -> bool:
    """Whether a JSON value is what `Outputs.to_metadata` writes as `outputs`."""
    if not isinstance(value, dict) or value.get("kind") not in [*KINDS, EMBEDDING]:
        return False
    entries = {name: each for name, each in value.items() if name not in ("kind", "names")}
    known = entries.keys() <= {*class_of(value["kind"]).entries}
    return known and are_texts(value.get("names", [])) and all(is_entry(*entry) for entry in entries.items())


def typed_labels(field: str, title: str, labels: np.ndarray, n: int, target: str) -> tuple[str, np.ndarray]:
    """What an array of labels is, and its labels as a source has them.

    Whole numbers, one an image, are classes; several 0 and 1 an image are a set of labels, in which -1 is unknown; and
    floating-point numbers are numbers.
    """
    one, rows = labels.size == n, labels.ndim == 2 and len(labels) == n and labels.size
    if labels.dtype.kind not in "iubf" or not (one or rows):
        raise UserError(
            field,
            f"{title} is {labels.dtype} of shape {list(labels.shape)}",
            f"give one integer for each of the {n} images, or a row of 0 and 1, or of numbers",
        )
    columns = labels.reshape(n, 1) if one else labels
    finite = np.isfinite(columns) | (np.isnan(columns) if class_of(target).any_number else False)
    if not finite.all():
        raise UserError(field, f"{title} has {first_of(columns, ~finite)}", "leave these images out")
    kind = target or _kind_of_array(field, title, columns)
    return kind, KINDS[kind].typed(field, title, columns)


def _kind_of_array(field: str, title: str, columns: np.ndarray) -> str:
    """The only kind that labels [n, K] can be. Raises UserError where there are several, or none."""
    one, fractions = columns.shape[1] == 1, columns.dtype.kind == "f"
    binary = bool(np.isin(columns, (0, 1, UNKNOWN)).all())
    if columns.dtype.kind in "iu" and one:
        return "class"
    one_hot = binary and bool((columns.sum(1) == 1).all())
    if binary and not one and (fractions or one_hot):
        what = f"is {columns.dtype} of 0 and 1" + (", one 1 in each row" if one_hot else "")
        kinds = (*(["class"] if one_hot else []), "set", *(["number"] if fractions else []))
        raise _ambiguous(field, f"{title} {what}", kinds)
    if binary and not fractions:
        if one:
            raise _ambiguous(field, f"{title} is {columns.dtype}", ("class", "set"))
        return "set"
    if fractions and one and (columns == np.round(columns)).all():
        raise _ambiguous(field, f"{title} is {columns.dtype}, and all are whole numbers", ("class", "number"))
    if fractions:
        return "number"
    raise _ambiguous(field, f"{title} has {columns.shape[1]} whole numbers in a row", ("number",))


def _ambiguous(field: str, what: str, kinds: Collection[str]) -> UserError:
    ways = " or ".join(f"`data.target {kind}` ({KINDS[kind].says})" for kind in kinds)
    return UserError(field, what, f"say what they are: {ways}")


_CLASS, _SET, _NUMBER = (f"`data.target {kind}`" for kind in ("class", "set", "number"))


def read_labels(rows: Any, columns: Sequence[int], separator: str, target: str) -> Labels:
    """The labels in some columns of a table, `Rows` of data/images/tables; asked where it can be read in two ways."""
    several = len(columns) > 1
    if separator and several:
        what = f"is {quote(separator)}, and data.labels are {len(columns)} columns"
        raise UserError(Field("data.separator"), what, "leave it out, or give one column")
    if separator and target and not class_of(target).any_number:
        what = f"is {quote(separator)}, and data.target is {target}"
        raise UserError(Field("data.separator"), what, "it is for sets of labels: leave one of them out")
    if not several and rows.has_lists(columns[0]):
        cells = rows.lists(columns[0])
        if not target and all(as_number(text) is not None for cell in cells for text in cell):
            what = f"column {rows.shown(columns[0])} holds lists of numbers: are they labels or amounts?"
            raise UserError(rows.title, what, f"give {_SET} or {_NUMBER}")
        return KINDS[target or "set"].of_lists(rows, columns[0], cells)
    if separator:
        cells = [tuple(filter(None, map(str.strip, text.split(separator)))) for text in rows.texts(columns[0])]
        how = f"separated by {quote(separator)}"
        found = KINDS[target or "set"].of_lists(rows, columns[0], cells, how)
        if any(len(cell) > 1 for cell in cells):
            return found
        alone = f"no cell has two labels with {quote(separator)} between them"
        return replace(found, remarks=(alone, *joint_names(found.outputs.names, "label")))
    texts = [rows.texts(column) for column in columns]
    kind = target or (_kind_of_several if several else _kind_of_one)(rows, columns, texts)
    return KINDS[kind].of_columns(rows, columns, texts)


def _kind_of_one(rows: Any, columns: Sequence[int], texts: Sequence[Sequence[str]]) -> str:
    """The kind of one column: class of names. Raises UserError where there are numbers in it."""
    first: dict[bool, int] = {}  # {whether a number: the first row of such}
    for row, text in enumerate(texts[0]):
        if text:
            first.setdefault(as_number(text) is not None or bool(with_comma(text)), row)
    if True not in first:
        return "class"
    column = columns[0]
    if False in first:
        number, name = (f"{quote(texts[0][first[like]])} (line {rows.lines[first[like]]})" for like in (True, False))
        what = f"column {rows.shown(column)} holds numbers such as {number} and texts such as {name}"
    else:
        what = f"column {rows.shown(column)} holds numbers ({', '.join(dict.fromkeys(texts[0][:3]))}, ...)"
    raise UserError(rows.title, f"{what}: are they classes or amounts?", f"give {_CLASS} or {_NUMBER}")


def _kind_of_several(rows: Any, columns: Sequence[int], texts: Sequence[Sequence[str]]) -> str:
    """set of 0 and 1, else number. Raises UserError where neither, and where one 1 in each row may mean a class."""
    wrong = [first_row(column, lambda text: zero_or_one(text) is None) for column in texts]
    if all(row is None for row in wrong):
        ones = np.array([[zero_or_one(text) for text in column] for column in texts])
        if (ones < 0).any() or not ((ones == 1).sum(0) == 1).all():
            return "set"
        shown = ", ".join(rows.shown(column) for column in columns[:3]) + (", ..." if len(columns) > 3 else "")
        what = f"each row has exactly one 1 in columns {shown}: one class an image, or a set of labels?"
        raise UserError(rows.title, what, f"give {_CLASS} or {_SET}")
    for column, cells in zip(columns, texts, strict=True):
        row = first_row(cells, lambda text: bool(text) and as_number(text) is None)
        if row is not None:
            raise no_number(rows, row, column, cells[row], "columns of labels hold 0 and 1, or numbers")
    values = {as_number(text) for cells in texts for text in cells if text}
    if values <= {-1.0, 0.0, 1.0}:
        at = next((column, row) for column, row in zip(columns, wrong, strict=True) if row is not None)
        raise UserError(
            rows.where(at[1], at[0]),
            "is -1, and columns of a set hold 1, 0, or nothing where it is not known",
            f"write 0 for no, and nothing for unknown; or give {_NUMBER} if these are amounts",
        )
    return "number"
