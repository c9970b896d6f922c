"""`inspect`: what a file or a folder is, from headers alone."""

from __future__ import annotations

import os
from typing import Any

from vit_jax.config.trees import flatten
from vit_jax.errors import UserError
from vit_jax.files.terminal import print_line, printable
from vit_jax.runs.values import to_dict

from ..containers.folder import candidates
from ..containers.source import Source, Tensor
from ..layout import WHOLE
from ..recognise import weights_in
from ..recognise.layouts import Recognition, closest, recognise
from ..recognise.outputs import settle
from ..recognise.preprocessing import preprocessing
from ..recognise.reading import Options, identify, open_path
from ..recognise.weights_in import Chosen
from .terminal import wrap

# Fields that are shown even where they have their defaults.
ALWAYS = {
    "image", "channels", "patch", "classes", "width", "depth", "heads", "hidden", "eps", "activation", "pool",
    "norm_first", "encoder_depth", "decoder_depth",
}  # fmt: skip
INDENT = 11  # columns of the labels
FEW = 12  # tensors that are shown at either end of a long list
SHOWN = 200  # characters of a text from a file


def show(path: str, options: Options) -> None:
    """Print container, layout, config and tensors of a source."""
    if os.path.isdir(path) and not options.file and len(found := candidates(path)) > 1:
        print_line(f"{printable(path)}: {len(found)} candidates; name one with --file")
        for one in found:
            print_line(f"  {printable(os.path.relpath(one.path, path)):40}  {one.what:30} {one.size / 1e6:12,.1f} MB")
        return
    with open_path(path, options) as source:
        chosen = weights_in.choose(source, recognise, options.key)
        label, tensors, left_out, _ = chosen
        print_line(f"path       {printable(source.path)}\ncontainer  {source.container}, {source.size / 1e6:,.1f} MB")
        if said := weights_in.describe_choice(source, label) or label.removeprefix(weights_in.TOP):
            print_line(f"weights    {said}")
        for what in (*left_out, *source.skipped):
            print_line(f"left out   {what}")
        for names in weights_in.tied_names(source, tensors):
            print_line(f"tied       {', '.join(names)}")
        config(source, options, chosen)
        table(tensors)


def config(source: Source, options: Options, chosen: Chosen[Recognition]) -> None:
    """Print layout and config, or why they are not known."""
    found = chosen.found
    if found.refusal:
        print_line(f"layout     none: {found.refusal}")
        return
    names = ", ".join(layout.name for layout in found.layouts)
    print_line(f"layout     {names or f'unknown{closest(found.names)}'}")
    try:
        reading = identify(source, options, chosen)
    except UserError as error:
        print_line(f"config     {error}")
        return
    plain = flatten(to_dict(type(reading.config)()))
    training = reading.config.marked("training_only")
    stated = flatten(to_dict(reading.config))
    values = {
        name: value
        for name, value in stated.items()
        if name not in training and (name.rpartition(".")[2] in ALWAYS or value != plain[name])
    }
    print_line(wrap(f"config     {type(reading.config).__name__}: {_list_fields(values)}; the rest by default", INDENT))
    known = settle(reading.config, reading.facts.outputs, reading.target, reading.layout.holds_all)
    if known.kind and known.kind != "class":
        what = f"{known.kind}: {', '.join(map(printable, known.names))}" if known.names else known.kind
        print_line(wrap(f"outputs    {what}", INDENT))
    any_size = bool(reading.layout.resizes(reading.config))
    whole = reading.facts.extra.get(WHOLE)
    if images := preprocessing(reading.config, reading.statistics, reading.facts.preprocess, any_size, whole):
        print_line(wrap(f"images     {_list_fields(images)}", INDENT))
    for note in reading.facts.notes:
        print_line(wrap(f"note       {printable(note)}", INDENT))
    if made := reading.provenance.get("source"):
        told = [made.get("name"), made.get("layout"), made.get("sha256"), reading.provenance.get("made_by")]
        line = "made from  {} ({}, sha256 {}) by {}"
        if {"step", "key"} <= made.keys():  # of a run
            told[1:1] = [made["step"], made["key"]]
            line = "made from  {}, step {}, {} ({}, sha256 {}) by {}"
        print_line(line.format(*(printable(str(text)[:SHOWN]) for text in told)))


def _list_fields(values: dict[str, Any]) -> str:
    """Fields with their values; a list of whole numbers is a size: 8x12."""
    sizes = {k: v for k, v in values.items() if isinstance(v, list) and all(isinstance(each, int) for each in v)}
    return ", ".join(f"{k} {'x'.join(map(str, v)) if k in sizes else v}" for k, v in values.items())


def table(tensors: dict[str, Tensor]) -> None:
    """Print names, dtypes and shapes, the middle of a long list left out; then the sums."""
    width = max(map(len, tensors), default=0)
    lines = [
        f"  {t.name if t.name in tensors else name:{width}}  {t.dtype.name:9} {list(t.shape)}"
        for name, t in tensors.items()
    ]
    if len(lines) > 2 * FEW + 1:
        lines[FEW:-FEW] = [f"  ... {len(lines) - 2 * FEW} more"]
    print_line("\n".join(lines))
    numbers = sum(t.nbytes // t.dtype.itemsize for t in tensors.values())
    print_line(f"{len(tensors)} tensors, {numbers:,} numbers, {sum(t.nbytes for t in tensors.values()) / 1e6:,.1f} MB")
