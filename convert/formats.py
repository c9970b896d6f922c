"""`formats`: the layouts from their tables, and how many ordered pairs of them hold a common network."""

from __future__ import annotations

import itertools
import shutil

from .dialects import LAYOUTS, refused
from .domains import shared
from .layout import Layout

OURS = ("vit-jax", "torch-ref")  # the others' forward passes are compared with these

def pairs() -> dict[tuple[str, str], str]:
    """{(from, to): why no network is in both layouts, empty where one is} for every ordered pair of layouts."""
    out: dict[tuple[str, str], str] = {}
    for a, b in itertools.combinations_with_replacement(LAYOUTS.values(), 2):
        out[a.name, b.name] = out[b.name, a.name] = shared(a, b)[1]
    return out


def show(reasons: bool) -> None:
    """Print the layouts, which of them hold common networks, and what is refused by name."""
    found, wide = pairs(), max(map(len, LAYOUTS))
    for network in ("ViTConfig", "TransformerConfig"):
        some = [layout for layout in LAYOUTS.values() if layout.network.__name__ == network]
        print(f"{network.removesuffix('Config')}: layouts (--from, --to), the containers that they come in, whose forward pass was compared")
        for layout in some:
            print(line(layout, wide))
        print("\n" + matrix(list(dict.fromkeys(layout.dialect for layout in some)), found) + "\n")
    joined = [pair for pair, why in found.items() if not why]
    print(f"{len(joined)} of {len(found)} ordered pairs of layouts hold a common network; {_apart(found)}.")
    if reasons:
        for (a, b), why in found.items():
            if why and why != "other networks" and a < b:
                print(f"  {a} | {b}: {why}")
    else:
        print("--pairs says why for each.")
    print("\nRecognised and refused by name:")
    for what in refused.titles():
        print(f"  {what}")


def line(layout: Layout, wide: int) -> str:
    """A layout in one line, cut to the terminal."""
    state = "ours" if layout.dialect in OURS else f"proven ({layout.proven})" if layout.proven else "unproven"
    text = f"  {layout.name:{wide}}  {state:28} {', '.join(layout.containers):20} {layout.title}"
    columns = shutil.get_terminal_size((150, 24)).columns
    return text if len(text) <= columns else text[: columns - 1] + "…"


def matrix(dialects: list[str], found: dict[tuple[str, str], str]) -> str:
    """Which layouts, all versions taken together, go to which: x, or a dot where no network is in both."""
    joined = {(a.partition("@")[0], b.partition("@")[0]) for (a, b), why in found.items() if not why}
    wide = max(map(len, dialects)) + 4
    lines = [f"  {'':{wide}}" + "".join(f"{i:>3}" for i in range(1, len(dialects) + 1))]
    for i, a in enumerate(dialects, 1):
        lines.append(f"  {f'{i:>2}  {a}':{wide}}" + "".join(f"{'x' if (a, b) in joined else '.':>3}" for b in dialects))
    return "\n".join(lines)


def _apart(found: dict[tuple[str, str], str]) -> str:
    other = sum(why == "other networks" for why in found.values())
    rest = sum(bool(why) for why in found.values()) - other
    return f"{other} join a ViT and a Transformer, {rest} have tables that exclude each other"
