"""One official file, fetched from the addresses that serve it, and checked by its size and SHA-256.

What has arrived stays in the file when a connection breaks or the process ends; the next request asks for the rest.
"""

from __future__ import annotations

import hashlib
import http.client
import os
import socket
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from .archives import Archive

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
