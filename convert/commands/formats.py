"""`formats`: the layouts, how many ordered pairs of them hold a common network, and what --adapt can do."""

from __future__ import annotations

import functools
import inspect
import itertools
import string

from vit_jax.errors import install
from vit_jax.models.networks import NETWORKS

from ..adapt import OPERATIONS
from ..adapt.kernels import PATCHES, POSITIONS
from ..dialects import LAYOUTS, refused
from ..dialects.other_names import OTHER_NAMES
from ..layout import Layout
from ..plan.shared import find_shared
from ..recognise.beside import KNOWN
from ..verify.libraries import OURS, library_of
from ..write import into_onnx_folder, into_page, into_transformers_js
from ..write.into_program import image_networks
from ..write.program.kinds import KINDS
from .terminal import wrap

COLUMNS = (
    "built by: the library with which --verify builds a file's network, independently of our table of the layout "
    "(-: no installable library does). compared with: what the table's networks were compared with in tests/parity, "
    "else it is unproven. --verify calls two files the same function only where both were built independently."
)


@functools.cache
def pairs() -> dict[tuple[str, str], str]:
    """{(from, to): why the two layouts share no network; empty where they share one} of all ordered pairs."""
    out: dict[tuple[str, str], str] = {}
    for a, b in itertools.combinations_with_replacement(LAYOUTS.values(), 2):
        out[a.name, b.name] = out[b.name, a.name] = find_shared(a, b)[1]
    return out


def show() -> None:
    """Print the layouts, which of them hold common networks, what --adapt can do, and what is refused by name."""
    found, wide = pairs(), max(map(len, LAYOUTS))
    for network in NETWORKS.values():
        some = [layout for layout in LAYOUTS.values() if layout.network is network]
        print(f"{network.name}: the layouts that --from and --to name")
        print(columns("layout", wide, "built by", "compared with", "containers", "title"))
        for layout in some:
            print(line(layout, wide))
        print("\n" + matrix(list(dict.fromkeys(layout.dialect for layout in some)), found) + "\n")
    joined = [pair for pair, why in found.items() if not why]
    print(
        wrap(f"x: a network fits both ({len(joined)} of {len(found)} ordered pairs of layouts); {_separate(found)}.", 0)
    )
    print(wrap("What stands in the way of the others, a conversion between them says.", 0))
    print("\n" + wrap(COLUMNS, 0))
    _show_beside()


def _show_beside() -> None:
    """Print what stands beside the layouts: adaptations, programs, other names, other files, what is refused."""
    print("\n" + wrap("What --adapt OP=VALUE can do on the way, in the order in which it is given:", 0))
    for what in adaptations():
        print(wrap(f"  {what}", 6))
    print("\n" + wrap(f"Programs, which run without vit-jax, of {' and '.join(image_networks())}: DST ends with", 0))
    for suffix, kind in KINDS.items():
        print(wrap(f"  {suffix:11} {kind.title}: {kind.runs}; needs {install(kind.extra)}", 14))
    print(
        wrap(
            f"  {into_page.SUFFIX:11} HTML: in a browser, a page for classifiers; needs onnxruntime-web of npm too", 14
        )
    )
    print(wrap(f"  a folder, with --to {into_transformers_js.NAME}: in transformers.js, for classifiers", 14))
    print(wrap(f"  a folder, with --to {into_onnx_folder.NAME}: in ONNX Runtime, for networks that write texts", 14))
    print("\n" + wrap("Other names of layouts, which --from and --to take too (case, - and _ do not matter):", 0))
    for ours, others in OTHER_NAMES.items():
        print(wrap(f"  {ours}: {', '.join(others)}", 6))
    print("\n" + wrap("Files beside weights, which are read where a layout's library reads them, and else named:", 0))
    for names, what in KNOWN.items():
        print(wrap(f"  {', '.join(names)}: {what}", 6))
    print("\nRecognised and refused by name:")
    for what in refused.titles():
        print(wrap(f"  {what}", 6))


def adaptations() -> list[str]:
    """What --adapt can do, a line each, and the names of its kernels."""
    lines = [
        (inspect.getdoc(operation) or "").partition("\n\n")[0].replace("\n", " ") for operation in OPERATIONS.values()
    ]
    return [*lines, f"KERNEL is {', '.join(POSITIONS)} in resize, {' or '.join(PATCHES)} in patch"]


def line(layout: Layout, wide: int) -> str:
    """A layout in one line, or as many as a narrow terminal needs."""
    library = library_of(layout)
    table = "ours" if layout.dialect in OURS else layout.proven or "unproven"
    return columns(
        layout.name, wide, library.name if library else "-", table, ", ".join(layout.containers), layout.title
    )


def columns(name: str, wide: int, builder: str, table: str, containers: str, title: str) -> str:
    """One line of the list of layouts."""
    return wrap(f"  {name:{wide}}  {builder:13} {table:20} {containers:20} {title}", 6)


def matrix(dialects: list[str], found: dict[tuple[str, str], str]) -> str:
    """Which dialects go to which: x, or a dot where no versions of them share a network."""
    joined = {(a.partition("@")[0], b.partition("@")[0]) for (a, b), why in found.items() if not why}
    wide, letters = max(map(len, dialects)) + 3, string.ascii_letters[: len(dialects)]
    lines = [f"  {'':{wide}} {letters}"]  # no room between columns: there are many, and terminals are narrow
    for letter, a in zip(letters, dialects, strict=True):
        lines.append(f"  {f'{letter}  {a}':{wide}} " + "".join("x" if (a, b) in joined else "." for b in dialects))
    return "\n".join(lines)


def _separate(found: dict[tuple[str, str], str]) -> str:
    other = sum(why == "other networks" for why in found.values())
    rest = sum(bool(why) for why in found.values()) - other
    return f"{other} are of different networks, and in {rest} no network fits both layouts"
