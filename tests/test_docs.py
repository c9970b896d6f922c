"""docs/architecture.md and CONTRIBUTING.md speak of what is there: every path and every name in them."""

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


def known_words() -> set[str]:
    sources = [*(p for room in ("vit_jax", "convert", "torch_ref", "tests") for p in (ROOT / room).rglob("*.py") if p.name != Path(__file__).name),
               ROOT / "Makefile", ROOT / "pyproject.toml"]  # fmt: skip
    return {word for path in sources for word in re.findall(r"\w+", path.read_text(encoding="utf-8"))}


def absent(text: str) -> list[str]:
    """The paths and names in a page that are not in the tree."""
    words, found = known_words(), []
    for span in code(text):
        if span in FREE or "NAME" in span:
            continue
        if is_path(span):
            found += [span] * (not any((ROOT / base / span).exists() for base in BASES))
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


@pytest.mark.parametrize(
    ("text", "missing"),
    [("`vit_jax/tusks.py`", 1), ("`vit_jax/step.py`", 0), ("`Enginne`", 1), ("`Decoder.init_cache`", 0), ("`Decoder.init_cash`", 1), ("`evaluation.py`", 1)],
)
def test_a_page_that_speaks_of_something_else_is_found(text, missing):
    assert len(absent(text)) == missing
