"""Trained weights, loaded as a network for use."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from ..config.decoding import from_generation_config
from ..config.dotted import replace_fields
from ..config.groups import factor_shapes
from ..config.network import NetworkConfig
from ..config.run import RunConfig
from ..config.trees import flatten, unflatten
from ..data.texts.config import is_side, size_of_side
from ..errors import Field, UserError
from ..files.places import pull_weights
from ..files.terminal import print_note, printable
from ..machine.numerics import with_fixed_settings
from ..models.build import definition
from ..models.networks import NETWORKS
from ..models.state import merge, split_model
from ..runs import Run, find, is_foreign, mean_of, of_summary
from ..runs.folder import with_calibration
from ..tasks.base import Task
from ..tasks.computed import task_of
from ..tasks.generated import searching
from ..tasks.predictor import Predictor, Trained
from ..tasks.table import task_spec, untrained_run
from ..tasks.translate.encoding import encodes
from ..text.classes import UNSTATED, Spoken
from ..text.record import make_tokenizers, with_spoken
from ..text.spoken import task_settings
from .checkpoint import Checkpoints
from .incomplete import BareNetwork, TextEncoder, unusable
from .interop import InMemory, StateDict, open_weights, task_metadata
from .opening import LOADS, convert_first

NO_ID = -1  # of a token that no file states


@with_fixed_settings
def load(
    path: str | os.PathLike[str] | Mapping[str, object] | nnx.Module,
    which: str = "best",
    ema: bool | None = None,
    *,
    layout: str = "",
    model: str = "",
    key: str = "",
    fields: Mapping[str, Any] | None = None,
    beside: Mapping[str, Mapping[str, Any]] | None = None,
    class_names: Sequence[str] = (),
    source_language: str = "",
    target_language: str = "",
    prefix: str = "",
    task: str = "",
) -> Predictor:
    """A network with its weights and everything that its use takes.

    What the tensors of a file do not determine can be stated by `layout`, `model`, `key` and `fields`, as for `python
    -m convert`. Weights become float32, but float64 stays float64 and turns jax_enable_x64 on. Where a file prepares
    images in another size than its config states, the network is for that size, with its positions resized as its own
    library does: stderr says so.

    Args:
        path: the folder of a run or its URL, its name inside runs/, or its summary as `train` returns it; or a file or
            folder of any layout that `python -m convert formats` lists, or hf://owner/name. Or weights in memory: a
            library's state dict {name: array or tensor}, or a model of this package, which is then used as it is, also
            while it is trained further.
        which: of a run "best" (by validation; the last if there was none), "last", or "mean:K", the mean of the
            weights, not of their averages, of the last K checkpoints that the run has kept.
        ema: of a run, True takes the averaged weights and requires them, False the others. None takes, of the best,
            those that validation chose, and of the last the averaged ones if the run has them.
        layout: of weights that are no run's, their layout, as --from.
        model: of such weights, the published model that they are, as --model.
        key: of such weights, which of several sets, as --key.
        fields: of such weights, fields of the config, {"heads": 12}, and how images are prepared, {"mean": [0.5],
            "std": [0.5]}, as --set.
        beside: of a state dict, the JSON files that its library keeps beside such weights, {"config.json":
            model.config.to_dict()}.
        class_names: of such weights, the names of the classes, where they do not state them.
        source_language: of a tokenizer that knows several, the code of the language of sources; empty: as its files
            state it.
        target_language: the code of the language of targets; empty: likewise.
        prefix: of such weights that translate, text before every source, "translate English to German: ".
        task: of a folder of such weights, a task in task_specific_params of its config.json, "summarization": its
            prefix, and its settings of the search.

    Returns:
        A Classifier of images, a Translator of sentences, a Describer, and so on by the task: a Predictor each. Of
        weights that are no run's too, if they state how images become inputs or have a tokenizer beside them, whose
        search is then as a generation_config.json says; else a BareNetwork, which says what is lacking.

    Raises:
        UserError: where there are no such weights, or they are not known well enough to be used.
    """
    path = of_summary(path)
    if not isinstance(cast(Any, fields or {}), Mapping):  # callers need not be typed
        raise UserError("fields", f"is a {type(fields).__name__}", "give a dict, {'mean': [0.5], 'std': [0.5]}")
    spoken = Spoken(source_language, target_language, prefix, task)
    options = {"layout": layout, "model": model, "key": key}
    stated = {"class_names": list(class_names)} if class_names else {}
    given = {name: value for name, value in {**options, "fields": fields, "class_names": class_names}.items() if value}
    if not isinstance(path, (str, os.PathLike)):
        check_unchosen("weights in memory", which, ema)
        return _in_memory(path, spoken, stated=stated, beside=beside, sets=fields or {}, **options)
    path = os.fspath(path)
    if beside:
        raise UserError("beside", "is for a state dict, and files have theirs beside them", "leave it out")
    if not is_foreign(path):
        if given:
            raise UserError(path, "is a run, which knows its network", f"leave {', '.join(given)} out")
        return _of_run(path, which, ema, spoken)
    check_unchosen(path, which, ema)
    with convert_first(path, LOADS):
        network = _foreign(path, spoken, stated=stated, sets=fields or {}, **options)
    if isinstance(network, BareNetwork):
        _print_notes(path, network.notes)
    return network


def _in_memory(weights: StateDict | nnx.Module, spoken: Spoken, **options: Any) -> Predictor:
    """The network of a state dict, or a model of this package with what is stated of it."""
    if isinstance(weights, Mapping):
        with convert_first("", LOADS):
            return _foreign(weights, spoken, **options)
    if type(getattr(weights, "config", None)) not in NETWORKS.values():
        kinds = "give the path of a run or of weights, a model of vit_jax, or the state dict of another"
        raise UserError("path", f"{type(weights).__name__} is none", kinds)
    arrays = flatten(split_model(weights)[1])
    with convert_first("", LOADS):
        network = _foreign((weights.config, arrays), spoken, **options)  # type: ignore[attr-defined]
    return replace(network, model=weights)


def _of_run(path: str, which: str, ema: bool | None, spoken: Spoken) -> Predictor:
    """The network of a run, by path or by name. Raises UserError."""
    folder = find(path, weights=True)
    saved, run = folder.metadata(), folder.config()
    if spoken and not saved.get("files"):
        _stated_of_texts(run, spoken, path)
    _check_prefix(run, spoken, path)
    step, tree, kind = weights(folder, run.model, which, ema)
    metadata = with_calibration(with_spoken(saved, spoken), folder, step, kind)
    network = predictor_of(run, tree, metadata, step, folder.path)
    if not getattr(run.data, "task", ""):
        return network
    return replace(network, task=_searching_as_stated(network.task, run, metadata, {}, network.task.target.ids.end))


@with_fixed_settings
def complete(
    path: str | Mapping[str, object] | Predictor | nnx.Module,
    which: str = "best",
    ema: bool | None = None,
    spoken: Spoken = UNSTATED,
) -> Predictor:
    """What `load` returns, if it has all that its use takes."""
    path = of_summary(path)
    if not isinstance(path, str):
        network = path if isinstance(path, Predictor) else load(path)
        check_unchosen("a network in memory", which, ema)
        if spoken or spoken != UNSTATED:
            raise UserError(
                "the languages and the prefix of texts",
                "belong to weights that are loaded",
                "give vit_jax.load them",
            )
        return network.whole()
    if not is_foreign(path):
        return _of_run(path, which, ema, spoken)
    check_unchosen(path, which, ema)
    with convert_first(path):
        network = _foreign(path, spoken)
        if isinstance(network, BareNetwork):
            command = f"python -m convert {shlex.quote(path)} X.safetensors --set mean=... --set std=..."
            raise network.refusal(f"`{command}`", ", then give X.safetensors here")
    return network


def check_unchosen(path: str, which: str, ema: bool | None) -> None:
    """Check that nothing is chosen of weights that are no run's."""
    if which != "best" or ema is not None:
        raise UserError(path, "is not a run, so there are no `which` and `ema` to choose", "leave them out")


def _network(run: RunConfig, tree: dict[str, Any]) -> Any:
    """The network of a run with parameters `tree` (a nested dict of arrays)."""
    if run.compute_dtype == "float64":
        jax.config.update("jax_enable_x64", True)
    return merge(definition(run.model, dtype=jnp.dtype(run.compute_dtype)), jax.tree.map(jnp.asarray, tree))


def predictor_of(
    run: RunConfig,
    tree: dict[str, Any],
    metadata: Mapping[str, Any],
    step: int = 0,
    folder: Path | None = None,
    task: Task | None = None,
) -> Predictor:
    """A network of parameters `tree` with all that its use takes; `metadata` may have other entries besides."""
    task = task or task_of(run, metadata)
    names = (*(name for name, entry in task_spec(run.task).metadata.items() if not entry.of_training), "files")
    kept = {name: metadata[name] for name in names if name in metadata}
    return task.predictor(_network(run, tree), task, Trained(run, kept, step, folder))


def _foreign(weights: str | StateDict | InMemory, spoken: Spoken, **options: Any) -> Predictor:
    """The network of weights of any layout, in a file or in memory, of which texts are in these languages."""
    with open_weights(weights, **options) as given:
        arrays = given.to_use()
    path, config, facts = given.path, given.config, given.facts
    double = any(x.dtype == np.float64 for x in arrays.values())
    run, tree = replace(untrained_run(config), compute_dtype="float64" if double else "float32"), unflatten(arrays)
    metadata = task_metadata(facts, run.task, run.model)
    entries = task_spec(run.task).needed(metadata)
    for name, entry in entries.items():
        # Outputs may be named by default, but inputs can only be prepared as the file states.
        if name not in metadata and entry.of_head and (default := entry.default(config)) is not None:
            metadata[name] = default[0]
    lacks_part = any(entry.part_lacking(config) for entry in entries.values())
    beside = run.data.fields_with_weights(given.folder) if isinstance(weights, str) else {}
    run = replace_fields(run, _stated_of_texts(run, spoken, path)) if spoken != UNSTATED else run
    if beside:
        run = replace_fields(run, beside)
    if beside and not lacks_part:
        metadata |= _tokenizer_with_weights(path, run)
    of_texts = config.inputs()[0].kind == "ids"
    # For texts, only a run or a tokenizer beside the weights states how they become words.
    lacks = tuple(
        name
        for name, entry in entries.items()
        if name not in metadata or (not beside and (of_texts or entry.in_files(metadata[name])))
    )
    if lacks:
        bare = BareNetwork(_network(run, tree), Task(), Trained(run, {}, 0), lacks, facts.notes, path)
        return _text_encoder(bare, facts.extra.get("pad_token_id"), bool(beside)) if encodes(config) else bare
    _print_notes(path, (*filter(None, [given.resized]), *facts.notes))
    end = facts.extra.get("eos_token_id", NO_ID)
    task = _searching_as_stated(task_of(run, metadata), run, metadata, facts.extra.get("generation") or {}, end)
    return predictor_of(run, tree, metadata, task=task)


def _searching_as_stated(
    task: Task, run: RunConfig, metadata: Mapping[str, Any], generation: Mapping[str, Any], end: int
) -> Task:
    """The task with the search that a generation_config.json states, and over it the task that data.task names."""
    files = {name.rpartition("/")[2]: content for name, content in metadata.get("files", {}).items()}
    named = getattr(run.data, "task", "")
    of_task = task_settings(files, named)
    if not (stated := {**generation, **{name: x for name, x in of_task.items() if name != "prefix"}}):
        return task
    decoding, lacking = from_generation_config(stated, end)
    lengths = {}
    if of_task and not getattr(task, "any_length", False):
        longest = getattr(task, "length", 0)
        lengths = {name: min(getattr(decoding, name), longest) for name in ("min_length", "max_length")}
    for name in lacking:
        where = f"data.task {named}" if name in of_task else "generation_config.json"
        print(f"note     {where}: {name} is not known here; texts are searched for without it", file=sys.stderr)
    return searching(task, {**vars(decoding), **lengths})


def _text_encoder(bare: BareNetwork, pad: int | None, beside: bool) -> TextEncoder:
    """The encoder of a network that writes no texts; `beside`: its run names a tokenizer. Raises UserError."""
    data: Any = bare.run.data
    source = make_tokenizers(data.tokenizer, 0, (), (), False, data.spoken)[0] if beside else None
    vocabulary = bare.run.model.inputs()[0].size
    if source is not None and len(source) != vocabulary:
        raise _other_tokenizer(bare.path, f"{len(source):,}", f"{vocabulary:,}")
    return TextEncoder(**vars(bare), source=source, pad=pad if source is None else source.ids.pad)


def _print_notes(path: str, notes: Iterable[str]) -> None:
    for note in notes:
        print_note(f"{path}: {note}", sys.stderr)


def _check_prefix(run: RunConfig, spoken: Spoken, path: str) -> None:
    """Raise UserError where texts of a run are to have another prefix, or task, than it was trained with."""
    for name in ("prefix", "task"):
        wanted, own = getattr(spoken, name), getattr(run.data, name, "")
        if wanted and wanted != own:
            trained = f"with {own!r}" if own else "without one"
            what = f"is {wanted[:60]!r}, but {path} was trained {trained}"
            raise UserError(Field(f"data.{name}"), what, "leave it out: what a run was trained with is used")


def _stated_of_texts(run: RunConfig, spoken: Spoken, path: str) -> dict[str, str]:
    """What is stated of texts as fields of a run. Raises UserError where it has no such."""
    sides = {f"data.{side}_language": getattr(spoken, side) for side in ("source", "target")}
    every = sides | {f"data.{name}": getattr(spoken, name) for name in ("prefix", "task")}
    stated = {name: value for name, value in every.items() if value}
    name, code = next(iter(stated.items()))
    if not hasattr(run.data, name.removeprefix("data.")):
        what = f"is {code[:40]}, but {path} holds a {run.model.name}, which reads no sentences"
        raise UserError(Field(name), what, "leave it out")
    return stated


def _tokenizer_with_weights(path: str, run: RunConfig) -> dict[str, Any]:
    """The metadata of the tokenizer that lies beside weights. Raises UserError where it is not that of the network."""
    entries, metadata = task_spec(run.task).metadata, task_spec(run.task).metadata_with_weights(run)
    for name in entries.keys() & metadata.keys():
        if not entries[name].fits(metadata[name], run.model):
            if error := unusable(path, run, [name]):
                raise error
            both = [f"{i.size:,}" for i in run.model.inputs() if i.kind == "ids"]
            raise _other_tokenizer(path, _sizes(metadata[name]), " and ".join(both))
    return metadata


def _other_tokenizer(path: str, has: str, wanted: str) -> UserError:
    what = f"the tokenizer beside it has ids for {has}, and the network for {wanted}"
    return UserError(path, what, "put there the one that it was trained with")


def _sizes(vocabulary: Any) -> str:
    sides = [vocabulary] if is_side(vocabulary) else vocabulary.values()
    return " and ".join(f"{size_of_side(side):,}" for side in sides)


def weights(
    folder: Run, model: NetworkConfig, which: str = "best", ema: bool | None = None
) -> tuple[int, dict[str, Any], str]:
    """The weights of a run -> (step, parameters as a nested dict of numpy arrays, what they are: raw, ema or mean).

    Damaged checkpoints that were skipped, and what differs in config.json from what the checkpoints have recorded, are
    reported on stderr.
    """
    count = mean_of(which)
    if count and ema:
        raise UserError(f"ema is True, but {which} is the mean of the weights themselves", remedy="leave ema out")
    pull_weights(folder.path)
    if remark := folder.remark():
        print_note(remark, sys.stderr)
    checkpoints, expected = Checkpoints(folder, factor_shapes(folder.config())), model.shapes()
    if count:
        newest, mean = _mean(checkpoints, expected, count)
        return newest, mean, "mean"
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
                folder, f"the best weights cannot be used, {error}", "take the last with `which last`"
            ) from error
    averaged = saved.state.averaged
    if ema and averaged is None:
        raise UserError(folder, "keeps no averaged weights", "train with `ema 0.999` to have them")
    chosen = best["weights"] if best else "ema"
    if averaged is not None and (ema if ema is not None else chosen == "ema"):
        return saved.step, averaged, "ema"
    return saved.step, saved.state.parameters, "raw"


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
        f"`which` is mean:{count}, but only {len(found)} of its last checkpoints are there",
        f"give at most mean:{max(len(found), 1)}, or train with `keep {count}`",
    )


def _newest(folder: Run) -> list[int]:
    """The steps of a run's last checkpoints, newest first, without one that is only kept because it is the best."""
    steps = folder.complete_steps()
    best = (folder.saved(steps[0])["notes"].get("best") or {}).get("step") if steps else None
    return steps[:-1] if len(steps) > folder.config().keep and steps[-1] == best else steps
