"""A plan whose target is a program of an encoder alone: ids of any length, and which are no padding, to their vectors.

Inputs and output have the names of Hugging Face's optimum: input_ids and attention_mask, last_hidden_state. The program
is opened again, run, and compared with ours; beside X.onnx stands X.onnx.json, as beside that of other networks.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from vit_jax.config.network import NetworkConfig
from vit_jax.errors import UserError
from vit_jax.files.atomic import write_json

from ..layout import Json
from ..plan.groups import float32_arrays
from ..plan.plan import Plan
from ..plan.target import sync, target
from .into_program import BATCHES, PLAIN, check_float32
from .origin import file_hash, program_origin, source_hash
from .program.comparison import Difference, describe_comparison
from .program.interface import OPSET, PIXELS, Wanted
from .program.kinds import kind_of
from .program.onnx_file import open_named, save, trace_function
from .program.stablehlo import open_stablehlo, write_function
from .program.writer import MASK, MEMORY_OUT, TextWriter, encoded
from .write import Written, remarks

LENGTHS = (5, 140)  # of the sources in the comparison: the second reaches the farthest relative positions
POSITIONS = 512  # tokens of the longest source, where positions are computed and the network states no limit


def is_encoder(config: NetworkConfig) -> bool:
    """Whether a network is an encoder alone, of ids or of vectors."""
    return [one.kind for one in config.inputs()] in (["ids"], ["vectors"])


def write_encoder(plan: Plan, path: str, force: bool = False, wanted: Wanted = PLAIN) -> Written:
    """Write the network of a plan, whose layout is our own, as a program."""
    wanted.check(path)
    wanted.check_float32("a program of texts")
    if wanted.takes != PIXELS:
        raise UserError(f"takes {wanted.takes}", "is for networks of images, and this one takes texts", "leave it out")
    kind, goal = kind_of(path), target(path, "")
    check = partial(goal.check, plan.reading.source, force)
    check()
    check_float32(plan)
    config: Any = plan.config
    with goal.workspace() as workspace, ThreadPoolExecutor(1) as aside:
        check()  # once more: from here on no other conversion writes there
        known = aside.submit(source_hash, plan.reading.source)
        arrays = float32_arrays(plan)
        writer = TextWriter(config, arrays, 0 if config.position == "none" else POSITIONS)
        file = workspace / goal.name
        described, run = _write(writer, file, wanted.opset or OPSET)
        comparison = _compare(writer, run, goal.name)
        told = {
            "program": kind.title,
            **described,
            "stated": {"pad_token_id": plan.facts.extra.get("pad_token_id")},
            "files": {each.name: file_hash(each) for each in sorted(workspace.iterdir())},
            "versions": kind.versions(),
            "compared": comparison,
            **program_origin(plan, known.result()),
        }
        write_json(workspace / f"{goal.name}.json", told)
        sync(workspace)
        check()  # what another program put there meanwhile stays
        files = goal.settle(workspace)
    return Written(goal.weights, files, told, [describe_comparison(comparison), *remarks(plan, goal, False)], "")


def _write(writer: TextWriter, path: Path, opset: int) -> tuple[Json, Callable[..., np.ndarray]]:
    """Write the program; returns what its JSON says of it, and it as a function of a source and its mask."""
    function, inputs, outputs = writer.programs()["encoder_model"]
    if path.suffix.lower() == ".onnx":
        save(trace_function(function, inputs, outputs, opset), path)
        needs: Json = {"opset": opset}
        run = open_named(path)
    else:
        needs = write_function(function, [*inputs.values()], path, writer.nbytes)
        run = open_stablehlo(path)
    name, given = next(iter(inputs.items()))
    shapes = [str(n) for n in given.shape]
    return {
        **needs,
        "input": {"name": name, "shape": shapes, "dtype": str(given.dtype)},
        "mask": {"name": MASK, "shape": shapes[:2], "dtype": "bool", "values": "False at padding"},
        "output": {"name": MEMORY_OUT, "shape": [*shapes[:2], writer.side.width], "dtype": "float32"},
    }, run


def _compare(writer: TextWriter, run: Callable[..., np.ndarray], name: str) -> Json:
    """The largest difference from ours on noise, as a share. Raises CheckFailed where it is too large."""
    rng, difference, source = np.random.default_rng(0), Difference(), writer.source
    for batch, length in zip(BATCHES, LENGTHS, strict=True):
        length = min(length, source.longest or length)
        given: Any = rng.integers(0, source.size, (batch, length), np.int32)
        if source.kind == "vectors":
            given = rng.standard_normal((batch, length, source.size), np.float32)
        mask = np.arange(length) < rng.integers(1, length + 1, (batch, 1))
        exact = partial(encoded, writer, given, mask, "float64")
        difference.add(run(given, mask), encoded(writer, given, mask), exact)
    return {"batches": list(BATCHES), "lengths": list(LENGTHS), **difference.check(name)}
