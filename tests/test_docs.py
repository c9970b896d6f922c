"""The pages speak of what is there: every path, every name, and every command of README and docs works."""

import ast
import dataclasses
import functools
import importlib.util
import inspect
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

import vit_jax

ROOT = Path(__file__).parents[1]
PAGES = ("docs/architecture.md", "CONTRIBUTING.md")
BASES = ("", "vit_jax")  # a page may call a file by its place in its room
FREE = {"NAME", "runs/NAME/", "__init__.py", "[B, h, w, C]"}  # placeholders, shapes


def without_blocks(text: str) -> str:
    """The text without what stands between fences."""
    return re.sub(r"```.*?```", "", text, flags=re.S)


def code(text: str) -> list[str]:
    """What stands in backticks."""
    return re.findall(r"`([^`\n]+)`", without_blocks(text))


def is_path(span: str) -> bool:
    return bool(re.fullmatch(r"[\w./-]+", span)) and ("/" in span or span.endswith((".py", ".md")))


@functools.cache
def sources() -> list[Path]:
    return [
        p
        for room in ("vit_jax", "convert", "torch_ref", "tests")
        for p in (ROOT / room).rglob("*.py")
        if p.name != Path(__file__).name
    ]


@functools.cache
def known_words() -> set[str]:
    texts = [*sources(), ROOT / "Makefile", ROOT / "pyproject.toml"]
    return {word for path in texts for word in re.findall(r"\w+", path.read_text(encoding="utf-8"))}


class Defined(NamedTuple):
    """A file, class or function of the sources."""

    path: Path
    name: str
    docstring: str
    arguments: set[str]
    members: set[str]  # none of a function


@functools.cache
def definitions() -> list[Defined]:
    found = []
    for path in sources():
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
                named = () if isinstance(node, ast.FunctionDef) else node.body
                members = {getattr(n, "name", None) or getattr(getattr(n, "target", None), "id", "") for n in named}
                own = set() if isinstance(node, ast.Module) else arguments(node)
                name, document = getattr(node, "name", path.stem), ast.get_docstring(node) or ""
                found.append(Defined(path, name, document, own, members - {""}))
    return found


@functools.cache
def members() -> dict[str, set[str]]:
    """{class or file: what it has} over all sources."""
    found: dict[str, set[str]] = {}
    for each in definitions():
        if each.members:
            found.setdefault(each.name, set()).update(each.members)
    return found


def absent(text: str) -> list[str]:
    """The paths and names in a page that are not in the tree."""
    words, owned, found = known_words(), members(), []
    for span in code(text):
        if span in FREE or "NAME" in span:
            continue
        if (ROOT / span.replace(".", "/")).exists() or (ROOT / f"{span.replace('.', '/')}.py").exists():
            continue
        if is_path(span):
            found += [span] * (not any((ROOT / base / span).exists() for base in BASES))
        elif re.fullmatch(r"\w+\.\w+", span) and span.partition(".")[0] in owned:
            owner, _, name = span.partition(".")
            found += [span] * (name not in owned[owner])
        else:
            found += [span] * (not set(re.findall(r"[A-Za-z_]\w*", span)) <= words)
    return found


@pytest.mark.parametrize("page", PAGES)
def test_every_path_and_name_in_a_page_is_in_the_tree(page):
    text = (ROOT / page).read_text(encoding="utf-8")
    assert len(code(text)) > 25
    assert not absent(text)
    links = re.findall(r"\]\((?!http)([^)#]+)\)", without_blocks(text))
    assert all((ROOT / page).parent.joinpath(link).exists() for link in links)


ELSEWHERE = {"flax", "clip", "big_vision"}  # folders of other libraries, of whose files ours speak


@functools.cache
def endings() -> set[str]:
    """All that a path to one of our files may be called: its last part, its last two, and so on."""
    paths = (path.relative_to(ROOT) for path in (*sources(), *ROOT.glob("benchmarks/*.py")))
    return {"/".join(path.parts[i:]) for path in paths for i in range(len(path.parts))}


def stale(text: str) -> list[str]:
    """The files, such as files/metrics.py, and names in them, such as files.metrics.RESERVED_METRICS in backticks, of
    which a docstring or comment speaks and that are not in the tree.
    """
    said = {*re.findall(r"(?<![\w/.-])((?:\w+/)+\w+\.py)\b", text)}
    found = sorted(path for path in said - endings() if path.split("/")[0] not in ELSEWHERE)
    for room, file in re.findall(r"`(?:vit_jax\.)?(\w+)\.(\w+)\.\w+`", text):
        folder = ROOT / "vit_jax" / room
        found += [f"{room}.{file}"] * (
            folder.is_dir() and not ((folder / file).is_dir() or (folder / f"{file}.py").exists())
        )
    return found


def test_docstrings_and_comments_speak_of_files_that_there_are():
    assert stale("report/kept.py, figures/parts.py, `runs.log.NAME`, `files.metrics.NAME`") == [
        "report/kept.py",
        "runs.log",
    ]
    said: dict[Path, list[str]] = {}
    for each in definitions():
        said.setdefault(each.path, []).append(each.docstring)
    for path, documents in said.items():
        comments = re.findall(r"(?<![\w'\"])# .*", path.read_text(encoding="utf-8"))
        assert not stale("\n".join([*documents, *comments])), path


def test_the_picture_of_the_rooms_shows_the_imports_of_today():
    from PIL import Image

    spec = importlib.util.spec_from_file_location("draw_rooms", ROOT / "docs" / "draw_rooms.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert Image.open(module.PICTURE).text["Description"] == module.as_text(module.imports())


def arguments(node):
    """The arguments of a function or class; of a dataclass its fields."""
    if isinstance(node, ast.ClassDef):
        made = [n for n in node.body if isinstance(n, ast.FunctionDef) and n.name == "__init__"]
        if not made:
            return {n.target.id for n in node.body if isinstance(n, ast.AnnAssign)}
        node = made[0]
    a = node.args
    return {each.arg for each in (*a.posonlyargs, *a.args, *a.kwonlyargs, a.vararg, a.kwarg) if each} - {"self", "cls"}


def described(docstring):
    """The arguments that a docstring describes; none if it has no such section."""
    section = re.search(r"^Args:\n(.*?)(?=^\S|\Z)", docstring, re.S | re.M)
    entries = re.findall(r"^ {4}(\w[\w, ]*):", section[1], re.M) if section else []
    return {name for entry in entries for name in entry.split(", ")} - {"cls"}


def test_docstrings_describe_the_arguments_that_there_are():
    found = [(each, names) for each in definitions() if (names := described(each.docstring))]
    assert len(found) > 50
    assert not [(each.path, each.name) for each, names in found if not names <= each.arguments]


@pytest.mark.parametrize("name", [name for name in vit_jax.__all__ if name.islower()])
def test_public_functions_describe_their_arguments(name):
    function = getattr(vit_jax, name)
    if callable(function):
        names, parameters = described(inspect.getdoc(function)), set(inspect.signature(function).parameters)
        assert names <= parameters and bool(names) == bool(parameters)


HAD = ("vit_jax/training/engine/step.py", "Decoder.init_cache", "Classify.prepare", "vit_jax.errors")
LACKED = ("vit_jax/tusks.py", "Enginne", "Decoder.init_cash", "Decoder.prepare", "evaluation.py", "vit_jax.mistakes")


@pytest.mark.parametrize(("text", "missing"), [*((f"`{x}`", 0) for x in HAD), *((f"`{x}`", 1) for x in LACKED)])
def test_a_page_that_speaks_of_something_else_is_found(text, missing):
    assert len(absent(text)) == missing


# ---------------------------------------------------------------------------- the README, then the docs

PASTED = (
    "README.md",
    "docs/guide.md",
    "docs/python.md",
    "docs/learning.md",
    "docs/results.md",
)  # in the order in which a reader pastes from them
# What they call something that the reader has: a file or folder that `prepared` makes.
STAND_INS = {
    "FILE-OR-FOLDER": "vit.safetensors", "IMAGE-OR-FOLDER": "pictures", "IMAGE": "pictures/0.png",
    "PATH": "classes", "FILE": "labels.csv", "DIR": "sets", "PRESET": "digits",
}  # fmt: skip
# Expressions of whole commands that are not run, and why. Of the others, those that train do so for a step or two.
NOT_RUN = {
    r"make .*": "installs packages; `make test` runs these tests",
    r"pip install .*": "installs packages",
    r"source \.venv/bin/activate": "its folder is made by make",
    r"python -m convert .* --onnxruntime-web .*": "needs a package of npm; tests/test_page.py runs it",
    r"vit-jax plan .* --target h100:8": "needs a compiler of 3.4 GB; tests/accelerators run it",
    r"python -m benchmarks\..*": "measures for minutes; tests/test_benchmarks.py runs them in small",
    r"python -m tests\.parity\.curves .*": "trains for minutes; tests/parity/test_curves.py runs it in small",
}
IN_FULL = ("python -m vit_jax.train", "make train")  # of the runs that later commands use: a minute
SHORTER = {
    r".*vit-s16.*": " --max-steps 1 --batch 8",
    r".* shapes .*": " --max-steps 2 --data.drawn 600",
    r".*": " --max-steps 2",
}


@dataclasses.dataclass(frozen=True)
class Pasted:
    """A command, or a block of Python, and the lines that a page shows of its output, without continued ones."""

    code: str
    python: bool = False
    shown: tuple[str, ...] = ()


def pasted(text: str) -> list[Pasted]:
    """All that a page's reader may paste, in its order: fences, a column of commands, code spans with `python -m`."""
    found = []
    for fence, language, inside, row, span in re.findall(
        r"^(```)(\w*)\n(.*?)^```$|^(\|[^\n]*\|)$|`(python -m [^`]+)`", text, re.S | re.M
    ):
        if language == "python":
            found.append(Pasted(inside, python=True))
        elif fence and inside.startswith("$ "):
            for each in inside.removeprefix("$ ").split("\n$ "):
                command, *shown = each.rstrip().split("\n")
                found.append(
                    Pasted(command, shown=tuple(line for line in shown if line.strip(". ") and line[:6].strip()))
                )
        elif fence:
            found += [Pasted(line.partition("  #")[0].strip()) for line in inside.splitlines() if line.strip()]
        elif row:
            found += [Pasted(f"{before} {after}") for before, after in _in_table(text, row)]
        else:
            found.append(Pasted(" ".join(span.split())))
    return list(dict.fromkeys(found))


def _in_table(text: str, row: str) -> list[tuple[str, str]]:
    """(what its table's header says comes before, the command in the last cell) of a row of a table of commands."""
    head = [m for m in re.finditer(r"^\|.*command, after `([^`]+)` *\|$", text, re.M) if m.start() < text.index(row)]
    last = re.search(r"\| *`([^`]+)` *\|$", row)
    return [(head[-1][1], last[1])] if head and last and head[-1][0] != row else []


def substituted(command: str) -> str:
    """A command with stand-ins for what its reader has; other words in capitals are unknown."""
    names = "|".join(sorted(STAND_INS, key=len, reverse=True))
    command = re.sub(rf"\b({names})\b", lambda m: STAND_INS[m[1]], command)
    unknown = re.findall(r"(?<![\w.-])[A-Z]{2,}(?![\w.])", command)
    assert not unknown, f"{command}: {unknown[0]} is no name in STAND_INS"
    return command


def reason(command: str) -> str:
    """Why a command is not run; empty where it is."""
    return next((why for pattern, why in NOT_RUN.items() if re.fullmatch(pattern, command)), "")


def every_pasted() -> list[Pasted]:
    """All that may be pasted, each once."""
    return list(dict.fromkeys(each for page in PASTED for each in pasted((ROOT / page).read_text(encoding="utf-8"))))


def test_every_line_that_may_be_pasted_is_known():
    every = every_pasted()
    commands = [each.code for each in every if not each.python]
    assert len(commands) > 25 and any(each.python for each in every) and any(each.shown for each in every)
    for command in commands:
        assert reason(command) or re.match(
            r"python -m vit_jax\.train$|(python -m \S+|vit-jax) \S", substituted(command)
        ), command
    for pattern in NOT_RUN:
        if "activate" not in pattern:
            assert any(re.fullmatch(pattern, command) for command in commands), f"{pattern} is nowhere"
    for block in (each for each in every if each.python):
        ast.parse(block.code)


def prepared(folder: Path) -> None:
    """What their reader has: pictures, classes, sentences, sets by name, and public files of random weights."""
    import numpy as np
    from PIL import Image
    from safetensors.numpy import save_file

    import vit_jax
    from convert import rules
    from convert.dialects import LAYOUTS
    from convert.dialects.architectures import lookup
    from vit_jax.extras.sets.prepare import SetArrays, write_set
    from vit_jax.models.vit_config import ViTConfig
    from vit_jax.runs.values import from_dict

    rng = np.random.default_rng(0)
    places = ["pictures/0.png", "pictures/1.png"] + [f"classes/{c}/{i}.png" for c in ("ant", "bee") for i in range(40)]
    for place in places:
        (folder / place).parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(rng.integers(0, 256, (16, 20, 3), np.uint8)).save(folder / place)
    (folder / "new").mkdir()
    Image.new("RGB", (9, 9)).save(folder / "new" / "0.png")
    for i in range(40):
        place = folder / (f"jpegs/mole_{i}.jpg" if i % 2 else f"{i}.png")
        place.parent.mkdir(exist_ok=True)
        Image.fromarray(rng.integers(0, 256, (16, 20, 3), np.uint8)).save(place)
    moles = [
        "image,mel,nv,bcc",
        *(f"mole_{i},{int(i % 3 == 0)},{int(i % 3 == 1)},{int(i % 3 == 2)}" for i in range(1, 40, 2)),
    ]
    (folder / "moles.csv").write_text("\n".join(moles))
    (folder / "others.csv").write_text("\n".join(["file,bcc,mel", "mole_1,0,1", "mole_5,1,0"]))
    (folder / "labels.csv").write_text(
        "\n".join(["image,label", *(f"{i},{'ab'[i // 2 % 2]}" for i in range(0, 40, 2))])
    )
    pictures = range(0, 40, 2)
    (folder / "plants.csv").write_text(
        "\n".join(["image,labels", *(f"{i},{'rust scab' if i % 4 else 'scab'}" for i in pictures)])
    )
    (folder / "sizes.csv").write_text("\n".join(["image,size", *(f"{i},{i / 3:.2f}" for i in pictures)]))
    (folder / "sets").mkdir()
    for name, classes, shape in (
        ("cifar10", 10, (32, 32, 3)),
        ("cifar100", 100, (32, 32, 3)),
        ("mnist", 10, (28, 28, 1)),
    ):
        pixels = {split: rng.integers(0, 256, (n, *shape), np.uint8) for split, n in (("train", 300), ("test", 60))}
        labels = {split: np.arange(len(x)) % classes for split, x in pixels.items()}
        write_set(folder / "sets", name, SetArrays(pixels, labels, tuple(map(str, range(classes)))))
    (folder / "multi30k").mkdir()
    for name, count in (("train", 300), ("val", 20), ("test", 20)):
        for language, says in (("en", "{} dogs run."), ("de", "{} Hunde rennen.")):
            text = "".join(says.format(i) + "\n" for i in range(count))
            (folder / "multi30k" / f"{name}.{language}").write_text(text, encoding="utf-8")
    base = from_dict(ViTConfig, {**lookup("vit_base_patch16_224")[0], "channels": 3, "classes": 1000})
    weights = {n: rng.standard_normal(s, np.float32) * np.float32(0.02) for n, s in base.shapes().items()}
    save_file(rules.write(rules.narrow(LAYOUTS["timm"].rows(base)), weights), folder / "vit.safetensors")
    small = vit_jax.build("vit-ti16", image=32, depth=1)
    vit_jax.export(small, folder / "vit-timm", to="timm")
    np.savez(folder / "ViT-B_16.npz", **rules.write(rules.narrow(LAYOUTS["augreg@linen"].rows(base)), weights))


@pytest.mark.slow
def test_every_command_and_block_works_pasted(tmp_path):
    """In one folder, in their order; what is shown as output begins with the words that are printed."""
    prepared(tmp_path)
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    env = {**os.environ, "PATH": path, "TFDS_DATA_DIR": str(tmp_path / "sets"), "HOME": str(tmp_path / "home")}
    run = functools.partial(subprocess.run, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=1800)
    blocks, failed = [], []
    run(["bash", "-c", "python -m vit_jax.train digits --name x --max-steps 1"])  # the reader's own run
    for each in every_pasted():
        command = each.code
        if each.python:
            blocks.append(command)
            session = tmp_path / f"session{len(blocks)}"  # one for all blocks so far, as a reader has it
            session.mkdir()
            done = run([sys.executable, "-c", "\n".join(blocks)], cwd=session)
        elif reason(command):
            continue
        else:
            trains = re.match(r"python -m (vit_jax|torch_ref)\.train|vit-jax train", command)
            shorter = next(flags for pattern, flags in SHORTER.items() if re.fullmatch(pattern, command))
            command = substituted(command) + (shorter if trains and command not in IN_FULL else "")
            done = run(["bash", "-c", command])
        print(f"{done.returncode}  {command}\n{done.stderr[-1500:] if done.returncode else ''}")
        words = {line.split()[0] for line in done.stdout.splitlines() if line.split()}
        absent = [line for line in each.shown if line.split()[0] not in words]
        if done.returncode or absent:
            failed.append((command, done.returncode, done.stderr[-500:], absent))
    assert not failed
