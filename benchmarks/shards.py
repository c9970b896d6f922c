"""Images a core-second of shards, beside webdataset, Grain and datasets; and the first batch of 1.28 million images.

    python -m benchmarks.shards [--images 2000] [--rounds 5] [--delay 0.04] [--first 1281167] [--memory 40]

local    drawn JPEGs of 256 x 256 as tars, parquet, ArrayRecord and a folder: shuffled, decoded by Pillow, resized to
         224, in batches of 64 uint8 arrays. Ours takes them as training does, in the order `blocks`
store    the same tars and parquet in an S3 store on this machine, whose every answer takes `delay` longer
decode   one thread's decoding alone: Pillow beside simplejpeg where an image is resized, and where it is taken as it is
first    tars of 1,000 samples under as many names as 1.28 million take (hard links): a start that reads them once for
         their indexes, one with the indexes of an earlier run, and with them how long until the first batch
memory   an epoch over the tars under as many names as `memory` times their bytes take, with 10 MB to read ahead: what
         the process holds on the way

A side is left out where its package is not installed: pip install webdataset grain datasets simplejpeg. A core-second
is one of user and system time of the process and of those that it starts; the store has a process of its own.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import statistics
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable, Iterable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))  # the checkout's own code, however this is started

from benchmarks.loading import CLASSES, SIZE, ours
from benchmarks.machine import describe, heading, load
from vit_jax.data.images.config import ImageData

BATCH, SHARDS, THREADS, STORED = 64, 8, 2, 256
Pass = Callable[[], Iterable[int]]  # the sizes of the batches of one pass over the images


def draw(n: int, size: int = STORED) -> list[bytes]:
    """Drawn JPEGs, which compress about as photographs do."""
    from PIL import Image

    rng, found = np.random.default_rng(0), []
    for _ in range(n):
        small = Image.fromarray(rng.integers(0, 256, (size // 8, size // 8, 3), dtype=np.uint8))
        file = io.BytesIO()
        small.resize((size, size), Image.Resampling.BICUBIC).save(file, "JPEG", quality=90)
        found.append(file.getvalue())
    return found


def write_all(root: Path, images: list[bytes]) -> None:
    """The images, sorted by class, as a folder, as tars, as parquet, and as ArrayRecord."""
    import pyarrow as pa
    from array_record.python.array_record_module import ArrayRecordWriter
    from pyarrow import parquet

    labels = [i * CLASSES // len(images) for i in range(len(images))]
    for i, (image, label) in enumerate(zip(images, labels, strict=True)):
        file = root / "folder" / str(label) / f"{i:06}.jpg"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(image)
    (root / "tars").mkdir()
    for part, some in enumerate(np.array_split(np.arange(len(images)), SHARDS)):
        write_tar(root / f"tars/train-{part:05}.tar", [(images[i], labels[i]) for i in some])
    label = {"_type": "ClassLabel", "names": [str(i) for i in range(CLASSES)]}
    features = {"image": {"_type": "Image"}, "label": label}
    struct = pa.struct({"bytes": pa.binary(), "path": pa.string()})
    column = pa.array([{"bytes": x, "path": ""} for x in images], struct)
    table = pa.table({"image": column, "label": pa.array(labels, pa.int64())})
    table = table.replace_schema_metadata({"huggingface": json.dumps({"info": {"features": features}})})
    (root / "parquet").mkdir()
    parquet.write_table(table, root / "parquet/train-0.parquet", row_group_size=100, compression="none",
                        use_dictionary=False)  # fmt: skip
    writer = ArrayRecordWriter(str(root / "train.array_record"), "group_size:1")
    for image in images:
        writer.write(image)
    writer.close()


def write_tar(path: Path, samples: Iterable[tuple[bytes, int]]) -> None:
    """A tar of webdataset with JPEGs and their classes."""
    with tarfile.open(path, "w") as file:
        for i, (image, label) in enumerate(samples):
            for suffix, content in (("jpg", image), ("cls", str(label).encode())):
                member = tarfile.TarInfo(f"{i:06}.{suffix}")
                member.size = len(content)
                file.addfile(member, io.BytesIO(content))


def decode(encoded: bytes) -> np.ndarray:
    """uint8 [SIZE, SIZE, 3], as all sides but ours decode and resize."""
    from PIL import Image

    image: Image.Image = Image.open(io.BytesIO(encoded))
    return np.asarray(image.resize((SIZE, SIZE), Image.Resampling.BILINEAR))


def sizes(batches: Iterable[Any]) -> Iterable[int]:
    """The sizes of batches of arrays."""
    return (len(np.stack(batch)) for batch in batches)


def our_side(source: str, place: str = "", **more: Any) -> Pass:
    """Ours, decoded when it is taken."""
    how: dict[str, Any] = {"memory": 0, "threads": THREADS, "fit": "stretch", "validation": 0.0, "test": 0.0}
    return ours(ImageData(source=source, dir=place, **how, **more), SIZE, BATCH)


def webdataset_side(urls: list[str]) -> Pass:
    """webdataset in this process, with a buffer of 1,000 samples."""
    import webdataset

    def one_pass() -> Iterable[int]:
        made = webdataset.WebDataset(urls, shardshuffle=len(urls), empty_check=False).shuffle(1000)
        made = made.to_tuple("jpg", "cls").map_tuple(decode, int).batched(BATCH, collation_fn=zip_lists)
        return sizes(images for images, _ in made)

    return one_pass


def zip_lists(samples: list[Any]) -> Any:
    """The columns of some samples."""
    return tuple(zip(*samples, strict=True))


def grain_side(path: Path) -> Pass:
    """Grain over an ArrayRecord file, with threads of this process."""
    import grain

    source = grain.sources.ArrayRecordDataSource(str(path))
    made = grain.MapDataset.source(source).seed(0).shuffle().map(decode).batch(BATCH, drop_remainder=True)
    return lambda: (len(x) for x in made.to_iter_dataset(grain.ReadOptions(num_threads=THREADS)))


def datasets_side(files: list[str], streaming: bool) -> Pass:
    """datasets over parquet: shuffled as a whole, or in a buffer of 1,000 rows."""
    import datasets

    made = datasets.load_dataset("parquet", data_files=files, split="train", streaming=streaming)
    made = made.cast_column("image", datasets.Image(decode=False))
    made = made.shuffle(seed=0, buffer_size=1000) if streaming else made.shuffle(seed=0)
    return lambda: sizes([decode(x["bytes"]) for x in batch["image"]] for batch in made.iter(BATCH))


def core_seconds() -> float:
    """User and system time of this process and of those that it has waited for."""
    return sum(os.times()[:4])


def compare(title: str, sides: dict[str, Callable[[], Pass]], rounds: int) -> None:
    """Measure all sides in turn, and print a table."""
    passes, speeds, walls = {}, {}, {}
    for name, make in sides.items():
        try:
            passes[name] = make()
            sum(passes[name]())  # files come into the page cache
        except Exception as error:  # of a package that cannot do this
            print(f"| {title} | {name} | cannot: {str(error)[:80]!r} | | |", flush=True)
            passes.pop(name, None)
    for i in range(rounds):
        for name in list(passes)[:: 1 if i % 2 else -1]:
            cpu, began = core_seconds(), time.perf_counter()
            images = sum(passes[name]())
            speeds.setdefault(name, []).append(images / (core_seconds() - cpu))
            walls.setdefault(name, []).append(images / (time.perf_counter() - began))
    for name in passes:
        each = speeds[name]
        ratios = sorted(mine / other for mine, other in zip(speeds[next(iter(passes))], each, strict=True))
        ratio = f"{statistics.median(ratios):.2f} [{ratios[0]:.2f}..{ratios[-1]:.2f}]"
        cells = title, name, f"{statistics.median(each):,.0f}", ratio, f"{statistics.median(walls[name]):,.0f}"
        print(f"| {' | '.join(cells)} |", flush=True)


def serve(root: Path, delay: float) -> None:
    """Serve the tars and the parquet of a folder as s3://bucket, until standard input ends."""
    from tests.loopback_s3 import serving

    with serving() as bucket:
        for path in [*root.glob("tars/*"), *root.glob("parquet/*")]:
            bucket.objects[str(path.relative_to(root))] = path.read_bytes()
        bucket.delay = delay
        print(os.environ["AWS_ENDPOINT_URL"], flush=True)
        sys.stdin.read()


def measure_store(root: Path, delay: float, rounds: int) -> None:
    """The part `store`."""
    line = [sys.executable, "-m", "benchmarks.shards", "--serve", str(root), "--delay", str(delay)]
    with subprocess.Popen(line, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout and server.stdin
        endpoint = server.stdout.readline().strip()
        os.environ |= {"AWS_ENDPOINT_URL": endpoint, "AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret"}
        tars = [f"{endpoint}/bucket/tars/{path.name}" for path in sorted(root.glob("tars/*.tar"))]
        sides = {"ours, tars": lambda: our_side("wds:*.tar", "s3://bucket/tars", order="blocks"),
                 "ours, parquet": lambda: our_side("parquet:*.parquet", "s3://bucket/parquet"),
                 "webdataset, tars by curl": lambda: webdataset_side([f"pipe:curl -s {url}" for url in tars]),
                 "datasets, parquet, streaming":
                     lambda: datasets_side([f"{endpoint}/bucket/parquet/train-0.parquet"], True)}  # fmt: skip
        compare(f"store, {1000 * delay:.0f} ms", installed(sides), rounds)
        server.stdin.close()


def installed(sides: dict[str, Callable[[], Pass]]) -> dict[str, Callable[[], Pass]]:
    """The sides whose packages are installed."""
    return {name: make for name, make in sides.items() if name.startswith("ours") or find_spec(name.partition(",")[0])}


def measure_decoding(rounds: int) -> None:
    """The part `decode`."""
    from PIL import Image

    from vit_jax.data.images.preprocess import Preprocess, decode_image, decode_unchanged, equal_kinds

    if not equal_kinds():
        return
    import simplejpeg

    def resized(encoded: bytes) -> np.ndarray:
        pixels = simplejpeg.decode_jpeg(encoded, "RGB")
        return np.asarray(Image.fromarray(pixels).resize((SIZE, SIZE), Image.Resampling.BILINEAR))

    for size in (32, SIZE, 384):
        files, to = draw(50, size), Preprocess((size, size), 3, "stretch", 0, "bilinear", 0, (0.0,) * 3, (1.0,) * 3)
        ways: dict[str, tuple[Callable[[bytes], Any], Callable[[bytes], Any]]] = {
            "as it is": (lambda x, to=to: to.apply(decode_image(x, "")), lambda x, to=to: decode_unchanged(x, to)),
            f"resized to {SIZE}": (decode, resized),
        }
        for way, (pillow, fast) in [*ways.items()][: 1 if size == SIZE else 2]:
            ratios = []
            for _ in range(rounds):
                spent = []
                for decoder in (pillow, fast):
                    began = time.thread_time()
                    for file in files:
                        decoder(file)
                    spent.append(time.thread_time() - began)
                ratios.append(spent[0] / spent[1])
            ratio = f"{statistics.median(ratios):.2f} [{min(ratios):.2f}..{max(ratios):.2f}]"
            print(f"| decode | {size} x {size}, {way}: simplejpeg / Pillow | | {ratio} | |", flush=True)


def measure_first_batch(root: Path, images: list[bytes], n: int) -> None:
    """The part `first`."""
    folder = root / "many"
    folder.mkdir()
    write_tar(folder / "train-0000.tar", ((images[i % len(images)], i) for i in range(1000)))
    for i in range(1, -(-n // 1000)):
        os.link(folder / "train-0000.tar", folder / f"train-{i:04}.tar")
    for title in ("first, shards not seen before", "first, with their indexes"):
        cpu, began = core_seconds(), time.perf_counter()
        one_pass = our_side("wds:*.tar", str(folder), order="blocks")
        next(iter(one_pass()))
        spent = core_seconds() - cpu, time.perf_counter() - began
        print(f"| {title} | {n:,} images | {spent[0]:.1f} core-seconds | | {spent[1]:.1f} s |", flush=True)


def measure_memory(root: Path, times: int) -> None:
    """The part `memory`."""
    folder, room = root / "again", 0.01
    folder.mkdir()
    for path in sorted(root.glob("tars/*.tar")):
        for i in range(times):
            os.link(path, folder / f"{path.stem}-{i:03}.tar")
    size = sum(path.stat().st_size for path in folder.iterdir())
    held, images = [], 0
    for number, batch in enumerate(our_side("wds:*.tar", str(folder), order="blocks", read_ahead=room)(), 1):
        images += batch
        if number % 10 == 0:
            held.append(resident())
    tenths = [held[len(held) * i // 10] for i in range(1, 10)] + [held[-1]]
    shown = ", ".join(f"{each / 1e6:.0f}" for each in tenths)
    print(f"| memory | {images:,} images, {size / 1e9:.2f} GB of shards, {1000 * room:.0f} MB to read ahead | "
          f"MB after each tenth: {shown} | | at most {max(held) / 1e6:.0f} MB |", flush=True)  # fmt: skip


def resident() -> int:
    """The bytes of memory that this process has."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGESIZE")


def main() -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=2000)
    parser.add_argument("--rounds", type=int, default=5, help="0: only the parts first and memory")
    parser.add_argument("--delay", type=float, default=0.04, help="seconds before each answer of the store")
    parser.add_argument("--first", type=int, default=1_281_167, help="images of the part first; 0: leave it out")
    parser.add_argument("--memory", type=int, default=40, help="times of the part memory; 0: leave it out")
    parser.add_argument("--serve", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        return serve(options.serve, options.delay)
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        os.environ["XDG_CACHE_HOME"] = str(root / "cache")
        images = draw(options.images)
        write_all(root, images)
        print(heading(describe()), f"{len(images):,} images, {len(b''.join(images)):,} bytes", "", sep="\n")
        print("| part | side | images a core-second | ours, tars / this | images a second |\n|---|---|---|---|---|")
        tars = [str(path) for path in sorted(root.glob("tars/*.tar"))]
        rows = [str(root / "parquet/train-0.parquet")]
        sides = {"ours, tars": lambda: our_side("wds:*.tar", str(root / "tars"), order="blocks"),
                 "ours, parquet": lambda: our_side("parquet:*.parquet", str(root / "parquet")),
                 "ours, folder": lambda: our_side(f"folder:{root / 'folder'}"),
                 "webdataset, tars": lambda: webdataset_side(tars),
                 "grain, ArrayRecord": lambda: grain_side(root / "train.array_record"),
                 "datasets, parquet": lambda: datasets_side(rows, False),
                 "datasets, parquet, streaming": lambda: datasets_side(rows, True)}  # fmt: skip
        if options.rounds:
            compare("local", installed(sides), options.rounds)
            measure_store(root, options.delay, options.rounds)
            measure_decoding(options.rounds)
        if options.memory:
            measure_memory(root, options.memory)
        if options.first:
            measure_first_batch(root, images, options.first)
        print(f"\nload at the end {load()}")


if __name__ == "__main__":
    main()
