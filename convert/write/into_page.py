"""A plan whose target is a page of HTML: it contains the network and what runs it, and opens without a server."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from vit_jax.errors import UserError
from vit_jax.kinds.table import class_of

from ..layout import Json
from ..plan.groups import float32_arrays
from ..plan.plan import Plan
from ..plan.target import sync, target
from ..recognise.outputs import unsettled
from .into_program import PLAIN, check_network, compare_program, interface_of
from .origin import file_hash, program_origin, source_hash
from .program.comparison import describe_comparison
from .program.examples import Examples
from .program.interface import Interface, Wanted
from .program.kinds import KINDS, kind_of
from .program.network import Forward
from .program.onnx_file import open_onnx, trace
from .program.page import NETWORK, PREPARE, compose, write_graphs
from .program.smaller import LIMITS, describe, examples_for, make_smaller
from .runtime import find_runtime
from .write import Written, remarks

SUFFIX = ".html"
LARGEST = 200_000_000  # bytes of weights: a browser unpacks them from one text
CELLS = 8  # rows and columns of cells that are covered, where a network has no patches


def is_page(path: str) -> bool:
    """Whether a target is such a page."""
    return path.lower().endswith(SUFFIX)


def check_page(path: str, wanted: Wanted) -> None:
    """Raise UserError where no page is written there, or something that it needs is missing."""
    if wanted.takes != PLAIN.takes:
        raise UserError(f"takes {wanted.takes}", f"{path} takes pictures", "leave it out")
    if wanted.opset:
        raise UserError(f"opset {wanted.opset}", f"{path} contains its runtime", "leave it out")
    wanted.check(path)
    find_runtime(path, wanted.runtime)
    kind_of(str(Path(path).with_suffix(".onnx")))


def write_page(plan: Plan, path: str, force: bool = False, wanted: Wanted = PLAIN) -> Written:
    """Write the network of a plan, whose layout is our own, as a page that runs it and explains its answers."""
    check_page(path, wanted)
    runtime, kind, goal = find_runtime(path, wanted.runtime), KINDS[".onnx"], target(path, "")
    check = partial(goal.check, plan.reading.source, force)
    check()
    _check_classifier(plan)
    interface = interface_of(plan, wanted, kind)
    examples, why_not = examples_for(plan, wanted)
    with goal.workspace() as workspace, ThreadPoolExecutor(1) as aside, tempfile.TemporaryDirectory() as place:
        check()  # once more: from here on no other conversion writes there
        known, graphs = aside.submit(source_hash, plan.reading.source), Path(place)
        forward = _forward(plan, path)
        needs = write_graphs(trace(forward, interface), interface, graphs)
        comparison = compare_program(_opened(graphs), forward, interface, goal.name)
        smaller: Json = {}
        told: list[str] = []
        for weights in wanted.smaller:
            smaller = _write_smaller(forward, interface, goal.name, weights, examples, graphs)
            changed = compare_program(_opened(graphs), forward, interface, goal.name, LIMITS[weights])
            comparison["smaller"] = changed["difference"]
            told.append(describe(weights, smaller, why_not))
        described = {
            "program": "HTML", **needs,
            "input": interface.described(),
            "output": {"name": interface.output, "shape": ["batch", *comparison.pop("outputs")], "dtype": "float32"},
            **({"weights": {"stored": wanted.weights[0], "measured": smaller}} if smaller else {}),
            "files": {name: file_hash(graphs / name) for name in (PREPARE, NETWORK)},
            "versions": kind.versions() | {"onnxruntime-web": runtime.version}, "compared": comparison,
            **program_origin(plan, known.result()),
        }  # fmt: skip
        data = _data(plan, interface) | {"provenance": described}
        title, about, details = _texts(plan, described, told)
        page = compose(title, about, details, data, graphs, runtime)
        (workspace / goal.name).write_text(page, encoding="utf-8")
        sync(workspace)
        check()  # what another program put there meanwhile stays
        files = goal.settle(workspace)
    return Written(
        goal.weights, files, described, [describe_comparison(comparison), *told, *remarks(plan, goal, False)], ""
    )


def _forward(plan: Plan, path: str) -> Forward:
    """The network of a plan as ours computes it. Raises UserError where a page cannot hold it."""
    forward = Forward(plan.config, float32_arrays(plan))
    if forward.nbytes > LARGEST:
        size = f"{forward.nbytes / 1e6:.0f} MB of weights are more than a page holds ({LARGEST / 1e6:.0f} MB)"
        raise UserError(path, size, "write X.onnx")
    return forward


def _write_smaller(
    forward: Forward, interface: Interface, name: str, weights: str, examples: Examples | None, graphs: Path
) -> Json:
    """Write the graphs with smaller weights in the place of those of float32; returns what that changes."""
    before = (graphs / NETWORK).stat().st_size
    model, measured = make_smaller(forward, interface, name, weights, examples)
    write_graphs(model, interface, graphs)
    return {**measured, "bytes": [before, (graphs / NETWORK).stat().st_size]}


def _opened(folder: Path) -> Callable[[np.ndarray], np.ndarray]:
    """The graphs in a folder as one function of pixels."""
    prepare, network = (open_onnx(folder / name) for name in (PREPARE, NETWORK))
    return lambda pixels: network(prepare(pixels))


def _check_classifier(plan: Plan) -> None:
    """Raise UserError where a network is no classifier of images."""
    check_network(plan)
    path, kind = plan.reading.path, plan.facts.outputs.kind
    if error := unsettled(path, plan.config, plan.facts.outputs):
        raise error
    if class_of(kind).activation == "none":
        what = f"gives {class_of(kind).each[1]}, and a page shows the answers of a classifier of images"
        raise UserError(path, what, "write X.onnx")
    channels = (plan.config.pixels() or (0, 0, 0))[2]
    if channels not in (1, 3):
        raise UserError(path, f"takes {channels} channels, and pictures in a browser are grey or RGB", "write X.onnx")


def _data(plan: Plan, interface: Interface) -> Json:
    """What the script of the page has to know."""
    assert interface.preprocess is not None
    c, outputs, (h, w, channels) = interface.preprocess, plan.facts.outputs, interface.shape
    count = plan.config.classes  # type: ignore[attr-defined]  # a classifier
    activation = class_of(outputs.kind).activation
    return {
        "activation": activation,
        "names": list(outputs.names) or [f"class {k}" for k in range(count)],
        "thresholds": list(outputs.thresholds) or [0.5] * (count if activation == "sigmoid" else 0),
        "shape": [h, w, channels],
        "grid": list(_grid(plan.config, (h, w))),
        "background": c.background,
        "mean": list(c.mean),
        "std": list(c.std),
    }


def _grid(config: Any, size: tuple[int, int]) -> tuple[int, int]:
    """The rows and columns of cells that are covered: those of the patches, where the network has them."""
    patch = getattr(config, "patch_size", None)
    (h, w), (p, q) = size, patch or (1, 1)
    return (h // p, w // q) if patch else (min(CELLS, h), min(CELLS, w))


def _texts(plan: Plan, described: Json, smaller: list[str]) -> tuple[str, str, list[str]]:
    """(the title, the sentence below it, paragraphs) for the reader of the page."""
    outputs, source = plan.facts.outputs, described["source"]["name"]
    names = list(outputs.names)
    shown = ", ".join(names[:6]) + (", …" if len(names) > 6 else "")
    of_labels = class_of(outputs.kind).activation == "sigmoid"
    tells = "which of these labels a picture has" if of_labels else "which class a picture belongs to"
    count = plan.config.classes  # type: ignore[attr-defined]  # a classifier
    about = f"A network that says {tells}: {count} in all{f' ({shown})' if shown else ''}."
    details = [
        "It decodes a picture, resizes it exactly as in training (as Pillow does) and runs the network on it, in this "
        "browser alone: no picture leaves this device, and nothing is loaded.",
        "The explanation is occlusion: each part of the picture is covered with the mean colour in turn, and what is "
        "shown is how much the score (the logit) of the answer falls. It says what this network needed, not whether "
        "it is right; parts that count only together with others can look unimportant.",
        "Compared with vit-jax when the page was written, on noise: outputs differ by "
        f"{described['compared']['difference']:.0e} of the largest (in float32). A browser may decode JPEG files, and "
        "transparent pixels, one or two grey levels otherwise than Pillow, and reads more than 8 bits a channel as 8.",
        *(f"Measured when the page was written: {each}." for each in smaller),
        f"{described['made_by']}, from {source}: {plan.config.describe()[0]}; ONNX Runtime Web "
        f"{described['versions']['onnxruntime-web']} (MIT licence, Microsoft).",
    ]  # fmt: skip
    title = f"{Path(source).stem if '.' in source else source}: what is in the picture?"
    return title, about, details
