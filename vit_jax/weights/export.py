"""Networks written: to files of any layout as `python -m convert` writes them, or as a state dict in memory."""

from __future__ import annotations

import contextlib
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Concatenate, Literal, ParamSpec, Protocol, cast, overload

import numpy as np
from flax import nnx

from ..config.trees import flatten
from ..errors import Field, UserError
from ..files.terminal import print_note
from ..machine.numerics import with_fixed_settings
from ..models.networks import NETWORKS
from ..models.state import split_model
from ..runs import find, is_foreign, mean_of
from ..tasks.predictor import Predictor
from ..tasks.table import task_spec
from .interop import InMemory, add_stated, check_convert, read_headers
from .load import check_unchosen, load
from .opening import EXPORTED, EXPORTS, WRITING, convert_first, options_in

NOT_OF_PROGRAMS = {  # {what an export to a program does not take: why}
    "to": "has no layout",
    "dtype": "computes in float32",
    "verify": "is always run and compared with ours before it gets its name",
}
P = ParamSpec("P")
Network = str | os.PathLike[str] | Predictor | nnx.Module
Dtype = Literal["", "float16", "bfloat16", "float32", "float64"]
Takes = Literal["pixels", "images", "images-of-any-size"]
Weights = Literal["float32", "float16", "int8"]


class _Exports(Protocol[P]):
    """`export`, as type checkers see it: with a path it gives the files, without one the state dict."""

    @overload
    def __call__(
        self, network: Network, path: str | os.PathLike[str], *more: P.args, **options: P.kwargs
    ) -> list[Path]: ...
    @overload
    def __call__(
        self, network: Network, path: None = None, *more: P.args, **options: P.kwargs
    ) -> dict[str, np.ndarray]: ...


def _as_exports(function: Callable[Concatenate[Network, Any, P], Any]) -> _Exports[P]:
    return cast(_Exports[P], function)


@_as_exports
@with_fixed_settings
def export(
    network: str | os.PathLike[str] | Predictor | nnx.Module,
    path: str | os.PathLike[str] | None = None,
    to: str = "vit-jax",
    which: str = "best",
    ema: bool | None = None,
    *,
    class_names: Sequence[str] = (),
    fields: Mapping[str, Any] | None = None,
    dtype: Dtype = "",
    verify: bool = False,
    shard_size: int | str = 0,
    takes: Takes = "pixels",
    opset: int = 0,
    onnxruntime_web: str | os.PathLike[str] = "",
    weights: Weights | Sequence[Weights] = "float32",
    calibrate: str = "",
) -> list[Path] | dict[str, np.ndarray]:
    """Write a network's weights and config to a new file or folder, as `python -m convert` writes them.

    `load` opens what was written, but for programs.

    Args:
        network: a model of this package (a ViT, a Transformer), also one that a training loop of one's own has trained;
            what `load` returned, whose preprocessing and class names or words go along; or the path of a run or of
            weights.
        path: a file of a container that convert writes (X.safetensors, X.npz, X.pt, ...); or a folder: of our own
            layout a run's, of another the one that its library opens; or X.onnx, X.stablehlo or X.html, a program.
            None: write nothing, and return the state dict, as the library's own load_state_dict takes it (with arrays
            for tensors).
        to: a layout that `python -m convert formats` lists: "timm", "huggingface", ...; "vit-jax" is our own;
            "transformers-js" a folder with a program that transformers.js runs.
        which: of the path of a run, the weights, as of `load`.
        ema: of the path of a run, whether their average, as of `load`.
        class_names: the names of the classes, where the network does not have them.
        fields: what neither the network nor its source states, by convert's names (--set): the "mean" and "std" of
            pixels in 0..1 that its images are normalised with, for example.
        dtype: that of the tensors, float16, bfloat16, float32 or float64, rounded to nearest; empty: as they are.
        verify: compute what was written with its library and compare it with the network, as --verify of convert does;
            the comparison is printed and left beside the file. It needs that library.
        shard_size: the most bytes of a file of weights in a folder of safetensors, such as "5GB" or 500_000_000: more
            become several files with an index, as transformers writes them; 0: one file.
        takes: of a program: "pixels", uint8 of any size, which it prepares as the run does; "images", float32,
            prepared and normalised before; or "images-of-any-size", such ones of other sizes than it was trained on.
        opset: of X.onnx: the opset of ONNX; 0: the usual one.
        onnxruntime_web: of X.html: where npm has installed onnxruntime-web, which the page contains: "node_modules".
        weights: of X.onnx and X.html: "float16" halves the file; "int8" also computes in int8, by ranges of 256
            training images; what that changes is measured on the run's validation, printed and left beside the file.
            A folder for transformers.js takes several, such as ["float16", "int8"].
        calibrate: images for that where the network is no run's, as data.source names them, such as "folder:PATH".

    Returns:
        The files; without a path the state dict, {name in the layout: array}.

    Raises:
        UserError: where the path exists, or the layout cannot hold the network.
        CheckFailed: where what was written is not the same function.
    """
    target, shard = None if path is None else os.fspath(path), _bytes(shard_size)
    _check_target(target, verify, shard)
    stated = {"class_names": list(class_names)} if class_names else {}
    run = str(network.trained.folder or "") if isinstance(network, Predictor) else ""
    several = (weights,) if isinstance(weights, str) else tuple(weights)
    asked = {"takes": takes, "opset": opset, "runtime": os.fspath(onnxruntime_web), "weights": several}
    asked |= {"calibrate": calibrate, "run": run}
    options: dict[str, Any] = {"sets": fields or {}, "dtype": dtype, "verify": verify, "shard": shard, "asked": asked}
    if isinstance(network, (str, os.PathLike)):
        source = _source(os.fspath(network), ema)
        if is_foreign(source):
            check_unchosen(source, which, ema)
            return export_weights(source, target, to, stated, **options)
        if not mean_of(which):
            chosen = {"step": which, "key": {None: "", True: "ema", False: "model"}[ema]}
            return export_weights(source, target, to, stated, chosen=chosen, **options)
        network = load(source, which, ema)
    if not isinstance(network, Predictor):
        return export_weights(in_memory(network), target, to, stated, **options)
    needed, metadata = task_spec(network.run.task).needed(network.metadata), network.metadata
    stated = {name: metadata[name] for name in needed if name in metadata} | stated
    return export_weights(in_memory(network.model), target, to, stated, files=metadata.get("files", {}), **options)


def _check_target(path: str | None, verify: bool, shard: int) -> None:
    """Raise UserError where nothing is written to a path, or nothing of the kind that is asked for."""
    if path is not None and path.startswith("hf://"):
        raise UserError(
            path, f"is uploaded by `python -m convert PATH {path}`, which verifies it first", "export to a PATH here"
        )
    if path is not None and os.path.lexists(path):
        raise UserError(path, "exists", "choose another name")
    if verify and path is None:
        raise UserError("verify", "compares what was written, and without a path nothing is", "give a path")
    if shard and (path is None or os.path.splitext(path)[1]):
        what = "is for the files in a folder of safetensors"
        raise UserError("shard_size", what, "give the path of a folder, or leave it out")


def _bytes(size: int | str) -> int:
    """A number of bytes, or a text such as 5GB. Raises UserError where it is none."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?) ?([kMG]?)B?", str(size), re.IGNORECASE)
    found = int(float(match[1]) * 1000 ** " kmg".index(match[2].lower() or " ")) if match else -1
    if found < 0 or isinstance(size, bool):
        raise UserError(Field("shard_size"), f"is {size!r:.40}", "give a number of bytes, or a text such as '5GB'")
    return found


def in_memory(model: Any) -> InMemory:
    """The config and the parameters of a model of this package."""
    if type(getattr(model, "config", None)) not in NETWORKS.values():
        raise UserError(
            "network",
            f"{type(model).__name__} is none",
            "give a model of vit_jax, what vit_jax.load returned, or a path",
        )
    arrays = flatten(split_model(model)[1])
    return _with_head_of(model.config, arrays), arrays


def _with_head_of(config: Any, arrays: Mapping[str, Any]) -> Any:
    """The config with the outputs of the head that a model has now. Raises UserError where more of it is new."""
    shapes = {name: x.shape for name, x in arrays.items()}
    field = "outputs" if hasattr(config, "outputs") else "classes"
    if shapes != config.shapes() and hasattr(config, field):
        sizes = {field: shapes["head.kernel"][-1] if "head.kernel" in shapes else 0}
        bias = "output_bias" if field == "outputs" else "head_bias"
        sizes |= {bias: "head.bias" in shapes} if sizes[field] and hasattr(config, bias) else {}
        config = replace(config, **sizes)
    table = config.shapes()
    if different := [name for name in {**table, **shapes} if table.get(name) != shapes.get(name)]:
        name = different[0]
        found, wanted = (list(x[name]) if name in x else "absent" for x in (shapes, table))
        raise UserError(
            "network",
            f"{name} is {found}, and by its config {wanted}",
            "a new head is an nnx.Linear named head; what else is new, set in network.config",
        )
    return config


def _source(path: str, ema: bool | None) -> str:
    """The path of a run, or of weights. Raises UserError where there is none, or no average that is asked for."""
    if is_foreign(path):
        return path
    folder = find(path, weights=True)
    if ema and not folder.config().ema:
        raise UserError(folder, "keeps no averaged weights", "train with `ema 0.999` to have them")
    return str(folder)


def _writer(path: str | None, layout: str, dtype: str, verify: bool, wanted: Any) -> Callable[..., Any] | None:
    """What writes the program that a path or a layout names; None where they name weights.

    Raises UserError where something is asked of a program that only weights have, or the reverse.
    """
    from convert.write.program.interface import check_no_program
    from convert.write.programs import check_program, is_named, program_writer

    if path is None and is_named(layout):
        raise UserError(f"to {layout!r}", "is a folder with a program in it", "give the path of a new folder")
    write_as = None if path is None else program_writer(path, layout)
    if path is None or write_as is None:
        takes = "" if wanted.takes == type(wanted).takes else wanted.takes
        flags = {"takes": takes, "opset": wanted.opset, "weights": wanted.smaller, "calibrate": wanted.calibrate}
        check_no_program({**flags, "onnxruntime_web": wanted.runtime}, path or "a state dict")
        return None
    to = "" if layout == "vit-jax" or is_named(layout) else layout
    for name, value in (("to", to), ("dtype", dtype), ("verify", verify)):
        if value:
            raise UserError(f"{name} {value!r}", f"{path} is a program, which {NOT_OF_PROGRAMS[name]}", "leave it out")
    check_program(path, layout, False, wanted)
    return write_as  # type: ignore[no-any-return]


def export_weights(
    given: str | InMemory,
    path: str | None,
    layout: str,
    stated: Mapping[str, Any],
    sets: Mapping[str, Any],
    chosen: Mapping[str, Any] | None = None,
    files: Mapping[str, bytes] | None = None,
    dtype: str = "",
    verify: bool = False,
    shard: int = 0,
    asked: Mapping[str, Any] | None = None,
) -> list[Path] | dict[str, np.ndarray]:
    """Write weights, or a program, with `convert`; `shard`: the most bytes of a file of weights, 0: there is one."""
    check_convert()
    from convert.plan.groups import stream
    from convert.plan.plan import plan
    from convert.write.into_program import as_used
    from convert.write.program.interface import Wanted
    from convert.write.write import write

    wanted = Wanted(**asked or {})
    with convert_first(given if isinstance(given, str) else "", EXPORTS):
        write_as = _writer(path, layout, dtype, verify, wanted)
        program = write_as is not None
        with _reading(given, stated, sets, chosen or {}, files or {}) as reading:
            to, adapt = ("vit-jax", as_used(reading)) if program else (layout, [])
            planned = plan(reading, to, adapt, dtype, folded=program)
            if path is None:
                return dict(stream(planned))
            written = write(planned, path, shard=shard) if write_as is None else write_as(planned, path, False, wanted)
            if verify:
                from convert.verify import certify

                certify(planned, written)
    for note in (*reading.facts.notes, *written.notes):
        print_note(f"{note}{EXPORTED if (options_in(note) - EXPORTS) & WRITING else ''}", sys.stderr)
    return written.files


@contextlib.contextmanager
def _reading(
    given: str | InMemory,
    stated: Mapping[str, Any],
    sets: Mapping[str, Any],
    chosen: Mapping[str, Any],
    files: Mapping[str, bytes],
) -> Iterator[Any]:
    """The reading of weights, with what is stated of them besides; the arguments are those of `export_weights`."""
    from convert.recognise.tokenizer import special_ids

    reading = read_headers(given, sets=sets, **chosen)
    with reading.source:
        if files:
            reading.source.beside = lambda: dict(files)
            reading.facts = replace(reading.facts, extra={**special_ids(reading.source), **reading.facts.extra})
        # Weights alone: a run's optimizer belongs to the step that training goes on from.
        reading.source.tree = {name: item for name, item in reading.source.tree.items() if name != "optimizer"}
        add_stated(reading, stated)
        yield reading
