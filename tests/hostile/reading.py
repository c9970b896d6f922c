"""What the commands read besides weights, as functions of a path that a child process can call; without frameworks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from vit_jax.commands.prediction.sources import sentences
from vit_jax.data.captions.captioned import read_captioned
from vit_jax.data.images.preprocess import Preprocess, open_image
from vit_jax.data.images.sources.arrays import open_npz
from vit_jax.data.texts.pairs import read_pairs
from vit_jax.files.metrics import histogram_rows, read_rows
from vit_jax.reports.compare import compare
from vit_jax.runs.values import read_config
from vit_jax.text.folder import read_folder
from vit_jax.weights.opening import _logits

PREPROCESS = Preprocess((224, 224), 3, "crop", 256, "bicubic", 255, (0.5,) * 3, (0.5,) * 3)


def image(path: str) -> Any:
    return PREPROCESS.apply(open_image(path)).shape


def images(path: str) -> Any:
    return len(open_npz(path).splits)


def logits(path: str) -> Any:
    return {name: array.shape for name, array in _logits(path).items()}


def metrics(path: str) -> Any:
    return [row["step"] for row in read_rows(Path(path))]


def histograms(path: str) -> Any:
    return [row["step"] for row in histogram_rows(Path(path))]


def pairs(path: str) -> Any:
    return [*read_pairs(f"tsv:{path}")["train"]]


def texts(path: str) -> Any:
    return sentences([path])


def tokenizer(path: str) -> Any:
    return [*read_folder(path)]


def captions(path: str) -> Any:
    return len(read_captioned(f"captions:{path}"))


def config(path: str) -> Any:
    return read_config(path)


def runs(path: str) -> Any:
    return compare(path)["notes"]
