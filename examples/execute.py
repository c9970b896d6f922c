"""Execute notebooks: each NAME.py, in jupytext's percent format, becomes NAME.ipynb with its outputs.

python examples/execute.py [NAME...]
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


def executed(name: str) -> Any:
    """A notebook with its outputs. Raises nbclient's CellExecutionError where a cell does."""
    import jupytext
    from nbclient import NotebookClient
    from prices import with_figures

    notebook = jupytext.read(HERE / f"{name}.py")
    for number, cell in enumerate(notebook.cells):
        cell["source"] = cell["source"].strip("\n")
        if cell.cell_type == "markdown":
            cell["source"] = with_figures(cell["source"], name)
        cell["id"] = f"cell-{number}"  # not a random one, so that a notebook changes where its content does
    client = NotebookClient(
        notebook, timeout=60 * MINUTES, coalesce_streams=True, resources={"metadata": {"path": str(HERE)}}
    )
    # Without a backend that is stated, the kernel shows figures in the notebook.
    client.execute(env={name: value for name, value in os.environ.items() if name != "MPLBACKEND"})
    for cell in notebook.cells:
        cell["metadata"].pop("execution", None)  # times of day
        cell["metadata"].pop("lines_to_next_cell", None)  # how NAME.py is laid out
    reduce_pictures(notebook)
    notebook.metadata.pop("language_info", None)
    notebook.metadata.pop("jupytext", None)
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


def main(wanted: list[str]) -> int:
    import nbformat

    if unknown := set(wanted) - {*names()}:
        print(f"there is no {', '.join(sorted(unknown))}; there are {', '.join(names())}", file=sys.stderr)
        return 2
    for name in wanted or names():
        nbformat.write(executed(name), HERE / f"{name}.ipynb")
        print(f"examples/{name}.ipynb", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
