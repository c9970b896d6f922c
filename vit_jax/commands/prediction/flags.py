"""The flags of `predict`, and what of them contradicts itself."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, make_dataclass

from ... import runs
from ...config import flags
from ...config.decoding import AnswerFlags
from ...config.fields import option
from ...config.run import paths_in
from ...errors import Field, UserError
from ...files.destination import check_outputs
from ...plugins import CAPABILITIES
from ...tasks.capability import Capability, blaming
from ..selection import FileFlags, LanguageFlags, SelectionFlags, UnreadableFlags

BATCH = 64


@dataclass(frozen=True, kw_only=True)
class DataFlags(LanguageFlags, FileFlags):
    """In which languages texts are, and which column of a table has the images."""


@dataclass(frozen=True, kw_only=True)
class PredictFlags(UnreadableFlags, SelectionFlags):
    """What is predicted, by which weights, and what is written of the answers."""

    run: str = field(
        metadata={
            "help": "a run's folder or URL (s3://, gs://), or its name inside runs/; or a file or folder of "
            "weights, in any layout that `python -m convert formats` lists"
        }
    )
    inputs: tuple[str, ...] = field(
        metadata={
            "help": "image files, folders of images, also in s3:// and gs://, a .txt that lists images, "
            "csv:FILE[:FOLDER], the images of a table, wds:PATTERN and parquet:PATTERN, those of shards; "
            "or sentences, or files of them, one per line; or files of vectors (.npy, .npz, .h5), of one row as "
            "FILE:ROW. - means stdin, and so does no input in a pipe: each line a sentence, an image file or FILE:ROW. "
            "Where stdout is no terminal, each answer is a line: the best class (--top of them), a text (--nbest of "
            "them), all labels or numbers with tabs between them; a blank line has a blank answer"
        }
    )
    top: int = option(3, "number of classes to print for each image, the most probable first", at_least=1)
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
    share: str = option(
        "",
        "answer a fixed share of the inputs, I/N such as 3/16, while other commands, on any machines, answer the "
        "others; the files that are written say which inputs they have, and `vit-jax join` joins those of all shares "
        "to what one command writes",
    )
    batch: int = option(BATCH, "inputs that are computed at a time; fewer take less memory", at_least=1)
    force: bool = option(
        False, "overwrite the files of --csv, --probabilities, --attention, --explain and --features if they exist"
    )
    data: DataFlags = field(default_factory=DataFlags)


def _fitting() -> tuple[dict[str, type[Capability]], type]:
    """(the capabilities whose flags go with those of `predict`, a dataclass with their flags after PredictFlags).

    Those of other packages that do not are left out, in a sentence.
    """
    found, joined = dict[str, type[Capability]](), PredictFlags
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
    outputs = {
        "csv": o.csv,
        "probabilities": o.probabilities,
        "attention": o.attention,
        "features": o.features,
    }
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
