"""What messages name exists: flags, layouts, fields, commands, functions, files, extras; and following them helps.

The texts are all strings in the code of vit_jax and convert but docstrings: help and messages alike.
"""

from __future__ import annotations

import ast
import dataclasses
import functools
import importlib.util
import json
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from safetensors.numpy import save_file

import vit_jax
from convert import adapt, rules
from convert.commands.arguments import PURPOSE, parser
from convert.dialects import LAYOUTS
from convert.layout import Facts
from convert.recognise.config import Untold
from convert.recognise.layouts import extras, find
from convert.recognise.preprocessing import SETTABLE
from convert.recognise.reading import Options, read
from convert.write import into_onnx_folder, into_transformers_js
from vit_jax.commands import cli, evaluate, plan, predict, sheet, sweep, train
from vit_jax.config import flags
from vit_jax.config.dotted import leaves
from vit_jax.config.run import RunConfig
from vit_jax.errors import Option, Text, UserError
from vit_jax.models.networks import NETWORKS
from vit_jax.models.sizes import is_sized
from vit_jax.models.vit_config import ViTConfig
from vit_jax.presets.table import PRESETS, preset
from vit_jax.reports import command, compare

ROOT = Path(__file__).parents[1]
# Flags of XLA, one that has no parser, and a word for any.
FOREIGN = {
    *("--xla_force_host_platform_device_count", "--xla_cpu_experimental_ynn_fusion_type", "--version", "--field"),
    "--ignore-scripts",  # of npm
}
FOLDERS = {into_onnx_folder.NAME, into_transformers_js.NAME}  # of programs, which --to takes beside layouts
OTHERS = {"zero_to_fp32.py", "perfetto_trace.json", "metadata.jsonl"}  # files that other programs write
GAP = "{}"  # what stands in a text for a value


class Named(NamedTuple):
    """A text of the code, or an Option: where it stands, and what it says."""

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


def texts() -> Iterator[Named]:
    """All texts of the code but docstrings, with GAP for each value."""
    for file, tree in trees().items():
        inside = {id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in node.values}
        documents = {
            id(node.body[0].value)
            for node in ast.walk(tree)
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and isinstance(node.body[0], ast.Expr)
        }
        for node in ast.walk(tree):
            is_text = isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Constant) and type(node.value) is str)
            if is_text and id(node) not in inside | documents:
                yield Named(f"{file}:{node.lineno}", _text(node))


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
def run_flags() -> set[str]:
    """The flags of all commands of vit_jax."""
    fields = dataclasses.fields(RunConfig)
    runs = [preset(name).run for name in PRESETS]
    training = [train.Options(**{f.name: getattr(run, f.name) for f in fields}) for run in runs]
    others = [each.Options for each in (evaluate, predict, command, compare, sheet, sweep, plan)]
    names = {name for each in (*training, *others) for name in flags.flags(each)}
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


def test_every_option_of_convert_that_a_message_names_is_one():
    strange = {f"{place}: {args[0]}" for place, args in calls("Option") if args and GAP not in args[0]} - {
        f"{place}: {args[0]}" for place, args in calls("Option") if args and f"--{args[0]}" in convert_flags()
    }
    assert not strange


def test_every_value_that_a_message_gives_to_an_option_is_one():
    fields = {*SETTABLE, *(name for network in NETWORKS.values() for name in (*leaves(network), *extras(network)))}
    for place, (name, *values) in ((place, args) for place, args in calls("Option") if args):
        for value in values:
            if GAP in value or value in ("NAME", "LABEL", "N"):
                continue
            if name == "adapt":
                adapt.operation(value)
            elif name in ("from", "to") and value not in FOLDERS:
                find(value, name)
            elif name == "set":
                assert value.partition("=")[0] in fields, f"{place}: --set {value}"


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
ANSWERS = {"heads": 3, "eps": 1e-12, "activation": "gelu", "image": 8, "LABEL": "teacher"}


def write(folder: Path, shapes, config) -> str:
    save_file({name: np.ones(shape, np.float32) for name, shape in shapes.items()}, folder / "model.safetensors")
    if config:
        (folder / "config.json").write_text(json.dumps(config))
    return str(folder)


def followed(stated: dict, option: Option) -> dict:
    """What a user states who follows an option of a remedy, with the values that only the user knows."""
    value = option.values[0] if option.values else ""
    if option.name == "set":
        names = [each.partition("=")[0] for each in option.values]
        return {**stated, "sets": {**stated.get("sets", {}), **{name: ANSWERS[name] for name in names}}}
    key = {"from": "layout", "key": "key", "adapt": "headless"}[option.name]
    return {**stated, key: value == "head=drop" or ANSWERS.get(value, value)}


@pytest.mark.parametrize("case", CASES)
def test_following_the_remedy_of_a_refusal_helps(case, tmp_path):
    shapes, config, stated, words = CASES[case]
    path = write(tmp_path, shapes, config)
    with pytest.raises(UserError, match=words) as refused:
        read(path, Options(**stated))
    said = Text(refused.value.fault, refused.value.remedy)
    ways = [
        piece for piece in said.pieces if isinstance(piece, Option) and piece.name in ("set", "from", "key", "adapt")
    ]
    first = next(way for way in ways if way.values and way.values != ("NAME",))
    read(path, Options(**followed(stated, first))).source.close()


DIALECTS = sorted({layout.dialect for layout in LAYOUTS.values()})


@pytest.mark.parametrize(
    "name", [f"{name}@none" for name in DIALECTS if not name.startswith(("vit-pytorch", "simple"))]
)
def test_a_version_that_is_none_is_answered_with_those_that_are(name):
    with pytest.raises(UserError) as refused:
        find(name, "to")
    options = [piece for piece in Text(refused.value.remedy).pieces if isinstance(piece, Option)]
    assert options and all(find(option.values[0], "to") for option in options)


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=lambda layout: layout.name)
def test_a_config_beside_the_weights_is_asked_for_only_where_it_is_read(layout, tmp_path):
    error = Untold(str(tmp_path / "x.safetensors"), layout, ["heads"], {}, {})
    assert ("config.json beside" in error.remedy) == layout.reads_side_files
    assert ("--model NAME" in error.remedy) == (layout.network is ViTConfig)
    (tmp_path / "config.json").touch()
    error = Untold(str(tmp_path / "x.safetensors"), layout, ["heads"], {}, {})
    assert "config.json beside" not in error.remedy and "--set heads=..." in error.remedy
