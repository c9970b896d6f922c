"""`python -m convert SRC DST`, `inspect PATH`, `verify A B`, `formats`: weights from any layout to any other."""

from __future__ import annotations

import argparse
import ast
import os
import re
import signal
import sys
import threading
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from vit_jax.errors import DONE, Interrupted, UserError, door, out_of_memory, say

from .commands.terminal import wrapped

if TYPE_CHECKING:
    from .recognise.reading import Options, Reading
    from .write.write import Written

ALSO = {
    "inspect PATH": "what a file or folder is: layout, config, tensors (reads headers only)",
    "verify A B": "whether two files are the same function",
    "formats": "the layouts, which goes to which, and all that --adapt can do",
}
LONG = 400  # letters of a word that may be printed whole
LARGE = 200 << 20  # bytes of a conversion that shows how far it is


def parser(command: str, prog: str) -> argparse.ArgumentParser:
    """The arguments of a command: "", inspect, verify or formats."""
    text = {
        "": "Convert the weights in SRC to the layout of DST, prove that they are whole, and write them.",
        "inspect": "Say what a file or a folder is: layout, config and tensors. Reads headers only.",
        "verify": "Compare two files as functions: outputs, every block, gradients, and all tensors.",
        "formats": "List the layouts, which of them hold the same networks, and what --adapt can do.",
    }[command]
    also = (
        ""
        if command
        else "\n".join(["also:", *(wrapped(f"  {prog} {name:12}  {what}", 6) for name, what in ALSO.items())])
    )
    out = argparse.ArgumentParser(
        f"{prog} {command}".rstrip(),
        description=wrapped(text, 0),
        epilog=also,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    if command == "formats":
        out.add_argument(
            "--pairs", action="store_true", help="why each pair of layouts without a common network has none"
        )
        return out
    source = "a file, a folder, a run of ours, or hf://owner/name"
    add = out.add_argument
    add("a" if command == "verify" else "src", metavar="A" if command == "verify" else "SRC", help=source)
    if command == "verify":
        add("b", metavar="B", help=source)
    if not command:
        add(
            "dst",
            metavar="DST",
            help="its suffix picks the container (.safetensors .pt .pth .bin .npz .msgpack); none: a folder with the files its library wants",
        )
    add(
        "--from",
        dest="layout",
        default="",
        metavar="LAYOUT",
        help="the layout of SRC, where its names do not tell: timm, vit-pytorch@1.4, ...",
    )
    if not command:
        add("--to", default="", metavar="LAYOUT", help="the layout of DST (default: vit-jax, ours)")
    add(
        "--model",
        default="",
        metavar="NAME",
        help="take what shapes cannot tell from a published model: vit_base_patch16_224",
    )
    add(
        "--set",
        dest="sets",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="say a field of the config: heads=12, eps=1e-6, image=224, mean=0.5,0.5,0.5; repeatable",
    )
    add("--file", default="", metavar="NAME", help="which file of a folder that holds several")
    add("--step", type=int, metavar="N", help="which step of a run or a folder of checkpoints")
    add(
        "--key",
        default="",
        metavar="NAME",
        help="which of several sets of weights in one file: model_ema, teacher, ...",
    )
    add(
        "--accept",
        action="append",
        default=[],
        metavar="WHAT",
        help="convert although the result is another function; the message that asks for it says what",
    )
    if not command:
        targeted(add)
    if command == "verify":
        add(
            "--images",
            default="",
            metavar="PATH",
            help="an image, a folder of images or a .npy array to compare on (default: noise)",
        )
        add("--steps", type=int, default=0, metavar="N", help="also compare N steps of an optimizer")
        add("--json", default="", metavar="FILE", help="write the comparison as JSON")
        add("--markdown", default="", metavar="FILE", help="write the comparison as Markdown")
    return out


def targeted(add: Any) -> None:
    """The arguments that only a conversion has."""
    add(
        "--adapt",
        action="append",
        default=[],
        metavar="OP=VALUE",
        help="change the network on the way: resize=384x384:timm, head=drop, eps=1e-6, ...; `formats` lists all; repeatable, recorded",
    )
    add(
        "--dtype",
        default="",
        choices=["float64", "float32", "float16", "bfloat16"],
        metavar="DTYPE",
        help="round to this dtype (default: each tensor keeps its own)",
    )
    add(
        "--preset",
        default="",
        metavar="NAME",
        help="the run that an optimizer's state belongs to, where its file does not say",
    )
    add(
        "--weights-only", action="store_true", help="write tensors alone, also where the target cannot state the config"
    )
    add("--allow-nonfinite", action="store_true", help="convert weights with NaN or infinity")
    add("--verify", action="store_true", help="compare source and target as functions, and leave DST.certificate.json")
    add("--force", action="store_true", help="replace DST")


def options(arguments: argparse.Namespace) -> Options:
    """What the flags say about the source."""
    from .recognise.layouts import check_accepted
    from .recognise.reading import Options

    check_accepted(arguments.accept)
    return Options(
        arguments.layout,
        arguments.model,
        settings(arguments.sets),
        arguments.file,
        arguments.step,
        arguments.key,
        tuple(arguments.accept),
    )


def settings(texts: list[str]) -> dict[str, Any]:
    """KEY=VALUE texts as values: numbers, booleans, 8x12 as a size, comma-separated lists, else words. Raises UserError."""
    out: dict[str, Any] = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals or not key or not value:
            raise UserError(f"--set {text}: give KEY=VALUE, such as heads=12")
        if key in out:
            raise UserError(f"--set {key}: is said twice; say it once")
        out[key] = _value(value)
    return out


def _value(text: str) -> Any:
    rows, x, columns = text.partition("x")
    if x and rows.isdecimal() and columns.isdecimal():
        return int(rows), int(columns)
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    try:
        value = ast.literal_eval(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return text
    return value if isinstance(value, int | float | tuple) else text


def convert(arguments: argparse.Namespace) -> int:
    """Convert SRC to DST."""
    from vit_jax.presets import preset

    from .plan.plan import plan
    from .recognise.reading import read
    from .write.write import write

    began = time.monotonic()
    run = preset(arguments.preset).run if arguments.preset else None
    reading = read(arguments.src, replace(options(arguments), otherwise=run.model if run else None))
    with reading.source:
        if run and "optimizer" not in reading.source.tree:
            raise UserError(
                f"--preset {arguments.preset}: {reading.path} holds no optimizer's state for it; leave the flag out"
            )
        say(described(reading))
        way = plan(
            reading,
            arguments.to or "vit-jax",
            arguments.adapt,
            arguments.dtype,
            arguments.weights_only,
            arguments.allow_nonfinite,
        )
        for adaptation in way.adaptations:
            say(f"adapted   {adaptation.text}: {adaptation.says}")
        size = sum(spec.nbytes for spec in way.specs.values())
        written = write(way, arguments.dst, arguments.force, arguments.weights_only, progress(size), run)
        report(written, way.layout.name, size, time.monotonic() - began)
        if arguments.verify:
            from .verify import certify

            try:
                certify(way, written)
            except KeyboardInterrupt:
                raise Interrupted(f"interrupted: {written.path} was written, and is not verified", "SIGINT") from None
        elif any("the function changes" in adaptation.says for adaptation in way.adaptations):
            from .verify import moved

            for note in moved(way):
                say(f"note      {note}")
    return DONE


def described(reading: Reading) -> str:
    """A reading in a few lines."""
    from .recognise.weights_in import tied

    count = sum(t.nbytes // t.dtype.itemsize for t in reading.tensors.values())
    lines = [f"source    {reading.path}: {reading.layout.name}, {len(reading.tensors)} tensors, {count:,} parameters"]
    lines += [f"left out  {what}" for what in reading.left_out]
    lines += [f"tied      {', '.join(names)}" for names in tied(reading.source, reading.tensors)]
    lines += [f"note      {what}" for what in reading.facts.notes]
    return "\n".join(lines)


def report(written: Written, layout: str, size: int, seconds: float) -> None:
    """What was written."""
    lines = [f"written   {written.path}: {layout}, {size / 1e6:,.1f} MB in {seconds:.1f} s"]
    lines += [f"          {path}" for path in written.files if path != written.path]
    say("\n".join([*lines, *(f"note      {note}" for note in written.notes)]))


def progress(size: int) -> Any:
    """A line on a terminal that says how much of a large file is written."""
    if size < LARGE or not sys.stderr.isatty():
        return lambda done: None
    last = 0.0

    def show(done: int) -> None:
        nonlocal last
        if done >= size or time.monotonic() - last > 0.1:
            last = time.monotonic()
            print(
                f"\r{done / 1e6:,.0f} of {size / 1e6:,.0f} MB",
                end="\n" if done >= size else "",
                file=sys.stderr,
                flush=True,
            )

    return show


def inspect(arguments: argparse.Namespace) -> int:
    """Say what a file or folder is."""
    from .commands.inspect import show

    show(arguments.src, options(arguments))
    return DONE


def verify(arguments: argparse.Namespace) -> int:
    """Compare two files as functions."""
    from .verify import command

    if arguments.steps < 0:
        raise UserError(f"--steps {arguments.steps}: give how many steps to compare, 0 or more")
    return command(arguments, options(arguments))


def formats(arguments: argparse.Namespace) -> int:
    """List the layouts."""
    from .commands.formats import show

    show(arguments.pairs)
    return DONE


COMMANDS = {"": convert, "inspect": inspect, "verify": verify, "formats": formats}


def main(prog: str = "python -m convert") -> int:
    """The command: exit codes are those of vit_jax.errors."""
    words = sys.argv[1:]
    command = words[0] if words and words[0] in COMMANDS and words[0] and not os.path.exists(words[0]) else ""
    arguments = parser(command, prog).parse_args(words[1:] if command else words)
    return door(lambda: brief(command, arguments))


def brief(command: str, arguments: argparse.Namespace) -> int:
    """`run`; what it refuses is said with the middle of the longest words left out, which are paths and values of a screenful."""
    try:
        return run(command, arguments)
    except UserError as error:
        raise UserError(
            re.sub(rf"(\S{{{LONG // 2}}})\S{{{LONG // 2},}}(\S{{{LONG // 4}}})", r"\1...\2", str(error))
        ) from error


def run(command: str, arguments: argparse.Namespace) -> int:
    """A command's body; what the system says of a path becomes one sentence, and a signal to end leaves nothing behind."""
    before = {}
    for name in ("SIGTERM", "SIGHUP"):
        if hasattr(signal, name) and threading.current_thread() is threading.main_thread():
            before[name] = signal.signal(getattr(signal, name), ended)
    try:
        return COMMANDS[command](arguments)
    except Exception as error:
        if out_of_memory(error):
            raise UserError(
                "out of memory: these networks do not fit into what is free here; close other programs, or repeat it where there is more"
            ) from error
        if not isinstance(error, OSError):
            raise
        if isinstance(error, BrokenPipeError) or error.errno is None:
            raise
        place = error.filename or "the target"
        raise UserError(
            f"{place}: {os.strerror(error.errno).lower()}; check the path, its permissions and the disk, nothing was changed"
        ) from error
    finally:
        for name, handler in before.items():
            signal.signal(getattr(signal, name), handler)


def ended(number: int, frame: Any) -> None:
    """What a signal to end does: everything on the way is undone, as after Ctrl-C."""
    raise Interrupted("ended by a signal; what was being written is removed", "SIGTERM")


if __name__ == "__main__":
    sys.exit(main())
