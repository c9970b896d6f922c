"""The examples of CONTRIBUTING.md: each change fits the code of today, and does what the page says of it."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
# {heading: (the change, the program after it)}
EXAMPLES = {
    title: (change, program)
    for title, change, program in re.findall(
        r"^## ([^\n]*)\n(?:(?!^## ).)*?```diff\n(.*?)```(?:(?!^## ).)*?```python\n(.*?)```", PAGE, re.M | re.S
    )
}


def apply(change: str, root: Path) -> None:
    """Make a change of the page to the files under a root: `--- FILE`, then hunks of lines, separated by `@@`."""
    for part in re.split(r"^--- ", change, flags=re.M)[1:]:
        name, _, hunks = part.partition("\n")
        text = (root / name).read_text(encoding="utf-8") if (root / name).exists() else ""
        for hunk in hunks.removesuffix("\n").split("\n@@\n"):
            lines = hunk.split("\n")
            old, new = ("\n".join(line[1:] for line in lines if line[:1] in ("", " ", sign)) for sign in "-+")
            assert text.count(old) == 1 or not text + old, f"{name} has {text.count(old)} times: {old}"
            text = text.replace(old, new)
        compile(text, name, "exec")
        (root / name).write_text(text, encoding="utf-8")


@pytest.fixture
def copy(tmp_path):
    for package in ("vit_jax", "torch_ref", "convert"):
        shutil.copytree(ROOT / package, tmp_path / package, ignore=shutil.ignore_patterns("__pycache__"))
    return tmp_path


def test_the_page_has_an_example_of_each():
    assert list(EXAMPLES) == [
        *("An option of a network", "A network of two parts", "A flag of training", "A metric", "A loss", "A preset"),
        *("A pooling method", "An optimizer", "An augmentation"),
    ]


@pytest.mark.parametrize("title", EXAMPLES)
def test_a_change_of_the_page_fits_the_code(title, copy):
    apply(EXAMPLES[title][0], copy)


@pytest.mark.slow
@pytest.mark.parametrize("title", EXAMPLES)
def test_a_change_of_the_page_does_what_it_says(title, copy):
    pytest.importorskip("torch")
    change, program = EXAMPLES[title]
    environment = {**os.environ, "PYTHONPATH": str(copy)}

    def run() -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-c", program]
        return subprocess.run(command, cwd=copy, env=environment, capture_output=True, text=True)

    assert run().returncode, "it does so without the change"
    apply(change, copy)
    done = run()
    assert done.returncode == 0, done.stderr
    for said in re.findall(r"print\(error\)  # \.\.\. (.*?) \.\.\.", program):
        assert said in done.stdout
