"""`formats`: the layouts from their tables, how many ordered pairs of them hold a common network, and what --adapt can do."""

from __future__ import annotations

import functools
import inspect
import itertools
import string

from vit_jax.config import NETWORKS

from ..adapt import OPERATIONS
from ..adapt.kernels import PATCHES, POSITIONS
from ..dialects import LAYOUTS, refused
from ..layout import Layout
from ..plan.shared import shared
from .terminal import wrapped

OURS = ("vit-jax", "torch-ref")  # the others' forward passes are compared with these


@functools.cache
def pairs() -> dict[tuple[str, str], str]:
    """{(from, to): why no network is in both layouts, empty where one is} for every ordered pair of layouts."""
    out: dict[tuple[str, str], str] = {}
    for a, b in itertools.combinations_with_replacement(LAYOUTS.values(), 2):
        out[a.name, b.name] = out[b.name, a.name] = shared(a, b)[1]
    return out


def show(reasons: bool) -> None:
    """Print the layouts, which of them hold common networks, what --adapt can do, and what is refused by name."""
    found, wide = pairs(), max(map(len, LAYOUTS))
    for network in NETWORKS.values():
        some = [layout for layout in LAYOUTS.values() if layout.network is network.config]
        print(
            wrapped(
                f"{network.name}: layouts (--from, --to), whose forward pass was compared, the containers that they come in",
                5,
            )
        )
        for layout in some:
            print(line(layout, wide))
        print("\n" + matrix(list(dict.fromkeys(layout.dialect for layout in some)), found) + "\n")
    joined = [pair for pair, why in found.items() if not why]
    print(wrapped(f"{len(joined)} of {len(found)} ordered pairs of layouts hold a common network; {_apart(found)}.", 0))
    if reasons:
        for (a, b), why in found.items():
            if why and why != "other networks" and a < b:
                print(wrapped(f"  {a} | {b}: {why}", 6))
    else:
        print("--pairs says why for each.")
    print("\n" + wrapped("What --adapt OP=VALUE can do on the way, in the order in which it is given:", 0))
    for what in adaptations():
        print(wrapped(f"  {what}", 6))
    print("\nRecognised and refused by name:")
    for what in refused.titles():
        print(wrapped(f"  {what}", 6))


def adaptations() -> list[str]:
    """What --adapt can do, a line each, and the names of its kernels."""
    lines = [
        (inspect.getdoc(operation) or "").partition("\n\n")[0].replace("\n", " ") for operation in OPERATIONS.values()
    ]
    return [*lines, f"KERNEL is {', '.join(POSITIONS)} in resize, {' or '.join(PATCHES)} in patch"]


def line(layout: Layout, wide: int) -> str:
    """A layout in one line, or as many as a narrow terminal needs."""
    state = "ours" if layout.dialect in OURS else f"proven ({layout.proven})" if layout.proven else "unproven"
    return wrapped(f"  {layout.name:{wide}}  {state:28} {', '.join(layout.containers):20} {layout.title}", 6)


def matrix(dialects: list[str], found: dict[tuple[str, str], str]) -> str:
    """Which layouts, all versions taken together, go to which: x, or a dot where no network is in both."""
    joined = {(a.partition("@")[0], b.partition("@")[0]) for (a, b), why in found.items() if not why}
    wide, letters = max(map(len, dialects)) + 3, string.ascii_letters[: len(dialects)]
    lines = [f"  {'':{wide}} " + " ".join(letters)]
    for letter, a in zip(letters, dialects, strict=True):
        lines.append(f"  {f'{letter}  {a}':{wide}} " + " ".join("x" if (a, b) in joined else "." for b in dialects))
    return "\n".join(lines)


def _apart(found: dict[tuple[str, str], str]) -> str:
    other = sum(why == "other networks" for why in found.values())
    rest = sum(bool(why) for why in found.values()) - other
    return f"{other} join networks of different kinds, {rest} have tables that exclude each other"
