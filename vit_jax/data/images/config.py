"""The config of a run's images, and the metadata that config.json has of them."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, Self, get_args, get_type_hints

from ...config.fields import Size, execution, identity
from ...config.run import DataConfig
from ...errors import UserError
from ...kinds.table import Target
from ..order import Sampling
from ..prepared import data_dir

# {split: the names that people give it}
SPLITS = {
    "train": ("train", "training", "trn"),
    "validation": ("validation", "val", "valid", "validate", "dev", "development"),
    "test": ("test", "testing", "tst"),
}
SPLIT_OF = {name: split for split, names in SPLITS.items() for name in names}
FOLDER = "folder:"
TABLE = "csv:"
GIVEN = "arrays"  # the data.source of a run whose images were given in Python


@dataclass(frozen=True)
class FittedImages(DataConfig):
    """Where images are, and how one is fitted to the size that the network takes."""

    dir: str = execution(
        "",
        "folder of prepared TFDS sets; it must exist, sets missing in it are fetched; "
        "empty: $TFDS_DATA_DIR or ~/tensorflow_datasets. Of shards the folder or URL (s3://, gs://, https://) that "
        "their paths begin in",
    )
    download: bool = execution(
        True, "fetch cifar10, cifar100, mnist and fashion_mnist, where they are not in data.dir, and prepare them there"
    )
    fit: Literal["crop", "stretch", "pad"] = identity(
        "crop",
        "images of another shape are scaled to cover and cropped at the centre, stretched, or scaled to fit and padded",
    )
    size: int = identity(
        0, "for crop: length, in pixels, to which the shorter side is scaled first; 0: as small as covers", at_least=0
    )
    interpolation: Literal["bilinear", "bicubic", "nearest"] = identity(
        "bilinear", "kernel that resizes images (antialiased)"
    )
    background: int = identity(
        255, "grey level under transparent pixels and around padded images", at_least=0, at_most=255
    )
    range: tuple[float, ...] = identity(
        (),
        "two numbers, LOW HIGH: the values of pixels that become black and white, where these have more than 8 bits or "
        "are floating-point; empty: 0 65535 of 16 bits, 0 255 of 8",
    )
    trim: Size = identity(
        0,
        "rows and columns, or one number for both, to cut off at the bottom and on the right after resizing: those "
        "that the patches of an imported network do not cover (384 = 27 x 14 + 6)",
        at_least=0,
    )
    skip_unreadable: bool = identity(False, "leave out unreadable images, and report how many, instead of stopping")
    order: Literal["", "global", "blocks"] = identity(
        "",
        "with shards: global: a shuffle of all images, each read by itself; blocks: shuffled blocks of neighbours, "
        "read together and nearly in sequence; empty: blocks for parquet with more than four row groups and for more "
        "than 20 million images, else global",
    )
    window: int = identity(
        0, "with order blocks: how many are shuffled together; 0: as many as hold 4,096 images, at least 4", at_least=0
    )
    block: int = identity(16, "with order blocks: neighbours in a block; in parquet blocks are row groups", at_least=1)
    memory: float = execution(
        4.0, "gigabytes of memory for decoded images; a dataset that fits is decoded only once", at_least=0
    )
    threads: int = execution(0, "threads that decode images; 0: one per core", at_least=0)
    verify: bool = execution(
        False,
        "read all images again; by default, in a set larger than data.memory, an image is not read again if its name, "
        "size and time of change are as in the index of an earlier start",
    )
    read_ahead: float = execution(
        1.0, "with order blocks: gigabytes of encoded images that are read before they are needed", at_least=0
    )

    def paths(self) -> list[Path]:
        """The files and folders that it is read from, that of a prepared set among them."""
        found = super().paths()
        with contextlib.suppress(UserError):
            prepared = data_dir(self.dir) / self.source.partition(":")[0]
            found += [prepared] if prepared.is_dir() else []
        return found


@dataclass(frozen=True)
class ImageData(FittedImages):
    """The source of labelled images, what their labels are, and how they are sampled and split."""

    given = GIVEN

    source: str = identity(
        "digits",
        "digits, cifar10, cifar100, mnist, fashion_mnist, another prepared TFDS set, folder:PATH or URL, FILE.npz, or "
        "csv:FILE[:FOLDER], a table of labels (also metadata.jsonl) whose images lie in FOLDER, or beside it; "
        "wds:PATTERN, tars of webdataset, such as train-{0000..0131}.tar, train-*.tar, or a .txt that lists them; "
        "parquet:PATTERN, likewise, as datasets of Hugging Face are stored",
        place=True,
    )
    target: Target = identity(
        "",
        "what the network learns to say of an image: one class, a set of labels, or numbers (Hugging Face's "
        "single_label_classification, multi_label_classification and regression); empty: as the labels of the source",
        from_data=True,
    )
    labels: tuple[str, ...] = identity(
        (), "with a table: the columns of the labels; empty: the only one left, or the one called label"
    )
    separator: str = identity("", "with a table: the separator of the labels in a cell, such as ' '; empty: one label")
    file_column: str = identity(
        "", "with a table: the column of the files; empty: file, file_name, filename, path, image, image_id or id"
    )
    split_column: str = identity(
        "", "with a table: the column that has train, val or test of each row; empty: split, if there is one"
    )
    group: str = identity("", "with a table: a column, such as patient, whose equal values stay in one split")
    class_names: str = identity(
        "",
        "with shards: a file with the names of the classes, one a line, in the order of their numbers; empty: the "
        "names in the shards, sorted",
        place=True,
    )
    label_table: str = identity(
        "", "with shards: a table (CSV or JSON Lines) with the labels of each sample beside its key", place=True
    )
    folds: int = identity(
        0,
        "cut train into so many folds, each with its share of every label, and hold one out, as test, or as validation "
        "if the data has a test split; the same for every seed; 0: no folds",
        at_least=0,
    )
    fold: int = identity(0, "with folds: the fold that is held out, from 0", at_least=0)
    sampling: Sampling = identity(
        "natural",
        "how often training takes each class: natural: as often as it is there; balanced: all equally often; sqrt: in "
        "proportion to the square root of its number of images, which is between the two",
    )

    def of_a_table(self) -> dict[str, Any]:
        """{field: value} of the fields that say what the columns of a table are, where they say something."""
        names = ("labels", "separator", "file_column", "split_column", "group")
        return {name: value for name in names if (value := getattr(self, name))}

    def without_table(self) -> Self:
        """The same, but nothing is said of the columns of a table."""
        return replace(self, labels=(), separator="", file_column="", split_column="", group="")


# The values of the fields fit and interpolation.
FITS, KERNELS = (get_args(get_type_hints(FittedImages)[name]) for name in ("fit", "interpolation"))
# Fields of a preprocessing that JSON lacks where they have no effect, that is where they have this value.
OPTIONAL = {"range": (), "trim": (0, 0)}
