"""The only use of `convert` in vit_jax: weights of any layout, in files or in memory, as networks of this package."""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import json
import math
import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np

from ..config.dotted import replace_fields
from ..config.fields import pair
from ..config.network import NetworkConfig
from ..config.outputs import Outputs
from ..errors import UserError
from ..tasks.table import task_spec

if TYPE_CHECKING:
    from convert.containers.source import Source, Tensor
    from convert.recognise.reading import Reading

OURS = Path(__file__).parents[2] / "convert" / "__init__.py"
NETWORK = "a network in Python"
PREFIX = 10  # more tokens than stand before the patches, of those that have positions


StateDict = Mapping[str, Any]  # a state dict, {name: array of numpy or jax, or tensor of PyTorch}
InMemory = tuple[NetworkConfig, Mapping[str, Any]]  # of a network: its config, {dotted parameter name: array}


def check_convert() -> None:
    """Raise UserError where a file of the user's hides our package: Python looks first where he starts."""
    spec = importlib.util.find_spec("convert")
    if spec and spec.origin and not os.path.samefile(spec.origin, OURS):
        raise UserError(
            "convert", f"{spec.origin} hides this package of vit-jax", "rename it, or start in another folder"
        )


@dataclass(frozen=True)
class Weights:
    """The weights in an opened file, folder or run: what its headers say; values are read by `arrays`."""

    layout: str
    config: NetworkConfig
    facts: Any  # preprocessing, class names and notes, as far as they are stated: convert.layout.Facts
    assumed: tuple[str, ...]  # fields of the config that only the caller stated
    chosen: str  # of a run: which step and which of its weights; else empty
    plan: Any
    resize: str = ""  # the --adapt by which its library takes images of its preprocessing, where config has other ones
    resized: str = ""

    @property
    def path(self) -> str:
        """Where they are; of weights in memory what messages call them."""
        return str(self.plan.reading.path)

    @property
    def folder(self) -> Path:
        """The folder that they are in, or that they are, if they are not in memory."""
        path = Path(self.plan.reading.source.path)
        return path if path.is_dir() else path.parent

    @property
    def prepared(self) -> dict[str, Any]:
        """{"image": the size that its preprocessing makes}, where that is another than of `config`; else empty."""
        return {"image": tuple(self.facts.preprocess["image"])} if self.resize else {}

    def arrays(self) -> Iterator[tuple[str, np.ndarray]]:
        """(our parameter name, array in the file's dtype) of every parameter, each read once."""
        from convert.plan.groups import stream

        return ((name, x) for name, x in stream(self.plan) if name in self.plan.specs)

    def to_use(self) -> dict[str, np.ndarray]:
        """All parameters, float64 as it is, others as float32. Raises UserError where their use is not known."""
        from convert.recognise.outputs import unsettled

        if error := unsettled(self.path, self.config, self.facts.outputs):
            raise error
        return {name: x if x.dtype == np.float64 else x.astype(np.float32) for name, x in self.arrays()}


def read_headers(
    given: str | StateDict | InMemory, beside: Mapping[str, Mapping[str, Any]] | None = None, **options: Any
) -> Any:
    """Weights in a file, folder or run of any layout, in hf://owner/name or in memory, opened and recognised."""
    check_convert()
    from convert.recognise.reading import Options, identify, read

    if isinstance(given, str):
        return read(given, Options(**options))
    if isinstance(given, Mapping):
        return identify(state_source(given, beside or {}), Options(**options))
    return network_reading(*given, options.get("sets", {}))


@contextlib.contextmanager
def open_weights(
    given: str | StateDict | InMemory,
    start: Start | None = None,
    stated: Mapping[str, Any] | None = None,
    **options: Any,
) -> Iterator[Weights]:
    """Named arrays with their config, for images as large as they are prepared.

    Args:
        given: what `read_headers` takes, as are `options`.
        start: where a run starts from them, what of its network they need not state.
        stated: metadata of the network's task, which counts more than what they state.
    """
    reading, assumed = start.read(str(given)) if start else (read_headers(given, **options), ())
    if stated:
        add_stated(reading, stated)
    with reading.source:
        if start:
            check_network(type(reading.config), start.network)
        yield _plan(reading, assumed, start is None or start.resize)


def _plan(reading: Any, assumed: tuple[str, ...], resize: bool = True) -> Weights:
    """A reading's weights; with `resize`, of a network for images of the size that its preprocessing makes."""
    from convert.plan.plan import plan
    from convert.recognise import weights_in

    resized = reading.resize if resize else ""
    planned = plan(reading, "vit-jax", [resized] if resized else [])
    facts = planned.facts if resize else reading.facts
    says = "".join(_as_library(each.says) for each in planned.adaptations)
    chosen = weights_in.describe_choice(reading.source, reading.label, option=False)
    rest = "" if resized else reading.resize
    return Weights(reading.layout.name, planned.config, facts, assumed, chosen, planned, rest, says)


def _as_library(says: str) -> str:
    """What a `Weights.resize` does, in words."""
    made = says.removesuffix(", the function changes")
    return f"{made}, as its library computes images of the size that its preprocessing makes"


class Unstated(UserError):
    """Fields of a network that neither its weights nor the caller tell; `published`: whether --model of convert may."""

    def __init__(self, fields: Sequence[str], network: type[NetworkConfig]):
        from convert.dialects.architectures import published

        super().__init__(f"its tensors cannot tell {', '.join(fields)}")
        self.fields, self.published = tuple(fields), published(network)


@dataclass(frozen=True)
class Start:
    """What a run, which starts from weights, states of the network that they are to be of."""

    network: type[NetworkConfig]
    otherwise: Mapping[str, Any]  # fields of the network that are taken where the weights do not tell them
    headless: bool  # its head is left out or made anew
    square: bool = False  # where they do not tell the image, it may be a square that fits their positions
    resize: bool = False  # it is for images of the size that their preprocessing makes

    def read(self, path: str) -> tuple[Any, tuple[str, ...]]:
        """(the weights as `read_headers` gives them, the fields that only `otherwise` states). Raises UserError."""
        check_convert()
        from convert.recognise.config import MissingFields

        try:
            return read_headers(path := _fetch(path), headless=self.headless), ()
        except MissingFields as error:
            check_network(error.network, self.network)
            assumed = error.fields
        unfit = self._correcting(assumed)
        try:
            return read_headers(path, otherwise={**self.otherwise}, unfit=unfit, headless=self.headless), assumed
        except MissingFields as still:
            tried = self._squares(path, still) if self.square and still.fields == ("image",) else []
            if len(tried) != 1:
                fields = [name for name in self.network.function_fields() if name in still.fields]
                raise Unstated(fields, self.network) from still
            return read_headers(path, otherwise={**self.otherwise, "image": tried[0]}, headless=self.headless), assumed

    def _correcting(self, assumed: Collection[str]) -> str:
        """What helps where the tensors are not those of these fields."""
        hidden = self.network.marked("not_in_weights")
        shown = [name for name in self.network.function_fields() if name not in hidden]
        seen = [name for name in shown if name in assumed and name in self.otherwise]
        resample = ", or resample its positions with `init_resize timm`" if "image" in seen else ""
        return f"correct {' and '.join(f'`model.{name}`' for name in seen)}{resample}"

    def _squares(self, path: str, error: Any) -> list[tuple[int, int]]:
        """The images, as many patches high as wide, of which the tensors of a file can hold the positions."""
        (h, w), found = pair(error.known["patch"]), []
        lengths = {length for shape in error.names.values() for length in shape}
        sides = {math.isqrt(length - prefix) for length in lengths for prefix in range(min(PREFIX, length))}
        for side in sorted(sides - {0}):
            with contextlib.suppress(UserError):
                otherwise = {**self.otherwise, "image": (side * h, side * w)}
                read_headers(path, otherwise=otherwise, headless=self.headless).source.close()
                found.append((side * h, side * w))
        return found


def config_in(path: str) -> NetworkConfig:
    """The config of the network whose weights a file or folder holds; fields that it does not tell have defaults."""
    check_convert()
    from convert.recognise.config import MissingFields

    try:
        reading = read_headers(_fetch(path), headless=True)
        with reading.source:
            return reading.config  # type: ignore[no-any-return]
    except MissingFields as error:
        return replace_fields(error.network(), error.known)


def check_network(given: type[NetworkConfig], wanted: type[NetworkConfig]) -> None:
    """Raise UserError where weights are of another kind of network than a run trains."""
    if given is not wanted:
        why, another = f"and the run trains a {wanted.name}", f"name a preset that trains a {given.name}"
        if given.frozen:
            why = f"which is only used, never trained: {given.frozen}"
            another = "give it as `teacher` to a preset that distils"
        raise UserError(f"holds a {given.name}, {why}", remedy=f"{another}, or leave it out")


def task_metadata(facts: Any, task: str, config: NetworkConfig) -> dict[str, Any]:
    """The metadata of a task that a file states, as far as it fits the network -> {name: value}."""
    entries = task_spec(task).metadata
    stated = {**facts.extra, "preprocess": facts.preprocess, **facts.outputs.to_metadata()}
    values = {name: stated.get(name) for name in entries}
    return {name: value for name, value in values.items() if value and entries[name].fits(value, config)}


@functools.cache
def _fetch(path: str) -> str:
    """A path unchanged; of hf://owner/name that of its copy here: the hub is asked once in a process."""
    from convert.containers.hub import fetch

    return fetch(path) if path.startswith("hf://") else path


def cannot_hold(layout: str, config: NetworkConfig) -> str:
    """Why no file of a layout holds a network, and what to do about it, in words of convert; empty where one can."""
    from convert.plan.plan import refusal, target_layout

    target = target_layout(layout, config)
    return refusal(target, config) if target.cannot(config) else ""


@dataclass(frozen=True)
class Change:
    """What adaptations make of a network, and in words (`says`, a clause each)."""

    config: NetworkConfig
    facts: Any
    says: tuple[str, ...]
    adaptations: Sequence[Any]

    def apply(self, arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Parameters {dotted name: array} of the network before as those of the network after."""
        from convert.adapt import apply

        for adaptation in self.adaptations:
            arrays = apply(adaptation, arrays)
        return arrays


def plan_change(weights: Weights, texts: Sequence[str]) -> Change:
    """The change of weights that `python -m convert --adapt TEXT ...` makes."""
    from convert.adapt import adaptations

    facts, made = weights.facts, adaptations(weights.config, texts)
    for adaptation in made:
        facts = adaptation.facts(facts)
    says = tuple(_as_library(each.says) if each.text == weights.resize else each.says for each in made)
    return Change(made[-1].config if made else weights.config, facts, says, made)


def add_stated(reading: Any, stated: Mapping[str, Any]) -> None:
    """Let metadata of the network's task count more than what the weights themselves state."""
    from convert.recognise.preprocessing import fitting

    facts, config = reading.facts, reading.config
    names = stated.get("class_names") or None
    if names and len(names) != (classes := getattr(config, "classes", 0)):
        raise UserError(
            "class_names", f"there are {len(names)} and the network has {classes} classes", "give one for each"
        )
    outputs = Outputs.of(stated) if "outputs" in stated else facts.outputs
    extra = {name: x for name, x in stated.items() if name not in ("preprocess", "class_names", "outputs")}
    facts = replace(
        facts,
        preprocess=stated.get("preprocess") or facts.preprocess,
        outputs=replace(outputs, names=tuple(names)) if names else outputs,
        extra={**extra, **facts.extra},
    )
    reading.facts = fitting(facts, config, bool(reading.layout.resizes(config)))


# -------------------------------------------------------------------------------- weights in memory, as files


def state_source(state: Mapping[str, Any], beside: Mapping[str, Mapping[str, Any]]) -> Source:
    """A state dict as an opened file."""
    from convert.containers.source import STATE_DICT, Source, leaves

    tree = _tree(state)
    tensors = leaves(tree)
    if not tensors:
        raise UserError(STATE_DICT, "holds no arrays", "give {name: array or tensor}, such as model.state_dict()")
    size = sum(each.nbytes for each in tensors.values())
    try:
        files = json.loads(json.dumps(beside))  # as in a file: names are texts
    except (TypeError, ValueError) as error:
        raise UserError("beside", f"is no JSON ({error})", "give {'config.json': model.config.to_dict()}") from error
    return Source(STATE_DICT, "torch", tree, size=size, side=files)


def _tree(state: Mapping[str, Any]) -> dict[str, Any]:
    """A state dict with a Tensor for each array in it."""
    found: dict[str, Any] = {}
    for name, value in state.items():
        if isinstance(value, Mapping):
            found[name] = _tree(value)
        else:
            found[name] = _tensor(name, value) if hasattr(value, "__array__") else value
    return found


def _tensor(name: str, value: Any) -> Tensor:
    from convert.containers.source import Tensor

    array = as_numpy(name, value)
    return Tensor(name, array.dtype, array.shape, functools.partial(np.array, array, order="C"))


def as_numpy(name: str, value: Any) -> np.ndarray:
    """An array of any library as one of numpy with the same values."""
    try:
        if hasattr(value, "detach"):  # of PyTorch, whose bfloat16 numpy does not know
            value = value.detach().cpu()
            if str(value.dtype) == "torch.bfloat16":
                return np.asarray(value.float()).astype(ml_dtypes.bfloat16)
        return np.asarray(value)
    except (TypeError, ValueError, RuntimeError) as error:
        reason = str(error).partition("\n")[0]
        raise UserError(
            "the state dict", f"{name} cannot be read ({reason})", "give it as an array of numpy"
        ) from error


def network_reading(config: NetworkConfig, arrays: Mapping[str, Any], sets: Mapping[str, Any]) -> Reading:
    """A network of this package as an opened and recognised file."""
    from convert.containers.source import Source, Tensor
    from convert.layout import Facts
    from convert.plan.plan import target_layout
    from convert.recognise import outputs
    from convert.recognise.layouts import extras
    from convert.recognise.preprocessing import SETTABLE
    from convert.recognise.reading import Reading

    layout = target_layout("vit-jax", config)
    known = {*SETTABLE, outputs.TARGET, *extras(layout.network)}
    if unknown := [name for name in sets if name not in known]:
        raise UserError(
            "fields", f"{unknown[0]!r} is not a field of this network", f"there are {', '.join(sorted(known))}"
        )
    tensors = {
        name: Tensor(name, np.dtype(x.dtype), tuple(x.shape), functools.partial(np.array, x, order="C"))
        for name, x in arrays.items()
    }
    extra = {name: value for name, value in sets.items() if name not in (*SETTABLE, outputs.TARGET)}
    statistics = {name: value for name, value in sets.items() if name in SETTABLE}
    source = Source(NETWORK, "safetensors", {**tensors}, side={})
    reading = Reading(source, layout, config, tensors, layout.rows(config), Facts(extra=extra), [], {}, statistics)
    return replace(reading, target=outputs.target(sets))
