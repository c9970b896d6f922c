"""The arguments of the commands, and what they state about a source."""

from __future__ import annotations

import argparse
import ast
import re
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

from vit_jax.config.flags import Flag, instead, show_word
from vit_jax.errors import UserError

from ..write.program.interface import ANY_IMAGES, IMAGES, OPSET, OPSETS, PIXELS, WEIGHTS, Wanted
from .terminal import wrap

if TYPE_CHECKING:
    from ..containers.source import Step
    from ..recognise.reading import Options

PURPOSE = {
    "": "Write the weights in SRC to DST in the layout of --to: every tensor is accounted for, and read back.",
    "inspect": "Show what a file or a folder is: layout, config and tensors. Reads headers only.",
    "verify": "Compare two files as functions: outputs, every block, gradients, and all tensors.",
    "formats": "List the layouts, which of them hold the same networks, and what --adapt can do.",
}
ALSO = {
    "inspect PATH": "what a file or folder is: layout, config, tensors (reads headers only)",
    "verify A B": "whether two files are the same function",
    "formats": "the layouts, which goes to which, and all that --adapt can do",
}
SOURCE = "a file, a folder, a run of vit-jax, or hf://owner/name"
FLOATS = ("float64", "float32", "float16", "bfloat16")
PEERS = {  # {what other programs call a dtype: its name here}
    "fp64": "float64", "double": "float64", "fp32": "float32", "float": "float32", "single": "float32",
    "fp16": "float16", "half": "float16", "bf16": "bfloat16",
}  # fmt: skip
PLACES = {  # {flag of other programs: where its value stands here}
    **dict.fromkeys(("output", "out", "o", "dst", "dest"), "the target is the second argument, DST"),
    **dict.fromkeys(("input", "in", "i", "src", "source", "checkpoint"), "the source is the first argument, SRC"),
}


class Parser(argparse.ArgumentParser):
    """A parser whose mistakes are one sentence."""

    def parse_args(self, args: Sequence[str], namespace: Any = None) -> argparse.Namespace:  # type: ignore[override]
        """The arguments; --set takes several values at once: --set heads=12 eps=1e-6, or heads=12,eps=1e-6."""
        switches = {flag for action in self._actions if action.nargs == 0 for flag in action.option_strings}
        return super().parse_args(_one_each(_as_flags(args, switches)), namespace)

    def error(self, message: str) -> NoReturn:
        """Raise UserError."""
        unknown, missing = "unrecognized arguments: ", "the following arguments are required: "
        if message.startswith(unknown):
            word = message.removeprefix(unknown).split()[0].partition("=")[0]
            known = {name: Flag(name, str, a.help or "") for a in self._actions for name in names(a)}
            clause = instead(word, known, PLACES) if word.startswith("-") else f"; `{self.prog} --help` lists them"
            raise UserError(f"there is no argument {show_word(word)}{clause}")
        if message.startswith(missing):
            raise UserError(f"{message.removeprefix(missing)} missing", f"give {self.usage_of_positionals()}")
        if match := re.fullmatch(
            r"argument (--[\w-]+): (expected one argument|ignored explicit argument '(.*)')", message
        ):
            flag, _, value = match.groups()
            if value is not None:
                raise UserError(f"{flag}={value}", "takes no value", f"write {flag}")
            metavar = next(a.metavar for a in self._actions if flag in a.option_strings)
            raise UserError(f"{flag} has no value", remedy=f"write {flag} {metavar}")
        raise UserError(" ".join(message.removeprefix("argument ").split()))

    def usage_of_positionals(self) -> str:
        """The command with its positional arguments."""
        return " ".join([self.prog, *(str(a.metavar) for a in self._actions if not a.option_strings)])


def _as_flags(words: Sequence[str], switches: Collection[str]) -> list[str]:
    """The words as the parser knows them, where flags are written as messages name them: --weights_only True."""
    out: list[str] = []
    for word in words:
        name, equals, value = word.partition("=")
        if word in ("True", "False") and out and out[-1] in switches:
            out = out if word == "True" else out[:-1]
        else:
            out.append(f"{name.replace('_', '-')}{equals}{value}" if name.startswith("--") else word)
    return out


def _one_each(words: Sequence[str]) -> list[str]:
    """The words with `--set`, which is also called --fields, before each of its values."""
    out: list[str] = []
    several = False
    for word in (re.sub(r"^--fields(?==|$)", "--set", word) for word in words):
        given = word.removeprefix("--set=")
        several = word != given or out[-1:] == ["--set"] or (several and bool(re.match(r"[a-z]\w*(\.\w+)*=.", word)))
        if not several or word == "--set":
            out.append(word)
            continue
        values = re.split(r",(?=[a-z]\w*(?:\.\w+)*=)", given)
        out += ([] if out[-1:] == ["--set"] else ["--set"]) + values[:1]
        out += [each for value in values[1:] for each in ("--set", value)]
    return out


def names(action: argparse.Action) -> list[str]:
    """The names of an argument's flags, without dashes."""
    return [flag.lstrip("-") for flag in action.option_strings]


def parser(command: str, prog: str) -> argparse.ArgumentParser:
    """The arguments of a command: "" (convert), inspect, verify or formats."""
    others = [wrap(f"  {prog} {name:12}  {what}", 6) for name, what in ALSO.items()]
    out = Parser(
        f"{prog} {command}".rstrip(),
        description=wrap(PURPOSE[command], 0),
        epilog="" if command else "\n".join(["also:", *others]),
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add = out.add_argument
    if command == "formats":
        return out
    if command == "verify":
        add("a", metavar="A", help=SOURCE)
        add("b", metavar="B", help=SOURCE)
    else:
        add("src", metavar="SRC", help=SOURCE)
    if not command:
        suffixes = ".safetensors .pt .pth .bin .npz .msgpack"
        folder = "a folder with the files its library wants"
        program = "a program that runs without vit-jax (.onnx, .stablehlo; .html, a page for a browser)"
        hub = "or hf://owner/name, to which the verified folder is uploaded"
        add("dst", metavar="DST", help=f"a file ({suffixes}), {folder}, {program}, {hub}")
    _about_source(add, "A" if command == "verify" else "SRC")
    if not command:
        _about_target(add)
    if command == "verify":
        _about_comparison(add)
    return out


def _about_source(add: Any, source: str) -> None:
    """The arguments that state what a source is."""
    names = f"the layout of {source}, where its names do not show it: timm, vit-pytorch@1.4, ..."
    fields = "give a field of the config: heads=12, eps=1e-6, image=224, mean=0.5,0.5,0.5; or what outputs are: "
    fields += "target=class, set, number or embedding; repeatable"
    accept = "convert even though the result computes another function; the error message gives WHAT"
    add("--from", "--layout", dest="layout", default="", metavar="LAYOUT", help=names)
    add(
        "--model",
        default="",
        metavar="NAME",
        help="a published model, such as vit_base_patch16_224, whose config says what shapes cannot show",
    )
    add("--set", "--fields", dest="sets", action="append", default=[], metavar="KEY=VALUE", help=fields)
    add("--file", default="", metavar="NAME", help="which file of a folder that holds several")
    step = "which step of a run or a folder of checkpoints (default of a run: best, or last where DST goes on training)"
    key = (
        "which of several sets of weights in one file: model_ema, teacher, ...; of a run: model (raw) or ema (averaged)"
    )
    add("--step", metavar="best|last|N", help=step)
    add("--key", default="", metavar="NAME", help=key)
    add("--accept", action="append", default=[], metavar="WHAT", help=accept)


def _about_target(add: Any) -> None:
    """The arguments that only a conversion has."""
    adapt = (
        "change the network on the way: resize=384x384:timm, head=drop, eps=1e-6, ... (`formats` lists all); "
        "repeatable, and recorded in the file"
    )
    preset = "the preset that trained SRC, where SRC holds an optimizer's state and not its name"
    certificate = "compare source and target as functions, and leave DST.certificate.json (to hf://...: always done)"
    takes = f"for a program: {PIXELS} (default), uint8 of any size, prepared as by the run; {IMAGES}, prepared "
    takes += f"and normalised, float32; {ANY_IMAGES}, such images of any size (.stablehlo, rotary positions)"
    version = f"for X.onnx: the opset of ONNX, {OPSETS[0]} to {OPSETS[-1]} (default: {OPSET}), or newer, of a runtime"
    smaller = "for X.onnx and X.html: float16 halves the file, int8 also computes in int8, by ranges of 256 training "
    smaller += "images; what that changes is measured on the run's validation, and printed; with --to transformers-js "
    smaller += "several may be named, such as float16,int8"
    source = "images for --weights int8, as data.source names them (folder:PATH), if SRC is not a run"
    runtime = "for X.html: where npm has installed onnxruntime-web, which the page contains: node_modules"
    licence = "for hf://owner/name: the licence, such as apache-2.0, for its model card (default: none)"
    add(
        "--to",
        default="",
        metavar="LAYOUT",
        help="the layout of DST (default: vit-jax; of a run with --init: that of init); or transformers-js",
    )
    add("--adapt", action="append", default=[], metavar="OP=VALUE", help=adapt)
    add("--dtype", type=dtype, metavar="DTYPE", help=f"round to {', '.join(FLOATS)} (default: unchanged)")
    add("--takes", default="", metavar="WHAT", help=takes)
    add("--weights", default="", metavar="|".join(WEIGHTS), help=smaller)
    add("--calibrate", default="", metavar="SOURCE", help=source)
    add("--opset", type=opset, default=0, metavar="N", help=version)
    add("--onnxruntime-web", default="", metavar="PATH", help=runtime)
    add("--preset", default="", metavar="NAME", help=preset)
    add(
        "--weights-only",
        action="store_true",
        help="write weights alone: no optimizer state, no extra files for DST's library",
    )
    add("--allow-nonfinite", action="store_true", help="convert weights with NaN or infinity")
    add("--verify", action="store_true", help=certificate)
    add("--force", action="store_true", help="replace DST")
    add("--license", default="", metavar="NAME", help=licence)
    add("--public", action="store_true", help="for hf://owner/name: make a public repository (default: a private one)")


def _about_comparison(add: Any) -> None:
    """The arguments that only verify has."""
    images = "an image, a folder of images or a .npy array to compare on (default: noise)"
    add("--images", default="", metavar="PATH", help=images)
    add("--steps", type=steps, default=0, metavar="N", help="also compare N steps of an optimizer")
    add("--json", default="", metavar="FILE", help="write the comparison as JSON")
    add("--markdown", default="", metavar="FILE", help="write the comparison as Markdown")


def dtype(text: str) -> str:
    """What --dtype names."""
    if text not in FLOATS:
        ours = PEERS.get(text.lower())
        raise UserError(f"--dtype {text}", f"choose one of {', '.join(FLOATS)}{f'; here it is {ours}' if ours else ''}")
    return text


def wanted(arguments: argparse.Namespace) -> Wanted:
    """What the arguments ask of a program."""
    weights = tuple(arguments.weights.split(",")) if arguments.weights else WEIGHTS[:1]
    return Wanted(arguments.takes or PIXELS, arguments.opset, arguments.onnxruntime_web, weights, arguments.calibrate)


def opset(text: str) -> int:
    """The opset that --opset names."""
    if not re.fullmatch(r"[1-9]\d{0,3}", text, re.ASCII):
        raise UserError(f"--opset {text}", f"give a number from {OPSETS[0]} to {OPSETS[-1]}")
    return int(text)


def steps(text: str) -> int:
    """How many steps --steps asks for."""
    if not re.fullmatch(r"\d{1,9}", text, re.ASCII):
        raise UserError(f"--steps {text}", "give how many steps to compare, 0 or more")
    return int(text)


def options(arguments: argparse.Namespace) -> Options:
    """What the arguments state about the source."""
    from ..recognise.layouts import check_accept_flags
    from ..recognise.reading import Options

    check_accept_flags(arguments.accept)
    return Options(
        layout=arguments.layout,
        model=arguments.model,
        sets=settings(arguments.sets),
        typed={key: value for key, _, value in (text.partition("=") for text in arguments.sets)},
        file=arguments.file,
        step=step(arguments.step),
        key=arguments.key,
        accept=tuple(arguments.accept),
        headless=any(text.startswith("head=") for text in getattr(arguments, "adapt", ())),
    )


def step(text: str | None) -> Step:
    """What --step names. Returns "best", "last" or the number of a step; None where the flag is left out."""
    named: dict[str | None, Step] = {None: None, "best": "best", "last": "last"}
    if text is None or text in named:
        return named[text]
    if not re.fullmatch(r"\d{1,15}", text, re.ASCII):
        raise UserError(f"--step {text}", "give best, last, or the number of a step")
    return int(text)


def settings(texts: list[str]) -> dict[str, Any]:
    """What KEY=VALUE texts state -> {key: value}."""
    out: dict[str, Any] = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals or not key or not value:
            raise UserError(f"--set {text}", "give KEY=VALUE, such as heads=12")
        if key in out:
            raise UserError(f"--set {key}", "is given twice", "give it once")
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
