"""Images with captions: opened from a source, split, and put into batches of images and ids."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from ...config.fields import Size
from ...config.outputs import WORDS
from ...errors import Field, UserError
from ...files.digests import array_digest
from ...files.lines import quote
from ...text.record import make_one
from ...text.tokenizer import Tokenizer, encode_named
from ...text.vocabulary import closed_vocabulary
from ...text.vocabulary import words as words_of
from ..base import GivenData, Other, choose_split
from ..images.blocks import BlockOrder, Blocks, blocks_in, blocks_of
from ..images.pixels import Images, check_ranges
from ..images.preprocess import Preprocess, left_out, refuse_unreadable, stood_in
from ..images.sources.arrays import Arrays
from ..images.sources.base import Examples
from ..images.sources.layout import WHOLE
from ..images.statistics import statistics
from ..order import SHUFFLE, Order, permutation
from . import shapes
from .caption_set import Captions, CaptionSet, check_words, hold_out_images, identity_of
from .captioned import Found, find_captions, without_captions
from .config import SHAPES, CaptionData

# {split of the drawn scenes: how many it has}; how many there are to train on, the config says.
SPLITS = {"validation": 500, "test": 500, "unseen": 300}
GREY = 128


@dataclass(frozen=True)
class CaptionedImages(CaptionSet):
    """A set of images with captions."""

    preprocess: Preprocess
    blocks: Blocks | None = None

    def order(self, batch: int, seed: int, batches: int = 0) -> Order | BlockOrder:
        """As of CaptionSet."""
        order = super().order(batch, seed, batches)
        return order if self.blocks is None or batches else BlockOrder(self.blocks, batch, seed)

    def metadata(self) -> dict[str, Any]:
        """The preprocessing and the words, for config.json."""
        return {"preprocess": self.preprocess.to_dict(), **super().metadata()}


def open_captions(
    data: CaptionData,
    image: Size,
    channels: int,
    grid: tuple[int, int],
    *,
    normalize: str = "set",
    mean: tuple[float, ...] = (),
    std: tuple[float, ...] = (),
    words: int = 0,
    seed: int = 0,
    given: GivenData | None = None,
) -> CaptionedImages:
    """Open, check and split images with captions."""
    preprocess = Preprocess.of(data, image, channels)
    if data.source == SHAPES and given is None:
        if data.range:
            raise UserError(
                Field("data.range"), "is for images with more than 8 bits, and these are drawn", "leave it out"
            )
        opened = _scenes(data, preprocess, grid)
    else:
        there = find_captions(data, given)
        opened = _split_up(data, preprocess, seed, there)
        if given is None:
            opened = replace(opened, remarks=(*opened.remarks, *without_captions(data.source, there)))
    whose = f"data.source {data.source}" if data.tokenizer == WORDS else f"data.tokenizer {data.tokenizer}"
    check_words(whose, words, opened.vocabulary)
    if normalize != "given":
        mean, std = statistics(normalize, data.source, preprocess, opened.splits["train"])
    return replace(opened, preprocess=replace(preprocess, mean=mean, std=std))


def open_other_captions(
    data: CaptionData, wanted: str, preprocess: Preprocess, words: Tokenizer, seed: int, given: GivenData | None = None
) -> Other:
    """Images with captions that a network is only evaluated on. Each image is one example with all its captions."""
    if data.source == SHAPES and given is None:
        raise UserError(
            Field("data.source"), f"is {SHAPES}, but there are captions of one's own to give: captions:FOLDER"
        )
    there = find_captions(data, given)
    if [*there] == ["train"]:
        there = {WHOLE: there["train"]}
    name = choose_split("the data", there, wanted)
    preprocess = replace(preprocess, range=data.range or preprocess.range)
    read = _decode(data, preprocess, *there[name])
    _check(data, words, read)
    total = 0  # examples of all splits, as a run on this data would have them
    with contextlib.suppress(UserError):
        total = sum(map(len, _split_up(data, preprocess, seed, find_captions(data, given)).splits.values()))
    remarks = (*read.remarks, *([left_out(read.unreadable)] if read.unreadable else []))
    return Other(name, _each_image(data, read, read.rows, words), total, remarks)


def _pad(vocabulary: Tokenizer, captions: Sequence[str], length: int) -> np.ndarray:
    """The ids of captions, int32 [n, length], none of which is longer, padded."""
    different = list(dict.fromkeys(captions))
    known = dict(zip(different, vocabulary.encode_all(different), strict=True))
    out = np.full((len(captions), length), vocabulary.ids.pad, np.int32)
    for row, said in zip(out, captions, strict=True):
        row[: len(known[said])] = known[said]
    return out


# ------------------------------------------------------------------------------------ drawn scenes


def _scenes(data: CaptionData, preprocess: Preprocess, grid: tuple[int, int]) -> CaptionedImages:
    """Drawn scenes, and two controls. Raises UserError."""
    if data.tokenizer == WORDS and data.length <= shapes.LONGEST:
        raise UserError(
            Field("data.length"),
            f"is {data.length}, but captions of data.source {data.source} have up to {shapes.LONGEST} words and an end",
            f"give at least {shapes.LONGEST + 1}",
        )
    counts = {"train": data.drawn, **SPLITS}
    scenes = {name: shapes.draw(n, i, unseen=name == "unseen") for i, (name, n) in enumerate(counts.items())}
    if data.tokenizer == WORDS:
        vocabulary: Tokenizer = closed_vocabulary(shapes.WORDS)
    else:
        vocabulary = make_one(data.tokenizer, data.vocabulary, scenes["train"].captions)
        for name, some in scenes.items():
            _check_lengths(data, vocabulary, [(f"{name}[{i}]", said) for i, said in enumerate(some.captions)])
    splits = {name: _drawn_split(name, some, vocabulary, data, preprocess, grid) for name, some in scenes.items()}
    content = [[array_digest(some.pixels), array_digest(splits[name].target)] for name, some in scenes.items()]
    test = scenes["test"]
    others = test._replace(pixels=test.pixels[permutation(len(test.pixels), SHUFFLE)])
    blank = test._replace(pixels=np.full_like(test.pixels, GREY))
    for name, some in (("shuffled", others), ("blank", blank)):
        splits[name] = _drawn_split(name, some._replace(boxes=None), vocabulary, data, preprocess, grid)
    held = " and ".join(f"{colour} {form}s" for colour, form in shapes.UNSEEN)
    remarks = (
        f"test: always giving the most frequent caption has an exact match of {splits['test'].chance:.4f}",
        f"unseen: scenes with {held}, which no other split has",
        "shuffled and blank: controls, the captions of test with the pictures of others and with grey ones",
    )
    identity = identity_of(SHAPES, vocabulary, splits, content)
    return CaptionedImages(vocabulary, preprocess, splits=splits, identity=identity, remarks=remarks)


def _drawn_split(
    name: str,
    scenes: shapes.Scenes,
    vocabulary: Tokenizer,
    data: CaptionData,
    preprocess: Preprocess,
    grid: tuple[int, int],
) -> Captions:
    """The split of drawn scenes."""
    n = len(scenes.captions)
    target = _pad(vocabulary, scenes.captions, data.length - 1)
    images = Images(Arrays(scenes.pixels, np.zeros(n, np.int32), name), preprocess, True, data)
    h, w = preprocess.image
    whole = h == w and data.size in (0, h) and not any(preprocess.trim)  # no part of a scene is cropped away
    boxes, words = (scenes.boxes, scenes.words) if whole and data.tokenizer == WORDS else (None, None)
    references = [[said] for said in scenes.captions] if vocabulary.open else ()
    return Captions(images, np.arange(n), target, boxes, words, grid, references)


# -------------------------------------------------------------------------------------------- files


class _Read(NamedTuple):
    """Images that were decoded once, and their captions."""

    images: Images
    digest: str
    remarks: tuple[str, ...]
    rows: np.ndarray  # int [n]: those that can be read
    captions: Sequence[Sequence[str]]  # of every image, also of those that cannot be read

    def several(self, rows: np.ndarray) -> list[Sequence[str]]:
        """The captions of each of these images."""
        return [self.captions[row] for row in rows]

    @property
    def unreadable(self) -> list[str]:
        """The names of those that cannot be read."""
        return [self.images.examples.name(row) for row in np.setdiff1d(np.arange(len(self.captions)), self.rows)]


def _decode(data: CaptionData, preprocess: Preprocess, examples: Examples, captions: Sequence[Sequence[str]]) -> _Read:
    """Decode the images of a split. Raises UserError on those that cannot be read, unless they are to be left out."""
    room = len(captions) * math.prod(preprocess.image) * preprocess.channels <= data.memory * 1e9
    images = Images(examples, preprocess, room, data)
    loaded = images.load(data.verify)
    if loaded.unreadable and not data.skip_unreadable:
        raise refuse_unreadable(f"data.source {data.source}", [examples.name(row) for row in loaded.unreadable])
    remarks, rows = check_ranges(data, {"": images}, {"": loaded}), np.arange(len(captions))
    if images.replaces:  # the rows do not depend on whether all images are read before a run
        remarks += (stood_in([examples.name(row) for row in images.stand_ins]),) if images.stand_ins else ()
    else:
        rows = np.delete(rows, list(loaded.unreadable))
    return _Read(images, loaded.digest, remarks, rows, captions)


def _split_up(data: CaptionData, preprocess: Preprocess, seed: int, there: Found) -> CaptionedImages:
    """The splits of images with captions. What is missing is held out of train, by image. Raises UserError."""
    if "train" not in there:
        raise UserError("data", f"has no train split, only {', '.join(there)}", "give one to train on")
    blocks = blocks_in(data, there["train"][0])
    parts = {name: _decode(data, preprocess, *some) for name, some in there.items()}
    own, rows = parts["train"], {name: part.rows for name, part in parts.items()}
    train, held = hold_out_images(own.rows, data, parts, seed, blocks=blocks)
    rows, parts = rows | held, parts | dict.fromkeys(held, own)
    several = own.several(train)
    captions = [caption for each in several for caption in each]
    vocabulary = make_one(data.tokenizer, data.vocabulary, captions)
    for part in {id(part): part for part in parts.values()}.values():
        _check(data, vocabulary, part)
    target = _pad(vocabulary, captions, data.length - 1)
    of = np.repeat(train, [*map(len, several)])  # the image of each caption
    splits = {"train": Captions(own.images, of, target, said=_captions_of(data, own, vocabulary))}
    for name in ("validation", "test"):
        if name in parts:
            splits[name] = _each_image(data, parts[name], rows[name], vocabulary)
    whole = [parts[name] for name in there]
    content = [
        *(part.digest for part in whole),
        *(array_digest(split.target) for split in splits.values()),
        *([list(each) for each in part.captions] for part in whole),
    ]
    remarks = _remarks_on(whole)
    if data.tokenizer == WORDS:
        ids = vocabulary.ids
        share = float((target == ids.unknown).sum() / (target != ids.pad).sum())
        remarks.append(f"{share:.1%} of the words to train on occur only once, and are <unk>")
    identity = identity_of(data.source.partition(":")[0], vocabulary, splits, content)
    of_train = blocks_of(data, blocks, of)
    return CaptionedImages(vocabulary, preprocess, of_train, splits=splits, identity=identity, remarks=tuple(remarks))


def _remarks_on(parts: Sequence[_Read]) -> list[str]:
    """What is said of all images and captions that were read."""
    images = sum(len(part.captions) for part in parts)
    captions = sum(len(each) for part in parts for each in part.captions)
    remarks = [
        f"{images:,} images with {captions:,} captions; validation and test have each image "
        "once, with all its captions as references"
    ]
    remarks += dict.fromkeys(remark for part in parts for remark in part.remarks)
    if unreadable := [name for part in parts for name in part.unreadable]:
        remarks.append(left_out(unreadable))
    return remarks


def _each_image(data: CaptionData, read: _Read, rows: np.ndarray, vocabulary: Tokenizer) -> Captions:
    """A split for evaluation: an image is one example, with all its captions as references."""
    several = read.several(rows)
    target = _pad(vocabulary, [each[0] for each in several], data.length - 1)
    return Captions(read.images, rows, target, references=several, said=_captions_of(data, read, vocabulary))


def _captions_of(
    data: CaptionData, read: _Read, vocabulary: Tokenizer
) -> Callable[[int], tuple[Sequence[str], np.ndarray]]:
    """What gives the captions of an image, and the ids of the first."""
    return lambda row: (read.captions[row], _pad(vocabulary, read.captions[row][:1], data.length - 1)[0])


def _check(data: CaptionData, vocabulary: Tokenizer, read: _Read) -> None:
    """Raise UserError where a caption has no words, or more tokens than there is room for."""
    pairs = [(read.images.examples.name(row), said) for row, each in enumerate(read.captions) for said in each]
    for name, said in pairs:
        if not words_of(said):
            raise UserError(
                f"data.source {data.source}", f"the caption {quote(said)} of {name} has no words", "write one"
            )
    _check_lengths(data, vocabulary, pairs)


def _check_lengths(data: CaptionData, vocabulary: Tokenizer, captions: Sequence[tuple[str, str]]) -> None:
    """Raise UserError where captions (image, caption) have more tokens than there is room for."""
    names, texts = zip(*captions, strict=True)
    found = encode_named(vocabulary, texts, lambda i: f"data.source {data.source}: {names[i]}")
    lengths = [len(ids) for ids in found]
    long = [path for (path, _), length in zip(captions, lengths, strict=True) if length >= data.length]
    if long:
        raise UserError(
            Field("data.length"),
            f"is {data.length}, but {len(long)} captions of data.source {data.source} are longer, such as one of "
            f"{long[0]}",
            f"give {max(lengths) + 1}, or shorten them",
        )
