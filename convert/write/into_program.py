"""A plan whose target is a program: written with the weights in it, opened again, run, and compared with ours.

Beside X.onnx stands X.onnx.json: what a user of the program has to know of its input and outputs, and where it comes
from.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import numpy as np

from vit_jax.config.network import NetworkConfig
from vit_jax.errors import UserError
from vit_jax.files.atomic import write_json
from vit_jax.models.networks import NETWORKS

from ..layout import Json
from ..plan.groups import float32_arrays
from ..plan.plan import Plan
from ..plan.target import sync, target
from ..recognise.outputs import unsettled
from ..recognise.preprocessing import unprepared
from ..recognise.reading import Reading
from .origin import file_hash, joint_hash, program_origin, source_hash, values_hash
from .program.comparison import LIMIT, Difference, describe_comparison
from .program.examples import Examples
from .program.interface import (
    ANY_IMAGES,
    BATCH,
    IMAGES,
    OPSET,
    PIXELS,
    Interface,
    Wanted,
    as_run_prepares,
    preparation,
    statements,
)
from .program.kinds import Kind, kind_of
from .program.network import Forward
from .program.onnx_file import finish
from .program.smaller import LIMITS, describe, examples_for, make_smaller
from .write import Written, remarks

PLAIN = Wanted()
BATCHES = (1, 3)  # sizes of the batches on which a program is compared with ours


def write_program(plan: Plan, path: str, force: bool = False, wanted: Wanted = PLAIN) -> Written:
    """Write the network of a plan, whose layout is our own, as a program."""
    wanted.check(path)
    kind, goal = kind_of(path), target(path, "")
    (check := partial(goal.check, plan.reading.source, force))()
    check_network(plan)
    if error := unsettled(plan.reading.path, plan.config, plan.facts.outputs):
        raise error
    interface = interface_of(plan, wanted, kind)
    examples, why_not = examples_for(plan, wanted)
    with goal.workspace() as workspace, ThreadPoolExecutor(1) as aside:
        check()  # once more: from here on no other conversion writes there
        known = aside.submit(source_hash, plan.reading.source)
        arrays = float32_arrays(plan)
        forward = Forward(plan.config, arrays)
        needs = kind.write(forward, interface, workspace / goal.name)
        comparison = compare_program(kind.open(workspace / goal.name), forward, interface, goal.name)
        notes, smaller = [describe_comparison(comparison)], {}
        for stored in wanted.smaller:
            smaller = _write_smaller(forward, interface, workspace / goal.name, stored, examples)
            changed = compare_program(kind.open(workspace / goal.name), forward, interface, goal.name, LIMITS[stored])
            comparison["smaller"] = changed["difference"]
            notes.append(describe(stored, smaller, why_not))
        weights = {"sha256": joint_hash(sorted((name, values_hash(array)) for name, array in arrays.items()))}
        described = {
            "program": kind.title,
            **needs,
            "input": interface.described(),
            "output": {"name": interface.output, "shape": [BATCH, *comparison.pop("outputs")], "dtype": "float32"},
            "stated": interface.stated,
            "weights": weights | ({"stored": wanted.weights[0], "measured": smaller} if smaller else {}),
            "files": {file.name: file_hash(file) for file in sorted(workspace.iterdir())},
            "versions": kind.versions(),
            "compared": comparison,
            **program_origin(plan, known.result()),
        }
        write_json(workspace / f"{goal.name}.json", described)
        sync(workspace)
        check()  # what another program put there meanwhile stays
        files = goal.settle(workspace)
    return Written(goal.weights, files, described, [*notes, *remarks(plan, goal, False)], "")


def _write_smaller(forward: Forward, interface: Interface, path: Path, weights: str, examples: Examples | None) -> Json:
    """Write a program with smaller weights in the place of that of float32; returns what that changes."""
    before = _bytes(path)
    for file in path.parent.glob(f"{path.name}*"):
        file.unlink()
    model, measured = make_smaller(forward, interface, path.name, weights, examples)
    finish(model, interface, path)
    return {**measured, "bytes": [before, _bytes(path)]}


def _bytes(path: Path) -> int:
    """The size of a program, with the file of weights beside it."""
    return sum(file.stat().st_size for file in path.parent.glob(f"{path.name}*"))


def as_used(reading: Reading, adapt: Sequence[str] = ()) -> list[str]:
    """The adaptations of a network that is used as its library uses it."""
    own = reading.resize if not any(text.startswith("resize=") for text in adapt) else ""
    return [*([own] if own else []), *adapt]


def _takes_images(config: NetworkConfig) -> bool:
    """Whether a network takes images and nothing else."""
    return [one.kind for one in config.inputs()] == ["pixels"]


def image_networks() -> list[str]:
    """The names of the networks that take images and nothing else."""
    return [network.name for network in NETWORKS.values() if _takes_images(network())]


def check_network(plan: Plan) -> None:
    """Raise UserError where no program is written of a network, or not without a word of the user."""
    config, path = plan.config, plan.reading.path
    if not _takes_images(config):
        takes = " and ".join(one.name for one in config.inputs())
        raise UserError(
            path,
            f"holds a {config.name}, which takes {takes}, and a program is written of a network that takes images "
            f"alone ({', '.join(image_networks())}), or of an encoder of texts alone",
            "give one, write a folder of programs with `to onnx`, or write X.safetensors",
        )
    check_float32(plan)


def check_float32(plan: Plan) -> None:
    """Raise UserError where weights are float64, which no program has."""
    if any(spec.dtype == np.float64 for spec in plan.specs.values()):
        what = "its weights are float64, and a program computes in float32"
        raise UserError(plan.reading.path, what, "add `dtype float32`")


def interface_of(plan: Plan, wanted: Wanted, kind: Kind) -> Interface:
    """What a program takes, gives and states. Raises UserError where pixels are not known to be prepared."""
    shape, prepared = plan.config.pixels(), plan.facts.preprocess
    assert shape is not None
    preprocess = None
    if wanted.takes == PIXELS:
        if prepared is None:
            raise unprepared(plan.reading.path, plan.reading.facts)
        preprocess = preparation(prepared)
    multiple = plan.config.any_size() if wanted.takes == ANY_IMAGES else None
    if wanted.takes == ANY_IMAGES and multiple is None:
        h, w, _ = shape
        why = f"this network takes images of {h}x{w} alone, as its positions or layers are made for these"
        raise UserError(f"takes {ANY_IMAGES}", why, f"give {PIXELS} or {IMAGES}")
    output = "logits" if getattr(plan.config, "classes", 0) else "features"  # of a network without classes
    stated = statements(plan.facts.outputs, preprocess, kind.least_batch)
    return Interface(shape, output, preprocess, multiple, wanted.opset or OPSET, stated)


def compare_program(
    run: Callable[[np.ndarray], np.ndarray], forward: Forward, interface: Interface, name: str, limit: float = LIMIT
) -> Json:
    """The largest difference of a program's outputs from ours, on noise. Raises CheckFailed where it is too large."""
    difference, outputs = Difference(limit), ()
    for given, images in _noise(interface):
        found, expected = run(given), forward.computed(images)
        outputs = expected.shape[1:]
        difference.add(found, expected, partial(forward.computed, images, "float64"))
    return {"batches": list(BATCHES), **difference.check(name), "outputs": list(outputs)}


def _noise(interface: Interface) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """(what a program is given, the images that a run makes of it) for each of BATCHES.

    Pixels are once tall and once wide: Pillow's two passes then come in one order and in the other.
    """
    rng, (h, w, channels) = np.random.default_rng(0), interface.shape
    for batch, (tall, wide) in zip(BATCHES, ((3.1, 0.6), (0.7, 2.3)), strict=True):
        if interface.preprocess is None:
            rows, columns = interface.multiple or (0, 0)
            size = (h + rows * (batch - 1), w + columns * 2 * (batch - 1))
            images = rng.standard_normal((batch, *size, channels), np.float32)
            yield images, images
            continue
        size = (round(h * tall) + 1, round(w * wide) + 1)
        pixels = rng.integers(0, 256, (batch, *size, channels), np.uint8)
        yield pixels, as_run_prepares(interface.preprocess, pixels)
