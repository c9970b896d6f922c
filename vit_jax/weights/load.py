"""Trained weights: loaded as a network for use, or exported to a file."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ..config.decoding import from_generation_config
from ..config.dotted import replace_fields
from ..config.lora import factor_shapes
from ..config.network import NetworkConfig
from ..config.run import RunConfig
from ..config.trees import flatten, unflatten
from ..data.texts.config import is_side, size_of_side
from ..errors import Field, UserError
from ..files.terminal import printable
from ..machine.numerics import with_fixed_settings
from ..models.build import definition, describe_network
from ..models.networks import NETWORKS
from ..models.state import merge, split_model
from ..runs import Run, find, is_foreign, mean_of
from ..tasks.base import Predictor, Task, Trained
from ..tasks.computed import searching, task_class, task_of
from ..tasks.table import task_spec, untrained_run
from ..text.languages import UNSTATED, Spoken
from ..text.record import with_spoken
from .checkpoint import Checkpoints
from .interop import convert_first, export_weights, of_load, read_weights, task_metadata

NO_ID = -1  # of a token that no file states
STATED = ("layout", "model", "key", "fields")  # what `load` may be told of other weights


@dataclass(frozen=True, repr=False)
class BareNetwork:
    """A network from a file that does not state everything that its use takes.

    `model` can be called on normalised images, or on ids.
    """

    model: Any
    run: RunConfig
    lacks: tuple[str, ...]  # the entries of the task's metadata that are missing
    notes: tuple[str, ...] = ()  # what its files state that is not used, a sentence each

    def __repr__(self) -> str:
        what = describe_network(self.run.model)
        return f"BareNetwork({what}; to be called as .model, its file lacks {', '.join(self.lacks)})"


@with_fixed_settings
def load(
    path: str | os.PathLike[str],
    which: str = "best",
    ema: bool | None = None,
    *,
    layout: str = "",
    model: str = "",
    key: str = "",
    fields: Mapping[str, Any] | None = None,
    source_language: str = "",
    target_language: str = "",
) -> Any:
    """A network with its weights and everything that its use takes.

    What the tensors of a file do not determine can be stated by `layout`, `model`, `key` and `fields`, as for `python
    -m convert`. Weights become float32, but float64 stays float64 and turns jax_enable_x64 on. Where a file prepares
    images in another size than its config states, the network is for that size, with its positions resized as its own
    library does: stderr says so.

    Args:
        path: the folder of a run, or its name inside runs/; or a file or folder of any layout that `python -m convert
            formats` lists, or hf://owner/name.
        which: of a run "best" (by validation; the last if there was none), "last", or "mean:K", the mean of the
            weights, not of their averages, of the last K checkpoints that the run has kept.
        ema: of a run, True takes the averaged weights and requires them, False the others. None takes, of the best,
            those that validation chose, and of the last the averaged ones if the run has them.
        layout: of a file, its layout, as --from.
        model: of a file, the published model that it holds, as --model.
        key: of a file, which of several sets of weights, as --key.
        fields: of a file, fields of the config, {"heads": 12}, as --set.
        source_language: of a tokenizer that knows several, the code of the language of sources; empty: as its files
            state it.
        target_language: the code of the language of targets; empty: likewise.

    Returns:
        A Classifier of images, or a Translator of sentences, and so on by the task. Of a file too, if it states how
            images
        become inputs or has a tokenizer beside it, whose search is then as a generation_config.json says; else a
        BareNetwork.

    Raises:
        UserError: where there are no such weights, or they are not known well enough to be used.
    """
    path, spoken = os.fspath(path), Spoken(source_language, target_language)
    if not is_foreign(path):
        if stated := [name for name, value in zip(STATED, (layout, model, key, fields), strict=True) if value]:
            raise UserError(path, "is a run, which states its network", f"leave {', '.join(stated)} out")
        return _of_run(path, which, ema, spoken)
    _check_unchosen(path, which, ema)
    with convert_first(path, of_load):
        network = _foreign(path, spoken, layout=layout, model=model, key=key, sets=fields or {})
    if isinstance(network, BareNetwork):
        _print_notes(path, network.notes)
    return network


def _of_run(path: str, which: str, ema: bool | None, spoken: Spoken) -> Predictor:
    """The network of a run, by path or by name. Raises UserError."""
    folder = find(path)
    saved, run = folder.metadata(), folder.config()
    if spoken and not saved.get("files"):
        _languages(run, spoken, path)
    metadata = with_spoken(saved, spoken)
    step, tree = weights(folder, run.model, which, ema)
    return _used_by(task_of(run, metadata), run, tree, metadata, step)


@with_fixed_settings
def complete(path: str, which: str = "best", ema: bool | None = None, spoken: Spoken = UNSTATED) -> Predictor:
    """`load` for what has all that its use takes. Raises UserError with the remedy for what has not."""
    if not is_foreign(path):
        return _of_run(path, which, ema, spoken)
    _check_unchosen(path, which, ema)
    with convert_first(path):
        network = _foreign(path, spoken)
    if not isinstance(network, BareNetwork):
        return network
    if "preprocess" not in network.lacks:
        _check_usable(path, network.run, network.lacks)
        name, lacks = network.run.model.name, ", ".join(network.lacks)
        raise UserError(
            path,
            f"holds a {name} without its {lacks}",
            "give a run that was trained here, or put the files of its tokenizer beside it",
        )
    command = f"python -m convert {shlex.quote(path)} X.safetensors --set mean=... --set std=..."
    why = next(
        (note for note in network.notes if "preprocessing" in note), "does not state how images are preprocessed"
    )
    raise UserError(
        path,
        why,
        f"state that with `{command}`, the mean and std of the pixels in 0..1 that it was trained with (a number a "
        "channel, with commas), then give X.safetensors here",
    )


def _check_unchosen(path: str, which: str, ema: bool | None) -> None:
    """Raise UserError if the weights of a run are chosen, where `path` is that of other weights."""
    if which != "best" or ema is not None:
        raise UserError(
            path,
            "is not a run, so there are no --weights and --ema to choose (in Python: which, ema)",
            "leave them out",
        )


def _network(run: RunConfig, tree: dict[str, Any]) -> Any:
    """The network of a run with parameters `tree` (a nested dict of arrays)."""
    if run.compute_dtype == "float64":
        jax.config.update("jax_enable_x64", True)
    return merge(definition(run.model, dtype=jnp.dtype(run.compute_dtype)), jax.tree.map(jnp.asarray, tree))


def _used_by(task: Task, run: RunConfig, tree: dict[str, Any], metadata: Mapping[str, Any], step: int) -> Predictor:
    """The Predictor of a task with a network of parameters `tree`; `metadata` may have other entries besides."""
    names = (*task_spec(run.task).metadata, "files")
    kept = {name: metadata[name] for name in names if name in metadata}
    return task.predictor(_network(run, tree), task, Trained(run, kept, step))


def _foreign(path: str, spoken: Spoken, **options: Any) -> Predictor | BareNetwork:
    """The network of a weight file of any layout, of which texts are in these languages."""
    given, arrays = read_weights(path, **options)
    config, facts = given.config, given.facts
    double = any(x.dtype == np.float64 for x in arrays.values())
    run, tree = replace(untrained_run(config), compute_dtype="float64" if double else "float32"), unflatten(arrays)
    metadata = task_metadata(facts, run.task, run.model)
    entries = task_spec(run.task).needed(metadata)
    for name, entry in entries.items():
        # Outputs may be named by default, but inputs can only be prepared as the file states.
        if name not in metadata and entry.of_head and (default := entry.default(config)) is not None:
            metadata[name] = default[0]
    beside = run.data.fields_with_weights(given.folder)
    run = replace_fields(run, _languages(run, spoken, path)) if spoken else run
    if beside:
        run = replace_fields(run, beside)
        metadata |= _tokenizer_with_weights(path, run)
    of_texts = config.inputs()[0].kind == "ids"
    # For texts, only a run or a tokenizer beside the weights states how they become words.
    lacks = tuple(
        name
        for name, entry in entries.items()
        if name not in metadata or (not beside and (of_texts or entry.in_files(metadata[name])))
    )
    if lacks:
        return BareNetwork(_network(run, tree), run, lacks, facts.notes)
    _print_notes(path, (*filter(None, [given.resized]), *facts.notes))
    task = task_of(run, metadata)
    if stated := facts.extra.get("generation"):
        decoding, lacking = from_generation_config(stated, facts.extra.get("eos_token_id", NO_ID))
        task = searching(task, vars(decoding))
        for name in lacking:
            print(
                f"note     generation_config.json: {name} is not known here; texts are searched for without it",
                file=sys.stderr,
            )
    return _used_by(task, run, tree, metadata, 0)


def _print_notes(path: str, notes: Iterable[str]) -> None:
    for note in notes:
        print(f"note     {printable(path)}: {printable(note)}", file=sys.stderr)


def _languages(run: RunConfig, spoken: Spoken, path: str) -> dict[str, str]:
    """The languages as fields of a run. Raises UserError where it has no such."""
    stated = {f"data.{side}_language": code for side, code in vars(spoken).items() if code}
    name, code = next(iter(stated.items()))
    if not hasattr(run.data, name.removeprefix("data.")):
        what = f"is {code[:40]}, but {path} holds a {run.model.name}, which reads no sentences"
        raise UserError(Field(name), what, "leave it out")
    return stated


def _check_usable(path: str, run: RunConfig, names: Iterable[str]) -> None:
    """Raise UserError where a network lacks a part, without which these entries of its metadata are of no use."""
    for lack in filter(None, (task_spec(run.task).metadata[name].part_lacking(run.model) for name in names)):
        remedy = f"give weights that have it, or train one with --init {shlex.quote(path)} --new-head"
        raise UserError(path, f"holds a {run.model.name} without {lack}", remedy)


def _tokenizer_with_weights(path: str, run: RunConfig) -> dict[str, Any]:
    """The metadata of the tokenizer that lies beside weights. Raises UserError where it is not that of the network."""
    entries, metadata = task_spec(run.task).metadata, task_class(run.task).metadata_with_weights(run)
    for name in entries.keys() & metadata.keys():
        if not entries[name].fits(metadata[name], run.model):
            _check_usable(path, run, [name])
            both = [f"{i.size:,}" for i in run.model.inputs() if i.kind == "ids"]
            raise UserError(
                path,
                f"the tokenizer beside it has ids for {_sizes(metadata[name])}, and the network for "
                f"{' and '.join(both)}",
                "put there the one that it was trained with",
            )
    return metadata


def _sizes(vocabulary: Any) -> str:
    sides = [vocabulary] if is_side(vocabulary) else vocabulary.values()
    return " and ".join(f"{size_of_side(side):,}" for side in sides)


def weights(
    folder: Run, model: NetworkConfig, which: str = "best", ema: bool | None = None
) -> tuple[int, dict[str, Any]]:
    """The weights of a run.

    Damaged checkpoints that were skipped, and what differs in config.json from what the checkpoints have recorded, are
    reported on stderr.

    Args:
        folder: the run's.
        model: the config of its network.
        which: as of `load`.
        ema: as of `load`.

    Returns:
        (step, parameters as a nested dict of numpy arrays).

    Raises:
        UserError: where the run has no such weights.
    """
    count = mean_of(which)
    if count and ema:
        raise UserError(f"ema is True, but {which} is the mean of the weights themselves", remedy="leave ema out")
    if remark := folder.remark():
        print(f"note     {printable(remark)}", file=sys.stderr)
    checkpoints, expected = Checkpoints(folder, factor_shapes(folder.config())), model.shapes()
    if count:
        return _mean(checkpoints, expected, count)
    saved, skipped = checkpoints.restore(expected)
    if saved is None:
        raise UserError(folder, "nothing has been saved here yet", "let it train until its first checkpoint")
    for reason in skipped:
        print(f"skipped  {printable(reason)}", file=sys.stderr)
    best = saved.notes.get("best") if which == "best" else None
    if best is not None and best["step"] != saved.step:
        try:
            saved = checkpoints.read(best["step"], expected)
        except UserError as error:
            raise UserError(
                folder, f"the best weights cannot be used, {error}", "take the last with --weights last"
            ) from error
    averaged = saved.state.averaged
    if ema and averaged is None:
        raise UserError(folder, "keeps no averaged weights", "train with --ema 0.999 to have them")
    chosen = best["weights"] if best else "ema"
    use = ema if ema is not None else chosen == "ema"
    return saved.step, averaged if use and averaged is not None else saved.state.parameters


def _mean(checkpoints: Checkpoints, expected: dict[str, Any], count: int) -> tuple[int, dict[str, Any]]:
    """(the newest step, the mean of the parameters) of the last `count` checkpoints of a run. Raises UserError."""
    folder, found, total = checkpoints.run, list[int](), dict[str, np.ndarray]()
    for step in _newest(folder):
        try:
            parameters = flatten(checkpoints.read(step, expected).state.parameters)
        except UserError as error:
            print(f"skipped  {printable(str(error))}", file=sys.stderr)
            continue
        found.append(step)
        for name, x in parameters.items():
            total[name] = total.get(name, 0) + x.astype(np.float64)
        if len(found) == count:
            return found[0], unflatten({name: (x / count).astype(parameters[name].dtype) for name, x in total.items()})
    raise UserError(
        folder,
        f"weights is mean:{count}, but only {len(found)} of its last checkpoints are there",
        f"give at most mean:{max(len(found), 1)}, or train with --keep {count}",
    )


def _newest(folder: Run) -> list[int]:
    """The steps of a run's last checkpoints, newest first, without one that is only kept because it is the best."""
    steps = folder.complete_steps()
    best = (folder.saved(steps[0])["notes"].get("best") or {}).get("step") if steps else None
    return steps[:-1] if len(steps) > folder.config().keep and steps[-1] == best else steps


@with_fixed_settings
def export(
    network: Any,
    path: str | os.PathLike[str],
    to: str = "vit-jax",
    which: str = "best",
    ema: bool | None = None,
    *,
    class_names: Sequence[str] = (),
    fields: Mapping[str, Any] | None = None,
) -> list[Path]:
    """Write a network's weights and config to a new file or folder, as `python -m convert` writes them.

    `load` opens what was written, but for programs.

    Args:
        network: a model of this package (a ViT, a Transformer), also one that a training loop of one's own has trained;
            what `load` returned, whose preprocessing and class names or words go along; or the path of a run or of
            weights.
        path: a file of a container that convert writes (X.safetensors, X.npz, X.pt, ...); or a folder: of our own
            layout a run's, of another the one that its library opens; or X.onnx or X.stablehlo, a program.
        to: a layout that `python -m convert formats` lists: "timm", "huggingface", ...; "vit-jax" is our own.
        which: of the path of a run, as of `load`.
        ema: of the path of a run, as of `load`.
        class_names: the names of the classes, where the network does not have them.
        fields: what neither the network nor its source states, by convert's names (--set): the "mean" and "std" of
            pixels in 0..1 that its images are normalised with, for example.

    Returns:
        The files.

    Raises:
        UserError: where the path exists, or the layout cannot hold the network.
    """
    if str(path).startswith("hf://"):
        raise UserError(
            path, f"is uploaded by `python -m convert PATH {path}`, which verifies it first", "export to a PATH here"
        )
    if os.path.lexists(path):
        raise UserError(path, "exists", "choose another name")
    stated = {"class_names": list(class_names)} if class_names else {}
    if isinstance(network, (str, os.PathLike)):
        source = _source(os.fspath(network), ema)
        if is_foreign(source):
            _check_unchosen(source, which, ema)
        elif mean_of(which):
            return export(load(source, which, ema), path, to, class_names=class_names, fields=fields)
        chosen = {} if is_foreign(source) else {"step": which, "key": {None: "", True: "ema", False: "model"}[ema]}
        return export_weights(source, os.fspath(path), to, stated, fields or {}, chosen)
    if isinstance(network, BareNetwork):
        network = network.model
    files: Mapping[str, bytes] = {}
    if hasattr(network, "metadata") and hasattr(network, "model"):
        files = network.metadata.get("files", {})
        kept = {name: network.metadata[name] for name in task_spec(network.run.task).needed(network.metadata)}
        network, stated = network.model, {**kept, **stated}
    if type(getattr(network, "config", None)) not in NETWORKS.values():
        raise UserError(
            "network",
            f"{type(network).__name__} is none",
            "give a model of vit_jax, what vit_jax.load returned, or a path",
        )
    return export_weights(
        (network.config, flatten(split_model(network)[1])), os.fspath(path), to, stated, fields or {}, None, files
    )


def _source(path: str, ema: bool | None) -> str:
    """The path of a run, or of weights. Raises UserError where there is none, or no average that is asked for."""
    if is_foreign(path):
        return path
    folder = find(path)
    if ema and not folder.config().ema:
        raise UserError(folder, "keeps no averaged weights", "train with --ema 0.999 to have them")
    return str(folder)
