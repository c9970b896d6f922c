"""The generated pages of the docs site: public names, every option, presets, the help of commands, layouts."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import os
import re
import sys
import typing
from collections.abc import Callable, Iterable, Mapping
from importlib import import_module
from typing import Any

import vit_jax
from convert.__main__ import main as convert
from vit_jax.commands import cli
from vit_jax.config.flags import Flag, flags
from vit_jax.config.run import LoraConfig, OptimConfig, RunConfig
from vit_jax.models.networks import NETWORKS
from vit_jax.presets.table import PRESETS, preset
from vit_jax.presets.variants import VARIANTS
from vit_jax.tasks.table import TASKS

# What is shown of a class beside how it is made. A public name without an entry is shown by itself.
MEMBERS = {
    "ViT": ("__call__", "both", "capture", "encode"),
    "Transformer": ("__call__", "encode", "init_cache", "decode_step", "capture"),
    "Captioner": ("__call__", "encode", "init_cache", "decode_step", "capture"),
    "RunConfig": (),
}
# What `load` returns, by task: not made by name, but used by everyone.
LOADED = {
    "vit_jax.tasks.classify.use.Classifier": (
        "predict", "values", "logits", "features", "capture", "explain", "draw_attention",
    ),
    "vit_jax.tasks.translate.use.Translator": ("predict", "encode", "capture", "explain", "draw_attention"),
    "vit_jax.weights.incomplete.TextEncoder": ("encode",),
    "vit_jax.tasks.caption.use.Describer": ("predict", "capture", "explain", "draw_attention"),
}  # fmt: skip


def generated() -> dict[str, str]:
    """{place in the site: Markdown}."""
    return {
        "api.md": api(),
        "options/run.md": options(
            "Runs, optimizers and losses",
            "A run",
            {"": RunConfig, "optim.": OptimConfig, "lora.": LoraConfig}
            | {f"loss. ({name})": spec.loss for name, spec in TASKS.items()},
        ),
        "options/data.md": options(
            "Data and augmentation",
            "The data",
            {f"data. ({name})": spec.data for name, spec in TASKS.items()}
            | {f"augment. ({name})": spec.augment for name, spec in TASKS.items() if flags(spec.augment)},
        ),
        "options/networks.md": options(
            "Networks", "A network", {f"model. ({name})": network for name, network in NETWORKS.items()}
        ),
        "options/presets.md": presets(),
        "options/commands.md": commands(),
        "options/layouts.md": "# Layouts of weights\n\n" + block(printed(convert, "convert", "formats")),
    }


def api() -> str:
    """The public names, with mkdocstrings' directive for each."""
    lines = ["# Python", "", f"The {len(vit_jax.__all__) - 1} names of `import vit_jax`, and what `load` returns."]
    names = sorted(vit_jax._MODULES, key=lambda name: (not name.islower(), name.lower()))
    for name in names:
        lines += reference(f"vit_jax.{vit_jax._MODULES[name]}.{name}", f"vit_jax.{name}", MEMBERS.get(name, ()))
        if name.endswith("Config"):
            page = "run" if name == "RunConfig" else "networks"
            lines += ["", f"Its fields, with their ranges: [options](options/{page}.md)."]
    for path, members in LOADED.items():
        lines += reference(path, path.rpartition(".")[2], members)
    return "\n".join(lines) + "\n"


def reference(path: str, title: str, members: Iterable[str] = ()) -> list[str]:
    """mkdocstrings' directive for an object and some of its members, those that are there.

    Args:
        path: where it is defined: as vit_jax.train it would be the module of that name.
        title: its heading.
        members: names.
    """
    module, _, name = path.rpartition(".")
    found = [each for each in members if hasattr(getattr(import_module(module), name), each)]
    lines = ["", f"::: {path}", "    options:", f'      heading: "{title}"', f'      toc_label: "{title}"']
    return [*lines, f"      members: [{', '.join(found)}]" if found else "      members: false"]


def options(title: str, what: str, parts: Mapping[str, Any]) -> str:
    """A page of tables: a row for each field, with its values, default and help, as the classes state them.

    Args:
        title: of the page.
        what: that the fields are of.
        parts: {the prefix of the flags, and in brackets the task or network that has them: dataclass}. A class that
            several have gets one table.
    """
    lines = [
        f"# {title}", "",
        f"{what} has these fields, each of which is a flag of `python -m vit_jax.train` and a name in `fields` of "
        "Python, where `-` is written `_`. The default is that of the class; a preset may have another, which "
        "`PRESET --help` shows. *Resume*: the field may change when a run is resumed.",
    ]  # fmt: skip
    having: dict[tuple[str, Any], list[str]] = {}
    for key, cls in parts.items():
        prefix, _, owner = key.partition(" ")
        having.setdefault((prefix, cls), []).append(owner.strip("()"))
    for (prefix, cls), owners in having.items():
        whose = ", ".join(filter(None, owners))
        lines += ["", f"## `--{prefix}`{f' of {whose}' if whose else ''}" if prefix else "## The run itself", ""]
        lines += ["| flag | values | default | what it does | resume |", "|---|---|---|---|---|"]
        found = fields(cls)
        lines += [row(flag, found[name], prefix) for name, flag in flags(cls).items() if name in found]
    return "\n".join(lines) + "\n"


def fields(cls: Any, prefix: str = "") -> dict[str, dataclasses.Field[Any]]:
    """{flag: field} of a dataclass and its parts; of a run without its parts, which have tables of their own."""
    found: dict[str, dataclasses.Field[Any]] = {}
    hints = typing.get_type_hints(cls)
    for f in dataclasses.fields(cls):
        name = prefix + f.name.rstrip("_").replace("_", "-")
        if not dataclasses.is_dataclass(hints[f.name]):
            found[name] = f
        elif cls is not RunConfig:
            found |= fields(hints[f.name], f"{name}.")
    return found


def row(flag: Flag, field: dataclasses.Field[Any], prefix: str) -> str:
    """A row of a table of options."""
    name = f"--{prefix}{flag.name}"
    if field.default is not dataclasses.MISSING:
        default = shown(field.default)
    elif field.default_factory is not dataclasses.MISSING:
        default = shown(field.default_factory())
    else:
        default = "needed"
    resume = "yes" if field.metadata.get("execution") else ""
    cells = [f"`{name}`", values(flag.hint), default, plain(flag.help), resume]
    return "| " + " | ".join(cell.replace("|", r"\|") for cell in cells) + " |"


def plain(text: str) -> str:
    """A text of the program as Markdown that shows it as it is, on one line."""
    parts = " ".join(text.split()).split("`")
    return "`".join(part if i % 2 else re.sub(r"([*_<\[\\])", r"\\\1", part) for i, part in enumerate(parts))


def values(hint: Any) -> str:
    """The values of a type, in words."""
    if hint is bool:
        return "on, off (`--no-...`)"
    if typing.get_origin(hint) is typing.Literal:
        return ", ".join(f"`{each}`" for each in typing.get_args(hint))
    if arguments := typing.get_args(hint):
        if typing.get_origin(hint) is tuple:
            many = arguments[-1] is Ellipsis
            return f"any number of: {values(arguments[0])}" if many else f"{len(arguments)} of: {values(arguments[0])}"
        return " or ".join(dict.fromkeys(values(each) for each in arguments if each is not type(None)))
    return {int: "whole number", float: "number", str: "text"}.get(hint, str(hint))


def shown(value: Any) -> str:
    """A default, as it is typed."""
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, tuple):
        value = " ".join(map(str, value))
    return f"`{value}`" if value not in ("", None) else "none"


def presets() -> str:
    """What each preset is."""
    lines = ["# Presets", "", "`python -m vit_jax.train NAME` trains one; any flag after it replaces a field."]
    for name in (*PRESETS, *VARIANTS):
        found = preset(name)
        lines += ["", f"## `{name}`", "", plain(found.help or found.title)]
    return "\n".join(lines) + "\n"


def commands() -> str:
    """The help of each command, as it prints it."""
    lines = ["# Commands", ""]
    for name in cli.COMMANDS:
        run: Callable[[], int] = convert if name == "convert" else cli.main
        lines += [f"## vit-jax {name}", "", block(printed(run, "vit-jax", name, "--help")), ""]
    for name in ("inspect", "verify", "formats"):
        lines += [f"## vit-jax convert {name}", "", block(printed(convert, "convert", name, "--help")), ""]
    return "\n".join(lines)


def printed(run: Callable[[], int], *words: str) -> str:
    """What a command prints at these words."""
    out, before = io.StringIO(), sys.argv
    os.environ["COLUMNS"] = "100"
    sys.argv = [*words] if run is cli.main or words[0] == "convert" else [" ".join(words[:2]), *words[2:]]
    try:
        with contextlib.redirect_stdout(out), contextlib.suppress(SystemExit):
            run()
    finally:
        sys.argv = before
    return out.getvalue()


def block(text: str) -> str:
    """A block of plain text."""
    return f"```text\n{text.rstrip()}\n```\n"
