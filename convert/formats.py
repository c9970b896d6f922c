"""`formats`: the layouts from their tables, and how many ordered pairs of them hold a common network."""

from __future__ import annotations

import itertools
import shutil

from .dialects import LAYOUTS, refused
from .domains import shared
from .layout import Layout


def pairs() -> dict[tuple[str, str], str]:
    """{(from, to): why no network is in both layouts, empty where one is} for every ordered pair of layouts."""
    out: dict[tuple[str, str], str] = {}
    for a, b in itertools.combinations_with_replacement(LAYOUTS.values(), 2):
        out[a.name, b.name] = out[b.name, a.name] = shared(a, b)[1]
    return out


def show(reasons: bool) -> None:
    """Print the layouts, the pairs, and what is refused by name."""
    wide = max(map(len, LAYOUTS))
    for network in ("ViTConfig", "TransformerConfig"):
        print(f"\n{network.removesuffix('Config')}")
        for layout in LAYOUTS.values():
            if layout.network.__name__ == network:
                print(line(layout, wide))
    found = pairs()
    joined = [pair for pair, why in found.items() if not why]
    print(f"\n{len(joined)} of {len(found)} ordered pairs of layouts hold a common network; {_apart(found)}.")
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
    state = f"proven ({layout.proven})" if layout.proven else "unproven"
    text = f"  {layout.name:{wide}}  {state:32} {', '.join(layout.containers):24} {layout.title}"
    columns = shutil.get_terminal_size((150, 24)).columns
    return text if len(text) <= columns else text[: columns - 1] + "…"


def _apart(found: dict[tuple[str, str], str]) -> str:
    other = sum(why == "other networks" for why in found.values())
    rest = sum(bool(why) for why in found.values()) - other
    return f"{other} join a ViT and a Transformer, {rest} have tables that exclude each other"
