"""From a path to a reading: which layout a file is, of which config, and all of its tensors claimed. No values are read."""

from __future__ import annotations

import dataclasses
import functools
import os
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from vit_jax.config import ModelConfig, network_of, to_dict
from vit_jax.errors import UserError

from .. import rules
from ..containers import open_source
from ..containers.folder import shard, side_files
from ..containers.source import CARRIED_SUFFIX, FLOATS, Source, Tensor
from ..dialects import LAYOUTS
from ..dialects.own import own_layout, own_record
from ..layout import Facts, Json, Layout
from ..rules import Row
from . import weights_in
from .config import FALLBACK, resolve, unknown_field
from .layouts import extras, known, shapes, which_layout
from .preprocessing import STATISTICS, fitting
from .provenance import checked, own_words, place, remedy


@dataclass(frozen=True)
class Options:
    """What a user says about a source: the command's flags of these names."""

    layout: str = ""  # --from
    model: str = ""
    sets: Mapping[str, Any] = field(default_factory=dict)
    file: str = ""
    step: int | None = None
    key: str = ""
    accept: tuple[str, ...] = ()
    otherwise: ModelConfig | None = None  # of a run: its fields are taken where nothing else says them
    unfit: str = "give the config of this very file with --set, or its layout with --from"  # the remedy where shapes are not those of the config


@dataclass
class Reading:
    """A file as one layout and one config, before any values: `tensors` {its name: Tensor} are claimed by `rows`."""

    source: Source
    layout: Layout
    config: ModelConfig
    tensors: dict[str, Tensor]
    rows: list[Row]
    facts: Facts
    left_out: list[str]
    provenance: Json  # of the conversion that wrote the file, if one did
    statistics: Json = field(default_factory=dict)  # what the user says of preprocessing, in the end: after adaptations

    @property
    def path(self) -> str:
        """Where it lies."""
        return self.source.path

    @property
    def optional(self) -> dict[str, list[str]]:
        """{layout: names that it may have or not and that this file, or one that it was made from, had}."""
        here = sorted(n for r in self.layout.rows(self.config) for n in r.optional if n in self.tensors)
        return {**self.provenance.get("optional", {}), **({self.layout.name: here} if here else {})}


def read(path: str, options: Options = Options()) -> Reading:
    """Open a file, a folder or hf://owner/name. Raises UserError where anything about it is not known or not whole."""
    source = open_source(path, options.file, options.step)
    try:
        return identify(source, options)
    except BaseException:
        source.close()
        raise


def identify(source: Source, options: Options) -> Reading:
    """The reading of an opened source; `read` says what is raised."""
    files: dict[str, Any] = {**side_files(source.path), "__metadata__": source.metadata}
    if stated := own_record(source.tree):
        files["config.json"] = stated
    provenance = own_words(source, files, bool(options.layout))
    _, tensors, left_out = weights_in.choose(source, known, options.key)
    tensors, provenance = checked(source, tensors, provenance, place(source, files), bool(options.layout))
    own = provenance.get("layout", "") or ("" if options.layout else own_layout(source))
    check_whole(source, tensors, bool(options.layout) or own in LAYOUTS)
    layout = which_layout(source.path, shapes(tensors), options.layout, own, files.get("config.json"))
    check_flags(source.path, layout, options)
    aside = layout.left_out(tensors)
    left_out += [
        f"{part} ({count} tensors, no part of the network)"
        for part, count in Counter(name.partition(".")[0] for name in aside).items()
    ]
    tensors = {name: tensor for name, tensor in tensors.items() if name not in aside}
    names = shapes(tensors)
    words, facts = provenance if provenance.get("layout") == layout.name else {}, layout.read_side(files)
    model = Facts()
    if options.model:
        from ..dialects.architectures import lookup

        model = Facts(*lookup(options.model))
    config = resolve(layout, names, speakers(options, layout, words, facts, model), source.path)
    rows = rules.narrow(layout.rows(config), names)
    rules.check(rules.file_shapes(rows), names, source.path, options.unfit)
    check_dtypes(source.path, tensors, layout)
    beside = kept_beside(source.path)
    tensors, rows = {**tensors, **beside}, [*rows, *(rules.carried(name, t.shape) for name, t in beside.items())]
    ours = fitting(Facts({}, words.get("preprocess"), words.get("class_names"), words.get("extra", {})), config)
    if ours.notes:
        raise UserError(f"{source.path}: its provenance is damaged ({ours.notes[0]}); {remedy(place(source, files))}")
    facts = together(
        ours,
        fitting(facts, config),
        fitting(model, config),
        {k: options.sets[k] for k in options.sets if k in extras(layout.network)},
    )
    statistics = {k: options.sets[k] for k in STATISTICS if k in options.sets}
    return Reading(source, layout, config, tensors, rows, facts, [*left_out, *source.skipped], words, statistics)


def speakers(options: Options, layout: Layout, own: Json, facts: Facts, model: Facts) -> list[tuple[str, Json]]:
    """Who says what of the config, the first to be believed first."""
    beside = {*STATISTICS, *extras(layout.network)}  # what --set says and is no field
    sets = {k: v for k, v in options.sets.items() if k not in beside}
    check_fields(sets, layout)
    run = to_dict(options.otherwise) if options.otherwise else {}
    its = own.get("config", {}).get("fields", {})
    return [
        ("--set", sets),
        ("its own metadata", its),
        ("its config.json", facts.config),
        (f"--model {options.model}", model.config),
        (FALLBACK, run),
    ]


def together(ours: Facts, theirs: Facts, model: Facts, said: Json) -> Facts:
    """What goes beside the tensors, by our own words, its library's and a model's name; `said` is what the user says of its `extra`."""
    images = ours.preprocess or theirs.preprocess or model.preprocess
    notes = theirs.notes + (() if images else model.notes)
    return Facts({}, images, ours.class_names or theirs.class_names, {**theirs.extra, **ours.extra, **said}, notes)


def check_flags(path: str, layout: Layout, options: Options) -> None:
    """Raise UserError where a run trains another kind of network, or a layout's warning was not accepted."""
    if options.otherwise is not None and not isinstance(options.otherwise, layout.network):
        raise UserError(
            f"{path}: holds a {network_of(layout.network).name}, which the run does not train; start from a preset of that task"
        )
    flag, _, what = layout.warns.partition(":")
    if flag and flag not in options.accept:
        raise UserError(f"{path}: {layout.title}: {what.strip()}; to convert all the same, add --accept {flag}")


def check_whole(source: Source, tensors: Mapping[str, Tensor], named: bool) -> None:
    """Raise UserError on what is a part of the weights, or holds them elsewhere; `named` says that its layout is known without their names."""
    clause = shard(source.path)
    if not clause and not (tensors and (named or known(tensors))):
        clause = weights_in.hint(source, known) or ("" if tensors else weights_in.elsewhere(source))
    if clause:
        raise UserError(f"{source.path}: {clause}")


# ----------------------------------------------------------------------------------------- layouts


# ------------------------------------------------------------------------------- what the file says


def check_fields(sets: Mapping[str, Any], layout: Layout) -> None:
    """Raise UserError on a --set that names no field of the layout's network."""
    known = {f.name for f in dataclasses.fields(layout.network)}
    for name in sets:
        if name not in known:
            raise unknown_field(name, layout.network)


def kept_beside(path: str) -> dict[str, Tensor]:
    """The tensors of FILE.carried.safetensors, which no network of ours has: an earlier conversion put them there."""
    place = f"{os.path.join(path, 'checkpoints') if os.path.isdir(path) else path}{CARRIED_SUFFIX}"  # of a run, beside its checkpoints
    if not os.path.isfile(place):
        return {}
    with open_source(place) as source:
        arrays = {name: tensor.read() for name, tensor in source.tree.items()}
    return {
        name: Tensor(name, array.dtype, array.shape, functools.partial(np.copy, array))
        for name, array in arrays.items()
    }


def check_dtypes(path: str, tensors: Mapping[str, Tensor], layout: Layout) -> None:
    """Raise UserError on weights that are no floating-point numbers of a kind that networks are computed in.

    Two nameless bytes are bfloat16 in layouts that come as npz alone: their rows say so.
    """
    for name, tensor in tensors.items():
        if tensor.dtype == "V2":
            if "npz" not in layout.containers:
                raise UserError(
                    f"{path}: {name} holds two bytes a number without saying what they are, which {layout.name} does not say either; save it as float32"
                )
        elif tensor.dtype not in FLOATS:
            raise UserError(
                f"{path}: {name} is {tensor.dtype.name}, which is not float16, bfloat16, float32 or float64; convert it in its own library first"
            )
