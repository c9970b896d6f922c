"""`verify A B`, and `--verify` after a conversion."""

from __future__ import annotations

import argparse
import contextlib
import warnings
from dataclasses import replace
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING

import numpy as np

from vit_jax.config.dotted import value_at
from vit_jax.config.network import NetworkConfig
from vit_jax.errors import CHECK, DONE, CheckFailed, UserError
from vit_jax.files.atomic import write_json, write_text
from vit_jax.files.terminal import print_line

from .. import adapt as adapting
from ..adapt.vit import resize_images
from ..containers import check_file
from ..containers.source import CERTIFICATE, PROVENANCE
from ..layout import Json
from ..plan.target import free
from .comparison import describe_change, narrower, shapes_apart, verify
from .reference import Reference
from .report import Report
from .weights import Inputs, Weights, noise

if TYPE_CHECKING:
    from ..plan.plan import Plan
    from ..recognise.reading import Options, Reading
    from ..write.write import Written

IMAGES = 8  # of a folder


def certify(plan: Plan, written: Written) -> None:
    """Compare a conversion's source with what was written; write TARGET.certificate.json."""
    report, target = compare_plan(plan, written), place_of(written)
    write_json(Path(f"{target}{CERTIFICATE}"), report.certificate())
    print_line(f"{report.text()}\nleft      {target}{CERTIFICATE}")
    if not report.same:
        raise CheckFailed(f"{target}: {report.verdict}; the file was written, do not use it")


def place_of(written: Written) -> Path:
    """What a conversion has written: the file, or the folder that holds it."""
    return written.path.parent if any(path.name == PROVENANCE for path in written.files) else written.path


def compare_plan(plan: Plan, written: Written) -> Report:
    """What a comparison of a conversion's source with what was written finds."""
    from vit_jax.machine.backend import configure_jax

    from ..recognise.reading import Options, read
    from ..write.origin import source_hash

    configure_jax()
    options = Options(layout=plan.layout.name, key=written.key, accept=plan.layout.flags)
    reading = read(str(place_of(written)), options)
    with reading.source:
        report = verify(
            Weights.of(plan.reading, "A"), Weights.of(reading, "B"), [a.text for a in plan.adaptations], plan.dtype
        )
        report.hashes = source_hash(plan.reading.source), source_hash(reading.source)
        report.paths, report.chosen = (plan.reading.path, reading.path), (plan.reading.chosen, reading.chosen)
    return report


def describe_adaptation(plan: Plan) -> list[str]:
    """How far a plan's adaptations move the outputs of its network, in words; empty where shapes change."""
    from vit_jax.machine.backend import configure_jax

    if shapes_apart(plan.reading.config, plan.config):
        return []
    configure_jax()
    a = Weights.of(plan.reading, "A")
    config, parameters = a.config, a.parameters
    for adaptation in plan.adaptations:
        config, parameters = adaptation.config, adapting.apply(adaptation, parameters)
    after = Reference("ours", config, parameters)
    return describe_change(Reference("ours", a.config, a.parameters, after.inputs), after)


def command(arguments: argparse.Namespace, options: Options) -> int:
    """Compare two files."""
    from vit_jax.machine.backend import configure_jax

    from ..plan.plan import DTYPES
    from ..write.origin import source_hash

    free((arguments.json, arguments.markdown))
    configure_jax()
    with contextlib.ExitStack() as opened:
        a, b, note = both(arguments.a, arguments.b, options, opened)
        names, sides, hashes = "AB", (a, b), (source_hash(a.source), source_hash(b.source))
        given = a.tensors, b.tensors
        if _origin_of(a) == hashes[1] or (_origin_of(b) != hashes[0] and narrower(given[1], given[0])):
            names, sides, hashes = names[::-1], sides[::-1], hashes[::-1]
        source, target = sides
        made = target.provenance if _origin_of(target) == hashes[0] else {}
        compared = target if made else source  # the network that takes the inputs
        shape = compared.config.pixels()  # of images, which its preprocessing may make in another size
        facts = resize_images(compared.facts, shape[:2]) if shape else compared.facts
        inputs = images(arguments.images, compared.config, facts.preprocess) if arguments.images else None
        adaptations = [each["text"] for each in made.get("adaptations", ())]
        report = verify(
            Weights.of(source, names[0]),
            Weights.of(target, names[1]),
            adaptations,
            DTYPES.get(made.get("dtype", "")),
            inputs,
            arguments.steps,
        )
    report.hashes, report.paths = hashes, (source.path, target.path)
    report.chosen = source.chosen, target.chosen
    report.notes += [note] if note else []
    print_line(report.text())
    leave(report, arguments.json, arguments.markdown)
    return DONE if report.same else CHECK


def _origin_of(reading: Reading) -> str:
    """SHA-256 of what a file says it was made from; empty where it says nothing of that."""
    return str(reading.provenance.get("source", {}).get("sha256", ""))


def both(first: str, other: str, options: Options, opened: contextlib.ExitStack) -> tuple[Reading, Reading, str]:
    """The readings of two files that are to be compared. A, B and a note on how B was read; empty where its own files
    state its config.

    Where one is a run, the other may say of which step and weights it was made: those are taken, unless the user names
    others for A. Where A is a run and B holds raw and averaged weights as well, its are of the same kind as A's.
    """
    from ..recognise.reading import Options, read

    a = read(first, options)
    opened.enter_context(a.source)
    b, note = second(other, options, a, "model" if a.source.chosen else "")
    opened.enter_context(b.source)
    if a.source.chosen:
        if made := _made_of(a, b, options):
            a = read(first, made)
            opened.enter_context(a.source)
        b, note = second(other, options, a, a.label)
        opened.enter_context(b.source)
    elif b.source.chosen and (made := _made_of(b, a, Options(accept=options.accept))):
        b = read(other, made)
        opened.enter_context(b.source)
    return a, b, note


def _made_of(run: Reading, other: Reading, options: Options) -> Options | None:
    """The options of the step and the weights of a run of which the other says it was made; None where it is read so.

    Flags of the user come first, and a step that is no longer there, or has changed, is not what it was made of.
    """
    from ..recognise.reading import read
    from ..write.origin import source_hash

    made = other.provenance.get("source", {})
    step, key = made.get("step"), made.get("key")
    stated = options.step is not None or options.key
    if stated or type(step) is not int or not isinstance(key, str) or (step, key) == (run.source.step, run.label):
        return None
    exactly = replace(options, step=step if Path(run.path).is_dir() else None, key=key)
    try:
        with read(run.path, exactly).source as source:
            return exactly if source_hash(source) == made.get("sha256") else None
    except UserError:
        return None


def second(path: str, options: Options, a: Reading, key: str) -> tuple[Reading, str]:
    """The reading of B, by the config of A where its own files do not state one."""
    from ..recognise.config import MissingFields
    from ..recognise.reading import Options, read

    fields = {name: value_at(a.config, name) for name in a.config.function_fields()}
    by_a = "B does not state its config: it was read by that of A"
    keys, errors = dict.fromkeys((key, "")), list[UserError]()
    for note, sets in (("", {}), (by_a, {**fields, **options.sets})):
        if note and any(isinstance(error, MissingFields) for error in errors):
            _check_order(a, path)
        for each in keys:
            try:
                return read(path, Options(accept=options.accept, sets=sets, key=each)), note
            except UserError as error:
                errors.append(error)
    raise errors[len(keys) - 1]  # of B by itself


def _check_order(a: Reading, path: str) -> None:
    """Raise UserError where A was made by --adapt from B, whose config is then not that of A and stated nowhere."""
    from ..containers import open_source
    from ..write.origin import source_hash

    if not a.provenance.get("adaptations"):
        return
    with open_source(path) as source:
        made = source_hash(source) == _origin_of(a)
    if made:
        raise UserError(
            path,
            f"does not state its config, and {a.path} was made from it by --adapt",
            f"give what it does not state with --set, and it as the first: python -m convert verify {quote(path)} "
            f"{quote(a.path)} --set ...",
        )


def leave(report: Report, json: str, markdown: str) -> None:
    """Write the files that were asked for, and say so."""
    if json:
        write_json(Path(json), report.json())
        print_line(f"left      {json}")
    if markdown:
        write_text(Path(markdown), report.markdown())
        print_line(f"left      {markdown}")


def images(path: str, c: NetworkConfig, preprocess: Json | None) -> Inputs:
    """Pictures as a network takes them, and noise for its other inputs: path [B, h, w, C] -> {name of an input: array
    [B, ...]}.
    """
    taken = next((one for one in c.inputs() if one.kind == "pixels"), None)
    if taken is None:
        raise UserError(f"--images {path}", f"this is a {c.name}, which takes none", "leave the flag out")
    if not Path(path).is_dir():
        check_file(path)  # one that waits for a writer would be waited for
    given = pictures(path, taken.shape, preprocess)
    return noise(c, len(given)) | {taken.name: given}


def pictures(path: str, shape: tuple[int, ...], preprocess: Json | None) -> np.ndarray:
    """The pictures of a .npy, an image or, at most IMAGES, a folder -> float64 [B, h, w, C]."""
    if path.endswith(".npy"):
        try:
            given = np.lib.format.open_memmap(path, mode="r")  # which asks for no more memory than the file has bytes
        except (OSError, ValueError, EOFError, OverflowError) as error:
            raise UserError(f"--images {path}", f"cannot be read ({error})", "give a .npy file of numbers") from error
        if given.ndim != 4 or given.shape[1:] != shape or given.dtype.kind != "f" or not len(given):
            wanted = f"[B, {', '.join(map(str, shape))}] of floating-point numbers"
            raise UserError(
                f"--images {path}",
                f"{given.dtype.name} {list(given.shape)} is not {wanted}",
                "give an array of that kind",
            )
        if not np.isfinite(given).all():
            raise UserError(
                f"--images {path}", "holds NaN or infinity, on which no two networks are equal", "give finite numbers"
            )
        return np.array(given, np.float64)
    if preprocess is None:
        remedy = f"give --model NAME, or a .npy of [B, {', '.join(map(str, shape))}]"
        raise UserError(f"--images {path}", "the file says nothing of its preprocessing", remedy)
    from PIL import Image

    from vit_jax.data.images.preprocess import EXTENSIONS, Preprocess, open_image

    files = (
        sorted(p for p in Path(path).iterdir() if p.suffix.lower() in EXTENSIONS and p.is_file())[:IMAGES]
        if Path(path).is_dir()
        else [Path(path)]
    )
    if not files:
        raise UserError(f"--images {path}", "holds no images", "give a folder that does, or an image")
    way = Preprocess.from_dict(preprocess)
    with warnings.catch_warnings():
        warnings.simplefilter("error", Image.DecompressionBombWarning)
        pixels = np.stack([way.apply(open_image(file)) for file in files]) / 255
    return np.asarray((pixels - np.array(way.mean)) / np.array(way.std))
