"""A plan whose target is a folder for transformers.js, which runs networks of Hugging Face in a browser or in Node."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import numpy as np

from vit_jax.errors import UserError
from vit_jax.files.atomic import write_json
from vit_jax.kinds.table import class_of

from ..containers.source import PROVENANCE
from ..dialects.huggingface import CLASSIFIER, PROBLEMS, labels
from ..dialects.huggingface_images import processor
from ..layout import Json, whole
from ..plan.groups import float32_arrays
from ..plan.plan import Plan
from ..plan.target import Target, sync, target
from ..recognise.outputs import unsettled
from ..recognise.preprocessing import STATED_BY, UNSTATED
from .into_program import BATCHES, PLAIN, check_network
from .origin import file_hash, program_origin, source_hash
from .program.comparison import LIMIT, Difference
from .program.examples import Examples
from .program.interface import OPSET, Interface, Wanted
from .program.kinds import Kind, kind_of
from .program.network import LARGEST
from .program.onnx_file import open_onnx, trace
from .program.smaller import LIMITS, describe, examples_for, make_smaller
from .program.transformers_js import (
    COLOURS,
    INPUT,
    OUTPUT,
    OfColours,
    measure_resizing,
    normalised,
    prepared,
    write_graph,
)
from .write import Written, remarks

NAME = "transformers-js"  # what --to calls it
MODEL = "onnx/model.onnx"
# {weights: (what the library calls them, its name of their file)}
DTYPES = {
    "float32": ("fp32", MODEL),
    "float16": ("fp16", "onnx/model_fp16.onnx"),
    "int8": ("q8", "onnx/model_quantized.onnx"),
}
OTHERWISE = "write X.onnx, which takes pictures of any size"


def is_named(to: str) -> bool:
    """Whether --to names it, also as transformers.js or TransformersJS."""
    return "".join(filter(str.isalnum, to.casefold())) == "transformersjs"


def write_transformers_js(plan: Plan, path: str, force: bool = False, wanted: Wanted = PLAIN) -> Written:
    """Write the network of a plan, whose layout is our own, as a new folder for transformers.js."""
    goal, kind = check_place(path, force, wanted)
    check = partial(goal.check, plan.reading.source, force=False)
    check()
    steps, images = _check_pictures(plan)
    examples, why_not = examples_for(plan, wanted)
    count = plan.config.classes  # type: ignore[attr-defined]  # a classifier
    with goal.workspace() as workspace, ThreadPoolExecutor(1) as aside:
        check()  # once more: from here on no other conversion writes there
        known = aside.submit(source_hash, plan.reading.source)
        forward = _forward(plan, images, path)
        (workspace / MODEL).parent.mkdir()
        interface = Interface(forward.shape, OUTPUT, opset=wanted.opset or OPSET)
        made = write_graph(trace(forward, interface), interface.opset, workspace / MODEL)
        comparison, resized = _compare(forward, workspace / MODEL), measure_resizing(forward)
        smaller = {
            weights: _write_smaller(forward, interface, workspace, weights, examples) for weights in wanted.smaller
        }
        told = [describe(weights, found, why_not) for weights, found in smaller.items()]
        write_json(workspace / "config.json", _config(plan, forward, wanted.weights[0]))
        write_json(workspace / "preprocessor_config.json", steps)
        (workspace / "README.md").write_text(_readme(plan, comparison["difference"], resized, told), encoding="utf-8")
        files = {str(p.relative_to(workspace)): file_hash(p) for p in sorted(workspace.rglob("*")) if p.is_file()}
        described = {
            "program": "transformers.js", **made,
            "input": {"name": INPUT, "shape": ["batch", *forward.shape], "axes": "NCHW", "dtype": "float32"},
            "output": {"name": OUTPUT, "shape": ["batch", count], "dtype": "float32"},
            **({"weights": {"measured": smaller}} if smaller else {}),
            "files": files, "versions": kind.versions(), "compared": comparison, "resizing": resized,
            **program_origin(plan, known.result()),
        }  # fmt: skip
        write_json(workspace / PROVENANCE, described)
        sync(workspace)
        check()  # what another program put there meanwhile stays
        goal.settle(workspace)
    notes = [*_notes(comparison["difference"], told, resized), *remarks(plan, goal, False)]
    return Written(goal.path, [goal.path / name for name in (*files, PROVENANCE)], described, notes, "")


def check_place(path: str, force: bool, wanted: Wanted) -> tuple[Target, Kind]:
    """(the folder, the kind of its program). Raises UserError where such a folder is not written."""
    goal = target(path, MODEL)
    if not goal.folder:
        is_file = f"is the name of a file, and `to {NAME}` writes a folder"
        raise UserError(path, is_file, "give a name without a suffix")
    if os.path.lexists(path):
        raise UserError(path, "exists", "choose another name")
    if force:
        never = "a folder for transformers.js is never replaced"
        raise UserError("force", never, "leave it out")
    model = os.path.join(path, MODEL)
    wanted.check(model, several=True)
    if wanted.takes != PLAIN.takes:
        raise UserError(f"takes {wanted.takes}", "transformers.js prepares pictures itself", "leave it out")
    return goal, kind_of(model)


def _check_pictures(plan: Plan) -> tuple[Json, Json]:
    """(preprocessor_config.json, our preprocessing). Raises UserError where transformers.js cannot run the network."""
    path, config, images = plan.reading.path, plan.config, plan.facts.preprocess
    check_network(plan)
    if error := unsettled(path, config, plan.facts.outputs):
        raise error
    if not getattr(config, "classes", 0):
        raise UserError(path, f"has no classes, and `to {NAME}` writes a classifier of images", "write X.onnx")
    if (kind := class_of(plan.facts.outputs.kind)).activation != "softmax":
        takes = "transformers.js takes those of a classifier of images for one class"
        raise UserError(path, f"its outputs are {kind.plural}, and {takes}", OTHERWISE)
    if images is None:
        raise UserError(path, f"{UNSTATED}, and transformers.js has to prepare them", f"give {STATED_BY}")
    if images["channels"] not in (1, COLOURS):
        channels = f"its images have {images['channels']} channels, and those of transformers.js have {COLOURS}"
        raise UserError(path, channels, OTHERWISE)
    three = {name: list(np.broadcast_to(images[name], COLOURS)) for name in ("mean", "std")}
    steps = processor({**images, **three, "channels": COLOURS})
    if steps is None:
        fit = f"fit {images['fit']}, size {images['size']} to images of {'x'.join(map(str, whole(images)['image']))}"
        raise UserError(
            path, f"its pictures are prepared by {fit}, which transformers.js has no setting for", OTHERWISE
        )
    return steps, images


def _forward(plan: Plan, images: Json, path: str) -> OfColours:
    """The network of a plan as ours computes it. Raises UserError where a browser cannot hold it."""
    forward = OfColours(plan.config, float32_arrays(plan), images)
    if forward.nbytes > LARGEST:
        size = f"{forward.nbytes / 1e9:.1f} GB of weights"
        raise UserError(path, f"{size} are more than a browser holds ({LARGEST / 1e9:.1f} GB)", OTHERWISE)
    return forward


def _notes(apart: float, smaller: list[str], resized: list[Json]) -> list[str]:
    """What a user is told of the folder: how far its answers are from ours, and what smaller weights change."""
    worst = max(each["probability"] for each in resized)
    return [
        f"run on batches of {' and '.join(map(str, BATCHES))}, it differs from ours by {apart:.1e} "
        "of the largest output where a picture needs no resizing",
        *smaller,
        f"transformers.js resizes pictures otherwise than predict: drawn ones moved a probability by up to {worst:.2g} "
        "(README.md in the folder)",
    ]


def _write_smaller(
    forward: OfColours, interface: Interface, folder: Path, weights: str, examples: Examples | None
) -> Json:
    """Write the graph with smaller weights beside that of float32; returns what that changes."""
    path = folder / DTYPES[weights][1]
    model, measured = make_smaller(forward, interface, path.name, weights, examples)
    write_graph(model, interface.opset, path)
    sizes = [file.stat().st_size for file in (folder / MODEL, path)]
    return {**measured, "bytes": sizes, "difference": _compare(forward, path, LIMITS[weights])["difference"]}


def _config(plan: Plan, forward: OfColours, weights: str) -> Json:
    """config.json: the class that runs any classifier of images by its graph, and the names of the classes."""
    return {
        **CLASSIFIER,
        "image_size": list(forward.shape[1:]),
        "num_channels": COLOURS,
        **labels(plan.config, plan.facts),  # type: ignore[arg-type]  # a classifier of images
        "problem_type": PROBLEMS["class"],
        "transformers.js_config": {"dtype": DTYPES[weights][0]},  # else it looks for a file of 8 bits
    }


def _compare(forward: OfColours, path: Path, limit: float = LIMIT) -> Json:
    """The largest difference of the graph from ours on pictures that need no resizing. Raises CheckFailed."""
    run, rng, difference = open_onnx(path), np.random.default_rng(0), Difference(limit)
    for batch in BATCHES:
        pictures = rng.integers(0, 256, (batch, *forward.shape[1:], COLOURS), np.uint8)
        found, images = run(normalised(pictures, forward.preprocess)), prepared(pictures, forward.preprocess)
        difference.add(found, forward.computed(images), partial(forward.computed, images, "float64"))
    return {"batches": list(BATCHES), **difference.check(path.name)}


def _readme(plan: Plan, apart: float, resized: list[Json], smaller: list[str]) -> str:
    """README.md: how the folder is used, and how far its answers are from those of `predict`."""
    images = whole(plan.facts.preprocess or {})
    h, w = images["image"]
    lines = [
        "---", "library_name: transformers.js", "pipeline_tag: image-classification", "---", "",
        f"# {plan.config.describe()[0]}", "",
        "Serve the folder beside your page, or put it below the working folder of Node, and name it:", "",
        "```js",
        'import { env, pipeline } from "@huggingface/transformers";', "",
        "env.allowRemoteModels = false;",
        'env.localModelPath = "./";  // the folder that this folder is in',
        'const classify = await pipeline("image-classification", "FOLDER");',
        'console.log(await classify("picture.png"));',
        "```", "",
        "## How far its answers are from those of `vit-jax predict`", "",
        f"Pictures of {h} x {w}{_unscaled(images)} need no resizing: the outputs differ by {apart:.1e} of the largest "
        "(measured in ONNX Runtime when this folder was written).", "",
        "Other pictures are resized by transformers.js, and not as in training: in Node it takes samples without "
        "antialiasing, and a browser's canvas has a filter of its own. For this network, "
        f"{resized[0]['pictures']} drawn pictures of each size, resized as transformers.js 4.3.1 does in Node:", "",
        "| pictures | difference of a pixel, of 255: largest (mean) | largest of a probability | same answer |",
        "| --- | --- | --- | --- |",
        *(
            f"| {' x '.join(map(str, each['size']))} | {each['levels'][0]} ({each['levels'][1]:.1f}) | "
            f"{each['probability']:.2g} | {each['same']} of {each['pictures']} |"
            for each in resized
        ), "",
        "For the same answers as `predict`, resize pictures before (with antialiasing, as Pillow does), or use the "
        "program X.onnx or the page X.html of vit-jax, which contain the resizing.", "",
        *(
            ["## Smaller weights", "", "`pipeline` takes `{ dtype: \"fp32\" }`, `\"fp16\"` or `\"q8\"` (int8).", "",
             *(f"- {each}." for each in smaller), ""]
            if smaller else []
        ),
        "transformers.js leaves out transparency, which `predict` lays over a background, and, in Node, the "
        "orientation that a camera states.",
    ]  # fmt: skip
    return "\n".join(lines) + "\n"


def _unscaled(images: Json) -> str:
    """What pictures of a size have to be besides, so that a preprocessing leaves them as they are."""
    edge = max(images["size"], images["image"][0])
    scaled = images["fit"] == "crop" and edge > min(images["image"])
    return f", cut out of the middle of pictures whose shorter side is {edge}," if scaled else ""
