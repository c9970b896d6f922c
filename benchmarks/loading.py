"""Images per second of the data path alone, compared with PyTorch's DataLoader over Pillow or tensors.

    python -m benchmarks.loading [--images 512] [--arrays 20000] [--rounds 5] [--json OUT]
    python -m benchmarks.loading --names 50000 --images 2000

arrays   uint8 images of CIFAR's shape in an .npz, batches of 256: ours, and a DataLoader of a TensorDataset
jpeg     a folder of JPEGs of 500 x 375, scaled and cropped to 224 by Pillow, batches of 32: ours with data.memory 0
         (decoded when they are taken, a thread for each core), and a DataLoader with a worker for each core
decoded  the same folder, ours as it is by default: decoded once into memory, if they fit

With --names, only this: a folder of so many names (hard links of the JPEGs), which is too large for data.memory: the
time of its first start, which indexes it, and of a second one; images per second of one pass of training's batches, as
a share of what one core decodes, scales and crops, times the number of cores; and the memory that the pass adds.

A round is one pass over all images of each side, shuffled, in alternating order. Batches are uint8 arrays in both; the
DataLoader's are made as torchvision's ImageFolder, Resize and CenterCrop make them. Files are in a temporary folder.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))  # the checkout's own code, however this is started

from benchmarks.machine import describe, heading, load, spread
from vit_jax.augmentation.config import ImageAugment
from vit_jax.config.run import RunConfig
from vit_jax.data.images.config import ImageData
from vit_jax.machine import backend
from vit_jax.models.vit_config import ViTConfig

SIZE, CLASSES = 224, 4
Pass = Callable[[], Iterable[int]]  # the sizes of the batches of one pass over the images


def write_arrays(path: Path, n: int) -> None:
    """An .npz of n random images of CIFAR's shape."""
    pixels = np.random.default_rng(0).integers(0, 256, (n, 32, 32, 3), dtype=np.uint8)
    np.savez(path, images=pixels, labels=np.arange(n) % 10)


def write_jpegs(folder: Path, n: int, width: int, height: int) -> None:
    """A folder of n JPEGs in CLASSES folders: random blobs, which compress about as photographs do."""
    from PIL import Image

    draw = np.random.default_rng(0)
    for i in range(n):
        small = Image.fromarray(draw.integers(0, 256, (height // 8, width // 8, 3), dtype=np.uint8))
        file = folder / str(i % CLASSES) / f"{i}.jpg"
        file.parent.mkdir(parents=True, exist_ok=True)
        small.resize((width, height), Image.Resampling.BICUBIC).save(file, quality=90)


def ours(data: ImageData, image: int, batch: int) -> Pass:
    """One pass of the batches that training takes from a source."""
    from vit_jax.data.batches import batches
    from vit_jax.tasks.classify.learn import Classify

    run = RunConfig("classify", ViTConfig(image=image, classes=0), data, ImageAugment(), batch=batch)
    opened = Classify.open_data(run)
    split, order, epoch = opened.splits["train"], opened.order(batch, 0, 0), 0

    def one_pass() -> Iterable[int]:
        nonlocal epoch
        first, epoch = epoch * order.steps_per_epoch, epoch + 1
        return (len(each["image"]) for each in batches(split, order, first, first + order.steps_per_epoch))

    return one_pass


def loader(examples: Any, batch: int, workers: int) -> Pass:
    """One pass of a DataLoader."""
    from torch.utils.data import DataLoader

    made = DataLoader(
        examples, batch, shuffle=True, drop_last=True, num_workers=workers, persistent_workers=workers > 0
    )
    return lambda: (len(images) for images, _ in made)


def tensors(path: Path) -> Any:
    """The images of an .npz as a TensorDataset."""
    import torch
    from torch.utils.data import TensorDataset

    with np.load(path) as file:
        return TensorDataset(torch.from_numpy(file["images"]), torch.from_numpy(file["labels"]))


class Jpegs:
    """A folder of classes as a torch Dataset: each image decoded, scaled to cover SIZE and cropped by Pillow."""

    def __init__(self, folder: Path):
        self.files = sorted(folder.glob("*/*.jpg"))

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, i: int) -> tuple[Any, int]:
        from PIL import Image

        with Image.open(self.files[i]) as file:
            image = file.convert("RGB")
        scale = (SIZE + 1e-6) / min(image.size)  # int() of the shorter side is SIZE
        image = image.resize((int(image.width * scale), int(image.height * scale)), Image.Resampling.BILINEAR)
        left, upper = round((image.width - SIZE) / 2), round((image.height - SIZE) / 2)
        return np.array(image.crop((left, upper, left + SIZE, upper + SIZE))), int(self.files[i].parent.name)


def compare(name: str, sides: dict[str, Pass], rounds: int) -> dict[str, Any]:
    """Measure all sides, print the results and return them."""
    for one_pass in sides.values():
        sum(one_pass())  # workers start, files come into the page cache
    speeds: dict[str, list[float]] = {side: [] for side in sides}
    for i in range(rounds):
        for side in list(sides)[:: 1 if i % 2 else -1]:
            began = time.perf_counter()
            images = sum(sides[side]())
            speeds[side].append(images / (time.perf_counter() - began))
    row = {"what": name, "images_per_second": {side: statistics.median(all_) for side, all_ in speeds.items()}}
    speeds = ", ".join(f"{side} {speed:,.0f} images/s" for side, speed in row["images_per_second"].items())
    if "DataLoader" in speeds:
        row |= spread([mine / other for mine, other in zip(speeds["ours"], speeds["DataLoader"], strict=True)])
        speeds += f"; speed of ours / DataLoader: {row['ratio']:.2f} [{row['low']:.2f}..{row['high']:.2f}]"
    print(f"{name:8} {speeds} in {rounds} rounds, load {load()}", flush=True)
    return row


def one_core(split: Any, images: int) -> float:
    """Images that one thread decodes, scales and crops in a second."""
    rows, whole = split.rows[:images].tolist(), split.images
    began = time.perf_counter()
    for row in rows:
        whole.preprocess.apply(whole.open(row, whole.examples.read(row)))
    return len(rows) / (time.perf_counter() - began)


def stream(names: int, images: int) -> dict[str, Any]:
    """Measure a folder of so many names, print the results and return them."""
    from vit_jax.data.batches import batches
    from vit_jax.data.images.open import open_images

    with tempfile.TemporaryDirectory() as folder:
        os.environ["XDG_CACHE_HOME"] = f"{folder}/cache"
        jpegs, linked = Path(folder) / "jpegs", Path(folder) / "linked"
        write_jpegs(jpegs, images, 500, 375)
        files = sorted(jpegs.glob("*/*"))
        for name in {file.parent.name for file in files}:
            (linked / name).mkdir(parents=True)
        for i in range(names):
            os.link(files[i % images], linked / files[i % images].parent.name / f"{i}.jpg")
        data, starts = ImageData(source=f"folder:{linked}", memory=0.0), []
        time.sleep(2.1)  # so that no file has changed just now
        for _ in range(2):
            began = time.perf_counter()
            opened = open_images(data, SIZE, 3, normalize="half")
            starts.append(time.perf_counter() - began)
        split, order = opened.splits["train"], opened.order(128, 0)
        alone = statistics.median(one_core(split, min(500, images)) for _ in range(3))
        sum(len(each["image"]) for each in batches(split, order, 0, 2))
        before, began = memory(), time.perf_counter()
        count = sum(len(each["image"]) for each in batches(split, order, 2, order.steps_per_epoch))
        speed = count / (time.perf_counter() - began)
    share = speed / (alone * backend.cores())
    row = {"what": "names", "names": names, "starts": starts, "images_per_second": speed, "one_core": alone}
    row |= {"share": share, "memory_mb": (memory() - before) / 1e6}
    print(
        f"{names:,} names: first start {starts[0]:.1f} s, second {starts[1]:.1f} s; {speed:,.0f} images/s of "
        f"{count:,}, {share:.0%} of {backend.cores()} cores of {alone:,.0f}; the pass adds {row['memory_mb']:.0f} MB, "
        f"load {load()}",
        flush=True,
    )
    return row


def memory() -> float:
    """Bytes of memory that this process holds now; 0 where /proc does not tell."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 0.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=512, help="JPEGs in the folder")
    parser.add_argument("--arrays", type=int, default=20_000, help="images in the .npz")
    parser.add_argument("--rounds", type=int, default=5, help="passes of each side")
    parser.add_argument("--names", type=int, default=0, help="names in a folder that is too large for memory")
    parser.add_argument("--json", default="", help="file to write all results to")
    o = parser.parse_args()
    if min(o.images, o.arrays) < 40:
        parser.error(f"--images {o.images} --arrays {o.arrays}: give at least 40 of each")
    backend.configure_jax()
    machine = describe()
    print(heading(machine), flush=True)
    rows = (
        [stream(o.names, o.images)]
        if o.names
        else measured(o.images, o.arrays, o.rounds, bool(importlib.util.find_spec("torch")))
    )
    if o.json:
        Path(o.json).write_text(
            json.dumps({"machine": machine, "command": " ".join(sys.argv), "rows": rows}, indent=1) + "\n"
        )


def measured(images: int, arrays: int, rounds: int, torch_too: bool, shape: tuple[int, int] = (500, 375)) -> list[Any]:
    """Make the files in a temporary folder and measure all three; `shape` is the JPEGs' width and height."""
    with tempfile.TemporaryDirectory() as folder:
        npz, jpegs = Path(folder) / "arrays.npz", Path(folder) / "jpegs"
        write_arrays(npz, arrays)
        write_jpegs(jpegs, images, *shape)
        many, few = min(256, arrays // 4), min(32, images // 4)
        rows = []
        for name, data, image, batch, examples, workers in (
            ("arrays", ImageData(source=str(npz)), 32, many, tensors, 0),
            (
                "jpeg",
                ImageData(source=f"folder:{jpegs}", memory=0.0),
                SIZE,
                few,
                lambda _: Jpegs(jpegs),
                backend.cores(),
            ),
            ("decoded", ImageData(source=f"folder:{jpegs}"), SIZE, few, None, 0),
        ):
            sides = {"ours": ours(data, image, batch)}
            if torch_too and examples:
                sides["DataLoader"] = loader(examples(npz), batch, workers)
            rows.append(compare(name, sides, rounds))
        return rows


if __name__ == "__main__":
    main()
