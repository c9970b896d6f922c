"""Stores of objects that are reached by HTTP: S3 and what speaks like it, Google Cloud Storage, plain servers.

They are reached by tensorstore, with the variables that their users have set.
"""

from __future__ import annotations

import functools
import os
import re
import time
from typing import Any
from urllib.parse import urlsplit

from ...errors import UserError
from ...files.places import KINDS, Stat, StoreError, check_name
from .folder import replaced, too_short

PLAIN = ("https://", "http://")  # begin the URLs of servers that list nothing, and are only read
FIRST, LATER = 15.0, 60.0  # seconds that a request may take: before anything was reached, and afterwards
SLOWEST = 1 << 20  # bytes a second that a request gets time for beyond that
TRIES = 5  # of a request after which the store was reached before
PAUSE = 1.0  # seconds before the second, and twice as many before each further one
# Inside tensorstore, of 429, 5xx, lost lines.
RETRIES = {"max_retries": 4, "initial_delay": "100ms", "max_delay": "2s"}
_PROBE = 1 << 16  # bytes of a range by which a size is looked for
_ABSENT = b"\x02"  # how tensorstore writes that no object is there
_LARGEST = 64 << 20  # bytes

_DRIVERS = {"s3": "s3", "gs": "gcs", "https": "http", "http": "http"}
_PERMISSIONS = {  # {scheme: what is done: the permission that it takes}
    "s3": {"read": "s3:GetObject", "list": "s3:ListBucket", "write": "s3:PutObject", "delete": "s3:DeleteObject"},
    "gs": {
        "read": "storage.objects.get",
        "list": "storage.objects.list",
        "write": "storage.objects.create",
        "delete": "storage.objects.delete",
    },
}


class ObjectStore:
    """The objects below a URL."""

    local = False

    def __init__(self, url: str):
        parts = urlsplit(url)
        self.url, self._scheme, self._bucket = url.rstrip("/"), parts.scheme, parts.netloc
        if not parts.netloc or parts.query or parts.fragment:
            raise UserError(url, "names no bucket", f"give {KINDS}")
        self._prefix = f"{parts.path.strip('/')}/" if parts.path.strip("/") else ""
        self._driver, self._permissions = _DRIVERS[self._scheme], _PERMISSIONS.get(self._scheme, {})
        self._reached = False

    @functools.cached_property
    def _kv(self) -> Any:
        import tensorstore as ts

        context = {
            f"{self._driver}_request_retries": RETRIES,
            f"{self._driver}_request_concurrency": {"limit": 64},
        }
        if self._driver == "s3":
            context["aws_credentials"] = {"type": _credentials()}
        host = os.environ.get("STORAGE_EMULATOR_HOST")
        if self._driver == "gcs" and host:
            os.environ.setdefault("TENSORSTORE_GCS_HTTP_URL", host if "://" in host else f"http://{host}")
        return ts.KvStore.open(self._spec(), context=ts.Context(context)).result(FIRST)

    def _spec(self) -> dict[str, str]:
        if self._driver == "http":
            return {"driver": "http", "base_url": f"{self._scheme}://{self._bucket}/"}
        spec = {"driver": self._driver, "bucket": self._bucket}
        if self._driver == "s3":
            endpoint = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL")
            region = os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION")
            if endpoint:
                spec["endpoint"], region = endpoint.rstrip("/"), region or "us-east-1"
            if region:
                spec["aws_region"] = region
        return spec

    def _host(self) -> str:
        usual = {"s3": f"{self._bucket}.s3.amazonaws.com", "gcs": "storage.googleapis.com"}
        return self._spec().get("endpoint") or usual.get(self._driver, self._bucket)

    def _key(self, name: str) -> str:
        return self._prefix + check_name(name)

    def where(self, name: str) -> str:
        """An object as messages name it."""
        return f"{self.url}/{name}" if name else self.url

    def _ask(self, what: str, name: str, call: Any, size: int = 0) -> Any:
        """The result of a request, which is sent again where that may help."""
        if what in ("write", "delete") and self._driver == "http":
            raise UserError(self.url, "a plain server is only read", "give a folder, s3:// or gs://")
        tries = TRIES if self._reached else 1
        for attempt in range(1, tries + 1):
            seconds = (LATER if self._reached else FIRST) + size / SLOWEST
            try:
                result = call().result(seconds)
                self._reached = True
                return result
            except TimeoutError:
                fault = f"{self._host()} gave no answer in {seconds:.0f} seconds"
            except (ValueError, RuntimeError, OSError) as error:
                fault = self._refused(what, name, error)
            if attempt < tries:
                time.sleep(PAUSE * 2 ** (attempt - 1))
        raise StoreError(self.where(name), fault, "check the network and the endpoint, and repeat the command")

    def _refused(self, what: str, name: str, error: Exception) -> str:
        """Why a request failed, where it may be sent again. Raises UserError where that would not help."""
        text = str(error)
        found = re.search(r"(?:http_response_code='|HTTP code )(\d+)", text)
        status = found[1] if found else ""
        if text.startswith("OUT_OF_RANGE"):
            raise _Beyond(text) from error
        if text.startswith(("PERMISSION_DENIED", "UNAUTHENTICATED")) or status in ("401", "403"):
            text = text if "Unknown" not in text else self._denial(name)
            if code := next((code for code in _DENIALS if code in text), ""):
                fault, remedy = _DENIALS[code]
                raise StoreError(self.where(name), f"access is denied: {fault}", remedy) from error
            wanted = self._permissions.get(what)
            whose = f"the permission {wanted} is wanted" if wanted else f"the server answers {status or 403}"
            remedy = "have it granted, or set the credentials of an account that has it" if wanted else "check the URL"
            raise StoreError(self.where(name), f"access is denied: {whose}", remedy) from error
        if "NoSuchBucket" in text or (status == "404" and what in ("list", "write")):
            raise StoreError(self.where(name), f"there is no bucket {self._bucket}", "check its name") from error
        if "Could not resolve" in text or "Could not connect" in text:
            return f"{self._host()} cannot be reached"
        if text.startswith(
            ("ABORTED", "UNAVAILABLE", "DEADLINE_EXCEEDED", "UNKNOWN", "INTERNAL", "RESOURCE_EXHAUSTED")
        ):
            return f"{self._host()} failed ({_short(text)})"
        raise StoreError(self.where(name), f"{what} failed ({_short(text)})", "check the name and the store") from error

    def _denial(self, name: str) -> str:
        """What the store says of an object that may not be looked at, which only an answer with a body tells."""
        try:
            self._kv.read(self._key(name), byte_range=slice(0, 1)).result(LATER)
        except (TimeoutError, ValueError, RuntimeError, OSError) as error:
            return str(error)
        return ""

    def stat(self, name: str, guess: int = 0) -> Stat:
        tag = self.tag(name)
        if tag is None:
            raise self._missing(name)
        # No answer of tensorstore has a size but that to a range which the object ends in: one is looked for.
        start, low, high = max(guess - 1, 0), 0, -1
        while high < 0 or low < high:
            stop = start + _PROBE
            try:
                self._range(name, start, stop)
            except _Beyond as error:
                if error.size >= 0:
                    return Stat(error.size, tag)
                high = start
            else:
                low = stop
            start = (low + high) // 2 if high >= 0 else 2 * low
        return Stat(low, tag)

    def tag(self, name: str) -> str | None:
        found = self._range(name, 0, 0)
        return None if found.state == "missing" else _tag_of(found)

    def _range(self, name: str, start: int, stop: int) -> Any:
        """What tensorstore gives of a range. Raises _Beyond where it does not lie in the object, and UserError."""
        span = slice(start, stop)
        return self._ask("read", name, lambda: self._kv.read(self._key(name), byte_range=span), stop - start)

    def read(self, name: str, start: int, stop: int, tag: str = "") -> bytes:
        if stop <= start:
            return b""
        for _ in range(TRIES):
            try:
                found = self._range(name, start, stop)
            except _Beyond as error:
                if error.size >= stop:  # the object has these bytes, and the body was cut
                    continue
                raise too_short(self.where(name), max(error.size, 0), stop) from error
            if found.state == "missing":
                raise self._missing(name)
            if tag and _tag_of(found) != tag:
                raise replaced(self.where(name))
            if len(found.value) == stop - start:
                return bytes(found.value)
        what = f"gave fewer than the {stop - start:,} bytes that were asked for, {TRIES} times"
        raise StoreError(self.where(name), what, "repeat the command")

    def load(self, name: str) -> bytes | None:
        found = self._ask("read", name, lambda: self._kv.read(self._key(name)), _LARGEST)
        return None if found.state == "missing" else bytes(found.value)

    def list(self, prefix: str = "") -> list[str]:
        if self._driver == "http":
            remedy = "name the objects with braces, as {0000..0009}, or give a file that lists them"
            raise UserError(self.url, "a plain server lists nothing", remedy)
        import tensorstore as ts

        first = (self._prefix + prefix).encode()
        past = first[:-1] + bytes([first[-1] + 1]) if first else b""
        keys = self._ask("list", "", lambda: self._kv.list(ts.KvStore.KeyRange(first, past)))
        names = (key.decode("utf-8", "surrogateescape") for key in keys)
        return sorted(name[len(self._prefix) :] for name in names)

    def put(self, name: str, content: bytes) -> None:
        self._ask("write", name, lambda: self._kv.write(self._key(name), content), len(content))

    def create(self, name: str, content: bytes) -> bool:
        done = self._ask(
            "write", name, lambda: self._kv.write(self._key(name), content, if_equal=_ABSENT), len(content)
        )
        return bool(done.generation) or self.load(name) == content

    def delete(self, name: str) -> None:
        self._ask("delete", name, lambda: self._kv.write(self._key(name), None))

    def _missing(self, name: str) -> StoreError:
        return StoreError(self.where(name), "is not there", "put it there, or mend its name")


# {the code of S3 of a denial that no permission mends: (why, a remedy)}
_DENIALS = {
    "RequestTimeTooSkewed": ("the clocks of this machine and of the store differ too much", "set the clock here"),
    "ExpiredToken": ("the credentials have expired", "get new ones (AWS_SESSION_TOKEN and its keys)"),
    "InvalidAccessKeyId": ("the store does not know the access key", "check AWS_ACCESS_KEY_ID, or the profile"),
    "SignatureDoesNotMatch": ("the secret key is not that of the access key", "check AWS_SECRET_ACCESS_KEY"),
}


class _Beyond(Exception):
    """A range that an object ends in, or before."""

    def __init__(self, text: str):
        super().__init__(text)
        found = re.search(r"total size (\d+)", text)
        self.size = int(found[1]) if found else -1  # of the object; -1: unknown, and the range begins behind it


def _tag_of(found: Any) -> str:
    return found.stamp.generation[1:].decode("latin-1").strip('"')


def _credentials() -> str:
    """Where tensorstore finds the credentials of S3."""
    if os.environ.get("AWS_NO_SIGN_REQUEST", "").lower() in ("1", "true", "yes"):
        return "anonymous"
    return "environment" if os.environ.get("AWS_ACCESS_KEY_ID") else "default"


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) < 200 else f"{line[:197]}..."
