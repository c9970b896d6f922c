"""Execute notebooks: each NAME.py, in jupytext's percent format, becomes NAME.ipynb with its outputs.

python examples/execute.py [NAME...]
python examples/execute.py --texts [NAME...]    only texts have changed: outputs stay, and nothing is executed
"""

from __future__ import annotations

import base64
import io
import os
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
MINUTES = 60  # that a cell may take, where prices are measured
COLOURS = 64  # of a picture, so that a notebook takes a third of the bytes


def names() -> list[str]:
    """The notebooks here."""
    return sorted(path.stem for path in HERE.glob("*.py") if path.read_text(encoding="utf-8").startswith("# ---\n"))


def as_written(name: str) -> Any:
    """A notebook without outputs, its texts filled in."""
    import jupytext
    from texts import filled

    notebook = jupytext.read(HERE / f"{name}.py")
    for number, cell in enumerate(notebook.cells):
        cell["source"] = cell["source"].strip("\n")
        if cell.cell_type == "markdown":
            cell["source"] = filled(cell["source"], name)
        cell["id"] = f"cell-{number}"  # not a random one, so that a notebook changes where its content does
        cell["metadata"].pop("lines_to_next_cell", None)  # how NAME.py is laid out
    notebook.metadata.pop("jupytext", None)
    return notebook


def executed(name: str) -> Any:
    """A notebook with its outputs. Raises nbclient's CellExecutionError where a cell does."""
    from nbclient import NotebookClient

    notebook = as_written(name)
    client = NotebookClient(
        notebook, timeout=60 * MINUTES, coalesce_streams=True, resources={"metadata": {"path": str(HERE)}}
    )
    # Without a backend that is stated, the kernel shows figures in the notebook.
    client.execute(env={name: value for name, value in os.environ.items() if name != "MPLBACKEND"})
    for cell in notebook.cells:
        cell["metadata"].pop("execution", None)  # times of day
    reduce_pictures(notebook)
    notebook.metadata.pop("language_info", None)
    return notebook


def with_texts(name: str) -> Any:
    """A notebook with the texts of today and the outputs that it has. Raises ValueError where code has changed."""
    import nbformat

    notebook = as_written(name)
    old = nbformat.read(HERE / f"{name}.ipynb", as_version=4)
    new_code, old_code = ([cell for cell in each.cells if cell.cell_type == "code"] for each in (notebook, old))
    if [cell.source for cell in new_code] != [cell.source for cell in old_code]:
        raise ValueError(f"{name}: its code has changed, so execute it")
    for new, cell in zip(new_code, old_code, strict=True):
        new["outputs"], new["execution_count"] = cell.outputs, cell.execution_count
    return notebook


def with_few_colours(picture: str) -> str:
    """A PNG in base64 with COLOURS colours, or as it is where that is smaller."""
    from PIL import Image

    with Image.open(io.BytesIO(base64.b64decode(picture))) as image:
        if image.mode == "P":
            return picture
        few, output = image.convert("RGB").quantize(COLOURS, dither=Image.Dither.NONE), io.BytesIO()
    few.save(output, "PNG", optimize=True)
    return min(picture, base64.b64encode(output.getvalue()).decode(), key=len)


def reduce_pictures(notebook: Any) -> None:
    """Give the pictures in a notebook's outputs few colours."""
    for cell in notebook.cells:
        for output in cell.get("outputs", []):
            if "image/png" in output.get("data", {}):
                output["data"]["image/png"] = with_few_colours(output["data"]["image/png"])


def main(words: list[str]) -> int:
    import nbformat

    make = with_texts if words[:1] == ["--texts"] else executed
    wanted = words[1:] if make is with_texts else words
    if unknown := set(wanted) - {*names()}:
        print(f"there is no {', '.join(sorted(unknown))}; there are {', '.join(names())}", file=sys.stderr)
        return 2
    for name in wanted or names():
        nbformat.write(make(name), HERE / f"{name}.ipynb")
        print(f"examples/{name}.ipynb", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
