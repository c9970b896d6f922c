"""`python -m convert SRC DST`: read, plan, write, and what is printed of each."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable
from dataclasses import replace

from vit_jax.errors import DONE, Interrupted, UserError
from vit_jax.files.destination import AS_STDOUT, STDOUT
from vit_jax.files.terminal import print_line, printable
from vit_jax.presets.table import preset
from vit_jax.runs import Run

from ..adapt import operation
from ..containers import writer
from ..dialects import LAYOUTS
from ..layout import Json
from ..plan.plan import Plan, plan
from ..recognise.layouts import find
from ..recognise.reading import Reading, read
from ..recognise.weights_in import tied_names
from ..write.into_program import as_used
from ..write.origin import ALONG
from ..write.program.interface import check_no_program
from ..write.programs import check_program, is_named, program_writer
from ..write.write import Written, goal_of, holds_training, write
from .arguments import options, wanted

LARGE = 200 << 20  # bytes from which on a conversion shows its progress
NOT_OF_PROGRAMS = {  # {flag that a conversion to a program does not take: why}
    "to": "has no layout",
    "preset": "holds no optimizer's state",
    "weights_only": "holds no optimizer's state, and cannot be used without the file beside it",
    "allow_nonfinite": "is run and compared, which NaN and infinity prevent",
    "verify": "is always run and compared with ours before it gets its name",
}


def run(arguments: argparse.Namespace, finish: Callable[[Plan, Written], None] | None = None) -> int:
    """Convert SRC to DST."""
    began = time.monotonic()
    check_words(arguments)
    write_as = program_writer(arguments.dst, arguments.to)
    program = write_as is not None
    if not program and not arguments.to and (layout := begun_from(arguments.src)):
        arguments.to = layout
        print_line(f"target    {layout}, the layout of the weights that this run began with; --to vit-jax is our own")
    named = preset(arguments.preset).run if arguments.preset else None
    stated = replace(options(arguments), otherwise=named.model if named else None, training=_goes_on(arguments))
    reading = read(arguments.src, stated)
    with reading.source:
        if named and "optimizer" not in reading.source.tree:
            lacks = f"{reading.path} holds no optimizer's state for it"
            raise UserError(f"--preset {arguments.preset}", lacks, "leave the flag out")
        print_line(describe_source(reading, ALONG if stated.training else ()))
        planned = plan(
            reading,
            "vit-jax" if program else arguments.to or "vit-jax",
            adapt=as_used(reading, arguments.adapt) if program else arguments.adapt,
            folded=program,
            dtype=arguments.dtype or "",
            weights_only=arguments.weights_only,
            allow_nonfinite=arguments.allow_nonfinite,
        )
        for adaptation in planned.adaptations:
            print_line(f"adapted   {adaptation.text}: {adaptation.says}")
        size = sum(spec.nbytes for spec in planned.specs.values())
        if write_as is not None:
            written = write_as(planned, arguments.dst, arguments.force, wanted(arguments))
            size = sum(path.stat().st_size for path in written.files)
        else:
            written = write(planned, arguments.dst, arguments.force, arguments.weights_only, progress(size), named)
        if finish is not None:
            finish(planned, written)
            return DONE
        what = _interface(written.provenance) if program else planned.layout.name
        print_line(report(written, what, size, time.monotonic() - began))
        check(planned, written, arguments.verify)
    return DONE


def check_words(arguments: argparse.Namespace) -> None:
    """Check the words of a command, before the source is opened."""
    if arguments.license or arguments.public:
        flag = f"--license {arguments.license}" if arguments.license else "--public"
        where = f"{arguments.dst} is a path here"
        raise UserError(flag, f"is for a repository on the hub, and {where}", "give hf://owner/name, or leave it out")
    if arguments.dst == STDOUT:
        raise UserError(STDOUT, AS_STDOUT, "give the name of one, or of a folder")
    program = program_writer(arguments.dst, arguments.to) is not None
    if arguments.to and not is_named(arguments.to):
        find(arguments.to, "to")
    for text in arguments.adapt:
        operation(text)
    if program:
        _check_program(arguments)
        return
    flags = ("takes", "opset", "weights", "calibrate", "onnxruntime-web")
    check_no_program({name: getattr(arguments, name.replace("-", "_")) for name in flags}, arguments.dst)
    if os.path.splitext(arguments.dst)[1]:
        writer(arguments.dst)


def _check_program(arguments: argparse.Namespace) -> None:
    """Raise UserError on a flag that has no meaning where DST is a program, and where a library is not installed."""
    named = is_named(arguments.to)
    for name, why in NOT_OF_PROGRAMS.items():
        if (value := getattr(arguments, name)) and not (name == "to" and named):
            flag = f"--{name.replace('_', '-')}" + ("" if value is True else f" {value}")
            raise UserError(flag, f"{arguments.dst} is a program, which {why}", "leave the flag out")
    if arguments.dtype not in (None, "float32"):
        raise UserError(
            f"--dtype {arguments.dtype}", f"{arguments.dst} is a program, which computes in float32", "leave it out"
        )
    check_program(arguments.dst, arguments.to, arguments.force, wanted(arguments))


def begun_from(path: str) -> str:
    """The layout of the weights that a run began with (its `init`). The name of the layout; empty where it did not
    begin with weights, or with those of our own layout.
    """
    try:
        init = Run(path).record().get("init") if Run(path).exists() else None
    except (UserError, OSError):  # the reader says what is wrong with it
        return ""
    layout = init.get("layout") if isinstance(init, dict) else None
    return layout if layout in LAYOUTS and LAYOUTS[layout].dialect != "vit-jax" else ""


def _goes_on(arguments: argparse.Namespace) -> bool:
    """Whether DST takes a run with its optimizer's state, so that training goes on from it."""
    if program_writer(arguments.dst, arguments.to):
        return False
    layout, averaged = find(arguments.to or "vit-jax", "to")[-1], arguments.key == "ema"
    return not arguments.weights_only and not averaged and holds_training(goal_of(arguments.dst, layout), layout)


def check(planned: Plan, written: Written, certificate: bool) -> None:
    """Compare what was written with its source, if asked; else tell how far adaptations move the outputs."""
    if certificate:
        from ..verify import certify

        try:
            certify(planned, written)
        except Interrupted:
            raise
        except KeyboardInterrupt:
            raise Interrupted(f"interrupted: {written.path} was written, and is not verified", "SIGINT") from None
    elif any(adaptation.changes for adaptation in planned.adaptations):
        from ..verify import describe_adaptation

        for note in describe_adaptation(planned):
            print_line(f"note      {note}")


def describe_source(reading: Reading, along: tuple[str, ...] = ()) -> str:
    """The lines that describe a source: its layout and size, what is left out, tied names, notes."""
    count = sum(t.nbytes // t.dtype.itemsize for t in reading.tensors.values())
    size = f"{len(reading.tensors)} tensors, {count:,} parameters"
    lines = [f"source    {printable(reading.path)}: {reading.layout.name}, {size}"]
    lines += [f"weights   {reading.chosen}"] if reading.chosen else []
    lines += [f"left out  {what}" for what in reading.left_out if what.partition(" ")[0] not in along]
    lines += [f"tied      {', '.join(names)}" for names in tied_names(reading.source, reading.tensors)]
    lines += [f"note      {what}" for what in reading.facts.notes]
    return "\n".join(lines)


def _interface(program: Json) -> str:
    """What a program is, takes and gives, by the JSON beside it."""
    sides = (f"{side['name']} [{', '.join(map(str, side['shape']))}]" for side in (program["input"], program["output"]))
    return f"{program['program']}, {' to '.join(sides)}"


def report(written: Written, what: str, size: int, seconds: float) -> str:
    """The lines that list what was written."""
    lines = [f"written   {printable(str(written.path))}: {what}, {size / 1e6:,.1f} MB in {seconds:.1f} s"]
    lines += [f"          {printable(str(path))}" for path in written.files if path != written.path]
    return "\n".join([*lines, *(f"note      {note}" for note in written.notes)])


def progress(size: int) -> Callable[[int], None]:
    """Called with the bytes written so far: shows them on a terminal, where there are many."""
    if size < LARGE or not sys.stderr.isatty():
        return lambda done: None
    last = 0.0

    def show(done: int) -> None:
        nonlocal last
        if done >= size or time.monotonic() - last > 0.1:
            last = time.monotonic()
            end = "\n" if done >= size else ""
            print(f"\r{done / 1e6:,.0f} of {size / 1e6:,.0f} MB", end=end, file=sys.stderr, flush=True)

    return show
