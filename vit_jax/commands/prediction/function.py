"""The function `vit_jax.predict`: inputs from Python to answers."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, Protocol, cast, overload

from ...config.ranges import check_ranges
from ...data.inputs import Stored
from ...data.items import source_named
from ...errors import Field, UserError
from ...files.shown import predictions
from ...text.classes import Spoken
from ..share import check_draws, read_share
from .answering import Answering, note
from .flags import BATCH, Options
from .inputs import batch_starts, count_asked, open_network, taken_by, takes
from .sources import sources_of

if TYPE_CHECKING:
    from flax import nnx

    from ...tasks.predictor import Predictor

    Network = str | os.PathLike[str] | Mapping[str, object] | Predictor | nnx.Module

P = ParamSpec("P")
Prediction = str | list[tuple[str, float]]


class _Predicts(Protocol[P]):
    """`predict`, as type checkers see it: a list of inputs gives a list."""

    @overload
    def __call__(
        self, path: Network, inputs: list[Any] | tuple[Any, ...], *more: P.args, **options: P.kwargs
    ) -> list[tuple[Any, Prediction]]: ...
    @overload
    def __call__(
        self, path: Network, inputs: Any, *more: P.args, **options: P.kwargs
    ) -> Prediction | list[tuple[Any, Prediction]]: ...


def _as_predicts(function: Callable[Concatenate[Network, Any, P], Any]) -> _Predicts[P]:
    return cast(_Predicts[P], function)


@_as_predicts  # type: ignore[arg-type]  # a setting of the search might be called `path`
def predict(
    path: str | os.PathLike[str] | Mapping[str, object] | Predictor | nnx.Module,
    inputs: Any,
    top: int = 3,
    which: str = "best",
    ema: bool | None = None,
    batch: int = BATCH,
    skip_unreadable: bool = False,
    source_language: str = "",
    target_language: str = "",
    prefix: str = "",
    task: str = "",
    share: str = "",
    **search: Any,
) -> Prediction | list[tuple[Any, Prediction]]:
    """Classify images, translate sentences or caption images with a run, or with a file or folder of weights.

    `vit_jax.load` is the way to use one network many times. Features of images, as --features writes them, are what
    `vit_jax.load(path).features(images, blocks=[-1])` returns.

    Args:
        path: a run, or a file or folder of weights of any layout; or a network in memory, as `vit_jax.load` returns it.
        inputs: paths of images and of folders of images, csv:FILE[:FOLDER], or sentences; one of them, or a list. Also
            images as Pillow has them, or arrays uint8 [h, w] or [h, w, C], or [n, h, w, C].
        top: the number of classes of each image, the most probable first.
        which: the weights of a run, as of `vit_jax.load`, as are the languages, `prefix` and `task`.
        batch: inputs that are computed at a time.
        skip_unreadable: leave out images that cannot be read, and say on stderr how many, instead of stopping.
        share: I/N, such as "3/16": predict this fixed share of the inputs alone, while others predict the others.
        search: settings of the search for a text, such as beam=5 (the fields of config.decoding.Decoding).

    Returns:
        For one image or sentence its prediction, else a list of (input, prediction). A prediction is a list of classes
        [(name, probability), ...], or a text; with nbest=3, a list of three (text, score).
    """
    inputs = _given(inputs)
    one, spoken = isinstance(inputs, (str, os.PathLike)), Spoken(source_language, target_language, prefix, task)
    name = os.fspath(path) if isinstance(path, (str, os.PathLike)) else "the network"
    check_ranges(Options(run=name, inputs=(), top=top, batch=batch))
    several = [inputs] if one else inputs
    if isinstance(path, (str, os.PathLike)):  # inputs are checked before jax starts
        found = _found(*takes(name), several) if _are_named(inputs) else None
        network = open_network(name, which, ema, search, spoken)
    else:
        network = open_network(path, which, ema, search, spoken)
        found = _found(*taken_by(network.run), several) if _are_named(inputs) else None
    if found is None:
        if share:
            raise UserError(Field("share"), f"is {share}, and these inputs are in memory", "give some of them instead")
        return _predict_given(network, inputs, top, batch)
    before = 0
    if part := read_share(share):
        check_draws(network.task, skip_unreadable)
        rows = part.rows(batch_starts(found, batch), len(found))
        found, before = found[rows.start : rows.stop], count_asked(found[: rows.start])
    answering = Answering(network, top, batch, skip_unreadable, note, before)
    answers = [(_as_given(answer.input), answer.value) for answer in answering.answers(found) if answer.plain]
    single = one and not share and len(answers) == 1 and not _holds_several(inputs, found[0])
    return _shown(answers[0][1] if single else answers, answers, network)


def _given(inputs: Any) -> Any:
    """The inputs of `predict`, those of an iterator as a list. Raises UserError where there are none."""
    whole = isinstance(inputs, (str, os.PathLike, list, tuple)) or _is_array(inputs)
    if not whole and not isinstance(inputs, Iterable):
        raise UserError("inputs", f"is a {type(inputs).__name__}", "give paths, images or texts, one or a list of them")
    given = inputs if whole else list(inputs)
    if isinstance(given, (list, tuple)) and not given:
        raise UserError("inputs", "none given", "give at least one")
    return given


def _is_array(inputs: Any) -> bool:
    """Whether inputs are an array of any library, or an image of Pillow."""
    return hasattr(inputs, "__array__") or hasattr(inputs, "__array_interface__")


def _are_named(inputs: Any) -> bool:
    """Whether inputs are texts or paths, as a command has them, and not images or vectors themselves."""
    if not isinstance(inputs, (list, tuple)):
        return not _is_array(inputs)
    return all(isinstance(each, (str, os.PathLike)) for each in inputs)


def _predict_given(network: Predictor, inputs: Any, top: int, batch: int) -> Any:
    """`predict` of images or vectors in memory."""
    classes = network.task.searching({}) is None
    said = network.predict(inputs, **({"top": top} if classes else {}), batch=batch)
    single = network.as_list(inputs)[1]
    pairs = [(0, said)] if single else [*enumerate(said)]
    return _shown(said if single else [*zip(inputs, said, strict=True)], pairs, network)


def _shown(said: Any, pairs: Sequence[tuple[Any, Any]], network: Predictor) -> Any:
    """What is said, as a list that a notebook shows as a table; one text as it is."""
    return said if isinstance(said, str) else predictions(said, pairs, network.header)


def _found(kind: str, column: str, inputs: Sequence[Any]) -> list[Any]:
    """The inputs of a kind as image files (with those inside folders and shards), vectors or texts."""
    return [each for source in sources_of(kind, inputs, column, note) for each in source.read(0, len(source))]


def _holds_several(given: str | os.PathLike[str], first: Any) -> bool:
    """Whether an input is a folder, a table or a source by name, whose answers are a list, and be it of one image."""
    several = os.fspath(given).startswith("csv:") or (isinstance(first, Stored) and source_named(os.fspath(given)))
    return os.path.isdir(given) or (bool(several) and not os.path.lexists(given))


def _as_given(given: Any) -> Any:
    """An input, of what is no file its name."""
    return str(given) if isinstance(given, Stored) else given
