"""Draw docs/rooms.png: the rooms of vit_jax and which of them import which, read from the imports of the files.

    python docs/draw_rooms.py

An arrow that others imply (A -> C where A -> B -> C) is left out. The picture carries the graph that it shows, so that
tests/test_docs.py can compare it with the imports of today.
"""

from __future__ import annotations

import ast
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot as plt

ROOT = Path(__file__).parents[1]
PICTURE = ROOT / "docs" / "rooms.png"
WORDS = {  # of every folder of vit_jax
    "files": "writes and checks files",
    "config": "what a user can set",
    "machine": "what is there, and how a run is laid on it",
    "models": "the networks",
    "scores": "metrics",
    "kinds": "what outputs mean",
    "text": "tokenizers",
    "data": "from sources to batches",
    "augmentation": "images on the device",
    "decode": "search",
    "figures": "pictures",
    "tasks": "loss, scores, answers",
    "runs": "run folders",
    "presets": "named runs",
    "reports": "finished runs",
    "weights": "opened, written, started from",
    "training": "the loop and its step",
    "commands": "words to results",
    "extras": "features by name",
}


def imports() -> dict[str, set[str]]:
    """{room: the rooms that its files import}, those for types and inside functions too."""
    rooms = sorted(path.parent.name for path in (ROOT / "vit_jax").glob("*/__init__.py"))
    found: dict[str, set[str]] = {room: set() for room in rooms}
    for room in rooms:
        for path in (ROOT / "vit_jax" / room).rglob("*.py"):
            package = path.relative_to(ROOT).parts[:-1]
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.ImportFrom):
                    base = package[: len(package) - node.level + 1] if node.level else ()
                    parts = (*base, *(node.module or "").split("."))
                    names = [(*parts, alias.name) for alias in node.names] if not node.module else [parts]
                    found[room] |= {n[1] for n in names if len(n) > 1 and n[0] == "vit_jax" and n[1] in found}
        found[room].discard(room)
    return found


def needed(graph: dict[str, set[str]]) -> dict[str, set[str]]:
    """The graph without arrows that others imply."""

    def reached(room: str) -> set[str]:
        return graph[room].union(*(reached(each) for each in graph[room]))

    return {room: {b for b in its if not any(b in reached(c) for c in its - {b})} for room, its in graph.items()}


def as_text(graph: dict[str, set[str]]) -> str:
    """The graph as a line for each room, `room: rooms that it imports`."""
    return "\n".join(f"{room}: {' '.join(sorted(its))}" for room, its in graph.items())


def floors(shown: dict[str, set[str]]) -> list[list[str]]:
    """The rooms floor by floor, the highest first: each just below those that import it, and near their middle."""

    def depth(room: str) -> int:
        return 1 + max((depth(user) for user, its in shown.items() if room in its), default=-1)

    floor = {room: depth(room) for room in shown}
    rows: list[list[str]] = []
    across: dict[str, float] = {}
    for i in range(1 + max(floor.values())):
        middle = {
            room: [across[user] for user, its in shown.items() if room in its] for room in shown if floor[room] == i
        }
        rows.append(sorted(middle, key=lambda room: sum(middle[room]) / max(len(middle[room]), 1)))
        across |= {room: (n + 0.5) / len(rows[-1]) for n, room in enumerate(rows[-1])}
    return rows


def draw(path: Path = PICTURE) -> None:
    """Write the picture."""
    graph = imports()
    shown = needed(graph)
    rows = floors(shown)
    widest = max(map(len, rows))
    place = {
        room: ((n + 0.5) * widest / len(rooms), len(rows) - 1 - i)
        for i, rooms in enumerate(rows)
        for n, room in enumerate(rooms)
    }
    figure, axes = plt.subplots(figsize=(2.6 * widest, 1.05 * len(rows)), layout="constrained")
    axes.set(xlim=(0, widest), ylim=(-0.45, len(rows) - 0.55))
    axes.axis("off")
    for room, its in shown.items():
        for other in its:
            (x, y), (to_x, to_y) = place[room], place[other]
            axes.annotate(
                "", (to_x, to_y + 0.27), (x, y - 0.27),
                arrowprops={"arrowstyle": "-|>", "color": "#7a8794", "linewidth": 1.1, "shrinkA": 0, "shrinkB": 0},
            )  # fmt: skip
    for room, (x, y) in place.items():
        box = plt.Rectangle((x - 0.44, y - 0.27), 0.88, 0.54, facecolor="#eaf1f8", edgecolor="#3d6a94", zorder=3)
        axes.add_patch(box)
        axes.text(
            x, y + 0.09, room, ha="center", va="center", fontsize=11, fontweight="bold", color="#1d3a55", zorder=4
        )
        axes.text(x, y - 0.13, WORDS[room], ha="center", va="center", fontsize=7.5, color="#33424f", zorder=4)
    figure.savefig(path, dpi=130, metadata={"Description": as_text(graph)})
    plt.close(figure)


if __name__ == "__main__":
    draw()
