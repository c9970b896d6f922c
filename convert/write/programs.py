"""Which program a conversion writes: DST says it by its suffix, or --to by the name of a library that runs it."""

from __future__ import annotations

from collections.abc import Callable

from ..containers import is_program
from ..plan.plan import Plan
from . import into_encoder, into_onnx_folder, into_page, into_transformers_js
from .into_program import PLAIN, write_program
from .program.interface import Wanted
from .program.kinds import kind_of
from .write import Written

WritesProgram = Callable[[Plan, str, bool, Wanted], Written]  # to a path, whether what exists there is replaced


def program_writer(path: str, to: str = "") -> WritesProgram | None:
    """What writes a target as a program; None where it is a file or a folder of weights."""
    if into_transformers_js.is_named(to):
        return into_transformers_js.write_transformers_js
    if into_onnx_folder.is_named(to):
        return into_onnx_folder.write_onnx_folder
    if into_page.is_page(path):
        return into_page.write_page
    return _write_one if is_program(path) else None


def _write_one(plan: Plan, path: str, force: bool = False, wanted: Wanted = PLAIN) -> Written:
    """Write the network of a plan as one program."""
    write = into_encoder.write_encoder if into_encoder.is_encoder(plan.config) else write_program
    return write(plan, path, force, wanted)


def is_named(to: str) -> bool:
    """Whether --to names a library that runs a folder of programs, and no layout of weights."""
    return into_transformers_js.is_named(to) or into_onnx_folder.is_named(to)


def check_program(path: str, to: str, force: bool, wanted: Wanted) -> None:
    """Raise UserError where no such program is written there, or a library that writes it is missing."""
    if into_transformers_js.is_named(to):
        into_transformers_js.check_place(path, force, wanted)
    elif into_onnx_folder.is_named(to):
        into_onnx_folder.check_place(path, wanted)
    elif into_page.is_page(path):
        into_page.check_page(path, wanted)
    else:
        wanted.check(path)
        kind_of(path)
