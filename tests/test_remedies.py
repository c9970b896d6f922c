"""What messages name exists: fields, options, flags, layouts, commands, functions, files, extras; following them helps.

A field or an option is named as in config.json, and the shell and Python both take it so.

The texts are all strings in the code of vit_jax and convert but docstrings: help and messages alike.
"""

from __future__ import annotations

import ast
import dataclasses
import functools
import importlib.util
import inspect
import json
import re
import shlex
import tomllib
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from safetensors.numpy import save_file

import vit_jax
from convert import adapt, rules
from convert.commands.arguments import PURPOSE, options, parser
from convert.dialects import LAYOUTS
from convert.layout import Facts
from convert.recognise.config import MissingFields
from convert.recognise.layouts import extras, find
from convert.recognise.preprocessing import SETTABLE
from convert.recognise.reading import read
from convert.write import into_onnx_folder, into_transformers_js
from vit_jax.commands import cli, evaluate, predict, share, train
from vit_jax.config import flags
from vit_jax.config.decoding import Decoding
from vit_jax.config.dotted import leaves
from vit_jax.config.run import RunConfig
from vit_jax.errors import UserError
from vit_jax.extras import sheet
from vit_jax.extras.plan import command as plan
from vit_jax.extras.report import command
from vit_jax.extras.sweep import command as sweep
from vit_jax.models.networks import NETWORKS
from vit_jax.models.vit_config import ViTConfig, is_sized
from vit_jax.presets.table import PRESETS, preset
from vit_jax.reports import compare
from vit_jax.runs.values import flat, with_fields
from vit_jax.weights.opening import EXPORTS, LOADS, READING, WRITING

ROOT = Path(__file__).parents[1]
# Flags of XLA, one that has no parser, and a word for any.
FOREIGN = {
    *("--xla_force_host_platform_device_count", "--xla_cpu_experimental_ynn_fusion_type", "--version", "--field"),
    "--ignore-scripts",  # of npm
    "--array",  # of Slurm
    "--parts",  # of folders that older versions wrote
}
FOLDERS = {into_onnx_folder.NAME, into_transformers_js.NAME}  # of programs, which --to takes beside layouts
OTHERS = {"zero_to_fp32.py", "perfetto_trace.json", "metadata.jsonl"}  # files that other programs write
GAP = "{}"  # what stands in a text for a value


class Named(NamedTuple):
    """A text of the code: where it stands, and what it says."""

    place: str
    text: str


def _text(node: ast.AST) -> str:
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) else GAP
    if isinstance(node, ast.JoinedStr):
        return "".join(map(_text, node.values))
    return GAP


@functools.cache
def trees() -> dict[str, ast.Module]:
    """{file: its syntax}."""
    files = [path for room in ("vit_jax", "convert") for path in sorted((ROOT / room).rglob("*.py"))]
    return {str(path.relative_to(ROOT)): ast.parse(path.read_text()) for path in files}


@functools.cache
def texts() -> list[Named]:
    """All texts of the code but docstrings, with GAP for each value."""
    found = []
    for file, tree in trees().items():
        nodes = [*ast.walk(tree)]
        inside = {id(part) for node in nodes if isinstance(node, ast.JoinedStr) for part in node.values}
        documents = {
            id(node.body[0].value)
            for node in nodes
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and isinstance(node.body[0], ast.Expr)
        }
        for node in nodes:
            is_text = isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Constant) and type(node.value) is str)
            if is_text and id(node) not in inside | documents:
                found.append(Named(f"{file}:{node.lineno}", _text(node)))
    return found


def calls(name: str) -> Iterator[tuple[str, list[str]]]:
    """(place, arguments as texts) of all calls of a function."""
    for file, tree in trees().items():
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == name:
                yield f"{file}:{node.lineno}", list(map(_text, node.args))


@functools.cache
def convert_flags() -> set[str]:
    actions = [action for command in PURPOSE for action in parser(command, "convert")._actions]
    return {flag for action in actions for flag in action.option_strings}


@functools.cache
def run_defaults() -> list[train.Options]:
    """The options of the command train, of each preset."""
    fields = dataclasses.fields(RunConfig)
    runs = [preset(name).run for name in PRESETS]
    return [train.Options(**{f.name: getattr(run, f.name) for f in fields}) for run in runs]


OF_COMMANDS = (evaluate.Options, predict.Options, command.Options, compare.Options, sweep.Options)
FUNCTIONS = ("build", "compare", "evaluate", "export", "load", "predict", "preset", "report", "steps", "sweep", "train")


@functools.cache
def run_flags() -> set[str]:
    """The flags of all commands of vit_jax."""
    found = [flag for each in (*run_defaults(), *OF_COMMANDS, share.JoinOptions, sheet.Options, plan.Options)
             for flag in flags.flags(each).values()]  # fmt: skip
    names = {name for flag in found for name in (flag.name, flag.also) if name}
    return {f"--{name}" for name in names} | {
        f"--{'.'.join([*a, f'no-{b}'])}" for *a, b in (n.split(".") for n in names)
    }


def known_flags(place: str, text: str) -> set[str]:
    """The flags that a text may name: those of convert in its messages and commands, else those of vit_jax."""
    if place.startswith("convert") and "of a run" not in text:
        return convert_flags() | FOREIGN
    of_convert = "python -m convert" in text or text.startswith(" ")  # the rest of such a command
    return run_flags() | FOREIGN | {"--help"} | (convert_flags() if of_convert else set())


def test_every_flag_that_a_text_names_is_one_of_its_command():
    """Those of a part of the run (--model.depth) are of any network."""
    models = {f"--model.{name}".replace("_", "-") for network in NETWORKS.values() for name in leaves(network)}
    strange = {
        f"{place}: {flag}"
        for place, text in texts()
        for flag in re.findall(r"(?<![\w-])--[a-z][\w-]*(?:\.[a-z][\w-]*)*(?![\w-]|\.?[{*A-Z])", text)
        if flag not in known_flags(place, text) | models
    }
    assert not strange


# ------------------------------------------------------------------------ fields and options, for both doors

# What stands in backticks and is no field: commands, and names of Python.
NO_FIELDS = re.compile(
    r"[^a-z]|$|(python|vit-jax|npm|git|hf|wandb) |(call|encode|formats|kind_of|pipeline|predict|update)$"
)
STANDS_FOR = {"N": "3", "K": "3", "FILE": "a.csv", "COLUMN": "b", "KEY": "c"}
FILLED = [
    *("data.range 0 65535", "data.range -1 1", "data.range -0.5 2.5", "data.labels age weight", "data.labels 3"),
    *("data.file_column path", "data.separator ;", "data.source pets:1.0.0", "data.dir '/a b'", "model.classes 7"),
    *("model.patch 2 4", "model.heads 6", "model.cls_token False", "augment.flip False", "batch 24", "keep 9"),
    *("model.stem 32 64", "stages 0.1 0", "init runs/a", "optim.lr 0.003", "max_steps 10", "data.download False"),
]


def spans() -> Iterator[Named]:
    """All that messages name in backticks as fields and options, with their values."""
    for place, text in texts():
        for span in re.findall(r"`([^`]*)`", text):
            if not NO_FIELDS.match(span):
                yield Named(place, span)


@functools.cache
def names_in_shell() -> dict[str, set[str]]:
    """The flags, without their dashes, of runs, of other commands and of convert."""
    return {
        "run": {name for each in run_defaults() for name in flags.flags(each)},
        "command": {n for each in OF_COMMANDS for flag in flags.flags(each).values() for n in (flag.name, flag.also)},
        "convert": {flag.removeprefix("--") for flag in convert_flags() if flag.startswith("--")},
    }


def in_shell(name: str) -> set[str]:
    """The fields of which command, or of convert, have a name in the shell."""
    return {door for door, names in names_in_shell().items() if name.replace("_", "-") in names}


@functools.cache
def arguments() -> set[str]:
    """The arguments of public functions; what is searched is one of the fields of Decoding."""
    own = {name for function in FUNCTIONS for name in inspect.signature(getattr(vit_jax, function)).parameters}
    return own | {f.name for f in dataclasses.fields(Decoding)} | {"features"}  # features is a method


@functools.cache
def fields() -> set[str]:
    """The names that the argument `fields` takes."""
    return {name for each in run_defaults() for name in flat(each.run())}


def in_python(name: str) -> bool:
    """Whether Python has a name: in `fields`, as an argument, by its last part where it has several."""
    return name in fields() or bool({name, name.rpartition(".")[2], name.replace(".", "_"), f"{name}_"} & arguments())


def test_every_field_and_option_that_a_message_names_is_one_for_the_shell_and_for_python():
    """Convert has options that Python lacks: their messages are completed with its command (`convert_first`)."""
    found = {(span.partition(" ")[0], place) for place, span in spans()}
    assert len(found) > 150
    for name, place in found:
        if name == "model.FIELD" or GAP in name:
            continue
        assert in_shell(name), f"{place}: {name}"
        if name == "force":  # of commands that write files, which functions return
            continue
        completed = "convert" in in_shell(name) and place.startswith(("convert", "vit_jax/weights"))
        assert in_python(name) or (completed and name in READING | WRITING | ONLY_CONVERT), f"{place}: {name}"


# Of files that the command alone reads or writes.
ONLY_CONVERT = {"file", "allow_nonfinite", "preset"}


def test_the_options_that_functions_share_with_convert_are_their_arguments():
    for function, names in ((vit_jax.load, LOADS), (vit_jax.export, EXPORTS)):
        assert names < {*inspect.signature(function).parameters}
    assert {f"--{name.replace('_', '-')}" for name in LOADS | EXPORTS | READING | WRITING} - convert_flags() == {
        "--shard-size"  # convert writes what the Hub takes
    }


def values_of(span: str) -> tuple[str, list[str]]:
    name, *values = shlex.split(span)
    return name, [STANDS_FOR.get(value, value) for value in values]


def of_python(hint: Any, words: list[str]) -> Any:
    """The value that a user of Python writes for these words, without a look at how a field has it."""
    read = [word if str in (hint, *typing.get_args(hint)) else _literal(word) for word in words]
    return read[0] if len(read) == 1 else tuple(read)


def _literal(word: str) -> Any:
    try:
        return ast.literal_eval(word)
    except (ValueError, SyntaxError):
        return word


def stated_spans() -> list[str]:
    """All fields of runs with a value that messages name in full, and some whose value they fill in."""
    named = {span for _, span in spans() if " " in span and GAP not in span and "..." not in span}
    return sorted(span for span in {*named, *FILLED} if "run" in in_shell(values_of(span)[0]))


def check_both_doors(span: str) -> None:
    """The words of the shell are read as the value that a user of Python writes."""
    name, words = values_of(span)
    options = next(each for each in run_defaults() if name.replace("_", "-") in flags.flags(each))
    known = flags.flags(options)
    (in_shell,) = flags.read_words([f"--{name}", *words], known).values()
    hint = known[name.replace("_", "-")].hint
    if name in flat(options.run()):
        changed = with_fields(options.run(), {name: of_python(hint, words)})
        assert flat(changed)[name][0] == in_shell != flags.read_words([], known), span
    else:
        assert in_python(name) and in_shell == of_python(hint, words), span


def test_a_value_that_a_message_tells_is_the_same_in_the_shell_and_in_python():
    kinds = {bool: "augment.flip False", tuple: "data.range 0 65535", float: "optim.clip 1", str: "data.fit pad"}
    stated = stated_spans()
    assert len(stated) > 36 and {*kinds.values()} < {*stated}
    for span in stated:
        check_both_doors(span)


@pytest.mark.parametrize("span", ["which last", "ema False", "data.range 0.0 1.0", "probe knn", "data.labels a b"])
def test_an_option_of_a_command_is_taken_as_messages_name_it(span):
    name, words = values_of(span)
    given = flags.parse(evaluate.Options, ["runs/a", f"--{name}", *words], prog="evaluate")
    usual = flags.parse(evaluate.Options, ["runs/a"], prog="evaluate")
    assert given != usual
    field = {"which": "weights"}.get(name, name)
    assert flat(given)[field][0] == of_python(flags.flags(evaluate.Options)[field.replace("_", "-")].hint, words)


SPANS_OF_CONVERT = {  # as messages name it: in arguments of argparse
    "weights_only True": {"weights_only": True}, "allow_nonfinite True": {"allow_nonfinite": True},
    "force False": {"force": False}, "model NAME": {"model": "NAME"},
    "fields mean=0.5 std=0.2": {"sets": ["mean=0.5", "std=0.2"]}, "layout timm": {"layout": "timm"},
    "adapt head=drop": {"adapt": ["head=drop"]}, "onnxruntime_web node_modules": {"onnxruntime_web": "node_modules"},
    "file a.pt": {"file": "a.pt"}, "accept two-eps": {"accept": ["two-eps"]},
}  # fmt: skip


@pytest.mark.parametrize("span", SPANS_OF_CONVERT)
def test_convert_takes_an_option_as_messages_name_it(span):
    name, *words = span.split()
    found = parser("", "convert").parse_args(["a", "b", f"--{name}", *words])
    assert SPANS_OF_CONVERT[span].items() <= vars(found).items() and {"a", "b"} < {*map(str, vars(found).values())}


def test_every_layout_adaptation_and_field_that_a_message_names_is_one():
    fields = {*SETTABLE, *(name for network in NETWORKS.values() for name in (*leaves(network), *extras(network)))}
    for place, span in spans():
        name, *values = span.split()
        for value in values:
            if GAP in value or value in ("NAME", "LABEL", "N") or not place.startswith("convert"):
                continue
            if name == "adapt":
                adapt.operation(value)
            elif name in ("layout", "to") and value not in FOLDERS:
                find(value, name)
            elif name == "fields":
                assert value.partition("=")[0] in fields, f"{place}: {span}"


def test_every_command_that_a_text_names_is_one():
    for place, text in texts():
        for module, word in re.findall(r"python -m ([\w.]+)(?: ([a-z]+)(?= |`|$))?", text):
            if module.startswith(("vit_jax", "convert", "torch_ref")):
                assert importlib.util.find_spec(module), f"{place}: python -m {module}"
            if module == "convert" and word:
                assert word in PURPOSE, f"{place}: python -m convert {word}"
            if module == "vit_jax.train" and word:
                assert word in PRESETS, f"{place}: {word}"
        for word in re.findall(r"`vit-jax ([a-z]+)", text):
            assert word in cli.COMMANDS, f"{place}: vit-jax {word}"


def test_every_function_preset_and_extra_that_a_text_names_is_there():
    extra = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    for place, text in texts():
        for name in re.findall(r"\bvit_jax\.([a-z_]+)\(", text):
            assert hasattr(vit_jax, name), f"{place}: vit_jax.{name}"
        for name in re.findall(r"preset\('([\w-]+)'\)|\b(vit-[a-z]+\d+)\b", text):
            assert all(each in PRESETS or is_sized(each) for each in filter(None, name)), f"{place}: {name}"
    for place, (name, *_) in calls("install"):
        assert name == GAP or name in extra, f"{place}: {name}"


def test_every_file_that_a_message_names_is_one_that_code_looks_for():
    """A name in a message also stands alone somewhere, as what is opened or as a pattern."""
    alone = {text for _, text in texts() if re.fullmatch(r"[\w.]+", text)}
    for place, text in texts():
        for name in re.findall(r"(?<![\w./}{*])([a-z_]+\.(?:json|jsonl|csv|h5|tsv|py))\b", text):
            known = name in alone or name in OTHERS or any(name == Path(each).name for each in alone)
            assert known, f"{place}: {name}"


# ------------------------------------------------------------------------ following a remedy helps


@pytest.mark.parametrize(
    ("images", "labels", "field"),
    [
        (np.linspace(0, 1, 24 * 64).reshape(24, 8, 8), np.arange(24) % 3, "data.range"),
        (np.zeros((24, 8, 8), np.uint8), np.eye(3, dtype=int)[np.arange(24) % 3], "data.target"),
    ],
)
def test_training_on_arrays_takes_what_the_refusal_tells(images, labels, field, working_folder):
    small = {"model.width": 8, "model.heads": 2, "model.hidden": 8, "model.depth": 1, "batch": 8, "max_steps": 1}
    small["name"] = field
    with pytest.raises(UserError) as refused:
        vit_jax.train("digits", data=(images, labels), fields=small)
    name, words = values_of(next(span for span in re.findall("`([^`]*)`", str(refused.value)) if field in span))
    hint = flags.flags(run_defaults()[0])[name].hint
    told = vit_jax.train("digits", data=(images, labels), fields={**small, name: of_python(hint, words)})
    in_shell = flags.read_words([f"--{name}", *words], flags.flags(run_defaults()[0]))[name]
    assert flat(vit_jax.load(told["folder"]).run)[name][0] == in_shell and told["step"] == 1


VIT = ViTConfig(image=8, patch=4, classes=5, width=12, depth=2, heads=3, hidden=20, eps=1e-12)
SIDE = LAYOUTS["huggingface@v4"].write_side(VIT, Facts())["config.json"]


def tensors(layout: str, config, prefix: str = "") -> dict[str, tuple[int, ...]]:
    return {
        prefix + name: shape for name, shape in rules.file_shapes(rules.narrow(LAYOUTS[layout].rows(config))).items()
    }


def decoder(prefix: str) -> dict[str, tuple[int, ...]]:
    return {f"{prefix}embed_tokens.weight": (4, 4), f"{prefix}layers.0.self_attn.q_proj.weight": (4, 4)}


TOWER = ViTConfig(
    image=8, patch=4, classes=0, width=12, depth=1, heads=3, hidden=20, eps=1e-5, stem_bias=False, pre_norm=True
)
LLAVA = {"model_type": "llava", "vision_config": LAYOUTS["huggingface-clip"].write_side(TOWER, Facts())["config.json"]}
OF_A_VIT = {"heads": 3, "eps": 1e-6, "activation": "gelu", "image": 8, "pool": "cls"}
BARE = dataclasses.replace(VIT, classes=0, layer_scale=1.0)
GAMMA = tensors("timm@deit3", BARE)
CASES = {  # tensors, config.json beside them, what the user states, words of the refusal
    "a tower inside a model": (
        tensors("huggingface-clip", TOWER, "vision_tower.") | decoder("language_model.model."), LLAVA, {},
        "only its tower",
    ),
    "a captioner's encoder": (
        tensors("huggingface@v4", dataclasses.replace(VIT, classes=0), "encoder.") | decoder("decoder."),
        {"model_type": "vision-encoder-decoder", "encoder": SIDE}, {}, "without GPT-2",
    ),
    "names of two layouts": (GAMMA, {}, {"sets": OF_A_VIT}, "names are also those of"),
    "a head of another kind": (
        tensors("timm", dataclasses.replace(BARE, layer_scale=0.0)) | {"head.mlp.0.weight": (8, 12)}, {},
        {"sets": OF_A_VIT, "layout": "timm"}, "has a head",
    ),
    "two sets of weights": (
        tensors("huggingface@v4", VIT, "student.") | tensors("huggingface@v4", VIT, "teacher."), SIDE, {},
        "several sets",
    ),
    "fields that nothing states": (tensors("huggingface@v4", VIT), {}, {}, "cannot tell"),
    "a file of another class": (tensors("huggingface@v4", VIT), SIDE, {"layout": "huggingface@v5"}, "not of hugg"),
}  # fmt: skip
ANSWERS = {"heads": "3", "eps": "1e-12", "activation": "gelu", "image": "8", "LABEL": "teacher"}


def write(folder: Path, shapes, config) -> str:
    save_file({name: np.ones(shape, np.float32) for name, shape in shapes.items()}, folder / "model.safetensors")
    if config:
        (folder / "config.json").write_text(json.dumps(config))
    return str(folder)


def remedies(error: UserError) -> list[tuple[str, list[str]]]:
    """The options of convert that an error names, (name, values) each, with the values that only the user knows."""
    found = []
    for span in re.findall(r"`([^`]*)`", str(error)):
        name, *words = span.split()
        if name == "fields":
            words = [f"{key}={ANSWERS.get(key)}" for key in (word.partition("=")[0] for word in words)]
        found.append((name, [ANSWERS.get(word, word) for word in words]))
    return [(name, words) for name, words in found if name in {*LOADS, "adapt"} and words and words != ["NAME"]]


def shell_words(stated: dict[str, Any]) -> list[str]:
    """Words of a command line with what a user states."""
    sets = [f"{key}={value}" for key, value in stated.get("sets", {}).items()]
    return [*(["--set", *sets] if sets else []), *(["--from", stated["layout"]] if "layout" in stated else [])]


@pytest.mark.parametrize("case", CASES)
def test_following_the_remedy_of_a_refusal_helps(case, tmp_path):
    """In the shell as it is told, and in Python where `load` has such an argument."""
    shapes, config, stated, words = CASES[case]
    path = write(tmp_path, shapes, config)

    def opened(*more: str) -> None:
        found = parser("inspect", "convert").parse_args([path, *shell_words(stated), *more])
        read(path, options(found)).source.close()

    with pytest.raises(UserError, match=words) as refused:
        opened()
    name, values = remedies(refused.value)[0]
    if name == "adapt":
        found = parser("", "convert").parse_args([path, "x", *shell_words(stated), "--adapt", *values])
        read(path, options(found)).source.close()
        return
    opened(f"--{name}", *values)
    given = {"fields": stated.get("sets", {}), "layout": stated.get("layout", "")}
    pairs = (value.partition("=") for value in values)
    told = {key: _literal(value) for key, _, value in pairs} if name == "fields" else values[0]
    given[name] = given[name] | told if name == "fields" else told
    vit_jax.load(path, **given)


DIALECTS = sorted({layout.dialect for layout in LAYOUTS.values()})


@pytest.mark.parametrize(
    "name", [f"{name}@none" for name in DIALECTS if not name.startswith(("vit-pytorch", "simple"))]
)
def test_a_version_that_is_none_is_answered_with_those_that_are(name):
    with pytest.raises(UserError) as refused:
        find(name, "to")
    ways = re.findall(r"`to ([^`]*)`", refused.value.remedy)
    assert ways and all(find(way, "to") for way in ways)


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=lambda layout: layout.name)
def test_a_config_beside_the_weights_is_asked_for_only_where_it_is_read(layout, tmp_path):
    error = MissingFields(str(tmp_path / "x.safetensors"), layout, ["heads"], {}, {})
    assert ("config.json beside" in error.remedy) == layout.reads_side_files
    assert ("`model NAME`" in error.remedy) == (layout.network is ViTConfig)
    (tmp_path / "config.json").touch()
    error = MissingFields(str(tmp_path / "x.safetensors"), layout, ["heads"], {}, {})
    assert "config.json beside" not in error.remedy and "`fields heads=...`" in error.remedy
