"""Words of a command line: what the check lets through is what the parser reads; each mistake is one sentence."""

import contextlib
import dataclasses
import inspect
import io
import random
import sys
import typing
from dataclasses import dataclass, field, fields
from typing import Literal

import pytest
import tyro

import vit_jax
from convert import __main__ as convert_door
from convert.commands.arguments import parser as convert_parser
from vit_jax import errors
from vit_jax.commands import cli, evaluate, predict
from vit_jax.commands import train as train_command
from vit_jax.config import flags
from vit_jax.config.hints import FLAGS, REASONS, VALUES
from vit_jax.config.run import RunConfig
from vit_jax.extras.report import command as report_command
from vit_jax.files import terminal
from vit_jax.presets.table import PRESETS, preset


def options(name="digits"):
    run = preset(name).run
    return train_command.Options(**{f.name: getattr(run, f.name) for f in fields(RunConfig)})


@dataclass(frozen=True)
class Part:
    """A part with one field of each kind."""

    size: int | tuple[int, int] = field(default=2, metadata={"help": "one number or two"})
    kinds: tuple[Literal["kernel", "norm"], ...] = field(default=("kernel",), metadata={"help": "any of them"})
    lengths: tuple[int, ...] = field(default=(), metadata={"help": "any numbers"})
    flip_all: bool = field(default=False, metadata={"help": "off"})


@dataclass(frozen=True)
class Small:
    """Options of each kind, and a part."""

    epochs: int = field(default=1, metadata={"help": "a number"})
    lr_peak: float = field(default=1.0, metadata={"help": "a number"})
    schedule: Literal["cosine", "constant"] = field(default="constant", metadata={"help": "one of two"})
    name: str = field(default="", metadata={"help": "a text"})
    cached: bool = field(default=True, metadata={"help": "on"})
    part: Part = field(default_factory=Part)


def parsed_by_tyro(words):
    """What tyro alone makes of the words; None if it refuses them."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out), contextlib.suppress(SystemExit):
        return tyro.cli(Small, args=words, default=Small(), config=(tyro.conf.AvoidSubcommands,))
    return None


TRIED = {
    **dict.fromkeys(("--epochs", "--lr-peak", "--lr_peak"), ("3", "-1", "1e-3", ".5", "1_0", "abc", "", " 2")),
    **dict.fromkeys(("--part.size", "--part.lengths"), ("3", "-1", "2x4", "5", "8")),
    "--part.kinds": ("kernel", "norm", "bias"),
    "--schedule": ("cosine", "cosin", "constant"),
    "--name": ("a", "", "-", "-7", "a b", "None"),
    **dict.fromkeys(("--cached", "--no-cached", "--part.flip-all", "--no-part.flip-all"), ("True",)),
    **dict.fromkeys(("--epoch", "-e", "--size", "--part"), ("3",)),
}


def test_what_passes_the_check_is_what_the_parser_reads_and_nothing_else_does():
    """120 random command lines."""
    draw, accepted = random.Random(0), 0
    for _ in range(120):
        words = []
        for flag in draw.sample([*TRIED], k=draw.choice((1, 1, 2))):
            values = draw.choices(TRIED[flag], k=draw.choice((0, 1, 1, 2)) if "e" in flag[:4] else draw.choice((1, 2)))
            values = [] if "cached" in flag or ("flip" in flag and draw.random() < 0.8) else values
            joined = values and draw.random() < 0.3
            words += [f"{flag}={values[0]}", *values[1:]] if joined else [flag, *values]
        theirs = parsed_by_tyro(words)
        try:
            ours = flags.parse(Small, words, default=Small(), prog="x")
        except errors.UserError:
            ours = None
        assert ours == theirs, words
        accepted += ours is not None
    assert 20 < accepted < 100


def test_a_flag_given_twice_counts_as_given_last():
    words = ["--name=a", "--epochs", "3", "--name", "b", "--epochs=4", "--augment.flip", "--augment.no-flip"]
    found = train_command.parse(["digits", *words])[1]
    assert (found.name, found.epochs, found.augment.flip) == ("b", 4, False)
    assert [flags.value_of(flags.given_texts(words), name) for name in ("name", "epochs", "init")] == ["b", "4", ""]
    assert flags.given_fields([*words, "--", "--seed"], options()) == [
        *("name", "epochs", "name", "epochs", "augment.flip", "augment.flip"),
    ]


@dataclass(frozen=True)
class Two:
    """Two positional arguments, the second any number of times."""

    first: str = field(metadata={"help": "the first; or not"})
    others: tuple[str, ...] = field(metadata={"help": "the others"})
    top: int = field(default=3, metadata={"help": "a number"})


@pytest.mark.parametrize(
    "words", ["a b --top 5 c", "--top 5 a b c", "a --top=5 b c", "a b c --top 5", "--top 5 -- a b c"]
)
def test_positional_arguments_may_stand_anywhere(words):
    assert flags.parse(Two, words.split(), prog="x") == Two("a", ("b", "c"), 5)


def test_what_begins_with_a_dash_can_be_positional():
    assert flags.parse(Two, ["a", "-5", "-", "--", "-b", "--top"], prog="x") == Two("a", ("-5", "-", "-b", "--top"), 3)


# ------------------------------------------------------------------------- one sentence for each

COMMANDS = {"train": train_command.command, "evaluate": evaluate.command, "predict": predict.command}


def said(line, monkeypatch, capsys) -> str:
    """What a command prints on stderr; it must be refused with 2."""
    door, *words = line.split()
    capsys.readouterr()
    if door == "torch_ref":
        pytest.importorskip("torch")
        from torch_ref import train as torch_train

        code = terminal.run_command(lambda: torch_train.command(words))
    elif door in COMMANDS:
        code = terminal.run_command(lambda: COMMANDS[door](words))
    else:
        monkeypatch.setattr(sys, "argv", [door, *words])
        code = convert_door.main() if door == "convert" else cli.main()
    shown = capsys.readouterr()
    assert code == errors.USER and not shown.out
    return shown.err


@pytest.mark.parametrize(
    "line, sentence",
    {
        "train digits --device cpu": "there is no field --device: jax takes the devices",
        "torch_ref digits --device cpu": "there is no field --device: PyTorch takes a GPU",
        "predict x y --output a.csv": "there is no field --output; here it is csv",
        "train digits --augment.policy rand-m9": "--augment.policy rand-m9: choose one of none",
        "train digits --augment.scale 0.5": "--augment.scale 0.5: give 2 finite numbers",
        "train --model vit": "there is no field --model: the network is the first",
        "train digits --compute-dtype bf16": "float64; here it is bfloat16",
        "train digits --init-resize qqq": "dino, torchvision, google, flexi\n",  # and not all of them once more
        "train digits --optim.decay kernel weights": "--optim.decay weights: choose any of kernel",
        "evaluate x --split val": "--split val: here it is validation",
        "evaluate x --weights bst": "which is 'bst': choose best, last, or mean:K such as mean:5",
        "train digits --epochs abc": "--epochs abc: give a whole number",
        "train digits --epochs=": "--epochs '': give a whole number",
        "train digits --epochs": "--epochs has no value: give a whole number",
        "train digits --optim.lr inf": "--optim.lr inf: give a finite number",
        "train digits --model.patch 2 4 8": "--model.patch 2 4 8: give a whole number or 2 whole numbers",
        "train digits --augment.flip=yes": "give --augment.flip True or --augment.flip False\n",
        "train digits --model.no-cls-token false": "give --model.cls-token True or ",
        "train digits --epochs \x1b[31m": r"--epochs \x1b[31m: give a whole number",
        "train digits 7": "the argument '7' follows no --field: name its field, or leave it out",
        "train cifar10": "give one that trains on it (cifar10-48x4, ",
        "train vit_base_patch16_224": "there is no preset 'vit_base_patch16_224'; here it is vit-b16",
        "train vit-q16": "there is no preset 'vit-q16'; nearest: ",
        "train /": "/ is a folder, not a preset; --resume / ",
        "train --resume a --resume b": "b: no such folder or run",
        "train digits --resume a": "leave out the preset 'digits'",
        "evaluate": "RUN is missing; give a run's folder",
        "convert a": "DST missing: give python -m convert SRC DST",
        "convert a b c": "there is no argument 'c'; `python -m convert --help` lists them",
        "convert a b --output c": "there is no argument --output",
        "convert a b --format timm": "there is no argument --format; here it is to",
        "convert a b --dtype fp8": "--dtype fp8: choose one of float64, float32, float16, bfloat16\n",
        "convert a b --to": "--to has no value; write --to LAYOUT",
        "convert a b --verify=yes": "--verify=yes: takes no value; write --verify",
        "convert verify a b --steps foo": "--steps foo: give how many steps to compare, 0 or more",
        "vit-jax digits": "digits is a preset, not a command; give vit-jax train digits",
        "vit-jax --device": "the command comes before its flags: give vit-jax COMMAND --device",
    }.items(),
)
def test_a_mistake_is_one_sentence(line, sentence, monkeypatch, capsys):
    error = said(line, monkeypatch, capsys)
    assert error.startswith("vit-jax: error: ") and sentence in error
    assert error.count("\n") == 1 and error.strip().isprintable() and len(error) < 400


def test_the_module_says_what_to_run(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["vit_jax"])
    assert cli.main("python -m vit_jax") == 0
    shown = capsys.readouterr().out
    assert "usage: python -m vit_jax COMMAND" in shown and all(f"  {name} " in shown for name in cli.COMMANDS)


# ---------------------------------------------------------------------------- the table of words


def test_each_word_of_others_leads_to_a_field_or_a_value_that_is_there():
    dataclasses = [*map(options, PRESETS), evaluate.Options, predict.Options, report_command.Options]
    known = {name: flag for one in dataclasses for name, flag in flags.flags(one).items()}
    of_convert = {flag.lstrip("-") for a in convert_parser("", "x")._actions for flag in a.option_strings}
    assert {ours for several in FLAGS.values() for ours in several} <= known.keys() | of_convert
    elsewhere = known.keys() & REASONS.keys()  # a flag of one command, which the others say
    assert elsewhere <= flags.flags(predict.Options).keys()
    assert all("vit_jax.predict" in REASONS[name] for name in elsewhere)
    literal = {value for flag in known.values() for value in choices(flag.hint)}
    assert {*VALUES.values()} <= literal | {"validation"}


@pytest.mark.parametrize(
    ("function", "cls", "names"),
    [(vit_jax.predict, predict.Options, {}), (vit_jax.evaluate, evaluate.Options, evaluate.NAMES)],
)
def test_a_flag_that_is_an_argument_of_python_has_its_default_and_its_description(function, cls, names):
    arguments, described = inspect.signature(function).parameters, inspect.getdoc(function)
    of_data = {f"data.{f.name}": f for f in fields(cls.__dataclass_fields__["data"].default_factory)}
    found = 0
    for name, f in ({f.name: f for f in fields(cls) if f.name != "data"} | of_data).items():
        argument = names.get(name, name.removeprefix("data."))
        if argument in arguments and f.default is not dataclasses.MISSING and argument != "ema":
            assert f.default == arguments[argument].default, name
            found += 1
        if argument in arguments and argument not in SELECTING:
            text = f.metadata["help"].partition(";")[0]
            assert len(text) > 4 and text in " ".join(described.split()), name
    assert found > 7


SELECTING = {*map("{}_language".format, ("source", "target")), "prefix", "task", "ema", "skip_unreadable"}


def choices(hint) -> set:
    """The values of the Literals in a type."""
    if typing.get_origin(hint) is typing.Literal:
        return {*typing.get_args(hint)}
    return {value for part in typing.get_args(hint) for value in choices(part)}
