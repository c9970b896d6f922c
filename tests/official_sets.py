"""Official sets in small: archives of their form, and a server on this machine that serves them, well or badly."""

import gzip
import hashlib
import io
import tarfile
import threading
import time
from contextlib import contextmanager
from dataclasses import replace

import numpy as np

from tests import loopback
from vit_jax.extras.sets.archives import OFFICIAL, Archive, CifarSet


def contents(name, per_batch=(12, 8, 8, 8, 8, 8), seed=0):
    """{split: (pixels [n, h, w, C], labels [n])} of a made-up set of the form of `name`; the last batch is test."""
    official, rng, made = OFFICIAL[name], np.random.default_rng(seed), {}
    sizes = {"train": sum(per_batch[:-1]), "test": per_batch[-1]}
    for split, n in sizes.items():
        pixels = rng.integers(0, 256, (n, *official.shape), np.uint8)
        made[split] = pixels, (np.arange(n) % official.classes).astype(np.uint8)
    return made


def tar(members):
    """A gzipped tar of {name: bytes, or a TarInfo}."""
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w:gz", compresslevel=1) as archive:
        for name, content in members.items():
            if isinstance(content, tarfile.TarInfo):
                archive.fileobj.write(content.tobuf())  # addfile wants as many bytes as the header says
            else:
                info = tarfile.TarInfo(name)
                info.size = len(content)
                archive.addfile(info, io.BytesIO(content))
    return file.getvalue()


def cifar_members(name, made, classes):
    """{member: bytes} of CIFAR's binary archive of made-up contents, and the sizes of its batches."""
    official, members, batches = OFFICIAL[name], {}, []
    members["readme.html"] = b"<html>"
    for split, (pixels, labels) in made.items():
        rows = [*([labels % 20] if official.label else []), labels]  # of CIFAR-100 first the group of classes
        records = np.column_stack([*rows, pixels.transpose(0, 3, 1, 2).reshape(len(pixels), -1)])
        files = [batch for batch in official.batches if batch.split == split]
        for batch, part in zip(files, np.array_split(records, len(files)), strict=True):
            members[batch.member] = part.tobytes()
            batches.append(replace(batch, images=len(part)))
    members[official.names] = "".join(f"{one}\n" for one in classes).encode() + b"\n"
    return members, tuple(batches)


def small(name, seed=0, classes=None):
    """(a small set of the form of `name`, with the right bytes and digests; {file: its content}; its contents)."""
    made, official = contents(name, seed=seed), OFFICIAL[name]
    if isinstance(official, CifarSet):
        classes = classes or [f"class {i}" for i in range(official.classes)]
        members, batches = cifar_members(name, made, classes)
        files = {official.archives[0].name: tar(members)}
        official = replace(official, batches=batches)
    else:
        blobs = []
        for pixels, labels in made.values():
            blobs.append(np.array([0x803, *pixels.shape[:3]], ">i4").tobytes() + pixels.tobytes())
            blobs.append(np.array([0x801, len(pixels)], ">i4").tobytes() + labels.tobytes())
        files = {a.name: gzip.compress(blob, 1) for a, blob in zip(official.archives, blobs, strict=True)}
        official = replace(official, splits={split: len(pixels) for split, (pixels, _) in made.items()})
    return with_files(official, files), files, made


def with_files(official, files, addresses=("http://127.0.0.1:9/",)):
    """The set with the bytes and digests of these files, at these addresses."""
    archives = tuple(
        Archive(name, tuple(a + name for a in addresses), len(content), hashlib.sha256(content).hexdigest())
        for name, content in files.items()
    )
    return replace(official, archives=archives)


@contextmanager
def serving(files, **faults):
    """Serve {name: bytes} on this machine: the address, and the list of (path, Range) that were asked for.

    Faults: `cut` bytes after which connections break off; `stall` bytes after which they send nothing more;
    `ranges=False`: whole files only; `shift`: parts begin elsewhere; `status`: the answer to everything; `more`: bytes
    after the end; `quiet=True`: no Content-Length; `slow`: seconds between pieces.
    """
    asked = []
    stop = threading.Event()

    class Handler(loopback.Handler):
        protocol_version = "HTTP/1.0"

        def do_GET(self):
            asked.append((self.path, self.headers.get("Range")))
            content = files.get(self.path.rpartition("/")[2])
            if "status" in faults or content is None:
                self.send_error(faults.get("status", 404), "of\x1b[31m another kind")
                return
            content, start = content + faults.get("more", b""), 0
            wanted = self.headers.get("Range")
            if wanted and faults.get("ranges", True):
                start = int(wanted.removeprefix("bytes=").removesuffix("-"))
                if start >= len(content) or faults.get("ranges") == "refused":
                    self.send_error(416)
                    return
                self.send_response(206)
                shift = faults.get("shift", 0)
                self.send_header("Content-Range", f"bytes {start + shift}-{len(content) - 1}/{len(content)}")
            else:
                self.send_response(200)
            if not faults.get("quiet"):
                self.send_header("Content-Length", str(len(content) - start))
            self.end_headers()
            end = min(len(content), start + faults.get("cut", len(content)))
            if "stall" in faults:
                end = min(end, faults["stall"])
            for at in range(start, end, 4096):
                self.wfile.write(content[at : min(at + 4096, end)])
                self.wfile.flush()
                time.sleep(faults.get("slow", 0))
            if "stall" in faults:
                stop.wait(60)
            self.close_connection = True

    with loopback.listening(Handler) as address:
        try:
            yield f"{address}/", asked
        finally:
            stop.set()
