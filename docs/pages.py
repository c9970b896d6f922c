"""The pages of the docs site, gathered in build/docs: those of the repository, its notebooks, and generated ones.

python docs/pages.py            then `mkdocs build`; `make docs` does both
python docs/pages.py --lines    renumber the links to lines of code, after that has changed

Pages keep their places, so their links stay as they are. A file of code that a page links to becomes a page, too, with
an anchor for each line: `attention.py#L20`. A link to what is not there is an error.
"""

from __future__ import annotations

import base64
import html
import json
import os
import re
import shutil
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SITE = ROOT / "build" / "docs"
# The pages that the site begins with; those that they link to follow.
PAGES = (
    "README.md",
    "CONTRIBUTING.md",
    "benchmarks/README.md",
    *(f"docs/{path.name}" for path in sorted((ROOT / "docs").glob("*.md"))),
)
# Those that reference.py makes: links to them lead nowhere but on the site.
GENERATED = (
    "api.md",
    *(f"options/{name}.md" for name in ("run", "data", "networks", "presets", "commands", "layouts")),
)
_LINK = re.compile(r'(!?\[(?:[^\[\]]|\[[^\]]*\])*\]\()([^)\s]+)((?: "[^"]*")?\))')
# A link to a line of code says in its title what stands there: [softmax](attention.py#L1 "weights = jax.nn.softmax").
_TO_LINE = re.compile(r'(\]\((?P<file>[^)\s#]+)#L)\d+(?P<title> \\?"(?P<code>[^"\\]+)\\?"\))')
_NOT_TEXT = re.compile(r"(^```.*?^```$)", re.S | re.M)  # where brackets are code


def page_of(path: str) -> str:
    """The place in the site of a file of the repository: Markdown and pictures keep theirs."""
    folder, _, name = path.rpartition("/")
    if name == "README.md":
        name = "index.md"
    elif name.endswith(".ipynb"):
        name = f"{name.removesuffix('.ipynb')}.md"
    elif not name.endswith((".md", ".png")):
        name += ".md"
    return f"{folder}/{name}".removeprefix("/")


def linked(text: str, path: str) -> tuple[str, list[str]]:
    """A page's text with its links as the site has them, and the files that they lead to.

    Args:
        text: Markdown.
        path: where it lies in the repository.

    Raises:
        FileNotFoundError: for a link to what is not there.
    """
    found: list[str] = []

    def replace(link: re.Match[str]) -> str:
        target, hash_, anchor = link[2].partition("#")
        if re.match(r"[a-z]+:", target) or not target:
            return link[0]
        aim = os.path.normpath(os.path.join(os.path.dirname(path), target))
        if aim in GENERATED:
            return link[0]
        if (ROOT / aim).is_dir():
            aim += "/README.md"
        if aim.startswith("..") or not (ROOT / aim).is_file():
            raise FileNotFoundError(f"{path}: there is no {target}")
        found.append(aim)
        return link[1] + os.path.relpath(page_of(aim), os.path.dirname(path) or ".") + hash_ + anchor + link[3]

    parts = _NOT_TEXT.split(text)
    return "".join(part if i % 2 else _LINK.sub(replace, part) for i, part in enumerate(parts)), found


def with_lines(text: str, folder: Path) -> str:
    """A text whose links to lines of code have the numbers of today, as the site has them always.

    Args:
        text: of a page, or the JSON of a notebook.
        folder: where it lies.

    Raises:
        ValueError: where the code of a link stands on no line of its file, or on several.
    """

    def renumber(link: re.Match[str]) -> str:
        lines = (folder / link["file"]).read_text(encoding="utf-8").splitlines()
        found = [number for number, line in enumerate(lines, 1) if link["code"] in line]
        if len(found) != 1:
            raise ValueError(f"{link['code']!r} is on the lines {found} of {link['file']}")
        return f"{link[1]}{found[0]}{link['title']}"

    return _TO_LINE.sub(renumber, text)


def with_links_to_lines() -> list[Path]:
    """The pages, texts of notebooks and notebooks."""
    found = [*(ROOT / "docs").glob("*.md"), *(ROOT / "examples").glob("*.py"), *(ROOT / "examples").glob("*.ipynb")]
    return sorted(found)


def notebook(path: str) -> str:
    """A notebook as Markdown: its text, its code, and what it has put out. Pictures become files beside the page."""
    pieces: list[str] = []
    pictures = 0
    for cell in json.loads((ROOT / path).read_text(encoding="utf-8"))["cells"]:
        source = "".join(cell["source"])
        pieces.append(source if cell["cell_type"] == "markdown" else f"```python\n{source}\n```")
        for output in cell.get("outputs", ()):
            data = output.get("data", {})
            if "image/png" in data:
                pictures += 1
                place = Path(page_of(path)).with_suffix("") / f"{pictures}.png"
                (SITE / place).parent.mkdir(parents=True, exist_ok=True)
                (SITE / place).write_bytes(base64.b64decode("".join(data["image/png"])))
                pieces.append(f"![picture {pictures} of this notebook]({place.relative_to(place.parts[0])})")
            elif "text/markdown" in data:
                pieces.append("".join(data["text/markdown"]))
            else:
                text = "".join(output.get("text", data.get("text/plain", "")))
                pieces.append(f"```text\n{text.rstrip()}\n```")
    return "\n\n".join(pieces) + "\n"


def code(path: str) -> str:
    """A file of code as a page, each line with an anchor. The search leaves it out."""
    lines = [
        f'<a id="L{number}" href="#L{number}">{number:4}</a>  {html.escape(line)}'
        for number, line in enumerate((ROOT / path).read_text(encoding="utf-8").splitlines(), 1)
    ]
    return f"---\nsearch:\n  exclude: true\n---\n\n# {path}\n\n<pre>\n" + "\n".join(lines) + "\n</pre>\n"


def write(path: str) -> list[str]:
    """Put one file of the repository into the site; returns the files that it links to."""
    place = SITE / page_of(path)
    place.parent.mkdir(parents=True, exist_ok=True)
    if path.endswith(".png"):
        shutil.copyfile(ROOT / path, place)
        return []
    if path.endswith(".md"):
        text = with_lines((ROOT / path).read_text(encoding="utf-8"), (ROOT / path).parent)
        text, found = linked(text, path)
    elif path.endswith(".ipynb"):
        made, own = with_lines(notebook(path), (ROOT / path).parent), str(Path(page_of(path)).with_suffix("").name)
        parts = re.split(rf"(!\[picture \d+ of this notebook\]\({own}/\d+\.png\))", made)
        texts = [(part, []) if i % 2 else linked(part, path) for i, part in enumerate(parts)]
        text, found = "".join(each for each, _ in texts), [link for _, links in texts for link in links]
    else:
        text, found = code(path), []
    place.write_text(text, encoding="utf-8")
    return found


def main(words: list[str]) -> int:
    if words == ["--lines"]:
        for page in with_links_to_lines():
            text = page.read_text(encoding="utf-8")
            if (renumbered := with_lines(text, page.parent)) != text:
                page.write_text(renumbered, encoding="utf-8")
        return 0
    sys.path[:0] = [str(ROOT), str(ROOT / "docs")]
    from reference import generated

    shutil.rmtree(SITE, ignore_errors=True)
    waiting, done = [*PAGES], set()
    while waiting:
        if (path := waiting.pop()) not in done:
            done.add(path)
            waiting += write(path)
    shutil.copyfile(ROOT / "docs" / "site.css", SITE / "site.css")
    for name, text in generated().items():
        (SITE / name).parent.mkdir(parents=True, exist_ok=True)
        (SITE / name).write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
