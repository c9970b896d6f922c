"""What prediction takes: the arguments of the function `vit_jax.predict`, and the flags of the command."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, make_dataclass
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, Protocol, cast, overload

from ... import runs
from ...config import flags
from ...config.decoding import AnswerFlags
from ...config.fields import check_ranges, option
from ...config.run import paths_in
from ...data.inputs import Stored
from ...data.items import source_named
from ...errors import Field, UserError
from ...files.destination import check_outputs
from ...files.output import predictions
from ...plugins import CAPABILITIES
from ...tasks.can import Searches
from ...tasks.capability import Capability, blaming
from ...text.classes import Spoken
from ..selection import FileFlags, LanguageFlags, SelectionFlags, UnreadableFlags, described_by
from ..share import check_draws, read_share
from .answering import Answering
from .inputs import batch_starts, count_asked, open_network, taken_by, takes
from .sources import sources_of

if TYPE_CHECKING:
    from flax import nnx

    from ...tasks.predictor import Predictor

    Network = str | os.PathLike[str] | Mapping[str, object] | Predictor | nnx.Module

BATCH = 64
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
        path: a run's folder or URL (s3://, gs://), or its name inside runs/; or a file or folder of weights, in any
            layout that `python -m convert formats` lists. In Python also a network in memory, as `vit_jax.load`
            returns it.
        inputs: image files, folders of images, also in s3:// and gs://, a .txt that lists images, csv:FILE[:FOLDER],
            the images of a table, wds:PATTERN and parquet:PATTERN, those of shards; or sentences, or files of them,
            one per line; or files of vectors (.npy, .npz, .h5), of one row as FILE:ROW. - means stdin, and so does no
            input in a pipe: each line a sentence, an image file or FILE:ROW. Where stdout is no terminal, each answer
            is a line: the best class (--top of them), a text (--nbest of them), all labels or numbers with tabs
            between them; a blank line has a blank answer. In Python one of them, or a list, and none from stdin; also
            images as Pillow has them, or arrays uint8 [h, w] or [h, w, C], or [n, h, w, C].
        top: number of classes to print for each image, the most probable first.
        which: the weights of a run, as of `vit_jax.load`, as are the languages, `prefix` and `task`.
        batch: inputs that are computed at a time; fewer take less memory.
        skip_unreadable: leave out images that cannot be read, and say on stderr how many, instead of stopping.
        share: answer a fixed share of the inputs, I/N such as 3/16, while other commands, on any machines, answer the
            others; the files that are written say which inputs they have, and `vit-jax join` joins those of all shares
            to what one command writes.
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
    answering = Answering(network, top, batch, skip_unreadable, before)
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
    classes = network.task.able(Searches).with_settings({}) is None
    said = network.predict(inputs, **({"top": top} if classes else {}), batch=batch)
    single = network.as_list(inputs)[1]
    pairs = [(0, said)] if single else [*enumerate(said)]
    return _shown(said if single else [*zip(inputs, said, strict=True)], pairs, network)


def _shown(said: Any, pairs: Sequence[tuple[Any, Any]], network: Predictor) -> Any:
    """What is said, as a list that a notebook shows as a table; one text as it is."""
    return said if isinstance(said, str) else predictions(said, pairs, network.header)


def _found(kind: str, column: str, inputs: Sequence[Any]) -> list[Any]:
    """The inputs of a kind as image files (with those inside folders and shards), vectors or texts."""
    return [each for source in sources_of(kind, inputs, column) for each in source.read(0, len(source))]


def _holds_several(given: str | os.PathLike[str], first: Any) -> bool:
    """Whether an input is a folder, a table or a source by name, whose answers are a list, and be it of one image."""
    several = os.fspath(given).startswith("csv:") or (isinstance(first, Stored) and source_named(os.fspath(given)))
    return os.path.isdir(given) or (bool(several) and not os.path.lexists(given))


def _as_given(given: Any) -> Any:
    """An input, of what is no file its name."""
    return str(given) if isinstance(given, Stored) else given


# ------------------------------------------------------------------------------------------ flags of the command


@dataclass(frozen=True, kw_only=True)
class DataFlags(LanguageFlags, FileFlags):
    """In which languages texts are, and which column of a table has the images."""


@dataclass(frozen=True, kw_only=True)
class PredictFlags(UnreadableFlags, SelectionFlags):
    """What is predicted, by which weights, and what is written of the answers."""

    # What has no help here is an argument of `predict`, which describes it.
    run: str = field(metadata={"help": ""})
    inputs: tuple[str, ...] = field(metadata={"help": ""})
    top: int = option(3, "", at_least=1)
    json: bool = option(False, "print each answer as a JSON object in a line: the input, names and probabilities")
    csv: str = option("", "also write the predictions to this file, as a CSV table")
    probabilities: str = option(
        "",
        "also write every probability to this file, as a CSV table: the file and a column for each class or label; of "
        "numbers their values",
    )
    attention: str = option(
        "", "also draw the attention on the first images, or on the first sentence, to this PNG file"
    )
    layer: str = option(
        "", "with --attention: the layer to draw, counted from 1, or all; empty: the last for images, all for sentences"
    )


@dataclass(frozen=True, kw_only=True)
class FeatureFlags:
    """What is written in place of answers, and how many inputs are computed where."""

    features: str = option(
        "",
        "write features of the images to this .npz file, in place of predictions: files, the names [n], "
        "and pooled [n, D], the input of the head",
    )
    blocks: str = option(
        "",
        "with --features: also the outputs of these blocks, as maps.I [n, gh, gw, D] at the patches and "
        "prefix.I [n, P, D] at the tokens before them (class, distillation, registers); numbers from 0 with commas "
        "between them, -1 is the last, or all",
    )
    norm: bool = option(
        True,
        "with --blocks: apply the network's last norm to the outputs of every block, as Dinov2Backbone "
        "does; --no-norm: as they are, as timm's forward_intermediates gives them by default",
    )
    share: str = option("", "")
    batch: int = option(BATCH, "", at_least=1)
    force: bool = option(
        False, "overwrite the files of --csv, --probabilities, --attention, --explain and --features if they exist"
    )
    data: DataFlags = field(default_factory=DataFlags)


def _fitting() -> tuple[dict[str, type[Capability]], type]:
    """(the capabilities whose flags go with those of `predict`, a dataclass with their flags after PredictFlags).

    Those of other packages that do not are left out, in a sentence.
    """
    found, joined = dict[str, type[Capability]](), cast(type, PredictFlags)
    others = flags.flags(FeatureFlags) | flags.flags(AnswerFlags)
    for name, each in CAPABILITIES.items():
        with blaming(name, goes_on=True):
            if each.flags:
                if both := flags.flags(each.flags()).keys() & (flags.flags(joined) | others).keys():
                    raise UserError(f"predict has --{min(both)} already", remedy="update that package, or remove it")
                more = make_dataclass("WithFlags", (), bases=(each.flags, joined), frozen=True, kw_only=True)
                flags.flags(more(run="", inputs=()))
                joined = more
            found[name] = each
    return found, joined


CAPABLE, WithFlags = _fitting()


@described_by(predict, {"run": "path"})
@dataclass(frozen=True, kw_only=True)
class Options(AnswerFlags, FeatureFlags, WithFlags):  # type: ignore[misc, valid-type]
    """Predict the classes of images, translate sentences, or describe images.

    The flags from --beam on direct the search for a text; classes need none.
    """


def check_flags(o: Options, stated: Sequence[str]) -> dict[str, type[Capability]]:
    """The capabilities that flags ask for. Raises UserError where a file cannot be written, or a flag is of one that is
    not asked for.

    `stated` are the fields that the command line sets.
    """
    if o.layer and not o.attention:
        raise UserError(Field("layer"), f"is {o.layer}, but nothing is to be drawn", "add --attention FILE.png")
    if o.attention and not o.attention.lower().endswith(".png"):
        raise UserError(f"--attention {o.attention}", "the figure is a PNG", "give a name that ends in .png")
    asked, written = dict[str, type[Capability]](), list[Mapping[str, str]]()
    for name, each in CAPABLE.items():
        with blaming(name):
            if each.asked(o, stated):
                asked[name] = each
                written += each.outputs(o)
    if o.blocks and not o.features:
        raise UserError(Field("blocks"), f"is {o.blocks[:40]}, but nothing is to be written", "add --features FILE.npz")
    if "norm" in stated and not o.blocks:
        raise UserError(
            "norm", "is for the outputs of blocks, and none are asked for", "add --blocks I,J, or leave it out"
        )
    if o.features and not o.features.lower().endswith(".npz"):
        raise UserError(f"--features {o.features}", "features are written as .npz", "give a name that ends in .npz")
    if o.features and (unused := [name for name in ("csv", "probabilities", "json", "top") if name in stated]):
        raise UserError(unused[0], "is for predictions, and with --features there are none", "leave one of them out")
    beside = o.features and os.path.dirname(os.path.realpath(o.features)) == os.path.realpath(o.run)
    if beside and runs.is_foreign(o.run):
        raise UserError(
            f"--features {o.features}", "in a folder of weights it would be taken for such", "choose another"
        )
    outputs = {name: getattr(o, name) for name in ("csv", "probabilities", "attention", "features")}
    reads = [*runs.read_from(o.run), *paths_in(*o.inputs)]
    for more in written or [{}]:
        check_outputs({**outputs, **more}, o.force, reads)
    return asked


def layers(text: str, depth: int) -> list[int]:
    """The layers that --layer names, counted from 0, of a network of `depth` layers. Raises UserError."""
    if not text or not depth:  # a network without attention says so when that is to be drawn
        return []
    if text == "all":
        return list(range(depth))
    numbers = [str(n) for n in range(1, depth + 1)]
    if text not in numbers:
        raise UserError(Field("layer"), f"is {text[:20]}", f"give a number from 1 to {depth}, or all")
    return [numbers.index(text)]


def blocks(text: str, depth: int) -> list[int]:
    """The blocks that --blocks names, of a network of `depth` of them. Raises UserError."""
    if text == "all":
        return list(range(depth or 1))  # a network without any says so when it is to write them
    if not re.fullmatch(r"(-?[0-9]{1,6}(,-?[0-9]{1,6})*)?", text):
        raise UserError(
            Field("blocks"), f"is {text[:40]}", "give numbers with commas between them, such as 2,5,-1, or all"
        )
    return [int(number) for number in filter(None, text.split(","))]
