"""From a path to a reading: the weights in a file, their layout and config, a row for every tensor; no values."""

from __future__ import annotations

import functools
import os
import re
import shlex
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from vit_jax.config.dotted import replace_fields
from vit_jax.config.network import NetworkConfig
from vit_jax.config.outputs import Outputs
from vit_jax.config.trees import flatten
from vit_jax.errors import UserError
from vit_jax.runs.values import to_dict

from .. import rules
from ..containers import open_source, peft
from ..containers.folder import shard, side_files
from ..containers.source import CARRIED_SUFFIX, FLOATS, INTEGERS, Source, Step, Tensor
from ..dialects import LAYOUTS, refused
from ..dialects.own import own_layout, own_record
from ..layout import Facts, Json, Layout, Names
from ..rules import CARRIED, Row
from . import outputs, weights_in
from .beside import Consulted, unread
from .config import FALLBACK, NAMED, OWN_METADATA, STATED, MissingFields, check_fields, resolve
from .layouts import Recognition, extras, recognise, shapes, which_layout
from .preprocessing import SETTABLE, fitting
from .provenance import CHECKPOINTS, read_provenance, remedy, side_file, with_digests
from .sizes import cover_given, whole_image
from .tokenizer import special_ids
from .weights_in import Chosen

FEW = 3  # tensors that a message lists
# Modules of heads that only pretraining without labels needs: of DINO, iBOT and DINOv2; MoCo and BYOL; SwAV.
PRETRAINING = ("head.", "dino_head.", "ibot_head.", "projector.", "predictor.", "projection_head.", "prototypes.")


@dataclass(frozen=True)
class Options:
    """What a user states about a source: the command's flags of these names."""

    layout: str = ""  # --from
    model: str = ""
    sets: Mapping[str, Any] = field(default_factory=dict)
    typed: Mapping[str, str] = field(default_factory=dict)  # the values of `sets` as a user has typed them
    file: str = ""
    step: Step = None
    key: str = ""
    training: bool = False  # a run is read to be trained on, not to be used: see `open_run`
    accept: tuple[str, ...] = ()
    headless: bool = False  # whether the head is left out or made anew, so that one of another kind is no reason
    # Fields that are taken where nothing else states them: those of a run's network, or some of them by name.
    otherwise: NetworkConfig | Mapping[str, Any] | None = None
    # The remedy where shapes are not those of the config.
    unfit: str = "give the config of this very file with `fields`, or its layout with `layout`"


@dataclass
class Reading:
    """A file as one layout and one config, before any values: `rows` claim `tensors`, {the file's name: Tensor}."""

    source: Source
    layout: Layout
    config: NetworkConfig
    tensors: dict[str, Tensor]
    rows: list[Row]
    facts: Facts
    left_out: list[str]
    provenance: Json  # of the conversion that wrote the file, if one did
    statistics: Json = field(
        default_factory=dict
    )  # the preprocessing that --set gives, for the network after adaptations
    label: str = weights_in.TOP  # where the weights lie in the source
    target: str = ""  # the kind of outputs that --set gives, of the network after adaptations

    @property
    def path(self) -> str:
        """The path of the source."""
        return self.source.path

    @property
    def chosen(self) -> str:
        """Which step and which weights of a run were taken, in words; empty for other sources."""
        return weights_in.describe_choice(self.source, self.label)

    @property
    def resize(self) -> str:
        """The --adapt by which the network takes the images of its preprocessing, as its library does in each call."""
        images, shape = self.facts.preprocess, self.config.pixels()
        if not images or not shape or tuple(images["image"]) == shape[:2]:
            return ""
        return f"resize={'x'.join(map(str, images['image']))}:{self.layout.resizes(self.config)}"

    @property
    def optional(self) -> dict[str, list[str]]:
        """{layout: optional names that this file, or one that it was converted from, has}."""
        here = sorted(n for r in self.layout.rows(self.config) for n in r.optional if n in self.tensors)
        return {**self.provenance.get("optional", {}), **({self.layout.name: here} if here else {})}


def read(path: str, options: Options = Options()) -> Reading:
    """Open a source, and find out its layout and config."""
    source = open_path(path, options)
    try:
        return identify(source, options)
    except BaseException:
        source.close()
        raise


def open_path(path: str, options: Options) -> Source:
    """The source at a path; of a file of torch_ref.train those weights are preferred that would be of a run."""
    source = open_source(path, options.file, options.step, options.training)
    if own_record(source.tree) and isinstance(source.tree.get("model"), Mapping):
        step, averaged = source.tree.get("step"), isinstance(source.tree.get("ema"), Mapping)
        source.preferred = "ema" if averaged and not options.training else "model"
        source.step, source.chosen = (step, f"step {step}") if type(step) is int else (None, "")
    return source


def _files_of(source: Source) -> tuple[dict[str, Any], dict[str, Any], Json | None]:
    """(what is known of a source beside its files, all that stands beside its tensors, the record among these)."""
    known = {"config.json": source.record} if source.record else {}
    beside = side_files(source.path, known) if source.side is None else source.side
    files: dict[str, Any] = {**beside, **known, "__metadata__": source.metadata}
    if record := own_record(source.tree):
        files["config.json"] = record
    return known, files, record


def identify(source: Source, options: Options, chosen: Chosen[Recognition] | None = None) -> Reading:
    """The reading of an opened source."""
    known, files, record = _files_of(source)
    provenance = read_provenance(source, files, bool(options.layout))
    label, tensors, left_out, found = chosen or weights_in.choose(source, recognise, options.key)
    side = side_file(source, files)
    if source.decided and label == source.preferred:
        files["config.json"] = source.decided
    if record and label == "ema":  # what is stated beside a file of torch_ref.train is of its raw weights
        provenance, side = {}, ""
    tensors, provenance = with_digests(source, tensors, provenance, side, bool(options.layout))
    own = provenance.get("layout", "") or ("" if options.layout else own_layout(source))
    check_complete(source, tensors, bool(found or options.layout or own in LAYOUTS))
    _check_kind(source, tensors, found, options, files.get("config.json", {}))
    model = _published_facts(options.model)

    def claims(layout: Layout) -> Json:
        return {**model.config, **layout.read_side(files).config, **options.sets}

    layout = which_layout(source.path, found, options.layout, own, files.get("config.json"), claims)
    _check_accepted(source.path, layout, found.names, options)
    tensors, aside = _without(tensors, layout)
    provenance = provenance if provenance.get("layout") == layout.name else {}
    consulted = Consulted(files)
    stated = layout.read_side(consulted)
    stated = replace(stated, extra={**special_ids(source), **stated.extra})
    names = shapes(tensors)
    said = _field_sources(options, layout, provenance, (consulted.config, stated.config), model)
    images = provenance.get("preprocess") or stated.preprocess or model.preprocess or "mean" in options.sets
    config = _config(source.path, options, layout, names, said, found, bool(images))
    rows, tensors, heads = _claim(source.path, tensors, layout, config, options)
    carried = _carried_beside(source.path) if source.side is None else {}
    tensors, rows = {**tensors, **carried}, [*rows, *(rules.passthrough(name, t.shape) for name, t in carried.items())]
    extra = {k: x for k, x in options.sets.items() if k in extras(layout.network)} | whole_image(layout, config, said)
    facts = _facts(source.path, layout, config, (provenance, side), stated, model, extra)
    if not known and source.side is None and (note := unread(source.path, consulted, layout.tokenizer)):
        facts = replace(facts, notes=(*facts.notes, note))
    statistics = {k: options.sets[k] for k in SETTABLE if k in options.sets}
    left_out = [*left_out, *aside, *heads, *source.skipped]
    how = (statistics, label, outputs.target(options.sets))
    return Reading(source, layout, config, tensors, rows, facts, left_out, provenance, *how)


def _check_kind(
    source: Source, tensors: Mapping[str, Tensor], found: Recognition, options: Options, config: Any
) -> None:
    """Raise UserError where weights are an adapter's, of a layout that is not read, or quantised by their config."""
    _check_no_adapter(source.path, found)
    if not options.layout:
        _check_refused(source, found)
    _check_quantised(source.path, tensors, config)


def _claim(
    path: str, tensors: dict[str, Tensor], layout: Layout, config: NetworkConfig, options: Options
) -> tuple[list[Row], dict[str, Tensor], list[str]]:
    """(the rows of the network, the tensors that they claim, what others are: another head than the network's)."""
    names, aside = shapes(tensors), list[str]()
    rows = rules.narrow(layout.rows(config), names)
    if other := _other_head(layout, config, names, rows):
        _check_headless(path, other, options)
        tensors, aside = _set_aside(tensors, other, "another head than the network's")
    rules.check(rules.file_shapes(rows), shapes(tensors), path, options.unfit)
    _check_dtypes(path, tensors, layout, rows)
    return rows, tensors, aside


# ------------------------------------------------------------------------------ what is stated of a file


def _published_facts(model: str) -> Facts:
    """What --model NAME states; of no name nothing. Raises UserError on an unknown name."""
    if not model:
        return Facts()
    from ..dialects.architectures import lookup  # reads a large table

    return Facts(*lookup(model))


def _field_sources(
    options: Options, layout: Layout, provenance: Json, stated: tuple[str, Json], model: Facts
) -> list[tuple[str, Json]]:
    """(source, {field: value}) of all that state the config, the most reliable first; `stated`: of side files."""
    no_fields = {*SETTABLE, outputs.TARGET, *extras(layout.network)}  # what --set gives beside fields of the config
    sets = {k: v for k, v in options.sets.items() if k not in no_fields}
    check_fields(sets, layout)
    return [
        (STATED, sets),
        (OWN_METADATA, flatten(provenance.get("config", {}).get("fields", {}), strict=False)),
        stated,
        (f"{NAMED} {options.model}`", model.config),
        (
            FALLBACK,
            flatten(
                to_dict(options.otherwise) if isinstance(options.otherwise, NetworkConfig) else options.otherwise or {},
                strict=False,
            ),
        ),
    ]


def _config(
    path: str,
    options: Options,
    layout: Layout,
    names: Names,
    said: list[tuple[str, Json]],
    found: Recognition,
    images: bool,
) -> NetworkConfig:
    """The config of the tensors of these names, by all that state it; `images`: whether how they are prepared is."""
    try:
        return resolve(layout, names, cover_given(layout, names, said), path, options.typed)
    except UserError as error:
        if (
            isinstance(error, MissingFields)
            and not images
            and any(re.search(r"\bimage$", name) for name in layout.fields)
        ):
            error.ask_images()
        if options.layout and layout not in found.layouts and found.layouts:
            others = " or ".join(f"`layout {other.name}`" for other in found.layouts)
            error.remedy = f"its names are not of {layout.name}: give {others}, or leave it out"
        raise


def _facts(
    path: str,
    layout: Layout,
    config: NetworkConfig,
    recorded: tuple[Json, str],
    stated: Facts,
    model: Facts,
    extra: Json,
) -> Facts:
    """The facts of a file, as far as they are of this network.

    `recorded` is our provenance with its file, `stated` is of the library's side files, `model` of the name that
    --model gives, and `extra` the user's. Raises UserError on a damaged provenance.
    """
    (provenance, side), any_size = recorded, bool(layout.resizes(config))
    own = Facts({}, provenance.get("preprocess"), Outputs.of(provenance), provenance.get("extra", {}))
    own = fitting(own, config, any_size)
    if own.notes:
        raise UserError(path, f"its provenance is damaged ({own.notes[0]})", remedy(side))
    facts = _join_facts(own, fitting(stated, config, any_size), fitting(model, config, any_size), extra)
    facts = replace(facts, outputs=outputs.of_class(layout, config, facts.outputs))
    if departures := layout.departures(config):
        told = f"{', '.join(departures)}, so this is another function than that of {layout.title}"
        facts = replace(facts, notes=(*facts.notes, told))
    return facts


def _join_facts(own: Facts, library: Facts, model: Facts, extra: Json) -> Facts:
    """The facts of our own provenance, of the library's side files and of a model's name; `extra` is the user's."""
    images = own.preprocess or library.preprocess or model.preprocess
    notes = library.notes + (() if images else model.notes)
    settings = {name: library.extra[name] for name in ("generation",) if name in library.extra}
    every = {**library.extra, **own.extra, **settings, **extra}
    known = own.outputs if own.outputs.kind else library.outputs
    known = replace(known, names=own.outputs.names or library.outputs.names)
    return Facts({}, images, known, every, notes)


def _without(tensors: dict[str, Tensor], layout: Layout) -> tuple[dict[str, Tensor], list[str]]:
    """(the tensors without those that are no part of the layout's network, what these are)."""
    return _set_aside(tensors, layout.left_out(tensors), "no part of the network")


def _set_aside(tensors: dict[str, Tensor], aside: Collection[str], what: str) -> tuple[dict[str, Tensor], list[str]]:
    """(the tensors without those that are set aside, these by the first part of their names)."""
    counts = Counter(name.partition(".")[0] for name in aside).items()
    told = [f"{part} ({count} tensor{'s' * (count > 1)}, {what})" for part, count in counts]
    return {name: tensor for name, tensor in tensors.items() if name not in aside}, told


def _other_head(layout: Layout, config: NetworkConfig, names: Names, rows: Iterable[Row]) -> list[str]:
    """The tensors of a head of another kind than a layout knows: under the names of its own, or of PRETRAINING."""
    if "classes" not in config.function_fields():
        return []
    modules, claimed = {*PRETRAINING}, {name for r in rows for name in r.theirs}
    whole, bare = (replace_fields(config, {"classes": number}).normal() for number in (1, 0))
    if not layout.cannot(whole, weights_only=True):  # files of it may have a head
        head = whole.parameters().keys() - bare.parameters().keys()
        of_head = (name for r in layout.rows(whole) if head.intersection(r.ours) for name in r.theirs)
        modules |= {f"{name.rpartition('.')[0]}." for name in of_head} - {"."}
    return [name for name in names if name not in claimed and name.startswith(tuple(modules))]


def _carried_beside(path: str) -> dict[str, Tensor]:
    """The tensors of FILE.carried.safetensors: an earlier conversion put those there that no network of ours has."""
    weights = os.path.join(path, CHECKPOINTS) if os.path.isdir(path) else path  # of a run, beside its checkpoints
    file = f"{weights}{CARRIED_SUFFIX}"
    if not os.path.isfile(file):
        return {}
    with open_source(file) as source:
        arrays = {name: tensor.read() for name, tensor in source.tree.items()}
    return {
        name: Tensor(name, array.dtype, array.shape, functools.partial(np.copy, array))
        for name, array in arrays.items()
    }


# ------------------------------------------------------------------------------------------ checks


def _check_no_adapter(path: str, found: Recognition) -> None:
    """Raise UserError where the weights are an adapter of peft, which is no network without the one that it is for."""
    folder = path if os.path.isdir(path) else os.path.dirname(path)
    if found.layouts or not peft.is_adapter(folder):
        return
    kind, base = peft.describe(folder)
    if kind != "LORA":
        raise UserError(path, f"is an adapter of peft ({kind}) for {base or 'another network'}", peft.MERGE)
    place = base if not base or os.path.exists(base) else f"hf://{base}"
    command = ["python", "-m", "convert", place or "BASE", "X.safetensors", "--adapt", f"lora=merge:{folder or '.'}"]
    says = f"is a LoRA adapter of peft for {base or 'a network that it does not name'}"
    raise UserError(path, says, f"merge it into that: `{shlex.join(command)}`")


def _check_quantised(path: str, tensors: Mapping[str, Tensor], config: Json) -> None:
    """Raise UserError where config.json states how the weights are quantised, and they are in such a dtype."""
    how = config.get("quantization_config")
    packed = [name for name, tensor in tensors.items() if tensor.dtype not in FLOATS | INTEGERS]
    if isinstance(how, Mapping) and packed:
        method = str(how.get("quant_method", "a method without a name"))[:60]
        dtype = tensors[packed[0]].dtype.name
        raise UserError(path, f"is quantised by {method} ({packed[0]} is {dtype})", refused.BEFORE)


def _check_headless(path: str, other: Sequence[str], options: Options) -> None:
    """Raise UserError on a head of another kind, unless the head is left out."""
    if not options.headless:
        shown = ", ".join(other[:FEW]) + (", ..." if len(other) > FEW else "")
        raise UserError(
            path, f"has a head that the network here lacks ({shown})", "leave it out with `adapt head=drop`"
        )


def _check_accepted(path: str, layout: Layout, names: Names, options: Options) -> None:
    """Raise UserError where a run trains another network, or --accept is missing for a layout of another function."""
    if isinstance(options.otherwise, NetworkConfig) and not isinstance(options.otherwise, layout.network):
        kind = layout.network.name
        raise UserError(path, f"holds a {kind}, which the run does not train", "start from a preset of that task")
    for refusal in layout.refusals:
        if refusal.stage == "function" and refusal.flag not in options.accept and (clauses := refusal.clauses(names)):
            raise UserError(
                path, f"{layout.title}: {'; '.join(clauses)}", f"to convert all the same, add `accept {refusal.flag}`"
            )


def _check_refused(source: Source, found: Recognition) -> None:
    """Raise UserError on weights that are refused by name, with the part of them that can be read, if there is one."""
    if found.refusal:
        part = "" if "`key " in found.refusal else weights_in.hint(source, _is_readable)
        raise UserError(source.path, found.refusal, part)


def _is_readable(tensors: Mapping[str, Tensor]) -> bool:
    known = recognise(tensors)
    return bool(known.layouts) and not known.refusal


def check_complete(source: Source, tensors: Mapping[str, Tensor], known: bool) -> None:
    """Check that a source holds all of its weights."""
    clause = shard(source.path)
    if not clause and not (tensors and known):
        clause = weights_in.hint(source, lambda tensors: recognise(tensors).layouts) or (
            "" if tensors else weights_in.elsewhere(source)
        )
    if clause:
        raise UserError(source.path, clause)


def _check_dtypes(path: str, tensors: Mapping[str, Tensor], layout: Layout, rows: Iterable[Row]) -> None:
    """Raise UserError on weights that are no floating-point numbers of a dtype in which networks are computed.

    Tensors that are only carried may be whole numbers, as the counters of batch norm are.
    numpy writes bfloat16 as two bytes without a name (V2): in layouts that come as npz, rows read them as bfloat16.
    """
    aside = {name for row in rows if row.ours[:1] and row.ours[0].startswith(CARRIED) for name in row.theirs}
    for name, tensor in tensors.items():
        if name in aside and tensor.dtype in INTEGERS:
            continue
        if tensor.dtype == "V2":
            if "npz" not in layout.containers:
                raise UserError(
                    path,
                    f"{name} has elements of two bytes without a dtype, and files of {layout.name} are no npz that "
                    "holds bfloat16 so",
                    "save it as float32",
                )
        elif tensor.dtype not in FLOATS:
            raise UserError(
                path,
                f"{name} is {tensor.dtype.name}, which is not float16, bfloat16, float32 or float64",
                "convert it in its own library first",
            )
