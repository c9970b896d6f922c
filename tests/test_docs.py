"""docs/architecture.md and CONTRIBUTING.md speak of what is there: every path and every name in them."""

import ast
import functools
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = ("docs/architecture.md", "CONTRIBUTING.md")
BASES = ("", "vit_jax", "vit_jax/config", "vit_jax/data")  # a page may call a file by its place in its room
FREE = {"NAME", "runs/NAME/", "__init__.py", "[B, h, w, C]"}  # placeholders, shapes


def code(text: str) -> list[str]:
    """What stands in backticks."""
    return re.findall(r"`([^`\n]+)`", re.sub(r"```.*?```", "", text, flags=re.S))


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


@functools.cache
def members() -> dict[str, set[str]]:
    """{class or file: what it has} over all sources."""
    found: dict[str, set[str]] = {}
    for path in sources():
        tree = ast.parse(path.read_text(encoding="utf-8"))
        for owner, body in [
            (path.stem, tree.body),
            *((node.name, node.body) for node in ast.walk(tree) if isinstance(node, ast.ClassDef)),
        ]:
            names = {getattr(node, "name", None) or getattr(getattr(node, "target", None), "id", None) for node in body}
            found.setdefault(owner, set()).update(name for name in names if name)
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
    links = re.findall(r"\]\((?!http)([^)#]+)\)", text)
    assert all((ROOT / page).parent.joinpath(link).exists() for link in links)


HAD = ("vit_jax/step.py", "Decoder.init_cache", "Classify.prepare", "vit_jax.errors")
LACKED = ("vit_jax/tusks.py", "Enginne", "Decoder.init_cash", "Decoder.prepare", "evaluation.py", "vit_jax.mistakes")


@pytest.mark.parametrize(("text", "missing"), [*((f"`{x}`", 0) for x in HAD), *((f"`{x}`", 1) for x in LACKED)])
def test_a_page_that_speaks_of_something_else_is_found(text, missing):
    assert len(absent(text)) == missing
