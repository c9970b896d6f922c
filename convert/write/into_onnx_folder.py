"""A plan whose target is a folder with the programs of an encoder-decoder or a captioner, under the names of optimum.

encoder_model.onnx makes the memory of a source, decoder_model.onnx the logits after the first token with a cache, and
decoder_with_past_model.onnx those after each later token. generation_config.json has the special ids.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from vit_jax.errors import UserError
from vit_jax.files.atomic import write_json
from vit_jax.runs import Run

from ..containers.source import PROVENANCE
from ..layout import Json
from ..plan.groups import float32_arrays
from ..plan.plan import Plan
from ..plan.target import Target, sync, target
from .into_program import PLAIN
from .origin import file_hash, program_origin, source_hash
from .program.comparison import Difference, describe_comparison
from .program.interface import OPSET, PIXELS, Interface, Wanted, as_run_prepares, preparation
from .program.kinds import KINDS, kind_of
from .program.onnx_file import save, take_pixels, trace_function
from .program.writer import (
    LOGITS,
    MASK,
    MEMORY,
    MEMORY_MASK,
    POSITION,
    TOKENS,
    TextWriter,
    computed,
    open_programs,
    writing_of,
)
from .tokenizer import tokenizer_with_weights
from .write import Written, remarks

NAME, FIRST = "onnx", "encoder_model.onnx"  # what --to calls it; the file that names the folder's kind
GENERATION = ("decoder_start_token_id", "eos_token_id", "pad_token_id", "forced_eos_token_id")
STEPS, BATCHES, LENGTHS = 4, (1, 3), (5, 9)  # of the comparison: tokens, and sizes and lengths of batches of sources


def is_named(to: str) -> bool:
    """Whether --to names it."""
    return to.casefold() == NAME


def check_place(path: str, wanted: Wanted) -> Target:
    """The folder. Raises UserError where such a folder is not written."""
    goal = target(path, FIRST)
    if not goal.folder:
        what = "is the name of a file, and several programs go into a folder"
        raise UserError(path, what, "give a name without a suffix")
    wanted.check(FIRST)
    wanted.check_float32(path)
    kind_of(FIRST)
    return goal


def write_onnx_folder(plan: Plan, path: str, force: bool = False, wanted: Wanted = PLAIN) -> Written:
    """Write the network of a plan, whose layout is our own, as a folder of programs."""
    goal = check_place(path, wanted)
    check = partial(goal.check, plan.reading.source, force)
    check()
    generation = check_writer(plan)
    room = generation["max_length"]
    interface = _interface(plan, wanted)
    with goal.workspace() as workspace, ThreadPoolExecutor(1) as aside:
        check()  # once more: from here on no other conversion writes there
        known = aside.submit(source_hash, plan.reading.source)
        arrays = float32_arrays(plan)
        writer = TextWriter(plan.config, arrays, room)
        described = _write_programs(writer, interface, workspace)
        comparison = _compare(writer, interface, workspace)
        write_json(workspace / "generation_config.json", generation)
        for name, content in tokenizer_with_weights(plan).items():
            (workspace / name).write_bytes(content)
        files = {file.name: file_hash(file) for file in sorted(workspace.iterdir())}
        told = {
            "program": "ONNX", "opset": interface.opset, "room": room, "programs": described, "files": files,
            "input": _first_of(described["encoder_model"]["inputs"]),
            "output": {"name": LOGITS, "shape": ["batch", 1, writer.side.outputs]},
            "versions": KINDS[".onnx"].versions(), "compared": comparison,
            **program_origin(plan, known.result()),
        }  # fmt: skip
        write_json(workspace / PROVENANCE, told)
        sync(workspace)
        check()  # what another program put there meanwhile stays
        written = goal.settle(workspace)
    return Written(goal.path, written, told, [describe_comparison(comparison), *remarks(plan, goal, True)], "")


def check_writer(plan: Plan) -> Json:
    """Special ids, and the most tokens of a text. Raises UserError where a network writes no texts token by token."""
    path = plan.reading.path
    c: Any = getattr(plan.config, "text", plan.config)
    if not getattr(c, "decoder_depth", 0):
        what = f"holds a {plan.config.name} without a decoder, and `to {NAME}` writes networks that write texts"
        raise UserError(path, what, "write X.onnx of a network of images, or X.safetensors")
    if not c.target_vocabulary or not c.outputs:
        raise UserError(path, "its decoder takes vectors or has no head, so it writes no tokens", "write X.safetensors")
    if not c.causal:
        raise UserError(
            path, "its decoder is not causal, so it cannot write one token at a time", "write X.safetensors"
        )
    stated = {name: plan.facts.extra[name] for name in GENERATION if plan.facts.extra.get(name) is not None}
    stated |= {**(plan.facts.extra.get("generation") or {}), "max_length": c.max_length}
    if Run(path).exists():
        stated = writing_of(Run(path))
    if not stated["max_length"]:
        raise UserError(path, "does not state how long a text may be", "give `fields max_length=...`")
    return stated


def _interface(plan: Plan, wanted: Wanted) -> Interface:
    """What the encoder takes: of a captioner perhaps pixels, which it prepares as the run does."""
    pixels, prepared = plan.config.pixels(), plan.facts.preprocess
    preprocess = preparation(prepared) if pixels and prepared and wanted.takes == PIXELS else None
    return Interface(pixels or (0, 0, 0), "last_hidden_state", preprocess, opset=wanted.opset or OPSET)


def _write_programs(writer: TextWriter, interface: Interface, workspace: Path) -> Json:
    """Write the programs; returns {name: {"inputs": names, "outputs": names}}."""
    described = {}
    for name, (function, inputs, outputs) in writer.programs().items():
        model = trace_function(function, inputs, outputs, interface.opset)
        if name == "encoder_model" and interface.preprocess:
            take_pixels(model, interface)
        save(model, workspace / f"{name}.onnx")
        described[name] = {
            "inputs": {each.name: [str(n) for n in each.shape or ()] for each in model.graph.inputs},
            "outputs": outputs,
        }
    return described


def _first_of(inputs: dict[str, list[str]]) -> Json:
    name, shape = next(iter(inputs.items()))
    return {"name": name, "shape": shape}


def _compare(writer: TextWriter, interface: Interface, workspace: Path) -> Json:
    """The largest difference from ours of the logits after some tokens, as a share. Raises CheckFailed."""
    run = open_programs(workspace)
    rng, difference = np.random.default_rng(0), Difference()
    for batch, length in zip(BATCHES, LENGTHS, strict=True):
        source, taken = _noise(writer, interface, rng, batch, length)
        tokens = rng.integers(0, writer.side.target_vocabulary, (batch, min(STEPS, writer.room)), np.int32)
        mask = np.arange(length) < rng.integers(1, length + 1, (batch, 1))
        given = {run["encoder_model"].get_inputs()[0].name: taken} | ({MASK: mask} if writer.masked else {})
        memory = run["encoder_model"].run(None, given)[0]
        mask = mask if writer.masked else np.ones(memory.shape[:2], bool)
        found = _forced(run, memory, mask, tokens)
        exact = partial(computed, writer, source, mask, tokens, "float64")
        difference.add(found, computed(writer, source, mask, tokens), exact)
    return {"batches": list(BATCHES), "tokens": STEPS, **difference.check(workspace.name)}


def _noise(
    writer: TextWriter, interface: Interface, rng: np.random.Generator, batch: int, length: int
) -> tuple[np.ndarray, np.ndarray]:
    """(a source of ours, what the encoder's program is given)."""
    source = writer.source
    if source.kind == "ids":
        ids = rng.integers(0, source.size, (batch, min(length, source.longest or length)), np.int32)
        return ids, ids
    if interface.preprocess:
        h, w, channels = interface.shape
        pixels = rng.integers(0, 256, (batch, 2 * h, w + 1, channels), np.uint8)
        return as_run_prepares(interface.preprocess, pixels), pixels
    shape = (length, source.size) if source.kind == "vectors" else writer.config.pixels()
    assert shape is not None
    vectors = rng.standard_normal((batch, *shape), np.float32)
    return vectors, vectors


def _forced(run: Any, memory: np.ndarray, mask: np.ndarray, tokens: np.ndarray) -> np.ndarray:
    """The programs' logits [B, T, V] after each of some tokens [B, T]."""
    first = run["decoder_model"]
    made = first.run(None, {TOKENS: tokens[:, :1], MEMORY: memory, MEMORY_MASK: mask})
    names = [each.name.replace("present", "past_key_values") for each in first.get_outputs()[1:]]
    past, out = dict(zip(names, made[1:], strict=True)), [made[0]]
    for place in range(1, tokens.shape[1]):
        position = np.array([place], np.int32)
        given = {TOKENS: tokens[:, place : place + 1], MEMORY_MASK: mask, POSITION: position, **past}
        made = run["decoder_with_past_model"].run(None, given)
        past.update(zip(names[: len(made) - 1], made[1:], strict=True))
        out.append(made[0])
    return np.concatenate(out, 1)
