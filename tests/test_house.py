"""The house: what may import what (read from the source, nothing is run), and that each rule can fail."""

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[1]

# The order in which to read vit_jax: a file imports only earlier ones. A folder counts as the file of its name.
ORDER = [
    *(
        "errors",
        "hosts",
        "config",
        "specs",
        "synonyms",
        "flags",
        "presets",
        "runs",
        "limits",
        "backend",
        "division",
        "memory",
        "mfu",
    ),
    *("attention_core", "rotary", "layers", "stack", "decoder", "vit", "transformer", "resnet", "captioner", "models"),
    *("text", "data", "report", "augmentation", "muon", "optim", "lora", "decode"),
    *("tasks", "devices", "step", "histograms"),
    *("checkpoint", "interop", "weights", "starting", "teacher"),
    *("run_report", "training", "commands", "train", "evaluate", "predict", "__main__"),
]
SPECS = {f"vit_jax.tasks.{name}" for name in ("table", "spec", "image_spec", "preprocessing")}
JAX_FREE = ORDER[: ORDER.index("attention_core")]
MODELS = {"vit", "transformer", "resnet", "captioner"}
JOINS = "captioner"  # the one model that is made of others
JAX = {"jax", "jaxlib", "flax", "optax", "orbax"}
NEVER = {"torch", "torchvision", "torch_ref", "tensorflow"}
ONLY_WHEN_USED = {
    *("tensorflow_datasets", "array_record", "tensorboard", "wandb"),
    *("tokenizers", "sentencepiece", "sacrebleu", "h5py"),
}
# What the other two packages may import: convert only numpy, and torch_ref nothing of the code that it is to check.
FRAMEWORKS = JAX | {"torch", "torchvision", "torch_ref", "tensorflow", "jax2onnx", "onnx", "onnx_ir", "onnxruntime"}
CONVERT_READS = {"errors", "config", "specs", "flags", "presets", "runs"}
LAZY = ("convert.verify", "convert.write.program")  # they import frameworks, inside functions
# Who loads a module that a config names as text, or (vit_jax, its cli, the containers) one of their own files.
LOADERS = (
    "vit_jax.models",
    "vit_jax.tasks.computed",
    "torch_ref",
    "torch_ref.weights",
    "convert.verify",
    "vit_jax",
    "vit_jax.commands.cli",
    "convert.containers.kinds",
)
# Where networks and tasks may be named besides their own files: a part of two of them, tables, public names, presets,
# dialects, and the libraries that verify builds networks with.
NAMED_IN = (
    *(
        "vit_jax",
        "vit_jax.decoder",
        "vit_jax.presets.images",
        "vit_jax.presets.text",
        "vit_jax.presets.given",
        "vit_jax.config",
        "vit_jax.config.networks",
        "vit_jax.tasks.table",
        "vit_jax.config.sizes",
    ),
    *("convert.dialects", "convert.adapt.vit", "convert.verify.libraries"),
)
# The order of one tensor's way through convert; a file imports only from its own room and from those before it.
WAY = [
    "containers",
    "rules",
    "layout",
    "dialects",
    "recognise",
    "adapt",
    "optimizer",
    "plan",
    "write",
    "verify",
    "commands",
    "__main__",
]
TWINS = [
    "rotary",
    "layers",
    "decoder",
    "vit",
    "transformer",
    "captioner",
    "decode",
    "weights",
    "",
    "lion",
    "muon",
    "optim",
    "tasks",
    "trainer",
    "evaluation",
    "train",
]  # torch_ref's reading order; the package itself only fetches names when they are used
TWIN_READS = {
    "decode": {"errors", "config", "text"},
    "tasks": {"errors", "config", "specs", "text", "data"},
    "trainer": {"errors", "config", "runs"},
    "evaluation": {"errors", "data"},
    "train": {"errors", "config", "specs", "synonyms", "flags", "presets", "runs", "memory", "text", "data"},
}
NO_NAMES = {"utils", "util", "helpers", "helper", "common", "misc"}


COMPUTED = "<computed>"  # in place of the name of a module that is not written down where it is imported


class Import(NamedTuple):
    name: str  # the module that is imported, in full: vit_jax.data.folder
    at_load: bool  # when the importing file is imported, not when one of its functions runs


def imports(tree: ast.Module, module: str, is_package: bool, modules: set[str]) -> Iterator[Import]:
    """Every import of a file, also those inside functions and by importlib.import_module("...")."""
    package = module if is_package else module.rpartition(".")[0]

    def resolve(name: str, level: int) -> str:
        if not level:
            return name
        base = package.split(".")[: len(package.split(".")) - level + 1]
        return ".".join([*base, *filter(None, [name])])

    def walk(node: ast.AST, at_load: bool) -> Iterator[Import]:
        if isinstance(node, ast.Import):
            yield from (Import(alias.name, at_load) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = resolve(node.module or "", node.level)
            for alias in node.names:  # a name of a package is a module of it, or else something that its __init__ holds
                if (base, alias.name) == ("vit_jax", "__version__"):  # loads nothing
                    continue
                yield Import(f"{base}.{alias.name}" if f"{base}.{alias.name}" in modules else base, at_load)
        elif isinstance(node, ast.Call) and ast.unparse(node.func).rpartition(".")[2] in (
            "import_module",
            "__import__",
        ):
            for argument in node.args[:1]:
                name = argument.value if isinstance(argument, ast.Constant) else None
                yield Import(
                    resolve(name.lstrip("."), len(name) - len(name.lstrip("."))) if isinstance(name, str) else COMPUTED,
                    at_load,
                )
        if isinstance(node, ast.If) and ast.unparse(node.test).rpartition(".")[2] == "TYPE_CHECKING":
            yield from (found for child in node.body for found in walk(child, False))
            yield from (found for child in node.orelse for found in walk(child, at_load))
            return
        inner = at_load and not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        for child in ast.iter_child_nodes(node):
            yield from walk(child, inner)

    return walk(tree, True)


def read(root: Path, package: str = "vit_jax") -> dict[str, list[Import]]:
    """{module: its imports} of a package under a root."""
    files: dict[str, Path] = {}
    for path in sorted(path for name in ("vit_jax", package) for path in (root / name).rglob("*.py")):
        parts = path.relative_to(root).with_suffix("").parts
        files[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return {
        module: list(
            imports(
                ast.parse(path.read_text(encoding="utf-8"), str(path)), module, path.name == "__init__.py", set(files)
            )
        )
        for module, path in files.items()
        if module.partition(".")[0] == package
    }


def computing_modules(root: Path, folder: str) -> list[str]:
    """The modules of vit_jax that files of a folder name as text, `module:class`, for others to load."""
    found = set()
    for path in (root / "vit_jax" / folder).rglob("*.py"):
        texts = (getattr(node, "value", None) for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))))
        found |= {text.partition(":")[0] for text in texts if re.fullmatch(r"vit_jax[\w.]*:[A-Z]\w*", str(text))}
    return sorted(found)


def names_of_networks_and_tasks() -> tuple[set[str], set[str], set[str]]:
    """(classes of networks and tasks, the texts that name them, the files that are their own)."""
    from vit_jax.config import NETWORKS
    from vit_jax.tasks.table import TASKS

    networks = NETWORKS.values()
    loaded = [path for network in networks for path in (network.computes, network.twin) if path]
    loaded += [spec.computes for spec in TASKS.values()]
    classes = {each.__name__ for each in (*networks, *TASKS.values())} | {path.partition(":")[2] for path in loaded}
    rooms = {network.__module__ for network in networks} | {path.partition(":")[0] for path in loaded}
    rooms |= {spec.__module__.rpartition(".")[0] for spec in TASKS.values()}  # the folders of tasks
    return classes, {*NETWORKS, *(network.name for network in networks), *TASKS}, rooms


def told_apart(root: Path) -> list[str]:
    """Where a file that is no room of a network or a task names one: it would have to be edited for the next."""
    classes, texts, rooms = names_of_networks_and_tasks()
    found = []
    for package in ("vit_jax", "convert"):
        for path in sorted((root / package).rglob("*.py")):
            parts = path.relative_to(root).with_suffix("").parts
            module = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
            if (
                module in NAMED_IN
                or module in rooms
                or module.rpartition(".")[0] in rooms
                or module.startswith(("convert.dialects.", "convert.verify.libraries."))
            ):
                continue
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"), str(path))):
                said = {getattr(node, "id", None), getattr(node, "attr", None), getattr(node, "name", None)} & classes
                if isinstance(node, ast.Constant) and isinstance(node.value, str):
                    said = {node.value} & texts or set(
                        re.findall(r"\w+", node.value) if re.fullmatch(r"[\w\[\]| .,]{1,200}", node.value) else ()
                    ) & classes
                found += [
                    f"{module}:{getattr(node, 'lineno', 0)}: names {name}; ask its config or its spec"
                    for name in sorted(said)
                ]
    return found


def room(module: str) -> str:
    """What a module counts as in ORDER: vit_jax.data.folder is data; the package itself is empty.

    What of the tasks is free of jax, and read by what comes before them, is a room of its own, specs.
    """
    if module in SPECS or re.fullmatch(r"vit_jax\.tasks\.\w+\.spec", module):
        return "specs"
    return module.partition(".")[2].partition(".")[0]


def violations(root: Path) -> list[str]:
    """What breaks the house rules under a root; empty when all is well."""
    found = []
    graph = read(root)
    for loader, folder in (("vit_jax.models", "config"), ("vit_jax.tasks.computed", "tasks")):
        if loader in graph:  # it imports what configs or specs name
            graph[loader] += [Import(name, False) for name in computing_modules(root, folder)]
    for module, its in graph.items():
        here = room(module)
        if module not in LOADERS and any(name == COMPUTED for name, _ in its):
            found.append(
                f"{module}: loads a module by a name that it puts together; "
                "only models and tasks.computed load what a config or a spec names"
            )
        if NO_NAMES & set(module.split(".")):
            found.append(f"{module}: name it after its one idea")
        if here and here not in ORDER:
            found.append(f"{module}: not in the reading order; give it a place in ORDER")
            continue
        for name, at_load in its:
            top = name.partition(".")[0]
            if top in NEVER:
                found.append(f"{module}: imports {name}, which vit_jax never does")
            if top in ONLY_WHEN_USED and at_load:
                found.append(f"{module}: imports {name} at load; do so inside the function that needs it")
            if top in JAX and at_load and (here in JAX_FREE or not here):
                found.append(f"{module}: imports {name} at load; it is to be free of jax")
            if (
                top == "convert"
                and (here != "interop" or name.startswith("convert.verify"))
                and (module, name) != ("vit_jax.commands.cli", "convert.__main__")
            ):
                found.append(
                    f"{module}: imports {name}; vit_jax uses convert through interop alone "
                    "(and hands on to its door), and never its verify"
                )
            if top != "vit_jax":
                continue
            there = room(name)
            if not here:
                if at_load:
                    found.append(f"{module}: imports {name} at load; the package only fetches names when they are used")
            elif not there:
                found.append(f"{module}: imports from vit_jax itself; name the file that holds it")
            elif here in MODELS - {JOINS} and there in MODELS and here != there:
                found.append(f"{module}: imports {name}; models do not import each other")
            elif here != there and there in ORDER and ORDER.index(there) > ORDER.index(here):
                found.append(f"{module}: imports {name}, which comes after it in the reading order")
    return found + circle(graph) + convert_violations(root) + twin_violations(root)


def circle(graph: dict[str, list[Import]]) -> list[str]:
    """A circle of imports between the files of a package, if there is one."""
    edges = {
        module: {name for name, _ in its if name in graph and name != module}
        for module, its in graph.items()
        if room(module)
    }
    try:
        TopologicalSorter(edges).prepare()
    except CycleError as error:
        return ["a circle: " + " -> ".join(reversed(error.args[1]))]
    return []


def convert_violations(root: Path) -> list[str]:
    """What breaks the rules of convert: numpy alone, of vit_jax what is free of jax, and no way back."""
    found = []
    graph = read(root, "convert")
    for module, its in graph.items():
        here = room(module)
        if here and here not in WAY:
            found.append(f"{module}: has no place on a tensor's way; give it one in WAY")
            continue
        for name, at_load in its:
            if here and name.partition(".")[0] == "convert" and WAY.index(room(name) or here) > WAY.index(here):
                found.append(f"{module}: imports {name}, which comes after it on a tensor's way")
            top = name.partition(".")[0]
            if name == COMPUTED and not module.startswith("convert.verify") and module not in LOADERS:
                found.append(
                    f"{module}: loads a module by a name that it puts together; only verify loads what a config names"
                )
            if top in FRAMEWORKS and (at_load or not module.startswith(LAZY)):
                found.append(
                    f"{module}: imports {name}; "
                    "convert is numpy, and only verify and write/program use a framework, inside functions"
                )
            if top == "vit_jax" and room(name) not in CONVERT_READS and (at_load or not module.startswith(LAZY)):
                found.append(f"{module}: imports {name}; of vit_jax convert reads {', '.join(sorted(CONVERT_READS))}")
    return found + circle(graph)


def twin_violations(root: Path) -> list[str]:
    """What breaks the rules of torch_ref: nothing that computes is shared with vit_jax."""
    found = []
    for module, its in read(root, "torch_ref").items():
        here = room(module)
        if here not in TWINS:
            found.append(f"{module}: not in the reading order; give it a place in TWINS")
            continue
        for name, _ in its:
            top, there = name.partition(".")[0], room(name)
            if name == COMPUTED and module not in LOADERS:
                found.append(
                    f"{module}: loads a module by a name that it puts together; "
                    "only torch_ref itself loads what a config names"
                )
            if top in JAX:
                found.append(f"{module}: imports {name}, which torch_ref never does")
            if top == "vit_jax" and there not in TWIN_READS.get(here, {"errors", "config"}):
                found.append(f"{module}: imports {name}; what both sides share cannot be checked by comparing them")
            if top == "convert" and here not in ("weights", "trainer"):
                found.append(f"{module}: imports {name}; a model knows no files")
            if top == "torch_ref" and here != there and (there not in TWINS or TWINS.index(there) > TWINS.index(here)):
                found.append(f"{module}: imports {name}, which comes after it in the reading order")
            if top == "torch_ref" and here in MODELS - {JOINS} and there in MODELS and here != there:
                found.append(f"{module}: imports {name}; models do not import each other")
    return found


def test_the_house_is_in_order():
    assert all(read(ROOT, package) for package in ("vit_jax", "convert", "torch_ref")), "no source found"
    assert not violations(ROOT)


def test_networks_and_tasks_are_named_in_their_own_rooms_alone():
    assert not told_apart(ROOT)


@pytest.mark.parametrize(
    "source",
    [
        "from vit_jax.config import ViTConfig",
        "def f(c: 'TransformerConfig'): pass",
        "import vit_jax\nx = vit_jax.vit.ViT",
        "if task == 'classify': pass",
        "x = isinstance(y, Translate)",
        "names = {'ViT': 1}",
        "x: dict[str, 'ViTConfig | TransformerConfig'] = {}",
        "def f(kind='transformer'): pass",
    ],
)
def test_naming_one_elsewhere_is_found(tmp_path, source):
    plant(
        tmp_path,
        {
            "vit_jax/step.py": source,
            "convert/recognise/reading.py": source,
            "vit_jax/tasks/classify/draw.py": source,
            "convert/dialects/timm.py": source,
        },
    )
    found = told_apart(tmp_path)
    assert {line.partition(":")[0] for line in found} == {"vit_jax.step", "convert.recognise.reading"}, found


def test_no_room_is_named_after_nothing():
    for package in ("vit_jax", "convert", "torch_ref", "tests", "benchmarks"):
        assert not [p for p in (ROOT / package).rglob("*.py") if p.stem in NO_NAMES or p.parent.name in NO_NAMES]


GOOD = {
    "vit_jax/__init__.py": "TYPE_CHECKING = False\nif TYPE_CHECKING:\n    from .vit import ViT\n"
    "def __getattr__(name):\n    from . import vit\n",
    "vit_jax/errors.py": "class UserError(Exception): pass",
    "vit_jax/config.py": "import numpy as np\nfrom .errors import UserError",
    "vit_jax/backend.py": "def configure_jax():\n    import jax",
    "vit_jax/layers.py": "import jax",
    "vit_jax/vit.py": "from flax import nnx\nfrom . import layers\nfrom .config import ViTConfig",
    "vit_jax/data/__init__.py": "from .folder import read\nfrom ..errors import UserError",
    "vit_jax/data/folder.py": "from vit_jax.config import ViTConfig\ndef f():\n    import tensorflow_datasets",
    "vit_jax/models.py": "import importlib\ndef network(config):\n    return importlib.import_module(config.computes)",
    "vit_jax/captioner.py": "from .transformer import Decoder\nfrom .vit import ViT",
    "torch_ref/captioner.py": "from .vit import ViT",
    "vit_jax/tasks/base.py": "import jax\nfrom ..config import RunConfig",
    "vit_jax/report/curves.py": "def draw():\n    import matplotlib",
    "vit_jax/interop.py": "def load():\n    from convert import engine",
    "vit_jax/train.py": "from . import __version__\n"
    "def main():\n    from .data.folder import read\n    from .vit import ViT",
    "convert/__init__.py": "import numpy",
    "convert/rules.py": "import numpy as np\nfrom vit_jax.errors import UserError\nfrom vit_jax.config import nearest",
    "convert/verify.py": "def verify():\n    import torch_ref\n    from vit_jax.vit import ViT",
    "torch_ref/weights.py": "import torch\nfrom convert import rules\n"
    "from vit_jax.config import ViTConfig\nfrom .vit import ViT",
    "torch_ref/layers.py": "import torch",
    "torch_ref/vit.py": "from .layers import Attention\nfrom vit_jax.config import ViTConfig",
    "torch_ref/transformer.py": "from .layers import Attention",
    "torch_ref/train.py": "from . import build\nfrom vit_jax.data import batches\nfrom vit_jax.text import BOS",
}
BAD = {
    "later file": (
        "vit_jax/errors.py",
        "from .config import ViTConfig",
        "vit_jax.errors: imports vit_jax.config, which comes after",
    ),
    "later file, as a module": (
        "vit_jax/errors.py",
        "import vit_jax.vit as v",
        "vit_jax.errors: imports vit_jax.vit, which comes after",
    ),
    "later file, from the package": (
        "vit_jax/layers.py",
        "from . import vit",
        "vit_jax.layers: imports vit_jax.vit, which comes after",
    ),
    "later file, in a function": (
        "vit_jax/layers.py",
        "def f():\n    from .train import main",
        "vit_jax.layers: imports vit_jax.train, which",
    ),
    "later file, for types": (
        "vit_jax/layers.py",
        "import typing\nif typing.TYPE_CHECKING:\n    from .vit import ViT",
        "imports vit_jax.vit, which",
    ),
    "later file, by name": (
        "vit_jax/layers.py",
        "import importlib\nimportlib.import_module('.vit', __package__)",
        "imports vit_jax.vit, which",
    ),
    "later file, out of a folder": (
        "vit_jax/data/folder.py",
        "from ..train import main",
        "vit_jax.data.folder: imports vit_jax.train, which",
    ),
    "later folder": (
        "vit_jax/vit.py",
        "from .data.folder import read",
        "vit_jax.vit: imports vit_jax.data.folder, which comes after",
    ),
    "the package itself": (
        "vit_jax/train.py",
        "from vit_jax import build",
        "vit_jax.train: imports from vit_jax itself",
    ),
    "a model made of a captioner": (
        "vit_jax/vit.py",
        "def f():\n    from .captioner import Captioner",
        "models do not import each other",
    ),
    "two models": ("vit_jax/transformer.py", "def f():\n    from .vit import ViT", "models do not import each other"),
    "jax in a jax-free file": (
        "vit_jax/config.py",
        "import jax.numpy as jnp",
        "vit_jax.config: imports jax.numpy at load",
    ),
    "flax in a jax-free class": (
        "vit_jax/runs.py",
        "class A:\n    from flax import nnx",
        "vit_jax.runs: imports flax at load",
    ),
    "jax in a try": (
        "vit_jax/backend.py",
        "try:\n    import jax\nexcept ImportError:\n    pass",
        "vit_jax.backend: imports jax at load",
    ),
    "jax in the package": ("vit_jax/__init__.py", "import jax", "vit_jax: imports jax at load"),
    "work in the package": ("vit_jax/__init__.py", "from .vit import ViT", "vit_jax: imports vit_jax.vit at load"),
    "torch": (
        "vit_jax/interop.py",
        "def f():\n    from torch import nn",
        "vit_jax.interop: imports torch, which vit_jax never does",
    ),
    "torch_ref": ("vit_jax/interop.py", "import torch_ref.vit", "imports torch_ref.vit, which vit_jax never does"),
    "tfds at load": (
        "vit_jax/data/folder.py",
        "import tensorflow_datasets as tfds",
        "imports tensorflow_datasets at load",
    ),
    "convert elsewhere": (
        "vit_jax/train.py",
        "def f():\n    import convert.rules",
        "vit_jax uses convert through interop alone",
    ),
    "convert.verify": (
        "vit_jax/interop.py",
        "def f():\n    from convert.verify import compare",
        "and never its verify",
    ),
    "a config's module": (
        "vit_jax/step.py",
        "import importlib\ndef f(config):\n    return importlib.import_module(config.computes)",
        "vit_jax.step: loads a module by a name",
    ),
    "a config's module before its loader": (
        "vit_jax/config.py",
        "from importlib import import_module\nimport_module('.' + 'vit')",
        "vit_jax.config: loads a module by",
    ),
    "a config's module in convert": (
        "convert/rules.py",
        "import importlib\ndef f(config):\n    return importlib.import_module(config.twin)",
        "convert.rules: loads a module",
    ),
    "a config's module in a twin": (
        "torch_ref/train.py",
        "import importlib\nimportlib.import_module(name())",
        "torch_ref.train: loads a module by a name",
    ),
    "a config of what comes later": (
        "vit_jax/config/networks.py",
        "ROW = 'vit_jax.train:Loop'",
        "vit_jax.models: imports vit_jax.train, which comes after",
    ),
    "a task in the report": (
        "vit_jax/report/curves.py",
        "from ..tasks.base import Task",
        "vit_jax.report.curves: imports vit_jax.tasks.base, which",
    ),
    "the step in a task": (
        "vit_jax/tasks/base.py",
        "def f():\n    from ..step import Engine",
        "vit_jax.tasks.base: imports vit_jax.step, which comes",
    ),
    "a door in a task": (
        "vit_jax/tasks/base.py",
        "def f():\n    from ..predict import main",
        "vit_jax.tasks.base: imports vit_jax.predict, which",
    ),
    "a task in a jax-free file": (
        "vit_jax/presets/text.py",
        "def f():\n    from ..tasks.base import Task",
        "vit_jax.presets.text: imports vit_jax.tasks",
    ),
    "a circle in a folder": ("vit_jax/data/folder.py", "from . import read", "a circle: vit_jax.data"),
    "a file without a place": ("vit_jax/extra.py", "", "vit_jax.extra: not in the reading order"),
    "a folder without a place": ("vit_jax/extra/part.py", "", "vit_jax.extra.part: not in the reading order"),
    "a way back in convert": (
        "convert/rules.py",
        "def f():\n    from .layout import Layout",
        "convert.rules: imports convert.layout, which comes after",
    ),
    "a room without a place in convert": ("convert/extra.py", "", "convert.extra: has no place on a tensor's way"),
    "torch in convert": (
        "convert/rules.py",
        "def f():\n    import torch",
        "convert.rules: imports torch; convert is numpy",
    ),
    "jax in verify, at load": ("convert/verify.py", "import jax", "convert.verify: imports jax; convert is numpy"),
    "a model in convert": (
        "convert/rules.py",
        "from vit_jax.vit import ViT",
        "convert.rules: imports vit_jax.vit; of vit_jax convert reads",
    ),
    "jax in torch_ref": (
        "torch_ref/train.py",
        "def f():\n    import jax",
        "torch_ref.train: imports jax, which torch_ref never does",
    ),
    "a shared formula": (
        "torch_ref/vit.py",
        "from vit_jax.vit import sincos2d",
        "torch_ref.vit: imports vit_jax.vit; what both sides share",
    ),
    "a shared optimizer": (
        "torch_ref/train.py",
        "from vit_jax.optim import momentum",
        "torch_ref.train: imports vit_jax.optim; what both sides share",
    ),
    "data in a twin": (
        "torch_ref/vit.py",
        "from vit_jax.data import batches",
        "torch_ref.vit: imports vit_jax.data; what both sides share",
    ),
    "files in a twin": (
        "torch_ref/vit.py",
        "from convert import rules",
        "torch_ref.vit: imports convert; a model knows no files",
    ),
    "two twins": (
        "torch_ref/transformer.py",
        "from .vit import ViT",
        "torch_ref.transformer: imports torch_ref.vit; models do not import each other",
    ),
    "a later twin": (
        "torch_ref/layers.py",
        "from .vit import ViT",
        "torch_ref.layers: imports torch_ref.vit, which comes after it",
    ),
    "a twin without a place": ("torch_ref/extra.py", "", "torch_ref.extra: not in the reading order"),
    "a name that says nothing": ("vit_jax/data/utils.py", "", "vit_jax.data.utils: name it after its one idea"),
}


def plant(root: Path, files: dict[str, str]) -> Path:
    for name, source in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(source, encoding="utf-8")
    return root


def test_a_good_house_passes(tmp_path):
    assert not violations(plant(tmp_path, GOOD))


@pytest.mark.parametrize("case", BAD)
def test_each_rule_can_fail(tmp_path, case):
    file, source, expected = BAD[case]
    found = violations(plant(tmp_path, {**GOOD, file: source}))
    assert any(expected in line for line in found), found


def test_jax_free_files_load_no_jax():
    """What the source promises, seen in a real process."""
    modules = [module for module in read(ROOT) if room(module) in JAX_FREE]
    command = f"import sys, {', '.join(modules)}; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", command], capture_output=True, text=True, check=True).stdout.split()
    assert not JAX & set(loaded)
