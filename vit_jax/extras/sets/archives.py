"""The sets that are fetched by name: their official archives, what these hold, and how one is fetched.

Bytes and SHA-256 are those that TFDS lists (url_checksums/*.txt); addresses are those of TFDS and torchvision. What has
arrived of a file stays when a connection breaks or the process ends; the next request asks for the rest.
"""

from __future__ import annotations

import hashlib
import http.client
import os
import socket
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

_CIFAR = "https://www.cs.toronto.edu/~kriz/"
_MNIST = ("https://storage.googleapis.com/cvdf-datasets/mnist/", "https://ossci-datasets.s3.amazonaws.com/mnist/")
_FASHION = ("http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",)


@dataclass(frozen=True)
class Archive:
    """A file as its author publishes it."""

    name: str
    addresses: tuple[str, ...]  # tried in this order
    bytes: int
    sha256: str


@dataclass(frozen=True)
class Batch:
    """A file that holds the images and labels of a split, or a part of them, one after the other."""

    split: str
    images: int
    member: str  # of the archive


@dataclass(frozen=True)
class CifarSet:
    """A set in CIFAR's binary form: a tar archive of files of records, each with labels and pixels [3, 32, 32]."""

    archives: tuple[Archive]
    batches: tuple[Batch, ...]
    names: str  # the member that lists its classes
    classes: int
    label: int = 0  # the byte of a record that is its class; pixels follow it
    shape: tuple[int, int, int] = (32, 32, 3)
    version: str = "3.0.2"  # of TFDS's set with the same records

    @property
    def splits(self) -> dict[str, int]:
        """{split: number of its images}."""
        return {name: sum(b.images for b in self.batches if b.split == name) for name in ("train", "test")}


@dataclass(frozen=True)
class IdxSet:
    """A set in MNIST's form: for each split a gzipped file of images and one of labels, in this order."""

    archives: tuple[Archive, Archive, Archive, Archive]
    splits: dict[str, int]  # {split: number of its images}, in the order of the archives
    names: tuple[str, ...]  # of its classes, which the archives do not name
    shape: tuple[int, int, int] = (28, 28, 1)
    version: str = "3.0.1"  # of TFDS's set with the same records

    @property
    def classes(self) -> int:
        """The number of its classes."""
        return len(self.names)


OfficialSet = CifarSet | IdxSet


def _idx(hosts: tuple[str, ...], names: tuple[str, ...], *files: tuple[str, int, str]) -> IdxSet:
    train_images, train_labels, test_images, test_labels = (
        Archive(f"{name}-ubyte.gz", tuple(f"{host}{name}-ubyte.gz" for host in hosts), size, sha256)
        for name, size, sha256 in files
    )
    return IdxSet((train_images, train_labels, test_images, test_labels), {"train": 60_000, "test": 10_000}, names)


OFFICIAL: dict[str, OfficialSet] = {
    "cifar10": CifarSet(
        (
            Archive(
                "cifar-10-binary.tar.gz",
                (f"{_CIFAR}cifar-10-binary.tar.gz",),
                170_052_171,
                "c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd",
            ),
        ),
        (
            *(Batch("train", 10_000, f"cifar-10-batches-bin/data_batch_{number}.bin") for number in range(1, 6)),
            Batch("test", 10_000, "cifar-10-batches-bin/test_batch.bin"),
        ),
        "cifar-10-batches-bin/batches.meta.txt",
        classes=10,
    ),
    "cifar100": CifarSet(
        (
            Archive(
                "cifar-100-binary.tar.gz",
                (f"{_CIFAR}cifar-100-binary.tar.gz",),
                168_513_733,
                "58a81ae192c23a4be8b1804d68e518ed807d710a4eb253b1f2a199162a40d8ec",
            ),
        ),
        (
            Batch("train", 50_000, "cifar-100-binary/train.bin"),
            Batch("test", 10_000, "cifar-100-binary/test.bin"),
        ),
        "cifar-100-binary/fine_label_names.txt",
        classes=100,
        label=1,  # after that of one of 20 groups of classes
    ),
    "mnist": _idx(
        _MNIST,
        tuple("0123456789"),
        ("train-images-idx3", 9_912_422, "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609"),
        ("train-labels-idx1", 28_881, "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c"),
        ("t10k-images-idx3", 1_648_877, "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6"),
        ("t10k-labels-idx1", 4_542, "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6"),
    ),
    "fashion_mnist": _idx(
        _FASHION,
        ("T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot"),
        ("train-images-idx3", 26_421_880, "3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84"),
        ("train-labels-idx1", 29_515, "a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845"),
        ("t10k-images-idx3", 4_422_102, "346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073"),
        ("t10k-labels-idx1", 5_148, "67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5"),
    ),
}


STALL = 30.0  # seconds without a byte after which an address is given up
_RESUMED = 5  # times that a connection that broke off is taken up again, as long as each time bytes arrive
_CHUNK = 1 << 16  # bytes that are asked for at once; fewer are taken as they arrive
_USER_AGENT = "vit-jax"


class NotFetched(Exception):
    """No address has served the file; the message says why, for each of them."""


class _Failed(Exception):
    """An address does not serve the file; the message says why."""


class _Broken(Exception):
    """A connection ended before the file did, or the rest of the file is not to be had: ask again."""


def fetch(archive: Archive, path: Path, advance: Callable[[int], None] = lambda size: None) -> None:
    """Fetch a file; proxies are those of the environment (https_proxy, no_proxy, ...)."""
    reasons = []
    for address in archive.addresses:
        try:
            if _size(path) and not _fetch_from(address, archive, path, advance):
                return
            # Without a beginning, or with one that was not of this file.
            if wrong := _fetch_from(address, archive, path, advance):
                raise _Failed(f"serves another file: {wrong}")
            return
        except _Failed as error:
            reasons.append(f"{urlsplit(address).netloc} {error}")
    raise NotFetched("; ".join(reasons))


def difference(archive: Archive, path: Path) -> str:
    """How a file differs from the official one, in a few words; empty if it does not."""
    if (size := path.stat().st_size) != archive.bytes:
        return f"{size:,} bytes instead of {archive.bytes:,}"
    with open(path, "rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    return "" if found == archive.sha256 else f"SHA-256 {found[:16]}... instead of {archive.sha256[:16]}..."


def _fetch_from(address: str, archive: Archive, path: Path, advance: Callable[[int], None]) -> str:
    """Fetch the file, or the rest of it; a file that is not the official one is removed, and how it differs returned.

    Raises _Failed.
    """
    for _ in range(1 + _RESUMED):
        before = _size(path)
        try:
            _receive(address, archive, path, advance)
        except _Broken as error:
            if _size(path) == before:
                raise _Failed(str(error)) from error
        else:
            wrong = difference(archive, path)
            if wrong:
                path.unlink()
            return wrong
    raise _Failed(f"broke off {1 + _RESUMED} times")


def _receive(address: str, archive: Archive, path: Path, advance: Callable[[int], None]) -> None:
    """Append to the file at `path` what one request brings. Raises _Failed and _Broken."""
    have = _size(path)
    headers = {"User-Agent": _USER_AGENT, **({"Range": f"bytes={have}-"} if have else {})}
    try:
        # Not urlopen, whose proxies are those of the environment at its first call.
        opener = urllib.request.build_opener(_Http, _Https)
        response = opener.open(urllib.request.Request(address, headers=headers), timeout=STALL)
    except urllib.error.HTTPError as error:
        error.close()
        if error.code == http.HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE and have:
            path.unlink()
            raise _Broken("does not serve the rest of the file") from error
        raise _Failed(f"answered with the status {error.code}") from error
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise _Failed(_reason(error)) from error
    with response:
        if response.status != http.HTTPStatus.PARTIAL_CONTENT:
            have = 0  # the server sends the whole file, whatever was asked for
        elif not response.headers.get("Content-Range", "").startswith(f"bytes {have}-"):
            path.unlink(missing_ok=True)
            raise _Broken("does not serve the rest of the file")
        length = response.length  # of what it is about to send; None if it does not say
        if length is not None and have + length != archive.bytes:
            raise _Failed(f"serves another file: {have + length:,} bytes instead of {archive.bytes:,}")
        with open(path, "ab" if have else "wb") as file:
            while chunk := _next(response):
                have += len(chunk)
                if have > archive.bytes:
                    path.unlink()
                    raise _Failed(f"serves another file: more than {archive.bytes:,} bytes")
                file.write(chunk)
                advance(have)
    if have < archive.bytes:
        raise _Broken(f"broke off after {have:,} of {archive.bytes:,} bytes")


def _connect(place: tuple[str, int], timeout: float, source: Any = None) -> socket.socket:
    """socket.create_connection with one time for all addresses of a host, of which large servers have eight."""
    addresses = socket.getaddrinfo(*place, type=socket.SOCK_STREAM)
    connection = socket.create_connection(place, timeout / len(addresses), source)
    connection.settimeout(timeout)
    return connection


class _OneWait(urllib.request.AbstractHTTPHandler):
    """Opens addresses by `_connect`."""

    def do_open(self, http_class: Any, req: Any, **http_conn_args: Any) -> Any:
        def connection(*args: Any, **kwargs: Any) -> Any:
            made = http_class(*args, **kwargs)
            made._create_connection = _connect
            return made

        return super().do_open(connection, req, **http_conn_args)


class _Http(_OneWait, urllib.request.HTTPHandler):
    """For http."""


class _Https(_OneWait, urllib.request.HTTPSHandler):
    """For https."""


def _next(response: Any) -> bytes:
    """The bytes that have arrived, after a wait if there are none; empty at the end."""
    try:
        return response.read1(_CHUNK)
    except TimeoutError as error:
        raise _Failed(_reason(error)) from error
    except (OSError, http.client.HTTPException, ValueError):
        return b""  # as if the connection had been closed


def _size(path: Path) -> int:
    return os.path.getsize(path) if path.exists() else 0


def _reason(error: BaseException) -> str:
    """Why an address could not be read, in a few words, without text that the server sent."""
    reason = getattr(error, "reason", error)
    if isinstance(reason, TimeoutError):
        return f"sent nothing for {STALL:.0f} seconds"
    if isinstance(reason, OSError) and reason.strerror:
        return f"could not be reached ({reason.strerror})"
    return f"could not be read ({type(reason).__name__})"
