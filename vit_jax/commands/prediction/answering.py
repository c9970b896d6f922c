"""The answers of a network to the inputs of a command, in their order, blank ones among them."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

from ...errors import UserError
from .inputs import Inputs, is_blank

if TYPE_CHECKING:
    from ...tasks.predictor import Answer, Predictor

Row = tuple[str | int, ...]


class Answering:
    """How inputs are answered, and what was noticed of them."""

    def __init__(
        self, model: Predictor, top: int, batch: int, skip: bool, note: Callable[[str], None], before: int = 0
    ):
        self.model, self.top, self.batch, self.skip, self.note = model, top, batch, skip, note
        self.before = before  # inputs of other shares before these, for draws
        self.errors = list[UserError]()
        self.asked = 0  # inputs that are not blank, readable or not
        self._noted = False

    def answers(self, inputs: Inputs | Iterable[Any]) -> Iterator[Answer]:
        """One Answer per input; one that says nothing to a blank line, and to an image that cannot be read."""
        for group in inputs.groups(self.batch) if isinstance(inputs, Inputs) else [list(inputs)]:
            begin = self.before + self.asked - len(self.errors)
            asked = self._readable([each for each in group if not is_blank(each)])
            found = self.model.answer(asked, self.top, self.batch, begin)
            if len(asked) == len(group):  # a file of vectors among them has several answers
                yield from found
                continue
            answered = {*map(id, asked)}
            for each in group:
                yield next(found) if id(each) in answered else self._nothing(each)
        self._report()

    def readable(self, inputs: Inputs) -> dict[int, Any]:
        """All inputs but blank ones and those that cannot be read, by their numbers."""
        found, numbers = dict[int, Any](), itertools.count(inputs.rows.start)
        for group in inputs.groups(self.batch):
            asked = {id(one) for one in self._readable([one for one in group if not is_blank(one)])}
            found |= {i: one for one, i in zip(group, numbers, strict=False) if id(one) in asked}
        self._report()
        if not found:
            raise UserError("inputs", "none given", "give image files or folders, or sentences, after the run")
        return found

    def _readable(self, inputs: list[Any]) -> list[Any]:
        """Those inputs that can be read, where others are to be left out; else all."""
        self.asked += len(inputs)
        self._note_wide(inputs)
        if not self.skip:
            return inputs
        found, errors = self.model.readable(inputs)
        self.errors += errors
        return found

    def _nothing(self, given: Any) -> Answer:
        """The answer that says nothing; of a blank line a row of a table, of an image that is left out none."""
        from ...tasks.predictor import Answer

        rows: list[Row] = [(str(given), *[""] * (len(self.model.header) - 1))] if is_blank(given) else []
        return Answer(given, [], "", rows, ())

    def _note_wide(self, inputs: list[Any]) -> None:
        """Say once what becomes of pixels with more than 8 bits, where the network states no range of theirs."""
        from ...data.inputs import wide_remarks

        if self._noted or self.model.metadata.get("preprocess", {"range": True}).get("range"):
            return
        for remark in wide_remarks(inputs):
            self._noted = True
            self.note(remark)

    def _report(self) -> None:
        """Say which images cannot be read. Raises UserError where there are no others."""
        from ...data.images.preprocess import left_out

        errors = self.errors
        if errors and len(errors) == self.asked:
            if self.asked == 1:
                raise errors[0]
            raise UserError(f"none of the {self.asked:,} images can be read", errors[0].fault, errors[0].remedy)
        if errors:
            self.note(left_out([error.subject for error in errors]))
