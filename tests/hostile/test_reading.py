"""What is no regular file is not waited for, and what is absurdly large is refused before it is in memory."""

from __future__ import annotations

import io
import os
import random
import socket
import struct
import time
import zipfile
import zlib
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from convert.containers import orbax
from convert.containers.source import Spec
from tests.hostile import reading
from tests.hostile.child import accepts, opened, refuses, run
from vit_jax.data.images import preprocess

slow = pytest.mark.slow
MB = 1 << 20
KINDS = {
    "pipe": "is no regular file but a pipe",
    "circle": "is a link",
    "socket": "is no regular file but a socket",
    "device": "is no regular file but a device",
}
PLACES = [  # what reads a path, the name of the file that it reads, in the path where that is a folder
    (reading.image, "a.png"), (reading.images, "a.npz"), (reading.logits, "a.npy"), (reading.metrics, "a.jsonl"),
    (reading.histograms, "a.jsonl"), (reading.pairs, "a.tsv"), (reading.pairs, "a.tsv.gz"), (reading.texts, "a.txt"),
    (reading.tokenizer, "t/tokenizer.json"), (reading.tokenizer, "t/vocab.json"), (reading.captions, "c/captions.csv"),
    (reading.config, "a.json"),
]  # fmt: skip


@pytest.mark.parametrize("kind", ["pipe", "circle", *(pytest.param(kind, marks=slow) for kind in ("socket", "device"))])
def test_what_is_no_regular_file_is_not_waited_for(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for i, (function, name) in enumerate(PLACES):
        file = tmp_path / str(i) / name
        file.parent.mkdir(parents=True)
        if kind == "socket":
            monkeypatch.chdir(file.parent)  # the names of sockets are short
            socket.socket(socket.AF_UNIX).bind(file.name)
        elif kind == "pipe":
            os.mkfifo(file)
        else:
            file.symlink_to("/dev/zero" if kind == "device" else file.name)
        link = function is reading.metrics and file.is_symlink()
        refuses(file.parent if "/" in name else file, "is a link" if link else KINDS[kind], function=function)


@pytest.mark.parametrize("place", ["_METADATA", "manifest.ocdbt", "d", "beside"])
@pytest.mark.parametrize("kind", ["pipe", "circle"])
def test_what_is_no_regular_file_in_an_orbax_folder_is_not_waited_for(kind: str, place: str, tmp_path: Path) -> None:
    item = tmp_path / "a" / "default"
    orbax.write(str(item), {"w": Spec(np.dtype("f4"), (2,))}, iter([(("w",), np.ones(2, np.float32))]), {})
    accepts(tmp_path / "a", {"w": np.ones(2, np.float32)})
    file = {"d": next((item / "d").iterdir()), "beside": tmp_path / "a" / "x"}.get(place, item / place)
    file.unlink(missing_ok=True)
    os.mkfifo(file) if kind == "pipe" else file.symlink_to(file.name)
    refuses(tmp_path / "a", KINDS[kind], function=opened)


def test_a_circle_of_links_is_no_folder_of_runs(tmp_path: Path) -> None:
    (tmp_path / "runs").symlink_to("runs")
    refuses(tmp_path / "runs", "is no run, and holds none", function=reading.runs)


# ---------------------------------------------------------------------------------------------- images


def png(width: int, height: int, channels: int) -> bytes:
    """A black PNG, as small as it can be."""
    packer, row = zlib.compressobj(9), bytes(1 + width * channels)
    several = max(1, min(height, MB // len(row)))
    data = b"".join([*(packer.compress(row * several) for _ in range(height // several)), packer.flush()])
    head = struct.pack(">IIBBBBB", width, height, 8, {1: 0, 3: 2, 4: 6}[channels], 0, 0, 0)
    chunks = [(b"IHDR", head), (b"IDAT", data), (b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(part)) + name + part + struct.pack(">I", zlib.crc32(name + part)) for name, part in chunks
    )


@pytest.mark.parametrize(
    "size",
    [
        *((60_000_000, 1, 1), (7000, 7000, 4)),
        *(pytest.param(size, marks=slow) for size in ((13_000, 13_000, 3), (1, 36_000_000, 1))),
    ],
)
def test_small_files_of_large_images_are_not_decoded(size: tuple[int, int, int], tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(png(*size))
    what = f"its {size[0]:,} x {size[1]:,} pixels take"
    refuses(tmp_path / "a.png", what, "scale the image down", function=reading.image)


@pytest.mark.parametrize("size", [(20_000, 10, 3), (1, 3_000_000, 3), (30_000_000, 1, 1)])
def test_oblong_images_are_cropped_before_they_are_enlarged(size: tuple[int, int, int], tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(png(*size))
    outcome = run(reading.image, str(tmp_path / "a.png"))
    assert outcome.value == (224, 224, 3) and outcome.grown < 200 * MB, outcome


def test_a_photo_of_many_pixels_is_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its file has a byte for 25 pixels at least, however little memory is allowed to any image."""
    monkeypatch.setattr(preprocess, "DECODED", 0)
    file = io.BytesIO()
    Image.fromarray(np.random.default_rng(0).integers(0, 256, (90, 70, 3), np.uint8)).save(file, "JPEG", quality=30)
    assert preprocess.decode_image(file.getvalue(), "a").size == (70, 90)


def test_a_cropped_part_has_the_pixels_of_the_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    rng, choose = np.random.default_rng(0), random.Random(0)
    for _ in range(100):
        sides = choose.choice([(200, 200), (3000, 9), (9, 3000)])
        shape = [*map(choose.randint, (1, 1), sides), *choose.choice([[], [3], [4]])]
        pixels = rng.integers(0, 256, shape, np.uint8) // (divisor := choose.choice([1, 255])) * divisor
        how = preprocess.Preprocess(
            image=(choose.randint(1, 64), choose.randint(1, 64)), channels=choose.choice([1, 3]), fit="crop",
            size=choose.randint(1, 80), interpolation=choose.choice(["bilinear", "bicubic", "nearest"]), background=9,
            mean=(0.5,), std=(0.5,),
        )  # fmt: skip
        made = []
        for most in (1 << 60, 0):
            monkeypatch.setattr(preprocess, "LARGEST_SCALED", most)
            made.append(how.apply(Image.fromarray(pixels)))
        assert (made[0] == made[1]).all(), (shape, how)


# ------------------------------------------------------------------------------------- arrays and texts


def npy_header(shape: tuple[int, ...]) -> bytes:
    file = io.BytesIO()
    np.lib.format.write_array_header_1_0(file, {"descr": "<f4", "fortran_order": False, "shape": shape})
    return file.getvalue()


@pytest.mark.parametrize("form", ["claims.npy", "claims.npz", "zeros.npz"])
def test_arrays_that_a_file_cannot_hold_are_not_allocated(form: str, tmp_path: Path) -> None:
    zeros = form == "zeros.npz"
    head = npy_header((1 << 26, 2) if zeros else (1 << 40, 2))
    (tmp_path / form).write_bytes(head + bytes(80))
    if form.endswith(".npz"):
        archive = zipfile.ZipFile(tmp_path / form, "w", zipfile.ZIP_DEFLATED, compresslevel=1)
        with archive, archive.open("logits.npy", "w") as member:
            member.write(head)
            for _ in range(8 if zeros else 0):
                member.write(bytes(64 * MB))
    says = "more than 100 times" if zeros else "are in the file"
    refuses(tmp_path / form, says, function=reading.logits)


@pytest.mark.filterwarnings("ignore:Duplicate name")
@pytest.mark.parametrize("function", [reading.logits, reading.images])
def test_arrays_of_one_name_are_not_chosen_from(function, tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "a.npz", "w") as archive:
        for name in ("images", "logits", "labels.npy", "labels"):
            archive.writestr(name, npy_header((1,)) + bytes(8))
    refuses(tmp_path / "a.npz", "the array 'labels' is there twice", function=function)


@pytest.mark.parametrize("content", [b"1," * (50 * MB) + b"1]}", b"[" * (100 * MB)], ids=["wide", "deep"])
@pytest.mark.parametrize("kind", ["metrics", "histograms"])
def test_a_row_of_a_hundred_megabytes_is_left_out(kind: str, content: bytes, tmp_path: Path) -> None:
    beside = b'"kind": "train", ' if kind == "metrics" else b""
    rows = [b'{%b"step": %d' % (beside, i) for i in (1, 2, 3)]
    (tmp_path / "a.jsonl").write_bytes(rows[0] + b"}\n" + rows[1] + b', "loss": [' + content + b"\n" + rows[2] + b"}")
    outcome = run(getattr(reading, kind), str(tmp_path / "a.jsonl"))
    assert outcome.value == [1, 3] and outcome.grown < 100 * MB, outcome


@pytest.mark.parametrize("name", ["pairs", "texts"])
def test_a_line_of_gigabytes_is_refused(name: str, tmp_path: Path) -> None:
    with open(tmp_path / "a.txt", "wb") as file:  # sparse: it takes no disk
        file.write(b"a\tb\n" + b"x" * MB)
        file.truncate(3 << 30)
    began = time.monotonic()
    refuses(tmp_path / "a.txt", "line 2", "has more than", function=getattr(reading, name))
    assert time.monotonic() - began < 5


@pytest.mark.parametrize(
    ("content", "says"),
    [(b'{"a":' * 100_000, "nested too deeply"), (b'{"a": [' + b"[]," * (5 * MB) + b"[]]}", "lists and objects")],
    ids=["deep", "wide"],
)
def test_json_of_lists_without_end_is_refused(content: bytes, says: str, tmp_path: Path) -> None:
    (tmp_path / "vocab.json").write_bytes(content)
    (tmp_path / "merges.txt").write_text("a b\n")
    (tmp_path / "tokenizer_config.json").write_text('{"tokenizer_class": "GPT2Tokenizer"}')
    refuses(tmp_path, "cannot be read as JSON", says, function=reading.tokenizer)
